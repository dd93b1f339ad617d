//! Retrieve: a result that was cleared from the conversation, as it was.

use std::sync::Arc;

use agent_host::CONTENT_GONE;
use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::ToolUseId;

use super::parse;
use crate::originals::Originals;

/// The tool.
pub struct Retrieve {
    originals: Arc<Originals>,
}

impl Retrieve {
    /// From these.
    pub fn new(originals: Arc<Originals>) -> Self {
        Self { originals }
    }
}

#[derive(Deserialize)]
struct Input {
    id: String,
}

#[async_trait]
impl Tool for Retrieve {
    fn name(&self) -> &str {
        "Retrieve"
    }

    fn description(&self) -> String {
        "Returns an old tool result that was cleared from this conversation. It shows what was true then: to see how a \
         file is now, read it."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "The id that stands in place of the cleared result"}
            },
            "required": ["id"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "old cleared result, earlier output"
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let Input { id } = match parse("Retrieve", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let Ok(call) = id.trim().parse::<ToolUseId>() else {
            return ToolOutput::error(format!("`{id}` is no id of a cleared result."));
        };
        match self.originals.get(&call).await {
            Ok(Some(content)) => ToolOutput { content, ..ToolOutput::text("") },
            Ok(None) => ToolOutput::error(format!("{id}: {CONTENT_GONE}")),
            Err(error) => ToolOutput::error(format!("The transcript cannot be read: {error}.")),
        }
    }
}
