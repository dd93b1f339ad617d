import { describe, expect, it } from "vitest";
import type { WorkerView } from "../src/api/types";
import {
  doubtSentence,
  exitSentence,
  fromRow,
  sessionState,
  workerFact,
  workerState,
} from "../src/lib/states";
import { NOW, worker } from "./sample";

const word = (over: Partial<WorkerView>) => {
  const { group, word: text, glyph } = workerState(worker(over), NOW);
  return `${group}: ${text} (${glyph})`;
};

describe("the one table of states", () => {
  it.each<[Partial<WorkerView>, string]>([
    [{ status: "pending", position: 3 }, "queued: Queued (queued)"],
    [{ status: "pending" }, "queued: Queued (queued)"],
    [{ status: "starting" }, "working: Setting up (work)"],
    [{ status: "running" }, "working: Working (work)"],
    [{ status: "finishing" }, "working: Finishing (work)"],
    [{ status: "running", updated_at: "2026-11-30T11:53:30.000Z" }, "watch: Quiet 6 m (quiet)"],
    [{ status: "waiting", waiting_for: "permission" }, "needs_you: Permission (need)"],
    [{ status: "waiting", waiting_for: "model" }, "watch: Waits for model (quiet)"],
    [{ status: "waiting", waiting_for: "server" }, "watch: Reconnecting (quiet)"],
    [{ status: "waiting", waiting_for: "own_jobs" }, "working: Waits for own jobs (work)"],
    [{ status: "failed" }, "failed: Failed (fail)"],
    [{ status: "aborted", stopped_by_person: true }, "done: Stopped by you (stopped)"],
    [{ status: "aborted" }, "done: Stopped by coordinator (stopped)"],
    [{ status: "completed", commits: 1, files_changed: 2 }, "ready: Ready to review (ready)"],
    [{ status: "completed", commits: 1, doubts: ["left_dirty"] }, "needs_you: 1 doubt (doubt)"],
    [
      { status: "completed", commits: 1, doubts: ["left_dirty", "unverified_claim"] },
      "needs_you: 2 doubts (doubt)",
    ],
    [{ status: "completed", doubts: ["no_change"] }, "needs_you: 1 doubt (doubt)"],
    [{ status: "completed", branch: null, expects: "report" }, "done: Reported (reported)"],
    [{ status: "completed", branch: null }, "done: Nothing to change (nothing)"],
    [{ status: "completed", commits: 1, merged_into: "main" }, "done: Merged into main (merged)"],
    [{ status: "completed", commits: 1, discarded: true }, "done: Discarded (discarded)"],
  ])("%j", (over, expected) => {
    expect(word(over)).toBe(expected);
  });

  it("takes the server's word for rows, and never loses an unknown group", () => {
    expect(fromRow({ group: "needs_you", word: "Asks you", glyph: "▲" })).toEqual({
      group: "needs_you",
      word: "Asks you",
      glyph: "need",
      hue: "need",
    });
    expect(fromRow({ group: "later", word: "Something", glyph: "?" }).group).toBe("done");
    expect(fromRow({ group: "done", word: "Reported", glyph: "✓" }).glyph).toBe("reported");
  });
});

describe("causes in words, never a bare code", () => {
  it("tells exit reasons with their data", () => {
    expect(exitSentence("max_turns", { limit: 500 })).toBe("reached its 500 turns");
    expect(exitSentence("killed", { signal: 9 })).toBe("killed (signal 9)");
    expect(exitSentence("model_error", { error: "rate_limit", message: "slow down" })).toBe(
      "rate limit: slow down",
    );
    expect(exitSentence("some_new_reason", null)).toBe("some new reason");
    expect(exitSentence(null, null)).toBe("");
  });
  it("tells doubts", () => {
    expect(doubtSentence("left_dirty")).toBe("left files uncommitted");
    expect(doubtSentence("a_new_doubt")).toBe("a new doubt");
  });
  it("prefers the server's cause", () => {
    const queued = { status: "pending", position: 2 } as const;
    expect(workerFact(worker({ ...queued, cause: "waits for a place" }))).toBe("place 2");
    expect(workerFact(worker({ ...queued, cause: "waits for memory: 9 MiB free" }))).toBe(
      "waits for memory: 9 MiB free",
    );
    expect(workerFact(worker({ status: "failed", cause: "rate limit", exit_reason: "lost" }))).toBe(
      "rate limit",
    );
    expect(workerFact(worker({ status: "failed", exit_reason: "lost" }))).toBe(
      "its process is gone and left no word",
    );
  });
});

it("sessions say what they need first", () => {
  const session = { state: "waiting", waiting_for: "key", asks: 2, verdict: null } as never;
  expect(sessionState(session).word).toBe("Needs a key");
  const asking = { state: "active", waiting_for: null, asks: 1, verdict: null } as never;
  expect(sessionState(asking).word).toBe("Permission");
});
