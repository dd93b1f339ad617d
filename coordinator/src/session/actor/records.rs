//! Records of workers: appended without their bodies, acknowledged when they are durable.

use agent_host::arguments_hash;
use swarm_protocol::{
    PermissionRequestId, RunNumber, WaitingFor, WorkerId, WorkerStatus,
    event::{BudgetChange, Event},
    frame::{Command, DESK_SINCE, ToWorker},
    permission::{Decision, PermissionBid, PermissionDecision, PermissionRequest, Racer, Scope},
    record::{RecordBody, RecordHead},
};
use tokio::time::Instant;

use super::Actor;
use crate::{clock, desk::NotTaken, session::OrderError, workers::lifecycle::LifeEvent};

type Whole = (WorkerId, RunNumber, RecordHead, Option<Box<RecordBody>>);

impl Actor {
    /// Appends records of workers and acknowledges them when they are durable. False when they could not be.
    pub(super) async fn take_records(&mut self, records: Vec<Whole>) -> bool {
        if records.is_empty() {
            return true;
        }
        let mut events = Vec::new();
        let mut heads: std::collections::HashMap<WorkerId, u64> = std::collections::HashMap::new();
        let mut desk = DeskNews::default();
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
                Some(RecordBody::PermissionRequested { mut request }) => {
                    // What an answer is bound to is established here.
                    request.args_hash = arguments_hash(&request.tool, request.cwd.as_deref(), &request.input);
                    match self.may_ask(&request, &desk).await {
                        Ok(()) => {
                            let reason = format!("{} {}", request.tool, request.summary);
                            events.push(Event::PermissionRequested { request: request.clone() });
                            events.extend(step(LifeEvent::Waits(WaitingFor::Permission), &reason));
                            desk.0.push(DeskChange::Asked(request));
                        }
                        Err(problem) => {
                            tracing::warn!(worker.id = %worker_id, request.id = %request.id, %problem, "a permission request is refused");
                            events.push(refused(&request, problem));
                            desk.0.push(DeskChange::Refused(worker_id.clone()));
                        }
                    }
                }
                Some(RecordBody::PermissionBid { bid }) => {
                    desk.0.push(DeskChange::Bid(worker_id.clone(), bid));
                }
                Some(RecordBody::PermissionJudged { mut request, mut decision }) => {
                    let hash = arguments_hash(&request.tool, request.cwd.as_deref(), &request.input);
                    decision.args_hash.clone_from(&hash);
                    request.args_hash = hash;
                    // Whatever its file says, only the classifier speaks here.
                    decision.by = Racer::Classifier;
                    events.push(Event::PermissionJudged { request, decision });
                }
                Some(RecordBody::PermissionWithdrawn { id, reason }) => {
                    desk.0.push(DeskChange::Withdrawn(id.clone()));
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
                    | RecordBody::PlanMode { .. }
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
            self.tell_not_taken(&desk, &error);
            for worker_id in heads.into_keys() {
                self.drop_link(&worker_id);
            }
            return false;
        }
        self.tell_the_desk(desk);
        for (worker_id, n) in heads {
            if let Some(connection) = self.connections.get(&worker_id) {
                // A broken link resends after its next hello.
                connection.frames.try_send(ToWorker::Acknowledged { n }).ok();
            }
        }
        true
    }

    /// Whether the desk takes a request. `ahead`: what of the same batch is before it.
    async fn may_ask(&self, request: &PermissionRequest, ahead: &DeskNews) -> Result<(), NotTaken> {
        let mut desk = std::borrow::Cow::Borrowed(&self.desk);
        for change in &ahead.0 {
            match change {
                DeskChange::Asked(request) => desk.to_mut().asked(request, Instant::now()),
                DeskChange::Withdrawn(id) => desk.to_mut().withdrawn(id),
                DeskChange::Bid(..) | DeskChange::Refused(_) => {}
            }
        }
        desk.may_ask(request)?;
        // People and channels name a request by its id alone.
        match crate::sessions::of_request(&self.shared, &request.id).await {
            Ok(Some(session)) if session.id != self.id() => Err(NotTaken::IdOfAnother),
            Ok(_) => Ok(()),
            Err(error) => {
                // The append that follows says the same, and says it to whom it concerns.
                tracing::warn!(%error, "nobody could be asked whether a request's id is new");
                Ok(())
            }
        }
    }

    /// What was journaled happens at the desk.
    fn tell_the_desk(&mut self, news: DeskNews) {
        let now = Instant::now();
        for change in news.0 {
            match change {
                DeskChange::Asked(request) => self.desk.asked(&request, now),
                DeskChange::Withdrawn(id) => self.desk.withdrawn(&id),
                DeskChange::Bid(worker_id, bid) => self.take_bid(&worker_id, bid),
                DeskChange::Refused(worker_id) => self.send_pending(&worker_id),
            }
        }
    }

    /// A request that could not be journaled waits for nobody: its call fails, and the agent goes on (Z04).
    fn tell_not_taken(&self, news: &DeskNews, error: &OrderError) {
        for change in &news.0 {
            let DeskChange::Asked(request) = change else { continue };
            let link = self.connections.get(&request.worker_id).filter(|link| link.version >= DESK_SINCE);
            if let Some(link) = link {
                let frame =
                    ToWorker::PermissionNotTaken { id: request.id.clone(), reason: error.to_string() };
                // A full link is dropped; the worker then resends the request.
                link.frames.try_send(frame).ok();
            }
        }
    }
}

/// What the records of a batch mean for the desk, in their order.
#[derive(Default)]
struct DeskNews(Vec<DeskChange>);

enum DeskChange {
    Asked(Box<PermissionRequest>),
    Bid(WorkerId, PermissionBid),
    Withdrawn(PermissionRequestId),
    Refused(WorkerId),
}

/// A request that the desk does not take is denied at once; the one that has its id goes on as it was.
fn refused(request: &PermissionRequest, problem: NotTaken) -> Event {
    let decision = PermissionDecision {
        id: request.id.clone(),
        decision: Decision::Deny,
        scope: Scope::Once,
        by: Racer::Desk,
        reason: Some(problem.to_string()),
        stop: false,
        decided_at: clock::now(),
        source: None,
        args_hash: request.args_hash.clone(),
    };
    let worker_id = request.worker_id.clone();
    Event::WorkerCommand { worker_id, command: Command::Decision { decision } }
}

fn settled(worker_id: &WorkerId, command: swarm_protocol::CommandId) -> Event {
    Event::WorkerCommandSettled { worker_id: worker_id.clone(), command, accepted: true, note: String::new() }
}
