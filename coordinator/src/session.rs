//! One session: the actor that owns its state, and what others may ask of it.
//!
//! Everything that changes a session comes as an [`Order`] to its one actor; only the actor appends to the
//! session's journal. Handlers, sockets and run tasks hold a [`SessionHandle`] and wait for answers.

use std::collections::BTreeMap;

use query_engine::{
    driver::Keepalive,
    ports::{Grant, PlannedCall, StorageError},
};
use swarm_protocol::{
    ExitReason, MessageId, PermissionRequestId, RunNumber, Seq, SessionId, TaskId, ToolUseId, WorkerId,
    api::{AnswerPermission, AnsweredPermission},
    event::Event,
    frame::{Keys, RecordMark, ToWorker},
    permission::{PermissionMode, Racer},
    process::{ExitFile, ProcessIdentity},
    record::{RecordBody, RecordHead},
};
use tokio::sync::{mpsc, oneshot};

pub(crate) mod actor;
pub(crate) mod engine;
pub(crate) mod model;
pub(crate) mod projection;
pub(crate) mod prompt;
mod relay;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod tools;
pub(crate) mod verdict;
pub(crate) mod views;

use crate::workers::finish::FinishedRun;
use model::SessionModel;

/// Orders that wait for an actor. Senders wait beyond it: a flood of records slows its workers' links, not
/// the server's memory.
pub(crate) const ORDER_QUEUE: usize = 256;

/// How soon a run task repeats what could not be stored.
const STORE_AGAIN: std::time::Duration = std::time::Duration::from_secs(2);

/// An answer that the actor owes.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// Why a session does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OrderError {
    /// The actor is gone: the server stops, or another owns the session.
    #[error("session {0} is not served any more")]
    Gone(SessionId),
    /// No such worker; known ones are listed.
    #[error("no worker `{name}` in this session; known: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    UnknownWorker {
        /// As given.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No such permission request.
    #[error("no permission request {0}")]
    UnknownRequest(PermissionRequestId),
    /// A person stopped it: the model may not wake it.
    #[error("{0} was stopped by a person; only a person can continue it (swarm send or swarm resume)")]
    StoppedByPerson(WorkerId),
    /// The session takes nothing more.
    #[error("session {0} has ended")]
    Ended(SessionId),
    /// Its branch was discarded.
    #[error("{0} was discarded; bring it back first: swarm restore {0}")]
    Discarded(WorkerId),
    /// The answer was made for another call than the one that asks.
    #[error("{0} asks for something else than what was answered")]
    OtherArguments(PermissionRequestId),
    /// The request that the answer is for asks for a rule that nobody can write.
    #[error("no rule can say this call; allow it once instead")]
    NoRule,
    /// The journal could not be written.
    #[error("the journal could not be written: {0}")]
    Storage(String),
    /// A worker could not be registered.
    #[error("{0}")]
    Refused(String),
}

/// A task or message of a person.
#[derive(Debug)]
pub(crate) struct Submit {
    pub(crate) text: String,
    pub(crate) unattended: bool,
    pub(crate) callback_url: Option<String>,
    pub(crate) callback_asks: bool,
    pub(crate) labels: Vec<String>,
    pub(crate) keys: KeyRing,
}

/// What a submit came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) task_id: TaskId,
    pub(crate) message_id: MessageId,
    /// False when the message joined an open task.
    pub(crate) opened: bool,
    pub(crate) after: Seq,
}

/// Keys by provider; memory only.
#[derive(Clone, Default)]
pub(crate) struct KeyRing(pub(crate) BTreeMap<String, String>);

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) struct WorkerMessage {
    /// Id or name.
    pub(crate) to: String,
    pub(crate) text: String,
    pub(crate) from_person: bool,
}

/// What became of a message to a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerMessaged {
    pub(crate) worker_id: WorkerId,
    /// A new run was begun for it.
    pub(crate) revived: bool,
    pub(crate) run: RunNumber,
    /// Position in the queue, if it has to wait for a place.
    pub(crate) position: Option<u32>,
}

/// A worker as the model asked for it, checked.
#[derive(Debug)]
pub(crate) struct SpawnOrder {
    pub(crate) tool_use_id: ToolUseId,
    pub(crate) description: String,
    pub(crate) prompt: String,
    pub(crate) name: Option<String>,
    pub(crate) agent_type: String,
    pub(crate) isolation: swarm_protocol::launch::Isolation,
    pub(crate) expects: swarm_protocol::launch::Expects,
    pub(crate) model: Option<swarm_protocol::launch::ModelEndpoint>,
    /// The full commit id.
    pub(crate) base: String,
}

/// A registered worker.
#[derive(Clone, Debug)]
pub(crate) struct Spawned {
    pub(crate) worker_id: WorkerId,
    pub(crate) position: Option<u32>,
    pub(crate) branch: Option<String>,
}

/// A worker's first frame.
#[derive(Debug)]
pub(crate) struct HelloOrder {
    pub(crate) worker_id: WorkerId,
    pub(crate) run: RunNumber,
    pub(crate) token: String,
    pub(crate) last_record: Option<RecordMark>,
    /// It has no keys yet.
    pub(crate) needs_keys: bool,
    /// Where its frames go.
    pub(crate) frames: mpsc::Sender<ToWorker>,
    /// Which connection: a later one replaces an earlier.
    pub(crate) connection: u64,
    /// The version that is spoken on it.
    pub(crate) version: u32,
}

/// What a worker's hello is answered with.
#[derive(Debug)]
pub(crate) enum HelloAnswer {
    /// It belongs here.
    Welcome { acknowledged: Option<RecordMark>, keys: Option<Keys> },
    /// It does not.
    Refused(String),
    /// The server cannot say now; the worker tries again.
    NotNow,
}

/// What a person's or the model's stop came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping {
    pub(crate) workers: Vec<WorkerId>,
    pub(crate) already: bool,
}

/// Which permission requests are answered.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    These(Vec<PermissionRequestId>),
    /// All that are open when the order is taken up.
    AllOpen,
}

/// An answer to permission requests, of a person here or at a remote channel.
pub(crate) struct Answering {
    pub(crate) wanted: Wanted,
    pub(crate) answer: AnswerPermission,
    pub(crate) by: Racer,
    /// Which channel.
    pub(crate) source: Option<String>,
    /// One for each request.
    pub(crate) reply: Reply<Vec<AnsweredRequest>>,
}

/// What became of an answer to one request.
#[derive(Debug)]
pub(crate) struct AnsweredRequest {
    pub(crate) id: PermissionRequestId,
    pub(crate) answered: Result<AnsweredPermission, OrderError>,
}

/// What an actor is asked to do.
pub(crate) enum Order {
    // ------------------------------------------------------------------ people
    Submit(Submit, Reply<Result<Submitted, OrderError>>),
    Interrupt(String, Reply<Result<Stopping, OrderError>>),
    End(Reply<Result<Stopping, OrderError>>),
    WorkerMessage(WorkerMessage, Reply<Result<WorkerMessaged, OrderError>>),
    WorkerStop {
        to: String,
        reason: String,
        by_person: bool,
        reply: Reply<Result<Stopping, OrderError>>,
    },
    PermissionMode(PermissionMode, Reply<Result<(), OrderError>>),
    /// Compact the coordinator's history before its next request; answers whether there is any.
    Compact(Reply<bool>),
    /// An answer to permission requests.
    Answer(Answering),
    Resume(KeyRing, Reply<Result<Resumed, OrderError>>),
    /// Runs with the state as it stands.
    Read(Box<dyn FnOnce(&SessionModel) + Send>),
    /// Events of work that the server did for this session (reviews, worktrees, callbacks).
    Record(Vec<Event>, Reply<Result<(), OrderError>>),
    // ------------------------------------------------------------------ the coordinator's engine
    Transcript(Vec<RecordBody>, Reply<Result<(), StorageError>>),
    Drain(Reply<Vec<query_engine::ports::Incoming>>),
    Spawn(SpawnOrder, Reply<Result<Spawned, OrderError>>),
    /// The coordinator wants leave for a call.
    Grant(PlannedCall, Reply<Grant>),
    /// The loop ended; with what keeps its cache alive, where that is wanted.
    EngineEnded(ExitReason, Option<Box<Keepalive>>),
    // ------------------------------------------------------------------ workers
    Hello(HelloOrder, Reply<HelloAnswer>),
    Record1 {
        worker_id: WorkerId,
        run: RunNumber,
        head: RecordHead,
        body: Option<Box<RecordBody>>,
    },
    WorkerWaits {
        worker_id: WorkerId,
        waiting_for: Option<swarm_protocol::WaitingFor>,
        cause: String,
    },
    Disconnected {
        worker_id: WorkerId,
        connection: u64,
    },
    // ------------------------------------------------------------------ run tasks
    /// The worktree that a worker left for good is gone, or had to stay.
    WorktreeLeft {
        worker_id: WorkerId,
        is_gone: bool,
        reason: String,
    },
    WorktreeReady {
        worker_id: WorkerId,
        branch: Option<String>,
        notes: Vec<String>,
    },
    ProcessStarted {
        worker_id: WorkerId,
        run: RunNumber,
        keeper: ProcessIdentity,
        run_dir: std::path::PathBuf,
        token_sha256: String,
        stored: Reply<bool>,
    },
    RunNotStarted {
        worker_id: WorkerId,
        run: RunNumber,
        problem: String,
        stored: Reply<bool>,
    },
    ProcessGone {
        worker_id: WorkerId,
        run: RunNumber,
        exit: Option<ExitFile>,
        missed: Vec<(RecordHead, Option<Box<RecordBody>>)>,
        stored: Reply<bool>,
    },
    RunFinished {
        worker_id: WorkerId,
        run: RunNumber,
        finished: Box<FinishedRun>,
        stored: Reply<bool>,
    },
    /// A place of the server became free.
    PlaceFree,
}

/// What a resume found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resumed {
    pub(crate) workers: Vec<WorkerId>,
    pub(crate) queued: u32,
    pub(crate) after: Seq,
}

/// A way to a session's actor.
#[derive(Clone)]
pub(crate) struct SessionHandle {
    /// Its id.
    pub(crate) id: SessionId,
    pub(crate) orders: mpsc::Sender<Order>,
}

impl SessionHandle {
    /// Sends an order made from a reply channel and waits for the answer.
    pub(crate) async fn ask<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, OrderError> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| OrderError::Gone(self.id))?;
        answer.await.map_err(|_| OrderError::Gone(self.id))
    }

    /// As [`Self::ask`], for answers that may themselves be refusals.
    pub(crate) async fn try_ask<T>(
        &self,
        order: impl FnOnce(Reply<Result<T, OrderError>>) -> Order,
    ) -> Result<T, OrderError> {
        self.ask(order).await?
    }

    /// Answers one permission request.
    pub(crate) async fn answer(
        &self,
        id: PermissionRequestId,
        answer: AnswerPermission,
        by: Racer,
        source: Option<String>,
    ) -> Result<AnsweredPermission, OrderError> {
        let wanted = Wanted::These(vec![id.clone()]);
        let answered = self.answer_all(wanted, answer, by, source).await?;
        answered.into_iter().next().map_or(Err(OrderError::UnknownRequest(id)), |one| one.answered)
    }

    /// Answers several at once.
    pub(crate) async fn answer_all(
        &self,
        wanted: Wanted,
        answer: AnswerPermission,
        by: Racer,
        source: Option<String>,
    ) -> Result<Vec<AnsweredRequest>, OrderError> {
        self.ask(|reply| Order::Answer(Answering { wanted, answer, by, source, reply })).await
    }

    /// Reads from the state.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&SessionModel) -> T + Send + 'static,
    ) -> Result<T, OrderError> {
        self.ask(|reply| {
            Order::Read(Box::new(move |model| {
                // Who asked may be gone.
                reply.send(read(model)).ok();
            }))
        })
        .await
    }

    /// Sends what a run task found out until it is stored: an end must not be lost to a disk that is full for a
    /// minute. Gives up only when the session is not served any more.
    pub(crate) async fn tell_until_stored(&self, order: impl Fn(Reply<bool>) -> Order) {
        loop {
            match self.ask(&order).await {
                Ok(true) | Err(_) => return,
                Ok(false) => tokio::time::sleep(STORE_AGAIN).await,
            }
        }
    }

    /// Sends an order that is not answered.
    pub(crate) async fn tell(&self, order: Order) -> Result<(), OrderError> {
        self.orders.send(order).await.map_err(|_| OrderError::Gone(self.id))
    }
}

/// The words of a title: the first line of a prompt, at most 60 characters.
pub(crate) fn title_of(prompt: &str) -> String {
    let line = prompt.trim().lines().next().unwrap_or_default().trim();
    let mut title: String = line.chars().take(60).collect();
    if line.chars().count() > 60 {
        title.push_str("..");
    }
    title
}
