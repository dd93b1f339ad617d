//! Programs that are kept for a tool and talked to over their standard streams: language servers, interpreters. They
//! are confined and supervised as commands are, and gone with the shell's run at the latest: the helper dies with the
//! worker, and its tree with it.

use super::{
    LEFTOVER_GRACE, NATURAL_END, Shell,
    environment::{COMMAND_MARKER, RUN_MARKER},
    process::{end_by_marker, locked},
};
use crate::sandbox::{ExecRequest, POLICY_FLAG, SuperviseRequest, WriteScope};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio_util::task::AbortOnDropHandle;

/// Of what it said on its standard error, the end.
const STDERR_BYTES: usize = 4 * 1024;
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(500);
/// Added for the helper to see to it.
const HELPER_MARGIN: Duration = Duration::from_secs(7);

/// A program to keep.
#[derive(Debug)]
pub struct KeptRequest {
    pub argv: Vec<OsString>,
    /// On top of the shell's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What it may write, at most what the shell's commands may.
    pub write_scope: WriteScope,
}

/// A program that runs. Dropped before [`Kept::end`] it is told to end, without waiting.
#[derive(Debug)]
pub struct Kept {
    child: Child,
    marker: String,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    _listening: AbortOnDropHandle<()>,
    is_over: bool,
}

impl Shell {
    /// Starts a program in the worktree, confined as a command is, with pipes for its standard streams.
    ///
    /// # Errors
    /// The helper could not be started. A program that cannot be found ends at once with a word on its standard error.
    pub async fn keep(&self, request: KeptRequest) -> io::Result<(Kept, ChildStdin, ChildStdout)> {
        let config = &self.config;
        let mut policy = self.policy();
        if request.write_scope == WriteScope::ReadOnly {
            policy.write_scope = WriteScope::ReadOnly;
        }
        let cwd = policy.worktree.clone();
        let temp_dir = policy.temp_dir.clone();
        let helper_request = ExecRequest {
            policy,
            supervise: Some(SuperviseRequest {
                stop_grace: GRACE,
                cancel_grace: GRACE,
                natural: NATURAL_END,
                leftover_grace: LEFTOVER_GRACE,
            }),
            parent: Some(std::process::id().cast_signed()),
        };
        let marker = uuid::Uuid::new_v4().to_string();
        let mut command = Command::new(&config.helper);
        command
            // Its standard input is the program's own, so the request comes as an argument; nothing in it is secret.
            .args(["exec", POLICY_FLAG, &serde_json::to_string(&helper_request)?, "--"])
            .args(&request.argv)
            .env_clear()
            .envs(config.environment.iter())
            .env(RUN_MARKER, &config.run_id)
            .env("TMPDIR", temp_dir)
            .envs(request.environment)
            .env(COMMAND_MARKER, &marker)
            .env("PWD", &cwd)
            .current_dir(&cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.spawner.spawn(command).await?;
        let missing = || io::Error::other("a pipe of the program is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let listening =
            child.stderr.take().map(|stream| listen(stream, stderr.clone())).ok_or_else(missing)?;
        let listening = AbortOnDropHandle::new(tokio::spawn(listening));
        Ok((Kept { child, marker, stderr, _listening: listening, is_over: false }, stdin, stdout))
    }
}

/// Keeps the end of what comes, so that the program never waits for a reader.
async fn listen(mut stream: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>) {
    let mut buffer = vec![0; STDERR_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let mut kept = locked(&kept);
        kept.extend(&buffer[..count]);
        let excess = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..excess);
    }
}

impl Kept {
    /// The end of what it said on its standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        let bytes: Vec<u8> = locked(&self.stderr).iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Waits until it has ended by itself, and all that it started is gone. Cancel-safe.
    pub async fn ended(&mut self) -> String {
        let status = self.child.wait().await;
        self.is_over = true;
        status.map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    /// Ends it, and what it started.
    pub async fn end(mut self) {
        self.tell(Signal::SIGTERM);
        if tokio::time::timeout(GRACE + HELPER_MARGIN, self.child.wait()).await.is_err() {
            tracing::warn!("the helper of a kept program is stuck; killing its tree");
            let _ended = end_by_marker(self.marker.clone(), self.pid()).await;
        }
        self.is_over = true;
    }

    fn tell(&self, signal: Signal) {
        // While it is not waited for, the id is the helper's.
        if let Some(pid) = self.pid() {
            let _gone: nix::Result<()> = kill(Pid::from_raw(pid), signal);
        }
    }

    fn pid(&self) -> Option<i32> {
        self.child.id().map(u32::cast_signed)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_over {
            // The helper ends the tree by itself; the runtime reaps it.
            self.tell(Signal::SIGTERM);
        }
    }
}
