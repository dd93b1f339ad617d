//! A tool whose results hold no keys. What it shows goes to the model, the transcript and everybody who looks; what
//! it does is not changed.

use std::{borrow::Cow, sync::Arc};

use agent_host::secrets::{MARK, Masker};
use async_trait::async_trait;
use query_engine::ports::{Around, Tool, ToolContext, ToolOutput, Wrapped};
use serde_json::Value;
use swarm_protocol::ResultBlock;

/// Masks what a tool answers.
struct Masked(Masker);

/// The same tools, their results masked.
pub fn all(tools: Vec<Arc<dyn Tool>>, masker: &Masker) -> Vec<Arc<dyn Tool>> {
    let masked = |tool| Arc::new(Wrapped::new(tool, Masked(masker.clone()))) as Arc<dyn Tool>;
    tools.into_iter().map(masked).collect()
}

#[async_trait]
impl Around for Masked {
    async fn call(&self, tool: &dyn Tool, input: Value, context: ToolContext) -> ToolOutput {
        // A file that is written with what was shown of it would lose its key.
        if matches!(tool.name(), "Write" | "Edit" | "NotebookEdit") && holds_mark(&input) {
            return ToolOutput::error(format!(
                "The text holds `{MARK}...]`, which stands for a secret that was not shown; nothing was written. \
                 Leave the lines with secrets as they are: use Edit on the lines around them."
            ));
        }
        let mut output = tool.call(input, context).await;
        for block in &mut output.content {
            if let ResultBlock::Text { text } = block
                && let Cow::Owned(masked) = self.0.mask(text)
            {
                *text = masked;
            }
        }
        output
    }
}

fn holds_mark(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(MARK),
        Value::Array(values) => values.iter().any(holds_mark),
        Value::Object(fields) => fields.values().any(holds_mark),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
