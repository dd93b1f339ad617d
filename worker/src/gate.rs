//! Permission for a call: decided here by rules, mode and sandbox; only what asks goes to the server's desk,
//! as a record, and waits for one decision.
//!
//! ```text
//! decide -> allow | deny
//!        -> ask -> requested -> decided | not taken | timed out | withdrawn (call cancelled)
//!                     └ bids of rules that changed meanwhile, and of racers beside the agent
//! ```
//!
//! What the desk decided is the only word that lets a call pass which asked: a rule or mode that comes later bids
//! for it like everybody else.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use agent_host::{DiskPaths, PathResolver, PermissionAnswer, RuleSet, SandboxState, arguments_hash};
use async_trait::async_trait;
use futures::{StreamExt as _, stream::FuturesUnordered};
use query_engine::ports::{Durability, Gate, GateAnswer, Observer, Repeats, Subject, Tool, ToolContext};
use serde_json::Value;
use swarm_protocol::{
    PermissionRequestId, RunNumber, ToolUseId, Usage, WaitingFor, WorkerId,
    frame::Live,
    launch::Isolation,
    permission::{
        Decision, PermissionBid, PermissionDecision, PermissionMode, PermissionRequest, Racer, Rule,
        RuleBehavior,
    },
    record::{RecordBody, input_summary},
    usage::Cost,
};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::RunClock,
    link::{LinkState, NotTaken},
    record::{Recorder, now},
    shell::Shell,
    tools::{Files, config::Adjustable, edit::Doubt},
};

mod automatic;
mod classifier;
mod deadline;
mod judge;
mod words;

use automatic::Automatic;
pub use classifier::{Classifier, ClassifierRacer};
use deadline::Deadline;
use judge::{Judge, Question, Ruling};
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
    /// A person is asked where the classifier of the mode `auto` is out of reach; else the call is refused.
    pub asks_when_unavailable: bool,
}

/// What the gate hears of the server beside its decisions.
#[derive(Clone)]
pub struct GateLink {
    /// Where the connection stands.
    pub state: watch::Receiver<LinkState>,
    /// Requests that nobody will answer.
    pub not_taken: NotTaken,
}

/// Somebody beside the person who may have a word about a request that waits: the classifier, or hooks.
#[async_trait]
pub trait RacerPort: Send + Sync {
    /// A word for the desk; none leaves the request to the others. Dropped when the request is settled.
    async fn word(&self, request: &PermissionRequest) -> Option<PermissionBid>;
}

/// The gate of a run.
pub struct WorkerGate {
    judge: Arc<Judge>,
    shell: Arc<Shell>,
    recorder: Arc<Recorder>,
    link: GateLink,
    racers: OnceLock<Vec<Arc<dyn RacerPort>>>,
    automatic: Automatic,
    /// What holds again when a plan is accepted.
    before_plan: Mutex<PermissionMode>,
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
        link: GateLink,
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
        link: GateLink,
        clock: Arc<RunClock>,
    ) -> Self {
        shell.set_reads_only(config.mode == PermissionMode::Plan);
        // What a worker has where nothing else is said (spec 5.1).
        let before_plan =
            if config.mode == PermissionMode::Plan { PermissionMode::AcceptEdits } else { config.mode };
        let judge = Arc::new(Judge::new(config, files, paths));
        Self {
            judge,
            shell,
            recorder,
            link,
            racers: OnceLock::new(),
            automatic: Automatic::default(),
            before_plan: Mutex::new(before_plan),
            clock,
            open: Mutex::default(),
        }
    }

    /// Who else may have a word about requests from now on. Said once, when the run has its models.
    pub fn race(&self, racers: Vec<Arc<dyn RacerPort>>) {
        if self.racers.set(racers).is_err() {
            tracing::error!("the racers of this run were named twice");
        }
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
        let mut current = self.judge.mode.write().unwrap_or_else(PoisonError::into_inner);
        if mode == PermissionMode::Plan && *current != mode {
            *self.before_plan.lock().unwrap_or_else(PoisonError::into_inner) = *current;
        }
        // Both under one lock: no command writes that is judged as one that cannot.
        self.shell.set_reads_only(mode == PermissionMode::Plan);
        *current = mode;
        drop(current);
        self.look_again();
    }

    /// The mode that holds.
    pub fn mode(&self) -> PermissionMode {
        *self.judge.mode.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mode from before the planning, from now on.
    pub fn leave_plan(&self) {
        let before = *self.before_plan.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_mode(before);
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
            Ok(Ruling { answer, .. }) => match answer.behavior {
                RuleBehavior::Allow => GateAnswer::Allow,
                RuleBehavior::Deny => by_rules(&answer),
                RuleBehavior::Ask => refused(format!(
                    "This call asks a person, which an inner agent cannot: {}. {SEEK}",
                    answer.by.because()
                )),
            },
        }
    }

    /// The model that the gate of the mode `auto` asks from now on. Said once, when the run has its models.
    pub fn judge_by(&self, classifier: Arc<Classifier>) {
        self.automatic.judge_by(classifier);
    }

    async fn ask(
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
    async fn ask_because(
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
        self.put_to_the_person(request, &context.observer, &context.cancel, Some(question), may_race).await
    }

    /// Asks whether an edit may change what is only like the text it names: no rule has a say in that.
    async fn ask_about(
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
        // The answer is bound to what was shown.
        request.args_hash = arguments_hash(&request.tool, request.cwd.as_deref(), &request.input);
        let answer = self.put_to_the_person(request, &context.observer, &context.cancel, None, false).await;
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
        match self.settle(request, &context.observer, &context.cancel, None, false).await {
            Ok(decision) if matches!(decision.by, Racer::Person | Racer::Remote) => Ok(decision),
            Ok(decision) => Err(match from_decision(&decision) {
                GateAnswer::Deny { text, .. } => text,
                GateAnswer::Allow => format!("It was no person who answered, but {}.", decision.by.as_str()),
            }),
            Err(GateAnswer::Deny { text, .. }) => Err(text),
            Err(GateAnswer::Allow) => Err("Nobody answered.".to_owned()),
        }
    }

    /// Records a request and waits for one decision. `question` is judged again when rules or
    /// mode change; none: they have no say in it.
    async fn put_to_the_person(
        &self,
        request: PermissionRequest,
        observer: &Arc<dyn Observer>,
        cancel: &CancellationToken,
        question: Option<&Question>,
        may_race: bool,
    ) -> GateAnswer {
        match self.settle(request, observer, cancel, question, may_race).await {
            Ok(decision) => from_decision(&decision),
            Err(answer) => answer,
        }
    }

    /// The same, and gives the decision; else what ended the wait.
    async fn settle(
        &self,
        request: PermissionRequest,
        observer: &Arc<dyn Observer>,
        cancel: &CancellationToken,
        question: Option<&Question>,
        may_race: bool,
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
        observer.live(Live::Waiting { waiting_for: Some(WaitingFor::Permission), cause, until: None });
        let settled = self.wait(&request, question, may_race, cancel, news, not_taken).await;
        drop(registered);
        if self.open.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            observer.live(Live::Waiting { waiting_for: None, cause: String::new(), until: None });
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
        question: Option<&Question>,
        may_race: bool,
        cancel: &CancellationToken,
        mut news: mpsc::Receiver<News>,
        mut not_taken: broadcast::Receiver<(PermissionRequestId, String)>,
    ) -> Settled {
        let _standstill = self.clock.stand_still();
        let mut deadline =
            Deadline::new(self.judge.config.timeout.get() + TIMEOUT_MARGIN, self.link.state.clone());
        let racers = self.racers.get().into_iter().flatten().filter(|_| may_race);
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
                        let Some(question) = question else { continue };
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
                () = cancel.cancelled() => {
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

    fn request(
        &self,
        tool: &str,
        input: &Value,
        call: &ToolUseId,
        cwd: Option<&str>,
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
            cwd: cwd.map(str::to_owned),
            args_hash: arguments_hash(tool, cwd, input),
        }
    }
}

#[async_trait]
impl Gate for WorkerGate {
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer {
        let question = self.question(tool, input, &context.tool_use_id);
        self.automatic.heard(&question);
        match self.judge.answer(&question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(Ruling { answer, .. }) if answer.behavior == RuleBehavior::Deny => by_rules(&answer),
            Ok(Ruling { answer, is_persons, is_judged }) => {
                let asks = answer.behavior == RuleBehavior::Ask;
                match self.judge.doubt(&question).await {
                    Some(doubt) => self.ask_about(&question, context, asks.then_some(&answer), doubt).await,
                    None if is_judged => self.judged(&question, context, answer).await,
                    None if asks => self.ask(&question, context, answer, is_persons).await,
                    None => GateAnswer::Allow,
                }
            }
        }
    }

    fn take_spent(&self) -> Vec<(Usage, Cost)> {
        self.automatic.take_spent()
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
            ..self.request(REPEATS, &serde_json::json!({ "repeats": repeats.what }), &call, None, None)
        };
        // An agent that repeats itself is a person's matter.
        self.put_to_the_person(request, observer, cancel, None, false).await == GateAnswer::Allow
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

#[cfg(test)]
mod tests;
