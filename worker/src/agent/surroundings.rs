//! What happens around turns: snapshots of the working tree, whole results on disk, memory files of
//! directories that the agent comes to.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use agent_host::{Memory, memory_reminder};
use async_trait::async_trait;
use query_engine::ports::{Durability, StorageError, Surroundings};
use swarm_protocol::{Block, ResultBlock, Timestamp, ToolUseId, record::RecordBody};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    originals::Originals,
    record::{Recorder, now},
    tools::Files,
    tree::Tree,
};

/// The surroundings of a worker.
pub(crate) struct WorkerSurroundings {
    tree: Option<Arc<Tree>>,
    recorder: Arc<Recorder>,
    files: Arc<Files>,
    memory: Arc<Mutex<Memory>>,
    results_dir: PathBuf,
    originals: Arc<Originals>,
    /// The snapshot under way: it runs beside the next request.
    snapshot: tokio::sync::Mutex<Option<AbortOnDropHandle<()>>>,
}

impl WorkerSurroundings {
    pub(crate) fn new(
        tree: Option<Arc<Tree>>,
        recorder: Arc<Recorder>,
        files: Arc<Files>,
        memory: Arc<Mutex<Memory>>,
        results_dir: PathBuf,
        originals: Arc<Originals>,
    ) -> Self {
        Self {
            tree,
            recorder,
            files,
            memory,
            results_dir,
            originals,
            snapshot: tokio::sync::Mutex::default(),
        }
    }

    /// Waits for a snapshot that is under way.
    pub(crate) async fn settle(&self) {
        if let Some(snapshot) = self.snapshot.lock().await.take() {
            // A snapshot that failed inside has logged why.
            drop(snapshot.await);
        }
    }

    async fn start_snapshot(&self) {
        let Some(tree) = self.tree.clone() else { return };
        self.settle().await;
        let recorder = self.recorder.clone();
        let work = async move {
            match tree.snapshot_if_changed().await {
                Ok(Some(snapshot)) => {
                    let commit = snapshot.commit.as_str().to_owned();
                    let record = RecordBody::Snapshot { n: snapshot.number, commit };
                    if let Err(error) = recorder.write(vec![record], Durability::Soon).await {
                        tracing::error!(%error, "a snapshot was not recorded");
                    }
                }
                Ok(None) => {}
                Err(problem) => tracing::warn!(problem, "the working tree was not kept"),
            }
        };
        *self.snapshot.lock().await = Some(AbortOnDropHandle::new(tokio::spawn(work)));
    }

    /// Memory files between the root and what was touched, which the agent has not seen.
    async fn new_memory(&self) -> Vec<Block> {
        let touched = self.files.take_touched();
        if touched.is_empty() {
            return Vec::new();
        }
        let memory = self.memory.clone();
        let look = move || {
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            let new: Vec<_> = touched.iter().flat_map(|path| memory.on_read(path)).collect();
            memory_reminder(&new, agent_host::DEFAULT_MEMORY_BUDGET_BYTES)
        };
        let text = tokio::task::spawn_blocking(look).await.ok().flatten();
        text.map(Block::text).into_iter().collect()
    }
}

#[async_trait]
impl Surroundings for WorkerSurroundings {
    fn now(&self) -> Timestamp {
        now()
    }

    /// The snapshot of a turn holds no change of the next one.
    async fn before_effect(&self) {
        self.settle().await;
    }

    async fn after_turn(&self, changed: bool) -> Vec<Block> {
        if changed {
            self.start_snapshot().await;
        }
        self.new_memory().await
    }

    async fn keep_result(&self, tool_use_id: &ToolUseId, text: &str) -> Result<String, StorageError> {
        // Ids are the provider's: they name no path.
        let name: String = tool_use_id
            .as_str()
            .chars()
            .take(100)
            .map(
                |character| {
                    if character.is_ascii_alphanumeric() || character == '_' { character } else { '-' }
                },
            )
            .collect();
        let directory = self.results_dir.clone();
        let path = directory.join(format!("{name}.txt"));
        let (text, target) = (text.to_owned(), path.clone());
        let write = move || {
            DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&target)?;
            file.write_all(text.as_bytes())
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => Ok(path.display().to_string()),
            Ok(Err(error)) => Err(StorageError { message: format!("{}: {error}", path.display()) }),
            Err(error) => Err(StorageError { message: error.to_string() }),
        }
    }

    /// The transcript has them in any case: what is kept beside it is the quick way back.
    async fn put_away(&self, originals: &[(ToolUseId, Vec<ResultBlock>)]) -> Result<(), StorageError> {
        self.originals.put_away(originals).await;
        Ok(())
    }

    async fn after_compaction(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).reminder();
        blocks.extend(memory.map(Block::text));
        let todo = self.recorder.facts().todo;
        if !todo.is_empty() {
            let lines: Vec<String> =
                todo.iter().map(|item| format!("- [{}] {}", item.status, item.content)).collect();
            blocks.push(Block::text(format!(
                "<system-reminder>\nYour to-do list:\n{}\n</system-reminder>",
                lines.join("\n")
            )));
        }
        blocks
    }
}
