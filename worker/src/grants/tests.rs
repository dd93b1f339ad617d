//! Leases against a server that answers, or does not.

use super::*;
use agent_host::transcript::TranscriptFile;
use swarm_protocol::{Message, RunNumber, record::StopReason};

/// $1 a million of input, $10 a million of output.
fn price(usage: &Usage) -> Cost {
    Cost::usd((usage.total_input() as f64 + usage.output_tokens as f64 * 10.0) / 1e6)
}

fn call(input_tokens: u64, max_tokens: u64) -> PlannedCall {
    PlannedCall { model: "m".to_owned(), input_tokens, max_tokens }
}

fn usd(usd: f64) -> Caps {
    Caps { usd: Some(usd), tokens: None }
}

struct Bench {
    leases: Arc<Leases>,
    recorder: Arc<Recorder>,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::again(dir)
    }

    /// A process that goes on from the transcript.
    fn again(dir: tempfile::TempDir) -> Self {
        let (file, loaded) = TranscriptFile::open_after_checkpoint(&dir.path().join("t.jsonl")).unwrap();
        let recorder = Arc::new(Recorder::new(file, RunNumber::FIRST, Arc::new(Outbox::default()), &loaded));
        Self { leases: Leases::start(recorder.clone()), recorder, dir }
    }

    fn asks(&self, call: &PlannedCall) -> GrantRequest {
        match self.leases.next(call, &price) {
            Next::Ask(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn goes(&self, call: &PlannedCall) -> u64 {
        match self.leases.next(call, &price) {
            Next::Go { max_tokens } => max_tokens,
            other => panic!("{other:?}"),
        }
    }

    /// The answer to a call is recorded; says which grants that settles.
    async fn answer(&self) -> Vec<u64> {
        let answer = RecordBody::Assistant {
            message: Message::assistant(Vec::new()),
            request: 1,
            model: "m".to_owned(),
            stop_reason: StopReason::EndTurn,
            usage: Usage::default(),
            cost: Cost::default(),
            incomplete: false,
        };
        let stored = self.recorder.write(vec![answer], Durability::Soon).await.unwrap();
        match stored.last().map(|stored| &stored.record.body) {
            Some(RecordBody::GrantSettled { grants }) => grants.clone(),
            _ => Vec::new(),
        }
    }
}

#[tokio::test]
async fn a_call_asks_waits_and_is_settled_by_its_record() {
    let bench = Bench::new();
    let asked = bench.asks(&call(1_000, 8_000));
    assert_eq!((asked.grant, asked.ahead, asked.returns.len()), (1, false, 0));
    assert_eq!(bench.leases.next(&call(1_000, 8_000), &price), Next::Wait, "it is asked for once");
    bench.leases.answered(1, Ok(usd(0.05)));
    let most = bench.goes(&call(1_000, 8_000));
    assert!((4_800..5_000).contains(&most), "{most}");
    assert_eq!(bench.answer().await, [1]);
    assert_eq!(bench.answer().await, [0; 0], "settled once");
    assert_eq!(bench.asks(&call(1_000, 8_000)).grant, 2);
    bench.leases.answered(2, Err("$1".to_owned()));
    assert_eq!(bench.leases.next(&call(1, 1), &price), Next::Spent { budget: "$1".to_owned() });
}

#[tokio::test]
async fn a_try_that_was_not_charged_leaves_its_grant_to_the_next_and_a_charged_one_does_not() {
    let bench = Bench::new();
    bench.asks(&call(1_000, 1_000));
    bench.leases.answered(1, Ok(usd(0.05)));
    assert_eq!(bench.goes(&call(1_000, 1_000)), 1_000);
    assert_eq!(bench.goes(&call(1_000, 1_000)), 1_000, "overloaded: the same again");
    assert_eq!(bench.answer().await, [1]);
    assert_eq!(bench.asks(&call(1_000, 1_000)).grant, 2, "what was charged pays for no second try");
}

#[tokio::test]
async fn a_lease_ahead_saves_the_round_trip_and_is_exchanged_when_it_does_not_do() {
    let bench = Bench::new();
    bench.asks(&call(1_000, 8_000));
    bench.leases.answered(1, Ok(usd(1.0)));
    bench.goes(&call(1_000, 8_000));
    bench.leases.ask_ahead(&call(1_000, 8_000), 8_000);
    bench.leases.answered(2, Ok(usd(0.05)));
    bench.answer().await;
    assert!(bench.goes(&call(2_000, 8_000)) > 4_000, "no question");
    bench.answer().await;
    // Ahead, but for a call that grew far beyond it.
    bench.leases.ask_ahead(&call(2_000, 1_000), 1_000);
    bench.leases.answered(3, Ok(usd(0.02)));
    assert_eq!(bench.asks(&call(15_000, 8_000)).returns, [3]);
    bench.leases.answered(4, Ok(usd(0.2)));
    bench.goes(&call(15_000, 8_000));
    bench.answer().await;
    // Ahead, and held back: now somebody waits for it. What comes for the returned one is nobody's.
    bench.leases.ask_ahead(&call(15_000, 8_000), 8_000);
    assert_eq!(bench.asks(&call(15_000, 8_000)).returns, [5]);
    bench.leases.answered(5, Ok(usd(0.2)));
    assert_eq!(bench.leases.next(&call(15_000, 8_000), &price), Next::Wait);
}

#[tokio::test]
async fn numbers_go_on_after_a_restart_and_a_late_answer_is_a_lease() {
    let bench = Bench::new();
    let ask = bench.asks(&call(1_000, 8_000));
    bench.leases.asks.send(ask).await.unwrap();
    while bench.recorder.facts().last_grant < 1 {
        tokio::task::yield_now().await;
    }
    let Bench { leases, recorder, dir } = bench;
    drop(leases);
    while Arc::strong_count(&recorder) > 1 {
        tokio::task::yield_now().await;
    }
    drop(recorder);
    let bench = Bench::again(dir);
    bench.leases.answered(1, Ok(usd(0.05)));
    assert!(bench.goes(&call(1_000, 8_000)) > 4_000);
    assert_eq!(bench.asks(&call(90_000, 8_000)).grant, 2);
}
