//! A home for `swarm`: its own `$HOME` and `$SWARM_HOME`, a clean environment, and an end that leaves nothing.

mod api;
mod run;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use self::{
    api::{Api, Event, Events},
    run::{Finished, Running},
};
use crate::{
    bins,
    model_server::ModelServer,
    process::{self, Process, directories},
    wait::{SOON, eventually, eventually_blocking},
};

/// The model that [`SwarmHome::new`] configures.
pub const MODEL: &str = "anthropic/test-model";
/// The key it configures.
pub const API_KEY: &str = "test-key";

/// How long the server may take to stop when the home is dropped.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct SwarmHome {
    _dir: TempDir,
    root: PathBuf,
    environment: BTreeMap<OsString, OsString>,
}

impl SwarmHome {
    /// With a model: the scripted one. Make the model server first, so that it outlives this home's processes.
    pub fn new(model: &ModelServer) -> Self {
        let mut home = Self::without_model();
        home.set("ANTHROPIC_BASE_URL", model.url());
        home.set("ANTHROPIC_API_KEY", API_KEY);
        home.set("SWARM_MODEL", MODEL);
        home
    }

    pub fn without_model() -> Self {
        let dir = tempfile::Builder::new().prefix("swarm-").tempdir().expect("a temporary directory");
        let root = fs::canonicalize(dir.path()).expect("the directory exists");
        let mut home = Self { _dir: dir, root, environment: BTreeMap::new() };
        fs::create_dir(home.user_home()).expect("the directory is empty");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(bins::directory()).chain(std::env::split_paths(&path));
        home.set("PATH", std::env::join_paths(paths).expect("no path holds a colon"));
        home.set("HOME", home.user_home());
        home.set("SWARM_HOME", home.path());
        home
    }

    /// `$SWARM_HOME`.
    pub fn path(&self) -> PathBuf {
        self.root.join("s")
    }

    /// `$HOME`.
    pub fn user_home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// A variable of every command from now on.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) -> &mut Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    pub fn unset(&mut self, name: &str) -> &mut Self {
        self.environment.remove(&OsString::from(name));
        self
    }

    /// Writes `config.toml`.
    pub fn config(&self, toml: &str) -> &Self {
        fs::create_dir_all(self.path()).expect("the home is ours");
        fs::write(self.path().join("config.toml"), toml).expect("the home is ours");
        self
    }

    /// A command in this home; nothing of the test's own environment reaches it.
    pub fn command(&self, directory: &Path, arguments: &[&str]) -> std::process::Command {
        let program = bins::swarm();
        let mut command = std::process::Command::new(program);
        command.args(arguments).current_dir(directory).env_clear().envs(&self.environment);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, directory: &Path, arguments: &[&str]) -> Finished {
        self.start(directory, arguments).finish().await
    }

    /// Starts a command.
    pub fn start(&self, directory: &Path, arguments: &[&str]) -> Running {
        Running::start(self.command(directory, arguments), arguments)
    }

    /// What the server wrote of itself, if one has.
    pub fn server_file(&self) -> Option<Value> {
        let text = fs::read_to_string(self.path().join("server.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The process of the server, if one runs.
    pub fn server_process(&self) -> Option<Process> {
        process_of(&self.server_file()?)
    }

    /// A client of the running server; waits until there is one.
    ///
    /// # Panics
    /// When there is none soon.
    pub async fn api(&self) -> Api {
        eventually(SOON, "a running server", async || {
            let file = self.server_file().ok_or("no server.json")?;
            let address = file["address"].as_str().ok_or("no address in server.json")?;
            let token = fs::read_to_string(self.path().join("token"));
            let token = token.map_err(|_| "no token file")?;
            // Of the same file: the one of a server that was killed may be replaced between two looks.
            process_of(&file).ok_or("its process does not run")?;
            Ok::<_, &str>(Api::new(address, token.trim()))
        })
        .await
    }

    /// Processes that belong to this home: their environment, arguments or directory say so.
    pub fn processes(&self) -> Vec<Process> {
        process::of_directory(&self.root)
    }

    /// Those of them whose command line contains this.
    pub fn processes_named(&self, part: &str) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| process.command.contains(part));
        found
    }

    /// The same without copies: a child that has not yet become what it was made for still has its
    /// parent's command line.
    pub fn programs_named(&self, part: &str) -> Vec<Process> {
        let found = self.processes_named(part);
        let is_copy = |process: &Process| {
            found.iter().any(|other| other.pid == process.parent && other.command == process.command)
        };
        found.iter().filter(|process| !is_copy(process)).cloned().collect()
    }

    /// Kills the server alone, as a crash would.
    ///
    /// # Panics
    /// When none runs.
    pub async fn kill_server(&self) {
        let server = self.server_process().expect("a server runs");
        assert!(server.signal(Signal::SIGKILL), "the server could not be killed");
        let gone = async || if server.is_alive() { Err("it lives") } else { Ok(()) };
        eventually(SOON, "the server's end", gone).await;
    }

    /// Worktrees under this home.
    pub fn worktrees(&self) -> Vec<PathBuf> {
        let of_repositories = directories(&self.path().join("worktrees"));
        of_repositories.iter().flat_map(|directory| directories(directory)).collect()
    }

    /// What is still there that should not outlive the server: processes, then worktrees.
    pub fn leftovers(&self) -> Vec<String> {
        let processes = self.processes();
        let processes = processes.iter().map(|p| format!("process {} `{}`", p.pid, p.command));
        let worktrees = self.worktrees();
        let worktrees = worktrees.iter().map(|path| format!("worktree {}", path.display()));
        processes.chain(worktrees).collect()
    }

    /// Waits until nothing of this home runs.
    ///
    /// # Panics
    /// When something does for long; lists it.
    pub async fn assert_no_processes(&self) {
        eventually(SOON, "an end of all processes", async || {
            let processes = self.processes();
            if processes.is_empty() { Ok(()) } else { Err(format!("{processes:#?}")) }
        })
        .await;
    }

    /// Stops server and workers.
    pub async fn stop(&self) -> Finished {
        self.run(&self.user_home(), &["serve", "--stop", "--workers"]).await
    }

    fn stop_politely(&self) {
        let mut command = self.command(&self.user_home(), &["serve", "--stop", "--workers"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return };
        let start = std::time::Instant::now();
        while child.try_wait().is_ok_and(|status| status.is_none()) {
            if start.elapsed() > STOP_DEADLINE {
                let _gone_is_as_good = child.kill();
                let _reaped = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for SwarmHome {
    fn drop(&mut self) {
        if self.server_process().is_some() {
            self.stop_politely();
        }
        if std::thread::panicking() {
            self.processes().iter().for_each(|process| {
                process.signal(Signal::SIGKILL);
            });
            return;
        }
        // Killing one may let another start its successor, so look again.
        eventually_blocking(SOON, "an end of all processes", || {
            let processes = self.processes();
            for process in &processes {
                process.signal(Signal::SIGKILL);
            }
            if processes.is_empty() { Ok(()) } else { Err(format!("{processes:?}")) }
        });
    }
}

/// The live process that a server's file names.
fn process_of(file: &Value) -> Option<Process> {
    let pid = file["process"]["pid"].as_i64()?;
    // Of a killed server the file stays, and its id may be another's by now.
    let is_it = |process: &Process| file["process"]["start_time"].as_u64() == Some(process.start_time);
    Process::read(i32::try_from(pid).ok()?).filter(is_it).filter(Process::is_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_left_behind_is_found_and_ended() {
        let home = SwarmHome::without_model();
        let mut command = std::process::Command::new("sleep");
        command.arg("1000").env_clear().envs(&home.environment).env("PATH", "/usr/bin:/bin");
        let mut child = command.spawn().expect("sleep can be started");
        let found = async || if home.processes_named("sleep").is_empty() { Err("none") } else { Ok(()) };
        eventually(SOON, "the process", found).await;
        fs::create_dir_all(home.path().join("worktrees/p-1/agent-a")).expect("the home is ours");
        assert_eq!(home.leftovers().len(), 2, "{:?}", home.leftovers());
        assert!(home.server_process().is_none() && home.server_file().is_none());
        drop(home);
        let status = child.wait().expect("the child ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    #[tokio::test]
    async fn a_copy_made_for_a_child_is_no_program() {
        let home = SwarmHome::without_model();
        let mut command = std::process::Command::new("sh");
        // The subshell is such a copy, and stays one.
        command.args(["-c", "(read -r line); : copied"]).stdin(std::process::Stdio::piped());
        command.env_clear().envs(&home.environment).env("PATH", "/usr/bin:/bin");
        let mut child = command.spawn().expect("a shell can be started");
        let copied = async || match home.processes_named(": copied").len() {
            2 => Ok(()),
            n => Err(n),
        };
        eventually(SOON, "the shell and its copy", copied).await;
        let pids: Vec<i32> = home.programs_named(": copied").iter().map(|program| program.pid).collect();
        assert_eq!(pids, [child.id().cast_signed()]);
        drop(child.stdin.take());
        assert!(child.wait().expect("the child ends").success());
    }
}
