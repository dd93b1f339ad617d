//! The demo's coordinator: a fold over the conversation finds out which workers there are and what each still
//! owes; the next answer follows from that. Starts three workers, continues one, and reports.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use swarm_protocol::{Message, Role, ToolUseId};

use super::{
    sample::{FOLLOW_UP, FOLLOW_UP_MARK, FOLLOW_UP_NAME, PARTS, STEP_MARK},
    script::{Call, DemoReply, LABEL, RequestView, call, excerpt, results, say},
};

/// A worker that was asked for.
#[derive(Clone, Debug, Default)]
struct Worker {
    description: String,
    /// What stands after the mark in its prompt.
    part: String,
    /// Its id, once the server gave one.
    id: Option<String>,
    /// Why it did not start.
    refused: Option<String>,
    branch: Option<String>,
    /// The statuses of its ends, oldest first.
    ends: Vec<End>,
    /// How many ends it owes: one for its start and one for each revival.
    owed: usize,
}

#[derive(Clone, Debug, Default)]
struct End {
    status: String,
    doubts: String,
}

impl Worker {
    fn is_running(&self) -> bool {
        self.id.is_some() && self.ends.len() < self.owed
    }
}

/// What the conversation says so far.
#[derive(Clone, Debug, Default)]
struct State {
    /// Requests of a person that were taken up.
    n_requests: usize,
    /// The workers of the current request.
    workers: Vec<Worker>,
    followed_up: bool,
    /// Why the follow-up was not delivered, if it was not.
    not_delivered: Option<String>,
    /// Whether the last message is a person's while workers run.
    interjected: bool,
    /// Whether the last message was the coordinator's: several of a user in a row are one request.
    has_answered: bool,
    /// Calls without a result yet.
    open: BTreeMap<ToolUseId, Open>,
}

#[derive(Clone, Debug)]
enum Open {
    Agent(usize),
    SendMessage { to: String },
}

/// The coordinator's next answer.
pub(super) fn reply(view: &RequestView<'_>) -> DemoReply {
    let state = view.messages.iter().fold(State::default(), State::take);
    if state.workers.is_empty() {
        return start(view, &state);
    }
    if let Some(worker) = state.to_continue(view) {
        let id = worker.id.clone().unwrap_or_default();
        let message = format!("{FOLLOW_UP}\n\n{FOLLOW_UP_MARK}{FOLLOW_UP_NAME}");
        let text = format!(
            "{id} ({}) is done. It knows the tokens best, so it gets one more thing to do.",
            worker.description
        );
        return call(
            view,
            text,
            vec![Call { tool: "SendMessage", input: json!({"to": id, "message": message}) }],
        );
    }
    let running = state.workers.iter().filter(|worker| worker.is_running()).count();
    match running {
        0 => say(state.synthesis()),
        _ if state.interjected => {
            say(format!("{LABEL} Noted. {} still at work; I go on when the next one ends.", count(running)))
        }
        _ => say(format!("{} at work; I wait for their notifications.", count(running))),
    }
}

fn count(running: usize) -> String {
    if running == 1 { "1 worker is".to_owned() } else { format!("{running} workers are") }
}

fn start(view: &RequestView<'_>, state: &State) -> DemoReply {
    let first = state.n_requests <= 1;
    let request = view.messages.iter().rev().take_while(|message| message.role == Role::User);
    let request: String = request.map(|message| message.text().to_lowercase()).collect();
    let agent = |description: &str, prompt: &str, part: &str| Call {
        tool: "Agent",
        input: json!({"description": description, "prompt": format!("{prompt}\n\n{STEP_MARK}{part}")}),
    };
    if first && request.contains("auth") {
        let calls = PARTS.iter().map(|part| agent(part.description, part.prompt, part.name)).collect();
        let text = format!(
            "{LABEL} The auth module needs three independent things: one place for the token checks, a sound \
             password hash, and documentation. They touch different files, so three workers do them side by side."
        );
        return call(view, text, calls);
    }
    let names: &[&str] = if first { &["overview", "glossary", "next-steps"] } else { &["follow-up"] };
    let calls = names
        .iter()
        .map(|name| {
            let description = format!("Add swarm-demo/{name}.md");
            let prompt = format!(
                "Add one short Markdown file, swarm-demo/{name}.md, to this repository and read it back. Change \
                 nothing else."
            );
            agent(&description, &prompt, name)
        })
        .collect();
    let text = format!(
        "{LABEL} I follow a script and do not understand requests; to show how the work is shared out, {} one \
         small file each.",
        if first { "three workers add" } else { "one more worker adds" }
    );
    call(view, text, calls)
}

impl State {
    fn take(mut self, message: &Message) -> Self {
        match message.role {
            Role::Assistant => {
                self.interjected = false;
                self.has_answered = true;
                message.tool_uses().for_each(|(id, name, input)| self.called(id, name, input));
            }
            Role::User => {
                self.heard(message);
                self.has_answered = false;
            }
        }
        self
    }

    fn called(&mut self, id: &ToolUseId, name: &str, input: &Value) {
        match name {
            "Agent" => {
                let prompt = input["prompt"].as_str().unwrap_or_default();
                let part =
                    prompt.lines().rev().find_map(|line| line.strip_prefix(STEP_MARK)).unwrap_or_default();
                self.open.insert(id.clone(), Open::Agent(self.workers.len()));
                self.workers.push(Worker {
                    description: input["description"].as_str().unwrap_or_default().to_owned(),
                    part: part.to_owned(),
                    ..Worker::default()
                });
            }
            "SendMessage" => {
                self.followed_up = true;
                let to = input["to"].as_str().unwrap_or_default().to_owned();
                self.open.insert(id.clone(), Open::SendMessage { to });
            }
            _ => {}
        }
    }

    fn heard(&mut self, message: &Message) {
        let mut has_results = false;
        for (id, text, is_error) in results(message) {
            has_results = true;
            self.answered(id, &text, is_error);
        }
        let mut has_notifications = false;
        for block in &message.content {
            let text = block.as_text().unwrap_or_default();
            for notification in notifications(text) {
                has_notifications = true;
                self.notified(notification);
            }
        }
        if !has_results && !has_notifications {
            if self.workers.iter().any(Worker::is_running) {
                self.interjected = true;
            } else if self.has_answered || self.n_requests == 0 {
                *self = Self { n_requests: self.n_requests + 1, ..Self::default() };
            }
        }
    }

    fn answered(&mut self, id: &ToolUseId, text: &str, is_error: bool) {
        match self.open.remove(id) {
            Some(Open::Agent(index)) => {
                let worker = &mut self.workers[index];
                match worker_id(text).filter(|_| !is_error) {
                    Some(id) => {
                        worker.id = Some(id);
                        worker.owed = 1;
                        let answer: Option<Value> = serde_json::from_str(text).ok();
                        worker.branch =
                            answer.and_then(|answer| answer["branch"].as_str().map(str::to_owned));
                    }
                    None => worker.refused = Some(excerpt(text)),
                }
            }
            Some(Open::SendMessage { .. }) if is_error => self.not_delivered = Some(excerpt(text)),
            Some(Open::SendMessage { to }) => {
                if let Some(worker) = self.workers.iter_mut().find(|worker| worker.id.as_ref() == Some(&to)) {
                    worker.owed += 1;
                }
            }
            None => {}
        }
    }

    fn notified(&mut self, notification: &str) {
        let status = element(notification, "status");
        let id = element(notification, "task-id");
        let worker = self.workers.iter_mut().find(|worker| worker.id == id && id.is_some());
        if let (Some(worker), Some(status)) = (worker, status)
            && status != "progress"
        {
            worker.branch = attribute(notification, "branch").or(worker.branch.take());
            let doubts = attribute(notification, "doubts").unwrap_or_default();
            worker.ends.push(End { status, doubts });
        }
    }

    /// The worker that gets the follow-up, when it is time for it: the one of the tokens, when it has completed.
    fn to_continue(&self, view: &RequestView<'_>) -> Option<&Worker> {
        if self.followed_up || !view.has("SendMessage") {
            return None;
        }
        self.workers.iter().find(|worker| {
            worker.part == PARTS[0].name
                && worker.id.is_some()
                && !worker.is_running()
                && worker.ends.last().is_some_and(|end| end.status == "completed")
        })
    }

    fn synthesis(&self) -> String {
        let completed = self.workers.iter().filter(|worker| worker.succeeded()).count();
        let mut text = format!("{LABEL} {completed} of {} workers completed.\n", self.workers.len());
        for worker in &self.workers {
            text.push_str(&format!("\n- {}: {}", worker.description, worker.report()));
        }
        if let Some(problem) = &self.not_delivered {
            text.push_str(&format!("\n\nA follow-up was not delivered: {problem}"));
        }
        if completed > 1 {
            text.push_str("\n\nThe branches touch different files, so they can be merged one after another.");
        }
        text
    }
}

impl Worker {
    fn succeeded(&self) -> bool {
        self.ends.last().is_some_and(|end| end.status == "completed")
    }

    fn report(&self) -> String {
        if let Some(refused) = &self.refused {
            return format!("not started: {refused}");
        }
        let id = self.id.as_deref().unwrap_or("no id");
        let Some(End { status, doubts }) = self.ends.last() else {
            return format!("{id} gave no result");
        };
        let branch = self.branch.as_ref().map(|branch| format!(", branch `{branch}`")).unwrap_or_default();
        let runs =
            if self.ends.len() > 1 { format!(" after {} runs", self.ends.len()) } else { String::new() };
        let doubts = if doubts.is_empty() { String::new() } else { format!(" (doubts: {doubts})") };
        format!("{id} {status}{runs}{branch}{doubts}")
    }
}

/// A worker's id in a tool's answer, whatever its form.
fn worker_id(text: &str) -> Option<String> {
    let answer: Option<Value> = serde_json::from_str(text).ok();
    if let Some(id) = answer.as_ref().and_then(|answer| answer["task_id"].as_str()) {
        return Some(id.to_owned());
    }
    text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '-'))
        .find(|word| word.parse::<swarm_protocol::WorkerId>().is_ok())
        .map(str::to_owned)
}

/// The bodies of the notifications in a text. Only a text that begins with one holds any: a quoted one is not news.
fn notifications(text: &str) -> impl Iterator<Item = &str> {
    const START: &str = "<task-notification>";
    let text = if text.trim_start().starts_with(START) { text } else { "" };
    text.split(START).skip(1).map(|body| body.split("</task-notification>").next().unwrap_or_default())
}

fn element(text: &str, tag: &str) -> Option<String> {
    let (_, after) = text.split_once(&format!("<{tag}>"))?;
    let (value, _) = after.split_once(&format!("</{tag}>"))?;
    Some(unescape(value.trim()))
}

/// An attribute of the outcome.
fn attribute(text: &str, name: &str) -> Option<String> {
    let (_, outcome) = text.split_once("<outcome ")?;
    let (_, after) = outcome.split_once(&format!("{name}=\""))?;
    let (value, _) = after.split_once('"')?;
    Some(unescape(value))
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
