use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::check;
use crate::model_server::record::Api;

/// `expected` is a part of the only violation, or empty for none.
fn check_one(api: Api, body: &Value, expected: &str) {
    let mut headers = HeaderMap::new();
    headers.insert("anthropic-version", "2023-06-01".parse().expect("a header"));
    let found = check(api, &headers, body, false);
    match expected {
        "" => assert!(found.is_empty(), "{body}\n{found:#?}"),
        expected => {
            let hit = found.len() == 1 && found[0].contains(expected);
            assert!(hit, "{body}\nexpected `{expected}`, found {found:#?}");
        }
    }
}

fn messages(messages: Value, expected: &str) {
    let body = json!({"model": "m", "max_tokens": 5, "messages": messages});
    check_one(Api::Anthropic, &body, expected);
}

/// The body of a sound request, changed.
fn anthropic(change: impl FnOnce(&mut Value), expected: &str) {
    let mut body = json!({
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "hi"}],
    });
    change(&mut body);
    check_one(Api::Anthropic, &body, expected);
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "Read", "input": {}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "r"})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: Value) -> Value {
    json!({"role": "assistant", "content": content})
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

fn hi() -> Value {
    user("hi".into())
}

#[test]
fn sound_histories_pass() {
    messages(json!([hi()]), "");
    messages(json!([hi(), system("note")]), "");
    let calls =
        json!([{"type": "thinking", "thinking": "", "signature": "s"}, text("so"), call("a"), call("b")]);
    messages(json!([hi(), assistant(calls.clone()), user(json!([result("b"), result("a")]))]), "");
    let results = json!([result("a"), result("b"), text("a note")]);
    messages(
        json!([hi(), assistant(calls), user(results), system("note"), assistant("yes".into()), hi()]),
        "",
    );
    let structured = json!({"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [text("no such file")]});
    messages(json!([hi(), assistant(json!([call("a")])), user(json!([structured]))]), "");
    let server_tool =
        json!([{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}]);
    messages(json!([hi(), assistant(server_tool), hi()]), "");
}

#[test]
fn roles() {
    messages(json!([]), "there are no messages");
    messages(json!([assistant("x".into()), hi()]), "the first message is of role `assistant`");
    messages(json!([hi(), hi()]), "role `user` after `user`");
    messages(
        json!([hi(), assistant("a".into()), assistant("b".into()), hi()]),
        "role `assistant` after `assistant`",
    );
    messages(json!([hi(), assistant("a".into())]), "must end with a user message");
    messages(
        json!([hi(), assistant("a".into()), system("s"), assistant("b".into()), hi()]),
        "role `system` after `assistant`",
    );
    messages(json!([hi(), system("s"), hi()]), "role `user` after `system`");
    messages(json!([hi(), {"role": "tool", "content": "x"}]), "role `tool` after `user`");
}

#[test]
fn results() {
    let ask = assistant(json!([call("a"), call("b")]));
    messages(json!([hi(), ask, user(json!([result("a")]))]), "`b` has no result");
    messages(
        json!([hi(), ask, user(json!([result("a"), result("b"), result("a")]))]),
        "second or late result for tool call `a`",
    );
    messages(
        json!([hi(), ask, user(json!([result("a"), text("x"), result("b")]))]),
        "a tool_result after other content",
    );
    messages(json!([hi(), ask, user(json!([result("a"), result("b"), result("c")]))]), "a result for `c`");
    messages(json!([user(json!([result("a")]))]), "a result for `a`");
    let late = json!([
        hi(),
        assistant(json!([call("a")])),
        user(json!([result("a")])),
        assistant("x".into()),
        user(json!([result("a")]))
    ]);
    messages(late, "second or late result for tool call `a`");
    let again = json!([
        hi(),
        assistant(json!([call("a")])),
        user(json!([result("a")])),
        assistant(json!([call("a")])),
        user(json!([result("a")]))
    ]);
    messages(again, "`a` comes twice");
    let empty = |content: Value| {
        let block = json!({"type": "tool_result", "tool_use_id": "a", "content": content});
        json!([hi(), assistant(json!([call("a")])), user(json!([block]))])
    };
    messages(empty(Value::Null), "an empty tool_result");
    messages(empty(json!("")), "an empty tool_result");
    messages(empty(json!([])), "an empty tool_result");
    messages(empty(json!([text(" ")])), "blank text in a tool_result");
}

#[test]
fn content() {
    messages(json!([user("".into())]), "blank content");
    messages(json!([user(json!([]))]), "empty content");
    messages(json!([user(json!([text("x"), text("\n \n")]))]), "content.1: blank text");
    messages(json!([hi(), assistant(json!([text(" ")])), hi()]), "messages.1.content.0: blank text");
    let named = |name: &str, input: Value| {
        let call = json!({"type": "tool_use", "id": "a", "name": name, "input": input});
        json!([hi(), assistant(json!([call])), user(json!([result("a")]))])
    };
    messages(named("Re ad\n", json!({})), "is no valid tool name");
    messages(named("Read", json!("{\"a\":")), "the input of `Read` is no object");
    messages(named("Read", json!([])), "the input of `Read` is no object");
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    messages(json!([user(json!([image]))]), "no bytes");
    let unsigned = json!([{"type": "thinking", "thinking": "x"}, text("y")]);
    messages(json!([hi(), assistant(unsigned), hi()]), "without its signature");
}

#[test]
fn the_rest_of_the_body() {
    anthropic(|_| {}, "");
    check_one(Api::Anthropic, &json!([]), "no JSON object");
    anthropic(|b| b["model"] = "".into(), "no model is named");
    anthropic(|b| b["max_tokens"] = Value::Null, "max_tokens is missing");
    anthropic(|b| b["max_tokens"] = 0.into(), "");
    anthropic(|b| b["system"][0]["text"] = " ".into(), "system.0: blank text");
    anthropic(|b| b["tools"][0]["name"] = "a.b".into(), "`a.b` is no valid tool name");
    anthropic(|b| b["tools"][0]["name"] = "x".repeat(65).into(), "is no valid tool name");
    anthropic(|b| b["tools"][0]["input_schema"]["type"] = "array".into(), "is not of type object");
    anthropic(|b| b["tools"] = json!([b["tools"][0], b["tools"][0]]), "`Read` comes twice");
    anthropic(|b| b["tools"][0] = json!({"type": "bash_20250124", "name": "bash"}), "");
}

#[test]
fn breakpoints() {
    let mark = json!({"type": "ephemeral"});
    let long = json!({"type": "ephemeral", "ttl": "1h"});
    let marked = |count: usize| {
        let mut block = text("x");
        block["cache_control"] = mark.clone();
        vec![user(vec![block; count].into())]
    };
    anthropic(|b| b["messages"] = marked(4).into(), "");
    anthropic(|b| b["messages"] = marked(5).into(), "5 cache_control breakpoints");
    let with_automatic = |b: &mut Value| {
        b["messages"] = marked(4).into();
        b["cache_control"] = mark.clone();
    };
    anthropic(with_automatic, "5 cache_control breakpoints");
    let ordered = |b: &mut Value| {
        b["system"][0]["cache_control"] = long.clone();
        b["messages"] = marked(1).into();
    };
    anthropic(ordered, "");
    let disordered = |b: &mut Value| {
        b["tools"][0]["cache_control"] = mark.clone();
        b["system"][0]["cache_control"] = long.clone();
    };
    anthropic(disordered, "1h comes after one of 5m");
}

#[test]
fn headers() {
    let body = json!({"model": "m", "max_tokens": 5, "temperature": 1, "messages": [hi()]});
    let mut headers = HeaderMap::new();
    assert!(check(Api::Anthropic, &headers, &body, false)[0].contains("anthropic-version"));
    headers.insert("anthropic-version", "2023-06-01".parse().expect("a header"));
    assert_eq!(check(Api::Anthropic, &headers, &body, false), Vec::<String>::new());
    headers.insert("anthropic-version", "2026-10-21".parse().expect("a header"));
    assert!(check(Api::Anthropic, &headers, &body, false)[0].contains("temperature"));
}

#[test]
fn an_answer_comes_last_only_where_it_was_paused() {
    let mut headers = HeaderMap::new();
    headers.insert("anthropic-version", "2023-06-01".parse().expect("a header"));
    let messages = json!([hi(), {"role": "assistant", "content": "a"}]);
    let body = json!({"model": "m", "max_tokens": 5, "messages": messages});
    assert!(check(Api::Anthropic, &headers, &body, false)[0].contains("must end with a user message"));
    assert_eq!(check(Api::Anthropic, &headers, &body, true), Vec::<String>::new());
}

fn chat(messages: Value, expected: &str) {
    check_one(Api::Chat, &json!({"model": "m", "messages": messages}), expected);
}

fn chat_call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "Read", "arguments": arguments}})
}

#[test]
fn chat_completions() {
    let asks = json!({"role": "assistant", "content": null, "tool_calls": [chat_call("a", "{}"), chat_call("b", "{}")]});
    let tool = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    chat(json!([system("s"), hi(), asks, tool("b"), tool("a"), hi()]), "");
    chat(json!([]), "there are no messages");
    chat(json!([hi(), {"role": "assistant", "content": "yes"}, hi()]), "");
}

#[test]
fn chat_completions_with_faults() {
    let asks = json!({"role": "assistant", "content": null, "tool_calls": [chat_call("a", "{}")]});
    let tool = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    chat(json!([hi(), asks]), "`a` has no result");
    chat(json!([hi(), asks, hi()]), "`a` has no result");
    chat(json!([hi(), asks, tool("a"), tool("a")]), "second or late");
    chat(json!([hi(), tool("x")]), "a result for `x`");
    chat(json!([hi(), {"role": "assistant", "content": ""}, hi()]), "neither content nor tool calls");
    chat(json!([user(" ".into())]), "blank content");
    let broken = json!({"role": "assistant", "content": null, "tool_calls": [chat_call("a", "{\"a\":")]});
    chat(json!([hi(), broken, tool("a")]), "no JSON object");
    let mut empty = tool("a");
    empty["content"] = "".into();
    chat(json!([hi(), asks, empty]), "an empty tool result");
    let body = json!({"model": "m", "messages": [hi()], "tools": [{"name": "Read"}]});
    let headers = HeaderMap::new();
    assert!(check(Api::Chat, &headers, &body, false)[0].contains("without `function`"));
}

#[test]
fn responses() {
    let check_input = |input: Value, expected: &str| {
        let body = json!({"model": "m", "store": false, "input": input});
        check_one(Api::Responses, &body, expected);
    };
    let call = json!({"type": "function_call", "call_id": "a", "name": "Read", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "a", "output": "r"});
    let reasoning = json!({"type": "reasoning", "summary": [], "encrypted_content": "e"});
    check_input("hi".into(), "");
    check_input(json!([hi(), reasoning, call, output, hi()]), "");
    check_input(json!([]), "there is no input");
    check_input(json!([hi(), call]), "`a` has no result");
    check_input(json!([hi(), output]), "a result for `a`");
    check_input(json!([hi(), reasoning, hi()]), "without the item that followed");
    let bare = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    check_input(json!([hi(), bare, call, output]), "a bare reasoning item");
    let mut broken = call.clone();
    broken["arguments"] = "x".into();
    check_input(json!([hi(), broken, output]), "no JSON object");
}
