use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{CHAT, MESSAGES, RESPONSES, hello, parsed, post};
use crate::model_server::{Api, Block, ModelServer, Reply, Role, when};

fn request(user: &str) -> Value {
    let mut body = hello(true);
    body["messages"][0]["content"] = user.into();
    body
}

async fn said(server: &ModelServer, body: &Value) -> String {
    let response = post(server, MESSAGES, body).await;
    let status = response.status();
    let text = response.text().await.expect("a body");
    assert_eq!(status, 200, "{text}");
    let events = parsed(&text);
    events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect()
}

#[tokio::test]
async fn rules_are_tried_in_order_and_used_up() {
    let server = ModelServer::start();
    server.agent("alpha", [Reply::say("a0"), Reply::say("a1")]);
    server.times(2, when().user_contains("alpha"), "then this");
    let calls = AtomicUsize::new(0);
    server.on(move |request| {
        let n = calls.fetch_add(1, Ordering::SeqCst);
        request.agent_key.contains("beta").then(|| Reply::say(format!("b{n}")))
    });
    server.rule(when(), "anybody");
    let alpha = request("I am alpha");
    for expected in ["a0", "a1", "then this", "then this", "anybody"] {
        assert_eq!(said(&server, &alpha).await, expected);
    }
    assert_eq!(said(&server, &request("beta")).await, "b1");
    assert_eq!(server.requests_of("alpha").len(), 5);
    assert_eq!(server.requests_of("alpha")[4].nth, 4);
    assert_eq!(server.requests_of("beta")[0].nth, 0);
}

#[tokio::test]
async fn matchers() {
    let server = ModelServer::start();
    let call = json!({"type": "tool_use", "id": "t1", "name": "Read", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found it"}]});
    let body = json!({
        "model": "m", "max_tokens": 5, "stream": true, "system": [{"type": "text", "text": "You are kind."}],
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "first"}, {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "last"}]},
        ],
    });
    let holds = [
        when().model("m"),
        when().system_contains("kind"),
        when().agent("first"),
        when().user_contains("first").user_contains("last"),
        when().last_user_contains("last"),
        when().tool_result_contains("found"),
        when().messages(3).turn(1).nth(8),
        when().has_tool("Read").lacks_tool("Bash").api(Api::Anthropic),
        when(),
    ];
    let fails = [
        when().model("x"),
        when().system_contains("cruel"),
        when().agent("last"),
        when().last_user_contains("first"),
        when().tool_result_contains("lost"),
        when().messages(2),
        when().turn(0),
        when().nth(7),
        when().has_tool("Bash"),
        when().lacks_tool("Read"),
        when().api(Api::Chat),
    ];
    server.rule(when(), "x");
    for _ in 0..9 {
        said(&server, &body).await;
    }
    let request = server.requests().pop().expect("requests");
    for (n, matcher) in holds.iter().enumerate() {
        assert!(matcher.matches(&request), "{n}: {matcher:?}");
    }
    for (n, matcher) in fails.iter().enumerate() {
        assert!(!matcher.matches(&request), "{n}: {matcher:?}");
    }
    assert_eq!(request.tool_result("t1"), Some("found it"));
}

#[tokio::test]
async fn the_three_apis_have_one_view() {
    let server = ModelServer::start();
    server.rule(when(), "x");
    let anthropic = json!({
        "model": "m", "max_tokens": 5, "system": "sys",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "yes"}, {"type": "tool_use", "id": "c1", "name": "Read", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}, {"type": "text", "text": "more"}]},
        ],
    });
    let chat = json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "sys"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "Read", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
            {"role": "user", "content": "more"},
        ],
    });
    let responses = json!({
        "model": "m", "instructions": "sys",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
            {"type": "function_call", "call_id": "c1", "name": "Read", "arguments": "{\"a\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "r"},
            {"role": "user", "content": "more"},
        ],
    });
    for (path, body) in [(MESSAGES, anthropic), (CHAT, chat), (RESPONSES, responses)] {
        let response = post(&server, path, &body).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap_or_default());
        let request = server.requests().pop().expect("a request");
        assert_eq!((&*request.system, &*request.agent_key, request.turn()), ("sys", "hi", 1));
        let roles: Vec<Role> = request.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::User], "{path}");
        let (id, name, input) = ("c1".to_owned(), "Read".to_owned(), json!({"a": 1}));
        let call = Block::ToolUse { id, name, input };
        assert_eq!(request.messages[1].blocks, [Block::Text { text: "yes".to_owned() }, call]);
        assert_eq!(request.tool_result("c1"), Some("r"));
        assert_eq!(request.last_user_text(), "more");
        assert_eq!(serde_json::from_slice::<Value>(&request.raw).expect("JSON"), body);
    }
}

#[tokio::test]
async fn script_files() {
    let server = ModelServer::start();
    server
        .script(
            r#"{"rules": [
                {"when": {"agent": "one"}, "times": 1, "reply": {"http": {"status": 529, "headers": [["retry-after", "1"]]}}},
                {"when": {"agent": "one", "turn": 0}, "reply": {
                    "parts": [{"thinking": {"text": "hm"}}, {"text": "so"}, {"tool_use": {"name": "Read", "input": {"a": 1}}},
                              {"delay_ms": 1}, "ping", {"event": {"name": "new", "data": {}}}, {"end": "eof"}],
                    "stop": "max_tokens", "usage": {"input": 1, "output": 2}, "chunk": 2, "wire": {"crlf": true},
                    "openai": {"no_done": true}}},
                {"reply": "anything else"}
            ], "window": 1000}"#,
        )
        .expect("a script");
    assert_eq!(post(&server, MESSAGES, &request("one")).await.status(), 529);
    assert_eq!(said(&server, &request("one")).await, "so");
    assert_eq!(said(&server, &request("two")).await, "anything else");
    let long = post(&server, MESSAGES, &request(&"long ".repeat(1000))).await;
    assert_eq!(long.status(), 400);
    assert!(server.script(r#"{"rules": [{"when": {"agnet": "one"}, "reply": "x"}]}"#).is_err());
    assert!(server.script(r#"{"rules": [{"reply": {"part": []}}]}"#).is_err());
}

#[tokio::test]
async fn a_request_without_rule_is_a_violation() {
    let server = ModelServer::start();
    let response = post(&server, MESSAGES, &request("anybody there")).await;
    assert_eq!(response.status(), 400);
    let body = response.text().await.expect("a body");
    assert!(body.contains("violation: request 1: no rule answers"), "{body}");
    let violations = server.take_violations();
    assert!(violations[0].contains("anybody there"), "{violations:?}");
}

#[test]
fn the_server_panics_about_violations_when_dropped() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = ModelServer::start();
    runtime.block_on(post(&server, MESSAGES, &request("x")));
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(server)));
    assert!(dropped.is_err());
}

#[tokio::test]
async fn concurrency_peak_and_waiting() {
    let server = ModelServer::start();
    server.rule(when(), Reply::say("x").hold("all"));
    let bodies = ["a", "b", "c"].map(request);
    let asking = bodies.iter().map(|body| post(&server, MESSAGES, body));
    let opening = async {
        server.gate("all").reached_by(3).await;
        server.gate("all").open();
    };
    let (responses, ()) = tokio::join!(futures::future::join_all(asking), opening);
    for response in responses {
        response.text().await.expect("a body");
    }
    said(&server, &request("d")).await;
    assert_eq!(server.peak(), 3);
    assert_eq!(server.wait_for_request("c", 0).await.agent_key, "c");
}

#[tokio::test]
async fn keys_models_and_tokens() {
    let server = ModelServer::builder().api_key("right").start();
    server.rule(when(), "x");
    assert_eq!(post(&server, MESSAGES, &hello(true)).await.status(), 401);
    let client = crate::http_client();
    let url = server.url();
    let count = client.post(format!("{url}/v1/messages/count_tokens"));
    let count = count.header("x-api-key", "right").header("anthropic-version", "2023-06-01");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(4000)}]});
    let counted = count.json(&body).send().await.expect("an answer");
    let counted: Value = counted.json().await.expect("JSON");
    assert_eq!(counted["input_tokens"].as_u64().map(|n| n / 100), Some(10));

    let get = async |path: &str, anthropic: bool| -> Value {
        let mut request = client.get(format!("{url}{path}"));
        if anthropic {
            request = request.header("anthropic-version", "2023-06-01");
        }
        request.send().await.expect("an answer").json().await.expect("JSON")
    };
    assert_eq!(get("/v1/models", true).await["data"][0]["max_input_tokens"], 200_000);
    assert_eq!(get("/v1/models", false).await["object"], "list");
    assert_eq!(get("/v1/models/test-model", true).await["id"], "test-model");
    assert_eq!(get("/v1/models/none", true).await["error"]["type"], "not_found_error");
    assert_eq!(client.head(&url).send().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn the_control_endpoint() {
    let server = ModelServer::start();
    let client = crate::http_client();
    let control = |path: &str| format!("{}/__control/{path}", server.url());
    let script = json!({"rules": [{"reply": {"parts": [{"text": "x"}], "hold": "g"}}]});
    let sent = client.post(control("script")).json(&script).send().await.expect("an answer");
    assert_eq!(sent.status(), 204);
    let body = request("x");
    let open = async {
        server.gate("g").reached().await;
        client.post(control("gates/g/open")).send().await.expect("an answer")
    };
    let (response, _) = tokio::join!(post(&server, MESSAGES, &body), open);
    assert_eq!(response.status(), 200);
    let get = async |path: &str| -> Value {
        let response = client.get(control(path)).send().await.expect("an answer");
        response.json().await.expect("JSON")
    };
    assert_eq!(get("requests").await["requests"][0]["agent_key"], "x");
    assert_eq!(get("violations").await["violations"], json!([]));
    assert_eq!(get("gates/g").await["open"], true);
    client.post(control("shutdown")).send().await.expect("an answer");
    server.stopped().await;
}
