//! Parent and subreaper of one run (spec 1.6). It survives the server, its worker does not survive
//! it, and `exit.json` says how the run ended once nothing of it is left.
//!
//! ```text
//! fork (worker waits) -> keeper.json -> worker goes -> it ends -> the tree is ended -> exit.json
//! ```
//!
//! One thread, no runtime, no parser of command lines: it lives as long as the run. Measured in a
//! release build: 172 KiB of memory of its own, 1.1 MiB PSS while nothing else maps the program; a
//! worker beside it shares the clean part (test `a_keeper_is_small` prints the figures).

mod cgroup;
mod files;

use crate::sandbox::{Bounds, StopOrder, Supervision, fork_then, supervise, watched_signals};
use crate::shell::environment::RUN_MARKER;
use crate::shell::processes::{EndTiming, boot_id, stat_of};
use cgroup::Cgroup;
use files::write_atomically;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid, setsid};
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use swarm_protocol::process::{EXIT_FILE, ExitFile, KEEPER_FILE, KeeperFile};

/// The run was kept to its end, whatever that was.
const EXIT_KEPT: i32 = 0;
/// Called wrongly, or the run could not be started; nothing runs.
const EXIT_NOT_STARTED: i32 = 2;
/// The run is over, but its end could not be written.
const EXIT_NOT_WRITTEN: i32 = 3;
/// For the worker to commit its work and say goodbye after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// For what the worker has left.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
/// A full disk may have room again soon, and a run without its end looks lost.
const WRITE_TRIES: u32 = 60;
const WRITE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Arguments {
    run_dir: PathBuf,
    /// Value of `SWARM_RUN`.
    run_id: String,
    stop_grace: Duration,
    argv: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
enum KeeperError {
    #[error(
        "usage: swarm-worker keeper --run-dir DIR [--run-id ID] [--stop-grace-ms N] -- PROGRAM [ARGUMENT]..."
    )]
    Usage,
    #[error("neither --run-id nor {RUN_MARKER} says which run this is")]
    NoRunId,
    #[error("failed to set up the keeper")]
    SetUp(#[source] io::Error),
    #[error("failed to write {KEEPER_FILE}")]
    Record(#[source] io::Error),
    #[error("failed to write {EXIT_FILE}")]
    End(#[source] io::Error),
}

/// The subcommand. `args` are those after `keeper`.
pub fn main(args: impl Iterator<Item = OsString>) -> i32 {
    let error = match parse(args).and_then(|arguments| keep(&arguments)) {
        Ok(()) => return EXIT_KEPT,
        Err(error) => error,
    };
    // The server reads it when the keeper ends early; later there may be nobody.
    let _unread: io::Result<()> = match std::error::Error::source(&error) {
        Some(cause) => writeln!(io::stderr(), "swarm-worker keeper: {error}: {cause}"),
        None => writeln!(io::stderr(), "swarm-worker keeper: {error}"),
    };
    match error {
        KeeperError::End(_) => EXIT_NOT_WRITTEN,
        KeeperError::Usage | KeeperError::NoRunId | KeeperError::SetUp(_) | KeeperError::Record(_) => {
            EXIT_NOT_STARTED
        }
    }
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Arguments, KeeperError> {
    let mut run_dir = None;
    let mut run_id = std::env::var(RUN_MARKER).ok();
    let mut stop_grace = STOP_GRACE;
    loop {
        let flag = args.next().ok_or(KeeperError::Usage)?;
        if flag == "--" {
            break;
        }
        let value = args.next().ok_or(KeeperError::Usage)?;
        let text = value.to_str().ok_or(KeeperError::Usage);
        match flag.to_str() {
            Some("--run-dir") => run_dir = Some(PathBuf::from(value)),
            Some("--run-id") => run_id = Some(text?.to_owned()),
            Some("--stop-grace-ms") => {
                let millis = text?.parse().map_err(|_| KeeperError::Usage)?;
                stop_grace = Duration::from_millis(millis);
            }
            _ => return Err(KeeperError::Usage),
        }
    }
    let argv: Vec<OsString> = args.collect();
    if argv.is_empty() {
        return Err(KeeperError::Usage);
    }
    Ok(Arguments {
        run_dir: run_dir.ok_or(KeeperError::Usage)?,
        run_id: run_id.filter(|id| !id.is_empty()).ok_or(KeeperError::NoRunId)?,
        stop_grace,
        argv,
    })
}

fn keep(arguments: &Arguments) -> Result<(), KeeperError> {
    let set_up = |errno: nix::errno::Errno| KeeperError::SetUp(errno.into());
    // A session of its own: signals of the server's terminal and the server's end pass it by. Fails
    // for a leader, which has one.
    let _leader: nix::Result<Pid> = setsid();
    let signals = watched_signals().map_err(set_up)?;
    let cgroup = Cgroup::create();

    let (gate, opener) = io::pipe().map_err(KeeperError::SetUp)?;
    let own = Pid::this();
    let mut opener = Some(opener);
    let child = fork_then(|| {
        // In the child's copy of memory; or the gate would never look closed to it.
        opener = None;
        become_worker(own, &gate, arguments);
    })
    .map_err(KeeperError::SetUp)?;
    drop(gate);
    if let Some(cgroup) = &cgroup {
        cgroup.add(child);
    }
    let recorded = record(arguments, own, child);
    if recorded.is_ok()
        && let Some(opener) = &mut opener
    {
        // If the child is gone already, that is its end and is found below.
        let _gone: io::Result<()> = opener.write_all(b"g");
    }
    drop(opener);

    let end = supervise(
        &signals,
        child,
        &Supervision {
            stop: StopOrder::ChildFirst { grace: arguments.stop_grace },
            leftovers: EndTiming::with_grace(LEFTOVER_GRACE),
            marker: Some((RUN_MARKER.to_owned(), arguments.run_id.clone())),
            spared: None,
            bounds: Bounds::default(),
        },
    );
    let oom = cgroup.and_then(Cgroup::end);
    recorded.map_err(KeeperError::Record)?;
    let mut killed = end.ended.killed;
    killed.retain(|process| process.pid != child.as_raw());
    let file = ExitFile {
        exit: end.exit,
        killed,
        survivors: end.ended.survivors,
        ended_at: jiff::Timestamp::now(),
        oom,
    };
    let bytes = serde_json::to_vec(&file).map_err(|error| KeeperError::End(error.into()))?;
    let path = arguments.run_dir.join(EXIT_FILE);
    let mut tries = 1;
    while let Err(error) = write_atomically(&path, &bytes) {
        if tries == WRITE_TRIES {
            return Err(KeeperError::End(error));
        }
        tries += 1;
        std::thread::sleep(WRITE_PAUSE);
    }
    Ok(())
}

/// Says who keeps and who runs, before the worker does anything.
fn record(arguments: &Arguments, own: Pid, child: Pid) -> io::Result<()> {
    let start_time = |pid: Pid| {
        stat_of(pid.as_raw())
            .map(|stat| stat.start_time)
            .ok_or_else(|| io::Error::other("/proc does not show the keeper or its child"))
    };
    let file = KeeperFile {
        pid: own.as_raw(),
        start_time: start_time(own)?,
        boot_id: boot_id().ok_or_else(|| io::Error::other("no boot id"))?,
        worker_pid: child.as_raw(),
        worker_start_time: start_time(child)?,
    };
    write_atomically(&arguments.run_dir.join(KEEPER_FILE), &serde_json::to_vec(&file)?)
}

/// In the child: dies with the keeper, waits for the gate, becomes the worker. Returns only on failure.
fn become_worker(keeper: Pid, mut gate: &io::PipeReader, arguments: &Arguments) {
    let ready = SigSet::empty().thread_set_mask().is_ok()
        && prctl::set_pdeathsig(Signal::SIGKILL).is_ok()
        && getppid() == keeper
        && gate.read_exact(&mut [0]).is_ok();
    if ready {
        let program = &arguments.argv[0];
        let error =
            Command::new(program).args(&arguments.argv[1..]).env(RUN_MARKER, &arguments.run_id).exec();
        let _unread: io::Result<()> =
            writeln!(io::stderr(), "swarm-worker keeper: failed to run {}: {error}", program.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<Arguments, KeeperError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_are_read_up_to_the_separator() {
        let arguments = check("--run-dir d --run-id r --stop-grace-ms 5 -- p --run-dir x").unwrap();
        assert_eq!(arguments.run_id, "r");
        assert_eq!(arguments.stop_grace, Duration::from_millis(5));
        assert_eq!(arguments.argv, ["p", "--run-dir", "x"]);
        assert!(matches!(check("--run-dir d --run-id r --"), Err(KeeperError::Usage)));
        assert!(matches!(check("--run-id r -- p"), Err(KeeperError::Usage)));
        assert!(matches!(check("--what d -- p"), Err(KeeperError::Usage)));
    }
}
