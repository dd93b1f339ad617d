//! Stand-ins for every port, stepped by hand: for tests of the engine and of the programs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use swarm_protocol::record::Origin;

use crate::{
    driver::{Engine, EngineConfig, Ports, build_prefix},
    ports::{Gate, Grants, Hooks, Inbox, Model, Observer, Surroundings, Tool, Transcript},
    state::LoopState,
};

mod answers;
mod around;
mod conversation;
mod leave;
mod model;
mod tools;

pub use self::{
    answers::{
        answer, call, calls, fin, id, invalid_call, open_call, open_text, says, stop, stop_with, text,
        thinking,
    },
    around::{FakeHooks, FakeInbox, FakeSurroundings, RecordingObserver, RecordingTranscript},
    conversation::{history, render},
    leave::{FakeGate, FakeGrants},
    model::{Script, ScriptedModel, Step, error},
    tools::{Behaviour, FakeTool, failed_command, wrote},
};

/// Every port, played; an engine is made of it.
pub struct Bench {
    /// The model.
    pub model: Arc<ScriptedModel>,
    /// The fallback, if any.
    pub fallback: Option<Arc<ScriptedModel>>,
    /// The helper, if any.
    pub helper: Option<Arc<ScriptedModel>>,
    /// The tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The gate.
    pub gate: Arc<FakeGate>,
    /// The transcript.
    pub transcript: Arc<RecordingTranscript>,
    /// The inbox.
    pub inbox: Arc<FakeInbox>,
    /// The grants.
    pub grants: Arc<FakeGrants>,
    /// The hooks.
    pub hooks: Arc<FakeHooks>,
    /// The surroundings.
    pub surroundings: Arc<FakeSurroundings>,
    /// The observer.
    pub observer: Arc<RecordingObserver>,
}

impl Bench {
    /// A bench with these answers and a prompt that waits in the inbox.
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        let inbox = Arc::new(FakeInbox::default());
        inbox.put("the task", Origin::Prompt);
        Self {
            model: ScriptedModel::new(scripts),
            fallback: None,
            helper: None,
            tools: Vec::new(),
            gate: Arc::default(),
            transcript: Arc::default(),
            inbox,
            grants: Arc::default(),
            hooks: Arc::default(),
            surroundings: Arc::default(),
            observer: Arc::default(),
        }
    }

    /// With a tool.
    pub fn tool(mut self, tool: Arc<FakeTool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// The ports.
    pub fn ports(&self) -> Ports {
        Ports {
            model: Arc::clone(&self.model) as Arc<dyn Model>,
            fallback: self.fallback.clone().map(|model| model as Arc<dyn Model>),
            helper: self.helper.clone().map(|model| model as Arc<dyn Model>),
            tools: self.tools.clone(),
            gate: Arc::clone(&self.gate) as Arc<dyn Gate>,
            transcript: Arc::clone(&self.transcript) as Arc<dyn Transcript>,
            inbox: Arc::clone(&self.inbox) as Arc<dyn Inbox>,
            grants: Arc::clone(&self.grants) as Arc<dyn Grants>,
            hooks: Arc::clone(&self.hooks) as Arc<dyn Hooks>,
            surroundings: Arc::clone(&self.surroundings) as Arc<dyn Surroundings>,
            observer: Arc::clone(&self.observer) as Arc<dyn Observer>,
        }
    }

    /// Settings without jitter.
    pub fn config(&self) -> EngineConfig {
        let prefix = build_prefix(vec!["You are a test.".to_owned()], &self.tools);
        EngineConfig { jitter: Arc::new(|| 0.0), ..EngineConfig::new(prefix) }
    }

    /// A new engine.
    pub fn engine(&self) -> Engine {
        Engine::new(self.config(), self.ports(), LoopState::default())
    }

    /// An engine over what was recorded, as a resume makes it.
    pub fn resumed(&self) -> Engine {
        let records = self.transcript.records();
        Engine::new(self.config(), self.ports(), LoopState::fold(records.iter()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
