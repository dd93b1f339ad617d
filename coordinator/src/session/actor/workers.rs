//! What happens to workers: spawn, link, records, process, end.

use std::path::PathBuf;

use swarm_protocol::{
    ExitReason, RunNumber, Usage, WaitingFor, WorkerId, WorkerStatus,
    event::Event,
    frame::{Command, Keys, ToWorker},
    launch::{Isolation, ModelEndpoint, WorkerSpec},
    notification::{Notification, NotificationKey, NotificationKind, NotificationStatus},
    process::{ExitFile, ProcessExit, ProcessIdentity},
    record::{RecordBody, RecordHead, RunEnd},
};
use tokio::time::Instant;

use super::{Actor, Connection, STOP_GRACE};
use crate::{
    clock,
    session::{
        HelloOrder, OrderError, SpawnOrder, Spawned, Stopping, Welcome, WorkerMessage, WorkerMessaged,
        model::{RunModel, StopOrder, WorkerModel},
    },
    workers::{
        finish::{self, FinishedRun},
        lifecycle::LifeEvent,
        outcome, run,
    },
};

type Whole = (WorkerId, RunNumber, RecordHead, Option<Box<RecordBody>>);

impl Actor {
    // ------------------------------------------------------------------------------- spawn and wake

    pub(super) async fn spawn_worker(&mut self, order: SpawnOrder) -> Result<Spawned, OrderError> {
        // A repeat of the call finds the same worker.
        if let Some(known) = self.model.workers.iter().find(|worker| worker.tool_use_id == order.tool_use_id)
        {
            return Ok(Spawned {
                worker_id: known.spec.id.clone(),
                position: known.position,
                branch: known.spec.branch.clone(),
            });
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
            parent_turn: self.model.last_turn + 1,
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
            let Some(worker_id) = queued.map(|worker| worker.spec.id.clone()) else { break };
            if self.model.places_taken() >= self.model.spec.max_workers as usize {
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
    fn launch(&mut self, worker_id: &WorkerId) {
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
        let command =
            Command::Message { message_id: None, from_person: message.from_person, text: message.text };
        self.append(vec![Event::WorkerCommand { worker_id: worker_id.clone(), command }]).await?;
        if ended {
            let who = if message.from_person { "a person" } else { "the coordinator" };
            self.revive(&worker_id, &format!("a message of {who}")).await?;
            self.fill_places().await?;
        } else {
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

    /// Queues the next run of an ended worker.
    async fn revive(&mut self, worker_id: &WorkerId, reason: &str) -> Result<(), OrderError> {
        let task_id = match self.model.open_task() {
            Some(task) => task.id,
            None => self.open_task(format!("continue {worker_id}"), false, None, Vec::new()).await?,
        };
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        let run = worker.run().next();
        let mut events = vec![Event::WorkerRun {
            worker_id: worker_id.clone(),
            run,
            reason: reason.to_owned(),
            task_id,
            restarts: 0,
        }];
        events.extend(self.step(worker_id, LifeEvent::Revived, reason));
        self.append(events).await
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
        if worker.status.is_ended() || worker.stop.is_some() {
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
    pub(super) fn send_pending(&self, worker_id: &WorkerId) {
        let (Some(connection), Some(worker)) =
            (self.connections.get(worker_id), self.model.worker(worker_id))
        else {
            return;
        };
        for pending in &worker.commands {
            let frame = ToWorker::Command { id: pending.id, command: pending.command.clone() };
            // Never waits: a link that is full or broken is dropped by its task, the next hello sends again.
            if connection.frames.try_send(frame).is_err() {
                return;
            }
        }
    }

    pub(super) async fn hello(&mut self, hello: HelloOrder) -> Welcome {
        use sha2::Digest;
        let Some(worker) = self.model.worker(&hello.worker_id) else {
            return Welcome::Refused(format!("no worker {} in this session", hello.worker_id));
        };
        if hello.run != worker.run() {
            return Welcome::Refused(format!(
                "run {} is over; the present one is {}",
                hello.run,
                worker.run()
            ));
        }
        let digest: String =
            sha2::Sha256::digest(hello.token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let known = worker.process.as_ref().filter(|process| process.run == hello.run);
        let expected = match known {
            Some(process) => process.token_sha256.clone(),
            // Its hello overtook the word that its process exists.
            None => match self.shared.expected_token(&hello.worker_id, hello.run) {
                Some(digest) => digest,
                None => return Welcome::Refused("this run is not known to the server".to_owned()),
            },
        };
        if digest != expected {
            return Welcome::Refused("wrong token".to_owned());
        }
        if worker.status.is_ended() {
            return Welcome::Refused("this run has ended".to_owned());
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
        let waited = worker.waiting_for == Some(WaitingFor::Server);
        let starting = worker.status == WorkerStatus::Starting;
        let keys = self.keys_of(&worker.spec.model);
        if waited || starting {
            events.extend(self.step(&hello.worker_id, LifeEvent::Works, "connected"));
        }
        if let Err(error) = self.append(events).await {
            return Welcome::Refused(error.to_string());
        }
        let connection = Connection { number: hello.connection, frames: hello.frames };
        self.connections.insert(hello.worker_id.clone(), connection);
        let now = Instant::now();
        for permission in &self.model.permissions {
            if permission.is_open() && permission.request.worker_id == hello.worker_id {
                self.desk.run(&permission.request.id, now);
            }
        }
        self.send_pending(&hello.worker_id);
        Welcome::Welcome { acknowledged, keys }
    }

    fn keys_of(&self, endpoint: &ModelEndpoint) -> Keys {
        let key = |endpoint: &ModelEndpoint| self.shared.key_for(endpoint, &self.keys);
        Keys {
            model: key(endpoint),
            helper: self.model.spec.models.helper.as_ref().and_then(key),
            fallback: self.model.spec.models.fallback.as_ref().and_then(key),
        }
    }

    /// A link ended; if it is the present one, its worker is away.
    pub(super) fn disconnected(&mut self, worker_id: &WorkerId, connection: u64) {
        let ours = self.connections.get(worker_id).is_some_and(|known| known.number == connection);
        if !ours {
            return;
        }
        self.connections.remove(worker_id);
        let now = Instant::now();
        for permission in &self.model.permissions {
            if permission.is_open() && &permission.request.worker_id == worker_id {
                self.desk.stand(&permission.request.id, now);
            }
        }
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

    /// Appends records of workers and acknowledges them when they are durable.
    pub(super) async fn take_records(&mut self, records: Vec<Whole>) {
        if records.is_empty() {
            return;
        }
        let mut events = Vec::new();
        let mut heads: std::collections::HashMap<WorkerId, u64> = std::collections::HashMap::new();
        let mut opened = Vec::new();
        let mut closed = Vec::new();
        let mut gaps = Vec::new();
        // States within this batch, for steps that follow one another.
        let mut statuses: std::collections::HashMap<WorkerId, WorkerStatus> =
            std::collections::HashMap::new();
        for (worker_id, run, head, body) in records {
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
            self.connections.remove(&worker_id);
        }
        if let Err(error) = self.append(events).await {
            // Nothing is acknowledged: the workers keep what they sent and send it again.
            self.note_failure(&error);
            return;
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
    ) {
        let event = Event::WorkerProcess { worker_id: worker_id.clone(), run, keeper, run_dir, token_sha256 };
        if let Err(error) = self.append(vec![event]).await {
            self.note_failure(&error);
        }
    }

    pub(super) async fn run_not_started(&mut self, worker_id: &WorkerId, run: RunNumber, problem: String) {
        tracing::warn!(worker.id = %worker_id, %problem, "a worker could not be started");
        let end = self.end_without_word(worker_id, ExitReason::SetupFailed { output: problem });
        if let Err(error) = self.end_run(worker_id, run, end).await {
            self.note_failure(&error);
        }
        self.finish(worker_id, None);
    }

    /// The keeper says that nothing of the run is left. What its process wrote and could not send comes first.
    pub(super) async fn process_gone(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        exit: Option<ExitFile>,
        missed: Vec<(RecordHead, Option<Box<RecordBody>>)>,
    ) {
        self.connections.remove(worker_id);
        self.stop_deadlines.remove(worker_id);
        let missed = missed.into_iter().map(|(head, body)| (worker_id.clone(), run, head, body)).collect();
        self.take_records(missed).await;
        let Some(worker) = self.model.worker(worker_id) else { return };
        if worker.run() != run || worker.status.is_ended() {
            return;
        }
        let Some(present) = worker.last_run() else { return };
        if present.end.is_none() {
            let may_restart = worker.stop.is_none() && present.restarts < self.model.spec.worker_restarts;
            let task_id = present.task_id;
            let restarts = present.restarts + 1;
            if may_restart {
                let why = describe_exit(exit.as_ref());
                let mut events = self.withdraw_requests(worker_id, "its process died");
                events.push(Event::WorkerRun {
                    worker_id: worker_id.clone(),
                    run,
                    reason: format!("started again: {why}"),
                    task_id,
                    restarts,
                });
                events.extend(self.step(worker_id, LifeEvent::StartedAgain, why));
                match self.append(events).await {
                    Ok(()) => self.launch(worker_id),
                    Err(error) => self.note_failure(&error),
                }
                return;
            }
            let reason = match (worker.stop, exit.as_ref().map(|exit| exit.exit)) {
                (Some(_), _) => ExitReason::AbortedTools,
                (None, Some(ProcessExit::Signal(signal))) => ExitReason::Killed { signal },
                (None, Some(ProcessExit::Code(_)) | None) => ExitReason::Lost,
            };
            let end = self.end_without_word(worker_id, reason);
            if let Err(error) = self.end_run(worker_id, run, end).await {
                self.note_failure(&error);
            }
        }
        self.finish(worker_id, exit);
    }

    fn withdraw_requests(&mut self, worker_id: &WorkerId, reason: &str) -> Vec<Event> {
        let open: Vec<_> = self
            .model
            .permissions
            .iter()
            .filter(|permission| permission.is_open() && &permission.request.worker_id == worker_id)
            .map(|permission| permission.request.id.clone())
            .collect();
        open.into_iter()
            .map(|id| {
                self.desk.close(&id);
                Event::PermissionWithdrawn { id, reason: reason.to_owned() }
            })
            .collect()
    }

    /// The end of a run that left no word of its own.
    fn end_without_word(&self, worker_id: &WorkerId, exit_reason: ExitReason) -> RunEnd {
        let run: Option<&RunModel> = self.model.worker(worker_id).and_then(WorkerModel::last_run);
        RunEnd {
            exit_reason,
            result: String::new(),
            result_from_earlier: false,
            turns: run.map_or(0, |run| run.turns),
            usage: run.map_or_else(Usage::default, |run| run.usage),
            cost: run.map(|run| run.cost).unwrap_or_default(),
            duration_ms: run.map_or(0, |run| clock::now().millis_since(run.began_at)),
            commands: Vec::new(),
            commands_after_last_edit: 0,
            edited: false,
            skipped_files: Vec::new(),
            commit_error: None,
            children_killed: Vec::new(),
        }
    }

    async fn end_run(&mut self, worker_id: &WorkerId, run: RunNumber, end: RunEnd) -> Result<(), OrderError> {
        let reason = end.exit_reason.sentence();
        let mut events = self.withdraw_requests(worker_id, "its run ended");
        events.push(Event::WorkerRunEnded { worker_id: worker_id.clone(), run, end: Box::new(end) });
        events.extend(self.step(worker_id, LifeEvent::RunEnded, reason));
        self.append(events).await
    }

    /// Begins the task that establishes the outcome.
    fn finish(&mut self, worker_id: &WorkerId, exit: Option<ExitFile>) {
        let Some(plan) = finish::plan(&self.shared, &self.model, worker_id, exit) else { return };
        let task = finish::start(self.shared.clone(), plan, self.handle.clone());
        self.run_tasks.insert(worker_id.clone(), task);
    }

    /// The outcome is established: the entry is queued, the worker has its final status, its place is free.
    pub(super) async fn run_finished(&mut self, worker_id: &WorkerId, run: RunNumber, finished: FinishedRun) {
        let Some(worker) = self.model.worker(worker_id) else { return };
        let Some(present) = worker.runs.iter().find(|present| present.run == run) else { return };
        let Some(end) = present.end.clone() else { return };
        let FinishedRun { outcome, worktree_exists, branch_exists } = finished;
        let stopped = worker.stop.is_some() && end.exit_reason != ExitReason::Completed;
        let status = outcome::status_of(&end.exit_reason, stopped);
        let name = worker.spec.name.clone();
        let notification = Notification {
            key: NotificationKey { worker_id: worker_id.clone(), run, kind: NotificationKind::End, n: 0 },
            seq: Default::default(),
            status,
            summary: summary(&name, status, &outcome, worker.stop),
            result: end.result.clone(),
            result_from_earlier: end.result_from_earlier,
            turns: end.turns,
            usage: end.usage,
            cost: end.cost,
            duration_ms: end.duration_ms,
            enqueued_at: clock::now(),
            after_stop: false,
            outcome: Some(Box::new(outcome)),
        };
        let mut events = self.withdraw_requests(worker_id, "its run ended");
        // Orders of the run that it never recorded and that mean nothing to a next one.
        let orphans = self.model.worker(worker_id).into_iter().flat_map(|worker| &worker.commands);
        let orphans = orphans.filter(|pending| !matches!(pending.command, Command::Message { .. }));
        events.extend(orphans.map(|pending| Event::WorkerCommandSettled {
            worker_id: worker_id.clone(),
            command: pending.id,
            accepted: false,
            note: "the run ended first".to_owned(),
        }));
        events.push(Event::WorkerWorktree {
            worker_id: worker_id.clone(),
            exists: worktree_exists,
            branch_exists,
            branch: None,
            reason: if worktree_exists { "kept: it has changes" } else { "removed: no change" }.to_owned(),
        });
        events.push(Event::NotificationQueued { notification: Box::new(notification) });
        let reason = end.exit_reason.sentence();
        events.extend(self.step(worker_id, LifeEvent::Established(status), reason));
        if let Err(error) = self.append(events).await {
            // The run has ended without an entry: the next start finishes it.
            self.note_failure(&error);
            return;
        }
        self.places.remove(worker_id);
        self.run_tasks.remove(worker_id);
        self.shared.live.forget(worker_id);
        self.blocked = false;
        // A message that the run ended without reading goes to the next run.
        let unread = self.model.worker(worker_id).is_some_and(|worker| {
            let by_person = worker.stopped_by_person();
            worker.commands.iter().any(|pending| match &pending.command {
                Command::Message { from_person, .. } => *from_person || !by_person,
                _ => false,
            })
        });
        if unread
            && !self.interrupted
            && let Err(error) = self.revive(worker_id, "a message it had not read").await
        {
            self.note_failure(&error);
        }
    }

    // ------------------------------------------------------------------------------- after a restart

    /// Every worker goes on where the journal left it: processes are watched again, ended runs are finished,
    /// runs that had no process yet are begun again.
    pub(super) async fn recover_workers(&mut self) -> Result<(), OrderError> {
        let workers: Vec<(WorkerId, WorkerStatus)> =
            self.model.workers.iter().map(|worker| (worker.spec.id.clone(), worker.status)).collect();
        for (worker_id, status) in workers {
            if !status.takes_place() {
                continue;
            }
            // Places of workers that run already are taken even over the bound.
            if let Some(place) = self.shared.take_place(&self.handle) {
                self.places.insert(worker_id.clone(), place);
            }
            match status {
                WorkerStatus::Starting | WorkerStatus::Running | WorkerStatus::Waiting => {
                    let watched = run::adopt_plan(&self.shared, &self.model, &worker_id);
                    match watched {
                        Some(plan) => {
                            let task = run::adopt(self.shared.clone(), plan, self.handle.clone());
                            self.run_tasks.insert(worker_id.clone(), task);
                        }
                        None => self.launch(&worker_id),
                    }
                }
                WorkerStatus::Finishing => self.finish(&worker_id, None),
                WorkerStatus::Pending
                | WorkerStatus::Completed
                | WorkerStatus::Failed
                | WorkerStatus::Aborted => {}
            }
        }
        Ok(())
    }
}

fn settled(worker_id: &WorkerId, command: swarm_protocol::CommandId) -> Event {
    Event::WorkerCommandSettled { worker_id: worker_id.clone(), command, accepted: true, note: String::new() }
}

fn describe_exit(exit: Option<&ExitFile>) -> String {
    match exit.map(|exit| exit.exit) {
        Some(ProcessExit::Signal(signal)) => format!("its process was killed (signal {signal})"),
        Some(ProcessExit::Code(code)) => format!("its process ended with code {code} and left no end record"),
        None => "its process is gone".to_owned(),
    }
}

/// The one line of an entry, by the server.
fn summary(
    name: &str,
    status: NotificationStatus,
    outcome: &swarm_protocol::notification::Outcome,
    stop: Option<StopOrder>,
) -> String {
    let name: String = name.chars().take(120).collect();
    match status {
        NotificationStatus::Completed if outcome.doubts.is_empty() => format!("Agent \"{name}\" completed"),
        NotificationStatus::Completed => {
            let doubts: Vec<_> = outcome.doubts.iter().map(|doubt| doubt.sentence()).collect();
            format!("Agent \"{name}\" is done, with doubts: {}", doubts.join("; "))
        }
        NotificationStatus::Failed => format!("Agent \"{name}\" failed: {}", outcome.exit_reason.sentence()),
        NotificationStatus::Aborted => {
            let by = match stop {
                Some(StopOrder::Person) => "by a person",
                Some(StopOrder::Coordinator) => "by you",
                None => "while it worked",
            };
            format!("Agent \"{name}\" was stopped {by}; what it had done is committed")
        }
        NotificationStatus::Progress => format!("Agent \"{name}\""),
    }
}
