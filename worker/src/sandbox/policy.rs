//! What a command may do, as data. Carried to the helper as JSON; holds no secret.

use super::system_paths::SystemPaths;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How strongly commands are confined (spec 5.5). On the wire a number, of which 1 is the strongest; ordered
/// from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Tier {
    /// Tier 0: nothing is confined; the command is still supervised and limited.
    Unconfined,
    /// Tier 2: Landlock and seccomp.
    Landlock,
    /// Tier 1: namespaces of its own, and inside of them Landlock and seccomp.
    Namespaces,
}

impl From<Tier> for u8 {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Unconfined => 0,
            Tier::Landlock => 2,
            Tier::Namespaces => 1,
        }
    }
}

impl TryFrom<u8> for Tier {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        match number {
            0 => Ok(Self::Unconfined),
            1 => Ok(Self::Namespaces),
            2 => Ok(Self::Landlock),
            other => Err(format!("sandbox tier {other} is not known here")),
        }
    }
}

/// What may be written beside the temp directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteScope {
    /// The worktree and [`SandboxPolicy::writable`].
    Worktree,
    /// Nothing (plan mode, read-only agents).
    ReadOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Tier 1: a network of its own that is loopback alone. Tier 2: no socket of any family; connected
    /// pairs stay.
    Off,
    /// Internet sockets. On tier 2 unix sockets stay refused: what listens there runs things outside.
    On,
}

/// Where a command finds the proxy on its own loopback. Above the ports that the kernel hands out.
pub const PROXY_PORT: u16 = 61_080;

/// Limits of a command. `None` leaves what the worker has. The first ones hold for each of its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// `RLIMIT_AS`. Off by default: node, Go and Java reserve far more than they use.
    pub address_space_bytes: Option<u64>,
    /// `RLIMIT_FSIZE`.
    pub file_bytes: Option<u64>,
    /// `RLIMIT_NOFILE`.
    pub open_files: Option<u64>,
    /// `RLIMIT_CPU`.
    pub cpu_seconds: Option<u64>,
    /// Processes and threads of the command together: by control group, on tier 1 for other users than root by
    /// `RLIMIT_NPROC` (which counts in a user namespace alone), else by looking.
    pub processes: Option<u64>,
    /// Memory of the command's processes together: by control group, else by looking.
    pub memory_bytes: Option<u64>,
    /// What the files in the temp directory may take, by looking.
    pub temp_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPolicy {
    /// The command does not start when this tier cannot be enforced.
    pub tier: Tier,
    pub write_scope: WriteScope,
    pub worktree: PathBuf,
    /// Private to the worker; writable in every scope.
    pub temp_dir: PathBuf,
    /// Further places to write under [`WriteScope::Worktree`], such as the worktree's own git
    /// directory and a quarantine for objects. Read-only under [`WriteScope::ReadOnly`].
    pub writable: Vec<PathBuf>,
    /// Further places to read, such as git's common directory.
    pub readable: Vec<PathBuf>,
    /// Files inside of what is writable that stay as they are, such as those that lead from a worktree to its
    /// repository. Tier 1 alone can hold that.
    pub protected: Vec<PathBuf>,
    /// On tier 1 an empty directory of the worker's own stands here, with what is readable of the real one in it.
    pub home: Option<PathBuf>,
    pub system: SystemPaths,
    pub network: Network,
    /// On tier 1 without a network: the socket of the worker's proxy, which is to serve [`PROXY_PORT`] in there.
    pub proxy: Option<PathBuf>,
    pub limits: Limits,
}

impl SandboxPolicy {
    /// Tier 2, writes to `worktree` and `temp_dir`, no network, the usual tool chains readable.
    #[must_use]
    pub fn for_worktree(worktree: PathBuf, temp_dir: PathBuf, system: SystemPaths) -> Self {
        Self {
            tier: Tier::Landlock,
            write_scope: WriteScope::Worktree,
            worktree,
            temp_dir,
            writable: Vec::new(),
            readable: Vec::new(),
            protected: Vec::new(),
            home: None,
            system,
            network: Network::Off,
            proxy: None,
            limits: Limits::default(),
        }
    }
}
