//! A tool whose results hold no keys. What it shows goes to the model, the transcript and everybody who looks; what
//! it does is not changed.

use std::{borrow::Cow, sync::Arc};

use agent_host::secrets::{MARK, Masker};
use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde_json::Value;
use swarm_protocol::ResultBlock;

/// Around another tool.
struct Masked {
    tool: Arc<dyn Tool>,
    masker: Masker,
}

/// The same tools, their results masked.
pub fn all(tools: Vec<Arc<dyn Tool>>, masker: &Masker) -> Vec<Arc<dyn Tool>> {
    let masked = |tool| Arc::new(Masked { tool, masker: masker.clone() }) as Arc<dyn Tool>;
    tools.into_iter().map(masked).collect()
}

#[async_trait]
impl Tool for Masked {
    fn name(&self) -> &str {
        self.tool.name()
    }

    fn description(&self) -> String {
        self.tool.description()
    }

    fn input_schema(&self) -> Value {
        self.tool.input_schema()
    }

    fn is_read_only(&self, input: &Value) -> bool {
        self.tool.is_read_only(input)
    }

    fn is_concurrency_safe(&self, input: &Value) -> bool {
        self.tool.is_concurrency_safe(input)
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        self.tool.subjects(input)
    }

    fn is_own_state(&self) -> bool {
        self.tool.is_own_state()
    }

    fn should_defer(&self) -> bool {
        self.tool.should_defer()
    }

    fn search_hint(&self) -> &str {
        self.tool.search_hint()
    }

    fn classifier_text(&self, input: &Value) -> String {
        self.tool.classifier_text(input)
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        self.tool.max_result_size_chars()
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        // A file that is written with what was shown of it would lose its key.
        if matches!(self.name(), "Write" | "Edit" | "NotebookEdit") && holds_mark(&input) {
            return ToolOutput::error(format!(
                "The text holds `{MARK}...]`, which stands for a secret that was not shown; nothing was written. \
                 Leave the lines with secrets as they are: use Edit on the lines around them."
            ));
        }
        let mut output = self.tool.call(input, context).await;
        for block in &mut output.content {
            if let ResultBlock::Text { text } = block
                && let Cow::Owned(masked) = self.masker.mask(text)
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
