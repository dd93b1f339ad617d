//! What the provider's cache should have had, on a paused clock (spec 3.6).

use swarm_protocol::frame::{CacheBreakCause, Live};

use super::*;
use crate::testing::Script;

/// An answer that calls a tool, after so much was read from the cache and written to it.
fn read_and_written(turn: usize, tool: &str, read: u64, written: u64) -> Script {
    let usage = Usage { cache_read_tokens: read, cache_write_tokens: written, ..Usage::default() };
    answer([call(0, &format!("t{turn}"), tool, json!({"n": turn})), stop_with(StopReason::ToolUse, usage)])
}

fn done(read: u64) -> Script {
    let usage = Usage { cache_read_tokens: read, ..Usage::default() };
    answer([text(0, "done"), stop_with(StopReason::EndTurn, usage)])
}

/// The breaks that were told: expected, read, cause.
fn told(bench: &Bench) -> Vec<(u64, u64, CacheBreakCause)> {
    let breaks = bench.observer.live().into_iter().filter_map(|live| match live {
        Live::CacheBreak { expected_tokens, read_tokens, cause } => {
            Some((expected_tokens, read_tokens, cause))
        }
        _ => None,
    });
    breaks.collect()
}

fn sleeps(name: &str, minutes: u64) -> Arc<FakeTool> {
    FakeTool::reads(name, Behaviour::Sleep(Duration::from_secs(60 * minutes), ToolOutput::text("x")))
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_did_not_serve_is_told_with_its_cause() {
    let bench = Bench::new([
        read_and_written(1, "Quick", 0, 10_000),
        // Served.
        read_and_written(2, "Quick", 10_000, 1_000),
        // The provider has dropped it.
        read_and_written(3, "Slow", 0, 12_000),
        // After six minutes nothing is expected to be there.
        read_and_written(4, "Quick", 0, 13_000),
        read_and_written(5, "Quick", 13_000, 1_000),
        done(14_000),
    ])
    .tool(sleeps("Quick", 4))
    .tool(sleeps("Slow", 6));
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(told(&bench), [(11_000, 0, CacheBreakCause::Provider), (12_000, 0, CacheBreakCause::Expired)]);
}

#[tokio::test(start_paused = true)]
async fn a_history_made_smaller_is_the_cause_also_when_the_first_request_after_it_failed() {
    let refusal = || Script::from(error(ModelErrorKind::PromptTooLong { limit: None }, "prompt is too long"));
    let overloaded = || Script::from(error(ModelErrorKind::Overloaded, "529"));
    let bench = Bench::new([
        read_and_written(1, "Read", 0, 40_000),
        read_and_written(2, "Read", 40_000, 9_000),
        read_and_written(3, "Read", 49_000, 9_000),
        refusal(),
        says("summary"),
        overloaded(),
        read_and_written(4, "Read", 3_000, 9_000),
        done(12_000),
    ])
    .tool(FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("line of text\n".repeat(6_000)))));
    let exit = run(&bench).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert_eq!(told(&bench), [(58_000, 3_000, CacheBreakCause::Messages)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_sign_of_a_cache_nothing_is_told() {
    let usage = |turn: usize| {
        let usage = Usage { input_tokens: 50_000, ..Usage::default() };
        answer([
            call(0, &format!("t{turn}"), "Read", json!({"n": turn})),
            stop_with(StopReason::ToolUse, usage),
        ])
    };
    let read = FakeTool::reads("Read", Behaviour::Answer(ToolOutput::text("x")));
    let bench = Bench::new([usage(1), usage(2), usage(3), says("done")]).tool(read);
    assert_eq!(run(&bench).await.exit, ExitReason::Completed);
    assert_eq!(told(&bench), []);
}
