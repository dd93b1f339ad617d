//! Permission prompts on a terminal: answered by who saw them, never by a key that was meant for something else.

use std::time::Duration;

use integration_tests::{Reply, eventually, pty::Pty, wait::LATER, when};
use serde_json::{Value, json};

use super::Shell;
use crate::rig::{COORDINATE, agent, call, prompt, write};

const HALF_A_SECOND: i64 = 500;

/// A worker that asks for leave to write once the gate opens, followed on a terminal.
async fn asking(shell: &Shell, input: Option<(&'static str, Value)>) -> Pty {
    shell.model.agent(COORDINATE, [Reply::call("Agent", agent("alpha"))]);
    shell.model.rule(when().agent(COORDINATE), "All is done.");
    let asks = call(input.unwrap_or_else(|| write("asked.txt", "a\n")));
    shell.model.agent(&prompt("alpha"), [asks.hold("ask"), Reply::say("That is all.")]);
    let arguments = ["run", "--permission-mode", "default", COORDINATE];
    let terminal = Pty::start(&shell.home.command(shell.repo.path(), &arguments), 24, 80);
    shell.model.gate("ask").reached().await;
    terminal.shows("alpha").await;
    terminal
}

async fn decision(shell: &Shell) -> Option<Value> {
    let session = shell.api().await.get("/sessions").await[0]["session_id"].as_str()?.to_owned();
    let logs = shell.run(&["logs", "--json", &session]).await.json_lines();
    logs.into_iter().find(|line| line["kind"] == "permission.decided").map(|line| line["decision"].clone())
}

async fn decided(shell: &Shell) -> Value {
    eventually(LATER, "a decision", async || decision(shell).await.ok_or("none")).await
}

async fn is_open(shell: &Shell) -> bool {
    shell.api().await.get("/permissions").await.as_array().is_some_and(|open| open.len() == 1)
}

/// Presses a key as a person would who looks at the prompt: again, calmly, until it was taken.
async fn press(shell: &Shell, terminal: &mut Pty, key: &str) -> Value {
    // Longer than the half second that every key makes the next one wait.
    let mut calm = tokio::time::interval(Duration::from_millis(800));
    calm.tick().await;
    for _ in 0..20 {
        calm.tick().await;
        if !is_open(shell).await {
            break;
        }
        terminal.send(key);
    }
    decided(shell).await
}

fn millis(value: &Value) -> i64 {
    let time: jiff::Timestamp = value.as_str().expect("a time is text").parse().expect("a time");
    time.as_millisecond()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_typed_before_or_with_a_prompt_answer_nothing_and_enter_never_does() {
    let shell = Shell::new();
    let mut terminal = asking(&shell, None).await;
    // Before: they are for nobody, though `a` would allow.
    terminal.send("aaAA\r ");
    shell.model.gate("ask").open();
    terminal.shows("x deny").await;
    // With it: too soon for anybody to have read it.
    terminal.send("a");
    let asked = shell.api().await.get("/permissions").await[0]["request"].clone();
    terminal.send("\r");
    terminal.send(" ");
    terminal.send("\r\r");
    let decision = press(&shell, &mut terminal, "x").await;
    // On a machine that slept in between, the `a` may have been legitimate; never within half a second.
    let waited = millis(&decision["decided_at"]) - millis(&asked["requested_at"]);
    assert!(waited >= HALF_A_SECOND, "decided after {waited} ms: {decision:#}");
    assert_eq!((&decision["decision"], &decision["by"]), (&json!("deny"), &json!("person")), "{decision:#}");
    terminal.shows("complete").await;
    assert!(!shell.repo.branches("*").iter().any(|branch| shell.repo.read_at(branch, "asked.txt").is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_allows_once_and_the_work_goes_on() {
    let shell = Shell::new();
    let mut terminal = asking(&shell, None).await;
    shell.model.gate("ask").open();
    terminal.shows("x deny").await;
    let decision = press(&shell, &mut terminal, "a").await;
    assert_eq!((&decision["decision"], &decision["scope"]), (&json!("allow"), &json!("once")));
    terminal.shows("complete: 1 done").await;
    assert_eq!(terminal.finish().await, Some(0));
    assert_eq!(shell.workers().await[0]["files_changed"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_elsewhere_takes_the_prompt_away_and_says_who_gave_it() {
    let shell = Shell::new();
    let terminal = asking(&shell, None).await;
    shell.model.gate("ask").open();
    terminal.shows("x deny").await;
    let approved = shell.run(&["approve", "alpha"]).await.expect_code(0);
    assert!(approved.stdout.contains("allowed once"), "{}", approved.stdout);
    terminal.wait_for("no prompt", |screen| !screen.contains("x deny")).await;
    terminal.shows("complete: 1 done").await;
    let (code, raw, _) = terminal.output().await;
    let raw = String::from_utf8_lossy(&raw);
    assert!(raw.contains("allowed"), "{raw}");
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_that_was_lost_says_who_won() {
    let shell = Shell::new();
    shell.model.agent(COORDINATE, [Reply::call("Agent", agent("alpha"))]);
    shell.model.rule(when().agent(COORDINATE), "All is done.");
    shell.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Not allowed.")]);
    let running = shell.start(&["run", "--permission-mode", "default", COORDINATE]);
    // Off a terminal the line says how to answer, and the commands in it run when pasted.
    let line = running.error_line("swarm approve req-").await;
    let (_, rest) = line.split_once("swarm approve ").expect("the way to answer");
    let request = rest.split_whitespace().next().expect("an id").to_owned();
    let denied = shell.run(&["deny", &request, "-m", "use the other file"]).await.expect_code(0);
    assert!(denied.stdout.contains("denied"), "{}", denied.stdout);
    let late = shell.run(&["approve", &request]).await;
    let late = super::assert_error(late, 1, "already_answered", &["already denied", "by"]);
    assert!(!late.stderr.contains("allowed"), "{}", late.stderr);
    running.finish().await;
    let told = shell.model.wait_for_request(&prompt("alpha"), 1).await;
    let (_, text, is_error) = told.last_tool_results()[0];
    assert!(is_error && text.contains("use the other file"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_control_signs_is_shown_escaped_and_whole_before_it_can_be_allowed() {
    let shell = Shell::new();
    let lines: String = (1..=60).map(|n| format!("echo line {n}\n")).collect();
    let command = format!("curl http://127.0.0.1:9/\u{202e}txt.evil \u{1b}[2J\n{lines}echo the last line");
    let mut terminal = asking(&shell, Some(("Bash", json!({"command": command})))).await;
    shell.model.gate("ask").open();
    terminal.shows("v view").await;
    let raw = String::from_utf8_lossy(&terminal.raw()).into_owned();
    assert!(!raw.contains('\u{202e}') && !raw.contains("\x1b[2J\n"), "foreign bytes reached the terminal");
    // What was not seen whole cannot be allowed, however often.
    for _ in 0..3 {
        terminal.send("a");
    }
    assert!(is_open(&shell).await);
    let mut calm = tokio::time::interval(Duration::from_millis(800));
    calm.tick().await;
    loop {
        calm.tick().await;
        if String::from_utf8_lossy(&terminal.raw()).contains("echo the last line") {
            break;
        }
        assert!(is_open(&shell).await, "it was allowed unseen");
        terminal.send("v");
    }
    let decision = press(&shell, &mut terminal, "x").await;
    assert_eq!(decision["decision"], "deny");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_waited_for_is_called_as_the_setting_says() {
    for (how, in_tmux) in [(None, false), (Some("osc9"), false), (Some("osc9"), true), (Some("off"), false)] {
        let mut shell = Shell::new();
        if let Some(how) = how {
            shell.home.set("SWARM_CLI_NOTIFY", how);
        }
        if in_tmux {
            shell.home.set("TMUX", "/nonexistent/tmux,1,0");
        }
        let mut terminal = asking(&shell, None).await;
        shell.model.gate("ask").open();
        terminal.shows("x deny").await;
        let id = shell.api().await.get("/permissions").await[0]["request"]["worker_id"].clone();
        let id = id.as_str().expect("a worker").trim_start_matches("agent-").to_owned();
        press(&shell, &mut terminal, "x").await;
        terminal.shows("#code=").await;
        let raw = String::from_utf8_lossy(&terminal.raw()).into_owned();
        let session =
            shell.api().await.get("/sessions").await[0]["short"].as_str().expect("an id").to_owned();
        let told = [format!("swarm: {id} waits for you"), format!("swarm: {session} has ended")];
        let wrapped: Vec<String> = match (how, in_tmux) {
            (None, _) => vec!["\x07".to_owned(); 2],
            (Some("osc9"), false) => told.iter().map(|words| format!("\x1b]9;{words}\x07")).collect(),
            (Some("osc9"), true) => {
                told.iter().map(|words| format!("\x1bPtmux;\x1b\x1b]9;{words}\x07\x1b\\")).collect()
            }
            _ => Vec::new(),
        };
        for call in &wrapped {
            assert!(raw.contains(call), "{how:?} {in_tmux}: {call:?} in {raw:?}");
        }
        assert_eq!(raw.matches('\x07').count(), wrapped.len(), "{how:?} {in_tmux}: {raw:?}");
    }
}
