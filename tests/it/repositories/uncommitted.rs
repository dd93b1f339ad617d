//! What is not committed where a person stands: told, carried along, kept through a merge.

use std::fs;

use integration_tests::{Reply, TestRepo};
use reqwest::StatusCode;
use serde_json::json;

use super::{notices, post};
use crate::rig::{Rig, agent, bash, call, prompt, reporter, write};

#[tokio::test(flavor = "multi_thread")]
async fn case_15_a_dirty_checkout_is_told_and_left_alone() {
    let rig = Rig::new().await;
    rig.repo.write("README.md", "# Changed\n").write("draft.txt", "draft\n");
    let before = rig.repo.status();
    rig.coordinator(Reply::call("Agent", reporter("reader")));
    rig.model.agent(&prompt("reader"), [call(bash("cat README.md; ls")), Reply::say("Read.")]);
    let task = rig.submit().await;
    assert!(
        notices(&task).contains("2 changed files in your checkout are not part of it"),
        "{}",
        notices(&task)
    );
    assert!(notices(&task).contains(&rig.repo.head()[..7]), "{}", notices(&task));
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("reader")).pop().expect("it asked");
    let (_, text, _) = last.tool_results().next().expect("a result");
    assert!(text.contains("# A project") && !text.contains("draft.txt"), "{text}");
    assert_eq!((rig.repo.status(), rig.repo.read("README.md")), (before, "# Changed\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_15_carried_changes_are_the_base_and_stay_the_persons_own() {
    let repo = TestRepo::with_files(&[("README.md", "# A project\n"), (".gitignore", "*.log\n")]);
    let rig = Rig::of(repo, "").await;
    rig.repo.write("README.md", "# Stashed\n");
    rig.repo.git(&["stash", "push", "-q"]);
    rig.repo.write("README.md", "# Staged\n").git(&["add", "README.md"]);
    rig.repo.write("README.md", "# Changed\n").write("draft.txt", "draft\n").write("debug.log", "ignored\n");
    let head = rig.repo.head();
    let state = || {
        let index = fs::read(rig.repo.path().join(".git/index")).expect("there is an index");
        (
            index,
            rig.repo.status(),
            rig.repo.git(&["stash", "list"]),
            rig.repo.read("README.md"),
            rig.repo.head(),
        )
    };
    let before = state();
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [call(bash("cat README.md; ls")), call(write("new.txt", "new\n")), Reply::say("Written.")],
    );
    let task = rig.submit_with(json!({"carry": true})).await;
    assert!(
        notices(&task).contains("2 changed files of your checkout are carried along"),
        "{}",
        notices(&task)
    );
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(state(), before, "the person's checkout is as it was");
    let asked = rig.model.requests_of(&prompt("alpha"));
    let (_, text, _) = asked[1].tool_results().next().expect("a result");
    assert!(
        text.contains("# Changed") && text.contains("draft.txt") && !text.contains("debug.log"),
        "{text}"
    );
    let worker = rig.worker(&task, "alpha").await;
    let base = worker["base"].as_str().expect("a base");
    assert_eq!(
        (rig.repo.git(&["rev-parse", &format!("{base}^@")]), &worker["files_changed"]),
        (head, &json!(1))
    );
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], &merged["files"]), (&json!("merged"), &json!(1)), "{merged:#}");
    assert_eq!(rig.repo.git(&["log", "--format=%an", "main"]).lines().count(), 2, "no commit of the carried");
    assert_eq!((rig.repo.status(), rig.repo.read("README.md")), (before.1, before.3));
    assert_eq!((rig.repo.read("new.txt"), rig.repo.exists("draft.txt")), ("new\n".to_owned(), true));
    let swept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(swept["removed"].as_array().map(Vec::len), Some(1), "it is known to be merged: {swept:#}");

    // By the command line; what cannot be carried is refused.
    rig.model.agent("once more", [Reply::say("Nothing to do.")]);
    let run = async |more: &[&str]| {
        let arguments = [&["run", "--carry"], more].concat();
        rig.home.run(rig.repo.path(), &arguments).await
    };
    let said = run(&["once more"]).await.expect_code(0).stderr;
    assert!(said.contains("2 changed files of your checkout are carried along"), "{said}");
    run(&["--base", "HEAD", "once more"]).await.expect_code(2);
    let (status, problem) = rig.try_submit(json!({"carry": true, "base": "HEAD"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("cannot_carry")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_into_a_checkout_with_changes_of_its_own_moves_nothing_and_names_the_files() {
    let rig = Rig::of(TestRepo::with_files(&[("a.txt", "a\n"), ("b.txt", "b\n")]), "").await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(("Read", json!({"file_path": "a.txt"}))),
            call(write("a.txt", "by the worker\n")),
            Reply::say("Written."),
        ],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let head = rig.repo.head();
    rig.repo.write("a.txt", "by the person\n");
    let dirty = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!(
        (&dirty["result"], &dirty["files"]),
        (&json!("target_dirty"), &json!(["M a.txt"])),
        "{dirty:#}"
    );
    assert_eq!((rig.repo.head(), rig.repo.read("a.txt")), (head, "by the person\n".to_owned()));
    // A change elsewhere is nobody's business.
    rig.repo.git(&["checkout", "-q", "a.txt"]);
    rig.repo.write("b.txt", "by the person\n");
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    assert_eq!(
        (rig.repo.read("a.txt"), rig.repo.read("b.txt")),
        ("by the worker\n".to_owned(), "by the person\n".to_owned())
    );
}
