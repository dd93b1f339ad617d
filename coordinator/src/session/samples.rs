//! Sessions and workers for the tests of this module's parts.

use swarm_protocol::{
    RunNumber, Seq, SessionId, TaskId, Timestamp, WorkerId,
    event::{Event, EventLine},
    launch::{Expects, Isolation, WorkerSpec},
};
use uuid::Uuid;

use super::model::SessionModel;
use crate::journal::conformance::sample_spec;

/// The one task of these sessions.
pub(crate) const TASK: TaskId = TaskId(Uuid::from_u128(1));

const SESSION: SessionId = SessionId(Uuid::from_u128(7));

/// A session that was just created.
pub(crate) fn session() -> SessionModel {
    let created = Event::SessionCreated { spec: Box::new(sample_spec()) };
    SessionModel::begin(&line(Seq(1), created)).unwrap()
}

/// What the journal hands out for an event.
pub(crate) fn line(seq: Seq, event: Event) -> EventLine {
    EventLine {
        seq: Some(seq),
        at: Timestamp::from_millis(seq.0.cast_signed()),
        session_id: Some(SESSION),
        position: Some(seq.0),
        event,
    }
}

/// Applies the session's next event.
pub(crate) fn apply(model: &mut SessionModel, event: Event) -> Seq {
    let seq = Seq(model.seq.0 + 1);
    model.apply(&line(seq, event));
    seq
}

/// The call `call` spawns a worker of this id.
pub(crate) fn spawn(model: &mut SessionModel, id: &str, call: &str) -> WorkerId {
    let id: WorkerId = id.parse().unwrap();
    let spec = WorkerSpec {
        id: id.clone(),
        name: format!("work of {id}"),
        description: "do it".to_owned(),
        prompt: "p".to_owned(),
        agent_type: "general-purpose".to_owned(),
        isolation: Isolation::Worktree,
        expects: Expects::Changes,
        model: sample_spec().models.worker,
        base: "1".repeat(40),
        branch: Some(format!("swarm/x/{id}/do-it")),
        worktree: "/w".into(),
        port_base: 41_000,
        task_id: TASK,
        parent_turn: 1,
    };
    apply(model, Event::WorkerSpawned { spec: Box::new(spec), tool_use_id: call.parse().unwrap() });
    id
}

/// A run of a worker begins.
pub(crate) fn begin_run(model: &mut SessionModel, worker_id: &WorkerId, run: RunNumber) {
    let worker_id = worker_id.clone();
    apply(model, Event::WorkerRun { worker_id, run, reason: "test".to_owned(), task_id: TASK, restarts: 0 });
}
