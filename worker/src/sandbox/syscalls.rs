//! The system call filter: a deny list with EPERM, so that programs which merely probe go on.
//! Landlock decides about paths; this closes the ways around it.

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("failed to compile the system call filter")]
    Compile(#[from] seccompiler::BackendError),
    #[error("failed to install the system call filter")]
    Install(#[from] seccompiler::Error),
}

/// Refused whatever the arguments.
const DENIED: &[libc::c_long] = &[
    // Work done by kernel threads is invisible to a filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The mount table and the root directory.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Keys of the user.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Code and doors in the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    // The machine.
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Namespace flags of `clone` and `unshare`. `CLONE_NEWTIME` is left out for `clone`, where its bit
/// belongs to the exit signal.
const NEW_NAMESPACE: &[libc::c_int] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
const CLONE_NEWTIME: u64 = 0x80;

/// ioctls that put words into somebody's terminal.
const DENIED_IOCTLS: &[u64] = &[
    0x5412, // TIOCSTI
    0x541C, // TIOCLINUX
];

/// Which sockets can be made; pairs that are connected for good always stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sockets {
    None,
    /// glibc and Go list interfaces over netlink.
    Internet,
    /// Where no socket of a program outside can be named.
    InternetAndUnix,
}

impl Sockets {
    fn families(self) -> &'static [libc::c_int] {
        match self {
            Self::None => &[],
            Self::Internet => &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
            Self::InternetAndUnix => &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_UNIX],
        }
    }
}

/// Installs the filter in this process for good.
pub(super) fn restrict(sockets: Sockets) -> Result<(), FilterError> {
    for program in programs(sockets)? {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}

fn programs(sockets: Sockets) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let compile = |rules, refusal: libc::c_int| -> Result<BpfProgram, seccompiler::BackendError> {
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(refusal.cast_unsigned()), arch)?
            .try_into()
    };
    // The flags of `clone3` are behind a pointer, which a filter cannot follow. ENOSYS makes the C
    // libraries fall back to `clone`.
    let hidden = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let denied = compile(denied_rules(sockets)?, libc::EPERM)?;
    Ok([with_x32_killed(denied), compile(hidden, libc::ENOSYS)?])
}

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

fn denied_rules(sockets: Sockets) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = DENIED.iter().map(|number| (*number, Vec::new())).collect();

    let flag = |flag: u64| condition(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag);
    let mut clone = Vec::new();
    for namespace in NEW_NAMESPACE {
        clone.push(SeccompRule::new(vec![flag(u64::from(namespace.cast_unsigned()))?])?);
    }
    let mut unshare = clone.clone();
    unshare.push(SeccompRule::new(vec![flag(CLONE_NEWTIME)?])?);
    rules.insert(libc::SYS_clone, clone);
    rules.insert(libc::SYS_unshare, unshare);

    let mut ioctl = Vec::new();
    for request in DENIED_IOCTLS {
        ioctl.push(SeccompRule::new(vec![condition(
            1,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            *request,
        )?])?);
    }
    rules.insert(libc::SYS_ioctl, ioctl);

    // Limits of another process of the user: one of a second of CPU is as good as a signal.
    let of_another = condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
    let sets = condition(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![of_another, sets])?]);

    let mut other_family = Vec::new();
    for family in sockets.families() {
        let family = u64::from(family.cast_unsigned());
        other_family.push(condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)?);
    }
    // Without a condition a call is refused whatever it asks for.
    let socket = if other_family.is_empty() { Vec::new() } else { vec![SeccompRule::new(other_family)?] };
    rules.insert(libc::SYS_socket, socket);
    if !sockets.families().contains(&libc::AF_UNIX) {
        rules.insert(libc::SYS_socketpair, unconnected_pairs()?);
    }
    Ok(rules)
}

/// An end of a pair of datagram sockets may send to any address, and be connected elsewhere.
fn unconnected_pairs() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    const KIND: u64 = 0xf; // Above are flags.
    let unix = u64::from(libc::AF_UNIX.cast_unsigned());
    let other_family = condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?;
    let mut rules = vec![SeccompRule::new(vec![other_family])?];
    let connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(|kind| u64::from(kind.cast_unsigned()));
    for kind in (0..=KIND).filter(|kind| !connected.contains(kind)) {
        let is_kind = condition(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(KIND), kind)?;
        rules.push(SeccompRule::new(vec![is_kind])?);
    }
    Ok(rules)
}

fn condition(
    argument: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, length, operator, value)
}

/// Puts a check before the filter: x32 calls share the architecture of x86-64 and would pass by
/// every rule under their own numbers. Other architectures are killed by the filter itself.
#[cfg(target_arch = "x86_64")]
fn with_x32_killed(program: BpfProgram) -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const X32_BIT: u32 = 0x4000_0000;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut whole = vec![
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_GREATER_OR_EQUAL, 0, 1, X32_BIT),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    whole.extend(program);
    whole
}

#[cfg(not(target_arch = "x86_64"))]
fn with_x32_killed(program: BpfProgram) -> BpfProgram {
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_compile() {
        for sockets in [Sockets::None, Sockets::Internet, Sockets::InternetAndUnix] {
            assert!(programs(sockets).is_ok(), "{sockets:?}");
        }
    }
}
