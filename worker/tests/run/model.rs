//! A model that answers from a script, in the Anthropic wire format.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// One answer: words, then calls.
pub(super) struct Answer(Vec<Value>);

pub(super) fn say(text: &str) -> Answer {
    Answer(vec![json!({"type": "text", "text": text})])
}

impl Answer {
    pub(super) fn call(mut self, id: &str, name: &str, input: Value) -> Self {
        self.0.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        self
    }

    fn events(&self) -> String {
        let mut text = String::new();
        let mut event = |value: Value| {
            let kind = value["type"].as_str().unwrap().to_owned();
            text.push_str(&format!("event: {kind}\ndata: {value}\n\n"));
        };
        let usage = json!({"input_tokens": 10, "output_tokens": 5});
        event(json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage}}));
        let mut has_calls = false;
        for (index, block) in self.0.iter().enumerate() {
            let (start, delta) = if block["type"] == "text" {
                (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]}))
            } else {
                has_calls = true;
                let mut start = block.clone();
                start["input"] = json!({});
                (start, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
            };
            event(json!({"type": "content_block_start", "index": index, "content_block": start}));
            event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            event(json!({"type": "content_block_stop", "index": index}));
        }
        let stop = if has_calls { "tool_use" } else { "end_turn" };
        event(
            json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": 5}}),
        );
        event(json!({"type": "message_stop"}));
        text
    }
}

/// The model's server; it ends with the test's runtime.
pub(super) struct Model {
    pub(super) url: String,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Model {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers: Arc<Mutex<VecDeque<Answer>>> = Arc::default();
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (queue, seen) = (answers.clone(), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, queue.clone(), seen.clone()));
            }
        });
        Self { url, answers, requests }
    }

    pub(super) fn will(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// What it was asked so far.
    pub(super) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<Value>>>,
) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
        let length: usize =
            text.lines().find_map(|line| line.strip_prefix("content-length:"))?.trim().parse().ok()?;
        while bytes.len() < head + length {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        requests.lock().unwrap().push(serde_json::from_slice(&bytes[head..head + length]).unwrap());
        bytes.drain(..head + length);
        let answer = loop {
            if let Some(answer) = answers.lock().unwrap().pop_front() {
                break answer.events();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}
