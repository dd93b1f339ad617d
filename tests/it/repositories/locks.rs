//! Locks: of other programs, and of a worktree's owner.

use std::fs;

use integration_tests::Reply;
use reqwest::StatusCode;
use serde_json::json;

use super::{one_writer, post};
use crate::rig::{Rig, call, id_of, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_that_a_foreign_process_holds_for_a_while_is_waited_for() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "README2.md");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let lock = rig.repo.path().join(".git/index.lock");
    fs::write(&lock, "").expect("the lock can be made");
    let merging = post(&rig, &worker, "merge", json!({}));
    let foreign = async {
        // The foreign process works for as long; what is waited for is the merge.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let still_there = lock.exists();
        fs::remove_file(&lock).expect("nobody else removed the lock");
        still_there
    };
    let ((_, merged), still_there) = tokio::join!(merging, foreign);
    assert!(still_there, "it is not broken");
    assert_eq!(merged["result"], "merged", "{merged:#}");
    assert_eq!((rig.repo.read("README2.md"), rig.repo.status()), ("new\n".to_owned(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_that_is_held_for_ever_is_shown_fails_the_merge_and_is_left_alone() {
    let rig = Rig::configured("[git]\nlock_wait = \"2s\"\n").await;
    one_writer(&rig, "alpha", "README2.md");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let (lock, head) = (rig.repo.path().join(".git/index.lock"), rig.repo.head());
    // This process is the foreign program.
    let held = fs::File::create(&lock).expect("the lock can be made");
    let merging = post(&rig, &worker, "merge", json!({}));
    let seen = rig.worker_is(&task, "alpha", "the wait is seen", |worker| {
        let activity = worker["activity"].as_str().unwrap_or_default();
        let of_us = format!("(process {})", std::process::id());
        activity.starts_with("waiting for git lock")
            && activity.contains(&of_us)
            && activity.contains("s old")
    });
    let ((status, problem), _) = tokio::join!(merging, seen);
    assert_eq!(status, StatusCode::CONFLICT, "{problem:#}");
    let said = problem["title"].as_str().unwrap_or_default();
    assert!(said.contains("index.lock") && said.contains("it was left alone"), "{problem:#}");
    assert!(said.contains(&format!("(process {})", std::process::id())), "{problem:#}");
    assert!(lock.exists(), "nobody proved that its owner is dead");
    assert_eq!((rig.repo.head(), rig.repo.exists("README2.md")), (head, false));
    assert_eq!(rig.worker(&task, "alpha").await["activity"], "", "the wait is over");
    drop(held);
    fs::remove_file(&lock).expect("it is still there");
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_of_the_shared_configuration_holds_nobody_up() {
    let rig = Rig::configured("[git]\nlock_wait = \"2s\"\n").await;
    let lock = rig.repo.path().join(".git/config.lock");
    fs::write(&lock, "").expect("the lock can be made");
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    assert!(lock.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_11_a_worktree_whose_owner_is_dead_is_taken_over_though_its_process_id_lives_again() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let locked = rig.repo.path().join(format!(".git/worktrees/{}/locked", id_of(&worker)));
    let reason = fs::read_to_string(&locked).expect("its worktree is locked against pruning");
    let field = |name: &str| {
        let rest = reason.split(name).nth(1).expect("the owner is named");
        rest.split_whitespace().next().expect("with a value").to_owned()
    };
    // This very process lives, but began at another time than the owner.
    let reused = reason.replace(&format!("pid={}", field("pid=")), &format!("pid={}", std::process::id()));
    let reused = reused.replace(&format!("start={}", field("start=")), "start=1");
    fs::write(&locked, reused).expect("the lock can be written");
    rig.model.agent(&prompt("alpha"), [call(write("later.txt", "later\n")), Reply::say("Went on.")]);
    post(&rig, &worker, "messages", json!({"text": "Go on."})).await;
    let again =
        rig.worker_is(&task, "alpha", "run 2 ended", |w| w["run"] == 2 && w["ended_at"].is_string()).await;
    assert_eq!(again["status"], "completed", "{again:#}");
    assert_eq!(rig.at(&again, "later.txt").as_deref(), Some("later\n"));
}
