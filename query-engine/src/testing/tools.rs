//! Tools that behave as told and record their calls.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use swarm_protocol::record::ToolEffect;
use tokio::sync::Notify;

use super::lock;
use crate::ports::{Tool, ToolContext, ToolOutput};

/// How a fake tool behaves.
#[derive(Clone)]
pub enum Behaviour {
    /// Answers so.
    Answer(ToolOutput),
    /// Answers with these in turn, then with the last for ever.
    Sequence(Arc<Mutex<VecDeque<ToolOutput>>>),
    /// Waits for the notice, then answers.
    Wait(Arc<Notify>, ToolOutput),
    /// Waits for its cancel, then answers with this.
    UntilCancelled(ToolOutput),
    /// Takes this long, then answers.
    Sleep(Duration, ToolOutput),
    /// Never answers, even when cancelled.
    Hang,
    /// Panics.
    Panic,
}

/// A tool that records its calls.
pub struct FakeTool {
    name: String,
    behaviour: Behaviour,
    read_only: bool,
    concurrency_safe: bool,
    required: Vec<String>,
    /// Deferred, with this hint.
    hint: Option<&'static str>,
    limit: Option<usize>,
    calls: Mutex<Vec<Value>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl FakeTool {
    /// A tool that reads and may run beside others.
    pub fn reads(name: &str, behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self::new(name, behaviour, true))
    }

    /// A tool with side effects that runs alone.
    pub fn writes(name: &str, behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self::new(name, behaviour, false))
    }

    /// A tool, to be adjusted.
    pub fn new(name: &str, behaviour: Behaviour, reads: bool) -> Self {
        Self {
            name: name.to_owned(),
            behaviour,
            read_only: reads,
            concurrency_safe: reads,
            required: Vec::new(),
            hint: None,
            limit: Some(50_000),
            calls: Mutex::default(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        }
    }

    /// With required arguments.
    pub fn requiring(mut self, names: &[&str]) -> Self {
        self.required = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Deferred, and found by this hint.
    pub fn deferred(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// With this bound on results.
    pub fn limited(mut self, limit: Option<usize>) -> Self {
        self.limit = limit;
        self
    }

    /// The arguments it was called with.
    pub fn calls(&self) -> Vec<Value> {
        lock(&self.calls).clone()
    }

    /// The most calls of it that ran together.
    pub fn most_running(&self) -> usize {
        self.most_running.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Tool for FakeTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        format!("The tool {}.", self.name)
    }

    fn input_schema(&self) -> Value {
        json!({ "type": "object", "properties": {}, "required": self.required })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        self.read_only
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        self.concurrency_safe
    }

    fn should_defer(&self) -> bool {
        self.hint.is_some()
    }

    fn search_hint(&self) -> &str {
        self.hint.unwrap_or_default()
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        self.limit
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        lock(&self.calls).push(input);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let output = match &self.behaviour {
            Behaviour::Answer(output) => output.clone(),
            Behaviour::Sequence(outputs) => {
                let mut outputs = lock(outputs);
                match outputs.len() {
                    0 => ToolOutput::text("nothing is left"),
                    1 => outputs[0].clone(),
                    _ => outputs.pop_front().unwrap_or_else(|| ToolOutput::text("")),
                }
            }
            Behaviour::Wait(notify, output) => {
                notify.notified().await;
                output.clone()
            }
            Behaviour::UntilCancelled(output) => {
                context.cancel.cancelled().await;
                output.clone()
            }
            Behaviour::Sleep(time, output) => {
                tokio::time::sleep(*time).await;
                output.clone()
            }
            Behaviour::Hang => std::future::pending().await,
            Behaviour::Panic => panic!("a tool's bug"),
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        output
    }
}

/// A failed command, which cancels its siblings.
pub fn failed_command(text: &str) -> ToolOutput {
    ToolOutput { cancels_siblings: true, ..ToolOutput::error(text) }
}

/// A successful write.
pub fn wrote(path: &str) -> ToolOutput {
    ToolOutput::text(format!("wrote {path}")).with_effect(ToolEffect::Edited {
        path: path.to_owned(),
        added: 1,
        removed: 0,
    })
}
