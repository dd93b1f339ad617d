//! The records of an agent's transcript: what a worker writes to its JSONL file, what the server
//! acknowledges by number, and what the loop's state is folded from (spec 1.6, 10.2).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{CommandId, MessageId, PermissionRequestId, RunNumber, ToolUseId},
    message::{Block, Message},
    permission::{PermissionBid, PermissionDecision, PermissionRequest},
    time::Timestamp,
    usage::{Cost, Usage},
};

mod head;
mod run;
mod task_item;
mod tool;
mod words;

pub use head::{HEAD_CHARS, RecordHead, ToolHead, head_of, input_summary};
pub use run::{RunEnd, RunStarted};
pub use task_item::{TaskItem, TaskItemStatus};
pub use tool::{CommandRun, FileSeen, Move, ToolEffect, ToolFinished};
pub use words::LastWords;

/// One line of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Record {
    /// Number in this transcript, from 1, without gaps.
    pub n: u64,
    /// Its identity.
    pub uuid: Uuid,
    /// The record before it in the conversation; null for the first and after a boundary.
    pub parent_uuid: Option<Uuid>,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The run that wrote it.
    pub run: RunNumber,
    /// What it says.
    pub body: RecordBody,
}

/// Why a user message stands in the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The first message: surroundings, memory and the prompt.
    Prompt,
    /// A person wrote it.
    Person {
        /// The message.
        message_id: Option<MessageId>,
    },
    /// The coordinator sent it.
    Coordinator,
    /// Results of the tool calls before it.
    ToolResults,
    /// Ends and news of workers.
    Notifications,
    /// Written by the harness: go on, a job ended, a reminder. Hidden from people's main view.
    Harness,
    /// The summary of what a compaction removed.
    Summary,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RecordBody {
    /// A run began.
    RunStarted(RunStarted),
    /// A user message entered the conversation.
    User {
        /// The message.
        message: Message,
        /// Why.
        origin: Origin,
        /// Commands of the server that it carries.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        commands: Vec<CommandId>,
    },
    /// A request is about to leave.
    RequestStarted {
        /// Number of the request in this agent's life, from 1.
        request: u64,
        /// The model asked.
        model: String,
        /// The estimate of what it carries, in tokens.
        estimated_tokens: u64,
    },
    /// A tool is about to have its first effect while the response goes on: what was closed so far.
    Intent {
        /// The request.
        request: u64,
        /// The closed blocks, in order.
        blocks: Vec<Block>,
    },
    /// A tool call ended; synced when the call had a side effect.
    ToolFinished(ToolFinished),
    /// The model's answer, whole or as far as it came.
    Assistant {
        /// The message.
        message: Message,
        /// The request it answers.
        request: u64,
        /// The model that answered.
        model: String,
        /// Why it stopped.
        stop_reason: StopReason,
        /// What it used.
        usage: Usage,
        /// What that cost.
        cost: Cost,
        /// True when the stream broke.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        incomplete: bool,
    },
    /// A helper's call (a summary, say): counted, not part of the conversation.
    HelperCall {
        /// What for.
        purpose: String,
        /// The model.
        model: String,
        /// What it used.
        usage: Usage,
        /// What that cost.
        cost: Cost,
    },
    /// A command of the server was taken over; it is never taken twice.
    CommandAccepted {
        /// Which.
        command: CommandId,
        /// What it was, in a word.
        what: String,
    },
    /// A call waits for a decision.
    PermissionRequested {
        /// The request.
        request: Box<PermissionRequest>,
    },
    /// A request no longer waits: its call was cancelled.
    PermissionWithdrawn {
        /// Which.
        id: PermissionRequestId,
        /// Why.
        reason: String,
    },
    /// A rule, a hook or a model has an answer to a request that waits.
    PermissionBid {
        /// The answer.
        bid: PermissionBid,
    },
    /// A classifier decided about a call that would have asked.
    PermissionJudged {
        /// What would have been asked.
        request: Box<PermissionRequest>,
        /// What was decided.
        decision: PermissionDecision,
    },
    /// The working tree was kept under a hidden ref.
    Snapshot {
        /// Number of the snapshot.
        n: u32,
        /// The commit.
        commit: String,
    },
    /// History before this point is no longer sent.
    CompactBoundary(CompactBoundary),
    /// An original result was moved to disk.
    ContentReplacement {
        /// The call.
        tool_use_id: ToolUseId,
        /// The file that holds it.
        path: String,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The to-do list as it stands.
    Todo {
        /// The items.
        items: Vec<TodoItem>,
    },
    /// The agent goes over to planning, or a person accepted its plan.
    PlanMode {
        /// Whether it plans from here on.
        is_on: bool,
        /// The accepted plan, below the worktree.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// One of the agent's tasks was made or changed.
    TaskItem {
        /// As it is now.
        item: TaskItem,
    },
    /// A call wants leave to spend from the session's budget.
    GrantRequested(GrantRequest),
    /// The use of these grants' calls stands in the records before this one.
    GrantSettled {
        /// Their numbers.
        grants: Vec<u64>,
    },
    /// A person interrupted; what was queued was dropped.
    Tombstone {
        /// What was dropped.
        note: String,
    },
    /// The run ended.
    RunEnded(Box<RunEnd>),
}

/// What a worker asks of the session's budget (spec 10.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantRequest {
    /// Number of the grant in this worker's life, from 1.
    pub grant: u64,
    /// The model to be asked, `provider/name`.
    pub model: String,
    /// The estimate of the call's input, in tokens.
    pub input_tokens: u64,
    /// The most output it would ask for, in tokens.
    pub max_tokens: u64,
    /// It is for the call after the present one; nobody waits for it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ahead: bool,
    /// Grants that no call was or will be made with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<u64>,
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// It wants tools.
    ToolUse,
    /// Its output was cut.
    MaxTokens,
    /// A stop sequence.
    StopSequence,
    /// A server-side tool loop paused: send the same again.
    PauseTurn,
    /// It declined.
    Refusal {
        /// The provider's explanation.
        explanation: String,
    },
    /// The window was full while it generated.
    ContextWindowExceeded,
    /// The stream broke before a reason came.
    Truncated,
    /// It said the same again and again, and was broken off.
    Repetition,
    /// A reason this version does not know.
    Unknown {
        /// The provider's word.
        word: String,
    },
}

impl StopReason {
    /// Whether the answer stopped before its end, so that the next one goes on with it.
    pub fn is_cut(&self) -> bool {
        match self {
            Self::MaxTokens | Self::PauseTurn | Self::ContextWindowExceeded | Self::Truncated => true,
            Self::EndTurn
            | Self::ToolUse
            | Self::StopSequence
            | Self::Refusal { .. }
            | Self::Repetition
            | Self::Unknown { .. } => false,
        }
    }
}

/// A compaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompactBoundary {
    /// `auto`, `cold`, `overflow` or `manual`.
    pub trigger: String,
    /// The steps that acted, in order.
    pub steps: Vec<String>,
    /// Estimate of the messages before, in tokens.
    pub pre_tokens: u64,
    /// Estimate of the messages after, in tokens.
    pub post_tokens: u64,
    /// How many messages a summary stands for.
    pub messages_summarised: u64,
    /// Calls whose results were put away; `Retrieve` returns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_use_ids: Vec<ToolUseId>,
    /// The last record before, which `parent_uuid` no longer names.
    pub logical_parent_uuid: Option<Uuid>,
    /// The conversation as it goes on: what the provider sees from here.
    pub messages: Vec<Message>,
}

/// An item of the to-do list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TodoItem {
    /// What is to be done.
    pub content: String,
    /// `pending`, `in_progress` or `completed`.
    pub status: String,
    /// What is shown while it is done.
    #[serde(rename = "activeForm", default, skip_serializing_if = "Option::is_none")]
    pub active_form: Option<String>,
}

impl RecordBody {
    /// The `type` tag.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunStarted(_) => "run_started",
            Self::User { .. } => "user",
            Self::RequestStarted { .. } => "request_started",
            Self::Intent { .. } => "intent",
            Self::ToolFinished(_) => "tool_finished",
            Self::Assistant { .. } => "assistant",
            Self::HelperCall { .. } => "helper_call",
            Self::CommandAccepted { .. } => "command_accepted",
            Self::PermissionRequested { .. } => "permission_requested",
            Self::PermissionWithdrawn { .. } => "permission_withdrawn",
            Self::PermissionBid { .. } => "permission_bid",
            Self::PermissionJudged { .. } => "permission_judged",
            Self::Snapshot { .. } => "snapshot",
            Self::CompactBoundary(_) => "compact_boundary",
            Self::ContentReplacement { .. } => "content_replacement",
            Self::Todo { .. } => "todo",
            Self::TaskItem { .. } => "task_item",
            Self::PlanMode { .. } => "plan_mode",
            Self::GrantRequested(_) => "grant_requested",
            Self::GrantSettled { .. } => "grant_settled",
            Self::Tombstone { .. } => "tombstone",
            Self::RunEnded(_) => "run_ended",
        }
    }

    /// Whether the server needs the body, not only the head.
    pub fn travels_whole(&self) -> bool {
        // A message that carries commands settles them.
        if let Self::User { commands, .. } = self {
            return !commands.is_empty();
        }
        matches!(
            self,
            Self::RunStarted(_)
                | Self::CommandAccepted { .. }
                | Self::PermissionRequested { .. }
                | Self::PermissionWithdrawn { .. }
                | Self::PermissionBid { .. }
                | Self::PermissionJudged { .. }
                | Self::Snapshot { .. }
                | Self::GrantRequested(_)
                | Self::GrantSettled { .. }
                | Self::RunEnded(_)
        )
    }
}
