//! The journal: one append-only log per session, one cursor (spec 1.5).
//!
//! Everything a person, a client or a restart can learn is in it or derived from it. Only the session's
//! actor appends; `expected` fences a second server, it never arbitrates inside one. The embedded
//! implementation is [`sqlite::SqliteJournal`]; [`conformance`] is what any other has to pass.

use std::sync::Arc;

use async_trait::async_trait;
use swarm_protocol::{
    Seq, SessionId, Timestamp,
    event::{Event, EventLine},
};
use tokio::sync::broadcast;

#[cfg(test)]
pub(crate) mod conformance;
pub mod sqlite;

/// Why an append did not happen. Nothing of the batch is stored then.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Somebody else appended: this server no longer owns the session.
    #[error("session {session} stands at {actual}, not at {expected}: another server appended")]
    Stale {
        /// The session.
        session: SessionId,
        /// Where the caller thought it stood.
        expected: Seq,
        /// Where it stands.
        actual: Seq,
    },
    /// The disk or the database refused.
    #[error(transparent)]
    Storage(#[from] StorageFault),
}

impl From<rusqlite::Error> for AppendError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Storage(error.into())
    }
}

/// The disk or the database refused.
#[derive(Debug, thiserror::Error)]
pub enum StorageFault {
    /// SQLite said so.
    #[error("the journal's database failed")]
    Sqlite(#[from] rusqlite::Error),
    /// A group of appends could not be committed; none of it is stored.
    #[error("the journal could not be written: {message}")]
    Commit {
        /// What SQLite said.
        message: String,
    },
    /// The schema could not be brought up to date.
    #[error("the journal's schema could not be brought up to date")]
    Migration(#[from] rusqlite_migration::Error),
    /// The database was written by a later version.
    #[error("{path} was written by a later version of swarm (schema {found}, this build knows {known})")]
    NewerSchema {
        /// The file.
        path: std::path::PathBuf,
        /// Its schema.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// The database can be read and not written.
    #[error(
        "{path} cannot be written: give this user write access to it and its directory, or choose another SWARM_HOME"
    )]
    ReadOnly {
        /// The file.
        path: std::path::PathBuf,
    },
    /// Another program holds the database.
    #[error(
        "{path} is locked by another program, for longer than {waited:?}: end that program (a backup, a shell of sqlite) and try again"
    )]
    Busy {
        /// The file.
        path: std::path::PathBuf,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// An event could not be written as JSON.
    #[error("an event could not be written as JSON")]
    Encode(#[from] serde_json::Error),
    /// The writer is gone: the server shuts down.
    #[error("the journal is closed")]
    Closed,
    /// A live event was handed to the journal.
    #[error("a live event does not belong in the journal")]
    LiveEvent,
}

/// Code of the event that stands for a damaged row. It is made by who reads, and is in no journal.
pub const DAMAGED: &str = "journal_damaged";

/// A stored session: its id and where its journal stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// Its id.
    pub session_id: SessionId,
    /// Its last seq.
    pub last: Seq,
}

/// What was read: whole events, and how many rows could not be.
#[derive(Debug, Default)]
pub struct Read {
    /// Events, in order. In the place of a damaged row stands an [`Event::Error`] of the code [`DAMAGED`].
    pub lines: Vec<EventLine>,
    /// Rows that are no event of this version's schema; the first problem in words.
    pub damaged: Option<(u64, String)>,
    /// Seq or position of the last row looked at, damaged and unknown ones included: where to read on.
    pub last: u64,
}

/// The log.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends a batch atomically after `expected`, and gives the lines as stored. Durable when it returns.
    async fn append(
        &self,
        session: SessionId,
        expected: Seq,
        events: Vec<Event>,
        at: Timestamp,
    ) -> Result<Vec<Arc<EventLine>>, AppendError>;

    /// Events of one session after `after`, at most `limit`.
    async fn read(&self, session: SessionId, after: Seq, limit: usize) -> Result<Read, StorageFault>;

    /// Events of all sessions after a server-wide position, at most `limit`.
    async fn read_all(&self, after: u64, limit: usize) -> Result<Read, StorageFault>;

    /// All sessions.
    async fn sessions(&self) -> Result<Vec<StoredSession>, StorageFault>;

    /// The last server-wide position.
    async fn position(&self) -> Result<u64, StorageFault>;

    /// Every line from now on, in the order of positions, live ones between. Who falls behind is told so by
    /// the channel and reads on by cursor; nobody slows the writer.
    fn subscribe(&self) -> broadcast::Receiver<Arc<EventLine>>;

    /// Sends a live line to subscribers; it is not stored.
    fn publish_live(&self, line: EventLine);
}
