use std::time::Duration;

use serde_json::{Value, json};

use super::{CHAT, MESSAGES, RESPONSES, answering, body_for, drain, events, hello, parsed, post, stream};
use crate::model_server::{How, ModelServer, OpenAiQuirks, Outcome, Part, Reply, Usage, when};

#[tokio::test]
async fn http_errors_have_the_form_of_their_api() {
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ] {
        let server = answering(Reply::error(status));
        let response = post(&server, MESSAGES, &hello(true)).await;
        assert_eq!(response.status(), status);
        let id = response.headers()["request-id"].to_str().expect("ascii").to_owned();
        let body: Value = response.json().await.expect("JSON");
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], kind);
        assert_eq!(body["request_id"], id);
        assert_eq!(server.requests()[0].outcome(), Outcome::HttpError(status));

        let response = post(&server, CHAT, &body_for(CHAT, true)).await;
        let body: Value = response.json().await.expect("JSON");
        assert!(body["error"]["message"].is_string(), "{body}");
    }
}

#[tokio::test]
async fn http_errors_carry_headers_and_foreign_bodies() {
    let server = ModelServer::start();
    server.once(when(), Reply::rate_limited("Wed, 21 Oct 2026 07:28:00 GMT"));
    server.once(when(), Reply::error(429).header("retry-after-ms", "20").header("x-should-retry", "true"));
    server.once(when(), Reply::error(502).body("<html>Bad Gateway</html>"));
    server.once(when(), Reply::prompt_too_long(207_791, 200_000));
    server.once(when(), Reply::prompt_too_long(207_791, 200_000));

    let response = post(&server, MESSAGES, &hello(true)).await;
    assert_eq!(response.headers()["retry-after"], "Wed, 21 Oct 2026 07:28:00 GMT");
    let response = post(&server, MESSAGES, &hello(true)).await;
    assert_eq!(response.headers()["retry-after-ms"], "20");
    assert_eq!(response.headers()["x-should-retry"], "true");
    let response = post(&server, MESSAGES, &hello(true)).await;
    assert_eq!(response.headers()["content-type"], "text/html");
    assert_eq!(response.text().await.expect("a body"), "<html>Bad Gateway</html>");
    let response = post(&server, MESSAGES, &hello(true)).await;
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(body["error"]["message"], "prompt is too long: 207791 tokens > 200000 maximum");
    let response = post(&server, CHAT, &hello(true)).await;
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(body["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn cut_after_an_event() {
    // S01: message start, block start, one delta; then the end, in each manner.
    for (how, expected) in [(How::Eof, None), (How::Fin, Some("")), (How::Reset, Some("reset"))] {
        let server = answering(Reply::say("half").cut_after_event(3, how));
        let (body, end) = drain(post(&server, MESSAGES, &hello(true)).await).await;
        assert_eq!(events(&body).len(), 3, "{how:?}: {body}");
        assert!(body.ends_with("\"text\":\"half\"}}\n\n"), "{how:?}: {body}");
        match (end, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(word)) => assert!(error.contains(word), "{how:?}: {error}"),
            (end, _) => panic!("{how:?}: ended with {end:?}"),
        }
        assert_eq!(server.requests()[0].outcome(), Outcome::Cut);
    }
}

#[tokio::test]
async fn a_fin_is_no_reset() {
    let server = answering(Reply::say("half").cut_after_event(3, How::Fin));
    let (_, end) = drain(post(&server, MESSAGES, &hello(true)).await).await;
    let error = end.expect_err("the last chunk is missing");
    assert!(!error.contains("reset"), "{error}");
}

#[tokio::test]
async fn cut_at_every_byte() {
    let whole = stream(&answering(Reply::say("half")), MESSAGES).await;
    for at in (0..whole.len()).step_by(37) {
        let server = answering(Reply::say("half").cut_at_byte(at, How::Eof));
        let (body, _) = drain(post(&server, MESSAGES, &hello(true)).await).await;
        assert_eq!(body, whole[..at]);
    }
}

#[tokio::test]
async fn parts_end_the_reply_where_they_stand() {
    // S08: the call is complete, then silence.
    let reply = Reply::say("abc").tool("Bash", json!({"command": "ls"})).end(How::Stall);
    let server = answering(reply);
    let mut response = post(&server, MESSAGES, &hello(true)).await;
    let mut body = String::new();
    while body.matches("content_block_stop\"").count() < 2 {
        let chunk = response.chunk().await.expect("bytes").expect("the stream is open");
        body.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
    }
    let silence = tokio::time::timeout(Duration::from_millis(50), response.chunk()).await;
    assert!(silence.is_err(), "{silence:?}");
    assert_eq!(server.requests()[0].outcome(), Outcome::InFlight);
    drop(response);
    let gone = |requests: &[crate::model_server::Request]| {
        (requests[0].outcome() == Outcome::ClientGone).then_some(())
    };
    server.wait_for("the client to be gone", gone).await;
}

#[tokio::test]
async fn a_stall_before_the_first_event_has_headers() {
    let server = answering(Reply::say("x").cut_after_event(0, How::Stall));
    let mut response = post(&server, MESSAGES, &hello(true)).await;
    assert_eq!(response.status(), 200);
    let silence = tokio::time::timeout(Duration::from_millis(50), response.chunk()).await;
    assert!(silence.is_err());
}

#[tokio::test]
async fn a_client_that_leaves_before_the_headers_is_noticed() {
    let server = answering(Reply::say("x").hold("never"));
    let body = hello(true);
    let asking = post(&server, MESSAGES, &body);
    let gate = server.gate("never");
    tokio::select! {
        _ = asking => panic!("the gate is closed"),
        () = gate.reached() => {}
    }
    let gone = |requests: &[crate::model_server::Request]| {
        (requests[0].outcome() == Outcome::ClientGone).then_some(())
    };
    server.wait_for("the client to be gone", gone).await;
    assert_eq!(gate.waiting(), 0);
}

#[tokio::test]
async fn gates_hold_a_reply_and_pings_pass_meanwhile() {
    let server = answering(Reply::say("a").gate("go").text("b").ping_every_ms(5));
    let mut response = post(&server, MESSAGES, &hello(true)).await;
    let mut body = String::new();
    while body.matches("event: ping").count() < 3 {
        let chunk = response.chunk().await.expect("bytes").expect("the stream is open");
        body.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
    }
    assert_eq!(server.gate("go").waiting(), 1);
    assert!(!body.contains("\"b\""));
    server.gate("go").open();
    let (rest, end) = drain(response).await;
    end.expect("a whole body");
    assert!(rest.contains("\"b\"") && rest.contains("message_stop"), "{rest}");
}

#[tokio::test]
async fn broken_content() {
    // S14, S31, A10, and data that is no JSON.
    let reply = Reply::new()
        .tool_raw("Read", r#"{"path":"a\q"}"#)
        .unknown_event("future_thing", json!({"type": "future_thing"}))
        .part(Part::Comment("hush".to_owned()))
        .malformed_event()
        .error_event("api_error", "Internal server error")
        .end(How::Eof);
    let server = answering(reply);
    let body = stream(&server, MESSAGES).await;
    assert!(body.contains(r#""partial_json":"{\"path\":\"a\\q\"}""#), "{body}");
    assert!(body.contains("event: future_thing\n"));
    assert!(body.contains("\n: hush\n\n"));
    assert!(events(&body).iter().any(|(_, data)| serde_json::from_str::<Value>(data).is_err()));
    assert!(body.contains(
        r#"event: error
data: {"type":"error","error":{"type":"api_error","message":"Internal server error"}"#
    ));
    assert!(!body.contains("message_stop"));
}

#[tokio::test]
async fn wire_forms_say_the_same() {
    let plain = stream(&answering(Reply::say("Grüße, 世界")), MESSAGES).await;
    let reply = Reply::say("Grüße, 世界").wire(|wire| {
        wire.crlf = true;
        wire.comments = true;
        wire.multi_line_data = true;
        wire.no_space = true;
        wire.split = Some(1);
    });
    let server = answering(reply);
    let odd = stream(&server, MESSAGES).await;
    assert!(odd.contains("\r\n\r\n") && odd.contains(":a comment\r\n"), "{odd}");
    assert_eq!(parsed(&odd), parsed(&plain));
}

#[tokio::test]
async fn usage_is_cumulative() {
    // S25
    let usage = Usage { output: 10, ..Usage::default() };
    let server = answering(Reply::say("x").part(Part::Usage(usage)).usage(3, 0, 0, 25));
    let events = parsed(&stream(&server, MESSAGES).await);
    let figures = events.iter().filter(|e| e["type"] == "message_delta");
    let figures: Vec<&Value> = figures.map(|e| &e["usage"]["output_tokens"]).collect();
    assert_eq!(figures, [&json!(10), &json!(25)]);
}

#[tokio::test]
async fn a_body_over_32_mb_is_refused_in_html() {
    let server = answering(Reply::say("x"));
    let mut body = hello(true);
    body["messages"][0]["content"] = "x".repeat(33 * 1024 * 1024).into();
    let response = post(&server, MESSAGES, &body).await;
    assert_eq!(response.status(), 413);
    assert_eq!(response.headers()["content-type"], "text/html");
}

/// The tool-call deltas of two calls under a quirk, and the finish reasons.
async fn quirk(edit: impl FnOnce(&mut OpenAiQuirks)) -> (String, Vec<String>, String) {
    let reply = Reply::new()
        .tool_with_id("c1", "Read", json!({"a": 1}))
        .tool_with_id("c2", "Glob", json!({}))
        .openai(edit);
    let server = answering(reply);
    let body = stream(&server, CHAT).await;
    let chunks = parsed(&body);
    let calls = chunks.iter().filter_map(|chunk| {
        let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
        call.is_object().then(|| call.to_string())
    });
    let finish = chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    let finish: Vec<String> = finish.map(str::to_owned).collect();
    (calls.collect::<Vec<_>>().join("\n"), finish, body)
}

#[tokio::test]
async fn openai_quirks() {
    let (calls, finish, body) = quirk(|_| {}).await;
    assert_eq!(
        calls,
        r#"{"index":0,"id":"c1","type":"function","function":{"name":"Read","arguments":""}}
{"index":0,"function":{"arguments":"{\"a\":1}"}}
{"index":1,"id":"c2","type":"function","function":{"name":"Glob","arguments":""}}
{"index":1,"function":{"arguments":"{}"}}"#
    );
    assert_eq!(finish, ["tool_calls"]);
    assert!(body.ends_with("data: [DONE]\n\n"));

    let (calls, ..) = quirk(|q| q.no_index = true).await;
    assert!(!calls.contains("index"), "{calls}");
    let (calls, ..) = quirk(|q| q.index_zero = true).await;
    assert!(!calls.contains("\"index\":1"), "{calls}");
    let (calls, ..) = quirk(|q| q.whole_call = true).await;
    assert_eq!(calls.lines().count(), 2);
    let (calls, ..) = quirk(|q| q.arguments_object = true).await;
    assert!(calls.contains(r#""arguments":{"a":1}"#), "{calls}");
    let (calls, ..) = quirk(|q| q.no_arguments_if_empty = true).await;
    assert_eq!(calls.lines().count(), 3);
    let (calls, ..) = quirk(|q| q.repeat_arguments = true).await;
    assert_eq!(calls.lines().count(), 6);
    let (calls, ..) = quirk(|q| q.no_id = true).await;
    assert!(!calls.contains("\"id\""), "{calls}");
    let (calls, ..) = quirk(|q| q.empty_id = true).await;
    assert!(calls.contains(r#"{"index":0,"id":"","function""#), "{calls}");
    let (calls, ..) = quirk(|q| q.name_each_chunk = true).await;
    assert_eq!(calls.matches("\"name\":\"Read\"").count(), 2);
    let (calls, ..) = quirk(|q| q.empty_name = true).await;
    assert_eq!(calls.matches("\"name\":\"\"").count(), 2);
    let (calls, ..) = quirk(|q| q.name_late = true).await;
    assert!(calls.lines().nth(2).expect("three deltas").contains("\"name\":\"Read\""), "{calls}");
    let (_, finish, _) = quirk(|q| q.finish_each_chunk = Some("stop".to_owned())).await;
    assert!(finish.len() > 3);
    let (_, finish, _) = quirk(|q| q.finish = Some("stop".to_owned())).await;
    assert_eq!(finish, ["stop"]);
    let (_, finish, body) = quirk(|q| {
        q.no_finish = true;
        q.no_done = true;
        q.no_usage = true;
    })
    .await;
    assert!(finish.is_empty() && !body.contains("[DONE]") && !body.contains("usage"));
    let (.., body) = quirk(|q| {
        q.id_each_chunk = true;
        q.role_each_chunk = true;
    })
    .await;
    assert!(body.contains("chatcmpl-1-2") && body.matches("\"role\"").count() > 3);
}

#[tokio::test]
async fn in_band_errors() {
    let server = answering(Reply::say("a").error_event("server_error", "boom").end(How::Eof));
    let chat = stream(&server, CHAT).await;
    assert!(chat.contains(r#"data: {"error":{"message":"boom""#), "{chat}");
    let responses = parsed(&stream(&server, RESPONSES).await);
    let last = responses.last().expect("events");
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "boom"}));
    let reply = Reply::say("a").error_event("429", "slow").openai(|q| q.error_as_chunk = true);
    let chat = stream(&answering(reply), CHAT).await;
    assert!(chat.contains(r#""finish_reason":"error""#), "{chat}");
}
