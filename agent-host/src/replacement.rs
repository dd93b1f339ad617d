//! Originals of what was taken out of a conversation, kept for a while (spec 3.3).
//!
//! When an old result is replaced by a placeholder, the engine's side puts the original here, and `Retrieve`
//! gets it back. It is a cache before the transcript: what was evicted, expired or never kept is read from the
//! transcript's record of the same uuid, and only when that is gone too is the content gone
//! ([`CONTENT_GONE`]). One store belongs to one agent and one process; what a dead process left in its
//! directory is removed, since the transcript still has it.
//!
//! ```text
//! put -> memory (4 MB) -> least recently used goes to disk (50 MB, 500 entries in all) -> forgotten
//! get -> memory or disk -> transcript -> none
//! ```

use std::{
    collections::HashMap,
    fmt,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use swarm_protocol::{Block, SessionId, Timestamp, record::RecordBody};
use tokio::time::Instant;
use uuid::Uuid;

use crate::transcript::read_record;

/// What `Retrieve` answers when neither the store nor the transcript has the original.
pub const CONTENT_GONE: &str = "content no longer available";

/// Files of the store end so; nothing else in its directory is touched.
const EXTENSION: &str = "original";

/// Which block of which message of which session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplacementKey {
    /// The session.
    pub session: SessionId,
    /// The transcript's record that holds the message.
    pub message: Uuid,
    /// The block in that message, from 0.
    pub block: usize,
}

impl fmt::Display for ReplacementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.session, self.message, self.block)
    }
}

/// An original.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The block as it was.
    pub content: Block,
    /// When it was replaced; from the transcript: when it was written.
    pub at: Timestamp,
    /// Length of its JSON.
    pub bytes: u64,
}

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacementLimits {
    /// Entries.
    pub entries: usize,
    /// Bytes in memory and on disk together.
    pub bytes: u64,
    /// Bytes of them in memory.
    pub memory_bytes: u64,
    /// An entry that was not asked for during this time is forgotten.
    pub idle: Duration,
}

impl Default for ReplacementLimits {
    /// The figures of spec 3.3.
    fn default() -> Self {
        Self {
            entries: 500,
            bytes: 50 * 1024 * 1024,
            memory_bytes: 4 * 1024 * 1024,
            idle: Duration::from_secs(30 * 60),
        }
    }
}

/// The store of one agent. Clones share it.
#[derive(Clone, Debug)]
pub struct ReplacementStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    transcript: PathBuf,
    limits: ReplacementLimits,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<ReplacementKey, Entry>,
    /// Counts uses, so that two in one instant have an order.
    uses: u64,
    bytes: u64,
    memory_bytes: u64,
}

#[derive(Debug)]
struct Entry {
    at: Timestamp,
    bytes: u64,
    /// The JSON; none when a file holds it.
    memory: Option<Vec<u8>>,
    last_use: u64,
    last_used: Instant,
}

impl ReplacementStore {
    /// A store that keeps files in this directory, which it makes when it first needs it, in front of this
    /// transcript.
    ///
    /// # Errors
    /// What a dead process left in the directory cannot be removed.
    pub fn open(directory: PathBuf, transcript: PathBuf, limits: ReplacementLimits) -> io::Result<Self> {
        remove_files(&directory)?;
        let entries = Mutex::default();
        Ok(Self { shared: Arc::new(Shared { directory, transcript, limits, entries }) })
    }

    /// Keeps an original, as the most recently used entry. What is larger than the whole store is not kept:
    /// the transcript has it.
    ///
    /// # Errors
    /// It has no JSON form, or the disk refused to take what memory cannot hold. The original can still be
    /// had from the transcript.
    pub async fn put(&self, key: ReplacementKey, content: &Block, at: Timestamp) -> io::Result<()> {
        let json = serde_json::to_vec(content)?;
        self.blocking(move |shared, now| shared.put(key, json, at, now)).await
    }

    /// The original, from here or from the transcript; `None` when both have lost it ([`CONTENT_GONE`]).
    ///
    /// # Errors
    /// The transcript cannot be read.
    pub async fn get(&self, key: ReplacementKey) -> io::Result<Option<Replacement>> {
        self.blocking(move |shared, now| shared.get(&key, now)).await
    }

    /// Forgets what was idle too long. Every `put` and `get` does so too; who waits long calls this, so that
    /// memory and disk are free meanwhile.
    pub async fn expire(&self) {
        let expired = self.blocking(|shared, now| {
            shared.lock().expire(now, shared);
            Ok(())
        });
        if let Err(error) = expired.await {
            tracing::warn!(%error, "old originals were not removed");
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared, Instant) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (shared, now) = (Arc::clone(&self.shared), Instant::now());
        tokio::task::spawn_blocking(move || work(&shared, now)).await.map_err(io::Error::other)?
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The agent is gone, and its transcript has everything.
        if let Err(error) = remove_files(&self.directory) {
            tracing::warn!(%error, "originals were left behind; the next start removes them");
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: ReplacementKey, json: Vec<u8>, at: Timestamp, now: Instant) -> io::Result<()> {
        let mut entries = self.lock();
        entries.expire(now, self);
        entries.remove(&key, self);
        let bytes = json.len() as u64;
        if bytes > self.limits.bytes || self.limits.entries == 0 {
            return Ok(());
        }
        while entries.by_key.len() >= self.limits.entries || entries.bytes + bytes > self.limits.bytes {
            let Some(oldest) = entries.oldest(|_| true) else { break };
            entries.remove(&oldest, self);
        }
        entries.uses += 1;
        let last_use = entries.uses;
        entries.bytes += bytes;
        entries.memory_bytes += bytes;
        entries.by_key.insert(key, Entry { at, bytes, memory: Some(json), last_use, last_used: now });
        self.spill(&mut entries)
    }

    /// Moves the least recently used entries to disk until memory holds no more than it may. One that the
    /// disk does not take is forgotten.
    fn spill(&self, entries: &mut Entries) -> io::Result<()> {
        let mut result = Ok(());
        while entries.memory_bytes > self.limits.memory_bytes {
            let Some(oldest) = entries.oldest(|entry| entry.memory.is_some()) else { break };
            let Some(entry) = entries.by_key.get_mut(&oldest) else { break };
            let Some(json) = entry.memory.take() else { break };
            entries.memory_bytes -= entry.bytes;
            if let Err(error) = self.write(&oldest, &json) {
                entries.remove(&oldest, self);
                result = Err(error);
            }
        }
        result
    }

    fn get(&self, key: &ReplacementKey, now: Instant) -> io::Result<Option<Replacement>> {
        if let Some(found) = self.kept(key, now) {
            return Ok(Some(found));
        }
        let Some(record) = read_record(&self.transcript, key.message)? else { return Ok(None) };
        let content = match record.body {
            RecordBody::User { message, .. } | RecordBody::Assistant { message, .. } => {
                message.content.into_iter().nth(key.block)
            }
            _ => None,
        };
        content
            .map(|content| {
                let bytes = serde_json::to_vec(&content)?.len() as u64;
                Ok(Replacement { content, at: record.timestamp, bytes })
            })
            .transpose()
    }

    /// What the store itself has. A file that someone removed or changed counts as evicted.
    fn kept(&self, key: &ReplacementKey, now: Instant) -> Option<Replacement> {
        let mut entries = self.lock();
        entries.expire(now, self);
        entries.uses += 1;
        let uses = entries.uses;
        let entry = entries.by_key.get_mut(key)?;
        (entry.last_use, entry.last_used) = (uses, now);
        let (at, bytes) = (entry.at, entry.bytes);
        let content = match &entry.memory {
            Some(json) => serde_json::from_slice(json).ok(),
            None => fs::read(self.file(key)).ok().and_then(|json| serde_json::from_slice(&json).ok()),
        };
        if content.is_none() {
            entries.remove(key, self);
        }
        content.map(|content| Replacement { content, at, bytes })
    }

    fn file(&self, key: &ReplacementKey) -> PathBuf {
        let ReplacementKey { session, message, block } = key;
        self.directory.join(format!("{session}-{message}-{block}.{EXTENSION}"))
    }

    fn write(&self, key: &ReplacementKey, json: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let path = self.file(key);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(json)
    }
}

impl Entries {
    /// The least recently used of these entries.
    fn oldest(&self, of: impl Fn(&Entry) -> bool) -> Option<ReplacementKey> {
        let fitting = self.by_key.iter().filter(|(_, entry)| of(entry));
        fitting.min_by_key(|(_, entry)| entry.last_use).map(|(key, _)| *key)
    }

    fn expire(&mut self, now: Instant, shared: &Shared) {
        let is_idle = |entry: &Entry| now.duration_since(entry.last_used) >= shared.limits.idle;
        while let Some(key) = self.oldest(is_idle) {
            self.remove(&key, shared);
        }
    }

    fn remove(&mut self, key: &ReplacementKey, shared: &Shared) {
        let Some(entry) = self.by_key.remove(key) else { return };
        self.bytes -= entry.bytes;
        if entry.memory.is_some() {
            self.memory_bytes -= entry.bytes;
        } else if let Err(error) = fs::remove_file(shared.file(key))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, %key, "an original was not removed");
        }
    }
}

fn remove_files(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
