//! Who says whether a call may run and what it may cost.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lock;
use crate::ports::{Gate, GateAnswer, Grant, Grants, Observer, PlannedCall, Repeats, Tool, ToolContext};

/// A gate with an answer per tool; what is not named passes.
#[derive(Default)]
pub struct FakeGate {
    answers: Mutex<Vec<(String, GateAnswer)>>,
    held: Mutex<Vec<(String, Arc<Notify>)>>,
    may_go_on: AtomicBool,
    questions: Mutex<Vec<String>>,
    asked: Mutex<Option<Arc<Notify>>>,
}

impl FakeGate {
    /// Lets an agent that repeats itself go on.
    pub fn let_go_on(&self) {
        self.may_go_on.store(true, Ordering::SeqCst);
    }

    /// Lets the question whether it may go on wait for ever; the notice comes when it is asked.
    pub fn hold_question(&self) -> Arc<Notify> {
        let asked = Arc::new(Notify::new());
        *lock(&self.asked) = Some(Arc::clone(&asked));
        asked
    }

    /// What the person was asked about repetitions.
    pub fn questions(&self) -> Vec<String> {
        lock(&self.questions).clone()
    }

    /// Denies calls of this tool.
    pub fn deny(&self, tool: &str, text: &str, stop: bool) {
        lock(&self.answers).push((tool.to_owned(), GateAnswer::Deny { text: text.to_owned(), stop }));
    }

    /// Lets calls of this tool wait until the notice.
    pub fn hold(&self, tool: &str) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        lock(&self.held).push((tool.to_owned(), Arc::clone(&notify)));
        notify
    }
}

#[async_trait]
impl Gate for FakeGate {
    async fn check(&self, tool: &dyn Tool, _: &Value, _: &ToolContext) -> GateAnswer {
        let held = lock(&self.held)
            .iter()
            .find(|(name, _)| name == tool.name())
            .map(|(_, notify)| Arc::clone(notify));
        if let Some(notify) = held {
            notify.notified().await;
        }
        lock(&self.answers)
            .iter()
            .find(|(name, _)| name == tool.name())
            .map_or(GateAnswer::Allow, |(_, answer)| answer.clone())
    }

    async fn may_go_on(&self, repeats: &Repeats, _: &Arc<dyn Observer>, _: &CancellationToken) -> bool {
        lock(&self.questions).push(repeats.what.clone());
        let held = lock(&self.asked).clone();
        if let Some(asked) = held {
            asked.notify_one();
            std::future::pending::<()>().await;
        }
        self.may_go_on.load(Ordering::SeqCst)
    }
}

/// Grants everything, until a script says otherwise; keeps what was asked.
#[derive(Default)]
pub struct FakeGrants {
    answers: Mutex<VecDeque<Grant>>,
    asked: Mutex<Vec<PlannedCall>>,
}

impl FakeGrants {
    /// The next answer that is not given yet. A cap is known from now on.
    pub fn push(&self, answer: Grant) {
        lock(&self.answers).push_back(answer);
    }

    /// What was asked.
    pub fn asked(&self) -> Vec<PlannedCall> {
        lock(&self.asked).clone()
    }
}

#[async_trait]
impl Grants for FakeGrants {
    fn is_capped(&self) -> bool {
        !lock(&self.answers).is_empty()
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        lock(&self.asked).push(call.clone());
        lock(&self.answers).pop_front().unwrap_or(Grant::Call { max_tokens: call.max_tokens })
    }
}
