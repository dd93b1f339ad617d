import type { PermissionRequest, PermissionView, WireEvent, WorkerView } from "../src/api/types";

export const SESSION = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";
export const NOW = Date.parse("2026-11-30T12:00:00.000Z");

export function worker(over: Partial<WorkerView> = {}): WorkerView {
  const usage = { input_tokens: 0, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0 };
  return {
    id: "agent-a1b",
    name: "Investigate",
    status: "running",
    exit_reason: null,
    exit_detail: null,
    doubts: [],
    branch: "swarm/x",
    base: "0".repeat(40),
    commits: 0,
    files_changed: 0,
    insertions: 0,
    deletions: 0,
    turns: 0,
    usage,
    cost_usd: 0,
    session_id: SESSION,
    task_id: SESSION,
    run: 1,
    agent_type: "general-purpose",
    isolation: "worktree",
    expects: "changes",
    model: "demo",
    waiting_for: null,
    cause: null,
    request_id: null,
    position: null,
    activity: "",
    context_tokens: null,
    context_window: null,
    worktree: "/w",
    worktree_exists: true,
    port_base: 4310,
    sandbox_tier: null,
    pid: null,
    restarts: 0,
    merged_into: null,
    discarded: false,
    stopped_by_person: false,
    unread: 0,
    snapshots: 0,
    spawned_at: "2026-11-30T11:50:00.000Z",
    updated_at: "2026-11-30T11:59:59.000Z",
    ended_at: null,
    age_ms: 0,
    ...over,
  };
}

export function request(over: Partial<PermissionRequest> = {}): PermissionRequest {
  return {
    id: "req-abc",
    worker_id: "agent-a1b",
    run: 1,
    tool_use_id: "t1",
    tool: "Bash",
    input: { command: "make" },
    summary: "make",
    why: "no rule allows it",
    proposed_rule: "Bash(make)",
    description: null,
    requested_at: "2026-11-30T12:00:00.000Z",
    timeout_ms: 600_000,
    ...over,
  };
}

export function permission(over: Partial<PermissionView> = {}): PermissionView {
  return {
    request: request(),
    session_id: SESSION,
    worker_name: "Investigate",
    deadline_at: "2026-11-30T12:10:00.000Z",
    always_file: "/s.json",
    decision: null,
    withdrawn: null,
    sandbox_tier: 1,
    ...over,
  };
}

let position = 0;
export function event(kind: string, fields: Record<string, unknown> = {}): WireEvent {
  position += 1;
  return {
    v: 1,
    seq: position,
    at: "2026-11-30T12:00:00.000Z",
    session_id: SESSION,
    position,
    kind,
    ...fields,
  };
}

export function live(worker_id: string | null, data: Record<string, unknown>): WireEvent {
  return {
    v: 1,
    seq: null,
    at: "2026-11-30T12:00:00.000Z",
    session_id: SESSION,
    kind: "live",
    worker_id,
    after: 1,
    data,
  };
}
