//! What rules, mode and sandbox say to a call. It follows links on the disk, so it runs beside the agent's own
//! thread and within a deadline: a file system that does not answer must not hold the agent (R10).

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use agent_host::{
    DangerousForms, DecidedBy, Ground, PathResolver, PermissionAnswer, PermissionQuery, RuleSet, Subject,
    decide,
};
use serde_json::Value;
use swarm_protocol::{
    ToolUseId,
    permission::{PermissionMode, RuleBehavior},
};

use super::GateConfig;
use crate::tools::{
    Files,
    edit::{self, Doubt},
};

/// How long a look at the disk may take; a healthy one takes microseconds, a slow network mount a second.
const DEADLINE: Duration = Duration::from_secs(10);

/// A call, as it is judged.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) call: ToolUseId,
    pub(super) tool: String,
    pub(super) input: Value,
    /// What it touches, as its tool says.
    pub(super) subjects: Vec<Subject>,
    /// It only reads, or touches nothing but the agent's own.
    pub(super) needs_nothing: bool,
    /// Where its command would run.
    pub(super) cwd: PathBuf,
}

/// What rules, mode and sandbox say.
#[derive(Debug)]
pub(super) struct Ruling {
    pub(super) answer: PermissionAnswer,
    /// It asks, and only a person may answer.
    pub(super) is_persons: bool,
    /// It asks, and the mode is `auto`: a classifier looks before anybody is asked.
    pub(super) is_judged: bool,
}

/// Judges calls.
pub(super) struct Judge {
    pub(super) config: GateConfig,
    forms: DangerousForms,
    pub(super) rules: RwLock<RuleSet>,
    pub(super) mode: RwLock<PermissionMode>,
    files: Arc<Files>,
    paths: Arc<dyn PathResolver>,
}

impl Judge {
    pub(super) fn new(config: GateConfig, files: Arc<Files>, paths: Arc<dyn PathResolver>) -> Self {
        Self {
            rules: RwLock::new(config.rules.clone()),
            mode: RwLock::new(config.mode),
            config,
            forms: DangerousForms::embedded(),
            files,
            paths,
        }
    }

    /// What a mode means for the rules: in `auto` they decide as ever, and what would ask is looked at again.
    fn ruling(mode: PermissionMode) -> PermissionMode {
        match mode {
            PermissionMode::Auto => PermissionMode::AcceptEdits,
            PermissionMode::Default
            | PermissionMode::AcceptEdits
            | PermissionMode::Plan
            | PermissionMode::BypassPermissions => mode,
        }
    }

    /// Says what becomes of a call. An error: its paths could not be looked at, and what was not checked is not
    /// allowed (I5).
    pub(super) async fn answer(self: &Arc<Self>, question: &Question) -> Result<Ruling, String> {
        let (judge, asked) = (Arc::clone(self), question.clone());
        // One that hangs keeps its thread of the pool, and nothing else.
        let look = tokio::task::spawn_blocking(move || judge.look(&asked));
        match tokio::time::timeout(DEADLINE, look).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(format!("the call could not be judged: {error}")),
            Err(_) => Err(format!(
                "the file system did not answer within {} s, so its paths could not be checked",
                DEADLINE.as_secs()
            )),
        }
    }

    /// Whether an edit goes to a place that is only like the text it names. Where nobody would be asked the tool
    /// itself refuses it. What cannot be looked at in time is no doubt: the tool asks for no less.
    pub(super) async fn doubt(&self, question: &Question) -> Option<Doubt> {
        let bypasses =
            *self.mode.read().unwrap_or_else(PoisonError::into_inner) == PermissionMode::BypassPermissions;
        if question.tool != "Edit" || self.config.is_unattended || bypasses {
            return None;
        }
        let (files, input) = (Arc::clone(&self.files), question.input.clone());
        let look = tokio::task::spawn_blocking(move || edit::doubt(&files, &input));
        tokio::time::timeout(DEADLINE, look).await.ok()?.ok().flatten()
    }

    /// The edit of this call may change what stands in the file in place of what it names.
    pub(super) fn agree(&self, question: &Question, doubt: Doubt) {
        self.files.agree(&question.call, doubt.texts);
    }

    /// Looks at no disk, so it may be asked anywhere.
    pub(super) fn allows_host(&self, tool: &str, host: &str) -> bool {
        let subjects = [Subject::Host(host.to_owned())];
        let query = PermissionQuery {
            tool,
            input: &Value::Null,
            subjects: &subjects,
            is_read_only: true,
            cwd: &self.files.root,
        };
        self.rule(&query).answer.behavior == RuleBehavior::Allow
    }

    fn look(&self, question: &Question) -> Ruling {
        for subject in &question.subjects {
            if let Subject::Read(path) | Subject::Write(path) = subject {
                // The tool works where its path leads now, and nowhere else.
                self.files.pass(&question.call, path);
            }
        }
        let query = PermissionQuery {
            tool: &question.tool,
            input: &question.input,
            subjects: &question.subjects,
            is_read_only: question.needs_nothing,
            cwd: &question.cwd,
        };
        self.rule(&query)
    }

    fn rule(&self, query: &PermissionQuery<'_>) -> Ruling {
        let mode = *self.mode.read().unwrap_or_else(PoisonError::into_inner);
        let mut sandbox = self.config.sandbox;
        // The shell follows the mode (`WorkerGate::set_mode`).
        sandbox.is_read_only |= mode == PermissionMode::Plan;
        let ground = Ground {
            mode: Self::ruling(mode),
            isolation: self.config.isolation,
            sandbox,
            // Whether nobody is there is looked at below: in `auto` a classifier comes first.
            is_unattended: false,
            worktree: &self.files.root,
            home: &self.config.home,
            writable: &self.config.writable,
            readable: &self.config.readable,
            paths: self.paths.as_ref(),
        };
        // A copy: who adds a rule must not wait for a disk.
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = decide(&rules, &self.forms, query, &ground);
        let asks = answer.behavior == RuleBehavior::Ask;
        // What asks even where nothing else does, a person said so; and what the agent is made of is a person's, too.
        let wildest = Ground { mode: PermissionMode::BypassPermissions, ..ground };
        let is_persons = asks
            && (matches!(answer.by, DecidedBy::ProtectedPath { .. })
                || decide(&rules, &self.forms, query, &wildest).behavior == RuleBehavior::Ask);
        let is_judged = asks && mode == PermissionMode::Auto && !is_persons;
        if asks && self.config.is_unattended && !is_judged {
            let by = DecidedBy::Unattended(Box::new(answer.by));
            let answer = PermissionAnswer { behavior: RuleBehavior::Deny, by, proposed_rule: None };
            return Ruling { answer, is_persons, is_judged };
        }
        Ruling { answer, is_persons, is_judged }
    }
}
