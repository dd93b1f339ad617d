//! A request's body. Pure, and the same bytes for the same request: providers cache by prefix.
//!
//! What the provider would refuse for ever is repaired here (blank texts, arguments that are no object, bad
//! images), always in the same way, so that a prefix stays a prefix.

use query_engine::ports::{Breakpoint, ModelRequest, Offer, ToolSpec};
use serde_json::{Map, Value, json};
use swarm_protocol::{Block, Message, ResultBlock, Role};

use crate::{
    call_id::{plain_id, plain_name},
    images, tool_input,
    written::{Written, tools_by_name},
};

/// What is the same in every request to an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) model: String,
    pub(crate) eager_input_streaming: bool,
    pub(crate) adaptive_thinking: bool,
    /// Whether definitions of tools are kept out of the context until a result refers to them.
    pub(crate) defer_tools: bool,
    /// Whether thinking without a signature is sent back; Anthropic itself refuses it.
    pub(crate) unsigned_thinking: bool,
}

/// The body. Sampling parameters are never sent: newer models refuse them.
pub(crate) fn body(shape: &Shape, request: &ModelRequest, written: &Written<Shape>) -> Vec<u8> {
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(shape.model));
    body.insert("max_tokens".to_owned(), json!(request.max_tokens));
    body.insert("stream".to_owned(), json!(true));
    if shape.adaptive_thinking {
        // Newer models write what they say between tool calls into thinking, and omit it unless asked.
        body.insert("thinking".to_owned(), json!({"type": "adaptive", "display": "summarized"}));
    }
    let mut tools = tools(shape, &request.prefix.tools);
    let mut system: Vec<Value> = request
        .prefix
        .system
        .iter()
        .filter(|text| !text.trim().is_empty())
        .map(|text| json!({"type": "text", "text": text}))
        .collect();
    if request.breakpoints.contains(&Breakpoint::Prefix)
        && let Some(last) = system.last_mut().or(tools.last_mut())
    {
        mark(last);
    }
    if !tools.is_empty() {
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    if !system.is_empty() {
        body.insert("system".to_owned(), Value::Array(system));
    }
    body.insert("messages".to_owned(), Value::Array(Vec::new()));
    let mut marked: Vec<usize> = request
        .breakpoints
        .iter()
        .filter_map(|breakpoint| match breakpoint {
            Breakpoint::Message(index) => Some(*index),
            Breakpoint::Prefix => None,
        })
        .collect();
    marked.sort_unstable();
    marked.dedup();
    written.complete(&body, shape, &request.messages, &marked, |_, message, marked| {
        vec![self::message(shape, message, marked)]
    })
}

fn tools(shape: &Shape, tools: &[ToolSpec]) -> Vec<Value> {
    let value = |tool: &ToolSpec| {
        let mut value = json!({
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.input_schema,
        });
        if shape.eager_input_streaming {
            value["eager_input_streaming"] = json!(true);
        }
        if tool.offer == Offer::Deferred {
            value["defer_loading"] = json!(true);
        }
        value
    };
    tools_by_name(tools, shape.defer_tools).map(value).collect()
}

fn message(shape: &Shape, message: &Message, marked: bool) -> Value {
    let mut content: Vec<Value> =
        message.content.iter().filter_map(|block| self::block(shape, block)).collect();
    if content.is_empty() {
        content.push(json!({"type": "text", "text": "(no content)"}));
    }
    if marked && let Some(last) = content.iter_mut().rev().find(|block| is_cacheable(block)) {
        mark(last);
    }
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    json!({"role": role, "content": content})
}

/// The provider refuses a mark on thinking.
fn is_cacheable(block: &Value) -> bool {
    !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// Five minutes is the default lifetime, and the only one every server knows.
fn mark(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}

fn block(shape: &Shape, block: &Block) -> Option<Value> {
    Some(match block {
        Block::Text { text } if text.trim().is_empty() => return None,
        Block::Text { text } => json!({"type": "text", "text": text}),
        Block::Thinking { signature, .. } if signature.is_empty() && !shape.unsigned_thinking => return None,
        Block::Thinking { thinking, signature } => {
            json!({"type": "thinking", "thinking": thinking, "signature": signature})
        }
        Block::RedactedThinking { data } => json!({"type": "redacted_thinking", "data": data}),
        Block::ToolUse { id, name, input, provider_data: _ } => json!({
            "type": "tool_use",
            "id": plain_id(id),
            "name": plain_name(name),
            "input": tool_input::replayed(input),
        }),
        Block::ToolResult { tool_use_id, content, is_error } => {
            let mut content: Vec<Value> = content.iter().map(|part| result_block(shape, part)).collect();
            if content.is_empty() {
                content.push(json!({"type": "text", "text": "(no output)"}));
            }
            let mut result =
                json!({"type": "tool_result", "tool_use_id": plain_id(tool_use_id), "content": content});
            if *is_error {
                result["is_error"] = json!(true);
            }
            result
        }
        Block::Image { media_type, data } => image(media_type, data),
        Block::Opaque { provider, data } if provider == super::stream::OPAQUE => data.clone(),
        Block::Opaque { .. } => return None,
    })
}

fn result_block(shape: &Shape, block: &ResultBlock) -> Value {
    match block {
        ResultBlock::Text { text } if text.trim().is_empty() => {
            json!({"type": "text", "text": "(no output)"})
        }
        ResultBlock::Text { text } => json!({"type": "text", "text": text}),
        ResultBlock::Image { media_type, data } => image(media_type, data),
        ResultBlock::ToolReference { name, .. } if shape.defer_tools => {
            json!({"type": "tool_reference", "tool_name": plain_name(name)})
        }
        ResultBlock::ToolReference { definition, .. } => json!({"type": "text", "text": definition}),
    }
}

fn image(media_type: &str, data: &str) -> Value {
    match images::problem(media_type, data) {
        Some(problem) => json!({"type": "text", "text": problem}),
        None => json!({
            "type": "image",
            "source": {"type": "base64", "media_type": media_type, "data": data},
        }),
    }
}
