//! What happens to workers while they live: spawn, link, records, process.

use std::path::PathBuf;

use swarm_protocol::{
    ExitReason, RunNumber, SessionState, TaskId, WaitingFor, WorkerId, WorkerStatus,
    event::Event,
    frame::{Command, ToWorker},
    launch::{Isolation, WorkerSpec},
    process::ProcessIdentity,
    record::{RecordBody, RecordHead},
};
use tokio::time::Instant;

use super::{AWAY_PATIENCE, Actor, Connection, STOP_GRACE};
use crate::{
    session::{
        HelloAnswer, HelloOrder, OrderError, SpawnOrder, Spawned, Stopping, WorkerMessage, WorkerMessaged,
        model::{StopOrder, WorkerModel},
    },
    workers::{lifecycle::LifeEvent, run},
};

type Whole = (WorkerId, RunNumber, RecordHead, Option<Box<RecordBody>>);

impl Actor {
    // ------------------------------------------------------------------------------- spawn and wake

    pub(super) async fn spawn_worker(&mut self, order: SpawnOrder) -> Result<Spawned, OrderError> {
        // A repeat of the call finds the same worker.
        let turn = self.model.last_turn + 1;
        if let Some(known) = self
            .model
            .workers
            .iter()
            .find(|worker| worker.tool_use_id == order.tool_use_id && worker.spec.parent_turn == turn)
        {
            return Ok(Spawned {
                worker_id: known.spec.id.clone(),
                position: known.position,
                branch: known.spec.branch.clone(),
            });
        }
        if self.interrupted || self.model.state == SessionState::Ended {
            return Err(OrderError::Refused("a person has stopped this session".to_owned()));
        }
        let task_id = match self.model.open_task() {
            Some(task) => task.id,
            None => self.open_task("work of the coordinator".to_owned(), false, None, Vec::new()).await?,
        };
        let worker_id = self.shared.reserve_worker_id().await.map_err(OrderError::Refused)?;
        let name =
            order.name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| order.description.clone());
        let in_checkout = order.isolation == Isolation::None;
        let branch = (!in_checkout).then(|| run::planned_branch(&self.model, &worker_id, &order.description));
        let worktree = if in_checkout {
            self.model.spec.repo.clone()
        } else {
            run::worktree_path(&self.shared, &self.model, &worker_id)
        };
        let model = order.model.unwrap_or_else(|| self.model.spec.models.worker.clone());
        let spec = WorkerSpec {
            id: worker_id.clone(),
            name,
            description: order.description,
            prompt: order.prompt,
            agent_type: order.agent_type,
            isolation: order.isolation,
            expects: order.expects,
            model,
            base: order.base,
            branch: branch.clone(),
            worktree,
            port_base: self.shared.next_port_base(),
            task_id,
            parent_turn: turn,
        };
        let events = vec![
            Event::WorkerSpawned { spec: Box::new(spec), tool_use_id: order.tool_use_id },
            Event::WorkerRun {
                worker_id: worker_id.clone(),
                run: RunNumber::FIRST,
                reason: "spawned by the coordinator".to_owned(),
                task_id,
                restarts: 0,
            },
        ];
        self.append(events).await?;
        self.fill_places().await?;
        let position = self.model.worker(&worker_id).and_then(|worker| worker.position);
        Ok(Spawned { worker_id, position, branch })
    }

    /// Starts queued workers while places are free, and keeps the positions of the others true.
    pub(super) async fn fill_places(&mut self) -> Result<(), OrderError> {
        loop {
            let queued = self.model.workers.iter().find(|worker| worker.status == WorkerStatus::Pending);
            let Some(queued) = queued else { break };
            let worker_id = queued.spec.id.clone();
            if self.model.places_taken() >= self.model.spec.max_workers as usize {
                break;
            }
            // The session waits for the key; a run without it could only fail.
            if self.missing_key(&queued.spec.model).is_some() {
                break;
            }
            let Some(place) = self.shared.take_place(&self.handle) else { break };
            let Some(event) = self.step(&worker_id, LifeEvent::PlaceFree, "a place is free") else { break };
            self.append(vec![event]).await?;
            self.places.insert(worker_id.clone(), place);
            self.launch(&worker_id);
        }
        let mut events = Vec::new();
        for (at, worker) in
            self.model.workers.iter().filter(|worker| worker.status == WorkerStatus::Pending).enumerate()
        {
            let position = Some(at as u32 + 1);
            if worker.position != position {
                events.push(Event::WorkerState {
                    worker_id: worker.spec.id.clone(),
                    from: WorkerStatus::Pending,
                    status: WorkerStatus::Pending,
                    waiting_for: None,
                    position,
                    reason: "waits for a place".to_owned(),
                    worker: None,
                });
            }
        }
        self.append(events).await
    }

    /// Begins the task that makes the worktree, starts the process and watches it.
    pub(super) fn launch(&mut self, worker_id: &WorkerId) {
        let Some(plan) = run::plan(&self.shared, &self.model, worker_id) else { return };
        let task = run::start(self.shared.clone(), plan, self.handle.clone());
        self.run_tasks.insert(worker_id.clone(), task);
    }

    fn resolve(&self, to: &str) -> Result<&WorkerModel, OrderError> {
        // By id, else by name: a name that is used again means the later worker.
        self.model
            .workers
            .iter()
            .find(|worker| worker.spec.id.as_str() == to || worker.spec.id.suffix() == to)
            .or_else(|| self.model.workers.iter().rev().find(|worker| worker.spec.name == to))
            .ok_or_else(|| OrderError::UnknownWorker {
                name: to.chars().take(80).collect(),
                known: self
                    .model
                    .workers
                    .iter()
                    .map(|worker| {
                        format!("{} ({}, {})", worker.spec.id, worker.spec.name, worker.status.as_str())
                    })
                    .collect(),
            })
    }

    pub(super) async fn message_worker(
        &mut self,
        message: WorkerMessage,
    ) -> Result<WorkerMessaged, OrderError> {
        let worker = self.resolve(&message.to)?;
        let worker_id = worker.spec.id.clone();
        if worker.status.is_ended() && worker.stopped_by_person() && !message.from_person {
            return Err(OrderError::StoppedByPerson(worker_id));
        }
        if worker.kept_ref.is_some() {
            return Err(OrderError::Discarded(worker_id));
        }
        let ended = worker.status.is_ended();
        let stopped = self.model.state == SessionState::Ended || (self.interrupted && !message.from_person);
        if stopped {
            return Err(OrderError::Refused("a person has stopped this session".to_owned()));
        }
        let command =
            Command::Message { message_id: None, from_person: message.from_person, text: message.text };
        let mut events = vec![Event::WorkerCommand { worker_id: worker_id.clone(), command }];
        if ended {
            // Message and run in one append: no crash leaves a message that nothing starts.
            let who =
                if message.from_person { "a message of a person" } else { "a message of the coordinator" };
            let task_id = self.task_for(&worker_id).await?;
            let status =
                self.model.worker(&worker_id).map_or(WorkerStatus::Completed, |worker| worker.status);
            events.extend(self.revival(&worker_id, status, who, task_id));
            self.append(events).await?;
            self.fill_places().await?;
        } else {
            self.append(events).await?;
            self.send_pending(&worker_id);
        }
        let worker = self.model.worker(&worker_id);
        Ok(WorkerMessaged {
            revived: ended,
            run: worker.map_or(RunNumber::FIRST, WorkerModel::run),
            position: worker.and_then(|worker| worker.position),
            worker_id,
        })
    }

    /// The task that the next run of a worker belongs to.
    async fn task_for(&mut self, worker_id: &WorkerId) -> Result<TaskId, OrderError> {
        match self.model.open_task() {
            Some(task) => Ok(task.id),
            None => self.open_task(format!("continue {worker_id}"), false, None, Vec::new()).await,
        }
    }

    /// The events that queue the next run of a worker which has, or by the same append gets, an ended status.
    pub(super) fn revival(
        &self,
        worker_id: &WorkerId,
        status: WorkerStatus,
        reason: &str,
        task_id: TaskId,
    ) -> Vec<Event> {
        let Some(worker) = self.model.worker(worker_id) else { return Vec::new() };
        let mut events = vec![Event::WorkerRun {
            worker_id: worker_id.clone(),
            run: worker.run().next(),
            reason: reason.to_owned(),
            task_id,
            restarts: 0,
        }];
        events.extend(self.step_from(worker_id, status, LifeEvent::Revived, reason));
        events
    }

    // ------------------------------------------------------------------------------- stop

    pub(super) async fn stop_named(
        &mut self,
        to: &str,
        reason: &str,
        by_person: bool,
    ) -> Result<Stopping, OrderError> {
        let worker = self.resolve(to)?;
        let worker_id = worker.spec.id.clone();
        if worker.status.is_ended() {
            return Ok(Stopping { workers: vec![worker_id], already: true });
        }
        self.stop_worker(&worker_id, reason, by_person).await?;
        Ok(Stopping { workers: vec![worker_id], already: false })
    }

    pub(super) async fn stop_worker(
        &mut self,
        worker_id: &WorkerId,
        reason: &str,
        by_person: bool,
    ) -> Result<(), OrderError> {
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        let known = match worker.stop {
            None => false,
            // The person's word is recorded as the person's: the model may not wake it then.
            Some(StopOrder::Coordinator) => !by_person,
            Some(StopOrder::Person) => true,
        };
        if worker.status.is_ended() || known {
            return Ok(());
        }
        let status = worker.status;
        let run = worker.run();
        let command = Command::Stop { reason: reason.to_owned(), by_person };
        self.append(vec![Event::WorkerCommand { worker_id: worker_id.clone(), command }]).await?;
        match status {
            // Nothing of it exists yet: it ends here.
            WorkerStatus::Pending => {
                let end = self.end_without_word(worker_id, ExitReason::AbortedTools);
                self.end_run(worker_id, run, end).await?;
                self.finish(worker_id, None);
            }
            WorkerStatus::Starting | WorkerStatus::Running | WorkerStatus::Waiting => {
                self.stop_deadlines.insert(worker_id.clone(), Instant::now() + STOP_GRACE);
                self.send_pending(worker_id);
            }
            WorkerStatus::Finishing
            | WorkerStatus::Completed
            | WorkerStatus::Failed
            | WorkerStatus::Aborted => {}
        }
        Ok(())
    }

    /// A stopped worker did not end in time: its keeper ends it, tree and all.
    pub(super) fn end_keeper(&self, worker_id: &WorkerId) {
        let keeper = self.model.worker(worker_id).and_then(|worker| worker.process.as_ref());
        if let Some(process) = keeper {
            run::terminate(&process.keeper);
        }
    }

    // ------------------------------------------------------------------------------- link

    /// A command is decided, then sent until a record names it.
    pub(super) async fn command(&mut self, worker_id: &WorkerId, command: Command) -> Result<(), OrderError> {
        self.append(vec![Event::WorkerCommand { worker_id: worker_id.clone(), command }]).await?;
        self.send_pending(worker_id);
        Ok(())
    }

    /// Sends what no record of the worker has named yet. The worker drops what it knows.
    pub(super) fn send_pending(&mut self, worker_id: &WorkerId) {
        let (Some(connection), Some(worker)) =
            (self.connections.get(worker_id), self.model.worker(worker_id))
        else {
            return;
        };
        let sent = worker.commands.iter().all(|pending| {
            let frame = ToWorker::Command { id: pending.id, command: pending.command.clone() };
            connection.frames.try_send(frame).is_ok()
        });
        if !sent {
            // Full or broken: the worker comes again, and its hello is answered with everything.
            self.drop_link(worker_id);
        }
    }

    /// Ends a link. The worker connects again and resends from what is known.
    pub(super) fn drop_link(&mut self, worker_id: &WorkerId) {
        if self.connections.remove(worker_id).is_some() {
            self.stand_clocks(worker_id);
            self.expect_link(worker_id);
        }
    }

    /// A process that runs and has no link connects again, soon or when it can.
    pub(super) fn expect_link(&mut self, worker_id: &WorkerId) {
        self.away.insert(worker_id.clone(), Instant::now() + AWAY_PATIENCE);
    }

    /// A link has been gone for long: what is shown of the worker is old, and the state says so. A question to a
    /// person stays one.
    pub(super) async fn note_away(&mut self, worker_id: &WorkerId) -> Result<(), OrderError> {
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        let is_news = match (worker.status, worker.waiting_for) {
            (WorkerStatus::Running, _) => true,
            (WorkerStatus::Waiting, waiting_for) => {
                !matches!(waiting_for, Some(WaitingFor::Permission | WaitingFor::Server))
            }
            // Its process is being made, or the run is over.
            (
                WorkerStatus::Pending
                | WorkerStatus::Starting
                | WorkerStatus::Finishing
                | WorkerStatus::Completed
                | WorkerStatus::Failed
                | WorkerStatus::Aborted,
                _,
            ) => false,
        };
        if !is_news || self.connections.contains_key(worker_id) {
            return Ok(());
        }
        let waits = self.step(
            worker_id,
            LifeEvent::Waits(WaitingFor::Server),
            "its process has no link to the server",
        );
        self.append(waits.into_iter().collect()).await
    }

    fn stand_clocks(&mut self, worker_id: &WorkerId) {
        let now = Instant::now();
        for permission in &self.model.permissions {
            if permission.is_open() && &permission.request.worker_id == worker_id {
                self.desk.stand(&permission.request.id, now);
            }
        }
    }

    pub(super) async fn hello(&mut self, hello: HelloOrder) -> HelloAnswer {
        use sha2::Digest;
        let Some(worker) = self.model.worker(&hello.worker_id) else {
            return HelloAnswer::Refused(format!("no worker {} in this session", hello.worker_id));
        };
        if hello.run != worker.run() {
            return HelloAnswer::Refused(format!(
                "run {} is over; the present one is {}",
                hello.run,
                worker.run()
            ));
        }
        let digest: String =
            sha2::Sha256::digest(hello.token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        // The token of the newest start; the journal's, when no start of this server's is known.
        let journaled = worker.process.as_ref().filter(|process| process.run == hello.run);
        let expected = self
            .shared
            .expected_token(&hello.worker_id, hello.run)
            .or_else(|| journaled.map(|process| process.token_sha256.clone()));
        let Some(expected) = expected else {
            return HelloAnswer::Refused("this run is not known to the server".to_owned());
        };
        if digest != expected {
            return HelloAnswer::Refused("wrong token".to_owned());
        }
        if worker.status.is_ended() {
            return HelloAnswer::Refused("this run has ended".to_owned());
        }
        let mut acknowledged = worker.last_record;
        let mut events = Vec::new();
        // After power loss the worker may have less than it had sent.
        if let Some(ours) = acknowledged {
            let theirs = hello.last_record.map_or(0, |mark| mark.n);
            if theirs < ours.n {
                events.push(Event::WorkerRewound { worker_id: hello.worker_id.clone(), n: theirs });
                acknowledged = hello.last_record;
            }
        }
        // News of these waits may have been lost with the link.
        let waited =
            matches!(worker.waiting_for, Some(WaitingFor::Server | WaitingFor::Model | WaitingFor::OwnJobs));
        let starting = worker.status == WorkerStatus::Starting;
        let missing = self.missing_key(&worker.spec.model).filter(|_| hello.needs_keys);
        let keys = missing.is_none().then(|| self.keys_of(&worker.spec.model));
        let awaits_keys = missing.is_some();
        if let Some(endpoint) = missing {
            let event = LifeEvent::Waits(WaitingFor::Server);
            events.extend(self.step(&hello.worker_id, event, self.no_key(&endpoint)));
        } else if waited || starting {
            events.extend(self.step(&hello.worker_id, LifeEvent::Works, "connected"));
        }
        if let Err(error) = self.append(events).await {
            // A passing fault of the disk ends no healthy run: it tries again.
            self.note_failure(&error);
            return HelloAnswer::NotNow;
        }
        let connection = Connection { number: hello.connection, frames: hello.frames, awaits_keys };
        self.connections.insert(hello.worker_id.clone(), connection);
        self.away.remove(&hello.worker_id);
        let now = Instant::now();
        for permission in &self.model.permissions {
            if permission.is_open() && permission.request.worker_id == hello.worker_id {
                self.desk.run(&permission.request.id, now);
            }
        }
        self.send_pending(&hello.worker_id);
        HelloAnswer::Welcome { acknowledged, keys }
    }

    /// A link ended; if it is the present one, its worker is away.
    pub(super) fn disconnected(&mut self, worker_id: &WorkerId, connection: u64) {
        let ours = self.connections.get(worker_id).is_some_and(|known| known.number == connection);
        if !ours {
            return;
        }
        self.drop_link(worker_id);
    }

    pub(super) async fn worker_waits(
        &mut self,
        worker_id: &WorkerId,
        waiting_for: Option<WaitingFor>,
        cause: String,
    ) {
        let Some(worker) = self.model.worker(worker_id) else { return };
        if worker.waiting_for == waiting_for {
            return;
        }
        let event = match waiting_for {
            // A wait for a decision is known from its request, which cannot be lost.
            Some(WaitingFor::Permission) => return,
            Some(waiting_for) => LifeEvent::Waits(waiting_for),
            None if worker.waiting_for == Some(WaitingFor::Permission) => return,
            None => LifeEvent::Works,
        };
        let events = self.step(worker_id, event, cause).into_iter().collect();
        if let Err(error) = self.append(events).await {
            self.note_failure(&error);
        }
    }

    // ------------------------------------------------------------------------------- records

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

    // ------------------------------------------------------------------------------- processes

    pub(super) async fn worktree_ready(
        &mut self,
        worker_id: &WorkerId,
        branch: Option<String>,
        notes: Vec<String>,
    ) {
        let mut events = vec![Event::WorkerWorktree {
            worker_id: worker_id.clone(),
            exists: true,
            branch_exists: true,
            branch,
            reason: "made".to_owned(),
        }];
        events.extend(notes.into_iter().map(|message| Event::Error {
            code: "worktree_note".to_owned(),
            message,
            worker_id: Some(worker_id.clone()),
        }));
        if let Err(error) = self.append(events).await {
            self.note_failure(&error);
        }
    }

    pub(super) async fn process_started(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        keeper: ProcessIdentity,
        run_dir: PathBuf,
        token_sha256: String,
    ) -> Result<(), OrderError> {
        let event = Event::WorkerProcess { worker_id: worker_id.clone(), run, keeper, run_dir, token_sha256 };
        self.append(vec![event]).await?;
        self.watch_stop(worker_id);
        Ok(())
    }

    /// A stop that was ordered before its process was there runs its time from now.
    pub(super) fn watch_stop(&mut self, worker_id: &WorkerId) {
        if self.model.worker(worker_id).is_some_and(|worker| worker.stop.is_some()) {
            self.stop_deadlines.insert(worker_id.clone(), Instant::now() + STOP_GRACE);
        }
    }

    pub(super) async fn run_not_started(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        problem: String,
    ) -> Result<(), OrderError> {
        tracing::warn!(worker.id = %worker_id, %problem, "a worker could not be started");
        let ended =
            self.model.worker(worker_id).and_then(WorkerModel::last_run).is_some_and(|run| run.end.is_some());
        if !ended {
            let end = self.end_without_word(worker_id, ExitReason::SetupFailed { output: problem });
            self.end_run(worker_id, run, end).await?;
        }
        self.finish(worker_id, None);
        Ok(())
    }
}

fn settled(worker_id: &WorkerId, command: swarm_protocol::CommandId) -> Event {
    Event::WorkerCommandSettled { worker_id: worker_id.clone(), command, accepted: true, note: String::new() }
}
