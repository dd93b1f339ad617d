//! Following a session: Ctrl-C, leaving, a server that dies.

use integration_tests::{Reply, pty::Pty, until, wait::SOON};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Shell, short};
use crate::rig::{COORDINATE, call, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn one_ctrl_c_stops_the_workers_with_their_work_committed_and_resume_goes_on() {
    let shell = Shell::new();
    shell.spawns(&["alpha"]);
    shell.model.agent(
        &prompt("alpha"),
        [
            call(write("one.txt", "1\n")),
            Reply::say("never said").hold("never"),
            call(write("two.txt", "2\n")),
            Reply::say("Both files are written."),
        ],
    );
    let running = shell.start(&["run", COORDINATE]);
    shell.model.gate("never").reached().await;
    let process = shell.home.programs_named("swarm-worker run --launch").pop().expect("the worker runs");
    running.interrupt();
    let line = running.error_line("stopping 1 worker").await;
    assert!(line.contains("committed"), "{line}");
    let finished = running.finish().await.expect_code(130);
    // Nothing is left of the worker by the time it is said to be stopped.
    assert!(!process.is_alive());
    assert_eq!(shell.home.processes_named("swarm-worker"), []);
    let worker = shell.workers().await.remove(0);
    assert_eq!(
        (&worker["status"], &worker["commits"]),
        (&json!("aborted"), &json!(1)),
        "{}",
        finished.stdout
    );
    let branch = worker["branch"].as_str().expect("its branch was kept").to_owned();
    assert_eq!(shell.repo.read_at(&branch, "one.txt").as_deref(), Some("1\n"));

    let resumed = shell.run(&["resume", "-"]).await.expect_code(0);
    assert!(resumed.stderr.contains("1 worker goes on"), "{}", resumed.stderr);
    assert_eq!(shell.repo.read_at(&branch, "two.txt").as_deref(), Some("2\n"));
    // Its context went on: the first call and its result are in the history.
    let request = shell.model.requests_of(&prompt("alpha")).pop().expect("it asked");
    assert!(request.tool_uses().any(|(_, _, input)| input["file_path"] == "one.txt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ctrl_c_leaves_and_the_stop_goes_on() {
    let shell = Shell::new();
    // The coordinator itself is busy: its stream stalls, so that stopping may take a moment.
    shell.one_worker(Some("never"));
    let running = shell.start(&["run", COORDINATE]);
    shell.model.gate("never").reached().await;
    running.interrupt();
    running.interrupt();
    let finished = running.finish().await.expect_code(130);
    assert!(
        finished.stderr.contains("swarm attach")
            || finished.stdout.contains("aborted")
            || finished.stdout.contains("stopped"),
        "{}\n{}",
        finished.stdout,
        finished.stderr
    );
    let worker = shell.worker("a stopped worker", |worker| worker["status"] == "aborted").await;
    assert_eq!(worker["commits"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn q_a_closed_terminal_and_sigterm_leave_everything_running() {
    let shell = Shell::new();
    shell.one_worker(Some("end"));
    let command = shell.home.command(shell.repo.path(), &["run", COORDINATE]);
    let mut terminal = Pty::start(&command, 24, 80);
    shell.model.gate("end").reached().await;
    terminal.shows("q leave").await;
    terminal.send("q");
    terminal.shows("running: swarm attach ").await;
    assert_eq!(terminal.finish().await, Some(0));
    let is_running = async || shell.workers().await[0]["status"] == "running";
    assert!(is_running().await);

    let attach = shell.home.command(shell.repo.path(), &["attach", "-"]);
    let terminal = Pty::start(&attach, 24, 80);
    terminal.shows("q leave").await;
    terminal.signal(Signal::SIGHUP);
    assert_eq!(terminal.finish().await, Some(129));
    assert!(is_running().await);

    let terminal = Pty::start(&attach, 24, 80);
    terminal.shows("q leave").await;
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.finish().await, Some(143));
    assert!(is_running().await);

    // Who comes back gets the rest, to the verdict.
    let attached = shell.start(&["attach", "-"]);
    attached.error_line("session ").await;
    shell.model.gate("end").open();
    let finished = attached.finish().await.expect_code(0);
    assert!(finished.stdout.contains("complete: 1 done"), "{}", finished.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_server_is_killed_goes_on_by_its_cursor() {
    let shell = Shell::new();
    shell.one_worker(Some("end"));
    let running = shell.start(&["run", "--json", COORDINATE]);
    shell.model.gate("end").reached().await;
    running.line("\"worker.process\"").await;
    let first = shell.home.server_process().expect("it runs");
    shell.home.kill_server().await;
    // The shell starts another one by itself.
    until(SOON, "another server", async || {
        shell.home.server_process().is_some_and(|process| process.pid != first.pid)
    })
    .await;
    shell.model.gate("end").open();
    let finished = running.finish().await.expect_code(0);
    let lines = finished.json_lines();
    let seqs: Vec<u64> = lines
        .iter()
        .filter(|line| line["kind"] != "session.result")
        .filter_map(|line| line["seq"].as_u64())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let result = lines.last().expect("a result");
    assert_eq!(result["verdict"], "complete", "{result:#}");
    let ends: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "worker.run_ended").collect();
    assert_eq!(ends.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_and_a_stop_reach_the_worker_and_say_what_they_did() {
    let shell = Shell::new();
    shell.spawns(&["alpha"]);
    shell.model.agent(
        &prompt("alpha"),
        [
            call(write("one.txt", "1\n")).hold("told"),
            Reply::say("never said").hold("never"),
            Reply::say("Picked up again."),
        ],
    );
    let running = shell.start(&["run", COORDINATE]);
    shell.model.gate("told").reached().await;
    let worker = shell.workers().await.remove(0);
    let id = short(&worker);
    let sent = shell.run(&["send", &id, "mind", "the", "gap"]).await.expect_code(0);
    assert!(sent.stdout.contains(&format!("queued for {id}")), "{}", sent.stdout);
    shell.model.gate("told").open();
    shell.model.gate("never").reached().await;
    let told = shell.model.wait_for_request(&prompt("alpha"), 1).await;
    assert!(told.any_user_text_contains("mind the gap"));
    let stopped = shell.run(&["stop", "alpha"]).await.expect_code(0);
    assert!(
        stopped.stdout.contains("1 file committed") && stopped.stdout.contains(&format!("swarm send {id}")),
        "{}",
        stopped.stdout
    );
    // Asked for a state already reached.
    let again = shell.run(&["stop", &id]).await.expect_code(0);
    assert!(again.stdout.contains("already"), "{}", again.stdout);
    running.finish().await;
    // What a person stopped a person can revive, with its context.
    shell.run(&["send", &id, "go on"]).await.expect_code(0);
    shell.worker("its second end", |worker| worker["run"] == 2 && worker["status"] == "completed").await;
    let request = shell.model.requests_of(&prompt("alpha")).pop().expect("it asked");
    assert!(request.any_user_text_contains("go on") && request.any_user_text_contains("mind the gap"));
}
