//! Tier 1: user, mount, process, network, ipc and host name namespaces for one command.
//!
//! ```text
//! helper (outside) -- init (first process in there: builds the view, then only waits)
//!                  \- command (joins them; its parent is the helper, so supervision sees what it always saw)
//! ```
//!
//! Init holds the namespaces and takes over orphans. It lives on a leash: a pipe whose other end the helper
//! alone holds. When the helper ends, by whatever death, init ends, and the kernel kills all that is in there.

use super::handing;
use super::mounts::{self, MountError};
use super::policy::{Network, PROXY_PORT, SandboxPolicy};
use super::raw::{self, PidFd};
use super::resources::Groups;
use super::syscalls::{self, FilterError};
use super::view::View;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, chdir, getegid, geteuid};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use swarm_protocol::error_chain;

#[derive(Debug, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error("failed to {step}")]
    Step { step: &'static str, source: io::Error },
    #[error("the namespaces could not be set up: {0}")]
    SetUp(String),
    #[error("failed to enter {}; commands do not see it", path.display())]
    Directory { path: PathBuf, source: io::Error },
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> NamespaceError {
    move |error| NamespaceError::Step { step, source: error.into() }
}

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("the loopback interface stays down")]
    Loopback(#[source] io::Error),
    #[error("the port of the proxy cannot be had")]
    Proxy(#[source] io::Error),
    #[error("the first process could not be closed")]
    Close(#[source] io::Error),
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Namespaces that a command can join.
#[derive(Debug)]
pub(super) struct Namespaces {
    init: Pid,
    handle: PidFd,
    flags: CloneFlags,
    _leash: PipeWriter,
    /// Tells the proxy that the command still runs.
    proxy: Option<UnixStream>,
}

impl Namespaces {
    /// Makes them. Needs a process with a single thread.
    pub(super) fn create(policy: &SandboxPolicy) -> Result<Self, NamespaceError> {
        let view = View::of(policy);
        let flags = flags(policy.network);
        let (held, leash) = io::pipe().map_err(step("make a pipe"))?;
        let (answer, ready) = UnixStream::pair().map_err(step("make a socket"))?;
        let mut ends = Some((leash, answer));
        raw::check_single_thread().map_err(step("make namespaces"))?;
        let init = raw::clone_then(flags.bits(), || {
            // In the child's copy of memory: or the leash would hold itself.
            ends = None;
            init(&view, policy, held, ready);
        })
        .map_err(step("make namespaces"))?;
        let Some((mut leash, answer)) = ends else {
            return Err(step("make a pipe")(io::Error::other("the pipe is gone")));
        };
        map_ids(init).map_err(step("map users"))?;
        leash.write_all(b"g").map_err(step("start the first process"))?;
        let (message, listener) = handing::receive(&answer).map_err(step("hear of the first process"))?;
        let mut namespaces = Self {
            init,
            handle: PidFd::open(init.as_raw()).map_err(step("hold the first process"))?,
            flags,
            _leash: leash,
            proxy: None,
        };
        if message != READY.as_bytes() {
            return Err(NamespaceError::SetUp(String::from_utf8_lossy(&message).into_owned()));
        }
        if let (Some(listener), Some(path)) = (listener, &policy.proxy) {
            let proxy = UnixStream::connect(path).map_err(step("reach the worker's proxy"))?;
            handing::send(&proxy, READY.as_bytes(), Some(&listener))
                .map_err(step("reach the worker's proxy"))?;
            namespaces.proxy = Some(proxy);
        }
        Ok(namespaces)
    }

    /// The first process; to be spared until all else is gone.
    pub(super) fn init(&self) -> Pid {
        self.init
    }

    /// Starts `child` inside, in `directory`, as a child of this process, which is a subreaper.
    pub(super) fn start(
        &self,
        directory: &Path,
        groups: &Groups,
        child: impl FnOnce(Result<(), NamespaceError>),
    ) -> Result<Pid, NamespaceError> {
        let (mut told, teller) = io::pipe().map_err(step("make a pipe"))?;
        let between = raw::fork_then(|| {
            groups.join();
            if let Err(errno) = setns(&self.handle, self.flags) {
                return child(Err(step("join the namespaces")(errno)));
            }
            // A process that joins stays outside with its own id; only its children are inside.
            let inside = raw::clone_then(0, || {
                let entered = chdir(directory).map_err(|errno| NamespaceError::Directory {
                    path: directory.to_owned(),
                    source: errno.into(),
                });
                child(entered);
            });
            if let Ok(inside) = inside {
                let _gone: io::Result<()> = (&teller).write_all(&inside.as_raw().to_ne_bytes());
            }
        })
        .map_err(step("start a process"))?;
        drop(teller);
        let mut number = [0; size_of::<i32>()];
        let read = told.read_exact(&mut number);
        // Its child is ours from now on.
        let _ended = waitpid(between, None);
        read.map_err(step("start a process inside"))?;
        Ok(Pid::from_raw(i32::from_ne_bytes(number)))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Not reaped by anyone else, or gone: then the handle says so.
        let _gone = self.handle.send(Signal::SIGKILL);
    }
}

const READY: &str = "ready";

fn flags(network: Network) -> CloneFlags {
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    if network != Network::On {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    flags
}

/// Ids inside are those outside: all of them for root, whose tools change owners, else one's own.
fn map_ids(init: Pid) -> io::Result<()> {
    let write = |file: &str, text: &str| std::fs::write(format!("/proc/{init}/{file}"), text);
    if geteuid().is_root() {
        let all = |file: &str| -> io::Result<()> {
            write(file, &same_ids(&std::fs::read_to_string(format!("/proc/self/{file}"))?))
        };
        if all("uid_map").is_ok() {
            return all("gid_map");
        }
    }
    let (user, group): (Uid, Gid) = (geteuid(), getegid());
    write("uid_map", &format!("{user} {user} 1"))?;
    write("setgroups", "deny")?;
    write("gid_map", &format!("{group} {group} 1"))
}

/// The map of a child whose ids are its parent's, from the parent's own map.
fn same_ids(map: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (first, count) = (words.next()?, words.nth(1)?);
        Some(format!("{first} {first} {count}\n"))
    };
    map.lines().filter_map(line).collect()
}

/// The first process. Ends when its leash is let go.
fn init(view: &View, policy: &SandboxPolicy, mut leash: PipeReader, ready: UnixStream) {
    // Maps of ids first: without them nothing is permitted in here.
    if leash.read_exact(&mut [0]).is_err() {
        return;
    }
    let (word, listener) = match set_up(view, policy) {
        Ok(listener) => (READY.to_owned(), listener),
        Err(error) => (error_chain(&error), None),
    };
    if handing::send(&ready, word.as_bytes(), listener.as_ref()).is_err() {
        return;
    }
    drop(listener);
    drop(ready);
    let leash = OwnedFd::from(leash);
    // The output of the command is not to stay open because of this process.
    if raw::close_all_but(&leash).is_err() {
        return;
    }
    let mut leash = File::from(leash);
    while matches!(leash.read(&mut [0]), Ok(1)) {}
}

/// Answers with the socket that the proxy is to serve: it belongs to this network, whoever accepts on it.
fn set_up(view: &View, policy: &SandboxPolicy) -> Result<Option<OwnedFd>, InitError> {
    mounts::build(view, policy.limits.memory_bytes)?;
    let mut listener = None;
    if policy.network != Network::On {
        raise_loopback().map_err(InitError::Loopback)?;
        if policy.proxy.is_some() {
            let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).map_err(InitError::Proxy)?;
            listener = Some(bound.into());
        }
    }
    // Nothing that a command can reach is stronger than the command.
    prctl::set_no_new_privs().map_err(|errno| InitError::Close(errno.into()))?;
    syscalls::restrict(syscalls::Sockets::None)?;
    raw::drop_capabilities().map_err(InitError::Close)?;
    // Orphans need nobody to wait for them.
    raw::ignore_children().map_err(InitError::Close)?;
    Ok(listener)
}

fn raise_loopback() -> io::Result<()> {
    raw::raise_loopback(socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_its_parents_ids() {
        assert_eq!(same_ids("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(same_ids("0 1000 1\n1 100000 65536\n"), "0 0 1\n1 1 65536\n");
    }
}
