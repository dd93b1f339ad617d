//! What a run must not see or show: files that a rule hides, the server's own directory, keys.

use serde_json::json;
use swarm_protocol::{ExitReason, permission::RuleBehavior};

use super::{
    model::say,
    promises::{allow_bash, results},
    rig::{MODEL_KEY, Rig},
};

#[tokio::test]
async fn a_deny_rule_hides_files_from_searches() {
    let mut rig = Rig::new().await;
    let mut rule = allow_bash();
    rule.behavior = RuleBehavior::Deny;
    rule.text = "Read(Secrets/**)".to_owned();
    rig.launch.rules.push(rule);
    let secrets = rig.worktree().join("Secrets");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::write(secrets.join("key.txt"), "zebra\n").unwrap();
    std::fs::write(rig.worktree().join("b.txt"), "zebra\n").unwrap();
    std::os::unix::fs::symlink(".", rig.worktree().join("x")).unwrap();
    rig.model.will([
        say("").call("t1", "Grep", json!({"pattern": "zebra"})).call(
            "t2",
            "Glob",
            json!({"pattern": "*.txt"}),
        ),
        say("").call("t3", "Grep", json!({"pattern": "zebra", "path": "x"})).call(
            "t4",
            "Grep",
            json!({"pattern": "zebra", "path": "x/Secrets"}),
        ),
        say("Done."),
    ]);
    let running = rig.start().await;
    rig.end(running).await;
    let requests = rig.model.requests();
    for request in &requests[1..3] {
        let results = results(request);
        assert!(results.contains("b.txt") && !results.contains("key.txt"), "{results}");
    }
}

#[tokio::test]
async fn the_servers_directory_is_closed_but_for_what_is_the_workers() {
    if std::env::var_os("SWARM_TEST_NO_SANDBOX").is_some() {
        return;
    }
    // What is not shown is not there; what Landlock refuses is.
    let absent = |stolen: &str| stolen.matches("No such file").count();
    let denied = |stolen: &str| stolen.matches("ermission denied").count();
    let stolen = steal_and_work(1).await;
    assert_eq!((absent(&stolen), denied(&stolen)), (STEALS + 1, 0), "{stolen}");
    assert!(!stolen.contains("journal.sqlite\n") && !stolen.contains("share\n"), "{stolen}");
    let stolen = steal_and_work(2).await;
    assert_eq!((absent(&stolen), denied(&stolen)), (0, STEALS + 3), "{stolen}");
}

/// Files of the server that a command tries to read.
const STEALS: usize = 4;

/// A run with nothing stronger than `tier`, in which one command steals and one works; answers with what the first
/// one printed.
async fn steal_and_work(tier: u8) -> String {
    let mut rig = Rig::new().await;
    rig.launch.limits.sandbox.strongest_tier = tier;
    rig.launch.rules.push(allow_bash());
    let home = tempfile::tempdir().unwrap();
    rig.launch.home = home.path().canonicalize().unwrap();
    let root = rig.root();
    assert!(rig.worktree().starts_with(&root) && rig.launch.server_file.starts_with(&root));
    let put = |path: std::path::PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let secrets: [&str; STEALS] = ["token", "journal.sqlite", "worktrees/other/file", "config.toml"];
    for name in secrets {
        put(root.join(name), "zebra");
    }
    let tool = root.join("bin/tool");
    put(tool.clone(), "#!/bin/sh\necho tool runs\n");
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    put(rig.launch.home.join(".local/share/keyrings/login"), "zebra");
    put(rig.launch.home.join(".local/lib/x"), "library");
    std::fs::create_dir(rig.launch.home.join(".local/bin")).unwrap();
    let usual = std::env::var("PATH").unwrap();
    let path = format!("{}/bin:{}/.local/bin:{usual}", root.display(), rig.launch.home.display());
    rig.launch.environment.insert("PATH".to_owned(), path);
    let steal = secrets.map(|name| format!("cat {}/{name}", root.display())).join("; ");
    let steal =
        format!("{steal}; ls {} ~/.local; cat ~/.local/share/keyrings/login; echo tried", root.display());
    let work = "tool && cat a.txt ~/.local/lib/x && echo mine > own.txt && cat own.txt && echo x > $TMPDIR/x && git log --oneline";
    rig.model.will([
        say("").call("t1", "Bash", json!({"command": steal})),
        say("").call("t2", "Bash", json!({"command": work})),
        say("Done."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    let requests = rig.model.requests();
    let stolen = results(&requests[1]);
    assert!(!stolen.contains("zebra") && stolen.contains("tried"), "{stolen}");
    assert_eq!(end.commands[1].exit_code, Some(0), "{}", results(&requests[2]));
    assert!(results(&requests[2]).contains("tool runs"));
    assert_eq!(rig.on_branch("own.txt"), "mine");
    stolen
}

#[tokio::test]
async fn keys_in_results_reach_neither_model_nor_transcript_nor_server() {
    let mut rig = Rig::new().await;
    rig.launch.rules.push(allow_bash());
    // Put together in parts, so that no result holds it because the call did.
    let token = format!("ghp_{}", "aB3dE5gH7jK9".repeat(3));
    std::fs::write(rig.worktree().join("env.txt"), format!("TOKEN={token}\nMODEL={MODEL_KEY}\nPORT=80\n"))
        .unwrap();
    rig.model.will([
        say("").call(
            "t1",
            "Bash",
            json!({"command": "cat env.txt; echo 9fceb02d0ae598e95dc970b74767f19372d61af8"}),
        ),
        say("").call("t2", "Read", json!({"file_path": "env.txt"})),
        say("").call("t3", "Grep", json!({"pattern": "TOKEN", "output_mode": "content"})),
        say("").call(
            "t4",
            "Write",
            json!({"file_path": "env.txt", "content": "TOKEN=[masked: github token]\n"}),
        ),
        say("").call(
            "t5",
            "Edit",
            json!({"file_path": "env.txt", "old_string": "PORT=80", "new_string": "PORT=81"}),
        ),
        say("Done."),
    ]);
    let running = rig.start().await;
    let end = rig.end(running).await;
    assert_eq!(end.exit_reason, ExitReason::Completed);
    let requests = rig.model.requests();
    let seen: Vec<String> = requests[1..].iter().map(results).collect();
    for seen in &seen[..3] {
        assert!(seen.contains("TOKEN=[masked: github token]"), "{seen}");
    }
    assert!(seen[0].contains("MODEL=[masked: key]") && seen[0].contains("9fceb02d0ae5"), "{}", seen[0]);
    assert!(seen[3].contains("nothing was written"), "{}", seen[3]);
    let transcript = std::fs::read_to_string(&rig.launch.transcript).unwrap();
    let asked = serde_json::to_string(&requests).unwrap();
    for (place, text) in [("the model", &asked), ("the transcript", &transcript), ("the server", &rig.said)] {
        assert!(!text.contains(&token) && !text.contains(MODEL_KEY), "{place}: {text}");
    }
    // The file itself is whole.
    let file = std::fs::read_to_string(rig.worktree().join("env.txt")).unwrap();
    assert_eq!(file, format!("TOKEN={token}\nMODEL={MODEL_KEY}\nPORT=81\n"));
}
