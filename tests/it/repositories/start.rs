//! Where work starts: the commit under the feet, or why there is none.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use integration_tests::{Reply, TestRepo, until, wait::SOON, when};
use reqwest::StatusCode;
use serde_json::json;

use super::{notices, one_writer, post, refused};
use crate::rig::{COORDINATE, Rig, agent, call, entries, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn case_03_a_repository_without_a_commit_is_refused_before_anything_is_made() {
    let rig = Rig::of(TestRepo::empty(), "").await;
    rig.repo.write("draft.txt", "draft\n");
    let problem = refused(&rig, rig.repo.path()).await;
    assert_eq!(problem["code"], "no_commit");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("no commit yet")), "{problem:#}");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("git commit")), "{problem:#}");
    assert_eq!((rig.repo.status(), rig.repo.branches("*").len()), ("?? draft.txt".to_owned(), 0));
    assert!(rig.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_repository_and_a_base_that_is_not_there_are_refused_with_a_way_out() {
    let rig = Rig::new().await;
    let problem = refused(&rig, &rig.home.user_home()).await;
    assert_eq!(problem["code"], "not_a_repository");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("git init")), "{problem:#}");
    rig.repo.branch("feature");
    let (status, problem) = rig.try_submit(json!({"base": "featrue"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("bad_base")));
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("feature")), "{problem:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_05_from_a_linked_worktree_the_base_is_the_commit_under_the_feet() {
    let rig = Rig::new().await;
    let linked = rig.repo.path().with_file_name("linked");
    rig.repo.git(&["worktree", "add", "-q", "-b", "side", &linked.to_string_lossy()]);
    fs::write(linked.join("side.txt"), "side\n").expect("the worktree is there");
    let of_linked = |arguments: &[&str]| rig.repo.git_in(&linked, arguments);
    of_linked(&["add", "-A"]);
    of_linked(&["commit", "-qm", "side"]);
    let head = of_linked(&["rev-parse", "HEAD"]);
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit_with(json!({"repo": linked})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["base"], head.as_str());
    assert_eq!(rig.at(&worker, "side.txt").as_deref(), Some("side\n"));
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], &merged["into"]), (&json!("merged"), &json!("side")), "{merged:#}");
    assert!(linked.join("new.txt").exists() && !rig.repo.exists("new.txt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_05_on_a_detached_head_the_target_of_a_merge_is_asked_for() {
    let rig = Rig::new().await;
    rig.repo.git(&["checkout", "-q", "--detach"]);
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["base"], rig.repo.head().as_str());
    let (status, problem) = post(&rig, &worker, "merge", json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("no_target")),
        "{problem:#}"
    );
    let merged = post(&rig, &worker, "merge", json!({"into": "main"})).await.1;
    assert_eq!(merged["result"], "merged");
    assert_eq!(rig.repo.read_at("main", "new.txt").as_deref(), Some("new\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_06_the_base_is_what_is_checked_out_and_its_distance_is_told() {
    let rig = Rig::new().await;
    rig.repo.git(&["branch", "upstream"]);
    rig.repo.switch("upstream");
    for n in 0..2 {
        rig.repo.commit(&format!("upstream {n}"));
    }
    rig.repo.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    rig.repo.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"]);
    rig.repo.switch("main");
    for n in 0..3 {
        rig.repo.write("work.txt", format!("{n}\n")).commit(&format!("work {n}"));
    }
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert!(notices(&task).contains("base is 3 ahead of, 2 behind origin/"), "{}", notices(&task));
    rig.done(&task).await;
    let created = rig.events(&task, "session.created").await;
    assert_eq!(created[0]["spec"]["base"], rig.repo.head().as_str());
    let worker = rig.worker(&task, "alpha").await;
    let parent = rig.repo.git(&["rev-parse", &format!("{}^", worker["branch"].as_str().expect("a branch"))]);
    assert_eq!(parent, rig.repo.head());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_14_a_repository_whose_path_is_no_text_is_refused_by_its_name() {
    let rig = Rig::new().await;
    let odd = rig.home.user_home().join(OsStr::from_bytes(b"odd-\xff"));
    let plain = rig.home.user_home().join("plain");
    rig.repo.git(&["clone", "-q", ".", &plain.to_string_lossy()]);
    fs::rename(&plain, &odd).expect("both are ours");
    // Over the API such a path can only be meant by a link.
    std::os::unix::fs::symlink(&odd, &plain).expect("a link can be made");
    let problem = refused(&rig, &plain).await;
    assert_eq!(problem["code"], "not_utf8");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("odd-\u{fffd}")), "{problem:#}");
    assert!(!odd.join(".git/swarm").exists(), "nothing was made in it");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_workers_branch_can_be_the_base() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", agent("first"))]);
    rig.model.on(|request| {
        let told = entries(request);
        let entry = told.first().filter(|_| request.agent_key.contains(COORDINATE) && told.len() == 1)?;
        let already = request.tool_uses().count() > 1;
        let branch = entry.outcome().split("branch=\"").nth(1)?.split('"').next()?;
        let mut second = agent("second");
        second["base"] = branch.into();
        (!already).then(|| Reply::call("Agent", second))
    });
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("first"), [call(write("one.txt", "one\n")), Reply::say("One.")]);
    rig.model.agent(&prompt("second"), [call(write("two.txt", "two\n")), Reply::say("Two.")]);
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let second = rig.worker(&task, "second").await;
    assert_eq!(
        (rig.at(&second, "one.txt").as_deref(), rig.at(&second, "two.txt").as_deref()),
        (Some("one\n"), Some("two\n"))
    );
    assert_eq!((&second["files_changed"], &second["commits"]), (&json!(1), &json!(1)), "its own work alone");
    until(SOON, "an idle session", async || rig.session(&task).await["session"]["state"] == "idle").await;
}
