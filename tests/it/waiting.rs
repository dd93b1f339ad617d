//! Workers that wait: for their own jobs, for the model, for each other. Waiting is a state, and has an end.

use std::time::Instant;

use integration_tests::{
    Reply, TestRepo, until,
    wait::{LATER, SOON},
    when,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::rig::{
    COORDINATE, Rig, agent, assert_each_once, call, entries, id_of, path_of, prompt, reporter, write,
};

/// Scripts, for loops on a command line ask a person.
fn with_scripts() -> TestRepo {
    TestRepo::with_files(&[
        ("until-go.sh", "until [ -e go ]; do sleep 0.05; done\necho job-finished\n"),
        ("endless.sh", "while :; do sleep 1; done\n"),
    ])
}

fn background(command: &str) -> Reply {
    Reply::call("Bash", json!({"command": command, "run_in_background": true}))
}

#[tokio::test(flavor = "multi_thread")]
async fn g04_g05_a_worker_waits_for_its_own_job_is_woken_by_it_and_reports_once() {
    let rig = Rig::of(with_scripts(), "").await;
    rig.coordinator(Reply::call("Agent", reporter("starter")));
    rig.model.agent(
        &prompt("starter"),
        [background("sh until-go.sh"), Reply::say("The job runs; I wait for it.")],
    );
    rig.model.once(when().agent(&prompt("starter")).last_user_contains("job-finished"), "The job is done.");
    let task = rig.submit().await;
    let is_waiting = |worker: &Value| worker["status"] == "waiting" && worker["waiting_for"] == "own_jobs";
    let worker = rig.worker_is(&task, "starter", "waits for its job", is_waiting).await;
    assert_eq!(rig.model.requests_of(COORDINATE).len(), 2, "nobody was told that it ended");
    std::fs::write(path_of(&worker).join("go"), "").expect("the worktree is there");
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("starter"));
    assert_eq!(requests.len(), 3, "the owner was woken, with a turn of its own");
    let coordinator = rig.model.requests_of(COORDINATE);
    assert!(
        coordinator.iter().all(|request| !request.any_user_text_contains("job-finished")),
        "nobody else was"
    );
    let told = entries(&rig.last_request());
    assert_eq!((told.len(), told[0].part("result")), (1, "The job is done."));
    assert!(!told[0].text.contains("children_killed"), "{}", told[0].text);
}

#[tokio::test(flavor = "multi_thread")]
async fn g04_a_job_that_does_not_end_is_killed_after_the_grace_and_named() {
    let rig = Rig::of(with_scripts(), "background_grace = \"1s\"\n").await;
    rig.coordinator(Reply::call("Agent", reporter("starter")));
    rig.model.agent(&prompt("starter"), [background("sh endless.sh"), Reply::say("It runs.")]);
    let task = rig.submit().await;
    rig.done(&task).await;
    let entry = &entries(&rig.last_request())[0];
    assert!(entry.outcome().contains("children_killed"), "{}", entry.text);
    assert!(entry.text.contains("killed at the end: sh endless.sh"), "{}", entry.text);
    assert!(rig.home.processes_named("endless.sh").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn g14_overload_within_the_retry_budget_is_waiting_and_not_failure() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("patient")));
    let turns = (0..40).map(|n| call(write(&format!("f{n:02}.txt"), "x\n")));
    rig.model.agent(&prompt("patient"), turns);
    let overloaded = || Reply::overloaded().header("retry-after", "0");
    rig.model.agent(&prompt("patient"), (0..8).map(|_| overloaded()));
    rig.model.agent(&prompt("patient"), [Reply::say("Forty files.")]);
    let task = rig.submit().await;
    let is_waiting = |worker: &Value| worker["waiting_for"] == "model";
    let waiting = rig.worker_is(&task, "patient", "waits for the model", is_waiting).await;
    assert_eq!(waiting["status"], "waiting");
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "complete", "{view:#}");
    let worker = rig.worker(&task, "patient").await;
    assert_eq!((&worker["files_changed"], &worker["status"]), (&json!(40), &json!("completed")));
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn g14_a_worker_that_gives_up_leaves_its_work_and_its_words() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("unlucky")));
    let half = Reply::new()
        .text("Half is done.")
        .tool("Write", json!({"file_path": "half.txt", "content": "half\n"}));
    rig.model.agent(&prompt("unlucky"), [half, Reply::overloaded().header("retry-after", "3600")]);
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "failed");
    let entry = &entries(&rig.last_request())[0];
    assert_eq!((entry.status.as_str(), entry.part("result")), ("failed", "Half is done."));
    let worker = rig.worker(&task, "unlucky").await;
    assert_eq!(worker["exit_reason"], "model_error");
    assert_eq!(rig.at(&worker, "half.txt").as_deref(), Some("half\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_42_fifteen_of_twenty_two_die_of_a_rate_limit() {
    // The news of 22 workers are more than a small window holds.
    let rig = Rig::configured("context_window = 200000\nmax_workers = 8\n").await;
    let names: Vec<String> =
        (0..22).map(|n| if n < 15 { format!("limited-{n:02}") } else { format!("lucky-{n:02}") }).collect();
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", reporter(name)));
    rig.coordinator(spawn);
    rig.model.rule(when().agent("work: limited-"), Reply::rate_limited("3600"));
    rig.model.rule(when().agent("work: lucky-"), "Done.");
    let task = rig.submit().await;
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "degraded", "{view:#}");
    let last = rig.last_request();
    assert_each_once(&last, 22);
    let told = entries(&last);
    let failed: Vec<_> = told.iter().filter(|entry| entry.status == "failed").collect();
    assert_eq!(failed.len(), 15);
    for entry in failed {
        let text = entry.text.to_lowercase().replace('_', " ");
        assert!(text.contains("rate limit"), "{}", entry.text);
        assert!(text.contains("retry") || text.contains("again"), "says when: {}", entry.text);
    }
    let limited = rig.worker(&task, "limited-00").await;
    assert!(limited["exit_detail"]["retry_at"].is_string(), "{limited:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g11_a_provider_that_never_answers_holds_neither_spawn_nor_stop() {
    let rig = Rig::new().await;
    let two = Reply::new().tool("Agent", reporter("one")).tool("Agent", reporter("two"));
    rig.model.agent(COORDINATE, [two]);
    rig.model.rule(when(), Reply::say("never").hold("never"));
    let task = rig.submit().await;
    rig.model.wait_for_request(&prompt("one"), 0).await;
    rig.model.wait_for_request(&prompt("two"), 0).await;
    rig.model.wait_for_request(COORDINATE, 1).await;
    let began = Instant::now();
    rig.api().post(&format!("/sessions/{}/interrupt", task.session), &json!({})).await;
    rig.worker_has_status(&task, "one", "aborted").await;
    rig.worker_has_status(&task, "two", "aborted").await;
    rig.done(&task).await;
    assert!(began.elapsed() < SOON, "everything ended after {:?}", began.elapsed());
    until(SOON, "the end of all processes of workers", async || rig.worker_processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g19_a_worker_whose_repository_vanished_reaches_an_end_all_the_same() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("homeless")));
    rig.model.agent(&prompt("homeless"), [call(write("a.txt", "a\n")), Reply::say("Done.").hold("gone")]);
    let task = rig.submit().await;
    rig.model.gate("gone").reached().await;
    rig.worker_is(&task, "homeless", "its first turn is kept", |worker| worker["snapshots"] == 1).await;
    let elsewhere = rig.repo.path().with_extension("moved");
    std::fs::rename(rig.repo.path(), &elsewhere).expect("the repository can be moved");
    rig.model.gate("gone").open();
    let worker = rig.worker_is(&task, "homeless", "ended", |worker| worker["ended_at"].is_string()).await;
    let view = rig.done(&task).await;
    assert_ne!(view["verdict"], "complete", "{view:#}");
    assert!(!rig.repo.path().exists(), "nothing is made where it was");
    std::fs::rename(&elsewhere, rig.repo.path()).expect("and moved back");
    assert_each_once(&rig.last_request(), 1);
    let detail = rig.detail(&worker).await;
    assert_ne!(detail["outcome"]["notes"], json!([]), "what could not be established is said: {detail:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g20_a_worker_that_waits_for_a_person_while_the_coordinator_waits_for_it_is_shown() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("asker")));
    rig.model.agent(&prompt("asker"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    let request = rig.permission_request(&task).await;
    let session = rig.session(&task).await;
    assert_eq!(
        (&session["session"]["state"], &session["session"]["waiting_for"], &session["session"]["asks"]),
        (&json!("waiting"), &json!("question"), &json!(1))
    );
    assert_eq!(rig.task(&task).await["status"], "waiting");
    // A message to the coordinator is heard meanwhile: it does not wait with its worker.
    let before = rig.model.requests_of(COORDINATE).len();
    rig.api()
        .post(&format!("/sessions/{}/messages", task.session), &json!({"text": "How is it going?"}))
        .await;
    let heard = rig.model.wait_for_request(COORDINATE, before).await;
    let roster = heard.messages.iter().map(|message| message.text()).collect::<String>();
    assert!(roster.contains("waiting (permission)"), "and it can say what its worker waits for: {roster}");
    rig.answer(&request, &json!({"decision": "allow"})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_33_processes_that_slept_in_the_middle_go_on_and_nothing_times_out() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", reporter("streaming")).tool("Agent", reporter("asking")));
    rig.model.agent(&prompt("streaming"), [Reply::new().text("One, ").gate("slept").text("two.")]);
    rig.model.agent(&prompt("asking"), [call(write("a.txt", "a\n")), Reply::say("Written.")]);
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    rig.model.gate("slept").reached().await;
    let request = rig.permission_request(&task).await;
    let server = rig.home.server_process().expect("it runs");
    let asleep: Vec<_> = rig.worker_processes().into_iter().chain([server]).collect();
    assert_eq!(asleep.len(), 3);
    asleep.iter().for_each(|process| assert!(process.signal(Signal::SIGSTOP)));
    // The provider's answer comes while everybody sleeps.
    rig.model.gate("slept").open();
    let delivered = async || {
        let requests = rig.model.requests_of(&prompt("streaming"));
        requests
            .iter()
            .all(|request| request.outcome() == integration_tests::model_server::Outcome::Delivered)
    };
    until(LATER, "the answer", delivered).await;
    asleep.iter().for_each(|process| assert!(process.signal(Signal::SIGCONT)));
    rig.worker_has_status(&task, "streaming", "completed").await;
    rig.answer(&request, &json!({"decision": "allow"})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_each_once(&rig.last_request(), 2);
    assert_eq!(rig.model.requests_of(&prompt("streaming")).len(), 1);
    let worker = rig.worker(&task, "asking").await;
    assert_eq!((&worker["restarts"], id_of(&worker).starts_with("agent-")), (&json!(0), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_link_is_gone_is_shown_as_waiting_for_the_server_until_it_is_back() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("distant")));
    rig.model.agent(&prompt("distant"), [Reply::say("Nothing to report.").hold("end")]);
    let task = rig.submit().await;
    rig.model.gate("end").reached().await;
    let worker = rig.worker_has_status(&task, "distant", "running").await;
    let process = rig.worker_process(&worker).expect("it runs");
    // It lives and cannot connect: as on a machine that is out of memory or asleep.
    assert!(process.signal(Signal::SIGSTOP), "the worker could not be halted");
    rig.restart_killed().await;
    let away = |worker: &Value| worker["status"] == "waiting" && worker["waiting_for"] == "server";
    let waiting = rig.worker_is(&task, "distant", "is away", away).await;
    assert_eq!(waiting["cause"], "its process has no link to the server");
    let shown = rig.home.run(rig.repo.path(), &["ps"]).await.expect_code(0);
    assert!(shown.stdout.contains("no link to the server"), "{}", shown.stdout);
    let rows = rig.api().get("/overview").await["rows"].clone();
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| !row["worker"].is_null()).cloned());
    assert_eq!(row.expect("a row of the worker")["word"], "Reconnecting");
    assert!(process.signal(Signal::SIGCONT), "the worker could not go on");
    rig.worker_has_status(&task, "distant", "running").await;
    rig.model.gate("end").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(rig.worker(&task, "distant").await["run"], 1);
}
