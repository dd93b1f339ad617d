//! The worktrees of a repository, the server's side: which there are, and where.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;

use crate::git::{Access, GitError, Neutral};
use crate::lock::{LockError, PatienceError, Progress, Registration, patiently, silent};
use crate::name::{AgentId, BranchName, Renamed};
use crate::own::Assignment;
use crate::record::{Phase, Record, RecordError, Records};
use crate::repository::Repository;
use crate::tree::{Drivers, Tree};
use crate::types::{CommitId, RepoPath};

mod creation;

pub use creation::{CreateError, CreateSpec, Created};
pub(crate) use creation::{NO_COMMIT, checkout};

/// Makes, finds and removes the worktrees of one repository. Cheap to clone.
#[derive(Clone)]
pub struct Manager {
    pub(crate) repository: Repository,
    /// `$SWARM_HOME/worktrees/<repo>-<hash>`.
    pub(crate) home: PathBuf,
    pub(crate) records: Records,
    pub(crate) progress: Progress,
    pub(crate) owner_wait: Duration,
    /// Checkouts at once: more than processors only makes all of them late.
    checkouts: Arc<Semaphore>,
    /// Agents whose worktree this process makes right now.
    creating: Arc<Mutex<HashSet<AgentId>>>,
}

/// A registered worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    /// Whose.
    pub agent: AgentId,
    /// Its directory.
    pub path: PathBuf,
    /// Its own git directory, the only part of the repository its commands may write to.
    pub git_dir: PathBuf,
    /// The branch that follows its HEAD.
    pub branch: BranchName,
    /// Where the work began.
    pub base: CommitId,
    /// Why the branch is not called as planned.
    pub renamed: Option<Renamed>,
}

/// For logs and the API.
impl Serialize for Worktree {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Worktree", 5)?;
        out.serialize_field("agent", &self.agent)?;
        out.serialize_field("path", &RepoPath::from(self.path.as_path()))?;
        out.serialize_field("branch", &self.branch)?;
        out.serialize_field("base", &self.base)?;
        out.serialize_field("renamed", &self.renamed)?;
        out.end()
    }
}

impl Manager {
    /// `worktree_root` is `$SWARM_HOME/worktrees`, or the setting `worktree.root`.
    pub fn new(repository: Repository, worktree_root: &Path) -> Self {
        Self::with_progress(repository, worktree_root, silent())
    }

    /// [`Manager::new`] with news of waiting.
    pub fn with_progress(repository: Repository, worktree_root: &Path, progress: Progress) -> Self {
        let home = worktree_root.join(repository.directory_name());
        let records = Records::new(&repository.swarm_dir(), &home);
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            repository,
            home,
            records,
            progress,
            owner_wait: crate::removal::OWNER_WAIT,
            checkouts: Arc::new(Semaphore::new(processors)),
            creating: Arc::default(),
        }
    }

    /// Waits this long, instead of 5 s, for the owner of a worktree before removing, discarding or
    /// restoring it fails.
    #[must_use]
    pub fn with_owner_wait(mut self, limit: Duration) -> Self {
        self.owner_wait = limit;
        self
    }

    /// The repository.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The directory above all worktrees of this repository.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Where the worktree of `agent` is or would be.
    pub fn path_of(&self, agent: &AgentId) -> PathBuf {
        self.home.join(agent.as_str())
    }

    /// The ready worktree of `agent`.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn find(&self, agent: &AgentId) -> Result<Option<Worktree>, RecordError> {
        let record = self.records.read(agent)?;
        Ok(record.filter(|r| r.phase == Phase::Ready).and_then(|r| self.worktree(&r)))
    }

    /// All ready worktrees. Reads small files only; runs no git.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn list(&self) -> Result<Vec<Worktree>, RecordError> {
        let mut found = Vec::new();
        for agent in self.records.agents()? {
            found.extend(self.find(&agent)?);
        }
        Ok(found)
    }

    /// What the worker process must be told to open its worktree.
    pub fn assignment(&self, worktree: &Worktree) -> Assignment {
        Assignment {
            agent: worktree.agent.clone(),
            branch: worktree.branch.clone(),
            base: worktree.base.clone(),
            common_dir: self.repository.common_dir().to_owned(),
            git_dir: worktree.git_dir.clone(),
        }
    }

    pub(crate) fn worktree(&self, record: &Record) -> Option<Worktree> {
        let path = self.path_of(&record.agent);
        let git_dir = self.admin_dir(record)?;
        if !path.is_dir() || !git_dir.is_dir() {
            return None;
        }
        Some(Worktree {
            agent: record.agent.clone(),
            path,
            git_dir,
            branch: record.branch.clone(),
            base: record.base.clone(),
            renamed: record.renamed.clone(),
        })
    }

    pub(crate) fn admin_dir(&self, record: &Record) -> Option<PathBuf> {
        let name = record.admin.as_deref()?;
        let worktrees = self.repository.common_dir().join("worktrees");
        (!name.contains('/') && name != "..").then(|| worktrees.join(name))
    }

    /// A handle that runs none of the tree's drivers.
    pub(crate) async fn tree(&self, path: &Path, git_dir: &Path) -> Result<Tree, GitError> {
        Tree {
            git: self.repository.inner.git.clone(),
            git_dir: git_dir.to_owned(),
            common_dir: self.repository.common_dir().to_owned(),
            work_tree: path.to_owned(),
            neutral: Neutral::default(),
        }
        .with_drivers(Drivers::Off)
        .await
    }

    pub(crate) fn is_creating(&self, agent: &AgentId) -> bool {
        let set = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        set.contains(agent)
    }

    pub(crate) async fn register(&self) -> Result<Registration, LockError> {
        Registration::acquire(&self.repository.swarm_dir(), &self.progress).await
    }

    /// Updates refs of the repository from no worktree in particular, with patience.
    pub(crate) async fn update_ref(&self, args: &[&str]) -> Result<(), PatienceError> {
        let patience = self.repository.inner.git.lock_patience();
        patiently(patience, &self.progress, || async {
            let place = self.repository.common_place();
            let command = self.repository.inner.git.command(&place, Access::Write, ["update-ref"]);
            let command = args.iter().fold(command, |c, a| c.arg(a));
            command.ok().await.map(drop)
        })
        .await
    }
}
