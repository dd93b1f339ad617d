//! The system calls without a safe wrapper. Every `unsafe` of this crate is here.

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Forks and runs `child` in the new process, which ends with status 127 if `child` returns.
/// Refused when this process has more than one thread: only then is it sound to allocate in a child.
pub(crate) fn fork_then(child: impl FnOnce()) -> io::Result<Pid> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other("fork from a process with several threads"));
    }
    // SAFETY: this process has a single thread, so the child inherits no lock held by another.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            child();
            // SAFETY: ends this process without running the parent's exit handlers twice.
            unsafe { libc::_exit(127) }
        }
    }
}

/// A second, close-on-exec descriptor for one that was handed down by number.
pub(super) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; an invalid number is refused by the kernel.
    let result = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    check(libc::c_long::from(result))?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Marks every descriptor from `first` on close-on-exec, so that a command inherits only its three.
pub(super) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: plain integers; with CLOSE_RANGE_CLOEXEC no descriptor is closed under its owner.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(result)
}

/// Removes a capability from the bounding set. Fails without `CAP_SETPCAP`.
pub(super) fn drop_from_bounding_set(capability: u32) -> io::Result<()> {
    // SAFETY: plain integers.
    let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
    check(libc::c_long::from(result))
}

/// Makes one raw system call with plain integer arguments, to see what the kernel answers.
pub(super) fn try_syscall(number: libc::c_long, args: [libc::c_long; 4]) -> io::Result<()> {
    // SAFETY: used by the probe with null pointers and invalid descriptors only, which the kernel
    // refuses after the filter has had its say.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3]) };
    check(result)
}

/// A reference to one process that never comes to mean another one.
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: plain integers; a non-negative result is a descriptor that we own.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        check(result)?;
        let raw = i32::try_from(result).map_err(io::Error::other)?;
        // SAFETY: just opened, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    pub(crate) fn send(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: a null siginfo asks the kernel to fill it in as kill(2) does.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal as libc::c_int,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        check(result)
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
