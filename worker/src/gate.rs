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
};

use agent_host::{DiskPaths, PathResolver, RuleSet, SandboxState, secrets::Masker};
use async_trait::async_trait;
use query_engine::ports::{Gate, GateAnswer, Observer, Repeats, Subject, Tool, ToolContext};
use serde_json::Value;
use swarm_protocol::{
    PermissionRequestId, RunNumber, ToolUseId, Usage, WorkerId,
    launch::Isolation,
    permission::{PermissionBid, PermissionDecision, PermissionMode, PermissionRequest, Rule, RuleBehavior},
    usage::Cost,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::RunClock,
    link::{LinkState, NotTaken},
    record::Recorder,
    shell::Shell,
    tools::{Files, config::Adjustable},
};

mod asking;
mod automatic;
mod classifier;
mod deadline;
mod judge;
mod words;

use asking::{Asking, News};
use automatic::Automatic;
pub use classifier::{Classifier, ClassifierRacer};
use judge::{Judge, Question, Ruling};
use words::{SEEK, by_rules, refused};

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
    /// What takes keys out of requests, as out of all that leaves.
    pub masker: Masker,
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
        let cwd = self.shell.cwd();
        Question {
            real_cwd: cwd.canonicalize().ok(),
            call: call.clone(),
            tool: tool.name().to_owned(),
            input: input.clone(),
            subjects: tool.subjects(input),
            needs_nothing: tool.is_read_only(input) || tool.is_own_state(),
            cwd,
            reals: Arc::default(),
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
        match self.judge.answer(&question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(Ruling { answer, .. }) => match answer.behavior {
                RuleBehavior::Allow => {
                    Judge::pass(&question, files);
                    GateAnswer::Allow
                }
                RuleBehavior::Deny => by_rules(&answer),
                RuleBehavior::Ask => refused(format!(
                    "This call asks a person, which an inner agent cannot: {}. {SEEK}",
                    answer.by.because()
                )),
            },
        }
    }

    /// Somebody was asked, which takes its time: what rules or mode forbid by now is not done, nor what would run in
    /// another directory than the one that was shown.
    async fn still_allowed(&self, question: &Question) -> GateAnswer {
        let is_command = question.subjects.iter().any(|subject| matches!(subject, Subject::Command(_)));
        if is_command && question.cwd.canonicalize().ok() != question.real_cwd {
            return refused(format!(
                "{} is not the directory any more that it was when this was asked; nothing was run. {SEEK}",
                question.cwd.display()
            ));
        }
        match self.judge.answer(question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(Ruling { answer, .. }) if answer.behavior == RuleBehavior::Deny => by_rules(&answer),
            Ok(_) => GateAnswer::Allow,
        }
    }

    async fn judged_or_asked(&self, question: &Question, context: &ToolContext) -> GateAnswer {
        match self.judge.answer(question).await {
            Err(problem) => refused(format!("This call was not allowed: {problem}. {SEEK}")),
            Ok(Ruling { answer, .. }) if answer.behavior == RuleBehavior::Deny => by_rules(&answer),
            Ok(Ruling { answer, is_persons, is_judged }) => {
                let asks = answer.behavior == RuleBehavior::Ask;
                let answered = match self.judge.doubt(question).await {
                    Some(doubt) => self.ask_about(question, context, asks.then_some(&answer), doubt).await,
                    None if is_judged => self.judged(question, context, answer).await,
                    None if asks => self.ask(question, context, answer, is_persons).await,
                    None => return GateAnswer::Allow,
                };
                if answered == GateAnswer::Allow { self.still_allowed(question).await } else { answered }
            }
        }
    }

    /// The model that the gate of the mode `auto` asks from now on. Said once, when the run has its models.
    pub fn judge_by(&self, classifier: Arc<Classifier>) {
        self.automatic.judge_by(classifier);
    }
}

#[async_trait]
impl Gate for WorkerGate {
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer {
        let question = self.question(tool, input, &context.tool_use_id);
        self.automatic.heard(&question);
        let answer = self.judged_or_asked(&question, context).await;
        if answer == GateAnswer::Allow {
            self.judge.pass_own(&question);
        }
        answer
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
        self.put_to_the_person(request, Asking { observer, cancel, question: None, may_race: false }).await
            == GateAnswer::Allow
    }
}

#[cfg(test)]
mod tests;
