//! `swarm-worker probe`: finds out what this machine enforces by confining a child on each tier and trying to
//! get out. What the kernel claims is not asked.

use super::confine::confine;
use super::filesystem;
use super::namespaces::Namespaces;
use super::policy::{SandboxPolicy, Tier};
use super::raw;
use super::resources::Groups;
use super::system_paths::SystemPaths;
use nix::libc;
use nix::sys::wait::waitpid;
use serde::{Deserialize, Serialize};
use std::fs::Permissions;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use swarm_protocol::error_chain;

const HELD_BY_BOTH: &[&str] = &[
    "writes go to the worktree, its temp directory and its own git directory alone",
    "what is neither the system's, a tool chain's nor the worktree's cannot be read",
    "no tracing of processes, mounts, namespaces, kernel modules, keyrings, io_uring, terminal input",
];
const HELD_BY_TIER_1: &[&str] = &[
    "owners, modes, times and extended attributes outside stay as they are",
    "processes outside are neither seen nor signalled, and what a command leaves is killed by the kernel",
    "sockets of programs outside cannot be named; loopback is the command's own",
    "/tmp, /dev/shm, terminals and the home directory are the worker's own",
];
/// What each tier leaves open on every kernel.
const NOT_HELD_BY_TIER_1: &[&str] = &[
    "a flaw of the kernel is a way out: it is no virtual machine",
    "the disk that a worktree takes is not bounded, only its files and the temp directory",
];
const NOT_HELD_BY_TIER_2: &[&str] = &[
    "chmod, chown, utime and extended attributes of readable files are not confined by Landlock",
    "without a network namespace all sockets are refused while the network is off, loopback included",
    "the priority of the user's other processes can be changed",
    "configuration of the worktree in git's directory, and its .git file, can be changed; swarm's own git does not obey them",
    "no pseudo terminals",
    "the disk that a worktree takes is not bounded, only its files and the temp directory",
    "/dev/shm is shared with other programs of the same user, and what is left there counts for no command",
];
const ABI_OF_IOCTLS: i32 = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The highest tier that was seen to hold.
    pub tier: Tier,
    /// 0 when Landlock is absent.
    pub landlock_abi: i32,
    pub seccomp: bool,
    /// What the tier does not hold, and why a higher one is not reached.
    pub notes: Vec<String>,
    /// Each tier that confines, the strongest first.
    pub tiers: Vec<TierReport>,
}

/// What was found out about one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierReport {
    pub tier: Tier,
    /// Why it is not to be had here; empty where it is.
    pub obstacles: Vec<String>,
    /// In words; empty where it is not to be had.
    pub holds: Vec<String>,
    pub does_not_hold: Vec<String>,
    pub landlock_abi: i32,
    pub seccomp: bool,
}

impl TierReport {
    fn is_held(&self) -> bool {
        self.obstacles.is_empty()
    }

    fn obstacle(tier: Tier, why: String) -> Self {
        Self {
            tier,
            obstacles: vec![why],
            holds: Vec::new(),
            does_not_hold: Vec::new(),
            landlock_abi: 0,
            seccomp: false,
        }
    }
}

impl SandboxReport {
    /// Nothing is known to hold.
    #[must_use]
    pub fn none(note: impl Into<String>) -> Self {
        Self {
            tier: Tier::Unconfined,
            landlock_abi: 0,
            seccomp: false,
            notes: vec![note.into()],
            tiers: Vec::new(),
        }
    }

    fn of(tiers: Vec<TierReport>, strongest: Tier) -> Self {
        let mut notes = Vec::new();
        let mut found = None;
        for report in &tiers {
            let number = u8::from(report.tier);
            if report.tier > strongest {
                notes.push(format!("tier {number} is switched off by sandbox.tier"));
            } else if report.is_held() {
                found = Some(report);
                break;
            } else {
                notes.push(format!("tier {number} is not to be had: {}", report.obstacles.join("; ")));
            }
        }
        notes.extend(found.iter().flat_map(|report| report.does_not_hold.iter().cloned()));
        Self {
            tier: found.map_or(Tier::Unconfined, |report| report.tier),
            landlock_abi: found.map_or(0, |report| report.landlock_abi),
            seccomp: found.is_some_and(|report| report.seccomp),
            notes,
            tiers,
        }
    }

    /// The same with no tier above `strongest`.
    #[must_use]
    pub fn at_most(self, strongest: Tier) -> Self {
        if self.tier <= strongest { self } else { Self::of(self.tiers, strongest) }
    }
}

/// Runs `helper probe` and reads its report. `helper` is the `swarm-worker` program.
pub fn probe(helper: &Path) -> io::Result<SandboxReport> {
    let output = Command::new(helper).arg("probe").stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// The subcommand: prints the report as one line of JSON. Needs a single-threaded process.
pub fn main() -> io::Result<()> {
    // The process inside is handed to the nearest subreaper, which is to be this one.
    nix::sys::prctl::set_child_subreaper(true)?;
    let tiers = [Tier::Namespaces, Tier::Landlock];
    let reports = tiers
        .map(|tier| probe_here(tier).unwrap_or_else(|error| TierReport::obstacle(tier, error.to_string())));
    let report = SandboxReport::of(reports.into(), Tier::Namespaces);
    let mut line = serde_json::to_vec(&report).map_err(io::Error::other)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

fn probe_here(tier: Tier) -> io::Result<TierReport> {
    let inside = tempfile::tempdir()?;
    let outside = tempfile::tempdir()?;
    let mut policy = SandboxPolicy::for_worktree(
        inside.path().canonicalize()?,
        inside.path().canonicalize()?,
        SystemPaths::without_home(),
    );
    policy.tier = tier;
    if tier == Tier::Namespaces {
        // Shown, so that what is refused there is refused by more than absence.
        policy.readable.push(outside.path().canonicalize()?);
    }
    let (mut answer, question) = io::pipe()?;
    if tier == Tier::Namespaces {
        let namespaces =
            Namespaces::create(&policy).map_err(|error| io::Error::other(error_chain(&error)))?;
        let child = namespaces
            .start(&policy.worktree, &Groups::default(), |entered| {
                let found = match entered {
                    Ok(()) => try_to_get_out(&policy, outside.path()),
                    Err(error) => TierReport::obstacle(tier, error_chain(&error)),
                };
                tell(&question, &found);
            })
            .map_err(|error| io::Error::other(error_chain(&error)))?;
        drop(question);
        let report = hear(&mut answer);
        waitpid(child, None)?;
        return report;
    }
    let child = raw::fork_then(|| tell(&question, &try_to_get_out(&policy, outside.path())))?;
    drop(question);
    let report = hear(&mut answer);
    waitpid(child, None)?;
    report
}

fn tell(mut question: &PipeWriter, found: &TierReport) {
    if let Ok(text) = serde_json::to_vec(found) {
        // Silence reads as "nothing holds".
        let _unread: io::Result<()> = question.write_all(&text);
    }
}

fn hear(answer: &mut io::PipeReader) -> io::Result<TierReport> {
    let mut text = Vec::new();
    answer.read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// In a child that is confined here, and never comes out again.
fn try_to_get_out(policy: &SandboxPolicy, outside: &Path) -> TierReport {
    let tier = policy.tier;
    let landlock_abi = match filesystem_abi(policy) {
        Ok(abi) => abi,
        Err(message) => return TierReport::obstacle(tier, message),
    };
    if let Err(error) = confine(policy) {
        return TierReport::obstacle(tier, error_chain(&error));
    }
    let mut leaks = Vec::new();
    let mut expect = |name: &str, holds: bool| {
        if !holds {
            leaks.push(format!("does not hold: {name}"));
        }
    };
    let refused =
        |result: io::Result<()>, errno: i32| result.is_err_and(|error| error.raw_os_error() == Some(errno));
    let write = |path: &Path| std::fs::write(path, "x");
    let call = |number, args| raw::try_syscall(number, args);
    let (stream, unix, internet) = (libc::SOCK_STREAM.into(), libc::AF_UNIX.into(), libc::AF_INET.into());
    expect("write inside", write(&policy.worktree.join("x")).is_ok());
    match tier {
        Tier::Namespaces => {
            let written = write(&outside.join("x"));
            expect("no write outside", written.is_err());
            let mode = std::fs::set_permissions(outside, Permissions::from_mode(0o777));
            expect("no change of modes outside", refused(mode, libc::EROFS));
            expect("a process space of its own", std::process::id() < FEW_PROCESSES);
            let loopback = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| std::net::TcpStream::connect(listener.local_addr()?));
            expect("loopback", loopback.is_ok());
        }
        Tier::Landlock | Tier::Unconfined => {
            expect("no write outside", refused(write(&outside.join("x")), libc::EACCES));
            expect("no read outside", refused(std::fs::read_dir(outside).map(drop), libc::EACCES));
            let socket = |family| call(libc::SYS_socket, [family, stream, 0, 0]);
            expect("no unix socket", refused(socket(unix), libc::EPERM));
            expect("no internet socket", refused(socket(internet), libc::EPERM));
            let pair = call(libc::SYS_socketpair, [unix, libc::SOCK_DGRAM.into(), 0, 0]);
            expect("no pair of datagram sockets", refused(pair, libc::EPERM));
        }
    }
    let mut seccomp = true;
    for (name, number, args) in [
        ("no io_uring", libc::SYS_io_uring_setup, [1, 0, 0, 0]),
        ("no user namespace", libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]),
        ("no mount", libc::SYS_mount, [0, 0, 0, 0]),
        ("no ptrace", libc::SYS_ptrace, [-1, 0, 0, 0]),
    ] {
        let holds = refused(call(number, args), libc::EPERM);
        seccomp &= holds;
        expect(name, holds);
    }
    if !leaks.is_empty() {
        return TierReport {
            obstacles: leaks,
            landlock_abi,
            seccomp,
            ..TierReport::obstacle(tier, String::new())
        };
    }
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut holds = words(HELD_BY_BOTH);
    let mut does_not_hold = words(NOT_HELD_BY_TIER_2);
    if tier == Tier::Namespaces {
        holds.extend(words(HELD_BY_TIER_1));
        does_not_hold = words(NOT_HELD_BY_TIER_1);
    } else if landlock_abi < filesystem::ABI_OF_SCOPES {
        does_not_hold.push(
            "the kernel does not scope signals: a command can signal other programs of the same user"
                .to_owned(),
        );
    }
    if landlock_abi < ABI_OF_IOCTLS {
        does_not_hold.push("the kernel does not confine ioctls of devices".to_owned());
    }
    TierReport { tier, obstacles: Vec::new(), holds, does_not_hold, landlock_abi, seccomp }
}

/// The first process and the probing one have the lowest ids; outside they stand behind all of the system's.
const FEW_PROCESSES: u32 = 10;

/// Restricts this process by a first, equal domain to learn the ABI; `confine` nests a second.
fn filesystem_abi(policy: &SandboxPolicy) -> Result<i32, String> {
    nix::sys::prctl::set_no_new_privs().map_err(|errno| errno.to_string())?;
    let restricted = match policy.tier {
        Tier::Namespaces => filesystem::restrict_view(policy),
        Tier::Landlock | Tier::Unconfined => filesystem::restrict(policy),
    };
    restricted.map_err(|error| error_chain(&error))
}
