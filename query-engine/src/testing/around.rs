//! What stands around the loop: its transcript, inbox, hooks, surroundings and observer.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use swarm_protocol::{
    Block, Timestamp, ToolUseId,
    frame::Live,
    record::{Origin, RecordBody},
};
use tokio_util::sync::CancellationToken;

use super::lock;
use crate::ports::{
    BeforeEnd, Durability, HookAnswer, Hooks, Inbox, Incoming, Observer, StorageError, Surroundings,
    Transcript,
};

/// A transcript in memory: each append with its durability.
#[derive(Default)]
pub struct RecordingTranscript {
    batches: Mutex<Vec<(Vec<RecordBody>, Durability)>>,
    full: AtomicBool,
}

impl RecordingTranscript {
    /// The appends so far.
    pub fn batches(&self) -> Vec<(Vec<RecordBody>, Durability)> {
        lock(&self.batches).clone()
    }

    /// The records so far.
    pub fn records(&self) -> Vec<RecordBody> {
        lock(&self.batches).iter().flat_map(|(batch, _)| batch.clone()).collect()
    }

    /// From now on nothing can be written.
    pub fn fill_up(&self) {
        self.full.store(true, Ordering::SeqCst);
    }

    /// The kinds of the records of each append: `user request_started | assistant user`.
    pub fn shape(&self) -> String {
        let batches: Vec<String> = lock(&self.batches)
            .iter()
            .map(|(batch, _)| batch.iter().map(RecordBody::kind).collect::<Vec<_>>().join(" "))
            .collect();
        batches.join(" | ")
    }
}

#[async_trait]
impl Transcript for RecordingTranscript {
    async fn append(&self, batch: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StorageError { message: "no space left on device".to_owned() });
        }
        lock(&self.batches).push((batch, durability));
        Ok(())
    }
}

/// An inbox that is filled by hand.
#[derive(Default)]
pub struct FakeInbox {
    waiting: Mutex<Vec<Incoming>>,
    before_end: Mutex<VecDeque<BeforeEnd>>,
}

impl FakeInbox {
    /// A message of this origin.
    pub fn put(&self, text: &str, origin: Origin) {
        lock(&self.waiting).push(Incoming { content: vec![Block::text(text)], origin, commands: Vec::new() });
    }

    /// A whole message.
    pub fn put_incoming(&self, incoming: Incoming) {
        lock(&self.waiting).push(incoming);
    }

    /// What the next end is answered with; the default is to end.
    pub fn before_end(&self, answer: BeforeEnd) {
        lock(&self.before_end).push_back(answer);
    }
}

#[async_trait]
impl Inbox for FakeInbox {
    async fn drain(&self) -> Vec<Incoming> {
        std::mem::take(&mut *lock(&self.waiting))
    }

    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        lock(&self.before_end).pop_front().unwrap_or(BeforeEnd::End)
    }
}

/// Hooks that answer from a queue, then go on.
#[derive(Default)]
pub struct FakeHooks {
    answers: Mutex<VecDeque<HookAnswer>>,
}

impl FakeHooks {
    /// The next answer.
    pub fn push(&self, answer: HookAnswer) {
        lock(&self.answers).push_back(answer);
    }
}

#[async_trait]
impl Hooks for FakeHooks {
    async fn on_stop(&self) -> HookAnswer {
        lock(&self.answers).pop_front().unwrap_or(HookAnswer::GoOn)
    }
}

/// Surroundings in memory.
#[derive(Default)]
pub struct FakeSurroundings {
    now: AtomicI64,
    reminders: Mutex<VecDeque<Vec<Block>>>,
    attachments: Mutex<Vec<Block>>,
    kept: Mutex<Vec<(ToolUseId, String)>>,
    turns: Mutex<Vec<bool>>,
}

impl FakeSurroundings {
    /// Sets the wall clock.
    pub fn set_now(&self, millis: i64) {
        self.now.store(millis, Ordering::SeqCst);
    }

    /// What the next turn's end reminds of.
    pub fn remind(&self, text: &str) {
        lock(&self.reminders).push_back(vec![Block::text(text)]);
    }

    /// What re-enters after a compaction.
    pub fn attach(&self, text: &str) {
        lock(&self.attachments).push(Block::text(text));
    }

    /// Results that were kept whole.
    pub fn kept(&self) -> Vec<(ToolUseId, String)> {
        lock(&self.kept).clone()
    }

    /// Of each turn: whether something changed.
    pub fn turns(&self) -> Vec<bool> {
        lock(&self.turns).clone()
    }
}

#[async_trait]
impl Surroundings for FakeSurroundings {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }

    async fn after_turn(&self, changed: bool) -> Vec<Block> {
        lock(&self.turns).push(changed);
        lock(&self.reminders).pop_front().unwrap_or_default()
    }

    async fn keep_result(&self, tool_use_id: &ToolUseId, text: &str) -> Result<String, StorageError> {
        lock(&self.kept).push((tool_use_id.clone(), text.to_owned()));
        Ok(format!("/kept/{tool_use_id}"))
    }

    async fn after_compaction(&self, _: u64) -> Vec<Block> {
        lock(&self.attachments).clone()
    }
}

/// An observer that records.
#[derive(Default)]
pub struct RecordingObserver {
    live: Mutex<Vec<Live>>,
}

impl RecordingObserver {
    /// The news so far.
    pub fn live(&self) -> Vec<Live> {
        lock(&self.live).clone()
    }
}

impl Observer for RecordingObserver {
    fn live(&self, live: Live) {
        lock(&self.live).push(live);
    }
}
