//! What rules, mode and sandbox say to a call. It follows links on the disk, so it runs beside the agent's own
//! thread and within a deadline: a file system that does not answer must not hold the agent (R10).

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use agent_host::{
    DangerousForms, DecidedBy, Ground, Look, PathResolver, PermissionAnswer, PermissionQuery, RuleSet,
    Subject, decide,
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
    /// Where that led when it was asked; none when it was not there.
    pub(super) real_cwd: Option<PathBuf>,
    /// Where its paths led when it was first judged. What a person is asked about is judged again when rules change, and
    /// a link that was turned meanwhile must not turn the answer.
    pub(super) reals: Arc<OnceLock<Reals>>,
}

/// Paths and where they lead; none where that cannot be told.
pub(super) type Reals = Vec<(PathBuf, Option<PathBuf>)>;

/// Paths that lead where they led; all others lead where they lead now.
struct Pinned<'a> {
    reals: &'a Reals,
    others: &'a dyn PathResolver,
}

impl PathResolver for Pinned<'_> {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        match self.reals.iter().find(|(written, _)| written == path) {
            Some((_, real)) => real.clone(),
            None => self.others.resolve(path),
        }
    }

    fn exists(&self, path: &Path) -> bool {
        self.others.exists(path)
    }

    fn look_below(&self, directory: &Path, is_it: &dyn Fn(&Path) -> bool) -> Look {
        self.others.look_below(directory, is_it)
    }

    fn names(&self, directory: &Path, most: usize) -> Option<Vec<OsString>> {
        self.others.names(directory, most)
    }
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

    /// The tool of this call works on `files` where its paths led when it was judged, and nowhere else.
    pub(super) fn pass(question: &Question, files: &Files) {
        for (path, real) in question.reals.get().into_iter().flatten() {
            files.pass(&question.call, path, real.clone());
        }
    }

    /// The same on the worker's own files.
    pub(super) fn pass_own(&self, question: &Question) {
        Self::pass(question, &self.files);
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
        self.rule(&query, self.paths.as_ref()).answer.behavior == RuleBehavior::Allow
    }

    fn look(&self, question: &Question) -> Ruling {
        let reals = question.reals.get_or_init(|| {
            let paths = question.subjects.iter().filter_map(|subject| match subject {
                Subject::Read(path) | Subject::Write(path) => Some(path),
                _ => None,
            });
            paths.map(|path| (path.clone(), self.paths.resolve(path))).collect()
        });
        let query = PermissionQuery {
            tool: &question.tool,
            input: &question.input,
            subjects: &question.subjects,
            is_read_only: question.needs_nothing,
            cwd: &question.cwd,
        };
        self.rule(&query, &Pinned { reals, others: self.paths.as_ref() })
    }

    fn rule(&self, query: &PermissionQuery<'_>, paths: &dyn PathResolver) -> Ruling {
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
            paths,
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
