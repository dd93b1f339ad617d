//! Who may call (spec 8.2): a bearer token for programs; for the browser a one-time code that buys a cookie.
//! Host and Origin are checked against DNS rebinding and foreign pages. No token stands in a path, query or
//! log.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{ConnectInfo, FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::Digest;
use swarm_protocol::api::LoginBody;
use tokio::time::Instant;

use super::{json::Body, limits::Caller, problem::Fault};
use crate::server::Shared;

/// How long a code works.
pub(crate) const CODE_LIFE: Duration = Duration::from_secs(5 * 60);

/// How long a browser stays logged in without a new code.
const COOKIE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const COOKIE: &str = "swarm_session";

/// Codes and cookies, by the SHA-256 of their text. In memory: a restart asks for a new code.
#[derive(Default)]
pub(crate) struct Logins {
    codes: Mutex<HashMap<String, Instant>>,
    cookies: Mutex<HashMap<String, Instant>>,
}

fn digest(text: &str) -> String {
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Logins {
    /// A code that works once, for five minutes: `4Q7M-K2PD`.
    pub(crate) fn new_code(&self) -> String {
        // 32 signs without those that look alike; 8 of them hold 40 bits, which 5 minutes do not exhaust.
        const SIGNS: &[u8] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
        let bytes = uuid::Uuid::new_v4().into_bytes();
        let sign = |at: usize| char::from(SIGNS[usize::from(bytes[at]) % SIGNS.len()]);
        // Bytes 6 and 8 of a UUIDv4 hold its version.
        let code: String =
            [0, 1, 2, 3].map(sign).into_iter().chain(['-']).chain([9, 10, 11, 12].map(sign)).collect();
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        codes.retain(|_, until| *until > now);
        codes.insert(digest(&code), now + CODE_LIFE);
        code
    }

    /// A cookie for a code, once.
    fn redeem(&self, code: &str) -> Option<String> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let until = codes.remove(&digest(code.trim()))?;
        drop(codes);
        let now = Instant::now();
        if until <= now {
            return None;
        }
        let cookie = crate::home::random_hex();
        let mut cookies = self.cookies.lock().unwrap_or_else(PoisonError::into_inner);
        cookies.retain(|_, until| *until > now);
        cookies.insert(digest(&cookie), now + COOKIE_LIFE);
        Some(cookie)
    }

    fn knows(&self, cookie: &str) -> bool {
        let cookies = self.cookies.lock().unwrap_or_else(PoisonError::into_inner);
        cookies.get(&digest(cookie)).is_some_and(|until| *until > Instant::now())
    }

    fn forget(&self, cookie: &str) {
        self.cookies.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest(cookie));
    }
}

/// The address a call comes from. A router that is called without a socket, in a test, has the loopback's.
pub(crate) struct Peer(pub(crate) IpAddr);

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let connected = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Ok(Self(connected.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.0.ip())))
    }
}

fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).find_map(|line| {
        line.split(';').map(str::trim).find_map(|pair| pair.strip_prefix(COOKIE)?.strip_prefix('='))
    })
}

/// Compares without telling by time how much was right: both are hashed first.
fn same(left: &str, right: &str) -> bool {
    digest(left) == digest(right)
}

fn is_own_origin(shared: &Shared, origin: &str) -> bool {
    let port = shared.address.port();
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| origin == format!("http://{host}:{port}"))
}

/// Refuses calls that came by a foreign name: a page on the web that had its name resolve to this machine.
pub(crate) async fn check_host(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let port = shared.address.port();
    let own = authority.is_some_and(|authority| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| authority == format!("{name}:{port}"))
    });
    if !own {
        return Fault::new(
            StatusCode::MISDIRECTED_REQUEST,
            "foreign_host",
            "this server answers to its loopback address only",
        )
        .into_response();
    }
    let origin = request.headers().get(header::ORIGIN);
    if let Some(origin) = origin
        && !origin.to_str().is_ok_and(|origin| is_own_origin(&shared, origin))
    {
        return Fault::new(StatusCode::FORBIDDEN, "foreign_origin", "calls of other pages are refused")
            .into_response();
    }
    next.run(request).await
}

/// Lets pass who has the token, or the cookie and our Origin.
pub(crate) async fn require(
    State(shared): State<Arc<Shared>>,
    Peer(peer): Peer,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if let Some(token) = bearer {
        if same(token.trim(), &shared.bearer_token) {
            request.extensions_mut().insert(Caller::Token);
            return next.run(request).await;
        }
        if let Err(fault) = shared.limits.failure(peer) {
            return fault.into_response();
        }
        return Fault::new(StatusCode::UNAUTHORIZED, "wrong_token", "the bearer token is not this server's")
            .hint("it stands in $SWARM_HOME/token")
            .into_response();
    }
    let cookie = cookie_of(headers);
    if let Some(cookie) = cookie.filter(|cookie| shared.logins.knows(cookie)) {
        // The cookie is SameSite=Strict; a changing call of the browser names its Origin as well. A plain GET of
        // our own page may leave it out.
        let own = match headers.get(header::ORIGIN).map(HeaderValue::to_str) {
            Some(origin) => origin.is_ok_and(|origin| is_own_origin(&shared, origin)),
            None => {
                let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
                request.method() == Method::GET
                    && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
            }
        };
        if own {
            let caller = Caller::Cookie(digest(cookie));
            request.extensions_mut().insert(caller);
            return next.run(request).await;
        }
        return Fault::new(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "the cookie is valid for our own page only",
        )
        .into_response();
    }
    // Nothing to try is no attempt; a cookie of an earlier server is one.
    if let Some(Err(fault)) = cookie.map(|_| shared.limits.failure(peer)) {
        return fault.into_response();
    }
    Fault::new(StatusCode::UNAUTHORIZED, "no_token", "a bearer token or a login is needed")
        .hint("programs: the token in $SWARM_HOME/token; browsers: open `swarm dashboard` again")
        .into_response()
}

/// Buys a cookie with a code.
pub(crate) async fn login(
    State(shared): State<Arc<Shared>>,
    Peer(peer): Peer,
    headers: HeaderMap,
    Body(body): Body<LoginBody>,
) -> Result<Response, Fault> {
    let own = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok())
        .is_some_and(|origin| is_own_origin(&shared, origin));
    if !own {
        return Err(Fault::new(StatusCode::FORBIDDEN, "foreign_origin", "only our own page logs in"));
    }
    shared.limits.code(peer)?;
    let cookie = shared.logins.redeem(&body.code).ok_or_else(|| {
        Fault::new(
            StatusCode::UNAUTHORIZED,
            "code_used",
            "the code was used already, or is older than 5 minutes",
        )
        .hint("open `swarm dashboard` again")
    })?;
    let value =
        format!("{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={}", COOKIE_LIFE.as_secs());
    let value = HeaderValue::from_str(&value).map_err(|_| {
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the cookie could not be made")
    })?;
    Ok(([(header::SET_COOKIE, value)], StatusCode::NO_CONTENT).into_response())
}

/// Takes a cookie back.
pub(crate) async fn logout(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> StatusCode {
    if let Some(cookie) = cookie_of(&headers) {
        shared.logins.forget(cookie);
    }
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_code_works_once_and_for_five_minutes() {
        let logins = Logins::default();
        let code = logins.new_code();
        let cookie = logins.redeem(&code).unwrap();
        assert!(logins.knows(&cookie));
        assert_eq!(logins.redeem(&code), None);
        let late = logins.new_code();
        tokio::time::advance(CODE_LIFE).await;
        assert_eq!(logins.redeem(&late), None);
        logins.forget(&cookie);
        assert!(!logins.knows(&cookie));
    }
}
