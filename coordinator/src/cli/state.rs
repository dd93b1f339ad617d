//! What a session looks like to somebody who follows it: reduced from events, without clock or I/O. Applying
//! an event twice changes nothing, so a reconnection may repeat.

use swarm_protocol::{
    ExitReason, Seq, SessionId, SessionState, TaskId, Timestamp, Usage, Verdict, WaitingFor, WorkerId,
    WorkerStatus,
    api::{PermissionView, SessionDetail, SessionView, WorkerView},
    event::{BudgetChange, Event, EventLine},
    frame::Live,
    launch::Expects,
    notification::Doubt,
    permission::{PermissionDecision, PermissionRequest},
    usage::Cost,
};

use super::words::Words;

/// A worker as a row shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerRow {
    pub(crate) id: WorkerId,
    pub(crate) name: String,
    pub(crate) status: WorkerStatus,
    pub(crate) waiting_for: Option<WaitingFor>,
    /// The cause of the wait or of the end, in words.
    pub(crate) cause: String,
    /// When the wait ends, where that is known.
    pub(crate) until: Option<Timestamp>,
    pub(crate) position: Option<u32>,
    pub(crate) activity: String,
    pub(crate) doubts: Vec<Doubt>,
    pub(crate) exit_reason: Option<String>,
    pub(crate) expects: Expects,
    pub(crate) branch: Option<String>,
    pub(crate) files_changed: u64,
    pub(crate) insertions: u64,
    pub(crate) deletions: u64,
    pub(crate) turns: u32,
    pub(crate) usage: Usage,
    /// None when a part of it is unknown.
    pub(crate) cost_usd: Option<f64>,
    pub(crate) context_tokens: Option<u64>,
    pub(crate) context_window: Option<u64>,
    pub(crate) run: u32,
    pub(crate) spawned_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    /// The journal's cursor when its figures were counted: records before it are in them.
    counted: Seq,
}

impl WorkerRow {
    /// Milliseconds since it was spawned, or from spawn to end.
    pub(crate) fn age(&self, now: Timestamp) -> u64 {
        self.ended_at.unwrap_or(now).millis_since(self.spawned_at)
    }

    /// How full its window is, in percent.
    pub(crate) fn context_percent(&self) -> Option<u64> {
        let (tokens, window) = (self.context_tokens?, self.context_window?);
        (window > 0).then(|| (tokens * 100 / window).min(100))
    }
}

impl From<&WorkerView> for WorkerRow {
    fn from(view: &WorkerView) -> Self {
        Self {
            id: view.id.clone(),
            name: view.name.clone(),
            status: view.status,
            waiting_for: view.waiting_for,
            cause: view.cause.clone().unwrap_or_default(),
            until: None,
            position: view.position,
            activity: view.activity.clone(),
            doubts: view.doubts.clone(),
            exit_reason: view.exit_reason.clone(),
            expects: view.expects,
            branch: view.branch.clone(),
            files_changed: view.files_changed,
            insertions: view.insertions,
            deletions: view.deletions,
            turns: view.turns,
            usage: view.usage,
            cost_usd: view.cost_usd,
            context_tokens: view.context_tokens,
            context_window: view.context_window,
            run: view.run.0,
            spawned_at: view.spawned_at,
            ended_at: view.ended_at,
            counted: Seq(0),
        }
    }
}

/// A request that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) request: PermissionRequest,
    pub(crate) deadline: Timestamp,
    /// Where `always` would write.
    pub(crate) always_file: Option<String>,
}

impl From<PermissionView> for Ask {
    fn from(view: PermissionView) -> Self {
        let deadline = view.deadline_at.unwrap_or_else(|| own_deadline(&view.request));
        Self { request: view.request, deadline, always_file: view.always_file }
    }
}

fn own_deadline(request: &PermissionRequest) -> Timestamp {
    request.requested_at.plus_millis(i64::try_from(request.timeout_ms).unwrap_or(i64::MAX))
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) task_id: TaskId,
    pub(crate) verdict: Verdict,
    pub(crate) reasons: Vec<String>,
    pub(crate) exit_reason: ExitReason,
    pub(crate) text: String,
}

/// What a person who follows wants to be told once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    /// Whole lines of the coordinator's words.
    Words(Vec<String>),
    /// A worker got its place.
    Started(WorkerId),
    /// A run of a worker began that is not its first.
    Continued(WorkerId, String),
    /// A worker's run ended.
    Ended(WorkerId),
    /// A call asks.
    Asked(Box<PermissionRequest>),
    /// A request was decided.
    Decided(WorkerId, PermissionDecision, Option<String>),
    /// A request no longer waits.
    Withdrawn(String),
    /// The session waits for a key.
    NeedsKey,
    /// A worker's process was started again.
    Restarted(WorkerId, u32),
    /// Something went wrong.
    Trouble(String, String),
    /// A task has its verdict.
    Finished(TaskId),
    /// Somebody merged a branch.
    Merged(WorkerId, String),
}

/// A session, as far as its follower knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StateView {
    pub(crate) session_id: SessionId,
    pub(crate) title: String,
    pub(crate) state: SessionState,
    pub(crate) waiting_for: Option<String>,
    pub(crate) workers: Vec<WorkerRow>,
    pub(crate) asks: Vec<Ask>,
    pub(crate) own_usage: Usage,
    pub(crate) own_cost: Cost,
    /// Turns of the coordinator that were committed.
    pub(crate) own_turns: u32,
    /// What the coordinator does now.
    pub(crate) activity: String,
    pub(crate) words: Words,
    pub(crate) finished: Vec<Finished>,
    pub(crate) since: Timestamp,
    /// The last event of the journal that is in here.
    pub(crate) cursor: Seq,
}

impl StateView {
    /// A session before the events after a cursor. `streams` says whether words are wanted as they come.
    pub(crate) fn new(session: &SessionView, after: Seq, since: Timestamp, streams: bool) -> Self {
        Self {
            session_id: session.session_id,
            title: session.title.clone(),
            state: SessionState::Active,
            waiting_for: None,
            workers: Vec::new(),
            asks: Vec::new(),
            own_usage: Usage::default(),
            own_cost: Cost::default(),
            own_turns: 0,
            activity: String::new(),
            words: Words::new(streams),
            finished: Vec::new(),
            since,
            cursor: after,
        }
    }

    /// A session as it stands.
    pub(crate) fn of(detail: &SessionDetail, streams: bool) -> Self {
        let session = &detail.session;
        let since = detail.tasks.last().map_or(session.created_at, |task| task.accepted_at);
        let workers = detail.workers.iter().map(|view| WorkerRow { counted: detail.seq, ..view.into() });
        // What the session cost beyond its workers is the coordinator's own.
        let of_workers: f64 = detail.workers.iter().filter_map(|worker| worker.cost_usd).sum();
        let unknown_workers = detail.workers.iter().any(|worker| worker.cost_usd.is_none());
        let cost = Cost {
            known_usd: (session.cost.known_usd - of_workers).max(0.0),
            unpriced_calls: if unknown_workers { 0 } else { session.cost.unpriced_calls },
        };
        Self {
            state: session.state,
            waiting_for: session.waiting_for.clone(),
            workers: workers.collect(),
            asks: detail.permissions.iter().cloned().map(Ask::from).collect(),
            own_usage: session.own_usage,
            own_cost: cost,
            ..Self::new(session, detail.seq, since, streams)
        }
    }

    pub(crate) fn worker(&self, id: &WorkerId) -> Option<&WorkerRow> {
        self.workers.iter().find(|worker| worker.id == *id)
    }

    fn worker_mut(&mut self, id: &WorkerId) -> Option<&mut WorkerRow> {
        self.workers.iter_mut().find(|worker| worker.id == *id)
    }

    /// What was used in all.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = self.own_usage;
        self.workers.iter().for_each(|worker| usage += worker.usage);
        usage
    }

    /// What it cost in all.
    pub(crate) fn cost(&self) -> Cost {
        let mut cost = self.own_cost;
        for worker in &self.workers {
            cost += match worker.cost_usd {
                Some(dollars) => Cost::usd(dollars),
                None => Cost::unknown(),
            };
        }
        cost
    }

    /// Where the desk says `always` would write, and until when it waits.
    pub(crate) fn learn(&mut self, views: Vec<PermissionView>) {
        for view in views {
            if let Some(ask) = self.asks.iter_mut().find(|ask| ask.request.id == view.request.id) {
                *ask = view.into();
            }
        }
    }

    /// Takes an event in; what it says of news comes back in order.
    pub(crate) fn apply(&mut self, line: EventLine) -> Vec<News> {
        let mut news = Vec::new();
        if let Some(seq) = line.seq {
            if seq <= self.cursor {
                return news;
            }
            self.cursor = seq;
        }
        let EventLine { seq, at, event, .. } = line;
        match event {
            Event::SessionCreated { spec } => self.title = spec.title,
            Event::SessionState { state, waiting_for, reason: _ } => {
                if waiting_for.as_deref() == Some("key") && self.waiting_for.as_deref() != Some("key") {
                    news.push(News::NeedsKey);
                }
                self.state = state;
                self.waiting_for = waiting_for;
                if state != SessionState::Active {
                    self.activity.clear();
                }
            }
            Event::TaskFinished { task_id, verdict, reasons, exit_reason, text } => {
                self.push_words(&mut news, |words| words.flush());
                self.finished.push(Finished { task_id, verdict, reasons, exit_reason, text });
                news.push(News::Finished(task_id));
            }
            Event::CoordinatorRequest { .. } => "thinking".clone_into(&mut self.activity),
            Event::CoordinatorTurn { assistant, usage, cost, .. } => {
                self.own_usage += usage;
                self.own_cost += cost;
                self.own_turns += 1;
                self.activity.clear();
                let text = assistant.map(|message| message.text()).unwrap_or_default();
                self.push_words(&mut news, |words| words.commit(&text));
            }
            Event::CoordinatorHelper { usage, cost, .. } => {
                self.own_usage += usage;
                self.own_cost += cost;
            }
            Event::WorkerSpawned { spec, .. } => {
                if self.worker(&spec.id).is_none() {
                    self.workers.push(WorkerRow {
                        id: spec.id,
                        name: spec.name,
                        status: WorkerStatus::Pending,
                        waiting_for: None,
                        cause: String::new(),
                        until: None,
                        position: None,
                        activity: String::new(),
                        doubts: Vec::new(),
                        exit_reason: None,
                        expects: spec.expects,
                        branch: spec.branch,
                        files_changed: 0,
                        insertions: 0,
                        deletions: 0,
                        turns: 0,
                        usage: Usage::default(),
                        cost_usd: Some(0.0),
                        context_tokens: None,
                        context_window: spec.model.context_window,
                        run: 1,
                        spawned_at: at,
                        ended_at: None,
                        counted: Seq(0),
                    });
                }
            }
            Event::WorkerRun { worker_id, run, reason, restarts, .. } => {
                if let Some(worker) = self.worker_mut(&worker_id) {
                    worker.ended_at = None;
                    worker.doubts.clear();
                    worker.exit_reason = None;
                    let continued = run.0 > worker.run;
                    worker.run = run.0;
                    if restarts > 0 {
                        news.push(News::Restarted(worker_id, restarts));
                    } else if continued {
                        news.push(News::Continued(worker_id, reason));
                    }
                }
            }
            Event::WorkerState { worker_id, from, status, waiting_for, position, reason, worker: view } => {
                self.worker_state(
                    seq,
                    at,
                    &worker_id,
                    status,
                    waiting_for,
                    position,
                    reason,
                    view.as_deref(),
                );
                if status == WorkerStatus::Starting && !from.is_ended() {
                    news.push(News::Started(worker_id));
                } else if status.is_ended() && !from.is_ended() {
                    news.push(News::Ended(worker_id));
                }
            }
            Event::WorkerRecord { worker_id, record, .. } => {
                if let Some(worker) = self.worker_mut(&worker_id)
                    && seq.is_none_or(|seq| seq > worker.counted)
                    && let Some(usage) = record.usage
                {
                    worker.usage += usage;
                    worker.turns += u32::from(record.record == "assistant");
                    let cost = record.cost.unwrap_or_else(Cost::unknown);
                    worker.cost_usd = worker.cost_usd.zip(cost.exact_usd()).map(|(sum, more)| sum + more);
                }
            }
            Event::NotificationQueued { notification } => {
                if let (Some(worker), Some(outcome)) =
                    (self.worker_mut(&notification.key.worker_id), &notification.outcome)
                {
                    worker.doubts.clone_from(&outcome.doubts);
                    worker.files_changed = outcome.files.len() as u64;
                    worker.insertions = outcome.insertions();
                    worker.deletions = outcome.deletions();
                    worker.branch.clone_from(&outcome.branch);
                    worker.exit_reason = Some(outcome.exit_reason.code().to_owned());
                }
            }
            Event::PermissionRequested { request } => {
                if !self.asks.iter().any(|ask| ask.request.id == request.id) {
                    let deadline = own_deadline(&request);
                    self.asks.push(Ask { request: (*request).clone(), deadline, always_file: None });
                    news.push(News::Asked(request));
                }
            }
            Event::PermissionDecided { worker_id, decision, wrote_rule } => {
                self.asks.retain(|ask| ask.request.id != decision.id);
                news.push(News::Decided(worker_id, decision, wrote_rule));
            }
            Event::PermissionWithdrawn { id, reason } => {
                self.asks.retain(|ask| ask.request.id != id);
                news.push(News::Withdrawn(format!("{id}: {reason}")));
            }
            Event::ReviewMerged { worker_id, into, .. } => news.push(News::Merged(worker_id, into)),
            Event::Error { code, message, .. } => news.push(News::Trouble(code, message)),
            Event::Budget { change: BudgetChange::Warned { percent }, .. } => {
                let words = format!("{percent} % of the session's budget is spent");
                news.push(News::Trouble("budget".to_owned(), words));
            }
            Event::Budget {
                change:
                    BudgetChange::Requested { .. }
                    | BudgetChange::Granted { .. }
                    | BudgetChange::Refused { .. }
                    | BudgetChange::Freed { .. },
                ..
            } => {}
            Event::Live { worker_id, live, .. } => self.live(worker_id.as_ref(), live, &mut news),
            Event::PermissionJudged { .. }
            | Event::SessionPermissionMode { .. }
            | Event::SessionRule { .. }
            | Event::SessionKeys { .. }
            | Event::TaskAccepted { .. }
            | Event::TaskCallback { .. }
            | Event::MessageQueued { .. }
            | Event::CoordinatorIntent { .. }
            | Event::CoordinatorTool { .. }
            | Event::CoordinatorCompacted { .. }
            | Event::CoordinatorNote { .. }
            | Event::CoordinatorExit { .. }
            | Event::WorkerProcess { .. }
            | Event::WorkerCommand { .. }
            | Event::WorkerCommandSettled { .. }
            | Event::WorkerRewound { .. }
            | Event::WorkerMoved { .. }
            | Event::WorkerRunEnded { .. }
            | Event::WorkerWorktree { .. }
            | Event::NotificationSent { .. }
            | Event::NotificationCommitted { .. }
            | Event::ReviewDiscarded { .. }
            | Event::ReviewRestored { .. } => {}
        }
        news
    }

    fn push_words(&mut self, news: &mut Vec<News>, take: impl FnOnce(&mut Words) -> Vec<String>) {
        let lines = take(&mut self.words);
        if !lines.is_empty() {
            news.push(News::Words(lines));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one event")]
    fn worker_state(
        &mut self,
        seq: Option<Seq>,
        at: Timestamp,
        worker_id: &WorkerId,
        status: WorkerStatus,
        waiting_for: Option<WaitingFor>,
        position: Option<u32>,
        reason: String,
        view: Option<&WorkerView>,
    ) {
        let known = self.workers.iter().position(|worker| worker.id == *worker_id);
        let index = match (known, view) {
            (Some(index), _) => index,
            (None, Some(view)) => {
                self.workers.push(view.into());
                self.workers.len() - 1
            }
            (None, None) => return,
        };
        let worker = &mut self.workers[index];
        if let Some(view) = view {
            // The view is of the moment the event was sent: its figures hold at least what came before.
            let activity = std::mem::take(&mut worker.activity);
            let context = (worker.context_tokens, worker.context_window);
            *worker = WorkerRow { counted: seq.unwrap_or(worker.counted), ..view.into() };
            if worker.activity.is_empty() {
                worker.activity = activity;
            }
            worker.context_tokens = worker.context_tokens.or(context.0);
            worker.context_window = worker.context_window.or(context.1);
        }
        worker.status = status;
        worker.waiting_for = waiting_for;
        worker.position = position;
        worker.until = None;
        worker.ended_at = status.is_ended().then(|| view.and_then(|view| view.ended_at).unwrap_or(at));
        if view.is_none_or(|view| view.cause.is_none()) {
            worker.cause = reason;
        }
        if status.is_ended() {
            worker.activity.clear();
            self.asks.retain(|ask| ask.request.worker_id != *worker_id);
        }
    }

    fn live(&mut self, worker_id: Option<&WorkerId>, live: Live, news: &mut Vec<News>) {
        let Some(worker_id) = worker_id else {
            match live {
                Live::TextDelta { text, thinking: false } => {
                    self.push_words(news, |words| words.delta(&text));
                }
                Live::TextDelta { thinking: true, .. } => "thinking".clone_into(&mut self.activity),
                Live::Activity { text, .. } => self.activity = text,
                Live::Waiting { waiting_for: Some(_), cause, .. } => self.activity = cause,
                Live::Waiting { waiting_for: None, .. } => self.activity.clear(),
                Live::ToolStarted { tool, summary, .. } => self.activity = format!("{tool} {summary}"),
                Live::ToolProgress { .. } | Live::ToolEnded { .. } | Live::CacheBreak { .. } => {}
            }
            return;
        };
        let Some(worker) = self.worker_mut(worker_id) else { return };
        match live {
            Live::ToolStarted { tool, summary, .. } => worker.activity = format!("{tool} {summary}"),
            Live::Activity { text, context_tokens, context_window } => {
                worker.activity = text;
                worker.context_tokens = context_tokens.or(worker.context_tokens);
                worker.context_window = context_window.or(worker.context_window);
            }
            Live::Waiting { waiting_for, cause, until } => {
                worker.until = until.filter(|_| waiting_for.is_some());
                if worker.status == WorkerStatus::Waiting || waiting_for.is_some() {
                    worker.cause = cause;
                }
            }
            Live::TextDelta { thinking, .. } => {
                (if thinking { "thinking" } else { "writing" }).clone_into(&mut worker.activity);
            }
            Live::ToolProgress { .. } | Live::ToolEnded { .. } | Live::CacheBreak { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
