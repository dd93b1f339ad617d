//! A request that waits: it is recorded, racers and changed rules bid for it, and one decision of the desk settles it.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use agent_host::{PermissionAnswer, arguments_hash};
use futures::{StreamExt as _, stream::FuturesUnordered};
use query_engine::ports::{Durability, GateAnswer, Observer, ToolContext};
use serde_json::Value;
use swarm_protocol::{
    PermissionRequestId, ToolUseId, WaitingFor,
    frame::Live,
    permission::{Decision, PermissionBid, PermissionDecision, PermissionRequest, Racer, RuleBehavior},
    record::{RecordBody, input_summary},
};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    TIMED_OUT, WorkerGate,
    deadline::Deadline,
    judge::{Question, Ruling},
    words::{SEEK, from_decision, refused},
};
use crate::{record::now, tools::edit::Doubt};

/// The server denies what nobody answered; should its word not come, the worker does so this much later.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(15);

/// What reaches a request that waits.
pub(super) enum News {
    Decided(Box<PermissionDecision>),
    /// Rules or mode changed: look again.
    LookAgain,
}

/// Who waits for a request, and who beside a person may have a word about it.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) observer: &'a Arc<dyn Observer>,
    pub(super) cancel: &'a CancellationToken,
    /// Judged again when rules or mode change; none: they have no say in it.
    pub(super) question: Option<&'a Question>,
    /// Whether racers beside the agent are told of it.
    pub(super) may_race: bool,
}

impl<'a> Asking<'a> {
    /// A person alone decides.
    pub(super) fn person(context: &'a ToolContext) -> Self {
        Self { observer: &context.observer, cancel: &context.cancel, question: None, may_race: false }
    }
}

impl WorkerGate {
    pub(super) async fn ask(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: PermissionAnswer,
        is_persons: bool,
    ) -> GateAnswer {
        let may_race = !is_persons && !self.automatic.is_on(&self.judge);
        self.put_to_the_desk(question, context, answer, None, may_race).await
    }

    /// Asks although something else was to decide; `why` says what became of that.
    pub(super) async fn ask_because(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: PermissionAnswer,
        why: Option<&str>,
    ) -> GateAnswer {
        self.put_to_the_desk(question, context, answer, why, false).await
    }

    async fn put_to_the_desk(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: PermissionAnswer,
        why: Option<&str>,
        may_race: bool,
    ) -> GateAnswer {
        let cwd = question.cwd.to_string_lossy();
        let mut request =
            self.request(&question.tool, &question.input, &question.call, Some(&cwd), Some(&answer));
        if let Some(why) = why {
            request.why = format!("{} You are asked because {why}.", request.why);
        }
        let asking = Asking { question: Some(question), may_race, ..Asking::person(context) };
        self.put_to_the_person(request, asking).await
    }

    /// Asks whether an edit may change what is only like the text it names: no rule has a say in that.
    pub(super) async fn ask_about(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: Option<&PermissionAnswer>,
        doubt: Doubt,
    ) -> GateAnswer {
        let cwd = question.cwd.to_string_lossy();
        let mut request = self.request(&question.tool, &question.input, &question.call, Some(&cwd), answer);
        request.why = format!("{} It asks because {}.", request.why, doubt.sentence).trim_start().to_owned();
        request.proposed_rule = None;
        if let Some(input) = request.input.as_object_mut() {
            // Beside the text that the model named.
            input.insert("stands_in_the_file".to_owned(), doubt.texts.join("\n\n").into());
        }
        self.link.masker.mask_value(&mut request.input);
        // The answer is bound to what was shown.
        request.args_hash = arguments_hash(&request.tool, request.cwd.as_deref(), &request.input);
        let answer = self.put_to_the_person(request, Asking::person(context)).await;
        if answer == GateAnswer::Allow {
            self.judge.agree(question, doubt);
        }
        answer
    }

    /// Asks a person, and nobody else: no rule, hook or classifier has a word, whatever the mode.
    ///
    /// # Errors
    /// Nobody answered, for this reason.
    pub async fn ask_person(
        &self,
        tool: &str,
        input: &Value,
        context: &ToolContext,
        why: &str,
    ) -> Result<PermissionDecision, String> {
        if self.judge.config.is_unattended {
            return Err("The task is unattended, so there is nobody to ask.".to_owned());
        }
        let cwd = self.shell.cwd();
        let request = self.request(tool, input, &context.tool_use_id, Some(&cwd.to_string_lossy()), None);
        let request = PermissionRequest { why: why.to_owned(), ..request };
        match self.settle(request, Asking::person(context)).await {
            Ok(decision) if matches!(decision.by, Racer::Person | Racer::Remote) => Ok(decision),
            Ok(decision) => Err(match from_decision(&decision) {
                GateAnswer::Deny { text, .. } => text,
                GateAnswer::Allow => format!("It was no person who answered, but {}.", decision.by.as_str()),
            }),
            Err(GateAnswer::Deny { text, .. }) => Err(text),
            Err(GateAnswer::Allow) => Err("Nobody answered.".to_owned()),
        }
    }

    /// Records a request and waits for one decision.
    pub(super) async fn put_to_the_person(
        &self,
        request: PermissionRequest,
        asking: Asking<'_>,
    ) -> GateAnswer {
        match self.settle(request, asking).await {
            Ok(decision) => from_decision(&decision),
            Err(answer) => answer,
        }
    }

    /// The same, and gives the decision; else what ended the wait.
    async fn settle(
        &self,
        request: PermissionRequest,
        asking: Asking<'_>,
    ) -> Result<PermissionDecision, GateAnswer> {
        let id = request.id.clone();
        // One decision and one look.
        let (sender, news) = mpsc::channel(2);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), sender);
        let registered = Registered { gate: self, id: &id };
        let not_taken = self.link.not_taken.subscribe();
        let cause = format!("{} {}", request.tool, request.summary);
        let record = RecordBody::PermissionRequested { request: Box::new(request.clone()) };
        if let Err(error) = self.recorder.write(vec![record], Durability::Now).await {
            return Err(refused(format!("The permission request could not be recorded: {error}. {SEEK}")));
        }
        asking.observer.live(Live::Waiting { waiting_for: Some(WaitingFor::Permission), cause, until: None });
        let settled = self.wait(&request, asking, news, not_taken).await;
        drop(registered);
        if self.open.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            asking.observer.live(Live::Waiting { waiting_for: None, cause: String::new(), until: None });
        }
        match settled {
            Settled::By(decision) if is_for(&decision, &request) => Ok(*decision),
            Settled::By(_) => {
                Err(refused(format!("The answer was given to another call than this one. {SEEK}")))
            }
            Settled::Here { answer, reason } => {
                let withdrawn = RecordBody::PermissionWithdrawn { id: id.clone(), reason };
                Err(match self.recorder.write(vec![withdrawn], Durability::Soon).await {
                    Ok(_) => answer,
                    Err(error) => refused(format!("The permission request could not be closed: {error}.")),
                })
            }
        }
    }

    async fn wait(
        &self,
        request: &PermissionRequest,
        asking: Asking<'_>,
        mut news: mpsc::Receiver<News>,
        mut not_taken: broadcast::Receiver<(PermissionRequestId, String)>,
    ) -> Settled {
        let _standstill = self.clock.stand_still();
        let mut deadline =
            Deadline::new(self.judge.config.timeout.get() + TIMEOUT_MARGIN, self.link.state.clone());
        let racers = self.racers.get().into_iter().flatten().filter(|_| asking.may_race);
        let mut racing: FuturesUnordered<_> = racers.map(|racer| racer.word(request)).collect();
        loop {
            // News are in the channel until they are taken; the deadline keeps what it has counted.
            tokio::select! {
                biased;
                arrived = news.recv() => match arrived {
                    Some(News::Decided(decision)) => return Settled::By(decision),
                    // The sender left the table with a decision, which comes first.
                    None => return Settled::here(refused(TIMED_OUT.to_owned()), "the request is closed"),
                    Some(News::LookAgain) => {
                        let Some(question) = asking.question else { continue };
                        // What cannot be looked at is left to the person.
                        let Ok(Ruling { answer, .. }) = self.judge.answer(question).await else { continue };
                        let decision = match answer.behavior {
                            RuleBehavior::Allow => Decision::Allow,
                            RuleBehavior::Deny => Decision::Deny,
                            RuleBehavior::Ask => continue,
                        };
                        let reason = Some(answer.by.because());
                        let id = request.id.clone();
                        let bid = PermissionBid { id, decision, by: Racer::Rule, source: None, reason };
                        if let Err(settled) = self.bid(bid).await {
                            return settled;
                        }
                    }
                },
                word = not_taken.recv() => {
                    if let Some(reason) = not_taken_word(&request.id, word) {
                        let text = format!("The permission request could not be recorded: {reason}. {SEEK}");
                        return Settled::here(refused(text), "the server could not record it");
                    }
                }
                Some(bid) = racing.next() => {
                    if let Some(bid) = bid
                        && let Err(settled) = self.bid(bid).await
                    {
                        return settled;
                    }
                }
                () = asking.cancel.cancelled() => {
                    return Settled::here(refused("The call was cancelled while it waited for permission.".to_owned()), "the call was cancelled");
                }
                () = deadline.passed() => {
                    return Settled::here(refused(format!("{TIMED_OUT}. {SEEK}")), TIMED_OUT);
                }
            }
        }
    }

    /// Brings a racer's word to the desk. It need not be there at once: the request waits on.
    async fn bid(&self, bid: PermissionBid) -> Result<(), Settled> {
        let record = RecordBody::PermissionBid { bid };
        match self.recorder.write(vec![record], Durability::Soon).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let text =
                    format!("An answer to the permission request could not be recorded: {error}. {SEEK}");
                Err(Settled::here(refused(text), "an answer could not be recorded"))
            }
        }
    }

    pub(super) fn request(
        &self,
        tool: &str,
        input: &Value,
        call: &ToolUseId,
        cwd: Option<&str>,
        answer: Option<&PermissionAnswer>,
    ) -> PermissionRequest {
        // As it will travel: an answer is bound to what was shown, and no keys are.
        let mut input = input.clone();
        self.link.masker.mask_value(&mut input);
        let input = &input;
        let cwd = cwd.map(|cwd| self.link.masker.mask(cwd));
        let cwd = cwd.as_deref();
        PermissionRequest {
            id: new_request_id(),
            worker_id: self.judge.config.worker_id.clone(),
            run: self.judge.config.run,
            tool_use_id: call.clone(),
            tool: tool.to_owned(),
            input: input.clone(),
            summary: input_summary(input),
            why: answer.map(|answer| format!("It asks because {}.", answer.by.because())).unwrap_or_default(),
            proposed_rule: answer.and_then(|answer| answer.proposed_rule.clone()),
            description: input.get("description").and_then(Value::as_str).map(str::to_owned),
            requested_at: now(),
            timeout_ms: self.judge.config.timeout.get().as_millis() as u64,
            cwd: cwd.map(str::to_owned),
            args_hash: arguments_hash(tool, cwd, input),
        }
    }
}

fn new_request_id() -> PermissionRequestId {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = uuid::Uuid::new_v4().as_u128();
    let mut text = String::from("req-");
    for _ in 0..8 {
        text.push(char::from(ALPHABET[(random % 36) as usize]));
        random /= 36;
    }
    text.parse().expect("eight characters of the alphabet make a request id")
}

/// Whether a decision was made for exactly this call. One of an earlier version does not say.
fn is_for(decision: &PermissionDecision, request: &PermissionRequest) -> bool {
    decision.args_hash.is_empty() || decision.args_hash == request.args_hash
}

/// Why a request is not taken, if the word is about it. Who missed words waits for the repeat.
fn not_taken_word(
    id: &PermissionRequestId,
    word: Result<(PermissionRequestId, String), broadcast::error::RecvError>,
) -> Option<String> {
    word.ok().filter(|(other, _)| other == id).map(|(_, reason)| reason)
}

enum Settled {
    /// By the server's word.
    By(Box<PermissionDecision>),
    /// By this process, which says so in a record.
    Here { answer: GateAnswer, reason: String },
}

impl Settled {
    fn here(answer: GateAnswer, reason: impl Into<String>) -> Self {
        Self::Here { answer, reason: reason.into() }
    }
}

/// Takes the request out of the table, however the wait ends.
struct Registered<'a> {
    gate: &'a WorkerGate,
    id: &'a PermissionRequestId,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.gate.open.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}
