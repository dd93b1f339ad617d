//! A request as the prefix rule and the simulated cache see it: a header, and one flat list of blocks.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::model_server::{
    normalise::items,
    record::{Api, Role},
};

type Hash = [u8; 16];

/// One block, or item, of what was sent.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) hash: Hash,
    pub(crate) bytes: usize,
    pub(super) role: Role,
    /// Whose result it is.
    pub(super) answers: Option<String>,
    /// Its beginning, for messages.
    pub(super) shown: String,
}

impl PartialEq for Sent {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

/// Named parts of the header, in the order in which providers hash them.
pub(crate) type Header = Vec<(&'static str, Hash)>;

#[derive(Debug, Clone)]
pub(crate) struct Flat {
    pub(crate) header: Header,
    pub(crate) blocks: Vec<Sent>,
}

/// What is compared of a request.
pub(crate) fn flatten(api: Api, body: &Value) -> Flat {
    let hashed = |keys: &[&str]| {
        let fields = keys.iter().map(|key| body[*key].clone());
        hash(&bare(&Value::Array(fields.collect())))
    };
    let mut header = vec![("tools", hash(&bare(&body["tools"])))];
    let mut system = Vec::new();
    let mut blocks = Vec::new();
    match api {
        Api::Anthropic | Api::CountTokens => {
            system.extend(content_blocks(&body["system"]));
            for message in items(&body["messages"]) {
                let role = role_of(message);
                blocks.extend(content_blocks(&message["content"]).map(|block| sent(role, &block)));
            }
        }
        Api::Chat => {
            for message in items(&body["messages"]) {
                let role = role_of(message);
                if role == Role::System && blocks.is_empty() {
                    system.push(message.clone());
                } else {
                    // The parts of one message are blocks of their own, so that a text appended to a message
                    // extends it.
                    let parts = content_blocks(&message["content"]);
                    let tool = message["role"] == "tool";
                    let texts =
                        parts.filter(|part| !tool && !part["text"].as_str().is_some_and(str::is_empty));
                    blocks.extend(texts.map(|part| sent(role, &part)));
                    let mut rest = message.clone();
                    if let (Some(rest), false) = (rest.as_object_mut(), tool) {
                        rest.remove("content");
                    }
                    if tool || rest.as_object().is_some_and(|rest| rest.len() > 1) {
                        blocks.push(sent(role, &rest));
                    }
                }
            }
        }
        Api::Responses => {
            system.push(body["instructions"].clone());
            let input = match &body["input"] {
                Value::String(text) => vec![serde_json::json!({"role": "user", "content": text})],
                input => items(input).cloned().collect(),
            };
            for item in &input {
                let role = role_of(item);
                if item["content"].is_null() {
                    blocks.push(sent(role, item));
                } else {
                    blocks.extend(content_blocks(&item["content"]).map(|part| sent(role, &part)));
                }
            }
        }
    }
    header.push(("system", hash(&bare(&Value::Array(system)))));
    header.push(("thinking", hashed(&["thinking"])));
    header.push(("effort", hashed(&["output_config", "reasoning", "reasoning_effort", "speed"])));
    header.push(("tool_choice", hashed(&["tool_choice", "parallel_tool_calls"])));
    // Edits that the provider makes, and schemas of the answer, which it puts before the prompt.
    header.push(("context_management", hashed(&["context_management"])));
    header.push(("format", hashed(&["response_format", "text", "output_format"])));
    Flat { header, blocks }
}

/// A plain string is the same as one text block.
fn content_blocks(content: &Value) -> impl Iterator<Item = Value> {
    let blocks = match content {
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        other => items(other).cloned().collect(),
    };
    blocks.into_iter()
}

fn role_of(item: &Value) -> Role {
    match (item["role"].as_str(), item["type"].as_str()) {
        (Some("assistant"), _) | (None, Some("function_call" | "reasoning" | "custom_tool_call")) => {
            Role::Assistant
        }
        (Some("system" | "developer"), _) => Role::System,
        _ => Role::User,
    }
}

fn sent(role: Role, block: &Value) -> Sent {
    let json = bare(block).to_string();
    let answers = ["tool_use_id", "tool_call_id", "call_id"]
        .into_iter()
        .find_map(|key| block[key].as_str())
        .filter(|_| role != Role::Assistant);
    Sent {
        hash: hash_bytes(format!("{role:?}{json}").as_bytes()),
        bytes: json.len(),
        role,
        answers: answers.map(str::to_owned),
        shown: json.chars().take(160).collect(),
    }
}

/// Without `cache_control`, anywhere but inside a call's input.
fn bare(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(bare).collect(),
        Value::Object(object) => {
            let kept = object.iter().filter(|(key, _)| *key != "cache_control");
            let kept = kept.map(|(key, value)| {
                let value = if key == "input" { value.clone() } else { bare(value) };
                (key.clone(), value)
            });
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn hash(value: &Value) -> Hash {
    hash_bytes(value.to_string().as_bytes())
}

fn hash_bytes(bytes: &[u8]) -> Hash {
    let digest = Sha256::digest(bytes);
    let mut hash = Hash::default();
    hash.copy_from_slice(&digest[..16]);
    hash
}
