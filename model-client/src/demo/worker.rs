//! The demo's worker: it finds its part in the last prompt that names one, counts the turns it has taken since,
//! and does the next step. A tool's error is looked at, not overlooked.

use serde_json::json;
use swarm_protocol::{Block, Message, Role};

use super::{
    sample::{FOLLOW_UP_MARK, Plan, STEP_MARK, plan},
    script::{Call, DemoReply, LABEL, RequestView, call, excerpt, results, say},
};

/// The part a prompt named, and what came since.
struct Work<'view> {
    name: String,
    since: &'view [Message],
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// With its process or by a person; nobody knows what it did.
    Interrupted,
    /// A run that was taken up again has not read the file yet.
    Unread,
    Failed,
}

impl Fate {
    fn of(text: &str, is_error: bool) -> Self {
        let text = text.to_lowercase();
        match is_error {
            false => Self::Done,
            true if text.contains("interrupt") => Self::Interrupted,
            true if text.contains("read it") => Self::Unread,
            true => Self::Failed,
        }
    }
}

/// Of an agent that begins where it may only look.
const ENTER: &str = "EnterWorktree";

fn is_entry(message: &Message) -> bool {
    message.tool_uses().any(|(_, name, _)| name == ENTER)
}

/// How often an unread file is read before the script gives up.
const MAX_REPAIRS: usize = 3;

/// The worker's next answer.
pub(super) fn reply(view: &RequestView<'_>) -> DemoReply {
    if view.has(ENTER) && !view.messages.iter().any(is_entry) {
        let enter = Call { tool: ENTER, input: json!({"name": "demo"}) };
        return call(view, "I go into a worktree of my own before I change anything.", vec![enter]);
    }
    let Work { name, since } = work(view);
    if let Some(trouble) = trouble(since) {
        return say(format!("{LABEL} I stop here: {trouble}"));
    }
    if let Some(path) = since.last().and_then(|last| unread(since, last)) {
        let read = Call { tool: "Read", input: json!({"file_path": path}) };
        return call(view, "I have to read the file again first.", vec![read]);
    }
    let turns = turns(since);
    if !view.has("Write") {
        return look_around(view, since, turns);
    }
    // Without the file it is about, the plan is for another repository.
    match plan(&name).filter(|plan| turns == 0 || seen(since).contains(plan.needs)) {
        Some(plan) => carry_out(view, &plan, since, turns),
        None => write_a_file(view, &name, since, turns),
    }
}

fn work<'view>(view: &RequestView<'view>) -> Work<'view> {
    let named = view.messages.iter().enumerate().rev().find_map(|(index, message)| {
        let name = (message.role == Role::User).then(|| named(&message.text())).flatten()?;
        Some((index, name))
    });
    match named {
        Some((index, name)) => Work { name, since: &view.messages[index + 1..] },
        // No part named (another prompt, or a summary in its place): the work began with the last message of
        // plain words.
        None => {
            let is_prompt = |message: &Message| {
                message.role == Role::User
                    && !message.content.iter().any(|block| matches!(block, Block::ToolResult { .. }))
            };
            let index = view.messages.iter().rposition(is_prompt).unwrap_or(0);
            let since = view.messages.get(index + 1..).unwrap_or_default();
            Work { name: "note".to_owned(), since }
        }
    }
}

/// The turns that did a step. One whose calls were interrupted, or whose file was unread, is done again; one
/// that only read such a file is no step.
fn turns(since: &[Message]) -> usize {
    let mut turns = 0;
    for (index, message) in since.iter().enumerate() {
        let is_repair = index > 0 && unread(since, &since[index - 1]).is_some();
        if message.role == Role::Assistant
            && !is_entry(message)
            && !is_repair
            && is_done(message, since.get(index + 1))
        {
            turns += 1;
        }
    }
    turns
}

fn is_done(message: &Message, answers: Option<&Message>) -> bool {
    let called = message.tool_uses().next().is_some();
    let undone = |answers: &Message| {
        results(answers)
            .any(|(_, text, is_error)| matches!(Fate::of(&text, is_error), Fate::Interrupted | Fate::Unread))
    };
    !(called && answers.is_some_and(undone))
}

/// The file that a call of this round wanted to change unread.
fn unread(since: &[Message], answers: &Message) -> Option<String> {
    let (id, _, _) =
        results(answers).find(|(_, text, is_error)| Fate::of(text, *is_error) == Fate::Unread)?;
    let (_, _, input) = since.iter().flat_map(Message::tool_uses).find(|(call, _, _)| *call == id)?;
    input["file_path"].as_str().map(str::to_owned)
}

/// The part that a text names last.
fn named(text: &str) -> Option<String> {
    text.lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix(STEP_MARK).or(line.trim().strip_prefix(FOLLOW_UP_MARK)))
        .map(|name| name.trim().to_owned())
}

/// A failed call that makes going on senseless. A failed command is told at the end, a to-do list is no loss,
/// and a change that failed after the same change was interrupted had been made.
fn trouble(since: &[Message]) -> Option<String> {
    let calls: Vec<_> = since.iter().flat_map(Message::tool_uses).collect();
    let mut repairs = 0;
    let mut interrupted = Vec::new();
    for (id, text, is_error) in since.iter().flat_map(results) {
        let Some((_, tool, input)) = calls.iter().find(|(call, _, _)| *call == id) else { continue };
        match Fate::of(&text, is_error) {
            Fate::Done => {}
            Fate::Interrupted => interrupted.push((tool, input)),
            Fate::Unread if repairs < MAX_REPAIRS => repairs += 1,
            Fate::Unread | Fate::Failed => {
                let is_known = interrupted.contains(&(tool, input));
                if !is_known && !matches!(*tool, "Bash" | "TodoWrite" | "Glob") {
                    return Some(format!("{tool} failed: {}", excerpt(&text)));
                }
            }
        }
    }
    None
}

/// Everything tools have answered.
fn seen(since: &[Message]) -> String {
    since.iter().flat_map(results).map(|(_, text, _)| text).collect::<Vec<_>>().join("\n")
}

fn carry_out(view: &RequestView<'_>, plan: &Plan, since: &[Message], turns: usize) -> DemoReply {
    // A step of which the agent has no tool is passed over, so that the count of turns stays the step's number.
    let steps: Vec<_> =
        plan.steps.iter().filter(|step| step.calls.iter().any(|call| view.has(call.tool))).collect();
    match steps.get(turns) {
        Some(step) if turns == 0 => call(view, format!("{LABEL} {}", step.say), step.calls.clone()),
        Some(step) => call(view, step.say, step.calls.clone()),
        None => say(format!("{LABEL} {}\n\n{}", plan.done, about_tests(since))),
    }
}

/// What happened to the tests: never more than what was seen.
fn about_tests(since: &[Message]) -> String {
    let runs = since.iter().flat_map(Message::tool_uses).filter(|(_, name, _)| *name == "Bash");
    let Some((id, _, _)) = runs.last() else {
        return "I have no shell here, so the tests were not run.".to_owned();
    };
    match since.iter().flat_map(results).find(|(result, _, _)| *result == id) {
        Some((_, _, false)) => "I ran `python3 -m unittest -q`: all tests pass.".to_owned(),
        Some((_, text, true)) => {
            format!("`python3 -m unittest -q` did not succeed, so nothing is claimed: {}", excerpt(&text))
        }
        None => "The tests gave no result.".to_owned(),
    }
}

/// In a repository the script does not know: one small file.
fn write_a_file(view: &RequestView<'_>, name: &str, since: &[Message], turns: usize) -> DemoReply {
    let look = Call { tool: "Glob", input: json!({"pattern": "swarm-demo/*.md"}) };
    // A part of the sample that is not here has looked for its files; that was another pattern.
    let looked = since
        .iter()
        .flat_map(Message::tool_uses)
        .any(|(_, tool, input)| tool == look.tool && *input == look.input);
    let path = written(since).unwrap_or_else(|| free_path(name, &seen(since)));
    let has = |tool: &str| since.iter().flat_map(Message::tool_uses).any(|(_, name, _)| name == tool);
    if !looked && view.has("Glob") {
        let text = "This repository is not the demo's sample, so I only add one small file.";
        let label = if turns == 0 { format!("{LABEL} {text}") } else { text.to_owned() };
        return call(view, label, vec![look]);
    }
    if !has("Write") {
        let content = format!(
            "# {name}\n\nWritten by the scripted demo model of swarm, to show a worker's branch. \
             It may be deleted.\n"
        );
        let write = Call { tool: "Write", input: json!({"file_path": path, "content": content}) };
        return call(view, "", vec![write]);
    }
    if !has("Read") && view.has("Read") {
        return call(view, "", vec![Call { tool: "Read", input: json!({"file_path": path}) }]);
    }
    say(format!("{LABEL} I added {path}. Nothing else was changed, and no command was run."))
}

/// The path of the file this run wrote.
fn written(since: &[Message]) -> Option<String> {
    since
        .iter()
        .flat_map(Message::tool_uses)
        .find(|(_, name, _)| *name == "Write")
        .and_then(|(_, _, input)| input["file_path"].as_str().map(str::to_owned))
}

/// A path that no listing showed: an existing file would have to be read before it is written.
fn free_path(name: &str, listing: &str) -> String {
    let plain: String = name
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' })
        .take(40)
        .collect();
    let plain = if plain.trim_matches('-').is_empty() { "note" } else { plain.trim_matches('-') };
    let paths = std::iter::once(format!("swarm-demo/{plain}.md"))
        .chain((2..).map(|number| format!("swarm-demo/{plain}-{number}.md")));
    let is_free = |path: &String| !listing.lines().any(|line| line.trim().ends_with(path.as_str()));
    paths.into_iter().find(is_free).expect("the numbers do not end")
}

/// A read-only agent: it looks and reports.
fn look_around(view: &RequestView<'_>, since: &[Message], turns: usize) -> DemoReply {
    if turns == 0 && view.has("Glob") {
        let text = format!("{LABEL} I have a look.");
        return call(view, text, vec![Call { tool: "Glob", input: json!({"pattern": "*"}) }]);
    }
    let n_files = seen(since).lines().filter(|line| !line.trim().is_empty()).count();
    say(format!(
        "{LABEL} Report: the top of the repository lists {n_files} lines of files. Nothing was changed."
    ))
}
