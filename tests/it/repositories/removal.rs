//! Worktrees go when nothing in them is nowhere else.

use std::fs;

use reqwest::StatusCode;
use serde_json::json;

use super::{one_writer, post};
use crate::rig::{Rig, id_of, path_of};

#[tokio::test(flavor = "multi_thread")]
async fn case_20_work_that_is_nowhere_else_is_kept_with_the_reason_and_comes_back_from_the_bin() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let path = path_of(&worker);
    fs::write(path.join("untracked.txt"), "untracked\n").expect("the worktree is there");
    fs::write(path.join("new.txt"), "edited later\n").expect("the worktree is there");
    let swept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(swept["removed"], json!([]), "{swept:#}");
    assert!(swept["kept"][0].as_str().is_some_and(|why| why.contains("not merged into main")), "{swept:#}");
    assert!(path.join("untracked.txt").exists());
    let forced = rig.api().post("/gc", &json!({"force": true})).await;
    assert_eq!(forced["removed"].as_array().map(Vec::len), Some(1), "{forced:#}");
    let short = id_of(&worker).trim_start_matches("agent-");
    assert!(
        forced["removed"][0].as_str().is_some_and(|line| line.ends_with(&format!("swarm restore {short}")))
    );
    assert!(!path.exists() && rig.repo.branches("swarm/**").is_empty());
    assert_eq!(rig.worker(&task, "alpha").await["discarded"], true);
    let (status, restored) = post(&rig, &worker, "restore", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{restored:#}");
    let back = rig.worker(&task, "alpha").await;
    assert_eq!(rig.at(&back, "new.txt").as_deref(), Some("new\n"));
    assert_eq!(fs::read_to_string(path.join("untracked.txt")).ok().as_deref(), Some("untracked\n"));
    assert_eq!(fs::read_to_string(path.join("new.txt")).ok().as_deref(), Some("edited later\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_20_a_rebase_in_progress_keeps_even_a_merged_worktree_and_force_prints_the_way_back() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    let path = path_of(&worker);
    let within = |arguments: &[&str]| rig.repo.try_git_in(&path, arguments);
    let stopped = within(&["rebase", "-q", "--exec", "false", "HEAD~1"]);
    assert!(!stopped.status.success(), "it stops at the command");
    let kept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(kept["removed"], json!([]), "{kept:#}");
    let why = kept["kept"][0].as_str().unwrap_or_default();
    assert!(why.contains("a rebase is in progress") && !why.contains("not merged"), "{kept:#}");
    let (status, problem) = post(&rig, &worker, "discard", json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("kept")), "{problem:#}");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("a rebase is in progress")));
    let id = id_of(&worker);
    let said = rig.home.run(rig.repo.path(), &["discard", id]).await.expect_code(1).stderr;
    assert!(said.contains("a rebase is in progress") && said.contains("--force"), "{said}");
    let status = String::from_utf8_lossy(&within(&["status"]).stdout).into_owned();
    assert!(status.contains("rebase in progress"), "{status}");

    let taken = rig.home.run(rig.repo.path(), &["discard", id, "--force"]).await.expect_code(0).stdout;
    let command = taken.split("swarm ").nth(1).expect("the way back is printed").trim();
    assert!(!path.exists() && command.starts_with("restore "), "{taken}");
    let arguments: Vec<&str> = command.split(' ').collect();
    let back = rig.home.run(rig.repo.path(), &arguments).await.expect_code(0).stdout;
    assert!(back.contains("a rebase was in progress"), "{back}");
    assert_eq!(fs::read_to_string(path.join("new.txt")).ok().as_deref(), Some("new\n"));
}
