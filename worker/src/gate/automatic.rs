//! The mode `auto` (spec 5.4): what would ask is judged by a classifier first.
//!
//! ```text
//! asks -> a person's matter (ask rules, critical paths) -> desk
//!      -> refused too often -> desk; where nobody watches it is judged on
//!      -> judged -> passes | blocked -> denied, or the desk with the refusal that was one too many
//!                -> out of reach -> denied; the desk, if so set and somebody watches
//! ```

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use agent_host::PermissionAnswer;
use query_engine::{
    classifier::{CompactHistory, Refusals, action},
    ports::{Durability, GateAnswer, ToolContext},
};
use serde_json::Value;
use swarm_protocol::{
    ToolUseId, Usage,
    permission::{Decision, PermissionDecision, PermissionMode, Racer, RuleBehavior, Scope},
    record::RecordBody,
    usage::Cost,
};

use super::{
    WorkerGate,
    classifier::{Classifier, Verdict},
    judge::{Judge, Question, Ruling},
    words::{SEEK, by_classifier, by_rules, refused, without_classifier},
};
use crate::record::now;

/// Calls that the gate heard of and the transcript may not hold yet: those of one answer.
const HEARD: usize = 100;

/// What the mode `auto` needs to know of a run.
#[derive(Default)]
pub(super) struct Automatic {
    classifier: OnceLock<Arc<Classifier>>,
    refusals: Mutex<Refusals>,
    heard: Mutex<Vec<(ToolUseId, String, Value)>>,
}

impl Automatic {
    pub(super) fn judge_by(&self, classifier: Arc<Classifier>) {
        if self.classifier.set(classifier).is_err() {
            tracing::error!("the classifier of this run was named twice");
        }
    }

    pub(super) fn is_on(&self, judge: &Judge) -> bool {
        *judge.mode.read().unwrap_or_else(PoisonError::into_inner) == PermissionMode::Auto
    }

    /// A call came by, whatever becomes of it.
    pub(super) fn heard(&self, question: &Question) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.len() == HEARD {
            heard.remove(0);
        }
        heard.push((question.call.clone(), question.tool.clone(), question.input.clone()));
    }

    pub(super) fn take_spent(&self) -> Vec<(Usage, Cost)> {
        self.classifier.get().map(|classifier| classifier.take_spent()).unwrap_or_default()
    }

    /// The transcript's history with the calls of the answer under way.
    fn history(&self, mut recorded: CompactHistory) -> CompactHistory {
        for (id, tool, input) in self.heard.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            recorded.called(id.as_str(), tool, input);
        }
        recorded
    }

    fn refusals(&self) -> std::sync::MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerGate {
    /// Decides about a call that asks in the mode `auto`.
    pub(super) async fn judged(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: PermissionAnswer,
    ) -> GateAnswer {
        let is_watched = !self.judge.config.is_unattended;
        if is_watched && self.automatic.refusals().are_too_many() {
            return self.ask_instead(question, context, answer, "the classifier refused too often").await;
        }
        let verdict = tokio::select! {
            // What it asked is dropped, and what it used is not known to anybody.
            () = context.cancel.cancelled() => {
                return refused("The call was cancelled while it was judged.".to_owned());
            }
            verdict = self.classify(question) => verdict,
        };
        match verdict {
            Verdict::Pass => {
                // A look takes its time, and a person may have changed rules or mode meanwhile.
                match self.judge.answer(question).await {
                    Err(problem) => {
                        return refused(format!("This call was not allowed: {problem}. {SEEK}"));
                    }
                    Ok(Ruling { answer, .. }) if answer.behavior == RuleBehavior::Deny => {
                        return by_rules(&answer);
                    }
                    Ok(Ruling { answer, is_persons, is_judged: false })
                        if answer.behavior == RuleBehavior::Ask =>
                    {
                        return self.ask(question, context, answer, is_persons).await;
                    }
                    Ok(_) => {}
                }
                self.automatic.refusals().passed();
                match self.note_judged(question, &answer, Decision::Allow, None).await {
                    Ok(()) => GateAnswer::Allow,
                    Err(problem) => refused(problem),
                }
            }
            Verdict::Block { reason } => {
                let too_many = {
                    let mut refusals = self.automatic.refusals();
                    refusals.refused();
                    refusals.are_too_many()
                };
                if is_watched && too_many {
                    let why = format!("the classifier refused it ({reason}), as it did the calls before");
                    return self.ask_instead(question, context, answer, &why).await;
                }
                match self.note_judged(question, &answer, Decision::Deny, Some(reason.clone())).await {
                    Ok(()) => by_classifier(&reason),
                    Err(problem) => refused(problem),
                }
            }
            Verdict::Unavailable { why } => {
                tracing::warn!(why, "the classifier is out of reach");
                if is_watched && self.judge.config.asks_when_unavailable {
                    let why = format!("the classifier is out of reach: {why}");
                    return self.ask_instead(question, context, answer, &why).await;
                }
                let reason = format!("the classifier is out of reach: {why}");
                match self.note_judged(question, &answer, Decision::Deny, Some(reason)).await {
                    Ok(()) => without_classifier(&why),
                    Err(problem) => refused(problem),
                }
            }
        }
    }

    async fn classify(&self, question: &Question) -> Verdict {
        let Some(classifier) = self.automatic.classifier.get() else {
            return Verdict::Unavailable { why: "it has no model".to_owned() };
        };
        let Some(action) = action(&question.tool, &question.input, &question.cwd.to_string_lossy()) else {
            return Verdict::Block { reason: "the call is too long to be looked at whole".to_owned() };
        };
        let history = self.automatic.history(self.recorder.facts().history);
        classifier.judge(&history, question.call.as_str(), &action).await
    }

    /// The person's word ends a row of refusals.
    async fn ask_instead(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: PermissionAnswer,
        why: &str,
    ) -> GateAnswer {
        let answered = self.ask_because(question, context, answer, Some(why)).await;
        if answered == GateAnswer::Allow {
            self.automatic.refusals().passed();
        }
        answered
    }

    /// Records what the classifier decided, before it is obeyed.
    async fn note_judged(
        &self,
        question: &Question,
        answer: &PermissionAnswer,
        decision: Decision,
        reason: Option<String>,
    ) -> Result<(), String> {
        let cwd = question.cwd.to_string_lossy();
        let request = self.request(&question.tool, &question.input, &question.call, Some(&cwd), Some(answer));
        let decision = PermissionDecision {
            id: request.id.clone(),
            decision,
            scope: Scope::Once,
            by: Racer::Classifier,
            reason,
            stop: false,
            decided_at: now(),
            source: self.automatic.classifier.get().map(|classifier| classifier.name()),
            args_hash: request.args_hash.clone(),
        };
        let record = RecordBody::PermissionJudged { request: Box::new(request), decision };
        match self.recorder.write(vec![record], Durability::Soon).await {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("The decision about this call could not be recorded: {error}.")),
        }
    }
}
