import { describe, expect, it } from "vitest";
import type { Overview } from "../src/api/types";
import {
  afterGap,
  applyEvents,
  coordinatorKey,
  INITIAL,
  openPermissions,
  type State,
  withOverview,
  withPermissions,
} from "../src/store/state";
import { event, live, NOW, permission, request, SESSION, worker } from "./sample";

const overview = (over: Partial<Overview> = {}): Overview => ({
  rows: [],
  sessions: [],
  asks: 0,
  today: { known_usd: 0, unpriced_calls: 0 },
  position: 0,
  now: new Date(NOW).toISOString(),
  ...over,
});

describe("the cursor", () => {
  it("skips repeats and keeps what is new", () => {
    const first = event("worker.state", { worker_id: "agent-a1b", worker: worker({ turns: 1 }) });
    const one = applyEvents(INITIAL, [first]);
    expect(one.state.workers["agent-a1b"]?.turns).toBe(1);
    const repeat = applyEvents(one.state, [{ ...first, worker: worker({ turns: 99 }) }]);
    expect(repeat.state).toBe(one.state);
    expect(repeat.stale.size).toBe(0);
  });
  it("is taken from the first snapshot, and later snapshots do not swallow events on their way", () => {
    let state = withOverview(INITIAL, overview({ position: 500 }), NOW);
    expect(state.position).toBe(500);
    state = withOverview(state, overview({ position: 900 }), NOW);
    expect(state.position).toBe(500);
  });
  it("takes the offset of the clocks from the server's time", () => {
    expect(withOverview(INITIAL, overview(), NOW - 4000).clockOffset).toBe(4000);
  });
});

describe("events", () => {
  it("skips kinds it does not know", () => {
    const change = applyEvents(INITIAL, [event("something.new", { worker_id: "agent-a1b" })]);
    expect(change.stale.size).toBe(0);
    expect(change.channels.size).toBe(0);
  });
  it("does not let an older view of a worker replace a newer one", () => {
    const state: State = {
      ...INITIAL,
      workers: { "agent-a1b": worker({ turns: 5, updated_at: "2026-11-30T12:00:09.000Z" }) },
    };
    const change = applyEvents(state, [
      event("worker.state", { worker_id: "agent-a1b", worker: worker({ turns: 2 }) }),
    ]);
    expect(change.state.workers["agent-a1b"]?.turns).toBe(5);
  });
  it("says what must be read again", () => {
    const change = applyEvents(INITIAL, [event("review.merged", { worker_id: "agent-a1b" })]);
    expect([...change.stale].sort()).toEqual(["overview", `session ${SESSION}`, "worker agent-a1b"]);
  });
});

describe("permissions", () => {
  it("appear at once, without an offer to write a rule to an unknown file", () => {
    const { state, stale } = applyEvents(INITIAL, [event("permission.requested", { request: request() })]);
    const view = state.permissions.data?.["req-abc"];
    expect(view?.deadline_at).toBe("2026-11-30T12:10:00.000Z");
    expect(view?.always_file).toBeNull();
    expect(stale.has("permissions")).toBe(true);
  });
  it("leave by the journal's decision and keep who decided", () => {
    const state: State = { ...INITIAL, permissions: { data: { "req-abc": permission() }, error: null } };
    const decision = {
      id: "req-abc",
      decision: "deny",
      scope: "once",
      by: "timeout",
      reason: null,
      decided_at: "2026-11-30T12:10:00.000Z",
    };
    const after = applyEvents(state, [
      event("permission.decided", { worker_id: "agent-a1b", decision }),
    ]).state;
    expect(openPermissions(after)).toEqual([]);
    expect(after.permissions.data?.["req-abc"]?.decision?.by).toBe("timeout");
    const withdrawn = applyEvents(state, [
      event("permission.withdrawn", { id: "req-abc", reason: "the call was cancelled" }),
    ]).state;
    expect(withdrawn.permissions.data?.["req-abc"]?.withdrawn).toBe("the call was cancelled");
  });
  it("stand by deadline, earliest first", () => {
    const late = permission({
      request: request({ id: "req-late" }),
      deadline_at: "2026-11-30T12:20:00.000Z",
    });
    const state = withPermissions(INITIAL, [late, permission()], new Set());
    expect(openPermissions(state).map((view) => view.request.id)).toEqual(["req-abc", "req-late"]);
  });
  it("a list that no longer holds an open one settles it, visibly", () => {
    const open = withPermissions(INITIAL, [permission()], new Set());
    const state = withPermissions(open, [], new Set(["req-abc"]));
    expect(openPermissions(state)).toEqual([]);
    expect(state.permissions.data?.["req-abc"]?.withdrawn).not.toBeNull();
  });
});

it("a list that was asked for before a request came does not settle it", () => {
  const open = withPermissions(INITIAL, [permission()], new Set());
  expect(openPermissions(withPermissions(open, [], new Set()))).toHaveLength(1);
});

it("an older list does not undo a decision", () => {
  const decision = {
    id: "req-abc",
    decision: "allow",
    scope: "once",
    by: "person",
    reason: null,
    decided_at: "",
  };
  const decided = permission({ decision: decision as never });
  const state: State = { ...INITIAL, permissions: { data: { "req-abc": decided }, error: null } };
  expect(openPermissions(withPermissions(state, [permission()], new Set()))).toEqual([]);
});

describe("live words", () => {
  const delta = (text: string) => live(null, { live: "text_delta", text, thinking: false });
  const key = coordinatorKey(SESSION);

  it("grow, and are closed by the turn that holds them for good", () => {
    const turn = event("coordinator.turn", { request: 2, turn: 1 });
    const { state } = applyEvents(INITIAL, [
      event("coordinator.request", { request: 1 }),
      delta("Both "),
      delta("merge."),
    ]);
    expect(state.live[key]).toMatchObject({ text: "Both merge.", gap: false, closedBy: null });
    const closed = applyEvents(state, [{ ...turn, position: 10_000, seq: 77 }]).state;
    expect(closed.live[key]?.closedBy).toBe(77);
    const next = applyEvents(closed, [delta("New")]).state;
    expect(next.live[key]).toMatchObject({ text: "New", closedBy: null });
  });
  it("say so when their beginning was not heard, or a part was lost", () => {
    const joined = applyEvents(INITIAL, [delta("in the middle")]).state;
    expect(joined.live[key]?.gap).toBe(true);
    const whole = applyEvents(INITIAL, [
      { ...event("coordinator.request", { request: 1 }), position: 20_000 },
      delta("x"),
    ]).state;
    expect(afterGap(whole).live[key]?.gap).toBe(true);
  });
  it("thinking is not text", () => {
    const { state } = applyEvents(INITIAL, [
      live("agent-a1b", { live: "text_delta", text: "hm", thinking: true }),
    ]);
    expect(state.live["agent-a1b"]).toMatchObject({ text: "", thinking: true });
  });
  it("tools come, tell and go", () => {
    const started = applyEvents(INITIAL, [
      live("agent-a1b", { live: "tool_started", tool_use_id: "t", tool: "Bash", summary: "make" }),
      live("agent-a1b", { live: "tool_progress", tool_use_id: "t", tail: "ok" }),
    ]).state;
    expect(started.live["agent-a1b"]?.tools).toMatchObject([{ id: "t", tail: "ok" }]);
    const ended = applyEvents(started, [
      live("agent-a1b", { live: "tool_ended", tool_use_id: "t", is_error: false }),
    ]);
    expect(ended.state.live["agent-a1b"]?.tools).toEqual([]);
  });
  it("records move the transcript's end, a rewind starts it anew", () => {
    const head = { n: 7, record: "assistant" };
    const one = applyEvents(INITIAL, [
      { ...event("worker.record", { worker_id: "agent-a1b", record: head }), position: 30_000 },
    ]).state;
    expect(one.lastRecord["agent-a1b"]).toEqual({ n: 7, rewinds: 0 });
    const two = applyEvents(one, [
      { ...event("worker.rewound", { worker_id: "agent-a1b", n: 4 }), position: 30_001 },
    ]).state;
    expect(two.lastRecord["agent-a1b"]).toEqual({ n: 4, rewinds: 1 });
  });
});
