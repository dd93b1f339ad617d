//! What a worker does with its own worktree, without the server: state, snapshots, the commit at
//! the end, moving its branch.
//!
//! Commands of an agent work on a detached HEAD and write objects to a private directory
//! ([`OwnWorktree::environment`]). With the shared git directory read-only except the worktree's own,
//! `commit`, `reset`, `rebase`, `merge`, `cherry-pick` and `stash create`/`stash apply` work. What
//! writes a shared ref does not: `stash push` (`refs/stash` is shared by all worktrees; git fails
//! before it touches a file, and `git stash create` with `git stash apply ID` is the way), `branch`,
//! `tag`, `fetch`. A repository that a command makes elsewhere also writes its objects to the private
//! directory; unset [`environment`](OwnWorktree::environment)'s variables for such commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::commit::{self, CommitError, CommitOutcome, CommitRequest};
use crate::git::{Git, GitConfig, GitError, Neutral, alternate_element};
use crate::lock::{LockError, Ownership, Progress, silent};
use crate::name::{AgentId, BranchName};
use crate::porcelain::StatusEntry;
use crate::quarantine::{self, MigrateError, Migrated, QUARANTINE_DIR};
use crate::repository::ReadError;
use crate::snapshot::{self, DEFAULT_FILE_LIMIT_BYTES, RestoreError, Snapshot, SnapshotError, SnapshotInfo};
use crate::tree::{Drivers, Submodules, Tree};
use crate::types::CommitId;
use crate::unfinished::Operation;

/// Told by the server, because nothing inside the worktree can be trusted to say it.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Whose worktree it is.
    pub agent: AgentId,
    /// The branch that follows HEAD.
    pub branch: BranchName,
    /// Where the work began.
    pub base: CommitId,
    /// The shared git directory.
    pub common_dir: PathBuf,
    /// The worktree's own part of it.
    pub git_dir: PathBuf,
}

/// A worktree with this process as its owner.
#[derive(Debug)]
pub struct OwnWorktree {
    pub(crate) tree: Tree,
    assignment: Assignment,
    tip: CommitId,
    progress: Box<ProgressHolder>,
    _ownership: Ownership,
}

struct ProgressHolder(Progress);

impl std::fmt::Debug for ProgressHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// Why a worktree cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// `.git` does not lead to a worktree of the repository.
    #[error(
        "{} is not a worktree of {} any more (its .git file is missing or was changed); restore it with `swarm restore`",
        path.display(), common_dir.display()
    )]
    NotOurs { path: PathBuf, common_dir: PathBuf },
    /// Another process owns it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The branch is gone.
    #[error("branch {branch} of the worktree {} does not exist", path.display())]
    NoBranch { path: PathBuf, branch: BranchName },
    /// The private object directory cannot be made.
    #[error("cannot make {}", path.display())]
    Quarantine {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// A worktree's state against its base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnState {
    /// Where HEAD is.
    pub head: CommitId,
    /// Where the work began.
    pub base: CommitId,
    /// Not committed.
    pub dirty: Vec<StatusEntry>,
    /// Unfinished business of git.
    pub operation: Option<Operation>,
}

impl OwnState {
    /// HEAD is the base and nothing lies around: nothing would be lost.
    pub fn is_unchanged(&self) -> bool {
        self.head == self.base && self.dirty.is_empty() && self.operation.is_none()
    }
}

/// How the branch followed HEAD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Advance {
    /// It was there already.
    Unmoved,
    /// It moved. `kept` is the snapshot of the old tip, when the new one does not contain it (after
    /// an amend, a reset or a rebase).
    Moved { from: CommitId, to: CommitId, kept: Option<u32> },
    /// HEAD is not the tip of the work while this lasts; the branch stays.
    Held { operation: Operation },
}

/// Why the branch stayed.
#[derive(Debug, thiserror::Error)]
pub enum AdvanceError {
    /// Objects could not be moved, so no ref may name them.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// Someone else moved it.
    #[error("branch {branch} was moved by someone else: expected {expected}, found {}", found.as_ref().map_or("nothing", CommitId::as_str))]
    Moved { branch: BranchName, expected: CommitId, found: Option<CommitId> },
    /// HEAD names objects that are nowhere.
    #[error("HEAD {head} lacks objects, so branch {branch} was not moved")]
    Incomplete {
        head: CommitId,
        branch: BranchName,
        #[source]
        source: GitError,
    },
    /// The old tip could not be kept.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A ref is locked by another program.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl From<crate::lock::PatienceError> for AdvanceError {
    fn from(error: crate::lock::PatienceError) -> Self {
        match error {
            crate::lock::PatienceError::Git(error) => Self::Git(error),
            crate::lock::PatienceError::Lock(error) => Self::Lock(error),
        }
    }
}

/// Why a snapshot or commit by the worker failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Objects could not be moved first.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The snapshot failed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The commit failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Going back failed.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

/// The git directory `<path>/.git` names, if it is one of `common_dir`'s worktrees.
pub(crate) fn git_dir_of(path: &Path, common_dir: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let file = path.join(".git");
    let bytes = crate::beneath::small_file(&file)?;
    let target = bytes.strip_prefix(b"gitdir: ")?;
    let target = target.strip_suffix(b"\n").unwrap_or(target);
    let git_dir = path.join(std::ffi::OsStr::from_bytes(target)).canonicalize().ok()?;
    let worktrees = common_dir.join("worktrees").canonicalize().ok()?;
    (git_dir.parent()? == worktrees).then_some(git_dir)
}

impl OwnWorktree {
    /// Takes ownership of the worktree at `path`.
    ///
    /// # Errors
    /// [`OwnError`]; [`OwnError::Lock`] when another process is its owner.
    pub async fn open(path: &Path, assignment: Assignment) -> Result<Self, OwnError> {
        Self::open_with(path, assignment, GitConfig::default(), silent()).await
    }

    /// [`OwnWorktree::open`] with other limits.
    ///
    /// # Errors
    /// As [`OwnWorktree::open`].
    pub async fn open_with(
        path: &Path,
        assignment: Assignment,
        config: GitConfig,
        progress: Progress,
    ) -> Result<Self, OwnError> {
        let git_dir = assignment.git_dir.clone();
        let named = git_dir_of(path, &assignment.common_dir);
        if named.is_none() || named != git_dir.canonicalize().ok() {
            return Err(OwnError::NotOurs {
                path: path.to_owned(),
                common_dir: assignment.common_dir.clone(),
            });
        }
        let ownership = Ownership::try_acquire(&git_dir)?;
        let full = assignment.branch.full_ref();
        let tip = ref_target(&assignment.common_dir, &full).await?;
        let tip = tip
            .ok_or_else(|| OwnError::NoBranch { path: path.to_owned(), branch: assignment.branch.clone() })?;
        let private = git_dir.join(QUARANTINE_DIR);
        quarantine::make(&git_dir)
            .map_err(|source| OwnError::Quarantine { path: private.clone(), source })?;
        let tree = Tree {
            git: Git::new(config),
            git_dir,
            common_dir: assignment.common_dir.clone(),
            work_tree: path.to_owned(),
            neutral: Neutral::default(),
        };
        Ok(Self {
            tree,
            assignment,
            tip,
            progress: Box::new(ProgressHolder(progress)),
            _ownership: ownership,
        })
    }

    /// The directory the worker works in.
    pub fn path(&self) -> &Path {
        &self.tree.work_tree
    }

    /// The one directory of the repository that commands may write to.
    pub fn git_dir(&self) -> &Path {
        &self.tree.git_dir
    }

    /// Variables for the agent's commands.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let store = self.tree.common_dir.join("objects");
        let pair = |k: &str, v: OsString| (OsString::from(k), v);
        let mut env = vec![
            pair("GIT_OBJECT_DIRECTORY", self.tree.git_dir.join(QUARANTINE_DIR).into_os_string()),
            pair("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternate_element(&store)),
            pair("GIT_TERMINAL_PROMPT", "0".into()),
        ];
        // Housekeeping would want to write to the shared store; a monitor is a program that a repository names.
        let config = [("gc.auto", "0"), ("maintenance.auto", "false"), ("core.fsmonitor", "false")];
        for (n, (key, value)) in config.into_iter().enumerate() {
            env.push(pair(&format!("GIT_CONFIG_KEY_{n}"), key.into()));
            env.push(pair(&format!("GIT_CONFIG_VALUE_{n}"), value.into()));
        }
        env.push(pair("GIT_CONFIG_COUNT", config.len().to_string().into()));
        env
    }

    /// The tree with the drivers of this moment: with `extensions.worktreeConfig` a command can write
    /// new ones into its git directory at any time.
    async fn fresh(&self) -> Result<Tree, GitError> {
        self.tree.clone().with_drivers(Drivers::Trusted).await
    }

    /// HEAD against the base, and what is not committed.
    ///
    /// # Errors
    /// Objects could not be moved, or git refused.
    pub async fn state(&self) -> Result<OwnState, StateError> {
        self.migrate_objects().await?;
        let tree = self.fresh().await?;
        Ok(OwnState {
            head: tree.head().await?,
            base: self.assignment.base.clone(),
            dirty: tree.status(Submodules::HeadOnly).await?,
            operation: tree.operation(),
        })
    }

    /// Stores index, working tree and untracked files; the index stays as it is.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.migrate_objects().await?;
        let limit = Some(DEFAULT_FILE_LIMIT_BYTES);
        let tree = self.fresh().await.map_err(SnapshotError::from)?;
        let (snapshot, _) = snapshot::take(&tree, &self.assignment.agent, limit).await?;
        Ok(snapshot)
    }

    /// Snapshots of this agent, oldest first.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, ReadError> {
        snapshot::list(&self.tree.common_dir, &self.assignment.agent).await
    }

    /// Goes back to a snapshot; returns the one made of the state before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn restore_snapshot(&self, number: u32) -> Result<Snapshot, StoreError> {
        self.migrate_objects().await?;
        let tree = self.fresh().await.map_err(RestoreError::from)?;
        Ok(snapshot::restore(&tree, &self.assignment.agent, number).await?)
    }

    /// Commits what is not ignored. Call [`OwnWorktree::advance_branch`] after it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn commit_all(&self, request: &CommitRequest) -> Result<CommitOutcome, StoreError> {
        self.migrate_objects().await?;
        let agent = &self.assignment.agent;
        let tree = self.fresh().await.map_err(CommitError::from)?;
        Ok(commit::commit_all(&tree, agent, request, &self.progress.0).await?)
    }

    /// Moves what commands made into the shared store. To be called after each command.
    ///
    /// # Errors
    /// [`MigrateError`]; repeating is safe.
    pub async fn migrate_objects(&self) -> Result<Migrated, MigrateError> {
        quarantine::migrate(&self.tree).await
    }

    /// Moves the branch to HEAD, after all that HEAD needs is in the shared store.
    ///
    /// # Errors
    /// [`AdvanceError`]; the branch is then where it was.
    pub async fn advance_branch(&mut self) -> Result<Advance, AdvanceError> {
        self.migrate_objects().await?;
        if let Some(operation) = self.tree.operation().filter(|o| o.moves_head()) {
            return Ok(Advance::Held { operation });
        }
        let head = self.tree.head().await?;
        if head == self.tip {
            return Ok(Advance::Unmoved);
        }
        let branch = self.assignment.branch.clone();
        let complete =
            self.tree.read(["rev-list", "--objects", "--quiet", head.as_str(), "--not", self.tip.as_str()]);
        if let Err(source) = complete.ok().await {
            return Err(AdvanceError::Incomplete { head, branch, source });
        }
        let old = self.tip.clone();
        let contained =
            self.tree.read(["merge-base", "--is-ancestor", old.as_str(), head.as_str()]).run().await?.code
                == Some(0);
        let kept = if contained {
            None
        } else {
            Some(snapshot::store_next(&self.tree, &self.assignment.agent, &old).await?)
        };
        let full = branch.full_ref();
        let moved = crate::lock::patiently(self.tree.git.lock_patience(), &self.progress.0, || async {
            self.tree
                .write(["update-ref", "-m", "swarm: follow HEAD", &full, head.as_str(), old.as_str()])
                .ok()
                .await
        })
        .await;
        if let Err(error) = moved {
            let found = ref_target(&self.tree.common_dir, &full).await?;
            if found.as_ref() != Some(&old) {
                return Err(AdvanceError::Moved { branch, expected: old, found });
            }
            return Err(error.into());
        }
        self.tip = head.clone();
        Ok(Advance::Moved { from: old, to: head, kept })
    }

    /// Runs the user's own filters (git-lfs and the like) on files that were checked out without
    /// them, because the server runs no filter. For the worker process, before the first turn.
    ///
    /// # Errors
    /// git or a filter failed; the file then has its stored content.
    pub async fn apply_filters(&self, paths: &[crate::types::RepoPath]) -> Result<(), GitError> {
        if paths.is_empty() {
            return Ok(());
        }
        let mut input = Vec::new();
        for path in paths {
            // checkout-index leaves files alone that look unchanged.
            drop(std::fs::remove_file(self.tree.work_tree.join(path.to_path())));
            input.extend_from_slice(path.as_bytes());
            input.push(0);
        }
        let tree = self.fresh().await?;
        tree.write(["checkout-index", "--force", "--index", "-z", "--stdin"]).stdin(input).ok().await?;
        Ok(())
    }
}

/// Why a state cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Objects could not be moved.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
}

pub(crate) async fn ref_target(common_dir: &Path, full: &str) -> Result<Option<CommitId>, ReadError> {
    let full = full.to_owned();
    crate::repository::libgit(common_dir, "a ref", move |repo| match repo.refname_to_id(&full) {
        Ok(oid) => Ok(Some(oid.into())),
        Err(error) if error.code() == git2::ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await
}
