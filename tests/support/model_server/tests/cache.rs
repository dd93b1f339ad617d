use std::time::Duration;

use serde_json::{Value, json};

use crate::model_server::{
    ModelServer,
    tests::{CHAT, MESSAGES, parsed, post},
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
async fn openai_caches_without_breakpoints() {
    let server = server();
    let body = |more: usize| {
        let mut messages = vec![json!({"role": "user", "content": "x".repeat(8000)})];
        for _ in 0..more {
            messages.push(json!({"role": "assistant", "content": "a"}));
            messages.push(json!({"role": "user", "content": "b"}));
        }
        json!({"model": "m", "messages": messages})
    };
    let cached = async |more: usize| {
        let response = post(&server, CHAT, &body(more)).await;
        let answer: Value = response.json().await.expect("JSON");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(cached(0).await, Some(0));
    assert!(cached(1).await.expect("a figure") > 1900);
}
