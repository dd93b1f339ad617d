//! The coordinator's three tools: all it has, by construction. They check the model's input and pass it on
//! to the session's actor; they touch no file.

use std::sync::Arc;

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{
    WorkerId, error_chain,
    launch::{Expects, Isolation, ModelEndpoint},
    record::{ToolEffect, head_of},
};
use worktree_manager::Repository;

use super::{Order, SessionHandle, SpawnOrder, WorkerMessage, prompt};

/// The agent types a coordinator may ask for; `worker` means the first.
pub(crate) const AGENT_TYPES: [&str; 3] = ["general-purpose", "Explore", "Plan"];

/// A prompt longer than this is surely a mistake, in characters.
const PROMPT_CHARS: usize = 200_000;

/// What the tools need.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) handle: SessionHandle,
    pub(crate) repo: std::path::PathBuf,
    pub(crate) base: String,
    pub(crate) worker_model: ModelEndpoint,
    /// What is said to an agent are a person's own words.
    pub(crate) is_relay: bool,
    /// Dollars are capped: a model of unknown price is no choice.
    pub(crate) needs_prices: bool,
}

/// The three as a provider is told of them; equal in every session.
pub(crate) fn specs() -> Vec<ToolSpec> {
    let spec = |name: &str, description: &str, input_schema| ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema,
        offer: query_engine::ports::Offer::Always,
    };
    // Sorted by name, as the engine sends them.
    vec![
        spec("Agent", prompt::AGENT, agent_schema()),
        spec("SendMessage", prompt::SEND_MESSAGE, send_message_schema()),
        spec("TaskStop", prompt::TASK_STOP, task_stop_schema()),
    ]
}

/// The three.
pub(crate) fn tools(desk: Desk) -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(Agent(desk.clone())), Arc::new(SendMessage(desk.clone())), Arc::new(TaskStop(desk))]
}

/// What Agent answers.
pub(crate) fn spawn_answer(worker_id: &WorkerId, position: Option<u32>, branch: Option<&str>) -> String {
    let mut answer = json!({
        "task_id": worker_id,
        "status": if position.is_some() { "pending" } else { "running" },
    });
    if let Some(position) = position {
        answer["position"] = position.into();
    }
    answer["branch"] = branch.map_or(Value::Null, Into::into);
    answer.to_string()
}

/// What a worker of a type is expected to do, when the model does not say.
fn default_expects(agent_type: &str) -> Expects {
    match agent_type {
        "Explore" | "Plan" => Expects::Report,
        _ => Expects::Changes,
    }
}

/// Reads a tool's input; what is wrong is said in words a model can act on.
fn read_input<T: serde::de::DeserializeOwned>(input: Value) -> Result<T, String> {
    serde_json::from_value(input).map_err(|error| format!("The input does not fit: {error}."))
}

fn not_blank(name: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err(format!("`{name}` must not be empty.")) } else { Ok(()) }
}

fn effect(what: &str, about: &str) -> ToolEffect {
    ToolEffect::Other { data: json!({ "what": what, "about": head_of(about) }) }
}

struct Agent(Desk);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentInput {
    description: String,
    prompt: String,
    #[serde(default)]
    subagent_type: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    isolation: Option<String>,
    #[serde(default)]
    base: Option<String>,
    #[serde(default)]
    expects: Option<Expects>,
}

#[async_trait]
impl Tool for Agent {
    fn name(&self) -> &str {
        "Agent"
    }

    fn description(&self) -> String {
        prompt::AGENT.to_owned()
    }

    fn input_schema(&self) -> Value {
        agent_schema()
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    /// One after the other, so that ids and places follow the order of the calls.
    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        match self.start(input, context).await {
            Ok(output) => output,
            Err(problem) => ToolOutput::error(problem),
        }
    }
}

impl Agent {
    async fn start(&self, input: Value, context: ToolContext) -> Result<ToolOutput, String> {
        let input: AgentInput = read_input(input)?;
        not_blank("description", &input.description)?;
        not_blank("prompt", &input.prompt)?;
        if input.prompt.chars().count() > PROMPT_CHARS {
            return Err(format!("`prompt` has more than {PROMPT_CHARS} characters."));
        }
        let agent_type = match input.subagent_type.as_deref() {
            None | Some("worker") => AGENT_TYPES[0].to_owned(),
            Some(known) if AGENT_TYPES.contains(&known) => known.to_owned(),
            Some(unknown) => {
                return Err(format!(
                    "There is no agent type `{}`. Known: {}.",
                    head_of(unknown),
                    AGENT_TYPES.join(", ")
                ));
            }
        };
        let isolation = match input.isolation.as_deref() {
            None | Some("worktree") => Isolation::Worktree,
            Some("tmux") => Isolation::Tmux,
            Some("none") => Isolation::None,
            Some("remote") => {
                return Err(
                    "isolation `remote` is not available: there are no nodes. Use worktree.".to_owned()
                );
            }
            Some(unknown) => {
                return Err(format!(
                    "There is no isolation `{}`. Known: worktree, tmux, none.",
                    head_of(unknown)
                ));
            }
        };
        let base = match &input.base {
            None => self.0.base.clone(),
            Some(base) => self.resolve_base(base).await?,
        };
        let model = match &input.model {
            None => None,
            Some(name) => Some(self.other_model(name)?),
        };
        let expects = input.expects.unwrap_or_else(|| default_expects(&agent_type));
        let order = SpawnOrder {
            tool_use_id: context.tool_use_id,
            description: head_of(&input.description),
            prompt: input.prompt,
            name: input.name.map(|name| head_of(&name)),
            agent_type,
            isolation,
            expects,
            model,
            base,
        };
        let about = order.description.clone();
        match self.0.handle.try_ask(|reply| Order::Spawn(order, reply)).await {
            Ok(spawned) => {
                let answer = spawn_answer(&spawned.worker_id, spawned.position, spawned.branch.as_deref());
                Ok(ToolOutput::text(answer).with_effect(effect("spawned", &about)))
            }
            Err(error) => Err(format!("The worker was not started: {error}.")),
        }
    }

    /// Another model of the workers' provider; others have no key in this session.
    fn other_model(&self, name: &str) -> Result<ModelEndpoint, String> {
        let usual = &self.0.worker_model;
        let model = match name.split_once('/') {
            Some((provider, model)) if provider == usual.provider => model,
            None => name,
            _ => {
                return Err(format!(
                    "model `{}` is not configured here; leave it out, or name one of provider {}.",
                    head_of(name),
                    usual.provider
                ));
            }
        };
        let endpoint = ModelEndpoint { model: model.to_owned(), ..usual.clone() };
        if self.0.needs_prices && !model_client::is_priced(&endpoint) {
            return Err(format!(
                "The price of model `{}` is not known, and this session has a budget in dollars; leave `model` out.",
                head_of(name)
            ));
        }
        Ok(endpoint)
    }

    async fn resolve_base(&self, base: &str) -> Result<String, String> {
        let repository =
            Repository::open(&self.0.repo).await.map_err(|error| format!("base: {}", error_chain(&error)))?;
        let resolved =
            repository.resolve_base(base).await.map_err(|error| format!("base: {}", error_chain(&error)))?;
        Ok(resolved.commit.to_string())
    }
}

struct SendMessage(Desk);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendMessageInput {
    to: String,
    message: String,
    /// Models that know other harnesses add one; it says nothing new.
    #[serde(default)]
    #[expect(dead_code, reason = "accepted, so that a habit of models is no error")]
    summary: Option<String>,
}

#[async_trait]
impl Tool for SendMessage {
    fn name(&self) -> &str {
        "SendMessage"
    }

    fn description(&self) -> String {
        prompt::SEND_MESSAGE.to_owned()
    }

    fn input_schema(&self) -> Value {
        send_message_schema()
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let input: SendMessageInput = match read_input(input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        if let Err(problem) = not_blank("message", &input.message) {
            return ToolOutput::error(problem);
        }
        let about = input.to.clone();
        let message = WorkerMessage { to: input.to, text: input.message, from_person: self.0.is_relay };
        match self.0.handle.try_ask(|reply| Order::WorkerMessage(message, reply)).await {
            Ok(sent) => {
                let status = if sent.revived { "continued" } else { "queued" };
                let mut answer = json!({"task_id": sent.worker_id, "status": status, "run": sent.run});
                if let Some(position) = sent.position {
                    answer["position"] = position.into();
                }
                ToolOutput::text(answer.to_string()).with_effect(effect("messaged", &about))
            }
            Err(error) => ToolOutput::error(format!("The message was not sent: {error}.")),
        }
    }
}

struct TaskStop(Desk);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskStopInput {
    task_id: String,
    #[serde(default)]
    reason: Option<String>,
}

#[async_trait]
impl Tool for TaskStop {
    fn name(&self) -> &str {
        "TaskStop"
    }

    fn description(&self) -> String {
        prompt::TASK_STOP.to_owned()
    }

    fn input_schema(&self) -> Value {
        task_stop_schema()
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let input: TaskStopInput = match read_input(input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let about = input.task_id.clone();
        let reason = input.reason.unwrap_or_else(|| "stopped by the coordinator".to_owned());
        let stopping = self
            .0
            .handle
            .try_ask(|reply| Order::WorkerStop { to: input.task_id, reason, by_person: false, reply })
            .await;
        match stopping {
            Ok(stopping) => {
                let task_id = stopping.workers.first().map(ToString::to_string).unwrap_or_default();
                let status = if stopping.already { "already ended" } else { "stopping" };
                ToolOutput::text(json!({"task_id": task_id, "status": status}).to_string())
                    .with_effect(effect("stopped", &about))
            }
            Err(error) => ToolOutput::error(format!("Nothing was stopped: {error}.")),
        }
    }
}

fn agent_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "description": {"type": "string", "description": "Three to five words: what the worker does"},
            "prompt": {"type": "string", "description": "The whole task; it must stand alone"},
            "subagent_type": {"type": "string", "enum": ["general-purpose", "worker", "Explore", "Plan"]},
            "name": {"type": "string", "description": "A name to address it by"},
            "model": {"type": "string", "description": "provider/name; leave out for the usual one"},
            "isolation": {"type": "string", "enum": ["worktree", "tmux", "none"],
                          "description": "worktree (default); tmux: worktree plus a window; none: the person's checkout, read-only"},
            "base": {"type": "string", "description": "Commit or branch to start from"},
            "expects": {"type": "string", "enum": ["changes", "report"]}
        },
        "required": ["description", "prompt"],
        "additionalProperties": false
    })
}

fn send_message_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "task_id or name"},
            "message": {"type": "string"}
        },
        "required": ["to", "message"],
        "additionalProperties": false
    })
}

fn task_stop_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "task_id": {"type": "string"},
            "reason": {"type": "string"}
        },
        "required": ["task_id"],
        "additionalProperties": false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orchestrator_45_a_coordinator_has_three_tools_and_no_other() {
        let names: Vec<String> = specs().into_iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["Agent", "SendMessage", "TaskStop"]);
    }
}
