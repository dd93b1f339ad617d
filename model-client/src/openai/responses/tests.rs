use expect_test::{Expect, expect};
use serde_json::{Value, json};
use swarm_protocol::{Block, Message, ResultBlock, launch::ApiKind};

use super::*;
use crate::{
    connect,
    decoder::testing::{decode, render},
    endpoint::testing::endpoint,
    testing::{Answer, Provider, call, collect, hello, request},
};

fn frame(data: Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

fn added(place: u64, item: Value) -> String {
    frame(json!({"type": "response.output_item.added", "output_index": place, "item": item}))
}

fn done(place: u64, item: Value) -> String {
    frame(json!({"type": "response.output_item.done", "output_index": place, "item": item}))
}

fn delta(kind: &str, place: u64, delta: &str) -> String {
    frame(
        json!({"type": format!("response.{kind}.delta"), "output_index": place, "item_id": "x", "delta": delta}),
    )
}

fn created() -> String {
    frame(json!({"type": "response.created", "response": {"id": "resp_1", "model": "gpt-6.2-sol"}}))
        + &frame(json!({"type": "response.in_progress", "response": {}}))
}

fn completed(output: Value) -> String {
    let usage = json!({"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 60, "output_tokens_details": {"reasoning_tokens": 20}});
    frame(json!({"type": "response.completed", "response": {"output": output, "usage": usage}}))
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text}]})
}

fn function_call(arguments: &str, status: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "Read", "arguments": arguments, "status": status})
}

fn whole() -> String {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAAA"});
    created()
        + &added(0, json!({"type": "reasoning", "id": "rs_1", "summary": []}))
        + &delta("reasoning_summary_text", 0, "Hm.")
        + &done(0, reasoning)
        + &added(1, json!({"type": "message", "id": "msg_1", "content": []}))
        + &delta("output_text", 1, "Looking.")
        + &done(1, message("Looking."))
        + &added(2, function_call("", "in_progress"))
        + &delta("function_call_arguments", 2, "{\"file_path\":\"a\"}")
        + &done(2, function_call("{\"file_path\":\"a\"}", "completed"))
        + &completed(json!([]))
}

fn fold() -> Decoder {
    Decoder::new(&hello(), 400)
}

fn check(body: &str, expected: Expect) {
    expected.assert_eq(&render(&decode(body, fold())));
}

#[test]
fn a_whole_answer() {
    check(
        &whole(),
        expect![[r#"
        Started { model: "gpt-6.2-sol" }
        Ping
        BlockStarted { index: 0, kind: Thinking }
        Delta { index: 0, delta: Thinking("Hm.") }
        BlockClosed { index: 0, block: Valid(Opaque { provider: "openai", data: Object {"type": String("reasoning"), "id": String("rs_1"), "summary": Array [Object {"type": String("summary_text"), "text": String("Hm.")}], "encrypted_content": String("gAAAA")} }) }
        BlockStarted { index: 1, kind: Text }
        Delta { index: 1, delta: Text("Looking.") }
        BlockClosed { index: 1, block: Valid(Text { text: "Looking." }) }
        BlockStarted { index: 2, kind: ToolUse { name: "Read" } }
        Delta { index: 2, delta: InputBytes(17) }
        BlockClosed { index: 2, block: Valid(ToolUse { id: ToolUseId("call_1"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        Usage(Usage { input_tokens: 100, output_tokens: 60, cache_read_tokens: 800, cache_write_tokens: 0, estimated: false })
        Stopped(ToolUse)
    "#]],
    );
}

#[test]
fn items_without_their_own_events_count() {
    check(
        &(created() + &completed(json!([message("Hi.")]))),
        expect![[r#"
        Started { model: "gpt-6.2-sol" }
        Ping
        BlockStarted { index: 0, kind: Text }
        BlockClosed { index: 0, block: Valid(Text { text: "Hi." }) }
        Usage(Usage { input_tokens: 100, output_tokens: 60, cache_read_tokens: 800, cache_write_tokens: 0, estimated: false })
        Stopped(EndTurn)
    "#]],
    );
}

#[test]
fn answers_that_are_not_whole() {
    let incomplete = |reason: &str| {
        frame(
            json!({"type": "response.incomplete", "response": {"output": [], "incomplete_details": {"reason": reason}}}),
        )
    };
    check(
        &(created() + &done(0, function_call("{\"file_", "incomplete")) + &incomplete("max_output_tokens")),
        expect![[r#"
            Started { model: "gpt-6.2-sol" }
            Ping
            BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
            BlockClosed { index: 0, block: InvalidCall { id: ToolUseId("call_1"), name: "Read", input: Object {"INVALID_JSON": String("{\"file_")}, problem: "the output limit was reached inside this call: 7 bytes of its arguments came and they are incomplete; write less in one call" } }
            Usage(Usage { input_tokens: 100, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
            Stopped(MaxTokens)
        "#]],
    );
    check(
        &(created() + &incomplete("content_filter")),
        expect![[r#"
        Started { model: "gpt-6.2-sol" }
        Ping
        Usage(Usage { input_tokens: 100, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(Refusal { explanation: "content_filter" })
    "#]],
    );
    check(
        &(created() + &done(0, message("half"))),
        expect![[r#"
            Started { model: "gpt-6.2-sol" }
            Ping
            BlockStarted { index: 0, kind: Text }
            BlockClosed { index: 0, block: Valid(Text { text: "half" }) }
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 3 events in 411 bytes came, the last was `response.output_item.done`)
        "#]],
    );
    let refusal = json!({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]});
    check(
        &(created() + &done(0, refusal) + &completed(json!([]))),
        expect![[r#"
        Started { model: "gpt-6.2-sol" }
        Ping
        BlockStarted { index: 0, kind: Text }
        BlockClosed { index: 0, block: Valid(Text { text: "No." }) }
        Usage(Usage { input_tokens: 100, output_tokens: 60, cache_read_tokens: 800, cache_write_tokens: 0, estimated: false })
        Stopped(Refusal { explanation: "No." })
    "#]],
    );
}

#[test]
fn errors_inside_the_stream() {
    let failed = json!({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}});
    check(
        &(created() + &frame(failed)),
        expect![[r#"
        Started { model: "gpt-6.2-sol" }
        Ping
        ERROR RateLimited: the provider reported an error inside the answer: rate_limit_exceeded slow down
    "#]],
    );
    check(
        &frame(json!({"type": "error", "code": "server_error", "message": "x", "param": null})),
        expect![[r#"
        ERROR Server: the provider reported an error inside the answer: server_error x
    "#]],
    );
}

fn reasoning(encrypted: &str) -> Block {
    Block::Opaque {
        provider: "openai".to_owned(),
        data: json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted}),
    }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::user_text("hi"),
        Message::assistant(vec![
            reasoning("one"),
            Block::text("Looking."),
            reasoning("two"),
            call("call_1", "Read", json!({"z": 1, "a": 2})),
            reasoning("without a follower"),
        ]),
        Message::user(vec![
            Block::tool_result("call_1".parse().unwrap(), "no such file", true),
            Block::text("a reminder"),
        ]),
        Message::assistant(vec![
            Block::Thinking { thinking: "foreign".to_owned(), signature: "s".to_owned() },
            call("call_2", "Read", json!({})),
        ]),
        Message::user(vec![Block::ToolResult {
            tool_use_id: "call_2".parse().unwrap(),
            content: vec![ResultBlock::Image {
                media_type: "image/gif".to_owned(),
                data: "R0lGODlhAQABAAAAACw=".to_owned(),
            }],
            is_error: false,
        }]),
    ]
}

#[test]
fn the_bytes_of_a_request() {
    let shape = Shape { model: "m".to_owned(), reasons: true, summaries: true, stale_before: 0 };
    let body = responses_request::body(&shape, &request(conversation()), &Default::default());
    expect![[r#"
        {"model":"m","max_output_tokens":1000,"stream":true,"store":false,"include":["reasoning.encrypted_content"],"reasoning":{"summary":"auto"},"tools":[{"type":"function","name":"Read","description":"The Read tool.","parameters":{"type":"object","properties":{"file_path":{"type":"string"}}},"strict":false},
        {"type":"function","name":"Write","description":"The Write tool.","parameters":{"type":"object","properties":{"file_path":{"type":"string"}}},"strict":false}],"tool_choice":"auto","parallel_tool_calls":true,"instructions":"You are an agent.\n\nBe brief.","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
        {"type":"reasoning","summary":[],"encrypted_content":"one"},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Looking."}]},
        {"type":"reasoning","summary":[],"encrypted_content":"two"},
        {"type":"function_call","call_id":"call_1","name":"Read","arguments":"{\"z\":1,\"a\":2}"},
        {"type":"function_call_output","call_id":"call_1","output":"[error] no such file"},
        {"role":"user","content":[{"type":"input_text","text":"a reminder"}]},
        {"type":"function_call","call_id":"call_2","name":"Read","arguments":"{}"},
        {"type":"function_call_output","call_id":"call_2","output":"[image of type image/gif: see the next message]"},
        {"role":"user","content":[{"type":"input_image","image_url":"data:image/gif;base64,R0lGODlhAQABAAAAACw=","detail":"auto"}]}]}"#]].assert_eq(&String::from_utf8(body).unwrap().replace("},{", "},\n{"));
    let stale = Shape { reasons: false, stale_before: 5, ..shape };
    let body =
        String::from_utf8(responses_request::body(&stale, &request(conversation()), &Default::default()))
            .unwrap();
    assert!(!body.contains("\"reasoning\"") && !body.contains("encrypted"), "{body}");
}

fn model(provider: &Provider, name: &str) -> std::sync::Arc<dyn Model> {
    let url = format!("{}/v1", provider.url);
    connect(&endpoint(ApiKind::Responses, name, &url), Some("sk-secret"), &HttpClient::new().unwrap())
        .unwrap()
}

#[tokio::test]
async fn over_http() {
    let provider = Provider::start(vec![Answer::sse(whole())]).await;
    let events = collect(&*model(&provider, "gpt-6.2-sol"), &hello()).await;
    assert_eq!(events, decode(&whole(), fold()));
    let received = &provider.received()[0];
    assert_eq!(received.path, "/v1/responses");
    assert_eq!(received.body["store"], false);
    assert_eq!(received.body["include"], json!(["reasoning.encrypted_content"]));
    collect(&*model(&provider, "gpt-4.1"), &hello()).await;
    assert_eq!(provider.received()[1].body.get("include"), None);
}

#[tokio::test]
async fn stale_reasoning_is_dropped_once_and_stays_dropped() {
    let stale = Answer::refusal(
        400,
        r#"{"error":{"code":"invalid_encrypted_content","message":"could not be verified"}}"#,
    );
    let provider = Provider::start(vec![stale, Answer::sse(whole())]).await;
    let model = model(&provider, "gpt-6.2-sol");
    let mut request = request(conversation());
    assert!(collect(&*model, &request).await.iter().all(Result::is_ok));
    request.messages.extend(
        [Message::assistant(vec![reasoning("fresh"), Block::text("Done.")]), Message::user_text("thanks")]
            .map(std::sync::Arc::new),
    );
    assert!(collect(&*model, &request).await.iter().all(Result::is_ok));
    let kept: Vec<Vec<String>> = provider
        .received()
        .iter()
        .map(|received| {
            let items = received.body["input"].as_array().unwrap().iter();
            items.filter_map(|item| item["encrypted_content"].as_str().map(str::to_owned)).collect()
        })
        .collect();
    assert_eq!(kept, [vec!["one".to_owned(), "two".to_owned()], vec![], vec!["fresh".to_owned()]]);
}
