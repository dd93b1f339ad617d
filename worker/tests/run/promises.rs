use serde_json::{Value, json};
use swarm_protocol::{
    ExitReason, RunNumber, Timestamp,
    frame::Command,
    launch::{ApiKind, Isolation},
    permission::{
        Decision, PermissionDecision, PermissionMode, Racer, Rule, RuleBehavior, RuleOrigin, Scope,
    },
    record::RecordBody,
};

use super::{
    model::say,
    rig::{Rig, git},
};

/// The results in the last message of a request.
pub(super) fn results(request: &Value) -> String {
    request["messages"].as_array().unwrap().last().unwrap().to_string()
}

pub(super) fn allow_bash() -> Rule {
    Rule {
        behavior: RuleBehavior::Allow,
        text: "Bash".to_owned(),
        origin: RuleOrigin { level: "session".to_owned(), file: None, line: None, anchor: None },
    }
}

#[tokio::test]
async fn a_run_edits_commits_and_is_acknowledged() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.launch.setup = Some("echo ready > setup.txt".to_owned());
    rig.model.will([
        say("Looking.").call("t1", "Read", json!({"file_path": "a.txt"})).call(
            "t2",
            "Grep",
            json!({"pattern": "two"}),
        ),
        say("Editing.").call(
            "t3",
            "Edit",
            json!({"file_path": "a.txt", "old_string": "two", "new_string": "2"}),
        ),
        say("").call(
            "t4",
            "Bash",
            json!({"command": "git add a.txt && git commit -q -m edited && cat setup.txt"}),
        ),
        say("").call("t5", "Write", json!({"file_path": "left.txt", "content": "left\n"})),
        say("Done."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::Completed);
    assert_eq!((end.result.as_str(), end.turns, end.edited), ("Done.", 5, true));
    assert_eq!(end.commands.len(), 1);
    assert_eq!(end.commands[0].exit_code, Some(0), "{:?}", rig.model.requests().last());
    assert_eq!(end.commands_after_last_edit, 0);
    assert_eq!(end.commit_error, None);
    assert_eq!(rig.on_branch("a.txt"), "one\n2");
    assert_eq!(rig.on_branch("left.txt"), "left");
    assert_eq!(rig.heads[0].record, "run_started");
    assert!(rig.count("snapshot") > 0, "what a turn changed is kept");
    let requests = rig.model.requests();
    assert!(requests[0].to_string().contains("Try things."));
    assert!(results(&requests[1]).contains("a.txt"));
    assert!(results(&requests[3]).contains("ready"), "{}", results(&requests[3]));
    let size = requests[0].to_string().len();
    assert!(size < 4 * 7_000, "the first request has {size} bytes");
}

#[tokio::test]
async fn a_killed_process_goes_on_from_its_transcript() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([say("").call("t1", "Bash", json!({"command": "echo once >> count.txt; sleep 300"}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    let counted = rig.worktree().join("count.txt");
    while !counted.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    running.child.kill().await.unwrap();
    drop(running);
    rig.launch.restarts = 1;
    rig.launch.notes = vec!["Your process died and was started again.".to_owned()];
    rig.model.will([say("I looked: it ran.")]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::Completed);
    assert_eq!(rig.count("run_started"), 2);
    assert_eq!(end.turns, 2);
    let request = rig.model.requests().pop().unwrap().to_string();
    assert!(request.contains("outcome unknown") && request.contains("started again"), "{request}");
    assert_eq!(request.matches("Try things.").count(), 1);
    assert_eq!(rig.on_branch("count.txt"), "once", "nothing ran twice");
    // The same prefix, byte for byte (R13).
    let requests = rig.model.requests();
    assert_eq!(requests[0]["tools"], requests[1]["tools"]);
    assert_eq!(requests[0]["system"], requests[1]["system"]);
}

#[tokio::test]
async fn a_later_run_continues_with_its_message() {
    let mut rig = Rig::new().await;
    rig.model.will([say("First.")]);
    let running = rig.start().await;
    assert_eq!(rig.end(running).await.result, "First.");
    rig.launch.run = RunNumber(2);
    rig.model.will([say("Second.")]);
    let mut running = rig.start().await;
    let text = "And now this.".to_owned();
    running.command(41, Command::Message { message_id: None, from_person: false, text }).await;
    let end = rig.end(running).await;
    assert_eq!((end.result.as_str(), end.turns), ("Second.", 1));
    let request = rig.model.requests().pop().unwrap();
    assert!(results(&request).contains("And now this."));
    assert!(request.to_string().contains("First."));
    // Nothing is left to do for a process that finds its run ended.
    let running = rig.start().await;
    let mut running = running;
    let status = running.child.wait().await.unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn what_asks_waits_for_one_decision() {
    let mut rig = Rig::new().await;
    let outside = rig.root().join("outside.txt");
    let call = |id: &str| say("").call(id, "Write", json!({"file_path": outside, "content": "x"}));
    rig.model.will([call("t1"), call("t2"), say("Done.")]);
    let mut running = rig.start().await;
    let decide = |request: &RecordBody, decision, reason: &str| {
        let RecordBody::PermissionRequested { request } = request else { panic!() };
        Command::Decision {
            decision: PermissionDecision {
                id: request.id.clone(),
                decision,
                scope: Scope::Once,
                by: Racer::Person,
                source: None,
                args_hash: String::new(),
                reason: Some(reason.to_owned()),
                stop: false,
                decided_at: Timestamp::from_millis(0),
            },
        }
    };
    let request = rig.until(&mut running, "permission_requested").await.unwrap();
    let command = decide(&request, Decision::Deny, "not there");
    running.command(5, command.clone()).await;
    running.command(5, command).await;
    let request = rig.until(&mut running, "permission_requested").await.unwrap();
    running.command(6, decide(&request, Decision::Allow, "")).await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::Completed);
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "x");
    assert_eq!(rig.count("command_accepted"), 2);
    let requests = rig.model.requests();
    assert!(
        results(&requests[1]).contains("A person refused this call and said: not there"),
        "{}",
        results(&requests[1])
    );
}

#[tokio::test]
async fn unattended_nobody_is_asked() {
    let mut rig = Rig::new().await;
    rig.launch.unattended = true;
    let outside = rig.root().join("outside.txt");
    rig.model
        .will([say("").call("t1", "Write", json!({"file_path": outside, "content": "x"})), say("Done.")]);
    let running = rig.start().await;
    rig.end(running).await;
    assert!(!outside.exists());
    assert_eq!(rig.count("permission_requested"), 0);
    assert!(results(&rig.model.requests()[1]).contains("unattended"));
}

#[tokio::test]
async fn a_stop_commits_what_there_is() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([
        say("").call("t1", "Write", json!({"file_path": "half.txt", "content": "half\n"})),
        say("").call("t2", "Bash", json!({"command": "sleep 300"})),
    ]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    rig.until(&mut running, "intent").await;
    running.command(9, Command::Stop { reason: "enough".to_owned(), by_person: true }).await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::AbortedTools);
    assert_eq!(rig.on_branch("half.txt"), "half");
}

#[tokio::test]
async fn nothing_writes_after_the_last_commit() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.launch.permission_mode = PermissionMode::BypassPermissions;
    let command = "trap '' TERM; while :; do echo x >> w.txt; sleep 0.01; done";
    rig.model.will([say("").call("t1", "Bash", json!({"command": command}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    let written = rig.worktree().join("w.txt");
    while !written.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    running.command(9, Command::Stop { reason: "enough".to_owned(), by_person: true }).await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::AbortedTools);
    assert_eq!(end.commands.len(), 1, "the command is in the record");
    assert_eq!(std::fs::read_to_string(written).unwrap().trim(), rig.on_branch("w.txt"));
}

#[tokio::test]
async fn an_interrupted_agent_listens() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([say("").call("t1", "Bash", json!({"command": "sleep 300"}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    running.command(3, Command::Interrupt).await;
    rig.until(&mut running, "tombstone").await;
    rig.model.will([say("Heard.")]);
    let text = "Something else.".to_owned();
    running.command(4, Command::Message { message_id: None, from_person: true, text }).await;
    let end = rig.end(running).await;
    assert_eq!((end.exit_reason, end.result.as_str()), (ExitReason::Completed, "Heard."));
}

#[tokio::test]
async fn background_jobs_are_waited_for_and_then_killed() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    let job = |command: &str| json!({"command": command, "run_in_background": true});
    rig.model.will([
        say("").call("t1", "Bash", job("sleep 1; echo first job")).call("t2", "Bash", job("sleep 299")),
        say("Waiting."),
        say("Done."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!((end.exit_reason, end.result.as_str()), (ExitReason::Completed, "Done."));
    assert!(end.children_killed.iter().any(|child| child.contains("sleep 299")), "{:?}", end.children_killed);
    assert!(rig.model.requests()[2].to_string().contains("first job"));
}

#[tokio::test]
async fn a_failed_set_up_is_the_end() {
    let mut rig = Rig::new().await;
    rig.launch.setup = Some("echo no such thing; exit 3".to_owned());
    let running = rig.start().await;
    let end = rig.end(running).await;
    let ExitReason::SetupFailed { output } = end.exit_reason else { panic!("{:?}", end.exit_reason) };
    assert!(output.contains("no such thing") && output.contains("exit code 3"), "{output}");
    assert!(rig.model.requests().is_empty());
}

#[tokio::test]
async fn a_server_that_goes_away_misses_nothing() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([say("").call("t1", "Bash", json!({"command": "sleep 1; echo slept"}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    let child = running.hang_up();
    let running = rig.connected(child).await;
    rig.model.will([say("Done.")]);
    let end = rig.end(running).await;
    assert_eq!(end.result, "Done.");
    assert_eq!(rig.count("run_started"), 1);
}

#[tokio::test]
async fn x07_a_signal_ends_the_run_in_order_and_its_tree_with_it() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([say("").call("t1", "Bash", json!({"command": "(setsid sleep 1077 &); sleep 1078"}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "intent").await;
    let left = || {
        let all = worker::shell::processes::live_processes();
        let is_ours =
            |pid| matches!(worker::shell::processes::command_of(pid).as_str(), "sleep 1077" | "sleep 1078");
        all.iter().filter(|stat| is_ours(stat.pid)).count()
    };
    while left() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let pid = nix::unistd::Pid::from_raw(running.child.id().unwrap().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::AbortedTools);
    assert_eq!(rig.count("tool_finished"), 1, "the call has its result");
    assert_eq!(left(), 0, "nothing of it is left");
}

#[tokio::test]
async fn the_demo_needs_no_network() {
    let mut rig = Rig::new().await;
    rig.launch.spec.model.api = ApiKind::Demo;
    rig.launch.spec.model.provider = "demo".to_owned();
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::Completed, "{end:?}");
    assert!(rig.model.requests().is_empty());
    let branch = rig.launch.spec.branch.clone().unwrap();
    let changed = git(&rig.launch.checkout, &["diff", "--name-only", "main", &branch]);
    assert!(!changed.is_empty(), "{end:?}");
}

#[tokio::test]
async fn in_the_persons_checkout_nothing_is_changed() {
    let mut rig = Rig::new().await;
    let checkout = rig.launch.checkout.clone();
    rig.launch.spec.isolation = Isolation::None;
    rig.launch.spec.agent_type = "Explore".to_owned();
    rig.launch.spec.worktree.clone_from(&checkout);
    rig.launch.spec.branch = None;
    rig.launch.worktree_git_dir = None;
    rig.launch.unattended = true;
    rig.model.will([
        say("").call("t1", "Read", json!({"file_path": "a.txt"})).call(
            "t2",
            "Write",
            json!({"file_path": "x", "content": "x"}),
        ),
        say("").call("t3", "Bash", json!({"command": "cat a.txt"})).call(
            "t4",
            "Bash",
            json!({"command": "echo x > x"}),
        ),
        say("Read it."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!((end.exit_reason, end.result.as_str()), (ExitReason::Completed, "Read it."));
    assert_eq!(git(&checkout, &["status", "--short"]), "");
    let requests = rig.model.requests();
    let tools = requests[0]["tools"].to_string();
    assert!(!tools.contains("\"Write\"") && !tools.contains("\"Edit\"") && tools.contains("\"Grep\""));
    assert!(results(&requests[1]).contains("one"));
    assert!(results(&requests[2]).contains("two"), "{}", results(&requests[2]));
}

#[tokio::test]
async fn a_restore_keeps_what_it_replaces() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([
        say("").call("t1", "Write", json!({"file_path": "n.txt", "content": "first\n"})),
        say("").call("t2", "Bash", json!({"command": "echo second > n.txt"})),
        say("").call("t3", "Bash", json!({"command": "sleep 2"})),
    ]);
    let mut running = rig.start().await;
    rig.until(&mut running, "snapshot").await;
    rig.until(&mut running, "snapshot").await;
    running.command(12, Command::Restore { snapshot: 1 }).await;
    running.command(13, Command::SetPermissionMode { mode: PermissionMode::Default }).await;
    rig.until(&mut running, "command_accepted").await;
    rig.model.will([say("").call("t4", "Bash", json!({"command": "cat n.txt"})), say("Done.")]);
    rig.end(running).await;
    let requests = rig.model.requests();
    assert!(requests[3].to_string().contains("put your worktree back to snapshot 1"), "{}", requests[3]);
    assert!(results(&requests[4]).contains("first"), "{}", results(&requests[4]));
    assert_eq!(rig.on_branch("n.txt"), "first");
}

#[tokio::test]
async fn memory_of_a_directory_comes_with_the_first_read_there() {
    let mut rig = Rig::new().await;
    let sub = rig.worktree().join("sub");
    std::fs::create_dir(&sub).unwrap();
    std::fs::write(rig.worktree().join("CLAUDE.md"), "Speak softly.\n").unwrap();
    std::fs::write(sub.join("CLAUDE.md"), "Here be dragons.\n").unwrap();
    std::fs::write(sub.join("b.txt"), "b\n").unwrap();
    rig.model.will([say("").call("t1", "Read", json!({"file_path": "sub/b.txt"})), say("Done.")]);
    let running = rig.start().await;
    rig.end(running).await;
    let requests = rig.model.requests();
    assert!(
        requests[0].to_string().contains("Speak softly.") && !requests[0].to_string().contains("dragons")
    );
    assert!(results(&requests[1]).contains("dragons"), "{}", results(&requests[1]));
}

#[tokio::test]
async fn a_failed_command_cancels_what_came_with_it() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    rig.model.will([
        say("").call("t1", "Bash", json!({"command": "grep zebra a.txt"})).call(
            "t2",
            "Bash",
            json!({"command": "echo went on"}),
        ),
        say("").call("t3", "Bash", json!({"command": "false"})).call(
            "t4",
            "Bash",
            json!({"command": "touch never"}),
        ),
        say("").call("t5", "Bash", json!({"command": "kill -9 $$"})),
        say("Done."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    let requests = rig.model.requests();
    let benign = results(&requests[1]);
    assert!(benign.contains("[exit code 1: no match]") && benign.contains("went on"), "{benign}");
    let failed = results(&requests[2]);
    assert!(
        failed.contains("[exit code 1]") && failed.contains("Cancelled due to sibling error"),
        "{failed}"
    );
    assert!(!rig.worktree().join("never").exists());
    assert!(results(&requests[3]).contains("SIGKILL"), "{}", results(&requests[3]));
    assert!(end.commands[0].benign && !end.commands[2].benign);
    assert_eq!(end.commands.last().unwrap().exit_code, None);
}

#[tokio::test]
async fn commands_commit_where_git_knows_nobody() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    git(&rig.launch.checkout, &["config", "--remove-section", "user"]);
    let command = "echo x > x.txt && git add x.txt && git commit -q -m x && git log -1 --format=%an";
    rig.model.will([say("").call("t1", "Bash", json!({"command": command})), say("Done.")]);
    let running = rig.start().await;
    rig.end(running).await;
    assert!(results(&rig.model.requests()[1]).contains("swarm"), "{}", results(&rig.model.requests()[1]));
    assert_eq!(rig.on_branch("x.txt"), "x");
}

#[tokio::test]
async fn a_death_after_any_record_runs_nothing_twice() {
    for kind in ["run_started", "user", "request_started", "intent", "tool_finished", "assistant", "snapshot"]
    {
        let mut rig = Rig::new().await;
        rig.launch.rules.push(allow_bash());
        let command = json!({"command": "echo once >> count.txt"});
        rig.model.will([say("").call("t1", "Bash", command), say("Done."), say("Done."), say("Done.")]);
        let mut running = rig.start().await;
        rig.until(&mut running, kind).await;
        running.child.kill().await.unwrap();
        drop(running);
        rig.launch.restarts = 1;
        rig.launch.notes = vec!["Your process died.".to_owned()];
        let running = rig.start().await;
        let end = rig.end(running).await;
        assert_eq!((end.exit_reason, end.result.as_str()), (ExitReason::Completed, "Done."), "{kind}");
        let count = std::fs::read_to_string(rig.worktree().join("count.txt")).unwrap_or_default();
        assert!(count.lines().count() <= 1, "{kind}: {count}");
        if ["tool_finished", "assistant", "snapshot"].contains(&kind) {
            assert_eq!(count, "once\n", "{kind}");
        }
        // Every call in what the model was last told has exactly one result (I1).
        let request = rig.model.requests().pop().unwrap().to_string();
        let of = |what: &str| request.matches(what).count();
        assert_eq!(of("\"type\":\"tool_use\""), of("\"type\":\"tool_result\""), "{kind}: {request}");
        assert_eq!(of("Try things."), 1, "{kind}");
    }
}

#[tokio::test]
async fn a_run_ends_without_its_server() {
    let mut rig = Rig::new().await;
    rig.model.will([say("Looking.").call("t1", "Read", json!({"file_path": "a.txt"}))]);
    let mut running = rig.start().await;
    rig.until(&mut running, "tool_finished").await;
    let mut child = running.hang_up();
    let transcript = rig.launch.transcript.clone();
    rig.forget_the_socket();
    rig.model.will([say("Done.")]);
    let status = tokio::time::timeout(std::time::Duration::from_secs(60), child.wait()).await;
    assert_eq!(status.unwrap().unwrap().code(), Some(0));
    assert!(std::fs::read_to_string(transcript).unwrap().contains("\"run_ended\""));
}
