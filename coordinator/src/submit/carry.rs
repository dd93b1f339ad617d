//! `--carry`: workers start from a snapshot of what is uncommitted where the person stands. Index, files and
//! stashes there stay as they are.

use swarm_protocol::{api::CreateTask, error_chain};
use worktree_manager::{ChangeKind, CommitId, Facts, Repository, SnapshotError, StatusEntry};

use super::SubmitError;

/// Why nothing can be carried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    /// Two bases.
    #[error("`carry` takes what is changed on top of HEAD, so it cannot go with `base`")]
    WithBase,
    /// A conflict is not work to start from.
    #[error("{0} and more is in conflict in your checkout: finish or abort that merge first")]
    Unmerged(String),
    /// git could not store it.
    #[error("cannot store the uncommitted changes: {}", error_chain(.0))]
    Snapshot(#[from] SnapshotError),
}

/// A snapshot that workers start from.
pub(super) struct Carried {
    pub(super) commit: CommitId,
    pub(super) notices: Vec<String>,
}

/// Whether `carry` makes sense, before anything is made.
pub(super) fn check(task: &CreateTask, facts: &Facts) -> Result<(), SubmitError> {
    if !task.carry {
        return Ok(());
    }
    if task.base.is_some() {
        return Err(CarryError::WithBase.into());
    }
    let unmerged = |entry: &&StatusEntry| entry.kind == ChangeKind::Unmerged;
    match facts.dirty.iter().find(unmerged) {
        Some(entry) => Err(CarryError::Unmerged(entry.path.to_string()).into()),
        None => Ok(()),
    }
}

/// Stores the changes; none when there are none.
pub(super) async fn take(
    repository: &Repository,
    task: &CreateTask,
    facts: &Facts,
    head: &CommitId,
) -> Result<Option<Carried>, SubmitError> {
    if !task.carry || facts.dirty.is_empty() {
        return Ok(None);
    }
    let snapshot = repository.snapshot_dirty().await.map_err(CarryError::from)?;
    let mut notices = vec![format!(
        "{} changed files of your checkout are carried along: workers start from snapshot {} on top of {}; a \
         merge takes their work without it",
        facts.dirty.len() - snapshot.skipped.len().min(facts.dirty.len()),
        snapshot.commit.short(),
        head.short(),
    )];
    notices.extend(
        snapshot.skipped.iter().map(|skipped| format!("not carried: {}: {}", skipped.path, skipped.reason)),
    );
    Ok(Some(Carried { commit: snapshot.commit, notices }))
}
