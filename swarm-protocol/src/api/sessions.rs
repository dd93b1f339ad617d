//! Sessions: what is shown of them, and what people ask of them.

use serde::{Deserialize, Serialize};

use super::{ClientContext, LedgerEntry, PermissionView, TaskView, WorkerView};
use crate::{
    ids::{MessageId, Seq, SessionId, TaskId, WorkerId},
    launch::ModelEndpoint,
    notification::Notification,
    permission::PermissionMode,
    status::{SessionState, Verdict},
    time::Timestamp,
    usage::{BudgetView, Cost, Usage},
};

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
    /// Its budget, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetView>,
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

/// A session and its models, for `swarm show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelView {
    /// The endpoint.
    pub endpoint: ModelEndpoint,
    /// Whether a key is at hand.
    pub has_key: bool,
}
