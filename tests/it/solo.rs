//! A session of one agent alone: it begins in the person's checkout, where it may only look, and moves into worktrees of
//! its own. Through the built server and worker.

use std::fs;

use integration_tests::{Reply, TestRepo, eventually, wait::LATER, when};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, bash, call, id_of, path_of, write};

fn enter(name: &str) -> Reply {
    call(("EnterWorktree", json!({"name": name})))
}

fn exit(input: Value) -> Reply {
    call(("ExitWorktree", input))
}

/// A job that a file ends.
const WAIT: &str = "until [ -e go ]; do sleep 0.1; done\n";

fn repo() -> TestRepo {
    TestRepo::with_files(&[("a.txt", "alpha\n"), (".gitignore", "target\n"), ("wait.sh", WAIT)])
}

async fn solo(rig: &Rig) -> Task {
    rig.submit_with(json!({"solo": true})).await
}

/// The one agent; null while it is not there.
async fn agent(rig: &Rig, task: &Task) -> Value {
    let workers = rig.session(task).await["workers"].as_array().cloned().expect("a session lists workers");
    assert!(workers.len() <= 1, "one agent alone: {workers:#?}");
    workers.into_iter().next().unwrap_or_default()
}

/// Texts of all results so far, and whether they are errors.
fn results(rig: &Rig) -> Vec<(String, bool)> {
    let last = rig.model.requests_of(COORDINATE).pop().expect("it asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_agent_looks_in_the_checkout_and_changes_a_worktree() {
    let rig = Rig::of(repo(), "setup = \"touch set-up-ran; mkdir target\"\n").await;
    rig.repo.write("a.txt", "alpha, not committed\n");
    rig.model.agent(
        COORDINATE,
        [
            call(("Read", json!({"file_path": "a.txt"}))),
            call(write("b.txt", "no\n")),
            call(bash("echo no > c.txt")),
            enter("Fix the typo"),
            call(bash("pwd; cat a.txt; git status --short; ls")),
            enter("once more"),
            call(write("b.txt", "beta\n")),
            Reply::say("Fixed."),
            call(bash("cat b.txt")),
            Reply::say("It is there."),
        ],
    );
    let task = solo(&rig).await;
    let done = rig.done(&task).await;
    assert_eq!((&done["verdict"], &done["text"]), (&json!("complete"), &json!("Fixed.")), "{done:#}");

    let results = results(&rig);
    assert!(results[0].0.contains("alpha, not committed"), "{results:?}");
    assert!(results[1].1 && !rig.repo.exists("b.txt"), "{results:?}");
    assert!(results[2].1 && !rig.repo.exists("c.txt"), "{results:?}");
    assert!(!results[3].1, "{results:?}");
    let worker = agent(&rig, &task).await;
    let place = path_of(&worker);
    assert!(results[4].0.starts_with(&format!("{}\nalpha\n", place.display())), "{results:?}");
    assert!(results[4].0.contains("?? set-up-ran") && !rig.repo.exists("set-up-ran"), "{results:?}");
    assert!(results[5].1 && results[5].0.contains("already"), "{results:?}");
    assert!(!results[6].1, "{results:?}");

    let branch = worker["branch"].as_str().expect("a branch");
    assert!(branch.ends_with("/fix-the-typo"), "{branch}");
    assert_eq!(rig.at(&worker, "b.txt").as_deref(), Some("beta\n"));
    assert_eq!(rig.repo.read("a.txt"), "alpha, not committed\n");
    assert_eq!(rig.repo.status(), " M a.txt");

    let requests = rig.model.requests_of(COORDINATE);
    assert_eq!(requests.len(), 8, "nobody else asks a model");
    let tools = |at: usize| (requests[at].system.clone(), requests[at].tools.clone());
    assert_eq!(tools(0), tools(7), "the prefix is the same at both places");
    assert!(requests[0].any_user_text_contains("Call EnterWorktree before you change anything"));
    let told = requests[4].last_user_text();
    assert!(told.contains("You are at another place now") && told.contains(branch), "{told}");
    let moved = rig.events(&task, "worker.moved").await;
    assert_eq!(moved.len(), 1, "{moved:#?}");
    assert_eq!(rig.events(&task, "notification.queued").await.len(), 1);

    // What people say later reaches the same agent, where it stands.
    let path = format!("/sessions/{}/messages", task.session);
    rig.api().post(&path, &json!({"text": "Is it there?"})).await;
    eventually(LATER, "the second answer", async || {
        let session = rig.session(&task).await;
        let text = session["tasks"][1]["text"].clone();
        if text == "It is there." { Ok(()) } else { Err(format!("{session:#}")) }
    })
    .await;
    let last = rig.model.requests_of(COORDINATE).pop().expect("it asked");
    assert!(last.any_user_text_contains("Is it there?"));
    assert_eq!(last.last_tool_results()[0].1, "beta");
    assert_eq!(rig.events(&task, "worker.moved").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_is_left_and_entered_again_and_thrown_away_by_a_persons_word_alone() {
    let rig = Rig::of(repo(), "").await;
    rig.model.agent(
        COORDINATE,
        [
            exit(json!({"action": "keep"})),
            enter("first"),
            call(write("b.txt", "beta\n")),
            exit(json!({"action": "remove"})),
            exit(json!({"action": "keep"})),
            call(bash("pwd; ls")),
            call(write("b.txt", "no\n")),
            enter("ignored"),
            call(bash("git log --format=%s -1; cat b.txt")),
            exit(json!({"action": "remove", "discard_changes": true})),
            exit(json!({"action": "remove", "discard_changes": true})),
            call(bash("pwd; ls")),
            enter("second"),
            call(bash("ls")),
            call(("Bash", json!({"command": "sh wait.sh", "run_in_background": true}))),
            exit(json!({"action": "remove"})),
            call(bash("touch go")),
        ],
    );
    // Whether the job's end is news to this request or to one of its own is a matter of time.
    rig.model.rule(when().agent(COORDINATE), "Looked.");
    let task = solo(&rig).await;
    let first = rig.permission_request(&task).await;
    assert_eq!(first["request"]["tool"], "ExitWorktree", "{first:#}");
    let branch = agent(&rig, &task).await["branch"].as_str().expect("a branch").to_owned();
    rig.answer(&first, &json!({"decision": "deny", "reason": "I want to see it."})).await;
    let second = rig.permission_request(&task).await;
    assert_eq!(rig.repo.read_at(&branch, "b.txt").as_deref(), Some("beta\n"), "committed at the first leave");
    rig.answer(&second, &json!({"decision": "allow"})).await;
    let done = rig.done(&task).await;
    assert_eq!(done["verdict"], "complete", "{done:#}");

    let results = results(&rig);
    let checkout = rig.repo.path().display().to_string();
    let expect = |at: usize, is_error: bool, text: &str| {
        let (found, failed) = &results[at];
        assert!(*failed == is_error && found.contains(text), "{at}: {text}\n{results:#?}");
    };
    expect(0, true, "there is no worktree to leave");
    expect(3, true, "uncommitted: b.txt");
    expect(4, false, "your branch stays");
    expect(5, false, &checkout);
    expect(6, true, "");
    expect(8, false, "first\nbeta");
    expect(9, true, "I want to see it.");
    expect(10, false, "are removed");
    expect(11, false, &checkout);
    assert!(!results[11].0.contains("b.txt") && !results[13].0.contains("b.txt"), "{results:#?}");
    expect(15, true, "Background jobs run here");

    assert_eq!(rig.repo.read_at(&branch, "b.txt"), None, "its branch is gone");
    let trash = rig.repo.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash"]);
    assert_eq!(trash.lines().count(), 1, "and is in the recycle bin: {trash}");
    let kept = rig.repo.git(&["ls-tree", "--name-only", trash.trim()]);
    assert!(kept.contains("b.txt"), "{kept}");
    assert!(!rig.repo.exists("b.txt") && rig.repo.status().is_empty());
    let places: Vec<Value> = rig
        .events(&task, "worker.moved")
        .await
        .into_iter()
        .map(|event| event["place"]["in"].clone())
        .collect();
    assert_eq!(places, ["worktree", "checkout", "worktree", "checkout", "worktree"]);

    // What was thrown away comes back, to be merged.
    let worker = agent(&rig, &task).await;
    let to = |what: &str| format!("/workers/{}/{what}", id_of(&worker));
    rig.api().post(&to("restore"), &json!({})).await;
    let merged = rig.api().post(&to("merge"), &json!({})).await;
    assert_eq!(merged["result"], "merged", "{merged:#}");
    assert_eq!(rig.repo.read("b.txt"), "beta\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_survives_the_death_of_server_and_worker() {
    let mut rig = Rig::of(repo(), "").await;
    rig.model.agent(
        COORDINATE,
        [
            enter("over the gap").hold("enter"),
            call(write("b.txt", "beta\n")),
            call(bash("cat b.txt")).hold("dead"),
            Reply::say("Done."),
        ],
    );
    let task = solo(&rig).await;
    rig.model.gate("enter").reached().await;
    rig.kill_server().await;
    rig.model.gate("enter").open();
    // Its process ends while nobody is there to make a worktree.
    eventually(LATER, "the agent's process ends", async || {
        let left = rig.worker_processes();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    rig.start().await;
    rig.model.gate("dead").reached().await;
    let worker = agent(&rig, &task).await;
    assert!(fs::read_to_string(path_of(&worker).join("b.txt")).is_ok_and(|text| text == "beta\n"));
    rig.kill_worker(&worker).await;
    rig.model.gate("dead").open();
    let done = rig.done(&task).await;
    assert_eq!((&done["verdict"], &done["text"]), (&json!("complete"), &json!("Done.")), "{done:#}");
    let worker = agent(&rig, &task).await;
    assert_eq!(rig.at(&worker, "b.txt").as_deref(), Some("beta\n"));
    assert_eq!(rig.events(&task, "worker.moved").await.len(), 1);
    assert_eq!(rig.events(&task, "notification.queued").await.len(), 1);
    let detail = rig.detail(&worker).await;
    assert_eq!(detail["outcome"]["restarts"], 1, "a move is no restart: {detail:#}");
    assert_eq!(id_of(&worker), id_of(&agent(&rig, &task).await));
}
