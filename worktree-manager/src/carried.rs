//! Uncommitted changes of a person that workers start from: a commit on top of HEAD that no branch of the
//! person has. It is the base of the workers' branches and must not come back with them: the person still has
//! these changes in the working tree.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::git::GitError;
use crate::lock::PatienceError;
use crate::manager::Manager;
use crate::repository::{ReadError, Repository};
use crate::snapshot::{DEFAULT_FILE_LIMIT_BYTES, Skipped, SnapshotError, capture, commit_tree};
use crate::types::CommitId;

/// Marks such commits, and keeps them.
const BASES: &str = "refs/swarm/bases/";

/// The state of a person's working tree as a commit that workers can start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirtyBase {
    /// On top of HEAD, kept by `refs/swarm/bases/<id>`.
    pub commit: CommitId,
    /// Changed files that are not in it.
    pub skipped: Vec<Skipped>,
}

/// Why no such commit could be dropped.
#[derive(Debug, thiserror::Error)]
pub enum CarriedError {
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A ref could not be removed.
    #[error(transparent)]
    Ref(#[from] PatienceError),
}

impl Repository {
    /// Stores what is changed and untracked where the person stands, without touching index or
    /// files, as a base for workers.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub async fn snapshot_dirty(&self) -> Result<DirtyBase, SnapshotError> {
        let tree = self.tree().await?;
        let capture = capture(&tree, Some(DEFAULT_FILE_LIMIT_BYTES)).await?;
        let message = "uncommitted changes at submit\n";
        let head = capture.head.as_str();
        let commit = commit_tree(&tree, &capture.work, &[head], message).await?;
        let name = format!("{BASES}{commit}");
        tree.write(["update-ref", &name, commit.as_str()]).ok().await?;
        Ok(DirtyBase { commit, skipped: capture.skipped })
    }

    /// The newest such commit below `tip` that `target` does not have.
    pub(crate) async fn carried(
        &self,
        tip: &CommitId,
        target: &CommitId,
    ) -> Result<Option<CommitId>, ReadError> {
        let (tip, target) = (tip.oid(), target.oid());
        self.libgit("the carried changes", move |repo| {
            let mut found: Option<git2::Commit<'_>> = None;
            for reference in repo.references_glob(&format!("{BASES}*"))? {
                let commit = reference?.peel_to_commit()?;
                let below = |of: git2::Oid| -> Result<bool, git2::Error> {
                    Ok(of == commit.id() || repo.graph_descendant_of(of, commit.id())?)
                };
                let newer = found.as_ref().is_none_or(|other| other.time() < commit.time());
                if newer && below(tip)? && !below(target)? {
                    found = Some(commit);
                }
            }
            Ok(found.map(|commit| commit.id().into()))
        })
        .await
    }
}

impl Manager {
    /// Drops such commits that are older than `max_age`, are not `needed`, and that no branch, snapshot or
    /// discarded branch was made from.
    ///
    /// # Errors
    /// [`CarriedError`].
    pub async fn expire_carried(
        &self,
        needed: &BTreeSet<CommitId>,
        max_age: Duration,
    ) -> Result<Vec<CommitId>, CarriedError> {
        let read = |repo: &git2::Repository| {
            let mut found = Vec::new();
            for reference in repo.references_glob(&format!("{BASES}*"))? {
                let commit = reference?.peel_to_commit()?;
                found.push((CommitId::from(commit.id()), commit.time().seconds()));
            }
            Ok(found)
        };
        let now = jiff::Timestamp::now().as_second();
        let mut dropped = Vec::new();
        for (commit, made_at) in self.repository().libgit("the carried changes", read).await? {
            let age = Duration::from_secs(u64::try_from(now - made_at).unwrap_or(0));
            if age < max_age || needed.contains(&commit) {
                continue;
            }
            let name = format!("{BASES}{commit}");
            let args = ["for-each-ref", "--count=2", "--format=%(refname)", "--contains", commit.as_str()];
            let holders = self.repository().read_common(args).ok().await?;
            if holders
                .split(|b| *b == b'\n')
                .filter(|line| !line.is_empty())
                .all(|line| line == name.as_bytes())
            {
                self.update_ref(&["-d", &name, commit.as_str()]).await?;
                dropped.push(commit);
            }
        }
        Ok(dropped)
    }
}
