//! `swarm serve`: the server in this process, or the end of the one that runs.

use agent_host::secrets::MaskedWriter;
use serde_json::{Value, json};
use swarm_protocol::api::{StopServerBody, WorkerView};

use super::super::{
    args::ServeArgs,
    error::{CliError, Result},
    format,
    ids::Known,
    link::Links,
    prefix::Prefixes,
    rows::{self, Columns, Look},
    server_process,
    shell::{Shell, now},
    state::WorkerRow,
    task,
};
use crate::{
    home::{self, HomeError},
    serve::{self, ServeError, ServeOptions},
    server::ServerError,
};

/// How long a server may take to commit its workers' work and end.
const END_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs the server until it is told to end.
pub(crate) fn serve(shell: &mut Shell, args: &ServeArgs) -> Result<u8> {
    if args.detached {
        // The command that started us may end with its terminal; we do not. It fails only for the leader of a
        // group, which then has its own session or is in a shell that wants it so.
        let _leader = nix::unistd::setsid();
    }
    shell.home.create().map_err(|error| server_process::home_error(shell, &error))?;
    let options = ServeOptions {
        home: shell.home.clone(),
        user_home: shell.around.user_home.clone(),
        port: args.port,
        environment: shell.around.variables.clone(),
    };
    log(shell, args.detached);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        CliError::new("server_failed", "cannot start the server").cause(error.to_string())
    })?;
    let home = shell.path(shell.home.root());
    let served = runtime.block_on(serve::serve(options, |address| {
        shell.notice(&format!("listening on {address}, home {home}"));
    }));
    served.map(|()| 0).map_err(|error| start_error(shell, error, args.detached))
}

/// Lines of the server: JSON for the file of a detached one, words for a person; `RUST_LOG` chooses.
fn log(shell: &Shell, detached: bool) {
    let chosen = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(if detached { "info" } else { "warn" }));
    let lines =
        tracing_subscriber::fmt().with_env_filter(chosen).with_writer(|| MaskedWriter(std::io::stderr()));
    // A subscriber that is there already (`-vv`) stays.
    let _already =
        if detached { lines.json().try_init() } else { lines.with_ansi(shell.err.has_colour()).try_init() };
}

fn start_error(shell: &Shell, error: ServeError, detached: bool) -> CliError {
    match error {
        ServeError::Server(ServerError::Home(home)) => {
            let mut shown = server_process::home_error(shell, &home);
            // For the command that started us and waits for the other one; a person gets the usual code.
            if detached && matches!(home, HomeError::Locked { .. }) {
                shown.exit = server_process::EXIT_HOME_TAKEN;
            }
            shown
        }
        ServeError::Config(error) => task::config_error(&error),
        ServeError::ConfigRead(error) => {
            CliError::new("bad_config", error.to_string()).cause(error.source.to_string())
        }
        ServeError::PortTaken { port } => CliError::new("port_taken", format!("port {port} is taken"))
            .cause("something else listens on 127.0.0.1")
            .hint("another --port, or none for a free one"),
        error @ ServeError::NoWorkerBinary { .. } => CliError::new("no_worker_program", error.to_string())
            .hint("install swarm and swarm-worker into one directory"),
        error @ (ServeError::Listen { .. } | ServeError::Server(_) | ServeError::Process(_)) => {
            let mut shown = CliError::new("server_failed", error.to_string());
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                shown = shown.cause(cause.to_string());
                source = cause.source();
            }
            shown
        }
    }
}

/// Ends the server of this home, whatever its version.
pub(crate) async fn stop(shell: &mut Shell, args: &ServeArgs) -> Result<u8> {
    let Some(found) = server_process::running(shell).await? else {
        shell.notice("no server runs");
        return Ok(0);
    };
    let body = StopServerBody { workers: args.workers, leave: args.leave };
    let stopped: Result<Value> = found.client.post("/server/stop", &body).await;
    match stopped {
        Err(error) if error.code == "workers_running" => {
            let known = Known::load(shell, &found.client).await?;
            return Err(still_running(shell, error, &known.workers));
        }
        // It may have ended before its answer was whole.
        Err(error) if error.code != super::super::client::SERVER_GONE => return Err(error),
        Err(_) | Ok(_) => {}
    }
    let began = std::time::Instant::now();
    while home::is_alive(&found.file.process) {
        if began.elapsed() > END_PATIENCE {
            return Err(CliError::new("server_failed", "the server does not end")
                .cause(format!("process {}", found.file.process.pid))
                .hint("swarm serve --stop --leave"));
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    if shell.is_json() {
        shell.json("server.stopped", None, None, json!({"pid": found.file.process.pid}))?;
    } else {
        shell.out.line(&format!("server stopped (process {})", found.file.process.pid))?;
    }
    Ok(0)
}

fn still_running(shell: &mut Shell, error: CliError, workers: &[WorkerView]) -> CliError {
    let running: Vec<WorkerRow> =
        workers.iter().filter(|worker| !worker.status.is_ended()).map(WorkerRow::from).collect();
    let now = now();
    let columns = Columns::natural(
        &running
            .iter()
            .map(|row| {
                (
                    row.id.suffix().to_owned(),
                    super::super::text::visible(&row.name),
                    rows::doing(row, None, now),
                )
            })
            .collect::<Vec<_>>(),
    );
    if !shell.is_json() {
        let links = Links::default();
        let prefixes = Prefixes::over(running.iter().map(|row| row.id.suffix()));
        let look = Look { glyphs: shell.glyphs, links: &links, prefixes: &prefixes };
        for row in &running {
            let line = rows::still(&columns, look, row, None, now);
            let _unheard = shell.out.line(line.trim_end());
        }
    }
    let message = match running.len() {
        0 => error.message,
        n => format!("{} under way", format::count(n as u64, "worker")),
    };
    CliError::new("workers_running", message)
        .hint("swarm serve --stop --workers stops them, work committed; --stop --leave lets them run on")
}
