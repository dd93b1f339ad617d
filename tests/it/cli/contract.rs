//! The `--json` contract: what programs may rely on, to the letter.

use integration_tests::{Reply, swarm::Finished, when};
use serde_json::{Value, json};

use super::Shell;
use crate::rig::{COORDINATE, agent, call, prompt, write};

/// Every line has the envelope; the last one is the result. Returns it.
#[track_caller]
fn assert_lines(finished: &Finished) -> Value {
    let lines = finished.json_lines();
    let session = lines.last().expect("there are lines")["session_id"].clone();
    let mut last_seq = 0;
    for line in &lines {
        assert_eq!(line["v"], 1, "{line}");
        assert!(line["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{line}");
        assert_eq!(line["session_id"], session, "{line}");
        assert!(line["kind"].is_string(), "{line}");
        // Live news have no seq; the cursor never goes back, and nothing comes twice.
        if let Some(seq) = line["seq"].as_u64().filter(|_| line["kind"] != "session.result") {
            assert_eq!(seq, last_seq + 1, "{line}");
            last_seq = seq;
        }
    }
    let result = lines.last().expect("there are lines").clone();
    assert_eq!(result["kind"], "session.result", "{result:#}");
    assert_eq!(lines.iter().filter(|line| line["kind"] == "session.result").count(), 1);
    assert_eq!(result["seq"], last_seq);
    for key in ["verdict", "exit_reason", "text", "usage", "cost_usd", "workers"] {
        assert!(result.get(key).is_some(), "no `{key}` in {result:#}");
    }
    for worker in result["workers"].as_array().expect("workers are a list") {
        for key in [
            "id",
            "name",
            "status",
            "exit_reason",
            "doubts",
            "branch",
            "base",
            "commits",
            "files_changed",
            "turns",
            "usage",
            "cost_usd",
        ] {
            assert!(worker.get(key).is_some(), "no `{key}` in {worker:#}");
        }
    }
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_run_ends_with_its_result_and_exit_code_0() {
    let shell = Shell::new();
    shell.spawns(&["alpha", "beta"]);
    shell.model.agent(
        &prompt("alpha"),
        [call(write("one.txt", "1\n")), call(write("two.txt", "2\n")), Reply::say("Two files.")],
    );
    let looks = Reply::call("Glob", json!({"pattern": "*"}));
    shell.model.agent(&prompt("beta"), [looks, Reply::say("Nothing had to change.")]);
    let finished = shell.run(&["run", "--json", COORDINATE]).await;
    let result = assert_lines(&finished);
    // Beta was expected to change something and did not: that is said, and is no complete success.
    assert_eq!(result["verdict"], "degraded", "{result:#}");
    let finished = finished.expect_code(1);
    assert_eq!((&result["exit_reason"], &result["text"]), (&json!("completed"), &json!("All is done.")));
    let worker = |name: &str| {
        let workers = result["workers"].as_array().expect("a list");
        workers.iter().find(|worker| worker["name"] == name).expect("it is listed").clone()
    };
    let alpha = worker("alpha");
    assert_eq!(alpha["base"], shell.repo.head());
    assert_eq!((&alpha["commits"], &alpha["files_changed"]), (&json!(1), &json!(2)));
    assert_eq!((&alpha["status"], &alpha["exit_reason"]), (&json!("completed"), &json!("completed")));
    assert_eq!((&alpha["turns"], &alpha["doubts"]), (&json!(3), &json!([])));
    assert!(
        alpha["branch"]
            .as_str()
            .is_some_and(|branch| shell.repo.branches("swarm").contains(&branch.to_owned()))
    );
    let beta = worker("beta");
    assert_eq!(
        (&beta["branch"], &beta["commits"], &beta["files_changed"]),
        (&Value::Null, &json!(0), &json!(0))
    );
    assert_eq!(beta["doubts"], json!(["no_change"]), "{beta:#}");
    // This model's price is known to nobody.
    assert_eq!((&result["cost_usd"], &alpha["cost_usd"]), (&Value::Null, &Value::Null));
    assert!(result["usage"]["output_tokens"].as_u64() > Some(0));
    for kind in ["session.created", "task.accepted", "worker.spawned", "worker.run_ended", "task.finished"] {
        assert!(finished.json_lines().iter().any(|line| line["kind"] == kind), "no {kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_have_their_exit_codes() {
    let shell = Shell::new();
    shell.one_worker(None);
    let complete = shell.run(&["run", "--json", COORDINATE]).await.expect_code(0);
    let result = assert_lines(&complete);
    assert_eq!(result["verdict"], "complete", "{result:#}");

    shell.model.clear_rules();
    shell.model.rule(when(), Reply::error(400));
    let failed = shell.run(&["run", "--json", COORDINATE]).await.expect_code(1);
    let result = assert_lines(&failed);
    assert_eq!((&result["verdict"], &result["exit_reason"]), (&json!("failed"), &json!("model_error")));
    assert!(result["exit_detail"].is_object(), "{result:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_ends_with_its_result_and_exit_code_130() {
    let shell = Shell::new();
    shell.one_worker(Some("never"));
    let running = shell.start(&["run", "--json", COORDINATE]);
    shell.model.gate("never").reached().await;
    shell.worker("a running worker", |worker| worker["status"] == "running").await;
    running.interrupt();
    let finished = running.finish().await.expect_code(130);
    let result = assert_lines(&finished);
    assert_eq!(result["workers"][0]["status"], "aborted", "{result:#}");
    assert_eq!(result["workers"][0]["files_changed"], 1, "{result:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_means_accepted_and_nothing_more() {
    let shell = Shell::new();
    shell.one_worker(Some("later"));
    let finished = shell.run(&["run", "--json", "--detach", COORDINATE]).await.expect_code(0);
    let lines = finished.json_lines();
    let accepted = lines.last().expect("a line");
    assert_eq!(accepted["kind"], "task.accepted");
    for key in ["task_id", "session_id"] {
        assert!(accepted[key].as_str().is_some_and(|id| id.len() == 36), "{accepted}");
    }
    shell.model.gate("later").reached().await;
    shell.model.gate("later").open();
    let session = accepted["session_id"].as_str().expect("an id");
    let attached = shell.run(&["attach", "--json", session]).await.expect_code(0);
    let result = attached.json_lines().pop().expect("a result");
    assert_eq!((&result["kind"], &result["verdict"]), (&json!("session.result"), &json!("complete")));
    assert_eq!(result["task_id"], accepted["task_id"]);
    // Over is over, however often one looks.
    let again = shell.run(&["attach", "--json", session]).await.expect_code(0);
    assert_eq!(again.json_lines().pop().expect("a result")["workers"], result["workers"]);
    let plain = shell.run(&["run", "--detach", COORDINATE]).await.expect_code(0);
    assert_eq!(plain.stdout.trim().len(), 8, "{}", plain.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_a_json_run_is_unattended() {
    let shell = Shell::new();
    shell.model.agent(COORDINATE, [Reply::call("Agent", agent("alpha"))]);
    shell.model.rule(when().agent(COORDINATE), "All is done.");
    shell.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("I was not allowed to.")]);
    let finished = shell.run(&["run", "--json", "--permission-mode", "default", COORDINATE]).await;
    assert_lines(&finished);
    // Nobody is asked, so nothing waits at the desk.
    assert!(finished.json_lines().iter().all(|line| line["kind"] != "permission.requested"));
    let told = shell.model.wait_for_request(&prompt("alpha"), 1).await;
    let (_, text, is_error) = told.last_tool_results()[0];
    assert!(is_error && text.contains("unattended"), "the model is told why: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_show_something_speak_json() {
    let shell = Shell::new();
    for command in [&["ps", "--json"][..], &["cost", "--json"]] {
        let finished = shell.run(command).await.expect_code(0);
        assert_eq!(finished.stdout, "", "an empty list is no line");
    }
    shell.one_worker(None);
    shell.done().await;
    let worker = shell.workers().await.remove(0);
    let id = worker["id"].as_str().expect("an id").to_owned();
    let session = worker["session_id"].as_str().expect("an id").to_owned();
    for (command, kind) in [
        (&["ps", "-a", "--json"][..], "worker.state"),
        (&["show", "--json", &id], "worker.state"),
        (&["show", "--json", &session], "session.state"),
        (&["logs", "--json", &session], "task.finished"),
        (&["explain", "--json", &id], ""),
        (&["diff", "--json", &id], ""),
        (&["cost", "--json"], ""),
        (&["config", "--json"], "config"),
        (&["doctor", "--json"], ""),
        (&["gc", "--dry-run", "--json"], ""),
        (&["restore", "--list", "--json", &id], ""),
        (&["merge", "--json", &id], ""),
        (&["discard", "--json", &id], ""),
        (&["dashboard", "--json"], "dashboard"),
        (&["trust", "--json"], "trust"),
    ] {
        let finished = shell.run(command).await;
        let lines = finished.json_lines();
        assert!(!lines.is_empty(), "{command:?} said nothing: {}", finished.stderr);
        for line in &lines {
            assert_eq!(line["v"], 1, "{command:?}: {line}");
            assert!(line["kind"].is_string(), "{command:?}: {line}");
        }
        assert!(
            kind.is_empty() || lines.iter().any(|line| line["kind"] == kind),
            "{command:?}: {}",
            finished.stdout
        );
    }
    // The cursor of a snapshot is where `logs` goes on, without a gap.
    let logs = shell.run(&["logs", "--json", &session]).await.expect_code(0).json_lines();
    let middle = logs[logs.len() / 2]["seq"].as_u64().expect("a seq");
    let since = shell.run(&["logs", "--json", "--since", &middle.to_string(), &session]).await.expect_code(0);
    assert_eq!(since.json_lines()[..], logs[logs.len() / 2 + 1..]);
}
