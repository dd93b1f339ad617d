//! Tables for queries, derived from events: written in the same transaction, rebuildable.

use rusqlite::{Connection, Transaction, params};
use swarm_protocol::{
    event::{Event, EventLine},
    notification::NotificationKind,
    usage::{Cost, Usage},
};

use crate::journal::{StorageFault, sqlite};

/// The derived tables, for rebuilds.
pub(crate) const TABLES: [&str; 6] = ["sessions", "workers", "tasks", "permissions", "usage", "ledger"];

/// Derives everything anew.
pub(crate) fn rebuild(transaction: &Transaction<'_>) -> Result<(), StorageFault> {
    for table in TABLES {
        transaction.execute(&format!("DELETE FROM {table}"), [])?;
    }
    let mut statement =
        transaction.prepare(&format!("SELECT {} FROM events ORDER BY position", sqlite::ROW))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // Rows that are no events are reported where they are read; here they derive nothing.
        if let Ok(Some(line)) = sqlite::Row::from_sql(row)?.parse() {
            apply(transaction, &line)?;
        }
    }
    Ok(())
}

/// What one stored event changes.
pub(crate) fn apply(connection: &Connection, line: &EventLine) -> Result<(), StorageFault> {
    let (Some(session), Some(seq), Some(position)) = (line.session_id, line.seq, line.position) else {
        return Ok(());
    };
    let session = session.to_string();
    let at = line.at.as_millis();
    match &line.event {
        Event::SessionCreated { spec } => {
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO sessions (session_id, last_seq, created_ms, updated_ms, repo, title, state)
                     VALUES (?1, ?2, ?3, ?3, ?4, ?5, 'active')",
                )?
                .execute(params![session, seq.0 as i64, at, spec.repo.to_string_lossy(), spec.title])?;
        }
        Event::SessionState { state, .. } => {
            connection
                .prepare_cached("UPDATE sessions SET state = ?2 WHERE session_id = ?1")?
                .execute(params![session, state.as_str()])?;
        }
        Event::TaskAccepted { task_id, .. } => {
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO tasks (task_id, session_id, verdict) VALUES (?1, ?2, NULL)",
                )?
                .execute(params![task_id.to_string(), session])?;
        }
        Event::TaskFinished { task_id, verdict, .. } => {
            connection
                .prepare_cached("UPDATE tasks SET verdict = ?2 WHERE task_id = ?1")?
                .execute(params![task_id.to_string(), verdict.as_str()])?;
        }
        Event::WorkerSpawned { spec, .. } => {
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO workers (worker_id, session_id, name, status, updated_ms)
                     VALUES (?1, ?2, ?3, 'pending', ?4)",
                )?
                .execute(params![spec.id.as_str(), session, spec.name, at])?;
        }
        Event::WorkerState { worker_id, status, .. } => {
            connection
                .prepare_cached("UPDATE workers SET status = ?2, updated_ms = ?3 WHERE worker_id = ?1")?
                .execute(params![worker_id.as_str(), status.as_str(), at])?;
        }
        Event::WorkerRecord { worker_id, record, .. } => {
            if let Some(usage) = &record.usage {
                insert_usage(
                    connection,
                    position,
                    &session,
                    Some(worker_id.as_str()),
                    record.model.as_deref().unwrap_or("unknown"),
                    at,
                    usage,
                    record.cost.unwrap_or_default(),
                )?;
            }
        }
        Event::CoordinatorTurn { usage, cost, model, .. } => {
            insert_usage(connection, position, &session, None, model, at, usage, *cost)?;
        }
        Event::CoordinatorHelper { usage, cost, model, .. } => {
            insert_usage(connection, position, &session, None, model, at, usage, *cost)?;
        }
        Event::PermissionRequested { request } => {
            connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO permissions (request_id, session_id, worker_id, settled) VALUES (?1, ?2, ?3, 0)",
                )?
                .execute(params![request.id.as_str(), session, request.worker_id.as_str()])?;
        }
        Event::PermissionDecided { decision, .. } => settle(connection, decision.id.as_str())?,
        Event::PermissionWithdrawn { id, .. } => settle(connection, id.as_str())?,
        Event::NotificationQueued { notification } => {
            ledger(connection, &session, &notification.key, "queued")?;
        }
        Event::NotificationSent { entries, .. } => {
            for entry in entries {
                ledger(connection, &session, &entry.key, "sent")?;
            }
        }
        Event::NotificationCommitted { keys, .. } => {
            for key in keys {
                ledger(connection, &session, key, "committed")?;
            }
        }
        // Nobody answers it by its id.
        Event::PermissionJudged { .. }
        | Event::SessionPermissionMode { .. }
        | Event::SessionRule { .. }
        | Event::SessionKeys { .. }
        | Event::Budget { .. }
        | Event::TaskCallback { .. }
        | Event::MessageQueued { .. }
        | Event::CoordinatorRequest { .. }
        | Event::CoordinatorIntent { .. }
        | Event::CoordinatorTool { .. }
        | Event::CoordinatorCompacted { .. }
        | Event::CoordinatorNote { .. }
        | Event::CoordinatorExit { .. }
        | Event::WorkerRun { .. }
        | Event::WorkerProcess { .. }
        | Event::WorkerCommand { .. }
        | Event::WorkerCommandSettled { .. }
        | Event::WorkerRewound { .. }
        | Event::WorkerMoved { .. }
        | Event::WorkerRunEnded { .. }
        | Event::WorkerWorktree { .. }
        | Event::ReviewMerged { .. }
        | Event::ReviewDiscarded { .. }
        | Event::ReviewRestored { .. }
        | Event::Error { .. }
        | Event::Live { .. } => {}
    }
    connection
        .prepare_cached("UPDATE sessions SET last_seq = ?2, updated_ms = ?3 WHERE session_id = ?1")?
        .execute(params![session, seq.0 as i64, at])?;
    Ok(())
}

fn settle(connection: &Connection, id: &str) -> Result<(), StorageFault> {
    connection.prepare_cached("UPDATE permissions SET settled = 1 WHERE request_id = ?1")?.execute([id])?;
    Ok(())
}

fn ledger(
    connection: &Connection,
    session: &str,
    key: &swarm_protocol::notification::NotificationKey,
    state: &str,
) -> Result<(), StorageFault> {
    let kind = match key.kind {
        NotificationKind::End => "end",
        NotificationKind::Progress => "progress",
    };
    connection
        .prepare_cached(
            "INSERT INTO ledger (worker_id, run, kind, n, session_id, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (worker_id, run, kind, n) DO UPDATE SET state = excluded.state",
        )?
        .execute(params![key.worker_id.as_str(), key.run.0, kind, key.n, session, state])?;
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the columns of one row")]
fn insert_usage(
    connection: &Connection,
    position: u64,
    session: &str,
    worker: Option<&str>,
    model: &str,
    at: i64,
    usage: &Usage,
    cost: Cost,
) -> Result<(), StorageFault> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO usage (position, session_id, worker_id, model, at_ms, input, output, cache_read,
                                           cache_write, known_usd, unpriced)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            position as i64,
            session,
            worker,
            model,
            at,
            usage.input_tokens as i64,
            usage.output_tokens as i64,
            usage.cache_read_tokens as i64,
            usage.cache_write_tokens as i64,
            cost.known_usd,
            cost.unpriced_calls as i64,
        ])?;
    Ok(())
}
