//! What happens around turns: snapshots of the working tree, whole results on disk, memory files of
//! directories that the agent comes to.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
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
    tools::{self, Files},
    tree::Tree,
};

/// Files that re-enter the conversation after a compaction.
const RECENT_FILES: usize = 5;
/// A low guess: what is shown may cost a little more than its budget, never much.
const BYTES_PER_TOKEN: u64 = 4;

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

    fn memory_files(&self) -> Option<String> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).reminder()
    }

    /// The files that the agent read or wrote last, as they are now, so that it need not read them all again.
    async fn recent_files(&self, budget_tokens: u64) -> Option<Block> {
        let files = self.files.clone();
        let bytes = usize::try_from(budget_tokens * BYTES_PER_TOKEN).unwrap_or(usize::MAX);
        let text = tokio::task::spawn_blocking(move || recent_files(&files, bytes)).await.ok().flatten();
        text.map(Block::text)
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
        keep_text(&self.results_dir, tool_use_id, text).await
    }

    /// The transcript has them in any case: what is kept beside it is the quick way back.
    async fn put_away(&self, originals: &[(ToolUseId, Vec<ResultBlock>)]) -> Result<(), StorageError> {
        self.originals.put_away(originals).await;
        Ok(())
    }

    async fn after_compaction(&self, budget_tokens: u64) -> Vec<Block> {
        let mut blocks = Vec::new();
        blocks.extend(self.memory_files().map(Block::text));
        blocks.extend(self.recent_files(budget_tokens).await);
        let facts = self.recorder.facts();
        blocks.extend(
            tools::tasks::reminder(&facts.tasks)
                .map(|tasks| Block::text(format!("<system-reminder>\n{tasks}\n</system-reminder>"))),
        );
        blocks.extend(facts.plan_path.map(|path| {
            Block::text(format!(
                "<system-reminder>\nThe plan that was accepted stands in {path}.\n</system-reminder>"
            ))
        }));
        let todo = facts.todo;
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

/// Keeps the text of a call's result in a directory; answers with its path.
pub(crate) async fn keep_text(
    directory: &Path,
    tool_use_id: &ToolUseId,
    text: &str,
) -> Result<String, StorageError> {
    // Ids are the provider's: they name no path.
    let name: String = tool_use_id
        .as_str()
        .chars()
        .take(100)
        .map(|character| if character.is_ascii_alphanumeric() || character == '_' { character } else { '-' })
        .collect();
    let directory = directory.to_owned();
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

/// A text with the files read or written last that fit, and the names of those that do not.
fn recent_files(files: &Files, budget_bytes: usize) -> Option<String> {
    let mut left = budget_bytes;
    let (mut shown, mut named) = (Vec::new(), Vec::new());
    for path in files.memory.recent(RECENT_FILES) {
        if !(files.visible)(&path) {
            continue;
        }
        match small_text(&path, left) {
            Some(content) => {
                left -= content.len();
                shown.push((path, content));
            }
            None => named.push(files.display(&path).to_string()),
        }
    }
    let mut text = String::new();
    if !shown.is_empty() {
        text.push_str("Files you read or wrote last, as they are now:\n");
    }
    for (path, content) in &shown {
        text.push_str(&format!("<file path=\"{}\">\n{content}\n</file>\n", files.display(path)));
    }
    // The newest is noted last, so that it stays the newest.
    for (path, content) in shown.iter().rev() {
        files.memory.note(path, content.as_bytes());
    }
    if !named.is_empty() {
        text.push_str(&format!("You also read: {}. Read them again when you need them.\n", named.join(", ")));
    }
    (!text.is_empty()).then_some(text)
}

/// A file's text when it has at most so many bytes, and nothing that would end the block it is shown in.
fn small_text(path: &Path, most: usize) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > most as u64 {
        return None;
    }
    let content = String::from_utf8(std::fs::read(path).ok()?).ok()?;
    (content.len() <= most && !content.contains("</file>")).then_some(content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_read_last_re_enter_as_far_as_they_fit() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let hidden = root.join("secret");
        let visible = hidden.clone();
        let files = Files::new(root.clone(), root.clone(), Arc::new(move |path: &Path| path != visible));
        assert_eq!(recent_files(&files, 1_000), None);
        let large = "x".repeat(2_000);
        let contents = [
            ("a", "old"),
            ("b", "two"),
            ("secret", "s"),
            ("c", large.as_str()),
            ("d", "</file>"),
            ("e", "five"),
        ];
        for (name, content) in contents {
            fs::write(root.join(name), content).unwrap();
            files.memory.note(&root.join(name), content.as_bytes());
        }
        // The oldest is one too many; what was changed meanwhile is shown as it is, and known so.
        fs::write(root.join("b"), "TWO").unwrap();
        let text = recent_files(&files, 1_000).unwrap();
        assert_eq!(
            text,
            "Files you read or wrote last, as they are now:\n<file path=\"e\">\nfive\n</file>\n\
             <file path=\"b\">\nTWO\n</file>\nYou also read: d, c. Read them again when you need them.\n"
        );
        assert!(files.memory.seen(&root.join("b")).unwrap().is(b"TWO"));
        assert_eq!(files.memory.recent(1), [root.join("e")]);
        assert_eq!(recent_files(&files, 4).unwrap().matches("<file").count(), 1);
    }
}
