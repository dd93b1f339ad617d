/**
 * The words of the wire, as `swarm-protocol` defines them (JSON by serde). The rest of the dashboard imports
 * its types from here alone. Once the server's OpenAPI document is at hand, `npm run types` makes
 * `openapi.d.ts` from it and this file becomes a list of aliases.
 */

export * from "./transcript";

import type { RecordHead, TodoItem } from "./transcript";

/** RFC 3339, UTC, three digits of fraction. */
export type Timestamp = string;
export type SessionId = string;
export type TaskId = string;
export type WorkerId = string;
export type PermissionRequestId = string;

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  estimated?: boolean;
}

export interface Cost {
  known_usd: number;
  unpriced_calls: number;
}

export type WorkerStatus =
  | "pending"
  | "starting"
  | "running"
  | "waiting"
  | "finishing"
  | "completed"
  | "failed"
  | "aborted";
export type WaitingFor = "permission" | "own_jobs" | "model" | "server";
export type SessionState = "active" | "waiting" | "idle" | "ended";
export type Verdict = "complete" | "degraded" | "failed";
export type PermissionMode = "default" | "acceptEdits" | "plan" | "auto" | "bypassPermissions";
export type Doubt =
  | "no_change"
  | "check_failed"
  | "last_command_failed"
  | "unverified_claim"
  | "left_dirty"
  | "children_killed";
export type CheckResult = "none" | "passed" | "failed";

/** Tagged by `reason`; the other keys are its data. */
export interface ExitReason {
  reason: string;
  message?: string;
  limit?: number;
  error?: string;
  retry_at?: Timestamp;
  budget?: string;
  output?: string;
  signal?: number;
}

export interface FileChange {
  path: string;
  added: number | null;
  removed: number | null;
}

export interface CommandRun {
  command: string;
  exit_code: number | null;
  ended_by: string | null;
  benign: boolean;
  children_killed?: string[];
}

export interface Outcome {
  exit_reason: ExitReason;
  branch: string | null;
  base: string;
  commits: string[];
  files: FileChange[];
  dirty: string[];
  commands: CommandRun[];
  commands_after_last_edit: number;
  check: CheckResult;
  children_killed: string[];
  restarts: number;
  foreign_changes: string[];
  doubts: Doubt[];
  notes: string[];
}

export interface NotificationKey {
  worker_id: WorkerId;
  run: number;
  kind: "end" | "progress";
  n: number;
}

export interface Notification {
  key: NotificationKey;
  seq: number;
  status: "completed" | "failed" | "aborted" | "progress";
  summary: string;
  result: string;
  result_from_earlier: boolean;
  outcome: Outcome | null;
  turns: number;
  usage: Usage;
  cost: Cost;
  duration_ms: number;
  enqueued_at: Timestamp;
  after_stop?: boolean;
}

export interface LedgerStep {
  seq: number;
  at: Timestamp;
  step: string;
  request: number | null;
  turn: number | null;
  reason: string | null;
}

export interface LedgerEntry {
  notification: Notification;
  steps: LedgerStep[];
}

export interface WorkerView {
  id: WorkerId;
  name: string;
  status: WorkerStatus;
  exit_reason: string | null;
  exit_detail: unknown;
  doubts: Doubt[];
  branch: string | null;
  base: string;
  commits: number;
  files_changed: number;
  insertions: number;
  deletions: number;
  turns: number;
  usage: Usage;
  cost_usd: number | null;
  session_id: SessionId;
  task_id: TaskId;
  run: number;
  agent_type: string;
  isolation: "worktree" | "none" | "tmux";
  expects: "changes" | "report";
  model: string;
  waiting_for: WaitingFor | null;
  cause: string | null;
  request_id: PermissionRequestId | null;
  position: number | null;
  activity: string;
  context_tokens: number | null;
  context_window: number | null;
  worktree: string;
  worktree_exists: boolean;
  port_base: number;
  sandbox_tier: number | null;
  pid: number | null;
  restarts: number;
  merged_into: string | null;
  discarded: boolean;
  stopped_by_person: boolean;
  unread: number;
  snapshots: number;
  spawned_at: Timestamp;
  updated_at: Timestamp;
  ended_at: Timestamp | null;
  age_ms: number;
}

export interface BudgetView {
  caps: { usd?: number; tokens?: number };
  spent_usd: number;
  spent_tokens: number;
  open_usd: number;
  open_tokens: number;
  percent: number;
  waiting: number;
}

export interface SessionView {
  session_id: SessionId;
  short: string;
  title: string;
  repo: string;
  state: SessionState;
  waiting_for: string | null;
  base: string;
  base_name: string;
  target_branch: string | null;
  model: string;
  permission_mode: PermissionMode;
  task_id: TaskId | null;
  verdict: Verdict | null;
  workers: number;
  workers_running: number;
  queued: number;
  asks: number;
  usage: Usage;
  own_usage: Usage;
  cost_usd: number | null;
  cost: Cost;
  budget?: BudgetView;
  created_at: Timestamp;
  updated_at: Timestamp;
  seq: number;
  damaged_events?: number;
  damaged?: string;
}

export type ConversationItem =
  | { item: "person"; seq: number; at: Timestamp; text: string }
  | { item: "coordinator"; seq: number; at: Timestamp; text: string }
  | {
      item: "call";
      seq: number;
      at: Timestamp;
      tool: string;
      summary: string;
      worker_id: WorkerId | null;
      is_error: boolean;
    }
  | { item: "woke"; seq: number; at: Timestamp; request: number; notifications: Notification[] }
  | { item: "verdict"; seq: number; at: Timestamp; verdict: Verdict; reasons: string[] }
  | { item: "error"; seq: number; at: Timestamp; code: string; message: string };

export interface TaskView {
  task_id: TaskId;
  session_id: SessionId;
  prompt: string;
  status: "queued" | "active" | "waiting" | "done";
  verdict: Verdict | null;
  reasons: string[];
  exit_reason: string | null;
  exit_detail: unknown;
  text: string | null;
  usage: Usage;
  cost_usd: number | null;
  labels: string[];
  accepted_at: Timestamp;
  finished_at: Timestamp | null;
}

export interface SessionDetail {
  session: SessionView;
  tasks: TaskView[];
  workers: WorkerView[];
  notifications: LedgerEntry[];
  permissions: PermissionView[];
  conversation: ConversationItem[];
  seq: number;
}

export interface UnreadMessage {
  seq: number;
  text: string;
  from_person: boolean;
}

export interface WorkerDetail {
  worker: WorkerView;
  prompt: string;
  result: string | null;
  outcome: Outcome | null;
  ledger: LedgerEntry[];
  permission: PermissionView | null;
  todo: TodoItem[];
  unread: UnreadMessage[];
  seq: number;
}

export interface DiffView {
  base: string;
  head: string;
  branch: string;
  commits: number;
  files: FileChange[];
  uncommitted: string[];
  patch: string;
}

export type MergeStrategy = "merge" | "squash" | "rebase" | "no_ff";

export interface MergeBody {
  into?: string;
  strategy?: MergeStrategy;
  check?: boolean;
  dry_run?: boolean;
}

export interface ConflictFile {
  path: string;
  lines: string[];
}

export type MergeView =
  | {
      result: "merged";
      into: string;
      from: string;
      to: string;
      files: number;
      insertions: number;
      deletions: number;
    }
  | { result: "clean"; into: string; from: string }
  | { result: "already_merged"; into: string }
  | { result: "conflict"; into: string; at: string; files: ConflictFile[] }
  | { result: "target_dirty"; into: string; checkout: string; files: string[] }
  | { result: "target_moved"; into: string; expected: string; actual: string }
  | { result: "check_failed"; output: string };

export interface DiscardView {
  worker_id: WorkerId;
  kept_ref: string | null;
  days: number;
}

export interface RestoreView {
  message: string;
  kept_as: number | null;
}

export interface PermissionRequest {
  id: PermissionRequestId;
  worker_id: WorkerId;
  run: number;
  tool_use_id: string;
  tool: string;
  input: unknown;
  summary: string;
  why: string;
  proposed_rule: string | null;
  description: string | null;
  requested_at: Timestamp;
  timeout_ms: number;
  cwd?: string | null;
  args_hash?: string;
}

export interface PermissionRacer {
  by: Racer;
  source?: string | null;
}

export type Decision = "allow" | "deny";
export type Scope = "once" | "session" | "always";
export type Racer =
  | "rule"
  | "hook"
  | "person"
  | "remote"
  | "classifier"
  | "timeout"
  | "unattended"
  | "session_end"
  | "desk";

export interface PermissionDecision {
  id: PermissionRequestId;
  decision: Decision;
  scope: Scope;
  by: Racer;
  reason: string | null;
  stop?: boolean;
  decided_at: Timestamp;
  source?: string | null;
  args_hash?: string;
}

export interface PermissionView {
  request: PermissionRequest;
  session_id: SessionId;
  worker_name: string;
  deadline_at: Timestamp | null;
  always_file: string | null;
  decision: PermissionDecision | null;
  withdrawn: string | null;
  sandbox_tier: number | null;
  joined?: PermissionRequestId[];
  racers?: PermissionRacer[];
  wrote_rule?: string | null;
}

export interface AnswerPermission {
  decision: Decision;
  scope?: Scope;
  reason?: string;
  stop?: boolean;
}

export interface AnsweredPermission {
  won: boolean;
  decision: PermissionDecision;
  wrote_rule: string | null;
}

/** One of several answers. */
export interface AnsweredOne {
  id: string;
  answered: AnsweredPermission | null;
  problem: Problem | null;
}

export interface MessageAccepted {
  message_id: string | null;
  task_id: TaskId | null;
  status: string;
  note: string;
}

export interface StopView {
  stopping: WorkerId[];
  already: boolean;
}

export interface CreateTask {
  prompt: string;
  repo?: string;
  session_id?: SessionId;
  base?: string;
  model?: string;
  permission_mode?: PermissionMode;
  unattended?: boolean;
  max_workers?: number;
  /** One agent, and no coordinator that thinks. */
  solo?: boolean;
}

export interface TaskAccepted {
  task_id: TaskId;
  session_id: SessionId;
  after: number;
  notices: string[];
}

export interface OverviewRow {
  group: string;
  word: string;
  glyph: string;
  fact: string;
  worker: WorkerView | null;
  session_id: SessionId;
  title: string;
  deadline_at: Timestamp | null;
  link: string;
}

export interface Overview {
  rows: OverviewRow[];
  sessions: SessionView[];
  asks: number;
  today: Cost;
  position: number;
  now: Timestamp;
}

export interface ServerInfo {
  version: string;
  pid: number;
  home: string;
  started_at: Timestamp;
  sandbox_tier: number;
  sandbox_notes: string[];
  model: string | null;
}

/** RFC 9457 with a stable `code`. */
export interface Problem {
  type: string;
  status: number;
  title: string;
  causes?: string[];
  hint?: string;
  code: string;
}

export type Live =
  | { live: "text_delta"; text: string; thinking: boolean }
  | { live: "tool_started"; tool_use_id: string; tool: string; summary: string }
  | { live: "tool_progress"; tool_use_id: string; tail: string }
  | { live: "tool_ended"; tool_use_id: string; is_error: boolean }
  | { live: "activity"; text: string; context_tokens: number | null; context_window: number | null }
  | { live: "waiting"; waiting_for: WaitingFor | null; cause: string; until: Timestamp | null }
  | { live: "cache_break"; cause: string; expected_tokens: number; read_tokens: number };

/** What every event carries. */
export interface Envelope {
  v: number;
  seq: number | null;
  at: Timestamp;
  session_id: SessionId | null;
  /** Position among all sessions of the server; none for live events. */
  position?: number;
}

/** The kinds the dashboard reads something of. */
export type KnownEvent = Envelope &
  (
    | {
        kind: "worker.state";
        worker_id: WorkerId;
        from: WorkerStatus;
        status: WorkerStatus;
        waiting_for?: WaitingFor;
        reason: string;
        worker?: WorkerView;
      }
    | { kind: "worker.record"; worker_id: WorkerId; record: RecordHead }
    | { kind: "worker.rewound"; worker_id: WorkerId; n: number }
    | { kind: "coordinator.request"; request: number }
    | { kind: "coordinator.turn"; request: number; turn: number }
    | { kind: "permission.requested"; request: PermissionRequest }
    | {
        kind: "permission.decided";
        worker_id: WorkerId;
        decision: PermissionDecision;
        wrote_rule?: string;
      }
    | { kind: "permission.withdrawn"; id: PermissionRequestId; reason: string }
    | { kind: "live"; worker_id: WorkerId | null; after: number; data: Live }
  );

/** An event as it came: `kind` is looked at before anything else is. */
export interface WireEvent extends Envelope {
  kind: string;
  worker_id?: WorkerId | null;
  [key: string]: unknown;
}
