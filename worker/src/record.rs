//! The one place where this process writes its transcript: each batch goes to the file, then to the facts
//! of the run, then to the link, in one order.

use std::sync::{Arc, Mutex, PoisonError};

use agent_host::transcript::{StoredRecord, TranscriptFile};
use async_trait::async_trait;
use query_engine::ports::{Durability, StorageError, Transcript};
use swarm_protocol::{RunNumber, Timestamp, frame::RecordMark, record::RecordBody};

use crate::{facts::Facts, link::Outbox};

/// Wall time, read here and nowhere deeper.
pub fn now() -> Timestamp {
    jiff::Timestamp::now().into()
}

/// Writes records.
pub struct Recorder {
    file: TranscriptFile,
    run: RunNumber,
    outbox: Arc<Outbox>,
    facts: Mutex<Facts>,
    /// Held from the write until the link has it: the link must see the order of the file.
    order: tokio::sync::Mutex<()>,
}

impl Recorder {
    /// A recorder for a run; `loaded` is what the transcript holds already.
    pub fn new(file: TranscriptFile, run: RunNumber, outbox: Arc<Outbox>, loaded: &[StoredRecord]) -> Self {
        let mut facts = Facts::new(run);
        for stored in loaded {
            facts.apply(&stored.record);
        }
        outbox.start_after(file.marks());
        Self { file, run, outbox, facts: Mutex::new(facts), order: tokio::sync::Mutex::default() }
    }

    /// Appends a batch and hands it to the link.
    ///
    /// # Errors
    /// The disk refused.
    pub async fn write(
        &self,
        batch: Vec<RecordBody>,
        durability: Durability,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let _order = self.order.lock().await;
        let stored = self.file.append(self.run, now(), batch, durability).await?;
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        for record in &stored {
            facts.apply(&record.record);
        }
        drop(facts);
        self.outbox.push(&stored);
        Ok(stored)
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
