//! An HTTP proxy for commands that may reach some hosts alone: `CONNECT`, and plain requests.
//!
//! A command on tier 1 has a network that is loopback alone. The helper makes a listening socket in there and
//! hands it over; who connects to it in there is answered here, where the network is. On tier 2, which has no
//! networks of its own, nothing is handed over and commands stay without.
//!
//! What is refused gets a 403 that says why. Names are resolved once, and what they lead to is what is judged.

mod allowed;

pub use allowed::Allowed;

use crate::sandbox::{PROXY_PORT, receive_descriptor};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    body::{Bytes, Incoming},
    client, header,
    header::{HeaderMap, HeaderName, HeaderValue},
    server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::Interest,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// Connections at once, of all commands of a worker. A package manager opens some dozens.
const MAX_CONNECTIONS: usize = 128;
/// After a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CONNECT: Duration = Duration::from_secs(15);
/// The variables that programs look at, in both spellings: some know one alone.
const VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Headers between two hops, which go no further (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
];

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    path: PathBuf,
    _directory: tempfile::TempDir,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts it. Needs a runtime.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn start(allowed: Allowed) -> io::Result<Self> {
        // A directory of its own, closed to other users; short, for a socket's name has an end soon.
        let directory = tempfile::Builder::new().prefix("swarm-").tempdir()?;
        let path = directory.path().join("proxy");
        let commands = UnixListener::bind(&path)?;
        let task = tokio::spawn(serve_commands(commands, Arc::new(allowed)));
        Ok(Self { path, _directory: directory, _task: AbortOnDropHandle::new(task) })
    }

    /// Where helpers bring their sockets.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells programs of it.
    pub fn variables() -> impl Iterator<Item = (&'static str, String)> {
        let address = format!("http://127.0.0.1:{PROXY_PORT}");
        let proxies = VARIABLES.map(|name| (name, address.clone()));
        let exceptions = EXCEPTIONS.map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
        // Without it the `fetch` of node goes by none of them.
        proxies.into_iter().chain(exceptions).chain([("NODE_USE_ENV_PROXY", "1".to_owned())])
    }
}

async fn serve_commands(helpers: UnixListener, allowed: Arc<Allowed>) {
    // Aborted with this: each lives as long as its command.
    let mut commands = JoinSet::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        while commands.try_join_next().is_some() {}
        match helpers.accept().await {
            Ok((helper, _)) => {
                commands.spawn(serve_command(helper, allowed.clone(), places.clone()));
            }
            Err(error) => {
                // Descriptors come back; without the proxy no further command would start.
                tracing::warn!(%error, "a command could not reach the proxy");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_command(helper: UnixStream, allowed: Arc<Allowed>, places: Arc<Semaphore>) {
    let served = async {
        let hear = || helper.async_io(Interest::READABLE, || receive_descriptor(&helper));
        let (_, Some(descriptor)) = hear().await? else { return Ok(()) };
        let listener = std::net::TcpListener::from(descriptor);
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        // It says nothing more; its end is the command's.
        tokio::select! {
            ended = hear() => ended.map(drop),
            served = serve_connections(&listener, &allowed, &places) => served,
        }
    };
    let result: io::Result<()> = served.await;
    if let Err(error) = result {
        tracing::warn!(%error, "the proxy does not serve a command");
    }
}

async fn serve_connections(
    listener: &TcpListener,
    allowed: &Arc<Allowed>,
    places: &Arc<Semaphore>,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        // A place first, so that no more is accepted than is served.
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection of a command was not taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let allowed = allowed.clone();
        connections.spawn(async move {
            let further = Further::default();
            let service = service_fn(|request| {
                let (allowed, further) = (allowed.clone(), further.clone());
                async move { Ok::<_, Infallible>(answer(request, &allowed, &further).await) }
            });
            let connection = server::conn::http1::Builder::new()
                .preserve_header_case(true)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the proxy broke");
            }
            let further = std::mem::take(&mut *further.lock().unwrap_or_else(PoisonError::into_inner));
            further.join_all().await;
            drop(place);
        });
    }
}

type Body = BoxBody<Bytes, hyper::Error>;
/// The other halves of a connection: its tunnel, or connections to servers. Awaited by it, ended with it.
type Further = Arc<Mutex<JoinSet<()>>>;

fn begin(further: &Further, task: impl Future<Output = ()> + Send + 'static) {
    further.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
}

async fn answer(request: Request<Incoming>, allowed: &Allowed, further: &Further) -> Response<Body> {
    let asked = if request.method() == Method::CONNECT {
        connect(request, allowed, further).await
    } else {
        forward(request, allowed, further).await
    };
    asked.unwrap_or_else(|refusal| {
        let (status, text) = refusal.words();
        tracing::info!(%status, text, "the proxy refuses");
        let body = Full::new(Bytes::from(format!("swarm: {text}\n"))).map_err(|never| match never {}).boxed();
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    })
}

#[derive(Debug)]
enum Refusal {
    /// No absolute `http` address and no `CONNECT`.
    NoTarget,
    NotListed {
        host: String,
        port: u16,
    },
    NotPublic {
        host: String,
        port: u16,
    },
    Unreachable {
        host: String,
        port: u16,
        error: String,
    },
}

impl Refusal {
    fn words(self) -> (StatusCode, String) {
        match self {
            Self::NoTarget => (StatusCode::BAD_REQUEST, "this is a proxy; ask it for a host".to_owned()),
            Self::NotListed { host, port } => (
                StatusCode::FORBIDDEN,
                format!(
                    "{host}:{port} is not among the hosts that commands may reach (setting sandbox.network)"
                ),
            ),
            Self::NotPublic { host, port } => (
                StatusCode::FORBIDDEN,
                format!("{host}:{port} leads to a private address, which sandbox.network has to name itself"),
            ),
            Self::Unreachable { host, port, error } => {
                (StatusCode::BAD_GATEWAY, format!("{host}:{port} cannot be reached: {error}"))
            }
        }
    }
}

async fn connect(
    request: Request<Incoming>,
    allowed: &Allowed,
    further: &Further,
) -> Result<Response<Body>, Refusal> {
    let target = request.uri().authority().ok_or(Refusal::NoTarget)?;
    let (host, port) = (target.host().to_owned(), target.port_u16().ok_or(Refusal::NoTarget)?);
    let mut there = reach(&host, port, allowed).await?;
    begin(further, async move {
        match hyper::upgrade::on(request).await {
            Ok(here) => {
                // How it ended is known to both of its ends.
                let _ended = tokio::io::copy_bidirectional(&mut TokioIo::new(here), &mut there).await;
            }
            Err(error) => tracing::debug!(%error, "a tunnel was not begun"),
        }
    });
    Ok(Response::new(Full::default().map_err(|never| match never {}).boxed()))
}

async fn forward(
    mut request: Request<Incoming>,
    allowed: &Allowed,
    further: &Further,
) -> Result<Response<Body>, Refusal> {
    let uri = request.uri().clone();
    if uri.scheme_str() != Some("http") {
        return Err(Refusal::NoTarget);
    }
    let authority = uri.authority().ok_or(Refusal::NoTarget)?;
    let (host, port) = (authority.host().to_owned(), authority.port_u16().unwrap_or(80));
    let there = reach(&host, port, allowed).await?;
    let failed =
        |error: hyper::Error| Refusal::Unreachable { host: host.clone(), port, error: error.to_string() };
    let (mut sender, connection) =
        client::conn::http1::handshake(TokioIo::new(there)).await.map_err(failed)?;
    begin(further, async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a forwarded connection broke");
        }
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| Refusal::NoTarget)?;
    *request.version_mut() = Version::HTTP_11;
    drop_hop_by_hop(request.headers_mut());
    // What is asked for is what was judged, whatever the header said.
    let name = authority.as_str().rsplit('@').next().unwrap_or_default();
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(name).map_err(|_| Refusal::NoTarget)?);
    let mut response = sender.send_request(request).await.map_err(failed)?;
    drop_hop_by_hop(response.headers_mut());
    Ok(response.map(BodyExt::boxed))
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        headers.remove(name);
    }
}

/// A connection to a host that may be reached, at an address that may be.
async fn reach(host: &str, port: u16, allowed: &Allowed) -> Result<TcpStream, Refusal> {
    let named = || (host.to_owned(), port);
    if !allowed.names(host, port) {
        let (host, port) = named();
        return Err(Refusal::NotListed { host, port });
    }
    let unreachable = |error: String| {
        let (host, port) = named();
        Refusal::Unreachable { host, port, error }
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = timeout(CONNECT, tokio::net::lookup_host((bare, port)))
        .await
        .map_err(|_| unreachable("its name is not resolved in time".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))?
        .collect();
    let reachable: Vec<SocketAddr> =
        found.iter().copied().filter(|address| allowed.reaches(address.ip(), port)).collect();
    if reachable.is_empty() && !found.is_empty() {
        let (host, port) = named();
        return Err(Refusal::NotPublic { host, port });
    }
    timeout(CONNECT, TcpStream::connect(reachable.as_slice()))
        .await
        .map_err(|_| unreachable("no answer in time".to_owned()))?
        .map_err(|error| unreachable(error.to_string()))
}
