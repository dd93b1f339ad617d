//! Why a call is allowed, asks or is refused: the answer, and every rule that has something to say about it.

use swarm_protocol::permission::{Rule, RuleBehavior};

use super::{DecidedBy, Ground, PermissionAnswer, PermissionQuery, RuleSet, Subject, command, decide};
use crate::{
    bash::{Parsed, layers, parse},
    dangerous::DangerousForms,
};

/// An answer with what stands behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub answer: PermissionAnswer,
    /// Rules that match the call: deny, ask, allow, each in the order of the settings.
    pub rules: Vec<MatchingRule>,
}

/// A rule that matches the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchingRule {
    pub rule: Rule,
    pub part: Part,
}

/// What a rule that matches has to do with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It is the answer's reason.
    Decides,
    /// It may match, depending on a value that only the shell knows.
    Perhaps,
    /// A stronger rule, a dangerous form or a protected path decides before it.
    Overruled,
}

/// Decides as [`decide`] does, and says which rules match. Each rule is tried alone, so a rule that another one
/// overrules is found, too.
pub fn explain(
    rules: &RuleSet,
    forms: &DangerousForms,
    query: &PermissionQuery<'_>,
    ground: &Ground<'_>,
) -> Explanation {
    let answer = decide(rules, forms, query, ground);
    let reason = match &answer.by {
        DecidedBy::Unattended(by) => by,
        by => by,
    };
    // Alone, an ask must not be turned into a refusal.
    let ground = Ground { is_unattended: false, ..*ground };
    let part = |rule: &Rule| {
        let alone = RuleSet::new([rule.clone()]).ok()?;
        let of_rule = decide(&alone, forms, query, &ground);
        let is_reason =
            matches!(reason, DecidedBy::Rule(other) | DecidedBy::RuleMayMatch(other) if other == rule);
        match &of_rule.by {
            DecidedBy::RuleMayMatch(_) => Some(Part::Perhaps),
            _ if is_reason => Some(Part::Decides),
            DecidedBy::Rule(_) => Some(Part::Overruled),
            _ if rule.behavior == RuleBehavior::Allow && names(&alone, query) => Some(Part::Overruled),
            _ => None,
        }
    };
    let rules = rules
        .rules()
        .filter_map(|rule| Some(MatchingRule { rule: rule.clone(), part: part(rule)? }))
        .collect();
    Explanation { answer, rules }
}

/// Whether the one allow rule of this set names a command of the call, whatever else stands against it.
fn names(alone: &RuleSet, query: &PermissionQuery<'_>) -> bool {
    query.subjects.iter().any(|subject| {
        let Subject::Command(text) = subject else { return false };
        let Parsed::Simple(commands) = parse(text) else { return false };
        // Of a list, one part is enough to say that the rule has to do with it.
        commands
            .iter()
            .any(|command| layers(command).is_ok_and(|layers| command::permit(alone, &layers).is_some()))
    })
}
