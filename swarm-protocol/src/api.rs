//! Bodies of the HTTP API (spec 8.2). The OpenAPI document is made from these types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ids::{MessageId, PermissionRequestId, RunNumber, Seq, SessionId, TaskId, WorkerId},
    launch::ModelEndpoint,
    notification::{Doubt, Notification, Outcome},
    permission::{Decision, PermissionDecision, PermissionMode, PermissionRequest, Scope},
    record::Record,
    status::{ExitReason, SessionState, Verdict, WaitingFor, WorkerStatus},
    time::Timestamp,
    usage::{Cost, Usage},
};

/// `POST /tasks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// What to do; not blank.
    pub prompt: String,
    /// A directory inside the repository; needed unless `session_id` is given.
    #[serde(default)]
    pub repo: Option<String>,
    /// The session to continue.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// The commit workers start from; HEAD when absent.
    #[serde(default)]
    pub base: Option<String>,
    /// `provider/name` or `demo`; the configured one when absent.
    #[serde(default)]
    pub model: Option<String>,
    /// The mode workers start in.
    #[serde(default)]
    pub permission_mode: Option<PermissionMode>,
    /// What would ask a person is denied at once.
    #[serde(default)]
    pub unattended: bool,
    /// Where the verdict is POSTed, signed.
    #[serde(default)]
    pub callback_url: Option<String>,
    /// The caller's labels.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Workers at once.
    #[serde(default)]
    pub max_workers: Option<u32>,
    /// Turns of a worker's run.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// The project's check for this task.
    #[serde(default)]
    pub check: Option<String>,
    /// Each worker gets a tmux window.
    #[serde(default)]
    pub tmux: bool,
    /// Append to the agents' system prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// Not offered yet: refused by name.
    #[serde(default)]
    pub budget: Option<Value>,
    /// What a shell resolved on its side (spec 1.4): model, endpoint, key, environment. Tasks from HTTP
    /// leave it out and use the server's own.
    #[serde(default)]
    pub client: Option<ClientContext>,
}

/// What a shell resolved on its side and sends along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientContext {
    /// `SWARM_*` variables and flags as `key = value` of the configuration, with their source.
    #[serde(default)]
    pub settings: Vec<ClientSetting>,
    /// Variables of the shell that name keys and endpoints; kept in memory only.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// The shell's environment, filtered, for commands.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The user's home.
    #[serde(default)]
    pub home: Option<String>,
}

/// A setting of the client, with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientSetting {
    /// The key, dotted.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// `--max-workers`, `SWARM_MODEL`.
    pub source: String,
}

/// Answer to `POST /tasks`: 202.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskAccepted {
    /// The task.
    pub task_id: TaskId,
    /// Its session.
    pub session_id: SessionId,
    /// The seq before the task's first event: follow from here.
    pub after: Seq,
    /// What a person should know: what is ignored for lack of trust, a dirty checkout.
    pub notices: Vec<String>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not begun.
    Queued,
    /// The coordinator works on it.
    Active,
    /// Workers run, or a question is open.
    Waiting,
    /// It has a verdict.
    Done,
}

/// `GET /tasks/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Its id.
    pub task_id: TaskId,
    /// Its session.
    pub session_id: SessionId,
    /// What was asked.
    pub prompt: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// How it came out.
    pub verdict: Option<Verdict>,
    /// Why, one sentence each.
    pub reasons: Vec<String>,
    /// How the coordinator ended, snake_case.
    pub exit_reason: Option<String>,
    /// Its data.
    pub exit_detail: Option<Value>,
    /// The coordinator's final text.
    pub text: Option<String>,
    /// The workers of this task.
    pub workers: Vec<WorkerView>,
    /// Use of the session, workers included.
    pub usage: Usage,
    /// Dollars, or null when a part is unknown.
    pub cost_usd: Option<f64>,
    /// The caller's labels.
    pub labels: Vec<String>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it was done.
    pub finished_at: Option<Timestamp>,
}

/// A session in lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionView {
    /// Its id.
    pub session_id: SessionId,
    /// The last 8 hex digits.
    pub short: String,
    /// First words of the first prompt.
    pub title: String,
    /// The repository.
    pub repo: String,
    /// Where it stands.
    pub state: SessionState,
    /// `key`, `question`, `workers`, when it waits.
    pub waiting_for: Option<String>,
    /// The commit workers start from.
    pub base: String,
    /// What it was called.
    pub base_name: String,
    /// Where merges go.
    pub target_branch: Option<String>,
    /// The coordinator's model.
    pub model: String,
    /// The mode workers start in.
    pub permission_mode: PermissionMode,
    /// The last task.
    pub task_id: Option<TaskId>,
    /// Its verdict.
    pub verdict: Option<Verdict>,
    /// Workers, all states.
    pub workers: u32,
    /// Workers with a run under way.
    pub workers_running: u32,
    /// Entries in the FIFO that are not committed.
    pub queued: u32,
    /// Permission requests that wait.
    pub asks: u32,
    /// Use, workers included.
    pub usage: Usage,
    /// Use of the coordinator alone.
    pub own_usage: Usage,
    /// Dollars, or null when a part is unknown.
    pub cost_usd: Option<f64>,
    /// The known part in dollars.
    pub cost: Cost,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When something last happened.
    pub updated_at: Timestamp,
    /// The last seq.
    pub seq: Seq,
    /// Events of its journal that cannot be read. In its stream stands an `error` event of the code
    /// `journal_damaged` for each.
    #[serde(default)]
    pub damaged_events: u64,
    /// Set when its journal could not be read: the session is shown, and nothing can be done with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// `GET /sessions/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionDetail {
    /// The session.
    pub session: SessionView,
    /// Its tasks, oldest first.
    pub tasks: Vec<TaskView>,
    /// Its workers, in spawn order.
    pub workers: Vec<WorkerView>,
    /// The FIFO, oldest first: what is not committed, and the last 100 that are.
    pub notifications: Vec<LedgerEntry>,
    /// Requests that wait.
    pub permissions: Vec<PermissionView>,
    /// The conversation as people read it: the last 500 items.
    pub conversation: Vec<ConversationItem>,
    /// The cursor of this snapshot: follow events from here.
    pub seq: Seq,
}

/// A line of a session's conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "item", rename_all = "snake_case")]
pub enum ConversationItem {
    /// A person's words.
    Person {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// The words.
        text: String,
    },
    /// The coordinator's words.
    Coordinator {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// The words.
        text: String,
    },
    /// A tool call of the coordinator.
    Call {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// `Agent`, `SendMessage`, `TaskStop`.
        tool: String,
        /// Description, address or id.
        summary: String,
        /// The worker it is about.
        worker_id: Option<WorkerId>,
        /// Whether it failed.
        is_error: bool,
    },
    /// Entries woke the coordinator, or rode along.
    Woke {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// The request that carries them.
        request: u64,
        /// The entries.
        notifications: Vec<Notification>,
    },
    /// A verdict.
    Verdict {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// Which.
        verdict: Verdict,
        /// Why.
        reasons: Vec<String>,
    },
    /// Something went wrong.
    Error {
        /// The seq of the event.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// Stable code.
        code: String,
        /// The message.
        message: String,
    },
}

/// A worker as every surface shows it. The keys of `session.result` come first; the others are live ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: WorkerStatus,
    /// Why its last run ended, snake_case.
    pub exit_reason: Option<String>,
    /// The data of that reason.
    pub exit_detail: Option<Value>,
    /// Doubts about its last run.
    pub doubts: Vec<Doubt>,
    /// Its branch, when one was kept or is being worked on.
    pub branch: Option<String>,
    /// The full commit id it started from.
    pub base: String,
    /// Commits against base, over all runs.
    pub commits: u64,
    /// Files changed against base, over all runs.
    pub files_changed: u64,
    /// Lines added against base.
    pub insertions: u64,
    /// Lines removed against base.
    pub deletions: u64,
    /// Turns over all runs.
    pub turns: u32,
    /// Use over all runs.
    pub usage: Usage,
    /// Dollars over all runs, or null when a part is unknown.
    pub cost_usd: Option<f64>,
    /// The session.
    pub session_id: SessionId,
    /// The task that spawned it.
    pub task_id: TaskId,
    /// The present or last run.
    pub run: RunNumber,
    /// `general-purpose`, `Explore`, `Plan`.
    pub agent_type: String,
    /// `worktree`, `none`, `tmux`.
    pub isolation: crate::launch::Isolation,
    /// `changes` or `report`.
    pub expects: crate::launch::Expects,
    /// Its model.
    pub model: String,
    /// What it waits for.
    pub waiting_for: Option<WaitingFor>,
    /// The cause of the wait or of the end, in words.
    pub cause: Option<String>,
    /// The request it waits on.
    pub request_id: Option<PermissionRequestId>,
    /// Position in the queue, from 1.
    pub position: Option<u32>,
    /// What it does now.
    pub activity: String,
    /// Tokens in the window now.
    pub context_tokens: Option<u64>,
    /// The effective window.
    pub context_window: Option<u64>,
    /// Its worktree.
    pub worktree: String,
    /// Whether the worktree exists.
    pub worktree_exists: bool,
    /// First of its ten ports.
    pub port_base: u16,
    /// 2, 1 or 0; null before its process began.
    pub sandbox_tier: Option<u8>,
    /// The process id.
    pub pid: Option<i32>,
    /// How often the present run was started again.
    pub restarts: u32,
    /// Whether the branch was merged, and into what.
    pub merged_into: Option<String>,
    /// Whether it was discarded.
    pub discarded: bool,
    /// Whether a person stopped it: the coordinator may not wake it.
    pub stopped_by_person: bool,
    /// Unread messages.
    pub unread: u32,
    /// Snapshots.
    pub snapshots: u32,
    /// When it was spawned.
    pub spawned_at: Timestamp,
    /// When something last happened.
    pub updated_at: Timestamp,
    /// When its last run ended.
    pub ended_at: Option<Timestamp>,
    /// Milliseconds since it was spawned, or from spawn to end.
    pub age_ms: u64,
}

/// `GET /workers/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkerDetail {
    /// The worker.
    pub worker: WorkerView,
    /// The prompt it began with.
    pub prompt: String,
    /// The last words of its last run.
    pub result: Option<String>,
    /// What the server established about its last run.
    pub outcome: Option<Outcome>,
    /// Its entries and their way to the coordinator.
    pub ledger: Vec<LedgerEntry>,
    /// The request it waits on.
    pub permission: Option<PermissionView>,
    /// The to-do list.
    pub todo: Vec<crate::record::TodoItem>,
    /// Messages it has not read yet.
    pub unread: Vec<UnreadMessage>,
    /// The cursor of this snapshot.
    pub seq: Seq,
}

/// A message that waits to be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnreadMessage {
    /// The seq of the command.
    pub seq: Seq,
    /// The words.
    pub text: String,
    /// Whether a person wrote it.
    pub from_person: bool,
}

/// An entry of the FIFO and its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LedgerEntry {
    /// The entry.
    pub notification: Notification,
    /// Its way: queued, sent (once or more), committed.
    pub steps: Vec<LedgerStep>,
}

/// A step of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LedgerStep {
    /// The event.
    pub seq: Seq,
    /// When.
    pub at: Timestamp,
    /// `queued`, `sent`, `committed`.
    pub step: String,
    /// The request, for `sent` and `committed`.
    pub request: Option<u64>,
    /// The turn, for `committed`.
    pub turn: Option<u32>,
    /// The reason of a repeat.
    pub reason: Option<String>,
}

/// `GET /workers/{id}/transcript?after=&limit=`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TranscriptPage {
    /// Records, in order, bodies included.
    pub records: Vec<Record>,
    /// Number of the last record of the transcript.
    pub last: u64,
    /// Lines that could not be read, from the start of the transcript to the end of this page.
    pub damaged_lines: u64,
}

/// `GET /workers/{id}/diff`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiffView {
    /// What it is compared with: a full commit id.
    pub base: String,
    /// The branch's commit.
    pub head: String,
    /// The branch.
    pub branch: String,
    /// Commits since base.
    pub commits: u64,
    /// Files, in order.
    pub files: Vec<crate::notification::FileChange>,
    /// What is not committed yet, while the worker runs.
    pub uncommitted: Vec<String>,
    /// The patch, as `git apply` takes it; empty with `?stat=true`.
    pub patch: String,
}

/// How a branch is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MergeStrategy {
    /// Fast-forward when possible, else a merge commit.
    #[default]
    Merge,
    /// One commit.
    Squash,
    /// Replayed on the target.
    Rebase,
    /// Always a merge commit.
    NoFf,
}

/// `POST /workers/{id}/merge`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MergeBody {
    /// The branch to move; the session's target when absent.
    #[serde(default)]
    pub into: Option<String>,
    /// How.
    #[serde(default)]
    pub strategy: MergeStrategy,
    /// Run the project's check on the merged tree first.
    #[serde(default)]
    pub check: bool,
    /// Only try.
    #[serde(default)]
    pub dry_run: bool,
}

/// A file that conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConflictFile {
    /// Its path.
    pub path: String,
    /// Lines of the branch's side that conflict, as `first-last`, when known.
    pub lines: Vec<String>,
}

/// Answer to a merge. Refusal is not conflict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum MergeView {
    /// The target moved.
    Merged {
        /// The target.
        into: String,
        /// Before.
        from: String,
        /// After.
        to: String,
        /// Files changed.
        files: u64,
        /// Lines added.
        insertions: u64,
        /// Lines removed.
        deletions: u64,
    },
    /// A dry run found no obstacle.
    Clean {
        /// The target.
        into: String,
        /// Its commit.
        from: String,
    },
    /// The branch is in the target already.
    AlreadyMerged {
        /// The target.
        into: String,
    },
    /// Nothing moved.
    Conflict {
        /// The target.
        into: String,
        /// Its commit.
        at: String,
        /// The files.
        files: Vec<ConflictFile>,
    },
    /// Nothing moved: files this merge touches are changed where the target is checked out.
    TargetDirty {
        /// The target.
        into: String,
        /// The checkout.
        checkout: String,
        /// Its files, with git's status letters.
        files: Vec<String>,
    },
    /// Nothing moved: the target was moved by somebody meanwhile.
    TargetMoved {
        /// The target.
        into: String,
        /// Where it was.
        expected: String,
        /// Where it is.
        actual: String,
    },
    /// Nothing moved: the check failed on the merged tree.
    CheckFailed {
        /// The end of its output.
        output: String,
    },
}

/// Answer to a discard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiscardView {
    /// Who.
    pub worker_id: WorkerId,
    /// The ref that keeps it.
    pub kept_ref: Option<String>,
    /// How long.
    pub days: u32,
}

/// `POST /workers/{id}/restore`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreBody {
    /// The snapshot; without it a discarded branch comes back.
    #[serde(default)]
    pub snapshot: Option<u32>,
}

/// Answer to a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RestoreView {
    /// What came back, as a sentence.
    pub message: String,
    /// The snapshot that now keeps what was there.
    pub kept_as: Option<u32>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SnapshotView {
    /// Its number.
    pub n: u32,
    /// The commit.
    pub commit: String,
    /// When, if git says so.
    pub at: Option<Timestamp>,
}

/// A request at the desk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionView {
    /// The request.
    pub request: PermissionRequest,
    /// The session.
    pub session_id: SessionId,
    /// The worker's name.
    pub worker_name: String,
    /// When it is denied, if nobody answers and nothing pauses the clock.
    pub deadline_at: Option<Timestamp>,
    /// Where `always` would write.
    pub always_file: Option<String>,
    /// The decision, once there is one.
    pub decision: Option<PermissionDecision>,
    /// Set when it no longer waits without a decision.
    pub withdrawn: Option<String>,
    /// 2, 1 or 0.
    pub sandbox_tier: Option<u8>,
}

/// `POST /permissions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerPermission {
    /// Yes or no.
    pub decision: Decision,
    /// How far.
    #[serde(default)]
    pub scope: Scope,
    /// Words to the model.
    #[serde(default)]
    pub reason: Option<String>,
    /// Deny, and end the agent.
    #[serde(default)]
    pub stop: bool,
}

/// Answer to `POST /permissions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AnsweredPermission {
    /// Whether this answer decided; else the one that did is given.
    pub won: bool,
    /// The decision that holds.
    pub decision: PermissionDecision,
    /// The rule that was written and where.
    pub wrote_rule: Option<String>,
}

/// `POST …/messages`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendMessageBody {
    /// The words; not blank.
    pub text: String,
}

/// Answer to `POST …/messages`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MessageAccepted {
    /// Its id, for messages to a coordinator.
    pub message_id: Option<MessageId>,
    /// The task it opened or joined.
    pub task_id: Option<TaskId>,
    /// `queued`, `revived`.
    pub status: String,
    /// What happens next, as a sentence.
    pub note: String,
}

/// `POST …/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StopBody {
    /// Why, for the transcript.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Answer to a stop or an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StopView {
    /// Workers that are being stopped.
    pub stopping: Vec<WorkerId>,
    /// True when there was nothing to stop.
    pub already: bool,
}

/// `POST /sessions/{id}/permission-mode`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PermissionModeBody {
    /// The mode.
    pub mode: PermissionMode,
}

/// `POST /sessions/{id}/resume`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {
    /// Keys and endpoints of the shell.
    #[serde(default)]
    pub client: Option<ClientContext>,
}

/// Answer to a resume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResumeView {
    /// Workers that go on.
    pub workers: Vec<WorkerId>,
    /// Entries that were waiting.
    pub queued: u32,
    /// The seq to follow from.
    pub after: Seq,
}

/// A row of `GET /cost`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CostRow {
    /// Session id, worker id, model or day.
    pub key: String,
    /// Title or name.
    pub label: String,
    /// Use.
    pub usage: Usage,
    /// Cost.
    pub cost: Cost,
    /// Calls.
    pub calls: u64,
}

/// `GET /cost?by=session|worker|model|day`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CostView {
    /// Rows.
    pub rows: Vec<CostRow>,
    /// The date of the price table.
    pub prices_of: String,
}

/// A value of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConfigValue {
    /// The key, dotted.
    pub key: String,
    /// The value as text; secrets never.
    pub value: String,
    /// `swarm.toml:7`, `SWARM_MODEL`, `built in`.
    pub source: String,
    /// What it overrides.
    pub overrides: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// `local`.
    pub name: String,
    /// Workers with a run under way.
    pub workers: u32,
    /// The most it takes.
    pub max_workers: u32,
    /// Cores.
    pub cores: u32,
    /// Free memory in bytes.
    pub free_memory: u64,
    /// Free disk of `$SWARM_HOME` in bytes.
    pub free_disk: u64,
    /// 2, 1 or 0.
    pub sandbox_tier: u8,
}

/// What a person must or may look at: a row of Home.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OverviewRow {
    /// `needs_you`, `failed`, `ready`, `watch`, `working`, `queued`, `done`.
    pub group: String,
    /// The word of the one table of states.
    pub word: String,
    /// The glyph of that table.
    pub glyph: String,
    /// The one fact that matters in that state.
    pub fact: String,
    /// The worker; none for a need of the session itself.
    pub worker: Option<WorkerView>,
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    pub title: String,
    /// The deadline, when something waits.
    pub deadline_at: Option<Timestamp>,
    /// Path of the page where the need is met.
    pub link: String,
}

/// `GET /overview`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Overview {
    /// Rows, grouped in the fixed order, each group in its own order.
    pub rows: Vec<OverviewRow>,
    /// Sessions, newest need first.
    pub sessions: Vec<SessionView>,
    /// Requests that wait.
    pub asks: u32,
    /// Cost of today.
    pub today: Cost,
    /// The cursor of this snapshot for `GET /events`.
    pub position: u64,
    /// The server's clock.
    pub now: Timestamp,
}

/// `GET /info`: what the shell compares before it talks to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ServerInfo {
    /// The version of the binary.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// Its home.
    pub home: String,
    /// When it started.
    pub started_at: Timestamp,
    /// The sandbox's tier.
    pub sandbox_tier: u8,
    /// What that tier does not hold, and other notes.
    pub sandbox_notes: Vec<String>,
    /// Whether the server itself has a model configured.
    pub model: Option<String>,
}

/// `$SWARM_HOME/server.json` (0600): how clients find the server. No token stands in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    /// `127.0.0.1:43117`.
    pub address: String,
    /// Its process.
    pub process: crate::process::ProcessIdentity,
    /// The version of the binary.
    pub version: String,
    /// The workers' socket.
    pub socket: String,
}

/// A session and its models, for `swarm show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelView {
    /// The endpoint.
    pub endpoint: ModelEndpoint,
    /// Whether a key is at hand.
    pub has_key: bool,
}

/// `GET /explain/{id}`: why a worker ended as it did, and the way of its news.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplainView {
    /// The worker.
    pub worker: WorkerView,
    /// Every run: its end and outcome, oldest first.
    pub runs: Vec<RunView>,
    /// Its entries and their way.
    pub ledger: Vec<LedgerEntry>,
    /// Decisions about its permission requests.
    pub permissions: Vec<PermissionView>,
    /// Every change of its status: seq, time, from, to, reason.
    pub changes: Vec<StatusChange>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunView {
    /// Its number.
    pub run: RunNumber,
    /// What began it.
    pub reason: String,
    /// Why it ended.
    pub exit_reason: Option<ExitReason>,
    /// What the server established.
    pub outcome: Option<Outcome>,
}

/// A change of status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StatusChange {
    /// The event.
    pub seq: Seq,
    /// When.
    pub at: Timestamp,
    /// From.
    pub from: WorkerStatus,
    /// To.
    pub to: WorkerStatus,
    /// Why.
    pub reason: String,
}

/// Errors as RFC 9457 says, with a stable `code`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `about:blank`, or the code's page.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// The status.
    pub status: u16,
    /// The message.
    pub title: String,
    /// Where and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Stable code.
    pub code: String,
}

/// `GET /gc` (what would go) and `POST /gc` (it goes).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GcView {
    /// What was, or would be, removed: one line each.
    pub removed: Vec<String>,
    /// What is kept and why: one line each.
    pub kept: Vec<String>,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes in use before.
    pub used_bytes: u64,
}

/// `POST /gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GcBody {
    /// Only list.
    #[serde(default)]
    pub dry_run: bool,
    /// Remove unmerged work too (into the recycle bin).
    #[serde(default)]
    pub force: bool,
}

/// `POST /server/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StopServerBody {
    /// Stop workers first, their work committed.
    #[serde(default)]
    pub workers: bool,
    /// End the server alone; workers run on.
    #[serde(default)]
    pub leave: bool,
}

/// `POST /login`: the one-time code for the browser's cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// The code.
    pub code: String,
}

/// Answer to `POST /login-codes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginCode {
    /// The code: works once, for five minutes.
    pub code: String,
    /// The address to open.
    pub url: String,
}
