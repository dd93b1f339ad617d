//! TodoWrite: the agent's own list, kept in its transcript.

use std::sync::Arc;

use async_trait::async_trait;
use query_engine::ports::{Durability, Tool, ToolContext, ToolOutput, Transcript};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::record::{RecordBody, TodoItem};

use super::parse;

const STATUSES: [&str; 3] = ["pending", "in_progress", "completed"];

/// The tool.
pub struct TodoWrite {
    transcript: Arc<dyn Transcript>,
}

impl TodoWrite {
    /// Writing to this transcript.
    pub fn new(transcript: Arc<dyn Transcript>) -> Self {
        Self { transcript }
    }
}

#[derive(Deserialize)]
struct Input {
    todos: Vec<TodoItem>,
}

#[async_trait]
impl Tool for TodoWrite {
    fn name(&self) -> &str {
        "TodoWrite"
    }

    fn description(&self) -> String {
        "Replaces your to-do list. Use it for work of three steps or more; keep exactly one item in_progress, and \
         mark items completed as soon as they are."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "todos": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "content": {"type": "string"},
                            "status": {"type": "string", "enum": STATUSES},
                            "activeForm": {"type": "string", "description": "What is shown while it is done: `Running tests`"}
                        },
                        "required": ["content", "status"]
                    }
                }
            },
            "required": ["todos"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn is_own_state(&self) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let Input { todos } = match parse("TodoWrite", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        if let Some(item) = todos.iter().find(|item| !STATUSES.contains(&item.status.as_str())) {
            return ToolOutput::error(format!(
                "`{}` is no status; use pending, in_progress or completed.",
                item.status
            ));
        }
        let done = todos.iter().filter(|item| item.status == "completed").count();
        let total = todos.len();
        let record = RecordBody::Todo { items: todos };
        match self.transcript.append(vec![record], Durability::Soon).await {
            Ok(()) => ToolOutput::text(format!("The list was kept: {done} of {total} done.")),
            Err(error) => ToolOutput::error(format!("The list was not kept: {error}.")),
        }
    }
}
