//! A reply in the words of one API: the steps of a stream, or the JSON of a whole answer.

mod anthropic;
mod chat;
mod responses;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    record::{Api, RecordedRequest},
    reply::{HttpReply, Part, Reply, Thinking, ToolUse, Usage},
    wire::Step,
};

/// A reply with everything decided that the script left open.
pub(crate) struct Rendering<'a> {
    pub(crate) reply: &'a Reply,
    pub(crate) request: &'a RecordedRequest,
    /// Parts with ids and signatures filled in.
    parts: Vec<Part>,
    usage: Usage,
}

impl<'a> Rendering<'a> {
    /// `input` is what the simulated cache makes of the prompt.
    pub(crate) fn new(reply: &'a Reply, request: &'a RecordedRequest, input: Usage) -> Self {
        let mut parts = reply.parts.clone();
        let mut output_bytes = 0;
        for (n, part) in parts.iter_mut().enumerate() {
            output_bytes += fill_in(part, request, n);
        }
        let usage =
            reply.usage.unwrap_or(Usage { output: (output_bytes as u64).div_ceil(4).max(1), ..input });
        Self { reply, request, parts, usage }
    }

    /// What the reply says was used.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// The answer may come back as the last message of the next request.
    pub(crate) fn is_paused(&self) -> bool {
        self.reply.stop_reason() == "pause_turn"
    }

    /// Ids of the calls in this reply.
    pub(crate) fn tool_ids(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse(call) => call.id.as_deref(),
            _ => None,
        })
    }

    /// Thinking of this reply: signature and text.
    pub(crate) fn signed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Thinking(thinking) => Some((thinking.signature.as_deref()?, &*thinking.text)),
            _ => None,
        })
    }

    pub(crate) fn stream(&self) -> Vec<Step> {
        match self.request.api {
            Api::Anthropic | Api::CountTokens => anthropic::stream(self),
            Api::Chat => chat::stream(self),
            Api::Responses => responses::stream(self),
        }
    }

    /// The answer to a request that does not stream. Its gates and ends hold, as steps before the body.
    pub(crate) fn whole(&self) -> Vec<Step> {
        let body = match self.request.api {
            Api::Anthropic | Api::CountTokens => anthropic::whole(self),
            Api::Chat => chat::whole(self),
            Api::Responses => responses::whole(self),
        };
        let mut steps: Vec<Step> = self.parts.iter().filter_map(pause).collect();
        steps.push(Step::Raw(body.to_string().into()));
        steps
    }

    fn model(&self) -> &str {
        self.reply.model.as_deref().unwrap_or(&self.request.model)
    }

    /// `text` in deltas of the size the script asks for; an empty text has none.
    fn deltas(&self, text: &str) -> Vec<String> {
        let size = self.reply.chunk.unwrap_or(usize::MAX).max(1);
        if text.is_empty() {
            return Vec::new();
        }
        if size == usize::MAX {
            return vec![text.to_owned()];
        }
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(size).map(|chunk| chunk.iter().collect()).collect()
    }
}

/// Decides what the script left open; returns the part's length in bytes.
fn fill_in(part: &mut Part, request: &RecordedRequest, n: usize) -> usize {
    match part {
        Part::Text(text) => text.len(),
        Part::Thinking(Thinking { text, signature }) => {
            let made = || format!("sig-{}-{n}-{:08x}", request.id, crc(text.as_bytes()));
            signature.get_or_insert_with(made);
            text.len()
        }
        Part::ToolUse(call) => {
            let prefix = match request.api {
                Api::Anthropic | Api::CountTokens => "toolu",
                Api::Chat | Api::Responses => "call",
            };
            call.id.get_or_insert_with(|| format!("{prefix}_{:06}_{n}", request.id));
            call.name.len() + arguments(call).len()
        }
        _ => 0,
    }
}

/// A small stable checksum; only so that signatures differ with their text.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The arguments as the model streams them.
fn arguments(call: &ToolUse) -> String {
    match (&call.raw_input, &call.input) {
        (Some(raw), _) => raw.clone(),
        (None, Value::Null) => String::new(),
        (None, input) => input.to_string(),
    }
}

/// The input as an object, for answers that are not streamed.
fn whole_input(call: &ToolUse) -> Value {
    let text = arguments(call);
    if text.is_empty() {
        return json!({});
    }
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// The parts that are the same in every API.
fn pause(part: &Part) -> Option<Step> {
    match part {
        Part::Gate(name) => Some(Step::Gate(name.clone())),
        Part::DelayMs(ms) => Some(Step::Delay(std::time::Duration::from_millis(*ms))),
        Part::End(how) => Some(Step::End(*how)),
        _ => None,
    }
}

/// As [`pause`], with what only a stream can carry.
fn between(part: &Part) -> Option<Step> {
    match part {
        Part::Ping => Some(Step::Ping),
        Part::Raw(bytes) => Some(Step::Raw(bytes.clone().into())),
        Part::Comment(text) => Some(Step::Comment(text.clone())),
        Part::Event(event) => Some(Step::event(&event.name, &event.data)),
        other => pause(other),
    }
}

/// An HTTP error: status, headers, body.
pub(crate) fn http_error(
    http: &HttpReply,
    request: &RecordedRequest,
) -> (StatusCode, Vec<(String, String)>, String) {
    let status = StatusCode::from_u16(http.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = http.body.clone().unwrap_or_else(|| {
        let kind = http.kind.clone().unwrap_or_else(|| error_type(request.api, http.status));
        let message = http.message.clone().unwrap_or_else(|| reason(http.status));
        error_json(request.api, &kind, &message, http.details.as_ref(), request.id)
    });
    (status, http.headers.clone(), body)
}

pub(crate) fn error_json(api: Api, kind: &str, message: &str, details: Option<&Value>, id: u64) -> String {
    let too_long = details.and_then(|details| details.get("prompt_too_long"));
    let body = match api {
        Api::Anthropic | Api::CountTokens => {
            let mut error = json!({"type": kind, "message": message});
            if let (Some(details), None) = (details, too_long) {
                error["details"] = details.clone();
            }
            json!({"type": "error", "error": error, "request_id": request_id(id)})
        }
        Api::Chat | Api::Responses => match too_long {
            Some(figures) => {
                let message = format!(
                    "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens. Please reduce the length of the messages.",
                    figures[1], figures[0]
                );
                json!({"error": {"message": message, "type": kind, "param": "messages", "code": "context_length_exceeded"}})
            }
            None => {
                let code = details.and_then(|details| details.get("code"));
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
        },
    };
    body.to_string()
}

pub(crate) fn request_id(id: u64) -> String {
    format!("req_{id:024}")
}

/// The error type that belongs to a status (reference tables of both vendors).
fn error_type(api: Api, status: u16) -> String {
    let anthropic = matches!(api, Api::Anthropic | Api::CountTokens);
    let kind = match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 if anthropic => "not_found_error",
        409 => "conflict_error",
        413 if anthropic => "request_too_large",
        429 if anthropic => "rate_limit_error",
        429 => "requests",
        504 => "timeout_error",
        529 => "overloaded_error",
        500.. if anthropic => "api_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    kind.to_owned()
}

fn reason(status: u16) -> String {
    let text = match status {
        401 => "invalid x-api-key",
        404 => "model not found",
        413 => "Request exceeds the maximum size",
        429 => "This request would exceed your rate limit",
        529 => "Overloaded",
        500.. => "Internal server error",
        _ => "invalid request",
    };
    text.to_owned()
}
