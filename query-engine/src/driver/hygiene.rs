//! Phase 1: room is made before a request, where it is needed; and after one whose size was refused.

use std::sync::Arc;

use futures::StreamExt;
use swarm_protocol::{Message, Role, Usage, record::RecordBody, usage::Cost};
use tokio::time::Instant;

use super::{Cancel, Engine};
use crate::{
    context::{
        STACK, Step,
        accounting::{self, Accounting, RESERVED_OUTPUT},
        autocompact::{self, History, SMALLER_SLICES},
        boundary::{Trigger, boundary},
        view,
    },
    ports::{Breakpoint, Model, ModelError, ModelErrorKind, ModelRequest, StorageError, StreamEvent},
    recovery::{Failure, Remedy, backoff, remedy},
    response::Response,
    state::{PURPOSE_COMPACTION, PURPOSE_COMPACTION_FAILED},
    transition::{Interrupted, ROOMS_MADE, StepOutcome},
};

/// Tries of one summary request that fails for a passing reason.
const SUMMARY_TRIES: u32 = 3;
/// A refused body is brought to this part of its bytes.
const BODY_SHARE: u64 = 2;
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
}

/// A summary with what it took.
struct Summary {
    text: Result<String, String>,
    model: String,
    usage: Usage,
    cost: Cost,
}

impl Engine {
    /// Looks at the window before every request (K07), not after a turn that ended (K02).
    pub(super) async fn hygiene(&mut self, cancel: &Cancel) -> Result<Option<StepOutcome>, StorageError> {
        if self.in_request {
            return Ok(None);
        }
        for step in STACK {
            match step {
                // Carried out as results come in, before they are recorded.
                Step::ToolResultBudget => {}
                Step::Autocompact => {
                    if let Some(outcome) = self.autocompact(cancel).await? {
                        return Ok(Some(outcome));
                    }
                }
            }
        }
        let accounting = self.accounting();
        // With the breaker open the provider decides (spec 3.5).
        if accounting.messages >= accounting.block_at && !self.state.compaction.disabled {
            self.name_contributors(accounting);
            return Ok(Some(StepOutcome::OverTheLine));
        }
        Ok(None)
    }

    async fn autocompact(&mut self, cancel: &Cancel) -> Result<Option<StepOutcome>, StorageError> {
        let accounting = self.accounting();
        let forced = std::mem::take(&mut self.state.step.make_room);
        if !forced && (!self.may_compact() || accounting.messages < accounting.compact_at) {
            return Ok(None);
        }
        let trigger = if forced { Trigger::Overflow } else { Trigger::Auto };
        let room = if self.may_compact() { self.compact(trigger, cancel).await } else { Room::NotMade };
        match room {
            Room::Cancelled => {
                self.tombstone().await?;
                Ok(Some(StepOutcome::Interrupted { during: Interrupted::Streaming }))
            }
            Room::Made => Ok(Some(StepOutcome::Compacted)),
            Room::NotMade if forced => {
                self.name_contributors(accounting);
                let error = ModelError {
                    kind: ModelErrorKind::PromptTooLong { limit: None },
                    message: "the window was full while the model answered".to_owned(),
                    retry_after: None,
                    status: None,
                };
                Ok(Some(StepOutcome::MadeRoom { error, smaller: false }))
            }
            Room::NotMade => Ok(None),
        }
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
            Remedy::MakeRoom => self.make_room(&failure.error, cancel).await,
            Remedy::StripMedia => self.strip_media(&failure.error, request, model, cancel).await,
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
    async fn make_room(&mut self, error: &ModelError, cancel: &Cancel) -> Room {
        if let ModelErrorKind::PromptTooLong { limit: Some(limit) } = &error.kind {
            let window = self.model_info().context_window;
            self.config.context_window = Some(window.min(*limit));
        }
        if self.may_compact() { self.compact(Trigger::Overflow, cancel).await } else { Room::NotMade }
    }

    /// Bytes are the measure here, never tokens (A13).
    async fn strip_media(
        &mut self,
        error: &ModelError,
        request: &ModelRequest,
        model: &Arc<dyn Model>,
        cancel: &Cancel,
    ) -> Room {
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
            return if too_large && self.may_compact() {
                self.compact(Trigger::Overflow, cancel).await
            } else {
                Room::NotMade
            };
        };
        let stripped: Vec<Message> = stripped.iter().map(autocompact::without_thinking).collect();
        let pre_tokens = self.accounting().messages;
        let post_tokens = accounting::estimate(&stripped, self.accounting().bytes_per_token);
        let record = boundary(Trigger::Overflow, &[STRIP_MEDIA], pre_tokens, post_tokens, 0, stripped);
        self.push(RecordBody::CompactBoundary(record));
        self.guard.declare_break("size refused");
        Room::Made
    }

    /// Replaces old history by a summary.
    async fn compact(&mut self, trigger: Trigger, cancel: &Cancel) -> Room {
        let accounting = self.accounting();
        let info = self.model_info();
        let view = view::api_messages(&self.state.messages, &self.state.asked, &info.name);
        if !view.iter().any(|message| message.role == Role::Assistant) {
            self.compaction_failed(
                "there is nothing to summarise",
                info.name,
                Usage::default(),
                Cost::default(),
            );
            return Room::NotMade;
        }
        let summary = tokio::select! {
            biased;
            () = cancel.cancelled() => return Room::Cancelled,
            summary = self.summarise(accounting) => summary,
        };
        let Summary { text, model, usage, cost } = summary;
        let text = match text {
            Ok(text) => text,
            Err(reason) => {
                self.compaction_failed(&reason, model, usage, cost);
                return Room::NotMade;
            }
        };
        let attachments = self.ports.surroundings.after_compaction().await;
        let compacted = autocompact::compact(
            &History {
                messages: &view,
                first: self.state.first.as_ref(),
                person: &self.state.person,
                attachments: &attachments,
                window: info.context_window,
                bytes_per_token: accounting.bytes_per_token,
            },
            &text,
        );
        let before = accounting::estimate(&view, accounting.bytes_per_token);
        let after = accounting::estimate(&compacted.messages, accounting.bytes_per_token);
        if !autocompact::saves_enough(before, after) {
            self.compaction_failed(&format!("{before} tokens became {after}"), model, usage, cost);
            return Room::NotMade;
        }
        tracing::info!(trigger = trigger.as_str(), before, after, "history was compacted");
        self.push(RecordBody::HelperCall { purpose: PURPOSE_COMPACTION.to_owned(), model, usage, cost });
        self.push(RecordBody::CompactBoundary(boundary(
            trigger,
            &[Step::Autocompact.name()],
            accounting.messages.max(before),
            after,
            compacted.messages_summarised,
            compacted.messages,
        )));
        self.guard.declare_break("compaction");
        Room::Made
    }

    fn compaction_failed(&mut self, reason: &str, model: String, usage: Usage, cost: Cost) {
        tracing::warn!(reason, "compaction failed");
        let purpose = format!("{PURPOSE_COMPACTION_FAILED}: {reason}");
        self.push(RecordBody::HelperCall { purpose, model, usage, cost });
        if self.state.compaction.disabled {
            self.notes.push("compaction is switched off after 3 failures in a row".to_owned());
        }
    }

    /// Asks for a summary; smaller slices of history when the request is too long itself (K08).
    async fn summarise(&self, accounting: Accounting) -> Summary {
        let model = self.summary_model(accounting);
        let info = model.info();
        let view = view::api_messages(&self.state.messages, &self.state.asked, &info.name);
        let mut summary = Summary {
            text: Err(String::new()),
            model: info.name.clone(),
            usage: Usage::default(),
            cost: Cost::default(),
        };
        let (mut left_out, mut tries) = (0, 0);
        loop {
            let messages: Vec<Arc<Message>> =
                autocompact::summary_request(&view, left_out).into_iter().map(Arc::new).collect();
            let request = ModelRequest {
                prefix: Arc::clone(&self.config.prefix),
                breakpoints: vec![Breakpoint::Prefix, Breakpoint::Message(messages.len() - 1)],
                messages,
                max_tokens: info.max_output.min(RESERVED_OUTPUT),
            };
            let mut response = Response::default();
            let answer = read(&model, &request, &mut response).await;
            if let Some(usage) = response.usage {
                summary.usage += usage;
                summary.cost += model.cost(response.model.as_deref().unwrap_or(&info.name), &usage);
            }
            match answer {
                Ok(text) => {
                    summary.text = Ok(text);
                    return summary;
                }
                Err(error) if matches!(error.kind, ModelErrorKind::PromptTooLong { .. }) => {
                    if left_out >= SMALLER_SLICES {
                        summary.text = Err(error.message);
                        return summary;
                    }
                    left_out += 1;
                }
                Err(error) => {
                    tries += 1;
                    let wait = error
                        .retry_after
                        .unwrap_or_else(|| backoff(tries, self.jitter(), &self.config.retry));
                    let again =
                        error.kind.is_retryable() && tries < SUMMARY_TRIES && wait <= self.config.retry.cap;
                    if !again {
                        summary.text = Err(format!("{}: {}", error.kind.code(), error.message));
                        return summary;
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// The own model while its cache is warm, else the helper, unless its window cannot hold the input.
    fn summary_model(&self, accounting: Accounting) -> Arc<dyn Model> {
        let own = self.model();
        let Some(helper) = &self.ports.helper else { return own };
        let is_warm = own.info().caches
            && self.warm_since.is_some_and(|since: Instant| since.elapsed() < self.config.cache_ttl);
        let needed = accounting.overhead + accounting.messages + RESERVED_OUTPUT;
        if is_warm || needed > helper.info().context_window { own } else { Arc::clone(helper) }
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
