//! Room in the window.

use super::*;
use crate::{
    context::autocompact::{INSTRUCTION, SUMMARY_TITLE},
    ports::ModelInfo,
    state::COMPACTION_FAILURES,
    testing::{Script, ScriptedModel},
};

/// A bench whose window holds `window` tokens; a `Read` brings about 4,000 tokens.
fn bench(window: u64, scripts: impl IntoIterator<Item = Script>) -> Bench {
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("line of text\n".repeat(1_150))));
    let mut bench = Bench::new([]).tool(read);
    let info =
        ModelInfo { name: "test/model".to_owned(), context_window: window, max_output: 1_000, caches: true };
    bench.model = ScriptedModel::with_info(info, scripts);
    bench
}

/// A turn that reads, with a use that fits what was sent: none is reported, so all is estimated.
fn reads(turn: usize) -> Script {
    answer([
        call(0, &format!("t{turn}"), "Read", json!({"n": turn})),
        vec![Step::Event(StreamEvent::Stopped(StopReason::ToolUse))],
    ])
}

fn is_summary_request(request: &crate::ports::ModelRequest) -> bool {
    request.messages.last().is_some_and(|message| message.content.contains(&Block::text(INSTRUCTION)))
}

fn too_long() -> Script {
    Script::from(error(ModelErrorKind::PromptTooLong { limit: None }, "prompt is too long"))
}

#[tokio::test(start_paused = true)]
async fn k07_the_window_is_checked_before_every_request_of_a_run() {
    // 20,000 tokens: the fifth answer would be asked for with 16,000 and more.
    let bench = bench(
        20_000,
        [reads(1), reads(2), reads(3), reads(4), reads(5), says("1. Goal: the task"), says("done")],
    );
    let exit = run(&bench).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "done"));
    let requests = bench.model.requests();
    assert_eq!(requests.iter().filter(|request| is_summary_request(request)).count(), 1);
    let sent = last_request(&bench);
    assert!(
        sent.starts_with(&format!(
            "user: the task\nuser: {SUMMARY_TITLE}\n1. Goal: the task\nassistant calls t"
        )),
        "{sent:.300}"
    );
    // One append holds the boundary and the request that follows it.
    assert!(bench.transcript.shape().contains("helper_call | compact_boundary request_started"));
}

#[tokio::test(start_paused = true)]
async fn k10_the_first_request_and_the_persons_words_survive_two_compactions() {
    // The second time the kept tail takes the place of a round.
    let round = |from: usize, to: usize| (from..to).map(reads);
    let scripts: Vec<Script> = round(1, 6)
        .chain([says("first summary")])
        .chain(round(6, 10))
        .chain([says("second summary")])
        .chain(round(11, 12))
        .chain([says("done")])
        .collect();
    let bench = bench(20_000, scripts);
    bench.inbox.put("CANARY: never touch main", Origin::Person { message_id: None });
    bench.surroundings.attach("roster: agent-a1b");
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    let sent = last_request(&bench);
    assert!(
        sent.starts_with(&format!(
            "user: the task\nuser: {SUMMARY_TITLE}\nsecond summary\nuser: CANARY: never touch main\nuser: roster: agent-a1b\nassistant"
        )),
        "{sent:.400}"
    );
    assert_eq!(sent.matches("CANARY").count(), 1);
    assert_eq!(sent.matches(SUMMARY_TITLE).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn k02_a_finished_turn_starts_no_compaction() {
    let full = Usage { input_tokens: 190_000, output_tokens: 10, ..Usage::default() };
    let bench = Bench::new([answer([text(0, "done"), stop_with(StopReason::EndTurn, full)])]);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(bench.model.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn k04_a_summary_that_saves_too_little_is_refused_and_counted() {
    let summary = "words of a summary ".repeat(2_500);
    let scripts: Vec<Script> = (1..=4).map(reads).chain([says(&summary), says("done")]).collect();
    let bench = bench(18_500, scripts);
    let mut engine = audited(bench.engine(), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(&bench, &engine);
    // Still under the hard line, so the request went out unchanged.
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert_eq!(engine.state().compaction.failures, 1);
    assert!(!bench.transcript.shape().contains("compact_boundary"));
}

#[tokio::test(start_paused = true)]
async fn k05_the_providers_word_beats_the_estimate() {
    let bench =
        bench(200_000, [reads(1), reads(2), reads(3), reads(4), too_long(), says("summary"), says("done")]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert!(last_request(&bench).contains(SUMMARY_TITLE));
    assert!(bench.transcript.records().iter().any(
        |record| matches!(record, RecordBody::CompactBoundary(boundary) if boundary.trigger == "overflow")
    ));
}

#[tokio::test(start_paused = true)]
async fn k08_a_summary_request_that_is_too_long_is_tried_with_less() {
    let bench = bench(
        200_000,
        [
            reads(1),
            reads(2),
            reads(3),
            reads(4),
            too_long(),
            too_long(),
            too_long(),
            says("summary"),
            says("done"),
        ],
    );
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    let sizes: Vec<usize> = bench
        .model
        .requests()
        .iter()
        .filter(|request| is_summary_request(request))
        .map(|request| request.messages.len())
        .collect();
    assert_eq!(sizes, [9, 5, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_stays_too_long_ends_so() {
    let bench = bench(200_000, [reads(1), too_long(), too_long(), too_long(), too_long(), too_long()]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::PromptTooLong);
    assert!(exit.notes.iter().any(|note| note.contains("the largest parts are")), "{:?}", exit.notes);
}

#[tokio::test(start_paused = true)]
async fn k19_without_compaction_an_overflow_ends_the_run() {
    let bench = bench(200_000, [reads(1), too_long()]);
    let config = super::super::EngineConfig { auto_compact: false, ..bench.config() };
    let mut engine = Engine::new(config, bench.ports(), LoopState::default());
    assert_eq!(engine.run(&Cancel::default()).await.exit, ExitReason::PromptTooLong);
}

#[tokio::test(start_paused = true)]
async fn over_the_hard_line_nothing_is_sent() {
    let bench = bench(20_000, [reads(1), reads(2), reads(3), reads(4), reads(5), says("never asked")]);
    let config = super::super::EngineConfig { auto_compact: false, ..bench.config() };
    let mut engine = Engine::new(config, bench.ports(), LoopState::default());
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!(exit.exit, ExitReason::BlockingLimit);
    assert_eq!(bench.model.left(), 1);
    assert!(exit.notes[0].contains("the largest parts are message"), "{:?}", exit.notes);
}

#[tokio::test(start_paused = true)]
async fn k01_a_prefix_that_fills_the_window_opens_the_breaker() {
    // The window is so small that every turn is over the threshold again.
    let turns = (1..=4).flat_map(|turn| [reads(turn), says("summary")]);
    let bench = bench(4_600, turns.chain([reads(5), too_long()]));
    let mut engine = audited(bench.engine(), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(&bench, &engine);
    assert!(engine.state().compaction.disabled);
    assert_eq!(engine.state().compaction.boundaries, COMPACTION_FAILURES + 1);
    // With the breaker open the request went straight to the provider.
    assert_eq!(exit.exit, ExitReason::PromptTooLong);
    assert_eq!(bench.model.left(), 0);
    assert!(exit.notes.iter().any(|note| note.contains("the largest parts are")), "{:?}", exit.notes);
}

#[tokio::test(start_paused = true)]
async fn k13_one_turn_that_is_too_long_alone_is_cut_inside_its_results() {
    let many = (0..10)
        .map(|index| call(index, &format!("t{index}"), "Read", json!({"n": index})))
        .chain([vec![Step::Event(StreamEvent::Stopped(StopReason::ToolUse))]]);
    let bench = bench(30_000, [answer(many), says("summary"), says("done")]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    let sent = last_request(&bench);
    assert_eq!(sent.matches("[cut: ").count(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_full_window_while_answering_makes_room_and_goes_on() {
    let bench = bench(
        200_000,
        [
            reads(1),
            reads(2),
            reads(3),
            answer([text(0, "half an ans"), stop(StopReason::ContextWindowExceeded)]),
            says("summary"),
            says("done"),
        ],
    );
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert!(last_request(&bench).contains("assistant: half an ans\nuser: Your output reached"));
}

#[tokio::test(start_paused = true)]
async fn a_cold_cache_lets_the_helper_summarise() {
    let info = ModelInfo {
        name: "test/helper".to_owned(),
        context_window: 200_000,
        max_output: 4_000,
        caches: false,
    };
    let mut bench = bench(20_000, [reads(1), reads(2), reads(3), reads(4), reads(5), says("done")]);
    bench.helper = Some(ScriptedModel::with_info(info, [says("of the helper")]));
    let config = super::super::EngineConfig { cache_ttl: Duration::ZERO, ..bench.config() };
    let mut engine = audited(Engine::new(config, bench.ports(), LoopState::default()), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert!(last_request(&bench).contains("of the helper"));
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_summary_request() {
    let bench = bench(20_000, [reads(1), reads(2), reads(3), reads(4), reads(5), answer([vec![Step::Hang]])]);
    let mut engine = audited(bench.engine(), Vec::new());
    let cancel = Cancel::default();
    let interrupt = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.interrupt.cancel();
    };
    let (exit, ()) = tokio::join!(engine.run(&cancel), interrupt);
    assert_eq!(exit.exit, ExitReason::AbortedStreaming);
    check_invariants(&bench, &engine);
}

#[tokio::test(start_paused = true)]
async fn a_full_window_that_clearing_hardly_empties_is_summarised() {
    // The one old result frees less than a tenth of the window and in some of these sizes still brings it below the
    // line: a summary follows all the same, or the next result would block the agent.
    let sizes = (900..1_300)
        .step_by(50)
        .flat_map(|lines| (1_600..3_200).step_by(400).map(move |words| (words, lines)));
    for (words, lines) in sizes {
        let search = calls("s", "Grep", json!({"pattern": "x"}));
        let note = |turn: usize| {
            answer([
                call(0, &format!("t{turn}"), "Note", json!({ "n": turn })),
                vec![Step::Event(StreamEvent::Stopped(StopReason::ToolUse))],
            ])
        };
        let mut bench = bench(40_000, []);
        let line = "line of text\n".repeat(lines);
        bench = bench
            .tool(FakeTool::reads("Grep", Behaviour::Answer(ToolOutput::text("word ".repeat(words)))))
            .tool(FakeTool::reads(
                "Note",
                Behaviour::Sequence(Arc::new(std::sync::Mutex::new(
                    (0..20).map(|n| ToolOutput::text(format!("{n}\n{line}"))).collect(),
                ))),
            ));
        // As many notes as it takes: what is asked next decides the answer.
        let mut engine = audited(bench.engine(), Vec::new());
        bench.model.push(search);
        for turn in 0..12 {
            bench.model.push(note(turn));
        }
        let exit = engine.run(&Cancel::default()).await;
        let summaries = bench.model.requests().iter().filter(|request| is_summary_request(request)).count();
        assert!(summaries > 0, "{words} words, {lines} lines: {:?} {:?}", exit.exit, exit.notes);
    }
}
