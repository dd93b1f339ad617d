//! `swarm-worker exec`: reads a request, confines itself, becomes the command. When asked to
//! supervise it stays outside as the command's parent and ends whatever the command leaves behind.
//!
//! With `--policy-fd` the descriptor should be one end of a socket pair: one line of JSON comes in,
//! one [`ExecReport`] goes out. Nothing here is secret and nothing of it is in the environment.

use super::confine::{ConfineError, confine};
use super::guard::Bounds;
use super::namespaces::{NamespaceError, Namespaces};
use super::policy::{SandboxPolicy, Tier};
use super::raw;
use super::resources::Groups;
use super::supervise::{StopOrder, Supervision, supervise, watched_signals};
use crate::shell::processes::EndTiming;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, dup2_stdin, getppid, setsid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;
use swarm_protocol::process::{KilledProcess, ProcessExit};

pub const POLICY_FLAG: &str = "--policy";
pub const POLICY_FD_FLAG: &str = "--policy-fd";

/// The helper was called wrongly, or the command could not be started.
const EXIT_NOT_STARTED: i32 = 127;
/// Added to the number of the signal that ended the command, as shells do.
const EXIT_SIGNAL_BASE: i32 = 128;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    pub policy: SandboxPolicy,
    /// Without it the helper itself becomes the command, and what the command starts is not ended.
    pub supervise: Option<SuperviseRequest>,
    /// Process to die with; when it is already gone nothing is started.
    pub parent: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperviseRequest {
    /// Between SIGTERM and SIGKILL when the command is stopped: the helper got SIGTERM.
    pub stop_grace: Duration,
    /// The same when nobody waits for the command any more: the helper got SIGINT.
    pub cancel_grace: Duration,
    /// How long what a finished command left behind may take to end unasked.
    pub natural: Duration,
    /// Between SIGTERM and SIGKILL for what it left behind.
    pub leftover_grace: Duration,
}

/// What the helper says about the command, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecReport {
    NotStarted {
        message: String,
    },
    Ended {
        exit: ProcessExit,
        /// Still running at the command's end, and ended by the helper. Not the command itself.
        killed: Vec<KilledProcess>,
        survivors: Vec<KilledProcess>,
    },
}

#[derive(Debug, thiserror::Error)]
enum ExecError {
    #[error("usage: swarm-worker exec (--policy JSON | --policy-fd N) -- COMMAND [ARGUMENT]...")]
    Usage,
    #[error("failed to read the policy")]
    Read(#[source] io::Error),
    #[error("the policy is not valid")]
    Parse(#[source] serde_json::Error),
    #[error("failed to set up the process")]
    SetUp(#[source] io::Error),
    #[error("namespaces need a supervisor")]
    Unsupervised,
    #[error(transparent)]
    Namespaces(#[from] NamespaceError),
    #[error("the process to die with is gone")]
    ParentGone,
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error("failed to run {}", program.display())]
    Run { program: OsString, source: io::Error },
}

/// The helper. `args` are those after `exec`; returns only if the command was supervised or failed.
pub fn main(args: impl Iterator<Item = OsString>) -> i32 {
    let mut report = None;
    match run(args, &mut report) {
        Ok(code) => code,
        Err(error) => {
            fail(&error, report);
            EXIT_NOT_STARTED
        }
    }
}

fn run(args: impl Iterator<Item = OsString>, report: &mut Option<File>) -> Result<i32, ExecError> {
    let (source, argv) = parse(args)?;
    let request: ExecRequest = match source {
        Source::Text(text) => serde_json::from_str(&text).map_err(ExecError::Parse)?,
        Source::Descriptor(number) => {
            let stream = File::from(take_descriptor(number).map_err(ExecError::Read)?);
            *report = Some(stream.try_clone().map_err(ExecError::Read)?);
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).map_err(ExecError::Read)?;
            serde_json::from_str(&line).map_err(ExecError::Parse)?
        }
    };
    let Some(plan) = request.supervise else {
        if request.policy.tier == Tier::Namespaces {
            return Err(ExecError::Unsupervised);
        }
        die_with(request.parent, Signal::SIGKILL)?;
        return Err(become_command(&request.policy, &argv));
    };

    // Its own session, so that a terminal's signals do not reach it; fails for a group's leader,
    // which then is one already.
    let _leader: nix::Result<Pid> = setsid();
    // SIGTERM rather than SIGKILL: told that its parent is gone, it still ends the tree.
    die_with(request.parent, Signal::SIGTERM)?;
    let signals = watched_signals().map_err(|errno| ExecError::SetUp(errno.into()))?;
    let own = Pid::this().as_raw();
    let directory = std::env::current_dir().map_err(ExecError::SetUp)?;
    let limits = &request.policy.limits;
    let groups = Groups::create(limits);
    let namespaces = match request.policy.tier {
        Tier::Namespaces => Some(Namespaces::create(&request.policy)?),
        Tier::Landlock | Tier::Unconfined => None,
    };
    let child = match &namespaces {
        Some(namespaces) => namespaces.start(&directory, &groups, |entered| {
            // What is in there ends with this process, so it need not watch it.
            let ready = entered.map_err(ExecError::from).and_then(|()| command_process(None));
            report_failure(ready, &request.policy, &argv, report);
        })?,
        None => raw::fork_then(|| {
            groups.join();
            report_failure(command_process(Some(own)), &request.policy, &argv, report);
        })
        .map_err(ExecError::SetUp)?,
    };
    let end = supervise(
        &signals,
        child,
        &Supervision {
            stop: StopOrder::Tree { grace: plan.stop_grace, urgent_grace: plan.cancel_grace },
            leftovers: EndTiming { natural: plan.natural, ..EndTiming::with_grace(plan.leftover_grace) },
            marker: None,
            spared: namespaces.as_ref().map(Namespaces::init),
            bounds: Bounds {
                processes: limits.processes,
                memory_bytes: limits.memory_bytes,
                directory: limits.temp_bytes.map(|bytes| (request.policy.temp_dir.clone(), bytes)),
            },
        },
    );
    let too_much = end.exceeded.or_else(|| {
        let memory = limits.memory_bytes.filter(|_| groups.ran_out_of_memory())?;
        Some(format!("more than {} MiB of memory", memory >> 20))
    });
    groups.remove();
    if let Some(too_much) = too_much {
        // Among the command's own words, where who reads them looks for the reason.
        let _unread: io::Result<()> =
            writeln!(io::stderr(), "swarm: processes of this command were ended: it had {too_much}");
    }
    let mut killed = end.ended.killed;
    killed.retain(|process| process.pid != child.as_raw());
    send(report, &ExecReport::Ended { exit: end.exit, killed, survivors: end.ended.survivors });
    Ok(match end.exit {
        ProcessExit::Code(code) => code,
        ProcessExit::Signal(signal) => EXIT_SIGNAL_BASE + signal,
    })
}

enum Source {
    Text(String),
    Descriptor(i32),
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<(Source, Vec<OsString>), ExecError> {
    let flag = args.next().ok_or(ExecError::Usage)?;
    let value = args.next().and_then(|value| value.into_string().ok());
    let value = value.ok_or(ExecError::Usage)?;
    let source = if flag == POLICY_FLAG {
        Source::Text(value)
    } else if flag == POLICY_FD_FLAG {
        Source::Descriptor(value.parse().map_err(|_| ExecError::Usage)?)
    } else {
        return Err(ExecError::Usage);
    };
    if args.next().is_none_or(|separator| separator != "--") {
        return Err(ExecError::Usage);
    }
    let argv: Vec<OsString> = args.collect();
    if argv.is_empty() {
        return Err(ExecError::Usage);
    }
    Ok((source, argv))
}

/// Takes over a descriptor that was handed down. Standard input is replaced by `/dev/null`, which is
/// what the command gets.
fn take_descriptor(number: i32) -> io::Result<OwnedFd> {
    let stream = raw::duplicate(number)?;
    if number == 0 {
        dup2_stdin(File::open("/dev/null")?)?;
    }
    Ok(stream)
}

/// Before confinement: a session without a terminal, tied to the supervisor's life.
fn command_process(supervisor: Option<i32>) -> Result<(), ExecError> {
    // The supervisor blocks what it waits for; a command that did could not be stopped kindly.
    SigSet::empty().thread_set_mask().map_err(|errno| ExecError::SetUp(errno.into()))?;
    setsid().map_err(|errno| ExecError::SetUp(errno.into()))?;
    die_with(supervisor, Signal::SIGKILL)
}

fn die_with(parent: Option<i32>, signal: Signal) -> Result<(), ExecError> {
    let Some(parent) = parent else {
        return Ok(());
    };
    prctl::set_pdeathsig(signal).map_err(|errno| ExecError::SetUp(errno.into()))?;
    // It may have died before it could be watched.
    if getppid().as_raw() == parent { Ok(()) } else { Err(ExecError::ParentGone) }
}

/// In the command's process: becomes the command, or says why that failed.
fn report_failure(
    ready: Result<(), ExecError>,
    policy: &SandboxPolicy,
    argv: &[OsString],
    report: &mut Option<File>,
) {
    let error = match ready {
        Ok(()) => become_command(policy, argv),
        Err(error) => error,
    };
    fail(&error, report.take());
}

/// Returns only with the reason why it could not.
fn become_command(policy: &SandboxPolicy, argv: &[OsString]) -> ExecError {
    if let Err(error) = raw::close_on_exec_from(3) {
        return ExecError::SetUp(error);
    }
    if let Err(error) = confine(policy) {
        return error.into();
    }
    let program = argv[0].clone();
    // `exec` gives SIGPIPE its default back.
    let source = std::process::Command::new(&program).args(&argv[1..]).exec();
    ExecError::Run { program, source }
}

fn fail(error: &ExecError, report: Option<File>) {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    if report.is_none() {
        // Nobody reads a failure to say why something failed.
        let _unread: io::Result<()> = writeln!(io::stderr(), "swarm-worker exec: {message}");
    }
    send(&mut { report }, &ExecReport::NotStarted { message });
}

fn send(report: &mut Option<File>, content: &ExecReport) {
    if let Some(file) = report
        && let Ok(mut line) = serde_json::to_vec(content)
    {
        line.push(b'\n');
        // The reader may be gone; then the exit status has to do.
        let _unread: io::Result<()> = file.write_all(&line);
    }
}
