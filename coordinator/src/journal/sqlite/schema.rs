//! The tables of the file.

use rusqlite_migration::M;

/// The schema, step by step. A step is never edited after a release.
pub(super) const MIGRATIONS: &[M<'static>] = &[M::up(
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
