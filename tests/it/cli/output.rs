//! Streams, colours and pipes: nothing is lost off a terminal, nothing disturbs one, and the exit code is the
//! verdict's whoever reads (case 63).

use std::process::{Command, Stdio};

use integration_tests::{Reply, pty::Pty, when};
use serde_json::json;

use super::{Shell, short};
use crate::rig::{COORDINATE, agent, call, prompt, write};

fn has_sgr(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.split("\x1b[").skip(1).any(|rest| {
        let end = rest.find(|sign: char| sign.is_ascii_alphabetic());
        end.is_some_and(|end| rest.as_bytes()[end] == b'm')
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn off_a_terminal_there_is_no_control_byte_and_nothing_is_cut() {
    let shell = Shell::new();
    let name = "a worker whose name is long enough that every column of eighty would have to cut it off";
    let mut input = agent("alpha");
    input["name"] = name.into();
    shell.model.agent(COORDINATE, [Reply::new().text("On it.").tool("Agent", input)]);
    shell.model.rule(when().agent(COORDINATE), "All is done.");
    shell.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
    let run = shell.run(&["run", COORDINATE]).await.expect_code(0);
    let worker = shell.workers().await.remove(0);
    let id = short(&worker);
    let branch = worker["branch"].as_str().expect("a branch").to_owned();
    // Words and summary on stdout, the doing on stderr.
    for part in ["On it.", "All is done.", name, &branch, "complete: 1 done", &format!("swarm merge {id}")] {
        assert!(run.stdout.contains(part), "`{part}` is not said:\n{}", run.stdout);
    }
    assert!(run.stderr.contains(&format!("{id} started: {name}")), "{}", run.stderr);
    assert!(!run.stdout.contains("#code="), "a log keeps no code");
    assert!(!run.stderr.contains("#code="), "a log keeps no code");
    let mut finished = vec![run];
    for command in [
        &["ps", "-a"][..],
        &["show", &id],
        &["show", "-"],
        &["logs", "-"],
        &["explain", &id],
        &["diff", &id],
        &["diff", "--stat", &id],
        &["cost"],
        &["config"],
        &["doctor"],
        &["--help"],
        &["run", "--help"],
        &["show", "nobody"],
    ] {
        finished.push(shell.run(command).await);
    }
    for finished in &finished {
        for text in [&finished.stdout, &finished.stderr] {
            assert!(!text.contains(['\x1b', '\r', '\x07']), "a control byte in {text:?}");
        }
    }
    assert!(finished[1].stdout.contains(name), "{}", finished[1].stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn colour_is_decided_by_who_asks_for_it() {
    let mut shell = Shell::new();
    shell.one_worker(None);
    shell.done().await;
    let command = |shell: &Shell| shell.home.command(shell.repo.path(), &["ps", "-a"]);
    let on_terminal = async |shell: &Shell| {
        let terminal = Pty::start(&command(shell), 24, 80);
        terminal.shows("alpha").await;
        let (code, raw, _) = terminal.output().await;
        assert_eq!(code, Some(0));
        raw
    };
    assert!(has_sgr(&on_terminal(&shell).await));
    shell.home.set("NO_COLOR", "1");
    assert!(!has_sgr(&on_terminal(&shell).await));
    shell.home.set("CLICOLOR_FORCE", "1");
    assert!(!has_sgr(shell.run(&["ps", "-a"]).await.stdout.as_bytes()));
    shell.home.unset("NO_COLOR");
    assert!(has_sgr(shell.run(&["ps", "-a"]).await.stdout.as_bytes()));
    let never = shell.run(&["ps", "-a", "--color", "never"]).await;
    assert!(!has_sgr(never.stdout.as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_on_a_terminal_without_colour_has_no_sgr_and_leaves_the_screen_as_it_was() {
    let mut shell = Shell::new();
    shell.home.set("NO_COLOR", "1");
    shell.one_worker(Some("end"));
    let command = shell.home.command(shell.repo.path(), &["run", COORDINATE]);
    let terminal = Pty::start(&command, 24, 80);
    shell.model.gate("end").reached().await;
    terminal.shows("q leave").await;
    terminal.resize(24, 60);
    terminal.resize(24, 100);
    shell.model.gate("end").open();
    terminal.shows("complete: 1 done").await;
    terminal.shows("#code=").await;
    let (code, raw, contents) = terminal.output().await;
    assert_eq!(code, Some(0));
    assert!(!has_sgr(&raw), "{}", String::from_utf8_lossy(&raw));
    let text = String::from_utf8_lossy(&raw);
    // The cursor is shown again, lines wrap again, and nobody switched the screen.
    let last = |what: &str| text.rfind(what);
    assert!(last("\x1b[?25l").is_none() || last("\x1b[?25h") > last("\x1b[?25l"));
    assert!(last("\x1b[?7l").is_none() || last("\x1b[?7h") > last("\x1b[?7l"));
    assert!(!text.contains("\x1b[?1049"), "the alternate screen is for full screen alone");
    assert!(!contents.contains("q leave"), "the block is gone: {contents}");
}

/// The program with its output going into a shell's hands.
fn sh(shell: &Shell, script: &str, arguments: &[&str]) -> std::process::Output {
    let swarm = shell.home.command(shell.repo.path(), arguments);
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(swarm.get_program()).args(swarm.get_args());
    command.current_dir(shell.repo.path()).env_clear();
    command.envs(swarm.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).output().expect("bash can be started")
}

#[tokio::test(flavor = "multi_thread")]
async fn case_63_the_exit_code_is_the_verdict_s_even_if_nobody_can_read_the_report() {
    let mut shell = Shell::new();
    shell.home.set("LC_ALL", "C");
    shell.one_worker(None);
    let closed = sh(&shell, "\"$0\" \"$@\" >&-", &["run", COORDINATE]);
    assert_eq!(closed.status.code(), Some(0), "{}", String::from_utf8_lossy(&closed.stderr));
    // The report is in the store.
    let shown = shell.run(&["show", "-"]).await.expect_code(0);
    assert!(shown.stdout.contains("complete") && shown.stdout.contains("alpha"), "{}", shown.stdout);
    assert!(shown.stdout.is_ascii(), "{}", shown.stdout);

    shell.model.clear_rules();
    shell.model.rule(when(), Reply::error(400));
    for script in
        ["\"$0\" \"$@\" >&-", "\"$0\" \"$@\" >&- 2>&-", "\"$0\" \"$@\" | true; exit ${PIPESTATUS[0]}"]
    {
        let output = sh(&shell, script, &["run", COORDINATE]);
        assert_eq!(output.status.code(), Some(1), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_early_is_no_error() {
    let shell = Shell::new();
    shell.one_worker(None);
    shell.done().await;
    for arguments in [&["ps", "-a", "--json"][..], &["logs", "-"], &["logs", "--json", "-"], &["--help"]] {
        let script = "\"$0\" \"$@\" | head -1 >/dev/null; exit ${PIPESTATUS[0]}";
        let output = sh(&shell, script, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_off_a_terminal_is_a_patch_that_git_applies() {
    let shell = Shell::new();
    shell.spawns(&["alpha"]);
    shell.repo.write("old.txt", "one\ntwo\n").write("gone.txt", "gone\n").commit("more");
    shell.model.agent(&prompt("alpha"), [
        Reply::call("Bash", json!({"command": "printf 'two\\nthree' > old.txt && rm gone.txt && mkdir -p 'new dir' && printf 'caf\\303\\251\\n' > 'new dir/größe.txt' && printf '\\000\\001\\002' > raw.bin"})),
        Reply::say("Done."),
    ]);
    shell.run(&["run", "--permission-mode", "bypassPermissions", COORDINATE]).await;
    let worker = shell.worker("its end", |worker| worker["status"] == "completed").await;
    let branch = worker["branch"].as_str().expect("a branch").to_owned();
    let output = sh(&shell, "\"$0\" \"$@\" | git apply --index -", &["diff", &short(&worker)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = shell.repo.git(&["write-tree"]);
    assert_eq!(tree, shell.repo.git(&["rev-parse", &format!("{branch}^{{tree}}")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_worktrees_are_links_where_a_terminal_shows_them_and_nowhere_else() {
    let mut shell = Shell::new();
    shell.one_worker(None);
    shell.done().await;
    let worker = shell.workers().await.remove(0);
    let (id, session) = (short(&worker), worker["session_id"].as_str().expect("a session").to_owned());
    let worktree = worker["worktree"].as_str().expect("a worktree").to_owned();
    let on_terminal = async |shell: &Shell, arguments: &[&str]| {
        let terminal = Pty::start(&shell.home.command(shell.repo.path(), arguments), 24, 80);
        terminal.shows("alpha").await;
        let (code, raw, contents) = terminal.output().await;
        assert_eq!(code, Some(0));
        (String::from_utf8_lossy(&raw).into_owned(), contents)
    };

    // This terminal's variables name none that shows links.
    let (plain, contents_without) = on_terminal(&shell, &["ps", "-a"]).await;
    assert!(has_sgr(plain.as_bytes()) && !plain.contains("\x1b]"), "{plain:?}");

    shell.home.set("FORCE_HYPERLINK", "1");
    let (raw, contents) = on_terminal(&shell, &["ps", "-a"]).await;
    let base = shell.api().await.base().to_owned();
    for target in [format!("{base}/w/agent-{id}"), format!("{base}/s/{session}")] {
        assert_eq!(raw.matches(&format!("\x1b]8;;{target}\x1b\\")).count(), 1, "{target}: {raw:?}");
    }
    assert_eq!(raw.matches("\x1b]8;;\x1b\\").count(), 2, "each link ends: {raw:?}");
    // The age is what may have moved meanwhile.
    let columns = |contents: &str| {
        contents.lines().map(|line| line.chars().take(60).collect()).collect::<Vec<String>>()
    };
    assert_eq!(columns(&contents), columns(&contents_without), "a link takes no cells");
    let (raw, _) = on_terminal(&shell, &["--no-pager", "show", &id]).await;
    assert!(raw.contains(&format!("\x1b]8;;file://{worktree}\x1b\\")), "{raw:?}");

    // Where escape sequences are taken out, so are these, whatever is forced.
    let (colourless, _) = on_terminal(&shell, &["ps", "-a", "--color", "never"]).await;
    assert!(!colourless.contains('\x1b'), "{colourless:?}");
    let piped = shell.run(&["ps", "-a"]).await.stdout;
    assert!(!piped.contains('\x1b'), "{piped:?}");

    shell.home.set("FORCE_HYPERLINK", "0");
    shell.home.set("VTE_VERSION", "7600");
    assert!(!on_terminal(&shell, &["ps", "-a"]).await.0.contains("\x1b]"));
    shell.home.unset("FORCE_HYPERLINK");
    assert!(on_terminal(&shell, &["ps", "-a"]).await.0.contains("\x1b]8;;http://"));
    // That variable leaks into tmux, which has to name links itself: this one is gone.
    shell.home.set("TMUX", "/nonexistent/tmux,1,0");
    assert!(!on_terminal(&shell, &["ps", "-a"]).await.0.contains("\x1b]"));
}
