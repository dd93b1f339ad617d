//! Dispatch, order, siblings, gates, interrupts.

use tokio::{sync::Notify, time::Instant};

use super::*;
use crate::{
    executor::{INTERRUPTED, SIBLING_FAILED},
    ports::Durability,
    testing::{failed_command, wrote},
};

fn two_calls(first: &str, second: &str) -> crate::testing::Script {
    answer([
        call(0, "t1", first, json!({"n": 1})),
        call(1, "t2", second, json!({"n": 2})),
        stop(StopReason::ToolUse),
    ])
}

#[tokio::test(start_paused = true)]
async fn a_call_starts_while_the_model_still_streams() {
    let gate = Arc::new(Notify::new());
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok")));
    let bench = Bench::new([
        answer([
            call(0, "t1", "Read", json!({"n": 1})),
            vec![Step::Gate(Arc::clone(&gate))],
            text(1, "more"),
            stop(StopReason::ToolUse),
        ]),
        says("x"),
    ])
    .tool(Arc::clone(&read));
    let mut engine = bench.engine();
    let cancel = Cancel::default();
    let watch = async {
        while bench.transcript.shape() != "user request_started | tool_finished" {
            tokio::task::yield_now().await;
        }
        assert_eq!(read.calls().len(), 1);
        gate.notify_one();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), watch);
    assert_eq!(exit.exit, ExitReason::Completed);
}

#[tokio::test(start_paused = true)]
async fn the_intent_precedes_the_first_effect_and_is_synced() {
    let write = FakeTool::writes("Write", Behaviour::Answer(wrote("/a")));
    let bench = Bench::new([two_calls("Write", "Write"), says("x")]).tool(Arc::clone(&write));
    run(&bench).await;
    assert!(
        bench.transcript.shape().starts_with("user request_started | intent | tool_finished | "),
        "{}",
        bench.transcript.shape()
    );
    for (batch, durability) in bench.transcript.batches() {
        match &batch[0] {
            RecordBody::Intent { .. } | RecordBody::ToolFinished(_) | RecordBody::Assistant { .. } => {
                let last =
                    matches!(&batch[0], RecordBody::Assistant { message, .. } if message.text() == "x");
                assert!(last || durability == Durability::Now);
            }
            _ => {}
        }
    }
    assert_eq!(bench.surroundings.turns(), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn safe_calls_run_together_and_results_keep_the_order_of_the_calls() {
    let slow = FakeTool::reads("Slow", Behaviour::Sleep(Duration::from_secs(5), ToolOutput::text("slow")));
    let fast = FakeTool::reads("Fast", Behaviour::Sleep(Duration::from_secs(1), ToolOutput::text("fast")));
    let bench = Bench::new([two_calls("Slow", "Fast"), says("x")]).tool(slow).tool(fast);
    let began = Instant::now();
    run(&bench).await;
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(last_request(&bench).ends_with("user answers t1: slow\nuser answers t2: fast"));
}

#[tokio::test(start_paused = true)]
async fn at_most_ten_run_together_and_unsafe_ones_alone() {
    let second = Duration::from_secs(1);
    for (tool, most, seconds) in [
        (FakeTool::reads("Tool", Behaviour::Sleep(second, ToolOutput::text("ok"))), 10, 2),
        (FakeTool::writes("Tool", Behaviour::Sleep(second, ToolOutput::text("ok"))), 1, 12),
    ] {
        let many = (0..12)
            .map(|index| call(index, &format!("t{index}"), "Tool", json!({"n": index})))
            .chain([stop(StopReason::ToolUse)]);
        let bench = Bench::new([answer(many), says("x")]).tool(Arc::clone(&tool));
        let began = Instant::now();
        run(&bench).await;
        assert_eq!((tool.most_running(), began.elapsed().as_secs()), (most, seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_command_cancels_its_siblings_of_every_batch() {
    let bash = FakeTool::writes("Bash", Behaviour::Answer(failed_command("exit 2")));
    let slow = FakeTool::reads("Slow", Behaviour::Hang);
    let after = FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("w")));
    let done = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([
        answer([
            call(0, "t1", "Read", json!({"n": 1})),
            call(1, "t2", "Bash", json!({"n": 1})),
            call(2, "t3", "Slow", json!({"n": 1})),
            call(3, "t4", "Write", json!({"n": 1})),
            stop(StopReason::ToolUse),
        ]),
        says("x"),
    ])
    .tool(done)
    .tool(bash)
    .tool(slow)
    .tool(Arc::clone(&after));
    run(&bench).await;
    assert!(after.calls().is_empty());
    assert!(last_request(&bench).ends_with(&format!(
        "user answers t1: r\nuser answers t2 failed: exit 2\nuser answers t3 failed: {SIBLING_FAILED}\nuser answers t4 failed: {SIBLING_FAILED}"
    )));
}

#[tokio::test(start_paused = true)]
async fn a_running_sibling_that_hangs_is_dropped_after_the_grace() {
    // Two safe calls run together; the second fails as a command does.
    let slow = FakeTool::reads("Slow", Behaviour::Hang);
    let bash = FakeTool::reads("Bash", Behaviour::Sleep(Duration::from_secs(1), failed_command("exit 2")));
    let bench = Bench::new([two_calls("Slow", "Bash"), says("x")]).tool(slow).tool(bash);
    let began = Instant::now();
    run(&bench).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(last_request(&bench).contains(&format!("user answers t1 failed: {SIBLING_FAILED}")));
}

#[tokio::test(start_paused = true)]
async fn failures_of_other_tools_cancel_nobody() {
    let edit = FakeTool::writes("Edit", Behaviour::Answer(ToolOutput::error("no match")));
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([two_calls("Edit", "Read"), says("x")]).tool(edit).tool(read);
    run(&bench).await;
    assert!(last_request(&bench).ends_with("user answers t1 failed: no match\nuser answers t2: r"));
}

#[tokio::test(start_paused = true)]
async fn a_tools_panic_is_an_answer() {
    let bug = FakeTool::reads("Bug", Behaviour::Panic);
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([two_calls("Bug", "Read"), says("x")]).tool(bug).tool(read);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(last_request(&bench).contains("user answers t1 failed: the tool failed inside"));
    assert!(last_request(&bench).contains("user answers t2: r"));
}

#[tokio::test(start_paused = true)]
async fn s22_a_denial_while_streaming_is_the_result_of_its_call_only() {
    let gate = Arc::new(Notify::new());
    let write = FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("w")));
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([
        answer([
            call(0, "t1", "Write", json!({"n": 1})),
            vec![Step::Sleep(Duration::from_secs(1))],
            call(1, "t2", "Read", json!({"n": 2})),
            stop(StopReason::ToolUse),
        ]),
        says("x"),
    ])
    .tool(Arc::clone(&write))
    .tool(read);
    gate.notify_one();
    bench.gate.deny("Write", "denied by the person", false);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(write.calls().is_empty());
    assert!(
        last_request(&bench).ends_with("user answers t1 failed: denied by the person\nuser answers t2: r")
    );
    // No effect, no intent.
    assert!(!bench.transcript.shape().contains("intent"));
}

#[tokio::test(start_paused = true)]
async fn deny_and_stop_ends_the_agent_with_every_call_answered() {
    let write = FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("w")));
    let bench = Bench::new([two_calls("Write", "Write")]).tool(Arc::clone(&write));
    bench.gate.deny("Write", "stop", true);
    assert_eq!(run(&bench).await.exit, ExitReason::DeniedAndStopped);
    assert!(write.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_permission_suspends_its_own_call_only() {
    let fetch = FakeTool::reads("Fetch", Behaviour::Answer(ToolOutput::text("f")));
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([two_calls("Fetch", "Read"), says("x")]).tool(fetch).tool(Arc::clone(&read));
    let held = bench.gate.hold("Fetch");
    let mut engine = bench.engine();
    let cancel = Cancel::default();
    let decide = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(read.calls().len(), 1);
        held.notify_one();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), decide);
    assert_eq!(exit.exit, ExitReason::Completed);
    assert!(last_request(&bench).ends_with("user answers t1: f\nuser answers t2: r"));
}

#[tokio::test(start_paused = true)]
async fn s26_a_malformed_name_in_a_batch_is_an_error_and_the_other_runs() {
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("r")));
    let bench = Bench::new([two_calls("Re ad\n", "Read"), says("x")]).tool(read);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    let sent = last_request(&bench);
    assert!(sent.contains("user answers t1 failed: There is no tool named \"Re ad\\n\""), "{sent}");
    assert!(sent.contains("user answers t2: r"));
    assert!(sent.contains("calls t1: Re_ad_ "), "providers take back no such name: {sent}");
}

async fn interrupted_after(bench: &Bench, after: Duration, engine: &mut Engine) -> (RunExit, Duration) {
    let cancel = Cancel::default();
    let interrupt = async {
        tokio::time::sleep(after).await;
        cancel.interrupt.cancel();
        Instant::now()
    };
    let (exit, at) = tokio::join!(engine.run(&cancel), interrupt);
    check_invariants(bench, engine);
    (exit, at.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a01_an_interrupted_call_has_its_result_before_the_next_message() {
    let hang = FakeTool::writes("Bash", Behaviour::Hang);
    let bench = Bench::new([two_calls("Bash", "Bash"), says("x")]).tool(Arc::clone(&hang));
    let mut engine = audited(bench.engine(), Vec::new());
    let (exit, took) = interrupted_after(&bench, Duration::from_secs(3), &mut engine).await;
    assert_eq!(exit.exit, ExitReason::AbortedTools);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(bench.transcript.shape().ends_with("assistant user tombstone"));
    bench.inbox.put("do something else", Origin::Person { message_id: None });
    assert_eq!(engine.run(&Cancel::default()).await.exit, ExitReason::Completed);
    check_invariants(&bench, &engine);
    assert!(last_request(&bench).ends_with(&format!(
        "user answers t1 failed: {INTERRUPTED}\nuser answers t2 failed: {INTERRUPTED}\nuser: do something else"
    )));
    assert_eq!(hang.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_while_streaming_keeps_words_and_drops_thinking() {
    let bench = Bench::new([answer([thinking(0, "hm"), open_text(1, "so far"), vec![Step::Hang]])]);
    let mut engine = audited(bench.engine(), Vec::new());
    let (exit, took) = interrupted_after(&bench, Duration::from_secs(3), &mut engine).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::AbortedStreaming, "so far"));
    assert!(took < Duration::from_millis(10));
    assert_eq!(render(&engine.state().messages), "user: the task\nassistant: so far");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_wait_between_two_tries() {
    let bench =
        Bench::new((0..9).map(|_| crate::testing::Script::from(error(ModelErrorKind::Overloaded, "529"))));
    let mut engine = audited(bench.engine(), Vec::new());
    let (exit, took) = interrupted_after(&bench, Duration::from_secs(10), &mut engine).await;
    assert_eq!(exit.exit, ExitReason::AbortedStreaming);
    assert!(took < Duration::from_millis(10));
    assert!(bench.transcript.shape().ends_with("tombstone"));
}

#[tokio::test(start_paused = true)]
async fn what_ended_well_in_spite_of_an_interrupt_has_happened() {
    let bash = FakeTool::writes("Bash", Behaviour::UntilCancelled(wrote("/a")));
    let bench = Bench::new([calls("t1", "Bash", json!({"n": 1}))]).tool(bash);
    let mut engine = audited(bench.engine(), Vec::new());
    let (exit, _) = interrupted_after(&bench, Duration::from_secs(3), &mut engine).await;
    assert_eq!(exit.exit, ExitReason::AbortedTools);
    assert!(render(&engine.state().messages).ends_with("user answers t1: wrote /a"));
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_withdraws_a_wait_for_permission() {
    let write = FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("w")));
    let bench = Bench::new([calls("t1", "Write", json!({"n": 1}))]).tool(Arc::clone(&write));
    let _held = bench.gate.hold("Write");
    let mut engine = audited(bench.engine(), Vec::new());
    let (exit, took) = interrupted_after(&bench, Duration::from_secs(3), &mut engine).await;
    assert_eq!(exit.exit, ExitReason::AbortedTools);
    assert!(took < Duration::from_secs(1));
    assert!(write.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_works_as_an_interrupt() {
    let bench = Bench::new([answer([open_text(0, "so far"), vec![Step::Hang]])]);
    let mut engine = audited(bench.engine(), Vec::new());
    let cancel = Cancel::default();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.stop.cancel();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), stop);
    assert_eq!(exit.exit, ExitReason::AbortedStreaming);
}

#[tokio::test(start_paused = true)]
async fn a_long_result_is_cut_before_it_is_sent_and_kept_whole() {
    let long = "x".repeat(2_000);
    let tool = |limit| {
        Arc::new(FakeTool::new("Tool", Behaviour::Answer(ToolOutput::text(&long)), true).limited(limit))
    };
    let bench = Bench::new([calls("t1", "Tool", json!({})), says("x")]).tool(tool(Some(1_000)));
    run(&bench).await;
    assert!(
        last_request(&bench)
            .contains("[cut: 1800 of 2000 characters left out; the whole result is in /kept/t1]")
    );
    assert_eq!(bench.surroundings.kept(), [(id("t1"), long.clone())]);
    assert!(bench.transcript.shape().contains("content_replacement tool_finished"));

    let bench = Bench::new([calls("t1", "Tool", json!({})), says("x")]).tool(tool(None));
    run(&bench).await;
    assert!(last_request(&bench).ends_with(&long));
}

#[tokio::test(start_paused = true)]
async fn the_results_of_a_turn_fit_its_budget_together() {
    let tool = FakeTool::reads("Tool", Behaviour::Answer(ToolOutput::text("x".repeat(45_000))));
    let many = (0..6)
        .map(|index| call(index, &format!("t{index}"), "Tool", json!({"n": index})))
        .chain([stop(StopReason::ToolUse)]);
    let bench = Bench::new([answer(many), says("x")]).tool(tool);
    run(&bench).await;
    let sent = last_request(&bench);
    assert_eq!(sent.matches("[cut: ").count(), 2);
    assert!(sent.len() < 210_000);
}
