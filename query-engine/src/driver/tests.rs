//! The loop over a scripted model, on a paused clock. Tests named after a row of the cases keep its promise.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde_json::json;
use swarm_protocol::{
    Block, ExitReason, Message, ResultBlock, Role, ToolUseId, Usage,
    frame::Live,
    record::{Origin, RecordBody, StopReason},
};

use super::{Cancel, Engine, RunExit};
use crate::{
    ports::{ClosedBlock, ModelErrorKind, StreamEvent, ToolOutput},
    state::LoopState,
    testing::{
        Behaviour, Bench, FakeTool, Step, answer, call, calls, error, fin, id, invalid_call, open_call,
        open_text, render, says, stop, stop_with, text, thinking,
    },
};

mod cache;
mod compaction;
mod generated;
mod keepalive;
mod loops;
mod pacing;
mod recovery;
mod resume;
mod spending;
mod tools;

/// I1 and what providers refuse, on one request.
#[track_caller]
pub(super) fn check_messages<M: std::borrow::Borrow<Message>>(messages: &[M]) {
    let messages: Vec<&Message> = messages.iter().map(std::borrow::Borrow::borrow).collect();
    let messages = messages.as_slice();
    assert_eq!(messages.first().map(|message| message.role), Some(Role::User), "{}", render(messages));
    let mut open: HashSet<ToolUseId> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        assert!(!message.content.is_empty(), "message {index} is empty");
        if index > 0 {
            assert_ne!(message.role, messages[index - 1].role, "roles alternate: {}", render(messages));
        }
        let mut results_over = false;
        let mut answered = HashSet::new();
        for block in &message.content {
            match block {
                Block::ToolResult { tool_use_id, content, .. } => {
                    assert!(!results_over, "results come first: {}", render(messages));
                    assert!(open.contains(tool_use_id), "{tool_use_id} answers no call");
                    assert!(answered.insert(tool_use_id.clone()), "{tool_use_id} is answered twice");
                    assert!(!content.is_empty());
                }
                Block::Text { text } => {
                    assert!(!text.trim().is_empty());
                    results_over = true;
                }
                _ => results_over = true,
            }
        }
        assert_eq!(answered, open, "calls and results of message {index}: {}", render(messages));
        open = message.tool_uses().map(|(id, _, _)| id.clone()).collect();
    }
    assert!(open.is_empty(), "open calls at the end: {}", render(messages));
}

pub(super) fn audited(mut engine: Engine, records: Vec<RecordBody>) -> Engine {
    engine.audit = Some(records);
    engine
}

/// What holds after each run, however it ended.
#[track_caller]
pub(super) fn check_invariants(bench: &Bench, engine: &Engine) {
    for request in bench.model.requests() {
        check_messages(&request.messages);
        assert!(request.breakpoints.len() <= 4);
    }
    let records = bench.transcript.records();
    let folded = LoopState::fold(records.iter());
    assert_eq!(folded.messages, engine.state().messages);
    assert!(folded.unsaved.is_empty(), "a run leaves nothing open");
    let view = crate::context::view::api_messages(&folded.messages, &folded.asked, "test/model");
    if !view.is_empty() {
        check_messages(&view);
    }
}

/// Runs to the end, with every invariant checked.
pub(super) async fn run(bench: &Bench) -> RunExit {
    let mut engine = audited(bench.engine(), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(bench, &engine);
    exit
}

/// The last request, as text.
pub(super) fn last_request(bench: &Bench) -> String {
    render(&bench.model.requests().last().expect("a request was sent").messages)
}

#[tokio::test(start_paused = true)]
async fn stream_tools_results_end() {
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("fn main() {}")));
    let bench = Bench::new([
        answer([
            text(0, "Looking."),
            call(1, "t1", "Read", json!({"file_path": "a"})),
            stop(StopReason::ToolUse),
        ]),
        says("It is empty."),
    ])
    .tool(Arc::clone(&read));
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    assert_eq!((exit.text.as_str(), exit.text_from_earlier, exit.turns), ("It is empty.", false, 2));
    assert_eq!(exit.usage.total(), 220);
    assert_eq!(read.calls(), [json!({"file_path": "a"})]);
    assert_eq!(
        last_request(&bench),
        "user: the task\nassistant: Looking.\nassistant calls t1: Read {\"file_path\":\"a\"}\nuser answers t1: fn main() {}"
    );
    // Two appends make a turn; a tool without effect needs no intent.
    assert_eq!(
        bench.transcript.shape(),
        "user request_started | tool_finished | assistant user | request_started | assistant"
    );
    assert_eq!(bench.surroundings.turns(), [false, false]);
}

#[tokio::test(start_paused = true)]
async fn messages_and_reminders_follow_the_results_in_the_same_message() {
    let bench = Bench::new([calls("t1", "Read", json!({})), says("a"), says("b")])
        .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    bench.surroundings.remind("roster: none");
    let mut engine = audited(bench.engine(), Vec::new());
    bench.inbox.before_end(crate::ports::BeforeEnd::GoOn(vec![crate::ports::Incoming {
        content: vec![Block::text("one"), Block::text("two")],
        origin: Origin::Notifications,
        commands: Vec::new(),
    }]));
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    assert_eq!(exit.turns, 3);
    check_invariants(&bench, &engine);
    assert_eq!(
        last_request(&bench),
        "user: the task\nassistant calls t1: Read {}\nuser answers t1: ok\nuser: roster: none\nassistant: a\nuser: one\nuser: two"
    );
    assert_eq!(
        bench.transcript.shape(),
        "user request_started | tool_finished | assistant user | user request_started | assistant | \
         user request_started | assistant"
    );
    // Nothing waits: there is nothing to ask the model.
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    assert_eq!(bench.model.requests().len(), 3);
    // A message makes it go on.
    bench.inbox.put("more", Origin::Person { message_id: None });
    bench.model.push(says("c"));
    assert_eq!(engine.run(&Cancel::default()).await.text, "c");
    check_invariants(&bench, &engine);
}

#[tokio::test(start_paused = true)]
async fn l08_stops_at_the_bound_on_turns_with_what_there_is() {
    let bench = Bench::new((1..=5).map(|turn| {
        answer([
            text(0, &format!("step {turn}")),
            call(1, &format!("t{turn}"), "Read", json!({})),
            stop(StopReason::ToolUse),
        ])
    }))
    .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    let mut config = bench.config();
    config.max_turns = Some(3);
    let mut engine = audited(Engine::new(config, bench.ports(), LoopState::default()), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(&bench, &engine);
    assert_eq!(exit.exit, ExitReason::MaxTurns { limit: 3 });
    assert_eq!((exit.turns, exit.text.as_str()), (3, "step 3"));
    assert_eq!(bench.model.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn s25_reported_use_is_cumulative() {
    let usage = |output_tokens| {
        Step::Event(StreamEvent::Usage(Usage { input_tokens: 5, output_tokens, ..Usage::default() }))
    };
    let bench = Bench::new([answer([
        vec![usage(10)],
        text(0, "x"),
        vec![usage(25)],
        stop_with(StopReason::EndTurn, Usage { input_tokens: 5, output_tokens: 25, ..Usage::default() }),
    ])]);
    assert_eq!(run(&bench).await.usage.output_tokens, 25);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_reported_use_is_estimated() {
    let bench =
        Bench::new([answer([text(0, "x"), vec![Step::Event(StreamEvent::Stopped(StopReason::EndTurn))]])]);
    let exit = run(&bench).await;
    assert!(exit.usage.estimated && exit.usage.input_tokens > 0);
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_nudged_once() {
    let empty = || answer([stop(StopReason::EndTurn)]);
    let bench = Bench::new([empty(), empty()]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    assert_eq!((exit.text.as_str(), exit.text_from_earlier), ("", false));
    assert_eq!(last_request(&bench), "user: the task\nuser: continue");
}

#[tokio::test(start_paused = true)]
async fn hooks_refuse_the_end_and_are_heard_eight_times() {
    use crate::ports::HookAnswer;
    let bench = Bench::new((0..8).map(|_| says("done")));
    for _ in 0..8 {
        bench.hooks.push(HookAnswer::Block { reason: "tests fail".to_owned() });
    }
    assert_eq!(run(&bench).await.exit, ExitReason::StopHookPrevented);
    assert!(last_request(&bench).ends_with("assistant: done\nuser: tests fail"));

    let bench = Bench::new([says("done")]);
    bench.hooks.push(HookAnswer::Stop { message: "enough".to_owned() });
    assert_eq!(run(&bench).await.exit, ExitReason::HookStopped { message: "enough".to_owned() });
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_and_leaves_nothing() {
    let refusal = StopReason::Refusal { explanation: "not that".to_owned() };
    let bench = Bench::new([answer([text(0, "I will"), stop(refusal)])]);
    assert_eq!(run(&bench).await.exit, ExitReason::Refused { message: "not that".to_owned() });
    let state = LoopState::fold(bench.transcript.records().iter());
    assert_eq!(render(&state.messages), "user: the task");
}

#[tokio::test(start_paused = true)]
async fn a_paused_answer_is_sent_again_unchanged() {
    let bench = Bench::new([answer([text(0, "searching"), stop(StopReason::PauseTurn)]), says("found")]);
    let mut engine = audited(bench.engine(), Vec::new());
    assert_eq!(engine.run(&Cancel::default()).await.exit, ExitReason::Completed);
    assert_eq!(last_request(&bench), "user: the task\nassistant: searching");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_stop_reason_ends_like_end_turn() {
    let bench = Bench::new([answer([text(0, "x"), stop(StopReason::Unknown { word: "new".to_owned() })])]);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_ends_the_loop() {
    let write = FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("ok")));
    let bench = Bench::new([calls("t1", "Write", json!({}))]).tool(Arc::clone(&write));
    let hold = bench.gate.hold("Write");
    let mut engine = bench.engine();
    let cancel = Cancel::default();
    let fill = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.transcript.fill_up();
        hold.notify_one();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), fill);
    assert!(matches!(exit.exit, ExitReason::StorageError { .. }), "{:?}", exit.exit);
    // The intent could not be written, so the effect was not had.
    assert!(write.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a04_blank_text_is_stored_and_not_sent() {
    let bench = Bench::new([
        answer([text(0, "\n \n"), call(1, "t1", "Read", json!({})), stop(StopReason::ToolUse)]),
        says("x"),
    ])
    .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    run(&bench).await;
    let stored = bench.transcript.records().into_iter().any(|record| match record {
        RecordBody::Assistant { message, .. } => message.content.contains(&Block::text("\n \n")),
        _ => false,
    });
    assert!(stored);
    assert_eq!(last_request(&bench), "user: the task\nassistant calls t1: Read {}\nuser answers t1: ok");
}

#[tokio::test(start_paused = true)]
async fn a05_an_empty_result_says_so() {
    for content in [vec![], vec![ResultBlock::Text { text: "  ".to_owned() }]] {
        let output = ToolOutput { content, ..ToolOutput::text("") };
        let bench = Bench::new([calls("t1", "Read", json!({})), says("x")])
            .tool(FakeTool::reads("Read", Behaviour::Answer(output)));
        run(&bench).await;
        assert!(last_request(&bench).ends_with("user answers t1: (no output)"));
    }
}

#[tokio::test(start_paused = true)]
async fn thinking_goes_back_whole_to_the_same_model() {
    let bench = Bench::new([
        answer([thinking(0, "hm"), call(1, "t1", "Read", json!({})), stop(StopReason::ToolUse)]),
        says("x"),
    ])
    .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    run(&bench).await;
    assert!(last_request(&bench).contains("assistant thinks: hm\nassistant calls t1"));
}

#[tokio::test(start_paused = true)]
async fn the_second_of_two_calls_with_one_id_is_left_out() {
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok")));
    let bench = Bench::new([
        answer([
            call(0, "t1", "Read", json!({"a": 1})),
            call(1, "t1", "Read", json!({"a": 2})),
            stop(StopReason::ToolUse),
        ]),
        says("x"),
    ])
    .tool(Arc::clone(&read));
    run(&bench).await;
    assert_eq!(read.calls(), [json!({"a": 1})]);
}
