//! What the tests of this crate share: small requests, and providers that answer with given bytes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, Response},
};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use query_engine::ports::{Breakpoint, Model, ModelError, ModelRequest, Prefix, StreamEvent, ToolSpec};
use serde_json::{Value, json};
use swarm_protocol::{Block, Message};

/// A request of these messages, with one tool and a system prompt.
pub(crate) fn request(messages: Vec<Message>) -> ModelRequest {
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: format!("The {name} tool."),
        input_schema: json!({"type": "object", "properties": {"file_path": {"type": "string"}}}),
        offer: query_engine::ports::Offer::Always,
    };
    ModelRequest {
        prefix: Arc::new(Prefix {
            system: vec!["You are an agent.".to_owned(), "Be brief.".to_owned()],
            tools: vec![tool("Write"), tool("Read")],
        }),
        messages: messages.into_iter().map(Arc::new).collect(),
        max_tokens: 1000,
        breakpoints: vec![Breakpoint::Prefix],
    }
}

/// A request of one word.
pub(crate) fn hello() -> ModelRequest {
    request(vec![Message::user_text("hello")])
}

/// A call.
pub(crate) fn call(id: &str, name: &str, input: Value) -> Block {
    Block::ToolUse { id: id.parse().unwrap(), name: name.to_owned(), input, provider_data: None }
}

/// A body in pieces: cut at these places, in any order, each taken modulo its length.
pub(crate) fn pieces(body: &[u8], cuts: Vec<usize>) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % body.len()).collect();
    cuts.extend([0, body.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| Bytes::copy_from_slice(&body[pair[0]..pair[1]])).collect()
}

/// What a provider answers with.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    /// Whether the connection is broken after the body rather than closed.
    pub(crate) broken: bool,
    /// Whether nothing at all comes after the headers.
    pub(crate) silent: bool,
}

impl Answer {
    pub(crate) fn sse(body: impl Into<String>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "text/event-stream".to_owned())],
            body: body.into(),
            broken: false,
            silent: false,
        }
    }

    pub(crate) fn refusal(status: u16, body: impl Into<String>) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: body.into(), broken: false, silent: false }
    }
}

/// A request as a provider got it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// A provider on this machine: answers one after another, the last one again and again.
#[derive(Clone, Debug)]
pub(crate) struct Provider {
    pub(crate) url: String,
    answers: Arc<Mutex<Vec<Answer>>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Provider {
    pub(crate) async fn start(mut answers: Vec<Answer>) -> Self {
        answers.reverse();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let provider = Self { url, answers: Arc::new(Mutex::new(answers)), received: Arc::default() };
        let app = Router::new().fallback(answer).with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        provider
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn answer(State(provider): State<Provider>, request: axum::extract::Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    provider.received.lock().unwrap().push(Received {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap(),
    });
    let answer = {
        let mut answers = provider.answers.lock().unwrap();
        if answers.len() > 1 { answers.pop().unwrap() } else { answers[0].clone() }
    };
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(*name, value);
    }
    let whole = stream::iter([Ok(Bytes::from(answer.body))]);
    let body = if answer.silent {
        Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())
    } else if answer.broken {
        let pause = tokio::time::sleep(Duration::from_millis(20));
        let end = stream::once(async move {
            pause.await;
            Err(std::io::Error::other("broken"))
        });
        Body::from_stream(whole.chain(end))
    } else {
        Body::from_stream(whole)
    };
    response.body(body).unwrap()
}

/// All events of an answer; a refused request is a single error.
pub(crate) async fn collect(
    model: &dyn Model,
    request: &ModelRequest,
) -> Vec<Result<StreamEvent, ModelError>> {
    match model.stream(request).await {
        Ok(stream) => stream.collect().await,
        Err(error) => vec![Err(error)],
    }
}
