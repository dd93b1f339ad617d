//! What asks, and who answers: a person over HTTP, a rule, time, or nobody.

use integration_tests::{Reply, TestRepo, model_server::Request, wait::SOON, when};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, agent, bash, call, entries, prompt, reporter, write};

/// In this mode every change asks.
fn asking() -> Value {
    json!({"permission_mode": "default"})
}

/// A worker that writes these files, one a turn, and ends.
fn writer(rig: &Rig, name: &str, files: &[&str]) {
    let mut replies: Vec<Reply> = files.iter().map(|file| call(write(file, "x\n"))).collect();
    replies.push(Reply::say("Tried all."));
    rig.model.agent(&prompt(name), replies);
}

/// Commands ask one by one, and a rule can cover the next.
const COMMANDS_ASK: &str = "[sandbox]\nauto_allow = false\n";

/// A worker that makes these files by commands, one a turn, and ends.
fn toucher(rig: &Rig, name: &str, files: &[&str]) {
    let touch = |file: &&str| call(bash(&format!("touch {file}")));
    let mut replies: Vec<Reply> = files.iter().map(touch).collect();
    replies.push(Reply::say("Touched all."));
    rig.model.agent(&prompt(name), replies);
}

fn results(request: &Request) -> Vec<(String, bool)> {
    request.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

/// The results of all calls of a worker, as its last request has them.
async fn all_results(rig: &Rig, name: &str) -> Vec<(String, bool)> {
    results(rig.model.requests_of(&prompt(name)).last().expect("it asked"))
}

async fn asked(rig: &Rig, task: &Task) -> usize {
    rig.events(task, "permission.requested").await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_over_http_allows_one_call_and_a_second_answer_learns_which_decided() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    writer(&rig, "writer", &["one.txt", "two.txt"]);
    let task = rig.submit_with(asking()).await;
    let first = rig.permission_request(&task).await;
    assert_eq!((&first["request"]["tool"], &first["worker_name"]), (&json!("Write"), &json!("writer")));
    assert!(first["request"]["why"].as_str().is_some_and(|why| why.contains("asks because")), "{first:#}");
    let worker = rig.worker_has_status(&task, "writer", "waiting").await;
    assert_eq!(
        (&worker["waiting_for"], &worker["request_id"]),
        (&json!("permission"), &first["request"]["id"])
    );
    assert_eq!(rig.session(&task).await["session"]["waiting_for"], "question");
    let answered = rig.answer(&first, &json!({"decision": "allow"})).await;
    assert_eq!((&answered["won"], &answered["decision"]["by"]), (&json!(true), &json!("person")));
    let late = rig.answer(&first, &json!({"decision": "deny"})).await;
    assert_eq!((&late["won"], &late["decision"]["decision"]), (&json!(false), &json!("allow")));
    let second = rig.permission_request(&task).await;
    assert_ne!(second["request"]["id"], first["request"]["id"], "once is once");
    rig.answer(&second, &json!({"decision": "deny", "reason": "Use one.txt alone."})).await;
    rig.done(&task).await;
    let results = all_results(&rig, "writer").await;
    assert!(!results[0].1, "{results:?}");
    assert_eq!(results[1], ("A person refused this call and said: Use one.txt alone.".to_owned(), true));
    let worker = rig.worker(&task, "writer").await;
    assert_eq!((rig.at(&worker, "one.txt").as_deref(), rig.at(&worker, "two.txt")), (Some("x\n"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_the_session_settles_what_waits_elsewhere_and_what_comes() {
    let rig = Rig::configured(COMMANDS_ASK).await;
    rig.coordinator(Reply::new().tool("Agent", agent("left")).tool("Agent", agent("right")));
    toucher(&rig, "left", &["a.txt", "b.txt"]);
    toucher(&rig, "right", &["c.txt"]);
    let task = rig.submit().await;
    rig.worker_has_status(&task, "left", "waiting").await;
    rig.worker_has_status(&task, "right", "waiting").await;
    let request = rig.permission_request(&task).await;
    assert!(request["request"]["proposed_rule"].is_string(), "{request:#}");
    rig.answer(&request, &json!({"decision": "allow", "scope": "session"})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(asked(&rig, &task).await, 2, "those two that waited, and no third");
    assert_eq!(
        rig.events(&task, "permission.withdrawn").await.len(),
        1,
        "the other one needs no answer any more"
    );
    let left = rig.worker(&task, "left").await;
    assert_eq!(rig.at(&left, "b.txt").as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn always_writes_a_rule_that_holds_in_the_next_session() {
    let rig = Rig::configured(COMMANDS_ASK).await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    toucher(&rig, "writer", &["a.txt"]);
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    let file = request["always_file"].as_str().expect("the file is named before the answer").to_owned();
    let answered = rig.answer(&request, &json!({"decision": "allow", "scope": "always"})).await;
    let wrote = answered["wrote_rule"].as_str().expect("the rule is named");
    let rule = request["request"]["proposed_rule"].as_str().expect("a rule was proposed");
    assert!(wrote.contains(rule) && wrote.contains(&file), "{wrote}");
    rig.done(&task).await;
    let settings = std::fs::read_to_string(&file).expect("the file was written");
    let settings: Value = serde_json::from_str(&settings).expect("and is JSON");
    assert_eq!(settings["permissions"]["allow"], json!([rule]));
    assert_eq!(rig.repo.status(), "", "nothing of it is in the repository's way");
    rig.model.agent("the second session", [Reply::call("Agent", agent("again"))]);
    rig.model.rule(when().agent("the second session"), "Noted.");
    toucher(&rig, "again", &["b.txt"]);
    let second = rig.submit_with(json!({"prompt": "the second session"})).await;
    assert_eq!(rig.done(&second).await["verdict"], "complete");
    assert_eq!(asked(&rig, &second).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_that_stops_ends_the_worker() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(&prompt("writer"), [call(write("a.txt", "x\n"))]);
    let task = rig.submit_with(asking()).await;
    let request = rig.permission_request(&task).await;
    rig.answer(&request, &json!({"decision": "deny", "stop": true, "reason": "No."})).await;
    let worker = rig.worker_is(&task, "writer", "ended", |worker| worker["ended_at"].is_string()).await;
    assert_eq!(worker["exit_reason"], "denied_and_stopped", "{worker:#}");
    assert_ne!(rig.done(&task).await["verdict"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_47_nobody_answers_it_is_seen_at_once_denied_at_the_limit_and_the_workers_clock_stands_still() {
    let rig = Rig::configured("permission_timeout = \"3s\"\n").await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    writer(&rig, "writer", &["a.txt"]);
    let task = rig.submit_with(asking()).await;
    let mut events = rig.api().events("/events", Some("0")).await;
    events
        .wait_for("the request on the stream", |event| {
            (event.data["kind"] == "permission.requested").then_some(())
        })
        .await;
    let overview = rig.api().get("/overview").await;
    let row = &overview["rows"][0];
    assert_eq!((&row["group"], &row["word"]), (&json!("needs_you"), &json!("Permission")), "{overview:#}");
    assert!(row["deadline_at"].is_string());
    assert_eq!(
        (&overview["asks"], &rig.session(&task).await["session"]["state"]),
        (&json!(1), &json!("waiting"))
    );
    rig.done(&task).await;
    let results = all_results(&rig, "writer").await;
    assert!(results[0].1 && results[0].0.contains("timed out"), "{results:?}");
    let decided = rig.events(&task, "permission.decided").await;
    assert_eq!(decided[0]["decision"]["by"], "timeout");
    let queued = rig.events(&task, "notification.queued").await;
    let end = &queued.last().expect("its end")["notification"];
    let worked = end["duration_ms"].as_u64().expect("a duration");
    assert!(worked < 3_000, "the wait of 3 s is in it: {worked} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_will_answer_is_denied_at_once_and_says_so() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    writer(&rig, "writer", &["a.txt"]);
    let task = rig.submit_with(json!({"permission_mode": "default", "unattended": true})).await;
    rig.done(&task).await;
    let results = all_results(&rig, "writer").await;
    assert!(results[0].1 && results[0].0.contains("unattended"), "{results:?}");
    assert_eq!(asked(&rig, &task).await, 0);
    assert_eq!(rig.worker(&task, "writer").await["commits"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_that_is_widened_while_it_waits_settles_the_request() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    writer(&rig, "writer", &["a.txt"]);
    let task = rig.submit_with(asking()).await;
    let request = rig.permission_request(&task).await;
    let mode = json!({"mode": "acceptEdits"});
    rig.api().post(&format!("/sessions/{}/permission-mode", task.session), &mode).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let late = rig.answer(&request, &json!({"decision": "deny"})).await;
    assert_eq!(late["won"], false, "it was settled before: {late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_stopped_while_it_waits_takes_its_request_along() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(&prompt("writer"), [call(write("a.txt", "x\n"))]);
    let task = rig.submit_with(asking()).await;
    let request = rig.permission_request(&task).await;
    let worker = rig.worker(&task, "writer").await;
    rig.api().post(&format!("/workers/{}/stop", crate::rig::id_of(&worker)), &json!({})).await;
    rig.worker_has_status(&task, "writer", "aborted").await;
    assert_eq!(rig.api().get("/permissions").await, json!([]));
    assert_eq!(rig.answer(&request, &json!({"decision": "allow"})).await["won"], false);
    rig.done(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_request_and_a_senseless_answer_are_refused() {
    let rig = Rig::new().await;
    let (status, problem) =
        rig.api().try_post("/permissions/req-00000000", &json!({"decision": "allow"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("unknown_id")));
    let (status, _) = rig.api().try_post("/permissions/req-00000000", &json!({"decision": "perhaps"})).await;
    assert!(status.is_client_error(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_18_a_write_into_the_main_checkout_is_refused_and_a_change_that_happens_there_is_noticed() {
    let rig =
        Rig::of(TestRepo::with_files(&[("README.md", "# A project\n"), ("shared.txt", "one\n")]), "").await;
    let checkout = rig.repo.path().to_string_lossy().into_owned();
    rig.coordinator(Reply::call("Agent", reporter("stray")));
    rig.model.agent(
        &prompt("stray"),
        [
            call(write(&format!("{checkout}/by-tool.txt"), "x\n")),
            call(("Bash", json!({"command": format!("echo x > {checkout}/by-shell.txt")}))),
            call(("Bash", json!({"command": format!("git -C {checkout} commit --allow-empty -qm stray")}))),
            call(("Bash", json!({"command": format!("git -C {checkout} config user.name Stray")}))),
            Reply::say("Tried everything.").hold("tried"),
        ],
    );
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.model.gate("tried").reached().await;
    let tried = all_results(&rig, "stray").await;
    assert!(tried.iter().all(|(_, is_error)| *is_error), "{tried:#?}");
    assert_eq!(rig.repo.status(), "");
    assert_eq!(rig.repo.git(&["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(rig.repo.git(&["config", "user.name"]), "A. Person");
    // What a person does there meanwhile looks the same to the server: it is told, never undone.
    rig.repo.write("shared.txt", "changed meanwhile\n");
    rig.model.gate("tried").open();
    rig.done(&task).await;
    let entry = &entries(&rig.last_request())[0];
    assert!(
        entry.text.contains("changed elsewhere while it ran: shared.txt of the main checkout"),
        "{}",
        entry.text
    );
    assert_eq!(rig.repo.read("shared.txt"), "changed meanwhile\n");
    assert!(rig.model.requests_of(COORDINATE).len() >= 2);
    tokio::time::timeout(SOON, rig.task(&task)).await.expect("the server answers");
}
