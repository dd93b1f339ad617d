//! The rules of the two OpenAI APIs.

use axum::http::HeaderMap;
use serde_json::Value;

use super::{Calls, Found, check_tools, is_blank, is_tool_name, text};
use crate::model_server::normalise::{items, text_of};

pub(super) fn check_chat(headers: &HeaderMap, body: &Value, found: &mut Found) {
    check_authorization(headers, found);
    let function = |tool: &Value| tool["function"].is_object();
    let all_functions = items(&body["tools"]).all(function);
    found.unless(all_functions, || "a tool without `function`".to_owned());
    check_tools(body, |tool| &tool["function"]["name"], |tool| &tool["function"]["parameters"], found);
    let usage_of_no_stream = body.get("stream_options").is_some() && body["stream"] != true;
    found.unless(!usage_of_no_stream, || "stream_options without stream".to_owned());

    let mut calls = Calls::default();
    let mut any = false;
    for (n, message) in items(&body["messages"]).enumerate() {
        any = true;
        let place = format!("messages.{n}");
        let role = text(message, "role");
        if role != "tool" {
            calls.settle(&place, found);
        }
        match role {
            "system" | "developer" | "user" => {
                let content = &message["content"];
                let empty = content.is_null()
                    || is_blank(content)
                    || (content.is_array() && items(content).next().is_none())
                    || items(content).any(|part| is_blank(&part["text"]));
                found.unless(!empty, || format!("{place}: blank content"));
            }
            "assistant" => {
                let some_call = items(&message["tool_calls"]).next().is_some();
                let said = !text_of(&message["content"]).trim().is_empty();
                let refused = message["refusal"].is_string();
                found.unless(some_call || said || refused, || {
                    format!("{place}: an assistant message with neither content nor tool calls")
                });
                for call in items(&message["tool_calls"]) {
                    check_call(&place, &call["function"], found);
                    calls.made(text(call, "id"), &place, found);
                }
            }
            "tool" => {
                calls.answered(text(message, "tool_call_id"), &place, found);
                let empty = text_of(&message["content"]).trim().is_empty();
                found.unless(!empty, || format!("{place}: an empty tool result"));
            }
            other => found.say(format!("{place}: unknown role `{other}`")),
        }
    }
    found.unless(any, || "there are no messages".to_owned());
    calls.settle("the last message", found);
}

pub(super) fn check_responses(headers: &HeaderMap, body: &Value, found: &mut Found) {
    check_authorization(headers, found);
    check_tools(body, |tool| &tool["name"], |tool| &tool["parameters"], found);
    if body["input"].is_string() {
        found.unless(!is_blank(&body["input"]), || "blank input".to_owned());
        return;
    }
    let list: Vec<&Value> = items(&body["input"]).collect();
    found.unless(!list.is_empty(), || "there is no input".to_owned());
    let mut calls = Calls::default();
    for (n, item) in list.iter().enumerate() {
        let place = format!("input.{n}");
        match item["type"].as_str() {
            Some("function_call") => {
                check_call(&place, item, found);
                calls.made(text(item, "call_id"), &place, found);
            }
            Some("function_call_output") => {
                calls.answered(text(item, "call_id"), &place, found);
                let empty = text_of(&item["output"]).trim().is_empty();
                found.unless(!empty, || format!("{place}: an empty tool result"));
            }
            Some("reasoning") => {
                let follows = list.get(n + 1).is_some_and(|next| {
                    matches!(next["type"].as_str(), Some("function_call" | "reasoning"))
                        || next["role"] == "assistant"
                });
                found.unless(follows, || {
                    format!("{place}: a reasoning item without the item that followed it")
                });
                let stored = body["store"] != false;
                found.unless(stored || item["encrypted_content"].is_string(), || {
                    format!("{place}: a bare reasoning item, though nothing is stored")
                });
            }
            None | Some("message") => {
                let role = text(item, "role");
                if role == "user" {
                    calls.settle(&place, found);
                }
                let known = matches!(role, "user" | "assistant" | "system" | "developer");
                found.unless(known, || format!("{place}: unknown role `{role}`"));
                let content = &item["content"];
                let empty = is_blank(content)
                    || (!content.is_string() && items(content).next().is_none())
                    || items(content).any(|part| is_blank(&part["text"]));
                found.unless(!empty, || format!("{place}: blank content"));
            }
            Some(_) => {}
        }
    }
    calls.settle("the last item", found);
}

fn check_call(place: &str, function: &Value, found: &mut Found) {
    let name = text(function, "name");
    found.unless(is_tool_name(name), || format!("{place}: `{name}` is no valid tool name"));
    let arguments = text(function, "arguments");
    let parsed = serde_json::from_str::<Value>(arguments);
    found.unless(parsed.is_ok_and(|value| value.is_object()), || {
        format!("{place}: the arguments of `{name}` are no JSON object: {arguments}")
    });
}

fn check_authorization(headers: &HeaderMap, found: &mut Found) {
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok());
    let given = bearer.is_none_or(|value| value.starts_with("Bearer "));
    found.unless(given, || "authorization is no bearer token".to_owned());
}
