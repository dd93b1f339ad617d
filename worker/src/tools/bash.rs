//! Bash, BashOutput, KillShell: commands in the shell of this run, and its background jobs.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_host::{
    Connector,
    secrets::{self, Masker},
};
use async_trait::async_trait;
use query_engine::ports::{Observer, Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{
    ToolUseId,
    frame::Live,
    record::{CommandRun, ToolEffect},
};
use tokio::sync::mpsc;

use super::{lenient_bool, lenient_number, parse};
use crate::{
    shell::{
        CommandExit, CommandOutcome, CommandRequest, DEFAULT_TIMEOUT, JobEnd, JobId, JobStatus, MAX_TIMEOUT,
        ProcessInfo, Progress, Shell, benign::benign_meaning,
    },
    tree::Tree,
};

/// Why a job's output is not whole.
const NOT_KEPT: &str = "there was too much of it, or the disk is full";

/// Characters of a command line in a record.
pub const MAX_COMMAND_CHARS: usize = 2_000;
/// Bytes of a live tail.
const MAX_TAIL_BYTES: usize = 4 * 1024;
/// Live tails are sent at most this often.
const TAIL_PAUSE: Duration = Duration::from_millis(250);

/// What the three tools share.
pub struct Commands {
    shell: Arc<Shell>,
    /// The worktree whose branch follows what commands commit.
    tree: Option<Arc<Tree>>,
    /// How far each job's output was given to the model.
    given: Mutex<HashMap<JobId, u64>>,
}

impl Commands {
    /// Over this shell; `tree` is none for an agent without a worktree of its own.
    pub fn new(shell: Arc<Shell>, tree: Option<Arc<Tree>>) -> Arc<Self> {
        Arc::new(Self { shell, tree, given: Mutex::default() })
    }

    /// The three tools.
    pub fn tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>> {
        vec![
            Arc::new(Bash(self.clone())),
            Arc::new(BashOutput(self.clone())),
            Arc::new(KillShell(self.clone())),
        ]
    }

    /// What a job printed since the model last looked.
    pub fn news_of(&self, id: JobId) -> Result<(String, JobStatus), String> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let since = given.entry(id).or_default();
        let output = self.shell.job_output(id, *since).map_err(|error| format!("{id}: {error}."))?;
        *since = output.next;
        let mut text = output.text;
        if output.remaining > 0 {
            let _ = write!(text, "\n[{} more bytes; call BashOutput again]", output.remaining);
        } else if output.not_kept > 0 {
            let _ = write!(text, "\n[{} more bytes were printed and not kept: {NOT_KEPT}]", output.not_kept);
        }
        Ok((text, output.status))
    }

    /// The end of what a job printed since the model last looked, of at most so many characters. What it leaves out can
    /// still be looked at.
    pub fn last_news_of(&self, id: JobId, most_chars: usize) -> Result<String, String> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let since = given.entry(id).or_default();
        // Characters have at most four bytes.
        let most_bytes = 4 * most_chars as u64;
        let output =
            self.shell.job_tail(id, *since, most_bytes).map_err(|error| format!("{id}: {error}."))?;
        let start =
            output.text.char_indices().rev().nth(most_chars.saturating_sub(1)).map_or(0, |(at, _)| at);
        let mut text = String::new();
        if start == 0 && output.left_out == 0 {
            *since = output.next;
        } else {
            text.push_str("[more stands before; BashOutput shows it]\n");
        }
        text.push_str(&output.text[start..]);
        if output.not_kept > 0 {
            let _ = write!(text, "\n[{} more bytes were printed and not kept: {NOT_KEPT}]", output.not_kept);
        }
        Ok(text)
    }

    async fn run(&self, input: BashInput, context: &ToolContext) -> ToolOutput {
        let command = input.command.clone();
        let request = input.request();
        let (sink, news) = mpsc::channel(1);
        let run = self.shell.run(request, &context.cancel, Some(sink));
        let outcome = with_tails(run, news, &context.tool_use_id, &*context.observer).await;
        let followed = match &self.tree {
            Some(tree) => tree.follow_head().await,
            None => None,
        };
        answer(&command, &outcome, followed)
    }

    async fn start(&self, input: BashInput) -> ToolOutput {
        let command = input.command.clone();
        match self.shell.spawn_background(input.request()).await {
            Ok(id) => ToolOutput::text(format!(
                "Started in the background as {id}. You are told when it ends; BashOutput shows what it prints, KillShell ends it."
            ))
            .with_effect(ToolEffect::Other { data: json!({"background": command, "job": id.to_string()}) }),
            Err(error) => {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
                ToolOutput::error(format!("The job was not started: {error}{source}."))
            }
        }
    }
}

#[derive(Deserialize)]
struct BashInput {
    command: String,
    #[serde(default, deserialize_with = "lenient_number")]
    timeout: Option<u64>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default, deserialize_with = "lenient_bool")]
    run_in_background: bool,
}

impl BashInput {
    fn request(self) -> CommandRequest {
        let mut request = CommandRequest::new(self.command);
        request.timeout = self.timeout.map_or(DEFAULT_TIMEOUT, Duration::from_millis).min(MAX_TIMEOUT);
        request.description = self.description.unwrap_or_default();
        request
    }
}

struct Bash(Arc<Commands>);

#[async_trait]
impl Tool for Bash {
    fn name(&self) -> &str {
        "Bash"
    }

    fn description(&self) -> String {
        "Runs a bash command in a sandbox and gives its output. Working directory, exported variables and functions \
         last from one call to the next. stdin is closed and there is no terminal; nothing that a command starts \
         outlives it, unless `run_in_background` is set. Time limit 120 s, at most 600 s. Chain commands with `&&`; \
         read, search and edit files with the tools made for it."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout": {"type": "integer", "description": "Milliseconds, default 120000, at most 600000"},
                "description": {"type": "string", "description": "What it does, in five to ten words"},
                "run_in_background": {"type": "boolean", "description": "Return at once; for servers and long jobs"}
            },
            "required": ["command"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        // The shell cuts output itself and keeps the whole; notes come on top.
        Some(40_000)
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        let command = input.get("command").and_then(Value::as_str);
        command.map(|command| Subject::Command(command.to_owned())).into_iter().collect()
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: BashInput = match parse("Bash", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        if input.command.trim().is_empty() {
            return ToolOutput::error("The command is empty.");
        }
        if input.run_in_background { self.0.start(input).await } else { self.0.run(input, &context).await }
    }
}

/// Waits for the command and passes on its last lines meanwhile.
async fn with_tails(
    run: impl Future<Output = CommandOutcome>,
    mut news: mpsc::Receiver<Progress>,
    id: &ToolUseId,
    observer: &dyn Observer,
) -> CommandOutcome {
    let mut run = std::pin::pin!(run);
    loop {
        // A tail that loses against the end is superseded by the result.
        tokio::select! {
            outcome = &mut run => return outcome,
            Some(progress) = news.recv() => {
                // Keys that are known by their value are found where it leaves.
                let tail = secrets::tail(&Masker::default(), &progress.text, MAX_TAIL_BYTES);
                observer.live(Live::ToolProgress { tool_use_id: id.clone(), tail });
                tokio::select! {
                    outcome = &mut run => return outcome,
                    () = tokio::time::sleep(TAIL_PAUSE) => {}
                }
            }
        }
    }
}

fn answer(command: &str, outcome: &CommandOutcome, followed: Option<String>) -> ToolOutput {
    let run = command_run(command, outcome);
    let meaning = match outcome.exit {
        CommandExit::Code(code) if code != 0 => meaning_of(command, code),
        _ => None,
    };
    let failed = run.failed();
    let mut text = String::new();
    match (&outcome.exit, meaning) {
        (CommandExit::Code(0), _) => {}
        (CommandExit::Code(code), Some(meaning)) => {
            let _ = writeln!(text, "[exit code {code}: {meaning}]");
        }
        (CommandExit::TimedOut, _) => {
            let _ = writeln!(
                text,
                "[timed out after {} s and was stopped; a longer `timeout` or `run_in_background` may help]",
                outcome.duration.as_secs()
            );
        }
        (exit, _) => {
            let _ = writeln!(text, "[{exit}]");
        }
    }
    text.push_str(outcome.output.text.trim_end_matches('\n'));
    let mut note = |note: String| {
        let _ = write!(text, "\n[{note}]");
    };
    if let Some(cwd) = &outcome.cwd_note {
        note(format!("{cwd}: {}", outcome.cwd.display()));
    }
    if !outcome.killed.is_empty() {
        let names: Vec<&str> = outcome.killed.iter().map(|process| process.command.as_str()).collect();
        note(format!("still running at the end, and ended: {}", names.join(", ")));
    }
    if !outcome.survivors.is_empty() {
        let names: Vec<&str> = outcome.survivors.iter().map(|process| process.command.as_str()).collect();
        note(format!("still running, since not even SIGKILL ended it: {}", names.join(", ")));
    }
    if let Some(lock) = &outcome.stale_lock {
        note(format!("the stopped command left {}; remove it if no git runs", lock.display()));
    }
    if let Some(problem) = followed {
        note(problem);
    }
    let mut answer = ToolOutput::text(text).with_effect(ToolEffect::Command(run));
    answer.is_error = failed;
    // A command that was cancelled was so by a sibling, an interrupt or the end, which cancel the others.
    answer.cancels_siblings = failed && outcome.exit != CommandExit::Cancelled;
    answer
}

/// A command and its end, for records.
pub fn command_run(command: &str, outcome: &CommandOutcome) -> CommandRun {
    run_of(command, &outcome.exit, outcome.duration, &outcome.killed)
}

/// A background command and its end, for the end record. `by` says who stopped it, if it was stopped.
pub fn job_run(command: &str, end: &JobEnd, by: &str) -> CommandRun {
    let mut run = run_of(command, &end.exit, end.duration, &end.killed);
    if end.exit == CommandExit::Cancelled {
        run.stopped = true;
        run.ended_by = Some(by.to_owned());
    }
    run
}

fn run_of(command: &str, exit: &CommandExit, duration: Duration, killed: &[ProcessInfo]) -> CommandRun {
    let (exit_code, ended_by) = match exit {
        CommandExit::Code(code) => (Some(*code), None),
        CommandExit::Signal { name, number } => (None, Some(format!("signal {number} ({name})"))),
        CommandExit::TimedOut => (None, Some(format!("timed out after {}s", duration.as_secs()))),
        CommandExit::Cancelled => (None, Some("cancelled".to_owned())),
        CommandExit::NotStarted { message } => (None, Some(format!("not started: {message}"))),
    };
    CommandRun {
        command: command.chars().take(MAX_COMMAND_CHARS).collect(),
        exit_code,
        ended_by,
        benign: exit_code.is_some_and(|code| code != 0 && meaning_of(command, code).is_some()),
        children_killed: killed.iter().map(|process| process.command.clone()).collect(),
        stopped: false,
    }
}

/// Builtins after which the last command of a line need not be the one whose code the line has; and what is not known.
const STEERS: [&str; 11] =
    ["set", "shopt", "exit", "return", "exec", "trap", "source", ".", "eval", "enable", "?"];

/// What a code means that is no failure: that of the last program of the line, where it surely is that one's. Behind `&&`
/// and `||` it may be that of what stands before.
fn meaning_of(command: &str, code: i32) -> Option<&'static str> {
    let agent_host::Parsed::Simple(commands) = agent_host::parse(command) else { return None };
    let at = commands.iter().rposition(|command| !command.argv.is_empty())?;
    let last = &commands[at];
    let first = commands[..=at].iter().rfind(|command| command.after != Connector::Pipe)?;
    if !matches!(first.after, Connector::Start | Connector::Next) || last.negated {
        return None;
    }
    // What changes how a list ends: its code may be that of any command of it.
    let steers = |command: &agent_host::PlainCommand| {
        let program = command.argv.first().map(|word| word.text().unwrap_or("?"));
        program.is_some_and(|program| STEERS.contains(&program))
    };
    if commands[..=at].iter().any(steers) {
        return None;
    }
    let argv: Vec<&str> = last.argv.iter().map(|word| word.text().unwrap_or("?")).collect();
    benign_meaning(&argv, code)
}

/// How a job ended, in words.
pub fn job_end(end: &JobEnd) -> String {
    format!("{} after {} s", end.exit, end.duration.as_secs())
}

#[derive(Deserialize)]
struct JobInput {
    #[serde(alias = "shell_id", alias = "job_id", alias = "task_id")]
    bash_id: String,
}

impl JobInput {
    fn id(&self) -> Result<JobId, String> {
        self.bash_id.parse().map_err(|_| format!("There is no job `{}`.", self.bash_id))
    }
}

struct BashOutput(Arc<Commands>);

#[async_trait]
impl Tool for BashOutput {
    fn name(&self) -> &str {
        "BashOutput"
    }

    fn description(&self) -> String {
        "Shows what a background job printed since the last look, and whether it runs.".to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({"type": "object", "properties": {"bash_id": {"type": "string", "description": "`job-..`"}}, "required": ["bash_id"]})
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let id = match parse::<JobInput>("BashOutput", input).and_then(|input| input.id()) {
            Ok(id) => id,
            Err(problem) => return ToolOutput::error(problem),
        };
        match self.0.news_of(id) {
            Ok((text, status)) => {
                let state = match status {
                    JobStatus::Running => format!("{id} is running"),
                    JobStatus::Ended(end) => format!("{id} ended: {}", job_end(&end)),
                };
                let text = if text.is_empty() { "(nothing new)".to_owned() } else { text };
                ToolOutput::text(format!("[{state}]\n{text}"))
            }
            Err(problem) => ToolOutput::error(problem),
        }
    }
}

struct KillShell(Arc<Commands>);

#[async_trait]
impl Tool for KillShell {
    fn name(&self) -> &str {
        "KillShell"
    }

    fn description(&self) -> String {
        "Ends a background job and all it started.".to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({"type": "object", "properties": {"bash_id": {"type": "string", "description": "`job-..`"}}, "required": ["bash_id"]})
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn is_own_state(&self) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let id = match parse::<JobInput>("KillShell", input).and_then(|input| input.id()) {
            Ok(id) => id,
            Err(problem) => return ToolOutput::error(problem),
        };
        match self.0.shell.kill_job(id).await {
            Ok(end) => ToolOutput::text(format!("{id} ended: {}.", job_end(&end))),
            Err(error) => ToolOutput::error(format!("{id}: {error}.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_an_answer_only_where_it_is_the_last_programs() {
        for (line, is_benign) in [
            ("grep x file", true),
            ("cd src; grep x file", true),
            ("cat file | grep x", true),
            ("npm test && diff a b", false),
            ("cd nope && grep -rn x .", false),
            ("make || grep x log", false),
            ("npm test && cat log | grep x", false),
            ("! grep x file", false),
            ("set -e\nmake\ngrep -q x log", false),
            ("set -euo pipefail; cargo build; grep -c x log", false),
            ("set -o pipefail; npm test 2>&1 | grep -v x", false),
            ("exit 1; grep x file", false),
            (". ./env; grep x file", false),
            ("$RUN; grep x file", false),
            ("make; grep x log", true),
        ] {
            assert_eq!(meaning_of(line, 1).is_some(), is_benign, "{line}");
        }
    }
}
