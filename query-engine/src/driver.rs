//! Carries out what [`decide`] says: phases 0 to 4 of spec 2.2, one loop, no recursion.
//!
//! Records are appended here and in the driver's children alone, by one task, in the order in which they
//! are applied to the state. Two appends make a turn: `[User.., RequestStarted]` before a request leaves,
//! and `[Assistant, User(ToolResults)]` after it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use swarm_protocol::{
    Block, ExitReason, Message, Role, Usage,
    frame::{CacheBreakCause, Live},
    record::{Origin, RecordBody},
    status::WaitingFor,
    usage::Cost,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    budget::Budget,
    context::{
        accounting::{self, Accounting},
        prefix::PrefixGuard,
        view::{self, View},
    },
    deferral,
    executor::Tools,
    ports::{
        BeforeEnd, Durability, Gate, Grants, HookAnswer, Hooks, Inbox, Incoming, Model, ModelInfo, Observer,
        Prefix, Repeats, StorageError, Surroundings, Tool, ToolSpec, Transcript,
    },
    recovery::RetryPolicy,
    state::{LoopState, StepState},
    transition::{Answered, Interrupted, Policy, StepOutcome, Transition, asks_about, asks_to_end, decide},
};

mod hygiene;
mod keepalive;
mod spending;
#[cfg(test)]
mod tests;
mod turn;

pub use keepalive::{Keepalive, Warmed};

/// What the engine is told once.
#[derive(Clone)]
pub struct EngineConfig {
    /// System prompt and tools, as sent; see [`build_prefix`].
    pub prefix: Arc<Prefix>,
    /// Turns of a run.
    pub max_turns: Option<u32>,
    /// What this agent may spend in its life.
    pub budget: Budget,
    /// Calls of a response that run together.
    pub max_tool_concurrency: usize,
    /// The most output to ask for; else what the model gives.
    pub max_output_tokens: Option<u64>,
    /// The window, where the setting says something else than the provider.
    pub context_window: Option<u64>,
    /// Whether history is compacted.
    pub auto_compact: bool,
    /// Retries.
    pub retry: RetryPolicy,
    /// How long a cancelled tool may take; with what follows it is less than the second an interrupt may
    /// take (spec 2.7).
    pub grace: Duration,
    /// How long the provider's cache stays warm.
    pub cache_ttl: Duration,
    /// Whether the cache is kept alive while the agent waits.
    pub keepalive: bool,
    /// How long ago the model answered an earlier process of this agent; none: never, or nobody knows.
    pub idle_for: Option<Duration>,
    /// A figure in `0.0..1.0` for each wait.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl EngineConfig {
    /// The usual settings.
    pub fn new(prefix: Prefix) -> Self {
        Self {
            prefix: Arc::new(prefix),
            max_turns: None,
            budget: Budget::default(),
            max_tool_concurrency: 10,
            max_output_tokens: None,
            context_window: None,
            auto_compact: true,
            retry: RetryPolicy::default(),
            grace: Duration::from_millis(700),
            cache_ttl: Duration::from_secs(5 * 60),
            keepalive: false,
            idle_for: None,
            jitter: Arc::new(|| (uuid::Uuid::new_v4().as_u128() % 1_000) as f64 / 1_000.0),
        }
    }
}

/// System prompt and tools as they are sent: tools sorted by name.
pub fn build_prefix(system: Vec<String>, tools: &[Arc<dyn Tool>]) -> Prefix {
    let mut tools: Vec<ToolSpec> = tools.iter().map(|tool| deferral::spec(tool.as_ref())).collect();
    tools.sort_by(|left, right| left.name.cmp(&right.name));
    Prefix { system, tools }
}

/// What the engine has from outside.
#[derive(Clone)]
pub struct Ports {
    /// The agent's own model.
    pub model: Arc<dyn Model>,
    /// Asked after the retry bound when the own model is overloaded, for one turn.
    pub fallback: Option<Arc<dyn Model>>,
    /// Writes summaries when the own model's cache is cold.
    pub helper: Option<Arc<dyn Model>>,
    /// Every tool that may be called.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Permission.
    pub gate: Arc<dyn Gate>,
    /// The record.
    pub transcript: Arc<dyn Transcript>,
    /// Messages.
    pub inbox: Arc<dyn Inbox>,
    /// Leave to spend from what several agents share.
    pub grants: Arc<dyn Grants>,
    /// Hooks.
    pub hooks: Arc<dyn Hooks>,
    /// Wall time, working tree, kept results.
    pub surroundings: Arc<dyn Surroundings>,
    /// Who watches.
    pub observer: Arc<dyn Observer>,
}

/// How a run is ended from outside.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    /// Drop what you do; the caller may run again with the next message.
    pub interrupt: CancellationToken,
    /// End. Works as an interrupt; what follows is the caller's.
    pub stop: CancellationToken,
}

impl Cancel {
    /// Whether either is set.
    pub fn is_cancelled(&self) -> bool {
        self.interrupt.is_cancelled() || self.stop.is_cancelled()
    }

    /// Until either is set.
    pub async fn cancelled(&self) {
        tokio::select! {
            () = self.interrupt.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunExit {
    /// Why.
    pub exit: ExitReason,
    /// The last words of the model in this run; empty if it had none.
    pub text: String,
    /// Whether the last answer had no words, so that `text` is from an earlier one.
    pub text_from_earlier: bool,
    /// Answers in this run, over all calls of [`Engine::run`] since it began.
    pub turns: u32,
    /// Use in this run, helpers included.
    pub usage: Usage,
    /// Cost of this run.
    pub cost: Cost,
    /// How long this call took.
    pub duration: Duration,
    /// What a person should know of the end, one sentence each.
    pub notes: Vec<String>,
}

/// A query loop with its state.
pub struct Engine {
    config: EngineConfig,
    ports: Ports,
    tools: Tools,
    state: LoopState,
    /// Applied to the state and not yet appended: they go with the next batch.
    pending: Vec<RecordBody>,
    /// Messages that asked for another turn.
    incoming: Vec<Incoming>,
    /// Blocks that go with the next request.
    reminders: Vec<Block>,
    guard: PrefixGuard,
    view: View,
    /// Bytes of system prompt and tools.
    prefix_weight: u64,
    /// The request under way was recorded.
    in_request: bool,
    first_failure: Option<Instant>,
    /// The model asked last; another one is a declared break.
    last_model: Option<String>,
    /// Until when the provider's cache holds what the own model was last sent.
    warm_until: Option<Instant>,
    /// What the last answer left in the provider's cache.
    cached: Option<Cached>,
    /// Tokens in the conversation when clearing results last brought too little.
    looked_at: u64,
    /// The agent was told that most of its budget is spent.
    warned_of_budget: bool,
    /// A person wants the history compacted before the next request.
    compact_first: bool,
    notes: Vec<String>,
    /// Why the loop waits, for who watches: `529 overloaded, try 3`.
    cause: String,
    /// In tests, every record so far: after each append the state is compared with their fold.
    #[cfg(test)]
    audit: Option<Vec<RecordBody>>,
}

/// What the last answer left in the provider's cache.
struct Cached {
    tokens: u64,
    since: Instant,
    /// The first thing that requests since then changed of it; some may have failed.
    changed: Option<CacheBreakCause>,
}

impl Engine {
    /// An engine that goes on from `state` ([`LoopState::default`] for a new agent).
    pub fn new(config: EngineConfig, ports: Ports, state: LoopState) -> Self {
        let tools: BTreeMap<String, Arc<dyn Tool>> =
            ports.tools.iter().map(|tool| (tool.name().to_owned(), Arc::clone(tool))).collect();
        let warm_until = config.idle_for.map(|idle| Instant::now() + config.cache_ttl.saturating_sub(idle));
        let prefix_weight = accounting::prefix_weight(&config.prefix);
        Self {
            config,
            ports,
            tools: Arc::new(tools),
            state,
            pending: Vec::new(),
            incoming: Vec::new(),
            reminders: Vec::new(),
            guard: PrefixGuard::default(),
            view: View::default(),
            prefix_weight,
            in_request: false,
            first_failure: None,
            last_model: None,
            warm_until,
            cached: None,
            looked_at: 0,
            warned_of_budget: false,
            compact_first: false,
            notes: Vec::new(),
            cause: String::new(),
            #[cfg(test)]
            audit: None,
        }
    }

    /// The state as it stands.
    pub fn state(&self) -> &LoopState {
        &self.state
    }

    /// The state, for records that the caller appended itself ([`LoopState::apply`]) and for
    /// [`LoopState::begin_run`]. Not while [`Engine::run`] runs.
    pub fn state_mut(&mut self) -> &mut LoopState {
        &mut self.state
    }

    /// Compacts the history before the next request, whatever the estimate says.
    pub fn compact_first(&mut self) {
        self.compact_first = true;
    }

    /// The state, without the engine.
    pub fn into_state(self) -> LoopState {
        self.state
    }

    /// The next request may differ from the one before it: tools, model or history were changed on purpose.
    pub fn declare_break(&mut self, why: &'static str) {
        self.guard.declare_break(why);
    }

    /// How full the window is.
    pub fn accounting(&self) -> Accounting {
        Accounting::of(&self.state, self.prefix_weight, &self.model_info())
    }

    /// Runs until there is a reason to end. May be called again, and goes on where it ended.
    pub async fn run(&mut self, cancel: &Cancel) -> RunExit {
        let began = Instant::now();
        self.notes.clear();
        self.in_request = false;
        self.first_failure = None;
        let max_output = std::mem::take(&mut self.state.step.max_output);
        let make_room = std::mem::take(&mut self.compact_first);
        self.state.step = StepState { max_output, make_room, ..StepState::default() };
        let mut exit = self.run_to_exit(cancel).await;
        if let Err(error) = self.flush(Vec::new(), Durability::Now).await {
            exit = ExitReason::StorageError { message: error.message };
        }
        tracing::info!(exit = exit.code(), turns = self.state.run.turns, "the run ended");
        let run = &self.state.run;
        RunExit {
            exit,
            text: run.words.text().to_owned(),
            text_from_earlier: run.words.is_from_earlier(),
            turns: run.turns,
            usage: run.usage,
            cost: run.cost,
            duration: began.elapsed(),
            notes: std::mem::take(&mut self.notes),
        }
    }

    async fn run_to_exit(&mut self, cancel: &Cancel) -> ExitReason {
        // Already part of the state: only stored here.
        let unsaved = std::mem::take(&mut self.state.unsaved);
        #[cfg(test)]
        if !unsaved.is_empty() {
            self.audit(&unsaved);
        }
        if !unsaved.is_empty()
            && let Err(error) = self.ports.transcript.append(unsaved, Durability::Now).await
        {
            return ExitReason::StorageError { message: error.message };
        }
        loop {
            let outcome = match self.step(cancel).await {
                Ok(outcome) => outcome,
                Err(error) => StepOutcome::StorageFailed(error),
            };
            let policy = Policy {
                max_turns: self.config.max_turns,
                retry: self.config.retry,
                has_fallback: self.ports.fallback.is_some(),
            };
            match decide(&self.state, outcome, &policy, self.ports.surroundings.now()) {
                Transition::Next { state, why } => {
                    tracing::debug!(?why, "the loop goes on");
                    // Another model is another request, and its record is the note of the switch.
                    if state.on_fallback != self.state.step.on_fallback {
                        self.in_request = false;
                        self.first_failure = None;
                    }
                    self.state.step = state;
                }
                Transition::Exit(reason) => return reason,
            }
        }
    }

    /// One iteration: ingest, hygiene, request and tools, commit.
    async fn step(&mut self, cancel: &Cancel) -> Result<StepOutcome, StorageError> {
        let interrupted = StepOutcome::Interrupted { during: Interrupted::Streaming };
        if cancel.is_cancelled() || !self.wait(cancel).await {
            self.tombstone().await?;
            return Ok(interrupted);
        }
        if !self.in_request {
            self.ingest().await;
        }
        let may_send = self.state.step.paused && !self.state.messages.is_empty();
        if !may_send && !view::awaits_answer(&self.state.messages) {
            return Ok(StepOutcome::NothingToDo);
        }
        if let Some(outcome) = self.hygiene(cancel).await? {
            return Ok(outcome);
        }
        let model = self.model();
        let planned = self.planned_call(&model);
        let max_tokens = match self.granted(&model, planned, cancel).await? {
            Ok(max_tokens) => max_tokens,
            Err(outcome) => return Ok(outcome),
        };
        let outcome = self.turn(model, max_tokens, cancel).await?;
        self.after_turn(outcome, cancel).await
    }

    /// Waits as the last transition said; false when cancelled meanwhile.
    async fn wait(&mut self, cancel: &Cancel) -> bool {
        let wait = std::mem::take(&mut self.state.step.wait);
        if wait.is_zero() {
            return true;
        }
        let observer = &self.ports.observer;
        let until = self.ports.surroundings.now().plus_millis(wait.as_millis() as i64);
        let cause = self.cause.clone();
        observer.live(Live::Waiting { waiting_for: Some(WaitingFor::Model), cause, until: Some(until) });
        // The wait is lost when a cancel wins, and nothing else.
        let waited = tokio::select! {
            biased;
            () = cancel.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        };
        observer.live(Live::Waiting { waiting_for: None, cause: String::new(), until: None });
        waited
    }

    /// Phase 0: everything that waits enters the conversation, in order.
    async fn ingest(&mut self) {
        if let Some(text) = self.state.step.say.take() {
            self.take_in(Incoming {
                content: vec![Block::text(text)],
                origin: Origin::Harness,
                commands: Vec::new(),
            });
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.extend(self.ports.inbox.drain().await);
        for message in incoming {
            self.take_in(message);
        }
        let reminders = std::mem::take(&mut self.reminders);
        if !reminders.is_empty() {
            self.take_in(Incoming { content: reminders, origin: Origin::Harness, commands: Vec::new() });
        }
    }

    fn take_in(&mut self, incoming: Incoming) {
        let Incoming { content, origin, commands } = incoming;
        self.push(RecordBody::User { message: Message::user(content), origin, commands });
    }

    /// Hooks, own jobs and the working tree after a turn.
    async fn after_turn(
        &mut self,
        outcome: StepOutcome,
        cancel: &Cancel,
    ) -> Result<StepOutcome, StorageError> {
        if let Some((times, what)) = asks_about(&self.state, &outcome) {
            return self.ask_about(times, what, cancel).await;
        }
        let StepOutcome::Answered(answered) = outcome else { return Ok(outcome) };
        if !asks_to_end(&self.state, &answered) {
            return Ok(StepOutcome::Answered(answered));
        }
        self.before_end(answered, cancel).await
    }

    /// Asks the person whether an agent that repeats itself may go on.
    async fn ask_about(
        &mut self,
        times: u32,
        what: String,
        cancel: &Cancel,
    ) -> Result<StepOutcome, StorageError> {
        let last = self.state.messages.iter().rev().find(|message| message.role == Role::Assistant);
        let call = last.and_then(|message| message.tool_uses().last().map(|(id, _, _)| id.clone()));
        self.notes.push(format!("it repeated {what}"));
        let repeats = Repeats { what, call };
        let (gate, observer) = (Arc::clone(&self.ports.gate), Arc::clone(&self.ports.observer));
        let withdraw = CancellationToken::new();
        let may_go_on = {
            let asked = gate.may_go_on(&repeats, &observer, &withdraw);
            tokio::pin!(asked);
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    withdraw.cancel();
                    // The gate closes what it asked; what it would say now is too late.
                    drop(tokio::time::timeout(self.config.grace, asked).await);
                    None
                }
                answer = &mut asked => Some(answer),
            }
        };
        match may_go_on {
            Some(may_go_on) => Ok(StepOutcome::Repeated { times, may_go_on }),
            None => {
                self.tombstone().await?;
                Ok(StepOutcome::Interrupted { during: Interrupted::Streaming })
            }
        }
    }

    async fn before_end(&mut self, _: Answered, cancel: &Cancel) -> Result<StepOutcome, StorageError> {
        // Both waits are dropped when a cancel wins; neither port may lose a message by that.
        let hook = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            hook = self.ports.hooks.on_stop() => Some(hook),
        };
        let interrupted = StepOutcome::Interrupted { during: Interrupted::Streaming };
        let Some(hook) = hook else {
            self.tombstone().await?;
            return Ok(interrupted);
        };
        if hook != HookAnswer::GoOn {
            return Ok(StepOutcome::Closing { hook, more: false });
        }
        let more = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            more = self.ports.inbox.before_end(&cancel.interrupt) => Some(more),
        };
        match more {
            None => {
                self.tombstone().await?;
                Ok(interrupted)
            }
            Some(BeforeEnd::End) => Ok(StepOutcome::Closing { hook, more: false }),
            Some(BeforeEnd::GoOn(messages)) => {
                let more = !messages.is_empty();
                self.incoming.extend(messages);
                Ok(StepOutcome::Closing { hook, more })
            }
        }
    }

    /// An interrupt between steps leaves its mark.
    async fn tombstone(&mut self) -> Result<(), StorageError> {
        self.flush(vec![RecordBody::Tombstone { note: "interrupted".to_owned() }], Durability::Now).await
    }

    /// Applies a record and keeps it for the next batch.
    fn push(&mut self, record: RecordBody) {
        self.state.apply(&record);
        self.pending.push(record);
    }

    /// Counts what a call used that brought no turn. It is written at once, before what is pending: the next call is
    /// paid for from what this one left, and after a crash it was used all the same.
    async fn charge(
        &mut self,
        purpose: String,
        model: String,
        usage: Usage,
        cost: Cost,
    ) -> Result<(), StorageError> {
        let record = RecordBody::HelperCall { purpose, model, usage, cost };
        self.state.apply(&record);
        let batch = vec![record];
        #[cfg(test)]
        self.audit(&batch);
        self.ports.transcript.append(batch, Durability::Soon).await
    }

    /// Applies these records and appends them after what is pending, in one batch.
    async fn flush(&mut self, records: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError> {
        for record in records {
            self.push(record);
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.pending);
        #[cfg(test)]
        self.audit(&batch);
        self.ports.transcript.append(batch, durability).await
    }

    #[cfg(test)]
    fn audit(&mut self, batch: &[RecordBody]) {
        if let Some(records) = &mut self.audit {
            records.extend_from_slice(batch);
            let all = records.iter().chain(&self.pending);
            assert_eq!(LoopState::replay(all), self.state.durable(), "the state is not its fold");
        }
    }

    /// The model of the next request.
    fn model(&self) -> Arc<dyn Model> {
        match &self.ports.fallback {
            Some(fallback) if self.state.step.on_fallback => Arc::clone(fallback),
            Some(_) | None => Arc::clone(&self.ports.model),
        }
    }

    fn model_info(&self) -> ModelInfo {
        let mut info = self.model().info();
        if let Some(window) = self.config.context_window {
            info.context_window = window;
        }
        info
    }

    fn jitter(&self) -> f64 {
        (self.config.jitter)()
    }
}
