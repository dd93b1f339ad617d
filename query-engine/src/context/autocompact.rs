//! Autocompact: a summary takes the place of old history (spec 3.2). Pure; the driver sends the request.
//!
//! What stays verbatim: the first request, the person's own messages up to 20,000 tokens, and a tail of
//! whole rounds, an answer with its results, so that no pair is ever separated.

use swarm_protocol::{Block, Message, ResultBlock, Role};

use super::{accounting::estimate, tool_result_budget};

/// What begins the message that holds a summary.
pub const SUMMARY_TITLE: &str = "[Summary of prior conversation]";
/// The person's own messages that stay verbatim, in tokens.
pub const PERSON_TOKENS: u64 = 20_000;
/// The most of the kept tail, in tokens; a small window gets a tenth of itself.
pub const TAIL_TOKENS: u64 = 20_000;
/// A summary must save this share of the messages' tokens, in percent.
pub const LEAST_SAVING_PERCENT: u64 = 20;
/// How often the oldest rounds are left out of a summary request that is too long itself.
pub const SMALLER_SLICES: u32 = 3;
/// What stands in for a summary lists calls up to so many characters.
const MAX_LIST_CHARS: usize = 4_000;
/// And of each so many.
const MAX_CALL_CHARS: usize = 120;
/// What an image becomes in a summary request.
const IMAGE_LINE: &str = "[image, left out of this summary request]";

/// The last user message of a summary request.
pub const INSTRUCTION: &str = "\
Stop here: do not go on with the task and call no tool. Write a summary of the conversation so far that lets another agent \
continue without having read it. Four parts:
1. Goal and open items: what was asked, what is done, what is left, what comes next.
2. Files changed, each with a gist of its diff; files read that still matter, with why.
3. Key errors and how they were fixed; what was tried and did not work.
4. Stated preferences and constraints, in the words of whoever stated them.
Be exact with names, paths, commands and numbers. Answer with the summary alone.";

/// The messages of a summary request: history without media, then the instruction. `messages` is the view
/// that a provider gets; `smaller`: how many times it is halved.
pub fn summary_request(messages: &[Message], smaller: u32) -> Vec<Message> {
    let mut request: Vec<Message> = halved(messages, smaller).iter().map(without_media).collect();
    match request.last_mut() {
        Some(last) if last.role == Role::User => last.content.push(Block::text(INSTRUCTION)),
        Some(_) | None => request.push(Message::user_text(INSTRUCTION)),
    }
    request
}

/// The first message and the newest rounds: each time half of what is there goes, and of the last round half of
/// each result.
fn halved(messages: &[Message], times: u32) -> Vec<Message> {
    let mut kept = messages.to_vec();
    for _ in 0..times {
        let starts: Vec<usize> = round_starts(&kept);
        match starts.get(starts.len() / 2).filter(|from| **from > 1) {
            Some(&from) => {
                kept.drain(1..from);
            }
            None => kept.iter_mut().for_each(halve_results),
        }
    }
    kept
}

fn halve_results(message: &mut Message) {
    for block in &mut message.content {
        if let Block::ToolResult { content, .. } = block {
            // `cut` keeps two tenths of what it is given.
            let budget = tool_result_budget::chars_of(content) / 2 * 5;
            *content = tool_result_budget::cut(content, budget, None);
        }
    }
}

/// What stands in for a summary when each request for one is too long (K08): the newest calls, in their order. Results
/// are lost to the model, but not what was done to get them.
pub fn list_of_calls(messages: &[Message]) -> String {
    let calls = messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::ToolUse { name, input, .. } => {
            let call = format!("- {name} {input}");
            Some(call.chars().take(MAX_CALL_CHARS).collect::<String>())
        }
        Block::Text { .. }
        | Block::Thinking { .. }
        | Block::RedactedThinking { .. }
        | Block::ToolResult { .. }
        | Block::Image { .. }
        | Block::Opaque { .. } => None,
    });
    let calls: Vec<String> = calls.collect();
    let mut chars = 0;
    let fits = |call: &&String| {
        chars += call.chars().count() + 1;
        chars <= MAX_LIST_CHARS
    };
    let n_kept = calls.iter().rev().take_while(fits).count();
    let newest = &calls[calls.len() - n_kept..];
    format!(
        "The conversation was too long to be summarised; its results are gone. The last {n_kept} of {} calls were:\n{}",
        calls.len(),
        newest.join("\n")
    )
}

/// Where rounds begin: at each assistant message.
fn round_starts(messages: &[Message]) -> Vec<usize> {
    messages
        .iter()
        .enumerate()
        .filter(|(index, message)| {
            message.role == Role::Assistant && (*index == 0 || messages[*index - 1].role == Role::User)
        })
        .map(|(index, _)| index)
        .collect()
}

fn without_media(message: &Message) -> Message {
    let content = message
        .content
        .iter()
        .map(|block| match block {
            Block::Image { .. } => Block::text(IMAGE_LINE),
            Block::ToolResult { tool_use_id, content, is_error } => Block::ToolResult {
                tool_use_id: tool_use_id.clone(),
                content: content
                    .iter()
                    .map(|part| match part {
                        ResultBlock::Image { .. } => ResultBlock::text(IMAGE_LINE),
                        ResultBlock::Text { .. } | ResultBlock::ToolReference { .. } => part.clone(),
                    })
                    .collect(),
                is_error: *is_error,
            },
            Block::Text { .. }
            | Block::Thinking { .. }
            | Block::RedactedThinking { .. }
            | Block::ToolUse { .. }
            | Block::Opaque { .. } => block.clone(),
        })
        .collect();
    Message { role: message.role, content }
}

/// What a history becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// The conversation as it goes on.
    pub messages: Vec<Message>,
    /// How many of the messages before the summary stands for.
    pub messages_summarised: u64,
}

/// What a compaction is made from.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The view of the history: roles alternate and each call has its result (see [`super::view`]).
    pub messages: &'a [Message],
    /// The first request.
    pub first: Option<&'a Message>,
    /// The person's own messages after it.
    pub person: &'a [Message],
    /// What re-enters.
    pub attachments: &'a [Block],
    /// The model's window, in tokens.
    pub window: u64,
    /// Calibrated.
    pub scale: f64,
}

/// Puts the summary in the place of what is before the tail.
pub fn compact(history: &History<'_>, summary: &str) -> Compacted {
    let tail_budget = TAIL_TOKENS.min(history.window / 10);
    let tail_start = tail_start(history.messages, tail_budget, history.scale);
    let tail = shrunk_tail(&history.messages[tail_start..], tail_budget, history.scale);

    let first = history.first.or(history.messages.first());
    let mut head: Vec<Block> = first.map(|message| sendable(&message.content)).unwrap_or_default();
    head.push(Block::text(format!("{SUMMARY_TITLE}\n{}", summary.trim())));
    head.extend(person_blocks(history, &tail));
    // The memory files are in the first request, unless more of them were met since.
    let is_there = |block: &&Block| first.is_some_and(|message| message.content.contains(block));
    head.extend(history.attachments.iter().filter(|block| !is_there(block)).cloned());
    let mut messages = vec![Message::user(head)];
    messages.extend(tail);
    Compacted { messages, messages_summarised: tail_start as u64 }
}

/// The person's newest messages within the budget, oldest first, those of the tail left out.
fn person_blocks(history: &History<'_>, tail: &[Message]) -> Vec<Block> {
    let in_tail = |block: &Block| tail.iter().any(|message| message.content.contains(block));
    let mut left = PERSON_TOKENS.min(history.window / 10);
    let mut kept: Vec<Vec<Block>> = Vec::new();
    for message in history.person.iter().rev() {
        let blocks: Vec<Block> =
            sendable(&message.content).into_iter().filter(|block| !in_tail(block)).collect();
        let size = estimate(&[Message::user(blocks.clone())], history.scale);
        if size > left {
            break;
        }
        left -= size;
        kept.push(blocks);
    }
    kept.into_iter().rev().flatten().collect()
}

fn sendable(content: &[Block]) -> Vec<Block> {
    content
        .iter()
        .filter(|block| match block {
            Block::Text { text } => !text.trim().is_empty(),
            Block::Image { .. } | Block::Opaque { .. } => true,
            Block::Thinking { .. }
            | Block::RedactedThinking { .. }
            | Block::ToolUse { .. }
            | Block::ToolResult { .. } => false,
        })
        .cloned()
        .collect()
}

/// Where the kept tail begins: at an assistant message, as many whole rounds as fit; the newest round is
/// kept always, since nothing else holds what was not answered yet.
fn tail_start(messages: &[Message], budget: u64, scale: f64) -> usize {
    let starts: Vec<usize> = round_starts(messages).into_iter().filter(|&start| start > 0).collect();
    let mut chosen = match starts.last() {
        Some(&newest) => newest,
        None => return messages.len(),
    };
    for &start in starts.iter().rev() {
        if estimate(&messages[start..], scale) > budget {
            break;
        }
        chosen = start;
    }
    // Everything verbatim would leave nothing to summarise.
    if starts.len() > 1 && chosen == starts[0] { starts[1] } else { chosen }
}

/// The tail without thinking; one that is too long alone is cut inside its results (K13).
fn shrunk_tail(tail: &[Message], budget: u64, scale: f64) -> Vec<Message> {
    let mut tail: Vec<Message> = tail.iter().map(without_thinking).collect();
    if estimate(&tail, scale) <= budget {
        return tail;
    }
    let results = tail
        .iter()
        .flat_map(|message| &message.content)
        .filter(|block| matches!(block, Block::ToolResult { .. }))
        .count()
        .max(1);
    let chars: usize = tail.iter().flat_map(|message| &message.content).map(result_chars).sum();
    let chars_per_token = chars as f64 / estimate(&tail, scale).max(1) as f64;
    // `cut` keeps two tenths of what it is given.
    let share = (budget as f64 * chars_per_token / results as f64 * 5.0) as usize;
    for block in tail.iter_mut().flat_map(|message| &mut message.content) {
        if let Block::ToolResult { content, .. } = block
            && tool_result_budget::chars_of(content) > share / 5
        {
            *content = tool_result_budget::cut(content, share.max(1_000), None);
        }
    }
    tail
}

fn result_chars(block: &Block) -> usize {
    match block {
        Block::ToolResult { content, .. } => tool_result_budget::chars_of(content),
        Block::Text { .. }
        | Block::Thinking { .. }
        | Block::RedactedThinking { .. }
        | Block::ToolUse { .. }
        | Block::Image { .. }
        | Block::Opaque { .. } => 0,
    }
}

/// A message without thinking, as every boundary leaves them.
pub fn without_thinking(message: &Message) -> Message {
    let content = message
        .content
        .iter()
        .filter(|block| !matches!(block, Block::Thinking { .. } | Block::RedactedThinking { .. }))
        .cloned()
        .collect();
    Message { role: message.role, content }
}

/// Whether a result of this size is worth its boundary.
pub fn saves_enough(pre_tokens: u64, post_tokens: u64) -> bool {
    post_tokens * 100 <= pre_tokens * (100 - LEAST_SAVING_PERCENT)
}

/// Takes media out, the oldest first, until at least `bytes` of it are gone; nothing when there are none.
/// `from`: messages before it keep theirs.
pub fn strip_media(messages: &[Message], from: usize, bytes: u64) -> Option<Vec<Message>> {
    let mut gone = 0_u64;
    let mut left = |size: usize| -> Option<String> {
        if gone >= bytes {
            return None;
        }
        gone += size.max(1) as u64;
        Some(format!("[image of {size} bytes removed: the provider refused the size of the request]"))
    };
    let mut stripped = messages.to_vec();
    for block in stripped.iter_mut().skip(from).flat_map(|message| &mut message.content) {
        match block {
            Block::Image { data, .. } => {
                if let Some(line) = left(data.len()) {
                    *block = Block::text(line);
                }
            }
            Block::ToolResult { content, .. } => {
                for part in content.iter_mut() {
                    if let ResultBlock::Image { data, .. } = part
                        && let Some(line) = left(data.len())
                    {
                        *part = ResultBlock::text(line);
                    }
                }
            }
            Block::Text { .. }
            | Block::Thinking { .. }
            | Block::RedactedThinking { .. }
            | Block::ToolUse { .. }
            | Block::Opaque { .. } => {}
        }
    }
    (gone > 0).then_some(stripped)
}

/// The largest parts of a request, for people (K01): system prompt, each tool, each message.
pub fn contributors(prefix: &crate::ports::Prefix, messages: &[Message]) -> String {
    let mut parts: Vec<(usize, String)> = Vec::new();
    parts.push((prefix.system.iter().map(String::len).sum(), "the system prompt".to_owned()));
    parts.extend(prefix.tools.iter().map(|tool| {
        (tool.description.len() + tool.input_schema.to_string().len(), format!("the tool {}", tool.name))
    }));
    parts.extend(messages.iter().enumerate().map(|(index, message)| {
        let bytes = super::accounting::message_bytes(std::slice::from_ref(message)) as usize;
        (bytes, format!("message {}", index + 1))
    }));
    parts.sort_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    let largest: Vec<String> =
        parts.into_iter().take(3).map(|(bytes, name)| format!("{name} ({bytes} bytes)")).collect();
    largest.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::id;
    use serde_json::json;

    fn round(n: usize, result: &str) -> [Message; 2] {
        let name = format!("t{n}");
        let call = Block::ToolUse {
            id: id(&name),
            name: "Read".to_owned(),
            input: json!({"n": n}),
            provider_data: None,
        };
        let content = vec![ResultBlock::text(result)];
        let result = Block::ToolResult { tool_use_id: id(&name), content, is_error: false };
        [Message::assistant(vec![call]), Message::user(vec![result])]
    }

    fn history(rounds: usize, result: &str) -> Vec<Message> {
        std::iter::once(Message::user_text("task"))
            .chain((0..rounds).flat_map(|n| round(n, result)))
            .collect()
    }

    #[test]
    fn k08_each_smaller_request_for_a_summary_is_smaller_also_when_one_round_is_all() {
        let check = |rounds: usize, expected: [usize; 4]| {
            let messages = history(rounds, &"words ".repeat(2_000));
            let requests: Vec<_> = (0..=SMALLER_SLICES).map(|n| summary_request(&messages, n)).collect();
            let bytes = |request: &Vec<Message>| super::super::accounting::message_bytes(request);
            assert!(requests.windows(2).all(|pair| bytes(&pair[1]) * 10 < bytes(&pair[0]) * 8), "{rounds}");
            assert_eq!(requests.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        };
        check(1, [3, 3, 3, 3]);
        check(2, [5, 3, 3, 3]);
        check(8, [17, 9, 5, 3]);
    }

    #[test]
    fn k08_a_list_of_calls_is_bounded_and_keeps_the_newest() {
        let list = list_of_calls(&history(1_000, "x"));
        assert!(list.len() < MAX_LIST_CHARS + 200, "{}", list.len());
        assert!(list.ends_with("- Read {\"n\":998}\n- Read {\"n\":999}"), "{list:.200}");
        assert!(list.contains("of 1000 calls were"));
    }
}
