//! Snip: results that cannot matter any more lose their body (spec 3.2). Pure and deterministic: no model is
//! asked. The call and a mark stay, so the model knows that it asked.
//!
//! Two of the rules of the specification: an error that the same tool on the same target made good soon after,
//! and an old search of which nothing was used. The third (content that memory or a summary holds) needs
//! nothing here: a summary takes the place of what it covers.

use std::collections::HashMap;

use swarm_protocol::{Message, ToolUseId};

use super::{
    pairs::{Pair, pairs, with_results},
    weight,
};

/// What stands in place of a result.
pub const SNIPPED: &str = "[snipped]";
/// Within how many turns an error must be made good.
const MADE_GOOD_WITHIN: usize = 10;
/// From how many turns on a search is old.
const OLD_SEARCH: usize = 20;

/// The conversation with such results snipped; none when there is nothing to snip.
pub fn snip(messages: &[Message]) -> Option<Vec<Message>> {
    let pairs = pairs(messages);
    let now = pairs.last()?.turn;
    let snipped: HashMap<ToolUseId, String> = pairs
        .iter()
        .enumerate()
        // What the model has not seen stays.
        .filter(|(_, pair)| pair.turn < now && weight::text(&pair.text()) > weight::text(SNIPPED))
        .filter(|(at, pair)| {
            let later = &pairs[at + 1..];
            is_made_good(pair, later) || is_unused_search(pair, later, now)
        })
        .map(|(_, pair)| (pair.id.clone(), SNIPPED.to_owned()))
        .collect();
    (!snipped.is_empty()).then(|| with_results(messages, &snipped))
}

fn is_made_good(pair: &Pair<'_>, later: &[Pair<'_>]) -> bool {
    let Some(target) = pair.target().filter(|_| pair.is_error) else { return false };
    later
        .iter()
        .take_while(|other| other.turn <= pair.turn + MADE_GOOD_WITHIN)
        .any(|other| !other.is_error && other.tool == pair.tool && other.target().as_ref() == Some(&target))
}

/// A search is used when a later call names a file that stands in its result: by its last part, for results
/// hold relative paths where calls have absolute ones.
fn is_unused_search(pair: &Pair<'_>, later: &[Pair<'_>], now: usize) -> bool {
    if !matches!(pair.tool, "Grep" | "Glob" | "WebSearch") || pair.turn + OLD_SEARCH > now {
        return false;
    }
    let hits = pair.text();
    let is_hit = |name: &str| {
        let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        last.len() >= 3 && hits.contains(last)
    };
    !later.iter().flat_map(Pair::names).any(is_hit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{history, render};
    use serde_json::json;

    #[test]
    fn an_error_made_good_is_snipped_and_one_that_was_not_stays() {
        let edit = |file: &str| ("Edit", json!({"file_path": file}));
        let long = "old_string is not in the file";
        let check = |turns: &[(&str, serde_json::Value, &str, bool)], expected: &[usize]| {
            let messages = history(turns);
            let after = snip(&messages);
            let snipped: Vec<usize> = (0..turns.len())
                .filter(|n| {
                    let mark = format!("answers t{n}{}: {SNIPPED}", if turns[*n].3 { " failed" } else { "" });
                    after.as_ref().is_some_and(|after| render(after).contains(&mark))
                })
                .collect();
            assert_eq!(snipped, expected);
        };
        let turn = |(tool, input): (&'static str, serde_json::Value), is_error| (tool, input, long, is_error);
        check(&[], &[]);
        check(&[turn(edit("a"), true)], &[]);
        check(&[turn(edit("a"), true), turn(edit("a"), false)], &[0]);
        check(&[turn(edit("a"), true), turn(edit("b"), false)], &[]);
        check(&[turn(edit("a"), true), turn(("Read", json!({"file_path": "a"})), false)], &[]);
        check(&[turn(edit("a"), true), turn(edit("a"), true), turn(edit("a"), false)], &[0, 1]);
        let mut far = vec![turn(edit("a"), true)];
        far.extend((0..10).map(|_| turn(edit("b"), false)));
        far.push(turn(edit("a"), false));
        check(&far, &[]);
        check(&far[1..], &[]);
        far.remove(1);
        check(&far, &[0]);
    }

    #[test]
    fn an_old_search_of_which_nothing_was_used_is_snipped() {
        let search = |result: &'static str| ("Grep", json!({"pattern": "token"}), result, false);
        let others = |n: usize, call: fn() -> (&'static str, serde_json::Value)| {
            (0..n).map(move |_| (call().0, call().1, "ok", false))
        };
        let snips = |turns: Vec<(&str, serde_json::Value, &str, bool)>| {
            snip(&history(&turns))
                .is_some_and(|after| render(&after).contains(&format!("answers t0: {SNIPPED}")))
        };
        let unrelated = || ("Read", json!({"file_path": "/w/other.rs"}));
        let with = |n, call| std::iter::once(search("src/auth.rs:3: token")).chain(others(n, call)).collect();
        assert!(snips(with(20, unrelated)));
        assert!(!snips(with(19, unrelated)), "not old yet");
        assert!(!snips(with(20, || ("Edit", json!({"file_path": "/w/src/auth.rs"})))), "a hit was edited");
        assert!(!snips(with(20, || ("Bash", json!({"command": "wc -l src/auth.rs"})))), "a hit was named");
        let marked = snip(&history(&with(20, unrelated))).unwrap();
        assert_eq!(snip(&marked), None, "once");
    }
}
