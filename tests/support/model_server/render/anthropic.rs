//! Anthropic Messages: named events, blocks one after another, cumulative usage at the end.

use serde_json::{Value, json};

use super::{Rendering, arguments, between, whole_input};
use crate::model_server::{
    reply::{Part, Usage},
    wire::Step,
};

pub(super) fn stream(r: &Rendering<'_>) -> Vec<Step> {
    let mut steps = vec![message_start(r)];
    let mut index = 0;
    for part in &r.parts {
        match part {
            Part::Text(_) | Part::Thinking(_) | Part::RedactedThinking(_) | Part::ToolUse(_) => {
                block(r, index, part, &mut steps);
                index += 1;
            }
            Part::Error(error) => {
                let error = json!({"type": error.kind, "message": error.message});
                let data = json!({"type": "error", "error": error, "request_id": null});
                steps.push(Step::event("error", data));
            }
            Part::Usage(usage) => steps.push(message_delta(r, Value::Null, *usage)),
            other => steps.extend(between(other)),
        }
    }
    steps.push(message_delta(r, r.reply.stop_reason().into(), r.usage));
    steps.push(Step::event("message_stop", json!({"type": "message_stop"})));
    steps
}

pub(super) fn whole(r: &Rendering<'_>) -> Value {
    let content = r.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Thinking(thinking) => {
            Some(json!({"type": "thinking", "thinking": thinking.text, "signature": thinking.signature}))
        }
        Part::RedactedThinking(data) => Some(json!({"type": "redacted_thinking", "data": data})),
        Part::ToolUse(call) => {
            let input = whole_input(call);
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}))
        }
        _ => None,
    });
    let content: Vec<Value> = content.collect();
    let mut message = message(r, r.reply.stop_reason().into(), usage(r.usage, r.usage.output));
    message["content"] = content.into();
    message["stop_details"] = r.reply.stop_details.clone().unwrap_or_default();
    message
}

fn message_start(r: &Rendering<'_>) -> Step {
    let message = message(r, Value::Null, usage(r.usage, 1));
    Step::event("message_start", json!({"type": "message_start", "message": message}))
}

fn message(r: &Rendering<'_>, stop_reason: Value, usage: Value) -> Value {
    json!({
        "id": format!("msg_{:024}", r.request.id), "type": "message", "role": "assistant", "model": r.model(),
        "content": [], "stop_reason": stop_reason, "stop_sequence": null, "stop_details": null,
        "container": null, "diagnostics": null, "usage": usage,
    })
}

fn usage(usage: Usage, output: u64) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write.saturating_sub(usage.cache_write_1h),
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": output, "service_tier": "standard", "speed": "standard", "inference_geo": "global",
        "server_tool_use": null, "output_tokens_details": null,
    })
}

fn message_delta(r: &Rendering<'_>, stop_reason: Value, usage: Usage) -> Step {
    let details = match &stop_reason {
        Value::Null => Value::Null,
        _ => r.reply.stop_details.clone().unwrap_or_default(),
    };
    let delta = json!({
        "stop_reason": stop_reason, "stop_sequence": null, "stop_details": details, "container": null,
    });
    let usage = json!({
        "input_tokens": usage.input, "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read, "output_tokens": usage.output,
        "server_tool_use": null, "output_tokens_details": null,
    });
    let data = json!({
        "type": "message_delta", "delta": delta, "usage": usage, "context_management": null,
    });
    Step::event("message_delta", data)
}

fn block(r: &Rendering<'_>, index: usize, part: &Part, steps: &mut Vec<Step>) {
    let mut deltas: Vec<Value> = Vec::new();
    let content_block = match part {
        Part::Text(text) => {
            let texts = r.deltas(text).into_iter();
            deltas.extend(texts.map(|text| json!({"type": "text_delta", "text": text})));
            json!({"type": "text", "text": ""})
        }
        Part::Thinking(thinking) => {
            let texts = r.deltas(&thinking.text).into_iter();
            deltas.extend(texts.map(|text| json!({"type": "thinking_delta", "thinking": text})));
            deltas.push(json!({"type": "signature_delta", "signature": thinking.signature}));
            json!({"type": "thinking", "thinking": "", "signature": ""})
        }
        Part::RedactedThinking(data) => json!({"type": "redacted_thinking", "data": data}),
        Part::ToolUse(call) => {
            // The real wire opens with an empty delta, even when no argument follows.
            let pieces = std::iter::once(String::new()).chain(r.deltas(&arguments(call)));
            deltas.extend(pieces.map(|json| json!({"type": "input_json_delta", "partial_json": json})));
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        }
        _ => return,
    };
    let data = json!({"type": "content_block_start", "index": index, "content_block": content_block});
    steps.push(Step::event("content_block_start", data));
    for delta in deltas {
        let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
        steps.push(Step::event("content_block_delta", data));
    }
    let data = json!({"type": "content_block_stop", "index": index});
    steps.push(Step::event("content_block_stop", data));
}
