//! `run` from prompt to verdict, and the commands that follow it.

use serde_json::json;
use swarm_protocol::{
    ExitReason, Seq, Timestamp, Verdict, WorkerStatus,
    api::{SessionDetail, TaskAccepted, TaskStatus, TaskView, WorkerView},
    event::{Event, EventLine},
    frame::Live,
};

use super::*;
use crate::cli::fixtures::{self, SESSION};

const TASK: &str = "01a22d8c-a610-7b1d-9a44-000000000001";

fn task(verdict: Option<Verdict>, workers: Vec<WorkerView>) -> TaskView {
    TaskView {
        task_id: TASK.parse().unwrap(),
        session_id: SESSION.parse().unwrap(),
        prompt: "refactor auth module".to_owned(),
        status: TaskStatus::Done,
        verdict,
        reasons: Vec::new(),
        exit_reason: Some("completed".to_owned()),
        exit_detail: None,
        text: Some("All done.".to_owned()),
        workers,
        usage: swarm_protocol::Usage { input_tokens: 48_000, ..Default::default() },
        cost_usd: Some(0.31),
        labels: Vec::new(),
        accepted_at: Timestamp::from_millis(0),
        finished_at: Some(Timestamp::from_millis(170_000)),
    }
}

fn ended() -> WorkerView {
    let mut worker = fixtures::worker("agent-a1b", "Investigate auth bug");
    worker.status = WorkerStatus::Completed;
    worker.exit_reason = Some("completed".to_owned());
    worker.ended_at = Some(Timestamp::from_millis(170_000));
    worker.branch = Some("swarm/7c1d09e2/agent-a1b/investigate-auth-bug".to_owned());
    (worker.files_changed, worker.insertions, worker.deletions) = (2, 14, 3);
    (worker.turns, worker.cost_usd) = (14, Some(0.31));
    worker.usage.input_tokens = 48_000;
    worker
}

fn stream(events: &[EventLine]) -> String {
    let frame = |event: &EventLine| {
        let id = event.seq.map_or_else(String::new, |seq| format!("id: {seq}\n"));
        format!("{id}data: {}\n\n", event.to_json().unwrap())
    };
    format!(": beat\n\n{}", events.iter().map(frame).collect::<String>())
}

fn turn(seq: u64, text: &str) -> EventLine {
    fixtures::event(
        Some(seq),
        Event::CoordinatorTurn {
            request: 1,
            turn: 1,
            assistant: Some(swarm_protocol::Message::assistant(vec![swarm_protocol::Block::text(text)])),
            results: None,
            model: "m".to_owned(),
            stop_reason: swarm_protocol::record::StopReason::EndTurn,
            usage: Default::default(),
            cost: swarm_protocol::usage::Cost::usd(0.0),
            entries: Vec::new(),
            recovered: false,
        },
    )
}

fn finished(seq: u64, verdict: Verdict) -> EventLine {
    fixtures::event(
        Some(seq),
        Event::TaskFinished {
            task_id: TASK.parse().unwrap(),
            verdict,
            reasons: Vec::new(),
            exit_reason: ExitReason::Completed,
            text: "All done.".to_owned(),
        },
    )
}

/// A world whose server takes a task that ends so; the stream breaks once in the middle.
fn world(verdict: Verdict) -> World {
    let world = World::new();
    world.serve(env!("CARGO_PKG_VERSION"));
    let script = &world.script;
    let accepted = TaskAccepted {
        task_id: TASK.parse().unwrap(),
        session_id: SESSION.parse().unwrap(),
        after: Seq(2),
        notices: vec!["1 file is changed and not committed; workers do not see it".to_owned()],
    };
    script.answer("POST /tasks", 202, serde_json::to_string(&accepted).unwrap());
    let mut session = fixtures::session(SESSION, "refactor auth module");
    session.repo = world.repository().to_str().unwrap().to_owned();
    let detail = SessionDetail {
        session: session.clone(),
        tasks: vec![task(None, Vec::new())],
        workers: Vec::new(),
        notifications: Vec::new(),
        permissions: Vec::new(),
        conversation: Vec::new(),
        seq: Seq(9),
    };
    script.answer(&format!("GET /sessions/{SESSION}"), 200, serde_json::to_string(&detail).unwrap());
    script.answer("GET /sessions", 200, json!([session]));
    script.answer("GET /workers", 200, json!([ended()]));
    script.answer("GET /permissions", 200, json!([]));
    script.answer(
        &format!("GET /tasks/{TASK}"),
        200,
        serde_json::to_string(&task(Some(verdict), vec![ended()])).unwrap(),
    );
    let mut starting = ended();
    starting.status = WorkerStatus::Starting;
    starting.ended_at = None;
    let live = |text: &str| {
        let live = Live::TextDelta { text: text.to_owned(), thinking: false };
        fixtures::event(None, Event::Live { worker_id: None, after: Seq(2), live })
    };
    let events = format!("GET /sessions/{SESSION}/events");
    let first = [
        live("I split "),
        turn(3, "I split this into one part."),
        fixtures::worker_state(4, &starting, WorkerStatus::Pending),
    ];
    script.answer(&events, 200, stream(&first));
    // The second connection repeats an event: it counts once.
    let second = [
        fixtures::worker_state(4, &starting, WorkerStatus::Pending),
        fixtures::worker_state(5, &ended(), WorkerStatus::Finishing),
        turn(6, "All done."),
        finished(7, verdict),
    ];
    script.answer(&events, 200, stream(&second));
    world
}

#[test]
fn from_prompt_to_verdict_with_a_lost_connection_between() {
    let world = world(Verdict::Complete);
    let (exit, out, err) =
        world.swarm(&["run", "--model", "demo", "--max-workers", "3", "refactor", "auth", "module"]);
    assert_eq!(exit, 0, "{err}");
    expect_test::expect![[r#"
        I split this into one part.
        All done.
        ✓ a1b Investigate auth bug     2 files   +14 -3   14 turns   48k  $0.31  2m50s
              swarm/7c1d09e2/agent-a1b/investigate-auth-bug
        complete: 1 done   48k  $0.51 (own $0.20)  2m50s
        next: swarm diff a1b, swarm merge a1b
    "#]]
    .assert_eq(&out);
    let err: Vec<String> =
        err.lines().map(|line| line.split_once("] ").map_or(line, |(_, words)| words).to_owned()).collect();
    assert_eq!(
        err,
        [
            "note: 1 file is changed and not committed; workers do not see it",
            "session 7c1d09e2  base main 3f9ac21  anthropic/NAME",
            "a1b started: Investigate auth bug",
            "the server is away; looking for it",
            "the server is back",
            "a1b completed: 2 files, 14 turns, 48k tokens, $0.31",
        ]
    );
    let sent = &world.script.requests("POST /tasks")[0];
    assert_eq!(sent["prompt"], "refactor auth module");
    assert_eq!(sent["repo"], world.repository().to_str().unwrap());
    assert_eq!(sent["max_workers"], 3);
    assert_eq!(sent["client"]["settings"][0], json!({"key": "model", "value": "demo", "source": "--model"}));
}

#[test]
fn the_exit_code_is_the_verdict() {
    for (verdict, exit) in [(Verdict::Complete, 0), (Verdict::Degraded, 1), (Verdict::Failed, 1)] {
        assert_eq!(world(verdict).swarm(&["run", "--model", "demo", "x"]).0, exit);
    }
}

#[test]
fn programs_get_lines_of_the_envelope_and_the_result_last() {
    let world = world(Verdict::Degraded);
    let (exit, out, err) = world.swarm(&["run", "--json", "--model", "demo", "x"]);
    assert_eq!(exit, 1);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["v"] == 1 && line["kind"].is_string()));
    let seqs: Vec<u64> = lines.iter().filter_map(|line| line["seq"].as_u64()).collect();
    assert_eq!(seqs, [3, 4, 5, 6, 7, 7], "each event once, the result at the cursor");
    let last = lines.last().unwrap();
    assert_eq!(last["kind"], "session.result");
    assert_eq!(last["verdict"], "degraded");
    assert_eq!(last["workers"][0]["id"], "agent-a1b");
    assert!(!err.contains("I split"), "{err}");
    assert_eq!(world.script.requests("POST /tasks")[0]["unattended"], true);
}

#[test]
fn detached_prints_the_session_and_leaves() {
    let world = world(Verdict::Complete);
    let (exit, out, _) = world.swarm(&["run", "--detach", "--model", "demo", "x"]);
    assert_eq!((exit, out.as_str()), (0, "7c1d09e2\n"));
    let (_, out, _) = world.swarm(&["run", "--detach", "--json", "--model", "demo", "x"]);
    let line: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&line["kind"], &line["task_id"], &line["session_id"]),
        (&"task.accepted".into(), &TASK.into(), &SESSION.into())
    );
}

#[test]
fn quiet_says_the_result_alone() {
    let (_, out, err) = world(Verdict::Complete).swarm(&["run", "-q", "--model", "demo", "x"]);
    assert_eq!(out, "All done.\n");
    assert_eq!(err, "");
}

#[test]
fn a_key_that_was_refused_is_exit_three() {
    let world = world(Verdict::Failed);
    let mut refused = task(Some(Verdict::Failed), Vec::new());
    refused.exit_reason = Some("model_error".to_owned());
    refused.exit_detail = Some(json!({"error": "key_refused", "message": "HTTP 401: invalid x-api-key"}));
    let mut played = world.script.0.lock().unwrap();
    played
        .answers
        .insert(format!("GET /tasks/{TASK}"), vec![(200, serde_json::to_string(&refused).unwrap())]);
    played.answers.insert(
        format!("GET /sessions/{SESSION}/events"),
        vec![(200, stream(&[finished(3, Verdict::Failed)]))],
    );
    drop(played);
    let (exit, _, err) = world.swarm(&["run", "--model", "anthropic/x", "x"]);
    assert_eq!(exit, 3);
    assert!(err.contains("error[key_refused]: the provider refused the key (HTTP 401)\n"), "{err}");
    assert!(err.contains("swarm resume 7c1d09e2"), "{err}");
}

#[test]
fn a_refusal_of_the_server_keeps_its_words() {
    let world = World::new();
    world.serve(env!("CARGO_PKG_VERSION"));
    let problem = json!({"type": "about:blank", "status": 422, "title": "~/src/shop has no commit `relase-2`",
        "causes": ["from --base"], "hint": "did you mean `release-2` (branch, 4 days old)?", "code": "bad_base"});
    world.script.answer("POST /tasks", 422, problem);
    let (exit, _, err) = world.swarm(&["run", "--model", "demo", "--base", "relase-2", "x"]);
    assert_eq!(exit, 2);
    expect_test::expect![[r#"
        error[bad_base]: ~/src/shop has no commit `relase-2`
          cause: from --base
          hint:  did you mean `release-2` (branch, 4 days old)?
    "#]]
    .assert_eq(&err);
}

#[test]
fn ps_lists_and_programs_get_a_line_each() {
    let world = world(Verdict::Complete);
    let (exit, out, _) = world.swarm(&["ps", "-a"]);
    assert_eq!(exit, 0);
    assert!(out.starts_with("7c1d09e2  refactor auth module"), "{out}");
    assert!(out.contains("✓ a1b Investigate auth bug"), "{out}");
    let (_, out, _) = world.swarm(&["ps", "-a", "--json"]);
    let kinds: Vec<Value> =
        out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
    assert_eq!(kinds, ["session.state", "worker.state"]);
}

#[test]
fn a_merge_says_what_moved_and_a_dirty_target_what_to_do() {
    let world = world(Verdict::Complete);
    let call = "POST /workers/agent-a1b/merge";
    let merged = json!({"result": "merged", "into": "main", "from": "3f9ac21aaaa", "to": "9be0d11bbbb", "files": 2, "insertions": 14, "deletions": 3});
    let dirty = json!({"result": "target_dirty", "into": "main", "checkout": world.repository(), "files": ["M src/auth/session.py", "M README.md"]});
    world.script.answer(call, 200, merged);
    world.script.answer(call, 200, dirty);
    let (exit, out, _) = world.swarm(&["merge", "a1b"]);
    assert_eq!((exit, out.as_str()), (0, "merged a1b into main: 3f9ac21..9be0d11, 2 files +14 -3\n"));
    let (exit, _, err) = world.swarm(&["merge", "a1b"]);
    assert_eq!(exit, 1);
    expect_test::expect![[r#"
        error[target_dirty]: main was not moved: files this merge touches are changed
          cause: ~/shop has it checked out: M src/auth/session.py, M README.md
          hint:  commit or stash them, or land elsewhere: swarm merge a1b --into NAME
    "#]]
    .assert_eq(&err);
}

#[test]
fn who_is_too_late_with_an_answer_learns_who_was_first() {
    let world = world(Verdict::Complete);
    let ask = fixtures::permission("req-3f2", "agent-a1b", "pip install x");
    world.script.0.lock().unwrap().answers.remove("GET /permissions");
    world.script.answer("GET /permissions", 200, json!([ask]));
    let decision = |by: &str, decision: &str| json!({"id": "req-3f2", "decision": decision, "scope": "once", "by": by, "reason": null, "decided_at": "2026-11-30T17:44:43.031Z"});
    let call = "POST /permissions/req-3f2";
    world.script.answer(
        call,
        200,
        json!({"won": true, "decision": decision("person", "allow"), "wrote_rule": null}),
    );
    world.script.answer(
        call,
        200,
        json!({"won": false, "decision": decision("timeout", "deny"), "wrote_rule": null}),
    );
    let (exit, out, _) = world.swarm(&["approve", "a1b"]);
    assert_eq!((exit, out.as_str()), (0, "req-3f2 allowed once: a1b goes on\n"));
    let (exit, _, err) = world.swarm(&["approve", "req-3f2"]);
    assert_eq!(exit, 1);
    assert!(err.contains("already denied ") && err.contains(" ago by timeout"), "{err}");
}

#[test]
fn logs_end_at_the_snapshot_and_know_their_cursor() {
    let world = world(Verdict::Complete);
    let events = [turn(3, "Hello."), finished(9, Verdict::Complete)];
    world
        .script
        .0
        .lock()
        .unwrap()
        .answers
        .insert(format!("GET /sessions/{SESSION}/events"), vec![(200, stream(&events))]);
    let (exit, out, _) = world.swarm(&["logs", "7c1d09e2"]);
    assert_eq!(exit, 0);
    assert_eq!(out, "[00:00] Hello.\n[00:00] verdict complete\n");
    let (_, out, _) = world.swarm(&["logs", "--json", "7c1d09e2"]);
    assert_eq!(out.lines().count(), 2);
}
