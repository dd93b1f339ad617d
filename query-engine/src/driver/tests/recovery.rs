//! Errors, broken streams, cut output.

use tokio::time::Instant;

use super::*;
use crate::{
    ports::{ModelError, ModelInfo},
    testing::{Script, ScriptedModel},
};

fn write() -> Arc<FakeTool> {
    FakeTool::writes("Write", Behaviour::Answer(ToolOutput::text("written")))
}

#[tokio::test(start_paused = true)]
async fn s01_words_of_a_cut_stream_are_kept_and_taken_up() {
    let bench =
        Bench::new([answer([thinking(0, "hm"), open_text(1, "half"), vec![fin()]]), says(" and half")]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    let sent = last_request(&bench);
    assert!(sent.starts_with("user: the task\nassistant: half\nuser: The connection broke"), "{sent}");
    let incomplete = bench.transcript.records().into_iter().any(|record| {
        matches!(record, RecordBody::Assistant { incomplete: true, stop_reason: StopReason::Truncated, .. })
    });
    assert!(incomplete);
}

#[tokio::test(start_paused = true)]
async fn s01_again_and_again_ends_as_an_error_with_its_name() {
    let bench = Bench::new((0..4).map(|_| answer([open_text(0, "half"), vec![fin()]])));
    let ExitReason::ModelError { error, .. } = run(&bench).await.exit else { panic!("no model_error") };
    assert_eq!(error, "stream_truncated");
    assert_eq!(bench.model.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn s02_an_unfinished_call_never_runs_and_is_not_stored() {
    let write = write();
    let bench = Bench::new([answer([thinking(0, "hm"), open_call(1, "Write"), vec![fin()]]), says("x")])
        .tool(Arc::clone(&write));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(write.calls().is_empty());
    assert_eq!(bench.model.requests()[0], bench.model.requests()[1]);
}

#[tokio::test(start_paused = true)]
async fn s08_completed_call_runs_once_after_a_stall() {
    let write = write();
    let stalled = Step::Fail(error(ModelErrorKind::Stalled { watchdog: "idle" }, "no byte for 90 s"));
    let bench = Bench::new([
        answer([
            text(0, "abc"),
            call(1, "t1", "Write", json!({"command": "ls"})),
            open_call(2, "Write"),
            vec![Step::Sleep(Duration::from_secs(90)), stalled],
        ]),
        says("x"),
    ])
    .tool(Arc::clone(&write));
    let exit = run(&bench).await;
    assert_eq!((exit.exit, exit.turns), (ExitReason::Completed, 2));
    assert_eq!(write.calls().len(), 1);
    assert_eq!(
        last_request(&bench),
        "user: the task\nassistant: abc\nassistant calls t1: Write {\"command\":\"ls\"}\nuser answers t1: written"
    );
}

#[tokio::test(start_paused = true)]
async fn s14_invalid_arguments_are_answered_with_the_parsers_position() {
    let write = write();
    let problem = "invalid escape at line 1 column 12";
    let bench =
        Bench::new([answer([invalid_call(0, "t1", "Write", problem), stop(StopReason::ToolUse)]), says("x")])
            .tool(Arc::clone(&write));
    run(&bench).await;
    assert!(write.calls().is_empty());
    assert!(last_request(&bench).ends_with(&format!("user answers t1 failed: {problem}")));
}

#[tokio::test(start_paused = true)]
async fn s16_arguments_that_lack_what_is_required_do_not_run() {
    let write = Arc::new(
        FakeTool::new("Write", Behaviour::Answer(ToolOutput::text("w")), false).requiring(&["path"]),
    );
    let bench = Bench::new([calls("t1", "Write", json!({})), says("x")]).tool(Arc::clone(&write));
    run(&bench).await;
    assert!(write.calls().is_empty());
    assert!(last_request(&bench).contains("user answers t1 failed: The arguments of Write lack path."));
}

#[tokio::test(start_paused = true)]
async fn s17_a_call_emptied_by_the_output_limit_does_not_run() {
    // The arguments are optional here, so that only the stop reason tells.
    let write = write();
    let bench =
        Bench::new([answer([call(0, "t1", "Write", json!({})), stop(StopReason::MaxTokens)]), says("x")])
            .tool(Arc::clone(&write));
    run(&bench).await;
    assert!(write.calls().is_empty());
    assert!(
        last_request(&bench)
            .contains("user answers t1 failed: Your output reached its limit inside this call")
    );
}

#[tokio::test(start_paused = true)]
async fn s19_cut_words_are_taken_up_three_times() {
    let cut = || answer([open_text(0, "I will now"), stop(StopReason::MaxTokens)]);
    let bench = Bench::new([cut(), says("do it")]);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(
        last_request(&bench).starts_with("user: the task\nassistant: I will now\nuser: Your output reached")
    );

    let bench = Bench::new([cut(), cut(), cut(), cut(), says("never asked")]);
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::MaxOutputTokensEscalate);
    assert_eq!(exit.text, "I will now".repeat(4), "what was said before the cuts is part of it");
    assert_eq!(bench.model.left(), 1);
}

#[tokio::test(start_paused = true)]
async fn s20_of_two_calls_the_whole_one_runs_and_the_cut_one_is_told() {
    let whole = || call(0, "t1", "Write", json!({"path": "a"}));
    for (second, told) in [
        (
            invalid_call(1, "t2", "Write", "unexpected end"),
            "user answers t2 failed: Your output reached its limit",
        ),
        (open_call(1, "Write"), "user: Your output reached its limit while you wrote the arguments of Write"),
    ] {
        let write = write();
        let bench = Bench::new([answer([whole(), second, stop(StopReason::MaxTokens)]), says("x")])
            .tool(Arc::clone(&write));
        assert_eq!(run(&bench).await.exit, ExitReason::Completed);
        assert_eq!(write.calls(), [json!({"path": "a"})]);
        let sent = last_request(&bench);
        assert!(sent.contains("user answers t1: written"), "{sent}");
        assert!(sent.contains(told), "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a07_429_without_headers_is_tried_again_with_growing_waits() {
    let limited = || Script::from(error(ModelErrorKind::RateLimited, "429"));
    let bench = Bench::new([limited(), limited(), limited(), says("x")]);
    let began = Instant::now();
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(began.elapsed().as_millis(), 3_500, "0.5 + 1 + 2 s");
    assert_eq!(bench.transcript.shape(), "user request_started | assistant");
    let waits = bench.observer.live().into_iter().filter_map(|live| match live {
        swarm_protocol::frame::Live::Waiting { waiting_for: Some(_), cause, .. } => Some(cause),
        _ => None,
    });
    assert_eq!(
        waits.collect::<Vec<_>>(),
        ["rate_limited, try 1", "rate_limited, try 2", "rate_limited, try 3"]
    );
}

#[tokio::test(start_paused = true)]
async fn a08_a_wait_of_hours_fails_at_once_and_says_until_when() {
    let limited = ModelError {
        retry_after: Some(Duration::from_secs(7_200)),
        ..error(ModelErrorKind::RateLimited, "come back later")
    };
    let bench = Bench::new([Script::from(limited)]);
    let ExitReason::ModelError { retry_at, .. } = run(&bench).await.exit else { panic!("no model_error") };
    assert_eq!(retry_at.map(|at| at.as_millis()), Some(7_200_000));
}

#[tokio::test(start_paused = true)]
async fn a10_an_error_inside_the_stream_is_tried_again_unless_a_block_closed() {
    let broke = || vec![Step::Fail(error(ModelErrorKind::Server, "api_error"))];
    let bench = Bench::new([answer([open_text(0, "a"), broke()]), says("x")]);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(last_request(&bench), "user: the task");

    let bench = Bench::new([answer([text(0, "a"), broke()]), says("x")]);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(last_request(&bench).starts_with("user: the task\nassistant: a\nuser: The connection broke"));
}

#[tokio::test(start_paused = true)]
async fn ten_tries_are_the_bound() {
    let bench = Bench::new((0..11).map(|_| Script::from(error(ModelErrorKind::Overloaded, "529"))));
    let ExitReason::ModelError { error, .. } = run(&bench).await.exit else { panic!("no model_error") };
    assert_eq!(error, "overloaded");
    assert_eq!(bench.model.requests().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a16_a_refused_output_bound_is_clamped_and_remembered() {
    let too_large =
        error(ModelErrorKind::MaxTokensTooLarge { limit: Some(4_096) }, "max_tokens: 8000 > 4096");
    let bench = Bench::new([Script::from(too_large), calls("t1", "Read", json!({})), says("x")])
        .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    let asked: Vec<u64> = bench.model.requests().iter().map(|request| request.max_tokens).collect();
    assert_eq!(asked, [8_000, 4_096, 4_096]);
}

#[tokio::test(start_paused = true)]
async fn a20_the_fallback_answers_one_turn_and_is_noted() {
    let mut bench = Bench::new(
        (0..10).map(|_| Script::from(error(ModelErrorKind::Overloaded, "529"))).chain([says("back")]),
    )
    .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    let info =
        ModelInfo { name: "test/fallback".to_owned(), ..crate::ports::Model::info(bench.model.as_ref()) };
    let thought = answer([thinking(0, "hm"), call(1, "t1", "Read", json!({})), stop(StopReason::ToolUse)]);
    bench.fallback = Some(ScriptedModel::with_info(info, [thought]));
    let exit = run(&bench).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "back"));
    let models: Vec<String> = bench
        .transcript
        .records()
        .into_iter()
        .filter_map(|record| match record {
            RecordBody::RequestStarted { model, .. } => Some(model),
            _ => None,
        })
        .collect();
    assert_eq!(models, ["test/model", "test/fallback", "test/model"]);
    // Thinking of another model does not go out.
    assert!(!last_request(&bench).contains("thinks"));
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_answer_used_is_counted() {
    let usage = Step::Event(StreamEvent::Usage(Usage { input_tokens: 70, ..Usage::default() }));
    let bench = Bench::new([answer([vec![usage], thinking(0, "hm"), vec![fin()]]), says("x")]);
    let exit = run(&bench).await;
    assert_eq!(exit.usage.input_tokens, 170);
}

#[tokio::test(start_paused = true)]
async fn refused_images_are_taken_out_once() {
    let refuse = || Script::from(error(ModelErrorKind::ImageRefused, "image too large"));
    let image = Block::Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() };
    let put = |bench: &Bench| {
        bench.inbox.put_incoming(crate::ports::Incoming {
            content: vec![image.clone()],
            origin: Origin::Person { message_id: None },
            commands: Vec::new(),
        });
    };
    let bench = Bench::new([refuse(), says("x")]);
    put(&bench);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert!(last_request(&bench).contains("[image of 4 bytes removed"));

    let bench = Bench::new([refuse(), refuse()]);
    put(&bench);
    assert!(matches!(run(&bench).await.exit, ExitReason::ImageError { .. }));
}

#[tokio::test(start_paused = true)]
async fn a13_a_body_that_is_too_large_shrinks_in_bytes_and_never_loops() {
    let refuse = || Script::from(error(ModelErrorKind::RequestTooLarge, "413"));
    let image = || ResultBlock::Image { media_type: "image/png".to_owned(), data: "A".repeat(10_000) };
    let shot = ToolOutput { content: (0..8).map(|_| image()).collect(), ..ToolOutput::text("") };
    let tool = || FakeTool::reads("Shot", Behaviour::Answer(shot.clone()));
    let shoots = || calls("t1", "Shot", json!({}));

    let bench = Bench::new([shoots(), refuse(), refuse(), says("x")]).tool(tool());
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    let requests = bench.model.requests();
    let sizes: Vec<usize> = requests
        .iter()
        .map(|request| crate::ports::Model::request_bytes(bench.model.as_ref(), request))
        .collect();
    assert!(sizes[2] * 10 < sizes[1] * 6 && sizes[3] * 10 < sizes[2] * 6, "{sizes:?}");
    // The oldest went first.
    assert!(last_request(&bench).contains("removed: the provider refused the size of the request]\n(image)"));

    let bench = Bench::new((0..1).map(|_| shoots()).chain((0..9).map(|_| refuse()))).tool(tool());
    let ExitReason::ModelError { error, .. } = run(&bench).await.exit else { panic!("no model_error") };
    assert_eq!(error, "request_too_large");
    assert_eq!(bench.model.requests().len(), 5, "three times smaller, then no more");
}

#[tokio::test(start_paused = true)]
async fn closed_blocks_of_the_same_index_count_once() {
    let again =
        Step::Event(StreamEvent::BlockClosed { index: 0, block: ClosedBlock::Valid(Block::text("b")) });
    let bench = Bench::new([answer([text(0, "a"), vec![again], stop(StopReason::EndTurn)])]);
    assert_eq!(run(&bench).await.text, "b");
}

#[tokio::test(start_paused = true)]
async fn a_new_message_is_not_answered_with_the_cuts_of_the_last() {
    let cut = || answer([open_text(0, "half"), vec![fin()]]);
    let bench = Bench::new((0..4).map(|_| cut()).chain([cut(), says("whole")]));
    let mut engine = audited(bench.engine(), Vec::new());
    assert!(matches!(engine.run(&Cancel::default()).await.exit, ExitReason::ModelError { .. }));
    bench.inbox.put("try again", Origin::Person { message_id: None });
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "halfwhole"));
    check_invariants(&bench, &engine);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_again_has_the_breakpoints_it_had() {
    let reads = (0..25).map(|n| call(n, &format!("t{n}"), "Read", json!({ "n": n })));
    let many = answer(reads.chain([stop(StopReason::ToolUse)]));
    let overloaded = Script::from(error(ModelErrorKind::Overloaded, "overloaded"));
    let bench = Bench::new([many, overloaded, says("done")])
        .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    let requests = bench.model.requests();
    assert_eq!(requests[1], requests[2]);
    assert_eq!(requests[1].breakpoints.len(), 4, "{:?}", requests[1].breakpoints);
}

#[tokio::test(start_paused = true)]
async fn s29_a_long_call_is_seen_to_grow() {
    let piece =
        || Step::Event(StreamEvent::Delta { index: 0, delta: crate::ports::Delta::InputBytes(10_000) });
    let mut long = open_call(0, "Write");
    long.extend((0..20).map(|_| piece()));
    let bench = Bench::new([answer([long, vec![fin()]]), says("x")]).tool(write());
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    let told = bench.observer.live().into_iter().filter_map(|live| match live {
        Live::Activity { text, .. } if text.contains("of arguments") => Some(text),
        _ => None,
    });
    let sizes: Vec<String> = told.collect();
    assert_eq!(sizes, ["Write: 70 KB of arguments", "Write: 140 KB of arguments"]);
}
