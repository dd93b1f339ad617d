use expect_test::{Expect, expect};
use proptest::prelude::*;
use query_engine::ports::ModelErrorKind;
use serde_json::{Value, json};
use swarm_protocol::{Block, Message, ResultBlock, launch::ApiKind};

use super::*;
use crate::{
    connect,
    decoder::testing::{decode, decode_chunks, render},
    endpoint::testing::endpoint,
    testing::{Answer, Provider, call, collect, hello, pieces, request},
};

const DONE: &str = "data: [DONE]\n\n";
const GIF: &str = "R0lGODlhAQABAAAAACw=";

fn chunk(delta: Value, finish_reason: Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish_reason});
    format!("data: {}\n\n", json!({"model": "m", "choices": [choice], "usage": null}))
}

fn delta(delta: Value) -> String {
    chunk(delta, Value::Null)
}

fn finish(word: &str) -> String {
    chunk(json!({}), json!(word))
}

fn calls(entries: Value) -> String {
    delta(json!({"tool_calls": entries}))
}

fn usage(usage: Value) -> String {
    format!("data: {}\n\n", json!({"choices": [], "usage": usage}))
}

fn fold() -> Decoder {
    Decoder::new(&hello(), 400, "chat:test")
}

fn check(body: &str, expected: Expect) {
    expected.assert_eq(&render(&decode(body, fold())));
}

fn whole() -> String {
    delta(json!({"role": "assistant", "content": ""}))
        + ": OPENROUTER PROCESSING\n\n"
        + &delta(json!({"reasoning_content": "Hm, "}))
        + &delta(json!({"reasoning_content": "é."}))
        + &delta(json!({"content": "Let me "}))
        + &delta(json!({"content": "look.", "role": "assistant"}))
        + &calls(
            json!([{"index": 0, "id": "call_1", "type": "function", "function": {"name": "Read", "arguments": ""}}]),
        )
        + &calls(json!([{"index": 0, "function": {"arguments": "{\"file_"}}]))
        + &calls(json!([{"index": 0, "function": {"arguments": "path\":\"日本\"}"}}]))
        + &calls(json!([{"index": 1, "id": "call_2", "function": {"name": "Write", "arguments": "{}"}}]))
        + &finish("tool_calls")
        + &usage(
            json!({"prompt_tokens": 900, "completion_tokens": 60, "prompt_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 30}}),
        )
        + DONE
}

#[test]
fn a_whole_answer() {
    check(
        &whole(),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Thinking }
        Delta { index: 0, delta: Thinking("Hm, ") }
        Delta { index: 0, delta: Thinking("é.") }
        BlockClosed { index: 0, block: Valid(Thinking { thinking: "Hm, é.", signature: "" }) }
        BlockStarted { index: 1, kind: Text }
        Delta { index: 1, delta: Text("Let me ") }
        Delta { index: 1, delta: Text("look.") }
        BlockClosed { index: 1, block: Valid(Text { text: "Let me look." }) }
        BlockStarted { index: 2, kind: ToolUse { name: "Read" } }
        Delta { index: 2, delta: InputBytes(7) }
        Delta { index: 2, delta: InputBytes(15) }
        BlockStarted { index: 3, kind: ToolUse { name: "Write" } }
        Delta { index: 3, delta: InputBytes(2) }
        Usage(Usage { input_tokens: 70, output_tokens: 60, cache_read_tokens: 800, cache_write_tokens: 30, estimated: false })
        BlockClosed { index: 2, block: Valid(ToolUse { id: ToolUseId("call_1"), name: "Read", input: Object {"file_path": String("日本")}, provider_data: None }) }
        BlockClosed { index: 3, block: Valid(ToolUse { id: ToolUseId("call_2"), name: "Write", input: Object {}, provider_data: None }) }
        Stopped(ToolUse)
    "#]],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_cut_anywhere_give_the_same_events(cuts in prop::collection::vec(0..3000_usize, 0..20)) {
        let body = whole();
        prop_assert_eq!(decode_chunks(pieces(body.as_bytes(), cuts), fold()), decode(&body, fold()));
    }
}

#[test]
fn finish_reasons_that_mean_little() {
    // Ollama and some proxies: one after each chunk, and `stop` though calls came.
    let body = chunk(json!({"content": "a"}), json!(""))
        + &chunk(
            json!({"tool_calls": [{"index": 0, "id": "0", "function": {"name": "Read", "arguments": "{\"file_path\""}}]}),
            json!("stop"),
        )
        + &chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": ":\"a\"}"}}]}), json!("stop"))
        + DONE;
    check(
        &body,
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("a") }
        BlockClosed { index: 0, block: Valid(Text { text: "a" }) }
        BlockStarted { index: 1, kind: ToolUse { name: "Read" } }
        Delta { index: 1, delta: InputBytes(12) }
        Delta { index: 1, delta: InputBytes(5) }
        BlockClosed { index: 1, block: Valid(ToolUse { id: ToolUseId("0"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        Usage(Usage { input_tokens: 100, output_tokens: 5, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(ToolUse)
    "#]],
    );
}

#[test]
fn ends_of_streams() {
    let text = delta(json!({"content": "half"}));
    // A finish reason and a closed connection are enough; without either the answer is broken off.
    check(
        &(text.clone() + &finish("stop")),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("half") }
        BlockClosed { index: 0, block: Valid(Text { text: "half" }) }
        Usage(Usage { input_tokens: 100, output_tokens: 1, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(EndTurn)
    "#]],
    );
    check(
        &text,
        expect![[r#"
            Started { model: "m" }
            BlockStarted { index: 0, kind: Text }
            Delta { index: 0, delta: Text("half") }
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 1 events in 106 bytes came, the last was `data`)
        "#]],
    );
    check(
        &calls(json!([{"index": 0, "id": "a", "function": {"name": "Read", "arguments": "{\"file"}}])),
        expect![[r#"
            Started { model: "m" }
            BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
            Delta { index: 0, delta: InputBytes(6) }
            ERROR Truncated: the answer broke off before it was whole (the connection was closed; 1 events in 174 bytes came, the last was `data`)
        "#]],
    );
    check(
        &(text + DONE),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("half") }
        BlockClosed { index: 0, block: Valid(Text { text: "half" }) }
        Usage(Usage { input_tokens: 100, output_tokens: 1, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(EndTurn)
    "#]],
    );
}

#[test]
fn the_output_limit() {
    let body = calls(
        json!([{"index": 0, "id": "a", "function": {"name": "Read", "arguments": "{\"file_path\":\"a\"}"}}]),
    ) + &calls(
        json!([{"index": 1, "id": "b", "function": {"name": "Write", "arguments": "{\"content\":\"ab"}}]),
    ) + &finish("length")
        + DONE;
    check(
        &body,
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: ToolUse { name: "Read" } }
        Delta { index: 0, delta: InputBytes(17) }
        BlockStarted { index: 1, kind: ToolUse { name: "Write" } }
        Delta { index: 1, delta: InputBytes(14) }
        BlockClosed { index: 0, block: Valid(ToolUse { id: ToolUseId("a"), name: "Read", input: Object {"file_path": String("a")}, provider_data: None }) }
        BlockClosed { index: 1, block: InvalidCall { id: ToolUseId("b"), name: "Write", input: Object {"INVALID_JSON": String("{\"content\":\"ab")}, problem: "the output limit was reached inside this call: 14 bytes of its arguments came and they are incomplete; write less in one call" } }
        Usage(Usage { input_tokens: 100, output_tokens: 8, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(MaxTokens)
    "#]],
    );
}

#[test]
fn refusals_and_reasoning_of_other_servers() {
    check(
        &(delta(json!({"refusal": "I will not."})) + &finish("stop") + DONE),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("I will not.") }
        BlockClosed { index: 0, block: Valid(Text { text: "I will not." }) }
        Usage(Usage { input_tokens: 100, output_tokens: 3, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(Refusal { explanation: "I will not." })
    "#]],
    );
    check(
        &(finish("content_filter") + DONE),
        expect![[r#"
        Started { model: "m" }
        Usage(Usage { input_tokens: 100, output_tokens: 0, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(Refusal { explanation: "content_filter" })
    "#]],
    );
    // OpenRouter: details in pieces, kept for the way back.
    let body = delta(
        json!({"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a"}]}),
    ) + &delta(
        json!({"reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}]}),
    ) + &delta(json!({"content": "Done."}))
        + &finish("stop")
        + DONE;
    check(
        &body,
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Thinking }
        Delta { index: 0, delta: Thinking("a") }
        Delta { index: 0, delta: Thinking("b") }
        BlockClosed { index: 0, block: Valid(Thinking { thinking: "ab", signature: "" }) }
        BlockStarted { index: 1, kind: Text }
        Delta { index: 1, delta: Text("Done.") }
        BlockClosed { index: 1, block: Valid(Text { text: "Done." }) }
        BlockStarted { index: 2, kind: Other }
        BlockClosed { index: 2, block: Valid(Opaque { provider: "chat:test", data: Object {"reasoning_details": Array [Object {"type": String("reasoning.text"), "index": Number(0), "text": String("ab"), "signature": String("s")}]} }) }
        Usage(Usage { input_tokens: 100, output_tokens: 2, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(EndTurn)
    "#]],
    );
    // Mistral: parts.
    let body =
        delta(json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}))
            + &delta(json!({"content": [{"type": "text", "text": "Yes."}]}))
            + &finish("stop")
            + DONE;
    check(
        &body,
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Thinking }
        Delta { index: 0, delta: Thinking("hm") }
        BlockClosed { index: 0, block: Valid(Thinking { thinking: "hm", signature: "" }) }
        BlockStarted { index: 1, kind: Text }
        Delta { index: 1, delta: Text("Yes.") }
        BlockClosed { index: 1, block: Valid(Text { text: "Yes." }) }
        Usage(Usage { input_tokens: 100, output_tokens: 2, cache_read_tokens: 0, cache_write_tokens: 0, estimated: true })
        Stopped(EndTurn)
    "#]],
    );
}

#[test]
fn errors_inside_the_stream() {
    check(
        "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}\n\n",
        expect![[r#"
        ERROR Server: the provider reported an error inside the answer: server_error boom
    "#]],
    );
    let open_router = json!({"id": "g", "error": {"code": 429, "message": "Rate limited upstream"}, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]});
    check(
        &format!("{}data: {open_router}\n\n", delta(json!({"content": "a"}))),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("a") }
        ERROR RateLimited: the provider reported an error inside the answer: Rate limited upstream
    "#]],
    );
    check(
        "data: {\"object\":\"error\",\"message\":\"maximum context length is 4096 tokens\",\"code\":400}\n\n",
        expect![[r#"
        ERROR PromptTooLong { limit: Some(4096) }: the provider reported an error inside the answer: maximum context length is 4096 tokens
    "#]],
    );
    check(
        &finish("error"),
        expect![[r#"
        Started { model: "m" }
        ERROR Server: the provider reported an error inside the answer: the provider gave up (finish_reason: error)
    "#]],
    );
    check(
        "data: OPENROUTER\n\n",
        expect![[r#"
        ERROR Malformed: the answer is not in the provider's format: expected value at line 1 column 1 in `OPENROUTER`
    "#]],
    );
}

#[test]
fn a_call_in_disguise_is_a_diagnosis() {
    let text = "<tool_call>\n{\"name\": \"Read\", \"arguments\": {}}\n</tool_call>";
    check(
        &(delta(json!({"content": text})) + &finish("stop") + DONE),
        expect![[r#"
        Started { model: "m" }
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("<tool_call>\n{\"name\": \"Read\", \"arguments\": {}}\n</tool_call>") }
        BlockClosed { index: 0, block: Valid(Text { text: "<tool_call>\n{\"name\": \"Read\", \"arguments\": {}}\n</tool_call>" }) }
        ERROR InvalidRequest: the model wrote a tool call as text (`<tool_call> {"name": "Read", "arguments": {}} </tool_call>`), which was not run: the server does not parse this model's calls; start it with the model's tool parser (vLLM: --enable-auto-tool-choice --tool-call-parser, llama.cpp: --jinja), or use a model that supports tools
    "#]],
    );
}

#[test]
fn a_message_that_is_not_streamed() {
    let message = json!({"role": "assistant", "content": "Hi.", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "Read", "arguments": {"file_path": "a"}}, "extra_content": {"google": {"thought_signature": "s"}}}]});
    let body = format!(
        "data: {}\n\n{DONE}",
        json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    );
    check(
        &body,
        expect![[r#"
        Started { model: "m" }
        Usage(Usage { input_tokens: 5, output_tokens: 2, cache_read_tokens: 0, cache_write_tokens: 0, estimated: false })
        BlockStarted { index: 0, kind: Text }
        Delta { index: 0, delta: Text("Hi.") }
        BlockClosed { index: 0, block: Valid(Text { text: "Hi." }) }
        BlockStarted { index: 1, kind: ToolUse { name: "Read" } }
        Delta { index: 1, delta: InputBytes(17) }
        BlockClosed { index: 1, block: Valid(ToolUse { id: ToolUseId("a"), name: "Read", input: Object {"file_path": String("a")}, provider_data: Some(Object {"extra_content": Object {"google": Object {"thought_signature": String("s")}}}) }) }
        Stopped(ToolUse)
    "#]],
    );
}

fn conversation() -> Vec<Message> {
    let mut gemini = call("call_1", "Read", json!({"z": 1, "a": 2}));
    if let Block::ToolUse { provider_data, .. } = &mut gemini {
        *provider_data = Some(json!({"extra_content": {"google": {"thought_signature": "s"}}}));
    }
    vec![
        Message::user(vec![Block::text("env"), Block::text("hi")]),
        Message::assistant(vec![
            Block::Thinking { thinking: "hm".to_owned(), signature: String::new() },
            Block::Thinking { thinking: "foreign".to_owned(), signature: "sig".to_owned() },
            Block::Opaque {
                provider: "chat:test".to_owned(),
                data: json!({"reasoning_details": [{"text": "hm"}]}),
            },
            Block::Opaque { provider: "openai".to_owned(), data: json!({"type": "reasoning"}) },
            gemini,
            call("call_2", "Write", json!("{\"a\":")),
        ]),
        Message::user(vec![
            Block::tool_result("call_1".parse().unwrap(), "no such file", true),
            Block::ToolResult {
                tool_use_id: "call_2".parse().unwrap(),
                content: vec![ResultBlock::Image {
                    media_type: "image/gif".to_owned(),
                    data: GIF.to_owned(),
                }],
                is_error: false,
            },
            Block::text("a reminder"),
        ]),
        Message::assistant(vec![Block::text("Done."), Block::text(" ")]),
        Message::user(vec![Block::Image { media_type: "image/png".to_owned(), data: String::new() }]),
    ]
}

#[test]
fn the_bytes_of_a_request() {
    let shape = |openai| Shape {
        model: "m".to_owned(),
        completion_tokens: openai,
        stream_usage: openai,
        developer_role: openai,
        replay_reasoning: !openai,
        opaque: "chat:test".to_owned(),
    };
    let body = |openai| {
        String::from_utf8(chat_request::body(&shape(openai), &request(conversation()), &Default::default()))
            .unwrap()
    };
    expect![[r#"
        {"model":"m","max_tokens":1000,"stream":true,"tools":[{"type":"function","function":{"name":"Read","description":"The Read tool.","parameters":{"type":"object","properties":{"file_path":{"type":"string"}}}}},
        {"type":"function","function":{"name":"Write","description":"The Write tool.","parameters":{"type":"object","properties":{"file_path":{"type":"string"}}}}}],"tool_choice":"auto","messages":[{"role":"system","content":"You are an agent.\n\nBe brief."},
        {"role":"user","content":"env\n\nhi"},
        {"role":"assistant","content":null,"reasoning_content":"hm","reasoning_details":[{"text":"hm"}],"tool_calls":[{"id":"call_1","type":"function","function":{"name":"Read","arguments":"{\"z\":1,\"a\":2}"},"extra_content":{"google":{"thought_signature":"s"}}},
        {"id":"call_2","type":"function","function":{"name":"Write","arguments":"{\"INVALID_JSON\":\"{\\\"a\\\":\"}"}}]},
        {"role":"tool","tool_call_id":"call_1","content":"[error] no such file"},
        {"role":"tool","tool_call_id":"call_2","content":"[image of type image/gif: see the next message]"},
        {"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lGODlhAQABAAAAACw="}},
        {"type":"text","text":"a reminder"}]},
        {"role":"assistant","content":"Done.","reasoning_content":""},
        {"role":"user","content":[{"type":"text","text":"[image left out: it is empty]"}]}]}"#]].assert_eq(&body(false).replace("},{", "},\n{"));
    let openai = body(true);
    assert!(openai.starts_with(
        r#"{"model":"m","max_completion_tokens":1000,"stream":true,"stream_options":{"include_usage":true},"#
    ));
    assert!(openai.contains(r#"{"role":"developer","content":"#) && !openai.contains("reasoning_content"));
}

fn model(provider: &Provider) -> std::sync::Arc<dyn Model> {
    let url = format!("{}/v1", provider.url);
    connect(&endpoint(ApiKind::Chat, "m", &url), Some("sk-secret"), &HttpClient::new().unwrap()).unwrap()
}

#[tokio::test]
async fn over_http() {
    let provider = Provider::start(vec![Answer::sse(whole())]).await;
    let events = collect(&*model(&provider), &hello()).await;
    assert_eq!(events, decode(&whole(), fold()));
    let received = &provider.received()[0];
    assert_eq!(received.path, "/v1/chat/completions");
    assert_eq!(received.headers["authorization"], "Bearer sk-secret");
}

#[tokio::test]
async fn what_a_server_refuses_is_left_out_and_remembered() {
    let no_stream_options =
        Answer::refusal(422, r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}"#);
    let other_name = Answer::refusal(
        400,
        r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#,
    );
    let provider = Provider::start(vec![no_stream_options, other_name, Answer::sse(whole())]).await;
    let model = model(&provider);
    for _ in 0..2 {
        assert_eq!(collect(&*model, &hello()).await, decode(&whole(), fold()));
    }
    let bodies: Vec<Value> = provider.received().into_iter().map(|received| received.body).collect();
    let keys = |body: &Value| {
        ["stream_options", "max_tokens", "max_completion_tokens"]
            .into_iter()
            .filter(|key| body.get(*key).is_some())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        bodies.iter().map(keys).collect::<Vec<_>>(),
        ["stream_options max_tokens", "max_tokens", "max_completion_tokens", "max_completion_tokens"]
    );
}

#[tokio::test]
async fn other_refusals_are_not_repaired() {
    let refusal =
        Answer::refusal(400, r#"{"error":{"message":"tools[0].function.name is bad","code":null}}"#);
    let provider = Provider::start(vec![refusal]).await;
    let error = collect(&*model(&provider), &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::InvalidRequest);
    assert_eq!(provider.received().len(), 1);
}

#[test]
fn who_wants_reasoning_back() {
    let wants = |url, model| wants_reasoning(&endpoint(ApiKind::Chat, model, url));
    assert!(wants("https://api.deepseek.com/v1", "x"));
    assert!(wants("http://localhost:8000/v1", "moonshotai/Kimi-K2.6"));
    assert!(!wants("http://localhost:11434/v1", "qwen3:8b"));
}
