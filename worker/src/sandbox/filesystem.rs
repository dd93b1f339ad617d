//! The Landlock rule set of a policy.

use super::policy::{Network, SandboxPolicy, WriteScope};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::path::PathBuf;

/// The oldest ABI that confines writes at all: truncation came with 3.
const REQUIRED: ABI = ABI::V3;
/// The newest ABI whose rights were vetted here; later rights of a kernel are left alone.
const VETTED: ABI = ABI::V7;

#[derive(Debug, thiserror::Error)]
pub enum FilesystemError {
    #[error("Landlock refused the rule set")]
    Ruleset(#[from] RulesetError),
    #[error("failed to open {path}")]
    Path { path: PathBuf, source: PathFdError },
    #[error("the kernel does not enforce Landlock ABI 3 or later ({status:?})")]
    NotEnforced { status: LandlockStatus },
}

/// Signals and abstract sockets stay inside from here on.
pub(super) const ABI_OF_SCOPES: i32 = 6;

/// Rights to write, without the making of device nodes: as root one could make a name for the disk.
fn write_access() -> BitFlags<AccessFs> {
    AccessFs::from_all(VETTED) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev)
}

fn device_access() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
}

/// Rules that handle all rights; a missing right of a newer kernel is none.
fn ruleset() -> Result<Ruleset, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VETTED))?
        .scope(Scope::from_all(VETTED))
}

/// Inside of a view of its own (tier 1): all that is there is readable, and what is writable is so by two
/// fences. Returns the ABI that is in force.
pub(super) fn restrict_view(policy: &SandboxPolicy) -> Result<i32, FilesystemError> {
    let write = write_access();
    // Terminals are made as they are asked for, so all of them are named by their directory.
    let terminals = device_access() | AccessFs::ReadDir;
    let mut ruleset = ruleset()?
        .create()?
        .add_rules(path_beneath_rules(["/"], AccessFs::from_read(VETTED)))?
        .add_rules(path_beneath_rules(&policy.system.devices, device_access()))?
        .add_rules(path_beneath_rules(["/dev/pts"], terminals))?
        .add_rules(path_beneath_rules(["/tmp", "/dev/shm"], write))?
        .add_rules(path_beneath_rules(&policy.home, write))?;
    ruleset = add_required(ruleset, &policy.temp_dir, write)?;
    if policy.write_scope == WriteScope::Worktree {
        ruleset = add_required(ruleset, &policy.worktree, write)?
            .add_rules(path_beneath_rules(&policy.writable, write))?;
    }
    enforced(ruleset)
}

/// Confines this process for good. Returns the ABI that is in force.
pub(super) fn restrict(policy: &SandboxPolicy) -> Result<i32, FilesystemError> {
    let read = AccessFs::from_read(VETTED);
    let write = write_access();
    let device = device_access();

    let mut ruleset = ruleset()?;
    if policy.network == Network::Off {
        // A second fence behind the refused `socket`: a descriptor that was handed in stays mute.
        ruleset = ruleset.handle_access(AccessNet::from_all(VETTED))?;
    }
    let mut ruleset = ruleset.create()?;

    let carved = policy.system.carved();
    ruleset = ruleset
        .add_rules(path_beneath_rules(&carved.trees, read))?
        .add_rules(path_beneath_rules(&carved.listed, AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&policy.system.devices, device))?
        .add_rules(path_beneath_rules(&policy.readable, read))?;

    // The two places every command has: their absence is an error, not a silent refusal later.
    ruleset = add_required(ruleset, &policy.temp_dir, write)?;
    ruleset = match policy.write_scope {
        WriteScope::Worktree => add_required(ruleset, &policy.worktree, write)?
            .add_rules(path_beneath_rules(&policy.writable, write))?
            .add_rules(path_beneath_rules(&policy.system.shared_memory, write))?,
        WriteScope::ReadOnly => add_required(ruleset, &policy.worktree, read)?
            .add_rules(path_beneath_rules(&policy.writable, read))?,
    };

    enforced(ruleset)
}

fn enforced(ruleset: RulesetCreated) -> Result<i32, FilesystemError> {
    let status = ruleset.restrict_self()?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, landlock) => Err(FilesystemError::NotEnforced { status: landlock }),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok(effective_abi as i32),
        (_, landlock) => Err(FilesystemError::NotEnforced { status: landlock }),
    }
}

fn add_required(
    ruleset: RulesetCreated,
    path: &PathBuf,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, FilesystemError> {
    let fd = PathFd::new(path).map_err(|source| FilesystemError::Path { path: path.clone(), source })?;
    Ok(ruleset.add_rule(PathBeneath::new(fd, access))?)
}
