//! Interpreters that are kept: state from call to call, in the sandbox, and none that is left.

use std::sync::Arc;

use query_engine::ports::{NoObserver, Tool, ToolContext};
use serde_json::{Value, json};
use swarm_protocol::ResultBlock;
use tokio_util::sync::CancellationToken;
use worker::{
    shell::processes::find_by_env_marker,
    tools::repl::{Repl, ReplTool},
};

use worker::sandbox::Tier;

use super::support::{Fixture, sandbox_is_there, strongest_tier, until};

struct Place {
    place: Fixture,
    run_id: String,
    repl: Arc<Repl>,
}

impl Place {
    fn new() -> Self {
        let mut run_id = String::new();
        let place = Fixture::with(|config| run_id = config.run_id.clone());
        let repl = Repl::new(place.shell.clone());
        Self { place, run_id, repl }
    }

    async fn call(&self, input: Value, cancel: &CancellationToken) -> (String, bool) {
        let context = ToolContext {
            tool_use_id: "toolu_1".parse().unwrap(),
            cancel: cancel.clone(),
            observer: Arc::new(NoObserver),
        };
        let output = ReplTool(self.repl.clone()).call(input, context).await;
        let ResultBlock::Text { text } = &output.content[0] else { panic!("a picture") };
        (text.clone(), output.is_error)
    }

    async fn run(&self, language: &str, code: &str) -> (String, bool) {
        self.call(json!({"language": language, "code": code}), &CancellationToken::new()).await
    }

    async fn assert_none_is_left(&self) {
        self.repl.end().await;
        until("no process of the run is left", || find_by_env_marker("SWARM_RUN", &self.run_id).is_empty())
            .await;
    }
}

fn fine(text: &str) -> (String, bool) {
    (text.to_owned(), false)
}

#[tokio::test]
async fn python_keeps_its_state_and_shows_the_last_value() {
    let place = Place::new();
    assert_eq!(place.run("python", "x = 20").await, fine("It printed nothing."));
    assert_eq!(place.run("python", "def f(n):\n    return n + x\n\nprint('a')\nf(22)").await, fine("a\n42"));
    let (said, is_error) = place.run("python", "1/0").await;
    assert!(is_error && said.ends_with("ZeroDivisionError: division by zero"), "{said}");
    let (said, is_error) = place
        .run("python", "import os, subprocess; subprocess.run(['sh', '-c', 'echo out; echo err >&2']); x")
        .await;
    assert_eq!((said.as_str(), is_error), ("out\nerr\n20", false));
    assert!(place.run("python", "input()").await.1, "nobody answers");
    let reset = json!({"language": "python", "code": "'x' in globals()", "reset": true});
    assert_eq!(place.call(reset, &CancellationToken::new()).await, fine("False"));
    let (said, _) = place.run("python", "print('y' * 1_000_000)").await;
    assert!(said.len() < 40_000 && said.contains("bytes left out"), "{}", said.len());
    place.assert_none_is_left().await;
    assert_eq!(place.run("python", "1").await, ("The run has ended.".to_owned(), true));
}

#[tokio::test]
async fn node_keeps_its_state_and_waits_for_promises() {
    let place = Place::new();
    assert!(!place.run("node", "let x = 20; const f = async (n) => n + x;").await.1);
    assert_eq!(place.run("node", "console.log('a'); f(22)").await, fine("a\n42"));
    let (said, is_error) = place.run("node", "null.x").await;
    assert!(is_error && said.contains("TypeError"), "{said}");
    assert_eq!(place.run("node", "require('path').basename('/a/b')").await, fine("'b'"));
    place.assert_none_is_left().await;
}

#[tokio::test]
async fn what_takes_too_long_is_cancelled_or_exits_loses_the_state_and_leaves_nothing() {
    let place = Place::new();
    place.run("python", "x = 1").await;
    let slow = json!({"language": "python", "code": "import time; print('begun', flush=True); time.sleep(1000)", "timeout": 700});
    let (said, is_error) = place.call(slow, &CancellationToken::new()).await;
    assert!(is_error && said.contains("begun") && said.contains("more than 0.7 s"), "{said}");
    assert!(place.run("python", "x").await.0.contains("NameError"), "it is a fresh one");

    let (said, is_error) = place.run("python", "import os; print('bye', flush=True); os._exit(7)").await;
    assert!(
        is_error && said.contains("bye") && said.contains("The interpreter ended (exit status: 7)"),
        "{said}"
    );

    let cancel = CancellationToken::new();
    let code = "import subprocess; subprocess.run(['sleep', '1080'])";
    let run = place.call(json!({"language": "python", "code": code}), &cancel);
    let runs = || {
        let all = find_by_env_marker("SWARM_RUN", &place.run_id);
        all.iter().any(|stat| worker::shell::processes::command_of(stat.pid) == "sleep 1080")
    };
    let stop = async {
        until("the code's child runs", runs).await;
        cancel.cancel();
    };
    assert!(tokio::join!(run, stop).0.0.contains("The call was cancelled"));
    until("its child is gone", || !runs()).await;
    place.assert_none_is_left().await;
}

#[tokio::test]
async fn code_is_confined_as_commands_are() {
    if !sandbox_is_there() {
        return;
    }
    // What is not shown is not there, and the loopback is its own.
    let (no_file, no_socket, no_write) = match strongest_tier() {
        Tier::Namespaces => ("FileNotFoundError", "ConnectionRefusedError", "Read-only file system"),
        Tier::Landlock | Tier::Unconfined => ("PermissionError", "PermissionError", "PermissionError"),
    };
    let place = Place::new();
    let outside = place.place.root().join("outside/file");
    let (said, is_error) =
        place.run("python", &format!("open({:?}, 'w')", outside.display().to_string())).await;
    assert!(is_error && said.contains(no_file), "{said}");
    assert!(!place.run("python", "open('inside', 'w').write('x')").await.1);
    assert!(place.place.tree().join("inside").exists());
    let (said, is_error) =
        place.run("python", "import socket; socket.create_connection(('127.0.0.1', 9))").await;
    assert!(is_error && said.contains(no_socket), "{said}");
    // Plan mode holds for what runs already, too.
    place.place.shell.set_reads_only(true);
    let (said, is_error) = place.run("python", "open('inside', 'w')").await;
    assert!(is_error && said.contains(no_write), "{said}");
    place.assert_none_is_left().await;
}
