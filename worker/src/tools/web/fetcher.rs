//! One GET with everything a stranger's server could do to us: names that lead inside, redirects that lead
//! elsewhere, bodies without an end. A name is resolved once a hop, all of its addresses are checked, and the
//! connection goes to those addresses, so that a name cannot mean one thing when it is checked and another when it
//! is used. No proxy is asked: it would resolve names by itself.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use agent_host::{AllowedAddress, may_reach};
use flate2::write::MultiGzDecoder;
use reqwest::{
    StatusCode, Url,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, LOCATION},
};
use swarm_protocol::error_chain;

const USER_AGENT: &str = concat!("swarm/", env!("CARGO_PKG_VERSION"));
/// Of a long URL in a message.
const MAX_URL_CHARS: usize = 2_000;

/// What one fetch may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the body, before and after it is unpacked.
    pub bytes: usize,
    /// For everything, redirects included.
    pub time: Duration,
    /// Redirects that are followed.
    pub redirects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 10 * 1024 * 1024, time: Duration::from_secs(60), redirects: 10 }
    }
}

/// What came back.
#[derive(Debug)]
pub(super) enum Fetched {
    /// A body that was wanted.
    Body(Body),
    /// The body is of a type that `wanted` refused; it was not read.
    Unwanted { url: Url, content_type: String, bytes: Option<u64> },
    /// It leads to a host that may not be asked without a person's word.
    Elsewhere { from: Url, to: Url },
}

#[derive(Debug)]
pub(super) struct Body {
    pub(super) url: Url,
    pub(super) status: StatusCode,
    pub(super) content_type: Option<String>,
    pub(super) bytes: Vec<u8>,
}

/// Why there is nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0:?} is no URL ({1}); give an absolute one, such as https://example.com/page")]
    NoUrl(String, String),
    #[error("{0}: URLs are not fetched, only https: and http:")]
    Scheme(String),
    #[error("a URL with a user name or password is not fetched; leave that part out")]
    Credentials,
    #[error(
        "{url} leads to {address}, {what}; such addresses are not fetched. A person can allow it with `web.allow_private`"
    )]
    NotPublic { url: String, address: SocketAddr, what: agent_host::NotPublic },
    #[error("the name {host} could not be resolved: {problem}")]
    Name { host: String, problem: String },
    #[error("{url} could not be fetched: {problem}")]
    Transport { url: String, problem: String },
    #[error("it was redirected more than {0} times, last to {1}")]
    TooManyRedirects(usize, String),
    #[error("{0} answered with a redirect that leads nowhere ({1})")]
    BadRedirect(String, String),
    #[error(
        "{url} has more than {limit} bytes; it was not read to its end. Look for a smaller page, or a part of it"
    )]
    TooLarge { url: String, limit: usize },
    #[error("{0} is packed as `{1}`, which was not asked for")]
    Encoding(String, String),
    #[error("it took more than {} s", .0.as_secs_f32())]
    TimeOut(Duration),
}

/// Fetches pages.
#[derive(Debug)]
pub struct Fetcher {
    allowed: Vec<AllowedAddress>,
    limits: Limits,
}

impl Fetcher {
    /// `allow_private` are addresses that are reached although they are not public; what is none is passed over, as
    /// the settings have checked them.
    pub fn new(allow_private: &[String], limits: Limits) -> Self {
        // A second installation fails, and that is fine: the first one stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let allowed = allow_private.iter().filter_map(|text| text.parse().ok()).collect();
        Self { allowed, limits }
    }

    /// Follows redirects to the same host, and to others that `may_follow`; reads a body whose type is `wanted`.
    pub(super) async fn get(
        &self,
        url: Url,
        may_follow: &(dyn Fn(&str) -> bool + Send + Sync),
        wanted: fn(&str) -> bool,
    ) -> Result<Fetched, FetchError> {
        let all = self.follow(url, may_follow, wanted);
        // What was read until then is of no use.
        tokio::time::timeout(self.limits.time, all)
            .await
            .unwrap_or(Err(FetchError::TimeOut(self.limits.time)))
    }

    async fn follow(
        &self,
        mut url: Url,
        may_follow: &(dyn Fn(&str) -> bool + Send + Sync),
        wanted: fn(&str) -> bool,
    ) -> Result<Fetched, FetchError> {
        for _ in 0..=self.limits.redirects {
            let response = self.ask(&url).await?;
            let status = response.status();
            let Some(target) = redirect(status, response.headers()) else {
                return self.read(url, response, wanted).await;
            };
            let to = url.join(&target).map_err(|_| FetchError::BadRedirect(shown(&url), cut(&target)))?;
            check_form(&to)?;
            let same_host = to.host_str() == url.host_str();
            // From https to http a stranger on the way could answer.
            let goes_plain = url.scheme() == "https" && to.scheme() == "http";
            if goes_plain || !(same_host || to.host_str().is_some_and(may_follow)) {
                return Ok(Fetched::Elsewhere { from: url, to });
            }
            url = to;
        }
        Err(FetchError::TooManyRedirects(self.limits.redirects, shown(&url)))
    }

    async fn ask(&self, url: &Url) -> Result<reqwest::Response, FetchError> {
        let client = self.client(url).await?;
        let request = client
            .get(url.clone())
            .header(ACCEPT, "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.1")
            .header(ACCEPT_ENCODING, "gzip");
        request.send().await.map_err(|error| transport(url, error))
    }

    /// A client that knows no other way to the URL's host than the addresses that were checked.
    async fn client(&self, url: &Url) -> Result<reqwest::Client, FetchError> {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(443);
        // Whatever form an address was written in, the URL's parser has made the usual one of it.
        let addresses = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => resolve(host, port).await?,
        };
        // One that is wrong spoils all: who mixes them means to be believed for the others.
        for address in &addresses {
            may_reach(*address, &self.allowed).map_err(|what| FetchError::NotPublic {
                url: shown(url),
                address: *address,
                what,
            })?;
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.limits.time);
        if let Some(name) = url.domain() {
            builder = builder.resolve_to_addrs(name, &addresses);
        }
        if url.scheme() == "http" {
            // Needs no certificates, which a machine may lack.
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|error| transport(url, error))
    }

    async fn read(
        &self,
        url: Url,
        mut response: reqwest::Response,
        wanted: fn(&str) -> bool,
    ) -> Result<Fetched, FetchError> {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let content_type = header(CONTENT_TYPE).map(str::to_owned);
        let encoding = header(CONTENT_ENCODING).map(str::to_ascii_lowercase);
        let bytes = response.content_length();
        if let Some(content_type) = content_type.as_deref().filter(|content_type| !wanted(content_type)) {
            return Ok(Fetched::Unwanted { url, content_type: content_type.to_owned(), bytes });
        }
        let limit = self.limits.bytes;
        let mut unpacker = match encoding.as_deref() {
            None | Some("" | "identity") => Unpacker::Plain(Bounded::new(limit)),
            Some("gzip" | "x-gzip") => Unpacker::Gzip(Box::new(MultiGzDecoder::new(Bounded::new(limit)))),
            Some(other) => return Err(FetchError::Encoding(shown(&url), other.to_owned())),
        };
        let too_large = || FetchError::TooLarge { url: shown(&url), limit };
        if bytes.is_some_and(|bytes| bytes > limit as u64) {
            return Err(too_large());
        }
        let status = response.status();
        let mut n_read = 0;
        while let Some(chunk) = response.chunk().await.map_err(|error| transport(&url, error))? {
            n_read += chunk.len();
            match unpacker.take(&chunk) {
                Ok(()) if n_read <= limit => {}
                Ok(()) => return Err(too_large()),
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Err(too_large()),
                Err(error) => return Err(unreadable(&url, &error)),
            }
        }
        let bytes = unpacker.end().map_err(|error| unreadable(&url, &error))?;
        Ok(Fetched::Body(Body { url, status, content_type, bytes }))
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, FetchError> {
    let problem = |problem: String| FetchError::Name { host: host.to_owned(), problem };
    let found = tokio::net::lookup_host((host, port)).await;
    let found: Vec<_> = found.map_err(|error| problem(error.to_string()))?.collect();
    if found.is_empty() { Err(problem("it has no address".to_owned())) } else { Ok(found) }
}

/// What a model wrote, as a URL that is fetched.
pub(super) fn parse(text: &str) -> Result<Url, FetchError> {
    let url = Url::parse(text.trim()).map_err(|error| FetchError::NoUrl(cut(text), error.to_string()))?;
    check_form(&url)?;
    Ok(url)
}

fn check_form(url: &Url) -> Result<(), FetchError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(FetchError::Scheme(url.scheme().to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(FetchError::Credentials);
    }
    Ok(())
}

/// Where a redirect leads, as it was written.
fn redirect(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(LOCATION)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

fn transport(url: &Url, error: reqwest::Error) -> FetchError {
    FetchError::Transport { url: shown(url), problem: error_chain(&error.without_url()) }
}

fn unreadable(url: &Url, error: &io::Error) -> FetchError {
    FetchError::Transport { url: shown(url), problem: format!("its body cannot be unpacked: {error}") }
}

/// A URL for a message.
pub(super) fn shown(url: &Url) -> String {
    cut(url.as_str())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_URL_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

enum Unpacker {
    Plain(Bounded),
    Gzip(Box<MultiGzDecoder<Bounded>>),
}

impl Unpacker {
    fn take(&mut self, chunk: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(bounded) => bounded.write_all(chunk),
            Self::Gzip(decoder) => decoder.write_all(chunk),
        }
    }

    fn end(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain(bounded) => Ok(bounded.bytes),
            Self::Gzip(decoder) => decoder.finish().map(|bounded| bounded.bytes),
        }
    }
}

/// Keeps what is written until it is too much: a few bytes can unpack to anything.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
