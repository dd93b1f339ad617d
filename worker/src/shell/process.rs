//! One command as a process: the helper, the pipe of its output, the socket of its report.

use super::environment::COMMAND_MARKER;
use super::output::Collector;
use super::processes::{self, EndTiming};
use super::spawner::Spawner;
use crate::sandbox::{ExecReport, ExecRequest, POLICY_FD_FLAG};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use swarm_protocol::process::ProcessExit;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::task::task_tracker::{TaskTracker, TaskTrackerToken};

/// How long output may come after the last process is gone. Nothing of the command can write then;
/// this is for a descriptor that has been handed to somebody else.
const DRAIN: Duration = Duration::from_secs(2);
/// Reading unit; a pipe holds 64 KiB.
const CHUNK: usize = 64 * 1024;
/// Added to the helper's own grace time before it counts as stuck and is killed with its tree.
const HELPER_MARGIN: Duration = Duration::from_secs(7);

/// What is needed to start one.
pub(super) struct Launch {
    pub(super) helper: PathBuf,
    pub(super) request: ExecRequest,
    pub(super) argv: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) cwd: PathBuf,
    /// Value of [`COMMAND_MARKER`].
    pub(super) marker: String,
}

/// A running command. Dropped before its end it is stopped, without waiting.
pub(super) struct Running {
    child: Child,
    report: UnixStream,
    report_line: Vec<u8>,
    pump: JoinHandle<()>,
    collector: Arc<Mutex<Collector>>,
    /// Rung when output has come.
    news: Arc<Notify>,
    marker: String,
    is_over: bool,
}

/// How a command is stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// What tells the helper which of its grace times holds.
    signal: Signal,
    grace: Duration,
}

impl Stop {
    /// It took too long.
    pub(super) fn kindly(grace: Duration) -> Self {
        Self { signal: Signal::SIGTERM, grace }
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(grace: Duration) -> Self {
        Self { signal: Signal::SIGINT, grace }
    }
}

/// A command that a call waits for. When the call is dropped the command is stopped all the same, by a task
/// that the tracker counts until the command and all it started are gone.
pub(super) struct Foreground {
    running: Option<Running>,
    stop: Stop,
    token: TaskTrackerToken,
}

impl Foreground {
    pub(super) fn new(running: Running, stop: Stop, tracker: &TaskTracker) -> Self {
        Self { running: Some(running), stop, token: tracker.token() }
    }

    pub(super) fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("only the drop takes it")
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take().filter(|running| !running.is_over) else { return };
        let (stop, token) = (self.stop, self.token.clone());
        // Outside of a runtime its own drop tells it to stop.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            running.tell(stop.signal);
            runtime.spawn(async move {
                running.stop(stop).await;
                drop(token);
            });
        }
    }
}

/// Locks a table that no panic can leave half-changed.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn start(launch: Launch, spawner: &Spawner, collector: Collector) -> io::Result<Running> {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let mut command = Command::new(&launch.helper);
    command
        .args(["exec", POLICY_FD_FLAG, "0", "--"])
        .args(&launch.argv)
        .env_clear()
        .envs(launch.environment)
        .env(COMMAND_MARKER, &launch.marker)
        .env("PWD", &launch.cwd)
        .current_dir(&launch.cwd)
        .stdin(OwnedFd::from(theirs))
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = spawner.spawn(command).await?;

    // A few kilobytes, which the socket takes at once whether or not the helper lives.
    let mut request = serde_json::to_vec(&launch.request)?;
    request.push(b'\n');
    // When the helper is gone already, its status says more than a broken pipe.
    let _broken: io::Result<()> = ours.write_all(&request);
    ours.set_nonblocking(true)?;

    let collector = Arc::new(Mutex::new(collector));
    let news = Arc::new(Notify::new());
    let receiver = pipe::Receiver::from_owned_fd(reader)?;
    let pump = tokio::spawn(pump(receiver, collector.clone(), news.clone()));
    Ok(Running {
        child,
        report: UnixStream::from_std(ours)?,
        report_line: Vec::new(),
        pump,
        collector,
        news,
        marker: launch.marker,
        is_over: false,
    })
}

/// Owned by `Running`, which waits for it or aborts it.
async fn pump(mut receiver: pipe::Receiver, collector: Arc<Mutex<Collector>>, news: Arc<Notify>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match receiver.read(&mut buffer).await {
            Ok(0) => return,
            Ok(count) => {
                locked(&collector).push(&buffer[..count]);
                news.notify_one();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "output of a command cannot be read");
                return;
            }
        }
    }
}

impl Running {
    pub(super) fn collector(&self) -> &Arc<Mutex<Collector>> {
        &self.collector
    }

    pub(super) fn news(&self) -> &Arc<Notify> {
        &self.news
    }

    /// Waits until the command and all it started are gone. Cancel-safe.
    pub(super) async fn ended(&mut self) -> ExecReport {
        loop {
            match self.report.read_buf(&mut self.report_line).await {
                Ok(0) => break,
                Ok(_) if self.report_line.ends_with(b"\n") => break,
                Ok(_) => {}
                // The helper died with our request unread; its status tells.
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                Err(_) => {}
            }
        }
        let status = self.child.wait().await;
        // The command's own failure to start stands before the helper's report about it.
        let line = self.report_line.split(|byte| *byte == b'\n').next();
        match serde_json::from_slice(line.unwrap_or_default()) {
            Ok(report) => {
                self.is_over = true;
                report
            }
            Err(_) => self.helper_lost(status).await,
        }
    }

    /// The helper was killed from outside, so its tree hangs elsewhere and only the marker finds it.
    async fn helper_lost(&mut self, status: io::Result<ExitStatus>) -> ExecReport {
        let ended = end_by_marker(self.marker.clone(), None).await;
        self.is_over = true;
        let exit = match status {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ProcessExit::Code(code),
                (None, signal) => ProcessExit::Signal(signal.unwrap_or_default()),
            },
            Err(error) => {
                return ExecReport::NotStarted { message: error.to_string() };
            }
        };
        ExecReport::Ended { exit, killed: ended.killed, survivors: ended.survivors }
    }

    /// Stops the command as its request says: SIGTERM to its tree, SIGKILL after the grace time.
    pub(super) async fn stop(&mut self, stop: Stop) -> ExecReport {
        self.tell(stop.signal);
        if let Ok(report) = tokio::time::timeout(stop.grace + HELPER_MARGIN, self.ended()).await {
            return report;
        }
        tracing::warn!("the helper of a command is stuck; killing its tree");
        let _ended = end_by_marker(self.marker.clone(), self.pid()).await;
        self.ended().await
    }

    /// Waits for the last output, a limited time. Call after the end.
    pub(super) async fn drain(&mut self) {
        if tokio::time::timeout(DRAIN, &mut self.pump).await.is_err() {
            self.pump.abort();
        }
    }

    pub(super) fn tell(&self, signal: Signal) {
        // While it is not waited for, the id is the helper's.
        if let Some(pid) = self.pid() {
            let _gone: nix::Result<()> = kill(Pid::from_raw(pid), signal);
        }
    }

    fn pid(&self) -> Option<i32> {
        self.child.id().map(u32::cast_signed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            // The helper ends the tree by itself; the runtime reaps it.
            self.tell(Signal::SIGINT);
        }
        self.pump.abort();
    }
}

pub(super) async fn end_by_marker(marker: String, root: Option<i32>) -> processes::Ended {
    let end = move || {
        let marker = Some((COMMAND_MARKER, marker.as_str()));
        processes::kill_tree(root, marker, EndTiming::with_grace(Duration::ZERO))
    };
    tokio::task::spawn_blocking(end).await.unwrap_or_default()
}
