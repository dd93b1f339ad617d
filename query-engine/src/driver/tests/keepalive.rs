//! The cache is kept alive while the agent waits (spec 3.6).

use futures::StreamExt as _;

use super::*;
use crate::{
    budget::Budget,
    ports::{Breakpoint, ModelRequest},
    testing::Script,
};

/// What a read that finds everything used.
fn read() -> Script {
    let usage = Usage { cache_read_tokens: 900, output_tokens: 1, ..Usage::default() };
    answer([stop_with(StopReason::MaxTokens, usage)])
}

/// A tool that takes this long, and what the model says before, meanwhile and afterwards.
fn bench(time: Duration, reads: impl IntoIterator<Item = Script>) -> Bench {
    let tool = FakeTool::reads("Read", Behaviour::Sleep(time, ToolOutput::text("ok")));
    let scripts = [calls("t1", "Read", json!({}))].into_iter().chain(reads).chain([says("done")]);
    Bench::new(scripts).tool(tool)
}

async fn run_kept(bench: &Bench, budget: Budget) -> (RunExit, Engine) {
    let mut config = bench.config();
    config.keepalive = true;
    config.budget = budget;
    let mut engine = audited(Engine::new(config, bench.ports(), LoopState::default()), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(bench, &engine);
    (exit, engine)
}

fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

fn purposes(bench: &Bench) -> Vec<String> {
    let purpose = |record| match record {
        RecordBody::HelperCall { purpose, .. } => Some(purpose),
        _ => None,
    };
    bench.transcript.records().into_iter().filter_map(purpose).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_read_again_before_it_runs_out_and_counted() {
    let bench = bench(minutes(9), [read(), read()]);
    let (exit, _) = run_kept(&bench, Budget::default()).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "done"));
    assert_eq!(exit.usage.cache_read_tokens, 1_800);
    assert_eq!(purposes(&bench), ["keepalive", "keepalive"]);
    let requests = bench.model.requests();
    let [asked, first, second, after] = requests.as_slice() else { panic!("{}", requests.len()) };
    for read in [first, second] {
        assert_eq!(
            *read,
            ModelRequest { max_tokens: 1, ..asked.clone() },
            "the same, for the least there is to say"
        );
    }
    assert_eq!(after.messages[..asked.messages.len()], asked.messages[..]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_in_time_or_where_it_is_not_wanted() {
    let quick = bench(minutes(3), []);
    assert_eq!(run_kept(&quick, Budget::default()).await.0.exit, ExitReason::Completed);
    assert_eq!(quick.model.requests().len(), 2);
    let unwanted = bench(minutes(30), []);
    assert_eq!(run(&unwanted).await.exit, ExitReason::Completed);
    assert_eq!(unwanted.model.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_read_under_way_when_the_calls_are_done_is_counted_and_not_waited_for_without_end() {
    let takes = |time: Duration| {
        let usage = Usage { cache_read_tokens: 900, ..Usage::default() };
        answer([vec![Step::Sleep(time)], stop_with(StopReason::MaxTokens, usage)])
    };
    let second = Duration::from_secs(1);
    // It begins after four minutes, a second before the call is done.
    for (time, counted) in [(3 * second, 900), (60 * second, 0)] {
        let bench = bench(minutes(4) + second, [takes(time)]);
        let began = tokio::time::Instant::now();
        let (exit, _) = run_kept(&bench, Budget::default()).await;
        assert_eq!((exit.exit, exit.usage.cache_read_tokens), (ExitReason::Completed, counted));
        assert!(began.elapsed() <= minutes(4) + 7 * second, "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn three_failures_in_a_row_switch_it_off_in_silence() {
    let fails = || Script::from(error(ModelErrorKind::Overloaded, "529"));
    let failing = bench(minutes(60), [fails(), fails(), fails()]);
    let (exit, _) = run_kept(&failing, Budget::default()).await;
    assert_eq!((exit.exit, exit.notes), (ExitReason::Completed, Vec::new()));
    assert_eq!(failing.model.requests().len(), 5);
    // All tries fit into the life of the entry, and one that succeeds begins anew.
    let recovering = bench(minutes(10), [fails(), fails(), read(), fails(), read()]);
    let (exit, _) = run_kept(&recovering, Budget::default()).await;
    assert_eq!((exit.exit, exit.usage.cache_read_tokens), (ExitReason::Completed, 1_800));
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_it_saves_nothing_any_more_and_when_a_budget_does_not_pay() {
    let long = bench(minutes(600), (0..12).map(|_| read()));
    let (exit, _) = run_kept(&long, Budget::default()).await;
    assert_eq!((exit.exit, purposes(&long).len()), (ExitReason::Completed, 12));
    let reads_what_there_is = || {
        let usage = Usage { cache_read_tokens: 100, output_tokens: 1, ..Usage::default() };
        answer([stop_with(StopReason::MaxTokens, usage)])
    };
    let poor = bench(minutes(60), [reads_what_there_is(), reads_what_there_is()]);
    let (exit, _) = run_kept(&poor, Budget { tokens: Some(300), usd: None }).await;
    assert!(matches!(exit.exit, ExitReason::BudgetExceeded { .. }), "{:?}", exit.exit);
    assert_eq!((purposes(&poor).len(), exit.usage.cache_read_tokens), (1, 100));
}

#[tokio::test(start_paused = true)]
async fn between_two_runs_a_person_is_made_to_say_something() {
    let bench = Bench::new([says("I wait."), read()]);
    let (_, mut engine) = run_kept(&bench, Budget::default()).await;
    let began = tokio::time::Instant::now();
    let warmed = engine.keepalive().expect("something is warm").reads().next().await.expect("it is read");
    assert_eq!((began.elapsed(), warmed.usage.cache_read_tokens), (minutes(4), 900));
    let requests = bench.model.requests();
    let [asked, read] = requests.as_slice() else { panic!("{}", requests.len()) };
    assert_eq!(read.messages[..asked.messages.len()], asked.messages[..]);
    assert_eq!(render(&read.messages[asked.messages.len()..]), "assistant: I wait.\nuser: .");
    assert!(
        read.breakpoints.contains(&Breakpoint::Message(read.messages.len() - 2)),
        "what is kept is what the next request begins with: {:?}",
        read.breakpoints
    );
}
