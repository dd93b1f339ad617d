//! The script for those who speak the Messages API rather than the engine's types.

use query_engine::ports::ToolSpec;
use serde_json::{Value, json};
use swarm_protocol::{Block, Message, ResultBlock, Role, record::StopReason};

use super::script::{DemoReply, RequestView, demo_reply};

/// The demo model's answer to a request in the form of the Messages API: `{"content": […], "stop_reason": …}`.
/// What it does not understand of the request it leaves out.
pub fn demo_reply_json(request: &Value) -> Value {
    let system = texts(&request["system"]);
    let tools: Vec<ToolSpec> = list(&request["tools"])
        .map(|tool| ToolSpec {
            name: text(tool, "name"),
            description: text(tool, "description"),
            input_schema: tool["input_schema"].clone(),
            offer: query_engine::ports::Offer::Always,
        })
        .collect();
    let messages: Vec<Message> = list(&request["messages"]).filter_map(message).collect();
    let DemoReply { blocks, stop } =
        demo_reply(&RequestView { system: &system, tools: &tools, messages: &messages });
    let content: Vec<Value> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(json!({"type": "text", "text": text})),
            Block::ToolUse { id, name, input, .. } => {
                Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
            }
            _ => None,
        })
        .collect();
    let stop_reason = if stop == StopReason::ToolUse { "tool_use" } else { "end_turn" };
    json!({"content": content, "stop_reason": stop_reason})
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// A string, or the texts of blocks.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        other => {
            list(other).filter(|block| block["type"] == "text").map(|block| text(block, "text")).collect()
        }
    }
}

fn message(message: &Value) -> Option<Message> {
    let role = match message["role"].as_str()? {
        "assistant" => Role::Assistant,
        // A system message within a conversation says something to the model, as a user's does.
        "user" | "system" => Role::User,
        _ => return None,
    };
    let content = match &message["content"] {
        Value::String(text) => vec![Block::text(text.as_str())],
        blocks => list(blocks).filter_map(block).collect(),
    };
    Some(Message { role, content })
}

fn block(block: &Value) -> Option<Block> {
    Some(match block["type"].as_str()? {
        "text" => Block::text(text(block, "text")),
        "tool_use" => Block::ToolUse {
            id: text(block, "id").parse().ok()?,
            name: text(block, "name"),
            input: block["input"].clone(),
            provider_data: None,
        },
        "tool_result" => Block::ToolResult {
            tool_use_id: text(block, "tool_use_id").parse().ok()?,
            content: texts(&block["content"]).into_iter().map(ResultBlock::text).collect(),
            is_error: block["is_error"].as_bool().unwrap_or(false),
        },
        _ => return None,
    })
}
