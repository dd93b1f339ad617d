//! One server per home: started when it is needed, ended when told to, never with work lost.

use integration_tests::{eventually, wait::SOON};
use serde_json::json;

use super::{Shell, short};
use crate::rig::COORDINATE;

#[tokio::test(flavor = "multi_thread")]
async fn runs_at_once_start_one_server() {
    let shell = Shell::new();
    shell.model.rule(integration_tests::when(), "Nothing to do.");
    let running: Vec<_> = (0..4).map(|_| shell.start(&["run", COORDINATE])).collect();
    for running in running {
        running.finish().await.expect_code(0);
    }
    let servers = shell.home.programs_named("serve --detached");
    assert_eq!(servers.len(), 1, "{servers:#?}");
    assert_eq!(shell.api().await.get("/sessions").await.as_array().map(Vec::len), Some(4));
    // Its own POSIX session: the terminal of who started it may close.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", servers[0].pid)).expect("it runs");
    let session: i32 = stat
        .rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(3)?.parse().ok())
        .expect("a session id");
    assert_eq!(session, servers[0].pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_refuses_while_workers_run_and_lists_them() {
    let shell = Shell::new();
    shell.one_worker(Some("end"));
    shell.run(&["run", "--detach", COORDINATE]).await.expect_code(0);
    shell.model.gate("end").reached().await;
    let worker = shell.worker("a running worker", |worker| worker["status"] == "running").await;
    let server = shell.home.server_process().expect("it runs");
    let refused = shell.run(&["serve", "--stop"]).await.expect_code(1);
    assert!(refused.stderr.contains("error[workers_running]: 1 worker"), "{}", refused.stderr);
    assert!(refused.stderr.contains("swarm serve --stop --workers"), "{}", refused.stderr);
    assert!(
        refused.stdout.contains(&short(&worker)) && refused.stdout.contains("alpha"),
        "{}",
        refused.stdout
    );
    assert!(server.is_alive());

    // Told to, it stops them first, their work committed.
    shell.run(&["serve", "--stop", "--workers"]).await.expect_code(0);
    assert!(!server.is_alive());
    shell.home.assert_no_processes().await;
    assert!(shell.home.server_file().is_none());
    let branch = worker["branch"].as_str().expect("a branch");
    assert_eq!(shell.repo.read_at(branch, "alpha.txt").as_deref(), Some("alpha\n"));
    // A second time there is nothing to stop, and that is what was asked for.
    shell.run(&["serve", "--stop"]).await.expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaves_its_workers_finds_them_again() {
    let shell = Shell::new();
    shell.one_worker(Some("end"));
    shell.run(&["run", "--detach", COORDINATE]).await.expect_code(0);
    shell.model.gate("end").reached().await;
    let process = shell.home.programs_named("swarm-worker run --launch").pop().expect("it runs");
    shell.run(&["serve", "--stop", "--leave"]).await.expect_code(0);
    assert!(shell.home.server_process().is_none());
    assert!(process.is_alive(), "the worker went with the server");
    // Nobody listens, and it works on.
    shell.model.gate("end").open();
    let ended = async || if process.is_alive() { Err("it waits for a server") } else { Ok(()) };
    // It may wait for its server to take the news; the next one takes them.
    let attached = shell.run(&["attach", "-"]).await.expect_code(0);
    assert!(attached.stdout.contains("complete: 1 done"), "{}", attached.stdout);
    eventually(SOON, "the worker's end", ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_only_look_start_nothing_in_a_home_that_saw_nothing() {
    let shell = Shell::new();
    for command in [&["ps"][..], &["cost"], &["config"], &["doctor"], &["serve", "--stop"], &["--version"]] {
        let finished = shell.run(command).await;
        assert!(matches!(finished.code, Some(0 | 1)), "{command:?}: {}", finished.stderr);
    }
    shell.assert_untouched().await;
    assert!(!shell.home.path().join("journal.sqlite").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_nobody_needs_ends() {
    let shell = Shell::new();
    shell.home.config("[server]\nidle_exit = \"1s\"\n");
    shell.one_worker(None);
    let finished = shell.done().await;
    assert!(finished.stdout.contains("complete"));
    shell.home.assert_no_processes().await;
    // What it knew is there for the next one.
    let shown = shell.run(&["ps", "-a", "--json"]).await.expect_code(0);
    assert!(shown.json_lines().iter().any(|line| line["worker"]["status"] == json!("completed")));
}
