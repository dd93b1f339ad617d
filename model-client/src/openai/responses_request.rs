//! A Responses request, stateless: nothing is stored at the provider, reasoning goes back encrypted, without ids.

use query_engine::ports::{ModelRequest, ToolSpec};
use serde_json::{Map, Value, json};
use swarm_protocol::{Block, Message, Role};

use super::{image_url, result_images, result_text};
use crate::{
    call_id::plain_name,
    tool_input,
    written::{Written, tools_by_name},
};

/// The provider of blocks that only OpenAI understands.
pub(super) const OPAQUE: &str = "openai";

/// What models and accounts differ in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) model: String,
    /// Whether the model reasons, and its reasoning is asked for.
    pub(super) reasons: bool,
    /// Whether summaries of the reasoning are asked for; some accounts may not.
    pub(super) summaries: bool,
    /// Reasoning in messages before this one is stale and left out.
    pub(super) stale_before: usize,
}

/// The body.
pub(super) fn body(shape: &Shape, request: &ModelRequest, written: &Written<Shape>) -> Vec<u8> {
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(shape.model));
    body.insert("max_output_tokens".to_owned(), json!(request.max_tokens));
    body.insert("stream".to_owned(), json!(true));
    body.insert("store".to_owned(), json!(false));
    if shape.reasons {
        body.insert("include".to_owned(), json!(["reasoning.encrypted_content"]));
        if shape.summaries {
            body.insert("reasoning".to_owned(), json!({"summary": "auto"}));
        }
    }
    if !request.prefix.tools.is_empty() {
        let tools: Vec<Value> = tools_by_name(&request.prefix.tools, false).map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools));
        body.insert("tool_choice".to_owned(), json!("auto"));
        body.insert("parallel_tool_calls".to_owned(), json!(true));
    }
    if !request.prefix.system.is_empty() {
        body.insert("instructions".to_owned(), json!(request.prefix.system.join("\n\n")));
    }
    body.insert("input".to_owned(), Value::Array(Vec::new()));
    written.complete(&body, shape, &request.messages, &[], |index, message, _| {
        let mut values = Vec::new();
        match message.role {
            Role::User => user(message, &mut values),
            Role::Assistant => assistant(message, index >= shape.stale_before, &mut values),
        }
        values
    })
}

/// Schemas go out as they are; without `strict: false` the provider would rewrite them.
fn tool(tool: &ToolSpec) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": false,
    })
}

fn user(message: &Message, out: &mut Vec<Value>) {
    for block in &message.content {
        if let Block::ToolResult { tool_use_id, content, is_error } = block {
            let output = result_text(content, *is_error);
            out.push(json!({"type": "function_call_output", "call_id": tool_use_id, "output": output}));
        }
    }
    let image = |url: String| json!({"type": "input_image", "image_url": url, "detail": "auto"});
    let mut parts: Vec<Value> = result_images(&message.content).into_iter().map(image).collect();
    for block in &message.content {
        match block {
            Block::Text { text } if !text.trim().is_empty() => {
                parts.push(json!({"type": "input_text", "text": text}));
            }
            Block::Image { media_type, data } => parts.push(match image_url(media_type, data) {
                Ok(url) => image(url),
                Err(problem) => json!({"type": "input_text", "text": problem}),
            }),
            _ => {}
        }
    }
    if !parts.is_empty() {
        out.push(json!({"role": "user", "content": parts}));
    }
}

fn assistant(message: &Message, with_reasoning: bool, out: &mut Vec<Value>) {
    // A reasoning item is accepted only directly before the item that came after it.
    let mut reasoning: Option<Value> = None;
    for block in &message.content {
        let item = match block {
            Block::Opaque { provider, data } if provider == OPAQUE => {
                if data["type"] == "reasoning" {
                    let usable = with_reasoning && data["encrypted_content"].is_string();
                    reasoning = usable.then(|| without_id(data));
                    continue;
                }
                without_id(data)
            }
            Block::Text { text } if !text.trim().is_empty() => json!({
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text}],
            }),
            Block::ToolUse { id, name, input, provider_data: _ } => json!({
                "type": "function_call",
                "call_id": id,
                "name": plain_name(name),
                "arguments": tool_input::replayed(input).to_string(),
            }),
            _ => continue,
        };
        out.extend(reasoning.take());
        out.push(item);
    }
}

/// With nothing stored, an id leads nowhere and is refused.
fn without_id(item: &Value) -> Value {
    let mut item = item.clone();
    if let Some(fields) = item.as_object_mut() {
        fields.shift_remove("id");
        fields.shift_remove("status");
    }
    item
}
