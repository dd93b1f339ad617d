//! The model: answers from a queue, step by step.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::stream;
use swarm_protocol::{Usage, usage::Cost};
use tokio::sync::Notify;

use super::lock;
use crate::ports::{Model, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelStream, StreamEvent};

/// One thing a scripted answer does.
#[derive(Clone, Debug)]
pub enum Step {
    /// An event.
    Event(StreamEvent),
    /// The stream fails.
    Fail(ModelError),
    /// Waits until the gate is opened.
    Gate(Arc<Notify>),
    /// Waits this long.
    Sleep(Duration),
    /// Never goes on.
    Hang,
}

/// An answer: refused at once, or a stream.
#[derive(Clone, Debug)]
pub enum Script {
    /// The request fails.
    Refuse(ModelError),
    /// It streams.
    Stream(Vec<Step>),
}

impl From<Vec<Step>> for Script {
    fn from(steps: Vec<Step>) -> Self {
        Self::Stream(steps)
    }
}

impl From<ModelError> for Script {
    fn from(error: ModelError) -> Self {
        Self::Refuse(error)
    }
}

/// A model that answers from a queue and records what it was asked.
pub struct ScriptedModel {
    info: ModelInfo,
    scripts: Mutex<VecDeque<Script>>,
    requests: Mutex<Vec<ModelRequest>>,
}

impl ScriptedModel {
    /// A model with a window of 200,000 tokens.
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Self::with_info(
            ModelInfo {
                name: "test/model".to_owned(),
                context_window: 200_000,
                max_output: 8_000,
                caches: true,
            },
            scripts,
        )
    }

    /// A model of this kind.
    pub fn with_info(info: ModelInfo, scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Arc::new(Self {
            info,
            scripts: Mutex::new(scripts.into_iter().collect()),
            requests: Mutex::default(),
        })
    }

    /// Queues one more answer.
    pub fn push(&self, script: impl Into<Script>) {
        lock(&self.scripts).push_back(script.into());
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<ModelRequest> {
        lock(&self.requests).clone()
    }

    /// Answers that were not used.
    pub fn left(&self) -> usize {
        lock(&self.scripts).len()
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        lock(&self.requests).push(request.clone());
        let script = lock(&self.scripts).pop_front();
        match script {
            None => Err(error(ModelErrorKind::InvalidRequest, "the script is at its end")),
            Some(Script::Refuse(error)) => Err(error),
            Some(Script::Stream(steps)) => {
                let steps: VecDeque<Step> = steps.into();
                Ok(Box::pin(stream::unfold(steps, async |mut steps| {
                    loop {
                        match steps.pop_front()? {
                            Step::Event(event) => return Some((Ok(event), steps)),
                            Step::Fail(error) => return Some((Err(error), VecDeque::new())),
                            Step::Gate(gate) => gate.notified().await,
                            Step::Sleep(time) => tokio::time::sleep(time).await,
                            Step::Hang => std::future::pending::<()>().await,
                        }
                    }
                })))
            }
        }
    }

    fn cost(&self, _: &str, usage: &Usage) -> Cost {
        Cost::usd(usage.total() as f64 / 1e6)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        serde_json::to_string(&request.messages).map_or(0, |text| text.len())
    }
}

/// An error of this kind.
pub fn error(kind: ModelErrorKind, message: &str) -> ModelError {
    ModelError { kind, message: message.to_owned(), retry_after: None, status: None }
}
