//! Matching the layers of one command against rules.

use swarm_protocol::permission::RuleBehavior;

use super::{
    Entry, RuleSet,
    grammar::Specifier,
    wildcard::{Match, Text},
};
use crate::{
    bash::{Layer, LayerKind, PlainCommand, Word, base_name},
    dangerous::{Subcommand, subcommand},
};

/// The first refusing rule that matches, or may match, any layer.
pub(super) fn refusal<'a>(
    rules: &'a RuleSet,
    behavior: RuleBehavior,
    layers: &[Layer],
) -> Option<(&'a Entry, Match)> {
    let texts: Vec<Text> = layers.iter().flat_map(|layer| spellings(&layer.command)).collect();
    let matched = |entry: &'a Entry| match &entry.pattern.specifier {
        _ if !entry.pattern.covers_tool("Bash") => None,
        Specifier::Any => Some((entry, Match::Yes)),
        Specifier::Command(pattern) => {
            let best = texts.iter().map(|text| pattern.matches(text)).max().unwrap_or(Match::No);
            (best != Match::No).then_some((entry, best))
        }
        Specifier::Param { name, value } if name == "command" => {
            let best = texts.iter().map(|text| value.matches(text)).max().unwrap_or(Match::No);
            (best != Match::No).then_some((entry, best))
        }
        _ => None,
    };
    // A sure match before one that depends on a value.
    let found: Vec<_> = rules.list(behavior).iter().filter_map(matched).collect();
    found.iter().find(|(_, matched)| *matched == Match::Yes).or(found.first()).copied()
}

/// How one command may be spelt, for refusals: by the program's base name, without the options before
/// a subcommand, without `--`.
fn spellings(command: &PlainCommand) -> Vec<Text> {
    let Some(program) = command.argv.first() else { return Vec::new() };
    let mut all = vec![command.argv.clone()];
    let mut named = command.argv.clone();
    if let Some(text) = program.text() {
        named[0] = Word::literal(base_name(text));
        all.push(named.clone());
    }
    let without_dashes: Vec<Word> = named.iter().filter(|word| word.text() != Some("--")).cloned().collect();
    let bare = PlainCommand { argv: without_dashes.clone(), ..PlainCommand::default() };
    if without_dashes.len() != named.len() {
        all.push(without_dashes);
    }
    if let Subcommand::At(at) = subcommand(&bare)
        && at > 1
    {
        let mut direct = vec![bare.argv[0].clone()];
        direct.extend_from_slice(&bare.argv[at..]);
        all.push(direct);
    }
    all.iter().map(|words| Text::of_words(words)).collect()
}

/// The allow rule that matches this command, and whether it names just this command or every command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permit<'a> {
    pub(super) entry: &'a Entry,
    pub(super) breadth: Breadth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Breadth {
    /// A pattern with a wildcard: never covers what a hidden form does.
    Family,
    /// `Bash`: the person allowed everything.
    Everything,
    /// Exactly this command.
    Exact,
}

pub(super) fn permit<'a>(rules: &'a RuleSet, layers: &[Layer]) -> Option<Permit<'a>> {
    let outer = layers.first()?;
    let innermost = layers.iter().rev().find(|layer| layer.kind != LayerKind::Inner)?;
    let (outer_text, text) = (Text::of_words(&outer.command.argv), Text::of_words(&innermost.command.argv));
    let breadth = |entry: &Entry| match &entry.pattern.specifier {
        _ if !entry.pattern.covers_tool("Bash") => None,
        Specifier::Any => Some(Breadth::Everything),
        Specifier::Command(_) if outer.command.argv.is_empty() => None,
        Specifier::Command(pattern) if pattern.is_exact() => {
            let same = |text: &Text| !text.has_unknown() && pattern.matches(text) == Match::Yes;
            (same(&text) || same(&outer_text)).then_some(Breadth::Exact)
        }
        Specifier::Command(pattern) => {
            let starts = innermost.command.program().is_some_and(|program| pattern.may_start(program));
            (starts && !text.has_unknown() && pattern.matches(&text) == Match::Yes).then_some(Breadth::Family)
        }
        _ => None,
    };
    rules
        .list(RuleBehavior::Allow)
        .iter()
        .filter_map(|entry| Some(Permit { entry, breadth: breadth(entry)? }))
        .max_by_key(|permit| permit.breadth)
}
