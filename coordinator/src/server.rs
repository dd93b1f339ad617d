//! The server: owns all that is spawned, and what its parts share.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent_host::{Config, secrets::Masker};
use model_client::{ConnectError, HttpClient, Profile};
use query_engine::ports::Model;
use swarm_protocol::{RunNumber, SessionState, Timestamp, WorkerId, api::ServerFile, launch::ModelEndpoint};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock,
    home::{Home, HomeLock, process_identity},
    journal::sqlite::SqliteJournal,
    live::LiveTable,
    pacing::Gates,
    room::{Floors, Lack, Room},
    session::{KeyRing, Order, SessionHandle, engine::StartError},
    sessions::Sessions,
    workers::{run::sha256_hex, socket, tmux},
};

/// Ports of a worker: its base and the nine after it.
const PORTS_PER_WORKER: u16 = 10;

/// Bases run from the setting to this, then begin again.
const LAST_PORT_BASE: u16 = 60_000;

/// How often the server asks itself whether anybody needs it.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its home.
    pub home: Home,
    /// The swarm binary: for tmux windows.
    pub swarm_binary: PathBuf,
    /// The worker binary.
    pub worker_binary: PathBuf,
    /// The server's own settings.
    pub settings: Config,
    /// The server's own environment: where keys are found for tasks that bring none.
    pub environment: BTreeMap<String, String>,
    /// The user's home.
    pub user_home: PathBuf,
}

/// Why a server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its home.
    #[error(transparent)]
    Home(#[from] crate::home::HomeError),
    /// Its journal.
    #[error("cannot use the journal")]
    Journal(#[from] crate::journal::StorageFault),
    /// TLS for model providers.
    #[error("cannot set up the HTTP client")]
    Http(#[from] ConnectError),
    /// A socket.
    #[error("cannot listen on {what}")]
    Listen {
        /// Address or path.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The HTTP server failed.
    #[error("the HTTP server failed")]
    Serve(#[source] std::io::Error),
}

/// What the parts of the server share. No part owns another.
pub struct Shared {
    /// Paths.
    pub home: Home,
    /// The version of the binary.
    pub version: &'static str,
    pub(crate) journal: SqliteJournal,
    pub(crate) live: LiveTable,
    pub(crate) sessions: Sessions,
    pub(crate) swarm_binary: PathBuf,
    pub(crate) worker_binary: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) http: HttpClient,
    pub(crate) settings: Config,
    pub(crate) environment: BTreeMap<String, String>,
    /// What is told to clients holds no keys.
    pub(crate) masker: Masker,
    pub(crate) user_home: PathBuf,
    pub(crate) started_at: Timestamp,
    pub(crate) shutdown: CancellationToken,
    /// Streams and requests that are open: somebody looks.
    pub(crate) clients: AtomicUsize,
    /// `serve --stop --workers` goes on: no new task, no new place.
    pub(crate) stopping: AtomicBool,
    /// Codes and cookies of browsers.
    pub(crate) logins: crate::http::Logins,
    /// How often callers may try.
    pub(crate) limits: crate::http::Limits,
    /// One keyed request at a time.
    pub(crate) idempotency: tokio::sync::Mutex<()>,
    /// When open permission requests run out.
    pub(crate) deadlines: crate::live::Deadlines,
    /// Counters.
    pub(crate) recorder: metrics_exporter_prometheus::PrometheusRecorder,
    sandbox: tokio::sync::OnceCell<SandboxFacts>,
    pub(crate) bearer_token: String,
    pub(crate) webhook_key: String,
    /// Signs what goes to the remote channel and what comes from it.
    pub(crate) channel_key: String,
    /// Answers that came from there.
    pub(crate) nonces: crate::channel::Nonces,
    /// Where the HTTP API listens.
    pub(crate) address: std::net::SocketAddr,
    /// Where calls wait when a provider's limit was met.
    pub(crate) gates: Gates,
    places: Arc<Semaphore>,
    /// Callbacks under way; they end with the server.
    background: TaskTracker,
    /// Sessions that want a place and found none.
    places_wanted: Mutex<Vec<SessionHandle>>,
    reserved_ids: Mutex<HashSet<String>>,
    tokens: Mutex<HashMap<(WorkerId, RunNumber), String>>,
    port_base: AtomicU16,
}

/// A place for a worker; told to waiting sessions when it is dropped.
pub(crate) struct Place {
    shared: Arc<Shared>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.permit.take();
        let waiting = self.shared.places_wanted.lock().map(|mut waiting| std::mem::take(&mut *waiting));
        for handle in waiting.unwrap_or_default() {
            // A full queue settles soon by itself.
            handle.orders.try_send(Order::PlaceFree).ok();
        }
    }
}

impl Shared {
    /// Where the HTTP API listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// A place for a worker, or none: then the session is told when one becomes free.
    pub(crate) fn take_place(self: &Arc<Self>, handle: &SessionHandle) -> Option<Place> {
        if self.stopping.load(Ordering::Relaxed) {
            return None;
        }
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Some(Place { shared: Arc::clone(self), permit: Some(permit) }),
            Err(_) => {
                if let Ok(mut waiting) = self.places_wanted.lock()
                    && !waiting.iter().any(|known| known.id == handle.id)
                {
                    waiting.push(handle.clone());
                }
                None
            }
        }
    }

    /// What keeps a worker with a worktree below `root` from being started: memory or disk that is not free.
    pub(crate) async fn lacks(&self, root: PathBuf) -> Option<Lack> {
        self.room(root).await.lacks(&Floors::new(&self.settings))
    }

    /// What is free for workers with worktrees below `root`.
    pub(crate) async fn room(&self, root: PathBuf) -> Room {
        let home = self.home.root().to_owned();
        // A file system may take its time.
        tokio::task::spawn_blocking(move || Room::measure(&[&home, &root])).await.unwrap_or_default()
    }

    /// Runs something beside sessions until it is done or the server ends.
    pub(crate) fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.background.spawn(async move { shutdown.run_until_cancelled_owned(work).await });
    }

    /// A provider refused a call because there were too many.
    pub(crate) fn count_limit(&self, provider: &str) {
        metrics::with_local_recorder(&self.recorder, || {
            metrics::counter!("swarm_rate_limits_total", "provider" => provider.to_owned()).increment(1);
        });
    }

    /// An id that no worker of this home ever had.
    pub(crate) async fn reserve_worker_id(&self) -> Result<WorkerId, String> {
        for attempt in 0..64 {
            let text = format!("{}{}", WorkerId::PREFIX, crate::home::random_suffix(3 + attempt / 8));
            let fresh = self.reserved_ids.lock().is_ok_and(|mut reserved| reserved.insert(text.clone()));
            if !fresh {
                continue;
            }
            let wanted = text.clone();
            let taken = self
                .journal
                .query(move |connection| {
                    let mut statement =
                        connection.prepare_cached("SELECT 1 FROM workers WHERE worker_id = ?1")?;
                    Ok(statement.exists([wanted])?)
                })
                .await
                .map_err(|error| error.to_string())?;
            if !taken {
                return text.parse().map_err(|error| format!("{error}"));
            }
        }
        Err("no free worker id was found".to_owned())
    }

    /// The next ten ports.
    pub(crate) fn next_port_base(&self) -> u16 {
        let first = self.settings.worktree_port_base;
        let step =
            |base: u16| if base >= LAST_PORT_BASE { Some(first) } else { Some(base + PORTS_PER_WORKER) };
        self.port_base.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or(first)
    }

    /// A run is about to be started with this token.
    pub(crate) fn expect_token(&self, worker_id: &WorkerId, run: RunNumber, token: &str) {
        if let Ok(mut tokens) = self.tokens.lock() {
            tokens.insert((worker_id.clone(), run), sha256_hex(token.as_bytes()));
        }
    }

    /// A run ended: its token opens nothing any more.
    pub(crate) fn forget_token(&self, worker_id: &WorkerId, run: RunNumber) {
        if let Ok(mut tokens) = self.tokens.lock() {
            tokens.remove(&(worker_id.clone(), run));
        }
    }

    /// SHA-256 of the token a run was started with.
    pub(crate) fn expected_token(&self, worker_id: &WorkerId, run: RunNumber) -> Option<String> {
        self.tokens.lock().ok()?.get(&(worker_id.clone(), run)).cloned()
    }

    /// The key of an endpoint: the session's, else the server's own.
    pub(crate) fn key_for(&self, endpoint: &ModelEndpoint, keys: &KeyRing) -> Option<String> {
        keys.0.get(&endpoint.provider).cloned().or_else(|| {
            let environment = |name: &str| self.environment.get(name).cloned();
            let resolved = model_client::resolve_endpoint(
                &endpoint.display_name(),
                &profiles(&self.settings),
                &environment,
            );
            resolved.ok()?.key?.read(&environment)
        })
    }

    /// A model, ready to be asked.
    pub(crate) fn connect(
        &self,
        endpoint: &ModelEndpoint,
        keys: &KeyRing,
    ) -> Result<Arc<dyn Model>, StartError> {
        let key = self.key_for(endpoint, keys);
        model_client::connect(endpoint, key.as_deref(), &self.http).map_err(|error| match error {
            ConnectError::NoKey { endpoint } => StartError::NoKey { endpoint },
            other => StartError::Other(swarm_protocol::error_chain(&other)),
        })
    }
}

/// What this machine's sandbox holds, as `swarm-worker probe` found it.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub(crate) struct SandboxFacts {
    pub(crate) tier: u8,
    #[serde(default)]
    pub(crate) notes: Vec<String>,
}

impl Shared {
    /// The sandbox of this machine; probed once, by the worker binary, never in this process.
    pub(crate) async fn sandbox(&self) -> SandboxFacts {
        let facts = self.sandbox.get_or_init(|| async {
            let probed = tokio::process::Command::new(&self.worker_binary)
                .arg("probe")
                .stdin(std::process::Stdio::null())
                .output()
                .await;
            match probed {
                Ok(output) => serde_json::from_slice(&output.stdout).unwrap_or_default(),
                Err(error) => {
                    SandboxFacts { tier: 0, notes: vec![format!("the probe did not run: {error}")] }
                }
            }
        });
        facts.await.clone()
    }
}

/// Knows the keys of the server's own environment; those of sessions come with their clients.
fn masker(environment: &BTreeMap<String, String>) -> Masker {
    const ENDINGS: [&str; 4] = ["_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];
    let masker = Masker::default();
    for (name, value) in environment {
        // A path to a key is none.
        if ENDINGS.iter().any(|ending| name.to_ascii_uppercase().ends_with(ending)) && !value.contains('/') {
            masker.know(value);
        }
    }
    masker
}

/// Endpoint profiles as `model-client` takes them.
pub(crate) fn profiles(settings: &Config) -> BTreeMap<String, Profile> {
    settings
        .endpoints
        .iter()
        .map(|(name, profile)| {
            let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let profile = Profile {
                api: profile.api,
                base_url: profile.base_url.clone(),
                key_env: profile.key_env.clone(),
                bearer: profile.bearer,
                headers: profile.headers.clone(),
                context_window: profile.context_window,
                max_output: profile.max_output,
                max_request_bytes: profile.max_request_bytes,
                defer_tools: profile.defer_tools,
                first_byte_timeout_ms: profile.first_byte_timeout.map(millis),
                cache_ttl_ms: profile.cache_ttl.map(millis),
                price: profile.price,
            };
            (name.clone(), profile)
        })
        .collect()
}

/// A server that has its home, journal and sockets, and serves when told to.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    socket: tokio::net::UnixListener,
    lock: HomeLock,
}

impl Server {
    /// Takes the home and opens everything; nothing is served yet. The listener is the caller's.
    pub async fn open(
        config: ServerConfig,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<Self, ServerError> {
        let ServerConfig { home, swarm_binary, worker_binary, settings, environment, user_home } = config;
        home.create()?;
        let lock = home.lock()?;
        let journal = SqliteJournal::open(&home.journal())?;
        let socket_path = home.socket()?;
        let listening = |what: String| move |source| ServerError::Listen { what, source };
        let socket = socket::bind(&socket_path).map_err(listening(socket_path.display().to_string()))?;
        let address = listener.local_addr().map_err(listening("a TCP port".to_owned()))?;
        let masker = masker(&environment);
        let shared = Arc::new(Shared {
            version: env!("CARGO_PKG_VERSION"),
            stopping: AtomicBool::new(false),
            logins: crate::http::Logins::default(),
            limits: crate::http::Limits::new(settings.server_tasks_per_minute),
            idempotency: tokio::sync::Mutex::default(),
            deadlines: crate::live::Deadlines::default(),
            recorder: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder(),
            sandbox: tokio::sync::OnceCell::new(),
            bearer_token: home.secret("token")?,
            webhook_key: home.secret("webhook.key")?,
            channel_key: home.secret("channel.key")?,
            nonces: crate::channel::Nonces::default(),
            home,
            journal,
            live: LiveTable::default(),
            sessions: Sessions::default(),
            swarm_binary,
            worker_binary,
            socket: socket_path,
            http: HttpClient::new()?,
            gates: Gates::default(),
            places: Arc::new(Semaphore::new(settings.max_workers_per_server as usize)),
            port_base: AtomicU16::new(settings.worktree_port_base),
            settings,
            environment,
            masker,
            user_home,
            started_at: clock::now(),
            shutdown,
            clients: AtomicUsize::new(0),
            address,
            background: TaskTracker::new(),
            places_wanted: Mutex::default(),
            reserved_ids: Mutex::default(),
            tokens: Mutex::default(),
        });
        Ok(Self { shared, listener, socket, lock })
    }

    /// What the parts share, for who starts the server in a test.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Loads sessions, tells clients where the server is, and serves until shutdown.
    pub async fn run(self) -> Result<(), ServerError> {
        let Self { shared, listener, socket, lock } = self;
        let mut parts = JoinSet::new();
        // Sessions first: a worker whose session is not known yet would be refused for good.
        crate::sessions::load(&shared).await?;
        crate::workers::finish::remove_temps(&shared, shared.home.temps_put_away());
        parts.spawn(socket::serve(Arc::clone(&shared), socket));
        let process = process_identity(std::process::id().cast_signed());
        shared.home.write_server_file(&ServerFile {
            address: shared.address.to_string(),
            process: process.ok_or(ServerError::Listen {
                what: "/proc".to_owned(),
                source: std::io::Error::other("this process is not in /proc"),
            })?,
            version: shared.version.to_owned(),
            socket: shared.socket.to_string_lossy().into_owned(),
        })?;
        tracing::info!(address = %shared.address, home = %shared.home.root().display(), "listening");
        parts.spawn(watch_idleness(Arc::clone(&shared)));
        let gates = Arc::clone(&shared);
        parts.spawn(async move { gates.gates.serve(&gates.shutdown).await });
        let router = crate::http::router(Arc::clone(&shared));
        let stop = shared.shutdown.clone();
        // Failed attempts are counted by the address they come from.
        let service = router.into_make_service_with_connect_info::<std::net::SocketAddr>();
        let served = axum::serve(listener, service)
            .with_graceful_shutdown(async move { stop.cancelled().await })
            .await;
        shared.shutdown.cancel();
        // The file names a server that no longer is.
        std::fs::remove_file(shared.home.server_file()).ok();
        shared.background.close();
        shared.background.wait().await;
        shared.sessions.close().await;
        parts.abort_all();
        while parts.join_next().await.is_some() {}
        tmux_end_if_idle(&shared).await;
        shared.journal.close();
        drop(lock);
        served.map_err(ServerError::Serve)
    }
}

/// Windows of workers that run on stay; without such a worker tmux has nothing to show.
async fn tmux_end_if_idle(shared: &Shared) {
    let live = shared
        .journal
        .query(|connection| {
            let sql = "SELECT COUNT(*) FROM workers WHERE status NOT IN ('completed', 'failed', 'aborted')";
            Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?)
        })
        .await;
    if live.is_ok_and(|live| live == 0) {
        tmux::end(shared).await;
    }
}

/// Ends the server when nobody has needed it for the configured time.
async fn watch_idleness(shared: Arc<Shared>) {
    let patience = shared.settings.server_idle_exit;
    let mut idle_since = tokio::time::Instant::now();
    let mut look = tokio::time::interval(IDLE_LOOK.min(patience));
    loop {
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            _ = look.tick() => {}
        }
        if shared.clients.load(Ordering::Relaxed) > 0 || anybody_works(&shared).await {
            idle_since = tokio::time::Instant::now();
        } else if idle_since.elapsed() >= patience {
            tracing::info!("nobody needs the server: it ends");
            shared.shutdown.cancel();
            return;
        }
    }
}

async fn anybody_works(shared: &Shared) -> bool {
    for handle in shared.sessions.all() {
        let busy = handle
            .read(|model| {
                model.workers_live() || matches!(model.state, SessionState::Active | SessionState::Waiting)
            })
            .await;
        if busy.unwrap_or(false) {
            return true;
        }
    }
    false
}
