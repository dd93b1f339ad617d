//! An agent that repeats itself (spec 2.6, L01–L04).

use super::*;

fn same(n: usize) -> crate::testing::Script {
    calls(&format!("t{n}"), "Read", json!({"file_path": "a"}))
}

fn reads(result: &str) -> Arc<FakeTool> {
    FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text(result)))
}

fn n_reminders(bench: &Bench) -> usize {
    last_request(bench).matches("You repeat yourself: ").count()
}

#[tokio::test(start_paused = true)]
async fn l01_the_third_equal_call_brings_a_reminder_and_the_fifth_a_question() {
    let bench = Bench::new((0..9).map(same)).tool(reads("ok"));
    let exit = run(&bench).await;
    assert_eq!((exit.exit, exit.turns), (ExitReason::LoopDetected, 5));
    let requests = bench.model.requests();
    let said = |n: usize| render(&requests[n].messages);
    assert!(!said(2).contains("You repeat yourself"));
    assert!(said(3).contains("the same call of Read with the same result, 3 times in a row"), "{}", said(3));
    assert_eq!(n_reminders(&bench), 1);
    assert_eq!(bench.gate.questions(), ["the same call of Read with the same result, 5 times in a row"]);
    assert_eq!(exit.notes, ["it repeated the same call of Read with the same result, 5 times in a row"]);
}

#[tokio::test(start_paused = true)]
async fn a_person_may_let_it_go_on_for_a_while() {
    let bench = Bench::new((0..30).map(same)).tool(reads("ok"));
    bench.gate.let_go_on();
    let mut config = bench.config();
    config.max_turns = Some(20);
    let mut engine = audited(Engine::new(config, bench.ports(), LoopState::default()), Vec::new());
    assert_eq!(engine.run(&Cancel::default()).await.exit, ExitReason::MaxTurns { limit: 20 });
    check_invariants(&bench, &engine);
    // Counts are not followed for ever: what is over the line stays over it.
    assert_eq!(bench.gate.questions().len(), 2, "{:?}", bench.gate.questions());
    assert_eq!(n_reminders(&bench), 1);
}

#[tokio::test(start_paused = true)]
async fn l02_calls_whose_results_change_are_no_loop() {
    let scripts = (0..12).map(same).chain([says("done")]);
    let outputs = (0..12).map(|n| ToolOutput::text(format!("{n} of 12 are done"))).collect();
    let polled = Behaviour::Sequence(Arc::new(std::sync::Mutex::new(outputs)));
    let bench = Bench::new(scripts).tool(FakeTool::reads("Read", polled));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(n_reminders(&bench), 0);
    assert_eq!(bench.gate.questions(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_calls_and_calls_of_one_response_are_seen() {
    let cycle = |n: usize| calls(&format!("t{n}"), ["Read", "Grep"][n % 2], json!({}));
    let bench = Bench::new((0..6).map(cycle).chain([says("done")]))
        .tool(reads("ok"))
        .tool(FakeTool::reads("Grep", Behaviour::Answer(ToolOutput::text("ok"))));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(
        last_request(&bench)
            .contains("the same 2 calls (Read, Grep) with the same results, 3 times in a row")
    );

    let response = |from: usize| {
        let calls = (0..6).map(|n| call(n, &format!("t{}", from + n), "Read", json!({})));
        answer(calls.chain([stop(StopReason::ToolUse)]))
    };
    let bench = Bench::new([response(0), response(6), says("done")]).tool(reads("ok"));
    // First the reminder, however many there were.
    assert_eq!(run(&bench).await.exit, ExitReason::LoopDetected);
    assert_eq!((n_reminders(&bench), bench.model.requests().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn another_way_forgets_the_reminder() {
    let other = calls("other", "Read", json!({"file_path": "b"}));
    let scripts = (0..3).map(same).chain([other]).chain((3..6).map(same)).chain([says("done")]);
    let bench = Bench::new(scripts).tool(reads("ok"));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(n_reminders(&bench), 2);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_wait_for_the_person() {
    let bench = Bench::new((0..9).map(same)).tool(reads("ok"));
    let asked = bench.gate.hold_question();
    let cancel = Cancel::default();
    let mut engine = audited(bench.engine(), Vec::new());
    let interrupt = async {
        asked.notified().await;
        cancel.interrupt.cancel();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), interrupt);
    assert_eq!(exit.exit, ExitReason::AbortedStreaming);
    check_invariants(&bench, &engine);
}

#[tokio::test(start_paused = true)]
async fn l04_a_passage_said_again_and_again_is_cut_and_the_second_time_it_ends() {
    let passage = "Let me look at the file again, to be sure that nothing was missed.\n\n";
    let endless = || answer([open_text(0, &format!("First.\n{}", passage.repeat(400))), vec![Step::Hang]]);
    let bench = Bench::new([endless(), says("Right.")]);
    let exit = run(&bench).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "Right."));
    let sent = last_request(&bench);
    assert!(sent.contains("assistant: First.\n"), "what it said is kept");
    assert_eq!(sent.matches(passage.trim()).count(), 1, "once: {sent}");
    assert!(sent.contains("You repeat yourself: the same passage of words"));

    let bench = Bench::new([endless(), endless(), says("never")]);
    assert_eq!(run(&bench).await.exit, ExitReason::LoopDetected);
    assert_eq!(bench.gate.questions(), ["the same passage of words"]);
}
