//! Completions, trust, review commands, tmux: what people use around the work.

use std::{process::Command, time::Instant};

use integration_tests::{
    Reply, eventually,
    pty::Pty,
    wait::{LATER, SOON},
};
use serde_json::json;

use super::{Shell, assert_error, short};
use crate::rig::{COORDINATE, agent, prompt};

/// What a shell's completion asks: the words so far, the last of them unfinished.
fn complete(shell: &Shell, words: &[&str]) -> std::process::Output {
    let mut command = shell.home.command(shell.repo.path(), &[]);
    command.arg("--").arg("swarm").args(words);
    command
        .env("COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "false");
    command.output().expect("swarm can be started")
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_without_a_server_are_fast_and_silent_and_start_nothing() {
    let shell = Shell::new();
    let mut fastest = std::time::Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let output = complete(&shell, &["attach", ""]);
        fastest = fastest.min(begun.elapsed());
        assert!(output.status.success());
        assert_eq!(
            (output.stderr.len(), String::from_utf8_lossy(&output.stdout).contains("agent-")),
            (0, false)
        );
    }
    // The best of five: a busy machine is not what is measured.
    assert!(fastest.as_millis() < 150, "{fastest:?}");
    shell.assert_untouched().await;
    assert!(!shell.home.path().exists());

    shell.one_worker(None);
    shell.done().await;
    let id = short(&shell.workers().await[0]);
    // A hundred milliseconds are its limit; then it is silent. On a busy machine ask again.
    eventually(SOON, "the worker's id", async || {
        let output = complete(&shell, &["show", ""]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.lines().any(|line| line.starts_with(&id)) { Ok(()) } else { Err(text) }
    })
    .await;
    let other = integration_tests::TestRepo::new();
    let elsewhere = Shell {
        home: integration_tests::SwarmHome::without_model(),
        repo: other,
        model: integration_tests::ModelServer::start(),
    };
    assert!(!String::from_utf8_lossy(&complete(&elsewhere, &["show", ""]).stdout).contains(&id));
    for name in ["bash", "zsh", "fish"] {
        let script = shell.run(&["completions", name]).await.expect_code(0);
        assert!(script.stdout.contains("COMPLETE"), "{}", script.stdout);
    }
    assert_error(shell.run(&["completions", "cmd.exe"]).await, 2, "usage", &["bash", "zsh", "fish"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn merge_discard_restore_and_gc_say_what_they_did_and_the_way_back() {
    let shell = Shell::new();
    shell.spawns(&["alpha", "beta"]);
    for name in ["alpha", "beta"] {
        let path = format!("{name}.txt");
        shell.model.agent(
            &prompt(name),
            [Reply::call("Write", json!({"file_path": path, "content": "x\n"})), Reply::say("Written.")],
        );
    }
    shell.run(&["run", COORDINATE]).await.expect_code(0);
    let base = shell.repo.head();
    let merged = shell.run(&["merge", "alpha"]).await.expect_code(0);
    let head = shell.repo.head();
    assert!(
        merged.stdout.contains(&format!("into main: {}..{}", &base[..7], &head[..7])),
        "{}",
        merged.stdout
    );
    assert!(merged.stdout.contains("1 file +1 -0"), "{}", merged.stdout);
    shell.run(&["merge", "alpha"]).await.expect_code(0);

    shell.repo.write("beta.txt", "the user's own\n");
    let dirty = shell.run(&["merge", "beta"]).await;
    assert_error(dirty, 1, "target_dirty", &["main was not moved", "beta.txt", "--into"]);
    std::fs::remove_file(shell.repo.path().join("beta.txt")).expect("it is there");

    let kept = shell.run(&["gc"]).await.expect_code(0);
    assert!(kept.stdout.contains("kept") && kept.stdout.contains("swarm merge"), "{}", kept.stdout);
    let discarded = shell.run(&["discard", "beta"]).await.expect_code(0);
    assert!(discarded.stdout.contains("swarm restore"), "{}", discarded.stdout);
    assert_eq!(shell.home.worktrees().len(), 0);
    assert_error(shell.run(&["diff", "beta"]).await, 1, "discarded", &["swarm restore"]);
    shell.run(&["restore", "beta"]).await.expect_code(0);
    shell.run(&["diff", "beta"]).await.expect_code(0);
    assert_error(shell.run(&["merge", "beta", "--check"]).await, 2, "not_available", &["check"]);
    shell.run(&["merge", "beta"]).await.expect_code(0);
    assert!(shell.repo.exists("beta.txt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_said_with_its_lines_and_moves_nothing() {
    let shell = Shell::new();
    shell.repo.write("shared.txt", "1\n2\n3\n4\n5\n").commit("shared");
    shell.spawns(&["alpha", "beta"]);
    for name in ["alpha", "beta"] {
        shell.model.agent(
            &prompt(name),
            [
                Reply::call("Read", json!({"file_path": "shared.txt"})),
                Reply::call(
                    "Edit",
                    json!({"file_path": "shared.txt", "old_string": "3", "new_string": name}),
                ),
                Reply::say("Changed the third line."),
            ],
        );
    }
    shell.run(&["run", COORDINATE]).await.expect_code(0);
    shell.run(&["merge", "alpha"]).await.expect_code(0);
    let head = shell.repo.head();
    let conflict = shell.run(&["merge", "beta"]).await.expect_code(1);
    let said = format!("{}{}", conflict.stdout, conflict.stderr);
    for part in ["conflict", "shared.txt", "3", "stays at", "swarm send"] {
        assert!(said.contains(part), "`{part}` is not said:\n{said}");
    }
    assert_eq!((shell.repo.head(), shell.repo.status()), (head, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_is_asked_with_no_as_the_answer() {
    let shell = Shell::new();
    shell.repo.write("swarm.toml", "setup = [\"make deps\"]\n").commit("settings");
    assert_error_contains(&shell, &["trust"], 2, "--yes").await;
    let command = shell.home.command(shell.repo.path(), &["trust"]);
    let mut terminal = Pty::start(&command, 24, 80);
    terminal.shows("make deps").await;
    terminal.shows("[y/N]").await;
    terminal.send("\r");
    assert_eq!(terminal.finish().await, Some(1));
    let mut terminal = Pty::start(&command, 24, 80);
    terminal.shows("[y/N]").await;
    terminal.send("y\r");
    assert_eq!(terminal.finish().await, Some(0));
    let again = shell.run(&["trust"]).await.expect_code(0);
    assert!(again.stdout.contains("is trusted"), "{}", again.stdout);
    // Changed content asks again and shows the difference.
    shell.repo.write("swarm.toml", "setup = [\"make everything\"]\n").commit("more");
    let changed = shell.run(&["trust"]).await.expect_code(2);
    for line in ["- ", "make deps", "+ ", "make everything"] {
        assert!(changed.stdout.contains(line), "{}", changed.stdout);
    }
}

async fn assert_error_contains(shell: &Shell, arguments: &[&str], code: i32, part: &str) {
    let finished = shell.run(arguments).await.expect_code(code);
    assert!(finished.stderr.contains(part), "{}", finished.stderr);
}

/// tmux with the server of a home.
struct Tmux<'a> {
    shell: &'a Shell,
    socket: String,
}

impl Tmux<'_> {
    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-L").arg(&self.socket).args(arguments).env_remove("TMUX");
        command.env("TMUX_TMPDIR", self.shell.home.user_home());
        let output = command.output().expect("tmux can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tmux_window_shows_the_worker_live_and_takes_messages() {
    let mut shell = Shell::new();
    // Its sockets go with the home.
    let sockets = shell.home.user_home();
    shell.home.set("TMUX_TMPDIR", sockets.clone());
    let mut input = agent("alpha");
    input["isolation"] = "tmux".into();
    shell.model.agent(COORDINATE, [Reply::call("Agent", input)]);
    shell.model.rule(integration_tests::when().agent(COORDINATE), "All is done.");
    shell.model.agent(
        &prompt("alpha"),
        [
            Reply::new()
                .gate("window")
                .text("I look around first.")
                .gate("looking")
                .tool("Glob", json!({"pattern": "*"})),
            Reply::say("never said").hold("told"),
            Reply::say("I heard you."),
        ],
    );
    let running = shell.start(&["run", COORDINATE]);
    shell.model.gate("window").reached().await;
    let socket = eventually(LATER, "a tmux server", async || {
        let uid = nix::unistd::getuid();
        let directory =
            std::fs::read_dir(sockets.join(format!("tmux-{uid}"))).map_err(|error| error.to_string())?;
        let mut names = directory.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name.starts_with("swarm-")).ok_or_else(|| "no socket".to_owned())
    })
    .await;
    let tmux = Tmux { shell: &shell, socket };
    let screen = || tmux.run(&["capture-pane", "-p", "-t", "swarm:"]);
    let shows = async |words: &str| {
        eventually(LATER, "words in the window", async || {
            let screen = screen();
            if screen.contains(words) { Ok(()) } else { Err(screen) }
        })
        .await;
    };
    // Words are live: who looks from now on sees those that come from now on.
    shows("a line you type is a message").await;
    shell.model.gate("window").open();
    // The last word waits for what follows it.
    shows("I look around").await;
    assert!(tmux.run(&["list-windows", "-t", "swarm", "-F", "#{window_name}"]).contains("alpha"));
    tmux.run(&["send-keys", "-t", "swarm:", "-l", "mind the gap"]);
    tmux.run(&["send-keys", "-t", "swarm:", "Enter"]);
    eventually(LATER, "a message for the worker", async || {
        let unread = shell.workers().await[0]["unread"].clone();
        if unread == 1 { Ok(()) } else { Err(format!("unread: {unread}; the window shows:\n{}", screen())) }
    })
    .await;
    shell.model.gate("looking").open();
    shell.model.gate("told").open();
    running.finish().await;
    let heard = shell.model.requests_of(&prompt("alpha"));
    assert!(heard.iter().any(|request| request.any_user_text_contains("mind the gap")));
    // The windows end with the server.
    shell.run(&["serve", "--stop", "--workers"]).await.expect_code(0);
    shell.home.assert_no_processes().await;
}
