//! An agent's record on disk: one JSON object a line, only ever appended to (spec 10.2).
//!
//! One process writes a transcript, under a lock; everybody else reads it. What a crash can leave (a torn
//! last line, zeros after power loss, two objects on a line) is read around and never taken for whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use query_engine::ports::{Durability, StorageError};
use swarm_protocol::{
    RunNumber, Timestamp,
    frame::RecordMark,
    record::{Record, RecordBody},
};
use uuid::Uuid;

mod read;

pub use read::{Defects, Page, StoredRecord, read_page};

/// Why a transcript cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// Another process writes it.
    #[error("the transcript {} is being written by another process", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
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

/// What stood in a transcript when it was opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The records this version knows, in order.
    pub records: Vec<StoredRecord>,
    /// What was wrong with the file.
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
    /// Set when the file's state is no longer known; nothing is written after that.
    broken: Option<String>,
}

impl TranscriptFile {
    /// Opens or creates a transcript, takes its lock, and cuts off what a crash left at its end.
    ///
    /// # Errors
    /// [`TranscriptError::Locked`] when another process has it open for writing.
    pub fn open(path: &Path) -> Result<(Self, Loaded), TranscriptError> {
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
            Err(TryLockError::WouldBlock) => return Err(TranscriptError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
        let scan = read::scan_all(&mut file).map_err(failed("read"))?;
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
        let state = Mutex::new(State { end, last: scan.last, broken: None });
        let transcript = Self { path: path.to_owned(), file: Arc::new(file), state };
        Ok((transcript, Loaded { records: scan.records, defects: scan.defects }))
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

    /// Writes and numbers in one step, so that the order of calls is the order of records.
    fn write(
        &self,
        run: RunNumber,
        now: Timestamp,
        batch: Vec<RecordBody>,
    ) -> Result<Vec<StoredRecord>, StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &state.broken {
            return Err(StorageError { message: message.clone() });
        }
        let mut last = state.last;
        let mut bytes = Vec::new();
        let mut stored = Vec::with_capacity(batch.len());
        for mut body in batch {
            let before = last.map(|mark| mark.uuid);
            let mut parent_uuid = before;
            if let RecordBody::CompactBoundary(boundary) = &mut body {
                parent_uuid = None;
                boundary.logical_parent_uuid = boundary.logical_parent_uuid.or(before);
            }
            let n = last.map_or(1, |mark| mark.n + 1);
            let record = Record { n, uuid: Uuid::now_v7(), parent_uuid, timestamp: now, run, body };
            let start = bytes.len();
            serde_json::to_writer(&mut bytes, &record)
                .map_err(|error| StorageError { message: error.to_string() })?;
            bytes.push(b'\n');
            last = Some(RecordMark { n, uuid: record.uuid });
            stored.push(StoredRecord { record, bytes: (bytes.len() - start) as u64 });
        }
        let mut writer: &File = &self.file;
        let written = writer.seek(SeekFrom::Start(state.end)).and_then(|_| writer.write_all(&bytes));
        if let Err(error) = written {
            if self.file.set_len(state.end).is_err() {
                state.broken = Some(format!("{error}; what was half written could not be taken back"));
            }
            return Err(StorageError { message: error.to_string() });
        }
        state.end += bytes.len() as u64;
        state.last = last;
        Ok(stored)
    }

    fn break_off(&self, error: &io::Error) -> StorageError {
        let message = error.to_string();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).broken = Some(message.clone());
        StorageError { message }
    }
}

#[cfg(test)]
mod tests;
