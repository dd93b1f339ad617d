//! What a crash left behind, and what nobody needs any more. Looks at small files and directories;
//! asks git only about worktrees it would remove.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::lock::{Ownership, ProcessStamp};
use crate::manager::Manager;
use crate::merge::{MergeError, SCRATCH_PREFIX};
use crate::name::{AgentId, BranchName};
use crate::record::{Phase, RecordError};
use crate::removal::{Force, KeepReason, Removal, RemoveError, remove_directory};
use crate::snapshot::{indexes_dir, indexes_of};
use crate::sweep::{remove_all, size};
use crate::types::RepoPath;

/// What [`Manager::reconcile`] or [`Manager::gc`] did.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Gone.
    pub removed: Vec<Swept>,
    /// Still there, with the reason.
    pub kept: Vec<Kept>,
    /// Size of what was removed.
    pub bytes: u64,
}

/// Something removed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Its directory.
    pub path: RepoPath,
    /// What it was.
    pub what: Leftover,
}

/// Kinds of leftovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leftover {
    /// A worktree whose making or removing was interrupted.
    HalfMade,
    /// A scratch worktree of a check.
    Scratch,
    /// A record whose worktree is gone.
    Record,
    /// A worktree no session needs.
    Worktree,
}

/// Something that stays.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Its directory.
    pub path: RepoPath,
    /// Why.
    pub reasons: Vec<String>,
}

/// Why the sweep stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The directory cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Something could not be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// The records cannot be listed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Whether work is merged cannot be told.
    #[error(transparent)]
    Merge(#[from] MergeError),
}

impl Manager {
    /// Repairs what a crash left: half-made worktrees, scratch trees, records of nothing. For every
    /// start of the server; touches no finished worktree.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn reconcile(&self) -> Result<Report, ReconcileError> {
        let mut report = Report::default();
        let me = ProcessStamp::current();
        for agent in self.records.agents()? {
            let path = self.path_of(&agent);
            let record = match self.records.read(&agent) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(damaged) => {
                    report.keep(&path, [damaged.to_string()]);
                    continue;
                }
            };
            let there = self.worktree(&record).is_some();
            let what = match record.phase {
                Phase::Ready if there => continue,
                Phase::Ready if path.symlink_metadata().is_ok() => {
                    report.keep(&path, ["its registration in the repository is gone".to_owned()]);
                    continue;
                }
                Phase::Ready => Leftover::Record,
                Phase::Creating | Phase::Removing if record.by != me && !record.by.is_dead() => {
                    report.keep(&path, [format!("process {} works on it", record.by.pid)]);
                    continue;
                }
                Phase::Creating | Phase::Removing if self.is_creating(&agent) => continue,
                Phase::Creating | Phase::Removing => Leftover::HalfMade,
            };
            let bytes = size(&path);
            let _registration = self.register().await.map_err(RemoveError::from)?;
            let mut record = record;
            // The branch of a finished worktree is work, whatever became of the directory.
            record.new_branch &= record.phase != Phase::Ready;
            self.sweep(&record).await?;
            report.removed(&path, what, bytes);
        }
        self.sweep_directories(&mut report).await?;
        self.undo_interrupted(&mut report).await?;
        self.sweep_temporary_indexes();
        Ok(report)
    }

    /// Removes worktrees that no session needs. Those with unmerged or uncommitted work stay unless
    /// forced; forced, their state is stored in a snapshot and their branch stays.
    ///
    /// # Errors
    /// [`ReconcileError`].
    pub async fn gc(
        &self,
        needed: &BTreeSet<AgentId>,
        into: &BranchName,
        force: Force,
    ) -> Result<Report, ReconcileError> {
        let mut report = self.reconcile().await?;
        for worktree in self.list()? {
            if needed.contains(&worktree.agent) {
                continue;
            }
            let unmerged = self.is_merged(&worktree.branch, into).await?.is_none();
            if unmerged && force == Force::No {
                let reason = format!("branch {} is not merged into {into}", worktree.branch);
                report.keep(&worktree.path, [reason]);
                continue;
            }
            let bytes = size(&worktree.path);
            match self.remove(&worktree.agent, force).await {
                Ok(Removal::Removed { .. }) => {
                    report.removed(&worktree.path, Leftover::Worktree, bytes);
                }
                Ok(Removal::Kept { reasons }) => {
                    report.keep(&worktree.path, reasons.iter().map(KeepReason::to_string));
                }
                Err(RemoveError::Lock(in_use)) => {
                    report.keep(&worktree.path, [in_use.to_string()]);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(report)
    }

    /// Bytes used by the worktree directories of this repository, by agent.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn disk_use(&self) -> Result<Vec<(AgentId, u64)>, RecordError> {
        let agents = self.records.agents()?;
        let sizes = agents.into_iter().map(|agent| {
            let bytes = size(&self.path_of(&agent));
            (agent, bytes)
        });
        Ok(sizes.collect())
    }

    /// Directories in our home that no record names.
    async fn sweep_directories(&self, report: &mut Report) -> Result<(), ReconcileError> {
        let entries = match std::fs::read_dir(&self.home) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => {
                return Err(ReconcileError::Io { path: self.home.clone(), source });
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(SCRATCH_PREFIX) {
                self.sweep_scratch(&path, report).await?;
            } else if let Ok(agent) = AgentId::parse(&name)
                && self.records.read(&agent).is_ok_and(|r| r.is_none())
            {
                let empty = std::fs::read_dir(&path).is_ok_and(|mut e| e.next().is_none());
                if empty {
                    remove_directory(&path).await?;
                    report.removed(&path, Leftover::HalfMade, 0);
                } else {
                    report.keep(&path, ["no record says what it is; look at it and remove it".to_owned()]);
                }
            }
        }
        Ok(())
    }

    /// Copies of indexes that a killed snapshot left: those of worktrees nobody owns now, and old ones
    /// of other trees, which have no owner to ask.
    fn sweep_temporary_indexes(&self) {
        let common = self.repository().common_dir();
        let mut ours = std::collections::HashSet::new();
        for worktree in self.list().unwrap_or_default() {
            let dir = indexes_of(common, &worktree.git_dir);
            if dir.is_dir()
                && let Ok(_ownership) = Ownership::try_acquire(&worktree.git_dir)
            {
                remove_entries(&dir, |_| true);
            }
            ours.insert(dir);
        }
        for tree in std::fs::read_dir(indexes_dir(common)).into_iter().flatten().flatten() {
            if !ours.contains(&tree.path()) {
                let unused = is_old(&tree);
                remove_entries(&tree.path(), is_old);
                if unused {
                    // Goes when it is empty; whoever needs it makes it again.
                    drop(std::fs::remove_dir(tree.path()));
                }
            }
        }
    }

    async fn sweep_scratch(&self, path: &Path, report: &mut Report) -> Result<(), ReconcileError> {
        let admin = crate::own::git_dir_of(path, self.repository().common_dir());
        let reason = admin.as_deref().map(|a| crate::beneath::small_text(&a.join("locked")));
        match reason.as_deref().and_then(ProcessStamp::from_reason) {
            Some(by) if !by.is_dead() => {
                report.keep(path, [format!("process {} works on it", by.pid)]);
            }
            _ => {
                let bytes = size(path);
                match admin {
                    Some(admin) => self.remove_scratch(path, &admin).await?,
                    None => remove_directory(path).await?,
                }
                report.removed(path, Leftover::Scratch, bytes);
            }
        }
        Ok(())
    }
}

impl Report {
    pub(crate) fn keep(&mut self, path: &Path, reasons: impl IntoIterator<Item = String>) {
        self.kept.push(Kept { path: path.into(), reasons: reasons.into_iter().collect() });
    }
    fn removed(&mut self, path: &Path, what: Leftover, bytes: u64) {
        self.bytes += bytes;
        self.removed.push(Swept { path: path.into(), what });
    }
}

/// Unchanged for a day. By its inode: a copy of an index has that one's time of modification.
fn is_old(entry: &std::fs::DirEntry) -> bool {
    const OLD: Duration = Duration::from_secs(24 * 60 * 60);
    let changed = entry.metadata().ok().and_then(|meta| u64::try_from(meta.ctime()).ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    changed.is_some_and(|at| now.saturating_sub(Duration::from_secs(at)) > OLD)
}

/// One that cannot be removed does no harm but its size.
fn remove_entries(dir: &Path, wanted: impl Fn(&std::fs::DirEntry) -> bool) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().filter(wanted) {
        let path = entry.path();
        drop(remove_all(&path));
    }
}
