use std::time::Duration;

use serde_json::{Value, json};

use crate::model_server::{
    ModelServer, Reply,
    tests::{CHAT, MESSAGES, RESPONSES, parsed, post},
    when,
};

/// Usage of a request: read, written, written for an hour, neither.
async fn usage(server: &ModelServer, body: &Value) -> [u64; 4] {
    let response = post(server, MESSAGES, body).await;
    let text = response.text().await.expect("a body");
    let usage = parsed(&text)[0]["message"]["usage"].clone();
    let figure = |value: &Value| value.as_u64().expect("a figure");
    [
        figure(&usage["cache_read_input_tokens"]),
        figure(&usage["cache_creation_input_tokens"]),
        figure(&usage["cache_creation"]["ephemeral_1h_input_tokens"]),
        figure(&usage["input_tokens"]),
    ]
}

fn text(length: usize, mark: Option<&str>) -> Value {
    let mut block = json!({"type": "text", "text": "x".repeat(length)});
    if let Some(ttl) = mark {
        block["cache_control"] = json!({"type": "ephemeral", "ttl": ttl});
    }
    block
}

fn request(system: Value, messages: &[(&str, Value)]) -> Value {
    let messages = messages.iter().map(|(role, block)| json!({"role": role, "content": [block]}));
    json!({
        "model": "m", "max_tokens": 5, "stream": true, "system": [system],
        "messages": messages.collect::<Vec<_>>(),
    })
}

fn server() -> ModelServer {
    let server = ModelServer::builder().without_prefix_rule().start();
    server.rule(when(), "yes");
    server
}

#[tokio::test]
async fn a_conversation_reads_what_it_wrote() {
    let server = server();
    let first = request(text(8000, Some("1h")), &[("user", text(4000, Some("5m")))]);
    let [read, written, hour, rest] = usage(&server, &first).await;
    assert_eq!(read, 0);
    assert!(written > 3000 && hour > 2000 && written - hour > 1000 && rest == 0, "{written} {hour} {rest}");

    // The breakpoint has moved; the old end is within reach of the look-back.
    let second = request(
        text(8000, Some("1h")),
        &[("user", text(4000, None)), ("assistant", text(400, None)), ("user", text(400, Some("5m")))],
    );
    let [read_again, more, _, rest] = usage(&server, &second).await;
    assert_eq!(read_again, written);
    assert!(more > 200 && rest == 0, "{more} {rest}");

    // After five minutes the short entry is gone, the hour's is not.
    server.clock().advance(Duration::from_secs(6 * 60));
    let [read, ..] = usage(&server, &first).await;
    assert_eq!(read, hour);
    server.clock().advance(Duration::from_secs(61 * 60));
    let [read, ..] = usage(&server, &first).await;
    assert_eq!(read, 0);
}

#[tokio::test]
async fn reading_renews() {
    let server = server();
    let body = request(text(8000, Some("5m")), &[("user", text(40, None))]);
    usage(&server, &body).await;
    for _ in 0..3 {
        server.clock().advance(Duration::from_secs(4 * 60));
        let [read, ..] = usage(&server, &body).await;
        assert!(read > 1900, "{read}");
    }
}

#[tokio::test]
async fn short_and_unmarked_prompts_are_not_cached() {
    let server = server();
    let short = request(text(3000, Some("5m")), &[("user", text(40, None))]);
    let unmarked = request(text(8000, None), &[("user", text(40, None))]);
    for body in [&short, &short, &unmarked, &unmarked] {
        let [read, written, _, rest] = usage(&server, body).await;
        assert_eq!((read, written), (0, 0));
        assert!(rest > 0);
    }
}

#[tokio::test]
async fn a_change_costs_what_follows_it() {
    let server = server();
    let with = |tool_choice: Value, model: &str| {
        let mut body = request(text(8000, Some("5m")), &[("user", text(4000, Some("5m")))]);
        body["tool_choice"] = tool_choice;
        body["model"] = model.into();
        body
    };
    let [_, written, ..] = usage(&server, &with(json!({"type": "auto"}), "m")).await;
    // Tool choice concerns the messages, not the system.
    let [read, more, ..] = usage(&server, &with(json!({"type": "none"}), "m")).await;
    assert!(read > 1900 && read < written && read + more == written, "{read} {more} {written}");
    let [read, ..] = usage(&server, &with(json!({"type": "auto"}), "other")).await;
    assert_eq!(read, 0);
    let mut changed = with(json!({"type": "auto"}), "m");
    changed["system"][0]["text"] = "y".repeat(8000).into();
    let [read, ..] = usage(&server, &changed).await;
    assert_eq!(read, 0);
}

#[tokio::test]
async fn the_look_back_ends_after_twenty_blocks() {
    let turns = |count: usize| {
        let mut messages = vec![("user", text(4200, Some("5m")))];
        for _ in 0..count {
            messages[0].1 = text(4200, None);
            messages.push(("assistant", text(40, None)));
            messages.push(("user", text(40, None)));
        }
        if let Some((_, last)) = messages.last_mut() {
            let length = last["text"].as_str().map_or(0, str::len);
            *last = text(length, Some("5m"));
        }
        request(text(40, None), &messages)
    };
    for (count, hit) in [(10, true), (11, false)] {
        let server = server();
        usage(&server, &turns(0)).await;
        let [read, ..] = usage(&server, &turns(count)).await;
        assert_eq!(read > 0, hit, "{count} turns: {read}");
    }
}

#[tokio::test]
async fn each_model_has_a_minimum() {
    for (model, minimum) in [
        ("claude-opus-5", 512),
        ("claude-fable-5", 512),
        ("claude-opus-4-8", 1_024),
        ("claude-sonnet-4-5-20250929", 1_024),
        ("claude-opus-5-5", 1_024),
        ("test-model", 1_024),
        ("claude-opus-4-7", 2_048),
        ("claude-opus-4-6", 4_096),
        ("claude-haiku-4-5-20251001", 4_096),
    ] {
        let server = server();
        // The block's JSON is a little longer than its text.
        for (tokens, cached) in [(minimum - 20, false), (minimum, true)] {
            let mut body = request(text(tokens * 4, Some("5m")), &[("user", text(40, None))]);
            body["model"] = model.into();
            let [_, written, ..] = usage(&server, &body).await;
            let [read, ..] = usage(&server, &body).await;
            assert_eq!((written > 0, read > 0), (cached, cached), "{model}: {tokens} tokens");
            assert_eq!(read, written);
        }
    }
}

#[tokio::test]
async fn byte_for_byte_up_to_the_breakpoint_and_no_further() {
    let body = |system: Value, user: &str| {
        let user = json!({"type": "text", "text": user});
        let mut body = request(system, &[("user", user)]);
        body["tools"] = json!([{"name": "Read", "description": "reads", "input_schema": {"type": "object"}}]);
        body
    };
    let marked = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let long = "x".repeat(8000);
    let first = body(marked(&long), "one");
    let reads = async |other: Value| {
        let server = server();
        usage(&server, &first).await;
        usage(&server, &other).await[0] > 0
    };
    assert!(reads(body(marked(&long), "two")).await, "what follows the breakpoint is free");
    assert!(!reads(body(marked(&format!("{long} ")), "one")).await, "a blank more");
    assert!(!reads(body(marked(&long.replacen('x', "y", 1)), "one")).await, "the first letter");
    let mut tools = first.clone();
    tools["tools"][0] = json!({"description": "reads", "name": "Read", "input_schema": {"type": "object"}});
    assert!(!reads(tools).await, "keys in another order are other bytes");
    let mut speed = first.clone();
    speed["speed"] = "fast".into();
    assert!(!reads(speed).await, "speed costs the system");
    let mut unmarked = first.clone();
    unmarked["system"][0] = json!({"type": "text", "text": long});
    assert!(!reads(unmarked).await, "who asks at no breakpoint reads nothing");
}

#[tokio::test]
async fn an_entry_is_readable_once_its_answer_began_and_ages_from_its_request() {
    let server = ModelServer::builder().without_prefix_rule().start();
    server.once(when(), Reply::say("late").hold("begin"));
    server.rule(when(), "yes");
    let body = request(text(8000, Some("5m")), &[("user", text(40, None))]);
    let (url, held) = (server.url(), body.clone());
    let first = tokio::spawn(async move {
        let request = crate::http_client().post(format!("{url}{MESSAGES}"));
        let request = request.header("anthropic-version", "2023-06-01").json(&held);
        request.send().await.expect("an answer").text().await.expect("a body")
    });
    server.gate("begin").reached().await;
    let mut other = body.clone();
    other["model"] = "another".into();
    assert_eq!(usage(&server, &other).await[0], 0);
    // The same prompt, while the first answer has not begun; it ends unread, too.
    server.clock().advance(Duration::from_secs(4 * 60));
    server.gate("begin").open();
    let said = first.await.expect("it ends");
    assert_eq!(parsed(&said)[0]["message"]["usage"]["cache_read_input_tokens"], 0);
    // Five minutes after the request, one minute after its answer.
    server.clock().advance(Duration::from_secs(61));
    assert_eq!(usage(&server, &body).await[0], 0);
}

#[tokio::test]
async fn workers_that_start_at_once_do_not_read_each_other() {
    let server = ModelServer::builder().without_prefix_rule().start();
    server.times(2, when(), Reply::say("late").hold("begin"));
    server.rule(when(), "yes");
    let body = request(text(8000, Some("5m")), &[("user", text(40, None))]);
    let ask = async || {
        let response = post(&server, MESSAGES, &body).await;
        response.text().await.expect("a body")
    };
    let both = async {
        server.gate("begin").reached_by(2).await;
        server.gate("begin").open();
    };
    let (first, second, ()) = tokio::join!(ask(), ask(), both);
    for said in [first, second] {
        assert_eq!(parsed(&said)[0]["message"]["usage"]["cache_read_input_tokens"], 0);
    }
    assert!(usage(&server, &body).await[0] > 1900);
}

#[tokio::test]
async fn five_breakpoints_are_refused() {
    let mut body = request(text(8000, Some("1h")), &[("user", text(40, None))]);
    body["messages"][0]["content"] = (0..3).map(|_| text(40, Some("5m"))).collect();
    let server = server();
    assert!(usage(&server, &body).await[1] > 0, "four are taken");
    // The automatic one is a fifth.
    body["cache_control"] = json!({"type": "ephemeral"});
    let response = post(&server, MESSAGES, &body).await;
    assert_eq!(response.status(), 400);
    assert!(server.take_violations()[0].contains("at most 4"));
}

#[tokio::test]
async fn another_process_ages_the_cache_through_the_control_endpoint() {
    let server = server();
    let body = request(text(8000, Some("5m")), &[("user", text(40, None))]);
    usage(&server, &body).await;
    assert!(usage(&server, &body).await[0] > 0);
    let clock = format!("{}/__control/clock", server.url());
    let advance = crate::http_client().post(&clock).json(&json!({"seconds": 301}));
    let now: Value = advance.send().await.expect("an answer").json().await.expect("JSON");
    assert!(now["now"].as_f64().is_some_and(|now| now >= 301.0), "{now}");
    assert_eq!(usage(&server, &body).await[0], 0);
    // What was used is told there, too.
    let requests = crate::http_client().get(format!("{}/__control/requests", server.url()));
    let requests: Value = requests.send().await.expect("an answer").json().await.expect("JSON");
    let reads: Vec<bool> =
        (0..3).map(|n| requests["requests"][n]["usage"]["cache_read"].as_u64() > Some(0)).collect();
    assert_eq!(reads, [false, true, false]);
}

/// Input and cached tokens, as the two OpenAI formats name them.
async fn openai_usage(server: &ModelServer, path: &str, body: &Value) -> (u64, u64) {
    let response = post(server, path, body).await;
    let answer: Value = response.json().await.expect("JSON");
    let usage = &answer["usage"];
    let (input, details) = match path {
        CHAT => (&usage["prompt_tokens"], &usage["prompt_tokens_details"]),
        _ => (&usage["input_tokens"], &usage["input_tokens_details"]),
    };
    (input.as_u64().expect("a figure"), details["cached_tokens"].as_u64().expect("a figure"))
}

#[tokio::test]
async fn openai_caches_without_breakpoints_in_steps() {
    for path in [CHAT, RESPONSES] {
        let list = if path == CHAT { "messages" } else { "input" };
        let body = |text: &str, more: usize| {
            let mut messages = vec![json!({"role": "user", "content": text})];
            for _ in 0..more {
                messages.push(json!({"role": "assistant", "content": "a"}));
                messages.push(json!({"role": "user", "content": "b"}));
            }
            let mut body = json!({"model": "m"});
            body[list] = messages.into();
            body
        };
        let long = "x".repeat(8000);
        let server = server();
        let (sent, cached) = openai_usage(&server, path, &body(&long, 0)).await;
        assert_eq!(cached, 0, "{path}");
        let (_, cached) = openai_usage(&server, path, &body(&long, 40)).await;
        assert!(
            cached % 128 == 0 && cached + 128 > sent - 16 && cached <= sent,
            "{path}: {cached} of {sent}"
        );
        // A part of a text is enough, wherever it ends.
        let changed = format!("{}y", "x".repeat(6000));
        let (_, cached) = openai_usage(&server, path, &body(&changed, 0)).await;
        assert!(cached % 128 == 0 && (1_280..=1_536).contains(&cached), "{path}: {cached}");
        // Too short, too different, too old.
        for _ in 0..2 {
            assert_eq!(openai_usage(&server, path, &body(&"s".repeat(3_900), 0)).await.1, 0, "{path}");
        }
        assert_eq!(openai_usage(&server, path, &body(&format!("y{long}"), 0)).await.1, 0, "{path}");
        server.clock().advance(Duration::from_secs(5 * 60));
        assert_eq!(openai_usage(&server, path, &body(&long, 0)).await.1, 0, "{path}");
    }
}
