//! Records of workers: appended without their bodies, acknowledged when they are durable.

use swarm_protocol::{
    RunNumber, WaitingFor, WorkerId, WorkerStatus,
    event::{BudgetChange, Event},
    frame::ToWorker,
    record::{RecordBody, RecordHead},
};
use tokio::time::Instant;

use super::Actor;
use crate::workers::lifecycle::LifeEvent;

type Whole = (WorkerId, RunNumber, RecordHead, Option<Box<RecordBody>>);

impl Actor {
    /// Appends records of workers and acknowledges them when they are durable. False when they could not be.
    pub(super) async fn take_records(&mut self, records: Vec<Whole>) -> bool {
        if records.is_empty() {
            return true;
        }
        let mut events = Vec::new();
        let mut heads: std::collections::HashMap<WorkerId, u64> = std::collections::HashMap::new();
        let mut opened = Vec::new();
        let mut closed = Vec::new();
        let mut gaps = Vec::new();
        // States within this batch, for steps that follow one another.
        let mut statuses: std::collections::HashMap<WorkerId, WorkerStatus> =
            std::collections::HashMap::new();
        for (worker_id, link_run, head, body) in records {
            // A record belongs to the run that wrote it, whichever run's link brings it.
            let run = head.run;
            debug_assert!(run <= link_run);
            let Some(worker) = self.model.worker(&worker_id) else { continue };
            let known = heads.get(&worker_id).copied().or(worker.last_record.map(|mark| mark.n)).unwrap_or(0);
            heads.entry(worker_id.clone()).or_insert(known);
            if head.n <= known {
                continue;
            }
            if head.n != known + 1 {
                // A record was lost between: the link is dropped, the worker resends from what we know.
                tracing::warn!(worker.id = %worker_id, known, got = head.n, "a gap in the records");
                gaps.push(worker_id.clone());
                continue;
            }
            heads.insert(worker_id.clone(), head.n);
            let started = match body.as_deref() {
                Some(RecordBody::RunStarted(started)) => Some(started.clone()),
                _ => None,
            };
            events.push(Event::WorkerRecord { worker_id: worker_id.clone(), record: head, started });
            let status = *statuses.get(&worker_id).unwrap_or(&worker.status);
            let mut step = |event: LifeEvent, reason: &str| {
                let made = self.step_from(&worker_id, status, event, reason);
                if let Some(Event::WorkerState { status, .. }) = &made {
                    statuses.insert(worker_id.clone(), *status);
                }
                made
            };
            match body.map(|body| *body) {
                Some(RecordBody::CommandAccepted { command, .. }) => {
                    events.push(settled(&worker_id, command))
                }
                Some(RecordBody::User { commands, .. }) => {
                    events.extend(commands.into_iter().map(|command| settled(&worker_id, command)));
                }
                Some(RecordBody::PermissionRequested { request }) => {
                    opened.push((request.id.clone(), request.timeout_ms));
                    let reason = format!("{} {}", request.tool, request.summary);
                    events.push(Event::PermissionRequested { request });
                    events.extend(step(LifeEvent::Waits(WaitingFor::Permission), &reason));
                }
                Some(RecordBody::PermissionWithdrawn { id, reason }) => {
                    closed.push(id.clone());
                    events.push(Event::PermissionWithdrawn { id, reason: reason.clone() });
                    events.extend(step(LifeEvent::Works, &reason));
                }
                Some(RecordBody::GrantRequested(request)) => events.push(Event::Budget {
                    worker_id: Some(worker_id.clone()),
                    change: BudgetChange::Requested { request },
                }),
                Some(RecordBody::GrantSettled { grants }) => events.push(Event::Budget {
                    worker_id: Some(worker_id.clone()),
                    change: BudgetChange::Freed { grants, reason: "their use is recorded".to_owned() },
                }),
                Some(RecordBody::RunEnded(end)) if run == worker.run() => {
                    let reason = end.exit_reason.sentence();
                    events.push(Event::WorkerRunEnded { worker_id: worker_id.clone(), run, end });
                    events.extend(step(LifeEvent::RunEnded, &reason));
                }
                Some(
                    RecordBody::RunStarted(_)
                    | RecordBody::RunEnded(_)
                    | RecordBody::RequestStarted { .. }
                    | RecordBody::Intent { .. }
                    | RecordBody::ToolFinished(_)
                    | RecordBody::Assistant { .. }
                    | RecordBody::HelperCall { .. }
                    | RecordBody::Snapshot { .. }
                    | RecordBody::CompactBoundary(_)
                    | RecordBody::ContentReplacement { .. }
                    | RecordBody::Todo { .. }
                    | RecordBody::TaskItem { .. }
                    | RecordBody::Tombstone { .. },
                )
                | None => {}
            }
        }
        for worker_id in gaps {
            self.drop_link(&worker_id);
        }
        if let Err(error) = self.append(events).await {
            // Nothing is acknowledged: the workers connect again and resend what is not.
            self.note_failure(&error);
            for worker_id in heads.into_keys() {
                self.drop_link(&worker_id);
            }
            return false;
        }
        for id in closed {
            self.desk.close(&id);
        }
        let now = Instant::now();
        for (id, timeout_ms) in opened {
            self.desk.open(id, std::time::Duration::from_millis(timeout_ms), now);
        }
        for (worker_id, n) in heads {
            if let Some(connection) = self.connections.get(&worker_id) {
                // A broken link resends after its next hello.
                connection.frames.try_send(ToWorker::Acknowledged { n }).ok();
            }
        }
        true
    }
}

fn settled(worker_id: &WorkerId, command: swarm_protocol::CommandId) -> Event {
    Event::WorkerCommandSettled { worker_id: worker_id.clone(), command, accepted: true, note: String::new() }
}
