//! All sessions of the server: loaded at start, opened by tasks, found by id.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::OptionalExtension;
use swarm_protocol::{
    PermissionRequestId, Seq, SessionId, TaskId, WorkerId,
    event::{Event, EventLine, SessionSpec},
};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::{
    clock,
    journal::{AppendError, Journal as _, StorageFault},
    server::Shared,
    session::{KeyRing, SessionHandle, actor, model::SessionModel, projection::Projection},
};

/// Events read at once when a session is loaded.
const PAGE: usize = 2_000;

struct Served {
    handle: SessionHandle,
    task: AbortOnDropHandle<()>,
}

/// A session whose journal could not be read whole: shown, and otherwise left alone.
#[derive(Clone, Debug)]
pub(crate) struct Damaged {
    pub(crate) session_id: SessionId,
    pub(crate) problem: String,
    /// Events that cannot be read.
    pub(crate) n_events: u64,
    pub(crate) last: Seq,
}

/// The table of served sessions. The lock is never held across an await.
#[derive(Default)]
pub(crate) struct Sessions {
    served: Mutex<HashMap<SessionId, Served>>,
    damaged: Mutex<Vec<Damaged>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves these tables whole: each change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// The session of an id.
    pub(crate) fn get(&self, id: SessionId) -> Option<SessionHandle> {
        lock(&self.served).get(&id).map(|served| served.handle.clone())
    }

    /// All, in no order.
    pub(crate) fn all(&self) -> Vec<SessionHandle> {
        lock(&self.served).values().map(|served| served.handle.clone()).collect()
    }

    /// Those that could not be loaded.
    pub(crate) fn damaged(&self) -> Vec<Damaged> {
        lock(&self.damaged).clone()
    }

    /// One of them.
    pub(crate) fn damaged_one(&self, id: SessionId) -> Option<Damaged> {
        lock(&self.damaged).iter().find(|damaged| damaged.session_id == id).cloned()
    }

    /// Waits until every actor has ended; they were told by the shutdown token.
    pub(crate) async fn close(&self) {
        let served: Vec<Served> = lock(&self.served).drain().map(|(_, served)| served).collect();
        for Served { handle, task } in served {
            drop(handle);
            // A panic of an actor was reported by its hook; its session is loaded again at the next start.
            task.await.ok();
        }
    }

    fn serve(
        &self,
        shared: &Arc<Shared>,
        model: SessionModel,
        projection: Projection,
        keys: KeyRing,
    ) -> SessionHandle {
        let id = model.id;
        let (handle, task) = actor::spawn(Arc::clone(shared), model, projection, keys);
        lock(&self.served).insert(id, Served { handle: handle.clone(), task });
        handle
    }
}

/// Loads every session of the journal. One that is damaged does not keep the others from being served.
pub(crate) async fn load(shared: &Arc<Shared>) -> Result<(), StorageFault> {
    for stored in shared.journal.sessions().await? {
        match fold(shared, stored.session_id).await {
            Ok((model, projection)) => {
                shared.sessions.serve(shared, model, projection, KeyRing::default());
            }
            Err(Unfit { problem, n_events }) => {
                tracing::error!(session.id = %stored.session_id, %problem, "a session is damaged");
                let damaged = Damaged { session_id: stored.session_id, problem, n_events, last: stored.last };
                lock(&shared.sessions.damaged).push(damaged);
            }
        }
    }
    Ok(())
}

fn projection_of(shared: &Shared, model: &SessionModel) -> Projection {
    Projection::new(shared.home.session_file(&model.spec.repo_key, model.id))
}

/// Why a session cannot be served.
struct Unfit {
    problem: String,
    /// Events that cannot be read; 0 when all can, and they make no session.
    n_events: u64,
}

impl From<String> for Unfit {
    fn from(problem: String) -> Self {
        Self { problem, n_events: 0 }
    }
}

/// A session's state from its events; its JSONL file is written anew from them.
async fn fold(shared: &Shared, session: SessionId) -> Result<(SessionModel, Projection), Unfit> {
    let mut model: Option<(SessionModel, Projection)> = None;
    let mut damaged: Option<(u64, String)> = None;
    let mut after = Seq(0);
    loop {
        let read = shared.journal.read(session, after, PAGE).await.map_err(|error| error.to_string())?;
        if read.last == 0 {
            break;
        }
        after = Seq(read.last);
        if let Some((count, problem)) = read.damaged {
            damaged.get_or_insert((0, problem)).0 += count;
        }
        if damaged.is_some() {
            // Nothing is made of the rest; it is counted.
            continue;
        }
        for line in &read.lines {
            match &mut model {
                None => {
                    let begun = SessionModel::begin(line)
                        .ok_or_else(|| "its first event does not open a session".to_owned())?;
                    let mut projection = projection_of(shared, &begun);
                    projection.restart();
                    model = Some((begun, projection));
                }
                Some((model, projection)) => {
                    model.apply(line);
                    projection.write(line);
                }
            }
        }
    }
    if let Some((n_events, problem)) = damaged {
        let problem = format!("{n_events} of its events cannot be read; the first: {problem}");
        return Err(Unfit { problem, n_events });
    }
    let (mut model, projection) = model.ok_or_else(|| "it has no events".to_owned())?;
    // Kinds of a later version at the end were passed over; their places are taken.
    model.seq = after;
    Ok((model, projection))
}

/// Opens a session.
pub(crate) async fn open(
    shared: &Arc<Shared>,
    spec: SessionSpec,
    keys: KeyRing,
) -> Result<SessionHandle, AppendError> {
    let session = SessionId(Uuid::now_v7());
    let created = Event::SessionCreated { spec: Box::new(spec) };
    let lines = shared.journal.append(session, Seq(0), vec![created], clock::now()).await?;
    let line: &EventLine = lines.first().ok_or(StorageFault::Closed)?;
    let model = SessionModel::begin(line).ok_or(StorageFault::Closed)?;
    let projection = projection_of(shared, &model);
    Ok(shared.sessions.serve(shared, model, projection, keys))
}

async fn session_of(
    shared: &Shared,
    sql: &'static str,
    id: String,
) -> Result<Option<SessionHandle>, StorageFault> {
    let found: Option<String> = shared
        .journal
        .query(move |connection| {
            Ok(connection.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?)
        })
        .await?;
    Ok(found.and_then(|text| text.parse().ok()).and_then(|id| shared.sessions.get(id)))
}

/// The session of a worker.
pub(crate) async fn of_worker(shared: &Shared, id: &WorkerId) -> Result<Option<SessionHandle>, StorageFault> {
    session_of(shared, "SELECT session_id FROM workers WHERE worker_id = ?1", id.to_string()).await
}

/// The session of a task.
pub(crate) async fn of_task(shared: &Shared, id: TaskId) -> Result<Option<SessionHandle>, StorageFault> {
    session_of(shared, "SELECT session_id FROM tasks WHERE task_id = ?1", id.to_string()).await
}

/// The session of a permission request.
pub(crate) async fn of_request(
    shared: &Shared,
    id: &PermissionRequestId,
) -> Result<Option<SessionHandle>, StorageFault> {
    session_of(shared, "SELECT session_id FROM permissions WHERE request_id = ?1", id.to_string()).await
}
