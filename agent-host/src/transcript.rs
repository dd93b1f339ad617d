//! An agent's record on disk: one JSON object a line, only ever appended to (spec 10.2).
//!
//! One process writes a transcript, under a lock; everybody else reads it. What a crash can leave (a torn
//! last line, zeros after power loss, two objects on a line) is read around and never taken for whole. What
//! stands whole in the file is never rewritten, so records and fields of other versions stay as they are.
//!
//! Between the records stand notes of the writer to the next reader (`notes`): checkpoints, from which a
//! resume begins instead of from the start, and metadata, by which they are found.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use query_engine::ports::{Durability, StorageError};
use serde::{Serialize, de::DeserializeOwned};
use swarm_protocol::{
    RunNumber, Timestamp,
    frame::RecordMark,
    record::{Record, RecordBody},
};
use uuid::Uuid;

#[cfg(any(test, feature = "test-support"))]
pub mod fuzzing;
mod holder;
mod line;
mod notes;
mod read;

pub use notes::METADATA_WINDOW;
use notes::{Checkpoint, Metadata};
pub use read::{Defects, Page, StoredRecord, find_results, read_page, read_record, read_todo};
use read::{Scan, Start};

/// Why a transcript cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// Another process writes it.
    #[error("the transcript {} is being written by {}", path.display(), holder.as_deref().unwrap_or("another process"))]
    Locked {
        /// The file.
        path: PathBuf,
        /// Which, if that can be told.
        holder: Option<String>,
    },
    /// The file system refused.
    #[error("failed to {what} the transcript {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

/// What stood in a transcript: all of it, or what follows a checkpoint.
///
/// The records' links are safe to follow: a parent always stands before its child, or is not there.
#[derive(Debug)]
pub struct Loaded<T = ()> {
    /// What the records before `records` add up to; none when `records` begin with the first.
    pub checkpoint: Option<T>,
    /// Bytes at the start of the file that were not read.
    pub skipped_bytes: u64,
    /// The records this version knows, in order.
    pub records: Vec<StoredRecord>,
    /// What was wrong with what was read.
    pub defects: Defects,
}

/// A transcript with this process as its only writer.
#[derive(Debug)]
pub struct TranscriptFile {
    path: PathBuf,
    file: Arc<File>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where the next line goes: the end of the last whole batch.
    end: u64,
    last: Option<RecordMark>,
    /// Where things stand, to be said again before it is too far from the end.
    metadata: Metadata,
    /// Where it was said last.
    metadata_at: u64,
    /// Where the last checkpoint's line ends; 0 without one.
    checkpoint_end: u64,
    /// Set when the file's state is no longer known; nothing is written after that.
    broken: Option<String>,
}

impl TranscriptFile {
    /// Opens or creates a transcript, takes its lock, cuts off what a crash left at its end, and reads all
    /// of it.
    ///
    /// # Errors
    /// [`TranscriptError::Locked`] when another process has it open for writing.
    pub fn open(path: &Path) -> Result<(Self, Loaded), TranscriptError> {
        Self::open_from(path, |_| Ok((None, Start::default())))
    }

    /// As [`Self::open`], but reads only what follows the last checkpoint that holds a `T`. What precedes
    /// it costs nothing, however long it is. Without such a checkpoint all is read.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_after_checkpoint<T: DeserializeOwned>(
        path: &Path,
    ) -> Result<(Self, Loaded<T>), TranscriptError> {
        Self::open_from(path, after_checkpoint)
    }

    fn open_from<T>(
        path: &Path,
        start: impl FnOnce(&File) -> io::Result<(Option<T>, Start)>,
    ) -> Result<(Self, Loaded<T>), TranscriptError> {
        let failed = |what| move |source| TranscriptError::Io { what, path: path.to_owned(), source };
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(failed("make a place for"))?;
        }
        let is_new = !path.exists();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TranscriptError::Locked { path: path.to_owned(), holder: holder::of(path) });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
        let (checkpoint, start) = start(&file).map_err(failed("read"))?;
        let scan = read::scan(&mut file, start).map_err(failed("read"))?;
        let mut end = scan.good_end;
        let length = file.metadata().map_err(failed("read"))?.len();
        if length > end {
            file.set_len(end).map_err(failed("cut the torn end of"))?;
        }
        if scan.lacks_line_break {
            file.write_all_at(b"\n", end).map_err(failed("repair the end of"))?;
            end += 1;
        }
        if length != end {
            file.sync_data().map_err(failed("repair the end of"))?;
        }
        if is_new && let Some(parent) = path.parent() {
            // The name of a file is not durable before its directory is.
            File::open(parent).and_then(|directory| directory.sync_all()).map_err(failed("create"))?;
        }
        let state = State {
            end,
            last: scan.last,
            metadata: scan.metadata,
            metadata_at: scan.metadata_at,
            checkpoint_end: scan.checkpoint_end,
            broken: None,
        };
        let transcript = Self { path: path.to_owned(), file: Arc::new(file), state: Mutex::new(state) };
        Ok((transcript, loaded(checkpoint, start, scan)))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last record.
    pub fn marks(&self) -> Option<RecordMark> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    /// Appends a batch with one write, whole or not at all; with [`Durability::Now`] it returns after the
    /// batch and everything before it is on the disk.
    ///
    /// # Errors
    /// The disk refused. After a failed sync, or a failed write that could not be taken back, every further
    /// append fails.
    pub async fn append(
        &self,
        run: RunNumber,
        now: Timestamp,
        batch: Vec<RecordBody>,
        durability: Durability,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let stored = self.write(run, now, batch)?;
        if durability == Durability::Now {
            self.sync().await?;
        }
        Ok(stored)
    }

    /// Puts everything written so far on the disk.
    ///
    /// # Errors
    /// The disk refused; what is durable is then unknown, and nothing more is written.
    pub async fn sync(&self) -> Result<(), StorageError> {
        let file = self.file.clone();
        let synced = tokio::task::spawn_blocking(move || file.sync_data()).await;
        let result = synced.unwrap_or_else(|_| Err(io::Error::other("the sync did not run")));
        result.map_err(|error| self.break_off(&error))
    }

    /// Appends what all records so far add up to, for [`Self::open_after_checkpoint`]. It is not synced: a
    /// checkpoint that is lost costs time at the next start, and nothing else.
    ///
    /// # Errors
    /// The disk refused, or `content` has no JSON. The transcript is as it was.
    pub fn append_checkpoint<T: Serialize>(&self, content: &T) -> Result<(), StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        let Metadata { todo_at, .. } = state.metadata;
        let checkpoint = Checkpoint { at: state.end, last: state.last, todo_at, content };
        notes::write_checkpoint(checkpoint, &mut bytes).map_err(no_json)?;
        let metadata = Metadata { checkpoint_at: Some(state.end), todo_at };
        let metadata_at = state.end + bytes.len() as u64;
        notes::write_metadata(metadata, &mut bytes).map_err(no_json)?;
        self.put(&mut state, &bytes)?;
        state.metadata = metadata;
        state.metadata_at = metadata_at;
        state.checkpoint_end = metadata_at;
        Ok(())
    }

    /// Reads again what this transcript holds after its last checkpoint with a `T`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_after_checkpoint<T: DeserializeOwned>(&self) -> io::Result<Loaded<T>> {
        // A handle of its own: the writer's has one place only.
        let mut file = File::open(&self.path)?;
        let (checkpoint, start) = after_checkpoint(&file)?;
        let scan = read::scan(&mut file, start)?;
        Ok(loaded(checkpoint, start, scan))
    }

    /// Whether so much was written since the last checkpoint that reading it takes longer than it should: more
    /// than `longest_tail`, and more than that checkpoint's own length, so that checkpoints never make up
    /// more than half of a file.
    pub fn wants_checkpoint(&self, longest_tail: u64) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let length = state.metadata.checkpoint_at.map_or(0, |at| state.checkpoint_end - at);
        state.end - state.checkpoint_end > longest_tail.max(length)
    }

    /// Writes and numbers in one step, so that the order of calls is the order of records.
    fn write(
        &self,
        run: RunNumber,
        now: Timestamp,
        batch: Vec<RecordBody>,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut last, mut metadata, mut metadata_at) = (state.last, state.metadata, state.metadata_at);
        let mut bytes = Vec::new();
        let mut stored = Vec::with_capacity(batch.len());
        for mut body in batch {
            let before = last.map(|mark| mark.uuid);
            let mut parent_uuid = before;
            if let RecordBody::CompactBoundary(boundary) = &mut body {
                parent_uuid = None;
                boundary.logical_parent_uuid = boundary.logical_parent_uuid.or(before);
            }
            let start = bytes.len();
            if let RecordBody::Todo { .. } = body {
                metadata.todo_at = Some(state.end + start as u64);
            }
            let n = last.map_or(1, |mark| mark.n + 1);
            let record = Record { n, uuid: Uuid::now_v7(), parent_uuid, timestamp: now, run, body };
            serde_json::to_writer(&mut bytes, &record).map_err(no_json)?;
            bytes.push(b'\n');
            last = Some(RecordMark { n, uuid: record.uuid });
            stored.push(StoredRecord { record, bytes: (bytes.len() - start) as u64 });
        }
        let end = state.end + bytes.len() as u64;
        if end - metadata_at > METADATA_WINDOW - notes::MAX_METADATA_LINE {
            metadata_at = end;
            notes::write_metadata(metadata, &mut bytes).map_err(no_json)?;
        }
        self.put(&mut state, &bytes)?;
        state.last = last;
        state.metadata = metadata;
        state.metadata_at = metadata_at;
        Ok(stored)
    }

    /// Writes at the end, whole or not at all.
    fn put(&self, state: &mut State, bytes: &[u8]) -> Result<(), StorageError> {
        if let Some(message) = &state.broken {
            return Err(StorageError { message: message.clone() });
        }
        let mut writer: &File = &self.file;
        let written = writer.seek(SeekFrom::Start(state.end)).and_then(|_| writer.write_all(bytes));
        if let Err(error) = written {
            if self.file.set_len(state.end).is_err() {
                state.broken = Some(format!("{error}; what was half written could not be taken back"));
            }
            return Err(StorageError { message: error.to_string() });
        }
        state.end += bytes.len() as u64;
        Ok(())
    }

    fn break_off(&self, error: &io::Error) -> StorageError {
        let message = error.to_string();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).broken = Some(message.clone());
        StorageError { message }
    }
}

fn after_checkpoint<T: DeserializeOwned>(file: &File) -> io::Result<(Option<T>, Start)> {
    let Some(found) = notes::find_checkpoint(file)? else { return Ok((None, Start::default())) };
    let Checkpoint { at, last, todo_at, content } = found.checkpoint;
    let metadata = Metadata { checkpoint_at: Some(at), todo_at };
    Ok((Some(content), Start { at: found.end, last, metadata }))
}

fn loaded<T>(checkpoint: Option<T>, start: Start, scan: Scan) -> Loaded<T> {
    Loaded { checkpoint, skipped_bytes: start.at, records: scan.records, defects: scan.defects }
}

fn no_json(error: serde_json::Error) -> StorageError {
    StorageError { message: error.to_string() }
}

#[cfg(test)]
mod tests;
