//! A session as a fold of its events: registry, FIFO and ledger, conversation, desk, usage. Pure.
//!
//! The actor applies each event after the journal stored it; a restart applies them all again and gets the
//! same. Nothing here decides; what follows from the state is decided in `actor`, `verdict` and
//! `workers::lifecycle`.

use std::collections::BTreeSet;

use swarm_protocol::{
    Block, CommandId, ExitReason, Message, MessageId, PermissionRequestId, RunNumber, Seq, SessionId,
    SessionState, TaskId, Timestamp, ToolUseId, Usage, Verdict, WaitingFor, WorkerId, WorkerStatus,
    api::{ConversationItem, LedgerStep, StatusChange},
    event::{Event, EventLine, SentEntry, SessionSpec},
    frame::{Command, RecordMark},
    launch::WorkerSpec,
    message::Role,
    notification::{Notification, NotificationKey, NotificationKind, Outcome},
    permission::{PermissionDecision, PermissionMode, PermissionRequest, Rule},
    process::ProcessIdentity,
    record::{RunEnd, head_of, input_summary},
    usage::Cost,
};

/// Conversation items kept for readers; the journal has them all.
const ITEMS_KEPT: usize = 500;

/// A task and how it came out.
#[derive(Clone, Debug)]
pub(crate) struct TaskModel {
    pub(crate) id: TaskId,
    pub(crate) prompt: String,
    pub(crate) unattended: bool,
    pub(crate) callback_url: Option<String>,
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

/// One activation of a worker.
#[derive(Clone, Debug)]
pub(crate) struct RunModel {
    pub(crate) run: RunNumber,
    pub(crate) reason: String,
    pub(crate) task_id: TaskId,
    pub(crate) restarts: u32,
    pub(crate) end: Option<RunEnd>,
    pub(crate) outcome: Option<Outcome>,
    /// The event that began it: messages before it are those that woke it.
    pub(crate) began_seq: Seq,
    /// When it began, for durations of runs that left no end record.
    pub(crate) began_at: Timestamp,
    pub(crate) turns: u32,
    pub(crate) usage: Usage,
    pub(crate) cost: Cost,
}

/// The process of a run.
#[derive(Clone, Debug)]
pub(crate) struct ProcessModel {
    pub(crate) run: RunNumber,
    pub(crate) keeper: ProcessIdentity,
    pub(crate) token_sha256: String,
}

/// A command that no record has named yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingCommand {
    pub(crate) id: CommandId,
    pub(crate) command: Command,
}

/// A worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerModel {
    pub(crate) spec: WorkerSpec,
    pub(crate) tool_use_id: ToolUseId,
    pub(crate) status: WorkerStatus,
    pub(crate) waiting_for: Option<WaitingFor>,
    pub(crate) cause: String,
    pub(crate) position: Option<u32>,
    pub(crate) runs: Vec<RunModel>,
    pub(crate) process: Option<ProcessModel>,
    pub(crate) sandbox_tier: Option<u8>,
    pub(crate) last_record: Option<RecordMark>,
    pub(crate) commands: Vec<PendingCommand>,
    /// A stop was ordered in the present run, and by whom.
    pub(crate) stop: Option<StopOrder>,
    pub(crate) stop_seq: Option<Seq>,
    pub(crate) worktree_exists: bool,
    pub(crate) branch_exists: bool,
    pub(crate) snapshots: u32,
    pub(crate) merged_into: Option<String>,
    pub(crate) kept_ref: Option<String>,
    pub(crate) spawned_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) changes: Vec<StatusChange>,
}

/// Who ordered a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOrder {
    Person,
    Coordinator,
}

impl WorkerModel {
    /// The present or last run. Every worker has one from its spawn on.
    pub(crate) fn run(&self) -> RunNumber {
        self.runs.last().map_or(RunNumber::FIRST, |run| run.run)
    }

    pub(crate) fn last_run(&self) -> Option<&RunModel> {
        self.runs.last()
    }

    /// What the server established about the last run that ended.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.runs.iter().rev().find_map(|run| run.outcome.as_ref())
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for run in &self.runs {
            sum += run.usage;
        }
        sum
    }

    pub(crate) fn cost(&self) -> Cost {
        let mut sum = Cost::default();
        for run in &self.runs {
            sum += run.cost;
        }
        sum
    }

    pub(crate) fn turns(&self) -> u32 {
        self.runs.iter().map(|run| run.turns).sum()
    }

    /// Whether the coordinator may not wake it.
    pub(crate) fn stopped_by_person(&self) -> bool {
        self.stop == Some(StopOrder::Person)
    }
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

    /// The text of the coordinator's last message that had any.
    pub(crate) fn final_text(&self) -> String {
        self.history
            .iter()
            .rev()
            .filter(|message| message.role == Role::Assistant)
            .map(Message::text)
            .find(|text| !text.trim().is_empty())
            .unwrap_or_default()
    }

    /// Applies the next event.
    pub(crate) fn apply(&mut self, line: &EventLine) {
        let (Some(seq), at) = (line.seq, line.at) else { return };
        self.seq = seq;
        self.updated_at = at;
        if let Some(worker) = line.event.worker_id().cloned().and_then(|id| self.worker_mut(&id)) {
            worker.updated_at = at;
        }
        match &line.event {
            Event::SessionCreated { .. } | Event::Live { .. } => {}
            Event::SessionState { state, waiting_for, .. } => {
                self.state = *state;
                self.waiting_for.clone_from(waiting_for);
            }
            Event::SessionPermissionMode { mode } => self.permission_mode = *mode,
            Event::SessionRule { rule } => self.rules.push(rule.clone()),
            Event::SessionKeys { providers } => self.keyed.extend(providers.iter().cloned()),
            Event::TaskAccepted { task_id, prompt, unattended, callback_url, labels, .. } => {
                self.tasks.push(TaskModel {
                    id: *task_id,
                    prompt: prompt.clone(),
                    unattended: *unattended,
                    callback_url: callback_url.clone(),
                    labels: labels.clone(),
                    accepted_at: at,
                    begun: false,
                    turns: 0,
                    finished: None,
                    callback_owed: false,
                });
            }
            Event::TaskFinished { task_id, verdict, reasons, exit_reason, text } => {
                if let Some(task) = self.tasks.iter_mut().find(|task| task.id == *task_id) {
                    task.callback_owed = task.callback_url.is_some();
                    task.finished = Some(Finished {
                        verdict: *verdict,
                        reasons: reasons.clone(),
                        exit_reason: exit_reason.clone(),
                        text: text.clone(),
                        at,
                    });
                }
                self.push_item(ConversationItem::Verdict {
                    seq,
                    at,
                    verdict: *verdict,
                    reasons: reasons.clone(),
                });
            }
            Event::TaskCallback { task_id, .. } => {
                if let Some(task) = self.tasks.iter_mut().find(|task| task.id == *task_id) {
                    task.callback_owed = false;
                }
            }
            Event::MessageQueued { message_id, text, .. } => {
                self.waiting_messages.push(WaitingMessage { id: *message_id, text: text.clone() });
                self.push_item(ConversationItem::Person { seq, at, text: text.clone() });
            }
            Event::CoordinatorRequest { request, entries, messages, blocks, .. } => {
                self.apply_request(seq, at, *request, entries, messages, blocks);
            }
            Event::CoordinatorIntent { blocks, .. } => {
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.intent = Some(blocks.clone());
                }
            }
            Event::CoordinatorTool { result, .. } => {
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.results.push(result.clone());
                }
            }
            Event::CoordinatorTurn { turn, assistant, results, usage, cost, .. } => {
                self.apply_turn(seq, at, *turn, assistant.as_ref(), results.as_ref());
                self.own_usage += *usage;
                self.own_cost += *cost;
            }
            Event::CoordinatorCompacted { boundary } => {
                self.history.clone_from(&boundary.messages);
                self.compactions += 1;
                // What the request under way carries is in the compacted history already.
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.blocks.clear();
                }
            }
            Event::CoordinatorNote { message } => self.history.push(message.clone()),
            Event::CoordinatorHelper { usage, cost, .. } => {
                self.own_usage += *usage;
                self.own_cost += *cost;
            }
            Event::CoordinatorExit { exit_reason } => {
                self.exit = Some(exit_reason.clone());
                if *exit_reason != ExitReason::Completed {
                    self.push_item(ConversationItem::Error {
                        seq,
                        at,
                        code: exit_reason.code().to_owned(),
                        message: exit_reason.sentence(),
                    });
                }
            }
            Event::WorkerSpawned { spec, tool_use_id } => self.apply_spawn(at, spec, tool_use_id),
            Event::NotificationQueued { notification } => {
                let mut notification = (**notification).clone();
                notification.seq = seq;
                self.apply_queued(seq, at, notification);
            }
            Event::NotificationSent { request, entries } => {
                for sent in entries {
                    self.step(&sent.key, seq, at, "sent", Some(*request), None, sent.reason.clone());
                }
            }
            Event::NotificationCommitted { request, turn, keys } => {
                for key in keys {
                    self.step(key, seq, at, "committed", Some(*request), Some(*turn), None);
                    if let Some(entry) = self.fifo.iter_mut().find(|entry| &entry.notification.key == key) {
                        entry.committed = true;
                    }
                }
            }
            Event::PermissionRequested { request } => {
                if self.permission(&request.id).is_none() {
                    self.permissions.push(PermissionModel {
                        request: (**request).clone(),
                        decision: None,
                        wrote_rule: None,
                        withdrawn: None,
                    });
                }
            }
            Event::PermissionDecided { decision, wrote_rule, .. } => {
                if let Some(permission) =
                    self.permissions.iter_mut().find(|permission| permission.request.id == decision.id)
                {
                    permission.decision = Some(decision.clone());
                    permission.wrote_rule.clone_from(wrote_rule);
                }
            }
            Event::PermissionWithdrawn { id, reason } => {
                if let Some(permission) =
                    self.permissions.iter_mut().find(|permission| &permission.request.id == id)
                {
                    permission.withdrawn = Some(reason.clone());
                }
            }
            Event::Error { code, message, .. } => self.push_item(ConversationItem::Error {
                seq,
                at,
                code: code.clone(),
                message: message.clone(),
            }),
            Event::WorkerRun { .. }
            | Event::WorkerProcess { .. }
            | Event::WorkerState { .. }
            | Event::WorkerCommand { .. }
            | Event::WorkerCommandSettled { .. }
            | Event::WorkerRecord { .. }
            | Event::WorkerRewound { .. }
            | Event::WorkerRunEnded { .. }
            | Event::WorkerWorktree { .. }
            | Event::ReviewMerged { .. }
            | Event::ReviewDiscarded { .. }
            | Event::ReviewRestored { .. } => {
                if let Some(id) = line.event.worker_id().cloned()
                    && let Some(worker) = self.worker_mut(&id)
                {
                    worker.apply(seq, at, &line.event);
                }
            }
        }
    }

    fn push_item(&mut self, item: ConversationItem) {
        if self.items.len() >= ITEMS_KEPT * 2 {
            self.items.drain(..ITEMS_KEPT);
        }
        self.items.push(item);
    }

    fn apply_request(
        &mut self,
        seq: Seq,
        at: Timestamp,
        request: u64,
        entries: &[SentEntry],
        messages: &[MessageId],
        blocks: &[Message],
    ) {
        self.last_request = request;
        self.exit = None;
        if let Some(task) = self.tasks.last_mut() {
            task.begun = true;
        }
        let first_time: Vec<Notification> = entries
            .iter()
            .filter(|sent| sent.repeat_of.is_none())
            .filter_map(|sent| self.fifo.iter().find(|entry| entry.notification.key == sent.key))
            .map(|entry| entry.notification.clone())
            .collect();
        if !first_time.is_empty() {
            self.push_item(ConversationItem::Woke { seq, at, request, notifications: first_time });
        }
        self.in_flight = Some(InFlight {
            request,
            entries: entries.to_vec(),
            messages: messages.to_vec(),
            blocks: blocks.to_vec(),
            intent: None,
            results: Vec::new(),
        });
    }

    fn apply_turn(
        &mut self,
        seq: Seq,
        at: Timestamp,
        turn: u32,
        assistant: Option<&Message>,
        results: Option<&Message>,
    ) {
        self.last_turn = turn;
        if let Some(task) = self.tasks.last_mut() {
            task.turns += 1;
        }
        if let Some(in_flight) = self.in_flight.take() {
            self.history.extend(in_flight.blocks);
            self.waiting_messages.retain(|waiting| !in_flight.messages.contains(&waiting.id));
        }
        if let Some(message) = assistant {
            let text = message.text();
            if !text.trim().is_empty() {
                self.push_item(ConversationItem::Coordinator { seq, at, text });
            }
            for (id, name, input) in message.tool_uses() {
                let worker_id =
                    self.workers
                        .iter()
                        .find(|worker| &worker.tool_use_id == id)
                        .map(|worker| worker.spec.id.clone())
                        .or_else(|| {
                            let named = input.get("to").or_else(|| input.get("task_id"))?.as_str()?;
                            let found = self.workers.iter().find(|worker| {
                                worker.spec.id.as_str() == named || worker.spec.name == named
                            })?;
                            Some(found.spec.id.clone())
                        });
                let is_error = results.is_some_and(|results| {
                    results.content.iter().any(|block| {
                        matches!(block, Block::ToolResult { tool_use_id, is_error: true, .. } if tool_use_id == id)
                    })
                });
                let summary = match input.get("description").and_then(|text| text.as_str()) {
                    Some(description) => head_of(description),
                    None => input_summary(input),
                };
                let tool = name.to_owned();
                self.push_item(ConversationItem::Call { seq, at, tool, summary, worker_id, is_error });
            }
            self.history.push(message.clone());
        }
        self.history.extend(results.cloned());
    }

    fn apply_spawn(&mut self, at: Timestamp, spec: &WorkerSpec, tool_use_id: &ToolUseId) {
        self.workers.push(WorkerModel {
            spec: spec.clone(),
            tool_use_id: tool_use_id.clone(),
            status: WorkerStatus::Pending,
            waiting_for: None,
            cause: String::new(),
            position: None,
            runs: Vec::new(),
            process: None,
            sandbox_tier: None,
            last_record: None,
            commands: Vec::new(),
            stop: None,
            stop_seq: None,
            worktree_exists: false,
            branch_exists: false,
            snapshots: 0,
            merged_into: None,
            kept_ref: None,
            spawned_at: at,
            updated_at: at,
            ended_at: None,
            changes: Vec::new(),
        });
    }

    /// A repeat of a key is harmless: the first entry stands.
    fn apply_queued(&mut self, seq: Seq, at: Timestamp, notification: Notification) {
        if self.fifo.iter().any(|entry| entry.notification.key == notification.key) {
            return;
        }
        if let Some(outcome) = &notification.outcome
            && let Some(worker) = self.worker_mut(&notification.key.worker_id)
            && let Some(run) = worker.runs.iter_mut().find(|run| run.run == notification.key.run)
        {
            run.outcome = Some((**outcome).clone());
        }
        let step = LedgerStep { seq, at, step: "queued".to_owned(), request: None, turn: None, reason: None };
        self.fifo.push(FifoEntry { notification, steps: vec![step], committed: false });
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one step")]
    fn step(
        &mut self,
        key: &NotificationKey,
        seq: Seq,
        at: Timestamp,
        step: &str,
        request: Option<u64>,
        turn: Option<u32>,
        reason: Option<String>,
    ) {
        if let Some(entry) = self.fifo.iter_mut().find(|entry| &entry.notification.key == key) {
            entry.steps.push(LedgerStep { seq, at, step: step.to_owned(), request, turn, reason });
        }
    }
}

impl WorkerModel {
    fn apply(&mut self, seq: Seq, at: Timestamp, event: &Event) {
        match event {
            Event::WorkerRun { run, reason, task_id, restarts, .. } => {
                // A restart of the same run keeps its place.
                if let Some(present) = self.runs.iter_mut().find(|present| present.run == *run) {
                    present.restarts = *restarts;
                    // Its process is gone; the next one is not there yet.
                    self.process = None;
                } else {
                    self.runs.push(RunModel {
                        run: *run,
                        reason: reason.clone(),
                        task_id: *task_id,
                        restarts: *restarts,
                        end: None,
                        outcome: None,
                        began_seq: seq,
                        began_at: at,
                        turns: 0,
                        usage: Usage::default(),
                        cost: Cost::default(),
                    });
                    self.stop = None;
                    self.stop_seq = None;
                    self.ended_at = None;
                    self.merged_into = None;
                }
            }
            Event::WorkerProcess { run, keeper, token_sha256, .. } => {
                self.process = Some(ProcessModel {
                    run: *run,
                    keeper: keeper.clone(),
                    token_sha256: token_sha256.clone(),
                });
            }
            Event::WorkerState { from, status, waiting_for, position, reason, .. } => {
                self.status = *status;
                self.waiting_for = *waiting_for;
                self.position = *position;
                self.cause.clone_from(reason);
                if status.is_ended() {
                    self.ended_at = Some(at);
                }
                self.changes.push(StatusChange { seq, at, from: *from, to: *status, reason: reason.clone() });
            }
            Event::WorkerCommand { command, .. } => {
                if let Command::Stop { by_person, .. } = command {
                    self.stop_seq = Some(seq);
                    self.stop = Some(if *by_person { StopOrder::Person } else { StopOrder::Coordinator });
                }
                self.commands.push(PendingCommand { id: seq, command: command.clone() });
            }
            Event::WorkerCommandSettled { command, .. } => {
                self.commands.retain(|pending| pending.id != *command);
            }
            Event::WorkerRecord { record, started, .. } => {
                if let Some(started) = started {
                    self.sandbox_tier = Some(started.sandbox_tier);
                }
                self.last_record = Some(RecordMark { n: record.n, uuid: record.uuid });
                if record.record == "snapshot" {
                    self.snapshots += 1;
                }
                if let Some(run) = self.runs.iter_mut().find(|run| run.run == record.run) {
                    if record.record == "assistant" {
                        run.turns += 1;
                    }
                    run.usage += record.usage.unwrap_or_default();
                    run.cost += record.cost.unwrap_or_default();
                }
            }
            Event::WorkerRewound { n, .. } => {
                if let Some(last) = &mut self.last_record
                    && last.n > *n
                {
                    last.n = *n;
                }
            }
            Event::WorkerRunEnded { run, end, .. } => {
                if let Some(present) = self.runs.iter_mut().find(|present| present.run == *run) {
                    present.end = Some((**end).clone());
                }
            }
            Event::WorkerWorktree { exists, branch_exists, branch, .. } => {
                if branch.is_some() {
                    self.spec.branch.clone_from(branch);
                }
                self.worktree_exists = *exists;
                self.branch_exists = *branch_exists;
            }
            Event::ReviewMerged { into, .. } => self.merged_into = Some(into.clone()),
            Event::ReviewDiscarded { kept_ref, .. } => self.kept_ref = Some(kept_ref.clone()),
            Event::ReviewRestored { .. } => self.kept_ref = None,
            _ => {}
        }
    }
}
