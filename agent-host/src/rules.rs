//! Permission rules and the decision about a call.
//!
//! Rules come as text with their origin, are read once, and are matched by a pure function: no disk, no
//! clock, no environment. Where paths lead is asked of a [`PathResolver`] that the caller passes in.

mod command;
mod decide;
mod explain;
mod file_args;
pub(crate) mod globs;
mod grammar;
mod paths;
mod proposal;
mod read_only;
mod reason;
pub(crate) mod wildcard;

use std::path::Path;

use swarm_protocol::permission::{Rule, RuleBehavior, RuleOrigin};

pub use decide::{Ground, PermissionQuery, SandboxState, Subject, decide};
pub use explain::{Explanation, MatchingRule, Part, explain};
pub use grammar::RuleSyntaxError;
pub use paths::{Look, PathPatternError, PathResolver};
pub use reason::{DecidedBy, PermissionAnswer};

use grammar::{Pattern, Specifier};
use paths::Anchors;

/// The rules of all levels, joined.
#[derive(Debug, Clone, Default)]
pub struct RuleSet {
    deny: Vec<Entry>,
    ask: Vec<Entry>,
    allow: Vec<Entry>,
}

/// One rule, read.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) pattern: Pattern,
    pub(crate) rule: Rule,
}

/// A rule that does not parse: an error of the configuration, never a rule that is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {} rule `{}` does not parse", behavior_word(.rule.behavior), .rule.text)]
pub struct RuleError {
    pub rule: Box<Rule>,
    pub source: RuleSyntaxError,
}

fn behavior_word(behavior: RuleBehavior) -> &'static str {
    match behavior {
        RuleBehavior::Deny => "deny",
        RuleBehavior::Ask => "ask",
        RuleBehavior::Allow => "allow",
    }
}

impl RuleSet {
    /// Reads all rules, or says everything that is wrong with them.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Vec<RuleError>> {
        let mut set = Self::default();
        let mut errors = Vec::new();
        for rule in rules {
            if let Err(error) = set.add(rule) {
                errors.push(error);
            }
        }
        if errors.is_empty() { Ok(set) } else { Err(errors) }
    }

    /// Adds one rule, such as an answer "for this session".
    pub fn add(&mut self, rule: Rule) -> Result<(), RuleError> {
        let pattern = match grammar::parse(&rule.text, rule.behavior) {
            Ok(pattern) => pattern,
            Err(source) => return Err(RuleError { rule: Box::new(rule), source }),
        };
        let list = match rule.behavior {
            RuleBehavior::Deny => &mut self.deny,
            RuleBehavior::Ask => &mut self.ask,
            RuleBehavior::Allow => &mut self.allow,
        };
        list.push(Entry { pattern, rule });
        Ok(())
    }

    /// All rules as text: deny, ask, allow.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.deny.iter().chain(&self.ask).chain(&self.allow).map(|entry| &entry.rule)
    }

    /// Whether a bare deny rule takes this tool away from the model.
    pub fn removes_tool(&self, tool: &str) -> bool {
        let any = |entry: &&Entry| matches!(entry.pattern.specifier, Specifier::Any);
        self.deny.iter().filter(any).any(|entry| entry.pattern.covers_tool(tool))
    }

    /// Whether a deny rule covers reading this absolute path: for tools that list or search many files.
    /// Both the path and what it leads to have to be asked.
    pub fn denies_read(&self, path: &Path, home: &Path, worktree: &Path) -> bool {
        self.read_denials().any(|entry| match &entry.pattern.specifier {
            Specifier::Any => true,
            Specifier::Path(pattern) => pattern.matches(path, entry.anchors(home, worktree)),
            _ => false,
        })
    }

    /// Whether some deny rule is about reading at all.
    pub fn has_read_denials(&self) -> bool {
        self.read_denials().next().is_some()
    }

    fn read_denials(&self) -> impl Iterator<Item = &Entry> {
        self.deny.iter().filter(|entry| entry.pattern.covers_tool("Read"))
    }

    pub(crate) fn list(&self, behavior: RuleBehavior) -> &[Entry] {
        match behavior {
            RuleBehavior::Deny => &self.deny,
            RuleBehavior::Ask => &self.ask,
            RuleBehavior::Allow => &self.allow,
        }
    }
}

impl Entry {
    pub(crate) fn anchors<'a>(&'a self, home: &'a Path, worktree: &'a Path) -> Anchors<'a> {
        let RuleOrigin { level, file: _, line: _, anchor } = &self.rule.origin;
        Anchors {
            home,
            source: anchor.as_deref().map(Path::new),
            source_is_project: matches!(level.as_str(), "project" | "local"),
            worktree,
        }
    }
}

impl Pattern {
    /// `Read` covers Grep and Glob, `Edit` covers Write and NotebookEdit.
    pub(crate) fn covers_tool(&self, tool: &str) -> bool {
        let family = match tool {
            "Grep" | "Glob" | "LS" => "Read",
            "Write" | "NotebookEdit" | "MultiEdit" => "Edit",
            "Subagent" => "Agent",
            other => other,
        };
        let covers = |name: &str| wildcard::matches(&self.tool_name, name);
        // `mcp__server` stands for all its tools.
        let whole_server = self.tool_name.starts_with("mcp__")
            && !self.tool_name.trim_start_matches("mcp__").contains("__")
            && tool.starts_with(&format!("{}__", self.tool_name));
        covers(tool) || covers(family) || whole_server
    }
}

#[cfg(test)]
mod tests;
