//! The calls of both classifiers (spec 5.4): one small question each, within a deadline, its use recorded and charged to
//! this worker. What is asked, and what an answer means, is `query_engine::classifier`.
//!
//! No call is tried again: a classifier that is out of reach fails closed at once, and the agent goes on.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt as _;
use query_engine::{
    budget::Budget,
    classifier::{
        CompactHistory, FIRST_LOOK_TOKENS, GATE_PROMPT, Judgement, Look, RACER_PROMPT, RACER_TOKENS,
        SECOND_LOOK_TOKENS, action, gate_answer, gate_question, racer_allows, racer_question,
    },
    ports::{Breakpoint, Durability, Model, ModelRequest, PlannedCall, Prefix, StreamEvent},
    response::Response,
};
use swarm_protocol::{
    Block, Message, Role, Usage,
    permission::{Decision, PermissionBid, PermissionRequest, Racer},
    record::{RecordBody, StopReason},
    usage::Cost,
};

use super::RacerPort;
use crate::{grants::Leases, record::Recorder};

/// How long one question may take; then the classifier is out of reach.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are counted as a token: few, for the estimate must not be too low.
const BYTES_PER_TOKEN: u64 = 3;

/// What the gate says of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Block {
        reason: String,
    },
    /// Nothing is known: why.
    Unavailable {
        why: String,
    },
}

/// A small model, and how its use is paid for.
pub struct Classifier {
    model: Arc<dyn Model>,
    recorder: Arc<Recorder>,
    /// Where the session has a cap.
    leases: Option<Arc<Leases>>,
    /// The worker's own cap.
    budget: Budget,
    gate: Arc<Prefix>,
    racer: Arc<Prefix>,
    /// What the loop has not counted yet.
    spent: Mutex<Vec<(Usage, Cost)>>,
}

impl Classifier {
    /// A classifier that asks this model.
    pub fn new(
        model: Arc<dyn Model>,
        recorder: Arc<Recorder>,
        leases: Option<Arc<Leases>>,
        budget: Budget,
    ) -> Self {
        let prefix = |text: &str| Arc::new(Prefix { system: vec![text.to_owned()], tools: Vec::new() });
        Self {
            model,
            recorder,
            leases,
            budget,
            gate: prefix(GATE_PROMPT),
            racer: prefix(RACER_PROMPT),
            spent: Mutex::default(),
        }
    }

    /// The model's name.
    pub(super) fn name(&self) -> String {
        self.model.info().name
    }

    pub(super) fn take_spent(&self) -> Vec<(Usage, Cost)> {
        std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a call may run: a short look, and a long one where that did not say so.
    pub(super) async fn judge(&self, history: &CompactHistory, call: &str, action: &str) -> Verdict {
        for (look, max_tokens, purpose) in [
            (Look::First, FIRST_LOOK_TOKENS, "permission gate, first look"),
            (Look::Second, SECOND_LOOK_TOKENS, "permission gate, second look"),
        ] {
            let question = gate_question(history, call, action, look);
            let answer = match self.ask(&self.gate, question, max_tokens, purpose).await {
                Ok(answer) => answer,
                Err(why) => return Verdict::Unavailable { why },
            };
            match gate_answer(look, &answer) {
                Judgement::Pass => return Verdict::Pass,
                Judgement::Block { reason } => return Verdict::Block { reason },
                Judgement::LookAgain => {}
                Judgement::Unusable => break,
            }
        }
        Verdict::Unavailable { why: "its answer was of no use".to_owned() }
    }

    /// One question; the words of the answer, or why there are none.
    async fn ask(
        &self,
        prefix: &Arc<Prefix>,
        blocks: Vec<String>,
        max_tokens: u64,
        purpose: &str,
    ) -> Result<String, String> {
        let bytes: usize = prefix.system.iter().chain(&blocks).map(String::len).sum();
        let info = self.model.info();
        let planned = PlannedCall {
            model: info.name.clone(),
            input_tokens: bytes as u64 / BYTES_PER_TOKEN + 1,
            max_tokens: max_tokens.min(info.max_output),
        };
        let price = |usage: &Usage| self.model.cost(&planned.model, usage);
        let (usage, cost) = self.recorder.facts().spent;
        let mut allowed = self.budget.allows(&usage, &cost, &planned, &price)?;
        self.model.ready().await;
        // Given back when the question is dropped.
        let grant = match &self.leases {
            Some(leases) => Some(leases.aside(&planned, &price).await?),
            None => None,
        };
        if let Some(grant) = &grant {
            allowed = allowed.min(grant.max_tokens);
        }
        let message = Message { role: Role::User, content: blocks.into_iter().map(Block::text).collect() };
        let request = ModelRequest {
            prefix: Arc::clone(prefix),
            messages: vec![Arc::new(message)],
            max_tokens: allowed.max(self.model.least_output()),
            breakpoints: vec![Breakpoint::Prefix],
        };
        let mut response = Response::default();
        let read = tokio::time::timeout(PATIENCE, self.read(&request, &mut response)).await;
        let usage = response.usage.or_else(|| response.usage_so_far(planned.input_tokens));
        let mut records = Vec::new();
        if let Some(usage) = usage {
            let model = response.model.clone().unwrap_or(planned.model.clone());
            let cost = self.model.cost(&model, &usage);
            records.push(RecordBody::HelperCall { purpose: purpose.to_owned(), model, usage, cost });
            self.spent.lock().unwrap_or_else(PoisonError::into_inner).push((usage, cost));
        }
        if let Some(grant) = grant {
            records.push(RecordBody::GrantSettled { grants: vec![grant.settle()] });
        }
        self.recorder.write_aside(records, Durability::Soon).await.map_err(|error| error.to_string())?;
        match read {
            // What was cut off or refused is no answer, whatever it begins with.
            Ok(Ok(())) if response.stop_reason != Some(StopReason::EndTurn) => Ok(String::new()),
            Ok(Ok(())) => Ok(Message::assistant(response.whole_blocks()).text()),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("it did not answer within {} s", PATIENCE.as_secs())),
        }
    }

    async fn read(&self, request: &ModelRequest, response: &mut Response) -> Result<(), String> {
        let mut stream = self.model.stream(request).await.map_err(|error| error.to_string())?;
        while let Some(event) = stream.next().await {
            let event = event.map_err(|error| error.to_string())?;
            // It has no tools.
            let _call = response.take(&event);
            if let StreamEvent::Stopped(_) = event {
                break;
            }
        }
        Ok(())
    }
}

/// The racer: the same model, asked while a person is.
pub struct ClassifierRacer(pub Arc<Classifier>);

#[async_trait]
impl RacerPort for ClassifierRacer {
    async fn word(&self, request: &PermissionRequest) -> Option<PermissionBid> {
        let action = action(&request.tool, &request.input, request.cwd.as_deref().unwrap_or_default())?;
        let answer =
            self.0.ask(&self.0.racer, vec![racer_question(&action)], RACER_TOKENS, "permission racer").await;
        let reason = match answer {
            Ok(answer) => racer_allows(&answer)?,
            Err(why) => {
                tracing::info!(why, "the racer has no word; the request waits for the others");
                return None;
            }
        };
        Some(PermissionBid {
            id: request.id.clone(),
            decision: Decision::Allow,
            by: Racer::Classifier,
            source: Some(self.0.name()),
            reason: Some(reason),
        })
    }
}
