//! What stands around the loop: its transcript, inbox, hooks, surroundings and observer.

use async_trait::async_trait;
use swarm_protocol::{
    Block, ResultBlock, Timestamp, ToolUseId,
    frame::Live,
    ids::CommandId,
    record::{Origin, RecordBody},
};
use tokio_util::sync::CancellationToken;

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
