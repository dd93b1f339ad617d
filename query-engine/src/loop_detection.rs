//! Repetition (spec 2.6): the same calls with the same results again and again, or the same words in one
//! answer. Pure. What follows from it is decided in [`crate::transition`]: first a reminder, then a question
//! to the person.
//!
//! Inputs *and* results are compared, so polling whose output changes is no loop (L02).

use swarm_protocol::{Block, Message, ResultBlock, Role, ToolUseId};

/// Equal rounds in a row from which the model is reminded (spec 2.6).
pub const REMIND_AT: u32 = 3;
/// Equal rounds in a row from which the person is asked, after a reminder (spec 2.6).
pub const ASK_AT: u32 = 5;
/// The longest cycle that is seen, in calls (spec 2.6).
pub const LONGEST_CYCLE: usize = 4;

/// Calls that repeat at the end of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// How often in a row, from 2.
    pub times: u32,
    /// The tools of one round, in order.
    pub tools: Vec<String>,
}

impl Repetition {
    /// `the same call of Bash with the same result, 3 times in a row`.
    pub fn sentence(&self) -> String {
        match self.tools.as_slice() {
            [tool] => format!("the same call of {tool} with the same result, {} times in a row", self.times),
            tools => format!(
                "the same {} calls ({}) with the same results, {} times in a row",
                tools.len(),
                tools.join(", "),
                self.times
            ),
        }
    }
}

/// A call with its result.
#[derive(PartialEq)]
struct Action<'a> {
    tool: &'a str,
    // Maps are equal whatever the order of their keys: this is the canonical input.
    input: &'a serde_json::Value,
    result: (&'a [ResultBlock], bool),
}

/// How often the last calls of a conversation repeat; none when they do not.
pub fn repetition(messages: &[Message]) -> Option<Repetition> {
    // One round more than matters, so that the count goes past the line.
    let actions = last_actions(messages, LONGEST_CYCLE * (ASK_AT as usize + 1));
    let rounds = |period: usize| {
        let equal =
            actions.iter().zip(actions.iter().skip(period)).take_while(|(new, old)| new == old).count();
        1 + (equal / period) as u32
    };
    // The shortest of equally frequent cycles: three times A is no cycle of A, A.
    let (period, times) = (1..=LONGEST_CYCLE).map(|period| (period, rounds(period))).max_by(
        |(left, left_times), (right, right_times)| left_times.cmp(right_times).then(right.cmp(left)),
    )?;
    if times < 2 {
        return None;
    }
    let tools = actions.iter().take(period).rev().map(|action| action.tool.to_owned()).collect();
    Some(Repetition { times, tools })
}

/// The last calls that have a result, newest first.
fn last_actions(messages: &[Message], most: usize) -> Vec<Action<'_>> {
    let mut actions = Vec::new();
    let mut results: Vec<(&ToolUseId, (&[ResultBlock], bool))> = Vec::new();
    for message in messages.iter().rev() {
        match message.role {
            Role::User => results.extend(message.content.iter().filter_map(|block| match block {
                Block::ToolResult { tool_use_id, content, is_error } => {
                    Some((tool_use_id, (content.as_slice(), *is_error)))
                }
                _ => None,
            })),
            Role::Assistant => {
                for block in message.content.iter().rev() {
                    let Block::ToolUse { id, name, input, .. } = block else { continue };
                    let result = results.iter().find(|(of, _)| *of == id);
                    actions.extend(result.map(|(_, result)| Action { tool: name, input, result: *result }));
                }
                results.clear();
            }
        }
        if actions.len() >= most {
            actions.truncate(most);
            break;
        }
    }
    actions
}

/// Repeats of one passage after which an answer is cut.
const PASSAGE_TIMES: usize = 5;
/// The least such repeats are long together, in bytes: rules of dashes and short lists are not it.
const PASSAGE_BYTES: usize = 2_000;
/// How much of the end of an answer is looked at, in bytes.
const WINDOW: usize = 16 * 1024;
/// How many bytes come between two looks.
const STEP: usize = 1_024;

/// Watches the words of one answer as they stream, for a passage that is said again and again (L04).
/// Linear: each look costs a window, and there is one for each step.
#[derive(Debug, Default)]
pub struct PassageWatch {
    tail: Vec<u8>,
    since: usize,
}

impl PassageWatch {
    /// Takes words; when the answer repeats itself by now, how many bytes at its end are repeats.
    pub fn push(&mut self, words: &str) -> Option<usize> {
        self.tail.extend_from_slice(words.as_bytes());
        self.since += words.len();
        if self.since < STEP {
            return None;
        }
        self.since = 0;
        self.tail.drain(..self.tail.len().saturating_sub(WINDOW));
        repeats_at_end(&self.tail)
    }
}

/// How many bytes at the end are repeats of a passage that stands there [`PASSAGE_TIMES`] times in a row.
fn repeats_at_end(text: &[u8]) -> Option<usize> {
    let reversed: Vec<u8> = text.iter().rev().copied().collect();
    let shared = shared_with_itself(&reversed);
    (1..=reversed.len() / PASSAGE_TIMES)
        .find(|&period| {
            let whole = shared[period] + period;
            whole >= period * PASSAGE_TIMES && whole >= PASSAGE_BYTES
        })
        .map(|period| shared[period])
}

/// The Z-function: how many bytes the text shares with itself from each place on. Linear.
fn shared_with_itself(text: &[u8]) -> Vec<usize> {
    let mut shared = vec![0; text.len()];
    let (mut from, mut to) = (0, 0);
    for at in 1..text.len() {
        if at < to {
            shared[at] = shared[at - from].min(to - at);
        }
        while at + shared[at] < text.len() && text[shared[at]] == text[at + shared[at]] {
            shared[at] += 1;
        }
        if at + shared[at] > to {
            (from, to) = (at, at + shared[at]);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::id;
    use serde_json::json;

    /// Turns of one call each: `A1` is a call of A with the result 1.
    fn history(actions: &str) -> Vec<Message> {
        let mut messages = vec![Message::user_text("go")];
        for (n, action) in actions.split_whitespace().enumerate() {
            let id = id(&format!("t{n}"));
            let (tool, result) = action.split_at(1);
            // The order of keys says nothing.
            let input = if n % 2 == 0 { json!({"a": 1, "b": 2}) } else { json!({"b": 2, "a": 1}) };
            messages.push(Message::assistant(vec![
                Block::text(format!("step {n}")),
                Block::ToolUse { id: id.clone(), name: tool.to_owned(), input, provider_data: None },
            ]));
            messages.push(Message::user(vec![Block::tool_result(id, result, false)]));
        }
        messages
    }

    #[test]
    fn l01_l02_equal_calls_with_equal_results_repeat_and_changing_ones_do_not() {
        let check = |actions: &str, expected: Option<(u32, &str)>| {
            let found = repetition(&history(actions));
            let found = found.map(|found| (found.times, found.tools.join("")));
            assert_eq!(found, expected.map(|(times, tools)| (times, tools.to_owned())), "{actions}");
        };
        check("", None);
        check("A1", None);
        check("A1 B1", None);
        check("A1 A1", Some((2, "A")));
        check("A1 A1 A1", Some((3, "A")));
        check("A1 A2 A3 A4 A5", None);
        check("A1 A1 A1 A2", None);
        check("B1 A1 A1 A1 A1 A1", Some((5, "A")));
        check("A1 B1 A1 B1 A1 B1", Some((3, "AB")));
        check("B1 A1 B1 A1 B1", Some((2, "AB")));
        check("A1 B1 C1 D1 A1 B1 C1 D1 A1 B1 C1 D1", Some((3, "ABCD")));
        check("A1 B1 C1 D1 E1 A1 B1 C1 D1 E1", None);
        check("A1 B1 A2 B1 A3 B1", None);
        check(&"A1 B1 C1 D1 ".repeat(9), Some((6, "ABCD")));
    }

    #[test]
    fn calls_of_one_response_count_and_unanswered_ones_do_not() {
        let call = |n: u32| Block::ToolUse {
            id: id(&format!("t{n}")),
            name: "A".to_owned(),
            input: json!({}),
            provider_data: None,
        };
        let result = |n: u32| Block::tool_result(id(&format!("t{n}")), "ok", false);
        let mut messages =
            vec![Message::assistant((0..4).map(call).collect()), Message::user((0..4).map(result).collect())];
        assert_eq!(repetition(&messages).map(|found| found.times), Some(4));
        messages[1].content.truncate(2);
        assert_eq!(repetition(&messages).map(|found| found.times), Some(2));
    }

    #[test]
    fn l04_a_passage_said_again_and_again_is_seen_and_ordinary_text_is_not() {
        let repeats = |text: &str, piece: usize| {
            let mut watch = PassageWatch::default();
            let characters: Vec<char> = text.chars().collect();
            characters.chunks(piece).any(|words| watch.push(&words.iter().collect::<String>()).is_some())
        };
        let lines =
            |n: usize| -> String { (0..n).map(|n| format!("Line {n} of the file is fine.\n")).collect() };
        let paragraph = "I will now look at the file again, because I am not sure that I saw all of it.\n\n";
        for piece in [1, 7, 5_000] {
            assert!(!repeats(&lines(2_000), piece));
            assert!(!repeats(&"-".repeat(1_900), piece));
            assert!(!repeats(&format!("{}{}", lines(50), paragraph.repeat(4)), piece));
            assert!(repeats(&format!("{}{}", lines(50), paragraph.repeat(60)), piece));
            assert!(repeats(&format!("{}{}", lines(50), lines(100).repeat(10)), piece), "a long passage");
            assert!(repeats(&"哈".repeat(2_000), piece));
        }
    }

    #[test]
    fn the_z_function() {
        assert_eq!(shared_with_itself(b"aabaab"), [0, 1, 0, 3, 1, 0]);
        assert_eq!(shared_with_itself(b""), [0; 0]);
    }
}
