//! A shell that feels persistent: every command is a fresh confined bash, whose working directory,
//! exported variables and functions are those the last one left (spec 4.6). Nothing a command
//! started outlives it, background jobs excepted. Knows nothing of models or permissions.
//!
//! A command is a process below a helper (`swarm-worker exec`), which is subreaper of all that the
//! command starts:
//!
//! ```text
//! worker -- helper (unconfined, single thread) -- bash (confined, own session) -- ...
//! ```
//!
//! Working directories (X13): `cd` inside of the worktree, the temp directory or another writable
//! path lasts; after any other the next command starts in the worktree, and the outcome says so.

pub mod benign;
mod decode;
pub(crate) use decode::legacy_encoding;
pub mod environment;
pub mod jobs;
pub mod kept;
mod outcome;
mod output;
mod process;
pub mod processes;
mod screen;
mod script;
mod spawner;

pub use environment::Environment;
pub use jobs::{Job, JobEnd, JobError, JobId, JobOutput, JobStatus};
pub use kept::{Kept, KeptRequest};
pub use outcome::{CommandExit, CommandOutcome, CwdNote, ProcessInfo, Progress};
pub use output::{CapturedOutput, OutputLimits};

use crate::sandbox::{ExecReport, ExecRequest, SandboxPolicy, SuperviseRequest, WriteScope};
use environment::RUN_MARKER;
use output::Collector;
use process::{Foreground, Launch, Running, Stop, locked};
use script::{MAX_COMMAND_BYTES, captured_cwd, is_whole, script};
use spawner::Spawner;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time a command has when none is asked for, and at most (spec 4.6).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
pub const MAX_TIMEOUT: Duration = Duration::from_secs(600);

/// For the `tee` of a process substitution and its like, which end a moment after their shell.
const NATURAL_END: Duration = Duration::from_millis(200);
/// What is left behind has nothing to save that anybody waits for.
const LEFTOVER_GRACE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub struct ShellConfig {
    /// The `swarm-worker` program. `/proc/self/exe` in the worker itself, so that an update of the
    /// file on disk does not change what a running worker uses.
    pub helper: PathBuf,
    pub bash: PathBuf,
    pub policy: SandboxPolicy,
    pub environment: Environment,
    /// Value of `SWARM_RUN`.
    pub run_id: String,
    /// Where raw output goes. Outside of what the policy lets commands write.
    pub output_dir: PathBuf,
    pub output: OutputLimits,
    /// Between SIGTERM and SIGKILL at a time-out, and for a job.
    pub stop_grace: Duration,
    /// The same at a cancel; shorter than the patience of whoever cancels, which drops the call after that.
    pub cancel_grace: Duration,
    /// Git directory of the worktree; a lock that a stopped command left there is reported.
    pub git_dir: Option<PathBuf>,
}

impl ShellConfig {
    #[must_use]
    pub fn new(policy: SandboxPolicy, environment: Environment, run_id: String, output_dir: PathBuf) -> Self {
        Self {
            helper: PathBuf::from("/proc/self/exe"),
            bash: PathBuf::from("/bin/bash"),
            policy,
            environment,
            run_id,
            output_dir,
            output: OutputLimits::default(),
            stop_grace: Duration::from_secs(2),
            cancel_grace: Duration::from_millis(300),
            git_dir: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    pub command: String,
    /// Cut to [`MAX_TIMEOUT`]. A background job has none.
    pub timeout: Duration,
    /// The model's words for people.
    pub description: String,
}

impl CommandRequest {
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), timeout: DEFAULT_TIMEOUT, description: String::new() }
    }
}

/// Commands may run at the same time; of two that end, the later one leaves the state.
#[derive(Debug)]
pub struct Shell {
    config: ShellConfig,
    spawner: Spawner,
    state: Mutex<State>,
    counter: AtomicU64,
    /// Commands that start from now on write nothing but the temp directory.
    reads_only: AtomicBool,
    jobs: jobs::Jobs,
    /// Commands that are no jobs, until all of their processes are gone.
    foreground: TaskTracker,
}

#[derive(Debug)]
struct State {
    /// As `cd` spelled it; where it leads is checked each time.
    cwd: PathBuf,
    restore: Option<Arc<CaptureDir>>,
}

/// Removed when neither the state nor a starting command needs it.
#[derive(Debug)]
struct CaptureDir(PathBuf);

impl Drop for CaptureDir {
    fn drop(&mut self) {
        // What is left behind lies in the temp directory, which goes with the run.
        let _left: io::Result<()> = worktree_manager::remove_all(&self.0);
    }
}

/// Sink of live progress; what does not fit is dropped, the next one supersedes it.
pub type ProgressSink = mpsc::Sender<Progress>;

impl Shell {
    /// Makes the directories it needs. Needs a runtime only once commands run.
    pub fn new(config: ShellConfig) -> io::Result<Self> {
        let private = |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        private(&config.output_dir)?;
        private(&config.policy.temp_dir)?;
        Ok(Self {
            state: Mutex::new(State { cwd: config.policy.worktree.clone(), restore: None }),
            spawner: Spawner::new()?,
            counter: AtomicU64::new(1),
            reads_only: AtomicBool::new(false),
            jobs: jobs::Jobs::new(),
            foreground: TaskTracker::new(),
            config,
        })
    }

    /// Where the next command starts.
    #[must_use]
    pub fn cwd(&self) -> PathBuf {
        locked(&self.state).cwd.clone()
    }

    /// Whether commands that start from now on may write nothing but the temp directory, as in plan mode. Those that
    /// run go on as they began. Holds where the sandbox enforces.
    pub fn set_reads_only(&self, reads_only: bool) {
        self.reads_only.store(reads_only, Ordering::SeqCst);
    }

    /// What programs may write now.
    pub(crate) fn write_scope(&self) -> WriteScope {
        self.policy().write_scope
    }

    fn policy(&self) -> SandboxPolicy {
        let mut policy = self.config.policy.clone();
        if self.reads_only.load(Ordering::SeqCst) {
            policy.write_scope = WriteScope::ReadOnly;
        }
        policy
    }

    /// Waits until no command runs that is no job, at most `patience`. Whether that is so now. For commands
    /// whose call was dropped: they may go on writing until they are gone.
    pub async fn settle(&self, patience: Duration) -> bool {
        self.foreground.close();
        let settled = tokio::time::timeout(patience, self.foreground.wait()).await.is_ok();
        self.foreground.reopen();
        settled
    }

    /// Runs a command to its end. When the future is dropped the command is stopped.
    pub async fn run(
        &self,
        request: CommandRequest,
        cancel: &CancellationToken,
        progress: Option<ProgressSink>,
    ) -> CommandOutcome {
        let begin = Instant::now();
        let number = self.next_number();
        let lock = self.config.git_dir.as_ref().map(|dir| dir.join("index.lock"));
        let lock_was_there = lock.as_ref().is_some_and(|lock| lock.exists());
        let (cwd, mut cwd_note, restore) = self.starting_point();
        let capture = self.capture_dir(number);
        let collector = Collector::new(self.output_path("command", number), self.config.output.clone());
        let started = match &capture {
            Ok(capture) => {
                let restore = restore.as_deref().map(|dir| dir.0.as_path());
                self.start(&request.command, cwd, restore, Some(&capture.0), collector).await
            }
            Err(error) => {
                Err(io::Error::new(error.kind(), format!("no room for the state of a command: {error}")))
            }
        };
        let cancelled = Stop::cancel(self.config.cancel_grace);
        let mut foreground = match started {
            Ok(running) => Foreground::new(running, cancelled, &self.foreground),
            Err(error) => return self.not_started(error.to_string(), begin, cwd_note),
        };

        let running = foreground.running();
        let (report, stopped) = {
            let watch = relay_progress(running, progress, begin);
            let mut watch = std::pin::pin!(watch);
            // Nothing is lost by the branches that do not win: `ended` keeps what it has read.
            tokio::select! {
                report = running_end(running, watch.as_mut()) => (Some(report), None),
                () = tokio::time::sleep(request.timeout.min(MAX_TIMEOUT)) => (None, Some(CommandExit::TimedOut)),
                () = cancel.cancelled() => (None, Some(CommandExit::Cancelled)),
            }
        };
        let report = match (report, &stopped) {
            (Some(report), _) => report,
            (None, Some(CommandExit::Cancelled)) => running.stop(cancelled).await,
            (None, _) => running.stop(Stop::kindly(self.config.stop_grace)).await,
        };
        running.drain().await;
        // `restore` may go now: the shell that read it is gone.
        drop(restore);

        let (exit, killed, survivors) = match (stopped, report) {
            (None, ExecReport::NotStarted { message }) => {
                return self.not_started(message, begin, cwd_note);
            }
            (Some(stopped), ExecReport::NotStarted { .. }) => (stopped, Vec::new(), Vec::new()),
            (stopped, ExecReport::Ended { exit, killed, survivors }) => {
                (stopped.unwrap_or_else(|| exit.into()), killed, survivors)
            }
        };
        if let Ok(capture) = capture {
            cwd_note = self.adopt(capture).or(cwd_note);
        }
        let output = locked(running.collector()).finish();
        CommandOutcome {
            stale_lock: lock.filter(|lock| exit.was_stopped() && !lock_was_there && lock.exists()),
            exit,
            output,
            duration: begin.elapsed(),
            cwd: self.cwd(),
            cwd_note,
            killed,
            survivors,
        }
    }

    fn not_started(&self, message: String, begin: Instant, cwd_note: Option<CwdNote>) -> CommandOutcome {
        CommandOutcome {
            exit: CommandExit::NotStarted { message },
            output: CapturedOutput::default(),
            duration: begin.elapsed(),
            cwd: self.cwd(),
            cwd_note,
            killed: Vec::new(),
            survivors: Vec::new(),
            stale_lock: None,
        }
    }

    /// Working directory and state for a command that starts now.
    fn starting_point(&self) -> (PathBuf, Option<CwdNote>, Option<Arc<CaptureDir>>) {
        let mut state = locked(&self.state);
        let mut note = None;
        if !state.cwd.is_dir() {
            let asked = std::mem::replace(&mut state.cwd, self.config.policy.worktree.clone());
            note = Some(CwdNote::Vanished { asked });
        }
        if state.restore.as_deref().is_some_and(|dir| !is_whole(&dir.0)) {
            state.restore = None;
            note = note.or(Some(CwdNote::StateGone));
        }
        (state.cwd.clone(), note, state.restore.clone())
    }

    /// Takes over what a command left.
    fn adopt(&self, capture: Arc<CaptureDir>) -> Option<CwdNote> {
        let Ok(asked) = captured_cwd(&capture.0) else {
            let mut state = locked(&self.state);
            if state.restore.as_deref().is_some_and(|dir| !is_whole(&dir.0)) {
                state.restore = None;
                return Some(CwdNote::StateGone);
            }
            return Some(CwdNote::NotCaptured);
        };
        let worktree = self.config.policy.worktree.clone();
        let (cwd, note) = match asked.canonicalize() {
            Err(_) => (worktree, Some(CwdNote::Vanished { asked })),
            Ok(real) if self.may_stay_in(&real) => (asked, None),
            Ok(_) => (worktree, Some(CwdNote::Outside { asked })),
        };
        let mut state = locked(&self.state);
        state.cwd = cwd;
        let former = state.restore.replace(capture);
        drop(state);
        // Removes files, so not under the lock.
        drop(former);
        note
    }

    fn may_stay_in(&self, real: &Path) -> bool {
        let policy = &self.config.policy;
        let extra: &[PathBuf] = match policy.write_scope {
            WriteScope::Worktree => &policy.writable,
            WriteScope::ReadOnly => &[],
        };
        [&policy.worktree, &policy.temp_dir]
            .into_iter()
            .chain(extra)
            .filter_map(|root| root.canonicalize().ok())
            .any(|root| real.starts_with(root))
    }

    fn next_number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    fn output_path(&self, kind: &str, number: u64) -> PathBuf {
        let run = uuid::Uuid::new_v4().simple().to_string();
        let short = &run[..8];
        self.config.output_dir.join(format!("{kind}-{number}-{short}.log"))
    }

    fn capture_dir(&self, number: u64) -> io::Result<Arc<CaptureDir>> {
        let name = format!("shell-state-{}-{number}", uuid::Uuid::new_v4().simple());
        let path = self.config.policy.temp_dir.join(name);
        let mut directory = std::fs::DirBuilder::new();
        directory.mode(0o700);
        if let Err(error) = directory.create(&path) {
            // A command may have removed all of the temp directory.
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            directory.recursive(true).create(&path)?;
        }
        Ok(Arc::new(CaptureDir(path)))
    }

    async fn start(
        &self,
        command: &str,
        cwd: PathBuf,
        restore: Option<&Path>,
        capture: Option<&Path>,
        collector: Collector,
    ) -> io::Result<Running> {
        if command.contains('\0') {
            return Err(io::Error::other("a command cannot contain a NUL"));
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(io::Error::other(format!(
                "a command has at most {MAX_COMMAND_BYTES} bytes; write it to a file and run that"
            )));
        }
        let config = &self.config;
        let mut environment: Vec<(OsString, OsString)> =
            config.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        environment.push((RUN_MARKER.into(), config.run_id.clone().into()));
        environment.push(("TMPDIR".into(), config.policy.temp_dir.clone().into()));
        let launch = Launch {
            helper: config.helper.clone(),
            request: ExecRequest {
                policy: self.policy(),
                supervise: Some(SuperviseRequest {
                    stop_grace: config.stop_grace,
                    cancel_grace: config.cancel_grace,
                    natural: NATURAL_END,
                    leftover_grace: LEFTOVER_GRACE,
                }),
                parent: Some(std::process::id().cast_signed()),
            },
            argv: vec![
                config.bash.clone().into(),
                "--noprofile".into(),
                "--norc".into(),
                "-c".into(),
                OsString::from_vec(script(restore, capture, config.environment.iter().map(|(name, _)| name))),
                "bash".into(),
                command.into(),
            ],
            environment,
            cwd,
            marker: uuid::Uuid::new_v4().to_string(),
        };
        process::start(launch, &self.spawner, collector).await
    }
}

/// Waits for the end while progress is relayed.
async fn running_end(
    running: &mut Running,
    relay: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> ExecReport {
    // The relay ends only by being dropped.
    tokio::select! {
        report = running.ended() => report,
        () = relay => unreachable!("the relay runs until it is dropped"),
    }
}

/// Hands on the last lines whenever output comes. Never ends by itself.
fn relay_progress(
    running: &Running,
    sink: Option<ProgressSink>,
    begin: Instant,
) -> impl Future<Output = ()> + use<> {
    let news = running.news().clone();
    let collector = running.collector().clone();
    async move {
        let Some(sink) = sink else {
            return std::future::pending().await;
        };
        loop {
            news.notified().await;
            // Take the place first: rendering for nobody is work for nothing.
            let Ok(place) = sink.try_reserve() else {
                continue;
            };
            let collector = locked(&collector);
            place.send(Progress {
                text: collector.live_text(),
                total_bytes: collector.total(),
                elapsed: begin.elapsed(),
            });
        }
    }
}
