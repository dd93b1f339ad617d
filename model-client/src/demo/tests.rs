//! The script, driven to its end against a small stand-in for the server and the tools, on a real copy of the
//! sample.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use expect_test::expect;
use futures::StreamExt as _;
use query_engine::ports::{Breakpoint, Prefix, ToolSpec};
use serde_json::{Value, json};
use swarm_protocol::{Message, ResultBlock, ToolUseId, launch::ApiKind, record::StopReason};

use super::*;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/sample");
const WORKER_TOOLS: &[&str] = &["Bash", "Edit", "Glob", "Grep", "Read", "TodoWrite", "Write"];
const COORDINATOR_TOOLS: &[&str] = &["Agent", "SendMessage", "TaskStop"];

/// An agent's conversation.
struct Agent {
    tools: Vec<ToolSpec>,
    messages: Vec<Message>,
}

impl Agent {
    fn new(tools: &[&str]) -> Self {
        let spec = |name: &&str| ToolSpec {
            name: (*name).to_owned(),
            description: String::new(),
            input_schema: json!({"type": "object"}),
            offer: query_engine::ports::Offer::Always,
        };
        Self { tools: tools.iter().map(spec).collect(), messages: Vec::new() }
    }

    /// Hears a message, answers; calls are answered by `tools` until the turn ends. Gives the last words.
    fn turn(&mut self, heard: Message, tools: &mut dyn FnMut(&str, &Value) -> (String, bool)) -> String {
        self.messages.push(heard);
        for _ in 0..30 {
            let view = RequestView { system: &[], tools: &self.tools, messages: &self.messages };
            let reply = demo_reply(&view);
            let message = Message::assistant(reply.blocks);
            assert!(!message.content.is_empty());
            let calls: Vec<(ToolUseId, String, Value)> = message
                .tool_uses()
                .map(|(id, name, input)| (id.clone(), name.to_owned(), input.clone()))
                .collect();
            let earlier = self.messages.iter().flat_map(Message::tool_uses).map(|(id, _, _)| id.clone());
            assert!(!earlier.into_iter().any(|id| calls.iter().any(|(new, _, _)| *new == id)), "an id twice");
            let text = message.text();
            self.messages.push(message);
            if calls.is_empty() {
                assert_eq!(reply.stop, StopReason::EndTurn);
                return text;
            }
            assert_eq!(reply.stop, StopReason::ToolUse);
            let results = calls.into_iter().map(|(id, name, input)| {
                let (text, is_error) = tools(&name, &input);
                Block::ToolResult { tool_use_id: id, content: vec![ResultBlock::text(text)], is_error }
            });
            let results = results.collect();
            self.messages.push(Message::user(results));
        }
        panic!("the script does not end");
    }

    fn calls(&self, tool: &str) -> Vec<Value> {
        let calls = self.messages.iter().flat_map(Message::tool_uses);
        calls.filter(|(_, name, _)| *name == tool).map(|(_, _, input)| input.clone()).collect()
    }
}

/// The tools of a worker in a directory, as far as the script needs them.
fn tools_in(directory: &Path) -> impl FnMut(&str, &Value) -> (String, bool) {
    move |name, input| {
        let path = directory.join(input["file_path"].as_str().unwrap_or_default());
        let text = |key: &str| input[key].as_str().unwrap();
        let answer = match name {
            "TodoWrite" => Ok("ok".to_owned()),
            "Glob" => Ok(glob(directory, text("pattern"))),
            "Read" => std::fs::read_to_string(&path).map_err(|error| error.to_string()),
            "Write" => {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, text("content"))
                    .map(|()| "written".to_owned())
                    .map_err(|e| e.to_string())
            }
            "Edit" => edit(&path, text("old_string"), text("new_string")),
            "Bash" => run(directory, text("command")),
            other => Err(format!("no tool {other}")),
        };
        match answer {
            Ok(text) => (text, false),
            Err(text) => (text, true),
        }
    }
}

fn glob(directory: &Path, pattern: &str) -> String {
    let (folder, ending) = pattern.rsplit_once('/').unwrap_or((".", pattern));
    let ending = ending.trim_start_matches('*');
    let entries = std::fs::read_dir(directory.join(folder)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let paths: Vec<String> =
        names.filter(|name| name.ends_with(ending)).map(|name| format!("{folder}/{name}")).collect();
    if paths.is_empty() { "No file matches.".to_owned() } else { paths.join("\n") }
}

fn edit(path: &Path, old: &str, new: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.matches(old).count() {
        1 => std::fs::write(path, text.replace(old, new))
            .map(|()| "edited".to_owned())
            .map_err(|e| e.to_string()),
        count => Err(format!("old_string stands {count} times in {}", path.display())),
    }
}

fn run(directory: &Path, command: &str) -> Result<String, String> {
    let mut shell = Command::new("sh");
    let output =
        shell.args(["-c", command]).current_dir(directory).env("PYTHONDONTWRITEBYTECODE", "1").output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn sample() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop");
    copy(Path::new(SAMPLE), &path);
    (directory, path)
}

fn notification(id: &str, status: &str, branch: &str) -> Block {
    Block::text(format!(
        "<task-notification>\n<task-id>{id}</task-id>\n<status>{status}</status>\n<summary>x</summary>\n\
         <result words-of=\"worker\">branch=\"no\" &lt;task-notification&gt;</result>\n\
         <outcome exit_reason=\"completed\" branch=\"{branch}\" commits=\"1\" doubts=\"\"/>\n</task-notification>"
    ))
}

/// The server's side of the coordinator's tools.
fn server(ids: &[&str]) -> impl FnMut(&str, &Value) -> (String, bool) {
    let mut ids = ids.iter().map(|id| (*id).to_owned()).collect::<VecDeque<_>>();
    move |name, _| match name {
        "Agent" => (json!({"task_id": ids.pop_front().unwrap(), "status": "running"}).to_string(), false),
        "SendMessage" => ("delivered".to_owned(), false),
        other => panic!("{other}"),
    }
}

#[test]
fn the_sample_is_refactored_and_every_step_passes_its_tests() {
    let (_directory, shop) = sample();
    assert!(run(&shop, "python3 -m unittest -q").is_ok(), "the sample's tests pass before");
    let mut coordinator = Agent::new(COORDINATOR_TOOLS);
    let mut server = server(&["agent-aaa", "agent-bbb", "agent-ccc"]);
    let first =
        Message::user(vec![Block::text("<env>cwd: /x</env>"), Block::text("Refactor the auth module")]);
    let waiting = coordinator.turn(first, &mut server);
    expect!["3 workers are at work; I wait for their notifications."].assert_eq(&waiting);
    assert!(coordinator.messages[1].text().starts_with("[scripted demo model]"));

    // One directory for all three shows that their edits do not touch one another.
    let mut workers: Vec<Agent> = Vec::new();
    let mut words = Vec::new();
    for input in coordinator.calls("Agent") {
        let mut worker = Agent::new(WORKER_TOOLS);
        words.push(worker.turn(Message::user_text(input["prompt"].as_str().unwrap()), &mut tools_in(&shop)));
        workers.push(worker);
    }
    expect![[r#"
        [scripted demo model] The token checks are in one helper, `_checked`, which `verify` and `refresh` share; signatures are compared in constant time.

        I ran `python3 -m unittest -q`: all tests pass.
        ---
        [scripted demo model] Passwords are stored as PBKDF2 hashes with a random salt and compared in constant time; a new test checks that equal passwords get different hashes.

        I ran `python3 -m unittest -q`: all tests pass.
        ---
        [scripted demo model] docs/auth.md says how to use shop/auth, README.md links it, and shop/auth/session.py has docstrings.

        I ran `python3 -m unittest -q`: all tests pass."#]].assert_eq(&words.join("\n---\n"));

    let said = coordinator.turn(
        Message::user(vec![notification("agent-bbb", "completed", "swarm/s/b"), Block::text("roster …")]),
        &mut server,
    );
    expect!["2 workers are at work; I wait for their notifications."].assert_eq(&said);
    let progress = notification("agent-aaa", "progress", "swarm/s/a");
    let said = coordinator.turn(
        Message::user(vec![progress, notification("agent-aaa", "completed", "swarm/s/a&amp;b")]),
        &mut server,
    );
    expect!["2 workers are at work; I wait for their notifications."].assert_eq(&said);
    let sent = &coordinator.calls("SendMessage")[0];
    assert_eq!(sent["to"], "agent-aaa");
    let said = workers[0].turn(Message::user_text(sent["message"].as_str().unwrap()), &mut tools_in(&shop));
    expect![[r#"
        [scripted demo model] tests/test_tokens.py now has a test that the empty token is refused.

        I ran `python3 -m unittest -q`: all tests pass."#]]
    .assert_eq(&said);

    coordinator.turn(Message::user(vec![notification("agent-ccc", "completed", "swarm/s/c")]), &mut server);
    let synthesis = coordinator
        .turn(Message::user(vec![notification("agent-aaa", "completed", "swarm/s/a")]), &mut server);
    expect![[r#"
        [scripted demo model] 3 of 3 workers completed.

        - Extract token checks: agent-aaa completed after 2 runs, branch `swarm/s/a`
        - Harden password hashing: agent-bbb completed, branch `swarm/s/b`
        - Document the auth API: agent-ccc completed, branch `swarm/s/c`

        The branches touch different files, so they can be merged one after another."#]]
    .assert_eq(&synthesis);
    let tests = run(&shop, "python3 -m unittest -q").unwrap();
    assert!(tests.contains("Ran 12 tests"), "{tests}");
}

#[test]
fn a_burst_of_ends_is_taken_in_one_turn_and_failures_are_told() {
    let mut coordinator = Agent::new(COORDINATOR_TOOLS);
    let mut refusing = {
        let mut server = server(&["agent-aaa", "agent-bbb", "agent-ccc"]);
        move |name: &str, input: &Value| match name {
            "SendMessage" => ("agent-aaa was stopped by a person".to_owned(), true),
            _ => server(name, input),
        }
    };
    coordinator.turn(Message::user_text("refactor auth module"), &mut refusing);
    let ends = vec![
        notification("agent-ccc", "failed", "swarm/s/c"),
        notification("agent-aaa", "completed", "swarm/s/a"),
        notification("agent-bbb", "aborted", "swarm/s/b"),
    ];
    let synthesis = coordinator.turn(Message::user(ends), &mut refusing);
    expect![[r#"
        [scripted demo model] 1 of 3 workers completed.

        - Extract token checks: agent-aaa completed, branch `swarm/s/a`
        - Harden password hashing: agent-bbb aborted, branch `swarm/s/b`
        - Document the auth API: agent-ccc failed, branch `swarm/s/c`

        A follow-up was not delivered: agent-aaa was stopped by a person"#]]
    .assert_eq(&synthesis);
}

#[test]
fn another_repository_gets_small_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut coordinator = Agent::new(COORDINATOR_TOOLS);
    let mut server = server(&["agent-aaa", "agent-bbb", "agent-ccc", "agent-ddd"]);
    coordinator.turn(Message::user_text("make it faster"), &mut server);
    let prompts = coordinator.calls("Agent");
    assert_eq!(prompts.len(), 3);
    for _ in 0..2 {
        let mut worker = Agent::new(WORKER_TOOLS);
        let prompt = Message::user_text(prompts[0]["prompt"].as_str().unwrap());
        worker.turn(prompt, &mut tools_in(directory.path()));
    }
    // A second time it takes another name, since the first file is there.
    let listing = glob(directory.path(), "swarm-demo/*.md");
    assert!(listing.contains("overview.md") && listing.contains("overview-2.md"), "{listing}");

    let said = coordinator.turn(Message::user_text("how is it going?"), &mut server);
    expect!["[scripted demo model] Noted. 3 workers are still at work; I go on when the next one ends."]
        .assert_eq(&said);
    let ends = ["agent-aaa", "agent-bbb", "agent-ccc"].map(|id| notification(id, "completed", "b"));
    let said = coordinator.turn(Message::user(ends.to_vec()), &mut server);
    assert!(said.starts_with("[scripted demo model] 3 of 3 workers completed."), "{said}");
    // A new request starts one more.
    coordinator.turn(Message::user_text("and now?"), &mut server);
    assert_eq!(coordinator.calls("Agent").len(), 4);
}

#[test]
fn a_part_of_the_sample_elsewhere_falls_back_to_a_small_file() {
    let directory = tempfile::tempdir().unwrap();
    for part in ["tokens", "docs"] {
        let mut worker = Agent::new(WORKER_TOOLS);
        let prompt = Message::user_text(format!("Do it.\n\nDemo step: {part}"));
        let said = worker.turn(prompt, &mut tools_in(directory.path()));
        assert_eq!(
            said,
            format!(
                "[scripted demo model] I added swarm-demo/{part}.md. Nothing else was changed, and no command was run."
            )
        );
    }
}

#[test]
fn a_worker_tells_what_went_wrong() {
    let (_directory, shop) = sample();
    let with = |failing: &'static str, text: &'static str| {
        let mut tools = tools_in(&shop);
        let mut worker = Agent::new(WORKER_TOOLS);
        worker.turn(Message::user_text("Demo step: tokens"), &mut |name: &str, input: &Value| {
            if name == failing { (text.to_owned(), true) } else { tools(name, input) }
        })
    };
    expect!["[scripted demo model] I stop here: Edit failed: Permission denied by a person."]
        .assert_eq(&with("Edit", "Permission denied by a person."));
    expect![[r#"
        [scripted demo model] The token checks are in one helper, `_checked`, which `verify` and `refresh` share; signatures are compared in constant time.

        `python3 -m unittest -q` did not succeed, so nothing is claimed: sh: python3: not found"#]].assert_eq(&with("Bash", "sh: python3: not found"));
}

#[test]
fn an_interrupted_step_is_done_again() {
    let (_directory, shop) = sample();
    let mut tools = tools_in(&shop);
    let mut n_reads = 0;
    let mut worker = Agent::new(WORKER_TOOLS);
    let said = worker.turn(Message::user_text("Demo step: passwords"), &mut |name: &str, input: &Value| {
        n_reads += usize::from(name == "Read");
        let interrupted = name == "Read" && n_reads <= 2;
        if interrupted { ("Interrupted: the process ended".to_owned(), true) } else { tools(name, input) }
    });
    assert!(said.ends_with("all tests pass."), "{said}");
}

#[test]
fn a_run_that_is_taken_up_again_reads_first_and_repeats_no_change() {
    let (_directory, shop) = sample();
    let mut tools = tools_in(&shop);
    let mut n_edits = 0;
    let mut worker = Agent::new(WORKER_TOOLS);
    let said = worker.turn(Message::user_text("Demo step: tokens"), &mut |name: &str, input: &Value| {
        n_edits += usize::from(name == "Edit");
        match (name, n_edits) {
            // The process dies after the change and before its record.
            ("Edit", 1) => {
                tools(name, input);
                ("interrupted; outcome unknown. Check what it did before you do it again.".to_owned(), true)
            }
            ("Edit", 2) => ("tokens.py has not been read yet. Read it before you edit it.".to_owned(), true),
            _ => tools(name, input),
        }
    });
    assert!(said.ends_with("all tests pass."), "{said}");
    let code = std::fs::read_to_string(shop.join("shop/auth/tokens.py")).unwrap();
    assert_eq!(code.matches("def _checked").count(), 1);
    assert!(code.contains("None if user is None else issue"), "{code}");
}

#[test]
fn helpers_and_readers_get_words() {
    let mut helper = Agent::new(&[]);
    let said = helper.turn(Message::user_text("Summarise."), &mut |_, _| unreachable!());
    assert!(said.starts_with("[scripted demo model] Summary"), "{said}");
    let (_directory, shop) = sample();
    let mut reader = Agent::new(&["Glob", "Grep", "Read"]);
    let said = reader.turn(Message::user_text("What is here?"), &mut tools_in(&shop));
    assert!(said.contains("Nothing was changed"), "{said}");
}

#[test]
fn the_same_script_over_json() {
    let tools = json!([{"name": "Agent"}, {"name": "SendMessage"}, {"name": "TaskStop"}]);
    let first = json!({"tools": tools, "messages": [{"role": "user", "content": "refactor auth"}]});
    let reply = demo_reply_json(&first);
    assert_eq!(reply["stop_reason"], "tool_use");
    let calls: Vec<&Value> =
        reply["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(calls.len(), 3);
    let results: Vec<Value> = calls
        .iter()
        .map(|call| {
            json!({
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": [{"type": "text", "text": "started agent-a1b"}],
            })
        })
        .collect();
    let mut second = first.clone();
    second["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": reply["content"]}),
        json!({"role": "user", "content": results}),
    ]);
    let reply = demo_reply_json(&second);
    assert_eq!(reply["stop_reason"], "end_turn");
    assert_eq!(reply["content"][0]["text"], "3 workers are at work; I wait for their notifications.");
    assert_eq!(demo_reply_json(&json!(null))["stop_reason"], "end_turn");
}

#[tokio::test(start_paused = true)]
async fn the_model_streams_the_script_and_costs_nothing() {
    let model = DemoModel::new(&crate::endpoint::testing::endpoint(ApiKind::Demo, "", ""));
    let agent = Agent::new(COORDINATOR_TOOLS);
    let request = ModelRequest {
        prefix: Arc::new(Prefix { system: vec![], tools: agent.tools }),
        messages: vec![Arc::new(Message::user_text("refactor auth"))],
        max_tokens: 1000,
        breakpoints: vec![Breakpoint::Prefix],
    };
    let started = tokio::time::Instant::now();
    let events: Vec<StreamEvent> =
        model.stream(&request).await.unwrap().map(|event| event.unwrap()).collect().await;
    let seconds = started.elapsed().as_secs_f64();
    assert!((0.2..5.0).contains(&seconds), "{seconds}");
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::Delta { delta: Delta::Text(text), .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let closed: Vec<Block> = events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::BlockClosed { block: ClosedBlock::Valid(block), .. } => Some(block.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        closed,
        demo_reply(&RequestView::new(&request.prefix, &[Message::user_text("refactor auth")])).blocks
    );
    assert_eq!(closed[0].as_text().unwrap(), text);
    assert_eq!(events.last(), Some(&StreamEvent::Stopped(StopReason::ToolUse)));
    assert_eq!(model.cost("demo", &Usage { input_tokens: 5, ..Usage::default() }), Cost::usd(0.0));
    assert_eq!(model.info().name, "test");
}

#[test]
fn an_agent_alone_goes_into_a_worktree_before_it_writes() {
    let mut agent = Agent::new(&[WORKER_TOOLS, &["EnterWorktree", "ExitWorktree"]].concat());
    let mut called = Vec::new();
    let words = agent.turn(Message::user(vec![Block::text("refactor auth module")]), &mut |tool, _| {
        called.push(tool.to_owned());
        ("done".to_owned(), false)
    });
    assert_eq!(called.iter().filter(|tool| *tool == "EnterWorktree").count(), 1);
    assert_eq!(called[0], "EnterWorktree");
    assert!(called.contains(&"Write".to_owned()), "{called:?}");
    assert!(!words.contains("I stop here"), "{words}");
}
