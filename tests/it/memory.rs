//! The memory of a long run and of one that stands still (Z16). The bound is above what allocators keep, and below what it
//! would take to keep each request: 180 of them, of two hundred kilobytes and more, are some 40 MB. Ten thousand turns
//! are `tests/bench/soak.py`.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use integration_tests::{Reply, TestRepo, process::Process};
use serde_json::json;

use crate::rig::{Rig, call, prompt, reporter};

/// Turns before the first look and in all.
const WARM: usize = 60;
const TURNS: usize = 240;
/// What may be added between the two looks, in kB.
const MOST_KB: u64 = 20 * 1024;

/// Resident memory in kB.
fn resident(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says it");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_bounded_over_many_turns_and_still_while_nothing_happens() {
    let large =
        (0..1_000).map(|n| format!("line {n} of a file that is read again and again\n")).collect::<String>();
    let rig = Rig::of(
        TestRepo::with_files(&[("large.txt", &large), ("other.txt", &large)]),
        "context_window = 80000\n",
    )
    .await;
    rig.coordinator(Reply::call("Agent", reporter("long")));
    // Old results are cleared from its conversation.
    rig.model.allow_breaks(None);
    let turns = AtomicUsize::new(0);
    rig.model.on(move |request| {
        if !request.agent_key.contains(&prompt("long")) {
            return None;
        }
        if request.last_user_text().contains("Write a summary") {
            return Some(Reply::say("<summary>It reads on.</summary>"));
        }
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        // Another part each time: who does the same again and again is stopped.
        let read = |file: &str| call(("Read", json!({"file_path": file, "offset": turn + 1, "limit": 300})));
        Some(match turn {
            _ if turn == WARM => read("large.txt").hold("warm"),
            _ if turn == TURNS => Reply::say("Done.").hold("idle"),
            _ if turn.is_multiple_of(2) => read("large.txt"),
            _ => read("other.txt"),
        })
    });
    let task = rig.submit().await;
    rig.model.gate("warm").reached().await;
    let worker = rig.worker(&task, "long").await;
    let process = rig.worker_process(&worker).expect("it runs");
    let server = rig.home.server_process().expect("it runs");
    let before = (resident(&process), resident(&server));
    rig.model.gate("warm").open();
    rig.model.gate("idle").reached().await;
    let after = (resident(&process), resident(&server));
    println!("worker {} to {} kB, server {} to {} kB", before.0, after.0, before.1, after.1);
    assert!(after.0 <= before.0 + MOST_KB, "the worker: {} to {} kB", before.0, after.0);
    assert!(after.1 <= before.1 + MOST_KB, "the server: {} to {} kB", before.1, after.1);
    // Standing still, nothing is added: timers and heartbeats go on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let idle = (resident(&process), resident(&server));
    assert!(idle.0 <= after.0 + 1024 && idle.1 <= after.1 + 1024, "{after:?} to {idle:?}");
    rig.model.gate("idle").open();
    rig.done(&task).await;
}
