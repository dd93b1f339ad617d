//! Histories are written as words: `u:hi` is a user text, `a:yes` an assistant text, `c:t1` a call, `r:t1=out` its
//! result, `|` a message's end. Each step of a story is one request, and `ok`, or a part of the violation.

use serde_json::{Value, json};

use crate::model_server::{
    ModelServer, Reply,
    tests::{CHAT, MESSAGES, RESPONSES, post},
    when,
};

fn block(word: &str) -> (&'static str, Value) {
    let (kind, rest) = word.split_once(':').expect("kind:rest");
    match kind {
        "u" => ("user", json!({"type": "text", "text": rest})),
        "a" => ("assistant", json!({"type": "text", "text": rest})),
        "k" => ("assistant", json!({"type": "thinking", "thinking": rest, "signature": rest})),
        "c" => ("assistant", json!({"type": "tool_use", "id": rest, "name": "Read", "input": {}})),
        "r" => {
            let (id, content) = rest.split_once('=').expect("id=content");
            ("user", json!({"type": "tool_result", "tool_use_id": id, "content": content}))
        }
        other => panic!("no such block: {other}"),
    }
}

fn request(history: &str) -> Value {
    let messages = history.split('|').map(|message| {
        let blocks: Vec<_> = message.split_whitespace().map(block).collect();
        let role = blocks[0].0;
        let content: Vec<Value> = blocks.into_iter().map(|(_, block)| block).collect();
        json!({"role": role, "content": content})
    });
    json!({
        "model": "m", "max_tokens": 5, "stream": true, "system": "s",
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": messages.collect::<Vec<_>>(),
    })
}

fn server() -> ModelServer {
    let server = ModelServer::start();
    server.rule(when().last_user_contains("FAIL"), Reply::error(529));
    server.rule(when().last_user_contains("CALL"), Reply::new().tool_with_id("made", "Read", json!({})));
    server.rule(when(), "yes");
    server
}

async fn send(server: &ModelServer, path: &str, body: &Value) -> String {
    let response = post(server, path, body).await;
    let failed = !response.status().is_success();
    let text = response.text().await.expect("a body");
    let violation = text.contains("violation: ");
    if failed && violation { text } else { "ok".to_owned() }
}

async fn tell(server: &ModelServer, body: &Value, expected: &str) {
    let answer = send(server, MESSAGES, body).await;
    assert!(answer.contains(expected), "{body}\nexpected `{expected}`, got {answer}");
    server.take_violations();
}

async fn story(steps: &[(&str, &str)]) {
    let server = server();
    for (history, expected) in steps {
        tell(&server, &request(history), expected).await;
    }
}

#[tokio::test]
async fn growing_histories_pass() {
    story(&[
        ("u:hi", "ok"),
        ("u:hi | a:yes c:1 | r:1=x", "ok"),
        ("u:hi | a:yes c:1 | r:1=x u:note | c:2 | r:2=y", "ok"),
        ("u:hi | a:yes c:1 | r:1=x u:note | c:2 | r:2=y | a:done | u:more", "ok"),
    ])
    .await;
}

#[tokio::test]
async fn changed_blocks_are_caught() {
    let start = [
        ("u:hi", "ok"),
        ("u:hi | k:t a:yes c:1 | r:1=x", "ok"),
        ("u:hi | k:t a:yes c:1 | r:1=x | c:2 | r:2=y", "ok"),
    ];
    for (history, expected) in [
        // A snipped result.
        ("u:hi | k:t a:yes c:1 | r:1=[snipped] | c:2 | r:2=y | c:3 | r:3=z", "block 4 changed"),
        // Dropped thinking.
        ("u:hi | a:yes c:1 | r:1=x | c:2 | r:2=y | c:3 | r:3=z", "block 1 changed"),
        // A block between old ones.
        ("u:hi u:note | k:t a:yes c:1 | r:1=x | c:2 | r:2=y | c:3 | r:3=z", "changed"),
        // A dropped round.
        ("u:hi | c:2 | r:2=y | c:3 | r:3=z", "block 1 changed"),
        // The newest result, once it was built upon.
        ("u:hi | k:t a:yes c:1 | r:1=other", "block 4 changed"),
        // Going back.
        ("u:hi | k:t a:yes c:1 | r:1=x", "the history ends where request 2 did"),
        // Another text.
        ("u:hi | k:t a:no c:1 | r:1=x | c:2 | r:2=y | c:3 | r:3=z", "block 2 changed"),
    ] {
        let steps: Vec<_> = start.into_iter().chain([(history, expected)]).collect();
        story(&steps).await;
    }
}

#[tokio::test]
async fn a_caught_request_says_what_it_was_and_is() {
    let server = server();
    tell(&server, &request("u:hi"), "ok").await;
    tell(&server, &request("u:hi | c:1 | r:1=x"), "ok").await;
    tell(&server, &request("u:hi | c:1 | r:1=x | a:x | u:y"), "ok").await;
    let answer = send(&server, MESSAGES, &request("u:hi | c:1 | r:1=CUT | a:x | u:y")).await;
    let violation = server.take_violations().pop().expect("a violation");
    assert!(violation.starts_with("request 4: block 2 changed: request 3 had {"), "{violation}");
    assert!(violation.contains("\"x\"") && violation.contains("CUT"), "{violation}");
    assert!(answer.contains("violation: block 2 changed"), "{answer}");
    // It was not learnt: the sound history still goes on.
    tell(&server, &request("u:hi | c:1 | r:1=x | a:x | u:y | a:z | u:w"), "ok").await;
}

#[tokio::test]
async fn retries_are_no_change() {
    story(&[
        ("u:FAIL", "ok"),
        ("u:FAIL", "ok"),
        ("u:FAIL u:note", "ok"),
        ("u:FAIL u:note | a:a | u:b", "ok"),
    ])
    .await;
    story(&[
        ("u:hi", "ok"),
        ("u:hi | a:a | u:FAIL", "ok"),
        ("u:hi | a:a | u:FAIL", "ok"),
        ("u:hi | a:a | u:FAIL | a:part | u:resume", "ok"),
    ])
    .await;
}

#[tokio::test]
async fn a_failed_request_may_not_be_changed_either() {
    story(&[
        ("u:hi", "ok"),
        ("u:hi | c:1 | r:1=long u:FAIL", "ok"),
        ("u:hi | c:1 | r:1=cut u:FAIL", "block 2 changed"),
    ])
    .await;
}

#[tokio::test]
async fn workers_with_equal_starts_do_not_disturb_each_other() {
    // The same first block, then different tasks.
    story(&[
        ("u:env u:one", "ok"),
        ("u:env u:two", "ok"),
        ("u:env u:one | c:1 | r:1=x", "ok"),
        ("u:env u:two | c:1 | r:1=y", "ok"),
        ("u:env u:two | c:1 | r:1=y | a:b | u:c", "ok"),
        ("u:env u:one | c:1 | r:1=x | a:d | u:e", "ok"),
    ])
    .await;
    // The very same task, twice, with equal calls and different results.
    story(&[
        ("u:same", "ok"),
        ("u:same", "ok"),
        ("u:same | c:1 | r:1=x", "ok"),
        ("u:same | c:1 | r:1=x | a:q | u:w", "ok"),
        ("u:same | c:1 | r:1=y", "ok"),
        ("u:same | c:1 | r:1=y | a:q | u:w", "ok"),
        ("u:same | c:1 | r:1=z", "changed"),
    ])
    .await;
}

#[tokio::test]
async fn forks_leave_the_agent_alone() {
    // A helper asks about an idle agent, and about a busy one; the agent goes on.
    story(&[
        ("u:hi", "ok"),
        ("u:hi | c:1 | r:1=x", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:summarise", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:next", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:next | c:2 | r:2=pending u:question", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:next | c:2 | r:2=real", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:next | c:2 | r:2=real | a:z | u:v", "ok"),
        ("u:hi | c:1 | r:1=x | a:done | u:next | c:2 | r:2=pending u:question | a:w | u:v", "ok"),
    ])
    .await;
    // A keepalive, and a helper that asks while the agent's request is the same.
    story(&[
        ("u:hi", "ok"),
        ("u:hi u:.", "ok"),
        ("u:hi | a:a | u:b", "ok"),
        ("u:hi | a:a | u:b u:.", "ok"),
        ("u:hi | a:a | u:b | a:c | u:d", "ok"),
    ])
    .await;
}

#[tokio::test]
async fn a_warming_request_leaves_no_trace() {
    let server = server();
    let mut warm = request("u:hi");
    warm["max_tokens"] = 0.into();
    tell(&server, &request("u:hi"), "ok").await;
    tell(&server, &warm, "ok").await;
    tell(&server, &request("u:hi | a:a | u:b"), "ok").await;
    tell(&server, &request("u:hi | a:other | u:b"), "block 1 changed").await;
}

#[tokio::test]
async fn header_fields_are_compared() {
    for (field, value, expected) in [
        ("system", json!("other"), "system changed"),
        ("tools", json!([{"name": "Bash", "input_schema": {"type": "object"}}]), "tools changed"),
        ("tool_choice", json!({"type": "auto"}), "tool_choice changed"),
        ("thinking", json!({"type": "adaptive"}), "thinking changed"),
        ("output_config", json!({"effort": "low"}), "effort changed"),
        // These no provider hashes.
        ("max_tokens", json!(9), "ok"),
        ("metadata", json!({"user_id": "x"}), "ok"),
        // Another model has another cache.
        ("model", json!("fallback"), "ok"),
    ] {
        let server = server();
        tell(&server, &request("u:hi"), "ok").await;
        let mut next = request("u:hi | a:a | u:b");
        next[field] = value;
        tell(&server, &next, expected).await;
    }
}

#[tokio::test]
async fn helpers_with_a_header_of_their_own_pass() {
    let server = server();
    tell(&server, &request("u:CALL"), "ok").await;
    tell(&server, &request("u:CALL | c:made | r:made=x"), "ok").await;
    let mut helper = request("u:CALL | c:made | r:made=x | a:b | u:summarise");
    helper["tools"] = Value::Null;
    helper["system"] = "You summarise.".into();
    tell(&server, &helper, "ok").await;
    tell(&server, &request("u:CALL | c:made | r:made=x | a:b | u:c"), "ok").await;
    tell(&server, &request("u:transcript"), "ok").await;
}

#[tokio::test]
async fn moving_cache_control_is_no_change() {
    let server = server();
    let mut first = request("u:hi");
    first["messages"][0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
    first["system"] = json!([{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]);
    tell(&server, &first, "ok").await;
    let mut second = request("u:hi | a:a | u:b");
    second["messages"][0]["content"] = "hi".into();
    second["system"] = json!([{"type": "text", "text": "s"}]);
    tell(&server, &second, "ok").await;
    let mut third = request("u:hi | a:other | u:b | a:c | u:d");
    third["system"] = second["system"].clone();
    tell(&server, &third, "changed").await;
}

#[tokio::test]
async fn histories_from_elsewhere_pass_once() {
    story(&[
        ("u:resumed | c:old | r:old=x | a:b | u:go", "ok"),
        ("u:resumed | c:old | r:old=x | a:b | u:go | a:c | u:d", "ok"),
        ("u:resumed | c:old | r:old=CUT | a:b | u:go | a:c | u:d | a:e | u:f", "block 2 changed"),
    ])
    .await;
}

#[tokio::test]
async fn a_history_with_our_calls_and_a_new_beginning_is_caught() {
    // An undeclared compaction.
    story(&[
        ("u:CALL", "ok"),
        ("u:CALL | c:made | r:made=x", "ok"),
        ("u:summary u:CALL | c:made | r:made=x | a:b | u:c", "the first block changed"),
    ])
    .await;
}

#[tokio::test]
async fn declared_breaks() {
    let before = ["u:CALL", "u:CALL | c:made | r:made=x"];
    let after = "u:summary u:CALL | c:made | r:made=CUT | a:b | u:c";
    let server = server();
    for history in before {
        tell(&server, &request(history), "ok").await;
    }
    server.declare_break(Some("another agent"));
    tell(&server, &request(after), "changed").await;
    // Out of process, as a program would.
    let declare = crate::http_client().post(format!("{}/__control/break", server.url()));
    let declared = declare.json(&json!({"conversation": "CALL"})).send().await.expect("an answer");
    assert_eq!(declared.status(), 204);
    tell(&server, &request(after), "ok").await;
    // From here it goes on, and the rule holds again: one declaration, one break.
    tell(&server, &request(&format!("{after} | a:d | u:e")), "ok").await;
    tell(&server, &request("u:again u:CALL | c:made | r:made=y | a:b | u:c"), "changed").await;
    server.declare_break(None);
    let mut other_tools = request(&format!("{after} | a:d | u:e | a:f | u:g"));
    other_tools["tools"][0]["description"] = "new".into();
    tell(&server, &other_tools, "ok").await;
    server.allow_breaks(Some("CALL"));
    for n in 0..3 {
        tell(&server, &request(&format!("u:n{n} u:CALL | c:made | r:made=y | a:b | u:c")), "ok").await;
    }
}

#[tokio::test]
async fn thinking_comes_back_word_for_word() {
    let server = ModelServer::start();
    server.rule(when(), Reply::new().thinking_signed("deep", "sig").text("yes"));
    tell(&server, &request("u:hi"), "ok").await;
    let mut next = request("u:hi | k:sig a:yes | u:more");
    next["messages"][1]["content"][0]["thinking"] = "shallow".into();
    tell(&server, &next, "thinking `sig` was changed").await;
    next["messages"][1]["content"][0]["thinking"] = "deep".into();
    tell(&server, &next, "ok").await;
}

#[tokio::test]
async fn the_rule_holds_for_the_openai_apis() {
    let server = server();
    let call = json!({"id": "made", "type": "function", "function": {"name": "Read", "arguments": "{}"}});
    let chat = |result: &str, more: Vec<Value>| {
        let mut messages = vec![
            json!({"role": "system", "content": "s"}),
            json!({"role": "user", "content": "CALL"}),
            json!({"role": "assistant", "content": "so", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "made", "content": result}),
        ];
        messages.extend(more);
        json!({"model": "c", "messages": messages})
    };
    let first = json!({"model": "c", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "CALL"}]});
    let more = || vec![json!({"role": "assistant", "content": "b"}), json!({"role": "user", "content": "c"})];
    assert_eq!(send(&server, CHAT, &first).await, "ok");
    assert_eq!(send(&server, CHAT, &chat("x", vec![])).await, "ok");
    assert_eq!(send(&server, CHAT, &chat("x", more())).await, "ok");
    let answer = send(&server, CHAT, &chat("CUT", more())).await;
    assert!(answer.contains("changed: request 3"), "{answer}");

    let items = |result: &str, more: bool| {
        let mut input = vec![
            json!({"role": "user", "content": [{"type": "input_text", "text": "go"}]}),
            json!({"type": "function_call", "call_id": "c1", "name": "Read", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c1", "output": result}),
        ];
        if more {
            input.push(json!({"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}));
            input.push(json!({"role": "user", "content": "c"}));
        }
        json!({"model": "r", "instructions": "s", "input": input})
    };
    assert_eq!(send(&server, RESPONSES, &items("x", false)).await, "ok");
    assert_eq!(send(&server, RESPONSES, &items("x", true)).await, "ok");
    let answer = send(&server, RESPONSES, &items("CUT", true)).await;
    assert!(answer.contains("changed: request 6"), "{answer}");
    assert_eq!(server.take_violations().len(), 2);
}
