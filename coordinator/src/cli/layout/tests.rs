use expect_test::expect;
use proptest::prelude::*;
use swarm_protocol::{Seq, Usage, WaitingFor, WorkerStatus};

use super::*;
use crate::cli::fixtures;

fn worker(id: &str, name: &str, status: WorkerStatus, activity: &str) -> WorkerRow {
    let mut view = fixtures::worker(id, name);
    view.status = status;
    view.activity = activity.to_owned();
    view.spawned_at = Timestamp::from_millis(10_000);
    WorkerRow::from(&view)
}

fn state() -> StateView {
    let session = fixtures::session(fixtures::SESSION, "refactor auth module");
    let mut state = StateView::new(&session, Seq(0), Timestamp::from_millis(0), true);
    let mut a1b =
        worker("agent-a1b", "Investigate auth bug", WorkerStatus::Running, "Edit src/auth/validate.py");
    (a1b.usage, a1b.cost_usd) = (Usage { input_tokens: 33_000, ..Usage::default() }, Some(0.21));
    let mut h7q = worker("agent-h7q", "Add auth tests", WorkerStatus::Waiting, "");
    h7q.waiting_for = Some(WaitingFor::Permission);
    (h7q.usage, h7q.cost_usd) = (Usage { input_tokens: 22_000, ..Usage::default() }, Some(0.09));
    let mut k2m = worker("agent-k2m", "Update docs", WorkerStatus::Waiting, "");
    k2m.waiting_for = Some(WaitingFor::Model);
    k2m.cause = "model busy, try 3".to_owned();
    k2m.until = Some(Timestamp::from_millis(173_000));
    (k2m.usage, k2m.cost_usd) = (Usage { input_tokens: 8_000, ..Usage::default() }, Some(0.03));
    let mut c4e = worker("agent-c4e", "Refactor session store", WorkerStatus::Starting, "pip install -e .");
    c4e.spawned_at = Timestamp::from_millis(120_000);
    let mut p9t = worker("agent-p9t", "Find callers of old API", WorkerStatus::Completed, "");
    p9t.ended_at = Some(Timestamp::from_millis(72_000));
    state.workers = vec![a1b, h7q, k2m, c4e, p9t];
    let ask: Ask = fixtures::permission("req-3f2", "agent-h7q", "pip install pytest-cov").into();
    state.asks.push(ask);
    state
}

fn shown(state: &StateView, width: usize, height: usize) -> Vec<String> {
    let mut keys = Keys::default();
    if let Some(ask) = state.asks.first() {
        keys.show(Some((&ask.request.id, true, fits(ask, width, height))), Timestamp::from_millis(0));
    }
    let picture = Picture {
        state,
        keys: &keys,
        stopping: false,
        reconnecting: false,
        has_keyboard: true,
        width,
        height,
        now: Timestamp::from_millis(161_200),
        glyphs: Glyphs::Unicode,
    };
    block(&picture).iter().map(|row| anstream::adapter::strip_str(row).to_string()).collect()
}

#[test]
fn who_waits_for_you_stands_beside_the_keys() {
    expect![[r#"
        ⠹ a1b Investigate auth bug     Edit src/auth/validate.py     33k  $0.21  2m31s
        ~ k2m Update docs              model busy, try 3 in 12s       8k  $0.03  2m31s
        ⠹ c4e Refactor session store   starting: pip install -e .      -      -    41s
        ? h7q Add auth tests           waits for you: Bash           22k  $0.09  2m31s
              pip install pytest-cov
          asks because commands have no network; 9m28s left
          always = Bash(pip install *) in .claude/settings.local.json
          a allow  s session  A always  x deny  X deny+stop  m deny with words  v view
          2 run  1 waits for you  1 other  1 done  63k $0.33 2m41s   q leave  ^C stop
    "#]]
    .assert_eq(&(shown(&state(), 80, 24).join("\n") + "\n"));
}

#[test]
fn forty_workers_on_twenty_four_lines_keep_who_waits_in_sight() {
    let mut state = state();
    for number in 0..40 {
        let status = if number % 2 == 0 { WorkerStatus::Running } else { WorkerStatus::Pending };
        state.workers.push(worker(&format!("agent-x{number:02}"), "Another", status, "thinking"));
    }
    let rows = shown(&state, 80, 24);
    assert!(rows.len() <= 22, "{rows:#?}");
    assert!(rows.iter().any(|row| row.starts_with("? h7q")), "{rows:#?}");
    assert!(rows.iter().any(|row| row.starts_with("+ ") && row.contains("queued")), "{rows:#?}");
}

#[test]
fn a_long_command_is_not_chopped_but_asked_to_be_seen() {
    let mut state = state();
    let command = (0..300).map(|n| format!("echo {n} \u{202e}\u{1b}[2J")).collect::<Vec<_>>().join("\n");
    state.asks = vec![fixtures::permission("req-3f2", "agent-h7q", &command).into()];
    assert!(!fits(&state.asks[0], 80, 24));
    let rows = shown(&state, 80, 24);
    assert!(rows.len() <= 22);
    assert!(rows.iter().any(|row| row.contains("more lines: v shows them")), "{rows:#?}");
    assert!(!rows.iter().any(|row| row.contains("a allow")), "{rows:#?}");
    assert!(rows.iter().any(|row| row.contains("echo 0 \\u{202e}\\x1b[2J")), "{rows:#?}");
}

#[test]
fn the_coordinator_alone_is_seen_to_work() {
    let session = fixtures::session(fixtures::SESSION, "x");
    let mut state = StateView::new(&session, Seq(0), Timestamp::from_millis(160_000), true);
    state.words.delta("Half a sent");
    let rows = shown(&state, 60, 24);
    assert_eq!(rows[0], "Half a sent");
    assert_eq!(rows[1], "⠹ coordinator thinking");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_row_is_wider_and_no_block_taller_than_the_terminal(
        width in prop::sample::select(vec![40usize, 60, 70, 80, 100, 120, 200]),
        height in 8usize..60,
        names in prop::collection::vec("[a-z漢字😀e\u{301}👩\u{200d}🚀 ]{0,60}", 0..50),
        status in 0usize..8,
        activity in "[a-z漢😀\u{1b}\u{202e} ]{0,80}",
        command in "[a-z漢😀\n ]{1,300}",
        asks in any::<bool>(),
    ) {
        const STATUSES: [WorkerStatus; 8] = [
            WorkerStatus::Pending, WorkerStatus::Starting, WorkerStatus::Running, WorkerStatus::Waiting,
            WorkerStatus::Finishing, WorkerStatus::Completed, WorkerStatus::Failed, WorkerStatus::Aborted,
        ];
        let mut state = state();
        if asks {
            state.asks = vec![fixtures::permission("req-3f2", "agent-h7q", &command).into()];
        } else {
            state.asks.clear();
        }
        for (at, name) in names.iter().enumerate() {
            let mut row = worker(&format!("agent-y{at:02}"), name, STATUSES[(status + at) % 8], &activity);
            row.usage.input_tokens = 12_345_678;
            row.cost_usd = Some(1234.5);
            row.branch = Some(format!("swarm/7c1d09e2/agent-y{at:02}/{name}"));
            row.cause = activity.clone();
            state.workers.push(row);
        }
        state.words.delta(&activity);
        let rows = shown(&state, width, height);
        prop_assert!(rows.len() <= height - 2, "{} rows on {height} lines", rows.len());
        for row in rows {
            prop_assert!(crate::cli::text::width(&row) < width, "{width}: {row:?}");
            prop_assert!(!row.chars().any(char::is_control));
        }
    }
}
