//! Phase 1: room is made before a request, where it is needed; and after one whose size was refused.

use std::sync::Arc;

use futures::StreamExt;
use swarm_protocol::{Block, Message, ResultBlock, Role, ToolUseId, Usage, record::RecordBody, usage::Cost};

use tokio::time::Instant;

use super::{Cancel, Engine};
use crate::{
    context::{
        STACK, Step,
        accounting::{self, Accounting, RESERVED_OUTPUT},
        autocompact::{self, History, SMALLER_SLICES},
        boundary::{Trigger, boundary},
        microcompact::microcompact,
        snip::snip,
        view,
    },
    deferral,
    ports::{
        Breakpoint, Grant, Model, ModelError, ModelErrorKind, ModelRequest, PlannedCall, StorageError,
        StreamEvent,
    },
    recovery::{Failure, Remedy, backoff, remedy},
    response::Response,
    state::{PURPOSE_COMPACTION, PURPOSE_COMPACTION_FAILED},
    transition::{Interrupted, ROOMS_MADE, StepOutcome},
};

/// Tries of one summary request that fails for a passing reason.
const SUMMARY_TRIES: u32 = 3;
/// A refused body is brought to this part of its bytes.
const BODY_SHARE: u64 = 2;
/// A change of what was sent must free this part of the window, or the cache is worth more (spec 3.2): a tenth.
const LEAST_FREED_SHARE: u64 = 10;
/// How much more there must be before the cheap steps are tried again in vain: a fiftieth of the window.
const LOOK_AGAIN_SHARE: u64 = 50;
/// What re-enters after a compaction and could be had again takes this part of the window at most: a twentieth.
const ATTACHMENT_SHARE: u64 = 20;
/// And no more than this, in tokens.
const MOST_ATTACHMENT_TOKENS: u64 = 25_000;
/// The name of the step in a boundary.
const STRIP_MEDIA: &str = "strip_media";

/// What became of an attempt to make room.
#[derive(Debug, PartialEq)]
pub(super) enum Room {
    /// History is smaller.
    Made,
    /// It is as it was.
    NotMade,
    /// Cancelled meanwhile.
    Cancelled,
    /// A budget does not pay for the summary.
    Spent {
        /// Which.
        budget: String,
    },
}

/// A summary with what its last call took.
struct Summary {
    text: Result<String, NoSummary>,
    model: String,
    usage: Usage,
    cost: Cost,
}

/// Why there is none.
enum NoSummary {
    /// This budget does not pay for it.
    Spent { budget: String },
    /// The model gave none.
    Failed { reason: String },
}

/// A call for a summary, as far as its answer came.
struct UnderWay {
    model: Arc<dyn Model>,
    input_tokens: u64,
    response: Response,
}

/// A history after the cheap steps.
struct Cleared {
    messages: Vec<Message>,
    steps: Vec<Step>,
    originals: Vec<(ToolUseId, Vec<ResultBlock>)>,
}

impl Cleared {
    /// Snip, then microcompact; thinking goes with them, for what comes before it has changed.
    fn of(view: &[Message]) -> Self {
        let mut cleared = Self { messages: view.to_vec(), steps: Vec::new(), originals: Vec::new() };
        for step in STACK {
            match step {
                // Carried out as results come in, before they are recorded.
                Step::ToolResultBudget => {}
                Step::Snip => {
                    if let Some(messages) = snip(&cleared.messages) {
                        cleared.messages = messages;
                        cleared.steps.push(*step);
                    }
                }
                Step::Microcompact => {
                    if let Some(done) = microcompact(&cleared.messages) {
                        (cleared.messages, cleared.originals) = (done.messages, done.originals);
                        cleared.steps.push(*step);
                    }
                }
                // Needs a model: see `compact`.
                Step::Autocompact => {}
            }
        }
        if !cleared.steps.is_empty() {
            cleared.messages = cleared.messages.iter().map(autocompact::without_thinking).collect();
        }
        cleared
    }

    fn names(&self) -> Vec<&'static str> {
        self.steps.iter().map(|step| step.name()).collect()
    }

    fn ids(&self) -> Vec<ToolUseId> {
        self.originals.iter().map(|(id, _)| id.clone()).collect()
    }
}

impl Engine {
    /// Looks at the window before every request (K07), not after a turn that ended (K02).
    pub(super) async fn hygiene(&mut self, cancel: &Cancel) -> Result<Option<StepOutcome>, StorageError> {
        if self.in_request {
            return Ok(None);
        }
        let accounting = self.accounting();
        let forced = std::mem::take(&mut self.state.step.make_room);
        let room = match self.occasion(accounting, forced) {
            Some(trigger) => self.shrink(trigger, cancel).await?,
            None => Room::NotMade,
        };
        match room {
            Room::Cancelled => {
                self.tombstone().await?;
                return Ok(Some(StepOutcome::Interrupted { during: Interrupted::Streaming }));
            }
            Room::Spent { budget } => return Ok(Some(StepOutcome::BudgetSpent { budget })),
            Room::Made => return Ok(Some(StepOutcome::Compacted)),
            Room::NotMade if forced => {
                self.name_contributors(accounting);
                let error = ModelError {
                    kind: ModelErrorKind::PromptTooLong { limit: None },
                    message: "the window was full while the model answered".to_owned(),
                    retry_after: None,
                    status: None,
                };
                return Ok(Some(StepOutcome::MadeRoom { error, smaller: false }));
            }
            Room::NotMade => {}
        }
        // With the breaker open the provider decides (spec 3.5).
        if accounting.messages >= accounting.block_at && !self.state.compaction.disabled {
            self.name_contributors(accounting);
            return Ok(Some(StepOutcome::OverTheLine));
        }
        Ok(None)
    }

    /// Why history may be changed now: the declared breaks of spec 3.2.
    fn occasion(&self, accounting: Accounting, forced: bool) -> Option<Trigger> {
        if forced {
            return Some(Trigger::Overflow);
        }
        if !self.config.auto_compact {
            return None;
        }
        if accounting.messages >= accounting.compact_at && self.may_compact() {
            return Some(Trigger::Auto);
        }
        // What brought too little is not looked at again before there is more of it.
        if accounting.messages < self.looked_at + self.model_info().context_window / LOOK_AGAIN_SHARE {
            return None;
        }
        if accounting.messages >= accounting.warn_at {
            Some(Trigger::Auto)
        } else if self.is_cold() || self.is_other_model() {
            Some(Trigger::Cold)
        } else {
            None
        }
    }

    /// Whether the provider holds nothing of this conversation that a change would lose.
    fn is_cold(&self) -> bool {
        let is_warm = self.warm_until.is_some_and(|until| Instant::now() < until);
        !is_warm || !self.model().info().caches
    }

    fn is_other_model(&self) -> bool {
        self.last_model.as_ref().is_some_and(|last| *last != self.model().info().name)
    }

    /// Makes history smaller: the cheap and reversible steps first, a summary where they are not enough. All of
    /// it is one boundary.
    async fn shrink(&mut self, trigger: Trigger, cancel: &Cancel) -> Result<Room, StorageError> {
        let accounting = self.accounting();
        let info = self.model_info();
        let view = view::api_messages(&self.state.messages, &self.state.asked, &info.name);
        let cleared = Cleared::of(&view);
        let estimate = |messages: &[Message]| accounting::estimate(messages, accounting.scale);
        let (before, after) = (estimate(&view), estimate(&cleared.messages));
        let freed = before.saturating_sub(after);
        let left = accounting.messages.saturating_sub(freed);
        let is_refused = trigger == Trigger::Overflow;
        // When size was refused, anything that fits; else a change must be worth what the cache loses.
        let is_worth_it = freed > 0 && (is_refused || freed >= info.context_window / LEAST_FREED_SHARE);
        // Over the line something is done: where clearing is too little by itself, a summary is it.
        let is_full = accounting.messages >= accounting.compact_at;
        let must_summarise = is_refused || (is_full && (left >= accounting.compact_at || !is_worth_it));
        if must_summarise && self.may_compact() {
            match self.compact(trigger, &view, &cleared, cancel).await? {
                Room::NotMade => {}
                room => return Ok(room),
            }
        }
        if cleared.steps.is_empty() || !is_worth_it {
            self.looked_at = accounting.messages;
            return Ok(Room::NotMade);
        }
        tracing::info!(trigger = trigger.as_str(), before, after, steps = ?cleared.steps, "old results were cleared");
        self.ports.surroundings.put_away(&cleared.originals).await?;
        let record = boundary(
            trigger,
            &cleared.names(),
            accounting.messages,
            after,
            0,
            cleared.ids(),
            cleared.messages,
        );
        self.push(RecordBody::CompactBoundary(record));
        self.guard.declare_break("results cleared");
        self.looked_at = 0;
        Ok(Room::Made)
    }

    fn may_compact(&self) -> bool {
        self.config.auto_compact && !self.state.compaction.disabled
    }

    /// A request of which nothing was kept: what its failure calls for is done here, what follows is
    /// decided elsewhere.
    pub(super) async fn failed(
        &mut self,
        failure: Failure,
        request: &ModelRequest,
        model: &Arc<dyn Model>,
        cancel: &Cancel,
    ) -> Result<StepOutcome, StorageError> {
        let attempts = self.state.step.attempts + 1;
        let now = self.ports.surroundings.now();
        let may_make_room = self.state.step.rooms_made < ROOMS_MADE;
        let room = match remedy(&failure, attempts, &self.config.retry, now) {
            Remedy::MakeRoom | Remedy::StripMedia if !may_make_room => Room::NotMade,
            Remedy::MakeRoom => self.make_room(&failure.error, cancel).await?,
            Remedy::StripMedia => self.strip_media(&failure.error, request, model, cancel).await?,
            Remedy::Wait(_)
            | Remedy::ClampOutput { .. }
            | Remedy::TryAnother { .. }
            | Remedy::GiveUp { .. }
            | Remedy::Cancelled => {
                return Ok(StepOutcome::Failed {
                    failure,
                    max_tokens: request.max_tokens,
                    model: model.info().name,
                });
            }
        };
        match room {
            Room::Cancelled => {
                self.tombstone().await?;
                Ok(StepOutcome::Interrupted { during: Interrupted::Streaming })
            }
            Room::Spent { budget } => Ok(StepOutcome::BudgetSpent { budget }),
            Room::Made => {
                self.in_request = false;
                Ok(StepOutcome::MadeRoom { error: failure.error, smaller: true })
            }
            Room::NotMade => {
                let accounting = self.accounting();
                self.name_contributors(accounting);
                Ok(StepOutcome::MadeRoom { error: failure.error, smaller: false })
            }
        }
    }

    /// The provider's word on what is too long beats every estimate (K05).
    async fn make_room(&mut self, error: &ModelError, cancel: &Cancel) -> Result<Room, StorageError> {
        if let ModelErrorKind::PromptTooLong { limit: Some(limit) } = &error.kind {
            let window = self.model_info().context_window;
            self.config.context_window = Some(window.min(*limit));
        }
        if self.config.auto_compact {
            self.shrink(Trigger::Overflow, cancel).await
        } else {
            Ok(Room::NotMade)
        }
    }

    /// Bytes are the measure here, never tokens (A13).
    async fn strip_media(
        &mut self,
        error: &ModelError,
        request: &ModelRequest,
        model: &Arc<dyn Model>,
        cancel: &Cancel,
    ) -> Result<Room, StorageError> {
        let messages = &self.state.messages;
        let (from, bytes) = if error.kind == ModelErrorKind::ImageRefused {
            // What was accepted before is not what is refused now.
            let unsent =
                messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
            let fresh = accounting::media_bytes(&messages[unsent..]) > 0;
            (if fresh { unsent } else { 0 }, u64::MAX)
        } else {
            (0, (model.request_bytes(request) as u64).div_ceil(BODY_SHARE))
        };
        let Some(stripped) = autocompact::strip_media(messages, from, bytes) else {
            let too_large = error.kind == ModelErrorKind::RequestTooLarge;
            return if too_large && self.config.auto_compact {
                self.shrink(Trigger::Overflow, cancel).await
            } else {
                Ok(Room::NotMade)
            };
        };
        let stripped: Vec<Message> = stripped.iter().map(autocompact::without_thinking).collect();
        let pre_tokens = self.accounting().messages;
        let post_tokens = accounting::estimate(&stripped, self.accounting().scale);
        let record =
            boundary(Trigger::Overflow, &[STRIP_MEDIA], pre_tokens, post_tokens, 0, Vec::new(), stripped);
        self.push(RecordBody::CompactBoundary(record));
        self.guard.declare_break("size refused");
        Ok(Room::Made)
    }

    /// Replaces old history by a summary. `view` is what the provider knows, and what is summarised; what stays
    /// verbatim is taken from `cleared`.
    async fn compact(
        &mut self,
        trigger: Trigger,
        view: &[Message],
        cleared: &Cleared,
        cancel: &Cancel,
    ) -> Result<Room, StorageError> {
        let accounting = self.accounting();
        let info = self.model_info();
        if !view.iter().any(|message| message.role == Role::Assistant) {
            let (usage, cost) = Default::default();
            self.compaction_failed("there is nothing to summarise", info.name, usage, cost).await?;
            return Ok(Room::NotMade);
        }
        let mut under_way = None;
        let summary = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            summary = self.summarise(accounting, &mut under_way) => Some(summary?),
        };
        let Some(Summary { text, model, usage, cost }) = summary else {
            self.give_up(under_way).await?;
            return Ok(Room::Cancelled);
        };
        let text = match text {
            Ok(text) => text,
            Err(NoSummary::Spent { budget }) => return Ok(Room::Spent { budget }),
            Err(NoSummary::Failed { reason }) => {
                self.compaction_failed(&reason, model, usage, cost).await?;
                return Ok(Room::NotMade);
            }
        };
        let before = accounting::estimate(view, accounting.scale);
        // Of a short history it takes a tenth, or nothing would be saved.
        let budget = (info.context_window / ATTACHMENT_SHARE).min(before / 10).min(MOST_ATTACHMENT_TOKENS);
        let mut attachments = self.ports.surroundings.after_compaction(budget).await;
        attachments.extend(deferral::after_compaction(&self.state.tools_found).map(Block::text));
        let compacted = autocompact::compact(
            &History {
                messages: &cleared.messages,
                first: self.state.first.as_ref(),
                person: &self.state.person,
                attachments: &attachments,
                window: info.context_window,
                scale: accounting.scale,
            },
            &text,
        );
        let after = accounting::estimate(&compacted.messages, accounting.scale);
        if !autocompact::saves_enough(before, after) {
            self.compaction_failed(&format!("{before} tokens became {after}"), model, usage, cost).await?;
            return Ok(Room::NotMade);
        }
        tracing::info!(trigger = trigger.as_str(), before, after, "history was compacted");
        self.ports.surroundings.put_away(&cleared.originals).await?;
        self.charge(PURPOSE_COMPACTION.to_owned(), model, usage, cost).await?;
        let mut steps = cleared.names();
        steps.push(Step::Autocompact.name());
        self.push(RecordBody::CompactBoundary(boundary(
            trigger,
            &steps,
            accounting.messages.max(before),
            after,
            compacted.messages_summarised,
            cleared.ids(),
            compacted.messages,
        )));
        self.guard.declare_break("compaction");
        self.looked_at = 0;
        Ok(Room::Made)
    }

    async fn compaction_failed(
        &mut self,
        reason: &str,
        model: String,
        usage: Usage,
        cost: Cost,
    ) -> Result<(), StorageError> {
        tracing::warn!(reason, "compaction failed");
        let purpose = format!("{PURPOSE_COMPACTION_FAILED}: {reason}");
        self.charge(purpose, model, usage, cost).await?;
        if self.state.compaction.disabled {
            self.notes.push("compaction is switched off after 3 failures in a row".to_owned());
        }
        Ok(())
    }

    /// Asks for a summary; smaller slices of history when the request is too long itself (K08).
    async fn summarise(
        &mut self,
        accounting: Accounting,
        under_way: &mut Option<UnderWay>,
    ) -> Result<Summary, StorageError> {
        let model = self.summary_model(accounting);
        let info = model.info();
        let view = view::api_messages(&self.state.messages, &self.state.asked, &info.name);
        let mut summary = Summary {
            text: Err(NoSummary::Failed { reason: String::new() }),
            model: info.name.clone(),
            usage: Usage::default(),
            cost: Cost::default(),
        };
        let (mut left_out, mut tries) = (0, 0);
        loop {
            let messages = autocompact::summary_request(&view, left_out);
            let planned = PlannedCall {
                model: info.name.clone(),
                input_tokens: accounting.overhead + accounting::estimate(&messages, accounting.scale),
                max_tokens: info.max_output.min(RESERVED_OUTPUT),
            };
            let input_tokens = planned.input_tokens;
            let max_tokens = match self.ask_for_grant(&model, planned).await {
                Grant::Call { max_tokens } => max_tokens,
                Grant::Spent { budget } => {
                    summary.text = Err(NoSummary::Spent { budget });
                    return Ok(summary);
                }
            };
            let messages: Vec<Arc<Message>> = messages.into_iter().map(Arc::new).collect();
            let request = ModelRequest {
                prefix: Arc::clone(&self.config.prefix),
                breakpoints: vec![Breakpoint::Prefix, Breakpoint::Message(messages.len() - 1)],
                messages,
                max_tokens,
            };
            let call = under_way.insert(UnderWay {
                model: Arc::clone(&model),
                input_tokens,
                response: Response::default(),
            });
            let answer = read(&model, &request, &mut call.response).await;
            let error = match (answer, under_way.take()) {
                (Ok(text), call) => {
                    let response = call.map(|call| call.response).unwrap_or_default();
                    let usage = response.usage.or_else(|| response.usage_so_far(input_tokens));
                    summary.usage = usage.unwrap_or_default();
                    summary.cost =
                        model.cost(response.model.as_deref().unwrap_or(&info.name), &summary.usage);
                    summary.text = Ok(text);
                    return Ok(summary);
                }
                (Err(error), call) => {
                    self.give_up(call).await?;
                    error
                }
            };
            if matches!(error.kind, ModelErrorKind::PromptTooLong { .. }) {
                if left_out >= SMALLER_SLICES {
                    tracing::warn!(%error, "no summary could be made");
                    summary.text = Ok(autocompact::list_of_calls(&view));
                    return Ok(summary);
                }
                left_out += 1;
                continue;
            }
            tries += 1;
            let wait = error.retry_after.unwrap_or_else(|| backoff(tries, self.jitter(), &self.config.retry));
            let again = error.kind.is_retryable() && tries < SUMMARY_TRIES && wait <= self.config.retry.cap;
            if !again {
                let reason = format!("{}: {}", error.kind.code(), error.message);
                summary.text = Err(NoSummary::Failed { reason });
                return Ok(summary);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// What an answer used that is not waited for any more, or brought no summary.
    async fn give_up(&mut self, call: Option<UnderWay>) -> Result<(), StorageError> {
        let Some(UnderWay { model, input_tokens, response }) = call else { return Ok(()) };
        self.drop_answer(&model, &response, input_tokens).await
    }

    /// The own model while its cache is warm, else the helper, unless its window cannot hold the input.
    fn summary_model(&self, accounting: Accounting) -> Arc<dyn Model> {
        let own = self.model();
        let Some(helper) = &self.ports.helper else { return own };
        let needed = accounting.overhead + accounting.messages + RESERVED_OUTPUT;
        if !self.is_cold() || needed > helper.info().context_window { own } else { Arc::clone(helper) }
    }

    fn name_contributors(&mut self, accounting: Accounting) {
        let largest = autocompact::contributors(&self.config.prefix, &self.state.messages);
        self.notes.push(format!(
            "the context holds {} tokens of {}; the largest parts are {largest}",
            accounting.messages, accounting.effective_window
        ));
    }
}

/// Reads an answer to its end for its words alone.
async fn read(
    model: &Arc<dyn Model>,
    request: &ModelRequest,
    response: &mut Response,
) -> Result<String, ModelError> {
    let mut stream = model.stream(request).await?;
    while let Some(event) = stream.next().await {
        let event = event?;
        // Calls in a summary are not carried out.
        let _call = response.take(&event);
        if let StreamEvent::Stopped(_) = event {
            break;
        }
    }
    let text = Message::assistant(response.whole_blocks()).text();
    if text.trim().is_empty() {
        return Err(ModelError {
            kind: ModelErrorKind::InvalidRequest,
            message: "the summary was empty".to_owned(),
            retry_after: None,
            status: None,
        });
    }
    Ok(text)
}
