//! What the server keeps of each request: the bytes as they came, and one view for all three APIs.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderMap;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::reply::Usage;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `POST /v1/messages`
    Anthropic,
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages/count_tokens`: recorded, never scripted, and apart from the prefix rule.
    CountTokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
    /// A system message in the middle of a conversation; those at its head are [`RecordedRequest::system`].
    System,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text { text: String },
    Thinking { text: String, signature: String },
    RedactedThinking { data: String },
    ToolUse { id: String, name: String, input: Value },
    ToolResult { id: String, text: String, is_error: bool },
    Image { media_type: String, bytes: usize },
    Other { json: Value },
}

/// One message of the normalised view. Tool results of the OpenAI APIs stand in a user message, as Anthropic has
/// them, and neighbours of the same role are one message there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NormalMessage {
    pub role: Role,
    pub blocks: Vec<Block>,
}

impl NormalMessage {
    /// All its text blocks, joined by line ends; no tool results.
    pub fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// How the answer to a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    InFlight,
    Delivered,
    /// Answered with this HTTP status instead of a message.
    HttpError(u16),
    /// The script ended it early.
    Cut,
    /// The client hung up first.
    ClientGone,
}

#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// 1, 2, 3 … in order of arrival.
    pub id: u64,
    pub api: Api,
    pub path: String,
    pub headers: HeaderMap,
    pub raw: Bytes,
    pub json: Value,
    pub model: String,
    pub stream: bool,
    /// System text, blocks joined by line ends.
    pub system: String,
    pub messages: Vec<NormalMessage>,
    pub tools: Vec<String>,
    /// Text of the first user message: what tells one agent's requests from another's.
    pub agent_key: String,
    /// How many requests with this agent key and API came before.
    pub nth: usize,
    pub at: Timestamp,
    pub(crate) outcome: Arc<Mutex<Outcome>>,
    pub(crate) usage: Arc<Mutex<Option<Usage>>>,
}

impl RecordedRequest {
    pub fn outcome(&self) -> Outcome {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the answer says was used, once it began; cache figures are the simulated cache's unless the script has
    /// its own.
    pub fn usage(&self) -> Option<Usage> {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = Some(usage);
    }

    /// The output that is asked for, under any of its names.
    pub fn max_output(&self) -> Option<u64> {
        let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
        names.iter().find_map(|name| self.json[name].as_u64())
    }

    /// Only keeps the cache warm: no conversation goes on from it.
    pub fn only_reads(&self) -> bool {
        self.max_output().is_some_and(|most| most <= 1)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn last_message(&self) -> Option<&NormalMessage> {
        self.messages.last()
    }

    /// Text of the last user message, without tool results.
    pub fn last_user_text(&self) -> String {
        let last = self.messages.iter().rev().find(|m| m.role == Role::User);
        last.map(NormalMessage::text).unwrap_or_default()
    }

    pub fn any_user_text_contains(&self, needle: &str) -> bool {
        let mut users = self.messages.iter().filter(|m| m.role == Role::User);
        users.any(|message| message.text().contains(needle))
    }

    /// How many assistant messages the history holds: 0 for an agent's first turn, however often it is retried.
    pub fn turn(&self) -> usize {
        let assistants = self.messages.iter().filter(|m| m.role == Role::Assistant);
        assistants.count()
    }

    /// Every tool result in the history: id, text, is_error.
    pub fn tool_results(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        let blocks = self.messages.iter().flat_map(|message| &message.blocks);
        blocks.filter_map(|block| match block {
            Block::ToolResult { id, text, is_error } => Some((id.as_str(), text.as_str(), *is_error)),
            _ => None,
        })
    }

    /// The results in the newest user message.
    pub fn last_tool_results(&self) -> Vec<(&str, &str, bool)> {
        let last = self.messages.iter().rev().find(|m| m.role == Role::User);
        let blocks = last.into_iter().flat_map(|message| &message.blocks);
        let results = blocks.filter_map(|block| match block {
            Block::ToolResult { id, text, is_error } => Some((id.as_str(), text.as_str(), *is_error)),
            _ => None,
        });
        results.collect()
    }

    pub fn tool_result(&self, id: &str) -> Option<&str> {
        let mut results = self.tool_results();
        results.find(|(of, _, _)| *of == id).map(|(_, text, _)| text)
    }

    /// Every tool call in the history: id, name, input.
    pub fn tool_uses(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let blocks = self.messages.iter().flat_map(|message| &message.blocks);
        blocks.filter_map(|block| match block {
            Block::ToolUse { id, name, input } => Some((id.as_str(), name.as_str(), input)),
            _ => None,
        })
    }

    /// What the control endpoint tells of it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "id": self.id, "api": self.api, "path": self.path, "model": self.model, "stream": self.stream,
            "agent_key": self.agent_key, "nth": self.nth, "at": self.at.to_string(),
            "outcome": self.outcome(), "usage": self.usage(), "tools": self.tools, "messages": self.messages, "json": self.json,
        })
    }
}
