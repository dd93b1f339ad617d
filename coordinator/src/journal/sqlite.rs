//! The embedded journal: SQLite in WAL mode with `synchronous = FULL`, one writer thread with group commit,
//! a few reading connections.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};
use rusqlite_migration::Migrations;
use swarm_protocol::{
    Seq, SessionId, Timestamp,
    event::{Event, EventLine},
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{AppendError, DAMAGED, Journal, Read, StorageFault, StoredSession};
use crate::projections;

mod row;
mod schema;
mod writer;

pub(crate) use row::{ROW, Row};

use schema::MIGRATIONS;
use writer::{Append, Order, WRITER_QUEUE, write_until_closed};

/// Lines a subscriber may be behind before it is told to read on by cursor.
const SUBSCRIBER_LAG: usize = 4096;

/// How long SQLite waits for a lock held by another process (a backup, a person with a shell).
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The journal in one SQLite file.
pub struct SqliteJournal {
    path: PathBuf,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    lines: broadcast::Sender<Arc<EventLine>>,
    readers: Arc<Mutex<Vec<Connection>>>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
}

impl SqliteJournal {
    /// Opens or creates the file, brings its schema up to date, starts the writer.
    ///
    /// # Errors
    /// A newer schema is refused and the file is left as it is; a failed migration changes nothing.
    pub fn open(path: &Path) -> Result<Self, StorageFault> {
        Self::open_now(path).map_err(|fault| match fault {
            StorageFault::Sqlite(error)
            | StorageFault::Migration(rusqlite_migration::Error::RusqliteError { err: error, .. }) => {
                match error.sqlite_error_code() {
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                        StorageFault::Busy { path: path.to_owned(), waited: BUSY_TIMEOUT }
                    }
                    Some(ErrorCode::ReadOnly) => StorageFault::ReadOnly { path: path.to_owned() },
                    _ => StorageFault::Sqlite(error),
                }
            }
            other => other,
        })
    }

    fn open_now(path: &Path) -> Result<Self, StorageFault> {
        // SQLite would make it readable by all, and its helpers take its mode: conversations stand in it. What
        // is wrong with the path SQLite says better.
        let _made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // A transaction that reads before it writes is told at once that another one writes, without the wait.
        connection.set_transaction_behavior(TransactionBehavior::Immediate);
        // SQLite opens what cannot be written for reading, and fails at the first append.
        if connection.is_readonly("main")? {
            return Err(StorageFault::ReadOnly { path: path.to_owned() });
        }
        // Asked before anything is written, so that a newer file is not even switched to WAL.
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let found = usize::try_from(found).unwrap_or(usize::MAX);
        if found > MIGRATIONS.len() {
            return Err(StorageFault::NewerSchema { path: path.to_owned(), found, known: MIGRATIONS.len() });
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        Migrations::from_slice(MIGRATIONS).to_latest(&mut connection)?;
        let (orders, receiver) = mpsc::channel(WRITER_QUEUE);
        let (lines, _) = broadcast::channel(SUBSCRIBER_LAG);
        let sender = lines.clone();
        let writer = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || write_until_closed(connection, receiver, &sender))
            .map_err(|_| StorageFault::Closed)?;
        Ok(Self {
            path: path.to_owned(),
            orders: Mutex::new(Some(orders)),
            lines,
            readers: Arc::default(),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Takes no more appends, and returns when those that were accepted are on disk.
    pub fn close(&self) {
        if let Ok(mut orders) = self.orders.lock() {
            orders.take();
        }
        let handle = self.writer.lock().ok().and_then(|mut writer| writer.take());
        if let Some(handle) = handle {
            // A panic of the writer was reported by its hook already.
            handle.join().ok();
        }
    }

    fn orders(&self) -> Result<mpsc::Sender<Order>, StorageFault> {
        self.orders.lock().ok().and_then(|orders| orders.clone()).ok_or(StorageFault::Closed)
    }

    /// Runs a query on a reading connection, off the async threads.
    pub async fn query<T, F>(&self, query: F) -> Result<T, StorageFault>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StorageFault> + Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || {
            let idle = readers.lock().ok().and_then(|mut readers| readers.pop());
            let connection = match idle {
                Some(connection) => connection,
                None => {
                    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                    let connection = Connection::open_with_flags(&path, flags)?;
                    connection.busy_timeout(BUSY_TIMEOUT)?;
                    connection
                }
            };
            let answer = query(&connection);
            if let Ok(mut readers) = readers.lock()
                && readers.len() < 4
            {
                readers.push(connection);
            }
            answer
        })
        .await
        .map_err(|_| StorageFault::Closed)?
    }

    /// Runs a write that is no event (idempotency keys, a rebuild of projections) on the writer.
    pub async fn write<T, F>(&self, write: F) -> Result<T, StorageFault>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, StorageFault> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let order = Order::Write(Box::new(move |connection| {
            let result = (|| -> Result<T, StorageFault> {
                let transaction = connection.transaction()?;
                let value = write(&transaction)?;
                transaction.commit()?;
                Ok(value)
            })();
            reply.send(result).ok();
        }));
        self.orders()?.send(order).await.map_err(|_| StorageFault::Closed)?;
        answer.await.map_err(|_| StorageFault::Closed)?
    }

    /// Derives all projections anew from the events.
    pub async fn rebuild_projections(&self) -> Result<(), StorageFault> {
        self.write(projections::rebuild).await
    }
}

impl Drop for SqliteJournal {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Journal for SqliteJournal {
    async fn append(
        &self,
        session: SessionId,
        expected: Seq,
        events: Vec<Event>,
        at: Timestamp,
    ) -> Result<Vec<Arc<EventLine>>, AppendError> {
        let (reply, answer) = oneshot::channel();
        let order = Order::Append(Append { session, expected, events, at, reply });
        self.orders()?.send(order).await.map_err(|_| StorageFault::Closed)?;
        answer.await.map_err(|_| StorageFault::Closed)?
    }

    async fn read(&self, session: SessionId, after: Seq, limit: usize) -> Result<Read, StorageFault> {
        let session = session.to_string();
        self.query(move |connection| {
            let which = "session_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
            row::read(connection, which, params![session, after.0 as i64, limit as i64], |row| row.seq)
        })
        .await
    }

    async fn read_all(&self, after: u64, limit: usize) -> Result<Read, StorageFault> {
        self.query(move |connection| {
            let which = "position > ?1 ORDER BY position LIMIT ?2";
            row::read(connection, which, params![after as i64, limit as i64], |row| row.position)
        })
        .await
    }

    async fn sessions(&self) -> Result<Vec<StoredSession>, StorageFault> {
        self.query(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT session_id, MAX(seq) FROM events GROUP BY session_id ORDER BY MIN(position)",
            )?;
            let rows = statement
                .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?
                .collect::<Result<Vec<_>, _>>()?;
            Ok(rows
                .into_iter()
                .filter_map(|(id, last)| {
                    Some(StoredSession { session_id: id.parse().ok()?, last: Seq(last as u64) })
                })
                .collect())
        })
        .await
    }

    async fn position(&self) -> Result<u64, StorageFault> {
        self.query(|connection| {
            let last: Option<i64> =
                connection.query_row("SELECT MAX(position) FROM events", [], |row| row.get(0))?;
            Ok(last.unwrap_or(0) as u64)
        })
        .await
    }

    fn subscribe(&self) -> broadcast::Receiver<Arc<EventLine>> {
        self.lines.subscribe()
    }

    fn publish_live(&self, line: EventLine) {
        debug_assert!(line.event.is_live());
        self.lines.send(Arc::new(line)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &tempfile::TempDir) -> SqliteJournal {
        SqliteJournal::open(&directory.path().join("journal.sqlite")).unwrap()
    }

    #[tokio::test]
    async fn passes_the_conformance_suite() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.sqlite");
        super::super::conformance::check(|| SqliteJournal::open(&path).unwrap()).await;
    }

    #[tokio::test]
    async fn a_newer_schema_is_refused_and_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.sqlite");
        {
            let connection = Connection::open(&path).unwrap();
            connection.pragma_update(None, "user_version", 99).unwrap();
        }
        let before = std::fs::read(&path).unwrap();
        let error = SqliteJournal::open(&path).err().unwrap();
        assert!(matches!(error, StorageFault::NewerSchema { found: 99, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[tokio::test]
    async fn projections_can_be_rebuilt_to_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let journal = open(&directory);
        let session = SessionId(uuid::Uuid::now_v7());
        let events = super::super::conformance::sample_events();
        journal.append(session, Seq(0), events, Timestamp::from_millis(5)).await.unwrap();
        let dump = |connection: &Connection| -> Result<Vec<String>, StorageFault> {
            let mut all = Vec::new();
            for table in projections::TABLES {
                let mut statement = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1"))?;
                let columns = statement.column_count();
                let rows = statement
                    .query_map([], |row| {
                        (0..columns)
                            .map(|column| {
                                row.get::<_, rusqlite::types::Value>(column).map(|value| format!("{value:?}"))
                            })
                            .collect::<Result<Vec<_>, _>>()
                    })?
                    .collect::<Result<Vec<_>, _>>()?;
                all.extend(rows.into_iter().map(|row| format!("{table}: {}", row.join(", "))));
            }
            Ok(all)
        };
        let before = journal.query(dump).await.unwrap();
        assert!(before.iter().any(|row| row.starts_with("sessions:")), "{before:?}");
        journal.rebuild_projections().await.unwrap();
        assert_eq!(journal.query(dump).await.unwrap(), before);
    }

    #[tokio::test]
    async fn one_unreadable_row_is_reported_and_the_others_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let journal = open(&directory);
        let session = SessionId(uuid::Uuid::now_v7());
        let events = super::super::conformance::sample_events();
        let n_events = events.len();
        journal.append(session, Seq(0), events, Timestamp::from_millis(5)).await.unwrap();
        journal
            .write(|transaction| {
                transaction
                    .execute("UPDATE events SET body = '{\"kind\":\"session.state\"}' WHERE seq = 2", [])?;
                Ok(())
            })
            .await
            .unwrap();
        let read = journal.read(session, Seq(0), 100).await.unwrap();
        assert_eq!(read.lines.len(), n_events, "a marker stands for it");
        let marker = read.lines.iter().find(|line| line.seq == Some(Seq(2))).unwrap();
        assert!(matches!(&marker.event, Event::Error { code, .. } if code == DAMAGED), "{marker:?}");
        assert!(read.damaged.unwrap().1.contains("event 2"));
    }
}
