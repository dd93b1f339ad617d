//! The actor of one session: takes orders one by one, appends what they mean, and then lets follow what
//! follows from the state ([`Actor::settle`], level-triggered, so that no wake-up can be lost).

use std::{collections::HashMap, sync::Arc};

use query_engine::ports::{Grant, PlannedCall};
use swarm_protocol::{
    ExitReason, Seq, SessionId, SessionState, WorkerId, WorkerStatus, error_chain,
    event::{Event, EventLine, SentEntry},
    frame::ToWorker,
};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    KeyRing, ORDER_QUEUE, Order, OrderError, Reply, SessionHandle, engine, model::SessionModel,
    projection::Projection, verdict, views,
};
use crate::{
    clock,
    desk::Desk,
    journal::{AppendError, Journal as _},
    server::{Place, Shared},
    workers::lifecycle::{self, LifeEvent},
};

mod budget;
mod coordinator;
mod ends;
mod keys;
mod links;
pub(crate) mod pacing;
mod people;
mod permissions;
mod records;
mod workers;

/// Orders taken up at once: records that wait together share one append.
const BATCH: usize = 64;

/// How long a stopped worker may take to commit and end before its keeper is told to end it.
const STOP_GRACE: Duration = Duration::from_secs(20);

/// How long a worker's link may be gone before its state says so: one that only connects again does not flicker.
const AWAY_PATIENCE: Duration = Duration::from_secs(5);

/// How often a queued worker looks for room on the machine.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(2);

/// How soon what could not be stored is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// A running loop of the coordinator.
struct EngineTask {
    interrupt: CancellationToken,
    /// It has sent a request: what that carries is in its conversation and is not handed out again.
    requested: bool,
    _task: AbortOnDropHandle<()>,
}

/// A worker's link.
struct Connection {
    number: u64,
    version: u32,
    frames: mpsc::Sender<ToWorker>,
    /// It stands still until its keys are at hand.
    awaits_keys: bool,
}

/// What the last drain handed to the engine; it becomes the entries of the next request.
#[derive(Default)]
struct Drained {
    entries: Vec<SentEntry>,
    messages: Vec<swarm_protocol::MessageId>,
}

pub(crate) struct Actor {
    shared: Arc<Shared>,
    model: SessionModel,
    keys: KeyRing,
    handle: SessionHandle,
    engine: Option<EngineTask>,
    /// Keeps the loop's cache alive while its workers run; ended, it still counts what was under way.
    keepalive: Option<(CancellationToken, AbortOnDropHandle<()>)>,
    connections: HashMap<WorkerId, Connection>,
    run_tasks: HashMap<WorkerId, AbortOnDropHandle<()>>,
    places: HashMap<WorkerId, Place>,
    stop_deadlines: HashMap<WorkerId, Instant>,
    /// Workers that should have a link and have none: when their state says so.
    away: HashMap<WorkerId, Instant>,
    /// When queued workers look again whether memory and disk are free.
    look_for_room_at: Option<Instant>,
    desk: Desk,
    /// Answers that were brought to the desk since it was last asked who decides.
    answers: Vec<permissions::Waiting>,
    projection: Projection,
    drained: Drained,
    /// The coordinator's loop waits for leave to make a call.
    asks: Option<(PlannedCall, Reply<Grant>)>,
    /// When the coordinator is woken for what waits; a burst is drained together.
    wake_at: Option<Instant>,
    /// The loop ended otherwise than completed: it is not begun again before something new comes.
    blocked: bool,
    /// A person interrupted the session: workers' ends do not wake the coordinator.
    interrupted: bool,
    /// What a start finds half done was taken up.
    recovered: bool,
    /// Something could not be stored: when it is tried again.
    retry_at: Option<Instant>,
    /// A person wants a loop that ended badly to go on, though nothing new waits.
    go_on: bool,
    /// A person wants the history compacted before the next request.
    compact: bool,
    /// The journal failed for this session: nothing more is taken.
    broken: Option<String>,
}

/// Starts the actor of a loaded session.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    model: SessionModel,
    projection: Projection,
    keys: KeyRing,
) -> (SessionHandle, AbortOnDropHandle<()>) {
    let (orders, receiver) = mpsc::channel(ORDER_QUEUE);
    let handle = SessionHandle { id: model.id, orders };
    let actor = Actor {
        desk: Desk::new(
            model.permissions.iter().map(|permission| (&permission.request, permission.is_open())),
        ),
        answers: Vec::new(),
        // A coordinator that crashed goes on; one that ended badly waits for news, as before the restart.
        blocked: model.exit.as_ref().is_some_and(|exit| *exit != ExitReason::Completed),
        interrupted: model
            .exit
            .as_ref()
            .is_some_and(|exit| matches!(exit, ExitReason::AbortedStreaming | ExitReason::AbortedTools)),
        projection,
        shared,
        model,
        keys,
        handle: handle.clone(),
        engine: None,
        keepalive: None,
        connections: HashMap::new(),
        run_tasks: HashMap::new(),
        places: HashMap::new(),
        stop_deadlines: HashMap::new(),
        away: HashMap::new(),
        look_for_room_at: None,
        drained: Drained::default(),
        asks: None,
        wake_at: None,
        recovered: false,
        retry_at: None,
        go_on: false,
        compact: false,
        broken: None,
    };
    let task = AbortOnDropHandle::new(tokio::spawn(actor.run(receiver)));
    (handle, task)
}

impl Actor {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.retry_at = None;
            if let Err(error) = self.settle().await {
                self.note_failure(&error);
                self.retry_at = Some(Instant::now() + RETRY);
            }
            let deadline = self.next_deadline();
            // Nothing is lost when a branch does not win: orders stay queued, deadlines are looked at again.
            tokio::select! {
                () = self.shared.shutdown.cancelled() => break,
                taken = orders.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        break;
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(far_away)), if deadline.is_some() => {}
            }
            self.take(&mut batch).await;
            if let Err(error) = self.pass_deadlines().await {
                self.note_failure(&error);
            }
        }
        // The loop of the coordinator is dropped with `self`; what it had not committed is repeated after the
        // next start. Workers go on by themselves.
    }

    /// Takes up a batch of orders; records that stand together are appended together.
    async fn take(&mut self, batch: &mut Vec<Order>) {
        let mut records = Vec::new();
        for order in batch.drain(..) {
            match order {
                Order::Record1 { worker_id, run, head, body } => records.push((worker_id, run, head, body)),
                other => {
                    // A failure was noted and their links dropped: they come again.
                    let _stored: bool = self.take_records(std::mem::take(&mut records)).await;
                    self.obey(other).await;
                }
            }
        }
        let _stored: bool = self.take_records(records).await;
        self.claim().await;
    }

    async fn obey(&mut self, order: Order) {
        // Who asked may be gone: an answer that nobody takes is no error.
        match order {
            Order::Submit(submit, reply) => drop(reply.send(self.submit(submit).await)),
            Order::Interrupt(reason, reply) => drop(reply.send(self.interrupt(&reason).await)),
            Order::End(reply) => drop(reply.send(self.end().await)),
            Order::WorkerMessage(message, reply) => drop(reply.send(self.message_worker(message).await)),
            Order::WorkerStop { to, reason, by_person, reply } => {
                drop(reply.send(self.stop_named(&to, &reason, by_person).await));
            }
            Order::Compact(reply) => {
                self.compact = true;
                reply.send(!self.model.history.is_empty()).ok();
            }
            Order::PermissionMode(mode, reply) => drop(reply.send(self.set_permission_mode(mode).await)),
            Order::Answer(answering) => self.answer(answering),
            Order::Resume(keys, reply) => drop(reply.send(self.resume(keys).await)),
            Order::Read(read) => read(&self.model),
            Order::Record(events, reply) => drop(reply.send(self.append(events).await)),
            Order::Transcript(bodies, reply) => drop(reply.send(self.transcript(bodies).await)),
            Order::Drain(reply) => drop(reply.send(self.drain())),
            Order::Spawn(spawn, reply) => drop(reply.send(self.spawn_worker(spawn).await)),
            // Its calls follow one another: an earlier question was taken back.
            Order::Grant(call, reply) => self.asks = Some((call, reply)),
            Order::EngineEnded(exit, keepalive) => {
                self.engine_ended(exit).await;
                if self.model.workers_live() && !self.blocked {
                    self.keepalive = keepalive.map(|keepalive| engine::keep_alive(&self.handle, *keepalive));
                }
            }
            Order::Hello(hello, reply) => {
                let welcome = self.hello(hello).await;
                drop(reply.send(welcome));
            }
            Order::WorkerWaits { worker_id, waiting_for, cause } => {
                self.worker_waits(&worker_id, waiting_for, cause).await;
            }
            Order::Disconnected { worker_id, connection } => self.disconnected(&worker_id, connection),
            Order::WorktreeLeft { worker_id, is_gone, reason } => {
                self.worktree_left(worker_id, is_gone, reason).await;
            }
            Order::WorktreeReady { worker_id, branch, notes } => {
                self.worktree_ready(&worker_id, branch, notes).await
            }
            Order::ProcessStarted { worker_id, run, keeper, run_dir, token_sha256, stored } => {
                let done = self.process_started(&worker_id, run, keeper, run_dir, token_sha256).await;
                self.answer_stored(stored, done);
            }
            Order::RunNotStarted { worker_id, run, problem, stored } => {
                let done = self.run_not_started(&worker_id, run, problem).await;
                self.answer_stored(stored, done);
            }
            Order::ProcessGone { worker_id, run, exit, missed, stored } => {
                let done = self.process_gone(&worker_id, run, exit, missed).await;
                self.answer_stored(stored, done);
            }
            Order::RunFinished { worker_id, run, finished, stored } => {
                let done = self.run_finished(&worker_id, run, *finished).await;
                self.answer_stored(stored, done);
            }
            Order::PlaceFree => {}
            // Taken up in `take`.
            Order::Record1 { .. } => {}
        }
    }

    /// Tells a run task whether what it found out is stored; if not, it says it again.
    fn answer_stored(&self, stored: Reply<bool>, done: Result<(), OrderError>) {
        if let Err(error) = &done {
            self.note_failure(error);
        }
        // The task is gone only with the server.
        stored.send(done.is_ok()).ok();
    }

    fn id(&self) -> SessionId {
        self.model.id
    }

    /// Appends events and applies them. The view of a worker is put into its state event, so that readers
    /// need no registry.
    async fn append(&mut self, mut events: Vec<Event>) -> Result<(), OrderError> {
        if let Some(problem) = &self.broken {
            return Err(OrderError::Storage(problem.clone()));
        }
        if events.is_empty() {
            return Ok(());
        }
        let at = clock::now();
        self.fill_views(&mut events, at);
        match self.shared.journal.append(self.id(), self.model.seq, events, at).await {
            Ok(lines) => {
                for line in lines {
                    self.model.apply(&line);
                    self.projection.write(&line);
                    if let Event::PermissionRequested { request } = &line.event {
                        crate::callback::ask(&self.shared, &self.model, request);
                    }
                    crate::channel::tell(&self.shared, &self.model, &line.event);
                }
                self.shared.live.note_seq(self.model.id, self.model.seq);
                Ok(())
            }
            Err(AppendError::Stale { .. }) => {
                tracing::error!(session.id = %self.id(), "another server appended to this session; it is left to it");
                self.broken = Some("another server owns this session".to_owned());
                Err(OrderError::Gone(self.id()))
            }
            Err(AppendError::Storage(fault)) => {
                let chain = error_chain(&fault);
                tracing::error!(session.id = %self.id(), error = %chain, "failed to append to the journal");
                Err(OrderError::Storage(chain))
            }
        }
    }

    fn fill_views(&mut self, events: &mut [Event], at: swarm_protocol::Timestamp) {
        if !events.iter().any(|event| matches!(event, Event::WorkerState { .. })) {
            return;
        }
        // A copy that is ahead by the events before each state event; without what no view of a worker shows.
        let heavy = (
            std::mem::take(&mut self.model.history),
            std::mem::take(&mut self.model.items),
            std::mem::take(&mut self.model.fifo),
        );
        let mut ahead = self.model.clone();
        (self.model.history, self.model.items, self.model.fifo) = heavy;
        for (offset, event) in events.iter_mut().enumerate() {
            let seq = Seq(self.model.seq.0 + 1 + offset as u64);
            let line = EventLine {
                seq: Some(seq),
                at,
                session_id: Some(self.model.id),
                position: None,
                event: event.clone(),
            };
            ahead.apply(&line);
            if let Event::WorkerState { worker_id, worker, .. } = event
                && let Some(found) = ahead.worker(worker_id)
            {
                let live = self.shared.live.get(worker_id);
                *worker = Some(Box::new(views::worker_view(&ahead, found, live.as_ref(), at)));
            }
        }
    }

    /// The event that moves a worker, or none when the step does not fit its state.
    fn step(&self, worker_id: &WorkerId, event: LifeEvent, reason: impl Into<String>) -> Option<Event> {
        let from = self.model.worker(worker_id)?.status;
        self.step_from(worker_id, from, event, reason)
    }

    fn step_from(
        &self,
        worker_id: &WorkerId,
        from: WorkerStatus,
        event: LifeEvent,
        reason: impl Into<String>,
    ) -> Option<Event> {
        match lifecycle::next(from, event) {
            Ok((status, waiting_for)) => Some(Event::WorkerState {
                worker_id: worker_id.clone(),
                from,
                status,
                waiting_for,
                position: None,
                reason: reason.into(),
                worker: None,
            }),
            Err(illegal) => {
                tracing::debug!(session.id = %self.id(), worker.id = %worker_id, %illegal, "a step was not taken");
                None
            }
        }
    }

    fn note_failure(&self, error: &OrderError) {
        tracing::error!(session.id = %self.id(), %error, "a session could not go on");
    }

    // ------------------------------------------------------------------------------- what follows

    /// What follows from the state as it is. Called after every batch of orders.
    async fn settle(&mut self) -> Result<(), OrderError> {
        if self.broken.is_some() {
            return Ok(());
        }
        if !self.recovered {
            self.recover().await?;
            self.recovered = true;
        }
        self.tell_deadlines();
        self.give_keys().await?;
        self.serve_grants().await?;
        self.report_budgets().await?;
        self.fill_places().await?;
        self.wake_coordinator().await?;
        self.finish_task().await?;
        self.set_state().await
    }

    /// Begins the loop when something waits for the coordinator.
    async fn wake_coordinator(&mut self) -> Result<(), OrderError> {
        if self.engine.is_some()
            || self.blocked
            || self.interrupted
            || self.model.state == SessionState::Ended
        {
            return Ok(());
        }
        if !self.model.wakes() && !self.go_on {
            self.wake_at = None;
            return Ok(());
        }
        let window = Duration::from_millis(self.model.spec.notification_window_ms);
        let due = *self.wake_at.get_or_insert_with(|| Instant::now() + window);
        if Instant::now() < due {
            return Ok(());
        }
        self.wake_at = None;
        self.go_on = false;
        self.stop_keepalive();
        if let Some(endpoint) = self.missing_key(&self.model.spec.models.coordinator) {
            self.blocked = true;
            return self.append(vec![self.waits_for_key(&endpoint)]).await;
        }
        let compact = std::mem::take(&mut self.compact);
        match engine::start(&self.shared, &self.model, &self.keys, &self.handle, compact) {
            Ok((interrupt, task)) => {
                if self.model.open_task().is_none() {
                    // News of a worker that a person woke after its task had its verdict.
                    self.open_task("news of a worker".to_owned(), false, None, Vec::new()).await?;
                }
                self.engine = Some(EngineTask { interrupt, requested: false, _task: task });
                Ok(())
            }
            Err(engine::StartError::NoKey { endpoint }) => {
                self.blocked = true;
                self.append(vec![self.waits_for_key(&endpoint)]).await
            }
            Err(engine::StartError::Other(problem)) => {
                self.engine_ended(ExitReason::ModelError {
                    error: "not_configured".to_owned(),
                    message: problem,
                    retry_at: None,
                })
                .await;
                Ok(())
            }
        }
    }

    fn stop_keepalive(&self) {
        if let Some((over, _)) = &self.keepalive {
            over.cancel();
        }
    }

    /// Gives the open task its verdict when nothing runs and nothing waits.
    async fn finish_task(&mut self) -> Result<(), OrderError> {
        let waits_for_key = self.model.waiting_for.as_deref() == Some("key");
        if self.engine.is_some() || self.model.workers_live() || (waits_for_key && !self.interrupted) {
            return Ok(());
        }
        if (self.model.wakes() || self.go_on) && !self.blocked && !self.interrupted {
            return Ok(());
        }
        self.stop_keepalive();
        let Some(task) = self.model.open_task() else { return Ok(()) };
        let task_id = task.id;
        // A person who interrupted before the loop ever ran leaves it without an end of its own.
        let exit = match (&self.model.exit, self.interrupted) {
            (Some(exit), _) => exit.clone(),
            (None, true) => ExitReason::AbortedStreaming,
            (None, false) => return Ok(()),
        };
        let (verdict, reasons) = verdict::verdict(&self.model, task_id, &exit);
        let text = self.model.last_words.text().to_owned();
        self.append(vec![Event::TaskFinished { task_id, verdict, reasons, exit_reason: exit, text }]).await?;
        self.deliver_callback(task_id);
        Ok(())
    }

    fn deliver_callback(&self, task_id: swarm_protocol::TaskId) {
        if self.model.task(task_id).is_some_and(|task| task.callback_owed) {
            crate::callback::deliver(&self.shared, &self.model, task_id, &self.handle);
        }
    }

    /// Keeps the session's state true to what goes on.
    async fn set_state(&mut self) -> Result<(), OrderError> {
        // A session that was just opened has its first task on the way.
        if self.model.state == SessionState::Ended || self.model.tasks.is_empty() {
            return Ok(());
        }
        let waits_for_key = self.model.waiting_for.as_deref() == Some("key") && self.blocked;
        if waits_for_key && self.engine.is_none() && !self.interrupted {
            return Ok(());
        }
        if let Some(endpoint) =
            self.key_a_worker_lacks().filter(|_| self.engine.is_none() && !self.interrupted)
        {
            if self.model.waiting_for.as_deref() != Some("key") {
                self.append(vec![self.waits_for_key(&endpoint)]).await?;
            }
            return Ok(());
        }
        let (state, reason) = if self.engine.is_some() || self.wake_at.is_some() {
            (SessionState::Active, "the coordinator has a turn")
        } else if self.model.workers_live() {
            (SessionState::Waiting, "workers run")
        } else {
            (SessionState::Idle, "nothing runs and nothing is queued")
        };
        if state == self.model.state && self.model.waiting_for.is_none() {
            return Ok(());
        }
        self.append(vec![Event::SessionState { state, waiting_for: None, reason: reason.to_owned() }]).await
    }

    // ------------------------------------------------------------------------------- deadlines

    /// Tells views when open requests run out.
    fn tell_deadlines(&mut self) {
        let now = Instant::now();
        let wall = clock::now();
        for id in self.desk.changed() {
            let left = self.desk.left(&id, now);
            let at = left.map(|left| wall.plus_millis(i64::try_from(left.as_millis()).unwrap_or(i64::MAX)));
            self.shared.deadlines.set(&id, at);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let stops = self.stop_deadlines.values().copied();
        let desk = self.desk.next_deadline().filter(|_| self.broken.is_none());
        let away = self.away.values().copied().filter(|_| self.broken.is_none());
        let room = self.look_for_room_at.filter(|_| self.broken.is_none());
        self.wake_at.into_iter().chain(desk).chain(stops).chain(away).chain(room).chain(self.retry_at).min()
    }

    async fn pass_deadlines(&mut self) -> Result<(), OrderError> {
        let now = Instant::now();
        if self.broken.is_some() {
            return Ok(());
        }
        // What follows is looked at anyway.
        self.look_for_room_at = self.look_for_room_at.filter(|at| *at > now);
        self.time_out(now).await?;
        for id in self.desk.long_waits(now) {
            self.report_wait(&id).await?;
        }
        let away: Vec<WorkerId> = self
            .away
            .iter()
            .filter(|(_, deadline)| **deadline <= now)
            .map(|(worker_id, _)| worker_id.clone())
            .collect();
        for worker_id in away {
            self.note_away(&worker_id).await?;
            self.away.remove(&worker_id);
        }
        let stops: Vec<WorkerId> = self
            .stop_deadlines
            .iter()
            .filter(|(_, deadline)| **deadline <= now)
            .map(|(worker_id, _)| worker_id.clone())
            .collect();
        for worker_id in stops {
            self.stop_deadlines.remove(&worker_id);
            self.end_keeper(&worker_id);
        }
        Ok(())
    }
}

/// A moment that does not come.
fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
