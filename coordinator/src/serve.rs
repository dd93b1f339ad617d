//! `swarm serve`: from settings and environment to a server that serves until it is told to end.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use agent_host::{Config, ConfigError, ConfigInputs, ConfigReadError, TomlText};
use tokio::{net::TcpListener, signal::unix::SignalKind};
use tokio_util::sync::CancellationToken;

use crate::{
    home::Home,
    server::{Server, ServerConfig, ServerError},
    submit,
};

/// What the command line gives a server.
#[derive(Clone, Debug)]
pub(crate) struct ServeOptions {
    /// Its home.
    pub(crate) home: Home,
    /// The user's home directory.
    pub(crate) user_home: PathBuf,
    /// `--port`; else the setting, else a free one.
    pub(crate) port: Option<u16>,
    /// The environment of the server.
    pub(crate) environment: BTreeMap<String, String>,
}

/// Why no server serves.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A settings file.
    #[error(transparent)]
    ConfigRead(#[from] ConfigReadError),
    /// The port is taken.
    #[error("port {port} of 127.0.0.1 is taken")]
    PortTaken {
        /// Which.
        port: u16,
    },
    /// The port cannot be used for another reason.
    #[error("cannot listen on 127.0.0.1:{port}")]
    Listen {
        /// Which.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// The worker's program is not beside ours.
    #[error("swarm-worker is not beside {}", .swarm.display())]
    NoWorkerBinary {
        /// Ours.
        swarm: PathBuf,
    },
    /// The server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Signals or our own path cannot be had.
    #[error("cannot start")]
    Process(#[source] std::io::Error),
}

/// The worker's program: beside ours, as both are installed together.
pub(crate) fn worker_binary() -> Result<(PathBuf, PathBuf), ServeError> {
    let swarm = std::env::current_exe().map_err(ServeError::Process)?;
    let worker = swarm.with_file_name("swarm-worker");
    if worker.is_file() { Ok((swarm, worker)) } else { Err(ServeError::NoWorkerBinary { swarm }) }
}

/// Serves until a signal, `serve --stop`, or idleness. `ready` is called with the address once it serves.
pub(crate) async fn serve(options: ServeOptions, ready: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
    let ServeOptions { home, user_home, port, environment } = options;
    let (swarm_binary, worker_binary) = worker_binary()?;
    let own = TomlText::read(&home.config(), &submit::shown(&home.config(), &user_home))?;
    let env: Vec<(String, String)> = environment.clone().into_iter().collect();
    let settings = Config::new(&ConfigInputs { home: own.as_ref(), env: &env, ..ConfigInputs::default() })?;
    let port = port.unwrap_or(settings.server_port);
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServeError::PortTaken { port },
            _ => ServeError::Listen { port, source },
        })?;
    let shutdown = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate()).map_err(ServeError::Process)?;
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt()).map_err(ServeError::Process)?;
    let config = ServerConfig { home, swarm_binary, worker_binary, settings, environment, user_home };
    let server = Server::open(config, listener, shutdown.clone()).await?;
    ready(server.shared().address());
    // Workers run on after a signal, as after `serve --stop --leave`.
    let run = server.run();
    tokio::pin!(run);
    loop {
        tokio::select! {
            served = &mut run => return Ok(served?),
            _ = terminate.recv() => shutdown.cancel(),
            _ = interrupt.recv() => shutdown.cancel(),
        }
    }
}
