//! Microcompact: old results of tools that can be run again are put away (spec 3.2). Pure; the driver keeps
//! the originals, and `Retrieve` returns them.

use std::collections::HashMap;

use swarm_protocol::{Message, ResultBlock, ToolUseId};

use super::{
    pairs::{Pair, pairs, with_results},
    snip::SNIPPED,
    weight,
};

/// The newest calls, whose results stay.
const KEPT: usize = 5;
/// Tools whose results can be had again (spec 3.2); never those of MCP servers.
const RERUNNABLE: [&str; 8] = ["Read", "Bash", "Grep", "Glob", "WebSearch", "WebFetch", "Edit", "Write"];
/// How a placeholder begins.
const CLEARED: &str = "[Old tool result content cleared; ";

/// What is said in place of a result.
pub fn placeholder(id: &ToolUseId) -> String {
    format!("{CLEARED}Retrieve returns it: {id}]")
}

/// A conversation with results put away.
#[derive(Clone, Debug, PartialEq)]
pub struct Microcompacted {
    /// As it goes on.
    pub messages: Vec<Message>,
    /// What was put away, oldest first.
    pub originals: Vec<(ToolUseId, Vec<ResultBlock>)>,
}

/// Puts away the results of all but the newest calls; none when there is nothing to put away. Those of the last
/// turn stay, however many they are: the model has not seen them.
pub fn microcompact(messages: &[Message]) -> Option<Microcompacted> {
    let pairs = pairs(messages);
    let last = pairs.last()?.turn;
    let old = &pairs[..pairs.len().saturating_sub(KEPT)];
    let originals: Vec<(ToolUseId, Vec<ResultBlock>)> = old
        .iter()
        .filter(|pair| pair.turn < last)
        .filter(|pair| RERUNNABLE.contains(&pair.tool) && is_worth_it(pair))
        .map(|pair| (pair.id.clone(), pair.content.to_vec()))
        .collect();
    if originals.is_empty() {
        return None;
    }
    let placeholders: HashMap<ToolUseId, String> =
        originals.iter().map(|(id, _)| (id.clone(), placeholder(id))).collect();
    Some(Microcompacted { messages: with_results(messages, &placeholders), originals })
}

/// Whether the placeholder is smaller than what it stands for, which is not one itself.
fn is_worth_it(pair: &Pair<'_>) -> bool {
    let has_image = pair.content.iter().any(|part| matches!(part, ResultBlock::Image { .. }));
    let text = pair.text();
    let is_mark = text == SNIPPED || text.starts_with(CLEARED);
    // In bytes and in what a tokenizer makes of them.
    let is_larger = |mark: &str| text.len() > mark.len() && weight::text(&text) > weight::text(mark);
    has_image || (!is_mark && is_larger(&placeholder(pair.id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{history, render};
    use serde_json::json;

    #[test]
    fn all_but_the_newest_five_are_put_away_where_it_saves_something() {
        let long = "a line of a file that is long enough to be worth it, and a little more\n";
        let turns: Vec<(&str, serde_json::Value, &str, bool)> =
            ["Read", "Agent", "mcp__x__y", "Bash", "Read"]
                .into_iter()
                .map(|tool| (tool, json!({"n": tool}), long, false))
                .chain([("Read", json!({}), "short", false)])
                .chain((0..5).map(|_| ("Read", json!({}), long, false)))
                .collect();
        let messages = history(&turns);
        let done = microcompact(&messages).unwrap();
        let put_away: Vec<&str> = done.originals.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(put_away, ["t0", "t3", "t4"]);
        assert_eq!(done.originals[0].1, [ResultBlock::text(long)]);
        let shown = render(&done.messages);
        assert!(
            shown.contains("user answers t0: [Old tool result content cleared; Retrieve returns it: t0]")
        );
        assert!(shown.contains("assistant calls t0: Read {\"n\":\"Read\"}"), "the call stays");
        assert_eq!(shown.matches("a line of a file").count(), 7);
        assert_eq!(microcompact(&done.messages), None, "once");
        assert_eq!(microcompact(&messages[..11]), None, "five calls are not old");
        // Eight calls of one turn: none of their results was sent.
        let unsent: Vec<Message> = [1, 2]
            .map(|kind| {
                let of_kind =
                    messages.iter().skip(kind).step_by(2).flat_map(|message| message.content.clone());
                Message { role: messages[kind].role, content: of_kind.collect() }
            })
            .into();
        assert_eq!(microcompact(&unsent), None);
    }
}
