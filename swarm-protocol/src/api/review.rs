//! Review: diff, merge, discard, restore.

use serde::{Deserialize, Serialize};

use crate::{ids::WorkerId, time::Timestamp};

/// `GET /workers/{id}/diff`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiffView {
    /// What it is compared with: a full commit id.
    pub base: String,
    /// The branch's commit.
    pub head: String,
    /// The branch.
    pub branch: String,
    /// Commits since base.
    pub commits: u64,
    /// Files, in order.
    pub files: Vec<crate::notification::FileChange>,
    /// What is not committed yet, while the worker runs.
    pub uncommitted: Vec<String>,
    /// The patch, as `git apply` takes it; empty with `?stat=true`.
    pub patch: String,
}

/// How a branch is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MergeStrategy {
    /// Fast-forward when possible, else a merge commit.
    #[default]
    Merge,
    /// One commit.
    Squash,
    /// Replayed on the target.
    Rebase,
    /// Always a merge commit.
    NoFf,
}

/// `POST /workers/{id}/merge`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MergeBody {
    /// The branch to move; the session's target when absent.
    #[serde(default)]
    pub into: Option<String>,
    /// How.
    #[serde(default)]
    pub strategy: MergeStrategy,
    /// Run the project's check on the merged tree first.
    #[serde(default)]
    pub check: bool,
    /// Only try.
    #[serde(default)]
    pub dry_run: bool,
}

/// A file that conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConflictFile {
    /// Its path.
    pub path: String,
    /// Lines of the branch's side that conflict, as `first-last`, when known.
    pub lines: Vec<String>,
}

/// Answer to a merge. Refusal is not conflict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum MergeView {
    /// The target moved.
    Merged {
        /// The target.
        into: String,
        /// Before.
        from: String,
        /// After.
        to: String,
        /// Files changed.
        files: u64,
        /// Lines added.
        insertions: u64,
        /// Lines removed.
        deletions: u64,
    },
    /// A dry run found no obstacle.
    Clean {
        /// The target.
        into: String,
        /// Its commit.
        from: String,
    },
    /// The branch is in the target already.
    AlreadyMerged {
        /// The target.
        into: String,
    },
    /// Nothing moved.
    Conflict {
        /// The target.
        into: String,
        /// Its commit.
        at: String,
        /// The files.
        files: Vec<ConflictFile>,
    },
    /// Nothing moved: files this merge touches are changed where the target is checked out.
    TargetDirty {
        /// The target.
        into: String,
        /// The checkout.
        checkout: String,
        /// Its files, with git's status letters.
        files: Vec<String>,
    },
    /// Nothing moved: the target was moved by somebody meanwhile.
    TargetMoved {
        /// The target.
        into: String,
        /// Where it was.
        expected: String,
        /// Where it is.
        actual: String,
    },
    /// Nothing moved: the check failed on the merged tree.
    CheckFailed {
        /// The end of its output.
        output: String,
    },
}

/// Answer to a discard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiscardView {
    /// Who.
    pub worker_id: WorkerId,
    /// The ref that keeps it.
    pub kept_ref: Option<String>,
    /// How long.
    pub days: u32,
}

/// `POST /workers/{id}/restore`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreBody {
    /// The snapshot; without it a discarded branch comes back.
    #[serde(default)]
    pub snapshot: Option<u32>,
}

/// Answer to a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RestoreView {
    /// What came back, as a sentence.
    pub message: String,
    /// The snapshot that now keeps what was there.
    pub kept_as: Option<u32>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SnapshotView {
    /// Its number.
    pub n: u32,
    /// The commit.
    pub commit: String,
    /// When, if git says so.
    pub at: Option<Timestamp>,
}
