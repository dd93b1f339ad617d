//! No worker is started while the machine has too little memory or disk (spec 10.1): it waits, says for what, and starts
//! when there is room.

use std::{os::unix::fs::symlink, path::Path};

use integration_tests::{Reply, wait::SOON};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, agent, call, prompt, spawned, write};

/// The script of a worker that leaves a file.
fn one_worker(rig: &Rig) {
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
}

/// Waits until the worker is queued for this reason, which people see everywhere.
async fn queued_for(rig: &Rig, task: &Task, reason: &str) {
    let is_queued = |worker: &Value| worker["cause"].as_str().is_some_and(|cause| cause.starts_with(reason));
    let worker = rig.worker_is(task, "alpha", "it is queued", is_queued).await;
    assert_eq!((&worker["status"], &worker["position"]), (&json!("pending"), &json!(1)));
    // The coordinator was told that it is not running yet, and does not wait for it.
    let told = rig.model.wait_for_request(COORDINATE, 1).await;
    assert_eq!(spawned(&told)[0]["status"], "pending");
    let shown = rig.home.run(rig.repo.path(), &["ps"]).await.expect_code(0);
    assert!(shown.stdout.contains(&format!("queued, {reason}")), "{}", shown.stdout);
    let shown = rig.home.run(rig.repo.path(), &["show", "alpha"]).await.expect_code(0);
    assert!(shown.stdout.contains(reason), "{}", shown.stdout);
    let overview = rig.api().get("/overview").await;
    let rows = overview["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| !row["worker"].is_null()).expect("a row of the worker");
    assert!(row["fact"].as_str().is_some_and(|fact| fact.starts_with(reason)), "{row:#}");
    assert!(rig.worker_processes().is_empty());
    assert!(rig.model.requests_of(&prompt("alpha")).is_empty());
    // Looking again is no news.
    let causes = rig.events(task, "worker.state").await;
    assert_eq!(causes.len(), 1, "{causes:#?}");
}

async fn completes(rig: &Rig, task: &Task) {
    assert_eq!(rig.done(task).await["verdict"], "complete");
    let worker = rig.worker(task, "alpha").await;
    assert_eq!((&worker["status"], rig.at(&worker, "a.txt").as_deref()), (&json!("completed"), Some("a\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_while_free_memory_is_under_its_floor_and_starts_when_it_is_not() {
    let mut rig = Rig::configured("limits.free_memory_mib = 1_000_000_000\n").await;
    one_worker(&rig);
    let task = rig.submit().await;
    queued_for(&rig, &task, "waits for memory: ").await;
    let cause = rig.worker(&task, "alpha").await["cause"].clone();
    assert!(
        cause
            .as_str()
            .is_some_and(|cause| cause.ends_with(" MiB free, limits.free_memory_mib is 1000000000")),
        "{cause}"
    );
    let metrics = rig.api().get("//metrics").await;
    let metrics = metrics.as_str().expect("figures are text");
    let floor = format!("swarm_free_bytes_floor{{resource=\"memory\"}} {}", 1_000_000_000_u64 << 20);
    assert!(metrics.contains(&floor), "no `{floor}` in {metrics}");
    assert!(metrics.contains("swarm_free_bytes{resource=\"disk\"}"), "{metrics}");
    let doctor = rig.home.run(rig.repo.path(), &["doctor"]).await;
    assert!(doctor.stdout.contains("a worker waits for memory: "), "{}", doctor.stdout);
    rig.home.config("limits.free_memory_mib = 1\n");
    rig.restart_killed().await;
    completes(&rig, &task).await;
    let doctor = rig.home.run(rig.repo.path(), &["doctor"]).await;
    assert!(doctor.stdout.contains("a worker starts from 1 MiB and 512 MiB"), "{}", doctor.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_disk_where_worktrees_are_and_starts_in_the_same_server() {
    let place = tempfile::tempdir().expect("a place for worktrees");
    let root = place.path().join("worktrees");
    // The one file system of every machine that has no room at all.
    symlink("/proc", &root).expect("a link");
    let rig = Rig::configured(&format!("worktree.root = {:?}\n", root.to_str().expect("text"))).await;
    one_worker(&rig);
    let task = rig.submit().await;
    queued_for(&rig, &task, "waits for disk space: 0 MiB free, limits.free_disk_mib is 512").await;
    make_room(place.path(), &root);
    completes(&rig, &task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert!(worker["worktree"].as_str().is_some_and(|path| path.starts_with(root.to_str().expect("text"))));
    integration_tests::until(SOON, "the end of its process", async || rig.worker_processes().is_empty())
        .await;
}

/// The link leads to a directory from one moment to the next.
fn make_room(place: &Path, root: &Path) {
    let (roomy, fresh) = (place.join("roomy"), place.join("fresh"));
    std::fs::create_dir(&roomy).expect("a directory");
    symlink(&roomy, &fresh).expect("a link");
    std::fs::rename(&fresh, root).expect("it takes the other's place");
}
