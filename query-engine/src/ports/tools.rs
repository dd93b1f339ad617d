//! Tools, and who says whether a call may run.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use serde_json::{Value, json};
use swarm_protocol::{
    ResultBlock, ToolUseId, Usage,
    record::{FileSeen, ToolEffect, input_summary},
    usage::Cost,
};
use tokio_util::sync::CancellationToken;

use super::Observer;

/// A running call's surroundings.
#[derive(Clone)]
pub struct ToolContext {
    /// The call.
    pub tool_use_id: ToolUseId,
    /// Cancelled by an interrupt, a sibling or the end.
    pub cancel: CancellationToken,
    /// Where live news go.
    pub observer: Arc<dyn Observer>,
}

/// What models used on behalf of a call, an inner agent's say. It counts as the agent's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// What for: `inner agent Explore`.
    pub purpose: String,
    /// `provider/name`.
    pub model: String,
    /// Tokens.
    pub usage: Usage,
    /// What they cost.
    pub cost: Cost,
}

/// What a call answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutput {
    /// For the model; never empty.
    pub content: Vec<ResultBlock>,
    /// Whether it failed.
    pub is_error: bool,
    /// What it did outside.
    pub effect: ToolEffect,
    /// The file whose content the model knows by it.
    pub seen: Option<Box<FileSeen>>,
    /// What it used of models.
    pub spent: Vec<Spent>,
    /// Whether the failure cancels its siblings (a failed command; spec 4.4).
    pub cancels_siblings: bool,
    /// Whether the loop must end after this turn: a person denied and stopped, or the agent goes on in another process.
    pub stop: bool,
}

impl ToolOutput {
    /// A success of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![ResultBlock::text(text)],
            is_error: false,
            effect: ToolEffect::None,
            seen: None,
            spent: Vec::new(),
            cancels_siblings: false,
            stop: false,
        }
    }

    /// A failure of one text that the model can act on.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// With the file whose content the model knows now.
    pub fn with_seen(mut self, seen: FileSeen) -> Self {
        self.seen = Some(Box::new(seen));
        self
    }

    /// With what it did outside.
    pub fn with_effect(mut self, effect: ToolEffect) -> Self {
        self.effect = effect;
        self
    }
}

/// What a call touches: what permission rules are matched with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A shell command.
    Command(String),
    /// A file or directory that is read, as an absolute path; links stay.
    Read(PathBuf),
    /// One that is written.
    Write(PathBuf),
    /// The host of a URL.
    Host(String),
    /// The type of an inner agent, or a skill with its arguments.
    Name(String),
}

/// A tool. Built-in, MCP and agent tools are the same thing to the scheduler.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What the model reads about it.
    fn description(&self) -> String;

    /// JSON schema of its input; the top is an object.
    fn input_schema(&self) -> Value;

    /// Whether a call with this input changes nothing.
    fn is_read_only(&self, input: &Value) -> bool;

    /// Whether a call with this input may run beside others.
    fn is_concurrency_safe(&self, input: &Value) -> bool;

    /// What permission rules are matched with; nothing: the tool's name alone.
    fn subjects(&self, _input: &Value) -> Vec<Subject> {
        Vec::new()
    }

    /// Whether it touches nothing but what is the agent's own, such as its lists and its jobs: it needs no
    /// permission, though it changes something.
    fn is_own_state(&self) -> bool {
        false
    }

    /// Whether the model is told of its name only until it looks for it (spec 4.5).
    fn should_defer(&self) -> bool {
        false
    }

    /// Words under which a model would look for it, beside its name and its description.
    fn search_hint(&self) -> &str {
        ""
    }

    /// A call in few words, for a classifier: `{"Bash":"ls"}`.
    fn classifier_text(&self, input: &Value) -> String {
        json!({ self.name(): input_summary(input) }).to_string()
    }

    /// A result over this many characters is cut to head and tail; none: never (Read, which pages).
    fn max_result_size_chars(&self) -> Option<usize> {
        Some(50_000)
    }

    /// Does it. The gate has let it pass, and `input` fits the schema's required fields as far as the tool
    /// checks them itself. Must return soon after `context.cancel`.
    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput;
}

/// What the gate says to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum GateAnswer {
    /// Go on.
    Allow,
    /// No: the model sees this text. `stop` ends the agent.
    Deny {
        /// Who refused, and that another way should be sought.
        text: String,
        /// End the agent.
        stop: bool,
    },
}

/// Permission for a call. Waits as long as the desk does; other tools go on meanwhile.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Asks for one call.
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer;

    /// What models that the gate asked have used since this was last called: it counts against the agent's budget. The
    /// gate records it.
    fn take_spent(&self) -> Vec<(Usage, Cost)> {
        Vec::new()
    }

    /// Asks the person whether an agent that repeats itself may go on (spec 2.6). Nobody to be asked, or
    /// cancelled: no.
    async fn may_go_on(
        &self,
        _repeats: &Repeats,
        _observer: &Arc<dyn Observer>,
        _cancel: &CancellationToken,
    ) -> bool {
        false
    }
}

/// What an agent does again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeats {
    /// As words: `the same call of Bash with the same result, 5 times in a row`.
    pub what: String,
    /// The last call of it; none when it repeats words.
    pub call: Option<ToolUseId>,
}
