//! What a provider is sent of a conversation: a pure view, so that what is stored never changes.
//!
//! The view alternates roles, answers each call exactly once in the message after it (I1), holds no empty
//! content, and extends: the view of a longer history begins with the view of the shorter one.

use std::collections::{BTreeMap, HashMap, HashSet};

use swarm_protocol::{Block, Message, ResultBlock, Role, ToolUseId};

use crate::state::OUTCOME_UNKNOWN;

/// The messages as they are sent to `model`. `asked` names the model of each assistant message; thinking
/// goes back to that model only.
pub fn api_messages(messages: &[Message], asked: &BTreeMap<usize, String>, model: &str) -> Vec<Message> {
    let mut view = View { messages: Vec::new() };
    let stored = results_by_call(messages);
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            Role::Assistant => {
                let foreign = asked.get(&index).is_some_and(|asked| asked != model);
                let content = assistant_content(message, foreign);
                let calls: Vec<ToolUseId> =
                    Message::assistant(content.clone()).tool_uses().map(|(id, _, _)| id.clone()).collect();
                view.push(Role::Assistant, content);
                let results = calls.into_iter().map(|id| result_for(id, messages, index, &stored)).collect();
                view.push(Role::User, results);
            }
            Role::User => view.push(Role::User, message.content.iter().filter_map(user_block).collect()),
        }
    }
    view.messages
}

/// Stored results by call, each with the index of its message.
type Results<'a> = HashMap<&'a ToolUseId, Vec<(usize, &'a Block)>>;

/// Whether the view ends with the user's words or results: whether there is something to answer.
pub fn awaits_answer(messages: &[Message]) -> bool {
    for message in messages.iter().rev() {
        match message.role {
            Role::User => {
                if message.content.iter().any(|block| user_block(block).is_some()) {
                    return true;
                }
            }
            Role::Assistant => {
                if message.tool_uses().next().is_some() {
                    return true;
                }
                if !assistant_content(message, false).is_empty() {
                    return false;
                }
            }
        }
    }
    false
}

struct View {
    messages: Vec<Message>,
}

impl View {
    fn push(&mut self, role: Role, content: Vec<Block>) {
        if content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            None if role == Role::Assistant => {
                self.messages.push(Message::user_text("(the conversation goes on)"));
                self.messages.push(Message { role, content });
            }
            Some(_) | None => self.messages.push(Message { role, content }),
        }
    }
}

/// What is sent of an assistant message. One of thinking alone says nothing and is left out.
fn assistant_content(message: &Message, foreign: bool) -> Vec<Block> {
    let mut seen = HashSet::new();
    let mut says_something = false;
    let mut content = Vec::with_capacity(message.content.len());
    for block in &message.content {
        match block {
            Block::Text { text } if text.trim().is_empty() => {}
            Block::Text { .. } | Block::Opaque { .. } => {
                says_something = true;
                content.push(block.clone());
            }
            Block::Thinking { .. } | Block::RedactedThinking { .. } => {
                if !foreign {
                    content.push(block.clone());
                }
            }
            Block::ToolUse { id, name, input, provider_data } => {
                if seen.insert(id.clone()) {
                    says_something = true;
                    content.push(Block::ToolUse {
                        id: id.clone(),
                        name: sendable_name(name),
                        input: sendable_input(input),
                        provider_data: provider_data.clone(),
                    });
                }
            }
            Block::ToolResult { .. } | Block::Image { .. } => {}
        }
    }
    if says_something { content } else { Vec::new() }
}

/// Providers refuse a history with a name outside `[a-zA-Z0-9_-]{1,64}`, whoever wrote it.
fn sendable_name(name: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return name.to_owned();
    }
    let name: String =
        name.chars().take(64).map(|character| if fits(character) { character } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// Arguments are an object, whatever an older transcript holds (S13).
fn sendable_input(input: &serde_json::Value) -> serde_json::Value {
    if input.is_object() { input.clone() } else { serde_json::json!({ "INVALID_JSON": input }) }
}

/// What is sent of a user message besides results, which go out with their call.
fn user_block(block: &Block) -> Option<Block> {
    match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { .. } | Block::Image { .. } | Block::Opaque { .. } => Some(block.clone()),
        Block::ToolResult { .. }
        | Block::ToolUse { .. }
        | Block::Thinking { .. }
        | Block::RedactedThinking { .. } => None,
    }
}

/// Results by call, with the messages they stand in: the place of each is only looked up where the message
/// after the call does not hold it.
fn results_by_call(messages: &[Message]) -> Results<'_> {
    let mut results: Results<'_> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        for block in &message.content {
            if let Block::ToolResult { tool_use_id, .. } = block {
                results.entry(tool_use_id).or_default().push((index, block));
            }
        }
    }
    results
}

/// The result of a call in the message `index`: the first one after it that belongs to no later call of
/// the same id.
fn result_for(id: ToolUseId, messages: &[Message], index: usize, results: &Results<'_>) -> Block {
    let next_same_call = || {
        messages
            .iter()
            .enumerate()
            .skip(index + 1)
            .find(|(_, message)| {
                message.role == Role::Assistant && message.tool_uses().any(|(other, _, _)| *other == id)
            })
            .map_or(messages.len(), |(at, _)| at)
    };
    let found = results
        .get(&id)
        .and_then(|places| places.iter().find(|(at, _)| *at > index))
        .filter(|(at, _)| *at == index + 1 || *at < next_same_call());
    match found {
        Some((_, Block::ToolResult { content, is_error, .. })) => {
            Block::ToolResult { tool_use_id: id, content: sendable_result(content), is_error: *is_error }
        }
        Some(_) | None => Block::tool_result(id, OUTCOME_UNKNOWN, true),
    }
}

fn sendable_result(content: &[ResultBlock]) -> Vec<ResultBlock> {
    let mut parts: Vec<ResultBlock> = content
        .iter()
        .filter(|part| match part {
            ResultBlock::Text { text } => !text.trim().is_empty(),
            ResultBlock::Image { data, .. } => !data.is_empty(),
        })
        .cloned()
        .collect();
    if parts.is_empty() {
        parts.push(ResultBlock::text(""));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{id, render};
    use serde_json::json;

    fn check(messages: &[Message], expected: &str) {
        assert_eq!(render(&api_messages(messages, &BTreeMap::new(), "m")), expected);
    }

    fn call(input: serde_json::Value) -> Block {
        Block::ToolUse { id: id("t1"), name: "Read".to_owned(), input, provider_data: None }
    }

    #[test]
    fn s13_arguments_that_are_no_object_become_one() {
        let messages = [Message::user_text("a"), Message::assistant(vec![call(json!("{\"a\":"))])];
        let view = api_messages(&messages, &BTreeMap::new(), "m");
        let (_, _, input) = view[1].tool_uses().next().unwrap();
        assert_eq!(*input, json!({ "INVALID_JSON": "{\"a\":" }));
    }

    #[test]
    fn one_id_in_two_turns_is_answered_in_each() {
        let messages = [
            Message::user_text("a"),
            Message::assistant(vec![call(json!({"n": 1}))]),
            Message::assistant(vec![call(json!({"n": 2}))]),
            Message::user(vec![Block::tool_result(id("t1"), "second", false)]),
        ];
        check(
            &messages,
            &format!(
                "user: a\nassistant calls t1: Read {{\"n\":1}}\nuser answers t1 failed: {OUTCOME_UNKNOWN}\n\
                 assistant calls t1: Read {{\"n\":2}}\nuser answers t1: second"
            ),
        );
    }

    #[test]
    fn thinking_goes_to_its_own_model_only() {
        let thinking = Block::Thinking { thinking: "hm".to_owned(), signature: "s".to_owned() };
        let messages = [Message::user_text("a"), Message::assistant(vec![thinking, Block::text("b")])];
        let asked = BTreeMap::from([(1, "m".to_owned())]);
        assert_eq!(
            render(&api_messages(&messages, &asked, "m")),
            "user: a\nassistant thinks: hm\nassistant: b"
        );
        assert_eq!(render(&api_messages(&messages, &asked, "other")), "user: a\nassistant: b");
    }

    #[test]
    fn what_awaits_an_answer() {
        let user = || Message::user_text("a");
        assert!(!awaits_answer(&[]));
        assert!(awaits_answer(&[user()]));
        assert!(!awaits_answer(&[user(), Message::assistant(vec![Block::text("b")])]));
        assert!(awaits_answer(&[user(), Message::assistant(vec![Block::text(" ")])]));
        assert!(awaits_answer(&[user(), Message::assistant(vec![call(json!({}))])]));
        assert!(!awaits_answer(&[
            user(),
            Message::assistant(vec![Block::text("b")]),
            Message::user_text(" ")
        ]));
    }
}
