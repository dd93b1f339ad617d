//! Language servers: what they know reaches the model, what they do wrong does not reach the agent, and none is left.

use std::{path::Path, sync::Arc};

use query_engine::ports::{NoObserver, Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};
use swarm_protocol::{ResultBlock, launch::LanguageServer};
use tokio_util::sync::CancellationToken;
use worker::{
    shell::processes::find_by_env_marker,
    tools::{
        Files, editing,
        lsp::{Languages, LanguagesConfig, Lsp, WithDiagnostics},
        read_only,
    },
};

use super::support::{Fixture, sandbox_is_there, until};

const SERVER: &str = include_str!("language_server.py");

struct Toy {
    place: Fixture,
    run_id: String,
    files: Arc<Files>,
    languages: Arc<Languages>,
}

impl Toy {
    fn new(fault: &str) -> Self {
        Self::with_server(|script| vec!["python3".to_owned(), script.display().to_string(), fault.to_owned()])
    }

    fn with_server(command: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let mut run_id = String::new();
        let place = Fixture::with(|config| run_id = config.run_id.clone());
        let script = place.tree().join("server.py");
        std::fs::write(&script, SERVER).unwrap();
        let own = vec![LanguageServer { extensions: vec!["toy".to_owned()], command: command(&script) }];
        Self::over(place, run_id, own)
    }

    fn over(place: Fixture, run_id: String, own: Vec<LanguageServer>) -> Self {
        let visible = Arc::new(|path: &Path| !path.ends_with("secret.toy"));
        let files = Arc::new(Files::new(place.tree(), place.root(), visible));
        let config = LanguagesConfig {
            own,
            root: place.tree(),
            scratch: place.root().join("temp"),
            path: std::env::var_os("PATH"),
            is_confined: sandbox_is_there(),
        };
        let languages = Arc::new(Languages::new(place.shell.clone(), config));
        Self { place, run_id, files, languages }
    }

    fn put(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.place.tree().join(name), text).unwrap();
        self
    }

    async fn ask(&self, operation: &str, file: &str, at: Option<(u32, u32)>) -> ToolOutput {
        let mut input = json!({"operation": operation, "file_path": file});
        if let Some((line, character)) = at {
            input["line"] = line.into();
            input["character"] = character.into();
        }
        self.call(input, &CancellationToken::new()).await
    }

    async fn call(&self, input: Value, cancel: &CancellationToken) -> ToolOutput {
        let tool = Lsp::new(self.files.clone(), self.languages.clone());
        tool.call(input, context(cancel)).await
    }

    /// The programs of this run that are servers, or were started by one.
    fn n_programs(&self, name: &str) -> usize {
        let all = find_by_env_marker("SWARM_RUN", &self.run_id);
        all.iter().filter(|stat| worker::shell::processes::command_of(stat.pid).contains(name)).count()
    }

    async fn assert_none_is_left(&self) {
        self.languages.end().await;
        until("no process of the run is left", || find_by_env_marker("SWARM_RUN", &self.run_id).is_empty())
            .await;
    }
}

fn context(cancel: &CancellationToken) -> ToolContext {
    ToolContext {
        tool_use_id: "toolu_1".parse().unwrap(),
        cancel: cancel.clone(),
        observer: Arc::new(NoObserver),
    }
}

fn said(output: &ToolOutput) -> String {
    let text = |block: &ResultBlock| match block {
        ResultBlock::Text { text } => text.clone(),
        other => panic!("no text: {other:?}"),
    };
    output.content.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn says(output: &ToolOutput, is_error: bool, words: &str) {
    assert!(said(output).contains(words), "{words:?} is not in {:?}", said(output));
    assert_eq!(output.is_error, is_error, "{}", said(output));
}

#[tokio::test]
async fn answers_name_file_line_and_column_from_one_and_leave_out_what_is_hidden() {
    let toy = Toy::new("");
    toy.put("a.toy", "def greet\n\u{1f600} = greet(1)\n").put("b.toy", "  greet\n");
    toy.put("secret.toy", "greet def hush\n").put("c.toy", "hush\n");
    let found = toy.ask("definition", "a.toy", Some((2, 5))).await;
    assert_eq!(said(&found), "1 definition:\na.toy:1:5: def greet\n");
    let found = toy.ask("references", "b.toy", Some((1, 3))).await;
    assert_eq!(
        said(&found),
        "3 references:\na.toy:1:5: def greet\na.toy:2:5: \u{1f600} = greet(1)\nb.toy:1:3: greet\n"
    );
    says(&toy.ask("hover", "a.toy", Some((2, 5))).await, false, "`greet` is a name");
    says(&toy.ask("documentSymbol", "a.toy", None).await, false, "a.toy:1:5: function greet");
    // Its definition stands in a file that may not be seen, and so does what is said about it.
    says(&toy.ask("definition", "c.toy", Some((1, 1))).await, false, "knows nothing about this place");
    says(&toy.ask("hover", "c.toy", Some((1, 1))).await, false, "knows nothing about this place");
    // The same where it cannot be told where that is.
    let lost = Toy::new("lost");
    lost.put("c.toy", "hush\n").put("secret.toy", "def hush\n");
    let hover = lost.ask("hover", "c.toy", Some((1, 1))).await;
    says(&hover, true, "the index is lost, so it is not known where this comes from");
    says(&toy.ask("documentSymbol", "secret.toy", None).await, true, "secret.toy does not exist");
    says(&toy.ask("definition", "a.toy", Some((9, 1))).await, true, "has 2 lines; line 9 is none of them");
    says(&toy.ask("definition", "a.toy", None).await, true, "give line and character");
    says(&toy.ask("definition", "a.txt", Some((1, 1))).await, true, "a.txt does not exist");
    toy.put("a.txt", "x");
    says(&toy.ask("definition", "a.txt", Some((1, 1))).await, true, "No language server is known");
    says(&toy.ask("rename", "a.toy", None).await, true, "does not fit its schema");
    assert_eq!(toy.n_programs("server.py"), 1, "one server for all of them");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn problems_are_those_of_the_file_as_it_is_now() {
    let toy = Toy::new("");
    toy.put("a.toy", "fine\n");
    says(&toy.ask("diagnostics", "a.toy", None).await, false, "No problems are known");
    toy.put("a.toy", "fine\n  BUG one\n");
    let found = toy.ask("diagnostics", "a.toy", None).await;
    assert_eq!(said(&found), "a.toy:2:3: error[B1] toy: a bug: one\n    BUG one\n");
    // Nothing changed: the server has nothing to say, and need not.
    assert_eq!(said(&toy.ask("diagnostics", "a.toy", None).await), said(&found));
    // Another file that was shown, changed behind the server's back.
    toy.put("b.toy", "greet\n");
    toy.ask("diagnostics", "b.toy", None).await;
    toy.put("b.toy", "other\nplace greet\n").put("a.toy", "def greet\n");
    let found = toy.ask("references", "a.toy", Some((1, 5))).await;
    assert_eq!(said(&found), "2 references:\na.toy:1:5: def greet\nb.toy:2:7: place greet\n");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn an_edit_tells_the_problems_it_made_and_no_others() {
    let toy = Toy::new("");
    toy.put("a.toy", "BUG old\nfine\n");
    let tools: Vec<Arc<dyn Tool>> = editing(&toy.files)
        .into_iter()
        .map(|tool| -> Arc<dyn Tool> {
            Arc::new(WithDiagnostics::new(tool, toy.files.clone(), toy.languages.clone()))
        })
        .chain(read_only(&toy.files))
        .collect();
    let call = async |name: &str, input: Value| {
        let tool = tools.iter().find(|tool| tool.name() == name).unwrap();
        said(&tool.call(input, context(&CancellationToken::new())).await)
    };
    let edit = |old: &str, new: &str| json!({"file_path": "a.toy", "old_string": old, "new_string": new});
    call("Read", json!({"file_path": "a.toy"})).await;
    let before = call("Edit", edit("fine", "fine indeed")).await;
    assert!(!before.contains("New problems"), "no server runs: {before}");
    assert_eq!(toy.n_programs("server.py"), 0, "an edit starts none");
    toy.ask("diagnostics", "a.toy", None).await;
    let bad = call("Edit", edit("fine indeed", "\nBUG new")).await;
    assert!(
        bad.ends_with("New problems, says python3:\na.toy:3:1: error[B1] toy: a bug: new\n    BUG new\n"),
        "{bad}"
    );
    let good = call("Edit", edit("BUG new", "fine")).await;
    assert!(!good.contains("problems"), "{good}");
    let again = call("Write", json!({"file_path": "a.toy", "content": "BUG old\nBUG third\n"})).await;
    assert!(again.contains("a bug: third") && !again.contains("bug: old"), "{again}");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_three_times_and_no_more() {
    let toy = Toy::new("dies");
    toy.put("a.toy", "def greet\n");
    for _ in 0..4 {
        let died = toy.ask("definition", "a.toy", Some((1, 5))).await;
        says(&died, true, "it ended: it closed its output. Call again to start it anew");
    }
    says(&toy.ask("definition", "a.toy", Some((1, 5))).await, true, "ended 4 times and is not started again");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn servers_that_do_not_start_say_why() {
    for (fault, words) in [
        ("banner", "did not start: it ended: what it sent is no message of the protocol"),
        ("refuses", "It said: toy: no such component"),
    ] {
        let toy = Toy::new(fault);
        toy.put("a.toy", "def greet\n");
        says(&toy.ask("documentSymbol", "a.toy", None).await, true, words);
        toy.assert_none_is_left().await;
    }
    let toy = Toy::with_server(|_| vec!["no-such-language-server".to_owned()]);
    toy.put("a.toy", "x\n");
    says(&toy.ask("documentSymbol", "a.toy", None).await, true, "no-such-language-server is not on PATH");
}

#[tokio::test]
async fn a_server_that_is_behind_is_asked_again() {
    let toy = Toy::new("behind");
    toy.put("a.toy", "def greet\n");
    says(&toy.ask("references", "a.toy", Some((1, 5))).await, false, "1 reference:\na.toy:1:5: def greet");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn a_question_is_cancelled_at_once_and_what_a_server_started_ends_with_it() {
    let toy = Toy::new("silent");
    toy.put("a.toy", "def greet\n");
    let cancel = CancellationToken::new();
    let input = json!({"operation": "definition", "file_path": "a.toy", "line": 1, "character": 5});
    let asked = toy.call(input, &cancel);
    let stop = async {
        until("the server runs", || toy.n_programs("server.py") > 0).await;
        cancel.cancel();
    };
    says(&tokio::join!(asked, stop).0, true, "was cancelled");
    toy.assert_none_is_left().await;

    let toy = Toy::new("child");
    toy.put("a.toy", "def greet\n");
    toy.ask("documentSymbol", "a.toy", None).await;
    until("the server's own child runs", || toy.n_programs("sleep 1070") > 0).await;
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn a_server_writes_nothing_in_the_worktree() {
    if !sandbox_is_there() {
        return;
    }
    let toy = Toy::with_server(|script| {
        let run = format!("touch made-by-server; exec python3 {}", script.display());
        vec!["/bin/bash".to_owned(), "-c".to_owned(), run]
    });
    toy.put("a.toy", "def greet\n");
    says(&toy.ask("documentSymbol", "a.toy", None).await, false, "function greet");
    assert!(!toy.place.tree().join("made-by-server").exists());
    toy.assert_none_is_left().await;
}

/// Whether a real server is there; a test that is skipped says so.
#[expect(clippy::print_stderr, reason = "a skip must be seen")]
fn is_installed(program: &str) -> bool {
    let asked = std::process::Command::new(program).arg("--version").output();
    let is_installed = asked.is_ok_and(|output| output.status.success());
    if !is_installed {
        eprintln!("SKIPPED: {program} is not installed on this machine");
    }
    is_installed
}

/// With the built-in table alone.
fn real() -> Toy {
    let mut run_id = String::new();
    let place = Fixture::with(|config| run_id = config.run_id.clone());
    Toy::over(place, run_id, Vec::new())
}

#[tokio::test]
async fn rust_analyzer_finds_a_definition_in_another_file() {
    if !is_installed("rust-analyzer") {
        return;
    }
    let toy = real();
    std::fs::create_dir(toy.place.tree().join("src")).unwrap();
    toy.put("Cargo.toml", "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    toy.put("Cargo.lock", "version = 4\n\n[[package]]\nname = \"tiny\"\nversion = \"0.1.0\"\n");
    toy.put("src/lib.rs", "mod far;\n\npub fn near() -> u8 {\n    far::away()\n}\n");
    toy.put("src/far.rs", "/// Far.\npub fn away() -> u8 {\n    7\n}\n");
    let found = toy.ask("definition", "src/lib.rs", Some((4, 10))).await;
    says(&found, false, "src/far.rs:2:8: pub fn away() -> u8 {");
    says(&toy.ask("hover", "src/lib.rs", Some((4, 10))).await, false, "Far.");
    toy.assert_none_is_left().await;
}

#[tokio::test]
async fn clangd_finds_definitions_references_and_problems() {
    if !is_installed("clangd") {
        return;
    }
    let toy = real();
    toy.put("far.h", "/// Far.\ninline int away() { return 7; }\n");
    toy.put("near.cpp", "#include \"far.h\"\nint near() { return away() + away(); }\n");
    let found = toy.ask("definition", "near.cpp", Some((2, 21))).await;
    assert_eq!(said(&found), "1 definition:\nfar.h:2:12: inline int away() { return 7; }\n");
    let found = toy.ask("references", "near.cpp", Some((2, 21))).await;
    says(&found, false, "near.cpp:2:21: int near() { return away() + away(); }");
    says(&toy.ask("hover", "near.cpp", Some((2, 21))).await, false, "Far.");
    says(&toy.ask("documentSymbol", "near.cpp", None).await, false, "near.cpp:2:5: function near");
    says(&toy.ask("diagnostics", "near.cpp", None).await, false, "No problems are known");
    toy.put("near.cpp", "#include \"far.h\"\nint near() { return missing(); }\n");
    let found = toy.ask("diagnostics", "near.cpp", None).await;
    says(
        &found,
        false,
        "near.cpp:2:21: error[undeclared_var_use] clang: Use of undeclared identifier 'missing'",
    );
    toy.assert_none_is_left().await;
}
