//! What server and worker say to each other over a unix socket (spec 1.6). One JSON object a line.
//!
//! Three kinds: *records* (numbered, written before they are sent, acknowledged, resent), *commands* (id =
//! journal seq, repeated until a record names that id) and *live* frames, which may be lost.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{CommandId, MessageId, PermissionRequestId, RunNumber, SessionId, ToolUseId, WorkerId},
    permission::{PermissionDecision, PermissionMode, Rule},
    process::ProcessIdentity,
    record::{RecordBody, RecordHead},
    status::WaitingFor,
    time::Timestamp,
    usage::Caps,
};

/// The version this build speaks; the handshake takes the highest both know.
pub const PROTOCOL_VERSION: u32 = 3;

/// The version that knows the gates before providers' keys: who speaks an older one is told nothing of them.
pub const PACE_SINCE: u32 = 2;

/// The version that hears of a permission request that could not be journaled.
pub const DESK_SINCE: u32 = 3;

/// The oldest version this build still speaks.
pub const OLDEST_PROTOCOL_VERSION: u32 = 1;

/// A place in a transcript: the number of a record and its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordMark {
    /// Number, from 1.
    pub n: u64,
    /// Identity.
    pub uuid: Uuid,
}

/// From worker to server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum FromWorker {
    /// First frame of a connection.
    Hello {
        /// Oldest version spoken.
        oldest_version: u32,
        /// Newest version spoken.
        newest_version: u32,
        /// Which session.
        session_id: SessionId,
        /// Who.
        worker_id: WorkerId,
        /// Which run.
        run: RunNumber,
        /// The run's secret.
        token: String,
        /// Last record of the transcript.
        last_record: Option<RecordMark>,
        /// The worker's process.
        process: ProcessIdentity,
        /// Whether it has no keys yet: it cannot ask its model before it has.
        #[serde(default)]
        needs_keys: bool,
    },
    /// A record; `body` only where [`RecordBody::travels_whole`].
    Record {
        /// Its head.
        head: RecordHead,
        /// Its body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<Box<RecordBody>>,
    },
    /// May be lost.
    Live {
        /// What.
        live: Live,
    },
    /// Of the gate before a provider's key. May be lost: then the worker goes by its own waits.
    Pace {
        /// The provider, as models are named before the slash.
        provider: String,
        /// What.
        pace: Pace,
    },
}

/// What a worker says at the gate before a provider's key (spec 10.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pace", rename_all = "snake_case")]
pub enum Pace {
    /// The provider refused its call: there were too many.
    Limited {
        /// How long the provider asked to wait, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// The first answer of its run has begun: the provider holds the prefix now.
    Began,
    /// It wants a turn for its next call.
    Asks {
        /// Numbers its questions.
        turn: u64,
    },
}

/// What a worker is told there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum PaceOrder {
    /// Somebody who shares the key met its limit: ask for a turn before each call from now on.
    Held {
        /// Until the first turn is given, in milliseconds.
        wait_ms: u64,
    },
    /// Another worker writes the same prefix to the provider's cache: the first call waits for it, at most so long.
    After {
        /// In milliseconds.
        wait_ms: u64,
    },
    /// It is written.
    Written,
    /// The call may leave.
    Turn {
        /// The question's number.
        turn: u64,
    },
    /// No more turns are needed.
    Free,
}

/// News that may be lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "live", rename_all = "snake_case")]
pub enum Live {
    /// Words of the model as they come.
    TextDelta {
        /// The words.
        text: String,
        /// Whether they are its thinking.
        thinking: bool,
    },
    /// A tool began.
    ToolStarted {
        /// The call.
        tool_use_id: ToolUseId,
        /// The tool.
        tool: String,
        /// Command or path.
        summary: String,
    },
    /// Output of a running tool: its last lines.
    ToolProgress {
        /// The call.
        tool_use_id: ToolUseId,
        /// The lines, at most 4 KiB.
        tail: String,
    },
    /// A tool ended.
    ToolEnded {
        /// The call.
        tool_use_id: ToolUseId,
        /// Whether it failed.
        is_error: bool,
    },
    /// What it does now: `thinking`, `Bash cargo test`, `setting up: npm ci`.
    Activity {
        /// The words.
        text: String,
        /// Tokens in the window now.
        context_tokens: Option<u64>,
        /// The effective window.
        context_window: Option<u64>,
    },
    /// It waits, or no longer waits.
    Waiting {
        /// For what; none: it goes on.
        waiting_for: Option<WaitingFor>,
        /// The cause in words: `529 overloaded, try 3`.
        cause: String,
        /// Until when, where that is known.
        until: Option<Timestamp>,
    },
    /// The provider read less of a request from its cache than it should have had.
    CacheBreak {
        /// Tokens that it had before.
        expected_tokens: u64,
        /// Tokens that it read.
        read_tokens: u64,
        /// Why.
        cause: CacheBreakCause,
    },
}

/// Why a provider's cache did not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CacheBreakCause {
    /// Another model was asked than before.
    Model,
    /// Tools were changed.
    Tools,
    /// The system prompt was changed.
    System,
    /// What was sent before was changed: history was made smaller.
    Messages,
    /// More time had passed than the cache lives.
    Expired,
    /// None of these: the provider dropped it, or asked another machine.
    Provider,
}

impl CacheBreakCause {
    /// As on the wire; a metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Tools => "tools",
            Self::System => "system",
            Self::Messages => "messages",
            Self::Expired => "expired",
            Self::Provider => "provider",
        }
    }

    /// For people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Model => "another model was asked",
            Self::Tools => "the tools changed",
            Self::System => "the system prompt changed",
            Self::Messages => "history was made smaller",
            Self::Expired => "it was older than the cache lives",
            Self::Provider => "the provider had dropped it",
        }
    }
}

/// From server to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ToWorker {
    /// Answer to `Hello`.
    Welcome {
        /// The version spoken from here on.
        version: u32,
        /// The last record the server has; the worker resends what is after it.
        acknowledged: Option<RecordMark>,
        /// Secrets of this run; none while the server has to wait for them itself: `Keys` brings them.
        keys: Option<Keys>,
    },
    /// The keys that the greeting could not bring.
    Keys {
        /// Secrets of this run.
        keys: Keys,
    },
    /// The server will not have this process: it ends.
    Refused {
        /// Why.
        reason: String,
    },
    /// Records up to and including this one are durable at the server.
    Acknowledged {
        /// Which.
        n: u64,
    },
    /// Do this. Repeated until a record names the id.
    Command {
        /// Its id.
        id: CommandId,
        /// What.
        command: Command,
    },
    /// Of the gate before a provider's key. May be lost.
    Pace {
        /// The provider, as models are named before the slash.
        provider: String,
        /// What.
        order: PaceOrder,
    },
    /// A permission request could not be journaled, so nobody will answer it. May be lost: the request is then
    /// resent.
    PermissionNotTaken {
        /// Which.
        id: PermissionRequestId,
        /// Why.
        reason: String,
    },
    /// Still here.
    Ping,
}

/// Keys of the providers; in memory only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// Of the agent's own model.
    pub model: Option<String>,
    /// Of the helper's model.
    pub helper: Option<String>,
    /// Of the fallback model.
    pub fallback: Option<String>,
    /// Of the search service.
    #[serde(default)]
    pub search: Option<String>,
    /// Of the other swarm server.
    #[serde(default)]
    pub remote: Option<String>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// An order to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Read this at your next phase 0.
    Message {
        /// Its id, when a person wrote it.
        message_id: Option<MessageId>,
        /// Whether a person wrote it (else the coordinator).
        from_person: bool,
        /// The words.
        text: String,
    },
    /// End this run; commit what there is.
    Stop {
        /// Why, for the transcript.
        reason: String,
        /// Whether a person wants it: then only a person revives the worker.
        by_person: bool,
    },
    /// Drop what you do and listen; the run goes on with the next message.
    Interrupt,
    /// A permission request was decided.
    Decision {
        /// The decision.
        decision: PermissionDecision,
    },
    /// A rule holds for this session from now on.
    AddRule {
        /// The rule.
        rule: Rule,
    },
    /// Decide in this mode from now on.
    SetPermissionMode {
        /// The mode.
        mode: PermissionMode,
    },
    /// A call may be made at this worst price.
    Grant {
        /// The request's number.
        grant: u64,
        /// What it pays for.
        amount: Caps,
    },
    /// Nothing is left for the call that asked.
    NoGrant {
        /// The request's number.
        grant: u64,
        /// Which budget is used up.
        budget: String,
    },
    /// Put the worktree back to a snapshot; what is there now becomes a snapshot first.
    Restore {
        /// The snapshot.
        snapshot: u32,
    },
}

impl Command {
    /// In a word, for logs and records.
    pub const fn what(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Stop { .. } => "stop",
            Self::Interrupt => "interrupt",
            Self::Decision { .. } => "decision",
            Self::AddRule { .. } => "add_rule",
            Self::SetPermissionMode { .. } => "set_permission_mode",
            Self::Grant { .. } => "grant",
            Self::NoGrant { .. } => "no_grant",
            Self::Restore { .. } => "restore",
        }
    }
}
