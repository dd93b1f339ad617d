//! Budgets (spec 10.1, L07).

use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::{
    budget::{Budget, FIRST_MAX_TOKENS},
    driver::Ports,
    ports::{Grant, Grants, ModelInfo, PlannedCall},
    testing::{RecordingTranscript, Script, ScriptedModel},
};

/// A turn that reads and used 1,000 tokens: a thousandth of a dollar with the scripted model.
fn turn(n: usize) -> Script {
    let usage = Usage { input_tokens: 900, output_tokens: 100, ..Usage::default() };
    answer([
        text(0, &format!("step {n}")),
        call(1, &format!("t{n}"), "Read", json!({"n": n})),
        stop_with(StopReason::ToolUse, usage),
    ])
}

fn bench(scripts: impl IntoIterator<Item = Script>) -> Bench {
    Bench::new(scripts).tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("ok"))))
}

async fn run_with(bench: &Bench, budget: Budget) -> RunExit {
    let mut config = bench.config();
    config.budget = budget;
    let mut engine = audited(Engine::new(config, bench.ports(), LoopState::default()), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    check_invariants(bench, &engine);
    exit
}

#[tokio::test(start_paused = true)]
async fn l07_a_budget_of_tokens_ends_with_what_there_is_and_warns_before() {
    let bench = bench((0..20).map(turn));
    let exit = run_with(&bench, Budget { tokens: Some(5_900), usd: None }).await;
    let ExitReason::BudgetExceeded { budget } = &exit.exit else { panic!("{:?}", exit.exit) };
    assert_eq!((budget.as_str(), exit.text.as_str()), ("5000 of 5900 tokens", "step 4"));
    assert_eq!(exit.notes, ["84 % of its budget was spent"]);
    let asked: Vec<u64> = bench.model.requests().iter().map(|request| request.max_tokens).collect();
    assert!(asked.iter().all(|max_tokens| *max_tokens <= FIRST_MAX_TOKENS), "{asked:?}");
    assert!(asked.windows(2).all(|pair| pair[1] <= pair[0]), "each may ask for less: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_warning_goes_with_the_next_request_once() {
    let bench = bench((0..10).map(turn).chain([says("all I could do")]));
    let exit = run_with(&bench, Budget { tokens: Some(12_400), usd: None }).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    assert_eq!(last_request(&bench).matches("of your budget is spent").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_dollars_is_never_passed() {
    let bench = bench((0..20).map(turn));
    let exit = run_with(&bench, Budget { tokens: None, usd: Some(0.005) }).await;
    assert!(matches!(exit.exit, ExitReason::BudgetExceeded { .. }), "{:?}", exit.exit);
    assert!(exit.cost.known_usd <= 0.005 && exit.cost.known_usd > 0.003, "{:?}", exit.cost);
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_asks_for_more_than_the_first_grant() {
    let info = ModelInfo {
        name: "test/model".to_owned(),
        context_window: 200_000,
        max_output: 32_000,
        caches: true,
    };
    let mut bench = bench([]);
    let cut = answer([text(0, "a long an"), stop(StopReason::MaxTokens)]);
    bench.model = ScriptedModel::with_info(info, [cut, says("swer")]);
    let exit = run_with(&bench, Budget { tokens: Some(1_000_000), usd: None }).await;
    assert_eq!(exit.exit, ExitReason::Completed);
    let asked: Vec<u64> = bench.model.requests().iter().map(|request| request.max_tokens).collect();
    assert_eq!(asked, [FIRST_MAX_TOKENS, 32_000]);
}

#[tokio::test(start_paused = true)]
async fn what_is_shared_is_asked_for_before_each_call_and_may_be_spent() {
    let bench = bench((0..9).map(turn));
    bench.grants.push(Grant::Call { max_tokens: 1_234 });
    bench.grants.push(Grant::Spent { budget: "the session's $1.00".to_owned() });
    let exit = run_with(&bench, Budget::default()).await;
    assert_eq!(exit.exit, ExitReason::BudgetExceeded { budget: "the session's $1.00".to_owned() });
    assert_eq!(bench.model.requests().len(), 1);
    assert_eq!(bench.model.requests()[0].max_tokens, 1_234);
    let asked = bench.grants.asked();
    assert_eq!((asked.len(), asked[0].model.as_str()), (2, "test/model"));
    assert!(asked[1].input_tokens > asked[0].input_tokens);
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_nothing_pays_for_is_not_asked_for() {
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("line of text\n".repeat(1_100))));
    let mut bench = Bench::new([]).tool(read);
    let info =
        ModelInfo { name: "test/model".to_owned(), context_window: 20_000, max_output: 1_000, caches: true };
    // No use is reported: it is estimated, some 4,000 tokens a turn and all of them again each time.
    let unreported = |n: usize| {
        answer([
            call(0, &format!("t{n}"), "Read", json!({"n": n})),
            vec![Step::Event(StreamEvent::Stopped(StopReason::ToolUse))],
        ])
    };
    bench.model = ScriptedModel::with_info(info, (0..9).map(unreported));
    let exit = run_with(&bench, Budget { tokens: Some(45_000), usd: None }).await;
    assert!(matches!(exit.exit, ExitReason::BudgetExceeded { .. }), "{:?}", exit.exit);
    let sent = bench.model.requests();
    assert_eq!(sent.len(), 5, "the window was full when it ended");
    let summaries = sent.iter().filter(|request| render(&request.messages).contains("Write a summary"));
    assert_eq!(summaries.count(), 0);
}

/// What its transcript says is spent whenever leave is asked for.
struct Audited {
    transcript: Arc<RecordingTranscript>,
    seen: Mutex<Vec<u64>>,
}

#[async_trait]
impl Grants for Audited {
    fn is_capped(&self) -> bool {
        true
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        let records = self.transcript.records();
        let spent = records.iter().map(|record| match record {
            RecordBody::Assistant { usage, .. } | RecordBody::HelperCall { usage, .. } => usage.total(),
            _ => 0,
        });
        self.seen.lock().unwrap().push(spent.sum());
        Grant::Call { max_tokens: call.max_tokens }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_used_is_written_before_the_next_is_asked_for() {
    let used = |n: u64| Step::Event(StreamEvent::Usage(Usage { input_tokens: n, ..Usage::default() }));
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("line of text\n".repeat(1_100))));
    let mut bench = Bench::new([]).tool(read);
    let info =
        ModelInfo { name: "test/model".to_owned(), context_window: 20_000, max_output: 1_000, caches: true };
    let stopped = |reason| Step::Event(StreamEvent::Stopped(reason));
    let reads = |n: usize| {
        let id = format!("t{n}");
        let asked = call(0, &id, "Read", json!({"n": n}));
        answer([asked, vec![used(4_000 * (n as u64 + 1)), stopped(StopReason::ToolUse)]])
    };
    let scripts = [
        // Thinking that breaks off is dropped; what it used is not: the input, and a token for the word that came.
        answer([vec![used(10)], thinking(0, "hm"), vec![fin()]]),
        reads(0),
        reads(1),
        reads(2),
        // A first summary that breaks off, and one that does.
        answer([vec![used(100)], vec![fin()]]),
        answer([text(0, "What was done."), vec![used(1_000), stopped(StopReason::EndTurn)]]),
        says("done"),
    ];
    bench.model = ScriptedModel::with_info(info, scripts);
    let grants = Arc::new(Audited { transcript: bench.transcript.clone(), seen: Mutex::default() });
    let ports = Ports { grants: grants.clone(), ..bench.ports() };
    let mut engine = audited(Engine::new(bench.config(), ports, LoopState::default()), Vec::new());
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!((exit.exit, exit.text.as_str()), (ExitReason::Completed, "done"));
    let summaries = bench.model.requests();
    let summaries = summaries.iter().filter(|request| render(&request.messages).contains("Write a summary"));
    assert_eq!(summaries.count(), 2);
    let seen = grants.seen.lock().unwrap().clone();
    assert_eq!(seen, [0, 11, 4_011, 12_011, 24_011, 24_111, 25_111]);
}
