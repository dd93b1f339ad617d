//! What the model says, and how the wire misbehaves meanwhile: one description for all three APIs.
//!
//! Everything here is also the JSON form of a script file, so a reply reads the same in Rust and in JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A scripted answer. Parts are sent in order; the rest says how.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    pub parts: Vec<Part>,
    /// Anthropic's word (`end_turn`, `tool_use`, `max_tokens`, …), translated for the other APIs. Left out:
    /// `tool_use` if a tool is called, else `end_turn`.
    pub stop: Option<String>,
    /// Goes out as `stop_details` (refusals).
    pub stop_details: Option<Value>,
    /// Left out: what the simulated cache says, and a count of the reply's bytes.
    pub usage: Option<Usage>,
    /// The model that answers, if another than the one asked.
    pub model: Option<String>,
    /// Characters per delta. Left out: each block is one delta.
    pub chunk: Option<usize>,
    /// Wait before each event.
    pub delay_ms: u64,
    /// While the reply waits (delay, gate or stall), a ping goes out this often.
    pub ping_every_ms: Option<u64>,
    /// A gate to wait at before even the response head is sent.
    pub hold: Option<String>,
    /// Answer with this instead of a message.
    pub http: Option<HttpReply>,
    pub cut: Option<Cut>,
    pub wire: Wire,
    pub openai: OpenAiQuirks,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Text(String),
    Thinking(Thinking),
    RedactedThinking(String),
    ToolUse(ToolUse),
    /// Wait here until the test opens the gate.
    Gate(String),
    DelayMs(u64),
    Ping,
    /// An error event inside a stream that began with 200.
    Error(ErrorBody),
    /// An event as no API has it yet.
    Event(UnknownEvent),
    /// These bytes, as they are, between the events.
    Raw(String),
    Comment(String),
    /// A usage report in the middle; figures are cumulative, as on the real wire.
    Usage(Usage),
    /// The reply ends here, in this manner.
    End(How),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thinking {
    pub text: String,
    /// Left out: one made from the text.
    #[serde(default)]
    pub signature: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolUse {
    /// Left out: a new one, unique in the server.
    pub id: Option<String>,
    pub name: String,
    pub input: Value,
    /// Sent as the arguments in place of `input`: for JSON that is broken.
    pub raw_input: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnknownEvent {
    pub name: String,
    pub data: Value,
}

/// Tokens, in Anthropic's terms: `input` is what was neither read from the cache nor written to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    pub input: u64,
    pub cache_read: u64,
    /// All writes; `cache_write_1h` is the part of them with the long lifetime.
    pub cache_write: u64,
    pub cache_write_1h: u64,
    pub output: u64,
}

impl Usage {
    /// All of the prompt: read, written and neither.
    pub fn prompt(&self) -> u64 {
        self.input + self.cache_read + self.cache_write
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpReply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The error's type; left out: the one that belongs to the status.
    pub kind: Option<String>,
    pub message: Option<String>,
    pub details: Option<Value>,
    /// Sent as it is in place of an error of the API's form (proxies, HTML).
    pub body: Option<String>,
}

/// An early end. The earlier of the two positions holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cut {
    /// After so many events; 0: the response head, then nothing.
    pub after_event: Option<usize>,
    pub at_byte: Option<usize>,
    pub how: How,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The body ends as HTTP bodies do: as if all had been said.
    #[default]
    Eof,
    /// The socket is closed without the last chunk.
    Fin,
    /// The socket is reset.
    Reset,
    /// Silence with the socket open, until the client or the server goes.
    Stall,
}

/// How the bytes of the stream are laid out; all of it legal.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wire {
    pub crlf: bool,
    /// Bytes per HTTP chunk: splits events, lines and UTF-8 sequences.
    pub split: Option<usize>,
    /// A comment line before each event.
    pub comments: bool,
    /// Each event's JSON in two `data:` lines.
    pub multi_line_data: bool,
    /// No blank after `data:`.
    pub no_space: bool,
}

/// Habits of servers that call themselves OpenAI-compatible; each was seen in the wild.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenAiQuirks {
    /// Tool calls without `index`.
    pub no_index: bool,
    /// Every tool call at `index` 0.
    pub index_zero: bool,
    /// Id, name and all arguments in one delta.
    pub whole_call: bool,
    /// `arguments` as an object in place of a string.
    pub arguments_object: bool,
    /// No arguments at all when the input is `{}`.
    pub no_arguments_if_empty: bool,
    /// The whole arguments once more at the end.
    pub repeat_arguments: bool,
    pub no_id: bool,
    /// `id: ""` on the later deltas of a call.
    pub empty_id: bool,
    pub name_each_chunk: bool,
    /// `name: ""` on the later deltas of a call.
    pub empty_name: bool,
    /// The name comes after the arguments.
    pub name_late: bool,
    pub role_each_chunk: bool,
    /// A new response id on each chunk.
    pub id_each_chunk: bool,
    /// This `finish_reason` on every chunk (`""`, `"stop"`).
    pub finish_each_chunk: Option<String>,
    /// The last `finish_reason`, whatever was said.
    pub finish: Option<String>,
    pub no_finish: bool,
    pub no_done: bool,
    pub no_usage: bool,
    /// Where thinking goes; left out: `reasoning_content`.
    pub reasoning_field: Option<String>,
    /// In-band errors as a chunk with empty `choices` and `finish_reason: "error"`.
    pub error_as_chunk: bool,
}

/// Building: `Reply::new().thinking("hm").text("Looking.").tool("Read", json!({"file_path": "a"}))`.
impl Reply {
    pub fn new() -> Self {
        Self::default()
    }

    /// Just this text.
    pub fn say(text: impl Into<String>) -> Self {
        Self::new().text(text)
    }

    /// Just this call.
    pub fn call(name: impl Into<String>, input: Value) -> Self {
        Self::new().tool(name, input)
    }

    /// An HTTP error of the API's own form, with the type that belongs to the status.
    pub fn error(status: u16) -> Self {
        let http = HttpReply { status, ..HttpReply::default() };
        Self { http: Some(http), ..Self::default() }
    }

    pub fn error_with(status: u16, kind: &str, message: &str) -> Self {
        Self::error(status).edit_http(|http| {
            http.kind = Some(kind.to_owned());
            http.message = Some(message.to_owned());
        })
    }

    /// 400, in the words of the API that is asked.
    pub fn prompt_too_long(tokens: u64, limit: u64) -> Self {
        let message = format!("prompt is too long: {tokens} tokens > {limit} maximum");
        Self::error(400).edit_http(|http| {
            http.message = Some(message);
            http.details = Some(json!({"prompt_too_long": [tokens, limit]}));
        })
    }

    pub fn rate_limited(retry_after: &str) -> Self {
        Self::error(429).header("retry-after", retry_after)
    }

    pub fn overloaded() -> Self {
        Self::error(529)
    }

    /// A header of an HTTP error.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.edit_http(|http| http.headers.push((name.to_owned(), value.to_owned())))
    }

    /// `details` of an HTTP error (`{"error_code": …}`); its `code` in the OpenAI form.
    pub fn details(self, details: Value) -> Self {
        self.edit_http(|http| http.details = Some(details))
    }

    /// The body of an HTTP error, in place of JSON.
    pub fn body(self, body: impl Into<String>) -> Self {
        self.edit_http(|http| http.body = Some(body.into()))
    }

    fn edit_http(mut self, edit: impl FnOnce(&mut HttpReply)) -> Self {
        edit(self.http.get_or_insert_default());
        self
    }

    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    pub fn text(self, text: impl Into<String>) -> Self {
        self.part(Part::Text(text.into()))
    }

    pub fn thinking(self, text: impl Into<String>) -> Self {
        self.part(Part::Thinking(Thinking { text: text.into(), signature: None }))
    }

    pub fn thinking_signed(self, text: impl Into<String>, signature: impl Into<String>) -> Self {
        self.part(Part::Thinking(Thinking { text: text.into(), signature: Some(signature.into()) }))
    }

    pub fn redacted_thinking(self, data: impl Into<String>) -> Self {
        self.part(Part::RedactedThinking(data.into()))
    }

    pub fn tool(self, name: impl Into<String>, input: Value) -> Self {
        self.part(Part::ToolUse(ToolUse { name: name.into(), input, ..ToolUse::default() }))
    }

    /// With a fixed id. Mind that an id may come only once in a conversation.
    pub fn tool_with_id(self, id: &str, name: impl Into<String>, input: Value) -> Self {
        self.part(Part::ToolUse(ToolUse {
            id: Some(id.to_owned()),
            name: name.into(),
            input,
            raw_input: None,
        }))
    }

    /// With these bytes as arguments, JSON or not.
    pub fn tool_raw(self, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.part(Part::ToolUse(ToolUse {
            name: name.into(),
            raw_input: Some(arguments.into()),
            ..ToolUse::default()
        }))
    }

    pub fn stop(mut self, reason: &str) -> Self {
        self.stop = Some(reason.to_owned());
        self
    }

    pub fn usage(mut self, input: u64, cache_read: u64, cache_write: u64, output: u64) -> Self {
        self.usage = Some(Usage { input, cache_read, cache_write, cache_write_1h: 0, output });
        self
    }

    /// Characters per delta.
    pub fn chunk(mut self, chars: usize) -> Self {
        self.chunk = Some(chars);
        self
    }

    pub fn delay_ms(mut self, each_event: u64) -> Self {
        self.delay_ms = each_event;
        self
    }

    pub fn ping_every_ms(mut self, every: u64) -> Self {
        self.ping_every_ms = Some(every);
        self
    }

    /// Wait at this gate before the next part.
    pub fn gate(self, name: &str) -> Self {
        self.part(Part::Gate(name.to_owned()))
    }

    /// Wait at this gate before the response head.
    pub fn hold(mut self, gate: &str) -> Self {
        self.hold = Some(gate.to_owned());
        self
    }

    pub fn ping(self) -> Self {
        self.part(Part::Ping)
    }

    pub fn error_event(self, kind: &str, message: &str) -> Self {
        self.part(Part::Error(ErrorBody { kind: kind.to_owned(), message: message.to_owned() }))
    }

    pub fn unknown_event(self, name: &str, data: Value) -> Self {
        let name = name.to_owned();
        self.part(Part::Event(UnknownEvent { name, data }))
    }

    pub fn raw(self, bytes: impl Into<String>) -> Self {
        self.part(Part::Raw(bytes.into()))
    }

    /// An event whose data is no JSON.
    pub fn malformed_event(self) -> Self {
        self.raw("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\n\n")
    }

    /// The reply ends here: what follows is not sent, nor is the proper end.
    pub fn end(self, how: How) -> Self {
        self.part(Part::End(how))
    }

    pub fn cut_after_event(mut self, events: usize, how: How) -> Self {
        let cut = self.cut.get_or_insert_default();
        cut.after_event = Some(events);
        cut.how = how;
        self
    }

    pub fn cut_at_byte(mut self, byte: usize, how: How) -> Self {
        let cut = self.cut.get_or_insert_default();
        cut.at_byte = Some(byte);
        cut.how = how;
        self
    }

    pub fn wire(mut self, edit: impl FnOnce(&mut Wire)) -> Self {
        edit(&mut self.wire);
        self
    }

    pub fn openai(mut self, edit: impl FnOnce(&mut OpenAiQuirks)) -> Self {
        edit(&mut self.openai);
        self
    }

    /// The stop reason in Anthropic's words.
    pub(crate) fn stop_reason(&self) -> &str {
        let calls = self.parts.iter().any(|p| matches!(p, Part::ToolUse(_)));
        let natural = if calls { "tool_use" } else { "end_turn" };
        self.stop.as_deref().unwrap_or(natural)
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self::say(text)
    }
}
