//! Applies a policy to this process, in the order in which nothing that is still needed is lost.

use super::filesystem::{self, FilesystemError};
use super::policy::{Limits, Network, SandboxPolicy, Tier};
use super::raw;
use super::syscalls::{self, FilterError, Sockets};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("failed to set {what}")]
    Process { what: &'static str, source: Errno },
    #[error("the file system cannot be confined")]
    Filesystem(#[from] FilesystemError),
    #[error("system calls cannot be confined")]
    Syscalls(#[from] FilterError),
}

/// Capabilities that root keeps in the sandbox: those about files and ids, which paths bound.
const KEPT_CAPABILITIES: &[u32] = &[
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    3,  // CAP_FOWNER
    4,  // CAP_FSETID
    6,  // CAP_SETGID
    7,  // CAP_SETUID
    10, // CAP_NET_BIND_SERVICE
];
const LAST_CAPABILITY: u32 = 63;

/// Confines this process and all it will start. Cannot be undone.
pub(super) fn confine(policy: &SandboxPolicy) -> Result<(), ConfineError> {
    let process = |what| move |source| ConfineError::Process { what, source };
    limit(&policy.limits).map_err(process("resource limits"))?;
    if policy.tier == Tier::Namespaces && !geteuid().is_root() {
        // Counted in the user namespace, which is this command's alone.
        lower(Resource::RLIMIT_NPROC, policy.limits.processes).map_err(process("resource limits"))?;
    }
    prctl::set_no_new_privs().map_err(process("no_new_privs"))?;
    match policy.tier {
        Tier::Unconfined => {}
        Tier::Landlock => {
            if geteuid().is_root() {
                drop_capabilities();
            }
            filesystem::restrict(policy)?;
            syscalls::restrict(match policy.network {
                Network::Off => Sockets::None,
                Network::On => Sockets::Internet,
            })?;
        }
        // In its namespaces already, where it has all capabilities over them; `execve` takes them from all
        // but root, and from root those that are dropped here.
        Tier::Namespaces => {
            drop_capabilities();
            let abi = filesystem::restrict_view(policy)?;
            // With the network of outside come the abstract sockets of outside, unless the kernel scopes them.
            let has_foreign_sockets = policy.network == Network::On && abi < filesystem::ABI_OF_SCOPES;
            syscalls::restrict(if has_foreign_sockets {
                Sockets::Internet
            } else {
                Sockets::InternetAndUnix
            })?;
        }
    }
    Ok(())
}

/// Takes from root what no build needs. Best effort: a root without `CAP_SETPCAP` has lost it already.
fn drop_capabilities() {
    for capability in 0..=LAST_CAPABILITY {
        if !KEPT_CAPABILITIES.contains(&capability) && raw::drop_from_bounding_set(capability).is_err() {
            // EINVAL: past the kernel's last capability; EPERM: nothing more can be dropped.
            return;
        }
    }
}

fn limit(limits: &Limits) -> Result<(), Errno> {
    lower(Resource::RLIMIT_CORE, Some(0))?;
    lower(Resource::RLIMIT_AS, limits.address_space_bytes)?;
    lower(Resource::RLIMIT_FSIZE, limits.file_bytes)?;
    lower(Resource::RLIMIT_NOFILE, limits.open_files)?;
    lower(Resource::RLIMIT_CPU, limits.cpu_seconds)
}

/// Sets soft and hard limit, never above the hard limit in force.
fn lower(resource: Resource, limit: Option<u64>) -> Result<(), Errno> {
    let Some(limit) = limit else {
        return Ok(());
    };
    let (_, hard) = getrlimit(resource)?;
    let limit = limit.min(hard);
    setrlimit(resource, limit, limit)
}
