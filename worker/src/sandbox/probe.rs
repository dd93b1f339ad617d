//! `swarm-worker probe`: finds out what this machine enforces by confining a child and trying to get
//! out. What the kernel claims is not asked.

use super::confine::confine;
use super::filesystem;
use super::policy::{SandboxPolicy, Tier};
use super::raw;
use super::system_paths::SystemPaths;
use nix::libc;
use nix::sys::wait::waitpid;
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use swarm_protocol::error_chain;

/// What tier 2 leaves open on every kernel.
const NOT_HELD_BY_TIER_2: &[&str] = &[
    "chmod, chown, utime and extended attributes of readable files are not confined by Landlock",
    "without a network namespace all sockets are refused while the network is off, loopback included",
    "no pseudo terminals",
    "/dev/shm is shared with other programs of the same user",
];
const ABI_OF_SCOPES: i32 = 6;
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
}

impl SandboxReport {
    fn none(note: String) -> Self {
        Self { tier: Tier::Unconfined, landlock_abi: 0, seccomp: false, notes: vec![note] }
    }
}

/// Runs `helper probe` and reads its report. `helper` is the `swarm-worker` program.
pub fn probe(helper: &Path) -> io::Result<SandboxReport> {
    let output = Command::new(helper).arg("probe").stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// The subcommand: prints the report as one line of JSON. Needs a single-threaded process.
pub fn main() -> io::Result<()> {
    let report = probe_here().unwrap_or_else(|error| SandboxReport::none(error.to_string()));
    let mut line = serde_json::to_vec(&report).map_err(io::Error::other)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

fn probe_here() -> io::Result<SandboxReport> {
    let inside = tempfile::tempdir()?;
    let outside = tempfile::tempdir()?;
    let policy = SandboxPolicy::for_worktree(
        inside.path().to_owned(),
        inside.path().to_owned(),
        SystemPaths::without_home(),
    );
    let (mut answer, question) = io::pipe()?;
    let child = raw::fork_then(|| {
        let found = try_to_get_out(&policy, outside.path());
        if let Ok(text) = serde_json::to_vec(&found) {
            // Silence reads as "nothing holds".
            let _unread: io::Result<()> = (&question).write_all(&text);
        }
    })?;
    drop(question);
    let mut text = Vec::new();
    answer.read_to_end(&mut text)?;
    waitpid(child, None)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

fn try_to_get_out(policy: &SandboxPolicy, outside: &Path) -> SandboxReport {
    let landlock_abi = match filesystem_abi(policy) {
        Ok(abi) => abi,
        Err(message) => return SandboxReport::none(message),
    };
    if let Err(error) = confine(policy) {
        return SandboxReport::none(error_chain(&error));
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
    expect("write inside", write(&policy.worktree.join("x")).is_ok());
    expect("no write outside", refused(write(&outside.join("x")), libc::EACCES));
    expect("no read outside", refused(std::fs::read_dir(outside).map(drop), libc::EACCES));
    let call = |number, args| raw::try_syscall(number, args);
    let mut seccomp = true;
    for (name, number, args) in [
        ("no unix socket", libc::SYS_socket, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0, 0]),
        ("no internet socket", libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0, 0]),
        ("no io_uring", libc::SYS_io_uring_setup, [1, 0, 0, 0]),
        ("no user namespace", libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]),
        ("no ptrace", libc::SYS_ptrace, [-1, 0, 0, 0]),
    ] {
        let holds = refused(call(number, args), libc::EPERM);
        seccomp &= holds;
        expect(name, holds);
    }
    let enforced = leaks.is_empty();
    let mut notes = leaks;
    if enforced {
        notes.extend(NOT_HELD_BY_TIER_2.iter().map(|note| (*note).to_owned()));
        if landlock_abi < ABI_OF_SCOPES {
            notes.push(
                "the kernel does not scope signals: a command can signal other programs of the same user"
                    .to_owned(),
            );
        }
        if landlock_abi < ABI_OF_IOCTLS {
            notes.push("the kernel does not confine ioctls of devices".to_owned());
        }
    }
    SandboxReport {
        tier: if enforced { Tier::Landlock } else { Tier::Unconfined },
        landlock_abi,
        seccomp,
        notes,
    }
}

/// Restricts this process by a first, equal domain to learn the ABI; `confine` nests a second.
fn filesystem_abi(policy: &SandboxPolicy) -> Result<i32, String> {
    nix::sys::prctl::set_no_new_privs().map_err(|errno| errno.to_string())?;
    filesystem::restrict(policy).map_err(|error| error_chain(&error))
}
