//! The only file that starts git. Runs one command with a scrubbed environment, bounded output and a
//! time limit, and sorts its failures. Knows no subcommand's meaning: parsing is in `porcelain`.
//!
//! No command started here may run a program a repository names: hooks and fsmonitor are always off,
//! and filters and merge drivers are switched off by name (see [`Neutral`]), because a checkout that
//! an agent can write to chooses them by `.gitattributes`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

mod config;
mod environment;
mod error;
mod group;
mod programs;

pub use self::config::{GitConfig, LockPatience};
pub(crate) use self::environment::alternate_element;
pub use self::error::GitError;

use self::group::{GRACE, Group};
use self::programs::Programs;

/// Whether a command may take optional locks and how long it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Where a command works. `Discover` is only for the directory a person stands in; a worktree that an
/// agent can write to is always named by `Repo`, since its `.git` file may have been replaced.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Discover(PathBuf),
    Repo { git_dir: PathBuf, common_dir: PathBuf, work_tree: Option<PathBuf> },
}

/// Configuration that takes the commands of filters and merge drivers away.
///
/// A driver becomes `false`, so a file that needs one is reported as a conflict instead of being
/// merged wrongly; a filter becomes empty, so a file is checked out and stored as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neutral(pub(crate) Arc<[(Vec<u8>, Vec<u8>)]>);

/// Output of a command that ran to its end.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    command: String,
}

/// A way to start git.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    config: Arc<GitConfig>,
    programs: Arc<Programs>,
}

const STDOUT_LIMIT_BYTES: usize = 512 * 1024 * 1024;
const STDERR_LIMIT_BYTES: usize = 64 * 1024;

impl Git {
    pub(crate) fn new(config: GitConfig) -> Self {
        let programs = Arc::new(Programs::new(&config));
        Self { config: Arc::new(config), programs }
    }

    pub(crate) fn lock_patience(&self) -> LockPatience {
        self.config.lock_patience
    }

    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        place: &Place,
        access: Access,
        args: impl IntoIterator<Item = A>,
    ) -> GitCommand {
        GitCommand {
            git: self.clone(),
            place: place.clone(),
            access,
            args: args.into_iter().map(|a| a.as_ref().to_owned()).collect(),
            env: Vec::new(),
            stdin: None,
            neutral: Neutral::default(),
        }
    }
}

/// One command being put together.
#[must_use = "a command does nothing until it is run"]
pub(crate) struct GitCommand {
    git: Git,
    place: Place,
    access: Access,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Input>,
    neutral: Neutral,
}

enum Input {
    Bytes(Vec<u8>),
    File(std::fs::File),
}

impl GitCommand {
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(Input::Bytes(bytes));
        self
    }

    pub(crate) fn stdin_file(mut self, file: std::fs::File) -> Self {
        self.stdin = Some(Input::File(file));
        self
    }

    pub(crate) fn neutral(mut self, neutral: &Neutral) -> Self {
        self.neutral = neutral.clone();
        self
    }

    /// The subcommand for messages: arguments can be long and hold contents.
    fn title(&self) -> String {
        let mut title = String::from("git");
        for arg in self.args.iter().take(4) {
            title.push(' ');
            title.push_str(&crate::types::printable(arg.as_bytes()));
        }
        if self.args.len() > 4 {
            title.push_str(" …");
        }
        title
    }

    /// Runs and requires exit code 0.
    pub(crate) async fn ok(self) -> Result<Vec<u8>, GitError> {
        self.run().await?.success()
    }

    /// Runs to the end, whatever the exit code.
    pub(crate) async fn run(mut self) -> Result<Output, GitError> {
        let title = self.title();
        let limit = match self.access {
            Access::Read => self.git.config.read_timeout,
            Access::Write => self.git.config.write_timeout,
        };
        let input = self.stdin.take();
        let mut command = self.build()?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let bytes = match input {
            None => {
                command.stdin(Stdio::null());
                None
            }
            Some(Input::File(file)) => {
                command.stdin(file);
                None
            }
            Some(Input::Bytes(bytes)) => {
                command.stdin(Stdio::piped());
                Some(bytes)
            }
        };
        let mut child = command
            .spawn()
            .map_err(|source| GitError::Start { program: self.git.config.program.clone(), source })?;
        let mut group = Group(child.id());
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let work = async {
            let feed = async {
                if let (Some(mut pipe), Some(bytes)) = (stdin, bytes) {
                    // A child that stops reading early tells why by its exit code.
                    drop(pipe.write_all(&bytes).await);
                }
            };
            let ((), out, err) = tokio::join!(
                feed,
                read_bounded(stdout, STDOUT_LIMIT_BYTES),
                read_bounded(stderr, STDERR_LIMIT_BYTES)
            );
            let status = child.wait().await;
            (out, err, status)
        };
        let finished = tokio::time::timeout(limit, work).await;
        let Ok((out, err, status)) = finished else {
            group.end();
            if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
                group.kill();
                drop(child.wait().await);
            }
            group.0 = None;
            return Err(GitError::Timeout { command: title, after: limit });
        };
        group.0 = None;
        let pipe = |source| GitError::Pipe { command: title.clone(), source };
        let (stdout, cut) = out.map_err(pipe)?;
        let (stderr, _) = err.map_err(pipe)?;
        let status = status.map_err(pipe)?;
        if cut {
            return Err(GitError::TooMuchOutput { command: title, limit_bytes: STDOUT_LIMIT_BYTES });
        }
        Ok(Output {
            code: status.code(),
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            command: title,
        })
    }

    fn build(&self) -> Result<Command, GitError> {
        let program = &self.git.config.program;
        let (found, path) = self.git.programs.outside(program, &self.place);
        let found = found.ok_or_else(|| GitError::Start {
            program: program.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let mut command = Command::new(found);
        environment::scrub(&mut command);
        environment::keep_quiet(&mut command, self.access);
        environment::work_in(&mut command, &self.place);
        environment::configure(&mut command, &self.neutral);
        command.envs(self.git.config.env.iter().map(|(k, v)| (k, v)));
        command.env("PATH", if path.is_empty() { OsString::from("/usr/bin:/bin") } else { path });
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.args(&self.args);
        Ok(command)
    }
}

impl Output {
    pub(crate) fn success(self) -> Result<Vec<u8>, GitError> {
        if self.code == Some(0) {
            return Ok(self.stdout);
        }
        Err(self.into_error())
    }

    pub(crate) fn into_error(self) -> GitError {
        match error::lock_named_in(&self.stderr) {
            Some(path) => GitError::Locked { command: self.command, path },
            None => GitError::Failed { command: self.command, code: self.code, stderr: self.stderr },
        }
    }

    pub(crate) fn unreadable(&self, problem: &'static str) -> GitError {
        GitError::Answer { command: self.command.clone(), problem }
    }
}

/// Reads to the end but keeps at most `limit` bytes; says whether something was cut.
async fn read_bounded(
    pipe: Option<impl AsyncRead + Unpin>,
    limit: usize,
) -> std::io::Result<(Vec<u8>, bool)> {
    let Some(mut pipe) = pipe else {
        return Ok((Vec::new(), false));
    };
    let mut kept = Vec::new();
    let mut cut = false;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let n = pipe.read(&mut chunk).await?;
        if n == 0 {
            return Ok((kept, cut));
        }
        let room = limit - kept.len();
        cut |= n > room;
        kept.extend_from_slice(&chunk[..n.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_dropped_command_has_ended() {
        let git = Git::new(GitConfig { program: PathBuf::from("sleep"), ..GitConfig::default() });
        let place = Place::Discover(PathBuf::from("/"));
        let mut run = Box::pin(git.command(&place, Access::Read, ["987654"]).run());
        let started = std::future::poll_fn(|cx| std::task::Poll::Ready(run.as_mut().poll(cx).is_pending()));
        assert!(started.await);
        let sleeping = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let children = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
            let all = children.collect::<Vec<_>>().join(" ");
            // Its own number of seconds tells it from other tests' commands; a dead one has no line.
            let lines = all
                .split_whitespace()
                .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
            lines.filter(|line| line.contains("987654")).count()
        };
        // The kernel's list of children may be read before the new one is in it.
        for _ in 0..500 {
            if sleeping() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(sleeping(), 1);
        drop(run);
        assert_eq!(sleeping(), 0);
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_ended() {
        let git = Git::new(GitConfig {
            program: PathBuf::from("sleep"),
            read_timeout: Duration::from_millis(50),
            ..GitConfig::default()
        });
        let place = Place::Discover(PathBuf::from("/"));
        let result = git.command(&place, Access::Read, ["1000"]).run().await;
        assert!(matches!(result, Err(GitError::Timeout { .. })), "{result:?}");
    }
}
