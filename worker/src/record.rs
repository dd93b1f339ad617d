//! The one place where this process writes its transcript: each batch goes to the file, then to the facts
//! of the run, then to the link, in one order.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use agent_host::transcript::{Loaded, StoredRecord, TranscriptFile};
use async_trait::async_trait;
use query_engine::ports::{Durability, StorageError, Transcript};
use swarm_protocol::{
    Block, RunNumber, Timestamp, ToolUseId,
    frame::RecordMark,
    record::{Origin, RecordBody},
};
use uuid::Uuid;

use crate::{
    checkpoint::{self, Checkpoint, LONGEST_TAIL},
    facts::Facts,
    link::Outbox,
};

/// Wall time, read here and nowhere deeper.
pub fn now() -> Timestamp {
    jiff::Timestamp::now().into()
}

/// Writes records.
pub struct Recorder {
    file: Arc<TranscriptFile>,
    run: RunNumber,
    outbox: Arc<Outbox>,
    /// Where the results stand that are in the conversation, or were.
    results: Mutex<HashMap<ToolUseId, (Uuid, usize)>>,
    facts: Mutex<Facts>,
    /// Grants of calls whose use is not recorded yet.
    in_use: Mutex<Vec<u64>>,
    /// Held from the write until the link has it: the link must see the order of the file.
    order: tokio::sync::Mutex<()>,
}

impl Recorder {
    /// A recorder for a run; `loaded` is what the transcript holds already.
    pub fn new(
        file: TranscriptFile,
        run: RunNumber,
        outbox: Arc<Outbox>,
        loaded: &Loaded<Checkpoint>,
    ) -> Self {
        let facts = Mutex::new(checkpoint::facts(loaded, run));
        outbox.start_after(file.marks());
        Self {
            file: Arc::new(file),
            run,
            outbox,
            facts,
            in_use: Mutex::default(),
            results: Mutex::default(),
            order: tokio::sync::Mutex::default(),
        }
    }

    /// The run whose records these are.
    pub fn run(&self) -> RunNumber {
        self.run
    }

    /// Appends a batch and hands it to the link.
    ///
    /// # Errors
    /// The disk refused.
    pub async fn write(
        &self,
        mut batch: Vec<RecordBody>,
        durability: Durability,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let reports_use =
            |body: &RecordBody| matches!(body, RecordBody::Assistant { .. } | RecordBody::HelperCall { .. });
        if batch.iter().any(reports_use) {
            let grants = std::mem::take(&mut *self.in_use());
            if !grants.is_empty() {
                batch.push(RecordBody::GrantSettled { grants });
            }
        }
        self.write_aside(batch, durability).await
    }

    /// As [`Self::write`], for a call beside the conversation's: its use settles no grant of theirs.
    ///
    /// # Errors
    /// The disk refused.
    pub async fn write_aside(
        &self,
        batch: Vec<RecordBody>,
        durability: Durability,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let _order = self.order.lock().await;
        let compacts = batch.iter().any(|body| matches!(body, RecordBody::CompactBoundary(_)));
        let stored = self.file.append(self.run, now(), batch, durability).await?;
        self.count(&stored);
        self.outbox.push(&stored);
        if compacts || self.file.wants_checkpoint(LONGEST_TAIL) {
            self.checkpoint().await;
        }
        Ok(stored)
    }

    fn count(&self, stored: &[StoredRecord]) {
        self.note_results(stored);
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        for record in stored {
            facts.apply(&record.record);
        }
    }

    /// Where the results of this process stand, so that no boundary has to search a long file for them.
    fn note_results(&self, stored: &[StoredRecord]) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        for StoredRecord { record, .. } in stored {
            let RecordBody::User { message, origin: Origin::ToolResults, .. } = &record.body else {
                continue;
            };
            for (index, block) in message.content.iter().enumerate() {
                if let Block::ToolResult { tool_use_id, .. } = block {
                    results.insert(tool_use_id.clone(), (record.uuid, index));
                }
            }
        }
    }

    /// The record and the block of a result that this process wrote; told once.
    pub fn take_result_place(&self, call: &ToolUseId) -> Option<(Uuid, usize)> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).remove(call)
    }

    /// Writes a checkpoint, by the same fold as the next start's. Only called in `order`, so that nothing is
    /// written meanwhile; one that fails costs time at that start, and nothing else.
    async fn checkpoint(&self) {
        let (file, run) = (self.file.clone(), self.run);
        let work = move || {
            let loaded = file.read_after_checkpoint().map_err(|error| error.to_string())?;
            file.append_checkpoint(&Checkpoint::after(&loaded, run)).map_err(|error| error.to_string())
        };
        let written = tokio::task::spawn_blocking(work).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(error.to_string())) {
            tracing::warn!(error, "no checkpoint was written");
        }
    }

    fn in_use(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is about to be made with this grant: the next record of use settles it.
    pub fn use_grant(&self, grant: u64) {
        self.in_use().push(grant);
    }

    /// Whether the use of a grant's call is not recorded yet.
    pub fn is_in_use(&self, grant: u64) -> bool {
        self.in_use().contains(&grant)
    }

    /// What the records of this run add up to.
    pub fn facts(&self) -> Facts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a command of the server stands in the transcript.
    pub fn has_taken(&self, command: swarm_protocol::CommandId) -> bool {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).taken.contains(&command)
    }

    /// The last record.
    pub fn last(&self) -> Option<RecordMark> {
        self.file.marks()
    }
}

#[async_trait]
impl Transcript for Recorder {
    async fn append(&self, batch: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError> {
        self.write(batch, durability).await.map(drop)
    }
}
