//! The one thread that writes: appends that wait share a commit.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use swarm_protocol::{
    Seq, SessionId, Timestamp,
    event::{Event, EventLine},
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{AppendError, StorageFault};
use crate::projections;

/// Appends that wait for the writer. Sessions append one batch at a time each, so this bounds the number of
/// sessions that may wait, not their events.
pub(super) const WRITER_QUEUE: usize = 1024;

/// At most this many appends share one commit.
const GROUP: usize = 256;

/// What became of an append.
pub(super) type Stored = Result<Vec<Arc<EventLine>>, AppendError>;

pub(super) struct Append {
    pub(super) session: SessionId,
    pub(super) expected: Seq,
    pub(super) events: Vec<Event>,
    pub(super) at: Timestamp,
    pub(super) reply: oneshot::Sender<Stored>,
}

pub(super) enum Order {
    Append(Append),
    /// Anything else that must write: runs in its own transaction.
    Write(Box<dyn FnOnce(&mut Connection) + Send>),
}

pub(super) fn write_until_closed(
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

pub(super) fn last_seq(connection: &Connection, session: &str) -> Result<Seq, rusqlite::Error> {
    let last: Option<i64> = connection
        .prepare_cached("SELECT MAX(seq) FROM events WHERE session_id = ?1")?
        .query_row([session], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(Seq(last.unwrap_or(0) as u64))
}
