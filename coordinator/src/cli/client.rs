//! The server as the shell knows it: HTTP with the bearer token, errors as `problem+json`.

use std::{pin::Pin, time::Duration};

use futures::{Stream, StreamExt};
use reqwest::{Method, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use swarm_protocol::{Seq, SessionId, api::Problem};

use super::error::{CliError, Result};

/// A server on this machine that does not take a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The server sends a beat every 15 s; a stream that is silent for this long is dead.
const STREAM_SILENCE: Duration = Duration::from_secs(45);

/// The code of an error that says the server went away: who follows starts it again.
pub(crate) const SERVER_GONE: &str = "server_gone";

/// A server that answers.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    token: String,
    /// `127.0.0.1:43117`.
    pub(crate) address: String,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What a stream of events brings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StreamItem {
    /// An event: its flat object.
    Event(Value),
    /// We were too slow: live news were lost, the journal's events go on.
    Behind,
}

/// Events as they come; ends when the server goes away.
pub(crate) type EventStream = Pin<Box<dyn Stream<Item = Result<StreamItem>> + Send>>;

impl Client {
    /// A client of this address. Nothing is sent.
    pub(crate) fn new(address: &str, token: &str) -> Result<Self> {
        // Needed once in a process; a second time changes nothing.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .tls_certs_only([])
            .build()
            .map_err(|error| {
                CliError::new("client_failed", "cannot make an HTTP client").cause(error.to_string())
            })?;
        Ok(Self { http, token: token.to_owned(), address: address.to_owned() })
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        // `/healthz` stands beside the API.
        let base = if path == "/healthz" { "" } else { "/api/v1" };
        self.http.request(method, format!("http://{}{base}{path}", self.address)).bearer_auth(&self.token)
    }

    /// `GET`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.answer(self.request(Method::GET, path)).await
    }

    /// `POST`.
    pub(crate) async fn post<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T> {
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    /// `POST` that is done once, however often it is sent.
    pub(crate) async fn post_once<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        key: &str,
        body: &B,
    ) -> Result<T> {
        self.answer(self.request(Method::POST, path).header("idempotency-key", key).json(body)).await
    }

    /// Whether it answers at all.
    pub(crate) async fn is_healthy(&self) -> bool {
        match self.request(Method::GET, "/healthz").timeout(CONNECT_TIMEOUT).send().await {
            Ok(response) => response.status().is_success(),
            Err(_) => false,
        }
    }

    async fn answer<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T> {
        let response = request.send().await.map_err(|error| self.gone(&error))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|error| self.gone(&error))?;
        if !status.is_success() {
            return Err(refusal(status, &bytes));
        }
        // A call that answers with nothing answers `null`.
        let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(bytes).map_err(|error| {
            CliError::new("unknown_answer", "the server answered in words this swarm does not know")
                .cause(error.to_string())
                .hint("swarm doctor compares the versions")
        })
    }

    fn gone(&self, error: &reqwest::Error) -> CliError {
        let mut gone = CliError::new(SERVER_GONE, format!("the server at {} does not answer", self.address));
        let mut source: Option<&dyn std::error::Error> = Some(error);
        while let Some(cause) = source {
            source = cause.source();
            if source.is_none() {
                gone = gone.cause(cause.to_string());
            }
        }
        gone.hint("swarm doctor")
    }

    /// Events of a session after a cursor.
    pub(crate) async fn events(&self, session_id: SessionId, after: Seq) -> Result<EventStream> {
        let request = self
            .request(Method::GET, &format!("/sessions/{session_id}/events?after={after}"))
            .header("accept", "text/event-stream")
            .header("last-event-id", after.to_string());
        let response = request.send().await.map_err(|error| self.gone(&error))?;
        let status = response.status();
        if !status.is_success() {
            let bytes = response.bytes().await.map_err(|error| self.gone(&error))?;
            return Err(refusal(status, &bytes));
        }
        let address = self.address.clone();
        let silent = move || CliError::new(SERVER_GONE, format!("the server at {address} fell silent"));
        // Comments are swallowed by the decoder, so silence is watched below it.
        let body = response.bytes_stream();
        let watched = futures::stream::unfold(Some(body), move |body| {
            let silent = silent.clone();
            async move {
                let mut body = body?;
                match tokio::time::timeout(STREAM_SILENCE, body.next()).await {
                    Ok(Some(Ok(bytes))) => Some((Ok(bytes), Some(body))),
                    Ok(Some(Err(error))) => Some((Err(std::io::Error::other(error)), None)),
                    Ok(None) => None,
                    Err(_) => Some((Err(std::io::Error::other(silent().message)), None)),
                }
            }
        });
        let events = sse_stream::SseStream::from_bytes_stream(Box::pin(watched));
        Ok(Box::pin(events.filter_map(|event| std::future::ready(stream_item(event)))))
    }
}

fn stream_item<E: std::fmt::Display>(
    event: std::result::Result<sse_stream::Sse, E>,
) -> Option<Result<StreamItem>> {
    match event {
        Ok(event) if event.event.as_deref() == Some("behind") => Some(Ok(StreamItem::Behind)),
        Ok(event) => match serde_json::from_str(event.data.as_deref()?) {
            Ok(value @ Value::Object(_)) => Some(Ok(StreamItem::Event(value))),
            // What is no object is no event of ours.
            Ok(_) | Err(_) => None,
        },
        Err(error) => {
            Some(Err(CliError::new(SERVER_GONE, "the server's events broke off").cause(error.to_string())))
        }
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> CliError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => {
            let said = String::from_utf8_lossy(body);
            let error = CliError::new("refused", format!("the server refused with {status}"));
            if said.trim().is_empty() {
                error
            } else {
                error.cause(said.trim().chars().take(400).collect::<String>())
            }
        }
    }
}
