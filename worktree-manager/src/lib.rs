//! Git worktrees for agents, and the review of their branches. Knows no models and no crate of ours.
//!
//! Two sides use it. The server makes and removes worktrees, merges and discards ([`Manager`]); a
//! worker process cares for its own worktree alone ([`OwnWorktree`]): state, snapshots, the commit at
//! the end, moving its branch. Who may touch a worktree is settled by a file lock ([`Ownership`]).
//!
//! Invariants, as absences: only `git.rs` starts git; no hook, filter, merge driver or fsmonitor runs
//! in the server; no lock file of another program is removed; no branch moves but by comparing with
//! its old value; nothing is stashed; no ref names an object that is not yet in the shared store.
//!
//! Filters (git-lfs, git-crypt): `.gitattributes` chooses them, so an agent could make the server run
//! them. The server therefore checks out and stores such files as they are in git, names them in
//! [`Created::filtered`], and refuses to merge into a checked-out branch when the merge touches one;
//! the worker process runs them by [`OwnWorktree::apply_filters`] before its first turn. Merge drivers
//! count as conflicts.

mod beneath;
mod carried;
mod commit;
mod diff;
mod discard;
mod driver;
mod evidence;
mod git;
mod ignored;
mod include;
mod interrupted;
mod landing;
mod lock;
mod manager;
mod merge;
mod name;
mod own;
mod porcelain;
mod quarantine;
mod reconcile;
mod record;
mod removal;
mod repository;
mod snapshot;
mod submodule;
mod sweep;
mod tree;
mod types;
mod unfinished;

pub use carried::{CarriedError, DirtyBase};
pub use commit::{CommitError, CommitOutcome, CommitRequest, Identity};
pub use diff::{CommitInfo, Commits, Diff, DiffError};
pub use discard::{DiscardError, Discarded, RestoreSnapshotError, Restored};
pub use evidence::{Change, Evidence, EvidenceError, Fingerprint, Watched};
pub use git::{GitConfig, GitError, LockPatience};
pub use ignored::is_ignored;
pub use include::{INCLUDE_FILE, IncludeError, IncludeRefusal, IncludeRefused, Included};
pub use landing::LandingRefusal;
pub use lock::{
    LockError, OWNER_LOCK, Ownership, PatienceError, ProcessStamp, Progress, ProgressEvent, silent,
};
pub use manager::{CreateError, CreateSpec, Created, Manager, Worktree};
pub use merge::{
    Check, CheckOutcome, ConflictFile, MergeError, MergeOutcome, MergeProof, MergeRequest, Strategy,
};
pub use name::{
    AgentId, BranchName, BranchPlan, BranchPrefix, ChosenBranch, NameError, Renamed, SessionTag, Slug,
};
pub use own::{Advance, AdvanceError, Assignment, OwnError, OwnState, OwnWorktree, StateError, StoreError};
pub use porcelain::{ChangeKind, FileStat, LineCounts, LineRange, StatusEntry};
pub use quarantine::{MigrateError, Migrated, QUARANTINE_DIR};
pub use reconcile::{Kept, Leftover, ReconcileError, Report, Swept};
pub use record::RecordError;
pub use removal::{Force, KeepReason, MarkError, Removal, RemoveError, Saved};
pub use repository::{
    BaseError, Distance, Facts, FactsError, Head, NearBranch, OpenError, ReadError, Repository, ResolvedBase,
    Unsupported,
};
pub use snapshot::{
    DEFAULT_FILE_LIMIT_BYTES, RestoreError, Retention, SkipReason, Skipped, Snapshot, SnapshotError,
    SnapshotInfo,
};
pub use submodule::{SubmoduleFill, SubmoduleState};
pub use sweep::remove_all;
pub use types::{CommitId, DiffStat, InvalidCommitId, RepoPath};
pub use unfinished::Operation;
