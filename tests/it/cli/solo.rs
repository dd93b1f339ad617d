//! `swarm run --solo`: the agent's words are the answer.

use integration_tests::Reply;

use super::Shell;
use crate::rig::{COORDINATE, call, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_solo_run_says_what_its_agent_says_and_leaves_a_branch() {
    let shell = Shell::new();
    shell.model.agent(
        COORDINATE,
        [
            call(("EnterWorktree", serde_json::json!({"name": "one file"}))),
            call(write("one.txt", "one\n")),
            Reply::say("One file is written."),
        ],
    );
    let finished = shell.run(&["run", "--solo", COORDINATE]).await.expect_code(0);
    assert!(finished.stdout.contains("One file is written."), "{}", finished.stdout);
    assert!(finished.stdout.contains("one-file"), "{}", finished.stdout);
    let worker = &shell.workers().await[0];
    let branch = worker["branch"].as_str().expect("a branch");
    assert_eq!(shell.repo.read_at(branch, "one.txt").as_deref(), Some("one\n"));
    let logs = shell.run(&["logs", crate::rig::id_of(worker)]).await.expect_code(0);
    assert!(logs.stdout.contains(&format!("goes on in its worktree, branch {branch}")), "{}", logs.stdout);
    // It begins in the checkout, and what it says last is not taken at its word there either.
    let shell = Shell::new();
    shell.model.agent(COORDINATE, [Reply::error(400)]);
    let failed = shell.run(&["run", "--solo", COORDINATE]).await;
    assert_eq!(failed.code, Some(1), "{}", failed.stdout);
}
