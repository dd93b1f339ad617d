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
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use rusqlite_migration::{M, Migrations};
use swarm_protocol::{
    Seq, SessionId, Timestamp,
    event::{Event, EventLine},
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{AppendError, DAMAGED, Journal, Read, StorageFault, StoredSession};
use crate::projections;

/// Appends that wait for the writer. Sessions append one batch at a time each, so this bounds the number of
/// sessions that may wait, not their events.
const WRITER_QUEUE: usize = 1024;

/// Lines a subscriber may be behind before it is told to read on by cursor.
const SUBSCRIBER_LAG: usize = 4096;

/// At most this many appends share one commit.
const GROUP: usize = 256;

/// How long SQLite waits for a lock held by another process (a backup, a person with a shell).
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The schema, step by step. A step is never edited after a release.
const MIGRATIONS: &[M<'static>] = &[M::up(
    "CREATE TABLE events (
         position   INTEGER PRIMARY KEY AUTOINCREMENT,
         session_id TEXT NOT NULL,
         seq        INTEGER NOT NULL,
         at_ms      INTEGER NOT NULL,
         kind       TEXT NOT NULL,
         worker_id  TEXT,
         body       TEXT NOT NULL,
         UNIQUE (session_id, seq)
     ) STRICT;
     CREATE INDEX events_by_worker ON events (worker_id, position) WHERE worker_id IS NOT NULL;

     -- Projections: derived from events in the same transaction, rebuildable (projections.rs).
     CREATE TABLE sessions (session_id TEXT PRIMARY KEY, last_seq INTEGER NOT NULL, created_ms INTEGER NOT NULL,
                            updated_ms INTEGER NOT NULL, repo TEXT NOT NULL, title TEXT NOT NULL,
                            state TEXT NOT NULL) STRICT;
     CREATE TABLE workers (worker_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, name TEXT NOT NULL,
                           status TEXT NOT NULL, updated_ms INTEGER NOT NULL) STRICT;
     CREATE TABLE tasks (task_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, verdict TEXT) STRICT;
     CREATE TABLE permissions (request_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, worker_id TEXT NOT NULL,
                               settled INTEGER NOT NULL) STRICT;
     CREATE TABLE usage (position INTEGER PRIMARY KEY, session_id TEXT NOT NULL, worker_id TEXT, model TEXT NOT NULL,
                         at_ms INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL,
                         cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL, known_usd REAL NOT NULL,
                         unpriced INTEGER NOT NULL) STRICT;
     CREATE TABLE ledger (worker_id TEXT NOT NULL, run INTEGER NOT NULL, kind TEXT NOT NULL, n INTEGER NOT NULL,
                          session_id TEXT NOT NULL, state TEXT NOT NULL,
                          PRIMARY KEY (worker_id, run, kind, n)) STRICT;

     -- Answers to repeated requests, kept 24 h. Not derived from events.
     CREATE TABLE idempotency (key TEXT PRIMARY KEY, request_sha256 TEXT NOT NULL, created_ms INTEGER NOT NULL,
                               status INTEGER NOT NULL, body TEXT NOT NULL) STRICT;",
)];

/// What became of an append.
type Stored = Result<Vec<Arc<EventLine>>, AppendError>;

struct Append {
    session: SessionId,
    expected: Seq,
    events: Vec<Event>,
    at: Timestamp,
    reply: oneshot::Sender<Stored>,
}

enum Order {
    Append(Append),
    /// Anything else that must write: runs in its own transaction.
    Write(Box<dyn FnOnce(&mut Connection) + Send>),
}

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

fn write_until_closed(
    mut connection: Connection,
    mut orders: mpsc::Receiver<Order>,
    lines: &broadcast::Sender<Arc<EventLine>>,
) {
    while let Some(first) = orders.blocking_recv() {
        let mut group: Vec<Append> = Vec::new();
        let mut next = Some(first);
        while let Some(order) = next {
            match order {
                Order::Append(append) => group.push(append),
                Order::Write(write) => {
                    // A write keeps its place among appends.
                    commit_group(&mut connection, std::mem::take(&mut group), lines);
                    write(&mut connection);
                }
            }
            next = if group.len() < GROUP { orders.try_recv().ok() } else { None };
        }
        commit_group(&mut connection, group, lines);
    }
}

/// Commits a group. If the shared commit fails, each append is told so; none is half stored.
fn commit_group(connection: &mut Connection, group: Vec<Append>, lines: &broadcast::Sender<Arc<EventLine>>) {
    if group.is_empty() {
        return;
    }
    let mut done: Vec<(Append, Stored)> = Vec::with_capacity(group.len());
    let mut left: Vec<Append> = Vec::new();
    let committed = (|| -> Result<(), rusqlite::Error> {
        let mut transaction = connection.transaction()?;
        let mut group = group.into_iter();
        while let Some(append) = group.next() {
            let result = (|| -> Result<_, AppendError> {
                let savepoint = transaction.savepoint()?;
                let stored = store(&savepoint, &append)?;
                savepoint.commit()?;
                Ok(stored)
            })();
            let rolled_back = result.is_err() && transaction.is_autocommit();
            done.push((append, result));
            if rolled_back {
                // A full disk makes SQLite roll the whole transaction back: what follows must not commit alone.
                left.extend(group);
                return Err(rusqlite::Error::SqliteFailure(
                    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
                    Some("the group was rolled back".to_owned()),
                ));
            }
        }
        transaction.commit()
    })();
    done.extend(left.into_iter().map(|append| (append, Ok(Vec::new()))));
    for (append, result) in done {
        let result = match (&committed, result) {
            (Ok(()), Ok(stored)) => {
                for line in &stored {
                    // No subscriber is no error.
                    lines.send(Arc::clone(line)).ok();
                }
                Ok(stored)
            }
            (_, Err(error)) => Err(error),
            (Err(error), Ok(_)) => {
                tracing::error!(%error, session.id = %append.session, "failed to commit to the journal");
                Err(StorageFault::Commit { message: error.to_string() }.into())
            }
        };
        append.reply.send(result).ok();
    }
}

fn store(connection: &Connection, append: &Append) -> Result<Vec<Arc<EventLine>>, AppendError> {
    let session = append.session.to_string();
    let actual = last_seq(connection, &session).map_err(StorageFault::from)?;
    if actual != append.expected {
        return Err(AppendError::Stale { session: append.session, expected: append.expected, actual });
    }
    let mut stored = Vec::with_capacity(append.events.len());
    let mut insert = connection
        .prepare_cached(
            "INSERT INTO events (session_id, seq, at_ms, kind, worker_id, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .map_err(StorageFault::from)?;
    for (offset, event) in append.events.iter().enumerate() {
        if event.is_live() {
            return Err(StorageFault::LiveEvent.into());
        }
        let seq = Seq(append.expected.0 + 1 + offset as u64);
        let body = serde_json::to_value(event).map_err(StorageFault::from)?;
        let kind = body.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default().to_owned();
        insert
            .execute(params![
                session,
                seq.0 as i64,
                append.at.as_millis(),
                kind,
                event.worker_id().map(|id| id.as_str()),
                body.to_string(),
            ])
            .map_err(StorageFault::from)?;
        let line = EventLine {
            seq: Some(seq),
            at: append.at,
            session_id: Some(append.session),
            position: Some(connection.last_insert_rowid() as u64),
            event: event.clone(),
        };
        projections::apply(connection, &line)?;
        stored.push(Arc::new(line));
    }
    Ok(stored)
}

fn last_seq(connection: &Connection, session: &str) -> Result<Seq, rusqlite::Error> {
    let last: Option<i64> = connection
        .prepare_cached("SELECT MAX(seq) FROM events WHERE session_id = ?1")?
        .query_row([session], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(Seq(last.unwrap_or(0) as u64))
}

/// A row of `events` as it is stored.
pub(crate) struct Row {
    position: u64,
    session: Vec<u8>,
    seq: u64,
    at_ms: i64,
    body: Vec<u8>,
}

/// The columns of [`Row`], in order.
pub(crate) const ROW: &str = "position, session_id, seq, at_ms, body";

impl Row {
    pub(crate) fn from_sql(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            position: row.get::<_, i64>(0)? as u64,
            // As bytes: text that is no UTF-8 is one damaged row, and no reason to read none.
            session: bytes(row, 1)?,
            seq: row.get::<_, i64>(2)? as u64,
            at_ms: row.get(3)?,
            body: bytes(row, 4)?,
        })
    }

    fn session_id(&self) -> Result<SessionId, String> {
        let text = std::str::from_utf8(&self.session).map_err(|error| error.to_string())?;
        text.parse().map_err(|error| format!("{error}"))
    }

    /// What readers are shown in the place of this row.
    fn marker(&self, problem: &str) -> EventLine {
        EventLine {
            seq: Some(Seq(self.seq)),
            at: Timestamp::from_millis(self.at_ms),
            session_id: self.session_id().ok(),
            position: Some(self.position),
            event: Event::Error {
                code: DAMAGED.to_owned(),
                message: format!(
                    "a row of the journal cannot be read: {problem}; to repair it, stop the server and put this row \
                     of $SWARM_HOME/journal.sqlite back from a copy (table events, position {})",
                    self.position
                ),
                worker_id: None,
            },
        }
    }

    /// The event; `None` for a kind this build does not know (readers skip those).
    pub(crate) fn parse(&self) -> Result<Option<EventLine>, String> {
        let session_id = self.session_id()?;
        let event = match serde_json::from_slice::<Event>(&self.body) {
            Ok(event) => event,
            Err(error)
                if error.to_string().contains("unknown variant") && error.to_string().contains("kind") =>
            {
                return Ok(None);
            }
            Err(error) => return Err(format!("event {} of session {session_id}: {error}", self.seq)),
        };
        Ok(Some(EventLine {
            seq: Some(Seq(self.seq)),
            at: Timestamp::from_millis(self.at_ms),
            session_id: Some(session_id),
            position: Some(self.position),
            event,
        }))
    }
}

fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes()?.to_vec())
}

fn collect(rows: Vec<Row>, cursor: impl Fn(&Row) -> u64) -> Read {
    let mut read = Read::default();
    for row in rows {
        read.last = cursor(&row);
        match row.parse() {
            Ok(Some(line)) => read.lines.push(line),
            Ok(None) => {}
            Err(problem) => {
                read.lines.push(row.marker(&problem));
                let (count, _) = read.damaged.get_or_insert((0, problem));
                *count += 1;
            }
        }
    }
    read
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
        self.query(move |connection| {
            let sql =
                format!("SELECT {ROW} FROM events WHERE session_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows: Vec<Row> = statement
                .query_map(params![session.to_string(), after.0 as i64, limit as i64], Row::from_sql)?
                .collect::<Result<_, _>>()?;
            Ok(collect(rows, |row| row.seq))
        })
        .await
    }

    async fn read_all(&self, after: u64, limit: usize) -> Result<Read, StorageFault> {
        self.query(move |connection| {
            let sql = format!("SELECT {ROW} FROM events WHERE position > ?1 ORDER BY position LIMIT ?2");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows: Vec<Row> = statement
                .query_map(params![after as i64, limit as i64], Row::from_sql)?
                .collect::<Result<_, _>>()?;
            Ok(collect(rows, |row| row.position))
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
