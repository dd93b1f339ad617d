//! OpenAI chat completions: unnamed `data:` lines, `[DONE]`, and the habits of those who imitate it.

use serde_json::{Map, Value, json};

use super::{Rendering, arguments, between};
use crate::model_server::{
    reply::{Part, ToolUse, Usage},
    wire::Step,
};

pub(super) fn stream(r: &Rendering<'_>) -> Vec<Step> {
    let quirks = &r.reply.openai;
    let mut chunks = Chunks { r, n: 0 };
    let mut steps = vec![chunks.delta(json!({"role": "assistant", "content": ""}))];
    let mut index = 0;
    for part in &r.parts {
        match part {
            Part::Text(text) => {
                let texts = r.deltas(text).into_iter();
                steps.extend(texts.map(|text| chunks.delta(json!({"content": text}))));
            }
            Part::Thinking(thinking) => {
                let field = reasoning_field(r);
                let texts = r.deltas(&thinking.text).into_iter();
                steps.extend(texts.map(|text| chunks.delta(json!({field: text}))));
            }
            Part::ToolUse(call) => {
                let at = if quirks.index_zero { 0 } else { index };
                steps.extend(
                    call_deltas(r, call, at)
                        .into_iter()
                        .map(|call| chunks.delta(json!({"tool_calls": [call]}))),
                );
                index += 1;
            }
            Part::Error(error) => {
                let error = json!({"message": error.message, "type": error.kind, "code": error.kind});
                steps.push(if quirks.error_as_chunk {
                    chunks.error(error)
                } else {
                    Step::data(json!({"error": error}))
                });
            }
            Part::Usage(usage) => steps.push(chunks.usage(*usage)),
            // Redacted thinking has no counterpart here.
            other => steps.extend(between(other)),
        }
    }
    if !quirks.no_finish {
        steps.push(chunks.finish());
    }
    if reports_usage(r) {
        steps.push(chunks.usage(r.usage));
    }
    if !quirks.no_done {
        steps.push(Step::data("[DONE]"));
    }
    steps
}

pub(super) fn whole(r: &Rendering<'_>) -> Value {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for part in &r.parts {
        match part {
            Part::Text(more) => text.push_str(more),
            Part::Thinking(thinking) => reasoning.push_str(&thinking.text),
            Part::ToolUse(call) => {
                let function = json!({"name": call.name, "arguments": arguments(call)});
                calls.push(json!({"id": call.id, "type": "function", "function": function}));
            }
            _ => {}
        }
    }
    let content = if text.is_empty() { Value::Null } else { text.into() };
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message[reasoning_field(r)] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason(r)});
    json!({
        "id": format!("chatcmpl-{}", r.request.id), "object": "chat.completion", "created": 1,
        "model": r.model(), "choices": [choice], "usage": usage(r.usage),
    })
}

fn reports_usage(r: &Rendering<'_>) -> bool {
    let asked = r.request.json["stream_options"]["include_usage"] == true;
    asked && !r.reply.openai.no_usage
}

/// Numbers the chunks, and puts on each what some servers put on each.
struct Chunks<'a> {
    r: &'a Rendering<'a>,
    n: usize,
}

impl Chunks<'_> {
    fn chunk(&mut self, choices: Value) -> Value {
        self.n += 1;
        let id = if self.r.reply.openai.id_each_chunk {
            format!("chatcmpl-{}-{}", self.r.request.id, self.n)
        } else {
            format!("chatcmpl-{}", self.r.request.id)
        };
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": 1, "model": self.r.model(),
            "choices": choices,
        });
        if reports_usage(self.r) {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&mut self, mut delta: Value) -> Step {
        let quirks = &self.r.reply.openai;
        if quirks.role_each_chunk {
            delta["role"] = "assistant".into();
        }
        let finish = quirks.finish_each_chunk.clone();
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        Step::data(self.chunk(json!([choice])))
    }

    fn finish(&mut self) -> Step {
        let finish = finish_reason(self.r);
        let choice = json!({"index": 0, "delta": {}, "finish_reason": finish});
        Step::data(self.chunk(json!([choice])))
    }

    fn usage(&mut self, figures: Usage) -> Step {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage(figures);
        Step::data(chunk)
    }

    fn error(&mut self, error: Value) -> Step {
        let choice = json!({"index": 0, "delta": {"content": ""}, "finish_reason": "error"});
        let mut chunk = self.chunk(json!([choice]));
        chunk["error"] = error;
        Step::data(chunk)
    }
}

/// The deltas of one tool call.
fn call_deltas(r: &Rendering<'_>, call: &ToolUse, index: usize) -> Vec<Value> {
    let quirks = &r.reply.openai;
    let text = arguments(call);
    let silent = quirks.no_arguments_if_empty && matches!(text.as_str(), "" | "{}");
    let mut pieces = if silent { Vec::new() } else { r.deltas(&text) };
    if quirks.repeat_arguments {
        pieces.push(text.clone());
    }
    let start = |function: Value| {
        let mut delta = Map::new();
        if !quirks.no_index {
            delta.insert("index".into(), index.into());
        }
        if !quirks.no_id {
            delta.insert("id".into(), json!(call.id));
        }
        delta.insert("type".into(), "function".into());
        delta.insert("function".into(), function);
        Value::Object(delta)
    };
    if quirks.arguments_object {
        return vec![start(json!({"name": call.name, "arguments": call.input}))];
    }
    if quirks.whole_call {
        return vec![start(json!({"name": call.name, "arguments": text}))];
    }
    let mut deltas = vec![match (silent, quirks.name_late) {
        (true, _) => start(json!({"name": call.name})),
        (false, true) => start(json!({"arguments": ""})),
        (false, false) => start(json!({"name": call.name, "arguments": ""})),
    }];
    let more = |function: Value| {
        let mut delta = json!({});
        if !quirks.no_index {
            delta["index"] = index.into();
        }
        if quirks.empty_id {
            delta["id"] = "".into();
        }
        delta["function"] = function;
        if quirks.name_each_chunk {
            delta["function"]["name"] = call.name.clone().into();
        } else if quirks.empty_name {
            delta["function"]["name"] = "".into();
        }
        delta
    };
    deltas.extend(pieces.into_iter().map(|piece| more(json!({"arguments": piece}))));
    if quirks.name_late && !silent {
        deltas.push(more(json!({"name": call.name})));
    }
    deltas
}

fn finish_reason(r: &Rendering<'_>) -> String {
    if let Some(finish) = &r.reply.openai.finish {
        return finish.clone();
    }
    let finish = match r.reply.stop_reason() {
        "end_turn" | "stop_sequence" | "pause_turn" => "stop",
        "tool_use" => "tool_calls",
        "max_tokens" | "model_context_window_exceeded" => "length",
        "refusal" => "content_filter",
        other => other,
    };
    finish.to_owned()
}

fn reasoning_field<'a>(r: &'a Rendering<'_>) -> &'a str {
    let field = &r.reply.openai.reasoning_field;
    field.as_deref().unwrap_or("reasoning_content")
}

fn usage(usage: Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    json!({
        "prompt_tokens": prompt, "completion_tokens": usage.output, "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}
