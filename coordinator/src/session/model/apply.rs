//! How each event changes a session. Within a version every event is applied the same way for ever: a restart gets
//! what the running server had.

use swarm_protocol::{
    Block, ExitReason, Message, MessageId, Seq, Timestamp, ToolUseId, Usage, WorkerStatus,
    api::{ConversationItem, LedgerStep},
    event::{Event, EventLine, SentEntry},
    launch::WorkerSpec,
    notification::{Notification, NotificationKey},
    record::{LastWords, Origin, head_of, input_summary},
    usage::Cost,
};

use super::{
    FifoEntry, Finished, ITEMS_KEPT, InFlight, PermissionModel, SessionModel, TaskModel, WaitingMessage,
    WorkerModel,
};

impl SessionModel {
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
            Event::TaskAccepted {
                task_id, prompt, unattended, callback_url, callback_asks, labels, ..
            } => {
                if self.open_task().is_none() {
                    self.last_words = LastWords::default();
                }
                self.tasks.push(TaskModel {
                    id: *task_id,
                    prompt: prompt.clone(),
                    unattended: *unattended,
                    callback_url: callback_url.clone(),
                    callback_asks: *callback_asks,
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
            Event::CoordinatorTurn { turn, assistant, results, stop_reason, usage, cost, .. } => {
                if let Some(message) = assistant {
                    self.last_words.answer(message, stop_reason);
                }
                self.apply_turn(seq, at, *turn, assistant.as_ref(), results.as_ref());
                self.spend_own(usage, cost);
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
            Event::CoordinatorHelper { usage, cost, .. } => self.spend_own(usage, cost),
            Event::Budget { worker_id, change } => self.governor.apply(worker_id, change),
            Event::CoordinatorExit { exit_reason } => {
                self.governor.end_of(&None);
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
            Event::PermissionJudged { request, decision } => {
                if self.permission(&request.id).is_none() {
                    self.permissions.push(PermissionModel {
                        request: (**request).clone(),
                        decision: Some(decision.clone()),
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
            | Event::WorkerMoved { .. }
            | Event::WorkerRunEnded { .. }
            | Event::WorkerWorktree { .. }
            | Event::ReviewMerged { .. }
            | Event::ReviewDiscarded { .. }
            | Event::ReviewRestored { .. } => {
                match &line.event {
                    Event::WorkerRecord { record, .. } => {
                        if let Some(usage) = &record.usage {
                            self.governor.spend(usage, &record.cost.unwrap_or_default());
                        }
                    }
                    // Whatever its process did not say, it makes no more calls.
                    Event::WorkerRunEnded { worker_id, .. } => self.governor.end_of(&Some(worker_id.clone())),
                    _ => {}
                }
                if let Some(id) = line.event.worker_id().cloned()
                    && let Some(worker) = self.worker_mut(&id)
                {
                    worker.apply(seq, at, &line.event);
                }
            }
        }
    }

    /// The coordinator's call was charged; it paid for no other.
    fn spend_own(&mut self, usage: &Usage, cost: &Cost) {
        self.own_usage += *usage;
        self.own_cost += *cost;
        self.governor.spend(usage, cost);
        self.governor.end_of(&None);
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
        if !messages.is_empty() {
            self.last_words.heard(&Origin::Person { message_id: None });
        }
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
            moving: None,
            moved: false,
            is_outside: false,
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
