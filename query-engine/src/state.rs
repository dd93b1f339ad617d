//! The one state of the loop: a fold of the transcript's records, plus what a resume starts anew.
//!
//! Everything but [`LoopState::step`] changes by [`LoopState::apply`] alone, live and on resume alike, so
//! that a state read back is the state that was. It knows no clock and no disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use swarm_protocol::{
    Block, Message, ResultBlock, Role, ToolUseId, Usage,
    record::{LastWords, Origin, RecordBody, StopReason, TodoItem, ToolFinished},
    usage::Cost,
};

use crate::{
    context::{Step, accounting},
    transition::Continue,
};

/// What a call without a recorded result is answered with: it may have had its effect, so it is never run
/// again by the harness.
pub const OUTCOME_UNKNOWN: &str = "interrupted; outcome unknown. Check what it did before you do it again.";

/// Consecutive failures of compaction after which it is switched off for good (spec 3.5).
pub const COMPACTION_FAILURES: u32 = 3;

/// `HelperCall.purpose` of a summary that was used.
pub const PURPOSE_COMPACTION: &str = "compaction";
/// `HelperCall.purpose` begins so when a compaction failed; it counts for the circuit breaker.
pub const PURPOSE_COMPACTION_FAILED: &str = "compaction failed";
/// `HelperCall.purpose` of a request whose answer was dropped and asked for again.
pub const PURPOSE_DROPPED: &str = "dropped answer";
/// `HelperCall.purpose` of a request that only kept the provider's cache alive.
pub const PURPOSE_KEEPALIVE: &str = "keepalive";

/// The state of a query loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopState {
    /// The conversation, append-only between boundaries. Not merged or repaired: requests are built from it
    /// by [`crate::context::view`].
    pub messages: Vec<Message>,
    /// How often `messages` were replaced as a whole, by a boundary.
    pub rewrites: u32,
    /// What `messages` weigh, kept up so that a long transcript folds in linear time.
    pub message_weight: u64,
    /// The first request, which survives every compaction.
    pub first: Option<Message>,
    /// The person's own messages (for a worker also the coordinator's), which compaction keeps verbatim.
    pub person: Vec<Message>,
    /// Which model was asked for the assistant message with this index; its thinking goes back to that
    /// model only.
    pub asked: BTreeMap<usize, String>,
    /// Answers in this agent's life.
    pub turns_total: u32,
    /// Number of the last request, from 1.
    pub request: u64,
    /// Use in this agent's life, helpers included.
    pub usage: Usage,
    /// Cost in this agent's life.
    pub cost: Cost,
    /// The same for the present run.
    pub run: RunCounters,
    /// Answers in a row that were cut.
    pub output_cuts: u32,
    /// Compaction.
    pub compaction: CompactionState,
    /// The provider's count of the last answered request.
    pub reported: Option<Reported>,
    /// Deferred tools that a search found.
    pub tools_found: BTreeSet<String>,
    /// The to-do list as last recorded.
    pub todo: Vec<TodoItem>,
    /// The request under way, as far as it is recorded.
    pub open: Option<OpenTurn>,
    /// Records that close what a dead process left open; the engine appends them before anything else.
    pub unsaved: Vec<RecordBody>,
    /// What is not recorded and begins anew on resume.
    pub step: StepState,
}

/// Figures of the present run; a `RunStarted` record sets them to nought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCounters {
    /// Answers.
    pub turns: u32,
    /// Use, helpers included.
    pub usage: Usage,
    /// Cost.
    pub cost: Cost,
    /// The last words of the model.
    pub words: LastWords,
}

/// The circuit breaker of compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionState {
    /// Boundaries so far.
    pub boundaries: u32,
    /// Failures in a row; a boundary that was needed again at once counts as one.
    pub failures: u32,
    /// Switched off for good.
    pub disabled: bool,
    /// Answers since the last boundary.
    pub turns_since: u32,
}

/// What a provider reported for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// How many messages the figures cover, the answer included.
    pub covered: usize,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// What the messages that were sent weigh.
    pub message_weight: u64,
    /// Whether `covered` still holds; after a boundary only the calibration does.
    pub current: bool,
}

/// A request whose turn is not committed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// The request.
    pub request: u64,
    /// The model asked.
    pub model: String,
    /// Closed blocks recorded before a side effect.
    pub intent: Vec<Block>,
    /// Calls that ended.
    pub finished: Vec<ToolFinished>,
    /// Calls of a committed answer that wait for their results message.
    pub awaiting: Vec<ToolUseId>,
}

/// What `decide` builds anew at each step. A resume starts with the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepState {
    /// Why the loop is where it is.
    pub transition: Option<Continue>,
    /// Tries of the present request that failed.
    pub attempts: u32,
    /// To wait before the next request.
    pub wait: Duration,
    /// A hidden user message that goes with the next request.
    pub say: Option<String>,
    /// Ask the fallback model until this turn is committed.
    pub on_fallback: bool,
    /// Compact before the next request, whatever the estimate says.
    pub make_room: bool,
    /// Times that room was made for the present request.
    pub rooms_made: u32,
    /// An empty answer was nudged once.
    pub nudged: bool,
    /// The model was reminded that it repeats itself, and still does.
    pub reminded: bool,
    /// Equal rounds up to which a person let it go on.
    pub may_repeat: u32,
    /// Refusals of the end by a hook, in a row.
    pub stop_blocks: u32,
    /// Answers in a row that paused.
    pub pauses: u32,
    /// The next request may end with an assistant message (a paused answer).
    pub paused: bool,
    /// The most output by model, where a provider named it.
    pub max_output: BTreeMap<String, u64>,
}

/// Figures from which a state can be built without records; see [`LoopState::restored`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Answers in this agent's life.
    pub turns_total: u32,
    /// Number of the last request.
    pub request: u64,
    /// Use.
    pub usage: Usage,
    /// Cost.
    pub cost: Cost,
    /// Circuit breaker.
    pub compaction: CompactionState,
}

impl LoopState {
    /// A state with this conversation, for who stores something else than records. Open calls are closed.
    /// `person`: the person's own messages, the first included.
    pub fn restored(messages: Vec<Message>, person: Vec<Message>, counters: Counters) -> Self {
        let Counters { turns_total, request, usage, cost, compaction } = counters;
        let first = person.first().or(messages.first()).cloned();
        let mut state = Self {
            message_weight: accounting::message_weight(&messages),
            messages,
            first,
            person: person.into_iter().skip(1).collect(),
            turns_total,
            request,
            usage,
            cost,
            compaction,
            ..Self::default()
        };
        let awaiting = state.unanswered();
        if !awaiting.is_empty() {
            state.open = Some(OpenTurn { request, awaiting, ..OpenTurn::default() });
        }
        state.close();
        state
    }

    /// The state after these records, with everything closed that a dead process left open. The records
    /// that do so stand in [`Self::unsaved`].
    pub fn fold<'a>(records: impl Iterator<Item = &'a RecordBody>) -> Self {
        Self::default().resume(records)
    }

    /// As [`Self::fold`], from a state that stands for the records before these.
    pub fn resume<'a>(mut self, records: impl Iterator<Item = &'a RecordBody>) -> Self {
        for record in records {
            self.apply(record);
        }
        self.close();
        self
    }

    /// The state after these records, as the process that wrote them had it.
    pub fn replay<'a>(records: impl Iterator<Item = &'a RecordBody>) -> Self {
        let mut state = Self::default();
        for record in records {
            state.apply(record);
        }
        state
    }

    /// This state without what is not recorded; two of these are equal when their records are.
    pub fn durable(&self) -> Self {
        Self { step: StepState::default(), unsaved: Vec::new(), ..self.clone() }
    }

    /// Begins a run where no `RunStarted` record does.
    pub fn begin_run(&mut self) {
        self.run = RunCounters::default();
        self.step =
            StepState { max_output: std::mem::take(&mut self.step.max_output), ..StepState::default() };
    }

    /// What happened next.
    pub fn apply(&mut self, record: &RecordBody) {
        match record {
            RecordBody::RunStarted(_) => self.begin_run(),
            RecordBody::User { message, origin, commands: _ } => {
                self.run.words.heard(origin);
                self.apply_user(message, origin);
            }
            RecordBody::RequestStarted { request, model, estimated_tokens: _ } => {
                self.close_in_passing();
                self.request = *request;
                self.open = Some(OpenTurn { request: *request, model: model.clone(), ..OpenTurn::default() });
            }
            RecordBody::Intent { request, blocks } => {
                if let Some(open) = self.open.as_mut().filter(|open| open.request == *request) {
                    open.intent.clone_from(blocks);
                }
            }
            RecordBody::ToolFinished(finished) => {
                if let Some(open) = &mut self.open {
                    open.finished.push(finished.clone());
                }
            }
            RecordBody::Assistant { message, request, usage, cost, stop_reason, incomplete, model } => {
                self.apply_assistant(message, *request, model, *usage, *cost, stop_reason, *incomplete);
            }
            RecordBody::HelperCall { purpose, usage, cost, model: _ } => {
                self.spend(*usage, *cost);
                if purpose.starts_with(PURPOSE_COMPACTION_FAILED) {
                    self.compaction.failures += 1;
                    self.compaction.disabled |= self.compaction.failures >= COMPACTION_FAILURES;
                }
            }
            RecordBody::CompactBoundary(boundary) => {
                self.close_in_passing();
                self.open = None;
                self.messages.clone_from(&boundary.messages);
                self.rewrites += 1;
                self.message_weight = accounting::message_weight(&self.messages);
                self.asked.clear();
                if let Some(reported) = &mut self.reported {
                    reported.current = false;
                }
                if !boundary.steps.iter().any(|step| step == Step::Autocompact.name()) {
                    return;
                }
                let compaction = &mut self.compaction;
                // A boundary that was needed again after one answer made no progress (K01).
                if compaction.boundaries > 0 && compaction.turns_since < 2 {
                    compaction.failures += 1;
                    compaction.disabled |= compaction.failures >= COMPACTION_FAILURES;
                } else {
                    compaction.failures = 0;
                }
                compaction.boundaries += 1;
                compaction.turns_since = 0;
            }
            RecordBody::Todo { items } => self.todo.clone_from(items),
            RecordBody::CommandAccepted { .. }
            | RecordBody::TaskItem { .. }
            | RecordBody::PlanMode { .. }
            | RecordBody::PermissionRequested { .. }
            | RecordBody::PermissionWithdrawn { .. }
            | RecordBody::PermissionBid { .. }
            | RecordBody::PermissionJudged { .. }
            | RecordBody::Snapshot { .. }
            | RecordBody::ContentReplacement { .. }
            | RecordBody::GrantRequested(_)
            | RecordBody::GrantSettled { .. }
            | RecordBody::RunEnded(_) => {}
            RecordBody::Tombstone { .. } => {
                if self.open.as_ref().is_some_and(|open| open.intent.is_empty() && open.awaiting.is_empty()) {
                    self.open = None;
                }
            }
        }
    }

    fn apply_user(&mut self, message: &Message, origin: &Origin) {
        self.tools_found.extend(message.content.iter().flat_map(found_in));
        match origin {
            Origin::ToolResults => self.open = None,
            Origin::Prompt
            | Origin::Person { .. }
            | Origin::Coordinator
            | Origin::Notifications
            | Origin::Harness
            | Origin::Summary => self.close_in_passing(),
        }
        match origin {
            Origin::Prompt | Origin::Person { .. } | Origin::Coordinator => {
                // What was cut before is not taken up in answer to something new.
                self.output_cuts = 0;
                if self.first.is_none() {
                    self.first = Some(message.clone());
                } else {
                    self.person.push(message.clone());
                }
            }
            Origin::ToolResults | Origin::Notifications | Origin::Harness | Origin::Summary => {}
        }
        self.push_message(message);
    }

    fn push_message(&mut self, message: &Message) {
        if !message.content.is_empty() {
            self.message_weight += accounting::message_weight(std::slice::from_ref(message));
            self.messages.push(message.clone());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record, taken apart once")]
    fn apply_assistant(
        &mut self,
        message: &Message,
        request: u64,
        model: &str,
        usage: Usage,
        cost: Cost,
        stop_reason: &StopReason,
        incomplete: bool,
    ) {
        self.spend(usage, cost);
        self.turns_total += 1;
        self.run.turns += 1;
        self.compaction.turns_since += 1;
        self.request = self.request.max(request);
        let calls: Vec<ToolUseId> = message.tool_uses().map(|(id, _, _)| id.clone()).collect();
        let cut = *stop_reason == StopReason::MaxTokens || (incomplete && calls.is_empty());
        self.output_cuts = if cut { self.output_cuts + 1 } else { 0 };
        self.run.words.answer(message, stop_reason);
        let message_weight = self.message_weight;
        let asked = self.open.as_ref().filter(|open| !open.model.is_empty()).map(|open| open.model.clone());
        if !message.content.is_empty() {
            self.asked.insert(self.messages.len(), asked.unwrap_or_else(|| model.to_owned()));
            self.push_message(message);
        }
        if usage.total_input() > 0 && !usage.estimated {
            self.reported = Some(Reported {
                covered: self.messages.len(),
                input_tokens: usage.total_input(),
                output_tokens: usage.output_tokens,
                message_weight,
                current: true,
            });
        }
        if calls.is_empty() {
            self.open = None;
        } else {
            let open = self.open.get_or_insert_with(|| OpenTurn { request, ..OpenTurn::default() });
            open.intent.clear();
            open.awaiting = calls;
        }
    }

    pub(crate) fn spend(&mut self, usage: Usage, cost: Cost) {
        self.usage += usage;
        self.cost += cost;
        self.run.usage += usage;
        self.run.cost += cost;
    }

    /// Closes what is open and keeps the records that do so, to be appended.
    fn close(&mut self) {
        let records = self.closing_records();
        for record in &records {
            self.apply(record);
        }
        self.open = None;
        self.unsaved = records;
    }

    /// The next record shows that nobody appended the closing records: the conversation goes on as if.
    fn close_in_passing(&mut self) {
        for record in self.closing_records() {
            self.apply(&record);
        }
    }

    /// What closes the open turn: its answer from the recorded intent, and a result for each call. A call
    /// that finished keeps its result; what a call without one did is not known. No intent: no effect was
    /// had, and there is nothing to close.
    pub fn closing_records(&self) -> Vec<RecordBody> {
        let Some(open) = &self.open else { return Vec::new() };
        let mut records = Vec::new();
        let calls = if open.awaiting.is_empty() {
            let message = Message::assistant(open.intent.clone());
            let calls: Vec<ToolUseId> = message.tool_uses().map(|(id, _, _)| id.clone()).collect();
            if calls.is_empty() {
                return records;
            }
            records.push(RecordBody::Assistant {
                message,
                request: open.request,
                model: open.model.clone(),
                stop_reason: StopReason::Truncated,
                usage: Usage::default(),
                cost: Cost::default(),
                incomplete: true,
            });
            calls
        } else {
            open.awaiting.clone()
        };
        let results = calls
            .into_iter()
            .map(|id| {
                open.finished
                    .iter()
                    .rfind(|finished| finished.tool_use_id == id)
                    .map(|finished| finished.result.clone())
                    .unwrap_or_else(|| Block::tool_result(id, OUTCOME_UNKNOWN, true))
            })
            .collect();
        records.push(RecordBody::User {
            message: Message::user(results),
            origin: Origin::ToolResults,
            commands: Vec::new(),
        });
        records
    }

    /// Calls of the last assistant message, if nothing follows it.
    fn unanswered(&self) -> Vec<ToolUseId> {
        match self.messages.last() {
            Some(message) if message.role == Role::Assistant => {
                message.tool_uses().map(|(id, _, _)| id.clone()).collect()
            }
            Some(_) | None => Vec::new(),
        }
    }
}

/// The tools that a search found.
fn found_in(block: &Block) -> Vec<String> {
    let Block::ToolResult { content, .. } = block else { return Vec::new() };
    let names = content.iter().filter_map(|part| match part {
        ResultBlock::ToolReference { name, .. } => Some(name.clone()),
        ResultBlock::Text { .. } | ResultBlock::Image { .. } => None,
    });
    names.collect()
}
