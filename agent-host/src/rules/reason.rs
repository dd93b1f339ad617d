//! An answer and who gave it.

use std::path::PathBuf;

use swarm_protocol::permission::{PermissionMode, Rule, RuleBehavior};

use super::behavior_word;
use crate::bash::TooComplex;

/// What is to happen with a call.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an answer that is dropped lets the call pass unchecked"]
pub struct PermissionAnswer {
    pub behavior: RuleBehavior,
    pub by: DecidedBy,
    /// The rule that "always" would write; none when no rule can say it.
    pub proposed_rule: Option<String>,
}

/// What decided.
#[derive(Debug, Clone, PartialEq)]
pub enum DecidedBy {
    Rule(Rule),
    /// A deny or ask rule may match, depending on a value only the shell knows.
    RuleMayMatch(Rule),
    Mode(PermissionMode),
    /// A tool that only reads, on something it may read.
    ReadOnlyTool,
    /// A command of the read-only set.
    ReadOnlySet,
    /// The sandbox bounds what the command can do.
    SandboxAutoAllow,
    DangerousForm {
        id: String,
        why: String,
    },
    RiskyVariable {
        name: String,
    },
    TooComplex(TooComplex),
    OutsideWorktree {
        path: PathBuf,
    },
    /// A link inside the worktree that leads out of it.
    LinkLeadsOutside {
        path: PathBuf,
        target: Option<PathBuf>,
    },
    ProtectedPath {
        path: PathBuf,
    },
    /// A recursive command over a directory with files that a deny rule names.
    DeniedFilesBelow {
        path: PathBuf,
    },
    /// A recursive command over more files than are looked through for those that a deny rule names.
    MayHoldDenied {
        path: PathBuf,
    },
    /// Git would read the configuration of a repository inside the worktree, which may name programs.
    OtherRepository {
        path: PathBuf,
    },
    /// This agent works in the person's checkout and changes nothing.
    ReadOnlyAgent,
    /// Nothing allows it.
    NoRule,
    /// It would have asked, and there is nobody to ask.
    Unattended(Box<DecidedBy>),
}

impl PermissionAnswer {
    pub(super) fn new(behavior: RuleBehavior, by: DecidedBy) -> Self {
        Self { behavior, by, proposed_rule: None }
    }

    pub(super) fn allow(by: DecidedBy) -> Self {
        Self::new(RuleBehavior::Allow, by)
    }

    pub(super) fn ask(by: DecidedBy, proposed_rule: Option<String>) -> Self {
        Self { behavior: RuleBehavior::Ask, by, proposed_rule }
    }

    pub(super) fn deny(by: DecidedBy) -> Self {
        Self::new(RuleBehavior::Deny, by)
    }
}

impl DecidedBy {
    /// Completes "it asks because …" or "it was refused because …".
    pub fn because(&self) -> String {
        match self {
            Self::Rule(rule) => format!("{} says so", place(rule)),
            Self::RuleMayMatch(rule) => {
                format!("{} may match, depending on a value that only the shell knows", place(rule))
            }
            Self::Mode(mode) => format!("the permission mode is {}", mode.as_str()),
            Self::ReadOnlyTool => "the tool only reads".into(),
            Self::ReadOnlySet => "the command only reads".into(),
            Self::SandboxAutoAllow => "the sandbox bounds what it can do".into(),
            Self::DangerousForm { id: _, why } => why.clone(),
            Self::RiskyVariable { name } => format!("setting {name} changes which programs run"),
            Self::TooComplex(reason) => {
                format!("the command holds {reason}, so its effect cannot be checked")
            }
            Self::OutsideWorktree { path } => format!("{} is outside the worktree", path.display()),
            Self::LinkLeadsOutside { path, target: Some(target) } => {
                format!(
                    "{} is a link that leads to {}, outside the worktree",
                    path.display(),
                    target.display()
                )
            }
            Self::LinkLeadsOutside { path, target: None } => {
                format!("where {} leads cannot be told", path.display())
            }
            Self::ProtectedPath { path } => format!("{} configures git or tools", path.display()),
            Self::DeniedFilesBelow { path } => {
                format!("{}, which a deny rule names, would be read", path.display())
            }
            Self::MayHoldDenied { path } => {
                format!("{} holds too many files to look for those that deny rules name", path.display())
            }
            Self::OtherRepository { path } => {
                format!(
                    "{} is a repository of its own, whose settings may let git run programs",
                    path.display()
                )
            }
            Self::ReadOnlyAgent => "this agent works in the person's checkout and may only read".into(),
            Self::NoRule => "no rule allows it".into(),
            Self::Unattended(by) => {
                format!("{}, and the task is unattended: nobody can be asked", by.because())
            }
        }
    }
}

fn place(rule: &Rule) -> String {
    let origin = match (&rule.origin.file, rule.origin.line) {
        (Some(file), Some(line)) => format!(" ({file}:{line})"),
        (Some(file), None) => format!(" ({file})"),
        _ => format!(" ({})", rule.origin.level),
    };
    format!("the {} rule `{}`{origin}", behavior_word(rule.behavior), rule.text)
}
