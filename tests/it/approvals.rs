//! What surrounds approvals: settings behind links or out of reach, dangerous commands, damaged records, slow readers.

use std::{
    io::Read as _,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use integration_tests::{Reply, TestRepo, eventually, wait::LATER};
use serde_json::{Value, json};

use crate::rig::{Rig, agent, bash, call, files_below, id_of, prompt, write};

fn results(rig: &Rig, name: &str) -> Vec<(String, bool)> {
    let requests = rig.model.requests_of(&prompt(name));
    let last = requests.last().expect("it asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn z10_settings_behind_a_link_count_are_written_through_it_and_disturb_no_command() {
    let repo = TestRepo::with_files(&[("README.md", "# A project\n"), (".gitignore", ".claude/\n")]);
    let rig = Rig::of(repo, "[sandbox]\nauto_allow = false\n").await;
    let real = rig.home.user_home().join("shared-settings.json");
    std::fs::write(&real, r#"{"permissions": {"deny": ["Bash(touch b.txt)"]}}"#).expect("the home is ours");
    std::fs::create_dir(rig.repo.path().join(".claude")).expect("it is new");
    let link = rig.repo.path().join(".claude/settings.local.json");
    symlink(&real, &link).expect("a link can be made");
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    rig.model.agent(
        &prompt("toucher"),
        [call(bash("touch a.txt")), call(bash("touch b.txt")), Reply::say("Touched.")],
    );
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    let answered = rig.answer(&request, &json!({"decision": "allow", "scope": "always"})).await;
    assert!(answered["wrote_rule"].is_string(), "{answered:#}");
    rig.done(&task).await;
    let results = results(&rig, "toucher");
    assert!(!results[0].1, "{results:?}");
    assert!(results[1].1 && results[1].0.contains("the deny rule"), "{results:?}");
    assert!(link.is_symlink(), "the link is still one");
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(&real).expect("it is there")).expect("it is JSON");
    assert_eq!(written["permissions"]["deny"], json!(["Bash(touch b.txt)"]));
    assert_eq!(written["permissions"]["allow"], json!([request["request"]["proposed_rule"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn z14_a_hard_reset_asks_and_what_it_destroys_is_in_a_snapshot() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("resetter")));
    rig.model.agent(
        &prompt("resetter"),
        [
            call(bash("echo '# Hours of work' > README.md")),
            call(bash("git reset --hard")),
            Reply::say("Reset.").hold("reset"),
        ],
    );
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    let why = request["request"]["why"].as_str().expect("why it asks");
    assert_eq!(request["request"]["input"]["command"], "git reset --hard");
    assert!(why.contains("it throws away uncommitted work"), "{why}");
    let worker = rig.worker(&task, "resetter").await;
    // Before anybody can say yes, the work is kept.
    let snapshots = format!("refs/swarm/snapshots/{}", id_of(&worker));
    eventually(LATER, "a snapshot of the work", async || {
        let kept = rig.repo.git(&["for-each-ref", "--format=%(refname)", &snapshots]);
        if kept.is_empty() { Err("none".to_owned()) } else { Ok(()) }
    })
    .await;
    rig.answer(&request, &json!({"decision": "allow"})).await;
    rig.model.gate("reset").reached().await;
    let worktree = crate::rig::path_of(&worker);
    let text = std::fs::read_to_string(worktree.join("README.md")).expect("it is there");
    assert_ne!(text, "# Hours of work\n", "the reset did what it does");
    rig.model.gate("reset").open();
    rig.done(&task).await;
    let listed = rig.api().get(&format!("/workers/{}/snapshots", id_of(&worker))).await;
    let held = listed.as_array().expect("a list").iter().any(|snapshot| {
        let commit = snapshot["commit"].as_str().unwrap_or_default();
        rig.repo.read_at(commit, "README.md").as_deref() == Some("# Hours of work\n")
    });
    assert!(held, "{listed:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn z11_going_back_to_a_snapshot_leaves_ignored_data_alone() {
    let repo = TestRepo::with_files(&[("README.md", "# A project\n"), (".gitignore", "data/\n")]);
    let rig = Rig::of(repo, "").await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(
        &prompt("writer"),
        [
            call(write("notes.txt", "first\n")),
            call(bash("mkdir data && head -c 1000000 /dev/zero > data/large.bin")).hold("snapshot"),
            call(write("notes.txt", "second\n")),
            Reply::say("Written."),
        ],
    );
    let task = rig.submit().await;
    // A snapshot is made beside the next request; here it is waited for.
    rig.worker_is(&task, "writer", "a snapshot", |worker| worker["snapshots"].as_u64() >= Some(1)).await;
    rig.model.gate("snapshot").open();
    rig.done(&task).await;
    let worker = rig.worker(&task, "writer").await;
    let worktree = crate::rig::path_of(&worker);
    let notes = || std::fs::read_to_string(worktree.join("notes.txt")).expect("the file is there");
    assert_eq!(notes(), "second\n");
    rig.api().post(&format!("/workers/{}/restore", id_of(&worker)), &json!({"snapshot": 1})).await;
    assert_eq!(notes(), "first\n");
    let size = std::fs::metadata(worktree.join("data/large.bin")).expect("ignored data is left alone").len();
    assert_eq!(size, 1_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn z17_a_damaged_record_of_one_worker_costs_that_worker_and_no_other() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("hurt")).tool("Agent", agent("well")));
    for name in ["hurt", "well"] {
        let reply = Reply::say("Done.").hold(name);
        rig.model.agent(&prompt(name), [call(write(&format!("{name}.txt"), "x\n")), reply]);
    }
    let task = rig.submit().await;
    for name in ["hurt", "well"] {
        rig.model.gate(name).reached().await;
    }
    let (hurt, well) = (rig.worker(&task, "hurt").await, rig.worker(&task, "well").await);
    rig.kill_server().await;
    let keepers: Vec<_> = files_below(&rig.home.path())
        .into_iter()
        .filter(|path| path.ends_with("keeper.json") && path.to_string_lossy().contains(id_of(&hurt)))
        .collect();
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    std::fs::write(&keepers[0], "{\"pid\": ").expect("the file can be damaged");
    let before = rig.worker_process(&well).expect("it runs on").pid;
    rig.start().await;
    rig.model.gate("well").open();
    rig.model.gate("hurt").open();
    let ended = rig.worker_is(&task, "well", "ended", |worker| worker["ended_at"].is_string()).await;
    assert_eq!((&ended["status"], &ended["run"]), (&json!("completed"), &json!(1)), "{ended:#}");
    assert_eq!(ended["restarts"].as_u64().unwrap_or_default(), 0, "nobody ended it: {before}");
    rig.worker_is(&task, "hurt", "an end", |worker| worker["ended_at"].is_string()).await;
    rig.done(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn z19_a_rule_that_cannot_be_written_holds_in_memory_and_the_answer_says_so() {
    let rig = Rig::configured("[sandbox]\nauto_allow = false\n").await;
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    rig.model.agent(
        &prompt("toucher"),
        [call(bash("touch a.txt")), call(bash("touch b.txt")), Reply::say("Touched.")],
    );
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    // Not even root can put a file in the place of a directory.
    let file = request["always_file"].as_str().expect("the file is named before the answer");
    std::fs::create_dir_all(file).expect("nothing was written there yet");
    let id = request["request"]["id"].as_str().expect("an id");
    let said = rig.home.run(rig.repo.path(), &["approve", "--always", id]).await.expect_code(0).stdout;
    assert!(said.contains("allowed for this session") && said.contains("could not be written"), "{said}");
    rig.done(&task).await;
    assert_eq!(rig.events(&task, "permission.requested").await.len(), 1, "the rule holds");
    assert!(results(&rig, "toucher").iter().all(|(_, is_error)| !is_error));
}

#[tokio::test(flavor = "multi_thread")]
async fn z20_a_slow_reader_gets_the_whole_of_a_long_result() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(
        &prompt("writer"),
        [call(bash("yes 0123456789abcdef | head -c 5000000 > large.txt")), Reply::say("Written.")],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "writer").await;
    let mut command: Command = rig.home.command(rig.repo.path(), &["diff", id_of(&worker)]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("swarm can be started");
    let mut reader = child.stdout.take().expect("it is piped");
    let read = tokio::task::spawn_blocking(move || {
        let (mut whole, mut piece) = (Vec::new(), [0_u8; 1_024]);
        loop {
            match reader.read(&mut piece).expect("the pipe can be read") {
                0 => return (whole, child.wait().expect("it ends")),
                n => whole.extend_from_slice(&piece[..n]),
            }
            // The pipe is full long before all is read: who writes has to wait for who reads.
            std::thread::yield_now();
        }
    });
    let (whole, status) = read.await.expect("it is read");
    assert!(status.success(), "{status}");
    let lines =
        whole.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"+0123456789abcdef")).count();
    assert!(whole.len() > 5_000_000, "{} bytes", whole.len());
    assert_eq!(lines, 5_000_000 / 17);
}
