//! Workers: what is shown of them, their transcripts, and the way of their news.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PermissionView;
use crate::{
    ids::{PermissionRequestId, RunNumber, Seq, SessionId, TaskId, WorkerId},
    notification::{Doubt, Notification, Outcome},
    record::Record,
    status::{ExitReason, WaitingFor, WorkerStatus},
    time::Timestamp,
    usage::Usage,
};

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
    /// How often the provider's cache failed its present process, and why the last time; zero when nothing is known.
    #[serde(default)]
    pub cache_breaks: u32,
    /// See `cache_breaks`.
    #[serde(default)]
    pub last_cache_break: Option<crate::frame::CacheBreakCause>,
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
