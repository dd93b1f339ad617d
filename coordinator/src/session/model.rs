//! A session as a fold of its events: registry, FIFO and ledger, conversation, desk, usage. Pure.
//!
//! The actor applies each event after the journal stored it; a restart applies them all again and gets the
//! same. Nothing here decides; what follows from the state is decided in `actor`, `verdict` and
//! `workers::lifecycle`.

use std::collections::BTreeSet;

use swarm_protocol::{
    Block, ExitReason, Message, MessageId, PermissionRequestId, Seq, SessionId, SessionState, TaskId,
    Timestamp, Usage, Verdict, WorkerId,
    api::{ConversationItem, LedgerStep},
    event::{Event, EventLine, SentEntry, SessionSpec},
    notification::{Notification, NotificationKind},
    permission::{PermissionDecision, PermissionMode, PermissionRequest, Rule},
    record::LastWords,
    usage::Cost,
};

use crate::governor::Governor;
pub(crate) use worker::{RunModel, StopOrder, WorkerModel};

mod apply;
mod worker;

/// Conversation items kept for readers; the journal has them all.
const ITEMS_KEPT: usize = 500;

/// A task and how it came out.
#[derive(Clone, Debug)]
pub(crate) struct TaskModel {
    pub(crate) id: TaskId,
    pub(crate) prompt: String,
    pub(crate) unattended: bool,
    pub(crate) callback_url: Option<String>,
    /// Permission requests go there as well.
    pub(crate) callback_asks: bool,
    pub(crate) labels: Vec<String>,
    pub(crate) accepted_at: Timestamp,
    /// Whether the coordinator has begun on it.
    pub(crate) begun: bool,
    /// Turns of the coordinator in it.
    pub(crate) turns: u32,
    pub(crate) finished: Option<Finished>,
    /// A callback is owed and was neither delivered nor given up.
    pub(crate) callback_owed: bool,
}

/// The end of a task.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) verdict: Verdict,
    pub(crate) reasons: Vec<String>,
    pub(crate) exit_reason: ExitReason,
    pub(crate) text: String,
    pub(crate) at: Timestamp,
}

/// An entry of the FIFO and its way.
#[derive(Clone, Debug)]
pub(crate) struct FifoEntry {
    pub(crate) notification: Notification,
    pub(crate) steps: Vec<LedgerStep>,
    pub(crate) committed: bool,
}

/// A person's message that no committed turn carries yet.
#[derive(Clone, Debug)]
pub(crate) struct WaitingMessage {
    pub(crate) id: MessageId,
    pub(crate) text: String,
}

/// A request of the coordinator whose turn is not committed.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) request: u64,
    pub(crate) entries: Vec<SentEntry>,
    pub(crate) messages: Vec<MessageId>,
    /// The user messages it adds, as sent.
    pub(crate) blocks: Vec<Message>,
    /// The closed blocks at the first effect.
    pub(crate) intent: Option<Vec<Block>>,
    pub(crate) results: Vec<Block>,
}

/// A request at the desk.
#[derive(Clone, Debug)]
pub(crate) struct PermissionModel {
    pub(crate) request: PermissionRequest,
    pub(crate) decision: Option<PermissionDecision>,
    pub(crate) wrote_rule: Option<String>,
    pub(crate) withdrawn: Option<String>,
}

impl PermissionModel {
    pub(crate) fn is_open(&self) -> bool {
        self.decision.is_none() && self.withdrawn.is_none()
    }
}

/// A session.
#[derive(Clone, Debug)]
pub(crate) struct SessionModel {
    pub(crate) id: SessionId,
    pub(crate) spec: SessionSpec,
    pub(crate) seq: Seq,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) state: SessionState,
    pub(crate) waiting_for: Option<String>,
    pub(crate) permission_mode: PermissionMode,
    pub(crate) rules: Vec<Rule>,
    /// Providers that this session had a key for, be it with an earlier server: they are not asked without.
    pub(crate) keyed: BTreeSet<String>,
    pub(crate) tasks: Vec<TaskModel>,
    pub(crate) workers: Vec<WorkerModel>,
    pub(crate) fifo: Vec<FifoEntry>,
    pub(crate) waiting_messages: Vec<WaitingMessage>,
    /// The coordinator's committed history, as its provider sees it from the last boundary on.
    pub(crate) history: Vec<Message>,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) last_request: u64,
    pub(crate) last_turn: u32,
    /// How the loop last ended; none while it runs or after a crash.
    pub(crate) exit: Option<ExitReason>,
    pub(crate) permissions: Vec<PermissionModel>,
    pub(crate) own_usage: Usage,
    pub(crate) own_cost: Cost,
    /// Its budget.
    pub(crate) governor: Governor,
    /// The coordinator's last words about the open task.
    pub(crate) last_words: LastWords,
    pub(crate) items: Vec<ConversationItem>,
    /// Messages of people that were committed, for readers.
    pub(crate) compactions: u32,
}

impl SessionModel {
    /// A session from its first event; `None` if that is not `session.created`.
    pub(crate) fn begin(line: &EventLine) -> Option<Self> {
        let Event::SessionCreated { spec } = &line.event else { return None };
        Some(Self {
            id: line.session_id?,
            permission_mode: spec.permission_mode,
            rules: spec.rules.clone(),
            keyed: BTreeSet::new(),
            spec: (**spec).clone(),
            seq: line.seq?,
            created_at: line.at,
            updated_at: line.at,
            state: SessionState::Active,
            waiting_for: None,
            tasks: Vec::new(),
            workers: Vec::new(),
            fifo: Vec::new(),
            waiting_messages: Vec::new(),
            history: Vec::new(),
            in_flight: None,
            last_request: 0,
            last_turn: 0,
            exit: None,
            permissions: Vec::new(),
            own_usage: Usage::default(),
            own_cost: Cost::default(),
            governor: Governor::new(spec.budget),
            last_words: LastWords::default(),
            items: Vec::new(),
            compactions: 0,
        })
    }

    pub(crate) fn worker(&self, id: &WorkerId) -> Option<&WorkerModel> {
        self.workers.iter().find(|worker| &worker.spec.id == id)
    }

    fn worker_mut(&mut self, id: &WorkerId) -> Option<&mut WorkerModel> {
        self.workers.iter_mut().find(|worker| &worker.spec.id == id)
    }

    /// The task that has no verdict, if one is open.
    pub(crate) fn open_task(&self) -> Option<&TaskModel> {
        self.tasks.last().filter(|task| task.finished.is_none())
    }

    pub(crate) fn task(&self, id: TaskId) -> Option<&TaskModel> {
        self.tasks.iter().find(|task| task.id == id)
    }

    /// Entries that no committed turn carries, in order.
    pub(crate) fn pending_entries(&self) -> impl Iterator<Item = &FifoEntry> {
        self.fifo.iter().filter(|entry| !entry.committed)
    }

    /// Whether something waits that wakes the coordinator: an end, a person's message, or a loop that began and
    /// did not say how it ended (the server died): it goes on, or ends at once.
    pub(crate) fn wakes(&self) -> bool {
        self.pending_entries().any(|entry| entry.notification.key.kind == NotificationKind::End)
            || !self.waiting_messages.is_empty()
            || (self.exit.is_none() && self.last_request > 0)
    }

    pub(crate) fn permission(&self, id: &PermissionRequestId) -> Option<&PermissionModel> {
        self.permissions.iter().find(|permission| &permission.request.id == id)
    }

    /// Workers with a run under way, queued ones not counted.
    pub(crate) fn places_taken(&self) -> usize {
        self.workers.iter().filter(|worker| worker.status.takes_place()).count()
    }

    /// Whether any worker has a run under way or queued.
    pub(crate) fn workers_live(&self) -> bool {
        self.workers.iter().any(|worker| !worker.status.is_ended())
    }

    /// Use of the session, workers included.
    pub(crate) fn usage(&self) -> Usage {
        let mut sum = self.own_usage;
        for worker in &self.workers {
            sum += worker.usage();
        }
        sum
    }

    /// Cost of the session, workers included.
    pub(crate) fn cost(&self) -> Cost {
        let mut sum = self.own_cost;
        for worker in &self.workers {
            sum += worker.cost();
        }
        sum
    }
}
