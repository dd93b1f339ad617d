//! The system calls without a safe wrapper. Every `unsafe` of this crate is here.

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Forks and runs `child` in the new process, which ends with status 127 if `child` returns.
/// Refused when this process has more than one thread: only then is it sound to allocate in a child.
pub(crate) fn fork_then(child: impl FnOnce()) -> io::Result<Pid> {
    check_single_thread()?;
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

/// Refuses when this process has more than one thread.
pub(super) fn check_single_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("fork from a process with several threads")),
    }
}

/// Lowers the priority of this process.
pub(super) fn be_nice(by: i32) {
    // SAFETY: a plain integer. It fails only where it would raise the priority.
    unsafe { libc::nice(by) };
}

/// Lets the kernel reap the children of this process.
pub(super) fn ignore_children() -> io::Result<()> {
    // SAFETY: no handler is installed that code could run in.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, nix::sys::signal::SigHandler::SigIgn) }?;
    Ok(())
}

/// As [`fork_then`], into new namespaces. Also for a process that has forked from a single-threaded one
/// and can no longer see its own threads, with no flag at all.
pub(super) fn clone_then(flags: libc::c_int, child: impl FnOnce()) -> io::Result<Pid> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork: the child has its own memory and goes on on its own copy of
    // the stack. The caller has a single thread, so it inherits no lock held by another.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    check(result)?;
    if result == 0 {
        child();
        // SAFETY: ends this process without running the parent's exit handlers twice.
        unsafe { libc::_exit(127) }
    }
    Ok(Pid::from_raw(i32::try_from(result).map_err(io::Error::other)?))
}

/// Closes every descriptor but `kept`. For a process that owns nothing else any more and never returns.
pub(super) fn close_all_but(kept: &OwnedFd) -> io::Result<()> {
    let kept = libc::c_long::from(kept.as_raw_fd());
    for (first, last) in [(0, kept - 1), (kept + 1, libc::c_long::from(i32::MAX))] {
        if first <= last {
            // SAFETY: plain integers; the caller promises that no owner will use them again.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
        }
    }
    Ok(())
}

/// Gives up all capabilities of this process.
pub(super) fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: version 3 reads a header and two sets of three words, which live until the call returns.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })
}

/// A detached copy of the mounts at and below what `place` is open on.
pub(super) fn copy_of_mounts(place: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE
        | libc::O_CLOEXEC.cast_unsigned()
        | libc::AT_EMPTY_PATH.cast_unsigned()
        | libc::AT_RECURSIVE.cast_unsigned();
    // SAFETY: the path is a NUL-terminated empty string; a result is a descriptor that we own.
    let result =
        unsafe { libc::syscall(libc::SYS_open_tree, place.as_fd().as_raw_fd(), c"".as_ptr(), flags) };
    check(result)?;
    let raw = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Adds attributes (`MOUNT_ATTR_*`) to a mount, and to all below it where `recursive`.
pub(super) fn set_mount_attributes(mount: impl AsFd, attributes: u64, recursive: bool) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let recursive = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure and the empty path live until the call returns, and its size is told.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
}

/// Puts a detached mount on what `place` is open on.
pub(super) fn attach_mount(mount: impl AsFd, place: impl AsFd) -> io::Result<()> {
    const FROM_AND_TO_EMPTY_PATH: libc::c_uint = 0x4 | 0x40;
    // SAFETY: both paths are NUL-terminated empty strings.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            place.as_fd().as_raw_fd(),
            c"".as_ptr(),
            FROM_AND_TO_EMPTY_PATH,
        )
    })
}

/// Brings the loopback interface of this network namespace up.
pub(super) fn raise_loopback(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: the request lives until the call returns.
    check(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    }))
}

/// A second, close-on-exec descriptor for one that was handed down by number.
pub(super) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; an invalid number is refused by the kernel.
    let result = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    check(libc::c_long::from(result))?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Owns a descriptor that has just come over a socket.
pub(super) fn received(number: i32) -> OwnedFd {
    // SAFETY: the kernel has made it for this message, and nobody else has seen its number.
    unsafe { OwnedFd::from_raw_fd(number) }
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

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
