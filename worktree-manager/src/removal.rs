//! The end of a worktree: what keeps it, what is stored before it goes by force, and the removal
//! itself, which never follows a link.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::beneath::{small_file, small_text};
use crate::git::GitError;
use crate::lock::{LockError, Ownership, ProcessStamp, ProgressEvent, patience_becomes};
use crate::manager::{Manager, Worktree};
use crate::name::{AgentId, BranchName};
use crate::porcelain::{ChangeKind, StatusEntry};
use crate::quarantine::{self, MigrateError};
use crate::record::{Phase, Record, RecordError};
use crate::repository::ReadError;
use crate::snapshot::{self, Snapshot, SnapshotError};
use crate::sweep;
use crate::tree::{Submodules, Tree};
use crate::types::{CommitId, RepoPath, list};
use crate::unfinished::Operation;

/// How long the server waits for the run that owns a worktree to let go of it, by default.
pub(crate) const OWNER_WAIT: Duration = Duration::from_secs(5);

/// Why a worktree stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum KeepReason {
    /// HEAD or the branch has left the base.
    #[error("it has commits (HEAD {head})")]
    Commits { head: CommitId },
    /// HEAD has commits that the branch lacks.
    #[error("HEAD {head} is not on branch {branch}")]
    NotOnBranch { head: CommitId, branch: BranchName },
    /// Changes of files git knows.
    #[error("uncommitted changes: {}", list(files))]
    Uncommitted { files: Vec<RepoPath> },
    /// Files git does not know and does not ignore.
    #[error("untracked files: {}", list(files))]
    Untracked { files: Vec<RepoPath> },
    /// git has not finished.
    #[error("{operation} is in progress")]
    InProgress { operation: Operation },
    /// Commits inside a submodule live in the worktree's git directory.
    #[error("submodules have moved: {}", list(paths))]
    Submodules { paths: Vec<RepoPath> },
    /// `git worktree lock` by somebody else.
    #[error("it is locked: {text}")]
    Locked { text: String },
}

/// How a removal ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[must_use = "a kept worktree must be reported"]
pub enum Removal {
    /// The directory is gone. `saved` is the state before, when it was removed by force.
    Removed { saved: Option<Saved> },
    /// Nothing was touched.
    Kept { reasons: Vec<KeepReason> },
}

/// A stored state and the way back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// The state.
    pub snapshot: Snapshot,
    /// To be shown.
    pub restore_command: String,
}

/// Whether work that would be lost stops a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It does.
    No,
    /// It is stored in a snapshot first.
    Yes,
}

/// Why a removal failed. Repeating it, or `swarm gc`, goes on where it stopped.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// No such worktree.
    #[error("{agent} has no worktree in this repository")]
    Unknown { agent: AgentId },
    /// Deleting failed.
    #[error("cannot remove {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It has an owner, or another program holds a lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The record could not be kept.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The state could not be stored, so nothing was removed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Objects could not be moved, so nothing was removed.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The deleting thread ended early.
    #[error("removing was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

patience_becomes!(RemoveError);

/// Why a worktree could not be marked as in use.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// A living process has it.
    #[error("{} is in use by process {}", path.display(), by.pid)]
    InUse { path: PathBuf, by: ProcessStamp },
    /// A person locked it.
    #[error("{} was locked by a person: {text}; `git worktree unlock` frees it", path.display())]
    Locked { path: PathBuf, text: String },
    /// Reading or writing failed.
    #[error("cannot write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// A tree this process owns for a while.
pub(crate) struct Held {
    pub(crate) record: Record,
    pub(crate) tree: Tree,
    _ownership: Ownership,
}

impl Manager {
    /// Removes worktree and branch when HEAD and branch are the base and nothing is uncommitted.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub async fn remove_if_unchanged(&self, agent: &AgentId) -> Result<Removal, RemoveError> {
        let held = self.hold(agent).await?;
        let mut reasons = self.reasons(&held).await?;
        let base = &held.record.base;
        let head = head_text(&held.tree).await?;
        let tip = self.repository.branch_tip(&held.record.branch).await?;
        if let Some(away) = head.iter().chain(&tip).find(|c| *c != base) {
            reasons.push(KeepReason::Commits { head: away.clone() });
        }
        if !reasons.is_empty() {
            return Ok(Removal::Kept { reasons });
        }
        self.delete(&held, BranchFate::GoesAtBase).await?;
        Ok(Removal::Removed { saved: None })
    }

    /// Removes the worktree and keeps its branch.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub async fn remove(&self, agent: &AgentId, force: Force) -> Result<Removal, RemoveError> {
        let held = self.hold(agent).await?;
        let reasons = self.lost_without_branch(&held).await?;
        let locked = reasons.iter().any(|r| matches!(r, KeepReason::Locked { .. }));
        if locked || (force == Force::No && !reasons.is_empty()) {
            return Ok(Removal::Kept { reasons });
        }
        let saved = if reasons.is_empty() || !held.tree.work_tree.is_dir() {
            None
        } else {
            let (snapshot, _) = snapshot::take(&held.tree, agent, None).await?;
            Some(Saved { restore_command: format!("swarm restore {agent} {}", snapshot.number), snapshot })
        };
        self.delete(&held, BranchFate::Stays).await?;
        Ok(Removal::Removed { saved })
    }

    /// What [`Manager::remove`] would keep the worktree for.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub async fn keep_reasons(&self, agent: &AgentId) -> Result<Vec<KeepReason>, RemoveError> {
        let held = self.hold(agent).await?;
        self.lost_without_branch(&held).await
    }

    /// Notes in git's own worktree lock who uses the worktree; takes over from a process that is
    /// provably gone.
    ///
    /// # Errors
    /// [`MarkError`] when somebody else has it.
    pub fn mark_in_use(&self, worktree: &Worktree, by: &ProcessStamp) -> Result<(), MarkError> {
        let path = worktree.git_dir.join("locked");
        let text = small_text(&path);
        match ProcessStamp::from_reason(&text) {
            None if text.trim().is_empty() => {}
            None => {
                return Err(MarkError::Locked { path: worktree.path.clone(), text: text.trim().to_owned() });
            }
            Some(holder) if holder == *by => return Ok(()),
            Some(holder) if holder.is_dead() || holder == ProcessStamp::current() => {
                tracing::warn!(from.pid = holder.pid, path = %worktree.path.display(), "took over a worktree lock");
                (self.progress)(ProgressEvent::TookOver { path: worktree.path.clone(), from: holder });
            }
            Some(holder) => {
                return Err(MarkError::InUse { path: worktree.path.clone(), by: holder });
            }
        }
        crate::tree::write_durably(&path, by.to_reason().as_bytes())
            .map_err(|source| MarkError::Io { path, source })
    }

    /// Owns the worktree of `agent` and brings its objects into the shared store.
    pub(crate) async fn hold(&self, agent: &AgentId) -> Result<Held, RemoveError> {
        let record = self.records.read(agent)?;
        let unknown = || RemoveError::Unknown { agent: agent.clone() };
        let record = record.ok_or_else(unknown)?;
        let git_dir = self.admin_dir(&record).filter(|d| d.is_dir());
        let git_dir = git_dir.ok_or_else(unknown)?;
        let ownership = Ownership::acquire(&git_dir, self.owner_wait).await?;
        let path = self.path_of(agent);
        let tree = if path.is_dir() {
            self.tree(&path, &git_dir).await?
        } else {
            // Removed by hand: refs can still be asked from the git directory.
            self.tree(&git_dir, &git_dir).await.map(|mut tree| {
                tree.work_tree = path.clone();
                tree
            })?
        };
        quarantine::migrate(&tree).await?;
        Ok(Held { record, tree, _ownership: ownership })
    }

    /// What would be lost with the directory while the branch stays.
    async fn lost_without_branch(&self, held: &Held) -> Result<Vec<KeepReason>, RemoveError> {
        let mut reasons = self.reasons(held).await?;
        let tip = self.repository.branch_tip(&held.record.branch).await?;
        if let Some(head) = head_text(&held.tree).await?
            && !self.contains(&held.tree, tip.as_ref(), &head).await?
        {
            reasons.push(KeepReason::NotOnBranch { head, branch: held.record.branch.clone() });
        }
        Ok(reasons)
    }

    /// What would be lost with the directory.
    async fn reasons(&self, held: &Held) -> Result<Vec<KeepReason>, RemoveError> {
        let tree = &held.tree;
        let mut reasons: Vec<KeepReason> = locked(tree).into_iter().collect();
        if let Some(operation) = tree.operation() {
            reasons.push(KeepReason::InProgress { operation });
        }
        if !tree.work_tree.is_dir() {
            return Ok(reasons);
        }
        let status = tree.status(Submodules::HeadOnly).await?;
        reasons.extend(dirt(&status));
        if tree.git_dir.join("modules").is_dir() {
            let base = held.record.base.as_str();
            let paths = moved_submodules(tree, base).await?;
            if !paths.is_empty() {
                reasons.push(KeepReason::Submodules { paths });
            }
        }
        Ok(reasons)
    }

    async fn contains(&self, tree: &Tree, tip: Option<&CommitId>, head: &CommitId) -> Result<bool, GitError> {
        let Some(tip) = tip else { return Ok(false) };
        let place = self.repository.common_place();
        let out = tree
            .git
            .command(
                &place,
                crate::git::Access::Read,
                ["merge-base", "--is-ancestor", head.as_str(), tip.as_str()],
            )
            .run()
            .await?;
        Ok(out.code == Some(0))
    }

    pub(crate) async fn delete(&self, held: &Held, branch: BranchFate) -> Result<(), RemoveError> {
        let _registration = self.register().await?;
        let record = Record {
            phase: Phase::Removing,
            new_branch: branch == BranchFate::GoesAtBase,
            by: ProcessStamp::current(),
            ..held.record.clone()
        };
        self.records.write(&record)?;
        self.sweep(&record).await
    }

    /// Under the registration lock: removes directory, registration, a new branch still at its base,
    /// and the record, in an order that can be repeated.
    pub(crate) async fn sweep(&self, record: &Record) -> Result<(), RemoveError> {
        let path = self.path_of(&record.agent);
        let admin = self.admin_dir(record).or_else(|| admin_by_scan(self.repository.common_dir(), &path));
        remove_directory(&path).await?;
        if let Some(admin) = admin {
            remove_directory(&admin).await?;
        }
        if record.new_branch {
            let tip = self.repository.branch_tip(&record.branch).await?;
            if tip.as_ref() == Some(&record.base) {
                let full = record.branch.full_ref();
                self.update_ref(&["-d", &full, record.base.as_str()]).await?;
            }
        }
        self.records.remove(&record.agent)?;
        Ok(())
    }
}

/// What becomes of the branch of a removed worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BranchFate {
    Stays,
    /// Removed if it is still at the base.
    GoesAtBase,
}

/// HEAD, or `None` when it is damaged beyond reading.
async fn head_text(tree: &Tree) -> Result<Option<CommitId>, ReadError> {
    let text = small_text(&tree.git_dir.join("HEAD"));
    match text.trim().strip_prefix("ref: ") {
        Some(name) => crate::own::ref_target(&tree.common_dir, name).await,
        None => Ok(CommitId::parse(&text).ok()),
    }
}

/// A lock that is not one of ours.
pub(crate) fn locked(tree: &Tree) -> Option<KeepReason> {
    let text = small_text(&tree.git_dir.join("locked"));
    let foreign = !text.trim().is_empty() && ProcessStamp::from_reason(&text).is_none();
    foreign.then(|| KeepReason::Locked { text: text.trim().to_owned() })
}

pub(crate) fn dirt(status: &[StatusEntry]) -> Vec<KeepReason> {
    let (untracked, known): (Vec<&StatusEntry>, Vec<&StatusEntry>) =
        status.iter().partition(|e| matches!(e.kind, ChangeKind::Untracked | ChangeKind::NestedRepository));
    let paths = |entries: Vec<&StatusEntry>| entries.iter().map(|e| e.path.clone()).collect();
    let mut reasons = Vec::new();
    if !known.is_empty() {
        reasons.push(KeepReason::Uncommitted { files: paths(known) });
    }
    if !untracked.is_empty() {
        reasons.push(KeepReason::Untracked { files: paths(untracked) });
    }
    reasons
}

async fn moved_submodules(tree: &Tree, base: &str) -> Result<Vec<RepoPath>, GitError> {
    let out = tree.read(["diff-tree", "-r", "-z", "--no-renames", base, "HEAD"]).ok().await?;
    // ":<mode> <mode> …" and the path take turns.
    let parts: Vec<&[u8]> = out.split(|b| *b == 0).collect();
    let moved = parts.chunks_exact(2).filter(|pair| {
        let mut modes = pair[0].split(|b| *b == b' ');
        let before = modes.next();
        let after = modes.next();
        before == Some(&b":160000"[..]) || after == Some(&b"160000"[..])
    });
    Ok(moved.map(|pair| RepoPath::from_bytes(pair[1])).collect())
}

/// The registration whose `gitdir` names `path`; for a crash between registering and recording.
fn admin_by_scan(common_dir: &Path, path: &Path) -> Option<PathBuf> {
    let wanted = path.join(".git");
    let entries = std::fs::read_dir(common_dir.join("worktrees")).ok()?;
    entries.flatten().map(|e| e.path()).find(|admin| {
        small_file(&admin.join("gitdir")).is_some_and(|bytes| {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            bytes == wanted.as_os_str().as_bytes()
        })
    })
}

/// Removes a directory and what is in it; of a link only the link. Absent is fine.
pub(crate) async fn remove_directory(path: &Path) -> Result<(), RemoveError> {
    let owned = path.to_owned();
    let removed = tokio::task::spawn_blocking(move || sweep::remove_all(&owned)).await;
    removed
        .map_err(RemoveError::Interrupted)?
        .map_err(|source| RemoveError::Io { path: path.to_owned(), source })
}
