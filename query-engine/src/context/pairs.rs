//! The calls of a conversation with their results, in order: what the steps that clear results look at.

use std::collections::HashMap;

use serde_json::Value;
use swarm_protocol::{Block, Message, ResultBlock, ToolUseId};

use super::tool_result_budget::whole_text;

/// A call that has its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) id: &'a ToolUseId,
    pub(super) tool: &'a str,
    pub(super) input: &'a Value,
    pub(super) content: &'a [ResultBlock],
    pub(super) is_error: bool,
    /// Number of the assistant message, from 0.
    pub(super) turn: usize,
}

impl<'a> Pair<'a> {
    /// What a tool works on, where the same tool on the same thing can be told: a path, a command, a pattern.
    pub(super) fn target(&self) -> Option<String> {
        let text = |key: &str| self.input.get(key).and_then(Value::as_str);
        match text("file_path").or(text("notebook_path")).or(text("command")).or(text("url")) {
            Some(target) => Some(target.to_owned()),
            None => text("pattern").map(|pattern| format!("{pattern}\n{}", text("path").unwrap_or_default())),
        }
    }

    /// The words of the result.
    pub(super) fn text(&self) -> String {
        whole_text(self.content)
    }

    /// The files and words the call names.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let text = |key: &str| self.input.get(key).and_then(Value::as_str);
        let words = text("command").into_iter().flat_map(|command| {
            command.split(|character: char| character.is_whitespace() || "\"'`;|&()<>=".contains(character))
        });
        text("file_path").or(text("notebook_path")).into_iter().chain(words).collect()
    }
}

/// The calls with a result, in the order in which they were made. Of a view: each call has one.
pub(super) fn pairs(messages: &[Message]) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    let mut turn = 0;
    // The results of a call stand in the message after it.
    for (index, message) in messages.iter().enumerate() {
        let results: HashMap<&ToolUseId, (&[ResultBlock], bool)> = messages
            .get(index + 1)
            .into_iter()
            .flat_map(|next| &next.content)
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, content, is_error } => {
                    Some((tool_use_id, (content.as_slice(), *is_error)))
                }
                _ => None,
            })
            .collect();
        let mut has_calls = false;
        for (id, tool, input) in message.tool_uses() {
            has_calls = true;
            if let Some(&(content, is_error)) = results.get(id) {
                pairs.push(Pair { id, tool, input, content, is_error, turn });
            }
        }
        turn += usize::from(has_calls || message.role == swarm_protocol::Role::Assistant);
    }
    pairs
}

/// The messages with other results in place of these.
pub(super) fn with_results(messages: &[Message], replacements: &HashMap<ToolUseId, String>) -> Vec<Message> {
    let replaced = |block: &Block| match block {
        Block::ToolResult { tool_use_id, is_error, .. } => match replacements.get(tool_use_id) {
            Some(text) => Block::tool_result(tool_use_id.clone(), text, *is_error),
            None => block.clone(),
        },
        _ => block.clone(),
    };
    messages
        .iter()
        .map(|message| Message {
            role: message.role,
            content: message.content.iter().map(replaced).collect(),
        })
        .collect()
}
