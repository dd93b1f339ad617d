//! A chat-completions request. Pure, and the same bytes for the same request.

use query_engine::ports::{ModelRequest, ToolSpec};
use serde_json::{Map, Value, json};
use swarm_protocol::{Block, Message, Role};

use super::{image_url, result_images, result_text};
use crate::{
    call_id::plain_name,
    tool_input,
    written::{Written, tools_by_name},
};

/// What servers differ in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) model: String,
    /// `max_completion_tokens` rather than `max_tokens`.
    pub(super) completion_tokens: bool,
    /// Whether use is asked for in the stream.
    pub(super) stream_usage: bool,
    /// `developer` rather than `system`.
    pub(super) developer_role: bool,
    /// Whether every assistant message carries `reasoning_content`.
    pub(super) replay_reasoning: bool,
    /// The provider of blocks that only this endpoint understands.
    pub(super) opaque: String,
}

/// The body.
pub(super) fn body(shape: &Shape, request: &ModelRequest, written: &Written<Shape>) -> Vec<u8> {
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(shape.model));
    let limit = if shape.completion_tokens { "max_completion_tokens" } else { "max_tokens" };
    body.insert(limit.to_owned(), json!(request.max_tokens));
    body.insert("stream".to_owned(), json!(true));
    if shape.stream_usage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if !request.prefix.tools.is_empty() {
        let tools: Vec<Value> = tools_by_name(&request.prefix.tools, false).map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools));
        body.insert("tool_choice".to_owned(), json!("auto"));
    }
    let mut messages = Vec::new();
    if !request.prefix.system.is_empty() {
        let role = if shape.developer_role { "developer" } else { "system" };
        messages.push(json!({"role": role, "content": request.prefix.system.join("\n\n")}));
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    written.complete(&body, shape, &request.messages, &[], |_, message, _| {
        let mut values = Vec::new();
        match message.role {
            Role::User => user(message, &mut values),
            Role::Assistant => values.push(assistant(shape, message)),
        }
        values
    })
}

fn tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    })
}

/// Results first, each a message of its own, directly after the calls; then what the user says and shows.
fn user(message: &Message, out: &mut Vec<Value>) {
    for block in &message.content {
        if let Block::ToolResult { tool_use_id, content, is_error } = block {
            let text = result_text(content, *is_error);
            out.push(json!({"role": "tool", "tool_call_id": tool_use_id, "content": text}));
        }
    }
    let mut texts: Vec<&str> = Vec::new();
    let mut parts: Vec<Value> = Vec::new();
    let mut has_images = false;
    let mut show = |part: Result<String, String>, parts: &mut Vec<Value>| match part {
        Ok(url) => {
            has_images = true;
            parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
        }
        Err(problem) => parts.push(json!({"type": "text", "text": problem})),
    };
    for url in result_images(&message.content) {
        show(Ok(url), &mut parts);
    }
    for block in &message.content {
        match block {
            Block::Text { text } if !text.trim().is_empty() => {
                texts.push(text);
                parts.push(json!({"type": "text", "text": text}));
            }
            Block::Image { media_type, data } => show(image_url(media_type, data), &mut parts),
            _ => {}
        }
    }
    if has_images || parts.len() > texts.len() {
        out.push(json!({"role": "user", "content": parts}));
    } else if !texts.is_empty() {
        // Many servers take nothing but a string.
        out.push(json!({"role": "user", "content": texts.join("\n\n")}));
    }
}

fn assistant(shape: &Shape, message: &Message) -> Value {
    let mut texts: Vec<&str> = Vec::new();
    let mut reasoning = String::new();
    let mut calls: Vec<Value> = Vec::new();
    let mut details = None;
    for block in &message.content {
        match block {
            Block::Text { text } if !text.trim().is_empty() => texts.push(text),
            // A signature is another provider's.
            Block::Thinking { thinking, signature } if signature.is_empty() => reasoning.push_str(thinking),
            Block::ToolUse { id, name, input, provider_data } => {
                let arguments = tool_input::replayed(input).to_string();
                let mut call = json!({
                    "id": id,
                    "type": "function",
                    "function": {"name": plain_name(name), "arguments": arguments},
                });
                if let Some(extra) = provider_data.as_ref().and_then(|data| data.get("extra_content")) {
                    call["extra_content"] = extra.clone();
                }
                calls.push(call);
            }
            Block::Opaque { provider, data } if *provider == shape.opaque => {
                details = data.get("reasoning_details").cloned();
            }
            _ => {}
        }
    }
    let content = match (texts.is_empty(), calls.is_empty()) {
        (true, false) => Value::Null,
        _ => json!(texts.join("\n\n")),
    };
    let mut value = json!({"role": "assistant", "content": content});
    if shape.replay_reasoning {
        value["reasoning_content"] = json!(reasoning);
    }
    if let Some(details) = details {
        value["reasoning_details"] = details;
    }
    if !calls.is_empty() {
        value["tool_calls"] = Value::Array(calls);
    }
    value
}
