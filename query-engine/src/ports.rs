//! What the loop needs from outside: traits that the programs and adapters implement.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::Stream;
use serde_json::Value;
use swarm_protocol::{
    Block, Message, ResultBlock, Timestamp, ToolUseId, Usage,
    frame::Live,
    ids::CommandId,
    record::{FileSeen, Origin, RecordBody, StopReason, ToolEffect},
    usage::Cost,
};
use tokio_util::sync::CancellationToken;

// ---------------------------------------------------------------------------------------------- model

/// A tool as the provider is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// Its text.
    pub description: String,
    /// JSON schema of its input; the top is an object.
    pub input_schema: Value,
}

/// The part of a request that is equal in every request of an agent: built once, sent as the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prefix {
    /// The system prompt, as blocks.
    pub system: Vec<String>,
    /// The tools, sorted by name.
    pub tools: Vec<ToolSpec>,
}

/// Where a cache breakpoint stands. At most four in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakpoint {
    /// After tools and system.
    Prefix,
    /// At the last block of the message with this index.
    Message(usize),
}

/// A request to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// Tools and system.
    pub prefix: Arc<Prefix>,
    /// The conversation; the last message is of the user.
    pub messages: Vec<Arc<Message>>,
    /// The most output tokens.
    pub max_tokens: u64,
    /// Cache breakpoints.
    pub breakpoints: Vec<Breakpoint>,
}

/// What is known of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `provider/name`.
    pub name: String,
    /// Its context window in tokens.
    pub context_window: u64,
    /// The most output it gives.
    pub max_output: u64,
    /// Whether the provider caches prefixes.
    pub caches: bool,
}

/// A piece of an answer, as it arrives.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The answer began; the model that answers may differ from the one asked.
    Started {
        /// Its name.
        model: String,
    },
    /// Something that is no progress arrived (a ping): the connection lives.
    Ping,
    /// A block began.
    BlockStarted {
        /// Its place in the message.
        index: usize,
        /// Its kind.
        kind: BlockKind,
    },
    /// Words of a text or thinking block; for a tool call, how many bytes of its arguments came.
    Delta {
        /// The block.
        index: usize,
        /// What came.
        delta: Delta,
    },
    /// A block is whole. Tool calls start now.
    BlockClosed {
        /// Its place.
        index: usize,
        /// The block.
        block: ClosedBlock,
    },
    /// Use so far: cumulative, the last one counts.
    Usage(Usage),
    /// The answer is whole.
    Stopped(StopReason),
}

/// The kind of a block that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Words.
    Text,
    /// Thinking.
    Thinking,
    /// A tool call of this name.
    ToolUse {
        /// The tool.
        name: String,
    },
    /// Something else.
    Other,
}

/// What came for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Words.
    Text(String),
    /// Thinking.
    Thinking(String),
    /// Bytes of a tool call's arguments.
    InputBytes(usize),
}

/// A whole block, or a tool call whose arguments are no JSON object.
#[derive(Clone, Debug, PartialEq)]
pub enum ClosedBlock {
    /// Usable.
    Valid(Block),
    /// A call that must not run: it gets an error result with this text. Stored with `input` (an object
    /// that providers accept back).
    InvalidCall {
        /// The call's id.
        id: ToolUseId,
        /// The tool's name as it came.
        name: String,
        /// What stands in history for its arguments.
        input: Value,
        /// What is wrong, with the parser's position.
        problem: String,
    },
}

/// Why a request failed. `model-client` classifies; the loop decides what follows.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// The kind.
    pub kind: ModelErrorKind,
    /// For people: what the provider said, with status and request id where there are.
    pub message: String,
    /// How long the provider asked to wait.
    pub retry_after: Option<Duration>,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
}

/// The kinds of failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// 401: the key is wrong.
    KeyRefused,
    /// 403, 402: the account may not.
    PermissionRefused,
    /// 404: no such model.
    UnknownModel,
    /// 400 that no repair fits.
    InvalidRequest,
    /// Too many tokens.
    PromptTooLong {
        /// The limit the provider named.
        limit: Option<u64>,
    },
    /// Too many bytes (413).
    RequestTooLarge,
    /// An image the provider will not have.
    ImageRefused,
    /// `max_tokens` over what the model gives.
    MaxTokensTooLarge {
        /// What it gives.
        limit: Option<u64>,
    },
    /// 429.
    RateLimited,
    /// A 429 or 400 that names a spent quota: never retried.
    QuotaSpent,
    /// 529 and the like.
    Overloaded,
    /// 5xx, or an error inside the stream.
    Server,
    /// 408, 409.
    Transient,
    /// No connection, or it broke before the answer began.
    Connection,
    /// No first byte, no byte, or no progress in time.
    Stalled {
        /// Which watchdog: `first byte`, `idle`, `no progress`.
        watchdog: &'static str,
    },
    /// The stream ended before the answer was whole.
    Truncated,
    /// What came is not the provider's format.
    Malformed,
    /// The caller cancelled.
    Cancelled,
}

impl ModelErrorKind {
    /// Whether the same request may succeed later.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::RateLimited
            | Self::Overloaded
            | Self::Server
            | Self::Transient
            | Self::Connection
            | Self::Stalled { .. }
            | Self::Truncated
            | Self::Malformed => true,
            Self::KeyRefused
            | Self::PermissionRefused
            | Self::UnknownModel
            | Self::InvalidRequest
            | Self::PromptTooLong { .. }
            | Self::RequestTooLarge
            | Self::ImageRefused
            | Self::MaxTokensTooLarge { .. }
            | Self::QuotaSpent
            | Self::Cancelled => false,
        }
    }

    /// The stable word of `exit_detail.error`.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::KeyRefused => "key_refused",
            Self::PermissionRefused => "permission_refused",
            Self::UnknownModel => "unknown_model",
            Self::InvalidRequest => "invalid_request",
            Self::PromptTooLong { .. } => "prompt_too_long",
            Self::RequestTooLarge => "request_too_large",
            Self::ImageRefused => "image_refused",
            Self::MaxTokensTooLarge { .. } => "max_tokens_too_large",
            Self::RateLimited => "rate_limited",
            Self::QuotaSpent => "quota_spent",
            Self::Overloaded => "overloaded",
            Self::Server => "server_error",
            Self::Transient => "transient",
            Self::Connection => "connection",
            Self::Stalled { .. } => "stalled",
            Self::Truncated => "stream_truncated",
            Self::Malformed => "malformed_response",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An answer as it arrives. After an error nothing more comes. A stream that ends without
/// [`StreamEvent::Stopped`] does so with a `Truncated` error, never in silence.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<StreamEvent, ModelError>> + Send>>;

/// A model of a provider. One request at a time per call; the implementation holds the watchdogs (first
/// byte, idle, no progress) and never retries by itself.
#[async_trait]
pub trait Model: Send + Sync {
    /// What is known of it.
    fn info(&self) -> ModelInfo;

    /// Sends a request. Dropping the stream closes the connection.
    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError>;

    /// What a call of this usage cost.
    fn cost(&self, model: &str, usage: &Usage) -> Cost;

    /// The least output a request may ask for, in tokens; 0 where it may be read into the cache and no more.
    fn least_output(&self) -> u64 {
        1
    }

    /// The size of the request's body in bytes, as it would be sent.
    fn request_bytes(&self, request: &ModelRequest) -> usize;
}

/// A call that is about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCall {
    /// The model asked, `provider/name`.
    pub model: String,
    /// The estimate of its input, in tokens.
    pub input_tokens: u64,
    /// The most output it would ask for, in tokens.
    pub max_tokens: u64,
}

/// Leave to make a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Grant {
    /// With at most this many tokens of output.
    Call {
        /// Tokens.
        max_tokens: u64,
    },
    /// No: this budget is used up.
    Spent {
        /// Which.
        budget: String,
    },
}

/// Leave to spend from what several agents share (spec 10.1), one call at a time. What a call used is in the records
/// before the next is asked for: a call that left none was not charged.
#[async_trait]
pub trait Grants: Send + Sync {
    /// Whether there is a cap, so that a call asks for little output at first.
    fn is_capped(&self) -> bool;

    /// Waits until the call may be made, or never can be. Dropping the future takes the question back.
    async fn grant(&self, call: &PlannedCall) -> Grant;
}

/// No cap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

#[async_trait]
impl Grants for Unlimited {
    fn is_capped(&self) -> bool {
        false
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        Grant::Call { max_tokens: call.max_tokens }
    }
}

// ---------------------------------------------------------------------------------------------- tools

/// A running call's surroundings.
#[derive(Clone)]
pub struct ToolContext {
    /// The call.
    pub tool_use_id: ToolUseId,
    /// Cancelled by an interrupt, a sibling or the end.
    pub cancel: CancellationToken,
    /// Where live news go.
    pub observer: Arc<dyn Observer>,
}

/// What a call answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutput {
    /// For the model; never empty.
    pub content: Vec<ResultBlock>,
    /// Whether it failed.
    pub is_error: bool,
    /// What it did outside.
    pub effect: ToolEffect,
    /// The file whose content the model knows by it.
    pub seen: Option<Box<FileSeen>>,
    /// Whether the failure cancels its siblings (a failed command; spec 4.4).
    pub cancels_siblings: bool,
    /// Whether the agent must end (`deny and stop`).
    pub stop: bool,
}

impl ToolOutput {
    /// A success of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![ResultBlock::text(text)],
            is_error: false,
            effect: ToolEffect::None,
            seen: None,
            cancels_siblings: false,
            stop: false,
        }
    }

    /// A failure of one text that the model can act on.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// With the file whose content the model knows now.
    pub fn with_seen(mut self, seen: FileSeen) -> Self {
        self.seen = Some(Box::new(seen));
        self
    }

    /// With what it did outside.
    pub fn with_effect(mut self, effect: ToolEffect) -> Self {
        self.effect = effect;
        self
    }
}

/// A tool. Built-in, MCP and agent tools are the same thing to the scheduler.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What the model reads about it.
    fn description(&self) -> String;

    /// JSON schema of its input; the top is an object.
    fn input_schema(&self) -> Value;

    /// Whether a call with this input changes nothing.
    fn is_read_only(&self, input: &Value) -> bool;

    /// Whether a call with this input may run beside others.
    fn is_concurrency_safe(&self, input: &Value) -> bool;

    /// A result over this many characters is cut to head and tail; none: never (Read, which pages).
    fn max_result_size_chars(&self) -> Option<usize> {
        Some(50_000)
    }

    /// Does it. The gate has let it pass, and `input` fits the schema's required fields as far as the tool
    /// checks them itself. Must return soon after `context.cancel`.
    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput;
}

/// What the gate says to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum GateAnswer {
    /// Go on.
    Allow,
    /// No: the model sees this text. `stop` ends the agent.
    Deny {
        /// Who refused, and that another way should be sought.
        text: String,
        /// End the agent.
        stop: bool,
    },
}

/// Permission for a call. Waits as long as the desk does; other tools go on meanwhile.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Asks for one call.
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer;

    /// Asks the person whether an agent that repeats itself may go on (spec 2.6). Nobody to be asked, or
    /// cancelled: no.
    async fn may_go_on(
        &self,
        _repeats: &Repeats,
        _observer: &Arc<dyn Observer>,
        _cancel: &CancellationToken,
    ) -> bool {
        false
    }
}

/// What an agent does again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeats {
    /// As words: `the same call of Bash with the same result, 5 times in a row`.
    pub what: String,
    /// The last call of it; none when it repeats words.
    pub call: Option<ToolUseId>,
}

// ---------------------------------------------------------------------------------- transcript, messages

/// When an append must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before the call returns: a side effect follows, or this is one's outcome.
    Now,
    /// Soon; the next `Now` covers it.
    Soon,
}

/// A record could not be written. The loop ends as `storage_error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to write the transcript: {message}")]
pub struct StorageError {
    /// What failed.
    pub message: String,
}

/// The agent's record: a JSONL file for workers, the journal for a coordinator. A batch is appended whole
/// or not at all; the order of calls is the order of records.
#[async_trait]
pub trait Transcript: Send + Sync {
    /// Appends a batch.
    async fn append(&self, batch: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError>;
}

/// A message that waits for the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// What enters the conversation: a user message's blocks.
    pub content: Vec<Block>,
    /// Why.
    pub origin: Origin,
    /// Commands it carries.
    pub commands: Vec<CommandId>,
}

/// What an agent that stopped without a call should do.
#[derive(Clone, Debug, PartialEq)]
pub enum BeforeEnd {
    /// End.
    End,
    /// Go on with these messages (a job ended, a message came).
    GoOn(Vec<Incoming>),
}

/// Messages for the agent.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Everything that waits, in order. Level-triggered: called at each phase 0; never blocks on news.
    async fn drain(&self) -> Vec<Incoming>;

    /// Called when the model stopped without a call: waits for own background jobs, within their grace.
    async fn before_end(&self, cancel: &CancellationToken) -> BeforeEnd;
}

// ---------------------------------------------------------------------------------------- the rest

/// What hooks say. This version has none; the port answers "go on".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// Nothing to say.
    GoOn,
    /// A Stop hook refuses the end; the model is told why.
    Block {
        /// Why.
        reason: String,
    },
    /// The loop ends.
    Stop {
        /// Why.
        message: String,
    },
}

/// Hooks.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// Before a run ends as `completed`.
    async fn on_stop(&self) -> HookAnswer {
        HookAnswer::GoOn
    }
}

/// No hooks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

#[async_trait]
impl Hooks for NoHooks {}

/// What the loop does around turns and cannot do itself.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Wall time.
    fn now(&self) -> Timestamp;

    /// Called before a call that may change something: what still reads the working tree as the turn before
    /// left it is waited for.
    async fn before_effect(&self) {}

    /// A turn ended: keep the working tree if it changed; give reminders that go with the next request
    /// (roster, git state), only when they differ from what was last given.
    async fn after_turn(&self, changed: bool) -> Vec<Block>;

    /// Keeps a whole result; answers with the path the model is told.
    async fn keep_result(&self, tool_use_id: &ToolUseId, text: &str) -> Result<String, StorageError>;

    /// Keeps results that leave the conversation, so that they can be retrieved.
    async fn put_away(&self, _originals: &[(ToolUseId, Vec<ResultBlock>)]) -> Result<(), StorageError> {
        Ok(())
    }

    /// What re-enters the conversation after a compaction (memory, to-do list, roster, files read last). What
    /// can be had again in another way takes no more than `budget_tokens`.
    async fn after_compaction(&self, budget_tokens: u64) -> Vec<Block>;
}

/// Who watches. Never blocks, never changes what happens next.
pub trait Observer: Send + Sync {
    /// News that may be lost.
    fn live(&self, live: Live);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn live(&self, _: Live) {}
}
