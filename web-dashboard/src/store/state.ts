/** The normalised state of the page, and how events change it. Pure. */

import type {
  KnownEvent,
  Overview,
  PermissionView,
  SessionDetail,
  SessionId,
  SessionView,
  WaitingFor,
  WireEvent,
  WorkerDetail,
  WorkerId,
  WorkerView,
} from "../api/types";
import type { StreamStatus } from "../live/stream";

export interface LiveTool {
  id: string;
  tool: string;
  summary: string;
  tail: string;
  since: string;
}

/** What an agent says and does now; gone once the record of it is here. */
export interface LiveAgent {
  text: string;
  thinking: boolean;
  /** Words were lost on the way, or came before this page did: the finished text will be whole. */
  gap: boolean;
  /** The beginning of this answer was seen. */
  begun: boolean;
  /** The seq (coordinator) or record number (worker) that holds this text for good. */
  closedBy: number | null;
  tools: LiveTool[];
  activity: string | null;
  waiting: { waitingFor: WaitingFor; cause: string; until: string | null } | null;
  /** Tokens in the window, newer than the last worker view. */
  contextTokens: number | null;
  contextWindow: number | null;
}

export const NOTHING_LIVE: LiveAgent = {
  text: "",
  thinking: false,
  gap: false,
  begun: false,
  closedBy: null,
  tools: [],
  activity: null,
  waiting: null,
  contextTokens: null,
  contextWindow: null,
};

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
}

export interface State {
  connection: { status: StreamStatus; heardAt: number; why: string };
  /** Server's clock minus ours, in milliseconds. */
  clockOffset: number;
  overview: Loaded<Overview>;
  position: number;
  workers: Readonly<Record<WorkerId, WorkerView>>;
  sessions: Readonly<Record<SessionId, SessionView>>;
  permissions: Loaded<Readonly<Record<string, PermissionView>>>;
  /** The rule an `always` wrote, by request. */
  wroteRule: Readonly<Record<string, string>>;
  sessionDetails: Readonly<Record<SessionId, Loaded<SessionDetail>>>;
  workerDetails: Readonly<Record<WorkerId, Loaded<WorkerDetail>>>;
  /** Records known to exist, per worker: the transcript is read up to here. */
  lastRecord: Readonly<Record<WorkerId, { n: number; rewinds: number }>>;
  /** By worker id, or `c:` and session id for a coordinator. */
  live: Readonly<Record<string, LiveAgent>>;
}

export const INITIAL: State = {
  connection: { status: "connecting", heardAt: 0, why: "" },
  clockOffset: 0,
  overview: { data: null, error: null },
  position: 0,
  workers: {},
  sessions: {},
  permissions: { data: null, error: null },
  wroteRule: {},
  sessionDetails: {},
  workerDetails: {},
  lastRecord: {},
  live: {},
};

/** What must be read again because of an event. */
export type Stale = "overview" | "permissions" | `session ${string}` | `worker ${string}`;

/** What a change repaints, and how soon. */
export type Channel = "now" | "text" | "rows" | "money";

export interface Change {
  state: State;
  stale: Set<Stale>;
  channels: Set<Channel>;
}

export const coordinatorKey = (session: SessionId): string => `c:${session}`;

/** Applies events in order. An event at or before the cursor is a repeat and changes nothing. */
export function applyEvents(before: State, events: readonly WireEvent[]): Change {
  const stale = new Set<Stale>();
  const channels = new Set<Channel>();
  let state = before;
  for (const event of events) {
    if (event.position !== undefined) {
      if (event.position <= state.position) continue;
      state = { ...state, position: event.position };
    }
    state = apply(state, event, stale, channels);
  }
  return { state, stale, channels };
}

function setLive(state: State, key: string, change: (live: LiveAgent) => LiveAgent): State {
  const live = state.live[key] ?? NOTHING_LIVE;
  const next = change(live);
  return next === live ? state : { ...state, live: { ...state.live, [key]: next } };
}

function apply(state: State, wire: WireEvent, stale: Set<Stale>, channels: Set<Channel>): State {
  const session = wire.session_id;
  const touch = (worker?: string | null) => {
    stale.add("overview");
    if (session !== null) stale.add(`session ${session}`);
    if (worker) stale.add(`worker ${worker}`);
  };
  const event = wire as unknown as KnownEvent;
  switch (event.kind) {
    case "live":
      return applyLive(state, event, channels);
    case "worker.state": {
      touch(event.worker_id);
      channels.add("rows");
      if (event.worker === undefined || event.worker === null) return state;
      return {
        ...state,
        workers: { ...state.workers, [event.worker_id]: newer(state.workers[event.worker_id], event.worker) },
      };
    }
    case "worker.record": {
      const { n, record } = event.record;
      const key = event.worker_id;
      const known = state.lastRecord[key];
      let next: State = {
        ...state,
        lastRecord: { ...state.lastRecord, [key]: { n, rewinds: known?.rewinds ?? 0 } },
      };
      channels.add("rows");
      if (record === "assistant") next = setLive(next, key, (live) => ({ ...live, closedBy: n }));
      else if (record === "request_started" || record === "run_started") {
        next = setLive(next, key, (live) => ({
          ...live,
          text: "",
          thinking: false,
          gap: false,
          begun: true,
          closedBy: null,
          waiting: null,
        }));
      } else if (record === "run_ended") next = setLive(next, key, () => ({ ...NOTHING_LIVE }));
      if (record === "todo") stale.add(`worker ${key}`);
      return next;
    }
    case "worker.rewound": {
      const known = state.lastRecord[event.worker_id];
      touch(event.worker_id);
      channels.add("rows");
      return {
        ...state,
        lastRecord: {
          ...state.lastRecord,
          [event.worker_id]: { n: event.n, rewinds: (known?.rewinds ?? 0) + 1 },
        },
      };
    }
    case "coordinator.request":
      touch();
      channels.add("text");
      if (session === null) return state;
      return setLive(state, coordinatorKey(session), () => ({ ...NOTHING_LIVE, begun: true }));
    case "coordinator.turn":
      touch();
      channels.add("text");
      if (session === null || event.seq === null) return state;
      return setLive(state, coordinatorKey(session), (live) => ({ ...live, closedBy: event.seq }));
    case "permission.requested": {
      touch(event.request.worker_id);
      stale.add("permissions");
      channels.add("rows");
      if (session === null || state.permissions.data?.[event.request.id]) return state;
      const asked = Date.parse(event.request.requested_at);
      const view: PermissionView = {
        request: event.request,
        session_id: session,
        worker_name: state.workers[event.request.worker_id]?.name ?? event.request.worker_id,
        deadline_at: new Date(asked + event.request.timeout_ms).toISOString(),
        // Known once the list is read again; until then "always" is not offered.
        always_file: null,
        decision: null,
        withdrawn: null,
        sandbox_tier: state.workers[event.request.worker_id]?.sandbox_tier ?? null,
      };
      return withPermission(state, view);
    }
    case "permission.decided": {
      touch(event.worker_id);
      channels.add("rows");
      const view = state.permissions.data?.[event.decision.id];
      if (event.wrote_rule) {
        state = { ...state, wroteRule: { ...state.wroteRule, [event.decision.id]: event.wrote_rule } };
      }
      return view ? withPermission(state, { ...view, decision: event.decision }) : state;
    }
    case "permission.withdrawn": {
      touch();
      channels.add("rows");
      const view = state.permissions.data?.[event.id];
      return view ? withPermission(state, { ...view, withdrawn: event.reason }) : state;
    }
    default:
      return applyOther(state, wire, touch, channels);
  }
}

/** Kinds that only say what to read again. Kinds this build does not know fall through and change nothing. */
function applyOther(
  state: State,
  wire: WireEvent,
  touch: (worker?: string | null) => void,
  channels: Set<Channel>,
): State {
  switch (wire.kind) {
    case "worker.spawned":
    case "worker.run":
    case "worker.run_ended":
    case "worker.worktree":
    case "worker.command":
    case "worker.command_settled":
    case "review.merged":
    case "review.discarded":
    case "review.restored":
    case "error":
      touch(wire.worker_id ?? null);
      break;
    case "notification.queued":
    case "notification.sent":
    case "notification.committed":
    case "session.created":
    case "session.state":
    case "session.permission_mode":
    case "task.accepted":
    case "task.finished":
    case "message.queued":
    case "coordinator.intent":
    case "coordinator.tool":
    case "coordinator.compacted":
    case "coordinator.exit":
    case "coordinator.helper":
    case "budget":
      touch();
      break;
    default:
      return state;
  }
  channels.add("rows");
  return state;
}

function applyLive(state: State, event: KnownEvent & { kind: "live" }, channels: Set<Channel>): State {
  const key = event.worker_id ?? (event.session_id === null ? null : coordinatorKey(event.session_id));
  if (key === null) return state;
  const data = event.data;
  switch (data.live) {
    case "text_delta":
      channels.add("text");
      return setLive(state, key, (live) => {
        const fresh =
          live.closedBy === null ? live : { ...live, text: "", closedBy: null, gap: false, begun: true };
        if (data.thinking) return { ...fresh, thinking: true };
        const gap = fresh.gap || (fresh.text === "" && !fresh.begun);
        return { ...fresh, gap, thinking: false, text: fresh.text + data.text };
      });
    case "tool_started":
      channels.add("text");
      return setLive(state, key, (live) => ({
        ...live,
        thinking: false,
        tools: [
          ...live.tools.filter((tool) => tool.id !== data.tool_use_id),
          { id: data.tool_use_id, tool: data.tool, summary: data.summary, tail: "", since: event.at },
        ].slice(-16),
      }));
    case "tool_progress":
      channels.add("text");
      return setLive(state, key, (live) => ({
        ...live,
        tools: live.tools.map((tool) => (tool.id === data.tool_use_id ? { ...tool, tail: data.tail } : tool)),
      }));
    case "tool_ended":
      channels.add("text");
      return setLive(state, key, (live) => ({
        ...live,
        tools: live.tools.filter((tool) => tool.id !== data.tool_use_id),
      }));
    case "activity":
      channels.add("rows");
      return setLive(state, key, (live) => ({
        ...live,
        activity: data.text,
        contextTokens: data.context_tokens ?? live.contextTokens,
        contextWindow: data.context_window ?? live.contextWindow,
      }));
    case "waiting":
      channels.add("rows");
      return setLive(state, key, (live) => ({
        ...live,
        waiting:
          data.waiting_for === null
            ? null
            : { waitingFor: data.waiting_for, cause: data.cause, until: data.until },
      }));
    default:
      return state;
  }
}

function withPermission(state: State, view: PermissionView): State {
  return {
    ...state,
    permissions: { ...state.permissions, data: { ...state.permissions.data, [view.request.id]: view } },
  };
}

/** After a break of the stream deltas are missing: what stands there is marked, running tools are unknown. */
export function afterGap(state: State): State {
  const live: Record<string, LiveAgent> = {};
  for (const [key, agent] of Object.entries(state.live)) {
    live[key] = { ...agent, gap: agent.text !== "" && agent.closedBy === null, tools: [] };
  }
  return { ...state, live };
}

export function withOverview(state: State, overview: Overview, receivedAt: number): State {
  const workers = { ...state.workers };
  for (const row of overview.rows) {
    if (row.worker !== null) workers[row.worker.id] = newer(workers[row.worker.id], row.worker);
  }
  const sessions: Record<string, SessionView> = {};
  for (const session of overview.sessions) sessions[session.session_id] = session;
  const serverNow = Date.parse(overview.now);
  return {
    ...state,
    overview: { data: overview, error: null },
    sessions: { ...state.sessions, ...sessions },
    workers,
    // The stream begins at the first snapshot. Later ones may run ahead of events that are still on their
    // way, which other parts of the state need: they do not move the cursor.
    position: state.position === 0 ? overview.position : state.position,
    clockOffset: Number.isNaN(serverNow) ? state.clockOffset : serverNow - receivedAt,
  };
}

/** How many settled requests stay in sight. */
const SETTLED_KEPT = 50;

/** `asked`: the requests that were open when the list was asked for; one that came later is no gap in it. */
export function withPermissions(
  state: State,
  list: readonly PermissionView[],
  asked: ReadonlySet<string>,
): State {
  const next: Record<string, PermissionView> = {};
  const known = state.permissions.data ?? {};
  for (const view of list) {
    const old = known[view.request.id];
    // A decision that came by an event is not undone by an older list.
    next[view.request.id] = old && !isOpen(old) ? old : view;
  }
  // What was settled while somebody looked stays in place, with who decided.
  const rest = Object.values(known).filter((view) => !next[view.request.id]);
  for (const view of rest.filter(isOpen)) {
    const gone = asked.has(view.request.id);
    next[view.request.id] = gone ? { ...view, withdrawn: "it no longer waits" } : view;
  }
  const settled = rest
    .filter((view) => !isOpen(view))
    .sort((a, b) => b.request.requested_at.localeCompare(a.request.requested_at));
  for (const view of settled.slice(0, SETTLED_KEPT)) next[view.request.id] = view;
  return { ...state, permissions: { data: next, error: null } };
}

export function withSessionDetail(state: State, detail: SessionDetail): State {
  const id = detail.session.session_id;
  const known = state.sessionDetails[id]?.data;
  if (known && known.seq > detail.seq) return state;
  const workers = { ...state.workers };
  for (const worker of detail.workers) workers[worker.id] = newer(workers[worker.id], worker);
  let next: State = {
    ...state,
    workers,
    sessions: { ...state.sessions, [id]: detail.session },
    sessionDetails: { ...state.sessionDetails, [id]: { data: detail, error: null } },
  };
  next = setLive(next, coordinatorKey(id), (live) =>
    live.closedBy !== null && live.closedBy <= detail.seq ? NOTHING_LIVE : live,
  );
  return withFullPermissions(next, detail.permissions);
}

export function withWorkerDetail(state: State, detail: WorkerDetail): State {
  const id = detail.worker.id;
  const known = state.workerDetails[id]?.data;
  if (known && known.seq > detail.seq) return state;
  const next: State = {
    ...state,
    workers: { ...state.workers, [id]: newer(state.workers[id], detail.worker) },
    workerDetails: { ...state.workerDetails, [id]: { data: detail, error: null } },
  };
  return detail.permission ? withFullPermissions(next, [detail.permission]) : next;
}

function withFullPermissions(state: State, views: readonly PermissionView[]): State {
  if (views.length === 0) return state;
  const data = { ...state.permissions.data };
  for (const view of views) {
    const known = data[view.request.id];
    // A decision that came by an event is not undone by an older snapshot.
    if (known && !isOpen(known) && isOpen(view)) continue;
    data[view.request.id] = view;
  }
  return { ...state, permissions: { ...state.permissions, data } };
}

function newer(known: WorkerView | undefined, got: WorkerView): WorkerView {
  return known && known.updated_at > got.updated_at ? known : got;
}

export function isOpen(view: PermissionView): boolean {
  return view.decision === null && view.withdrawn === null;
}

/** Open requests, earliest deadline first. */
export function openPermissions(state: State): PermissionView[] {
  return Object.values(state.permissions.data ?? {})
    .filter(isOpen)
    .sort(
      (a, b) =>
        (a.deadline_at ?? "9").localeCompare(b.deadline_at ?? "9") ||
        a.request.id.localeCompare(b.request.id),
    );
}

export function countNeeds(state: State): number {
  const rows = state.overview.data?.rows ?? [];
  return rows.reduce((sum, row) => sum + (row.group === "needs_you" ? 1 : 0), 0);
}
