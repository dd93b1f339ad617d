//! The model: what it is asked, and what it streams.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::Stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use swarm_protocol::{Block, Message, ToolUseId, Usage, record::StopReason, usage::Cost};

/// A tool as the provider is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// Its text.
    pub description: String,
    /// JSON schema of its input; the top is an object.
    pub input_schema: Value,
    /// Which providers are told of it.
    pub offer: Offer,
}

/// Which providers are told of a tool (spec 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// All.
    #[default]
    Always,
    /// Those that keep a definition back until it is referred to.
    Deferred,
    /// The others: they reach the deferred ones by it.
    InPlaceOfDeferred,
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

    /// Waits until the provider may be asked: others who share its key may have met a limit. Dropping the future takes
    /// the question back.
    async fn ready(&self) {}

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
