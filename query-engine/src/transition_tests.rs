use swarm_protocol::record::{RecordBody, RunStarted};
use swarm_protocol::{Message, RunNumber, Usage, usage::Cost};

use super::*;
use crate::testing::error;

const NOW: Timestamp = Timestamp::from_millis(1_000);

/// A state after this many answers, of which the last `cuts` were cut.
fn state(turns: u32, cuts: u32) -> LoopState {
    let mut state = LoopState::default();
    state.apply(&RecordBody::RunStarted(RunStarted {
        run: RunNumber::FIRST,
        restarts: 0,
        pid: 1,
        model: "m".to_owned(),
        sandbox_tier: 2,
        version: "0".to_owned(),
    }));
    for turn in 0..turns {
        let cut = turn + cuts >= turns;
        state.apply(&RecordBody::Assistant {
            message: Message::assistant(vec![swarm_protocol::Block::text("x")]),
            request: u64::from(turn) + 1,
            model: "m".to_owned(),
            stop_reason: if cut { StopReason::MaxTokens } else { StopReason::EndTurn },
            usage: Usage::default(),
            cost: Cost::default(),
            incomplete: false,
        });
    }
    state
}

fn policy() -> Policy {
    Policy { max_turns: Some(20), retry: RetryPolicy::default(), has_fallback: false }
}

fn answered(stop_reason: StopReason, calls: usize, has_text: bool) -> StepOutcome {
    StepOutcome::Answered(Answered { stop_reason, calls, has_text, cut_calls: Vec::new() })
}

/// How the transition reads: `next_turn`, `retry after 500ms, 1 failed; say: ..`, `exit completed`.
fn render(transition: &Transition) -> String {
    match transition {
        Transition::Exit(reason) => format!("exit {}", reason.code()),
        Transition::Next { state, why } => {
            assert_eq!(state.transition.as_ref(), Some(why));
            let mut text = match why {
                Continue::NextTurn => "next_turn".to_owned(),
                Continue::MaxOutputTokensRecovery { attempt } => {
                    format!("max_output_tokens_recovery {attempt}")
                }
                Continue::Compacted => "compacted".to_owned(),
                Continue::Retry { after, attempt } => {
                    format!("retry after {}ms, {attempt} failed", after.as_millis())
                }
                Continue::HookBlocked => "hook_blocked".to_owned(),
                Continue::GoOn => "go_on".to_owned(),
            };
            if let Some(say) = &state.say {
                text.push_str("; say: ");
                text.extend(say.chars().take(20));
            }
            if state.on_fallback {
                text.push_str("; fallback");
            }
            if state.make_room {
                text.push_str("; make room");
            }
            text
        }
    }
}

#[track_caller]
fn check(state: &LoopState, outcome: StepOutcome, expected: &str) {
    assert_eq!(render(&decide(state, outcome, &policy(), NOW)), expected);
}

#[test]
fn answers() {
    use StopReason::*;
    let one = state(1, 0);
    check(&one, answered(ToolUse, 2, false), "next_turn");
    check(&one, answered(EndTurn, 1, true), "next_turn");
    check(&one, answered(Unknown { word: "new".to_owned() }, 1, true), "next_turn");
    check(&one, answered(EndTurn, 0, false), "go_on; say: continue");
    check(&one, answered(PauseTurn, 0, true), "next_turn");
    check(&one, answered(Refusal { explanation: "no".to_owned() }, 0, true), "exit refused");
    check(&one, answered(ContextWindowExceeded, 0, true), "next_turn; say: Your output reached ; make room");
    check(
        &state(1, 1),
        answered(MaxTokens, 0, true),
        "max_output_tokens_recovery 1; say: Your output reached ",
    );
    check(&state(3, 3), answered(MaxTokens, 1, true), "max_output_tokens_recovery 3");
    check(&state(4, 4), answered(MaxTokens, 0, true), "exit max_output_tokens_escalate");
    check(&state(20, 0), answered(ToolUse, 1, true), "exit max_turns");
    check(&state(20, 1), answered(MaxTokens, 0, true), "exit max_turns");
}

#[test]
fn who_asks_to_end() {
    use StopReason::*;
    let mut state = state(1, 0);
    let asks = |state: &LoopState, reason: StopReason, calls, has_text| {
        asks_to_end(state, &Answered { stop_reason: reason, calls, has_text, cut_calls: Vec::new() })
    };
    assert!(asks(&state, EndTurn, 0, true));
    assert!(asks(&state, StopSequence, 0, true));
    assert!(asks(&state, Unknown { word: "new".to_owned() }, 0, true));
    assert!(!asks(&state, EndTurn, 1, true));
    assert!(!asks(&state, EndTurn, 0, false));
    assert!(!asks(&state, MaxTokens, 0, true));
    assert!(!asks(&state, PauseTurn, 0, true));
    state.step.nudged = true;
    assert!(asks(&state, EndTurn, 0, false));
    state.step.pauses = PAUSES;
    assert!(asks(&state, PauseTurn, 0, true));
}

fn failure(kind: ModelErrorKind) -> Failure {
    Failure { error: error(kind, "no"), elapsed: Duration::ZERO, jitter: 0.0 }
}

fn failed(kind: ModelErrorKind) -> StepOutcome {
    StepOutcome::Failed { failure: failure(kind), max_tokens: 8_000, model: "m".to_owned() }
}

#[test]
fn failures() {
    use ModelErrorKind::*;
    let mut state = state(1, 0);
    check(&state, failed(Overloaded), "retry after 500ms, 1 failed");
    check(&state, failed(KeyRefused), "exit model_error");
    check(&state, failed(QuotaSpent), "exit model_error");
    check(&state, failed(MaxTokensTooLarge { limit: Some(4_000) }), "retry after 0ms, 1 failed");
    check(&state, failed(Cancelled), "exit aborted_streaming");
    state.step.attempts = 4;
    check(&state, failed(Server), "retry after 8000ms, 5 failed");
    state.step.attempts = 9;
    check(&state, failed(Server), "exit model_error");
}

#[test]
fn a20_the_fallback_answers_for_overload_only() {
    use ModelErrorKind::*;
    let policy = Policy { has_fallback: true, ..policy() };
    let mut state = state(1, 0);
    state.step.attempts = 9;
    let check = |state: &LoopState, kind: ModelErrorKind, expected: &str| {
        assert_eq!(render(&decide(state, failed(kind), &policy, NOW)), expected);
    };
    check(&state, Overloaded, "retry after 0ms, 10 failed; fallback");
    check(&state, RateLimited, "retry after 0ms, 10 failed; fallback");
    for kind in [KeyRefused, PermissionRefused, QuotaSpent, InvalidRequest, UnknownModel] {
        check(&state, kind, "exit model_error");
    }
    check(&state, PromptTooLong { limit: None }, "exit prompt_too_long");
    check(&state, RequestTooLarge, "exit model_error");
    // One fallback, not a chain.
    state.step.on_fallback = true;
    check(&state, Overloaded, "exit model_error");
}

#[test]
fn broken_streams() {
    use ModelErrorKind::*;
    let broken = |calls| StepOutcome::Broken { failure: failure(Truncated), calls };
    check(&state(1, 0), broken(1), "next_turn");
    check(&state(1, 1), broken(0), "max_output_tokens_recovery 1; say: The connection broke");
    check(&state(4, 4), broken(0), "exit model_error");
}

#[test]
fn room() {
    use ModelErrorKind::*;
    let made = |kind, smaller| StepOutcome::MadeRoom { error: error(kind, "no"), smaller };
    let mut state = state(1, 0);
    check(&state, made(PromptTooLong { limit: None }, true), "compacted");
    check(&state, made(PromptTooLong { limit: None }, false), "exit prompt_too_long");
    check(&state, made(ImageRefused, false), "exit image_error");
    check(&state, made(RequestTooLarge, false), "exit model_error");
    check(&state, StepOutcome::OverTheLine, "exit blocking_limit");
    check(&state, StepOutcome::Compacted, "compacted");
    state.step.rooms_made = ROOMS_MADE;
    check(&state, made(PromptTooLong { limit: None }, true), "exit prompt_too_long");
}

#[test]
fn ends() {
    let closing = |hook, more| StepOutcome::Closing { hook, more };
    let mut state = state(1, 0);
    check(&state, closing(HookAnswer::GoOn, false), "exit completed");
    check(&state, closing(HookAnswer::GoOn, true), "go_on");
    check(&state, closing(HookAnswer::Stop { message: "x".to_owned() }, false), "exit hook_stopped");
    let block = || closing(HookAnswer::Block { reason: "tests fail".to_owned() }, false);
    check(&state, block(), "hook_blocked; say: tests fail");
    state.step.stop_blocks = STOP_BLOCKS - 1;
    check(&state, block(), "exit stop_hook_prevented");
    check(&state, StepOutcome::NothingToDo, "exit completed");
    check(&state, StepOutcome::DeniedAndStopped, "exit denied_and_stopped");
    for (during, expected) in
        [(Interrupted::Streaming, "exit aborted_streaming"), (Interrupted::Tools, "exit aborted_tools")]
    {
        check(&state, StepOutcome::Interrupted { during }, expected);
    }
    let error = StorageError { message: "full".to_owned() };
    check(&state, StepOutcome::StorageFailed(error), "exit storage_error");
}
