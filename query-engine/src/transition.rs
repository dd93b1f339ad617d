//! What comes after a step: [`decide`] is the whole policy of the loop, pure and without a clock.
//!
//! ```text
//!            +------------------------------ Next(why) -----------------------------+
//!            v                                                                      |
//!   ingest -> hygiene -> request -> answer, tools -> commit -> (hooks, own jobs) -> decide -> Exit(reason)
//! ```
//! The durable part of the state is the fold of its records and is only read here; the part that is built
//! anew at each step is what `decide` answers with.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use swarm_protocol::{ExitReason, Timestamp, record::StopReason};

use crate::{
    loop_detection::{ASK_AT, REMIND_AT, repetition},
    ports::{HookAnswer, ModelError, ModelErrorKind, StorageError},
    recovery::{self, Failure, Remedy, RetryPolicy},
    state::{LoopState, StepState},
};

/// Cut answers in a row that are taken up again.
pub const OUTPUT_CUTS: u32 = 3;
/// Refusals of the end by a Stop hook in a row after which the loop ends.
pub const STOP_BLOCKS: u32 = 8;
/// Paused answers in a row that are sent again.
pub const PAUSES: u32 = 10;
/// Times that room is made for one request.
pub const ROOMS_MADE: u32 = 3;

/// Asks the model to take up an answer that reached its output limit.
pub const RESUME_AFTER_CUT: &str = "Your output reached its limit and was cut. Resume exactly where it stopped: no apology, no recap. \
     Split what is left into smaller pieces.";
/// Asks the model to take up an answer whose stream broke.
pub const RESUME_AFTER_BREAK: &str = "The connection broke and your last message is incomplete. Go on exactly where it stopped: no apology, no recap.";
/// What follows the name of a repetition in the reminder.
const STOP_REPEATING: &str = "Repeating it will change nothing. Look at what you know, then take another way; if there is none, say what keeps you.";
/// Equal rounds that a person's "go on" is good for.
const ROUNDS_MORE: u32 = 10;
/// The one nudge after an empty answer.
pub const NUDGE: &str = "continue";

/// Why the loop goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "continue", rename_all = "snake_case")]
pub enum Continue {
    /// Tools answered, or an answer paused.
    NextTurn,
    /// The output was cut or its stream broke; the model is asked to resume.
    MaxOutputTokensRecovery {
        /// Which in a row, from 1.
        attempt: u32,
    },
    /// Room was made.
    Compacted,
    /// The same request again.
    Retry {
        /// After this wait.
        after: Duration,
        /// Failures so far.
        attempt: u32,
    },
    /// A Stop hook refused the end.
    HookBlocked,
    /// Messages came or a job ended while the agent was about to end, or an empty answer was nudged.
    GoOn,
}

/// The loop's next step. The driver logs it, stores it and obeys it; observers only read it.
#[derive(Debug, PartialEq)]
#[must_use = "dropping a transition loses the loop's next state"]
pub enum Transition {
    /// Once more.
    Next {
        /// What is built anew of the state.
        state: StepState,
        /// Why.
        why: Continue,
    },
    /// The only way out.
    Exit(ExitReason),
}

/// What carrying out the last step brought.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// An answer came whole and is committed with its results.
    Answered(Answered),
    /// The stream broke after something worth keeping came; what was kept is committed.
    Broken {
        /// How.
        failure: Failure,
        /// Calls that had closed; they ran.
        calls: usize,
    },
    /// The request failed and nothing of it was kept.
    Failed {
        /// How.
        failure: Failure,
        /// What it asked for.
        max_tokens: u64,
        /// The model asked.
        model: String,
    },
    /// The provider refused the size, and room was to be made.
    MadeRoom {
        /// What it refused.
        error: ModelError,
        /// Whether history is smaller now.
        smaller: bool,
    },
    /// Room was made because our estimate asked for it.
    Compacted,
    /// Our estimate is over the hard line.
    OverTheLine,
    /// The model stopped without a call, and who may object has spoken.
    Closing {
        /// What hooks said.
        hook: HookAnswer,
        /// Whether messages or own jobs ask for another turn.
        more: bool,
    },
    /// A budget has nothing left for the next call.
    BudgetSpent {
        /// Which.
        budget: String,
    },
    /// There is nothing new to answer.
    NothingToDo,
    /// A person or the coordinator interrupted; open calls have their results.
    Interrupted {
        /// When.
        during: Interrupted,
    },
    /// The model said the same passage again and again: its answer was cut, and what was kept is committed.
    RepeatedWords,
    /// The agent repeats itself in spite of the reminder, and the person was asked.
    Repeated {
        /// Equal rounds.
        times: u32,
        /// What the person said; nobody there to say it is a no.
        may_go_on: bool,
    },
    /// A person denied a permission and stopped the agent; the turn is committed.
    DeniedAndStopped,
    /// A record could not be written.
    StorageFailed(StorageError),
}

/// When an interrupt came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// While the model streamed, or between steps.
    Streaming,
    /// While tools ran.
    Tools,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// Its tool calls.
    pub calls: usize,
    /// Whether it had words.
    pub has_text: bool,
    /// Tools whose call was cut before it closed.
    pub cut_calls: Vec<String>,
}

/// The settings `decide` knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Turns of a run.
    pub max_turns: Option<u32>,
    /// Retries.
    pub retry: RetryPolicy,
    /// Whether there is a fallback model.
    pub has_fallback: bool,
}

/// Whether this answer asks to end, so that hooks and own jobs are to be asked before [`decide`] is.
pub fn asks_to_end(state: &LoopState, answered: &Answered) -> bool {
    if answered.calls > 0 {
        return false;
    }
    match &answered.stop_reason {
        StopReason::EndTurn
        | StopReason::ToolUse
        | StopReason::StopSequence
        | StopReason::Unknown { .. }
        | StopReason::Repetition
        | StopReason::Truncated => answered.has_text || state.step.nudged,
        StopReason::PauseTurn => state.step.pauses >= PAUSES,
        StopReason::MaxTokens | StopReason::Refusal { .. } | StopReason::ContextWindowExceeded => false,
    }
}

/// What comes next. `state.step` is the step that was carried out.
pub fn decide(state: &LoopState, outcome: StepOutcome, policy: &Policy, now: Timestamp) -> Transition {
    match outcome {
        StepOutcome::Answered(answered) => after_answer(state, &answered, policy),
        StepOutcome::Broken { failure, calls } => after_break(state, &failure, calls, policy),
        StepOutcome::Failed { failure, max_tokens, model } => {
            after_failure(state, &failure, max_tokens, model, policy, now)
        }
        StepOutcome::RepeatedWords => {
            let mut step = next_turn(state);
            step.reminded = true;
            step.say = Some(reminder("the same passage of words"));
            next(state, step, Continue::NextTurn, policy)
        }
        StepOutcome::Repeated { may_go_on: false, times: _ } => Transition::Exit(ExitReason::LoopDetected),
        StepOutcome::Repeated { may_go_on: true, times } => {
            let mut step = next_turn(state);
            step.may_repeat = times + ROUNDS_MORE;
            next(state, step, Continue::NextTurn, policy)
        }
        StepOutcome::MadeRoom { error, smaller } => after_making_room(state, error, smaller),
        StepOutcome::Compacted => {
            let why = Continue::Compacted;
            let step = StepState { transition: Some(why.clone()), make_room: false, ..state.step.clone() };
            Transition::Next { state: step, why }
        }
        StepOutcome::OverTheLine => Transition::Exit(ExitReason::BlockingLimit),
        StepOutcome::Closing { hook, more } => after_closing(state, hook, more, policy),
        StepOutcome::BudgetSpent { budget } => Transition::Exit(ExitReason::BudgetExceeded { budget }),
        StepOutcome::NothingToDo => Transition::Exit(ExitReason::Completed),
        StepOutcome::Interrupted { during: Interrupted::Streaming } => {
            Transition::Exit(ExitReason::AbortedStreaming)
        }
        StepOutcome::Interrupted { during: Interrupted::Tools } => Transition::Exit(ExitReason::AbortedTools),
        StepOutcome::DeniedAndStopped => Transition::Exit(ExitReason::DeniedAndStopped),
        StepOutcome::StorageFailed(error) => {
            Transition::Exit(ExitReason::StorageError { message: error.message })
        }
    }
}

/// The step after a committed turn: what belongs to one request or one turn begins anew.
fn next_turn(state: &LoopState) -> StepState {
    StepState {
        nudged: state.step.nudged,
        reminded: state.step.reminded,
        may_repeat: state.step.may_repeat,
        stop_blocks: state.step.stop_blocks,
        pauses: state.step.pauses,
        max_output: state.step.max_output.clone(),
        ..StepState::default()
    }
}

/// Another turn, unless the bound on turns is reached.
fn next(state: &LoopState, step: StepState, why: Continue, policy: &Policy) -> Transition {
    match policy.max_turns {
        Some(limit) if state.run.turns >= limit => Transition::Exit(ExitReason::MaxTurns { limit }),
        Some(_) | None => {
            Transition::Next { state: StepState { transition: Some(why.clone()), ..step }, why }
        }
    }
}

fn after_answer(state: &LoopState, answered: &Answered, policy: &Policy) -> Transition {
    let mut step = next_turn(state);
    step.pauses = 0;
    if answered.calls > 0 || answered.has_text {
        step.nudged = false;
    }
    match &answered.stop_reason {
        StopReason::Refusal { explanation } => {
            Transition::Exit(ExitReason::Refused { message: explanation.clone() })
        }
        StopReason::MaxTokens => {
            if state.output_cuts > OUTPUT_CUTS {
                return Transition::Exit(ExitReason::MaxOutputTokensEscalate);
            }
            step.say = cut_message(answered);
            next(state, step, Continue::MaxOutputTokensRecovery { attempt: state.output_cuts }, policy)
        }
        StopReason::ContextWindowExceeded => {
            step.make_room = true;
            step.say = cut_message(answered);
            next(state, step, Continue::NextTurn, policy)
        }
        StopReason::PauseTurn => {
            step.pauses = state.step.pauses + 1;
            step.paused = answered.calls == 0;
            next(state, step, Continue::NextTurn, policy)
        }
        StopReason::EndTurn
        | StopReason::ToolUse
        | StopReason::StopSequence
        | StopReason::Truncated
        | StopReason::Repetition
        | StopReason::Unknown { word: _ } => {
            if answered.calls > 0 {
                remind_of_repetition(state, &mut step);
                return next(state, step, Continue::NextTurn, policy);
            }
            // Without a call, only an empty answer comes here: see `asks_to_end`.
            step.nudged = true;
            step.say = Some(NUDGE.to_owned());
            next(state, step, Continue::GoOn, policy)
        }
    }
}

/// Reminds the model once of a repetition; forgets about it when there is none any more.
fn remind_of_repetition(state: &LoopState, step: &mut StepState) {
    match repetition(&state.messages).filter(|found| found.times >= REMIND_AT) {
        None => (step.reminded, step.may_repeat) = (false, 0),
        Some(_) if step.reminded => {}
        Some(found) => {
            step.reminded = true;
            step.say = Some(reminder(&found.sentence()));
        }
    }
}

fn reminder(what: &str) -> String {
    format!("<system-reminder>\nYou repeat yourself: {what}. {STOP_REPEATING}\n</system-reminder>")
}

/// What a person is to be asked about before the loop goes on: a repetition that a reminder did not end.
pub fn asks_about(state: &LoopState, outcome: &StepOutcome) -> Option<(u32, String)> {
    let step = &state.step;
    match outcome {
        StepOutcome::Answered(answered) if answered.calls > 0 && step.reminded => {
            let found = repetition(&state.messages)?;
            (found.times >= ASK_AT.max(step.may_repeat)).then(|| (found.times, found.sentence()))
        }
        StepOutcome::RepeatedWords if step.reminded => {
            Some((REMIND_AT, "the same passage of words".to_owned()))
        }
        _ => None,
    }
}

/// What the model is told after a cut, unless a call's result tells it.
fn cut_message(answered: &Answered) -> Option<String> {
    match answered.cut_calls.as_slice() {
        [] if answered.calls > 0 => None,
        [] => Some(RESUME_AFTER_CUT.to_owned()),
        names => Some(format!(
            "Your output reached its limit while you wrote the arguments of {}: that call did not run. \
             Call it again with less in one call, and split the rest over further calls.",
            names.join(", ")
        )),
    }
}

fn after_break(state: &LoopState, failure: &Failure, calls: usize, policy: &Policy) -> Transition {
    let mut step = next_turn(state);
    if calls > 0 {
        return next(state, step, Continue::NextTurn, policy);
    }
    if state.output_cuts > OUTPUT_CUTS {
        return Transition::Exit(model_error(&failure.error, None));
    }
    step.wait = recovery::backoff(state.output_cuts, failure.jitter, &policy.retry);
    step.say = Some(RESUME_AFTER_BREAK.to_owned());
    next(state, step, Continue::MaxOutputTokensRecovery { attempt: state.output_cuts }, policy)
}

fn after_failure(
    state: &LoopState,
    failure: &Failure,
    max_tokens: u64,
    model: String,
    policy: &Policy,
    now: Timestamp,
) -> Transition {
    let attempt = state.step.attempts + 1;
    let retry = |after: Duration, change: &dyn Fn(&mut StepState)| {
        let why = Continue::Retry { after, attempt };
        let mut step = StepState {
            transition: Some(why.clone()),
            attempts: attempt,
            wait: after,
            say: None,
            ..state.step.clone()
        };
        change(&mut step);
        Transition::Next { state: step, why }
    };
    match recovery::remedy(failure, attempt, &policy.retry, now) {
        Remedy::Wait(after) => retry(after, &|_| {}),
        Remedy::ClampOutput { limit } => match recovery::clamp_output(max_tokens, limit) {
            Some(clamped) if attempt < policy.retry.tries => retry(Duration::ZERO, &|step| {
                step.max_output.insert(model.clone(), clamped);
            }),
            Some(_) | None => Transition::Exit(model_error(&failure.error, None)),
        },
        Remedy::TryAnother { retry_at } => {
            if policy.has_fallback && !state.step.on_fallback {
                retry(Duration::ZERO, &|step| {
                    step.on_fallback = true;
                    step.attempts = 0;
                })
            } else {
                Transition::Exit(model_error(&failure.error, retry_at))
            }
        }
        Remedy::GiveUp { retry_at } => Transition::Exit(model_error(&failure.error, retry_at)),
        // The driver makes room first and asks with `MadeRoom`; asked without, nothing was done.
        Remedy::MakeRoom | Remedy::StripMedia => Transition::Exit(refused_size(&failure.error)),
        Remedy::Cancelled => Transition::Exit(ExitReason::AbortedStreaming),
    }
}

fn after_making_room(state: &LoopState, error: ModelError, smaller: bool) -> Transition {
    let rooms_made = state.step.rooms_made + 1;
    if !smaller || rooms_made > ROOMS_MADE {
        return Transition::Exit(refused_size(&error));
    }
    let step = StepState {
        transition: Some(Continue::Compacted),
        rooms_made,
        make_room: false,
        wait: Duration::ZERO,
        say: None,
        ..state.step.clone()
    };
    Transition::Next { state: step, why: Continue::Compacted }
}

fn after_closing(state: &LoopState, hook: HookAnswer, more: bool, policy: &Policy) -> Transition {
    let mut step = next_turn(state);
    step.nudged = false;
    step.pauses = 0;
    match hook {
        HookAnswer::Stop { message } => Transition::Exit(ExitReason::HookStopped { message }),
        HookAnswer::Block { reason } => {
            step.stop_blocks += 1;
            if step.stop_blocks >= STOP_BLOCKS {
                return Transition::Exit(ExitReason::StopHookPrevented);
            }
            step.say = Some(reason);
            next(state, step, Continue::HookBlocked, policy)
        }
        HookAnswer::GoOn if more => {
            step.stop_blocks = 0;
            next(state, step, Continue::GoOn, policy)
        }
        HookAnswer::GoOn => Transition::Exit(ExitReason::Completed),
    }
}

/// The end by an error of the model.
fn model_error(error: &ModelError, retry_at: Option<Timestamp>) -> ExitReason {
    ExitReason::ModelError { error: error.kind.code().to_owned(), message: error.message.clone(), retry_at }
}

/// The end by a size that nothing made acceptable.
fn refused_size(error: &ModelError) -> ExitReason {
    match &error.kind {
        ModelErrorKind::PromptTooLong { limit: _ } => ExitReason::PromptTooLong,
        ModelErrorKind::ImageRefused => ExitReason::ImageError { message: error.message.clone() },
        ModelErrorKind::KeyRefused
        | ModelErrorKind::PermissionRefused
        | ModelErrorKind::UnknownModel
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::RequestTooLarge
        | ModelErrorKind::MaxTokensTooLarge { .. }
        | ModelErrorKind::RateLimited
        | ModelErrorKind::QuotaSpent
        | ModelErrorKind::Overloaded
        | ModelErrorKind::Server
        | ModelErrorKind::Transient
        | ModelErrorKind::Connection
        | ModelErrorKind::Stalled { .. }
        | ModelErrorKind::Truncated
        | ModelErrorKind::Malformed
        | ModelErrorKind::Cancelled => model_error(error, None),
    }
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
