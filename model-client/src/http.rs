//! The HTTP client all endpoints share, and the one way a request goes out.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use query_engine::ports::{ModelError, ModelErrorKind};
use swarm_protocol::{
    error_chain,
    launch::{ApiKind, ModelEndpoint},
};

use crate::{ConnectError, error, watchdog::Watchdog};

/// How much of an error's body is read.
const MAX_ERROR_BYTES: usize = 256 * 1024;
/// The largest body the Messages API takes, "32 MB" in its documentation on errors; the smaller reading of it.
const ANTHROPIC_MAX_BYTES: u64 = 32_000_000;
/// How long an error's body may take.
const ERROR_BODY_TIME: Duration = Duration::from_secs(10);

/// Connections to providers. Cheap to clone; clones share one pool.
///
/// Hosts on this machine are reached directly whatever the proxy variables say; others through `HTTPS_PROXY`
/// and its kin. Redirects are not followed: a key must not travel to where a redirect points.
#[derive(Clone)]
pub struct HttpClient {
    local: reqwest::Client,
    /// Built at first use: it needs the machine's root certificates, which a server of local models may lack.
    remote: Lazy,
    /// The same for TLS on this machine.
    local_tls: Lazy,
}

type Lazy = Arc<OnceLock<Result<reqwest::Client, String>>>;

impl fmt::Debug for HttpClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    /// Makes the client and, once per process, installs ring as the TLS library's cryptography.
    pub fn new() -> Result<Self, ConnectError> {
        // A second installation fails, and that is fine: the first one stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let local = builder().no_proxy().tls_certs_only([]).build();
        let local = local.map_err(|error| ConnectError::Tls { problem: error_chain(&error) })?;
        Ok(Self { local, remote: Arc::default(), local_tls: Arc::default() })
    }

    fn for_url(&self, url: &reqwest::Url) -> Result<reqwest::Client, ConnectError> {
        let client = match (is_local(url), url.scheme()) {
            (true, "http") => return Ok(self.local.clone()),
            (true, _) => self
                .local_tls
                .get_or_init(|| builder().no_proxy().build().map_err(|error| error_chain(&error))),
            (false, _) => self.remote.get_or_init(|| builder().build().map_err(|error| error_chain(&error))),
        };
        client.clone().map_err(|problem| ConnectError::Tls { problem })
    }
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("swarm/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(30))
        // A model may think for minutes without a byte; the keepalive keeps middleboxes from forgetting us.
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_nodelay(true)
        .pool_idle_timeout(Duration::from_secs(90))
        .redirect(reqwest::redirect::Policy::none())
}

fn is_local(url: &reqwest::Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback()),
        None => false,
    }
}

/// An endpoint's URL with everything a request to it carries.
#[derive(Clone)]
pub(crate) struct Target {
    client: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    /// The largest body that is sent, in bytes.
    max_bytes: u64,
    /// What must never stand in a message.
    secrets: Vec<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Target").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

impl Target {
    /// `path` is appended to the endpoint's base. `defaults` give way to the endpoint's own headers; `auth`
    /// is a header with the key.
    pub(crate) fn new(
        endpoint: &ModelEndpoint,
        path: &str,
        defaults: &[(&'static str, &str)],
        auth: Option<(&'static str, String)>,
        client: &HttpClient,
    ) -> Result<Self, ConnectError> {
        let url = parse_url(&endpoint.base_url, path)?;
        let mut headers = HeaderMap::new();
        let mut secrets = Vec::new();
        let header_error =
            |name: &str| ConnectError::Header { endpoint: endpoint.display_name(), name: name.to_owned() };
        for (name, value) in defaults {
            let value = HeaderValue::from_str(value).map_err(|_| header_error(name))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some((name, value)) = auth {
            let mut header = HeaderValue::from_str(&value).map_err(|_| header_error(name))?;
            header.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), header);
            secrets.push(value.strip_prefix("Bearer ").unwrap_or(&value).to_owned());
        }
        for (name, value) in &endpoint.headers {
            let header = HeaderName::try_from(name).map_err(|_| header_error(name))?;
            let value = HeaderValue::from_str(value).map_err(|_| header_error(name))?;
            let names_secret = ["auth", "key", "token", "secret", "cookie"];
            if names_secret.iter().any(|word| header.as_str().contains(word))
                && let Ok(value) = value.to_str()
            {
                secrets.push(value.strip_prefix("Bearer ").unwrap_or(value).to_owned());
            }
            headers.insert(header, value);
        }
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        secrets.retain(|secret| secret.len() >= 6);
        let max_bytes = endpoint.max_request_bytes.unwrap_or(match endpoint.api {
            ApiKind::Anthropic => ANTHROPIC_MAX_BYTES,
            ApiKind::Chat | ApiKind::Responses | ApiKind::Demo => u64::MAX,
        });
        Ok(Self { client: client.for_url(&url)?, url, headers, max_bytes, secrets })
    }

    /// Sends a body; answers with the bytes of the response, or says why there is none.
    pub(crate) async fn post(
        &self,
        body: Vec<u8>,
        watchdog: &Watchdog,
    ) -> Result<BoxStream<'static, Result<Bytes, String>>, ModelError> {
        self.send(body, watchdog).await.map_err(|error| self.scrub(error))
    }

    async fn send(
        &self,
        body: Vec<u8>,
        watchdog: &Watchdog,
    ) -> Result<BoxStream<'static, Result<Bytes, String>>, ModelError> {
        let bytes = body.len() as u64;
        if bytes > self.max_bytes {
            // The provider would refuse it after all of it was sent.
            return Err(error::too_large(bytes, self.max_bytes));
        }
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body).send();
        // When the time is up, the request is dropped and its connection closed.
        let response = match tokio::time::timeout_at(watchdog.first_byte_deadline(), request).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(error::connection(&error_chain(&error.without_url()))),
            Err(_) => {
                return Err(ModelError {
                    kind: ModelErrorKind::Stalled { watchdog: "first byte" },
                    message: "the provider did not answer in time (watchdog: first byte)".to_owned(),
                    retry_after: None,
                    status: None,
                });
            }
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes =
            response.bytes_stream().map(|chunk| chunk.map_err(|error| error_chain(&error.without_url())));
        if status != 200 {
            let body = read_start(bytes).await;
            return Err(error::refused(status, &headers, &body, jiff::Timestamp::now()));
        }
        let content_type = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        match content_type {
            // Some proxies answer 200 with an error page, or without streaming.
            Some(kind) if kind.starts_with("text/html") || kind.starts_with("application/json") => {
                Err(not_a_stream(&read_start(bytes).await))
            }
            _ => Ok(bytes.boxed()),
        }
    }

    /// Takes what must not be seen out of a message.
    fn scrub(&self, mut error: ModelError) -> ModelError {
        for secret in &self.secrets {
            if error.message.contains(secret.as_str()) {
                error.message = error.message.replace(secret.as_str(), "[key]");
            }
        }
        error
    }
}

fn parse_url(base: &str, path: &str) -> Result<reqwest::Url, ConnectError> {
    let refuse = |problem: String| ConnectError::BaseUrl { base_url: base.to_owned(), problem };
    let text = format!("{}{path}", base.trim_end_matches('/'));
    let url = reqwest::Url::parse(&text).map_err(|error| refuse(error.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(refuse(format!("the scheme is `{other}`"))),
    }
}

fn not_a_stream(body: &[u8]) -> ModelError {
    match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(value) if value.get("error").is_some() || value.is_array() => error::in_band(&value),
        _ => error::malformed(&format!(
            "no event stream: `{}`",
            error::cut(&String::from_utf8_lossy(body), 200)
        )),
    }
}

/// What comes of a body within bounds of size and time.
async fn read_start(bytes: impl Stream<Item = Result<Bytes, String>>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut bytes = std::pin::pin!(bytes);
    let read = async {
        while let Some(Ok(chunk)) = bytes.next().await {
            let room = MAX_ERROR_BYTES - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == MAX_ERROR_BYTES {
                break;
            }
        }
    };
    // Out of time: what came is what is told.
    let _ = tokio::time::timeout(ERROR_BODY_TIME, read).await;
    body
}

#[cfg(test)]
mod tests;
