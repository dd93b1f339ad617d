use expect_test::expect;
use swarm_protocol::{Usage, WorkerStatus, launch::Expects, notification::Doubt};

use super::*;
use crate::cli::{fixtures, glyph::Glyphs, link::Links, prefix::Prefixes};

fn task() -> TaskView {
    let worker = |id: &str, name: &str, turns, tokens, cost, millis| {
        let mut worker = fixtures::worker(id, name);
        worker.status = WorkerStatus::Completed;
        worker.exit_reason = Some("completed".to_owned());
        worker.turns = turns;
        worker.usage = Usage { input_tokens: tokens, ..Usage::default() };
        worker.cost_usd = Some(cost);
        worker.ended_at = Some(Timestamp::from_millis(millis));
        worker
    };
    let mut a1b = worker("agent-a1b", "Investigate auth bug", 14, 48_000, 0.31, 170_000);
    (a1b.files_changed, a1b.insertions, a1b.deletions) = (2, 14, 3);
    a1b.branch = Some("swarm/7c1d09e2/agent-a1b/investigate-auth-bug".to_owned());
    let mut c4e = worker("agent-c4e", "Refactor session store", 22, 112_000, 0.74, 324_000);
    (c4e.files_changed, c4e.insertions, c4e.deletions) = (5, 210, 96);
    c4e.branch = Some("swarm/7c1d09e2/agent-c4e/refactor-session-store".to_owned());
    c4e.doubts = vec![Doubt::UnverifiedClaim];
    let mut k2m = worker("agent-k2m", "Update docs", 4, 12_000, 0.05, 372_000);
    k2m.status = WorkerStatus::Failed;
    k2m.exit_reason = Some("model_error".to_owned());
    k2m.cause = Some("529 overloaded after 10 tries".to_owned());
    let mut p9t = worker("agent-p9t", "Find callers of old API", 9, 31_000, 0.12, 62_000);
    p9t.expects = Expects::Report;
    TaskView {
        task_id: "01a22d8c-a610-7b1d-9a44-000000000001".parse().unwrap(),
        session_id: fixtures::SESSION.parse().unwrap(),
        prompt: "refactor auth module".to_owned(),
        status: swarm_protocol::api::TaskStatus::Done,
        verdict: Some(Verdict::Degraded),
        reasons: vec!["k2m failed".to_owned()],
        exit_reason: Some("completed".to_owned()),
        exit_detail: None,
        text: Some("Done.".to_owned()),
        workers: vec![a1b, c4e, k2m, p9t],
        usage: Usage { input_tokens: 286_000, ..Usage::default() },
        cost_usd: Some(1.40),
        labels: Vec::new(),
        accepted_at: Timestamp::from_millis(0),
        finished_at: Some(Timestamp::from_millis(452_000)),
    }
}

fn shown(width: Option<usize>) -> String {
    let task = task();
    let mut session = fixtures::session(fixtures::SESSION, "refactor auth module");
    session.cost = Cost::usd(1.40);
    session.cost_usd = Some(1.40);
    let summary = Summary {
        session: &session,
        task: &task,
        width,
        look: Look { glyphs: Glyphs::Unicode, links: &Links::default(), prefixes: &Prefixes::default() },
        now: Timestamp::from_millis(452_000),
    };
    anstream::adapter::strip_str(&text(&summary)).to_string()
}

#[test]
fn every_worker_once_more() {
    expect![[r#"
        ✓ a1b Investigate auth bug     2 files   +14 -3   14 turns   48k  $0.31  2m50s
              swarm/7c1d09e2/agent-a1b/investigate-auth-bug
        ! c4e Refactor session store   5 files  +210 -96  22 turns  112k  $0.74  5m24s
              swarm/7c1d09e2/agent-c4e/refactor-session-store
              doubt unverified_claim: says tests or build pass, none ran after the last edit
        ✗ k2m Update docs              no change           4 turns   12k  $0.05  6m12s
              model_error: 529 overloaded after 10 tries
        ✓ p9t Find callers of old API  report              9 turns   31k  $0.12  1m02s
        degraded: 2 done, 1 with doubts, 1 failed   286k  $1.40 (own $0.18)  7m32s
        next: swarm diff c4e, swarm merge a1b, swarm explain k2m
    "#]]
    .assert_eq(&shown(None));
}

#[test]
fn at_eighty_columns_the_figures_stand_where_they_do_without_a_terminal() {
    let (narrow, free) = (shown(Some(80)), shown(None));
    assert_eq!(narrow.lines().next(), free.lines().next());
    assert!(narrow.lines().all(|line| crate::cli::text::width(line) < 80), "{narrow}");
}
