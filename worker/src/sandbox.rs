//! Confinement of commands: what a process may read, write, call and reach, applied in a small
//! re-exec helper (`swarm-worker exec`) right before the command's own `execve`.
//!
//! Tier 1 is namespaces of the command's own with Landlock and seccomp inside; tier 2 is those two alone; tier 0 confines nothing but still supervises. Knows nothing of
//! shells, models or sessions. What a tier does not hold is listed by [`probe::SandboxReport::notes`].
#![expect(
    unsafe_code,
    reason = "fork, pidfds, the capability bounding set and close_range have no safe wrapper in nix; \
              all of them are in `raw`"
)]

mod confine;
mod exec;
mod filesystem;
mod guard;
mod handing;
mod mounts;
mod namespaces;
mod policy;
mod probe;
mod raw;
mod resources;
mod supervise;
mod syscalls;
mod system_paths;
mod tool_chains;
mod view;

pub use confine::ConfineError;
pub use exec::{ExecReport, ExecRequest, POLICY_FD_FLAG, POLICY_FLAG, SuperviseRequest, main as exec_main};
pub use guard::Bounds;
pub use policy::{Limits, Network, PROXY_PORT, SandboxPolicy, Tier, WriteScope};
pub use probe::{SandboxReport, TierReport, main as probe_main, probe};
pub use supervise::{StopOrder, Supervision, SupervisionEnd, supervise};
pub use system_paths::SystemPaths;
pub use tool_chains::{named_tool_chains, tool_chains};

pub(crate) use guard::memory_figure;
pub(crate) use handing::receive as receive_descriptor;
pub(crate) use raw::{PidFd, fork_then};
pub(crate) use supervise::watched_signals;
