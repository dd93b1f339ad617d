//! What asks, and who answers: a person over HTTP, a rule, time, or nobody.

use integration_tests::{
    Reply, TestRepo, eventually,
    model_server::Request,
    wait::{LATER, SOON},
    when,
};
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
    let decided = rig.events(&task, "permission.decided").await;
    let by: Vec<&Value> = decided.iter().map(|event| &event["decision"]["by"]).collect();
    assert_eq!(by, ["person", "rule"], "the other one needs no answer any more");
    assert!(rig.events(&task, "permission.withdrawn").await.is_empty());
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
    // The checkout of a test lies below /tmp, of which commands in namespaces have one of their own: there the second
    // may write, and it reaches nobody.
    let refused = [&tried[0], &tried[2], &tried[3]];
    assert!(refused.iter().all(|(_, is_error)| *is_error), "{tried:#?}");
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

#[tokio::test(flavor = "multi_thread")]
async fn several_requests_are_answered_at_once_by_name_or_all_of_a_session() {
    let rig = Rig::new().await;
    rig.coordinator(
        Reply::new().tool("Agent", agent("one")).tool("Agent", agent("two")).tool("Agent", agent("three")),
    );
    for name in ["one", "two", "three"] {
        writer(&rig, name, &[&format!("{name}.txt"), &format!("{name}-more.txt")]);
    }
    let task = rig.submit_with(asking()).await;
    let open = open_requests(&rig, 3).await;
    let id = |name: &str| {
        let view = open.iter().find(|view| view["worker_name"] == name).expect("it asks");
        view["request"]["id"].as_str().expect("an id").to_owned()
    };
    let (one, two) = (id("one"), id("two"));
    // Named ones; a name that is none harms no other, and one that is named twice is answered once.
    let body =
        json!({"ids": [one, "req-00000000", two, one], "answer": {"decision": "deny", "reason": "Both."}});
    let answered = rig.api().post("/permissions", &body).await;
    let shown: Vec<(&Value, &Value, &Value)> = answered
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (&one["id"], &one["answered"]["won"], &one["problem"]["code"]))
        .collect();
    let (yes, none) = (json!(true), Value::Null);
    let unknown = json!("unknown_id");
    assert_eq!(
        shown,
        [(&json!(one), &yes, &none), (&json!("req-00000000"), &none, &unknown), (&json!(two), &yes, &none)]
    );
    // The rest and what came meanwhile, by the session.
    open_requests(&rig, 3).await;
    let body = json!({"session_id": task.session, "answer": {"decision": "allow"}});
    let answered = rig.api().post("/permissions", &body).await;
    assert_eq!(answered.as_array().map(Vec::len), Some(3));
    // The last one is answered in the shell, all at once again.
    open_requests(&rig, 1).await;
    let said =
        rig.home.run(rig.repo.path(), &["approve", "--all", &task.session]).await.expect_code(0).stdout;
    assert!(said.contains("allowed once: "), "{said}");
    rig.done(&task).await;
    let three = rig.worker(&task, "three").await;
    assert_eq!(rig.at(&three, "three-more.txt").as_deref(), Some("x\n"));
    let one = rig.worker(&task, "one").await;
    assert_eq!((rig.at(&one, "one.txt"), rig.at(&one, "one-more.txt").as_deref()), (None, Some("x\n")));
    for body in [json!({"answer": {"decision": "deny"}}), json!({"ids": [], "answer": {"decision": "deny"}})]
    {
        let (status, problem) = rig.api().try_post("/permissions", &body).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("bad_request")));
    }
}

/// Waits until so many requests are open.
async fn open_requests(rig: &Rig, n: usize) -> Vec<Value> {
    eventually(LATER, &format!("{n} open requests"), async || {
        let open = rig.api().get("/permissions").await;
        match open.as_array() {
            Some(views) if views.len() == n => Ok(views.clone()),
            _ => Err(format!("{open:#}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn z01_two_agents_with_the_same_id_for_their_calls_are_woken_each_by_its_own_answer() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("left")).tool("Agent", agent("right")));
    for name in ["left", "right"] {
        let (tool, input) = write(&format!("{name}.txt"), "x\n");
        rig.model.agent(
            &prompt(name),
            [Reply::new().tool_with_id("toolu_same", tool, input), Reply::say("Tried all.")],
        );
    }
    let task = rig.submit_with(asking()).await;
    let open = open_requests(&rig, 2).await;
    assert_eq!(open[0]["request"]["tool_use_id"], open[1]["request"]["tool_use_id"]);
    let of = |name: &str| open.iter().find(|view| view["worker_name"] == name).expect("it asks").clone();
    rig.answer(&of("right"), &json!({"decision": "allow"})).await;
    rig.worker_is(&task, "right", "ended", |worker| worker["ended_at"].is_string()).await;
    assert_eq!(rig.worker(&task, "left").await["status"], "waiting", "nobody has answered it");
    rig.answer(&of("left"), &json!({"decision": "deny"})).await;
    rig.done(&task).await;
    let (left, right) = (rig.worker(&task, "left").await, rig.worker(&task, "right").await);
    assert_eq!(rig.at(&right, "right.txt").as_deref(), Some("x\n"));
    assert_eq!(left["commits"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn z02_the_same_call_twice_is_one_question_and_its_answer_is_used_up_by_it() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("twice")));
    // Reads outside the worktree, which ask and run beside one another.
    let outside = rig.home.user_home().join("outside.txt");
    std::fs::write(&outside, "seen\n").expect("the home is ours");
    let read = || ("Read", json!({"file_path": outside}));
    let two = || Reply::new().tool(read().0, read().1).tool(read().0, read().1);
    rig.model.agent(&prompt("twice"), [two(), call(read()), Reply::say("Read all.")]);
    let task = rig.submit().await;
    let open = open_requests(&rig, 2).await;
    assert_eq!(open[0]["joined"], json!([open[1]["request"]["id"]]));
    assert_eq!(open[0]["request"]["args_hash"], open[1]["request"]["args_hash"]);
    // An answer to something else than what is asked is none.
    let (status, problem) = rig
        .api()
        .try_post(
            &format!("/permissions/{}", open[0]["request"]["id"].as_str().expect("an id")),
            &json!({"decision": "allow", "args_hash": "0".repeat(64)}),
        )
        .await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("other_arguments")));
    rig.answer(&open[0], &json!({"decision": "allow", "args_hash": open[0]["request"]["args_hash"]})).await;
    let late = rig.answer(&open[1], &json!({"decision": "deny"})).await;
    assert_eq!((&late["won"], &late["decision"]["decision"]), (&json!(false), &json!("allow")));
    // Once is once: the next call asks anew.
    let third = open_requests(&rig, 1).await;
    rig.answer(&third[0], &json!({"decision": "deny"})).await;
    rig.done(&task).await;
    let results = all_results(&rig, "twice").await;
    assert_eq!(results.iter().map(|(_, is_error)| *is_error).collect::<Vec<_>>(), [false, false, true]);
    let log = rig.api().get(&format!("/sessions/{}/permissions", task.session)).await;
    let deciders: Vec<(&Value, &Value)> = log
        .as_array()
        .expect("a list")
        .iter()
        .map(|view| (&view["decision"]["decision"], &view["decision"]["args_hash"]))
        .collect();
    let hash = &open[0]["request"]["args_hash"];
    let (allow, deny) = (json!("allow"), json!("deny"));
    assert_eq!(deciders, [(&allow, hash), (&allow, hash), (&deny, hash)]);
    let shown =
        rig.home.run(rig.repo.path(), &["permissions", "log", &task.session]).await.expect_code(0).stdout;
    assert_eq!(shown.matches(hash.as_str().expect("a hash")).count(), 3, "{shown}");
    assert!(shown.contains("allowed once by a person") && shown.contains("outside.txt"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn z04_a_request_that_cannot_be_journaled_fails_its_call_and_the_agent_goes_on() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    let (tool, input) = write("a.txt", "x\n");
    rig.model.agent(
        &prompt("writer"),
        [Reply::new().tool(tool, input).hold("asks"), Reply::say("Went on.").hold("went on")],
    );
    let task = rig.submit_with(asking()).await;
    rig.model.gate("asks").reached().await;
    let path = rig.home.path().join("journal.sqlite");
    let mut journal = rusqlite::Connection::open(path).expect("the journal can be opened");
    let foreign =
        journal.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("a lock");
    rig.model.gate("asks").open();
    // The journal is still not to be had: the agent has its answer all the same.
    rig.model.gate("went on").reached().await;
    let results = all_results(&rig, "writer").await;
    assert!(results[0].1 && results[0].0.contains("could not be recorded"), "{results:?}");
    drop(foreign);
    rig.model.gate("went on").open();
    rig.done(&task).await;
    assert_eq!(
        rig.api().get("/permissions").await,
        json!([]),
        "nothing waits for an answer that is not wanted"
    );
    assert_eq!(rig.worker(&task, "writer").await["commits"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn z05_a_request_of_an_agent_names_it_everywhere() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("scribe")));
    writer(&rig, "scribe", &["a.txt"]);
    let task = rig.submit_with(asking()).await;
    let request = rig.permission_request(&task).await;
    let worker = rig.worker_has_status(&task, "scribe", "waiting").await;
    assert_eq!(
        (&request["worker_name"], &request["request"]["worker_id"]),
        (&json!("scribe"), &worker["id"])
    );
    let racers: Vec<&Value> =
        request["racers"].as_array().expect("who may decide").iter().map(|r| &r["by"]).collect();
    assert_eq!(racers, ["rule", "person", "timeout"]);
    let listed = rig.home.run(rig.repo.path(), &["ps"]).await.expect_code(0).stdout;
    assert!(listed.contains("scribe"), "{listed}");
    let refused = rig.home.run(rig.repo.path(), &["deny", "scribe"]).await.expect_code(0).stdout;
    assert!(refused.contains("denied"), "{refused}");
    rig.done(&task).await;
    let logged = rig.home.run(rig.repo.path(), &["permissions", "log", "scribe"]).await.expect_code(0).stdout;
    assert!(logged.contains("scribe") && logged.contains("denied by a person"), "{logged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_rejects_nothing_and_the_end_of_the_session_rejects_all() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("left")).tool("Agent", agent("right")));
    for name in ["left", "right"] {
        writer(&rig, name, &[&format!("{name}.txt")]);
    }
    let task = rig.submit_with(asking()).await;
    let mut watching = rig.api().events(&format!("/sessions/{}/events", task.session), Some("0")).await;
    watching
        .wait_for("a request on the stream", |event| {
            (event.data["kind"] == "permission.requested").then_some(())
        })
        .await;
    let open = open_requests(&rig, 2).await;
    drop(watching);
    assert_eq!(open_requests(&rig, 2).await.len(), open.len());
    rig.api().delete(&format!("/sessions/{}", task.session)).await;
    let decided = rig.events(&task, "permission.decided").await;
    let by: Vec<&Value> = decided.iter().map(|event| &event["decision"]["by"]).collect();
    assert_eq!(by, ["session_end", "session_end"]);
    assert_eq!(rig.answer(&open[0], &json!({"decision": "allow"})).await["won"], false);
}
