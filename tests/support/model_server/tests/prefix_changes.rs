//! The prefix rule against a table of changes: each is one way in which a client could lose its cache, made to a
//! request that would otherwise go on from the one before.

use serde_json::{Value, json};

use super::{CHAT, MESSAGES, RESPONSES};
use crate::model_server::{ModelServer, Reply, when};

fn server() -> ModelServer {
    let server = ModelServer::start();
    // The call and the thinking that the conversations go on with.
    let called = Reply::new().thinking_signed("hm", "s1").text("Looking.");
    let called = called.tool_with_id("t1", "Read", json!({"file_path": "a", "limit": 5}));
    server.rule(when().turn(0), called);
    server.rule(when(), "yes");
    server
}

/// One client for a table: to make one costs more than to ask.
struct Sender {
    server: ModelServer,
    client: reqwest::Client,
    url: String,
}

impl Sender {
    /// With headers that mean nothing to the server.
    async fn send(&self, body: &Value, headers: &[&'static str]) -> String {
        let mut request = self.client.post(&self.url).header("anthropic-version", "2023-06-01").json(body);
        for header in headers {
            request = request.header(*header, "true");
        }
        let response = request.send().await.expect("the server answers");
        if response.status().is_success() { "ok".to_owned() } else { response.text().await.expect("a body") }
    }
}

/// A conversation of three turns with two tools, in one of the three formats, and its next request.
fn conversation(path: &str, more: bool) -> Value {
    let schema = |first: &str, second: &str| json!({"type": "object", "properties": {first: {"type": "string"}, second: {"type": "integer"}}});
    let (read, glob) = (schema("file_path", "limit"), schema("pattern", "depth"));
    let arguments = json!({"file_path": "a", "limit": 5});
    match path {
        MESSAGES => {
            let mut messages = vec![
                json!({"role": "user", "content": [{"type": "text", "text": "environment"}, {"type": "text", "text": "task"}]}),
                json!({"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s1"}, {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "t1", "name": "Read", "input": arguments},
                ]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]}),
            ];
            if more {
                messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Seen."}]}));
                messages.push(json!({"role": "user", "content": [{"type": "text", "text": "go on"}]}));
            }
            json!({
                "model": "m", "max_tokens": 5, "stream": true, "thinking": {"type": "adaptive"},
                "system": [{"type": "text", "text": "You are kind."}, {"type": "text", "text": "Be brief."}],
                "tools": [{"name": "Glob", "input_schema": glob}, {"name": "Read", "input_schema": read}],
                "messages": messages,
            })
        }
        CHAT => {
            let call = json!({"name": "Read", "arguments": arguments.to_string()});
            let mut messages = vec![
                json!({"role": "system", "content": "You are kind."}),
                json!({"role": "user", "content": [{"type": "text", "text": "environment"}, {"type": "text", "text": "task"}]}),
                json!({"role": "assistant", "content": "Looking.", "tool_calls": [{"id": "t1", "type": "function", "function": call}]}),
                json!({"role": "tool", "tool_call_id": "t1", "content": "found"}),
            ];
            if more {
                messages.push(json!({"role": "assistant", "content": "Seen."}));
                messages.push(json!({"role": "user", "content": "go on"}));
            }
            let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
            json!({"model": "m", "messages": messages, "tools": [tool("Glob", &glob), tool("Read", &read)]})
        }
        _ => {
            let mut input = vec![
                json!({"role": "user", "content": [
                    {"type": "input_text", "text": "environment"}, {"type": "input_text", "text": "task"},
                ]}),
                json!({"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}),
                json!({"type": "function_call", "call_id": "t1", "name": "Read", "arguments": arguments.to_string()}),
                json!({"type": "function_call_output", "call_id": "t1", "output": "found"}),
            ];
            if more {
                input.push(
                    json!({"role": "assistant", "content": [{"type": "output_text", "text": "Seen."}]}),
                );
                input.push(json!({"role": "user", "content": [{"type": "input_text", "text": "go on"}]}));
            }
            let tool = |name: &str, parameters: &Value| json!({"type": "function", "name": name, "parameters": parameters});
            json!({
                "model": "m", "instructions": "You are kind.", "input": input, "store": false,
                "tools": [tool("Glob", &glob), tool("Read", &read)],
            })
        }
    }
}

/// The list of a body at this pointer, to be changed.
fn list<'a>(body: &'a mut Value, pointer: &str) -> &'a mut Vec<Value> {
    let list = body.pointer_mut(pointer).and_then(Value::as_array_mut);
    list.unwrap_or_else(|| panic!("no list at {pointer}"))
}

/// Puts the first key of an object last: the same JSON, in other bytes.
fn reorder(body: &mut Value, pointer: &str) {
    let object = body.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object");
    let key = object.keys().next().expect("a key").clone();
    let value = object.shift_remove(&key).expect("its value");
    object.insert(key, value);
}

fn set(body: &mut Value, pointer: &str, value: Value) {
    let place = body.pointer_mut(pointer);
    *place.unwrap_or_else(|| panic!("nothing at {pointer}")) = value;
}

type Change = (&'static str, fn(&mut Value), &'static str);

/// Each change of a request that goes on is caught and named; the unchanged one passes, before and after.
async fn check_changes(path: &str, changes: &[Change]) {
    let server = server();
    let url = format!("{}{path}", server.url());
    let sender = Sender { server, client: crate::http_client(), url };
    for (name, change, expected) in changes {
        // Conversations with different models never meet.
        let of_model = |mut body: Value| {
            body["model"] = (*name).into();
            body
        };
        assert_eq!(sender.send(&of_model(beginning(path)), &[]).await, "ok", "{path}");
        assert_eq!(sender.send(&of_model(conversation(path, false)), &[]).await, "ok", "{path}");
        let sound = of_model(conversation(path, true));
        let mut next = sound.clone();
        change(&mut next);
        assert_ne!(next.to_string(), sound.to_string(), "{path}: {name} changes nothing");
        let answer = sender.send(&next, &[]).await;
        assert!(answer.contains(expected), "{path}: {name}: expected `{expected}`, got {answer}");
        let violations = sender.server.take_violations();
        assert_eq!(violations.is_empty(), *expected == "ok", "{path}: {name}: {violations:?}");
        if *expected == "ok" {
            continue;
        }
        // No header and no field of the request itself can declare a break.
        let mut claims = next.clone();
        claims["metadata"] = json!({"break": true, "declared_break": "all"});
        let headers = ["x-declared-break", "x-break", "x-prefix-break"];
        assert!(sender.send(&claims, &headers).await.contains(expected), "{path}: {name}");
        sender.server.take_violations();
        // Nothing of it was learnt; only the control endpoint can.
        assert_eq!(sender.send(&sound, &[]).await, "ok", "{path}: {name}, unchanged");
        sender.server.declare_break(None);
        assert_eq!(sender.send(&next, &[]).await, "ok", "{path}: {name}, declared out of band");
    }
}

/// The first request of [`conversation`].
fn beginning(path: &str) -> Value {
    let mut body = conversation(path, false);
    let (messages, kept) = match path {
        MESSAGES => ("messages", 1),
        CHAT => ("messages", 2),
        _ => ("input", 1),
    };
    list(&mut body, &format!("/{messages}")).truncate(kept);
    body
}

#[tokio::test]
async fn a_table_of_changes_to_an_anthropic_conversation() {
    check_changes(
        MESSAGES,
        &[
            ("tools in another order", |body| list(body, "/tools").reverse(), "tools changed"),
            ("a tool less", |body| drop(list(body, "/tools").pop()), "tools changed"),
            (
                "a tool more",
                |body| {
                    list(body, "/tools").push(json!({"name": "Bash", "input_schema": {"type": "object"}}));
                },
                "tools changed",
            ),
            (
                "another description",
                |body| {
                    set(
                        body,
                        "/tools/0",
                        json!({"name": "Glob", "description": "x", "input_schema": {"type": "object"}}),
                    )
                },
                "tools changed",
            ),
            ("keys of a schema", |body| reorder(body, "/tools/1/input_schema/properties"), "tools changed"),
            ("keys of a tool", |body| reorder(body, "/tools/1"), "tools changed"),
            (
                "a date in the system",
                |body| set(body, "/system/0/text", "You are kind. It is Monday.".into()),
                "system changed",
            ),
            ("system blocks in another order", |body| list(body, "/system").reverse(), "system changed"),
            ("a system block less", |body| drop(list(body, "/system").pop()), "system changed"),
            (
                "thinking",
                |body| set(body, "/thinking", json!({"type": "adaptive", "display": "summarized"})),
                "thinking changed",
            ),
            (
                "no thinking",
                |body| drop(body.as_object_mut().and_then(|body| body.shift_remove("thinking"))),
                "thinking changed",
            ),
            ("effort", |body| body["output_config"] = json!({"effort": "low"}), "effort changed"),
            (
                "a task budget",
                |body| body["output_config"] = json!({"task_budget": {"type": "tokens", "total": 20_000}}),
                "effort changed",
            ),
            ("speed", |body| body["speed"] = "fast".into(), "effort changed"),
            ("tool choice", |body| body["tool_choice"] = json!({"type": "auto"}), "tool_choice changed"),
            (
                "no parallel calls",
                |body| body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true}),
                "tool_choice changed",
            ),
            (
                "server-side edits",
                |body| body["context_management"] = json!({"edits": []}),
                "context_management changed",
            ),
            (
                "an old text",
                |body| set(body, "/messages/1/content/1/text", "Looked.".into()),
                "block 3 changed",
            ),
            (
                "a blank in it",
                |body| set(body, "/messages/1/content/1/text", "Looking. ".into()),
                "block 3 changed",
            ),
            (
                "an old result",
                |body| set(body, "/messages/2/content/0/content", "[snipped]".into()),
                "block 5 changed",
            ),
            (
                "a result that became an error",
                |body| body["messages"][2]["content"][0]["is_error"] = true.into(),
                "block 5 changed",
            ),
            ("keys of arguments", |body| reorder(body, "/messages/1/content/2/input"), "block 4 changed"),
            ("keys of a block", |body| reorder(body, "/messages/1/content/1"), "block 3 changed"),
            ("blocks in another order", |body| list(body, "/messages/0/content").reverse(), "changed"),
            ("dropped thinking", |body| drop(list(body, "/messages/1/content").remove(0)), "block 2 changed"),
            (
                "an old block less",
                |body| drop(list(body, "/messages/0/content").remove(1)),
                "block 1 changed",
            ),
            (
                "an old block more",
                |body| list(body, "/messages/0/content").insert(1, json!({"type": "text", "text": "n"})),
                "block 1 changed",
            ),
            (
                "a dropped round",
                |body| drop(list(body, "/messages").drain(1..3).collect::<Vec<_>>()),
                "block 2 changed",
            ),
            (
                "an array for the text of a result",
                |body| set(body, "/messages/2/content/0/content", json!([{"type": "text", "text": "found"}])),
                "block 5 changed",
            ),
            ("max_tokens", |body| set(body, "/max_tokens", 9.into()), "ok"),
            ("metadata", |body| body["metadata"] = json!({"user_id": "x"}), "ok"),
            (
                "a mark that moved",
                |body| body["messages"][2]["content"][0]["cache_control"] = json!({"type": "ephemeral"}),
                "ok",
            ),
            (
                "a mark on the system",
                |body| body["system"][1]["cache_control"] = json!({"type": "ephemeral", "ttl": "1h"}),
                "ok",
            ),
            ("an automatic mark", |body| body["cache_control"] = json!({"type": "ephemeral"}), "ok"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_table_of_changes_to_a_chat() {
    check_changes(
        CHAT,
        &[
            ("tools in another order", |body| list(body, "/tools").reverse(), "tools changed"),
            (
                "keys of a schema",
                |body| reorder(body, "/tools/1/function/parameters/properties"),
                "tools changed",
            ),
            (
                "the system",
                |body| set(body, "/messages/0/content", "You are stern.".into()),
                "system changed",
            ),
            ("effort", |body| body["reasoning_effort"] = "low".into(), "effort changed"),
            ("tool choice", |body| body["tool_choice"] = "auto".into(), "tool_choice changed"),
            ("no parallel calls", |body| body["parallel_tool_calls"] = false.into(), "tool_choice changed"),
            (
                "a schema of the answer",
                |body| body["response_format"] = json!({"type": "json_object"}),
                "format changed",
            ),
            ("an old result", |body| set(body, "/messages/3/content", "[snipped]".into()), "changed"),
            (
                "arguments in another order",
                |body| {
                    set(
                        body,
                        "/messages/2/tool_calls/0/function/arguments",
                        r#"{"limit":5,"file_path":"a"}"#.into(),
                    )
                },
                "changed",
            ),
            ("an old block less", |body| drop(list(body, "/messages/1/content").remove(1)), "changed"),
            (
                "a dropped round",
                |body| drop(list(body, "/messages").drain(2..4).collect::<Vec<_>>()),
                "changed",
            ),
            ("streaming", |body| body["stream"] = true.into(), "ok"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_table_of_changes_to_a_responses_conversation() {
    check_changes(
        RESPONSES,
        &[
            ("tools in another order", |body| list(body, "/tools").reverse(), "tools changed"),
            ("keys of a schema", |body| reorder(body, "/tools/1/parameters/properties"), "tools changed"),
            ("instructions", |body| set(body, "/instructions", "You are stern.".into()), "system changed"),
            ("effort", |body| body["reasoning"] = json!({"effort": "low"}), "effort changed"),
            ("tool choice", |body| body["tool_choice"] = "auto".into(), "tool_choice changed"),
            (
                "a schema of the answer",
                |body| body["text"] = json!({"format": {"type": "json_object"}}),
                "format changed",
            ),
            ("an old result", |body| set(body, "/input/3/output", "[snipped]".into()), "changed"),
            (
                "arguments in another order",
                |body| set(body, "/input/2/arguments", r#"{"limit":5,"file_path":"a"}"#.into()),
                "changed",
            ),
            ("an old part less", |body| drop(list(body, "/input/0/content").remove(1)), "changed"),
            ("a dropped round", |body| drop(list(body, "/input").drain(2..4).collect::<Vec<_>>()), "changed"),
            ("a key of the cache", |body| body["prompt_cache_key"] = "k".into(), "ok"),
        ],
    )
    .await;
}
