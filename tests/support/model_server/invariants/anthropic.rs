//! The rules of the Messages API.

use axum::http::HeaderMap;
use serde_json::Value;

use super::{Calls, Found, check_tools, is_blank, is_tool_name, text};
use crate::model_server::{normalise::items, record::Api};

/// The API takes at most four, the automatic one included.
const MAX_BREAKPOINTS: usize = 4;

pub(super) fn check(api: Api, headers: &HeaderMap, body: &Value, found: &mut Found) {
    check_headers(headers, body, found);
    if api == Api::Anthropic {
        found.unless(body["max_tokens"].is_u64(), || "max_tokens is missing".to_owned());
    }
    check_tools(body, |tool| &tool["name"], |tool| &tool["input_schema"], found);
    for (n, block) in items(&body["system"]).enumerate() {
        found.unless(!is_blank(&block["text"]), || format!("system.{n}: blank text"));
    }
    check_breakpoints(body, found);
    check_deferral(body, found);
    check_messages(body, found);
}

/// What is kept out of the context: some tool is in it, none of the others is cached, and what a result refers to is
/// declared (reference, chapters 2 and 10).
fn check_deferral(body: &Value, found: &mut Found) {
    let is_deferred = |tool: &&Value| tool["defer_loading"] == true;
    let deferred: Vec<&Value> = items(&body["tools"]).filter(is_deferred).collect();
    let has_tools = items(&body["tools"]).next().is_some();
    found.unless(!has_tools || deferred.len() < items(&body["tools"]).count(), || {
        "At least one tool must have defer_loading=false".to_owned()
    });
    for tool in &deferred {
        found.unless(tool["cache_control"].is_null(), || {
            format!("cache_control on the deferred tool `{}`", text(tool, "name"))
        });
    }
    let results = items(&body["messages"]).flat_map(|message| items(&message["content"]));
    for part in
        results.flat_map(|block| items(&block["content"])).filter(|part| part["type"] == "tool_reference")
    {
        let name = text(part, "tool_name");
        found.unless(deferred.iter().any(|tool| tool["name"] == name), || {
            format!("Tool reference '{name}' not found in available tools")
        });
    }
}

fn check_headers(headers: &HeaderMap, body: &Value, found: &mut Found) {
    let version = headers.get("anthropic-version").and_then(|value| value.to_str().ok());
    match version {
        Some("2023-06-01") => {}
        Some("2026-10-21") => {
            for key in ["temperature", "top_p", "top_k"] {
                found.unless(body.get(key).is_none(), || {
                    format!("{key} is no longer part of API version 2026-10-21")
                });
            }
        }
        other => found.say(format!("header anthropic-version: {other:?} is no known version")),
    }
}

fn check_breakpoints(body: &Value, found: &mut Found) {
    let in_messages = items(&body["messages"]).flat_map(|message| items(&message["content"]));
    let all = items(&body["tools"]).chain(items(&body["system"])).chain(in_messages);
    let marked: Vec<&Value> = all.filter(|block| block["cache_control"].is_object()).collect();
    let count = marked.len() + usize::from(body["cache_control"].is_object());
    found.unless(count <= MAX_BREAKPOINTS, || {
        format!("{count} cache_control breakpoints; at most {MAX_BREAKPOINTS} are taken")
    });
    let mut short_seen = false;
    for block in marked {
        let kind = text(block, "type");
        found.unless(!matches!(kind, "thinking" | "redacted_thinking"), || {
            format!("cache_control on a {kind} block")
        });
        match block["cache_control"]["ttl"].as_str() {
            Some("1h") => {
                found.unless(!short_seen, || "a cache_control of 1h comes after one of 5m".to_owned())
            }
            None | Some("5m") => short_seen = true,
            Some(other) => found.say(format!("cache_control.ttl `{other}`")),
        }
    }
}

fn check_messages(body: &Value, found: &mut Found) {
    let mut calls = Calls::default();
    let messages: Vec<&Value> = items(&body["messages"]).collect();
    found.unless(!messages.is_empty(), || "there are no messages".to_owned());
    let mut before = "";
    for (n, message) in messages.iter().enumerate() {
        let place = format!("messages.{n}");
        let role = text(message, "role");
        match (before, role) {
            ("", "user") | ("user" | "system", "assistant") | ("assistant", "user") => {}
            ("", _) => found.say(format!("{place}: the first message is of role `{role}`")),
            ("user", "system") => {
                found.unless(calls.open.is_empty(), || {
                    format!("{place}: a system message between a call and its result")
                });
            }
            _ => found.say(format!("{place}: role `{role}` after `{before}`")),
        }
        check_content(&place, role, &message["content"], &mut calls, found);
        if role != "assistant" {
            calls.settle(&place, found);
        }
        before = role;
    }
    calls.settle("the last message", found);
    found.before_answer(before);
}

fn check_content(place: &str, role: &str, content: &Value, calls: &mut Calls, found: &mut Found) {
    if content.is_string() {
        found.unless(!is_blank(content), || format!("{place}: blank content"));
        return;
    }
    found.unless(items(content).next().is_some(), || format!("{place}: empty content"));
    let mut results_over = false;
    for (n, block) in items(content).enumerate() {
        let place = format!("{place}.content.{n}");
        let kind = text(block, "type");
        if kind == "tool_result" {
            found.unless(role == "user", || format!("{place}: a tool_result of role `{role}`"));
            found.unless(!results_over, || format!("{place}: a tool_result after other content"));
            calls.answered(text(block, "tool_use_id"), &place, found);
            check_result(&place, block, found);
            continue;
        }
        results_over = true;
        match kind {
            "text" => found.unless(!is_blank(&block["text"]), || format!("{place}: blank text")),
            "tool_use" => {
                found.unless(role == "assistant", || format!("{place}: a tool_use of role `{role}`"));
                let name = text(block, "name");
                found.unless(is_tool_name(name), || format!("{place}: `{name}` is no valid tool name"));
                found.unless(block["input"].is_object(), || {
                    format!("{place}: the input of `{name}` is no object: {}", block["input"])
                });
                calls.made(text(block, "id"), &place, found);
            }
            "thinking" => {
                let signed = !text(block, "signature").is_empty();
                found.unless(signed, || format!("{place}: thinking without its signature"));
                found.unless(role == "assistant", || format!("{place}: thinking of role `{role}`"));
            }
            "image" | "document" => {
                let source = &block["source"];
                let empty = source["type"] == "base64" && text(source, "data").is_empty();
                found.unless(!empty, || format!("{place}: an {kind} of no bytes"));
            }
            "" => found.say(format!("{place}: a block without type")),
            // The vendor's own blocks pass.
            _ => {}
        }
    }
}

fn check_result(place: &str, block: &Value, found: &mut Found) {
    let content = &block["content"];
    let mut inner = items(content).peekable();
    let empty = match content {
        Value::Array(_) => inner.peek().is_none(),
        other => other.is_null() || is_blank(other),
    };
    found.unless(!empty, || format!("{place}: an empty tool_result"));
    for block in inner {
        let blank = block["type"] == "text" && is_blank(&block["text"]);
        found.unless(!blank, || format!("{place}: blank text in a tool_result"));
    }
}
