//! OpenAI Responses: items in place of blocks, every event numbered, no end mark but the last event.

use serde_json::{Value, json};

use super::{Rendering, arguments, between};
use crate::model_server::{
    reply::{ErrorBody, Part, Usage},
    wire::Step,
};

pub(super) fn stream(r: &Rendering<'_>) -> Vec<Step> {
    let mut events = Events::default();
    let pending = response(r, "in_progress", &[]);
    events.push("response.created", json!({"response": pending}));
    events.push("response.in_progress", json!({"response": pending}));
    let mut failure = None;
    for (n, part) in r.parts.iter().enumerate() {
        match part {
            Part::Text(text) => events.message(r, n, text),
            Part::Thinking(thinking) => events.reasoning(r, n, &thinking.text),
            Part::RedactedThinking(_) => events.reasoning(r, n, ""),
            Part::ToolUse(call) => {
                let id = call.id.as_deref().unwrap_or_default();
                events.call(r, n, id, &call.name, &arguments(call));
            }
            Part::Error(error) => failure = Some(error.clone()),
            Part::Usage(_) => {}
            other => events.steps.extend(between(other)),
        }
        if failure.is_some() {
            break;
        }
    }
    match failure {
        Some(error) => {
            let mut response = response(r, "failed", &events.output);
            response["error"] = json!({"code": error.kind, "message": error.message});
            events.push("response.failed", json!({"response": response}));
        }
        None => {
            let response = finished(r, &events.output);
            let name = match response["status"].as_str() {
                Some("incomplete") => "response.incomplete",
                _ => "response.completed",
            };
            events.push(name, json!({"response": response}));
        }
    }
    events.steps
}

pub(super) fn whole(r: &Rendering<'_>) -> Value {
    let error = r.parts.iter().find_map(|part| match part {
        Part::Error(error) => Some(error.clone()),
        _ => None,
    });
    let output: Vec<Value> = r.parts.iter().enumerate().filter_map(|(n, part)| item(r, n, part)).collect();
    match error {
        Some(ErrorBody { kind, message }) => {
            let mut response = response(r, "failed", &output);
            response["error"] = json!({"code": kind, "message": message});
            response
        }
        None => finished(r, &output),
    }
}

fn response(r: &Rendering<'_>, status: &str, output: &[Value]) -> Value {
    json!({
        "id": format!("resp_{:024}", r.request.id), "object": "response", "created_at": 1, "status": status,
        "error": null, "incomplete_details": null, "instructions": null, "metadata": {}, "model": r.model(),
        "output": output, "parallel_tool_calls": true, "temperature": null, "tool_choice": "auto",
        "tools": [], "top_p": null, "usage": null,
    })
}

fn finished(r: &Rendering<'_>, output: &[Value]) -> Value {
    let reason = match r.reply.stop_reason() {
        "max_tokens" | "model_context_window_exceeded" => Some("max_output_tokens"),
        "refusal" => Some("content_filter"),
        _ => None,
    };
    let status = if reason.is_some() { "incomplete" } else { "completed" };
    let mut response = response(r, status, output);
    if let Some(reason) = reason {
        response["incomplete_details"] = json!({"reason": reason});
    }
    response["usage"] = usage(r.usage);
    response
}

fn usage(usage: Usage) -> Value {
    let input = usage.input + usage.cache_read + usage.cache_write;
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + usage.output,
    })
}

/// The finished item of a part.
fn item(r: &Rendering<'_>, n: usize, part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(message_item(&item_id("msg", r, n), "completed", &[text_part(text)])),
        Part::Thinking(thinking) => Some(reasoning_item(r, n, &thinking.text)),
        Part::RedactedThinking(_) => Some(reasoning_item(r, n, "")),
        Part::ToolUse(call) => {
            let id = call.id.as_deref().unwrap_or_default();
            let id_of_item = item_id("fc", r, n);
            Some(call_item(&id_of_item, "completed", id, &call.name, &arguments(call)))
        }
        _ => None,
    }
}

fn item_id(kind: &str, r: &Rendering<'_>, n: usize) -> String {
    format!("{kind}_{:020}_{n:03}", r.request.id)
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn message_item(id: &str, status: &str, content: &[Value]) -> Value {
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

fn reasoning_item(r: &Rendering<'_>, n: usize, text: &str) -> Value {
    let summary = match text {
        "" => json!([]),
        text => json!([{"type": "summary_text", "text": text}]),
    };
    let encrypted = format!("enc-{}-{n}", r.request.id);
    json!({"type": "reasoning", "id": item_id("rs", r, n), "summary": summary, "encrypted_content": encrypted})
}

fn call_item(id: &str, status: &str, call_id: &str, name: &str, arguments: &str) -> Value {
    json!({
        "type": "function_call", "id": id, "status": status, "call_id": call_id, "name": name,
        "arguments": arguments,
    })
}

#[derive(Default)]
struct Events {
    steps: Vec<Step>,
    /// Number of the next event. Only numbered events count, not comments or gates.
    sequence_number: u64,
    output: Vec<Value>,
}

impl Events {
    fn push(&mut self, name: &str, fields: Value) {
        let mut data = json!({"type": name, "sequence_number": self.sequence_number});
        self.sequence_number += 1;
        if let (Some(data), Value::Object(fields)) = (data.as_object_mut(), fields) {
            data.extend(fields);
        }
        self.steps.push(Step::event(name, data));
    }

    fn begin(&mut self, item: Value) -> usize {
        let index = self.output.len();
        self.push("response.output_item.added", json!({"output_index": index, "item": item}));
        index
    }

    fn done(&mut self, item: Value) {
        let index = self.output.len();
        self.push("response.output_item.done", json!({"output_index": index, "item": item}));
        self.output.push(item);
    }

    fn message(&mut self, r: &Rendering<'_>, n: usize, text: &str) {
        let id = item_id("msg", r, n);
        let at = self.begin(message_item(&id, "in_progress", &[]));
        let place = |mut fields: Value| {
            fields["item_id"] = id.clone().into();
            fields["output_index"] = at.into();
            fields["content_index"] = 0.into();
            fields
        };
        self.push("response.content_part.added", place(json!({"part": text_part("")})));
        for delta in r.deltas(text) {
            let fields = place(json!({"delta": delta, "logprobs": []}));
            self.push("response.output_text.delta", fields);
        }
        let fields = place(json!({"text": text, "logprobs": []}));
        self.push("response.output_text.done", fields);
        self.push("response.content_part.done", place(json!({"part": text_part(text)})));
        self.done(message_item(&id, "completed", &[text_part(text)]));
    }

    fn reasoning(&mut self, r: &Rendering<'_>, n: usize, text: &str) {
        let done = reasoning_item(r, n, text);
        let mut added = done.clone();
        added["summary"] = json!([]);
        let id = done["id"].clone();
        let at = self.begin(added);
        if !text.is_empty() {
            let place = |mut fields: Value| {
                fields["item_id"] = id.clone();
                fields["output_index"] = at.into();
                fields["summary_index"] = 0.into();
                fields
            };
            let part = |text: &str| json!({"part": {"type": "summary_text", "text": text}});
            self.push("response.reasoning_summary_part.added", place(part("")));
            for delta in r.deltas(text) {
                self.push("response.reasoning_summary_text.delta", place(json!({"delta": delta})));
            }
            self.push("response.reasoning_summary_text.done", place(json!({"text": text})));
            self.push("response.reasoning_summary_part.done", place(part(text)));
        }
        self.done(done);
    }

    fn call(&mut self, r: &Rendering<'_>, n: usize, call_id: &str, name: &str, arguments: &str) {
        let id = item_id("fc", r, n);
        let at = self.begin(call_item(&id, "in_progress", call_id, name, ""));
        for delta in r.deltas(arguments) {
            let fields = json!({"item_id": id, "output_index": at, "delta": delta});
            self.push("response.function_call_arguments.delta", fields);
        }
        let fields = json!({"item_id": id, "output_index": at, "name": name, "arguments": arguments});
        self.push("response.function_call_arguments.done", fields);
        self.done(call_item(&id, "completed", call_id, name, arguments));
    }
}
