//! What must hold of every request, whatever the test is about.
//!
//! The rules are the providers' own (a real one answers 400), and a few of ours where a provider is lenient but a
//! sound client has no reason to do it: neighbours of the same role, an empty tool result, whitespace for text.

mod anthropic;
mod openai;

use std::collections::HashSet;

use axum::http::HeaderMap;
use serde_json::Value;

use super::{normalise::items, record::Api};

/// Everything wrong with this request; empty when nothing is. `paused`: the last answer to this agent stopped with
/// `pause_turn`, so that it may come back as the last message, to be gone on with.
pub(crate) fn check(api: Api, headers: &HeaderMap, body: &Value, paused: bool) -> Vec<String> {
    let mut found = Found { paused, ..Found::default() };
    if !body.is_object() {
        found.say("the body is no JSON object");
        return found.said;
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        found.say("no model is named");
    }
    match api {
        Api::Anthropic | Api::CountTokens => anthropic::check(api, headers, body, &mut found),
        Api::Chat => openai::check_chat(headers, body, &mut found),
        Api::Responses => openai::check_responses(headers, body, &mut found),
    }
    found.said
}

#[derive(Debug, Default)]
struct Found {
    said: Vec<String>,
    paused: bool,
}

impl Found {
    fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.said.push(what());
        }
    }

    /// `role` is that of the last message.
    fn before_answer(&mut self, role: &str) {
        let may_follow = role != "assistant" || self.paused;
        self.unless(may_follow, || "the conversation must end with a user message".to_owned());
    }
}

/// `^[a-zA-Z0-9_-]{1,64}$`, both vendors.
fn is_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.trim().is_empty())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Definitions: valid and different names, an object at the top of each schema.
fn check_tools(
    body: &Value,
    name: impl Fn(&Value) -> &Value,
    schema: impl Fn(&Value) -> &Value,
    found: &mut Found,
) {
    let mut seen = HashSet::new();
    for (n, tool) in items(&body["tools"]).enumerate() {
        let tool_name = name(tool).as_str().unwrap_or_default();
        found.unless(is_tool_name(tool_name), || format!("tools.{n}: `{tool_name}` is no valid tool name"));
        found.unless(seen.insert(tool_name), || format!("tools.{n}: the name `{tool_name}` comes twice"));
        // Tools that the vendor defines have a type and no schema.
        let ours = matches!(tool["type"].as_str(), None | Some("custom" | "function"));
        found.unless(!ours || schema(tool)["type"] == "object", || {
            format!("tools.{n}: the schema of `{tool_name}` is not of type object")
        });
    }
}

/// Each call of a history and whether its result has come.
#[derive(Debug, Default)]
struct Calls {
    all: HashSet<String>,
    open: Vec<String>,
}

impl Calls {
    fn made(&mut self, id: &str, place: &str, found: &mut Found) {
        found.unless(!id.is_empty(), || format!("{place}: a tool call without id"));
        found.unless(self.all.insert(id.to_owned()), || {
            format!("{place}: the tool call id `{id}` comes twice")
        });
        self.open.push(id.to_owned());
    }

    fn answered(&mut self, id: &str, place: &str, found: &mut Found) {
        match self.open.iter().position(|open| open == id) {
            Some(at) => {
                self.open.remove(at);
            }
            None if self.all.contains(id) => {
                found.say(format!("{place}: a second or late result for tool call `{id}`"));
            }
            None => found.say(format!("{place}: a result for `{id}`, which no call before it has")),
        }
    }

    /// At the end of the place where results may stand.
    fn settle(&mut self, place: &str, found: &mut Found) {
        for id in self.open.drain(..) {
            found.say(format!("{place}: tool call `{id}` has no result immediately after"));
        }
    }
}

#[cfg(test)]
#[path = "tests/invariants.rs"]
mod tests;
