//! Finds the server of a home, or starts one. Two shells that start one at once end up with one server: the
//! home's lock decides, and the loser's shell talks to the winner.

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use swarm_protocol::api::{ServerFile, StopServerBody};

use super::{
    client::Client,
    error::{CliError, Result},
    shell::Shell,
};
use crate::{
    home::{self, HomeError},
    room::free_disk,
};

/// The exit code of a server that found the home taken: its shell waits for the other one.
pub(crate) const EXIT_HOME_TAKEN: u8 = 75;

/// A server reads its journal before it answers; a large one takes a while on a slow disk.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// How long to wait for the server that took the home before us.
const OTHER_DEADLINE: Duration = Duration::from_secs(15);

/// How long a server that was told to end is waited for.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// How often a starting server is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Lines of the server's log that an error shows.
const LOG_LINES: usize = 5;

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) client: Client,
    pub(crate) file: ServerFile,
    /// Whether this command started it.
    pub(crate) started: bool,
}

/// The server of this home that runs now, whatever its version; nothing is started.
pub(crate) async fn running(shell: &Shell) -> Result<Option<Found>> {
    let Some(file) = shell.home.read_server_file().map_err(|error| home_error(shell, &error))? else {
        return Ok(None);
    };
    if !home::is_alive(&file.process) {
        return Ok(None);
    }
    let token = shell.home.secret("token").map_err(|error| home_error(shell, &error))?;
    let client = Client::new(&file.address, &token)?;
    // A process that lives and does not answer yet is starting, or ending.
    Ok(client.is_healthy().await.then_some(Found { client, file, started: false }))
}

/// The server of this home, of this version; nothing is started.
pub(crate) async fn compatible(shell: &Shell) -> Result<Option<Found>> {
    match running(shell).await? {
        Some(found) => check_version(shell, &found).map(|()| Some(found)),
        None => Ok(None),
    }
}

/// The server of this home; started when none runs.
pub(crate) async fn find_or_start(shell: &Shell) -> Result<Found> {
    if let Some(found) = compatible(shell).await? {
        return Ok(found);
    }
    shell.home.create().map_err(|error| home_error(shell, &error))?;
    let mut child = start(shell)?;
    let began = Instant::now();
    let mut taken_since: Option<Instant> = None;
    loop {
        if let Some(mut found) = running(shell).await? {
            check_version(shell, &found)?;
            found.started = i32::try_from(child.id()).is_ok_and(|pid| pid == found.file.process.pid);
            return Ok(found);
        }
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(i32::from(EXIT_HOME_TAKEN)) => {
                let since = *taken_since.get_or_insert_with(Instant::now);
                if since.elapsed() > OTHER_DEADLINE {
                    return Err(failed(shell, "another server holds this home and does not answer"));
                }
                // The other one may have been about to end: then the home is free again.
                if since.elapsed() > OTHER_DEADLINE / 3 && shell.home.lock().is_ok() {
                    child = start(shell)?;
                    taken_since = None;
                }
            }
            Ok(Some(status)) => return Err(failed(shell, &format!("the server ended at once ({status})"))),
            Ok(None) if began.elapsed() > START_DEADLINE => {
                return Err(failed(shell, "the server does not answer"));
            }
            Ok(None) => {}
            Err(error) => return Err(failed(shell, &format!("the server cannot be watched: {error}"))),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The server when there is something it could know; none when this home has never seen a session.
pub(crate) async fn for_reading(shell: &Shell) -> Result<Option<Found>> {
    if let Some(found) = compatible(shell).await? {
        return Ok(Some(found));
    }
    if shell.home.journal().exists() { find_or_start(shell).await.map(Some) } else { Ok(None) }
}

/// Ends a server that was started for a task it then refused: nothing is left behind, and the next command does
/// not meet it while it ends.
pub(crate) async fn end_if_started(found: &Found) {
    if !found.started {
        return;
    }
    // Whoever got in meanwhile keeps it: it refuses while workers run, and ends when idle anyway.
    let stopped: Result<serde_json::Value> =
        found.client.post("/server/stop", &StopServerBody::default()).await;
    let began = Instant::now();
    while stopped.is_ok() && home::is_alive(&found.file.process) && began.elapsed() < END_DEADLINE {
        tokio::time::sleep(LOOK).await;
    }
}

fn start(shell: &Shell) -> Result<Child> {
    let log_path = shell.home.log();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(|source| home_error(shell, &HomeError::Io { path: log_path.clone(), source }))?;
    let second =
        log.try_clone().map_err(|source| home_error(shell, &HomeError::Io { path: log_path, source }))?;
    let program = &shell.around.program;
    Command::new(program)
        .args(["serve", "--detached"])
        .env("SWARM_HOME", shell.home.root())
        .current_dir(shell.home.root())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .spawn()
        .map_err(|error| {
            CliError::new("no_server", "cannot start the server")
                .cause(format!("{}: {error}", shell.path(program)))
                .hint("install swarm and swarm-worker into one directory")
        })
}

fn check_version(shell: &Shell, found: &Found) -> Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    let theirs = &found.file.version;
    if theirs == ours {
        return Ok(());
    }
    Err(CliError::new("other_version", format!("a server of version {theirs} runs, this is swarm {ours}"))
        .cause(format!(
            "process {} serves {} at {}",
            found.file.process.pid,
            shell.path(shell.home.root()),
            found.file.address
        ))
        .hint("swarm serve --stop --leave, then again; its workers run on"))
}

fn failed(shell: &Shell, what: &str) -> CliError {
    let log = shell.home.log();
    let mut error = CliError::new("server_failed", what.to_owned());
    if let Ok(text) = std::fs::read_to_string(&log) {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        if !last.is_empty() {
            error = error.cause(last.join("\n"));
        }
    }
    error.hint(format!("its log is {}", shell.path(&log)))
}

/// An error of the home in the words of the table.
pub(crate) fn home_error(shell: &Shell, error: &HomeError) -> CliError {
    let root = shell.path(shell.home.root());
    match error {
        HomeError::Io { path, source } => {
            let cause = match free_disk(shell.home.root()) {
                Some(0) => format!("0 B free at {root}; nothing was started"),
                _ => format!("{}; nothing was started", shell.path(path)),
            };
            CliError::new("home_not_writable", format!("cannot write {root}: {}", plain(source)))
                .cause(cause)
                .hint("free space, or SWARM_HOME=/other/place swarm run ...")
        }
        HomeError::Locked { .. } => CliError::new("home_taken", error.to_string()).hint("swarm serve --stop"),
        HomeError::Damaged { .. } => CliError::new("home_damaged", error.to_string()),
    }
}

/// What the system said, without its number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}
