//! Making worktrees: registration one at a time, checkout in parallel, the same answer when asked twice, and
//! nothing left of a try that failed.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Manager, Worktree};
use crate::git::{Access, GitError};
use crate::include::{IncludeError, Included, copy_included};
use crate::lock::{LockError, PatienceError, ProcessStamp, patience_becomes};
use crate::name::{AgentId, BranchName, BranchPlan, BranchPrefix, SessionTag, Slug};
use crate::own::git_dir_of;
use crate::porcelain;
use crate::record::{Phase, RECORD_VERSION, Record, RecordError};
use crate::repository::ReadError;
use crate::submodule::{self, SubmoduleState};
use crate::tree::{Tree, filter_name};
use crate::types::{CommitId, RepoPath};

/// What to make.
#[derive(Clone, Debug)]
pub struct CreateSpec {
    /// Names directory and branch.
    pub agent: AgentId,
    /// Names the branch.
    pub session: SessionTag,
    /// Becomes the last part of the branch's name.
    pub description: String,
    /// First part of the branch's name.
    pub prefix: BranchPrefix,
    /// From [`Repository::resolve_base`].
    pub base: CommitId,
}

/// A worktree and what is to be told about it.
#[derive(Clone, Debug)]
pub struct Created {
    /// Ready to use.
    pub worktree: Worktree,
    /// It was there already; nothing was touched.
    pub reused: bool,
    /// Copies of ignored files.
    pub included: Included,
    /// Submodules and whether they could be filled.
    pub submodules: Vec<SubmoduleState>,
    /// Files with a filter of the user's (git-lfs and the like), checked out as stored, since the
    /// server runs no filter; the worker calls `OwnWorktree::apply_filters` with them.
    pub filtered: Vec<RepoPath>,
}

/// Why there is no worktree. Nothing of the try is left, unless [`CreateError::Unclean`] says so.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Another call or process makes it.
    #[error("the worktree of {agent} is being made by process {}", by.pid)]
    InProgress { agent: AgentId, by: ProcessStamp },
    /// There is one, from another commit.
    #[error("{agent} has a worktree at {} from {existing}, not from {wanted}; remove it first", path.display())]
    OtherBase { agent: AgentId, path: PathBuf, existing: CommitId, wanted: CommitId },
    /// Something of unknown origin.
    #[error("{} exists and is no worktree of swarm; move it away", path.display())]
    PathTaken { path: PathBuf },
    /// The new HEAD is not the base.
    #[error("the new worktree's HEAD is {found} instead of {wanted}; it was removed")]
    WrongHead { wanted: CommitId, found: CommitId },
    /// To be revived on a branch that is gone.
    #[error("branch {branch} does not exist any more")]
    NoBranch { branch: BranchName },
    /// The directory above it cannot be made.
    #[error("cannot make {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// git registered it in an unexpected place.
    #[error("git did not register {} as a worktree", path.display())]
    NotRegistered { path: PathBuf },
    /// Somebody moved it, and it cannot be put back.
    #[error(
        "the worktree was moved to {} and cannot be put back; move it yourself: git worktree move -f -f {} {}",
        from.display(), from.display(), to.display()
    )]
    Moved {
        from: PathBuf,
        to: PathBuf,
        #[source]
        cause: GitError,
    },
    /// The clean-up failed as well; `swarm gc` repeats it.
    #[error("the failed try could not be removed completely; run `swarm gc` (reason: {cleanup})")]
    Unclean {
        cleanup: Box<crate::removal::RemoveError>,
        #[source]
        cause: Box<CreateError>,
    },
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A lock could not be had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The record could not be kept.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// `.worktreeinclude` could not be followed.
    #[error(transparent)]
    Include(#[from] IncludeError),
}

patience_becomes!(CreateError);

/// Takes an agent out of the set of those in creation, also when the future is dropped.
struct InCreation<'a> {
    set: &'a Mutex<HashSet<AgentId>>,
    agent: AgentId,
}

impl Drop for InCreation<'_> {
    fn drop(&mut self) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.remove(&self.agent);
    }
}

pub(crate) const NO_COMMIT: &str = "0000000000000000000000000000000000000000";

impl Manager {
    /// Makes the worktree of a worker, or returns the one made before from the same base.
    ///
    /// # Errors
    /// [`CreateError`]; nothing of the failed try is left then.
    pub async fn create(&self, spec: &CreateSpec) -> Result<Created, CreateError> {
        let plan = BranchPlan {
            prefix: spec.prefix.clone(),
            session: spec.session.clone(),
            agent: spec.agent.clone(),
            slug: Slug::of(&spec.description),
        };
        self.make(&spec.agent, &spec.base, Source::New(plan)).await
    }

    /// Makes the worktree of an earlier worker again, at the same path, on its branch.
    ///
    /// # Errors
    /// [`CreateError`]; nothing of the failed try is left then.
    pub async fn recreate(
        &self,
        agent: &AgentId,
        branch: &BranchName,
        base: &CommitId,
    ) -> Result<Created, CreateError> {
        self.make(agent, base, Source::Existing(branch.clone())).await
    }

    #[tracing::instrument(skip_all, fields(agent.id = %agent, base = base.short()))]
    async fn make(&self, agent: &AgentId, base: &CommitId, source: Source) -> Result<Created, CreateError> {
        let registration = self.register().await?;
        if let Some(worktree) = self.existing(agent, base).await? {
            return Ok(Created {
                worktree,
                reused: true,
                included: Included::default(),
                submodules: Vec::new(),
                filtered: Vec::new(),
            });
        }
        let fresh = {
            let mut set = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
            set.insert(agent.clone())
        };
        if !fresh {
            return Err(CreateError::InProgress { agent: agent.clone(), by: ProcessStamp::current() });
        }
        let in_creation = InCreation { set: &self.creating, agent: agent.clone() };
        let result = match self.begin(agent, base, source).await {
            Ok((record, start)) => {
                drop(registration);
                self.fill(&record, &start).await
            }
            Err(error) => {
                drop(registration);
                Err(error)
            }
        };
        let result = match result {
            Ok(created) => Ok(created),
            Err(cause) => Err(self.undo(agent, cause).await),
        };
        drop(in_creation);
        result
    }

    /// Under the registration lock: the finished worktree, or none after what a crash left is gone.
    async fn existing(&self, agent: &AgentId, base: &CommitId) -> Result<Option<Worktree>, CreateError> {
        let path = self.path_of(agent);
        let Some(record) = self.records.read(agent)? else {
            let free = match std::fs::read_dir(&path) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            return if free { Ok(None) } else { Err(CreateError::PathTaken { path }) };
        };
        if self.is_creating(agent)
            || (record.by != ProcessStamp::current() && record.phase != Phase::Ready && !record.by.is_dead())
        {
            return Err(CreateError::InProgress { agent: agent.clone(), by: record.by });
        }
        if record.phase == Phase::Ready
            && let Some(place) = self.moved_to(&record)
        {
            self.move_back(agent, &place).await?;
        }
        match (record.phase, self.worktree(&record)) {
            (Phase::Ready, Some(worktree)) if worktree.base == *base => Ok(Some(worktree)),
            (Phase::Ready, Some(worktree)) => Err(CreateError::OtherBase {
                agent: agent.clone(),
                path,
                existing: worktree.base,
                wanted: base.clone(),
            }),
            (Phase::Ready, None) if path.symlink_metadata().is_ok() => Err(CreateError::PathTaken { path }),
            // Half made by a process that is gone, or removed by hand.
            (Phase::Creating | Phase::Removing | Phase::Ready, _) => {
                tracing::warn!(agent.id = %agent, "removing what an interrupted try left");
                self.sweep(&record).await.map_err(|cleanup| CreateError::Unclean {
                    cleanup: Box::new(cleanup),
                    cause: Box::new(CreateError::InProgress { agent: agent.clone(), by: record.by.clone() }),
                })?;
                Ok(None)
            }
        }
    }

    /// Where somebody moved the worktree with `git worktree move`; none while it is in its place, or gone.
    fn moved_to(&self, record: &Record) -> Option<PathBuf> {
        let admin = self.admin_dir(record)?;
        if self.path_of(&record.agent).symlink_metadata().is_ok() {
            return None;
        }
        // Git's own note of where the worktree is: the path of its `.git`.
        let gitdir = std::fs::read_to_string(admin.join("gitdir")).ok()?;
        let place = Path::new(gitdir.trim_end_matches('\n')).parent()?.to_owned();
        let points_back = git_dir_of(&place, self.repository.common_dir());
        (points_back? == admin).then_some(place)
    }

    /// Puts a worktree back where it belongs, with all that is in it.
    async fn move_back(&self, agent: &AgentId, from: &Path) -> Result<(), CreateError> {
        let to = self.path_of(agent);
        tracing::warn!(agent.id = %agent, from = %from.display(), to = %to.display(), "the worktree was moved; it is put back");
        let place = self.repository.common_place();
        // Twice: it is locked, by us.
        let words = ["worktree", "move", "--force", "--force"];
        let command = self.repository.inner.git.command(&place, Access::Write, words).arg(from).arg(&to);
        command.ok().await.map(drop).map_err(|cause| CreateError::Moved { from: from.to_owned(), to, cause })
    }

    /// Under the registration lock: record, directory, registration, branch.
    async fn begin(
        &self,
        agent: &AgentId,
        base: &CommitId,
        source: Source,
    ) -> Result<(Record, CommitId), CreateError> {
        let path = self.path_of(agent);
        std::fs::create_dir_all(&self.home)
            .map_err(|source| CreateError::Directory { path: self.home.clone(), source })?;
        let mut record = Record {
            version: RECORD_VERSION,
            agent: agent.clone(),
            branch: source.first_name(),
            new_branch: source.is_new(),
            base: base.clone(),
            renamed: None,
            admin: None,
            phase: Phase::Creating,
            by: ProcessStamp::current(),
            created_at: jiff::Timestamp::now().as_second(),
        };
        let start = match &source {
            Source::New(plan) => {
                self.claim_branch(plan, &mut record).await?;
                base.clone()
            }
            Source::Existing(branch) => {
                self.records.write(&record)?;
                let tip = self.repository.branch_tip(branch).await?;
                tip.ok_or_else(|| CreateError::NoBranch { branch: branch.clone() })?
            }
        };
        let reason = ProcessStamp::current().to_reason();
        let place = self.repository.common_place();
        let add = self
            .repository
            .inner
            .git
            .command(
                &place,
                Access::Write,
                ["worktree", "add", "--no-checkout", "--detach", "--lock", "--reason"],
            )
            .arg(reason)
            .arg(&path)
            .arg(start.as_str());
        add.ok().await?;
        // Nothing of the agent's ran yet, so what `.git` says is what git wrote.
        let git_dir = git_dir_of(&path, self.repository.common_dir());
        let admin = git_dir
            .as_deref()
            .and_then(Path::file_name)
            .and_then(|n| n.to_str())
            .ok_or(CreateError::NotRegistered { path })?;
        record.admin = Some(admin.to_owned());
        self.records.write(&record)?;
        Ok((record, start))
    }

    /// Makes the branch, which must not exist; on a clash takes another name.
    async fn claim_branch(&self, plan: &BranchPlan, record: &mut Record) -> Result<(), CreateError> {
        const TRIES: usize = 8;
        let mut last = None;
        for _ in 0..TRIES {
            let chosen = plan.choose(&self.repository.branch_names().await?);
            record.branch = chosen.name;
            record.renamed = chosen.renamed;
            self.records.write(record)?;
            let full = record.branch.full_ref();
            let made =
                self.update_ref(&["-m", "swarm: create", &full, record.base.as_str(), NO_COMMIT]).await;
            match made {
                Ok(()) => return Ok(()),
                // Somebody else made a branch of that name since; it is not ours to remove.
                Err(PatienceError::Git(error)) => last = Some(error),
                Err(lock) => return Err(lock.into()),
            }
        }
        record.new_branch = false;
        self.records.write(record)?;
        Err(last.expect("every try but the successful one leaves an error").into())
    }

    /// Without the lock: files, verification, copies.
    async fn fill(&self, record: &Record, start: &CommitId) -> Result<Created, CreateError> {
        let path = self.path_of(&record.agent);
        let git_dir =
            self.admin_dir(record).ok_or_else(|| CreateError::NotRegistered { path: path.clone() })?;
        let tree = self.tree(&path, &git_dir).await?;
        {
            let _permit = self.checkouts.acquire().await;
            checkout(&tree).await?;
        }
        let found = tree.head().await?;
        if found != *start {
            return Err(CreateError::WrongHead { wanted: start.clone(), found });
        }
        let submodules = submodule::fill(&tree, start).await?;
        let here = self.repository.bare_tree();
        let included = copy_included(&here, &path).await?;
        for copied in &included.copied {
            tracing::info!(file = %copied, "copied into the worktree");
        }
        let filtered = filtered_files(&tree).await?;
        let ready = Record { phase: Phase::Ready, ..record.clone() };
        self.records.write(&ready)?;
        let worktree = self.worktree(&ready).ok_or(CreateError::NotRegistered { path })?;
        tracing::info!(branch = %worktree.branch, "worktree ready");
        Ok(Created { worktree, reused: false, included, submodules, filtered })
    }

    /// Removes what the failed try made, and gives the error to return.
    async fn undo(&self, agent: &AgentId, cause: CreateError) -> CreateError {
        let cleanup = async {
            let _registration = self.register().await?;
            match self.records.read(agent)? {
                Some(record) if record.phase == Phase::Creating => self.sweep(&record).await,
                _ => Ok(()),
            }
        };
        match cleanup.await {
            Ok(()) => cause,
            Err(cleanup) => CreateError::Unclean { cleanup: Box::new(cleanup), cause: Box::new(cause) },
        }
    }
}

/// Where a worktree's branch comes from.
enum Source {
    New(BranchPlan),
    Existing(BranchName),
}

impl Source {
    fn first_name(&self) -> BranchName {
        match self {
            Self::New(plan) => plan.wanted(),
            Self::Existing(branch) => branch.clone(),
        }
    }
    fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}

/// Writes the files of HEAD.
pub(crate) async fn checkout(tree: &Tree) -> Result<(), GitError> {
    tree.write(["read-tree", "-m", "-u", "HEAD"]).ok().await.map(drop)
}

/// Files whose `filter` attribute names one with commands in the configuration.
async fn filtered_files(tree: &Tree) -> Result<Vec<RepoPath>, GitError> {
    let config = tree.config().await?;
    let names: HashSet<&[u8]> =
        config.iter().filter(|e| e.scope != "command").filter_map(|e| filter_name(&e.key)).collect();
    let mut found = Vec::new();
    for name in names {
        let mut pathspec = b":(attr:filter=".to_vec();
        pathspec.extend_from_slice(name);
        pathspec.push(b')');
        let out = tree
            .read(["ls-files", "-z", "--"])
            .arg(std::ffi::OsStr::from_bytes(&pathspec))
            .env("GIT_LITERAL_PATHSPECS", "0")
            .run()
            .await?;
        // A name that no attribute can have is refused as a pathspec.
        if out.code == Some(0) {
            found.extend(porcelain::paths(&out.stdout));
        }
    }
    found.sort();
    Ok(found)
}
