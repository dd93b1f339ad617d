//! A git in front of git: what is run, and what happens between two commands.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, bins};
use reqwest::StatusCode;
use serde_json::json;

use super::{one_writer, post};
use crate::rig::{Rig, agent, call, id_of, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn case_23_looking_at_the_dashboard_runs_no_git() {
    let (rig, log) = with_git_wrapped("echo \"$*\" >> \"$LOG\" 2>/dev/null").await;
    let names: Vec<String> = (0..4).map(|n| format!("w{n}")).collect();
    rig.coordinator(names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name))));
    for name in &names {
        rig.model.agent(&prompt(name), [call(write(&format!("{name}.txt"), "x\n")), Reply::say("Done.")]);
    }
    let task = rig.submit().await;
    rig.done(&task).await;
    assert_eq!(rig.home.worktrees().len(), 4);
    let lines = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    let before = lines();
    assert!(before > 0, "the wrapper is in use");
    for _ in 0..25 {
        for path in ["/overview", "/sessions", "/workers"] {
            rig.api().get(path).await;
        }
        rig.session(&task).await;
    }
    assert_eq!(lines(), before);
}

/// Between swarm's last look at the target and its move, a person commits there: by a git that does it first.
#[tokio::test(flavor = "multi_thread")]
async fn case_57_a_target_that_moves_at_the_last_moment_is_not_overwritten() {
    // `$LOG` says `branch commit` once it is to happen.
    let race = r#"case "$*" in *"update-ref -m swarm: merge"*)
        if [ -f "$LOG" ]; then read branch commit < "$LOG"; rm "$LOG"
            "$GIT" update-ref "refs/heads/$branch" "$commit"; fi;; esac"#;
    let (rig, order) = with_git_wrapped(race).await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    rig.repo.branch("other");
    // Once a branch that nobody has checked out, once the one under the person's feet.
    for target in ["other", "main"] {
        let before = rig.repo.git(&["rev-parse", target]);
        let tree = format!("{target}^{{tree}}");
        let by_person = rig.repo.git(&["commit-tree", &tree, "-p", target, "-m", "by a person"]);
        fs::write(&order, format!("{target} {by_person}\n")).expect("the home is ours");
        let (status, view) = post(&rig, &worker, "merge", json!({"into": target})).await;
        assert_eq!((status, &view["result"]), (StatusCode::OK, &json!("target_moved")), "{view:#}");
        assert_eq!((&view["expected"], &view["actual"]), (&json!(before), &json!(by_person)), "{view:#}");
        assert!(!order.exists(), "it happened");
        assert_eq!(rig.repo.git(&["rev-parse", target]), by_person, "the person's commit stands");
        assert_eq!((rig.repo.status(), rig.repo.exists("new.txt")), (String::new(), false));
        assert!(rig.events(&task, "review.merged").await.is_empty());
    }
    let tree = rig.repo.git(&["commit-tree", "main^{tree}", "-p", "main", "-m", "once more"]);
    fs::write(&order, format!("main {tree}\n")).expect("the home is ours");
    let said = rig.home.run(rig.repo.path(), &["merge", id_of(&worker)]).await.expect_code(1).stderr;
    assert!(said.contains("target_moved") && said.contains("somebody moved it meanwhile"), "{said}");
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], rig.repo.exists("new.txt")), (&json!("merged"), true), "{merged:#}");
    assert_eq!(rig.repo.git(&["log", "--format=%s", "main"]).matches("by a person").count(), 1);
}

/// A rig whose every git runs these lines first; they know the real git as `$GIT`, and a file as `$LOG`.
async fn with_git_wrapped(lines: &str) -> (Rig, PathBuf) {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    let bin = home.user_home().join("bin");
    fs::create_dir(&bin).expect("the home is ours");
    let (log, git) = (home.user_home().join("git.log"), which("git"));
    let wrapper = format!(
        "#!/bin/sh\nLOG='{}'\nGIT='{}'\n{lines}\nexec \"$GIT\" \"$@\"\n",
        log.display(),
        git.display()
    );
    fs::write(bin.join("git"), wrapper).expect("the home is ours");
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).expect("the home is ours");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [bin, bins::directory()].into_iter().chain(std::env::split_paths(&path));
    home.set("PATH", std::env::join_paths(paths).expect("no path holds a colon"));
    (Rig::made(model, home, TestRepo::new(), "").await, log)
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(program));
    found.find(|path| path.is_file()).expect("git is installed")
}
