//! Request bodies of the three APIs to one view. Lenient: what is wrong in a request is for `invariants` to say.

use serde_json::Value;

use super::record::{Api, Block, NormalMessage, Role};

#[derive(Debug, Default)]
pub(crate) struct Normal {
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) system: String,
    pub(crate) messages: Vec<NormalMessage>,
    pub(crate) tools: Vec<String>,
}

impl Normal {
    pub(crate) fn agent_key(&self) -> String {
        let first = self.messages.iter().find(|m| m.role == Role::User);
        first.map(NormalMessage::text).unwrap_or_default()
    }
}

pub(crate) fn normalise(api: Api, body: &Value) -> Normal {
    let mut normal = Normal {
        model: string(&body["model"]),
        stream: body["stream"].as_bool().unwrap_or(false),
        tools: items(&body["tools"]).map(tool_name).collect(),
        ..Normal::default()
    };
    match api {
        Api::Anthropic | Api::CountTokens => anthropic(body, &mut normal),
        Api::Chat => chat(body, &mut normal),
        Api::Responses => responses(body, &mut normal),
    }
    normal
}

/// The name of a tool definition in any of the three shapes.
pub(crate) fn tool_name(tool: &Value) -> String {
    let nested = &tool["function"]["name"];
    string(if nested.is_string() { nested } else { &tool["name"] })
}

fn anthropic(body: &Value, normal: &mut Normal) {
    normal.system = text_of(&body["system"]);
    for message in items(&body["messages"]) {
        let role = match message["role"].as_str() {
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            _ => Role::User,
        };
        let blocks = match &message["content"] {
            Value::String(text) => vec![Block::Text { text: text.clone() }],
            content => items(content).map(anthropic_block).collect(),
        };
        normal.messages.push(NormalMessage { role, blocks });
    }
}

fn anthropic_block(block: &Value) -> Block {
    match block["type"].as_str() {
        Some("text") => Block::Text { text: string(&block["text"]) },
        Some("thinking") => {
            Block::Thinking { text: string(&block["thinking"]), signature: string(&block["signature"]) }
        }
        Some("redacted_thinking") => Block::RedactedThinking { data: string(&block["data"]) },
        Some("tool_use") => Block::ToolUse {
            id: string(&block["id"]),
            name: string(&block["name"]),
            input: block["input"].clone(),
        },
        Some("tool_result") => Block::ToolResult {
            id: string(&block["tool_use_id"]),
            text: text_of(&block["content"]),
            is_error: block["is_error"].as_bool().unwrap_or(false),
        },
        Some("image") => Block::Image {
            media_type: string(&block["source"]["media_type"]),
            bytes: block["source"]["data"].as_str().map_or(0, str::len),
        },
        _ => Block::Other { json: block.clone() },
    }
}

fn chat(body: &Value, normal: &mut Normal) {
    let mut system = Vec::new();
    for message in items(&body["messages"]) {
        match message["role"].as_str() {
            Some("system" | "developer") if normal.messages.is_empty() => {
                system.push(text_of(&message["content"]));
            }
            Some("system" | "developer") => push(normal, Role::System, content(&message["content"])),
            Some("assistant") => {
                let mut blocks = Vec::new();
                let reasoning = ["reasoning_content", "reasoning"].map(|key| string(&message[key]));
                if let Some(text) = reasoning.into_iter().find(|text| !text.is_empty()) {
                    let signature = String::new();
                    blocks.push(Block::Thinking { text, signature });
                }
                blocks.extend(content(&message["content"]));
                let calls = items(&message["tool_calls"]).map(|call| Block::ToolUse {
                    id: string(&call["id"]),
                    name: string(&call["function"]["name"]),
                    input: parsed(&call["function"]["arguments"]),
                });
                blocks.extend(calls);
                push(normal, Role::Assistant, blocks);
            }
            Some("tool") => {
                let result = Block::ToolResult {
                    id: string(&message["tool_call_id"]),
                    text: text_of(&message["content"]),
                    is_error: false,
                };
                push(normal, Role::User, vec![result]);
            }
            _ => push(normal, Role::User, content(&message["content"])),
        }
    }
    normal.system = system.join("\n");
}

fn responses(body: &Value, normal: &mut Normal) {
    normal.system = string(&body["instructions"]);
    if let Value::String(text) = &body["input"] {
        push(normal, Role::User, vec![Block::Text { text: text.clone() }]);
    }
    for item in items(&body["input"]) {
        match item["type"].as_str() {
            Some("function_call") => {
                let call = Block::ToolUse {
                    id: string(&item["call_id"]),
                    name: string(&item["name"]),
                    input: parsed(&item["arguments"]),
                };
                push(normal, Role::Assistant, vec![call]);
            }
            Some("function_call_output") => {
                let result = Block::ToolResult {
                    id: string(&item["call_id"]),
                    text: text_of(&item["output"]),
                    is_error: false,
                };
                push(normal, Role::User, vec![result]);
            }
            Some("reasoning") => {
                let thinking = Block::Thinking {
                    text: text_of(&item["summary"]),
                    signature: string(&item["encrypted_content"]),
                };
                push(normal, Role::Assistant, vec![thinking]);
            }
            _ => {
                let role = match item["role"].as_str() {
                    Some("assistant") => Role::Assistant,
                    Some("system" | "developer") => Role::System,
                    _ => Role::User,
                };
                push(normal, role, content(&item["content"]));
            }
        }
    }
}

/// Appends to the last message when the role is the same.
fn push(normal: &mut Normal, role: Role, blocks: Vec<Block>) {
    match normal.messages.last_mut() {
        Some(last) if last.role == role => last.blocks.extend(blocks),
        _ => normal.messages.push(NormalMessage { role, blocks }),
    }
}

fn content(content: &Value) -> Vec<Block> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => vec![Block::Text { text: text.clone() }],
        parts => items(parts).map(content_part).collect(),
    }
}

fn content_part(part: &Value) -> Block {
    match part["type"].as_str() {
        Some("text" | "input_text" | "output_text") => Block::Text { text: string(&part["text"]) },
        Some("image_url" | "input_image") => {
            let nested = &part["image_url"]["url"];
            let url = string(if nested.is_string() { nested } else { &part["image_url"] });
            Block::Image {
                media_type: url.split(';').next().unwrap_or_default().replace("data:", ""),
                bytes: url.len(),
            }
        }
        _ => Block::Other { json: part.clone() },
    }
}

/// Text of a string, or of the text members of an array.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let texts = items(other).filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// Members of an array; none of anything else.
pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Arguments as sent by the OpenAI APIs: JSON in a string. What does not parse stays a string.
fn parsed(arguments: &Value) -> Value {
    let text = arguments.as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_else(|_| arguments.clone())
}
