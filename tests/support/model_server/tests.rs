//! The server against itself: wire bytes, faults, scripts. Rules on requests are tested beside their modules.

mod faults;
mod prefix_changes;
mod scripts;
mod wire_bytes;

use serde_json::{Value, json};

use super::{ModelServer, Reply, when};

pub(super) const MESSAGES: &str = "/v1/messages";
pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const RESPONSES: &str = "/v1/responses";

/// A server that answers everybody alike, without the prefix rule.
pub(super) fn answering(reply: Reply) -> ModelServer {
    let server = ModelServer::builder().without_prefix_rule().start();
    server.rule(when(), reply);
    server
}

/// A first request of an agent.
pub(super) fn hello(stream: bool) -> Value {
    json!({"model": "test-model", "max_tokens": 100, "stream": stream, "messages": [{"role": "user", "content": "hello"}]})
}

pub(super) fn body_for(path: &str, stream: bool) -> Value {
    match path {
        RESPONSES => {
            json!({"model": "test-model", "stream": stream, "store": false, "input": [{"role": "user", "content": "hello"}]})
        }
        CHAT if stream => {
            let mut body = hello(true);
            body["stream_options"] = json!({"include_usage": true});
            body
        }
        _ => hello(stream),
    }
}

pub(super) async fn post(server: &ModelServer, path: &str, body: &Value) -> reqwest::Response {
    let request = crate::http_client().post(format!("{}{path}", server.url()));
    let request = request.header("anthropic-version", "2023-06-01").json(body);
    request.send().await.expect("the server answers")
}

/// The whole body of the answer to a streamed hello.
pub(super) async fn stream(server: &ModelServer, path: &str) -> String {
    let response = post(server, path, &body_for(path, true)).await;
    assert_eq!(response.status(), 200);
    response.text().await.expect("the body arrives whole")
}

/// What arrives, and whether it ended as HTTP bodies should.
pub(super) async fn drain(mut response: reqwest::Response) -> (String, Result<(), String>) {
    let mut bytes = Vec::new();
    let end = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend(chunk),
            Ok(None) => break Ok(()),
            Err(error) => break Err(format!("{:#}", anyhow::Error::from(error))),
        }
    };
    (String::from_utf8_lossy(&bytes).into_owned(), end)
}

/// Parses an SSE body: names and data. Knows nothing but the SSE rules.
pub(super) fn events(body: &str) -> Vec<(String, String)> {
    let body = body.replace("\r\n", "\n");
    let frames = body.split("\n\n").map(|frame| {
        let (mut name, mut data) = (String::new(), Vec::new());
        for line in frame.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => name = value.to_owned(),
                "data" => data.push(value),
                _ => {}
            }
        }
        (name, data.join("\n"))
    });
    frames.filter(|(_, data)| !data.is_empty()).collect()
}

pub(super) fn parsed(body: &str) -> Vec<Value> {
    let events = events(body).into_iter().filter(|(_, data)| data != "[DONE]");
    events.map(|(_, data)| serde_json::from_str(&data).expect("an event's data is JSON")).collect()
}
