mod cases;

use expect_test::{Expect, expect};
use futures::StreamExt as _;
use proptest::prelude::*;
use query_engine::ports::{Breakpoint, ModelErrorKind, StreamEvent};
use serde_json::json;
use swarm_protocol::{Message, ResultBlock, launch::ApiKind};

use super::*;
use crate::{
    connect,
    decoder::{
        drive,
        testing::{decode, decode_chunks, paced, render},
    },
    endpoint::testing::endpoint,
    testing::{Answer, Provider, call, collect, hello, pieces, request},
};
use swarm_protocol::Block;

/// One SSE frame.
fn frame(data: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(data).unwrap();
    format!("event: {}\ndata: {data}\n\n", value["type"].as_str().unwrap())
}

const START: &str = r#"{"type":"message_start","message":{"id":"msg_01","model":"claude-opus-5-5","content":[],"usage":{"input_tokens":12,"cache_creation_input_tokens":5,"cache_read_input_tokens":9000,"output_tokens":1}}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

fn text_block(index: usize, text: &str) -> String {
    let mut body = frame(&format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text","text":""}}}}"#
    ));
    body += &frame(&format!(
        r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":"{text}"}}}}"#
    ));
    body + &frame(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#))
}

/// A tool block whose arguments come in two halves; `closed` says whether its stop comes.
fn tool_block(index: usize, id: &str, name: &str, arguments: &str, closed: bool) -> String {
    let mut body = frame(&format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}}}"#
    ));
    let half = arguments.floor_char_boundary(arguments.len() / 2);
    for part in [&arguments[..half], &arguments[half..]] {
        let delta = json!({"type": "input_json_delta", "partial_json": part});
        body += &frame(&json!({"type": "content_block_delta", "index": index, "delta": delta}).to_string());
    }
    if closed {
        body += &frame(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#));
    }
    body
}

fn message_delta(stop_reason: &str, output_tokens: u64) -> String {
    frame(&format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{stop_reason}","stop_sequence":null}},"usage":{{"output_tokens":{output_tokens},"input_tokens":null}}}}"#
    ))
}

fn fold() -> stream::Decoder {
    stream::Decoder::new(&hello(), 400)
}

fn check(body: &str, expected: Expect) {
    expected.assert_eq(&render(&decode(body, fold())));
}

#[test]
fn a_whole_answer() {
    let mut body = frame(START) + &frame(r#"{"type":"ping"}"#);
    body += &frame(
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
    );
    body += &frame(
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"First …"}}"#,
    );
    body += &frame(
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}"#,
    );
    body += &frame(r#"{"type":"content_block_stop","index":0}"#);
    body += &text_block(1, "Looking.");
    body += &tool_block(2, "toolu_01", "Read", r#"{"file_path":"é"}"#, true);
    body += &(message_delta("tool_use", 40) + &message_delta("tool_use", 89) + &frame(STOP));
    check(
        &body,
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Ping
        BlockStarted { index: 0, kind: Thinking }
        Delta { index: 0, delta: Thinking("First …") }
        BlockClosed { index: 0, block: Valid(Thinking { thinking: "First …", signature: "EqQB" }) }
        BlockStarted { index: 1, kind: Text }
        Delta { index: 1, delta: Text("Looking.") }
        BlockClosed { index: 1, block: Valid(Text { text: "Looking." }) }
        BlockStarted { index: 2, kind: ToolUse { name: "Read" } }
        Delta { index: 2, delta: InputBytes(9) }
        Delta { index: 2, delta: InputBytes(9) }
        BlockClosed { index: 2, block: Valid(ToolUse { id: ToolUseId("toolu_01"), name: "Read", input: Object {"file_path": String("é")}, provider_data: None }) }
        Usage(Usage { input_tokens: 12, output_tokens: 40, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Usage(Usage { input_tokens: 12, output_tokens: 89, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Stopped(ToolUse)
    "#]],
    );
}

#[test]
fn blocks_that_come_whole_and_events_of_the_future() {
    let mut body = frame(START);
    body += "event: future_thing\ndata: {\"type\":\"future_thing\",\"index\":\"x\"}\n\n: comment\n\n";
    body += &frame(
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"AAA"}}"#,
    );
    body += &frame(r#"{"type":"content_block_stop","index":0}"#);
    body += &frame(
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x"}}}"#,
    );
    body += &frame(r#"{"type":"content_block_delta","index":1,"delta":{"type":"future_delta","x":1}}"#);
    body += &frame(r#"{"type":"content_block_stop","index":1}"#);
    body += &frame(
        r#"{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"type":"refusal","category":"cyber","explanation":null}}}"#,
    );
    body += &frame(STOP);
    check(
        &body,
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        BlockStarted { index: 0, kind: Thinking }
        BlockClosed { index: 0, block: Valid(RedactedThinking { data: "AAA" }) }
        BlockStarted { index: 1, kind: Other }
        BlockClosed { index: 1, block: Valid(Opaque { provider: "anthropic", data: Object {"type": String("server_tool_use"), "id": String("srvtoolu_1"), "name": String("web_search"), "input": Object {"query": String("x")}} }) }
        Stopped(Refusal { explanation: "cyber" })
    "#]],
    );
}

#[test]
fn arguments_that_are_no_object() {
    let mut body = frame(START);
    body += &tool_block(0, "t1", "Read", "", true);
    body += &tool_block(1, "t2", "Read", r#"{"path":"a\q"}"#, true);
    body += &tool_block(2, "t2", "Read", "[1]", true);
    body += &(message_delta("tool_use", 9) + &frame(STOP));
    let text = render(&decode(&body, fold()));
    // The third call reuses an id, so it gets a random one.
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with("BlockClosed")).take(2).collect();
    expect![[r#"
        BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("t1"), name: "Read", input: Object {}, provider_data: None }) }
        BlockClosed { index: 1, block: InvalidCall { id: ToolUseId("t2"), name: "Read", input: Object {"INVALID_JSON": String("{\"path\":\"a\\q\"}")}, problem: "the arguments are not valid JSON: invalid escape at line 1 column 12" } }"#]].assert_eq(&shown.join("\n"));
    assert!(text.contains("call_") && text.contains("not an array"), "{text}");
}

#[test]
fn the_output_limit_cuts_a_call() {
    let body = |arguments, closed| {
        frame(START)
            + &tool_block(0, "t1", "Read", r#"{"file_path":"a"}"#, true)
            + &tool_block(1, "t2", "Write", arguments, closed)
            + &message_delta("max_tokens", 1000)
            + &frame(STOP)
    };
    check(
        &body("", true),
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
        Delta { index: 0, delta: InputBytes(8) }
        Delta { index: 0, delta: InputBytes(9) }
        BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("t1"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        BlockStarted { index: 1, kind: ToolUse { name: "Write" } }
        BlockClosed { index: 1, block: InvalidCall { id: ToolUseId("t2"), name: "Write", input: Object {"INVALID_JSON": String("")}, problem: "the output limit was reached inside this call: 0 bytes of its arguments came and they are incomplete; write less in one call" } }
        Usage(Usage { input_tokens: 12, output_tokens: 1000, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Stopped(MaxTokens)
    "#]],
    );
    check(
        &body(r#"{"content":"abc"#, true),
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
        Delta { index: 0, delta: InputBytes(8) }
        Delta { index: 0, delta: InputBytes(9) }
        BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("t1"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        BlockStarted { index: 1, kind: ToolUse { name: "Write" } }
        Delta { index: 1, delta: InputBytes(7) }
        Delta { index: 1, delta: InputBytes(8) }
        BlockClosed { index: 1, block: InvalidCall { id: ToolUseId("t2"), name: "Write", input: Object {"INVALID_JSON": String("{\"content\":\"abc")}, problem: "the output limit was reached inside this call: 15 bytes of its arguments came and they are incomplete; write less in one call" } }
        Usage(Usage { input_tokens: 12, output_tokens: 1000, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Stopped(MaxTokens)
    "#]],
    );
    check(
        &body(r#"{"content":"abc"#, false),
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
        Delta { index: 0, delta: InputBytes(8) }
        Delta { index: 0, delta: InputBytes(9) }
        BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("t1"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        BlockStarted { index: 1, kind: ToolUse { name: "Write" } }
        Delta { index: 1, delta: InputBytes(7) }
        Delta { index: 1, delta: InputBytes(8) }
        Usage(Usage { input_tokens: 12, output_tokens: 1000, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        Stopped(MaxTokens)
    "#]],
    );
}

#[test]
fn a_stream_that_breaks_off() {
    check(
        &(frame(START) + &text_block(0, "half")),
        expect![[r#"
            Started { model: "claude-opus-5-5" }
            Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
            BlockStarted { index: 0, kind: Text }
            Delta { index: 0, delta: Text("half") }
            BlockClosed { index: 0, block: Valid(Text { text: "half" }) }
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 4 events in 536 bytes came, the last was `content_block_stop`)
        "#]],
    );
    check(
        &(frame(START)
            + &tool_block(0, "t1", "Bash", r#"{"command":"ls"}"#, true)
            + &tool_block(1, "t2", "Edit", r#"{"path":"a"#, false)),
        expect![[r#"
            Started { model: "claude-opus-5-5" }
            Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
            BlockStarted { index: 0, kind: ToolUse { name: "Bash" } }
            Delta { index: 0, delta: InputBytes(8) }
            Delta { index: 0, delta: InputBytes(8) }
            BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("t1"), name: "Bash", input: Object {"command": String("ls")}, provider_data: None }) }
            BlockStarted { index: 1, kind: ToolUse { name: "Edit" } }
            Delta { index: 1, delta: InputBytes(5) }
            Delta { index: 1, delta: InputBytes(5) }
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 8 events in 1141 bytes came, the last was `content_block_delta`)
        "#]],
    );
    check(
        "",
        expect![[r#"
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 0 events in 0 bytes came, the last was `none`)
        "#]],
    );
}

#[test]
fn errors_inside_the_stream() {
    let error =
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":null}"#;
    check(
        &(frame(START) + &text_block(0, "a") + &frame(error)),
        expect![[r#"
        Started { model: "claude-opus-5-5" }
        Usage(Usage { input_tokens: 12, output_tokens: 1, cache_read_tokens: 9000, cache_write_tokens: 5, estimated: false })
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("a") }
        BlockClosed { index: 0, block: Valid(Text { text: "a" }) }
        ERROR Overloaded: the provider reported an error inside the answer: overloaded_error Overloaded
    "#]],
    );
    check(
        "data: {\"error\":{\"message\":\"upstream died\",\"code\":502}}\n\n",
        expect![[r#"
        ERROR Server: the provider reported an error inside the answer: upstream died
    "#]],
    );
    check(
        "data: {\"type\":\"message_start\n\n",
        expect![[r#"
        ERROR Malformed: the answer is not in the provider's format: EOF while parsing a string at line 1 column 22 in `{"type":"message_start`
    "#]],
    );
    check(
        &frame(r#"{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"x"}}"#),
        expect![[r#"
            ERROR Malformed: the answer is not in the provider's format: a delta for block 3, which is not open
        "#]],
    );
}

#[test]
fn a_server_without_usage_or_stops_gets_an_estimate() {
    let mut body = frame(r#"{"type":"message_start","message":{"model":"qwen3"}}"#);
    body += &frame(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"ab"}}"#);
    body +=
        &frame(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"cdefgh"}}"#);
    body += &frame(STOP);
    check(
        &body,
        expect![[r#"
        Started { model: "qwen3" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("ab") }
        Delta { index: 0, delta: Text("cdefgh") }
        BlockClosed { index: 0, block: Valid(Text { text: "abcdefgh" }) }
        Usage(Usage { input_tokens: 100, output_tokens: 2, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(EndTurn)
    "#]],
    );
}

fn everything() -> String {
    let mut body = frame(START) + ": keep-alive\n\n" + &text_block(0, "é🙂 word");
    body += &tool_block(1, "t1", "Write", r#"{"content":"日本語 \" \\ end"}"#, true);
    body + &message_delta("tool_use", 25) + &frame(STOP)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_cut_anywhere_give_the_same_events(cuts in prop::collection::vec(0..2000_usize, 0..20)) {
        let body = everything();
        let expected = decode(&body, fold());
        prop_assert_eq!(decode_chunks(pieces(body.as_bytes(), cuts), fold()), expected);
    }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::user(vec![
            Block::text("hi"),
            Block::text(" \n"),
            Block::Image { media_type: "image/png".to_owned(), data: String::new() },
        ]),
        Message::assistant(vec![
            Block::Thinking { thinking: "hm".to_owned(), signature: "sig".to_owned() },
            Block::Thinking { thinking: "foreign".to_owned(), signature: String::new() },
            Block::RedactedThinking { data: "AAA".to_owned() },
            Block::Opaque { provider: "openai".to_owned(), data: json!({"type": "reasoning"}) },
            Block::Opaque {
                provider: "anthropic".to_owned(),
                data: json!({"type": "compaction", "content": "c"}),
            },
            call("functions.Read:0", "Re ad", json!({"z": 1, "a": 2})),
            call("t2", "Write", json!("{\"a\":")),
        ]),
        Message::user(vec![
            Block::tool_result("functions.Read:0".parse().unwrap(), "", true),
            Block::ToolResult {
                tool_use_id: "t2".parse().unwrap(),
                content: vec![ResultBlock::Image {
                    media_type: "image/gif".to_owned(),
                    data: "R0lGODlhAQABAAAAACw=".to_owned(),
                }],
                is_error: false,
            },
        ]),
        Message::assistant(vec![Block::text("\n \n")]),
        Message::user_text("go on"),
    ]
}

#[test]
fn the_bytes_of_a_request() {
    let mut request = request(conversation());
    request.breakpoints = vec![Breakpoint::Prefix, Breakpoint::Message(1), Breakpoint::Message(4)];
    let shape = |official| request::Shape {
        model: "claude-opus-5-5".to_owned(),
        eager_input_streaming: official,
        adaptive_thinking: official,
        defer_tools: official,
        unsigned_thinking: !official,
    };
    let body =
        |official| String::from_utf8(request::body(&shape(official), &request, &Default::default())).unwrap();
    expect![[r#"
        {"model":"claude-opus-5-5","max_tokens":1000,"stream":true,"thinking":{"type":"adaptive","display":"summarized"},"tools":[{"name":"Read","description":"The Read tool.","input_schema":{"type":"object","properties":{"file_path":{"type":"string"}}},"eager_input_streaming":true},
        {"name":"Write","description":"The Write tool.","input_schema":{"type":"object","properties":{"file_path":{"type":"string"}}},"eager_input_streaming":true}],"system":[{"type":"text","text":"You are an agent."},
        {"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"},
        {"type":"text","text":"[image left out: it is empty]"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},
        {"type":"redacted_thinking","data":"AAA"},
        {"type":"compaction","content":"c"},
        {"type":"tool_use","id":"functions_Read_0","name":"Re_ad","input":{"z":1,"a":2}},
        {"type":"tool_use","id":"t2","name":"Write","input":{"INVALID_JSON":"{\"a\":"},"cache_control":{"type":"ephemeral"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"functions_Read_0","content":[{"type":"text","text":"(no output)"}],"is_error":true},
        {"type":"tool_result","tool_use_id":"t2","content":[{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"R0lGODlhAQABAAAAACw="}}]}]},
        {"role":"assistant","content":[{"type":"text","text":"(no content)"}]},
        {"role":"user","content":[{"type":"text","text":"go on","cache_control":{"type":"ephemeral"}}]}]}"#]].assert_eq(&body(true).replace("},{", "},\n{"));
    expect![[r#"
        {"model":"claude-opus-5-5","max_tokens":1000,"stream":true,"tools":[{"name":"Read","description":"The Read tool.","input_schema":{"type":"object","properties":{"file_path":{"type":"string"}}}},
        {"name":"Write","description":"The Write tool.","input_schema":{"type":"object","properties":{"file_path":{"type":"string"}}}}],"system":[{"type":"text","text":"You are an agent."},
        {"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"},
        {"type":"text","text":"[image left out: it is empty]"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},
        {"type":"thinking","thinking":"foreign","signature":""},
        {"type":"redacted_thinking","data":"AAA"},
        {"type":"compaction","content":"c"},
        {"type":"tool_use","id":"functions_Read_0","name":"Re_ad","input":{"z":1,"a":2}},
        {"type":"tool_use","id":"t2","name":"Write","input":{"INVALID_JSON":"{\"a\":"},"cache_control":{"type":"ephemeral"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"functions_Read_0","content":[{"type":"text","text":"(no output)"}],"is_error":true},
        {"type":"tool_result","tool_use_id":"t2","content":[{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"R0lGODlhAQABAAAAACw="}}]}]},
        {"role":"assistant","content":[{"type":"text","text":"(no content)"}]},
        {"role":"user","content":[{"type":"text","text":"go on","cache_control":{"type":"ephemeral"}}]}]}"#]].assert_eq(&body(false).replace("},{", "},\n{"));
    assert_eq!(body(true), body(true));
}

#[test]
fn without_a_system_prompt_the_last_tool_carries_the_mark() {
    let mut request = hello();
    std::sync::Arc::get_mut(&mut request.prefix).unwrap().system.clear();
    let shape = request::Shape {
        model: "m".to_owned(),
        eager_input_streaming: false,
        adaptive_thinking: false,
        defer_tools: false,
        unsigned_thinking: true,
    };
    let body: serde_json::Value =
        serde_json::from_slice(&request::body(&shape, &request, &Default::default())).unwrap();
    assert_eq!(body["tools"][1]["cache_control"], json!({"type": "ephemeral"}));
    assert_eq!(body.get("system"), None);
}

fn model(provider: &Provider, key: Option<&str>) -> std::sync::Arc<dyn Model> {
    connect(&endpoint(ApiKind::Anthropic, "claude-opus-5-5", &provider.url), key, &HttpClient::new().unwrap())
        .unwrap()
}

#[tokio::test]
async fn over_http() {
    let provider = Provider::start(vec![Answer::sse(everything())]).await;
    let model = model(&provider, Some("sk-secret"));
    let events = collect(&*model, &hello()).await;
    assert_eq!(events, decode(&everything(), fold()));
    let received = &provider.received()[0];
    assert_eq!(received.path, "/v1/messages");
    assert_eq!(received.headers["x-api-key"], "sk-secret");
    assert_eq!(received.headers["anthropic-version"], "2023-06-01");
    assert_eq!(received.body["stream"], true);
    assert_eq!(model.request_bytes(&hello()), serde_json::to_vec(&received.body).unwrap().len());
}

#[tokio::test]
async fn a_bearer_key_and_headers_of_the_endpoint() {
    let provider = Provider::start(vec![Answer::sse(everything())]).await;
    let mut endpoint = endpoint(ApiKind::Anthropic, "m", &provider.url);
    endpoint.bearer = true;
    endpoint.headers.insert("anthropic-version".to_owned(), "2026-10-21".to_owned());
    let model = connect(&endpoint, Some("sk-secret"), &HttpClient::new().unwrap()).unwrap();
    collect(&*model, &hello()).await;
    let headers = &provider.received()[0].headers;
    assert_eq!(headers["authorization"], "Bearer sk-secret");
    assert_eq!(headers["anthropic-version"], "2026-10-21");
    assert!(!headers.contains_key("x-api-key"));
}

#[tokio::test]
async fn refusals_never_show_the_key() {
    let body = r#"{"type":"error","error":{"type":"authentication_error","message":"bad key sk-secret"}}"#;
    let mut answer = Answer::refusal(401, body);
    answer.headers.push(("request-id", "req_7".to_owned()));
    let provider = Provider::start(vec![answer]).await;
    let model = model(&provider, Some("sk-secret"));
    let error = collect(&*model, &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.message, "HTTP 401 authentication_error: bad key [key] (request req_7)");
    assert_eq!((error.kind, error.status), (ModelErrorKind::KeyRefused, Some(401)));
    assert!(!format!("{:?}", model.info()).contains("sk-secret"));
}

#[test]
fn the_official_host_wants_a_key() {
    let endpoint = endpoint(ApiKind::Anthropic, "claude-opus-5-5", crate::endpoint::ANTHROPIC_URL);
    let error = connect(&endpoint, None, &HttpClient::new().unwrap()).err().unwrap();
    assert_eq!(error.to_string(), "no key for test/claude-opus-5-5");
}
