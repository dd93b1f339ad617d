//! What the handlers and the test share.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Api, Block, Clock, Outcome, RecordedRequest, Reply, Request, Script, Settings, cache, gate, prefix,
    render, script,
};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) requests: Vec<Request>,
    pub(super) rules: script::Rules,
    pub(super) violations: Vec<String>,
    pub(super) counts: HashMap<(Api, String), usize>,
    /// Thinking that this server signed: signature to text.
    pub(super) signed: HashMap<String, String>,
    /// Agents whose last answer stopped with `pause_turn`.
    pub(super) paused: HashSet<String>,
    pub(super) window: Option<u64>,
    /// Replies without figures of their own are charged at random, with this seed.
    pub(super) charges: Option<u64>,
    pub(super) in_flight: usize,
    pub(super) peak: usize,
}

/// What the handlers and the test share. The locks are held for a moment each, never across an await.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) settings: Settings,
    pub(super) state: Mutex<State>,
    /// Counts arrivals and ends of requests.
    pub(super) changes: watch::Sender<u64>,
    pub(super) gates: gate::Gates,
    pub(super) prefixes: Mutex<prefix::Prefixes>,
    pub(super) cache: cache::Cache,
    pub(super) clock: Clock,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn window(&self) -> Option<u64> {
        self.lock().window
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub(super) fn violation(&self, text: &str) {
        self.lock().violations.push(text.to_owned());
    }

    pub(super) fn peak(&self) -> usize {
        self.lock().peak
    }

    pub(super) fn declare_break(&self, conversation: Option<String>, times: Option<usize>) {
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        prefixes.declare_break(conversation, times);
    }

    pub(super) fn add_script(&self, script: Script) {
        let mut state = self.lock();
        script.rules.into_iter().for_each(|rule| state.rules.push(rule));
        state.window = script.window.or(state.window);
    }

    pub(super) fn answer(&self, request: &RecordedRequest) -> Option<Reply> {
        self.lock().rules.answer(request)
    }

    /// Gives the request its number and keeps it.
    pub(super) fn record(
        &self,
        make: impl FnOnce(u64, &mut dyn FnMut(Api, &str) -> usize) -> RecordedRequest,
    ) -> Request {
        let mut state = self.lock();
        let id = state.requests.len() as u64 + 1;
        let counts = &mut state.counts;
        let mut nth = |api: Api, key: &str| {
            let count = counts.entry((api, key.to_owned())).or_default();
            *count += 1;
            *count - 1
        };
        let request = Arc::new(make(id, &mut nth));
        state.requests.push(Arc::clone(&request));
        state.in_flight += 1;
        state.peak = state.peak.max(state.in_flight);
        drop(state);
        self.changes.send_modify(|n| *n += 1);
        request
    }

    pub(super) fn ended(&self, request: &RecordedRequest, outcome: Outcome) {
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        prefixes.ended(request.id, outcome == Outcome::Delivered);
        drop(prefixes);
        *request.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        self.lock().in_flight -= 1;
        self.changes.send_modify(|n| *n += 1);
    }

    /// Remembers what this reply hands out, to know it when it comes back.
    pub(super) fn issue(&self, request: &RecordedRequest, rendering: &render::Rendering<'_>) {
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        rendering.tool_ids().for_each(|id| prefixes.issue(&request.model, id));
        rendering.signed().for_each(|(signature, _)| prefixes.issue(&request.model, signature));
        drop(prefixes);
        let signed = rendering.signed().map(|(key, text)| (key.to_owned(), text.to_owned()));
        let mut state = self.lock();
        state.signed.extend(signed);
        match rendering.is_paused() {
            true => state.paused.insert(request.agent_key.clone()),
            false => state.paused.remove(&request.agent_key),
        };
    }

    /// Thinking comes back word for word or not at all.
    pub(super) fn check_thinking(&self, request: &RecordedRequest) -> Option<String> {
        if request.api != Api::Anthropic {
            return None;
        }
        let state = self.lock();
        let mut blocks = request.messages.iter().flat_map(|message| &message.blocks);
        blocks.find_map(|block| match block {
            Block::Thinking { text, signature } => {
                let signed = state.signed.get(signature)?;
                (signed != text).then(|| format!("thinking `{signature}` was changed"))
            }
            _ => None,
        })
    }
}
