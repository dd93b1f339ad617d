//! Conversations: made of a table, and shown as text.

use serde_json::Value;
use swarm_protocol::{Block, Message, Role};

use super::answers::id;

/// A conversation of one call a turn, `t0`, `t1`, ..: tool, input, result, whether it failed.
pub fn history(turns: &[(&str, Value, &str, bool)]) -> Vec<Message> {
    let mut messages = vec![Message::user_text("the task")];
    for (n, (tool, input, result, is_error)) in turns.iter().enumerate() {
        let id = id(&format!("t{n}"));
        messages.push(Message::assistant(vec![Block::ToolUse {
            id: id.clone(),
            name: (*tool).to_owned(),
            input: input.clone(),
            provider_data: None,
        }]));
        messages.push(Message::user(vec![Block::tool_result(id, *result, *is_error)]));
    }
    messages
}

/// A conversation as text, one line a block: `user: the task`, `assistant> Read {..}`, `user< ok`.
pub fn render<M: std::borrow::Borrow<Message>>(messages: &[M]) -> String {
    let mut lines = Vec::new();
    for message in messages {
        let message = message.borrow();
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        for block in &message.content {
            lines.push(match block {
                Block::Text { text } => format!("{role}: {text}"),
                Block::Thinking { thinking, .. } => format!("{role} thinks: {thinking}"),
                Block::RedactedThinking { .. } => format!("{role} thinks: (redacted)"),
                Block::ToolUse { id, name, input, .. } => format!("{role} calls {id}: {name} {input}"),
                Block::ToolResult { tool_use_id, content, is_error } => {
                    let mark = if *is_error { " failed" } else { "" };
                    let parts: Vec<&str> =
                        content.iter().map(|part| part.as_text().unwrap_or("(image)")).collect();
                    format!("{role} answers {tool_use_id}{mark}: {}", parts.join("\n"))
                }
                Block::Image { .. } => format!("{role}: (image)"),
                Block::Opaque { provider, .. } => format!("{role}: (opaque of {provider})"),
            });
        }
    }
    lines.join("\n")
}
