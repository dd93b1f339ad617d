//! What rules, mode and sandbox say to a call. It follows links on the disk, so it runs beside the agent's own
//! thread and within a deadline: a file system that does not answer must not hold the agent (R10).

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use agent_host::{
    DangerousForms, Ground, PathResolver, PermissionAnswer, PermissionQuery, RuleSet, Subject, decide,
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

    /// Says what becomes of a call. An error: its paths could not be looked at, and what was not checked is not
    /// allowed (I5).
    pub(super) async fn answer(self: &Arc<Self>, question: &Question) -> Result<PermissionAnswer, String> {
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
        self.decide(&query).behavior == RuleBehavior::Allow
    }

    fn look(&self, question: &Question) -> PermissionAnswer {
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
        self.decide(&query)
    }

    fn decide(&self, query: &PermissionQuery<'_>) -> PermissionAnswer {
        let mode = *self.mode.read().unwrap_or_else(PoisonError::into_inner);
        let mut sandbox = self.config.sandbox;
        // The shell follows the mode (`WorkerGate::set_mode`).
        sandbox.is_read_only |= mode == PermissionMode::Plan;
        let ground = Ground {
            mode,
            isolation: self.config.isolation,
            sandbox,
            is_unattended: self.config.is_unattended,
            worktree: &self.files.root,
            home: &self.config.home,
            writable: &self.config.writable,
            readable: &self.config.readable,
            paths: self.paths.as_ref(),
        };
        // A copy: who adds a rule must not wait for a disk.
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner).clone();
        decide(&rules, &self.forms, query, &ground)
    }
}
