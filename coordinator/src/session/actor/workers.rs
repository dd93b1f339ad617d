//! What happens to workers while they live: spawn, message, stop, process.

use std::path::PathBuf;

use swarm_protocol::{
    ExitReason, RunNumber, SessionState, TaskId, WorkerId, WorkerStatus,
    event::Event,
    frame::Command,
    launch::{Isolation, WorkerSpec},
    process::ProcessIdentity,
    status::WAITS_FOR_PLACE,
};
use tokio::time::Instant;

use super::{Actor, LOOK_FOR_ROOM, STOP_GRACE};
use crate::{
    room::{self, Lack},
    session::{
        OrderError, SpawnOrder, Spawned, Stopping, WorkerMessage, WorkerMessaged,
        model::{StopOrder, WorkerModel},
    },
    workers::{lifecycle::LifeEvent, run},
};

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
        self.look_for_room_at = None;
        let mut lack = None;
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
            lack = self.shared.lacks(run::worktree_root(&self.shared, &self.model)).await;
            if lack.is_some() {
                // Nobody tells when there is room again.
                self.look_for_room_at = Some(Instant::now() + LOOK_FOR_ROOM);
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
            if worker.position != position || room::is_news(&worker.cause, lack.as_ref()) {
                events.push(Event::WorkerState {
                    worker_id: worker.spec.id.clone(),
                    from: WorkerStatus::Pending,
                    status: WorkerStatus::Pending,
                    waiting_for: None,
                    position,
                    reason: lack.as_ref().map_or_else(|| WAITS_FOR_PLACE.to_owned(), Lack::reason),
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
        if !worker.takes_messages(message.from_person) {
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

    pub(super) async fn worktree_left(&mut self, worker_id: WorkerId, is_gone: bool, reason: String) {
        let event = Event::WorkerWorktree {
            worker_id,
            exists: !is_gone,
            branch_exists: !is_gone,
            branch: None,
            reason,
        };
        if let Err(error) = self.append(vec![event]).await {
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
