//! What survives when something dies: server, worker, keeper. Each end is in the model's history exactly once.

use std::time::Instant;

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, eventually,
    model_server::Request,
    until,
    wait::{LATER, SOON},
    when,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::rig::{
    COORDINATE, NOTICED, Rig, TOLD, Task, agent, assert_each_once, bash, call, entries, id_of, path_of,
    prompt, reporter, write,
};

/// The steps of a worker's last entry, as `swarm explain` tells them: step, request, whether a reason is given.
async fn ledger(rig: &Rig, worker: &Value) -> Vec<(String, Value, bool)> {
    let view = rig.api().get(&format!("/explain/{}", id_of(worker))).await;
    let entries = view["ledger"].as_array().expect("a ledger");
    let steps = entries.last().expect("an entry")["steps"].as_array().expect("its steps");
    let of = |step: &Value| {
        (
            step["step"].as_str().unwrap_or_default().to_owned(),
            step["request"].clone(),
            !step["reason"].is_null(),
        )
    };
    steps.iter().map(of).collect()
}

/// The later request repeats the earlier one, message by message, and goes on from there.
#[track_caller]
fn assert_repeats(earlier: &Request, later: &Request) {
    let messages = |request: &Request| {
        let mut messages = request.json["messages"].as_array().expect("a request has messages").clone();
        for message in &mut messages {
            for block in message["content"].as_array_mut().into_iter().flatten() {
                if let Some(block) = block.as_object_mut() {
                    block.remove("cache_control");
                }
            }
        }
        messages
    };
    let (earlier, later) = (messages(earlier), messages(later));
    // The last user message of the earlier one may have grown: what is new follows after what is repeated.
    let (last, before) = earlier.split_last().expect("a request has messages");
    assert!(later.starts_with(before), "the history changed");
    let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
    assert!(blocks(&later[before.len()]).starts_with(&blocks(last)), "the repeated blocks changed");
}

fn sent(step: &str, request: u64, reason: bool) -> (String, Value, bool) {
    (step.to_owned(), request.into(), reason)
}

/// A session whose second worker's end waits while a turn with the first one's is under way.
async fn one_in_flight_one_queued(rig: &Rig, reply: Reply) -> Task {
    let both = Reply::new().tool("Agent", reporter("alpha")).tool("Agent", reporter("beta"));
    rig.model.agent(COORDINATE, [both, Reply::say("Both run."), reply]);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("alpha"), [Reply::say("Alpha's report.")]);
    rig.model.agent(&prompt("beta"), [Reply::say("Beta's report.").hold("beta")]);
    let task = rig.submit().await;
    rig.model.gate("turn").reached().await;
    rig.model.gate("beta").open();
    rig.worker_has_status(&task, "beta", "completed").await;
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_while_its_request_is_unanswered_sends_the_same_again_and_what_is_new_after_it() {
    let mut rig = Rig::new().await;
    let task = one_in_flight_one_queued(&rig, Reply::say("never heard").hold("turn")).await;
    rig.restart_killed().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let requests = rig.model.requests_of(COORDINATE);
    assert_eq!(requests.len(), 4, "nothing else was asked");
    assert_repeats(&requests[2], &requests[3]);
    assert_each_once(&requests[3], 2);
    let alpha = rig.worker(&task, "alpha").await;
    let queued = ("queued".to_owned(), Value::Null, false);
    let steps = ledger(&rig, &alpha).await;
    assert_eq!(
        steps,
        [queued.clone(), sent("sent", 3, false), sent("sent", 4, true), sent("committed", 4, false)]
    );
    let beta = rig.worker(&task, "beta").await;
    assert_eq!(ledger(&rig, &beta).await, [queued, sent("sent", 4, false), sent("committed", 4, false)]);
    let again = rig.events(&task, "notification.sent").await;
    let reasons: Vec<&Value> = again.iter().map(|event| &event["entries"][0]["reason"]).collect();
    assert_eq!(reasons, [&Value::Null, &json!("request 3 was not committed")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_39_a_server_killed_in_the_middle_of_an_answer_delivers_the_entry_again() {
    let mut rig = Rig::new().await;
    let answer = Reply::new().text("I see that alpha").gate("turn").text(" is done.");
    let task = one_in_flight_one_queued(&rig, answer).await;
    rig.restart_killed().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let requests = rig.model.requests_of(COORDINATE);
    assert_repeats(&requests[2], requests.last().expect("asked again"));
    assert_each_once(&rig.last_request(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_after_the_first_effect_of_a_turn_knows_whom_it_spawned() {
    let mut rig = Rig::new().await;
    let answer = Reply::new()
        .text("Alpha is done, gamma is next.")
        .tool_with_id("toolu_gamma", "Agent", reporter("gamma"))
        .gate("turn")
        .tool_with_id("toolu_delta", "Agent", reporter("delta"));
    rig.model.agent(&prompt("gamma"), [Reply::say("Gamma's report.").hold("gamma")]);
    let task = one_in_flight_one_queued(&rig, answer).await;
    rig.model.wait_for_request(&prompt("gamma"), 0).await;
    rig.restart_killed().await;
    rig.model.gate("gamma").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let last = rig.last_request();
    assert_each_once(&last, 3);
    let calls: Vec<&str> = last.tool_uses().map(|(id, _, _)| id).collect();
    assert!(calls.contains(&"toolu_gamma") && !calls.contains(&"toolu_delta"), "{calls:?}");
    let gamma = rig.worker(&task, "gamma").await;
    assert!(last.tool_result("toolu_gamma").is_some_and(|result| result.contains(id_of(&gamma))));
    assert_eq!(rig.model.requests_of(&prompt("gamma")).len(), 1, "it ran on, undisturbed");
    let alpha = rig.worker(&task, "alpha").await;
    let steps = ledger(&rig, &alpha).await;
    assert_eq!(steps[1..], [sent("sent", 3, false), sent("committed", 3, false)], "its turn counts");
    let turns = rig.events(&task, "coordinator.turn").await;
    assert_eq!(turns.iter().filter(|turn| turn["recovered"] == true).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_after_a_turn_repeats_nothing_of_it() {
    let mut rig = Rig::new().await;
    let task = one_in_flight_one_queued(&rig, Reply::say("Alpha is done.").hold("turn")).await;
    rig.model.gate("turn").open();
    rig.done(&task).await;
    let before = rig.model.requests_of(COORDINATE).len();
    rig.restart_killed().await;
    let message = json!({"text": "Is all well?"});
    rig.api().post(&format!("/sessions/{}/messages", task.session), &message).await;
    let request = rig.model.wait_for_request(COORDINATE, before).await;
    assert_each_once(&request, 2);
    assert!(request.last_user_text().contains("Is all well?"));
    assert!(
        request.messages.iter().any(|message| message.text() == "Alpha is done."),
        "the turn is in the history"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_again_and_again_delivers_each_end_once() {
    let mut rig = Rig::new().await;
    let names = ["a", "b", "c", "d"];
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", reporter(name)));
    rig.model.agent(COORDINATE, [spawn, Reply::say("All run.")]);
    // Every answer to an entry hangs until its server is dead.
    rig.model.rule(when().agent(COORDINATE), Reply::say("Heard.").hold("last"));
    for name in names {
        rig.model.agent(&prompt(name), [Reply::say(format!("Report of {name}.")).hold(name)]);
    }
    let task = rig.submit().await;
    for name in names {
        rig.model.wait_for_request(&prompt(name), 0).await;
    }
    for (n, name) in names.into_iter().enumerate() {
        rig.model.gate(name).open();
        // It is told of the next end by the server that began after the last one.
        rig.worker_has_status(&task, name, "completed").await;
        rig.restart_killed().await;
        rig.coordinator_saw(n + 1).await;
    }
    rig.restart_killed().await;
    rig.model.gate("last").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_each_once(&rig.last_request(), 4);
    let last = rig.worker(&task, "a").await;
    let steps = ledger(&rig, &last).await;
    assert!(steps.len() > 4, "every repeat is in the ledger: {steps:?}");
    assert!(
        steps.iter().skip(2).filter(|step| step.0 == "sent").all(|step| step.2),
        "with its reason: {steps:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_end_while_the_server_is_away_are_delivered_once_after_its_restart() {
    let mut rig = Rig::new().await;
    let spawn = ["kept", "changed", "killed"]
        .iter()
        .fold(Reply::new(), |reply, name| reply.tool("Agent", reporter(name)));
    rig.model.agent(COORDINATE, [spawn, Reply::say("All run.")]);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("kept"), [Reply::say("Nothing to change.").hold("away")]);
    rig.model.agent(
        &prompt("changed"),
        [call(write("new.txt", "new\n")).hold("away"), Reply::say("Wrote new.txt.")],
    );
    rig.model.rule(when().agent(&prompt("killed")), Reply::say("Again.").hold("killed"));
    let task = rig.submit().await;
    for name in ["kept", "changed", "killed"] {
        rig.model.wait_for_request(&prompt(name), 0).await;
    }
    let killed = rig.worker(&task, "killed").await;
    let keepers: Vec<_> =
        [rig.worker(&task, "kept").await, rig.worker(&task, "changed").await, killed.clone()]
            .iter()
            .map(|worker| rig.keeper_process(worker).expect("a keeper keeps each"))
            .collect();
    rig.kill_server().await;
    rig.model.gate("away").open();
    rig.kill_worker(&killed).await;
    until(LATER, "the end of all runs", async || keepers.iter().all(|keeper| !keeper.is_alive())).await;
    rig.model.gate("killed").open();
    rig.start().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let last = rig.last_request();
    assert_each_once(&last, 3);
    let changed = rig.worker(&task, "changed").await;
    assert_eq!(rig.at(&changed, "new.txt").as_deref(), Some("new\n"));
    assert_eq!(rig.worker(&task, "killed").await["restarts"], 1);
    assert_eq!(rig.worker(&task, "kept").await["branch"], Value::Null, "nothing changed, nothing kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_while_the_server_is_away_and_what_it_did_is_known_afterwards() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("busy")));
    rig.model.agent(
        &prompt("busy"),
        [
            call(write("one.txt", "1\n")),
            call(write("two.txt", "2\n")).hold("away"),
            Reply::say("Both written.").hold("back"),
        ],
    );
    let task = rig.submit().await;
    rig.model.gate("away").reached().await;
    let process = rig.worker_process(&rig.worker(&task, "busy").await).expect("it runs");
    rig.kill_server().await;
    rig.model.gate("away").open();
    rig.model.gate("back").reached().await;
    rig.start().await;
    let worker = rig.worker_is(&task, "busy", "two turns known", |worker| worker["turns"] == 2).await;
    assert!(process.is_alive(), "it was not started again");
    assert_eq!(worker["restarts"], 0);
    rig.model.gate("back").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(rig.model.requests_of(&prompt("busy")).len(), 3, "no turn was done twice");
    let records = rig.events(&task, "worker.record").await;
    let numbers: Vec<u64> = records.iter().filter_map(|event| event["record"]["n"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "each record once, none missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_watching_again_starts_nothing_again() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("one")));
    rig.model.agent(
        &prompt("one"),
        [call(bash("echo ran >> $TMPDIR/count; wc -l < $TMPDIR/count")), Reply::say("Ran.").hold("end")],
    );
    let task = rig.submit().await;
    rig.model.gate("end").reached().await;
    for _ in 0..3 {
        let path = format!("/sessions/{}/events", task.session);
        let mut events = rig.api().events(&path, Some("0")).await;
        events.wait_for("the worker's run", |event| (event.data["kind"] == "worker.run").then_some(())).await;
        rig.restart_killed().await;
        rig.worker_has_status(&task, "one", "running").await;
    }
    assert_eq!(rig.worker_processes().len(), 1);
    rig.model.gate("end").open();
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("one"));
    assert_eq!(requests.len(), 2);
    assert!(requests[1].last_tool_results()[0].1.trim_end().ends_with('1'));
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_started_again_once_told_so_and_the_outcome_says_it() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("victim")));
    rig.model.agent(
        &prompt("victim"),
        [
            call(write("before.txt", "before\n")),
            Reply::new().tool_with_id("toolu_hang", "Bash", json!({"command": "touch started; sleep 300"})),
            Reply::say("I looked; that is enough.").hold("restarted"),
        ],
    );
    let task = rig.submit().await;
    rig.model.wait_for_request(&prompt("victim"), 1).await;
    let worker = rig.worker(&task, "victim").await;
    let started = path_of(&worker).join("started");
    until(SOON, "the command", async || started.exists()).await;
    let process = rig.kill_worker(&worker).await;
    let request = rig.model.wait_for_request(&prompt("victim"), 2).await;
    let told = request.last_user_text();
    assert!(told.contains("process died") && told.contains("unknown outcome"), "{told}");
    let result = request.tool_result("toolu_hang").expect("the open call is closed");
    assert!(!result.is_empty(), "with a result that says what is not known");
    assert!(!process.is_alive());
    let left = rig.home.processes_named("sleep 300");
    assert!(left.is_empty(), "nothing of the dead one is left: {left:?}");
    assert_eq!(rig.worker(&task, "victim").await["restarts"], 1, "seen while it runs");
    rig.model.gate("restarted").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let entry = &entries(&rig.last_request())[0];
    assert!(entry.outcome().contains(r#"restarts="1""#), "{}", entry.text);
    let worker = rig.worker(&task, "victim").await;
    let shown = rig.home.run(rig.repo.path(), &["show", "victim"]).await.expect_code(0).stdout;
    assert!(shown.contains(", run 1 (started again 1 ×), turn "), "{shown}");
    assert_eq!(rig.at(&worker, "before.txt").as_deref(), Some("before\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_24_kill_9_on_a_worker_in_the_middle_of_an_edit() {
    let rig = Rig::configured("[worker]\nrestarts = 0\n").await;
    rig.coordinator(Reply::call("Agent", agent("victim")));
    rig.model.agent(
        &prompt("victim"),
        [call(write("done.txt", "done\n")), call(bash("echo half > half.txt; touch started; sleep 300"))],
    );
    let task = rig.submit().await;
    rig.model.wait_for_request(&prompt("victim"), 1).await;
    let worker = rig.worker(&task, "victim").await;
    let started = path_of(&worker).join("started");
    until(SOON, "the command", async || started.exists()).await;
    let mut stream = rig.api().events("/events", None).await;
    rig.kill_worker(&worker).await;
    let killed = Instant::now();
    // By the stream, which no polling delays: that its process is gone is a change of its own.
    stream
        .wait_for("the end of its process", |event| (event.data["kind"] == "worker.run_ended").then_some(()))
        .await;
    let noticed = killed.elapsed();
    let worker = rig.worker_has_status(&task, "victim", "failed").await;
    let told = killed.elapsed();
    eprintln!("a killed worker was noticed after {noticed:?} and told after {told:?}");
    assert!(noticed < NOTICED, "noticed only after {noticed:?}");
    assert!(told < TOLD, "told only after {told:?}");
    assert_eq!((&worker["exit_reason"], &worker["exit_detail"]), (&json!("killed"), &json!({"signal": 9})));
    assert_eq!(rig.at(&worker, "done.txt").as_deref(), Some("done\n"));
    assert_eq!(rig.at(&worker, "half.txt").as_deref(), Some("half\n"), "what there was is committed");
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "failed");
    let entry = &entries(&rig.last_request())[0];
    assert_eq!(entry.status, "failed");
    assert!(entry.text.contains("killed (signal 9)"), "{}", entry.text);
    assert!(rig.home.processes_named("sleep 300").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_again_after_its_restart_is_reported_as_killed() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("victim")));
    rig.model.rule(when().agent(&prompt("victim")), Reply::say("never").hold("never"));
    let task = rig.submit().await;
    for n in 0..2 {
        rig.model.wait_for_request(&prompt("victim"), n).await;
        rig.kill_worker(&rig.worker(&task, "victim").await).await;
    }
    let worker = rig.worker_has_status(&task, "victim", "failed").await;
    assert_eq!((&worker["exit_reason"], &worker["restarts"]), (&json!("killed"), &json!(1)));
    assert_eq!(rig.model.requests_of(&prompt("victim")).len(), 2, "once, and no more");
    rig.done(&task).await;
    assert_each_once(&rig.last_request(), 1);
    assert_eq!(worker["branch"], Value::Null, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn g13_a_worker_that_cannot_say_how_it_ended_is_reported_by_its_keeper() {
    for signal in [Signal::SIGABRT, Signal::SIGXCPU] {
        let rig = Rig::configured("[worker]\nrestarts = 0\n").await;
        rig.coordinator(Reply::call("Agent", agent("victim")));
        rig.model.agent(&prompt("victim"), [Reply::say("never").hold("never")]);
        let task = rig.submit().await;
        rig.model.gate("never").reached().await;
        let process = rig.worker_process(&rig.worker(&task, "victim").await).expect("it runs");
        assert!(process.signal(signal));
        let worker = rig.worker_has_status(&task, "victim", "failed").await;
        assert_eq!(worker["exit_detail"], json!({"signal": signal as i32}));
        rig.done(&task).await;
        assert_each_once(&rig.last_request(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_keeper_takes_its_worker_along_and_the_run_is_lost() {
    let rig = Rig::configured("[worker]\nrestarts = 0\n").await;
    rig.coordinator(Reply::call("Agent", agent("orphan")));
    rig.model
        .agent(&prompt("orphan"), [call(write("kept.txt", "kept\n")), Reply::say("never").hold("never")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    let worker = rig.worker(&task, "orphan").await;
    let process = rig.worker_process(&worker).expect("it runs");
    let keeper = rig.keeper_process(&worker).expect("its keeper runs");
    assert!(keeper.signal(Signal::SIGKILL));
    until(SOON, "the worker's end", async || !process.is_alive()).await;
    let worker = rig.worker_has_status(&task, "orphan", "failed").await;
    assert_eq!(worker["exit_reason"], "lost");
    assert_eq!(rig.at(&worker, "kept.txt").as_deref(), Some("kept\n"));
    rig.done(&task).await;
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_was_asked_before_a_crash_of_the_server_can_be_answered_after_it() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("asker")));
    rig.model.agent(&prompt("asker"), [call(write("asked.txt", "asked\n")), Reply::say("Written.")]);
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    let asked = rig.permission_request(&task).await;
    rig.restart_killed().await;
    let again = rig.permission_request(&task).await;
    assert_eq!(again["request"]["id"], asked["request"]["id"]);
    rig.answer(&again, &json!({"decision": "allow"})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "asker").await;
    assert_eq!(rig.at(&worker, "asked.txt").as_deref(), Some("asked\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_key_after_a_restart_waits_for_one_and_goes_on_with_it() {
    let model = ModelServer::builder().api_key("test-key").start();
    let home = SwarmHome::new(&model);
    let mut rig = Rig::made(model, home, TestRepo::new(), "").await;
    let task = one_in_flight_one_queued(&rig, Reply::say("never heard").hold("turn")).await;
    rig.kill_server().await;
    let key = json!({"client": {"secrets": {"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": rig.model.url()}}});
    rig.home.unset("ANTHROPIC_API_KEY");
    rig.start().await;
    eventually(SOON, "a session that waits for a key", async || {
        let session = rig.session(&task).await["session"].clone();
        let waits = session["state"] == "waiting" && session["waiting_for"] == "key";
        if waits { Ok(()) } else { Err(session.to_string()) }
    })
    .await;
    rig.api().post(&format!("/sessions/{}/resume", task.session), &key).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_each_once(&rig.last_request(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_of_a_home_says_who_holds_it_and_disturbs_nothing() {
    let rig = Rig::new().await;
    let first = rig.home.server_process().expect("a server runs");
    let second = rig.home.run(&rig.home.user_home(), &["serve"]).await;
    assert_ne!(second.code, Some(0));
    assert!(second.stderr.contains(&first.pid.to_string()), "{}", second.stderr);
    assert!(first.is_alive());
    rig.api().get("/info").await;
}
