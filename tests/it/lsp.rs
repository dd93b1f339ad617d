//! Programs that a worker keeps: language servers and interpreters answer through the built worker, and are gone when
//! its run is.

use integration_tests::{Reply, TestRepo, eventually, wait::SOON};
use serde_json::json;

use crate::rig::{Rig, agent, call, prompt};

const SERVER: &str = include_str!("../../worker/tests/shell/language_server.py");

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_an_interpreter_answer_a_worker_and_none_is_left_after_its_run() {
    let repo = TestRepo::with_files(&[("server.py", SERVER), ("a.toy", "def greet\nother greet\n")]);
    let toml = "[lsp]\nservers = [\"toy: python3 server.py\"]\n[repl]\nenabled = true\n";
    let rig = Rig::of(repo, toml).await;
    rig.coordinator(Reply::call("Agent", agent("asker")));
    let python = |code: &str| ("REPL", json!({"language": "python", "code": code}));
    let edit = json!({"file_path": "a.toy", "old_string": "other greet", "new_string": "BUG of mine"});
    rig.model.agent(
        &prompt("asker"),
        [
            call((
                "LSP",
                json!({"operation": "references", "file_path": "a.toy", "line": 1, "character": 5}),
            )),
            call(python("kept = 41")),
            call(python("kept + 1")),
            call(("Read", json!({"file_path": "a.toy"}))),
            call(("Edit", edit)),
            call(("Sleep", json!({"seconds": 0.1}))),
            call(("CronCreate", json!({"cron": "0 0 1 1 *", "prompt": "a new year"}))),
            call(("CronList", json!({}))),
            Reply::say("Asked all.").gate("may end"),
        ],
    );
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    assert_eq!(
        (&request["request"]["tool"], &request["request"]["proposed_rule"]),
        (&json!("REPL"), &json!("REPL"))
    );
    rig.answer(&request, &json!({"decision": "allow", "scope": "session"})).await;
    rig.model.gate("may end").reached().await;
    assert!(!rig.home.processes_named("server.py").is_empty(), "the server is kept while the run goes on");
    rig.model.gate("may end").open();
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("asker")).last().cloned().expect("it asked");
    let results: Vec<String> = last.tool_results().map(|(_, text, _)| text.to_owned()).collect();
    assert_eq!(results[0], "2 references:\na.toy:1:5: def greet\na.toy:2:7: other greet\n");
    assert_eq!(results[2], "42");
    assert!(
        results[4].contains("New problems, says python3:\na.toy:2:1: error[B1] toy: a bug: of mine"),
        "{}",
        results[4]
    );
    assert!(results[5].starts_with("Slept 0.1 s"), "{}", results[5]);
    assert!(results[7].starts_with("cron-1: 0 0 1 1 * (once), due "), "{}", results[7]);
    eventually(SOON, "the programs are gone", async || {
        let left = [rig.home.processes_named("server.py"), rig.home.processes_named("python3")].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let worker = rig.worker(&task, "asker").await;
    assert_eq!(rig.at(&worker, "a.toy").as_deref(), Some("def greet\nBUG of mine\n"));
}
