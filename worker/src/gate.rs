//! Permission for a call: decided here by rules, mode and sandbox; only what asks goes to the server's desk,
//! as a record, and waits for one decision.
//!
//! ```text
//! decide -> allow | deny
//!        -> ask -> requested -> decided | settled by a rule | timed out | withdrawn (call cancelled)
//! ```

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_host::{DiskPaths, PathResolver, PermissionAnswer, RuleSet, SandboxState};
use async_trait::async_trait;
use query_engine::ports::{Durability, Gate, GateAnswer, Observer, Repeats, Subject, Tool, ToolContext};
use serde_json::Value;
use swarm_protocol::{
    PermissionRequestId, RunNumber, ToolUseId, WaitingFor, WorkerId,
    frame::Live,
    launch::Isolation,
    permission::{PermissionDecision, PermissionMode, PermissionRequest, Rule, RuleBehavior},
    record::{RecordBody, input_summary},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::RunClock,
    link::LinkState,
    record::{Recorder, now},
    shell::Shell,
    tools::{Files, config::Adjustable, edit::Doubt},
};

mod deadline;
mod judge;
mod words;

use deadline::Deadline;
use judge::{Judge, Question};
use words::{SEEK, by_rules, from_decision, refused};

/// The server denies what nobody answered; should its word not come, the worker does so this much later.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(15);
/// What stands for the tool where an agent that repeats itself asks whether it may go on.
const REPEATS: &str = "Repetition";
/// What a request says when nobody answered.
pub const TIMED_OUT: &str = "Permission request timed out";

/// What a gate is made of.
pub struct GateConfig {
    /// Who asks.
    pub worker_id: WorkerId,
    /// In which run.
    pub run: RunNumber,
    /// The rules at the start.
    pub rules: RuleSet,
    /// The mode at the start.
    pub mode: PermissionMode,
    /// Where the agent works.
    pub isolation: Isolation,
    /// What confines its commands.
    pub sandbox: SandboxState,
    /// Nobody will answer.
    pub is_unattended: bool,
    /// The user's home.
    pub home: PathBuf,
    /// Further places to write.
    pub writable: Vec<PathBuf>,
    /// Further places to read.
    pub readable: Vec<PathBuf>,
    /// How long a request waits.
    pub timeout: Adjustable,
}

/// The gate of a run.
pub struct WorkerGate {
    judge: Arc<Judge>,
    shell: Arc<Shell>,
    recorder: Arc<Recorder>,
    link: watch::Receiver<LinkState>,
    clock: Arc<RunClock>,
    open: Mutex<HashMap<PermissionRequestId, mpsc::Sender<News>>>,
}

/// What reaches a request that waits.
enum News {
    Decided(Box<PermissionDecision>),
    /// Rules or mode changed: look again.
    LookAgain,
}

impl WorkerGate {
    /// A gate over these tools' ground.
    pub fn new(
        config: GateConfig,
        files: Arc<Files>,
        shell: Arc<Shell>,
        recorder: Arc<Recorder>,
        link: watch::Receiver<LinkState>,
        clock: Arc<RunClock>,
    ) -> Self {
        Self::with_paths(config, files, Arc::new(DiskPaths), shell, recorder, link, clock)
    }

    /// The same, with paths that lead where the caller says.
    fn with_paths(
        config: GateConfig,
        files: Arc<Files>,
        paths: Arc<dyn PathResolver>,
        shell: Arc<Shell>,
        recorder: Arc<Recorder>,
        link: watch::Receiver<LinkState>,
        clock: Arc<RunClock>,
    ) -> Self {
        shell.set_reads_only(config.mode == PermissionMode::Plan);
        let judge = Arc::new(Judge::new(config, files, paths));
        Self { judge, shell, recorder, link, clock, open: Mutex::default() }
    }

    /// A decision of the server; one for a request that does not wait (any more) changes nothing.
    pub fn decided(&self, decision: PermissionDecision) {
        let waiting = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&decision.id);
        match waiting {
            // The channel has room for one of each kind of news.
            Some(sender) => drop(sender.try_send(News::Decided(Box::new(decision)))),
            None => tracing::info!(id = %decision.id, "a decision came for a request that does not wait"),
        }
    }

    /// A rule holds from now on.
    pub fn add_rule(&self, rule: Rule) -> Result<(), agent_host::RuleError> {
        self.judge.rules.write().unwrap_or_else(PoisonError::into_inner).add(rule)?;
        self.look_again();
        Ok(())
    }

    /// The mode from now on.
    pub fn set_mode(&self, mode: PermissionMode) {
        // Narrowed before the mode is said, so that no command writes that is judged as one that cannot.
        if mode == PermissionMode::Plan {
            self.shell.set_reads_only(true);
        }
        *self.judge.mode.write().unwrap_or_else(PoisonError::into_inner) = mode;
        self.shell.set_reads_only(mode == PermissionMode::Plan);
        self.look_again();
    }

    /// Whether rules and mode let a tool ask this host without a person's word.
    pub fn allows_host(&self, tool: &str, host: &str) -> bool {
        self.judge.allows_host(tool, host)
    }

    fn look_again(&self) {
        for sender in self.open.lock().unwrap_or_else(PoisonError::into_inner).values() {
            // The last place is a decision's; a look that is due already serves.
            if sender.capacity() > 1 {
                drop(sender.try_send(News::LookAgain));
            }
        }
    }

    fn question(&self, tool: &dyn Tool, input: &Value, call: &ToolUseId) -> Question {
        Question {
            call: call.clone(),
            tool: tool.name().to_owned(),
            input: input.clone(),
            subjects: tool.subjects(input),
            needs_nothing: tool.is_read_only(input) || tool.is_own_state(),
            cwd: self.shell.cwd(),
        }
    }

    /// What rules and mode say to a call of an inner agent, whose tools work on `files`. Nobody is asked: what would
    /// ask is refused.
    pub async fn check_inner(
        &self,
        tool: &dyn Tool,
        input: &Value,
        context: &ToolContext,
        files: &Files,
    ) -> GateAnswer {
        let question = self.question(tool, input, &context.tool_use_id);
        for subject in &question.subjects {
            if let Subject::Read(path) | Subject::Write(path) = subject {
                files.pass(&question.call, path);
            }
        }
        match self.judge.answer(&question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(answer) => match answer.behavior {
                RuleBehavior::Allow => GateAnswer::Allow,
                RuleBehavior::Deny => by_rules(&answer),
                RuleBehavior::Ask => refused(format!(
                    "This call asks a person, which an inner agent cannot: {}. {SEEK}",
                    answer.by.because()
                )),
            },
        }
    }

    async fn ask(&self, question: &Question, context: &ToolContext, answer: PermissionAnswer) -> GateAnswer {
        let request = self.request(&question.tool, &question.input, &question.call, Some(&answer));
        self.put_to_the_person(request, &context.observer, &context.cancel, Some(question)).await
    }

    /// Asks whether an edit may change what is only like the text it names: no rule has a say in that.
    async fn ask_about(
        &self,
        question: &Question,
        context: &ToolContext,
        answer: Option<&PermissionAnswer>,
        doubt: Doubt,
    ) -> GateAnswer {
        let mut request = self.request(&question.tool, &question.input, &question.call, answer);
        request.why = format!("{} It asks because {}.", request.why, doubt.sentence).trim_start().to_owned();
        request.proposed_rule = None;
        if let Some(input) = request.input.as_object_mut() {
            // Beside the text that the model named.
            input.insert("stands_in_the_file".to_owned(), doubt.texts.join("\n\n").into());
        }
        let answer = self.put_to_the_person(request, &context.observer, &context.cancel, None).await;
        if answer == GateAnswer::Allow {
            self.judge.agree(question, doubt);
        }
        answer
    }

    /// Records a request and waits for one decision. `question` is judged again when rules or
    /// mode change; none: they have no say in it.
    async fn put_to_the_person(
        &self,
        request: PermissionRequest,
        observer: &Arc<dyn Observer>,
        cancel: &CancellationToken,
        question: Option<&Question>,
    ) -> GateAnswer {
        let id = request.id.clone();
        // One decision and one look.
        let (sender, news) = mpsc::channel(2);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), sender);
        let registered = Registered { gate: self, id: &id };
        let cause = format!("{} {}", request.tool, request.summary);
        let record = RecordBody::PermissionRequested { request: Box::new(request) };
        if let Err(error) = self.recorder.write(vec![record], Durability::Now).await {
            return refused(format!("The permission request could not be recorded: {error}."));
        }
        observer.live(Live::Waiting { waiting_for: Some(WaitingFor::Permission), cause, until: None });
        let settled = self.wait(question, cancel, news).await;
        drop(registered);
        if self.open.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            observer.live(Live::Waiting { waiting_for: None, cause: String::new(), until: None });
        }
        match settled {
            Settled::By(decision) => from_decision(&decision),
            Settled::Here { answer, reason } => {
                let withdrawn = RecordBody::PermissionWithdrawn { id: id.clone(), reason };
                match self.recorder.write(vec![withdrawn], Durability::Soon).await {
                    Ok(_) => answer,
                    Err(error) => refused(format!("The permission request could not be closed: {error}.")),
                }
            }
        }
    }

    async fn wait(
        &self,
        question: Option<&Question>,
        cancel: &CancellationToken,
        mut news: mpsc::Receiver<News>,
    ) -> Settled {
        let _standstill = self.clock.stand_still();
        let mut deadline = Deadline::new(self.judge.config.timeout.get() + TIMEOUT_MARGIN, self.link.clone());
        loop {
            // News are in the channel until they are taken; the deadline keeps what it has counted.
            tokio::select! {
                biased;
                arrived = news.recv() => match arrived {
                    Some(News::Decided(decision)) => return Settled::By(decision),
                    // The sender left the table with a decision, which comes first.
                    None => return Settled::here(refused(TIMED_OUT.to_owned()), "the request is closed"),
                    Some(News::LookAgain) => {
                        let Some(question) = question else { continue };
                        // What cannot be looked at is left to the person.
                        let Ok(answer) = self.judge.answer(question).await else { continue };
                        match answer.behavior {
                            RuleBehavior::Allow => {
                                return Settled::here(GateAnswer::Allow, format!("allowed: {}", answer.by.because()));
                            }
                            RuleBehavior::Deny => {
                                let reason = format!("denied: {}", answer.by.because());
                                return Settled::here(by_rules(&answer), reason);
                            }
                            RuleBehavior::Ask => {}
                        }
                    }
                },
                () = cancel.cancelled() => {
                    return Settled::here(refused("The call was cancelled while it waited for permission.".to_owned()), "the call was cancelled");
                }
                () = deadline.passed() => {
                    return Settled::here(refused(format!("{TIMED_OUT}. {SEEK}")), TIMED_OUT);
                }
            }
        }
    }

    fn request(
        &self,
        tool: &str,
        input: &Value,
        call: &ToolUseId,
        answer: Option<&PermissionAnswer>,
    ) -> PermissionRequest {
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
        }
    }
}

#[async_trait]
impl Gate for WorkerGate {
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer {
        let question = self.question(tool, input, &context.tool_use_id);
        match self.judge.answer(&question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(answer) if answer.behavior == RuleBehavior::Deny => by_rules(&answer),
            Ok(answer) => {
                let asks = answer.behavior == RuleBehavior::Ask;
                match self.judge.doubt(&question).await {
                    Some(doubt) => self.ask_about(&question, context, asks.then_some(&answer), doubt).await,
                    None if asks => self.ask(&question, context, answer).await,
                    None => GateAnswer::Allow,
                }
            }
        }
    }

    async fn may_go_on(
        &self,
        repeats: &Repeats,
        observer: &Arc<dyn Observer>,
        cancel: &CancellationToken,
    ) -> bool {
        // Words alone belong to no call.
        let call = repeats.call.clone().or_else(|| REPEATS.parse().ok());
        let Some(call) = call.filter(|_| !self.judge.config.is_unattended) else { return false };
        let request = PermissionRequest {
            tool: REPEATS.to_owned(),
            summary: repeats.what.clone(),
            why: "It asks because it repeats itself, although it was reminded. Allowed, it goes on; denied, it ends."
                .to_owned(),
            proposed_rule: None,
            ..self.request(REPEATS, &serde_json::json!({ "repeats": repeats.what }), &call, None)
        };
        self.put_to_the_person(request, observer, cancel, None).await == GateAnswer::Allow
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

#[cfg(test)]
mod tests;
