//! Something around a tool: what it is and says of itself stays its own, only the call is another.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{Subject, Tool, ToolContext, ToolOutput};

/// What is done around the calls of a tool.
#[async_trait]
pub trait Around: Send + Sync {
    /// Makes the call, and what goes with it.
    async fn call(&self, tool: &dyn Tool, input: Value, context: ToolContext) -> ToolOutput;
}

/// A tool with something around its calls.
pub struct Wrapped<A> {
    tool: Arc<dyn Tool>,
    around: A,
}

impl<A: Around> Wrapped<A> {
    /// Around this tool.
    pub fn new(tool: Arc<dyn Tool>, around: A) -> Self {
        Self { tool, around }
    }
}

#[async_trait]
impl<A: Around> Tool for Wrapped<A> {
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
        self.around.call(self.tool.as_ref(), input, context).await
    }
}
