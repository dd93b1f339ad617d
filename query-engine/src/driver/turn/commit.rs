//! Phase 4: what of an answer is kept, its results and its use, in one append.

use std::sync::Arc;

use swarm_protocol::{
    Block, Message, Usage,
    frame::Live,
    record::{Origin, RecordBody, StopReason},
};
use tokio::time::Instant;

use super::{Turn, describe};
use crate::{
    context::cache_break,
    driver::{Cached, Cancel, Engine},
    ports::{Durability, Model, ModelError, ModelErrorKind, ModelRequest, StorageError},
    recovery::{Failure, is_in_band},
    response::Response,
    state::PURPOSE_DROPPED,
    transition::{Answered, Interrupted, StepOutcome},
};

impl Engine {
    pub(super) async fn commit_whole(&mut self, mut turn: Turn) -> Result<StepOutcome, StorageError> {
        self.warm_until = Some(turn.heard + self.config.cache_ttl);
        self.watch_cache(&turn);
        let stop_reason = turn.response.stop_reason.clone().unwrap_or(StopReason::EndTurn);
        if let StopReason::Unknown { word } = &stop_reason {
            tracing::warn!(stop_reason = word, "the model stopped for a reason this version does not know");
        }
        let calls = turn.executor.len();
        let blocks = match &stop_reason {
            // What a refusal left is dropped, unless calls of it ran.
            StopReason::Refusal { .. } if calls == 0 => Vec::new(),
            StopReason::EndTurn
            | StopReason::ToolUse
            | StopReason::MaxTokens
            | StopReason::StopSequence
            | StopReason::PauseTurn
            | StopReason::Refusal { .. }
            | StopReason::ContextWindowExceeded
            | StopReason::Truncated
            | StopReason::Repetition
            | StopReason::Unknown { .. } => turn.response.whole_blocks(),
        };
        let answered = Answered {
            has_text: turn.response.has_text(),
            calls,
            cut_calls: std::mem::take(&mut turn.cut_calls),
            stop_reason: stop_reason.clone(),
        };
        let stop = turn.executor.wants_stop();
        self.commit(turn, blocks, stop_reason, false, None).await?;
        Ok(if stop { StepOutcome::DeniedAndStopped } else { StepOutcome::Answered(answered) })
    }

    /// Tells when the provider's cache did not serve what the last answer left in it.
    fn watch_cache(&mut self, turn: &Turn) {
        let Some(usage) = turn.response.usage else { return };
        let lifetime = self.config.cache_ttl;
        if let Some(left) = turn.left
            && let Some(cause) = cache_break::cause(&left, &usage, lifetime)
        {
            let (expected_tokens, read_tokens) = (left.tokens, usage.cache_read_tokens);
            tracing::info!(
                expected_tokens,
                read_tokens,
                cause = cause.as_str(),
                "the provider's cache did not serve"
            );
            self.ports.observer.live(Live::CacheBreak { expected_tokens, read_tokens, cause });
        }
        self.cached =
            cache_break::left_by(&usage).map(|tokens| Cached { tokens, since: turn.heard, changed: None });
    }

    /// The words so far are kept; the connection was closed, so that the rest is not paid for.
    pub(super) async fn commit_repeating(&mut self, turn: Turn) -> Result<StepOutcome, StorageError> {
        let stop = turn.executor.wants_stop();
        let blocks = turn.response.kept_blocks();
        self.commit(turn, blocks, StopReason::Repetition, true, None).await?;
        Ok(if stop { StepOutcome::DeniedAndStopped } else { StepOutcome::RepeatedWords })
    }

    pub(super) async fn commit_broken(
        &mut self,
        turn: Turn,
        request: &ModelRequest,
        error: ModelError,
        cancel: &Cancel,
    ) -> Result<StepOutcome, StorageError> {
        let calls = turn.executor.len();
        let keep_words = turn.response.has_closed_text()
            || (turn.response.has_text()
                && !is_in_band(&error.kind)
                && error.kind != ModelErrorKind::Cancelled);
        let failure = Failure {
            elapsed: self.first_failure.get_or_insert_with(Instant::now).elapsed(),
            jitter: self.jitter(),
            error,
        };
        tracing::warn!(error = %failure.error, kind = failure.error.kind.code(), "a model request failed");
        self.cause = describe(&failure.error, self.state.step.attempts + 1);
        if calls > 0 || keep_words {
            let stop = turn.executor.wants_stop();
            let blocks = turn.response.kept_blocks();
            self.commit(turn, blocks, StopReason::Truncated, true, None).await?;
            return Ok(if stop {
                StepOutcome::DeniedAndStopped
            } else {
                StepOutcome::Broken { failure, calls }
            });
        }
        self.drop_answer(&turn.model, &turn.response, turn.estimated_tokens).await?;
        self.failed(failure, request, &turn.model, cancel).await
    }

    pub(super) async fn commit_interrupted(
        &mut self,
        turn: Turn,
        during: Interrupted,
    ) -> Result<StepOutcome, StorageError> {
        let tombstone = RecordBody::Tombstone { note: "interrupted; what was queued is dropped".to_owned() };
        let blocks = turn.response.kept_blocks();
        if blocks.is_empty() {
            self.drop_answer(&turn.model, &turn.response, turn.estimated_tokens).await?;
            self.in_request = false;
            self.flush(vec![tombstone], Durability::Now).await?;
        } else {
            self.commit(turn, blocks, StopReason::Truncated, true, Some(tombstone)).await?;
        }
        Ok(StepOutcome::Interrupted { during })
    }

    /// What a dropped answer used is counted.
    pub(in crate::driver) async fn drop_answer(
        &mut self,
        model: &Arc<dyn Model>,
        response: &Response,
        input_tokens: u64,
    ) -> Result<(), StorageError> {
        let Some(usage) = response.usage_so_far(input_tokens) else { return Ok(()) };
        let name = response.model.clone().unwrap_or_else(|| model.info().name);
        let cost = model.cost(&name, &usage);
        self.charge(PURPOSE_DROPPED.to_owned(), name, usage, cost).await
    }

    /// Phase 4: the answer and its results, in one append.
    async fn commit(
        &mut self,
        mut turn: Turn,
        blocks: Vec<Block>,
        stop_reason: StopReason,
        incomplete: bool,
        last: Option<RecordBody>,
    ) -> Result<(), StorageError> {
        self.fit_turn(&mut turn).await?;
        let broke_off = if incomplete { turn.response.usage_so_far(turn.estimated_tokens) } else { None };
        let usage = broke_off.or(turn.response.usage).unwrap_or_else(|| Usage {
            input_tokens: turn.estimated_tokens,
            output_tokens: turn.response.output_estimate(),
            estimated: true,
            ..Usage::default()
        });
        let model = turn.response.model.clone().unwrap_or_else(|| turn.model.info().name);
        let cost = turn.model.cost(&model, &usage);
        let mut batch = vec![RecordBody::Assistant {
            message: Message::assistant(blocks),
            request: turn.request,
            model,
            stop_reason,
            usage,
            cost,
            incomplete,
        }];
        let results = turn.executor.results();
        if !results.is_empty() {
            batch.push(RecordBody::User {
                message: Message::user(results),
                origin: Origin::ToolResults,
                commands: Vec::new(),
            });
        }
        batch.extend(last);
        let changed = turn.executor.changed_something();
        self.in_request = false;
        self.first_failure = None;
        self.flush(batch, if changed { Durability::Now } else { Durability::Soon }).await?;
        let reminders = self.ports.surroundings.after_turn(changed).await;
        self.reminders.extend(reminders);
        self.warn_of_budget();
        Ok(())
    }
}
