//! One call, one answer.

mod bash;
mod cwds;
mod path;

use std::path::{Path, PathBuf};

pub use query_engine::ports::Subject;
use serde_json::Value;
use swarm_protocol::{
    launch::Isolation,
    permission::{PermissionMode, RuleBehavior},
};

use super::{
    Entry, PathResolver, RuleSet,
    grammar::Specifier,
    reason::{DecidedBy, PermissionAnswer},
    wildcard::{Match, Text},
};
use crate::{bash::Word, dangerous::DangerousForms};

/// A call that wants to run.
#[derive(Debug, Clone, Copy)]
pub struct PermissionQuery<'a> {
    pub tool: &'a str,
    /// The whole input, for rules on a field.
    pub input: &'a Value,
    /// What the rules of this tool match against.
    pub subjects: &'a [Subject],
    /// The tool says that with this input it only reads, or keeps the agent's own lists.
    pub is_read_only: bool,
    /// Where a command would run and relative paths start.
    pub cwd: &'a Path,
}

/// Where the agent stands. What it may do at most; rules only narrow or ask less.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub mode: PermissionMode,
    pub isolation: Isolation,
    pub sandbox: SandboxState,
    /// What would ask is refused.
    pub is_unattended: bool,
    pub worktree: &'a Path,
    pub home: &'a Path,
    /// Further directories that may be written (`additionalDirectories`, the temp directory).
    pub writable: &'a [PathBuf],
    /// Further directories that may be read (spilled results, tool chains).
    pub readable: &'a [PathBuf],
    pub paths: &'a dyn PathResolver,
}

/// What confines the agent's commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxState {
    /// Tier 1 or 2 is in force.
    pub enforces: bool,
    /// `sandbox.auto_allow`
    pub auto_allow: bool,
    /// It grants no write at all.
    pub is_read_only: bool,
}

/// What one decision sees.
#[derive(Clone, Copy)]
struct Case<'a> {
    rules: &'a RuleSet,
    forms: &'a DangerousForms,
    query: &'a PermissionQuery<'a>,
    ground: &'a Ground<'a>,
}

/// Decides by rules, mode and sandbox. Pure but for what `ground.paths` looks up.
pub fn decide(
    rules: &RuleSet,
    forms: &DangerousForms,
    query: &PermissionQuery<'_>,
    ground: &Ground<'_>,
) -> PermissionAnswer {
    let case = Case { rules, forms, query, ground };
    let answer = case.whole_tool().unwrap_or_else(|| case.all_subjects());
    if answer.behavior == RuleBehavior::Ask && ground.is_unattended {
        return PermissionAnswer::deny(DecidedBy::Unattended(Box::new(answer.by)));
    }
    answer
}

impl Case<'_> {
    /// Refusals of the tool whatever its input, and of a field of the input.
    fn whole_tool(&self) -> Option<PermissionAnswer> {
        if let Some(entry) = self.on_tool(RuleBehavior::Deny) {
            return Some(PermissionAnswer::deny(DecidedBy::Rule(entry.rule.clone())));
        }
        // An ask on the whole tool still gives way to a deny on the subject.
        let entry = self.on_tool(RuleBehavior::Ask)?;
        let on_subjects = self.all_subjects();
        Some(match on_subjects.behavior {
            RuleBehavior::Deny => on_subjects,
            RuleBehavior::Ask | RuleBehavior::Allow => {
                PermissionAnswer::ask(DecidedBy::Rule(entry.rule.clone()), None)
            }
        })
    }

    fn on_tool(&self, behavior: RuleBehavior) -> Option<&Entry> {
        self.rules.list(behavior).iter().find(|entry| {
            entry.pattern.covers_tool(self.query.tool)
                && match &entry.pattern.specifier {
                    Specifier::Any => true,
                    Specifier::Param { name, value } => match self.query.input.get(name) {
                        Some(Value::String(text)) => {
                            value.matches(&Text::of_words(&[Word::literal(text.clone())])) == Match::Yes
                        }
                        Some(Value::Null) | None => false,
                        Some(other) => {
                            value.matches(&Text::of_words(&[Word::literal(other.to_string())])) == Match::Yes
                        }
                    },
                    _ => false,
                }
        })
    }

    fn all_subjects(&self) -> PermissionAnswer {
        let answers = self.query.subjects.iter().map(|subject| match subject {
            Subject::Command(command) => self.command(command),
            Subject::Read(path) => self.path(path, path::Access::Read),
            Subject::Write(path) => self.path(path, path::Access::Write),
            Subject::Host(host) => self.named(host, Self::host_matches),
            Subject::Name(name) => self.named(name, Self::name_matches),
        });
        strictest(answers).unwrap_or_else(|| self.without_subject())
    }

    /// Nothing is changed in this mode, whatever rules allow.
    fn plans(&self) -> bool {
        self.ground.mode == PermissionMode::Plan
    }

    fn without_subject(&self) -> PermissionAnswer {
        self.named("", |_, _| false)
    }

    fn host_matches(specifier: &Specifier, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match specifier {
            Specifier::Domain(pattern) => match pattern.strip_prefix("*.") {
                Some(parent) => {
                    host.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
                }
                None => *pattern == host,
            },
            _ => false,
        }
    }

    fn name_matches(specifier: &Specifier, name: &str) -> bool {
        match specifier {
            Specifier::Name(pattern) => {
                let words: Vec<Word> = name.split(' ').map(Word::literal).collect();
                pattern.matches(&Text::of_words(&words)) == Match::Yes
            }
            _ => false,
        }
    }

    /// A tool matched by its own name, a host or another name.
    fn named(&self, name: &str, matches: fn(&Specifier, &str) -> bool) -> PermissionAnswer {
        let find = |behavior| {
            self.rules.list(behavior).iter().find(|entry| {
                entry.pattern.covers_tool(self.query.tool)
                    && (matches!(entry.pattern.specifier, Specifier::Any)
                        || matches(&entry.pattern.specifier, name))
            })
        };
        let rule = |entry: &Entry| DecidedBy::Rule(entry.rule.clone());
        if let Some(entry) = find(RuleBehavior::Deny) {
            PermissionAnswer::deny(rule(entry))
        } else if self.plans() && !self.query.is_read_only {
            PermissionAnswer::deny(DecidedBy::Mode(self.ground.mode))
        } else if let Some(entry) = find(RuleBehavior::Ask) {
            PermissionAnswer::ask(rule(entry), None)
        } else if let Some(entry) = find(RuleBehavior::Allow) {
            PermissionAnswer::allow(rule(entry))
        } else if self.ground.mode == PermissionMode::BypassPermissions {
            PermissionAnswer::allow(DecidedBy::Mode(self.ground.mode))
        } else if self.query.is_read_only && !self.query.tool.starts_with("Web") {
            PermissionAnswer::allow(DecidedBy::ReadOnlyTool)
        } else {
            let proposal = match (self.query.tool, name) {
                // No rule can name an IPv6 address.
                ("WebFetch", host) if host.contains(':') => {
                    return PermissionAnswer::ask(DecidedBy::NoRule, None);
                }
                ("WebFetch", host) if !host.is_empty() => {
                    format!("WebFetch(domain:{})", host.to_ascii_lowercase())
                }
                ("Agent" | "Subagent" | "Skill", name) if !name.is_empty() => {
                    format!("{}({name})", self.query.tool)
                }
                (tool, _) => tool.to_owned(),
            };
            PermissionAnswer::ask(DecidedBy::NoRule, Some(proposal))
        }
    }
}

/// Deny before ask before allow. Of several that ask, a rule is proposed only when there is one alone.
fn strictest(answers: impl Iterator<Item = PermissionAnswer>) -> Option<PermissionAnswer> {
    let mut strictest: Option<PermissionAnswer> = None;
    let mut n_asking = 0;
    for answer in answers {
        n_asking += usize::from(answer.behavior == RuleBehavior::Ask);
        let replaces = match &strictest {
            None => true,
            Some(before) => rank(&answer) > rank(before),
        };
        if replaces {
            strictest = Some(answer);
        }
    }
    strictest.map(|mut answer| {
        if n_asking > 1 {
            answer.proposed_rule = None;
        }
        answer
    })
}

fn rank(answer: &PermissionAnswer) -> u8 {
    match (answer.behavior, &answer.by) {
        (RuleBehavior::Deny, _) => 3,
        (RuleBehavior::Ask, _) => 2,
        // Among permissions the one that says more is told.
        (RuleBehavior::Allow, DecidedBy::ReadOnlySet) => 0,
        (RuleBehavior::Allow, _) => 1,
    }
}
