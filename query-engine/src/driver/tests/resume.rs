//! What a dead process left behind is closed, and nothing runs twice.

use super::*;
use crate::{
    state::{Counters, OUTCOME_UNKNOWN},
    testing::wrote,
};

/// The records of a run that is cut off after each append in turn.
fn prefixes(bench: &Bench) -> Vec<Vec<RecordBody>> {
    let mut records = Vec::new();
    let mut prefixes = vec![Vec::new()];
    for (batch, _) in bench.transcript.batches() {
        records.extend(batch);
        prefixes.push(records.clone());
    }
    prefixes
}

#[tokio::test(start_paused = true)]
async fn every_place_to_die_resumes_with_i1_and_without_a_second_effect() {
    let scripts = || {
        [
            answer([
                call(0, "t1", "Write", json!({"n": 1})),
                call(1, "t2", "Write", json!({"n": 2})),
                stop(StopReason::ToolUse),
            ]),
            says("done"),
        ]
    };
    let write = || FakeTool::writes("Write", Behaviour::Answer(wrote("/a")));
    let whole = Bench::new(scripts()).tool(write());
    run(&whole).await;
    for records in prefixes(&whole) {
        let has_intent = records.iter().any(|record| matches!(record, RecordBody::Intent { .. }));
        let again = write();
        let bench = Bench::new(if has_intent { vec![says("done")] } else { scripts().to_vec() })
            .tool(Arc::clone(&again));
        let state = LoopState::fold(records.iter());
        if !state.messages.is_empty() {
            // The prompt was taken in before the end.
            drop(crate::ports::Inbox::drain(bench.inbox.as_ref()).await);
        }
        let mut engine = Engine::new(bench.config(), bench.ports(), state);
        engine.audit = Some(records.clone());
        let exit = engine.run(&Cancel::default()).await;
        assert_eq!(exit.exit, ExitReason::Completed);
        assert_eq!(again.calls().len(), if has_intent { 0 } else { 2 });
        for request in bench.model.requests() {
            check_messages(&request.messages);
        }
        // What was appended by both processes folds to the same conversation.
        let all: Vec<RecordBody> = records.into_iter().chain(bench.transcript.records()).collect();
        assert_eq!(LoopState::fold(all.iter()).messages, engine.state().messages);
    }
}

#[test]
fn finished_calls_keep_their_result_and_others_are_unknown() {
    let records = [
        RecordBody::User {
            message: Message::user_text("the task"),
            origin: Origin::Prompt,
            commands: Vec::new(),
        },
        RecordBody::RequestStarted { request: 1, model: "m".to_owned(), estimated_tokens: 0 },
        RecordBody::Intent {
            request: 1,
            blocks: ["t1", "t2"]
                .map(|call| Block::ToolUse {
                    id: id(call),
                    name: "Bash".to_owned(),
                    input: json!({}),
                    provider_data: None,
                })
                .to_vec(),
        },
        RecordBody::ToolFinished(swarm_protocol::record::ToolFinished {
            tool_use_id: id("t1"),
            name: "Bash".to_owned(),
            result: Block::tool_result(id("t1"), "ok", false),
            duration_ms: 1,
            effect: Default::default(),
            seen: None,
        }),
    ];
    let state = LoopState::fold(records.iter());
    assert_eq!(
        render(&state.messages),
        format!(
            "user: the task\nassistant calls t1: Bash {{}}\nassistant calls t2: Bash {{}}\nuser answers t1: ok\nuser answers t2 failed: {OUTCOME_UNKNOWN}"
        )
    );
    assert_eq!(state.unsaved.len(), 2);
    // Whether or not the closing records were written, the next fold says the same.
    let next = RecordBody::RequestStarted { request: 2, model: "m".to_owned(), estimated_tokens: 0 };
    let unwritten = LoopState::fold(records.iter().chain([&next]));
    let written = LoopState::fold(records.iter().chain(&state.unsaved).chain([&next]));
    assert_eq!(unwritten.durable(), written.durable());
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<LoopState>(&json).unwrap(), state);
}

#[tokio::test(start_paused = true)]
async fn a02_a_history_with_lost_or_late_results_is_repaired_when_sent() {
    let call = |call: &str| Block::ToolUse {
        id: id(call),
        name: "Read".to_owned(),
        input: json!({}),
        provider_data: None,
    };
    let messages = vec![
        Message::user_text("the task"),
        Message::assistant(vec![call("t1"), call("t2"), call("t3")]),
        Message::user(vec![Block::tool_result(id("t3"), "three", false)]),
        Message::assistant(vec![Block::text("a side turn")]),
        Message::user(vec![
            Block::tool_result(id("t1"), "one", false),
            Block::tool_result(id("t9"), "?", false),
        ]),
    ];
    let bench = Bench::new([says("x")]);
    let state = LoopState::restored(messages.clone(), messages[..1].to_vec(), Counters::default());
    assert_eq!(state.messages, messages, "what is stored never changes");
    let mut engine = Engine::new(bench.config(), bench.ports(), state);
    assert_eq!(engine.run(&Cancel::default()).await.exit, ExitReason::Completed);
    let sent = &bench.model.requests()[0].messages;
    check_messages(sent);
    assert_eq!(
        render(sent),
        format!(
            "user: the task\nassistant calls t1: Read {{}}\nassistant calls t2: Read {{}}\nassistant calls t3: Read {{}}\n\
             user answers t1: one\nuser answers t2 failed: {OUTCOME_UNKNOWN}\nuser answers t3: three\nassistant: a side turn\nuser: the task"
        )
    );
}

#[test]
fn a_restored_state_closes_its_open_calls() {
    let call =
        Block::ToolUse { id: id("t1"), name: "Agent".to_owned(), input: json!({}), provider_data: None };
    let messages = vec![Message::user_text("the task"), Message::assistant(vec![call])];
    let state = LoopState::restored(messages.clone(), messages[..1].to_vec(), Counters::default());
    assert_eq!(state.first, Some(Message::user_text("the task")));
    assert!(render(&state.messages).ends_with(&format!("user answers t1 failed: {OUTCOME_UNKNOWN}")));
    assert_eq!(state.unsaved.len(), 1);
}
