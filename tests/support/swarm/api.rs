//! The HTTP API as a client sees it.

use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use crate::wait::LATER;

/// A client with the bearer token. Paths are below `/api/v1`, unless they begin with `//`.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    token: String,
    client: reqwest::Client,
}

impl Api {
    /// `address` is `host:port`.
    pub fn new(address: &str, token: &str) -> Self {
        let base = format!("http://{address}");
        Self { base, token: token.to_owned(), client: crate::http_client() }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = match path.strip_prefix('/') {
            Some(path) if path.starts_with('/') => format!("{}{path}", self.base),
            _ => format!("{}/api/v1{path}", self.base),
        };
        self.client.request(method, url).bearer_auth(&self.token)
    }

    /// # Panics
    /// When the answer is no success; shows it.
    pub async fn get(&self, path: &str) -> Value {
        succeeded(&format!("GET {path}"), self.try_get(path).await)
    }

    pub async fn try_get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    /// # Panics
    /// When the answer is no success; shows it.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        succeeded(&format!("POST {path}"), self.try_post(path, body).await)
    }

    pub async fn try_post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path).json(body)).await
    }

    /// # Panics
    /// When the answer is no success; shows it.
    pub async fn delete(&self, path: &str) -> Value {
        succeeded(&format!("DELETE {path}"), answer(self.request(Method::DELETE, path)).await)
    }

    /// Opens an event stream, after this id if one is given.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn events(&self, path: &str, last_event_id: Option<&str>) -> Events {
        let mut request = self.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.unwrap_or_else(|error| panic!("GET {path}: {error:?}"));
        let status = response.status();
        assert!(status.is_success(), "GET {path}: {status}: {}", response.text().await.unwrap_or_default());
        let frames = SseStream::from_bytes_stream(response.bytes_stream());
        let frames = frames.map(|frame| frame.map_err(|error| error.to_string()));
        Events { frames: Box::pin(frames), seen: Vec::new() }
    }
}

fn succeeded(what: &str, (status, body): (StatusCode, Value)) -> Value {
    assert!(status.is_success(), "{what}: {status}: {body:#}");
    body
}

async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"));
    let status = response.status();
    let text = response.text().await.unwrap_or_else(|error| panic!("no body: {error:?}"));
    // Bodies that are no JSON (metrics, a dashboard's page) come as a string.
    let body = match text.as_str() {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    };
    (status, body)
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Live events have none.
    pub id: Option<String>,
    pub name: Option<String>,
    /// JSON; a string if it is none.
    pub data: Value,
}

pub struct Events {
    frames: Pin<Box<dyn Stream<Item = Result<Sse, String>> + Send>>,
    /// Everything so far, for failure messages.
    seen: Vec<Event>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Events {
    /// The next event; none at the end. Comments and empty frames are passed over.
    ///
    /// # Panics
    /// When the stream breaks.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let frame = self.frames.next().await?;
            let frame = frame.unwrap_or_else(|error| panic!("the event stream broke: {error}"));
            let Some(data) = frame.data else { continue };
            let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
            let event = Event { id: frame.id, name: frame.event, data };
            self.seen.push(event.clone());
            return Some(event);
        }
    }

    /// The first event from which `pick` makes something.
    ///
    /// # Panics
    /// When none comes for long; shows what came.
    pub async fn wait_for<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let search = async {
            while let Some(event) = self.next().await {
                if let Some(found) = pick(&event) {
                    return Some(found);
                }
            }
            None
        };
        let found = tokio::time::timeout(LATER, search).await;
        match found {
            Ok(Some(found)) => found,
            Ok(None) => panic!("the event stream ended before {what}; it brought {:#?}", self.seen),
            Err(_) => panic!("no {what} within {LATER:?}; the event stream brought {:#?}", self.seen),
        }
    }

    pub fn seen(&self) -> &[Event] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, http::HeaderMap, routing::get};
    use serde_json::json;

    use super::*;

    async fn server() -> Api {
        let echo = async |headers: HeaderMap| {
            let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            Json(json!({"authorization": of("authorization"), "after": of("last-event-id")}))
        };
        let events = async |headers: HeaderMap| {
            let after = headers.get("last-event-id").and_then(|value| value.to_str().ok());
            let body = format!(
                ": hi\n\nid: 7\nevent: a\ndata: {{\"after\":\"{}\"}}\n\ndata: live\n\n",
                after.unwrap_or("-")
            );
            ([("content-type", "text/event-stream")], body)
        };
        let app =
            Router::new().route("/api/v1/echo", get(echo).post(echo)).route("/api/v1/events", get(events));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Api::new(&address.to_string(), "secret")
    }

    #[tokio::test]
    async fn calls_carry_the_token() {
        let api = server().await;
        assert_eq!(api.get("/echo").await["authorization"], "Bearer secret");
        assert_eq!(api.post("/echo", &json!({})).await["authorization"], "Bearer secret");
        assert_eq!(api.try_get("/none").await.0, StatusCode::NOT_FOUND);
        assert_eq!(api.get("//api/v1/echo").await["authorization"], "Bearer secret");
    }

    #[tokio::test]
    async fn events_are_read_in_order() {
        let api = server().await;
        let mut events = api.events("/events", Some("6")).await;
        let after = events
            .wait_for("event 7", |event| (event.id.as_deref() == Some("7")).then(|| event.data.clone()));
        assert_eq!(after.await, json!({"after": "6"}));
        assert_eq!(events.next().await.expect("a live event").data, json!("live"));
        assert_eq!(events.next().await, None);
        assert_eq!(events.seen().len(), 2);
    }
}
