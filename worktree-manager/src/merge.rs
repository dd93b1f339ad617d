//! Merging a branch: a trial on objects alone, a check in a scratch worktree, then one move of the
//! target by comparing with its old value. Refusal and conflict are different answers.
//!
//! The trial is `git merge-tree`, not libgit2's `merge_trees`: it gives what the person's own
//! `git merge` would give (renames of directories, attributes). A trial costs 3 ms with 1,000 files
//! and 17 ms with 10,000, process included (`examples/bench_create.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use serde::Serialize;

use crate::commit::{Identity, user_identity};
use crate::diff::{DiffError, sum};
use crate::git::{Access, GitError};
use crate::landing::{Landed, LandingRefusal};
use crate::lock::{LockError, ProcessStamp, patience_becomes};
use crate::manager::{CreateError, Manager, checkout};
use crate::name::BranchName;
use crate::porcelain::{self, LineRange, Malformed, TrialTree};
use crate::record::RecordError;
use crate::removal::{RemoveError, remove_directory};
use crate::repository::ReadError;
use crate::types::{CommitId, DiffStat, RepoPath};

/// How a branch becomes part of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Move the target to the branch if that loses nothing, else a merge commit.
    #[default]
    FastForwardOrMerge,
    /// Always a merge commit (`--no-ff`).
    MergeCommit,
    /// One new commit with all changes.
    Squash,
    /// The branch's commits, made again on top of the target.
    Rebase,
}

/// What to merge.
#[derive(Clone, Debug)]
pub struct MergeRequest {
    /// The worker's branch.
    pub branch: BranchName,
    /// Where it goes.
    pub into: BranchName,
    /// How.
    pub strategy: Strategy,
    /// Message of a merge or squash commit; `None` makes one.
    pub message: Option<String>,
}

/// Runs a check in a directory that holds the merged files, and is gone afterwards. The server
/// passes one that starts `swarm-worker exec`.
pub type Check<'a> =
    Box<dyn FnOnce(PathBuf) -> Pin<Box<dyn Future<Output = CheckOutcome> + Send + 'a>> + Send + 'a>;

/// What a [`Check`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "check", rename_all = "snake_case")]
pub enum CheckOutcome {
    /// The merge may land.
    Passed,
    /// It may not; `report` is shown.
    Failed { report: String },
}

/// A file that both sides changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConflictFile {
    /// Which.
    pub path: RepoPath,
    /// git's words, such as `CONFLICT (contents)`.
    pub kinds: Vec<String>,
    /// What conflicts, in lines of the branch's own file; none for binary files, deletions and renames.
    pub ranges: Vec<LineRange>,
}

/// How a merge ended. Only [`MergeOutcome::Merged`] changed anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[must_use = "a merge that did not happen must be reported"]
pub enum MergeOutcome {
    /// The target moved.
    Merged { from: CommitId, to: CommitId, stat: DiffStat },
    /// The target has it all.
    AlreadyMerged { at: CommitId },
    /// Both sides changed the same places.
    Conflict { files: Vec<ConflictFile> },
    /// The target is checked out and cannot move with its files now.
    Refused { reason: LandingRefusal, files: Vec<RepoPath> },
    /// Somebody moved the target meanwhile; merge again.
    TargetMoved { expected: CommitId, found: Option<CommitId> },
    /// The check said no.
    CheckFailed { report: String },
}

/// Why a merge could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One of the branches is unknown or unrelated.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// The target does not exist.
    #[error("branch {into} does not exist; name another with --into")]
    NoTarget { into: BranchName },
    /// The note that a crash needs could not be written, so nothing moved.
    #[error("cannot note the merge in the repository's git directory")]
    Note {
        #[source]
        source: std::io::Error,
    },
    /// The scratch worktree could not be made.
    #[error("cannot make a scratch worktree for the check")]
    Scratch(#[source] Box<CreateError>),
    /// The scratch worktree could not be removed; `swarm gc` will.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A lock stayed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Objects could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Records could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

patience_becomes!(MergeError);

/// How it is known that a branch is part of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeProof {
    /// The target contains its tip.
    Ancestry,
    /// Merging it again would change no file of the target: it was squashed or rebased.
    TreeEquality,
}

enum Trial {
    Clean(CommitId),
    Conflict(Vec<ConflictFile>),
}

/// Prefix of scratch worktrees in [`Manager::home`]; no agent id starts with a dot.
pub(crate) const SCRATCH_PREFIX: &str = ".scratch-";

impl Manager {
    /// Merges by trial, check and compare-and-swap.
    ///
    /// # Errors
    /// [`MergeError`]; the target is then where it was.
    #[tracing::instrument(skip_all, fields(branch = %request.branch, into = %request.into))]
    pub async fn merge(
        &self,
        request: &MergeRequest,
        check: Option<Check<'_>>,
    ) -> Result<MergeOutcome, MergeError> {
        let repository = self.repository();
        let from = repository.branch_tip(&request.into).await?;
        let from = from.ok_or_else(|| MergeError::NoTarget { into: request.into.clone() })?;
        let (base, tip) = repository.merge_base(&request.branch.full_ref(), from.as_str()).await?;
        if base == tip {
            return Ok(MergeOutcome::AlreadyMerged { at: from });
        }
        let forward = base == from;
        let to = if let Some(carried) = repository.carried(&tip, &from).await? {
            self.without_carried(request, &from, &tip, &carried).await?
        } else {
            match request.strategy {
                Strategy::FastForwardOrMerge | Strategy::Rebase if forward => Ok(tip),
                Strategy::FastForwardOrMerge | Strategy::MergeCommit => {
                    self.merged(request, &from, &tip).await?
                }
                Strategy::Squash => self.squashed(request, &from, &from, &tip, None).await?,
                Strategy::Rebase => self.rebased(&from, &from, &tip).await?,
            }
        };
        let to = match to {
            Ok(to) => to,
            Err(files) => return Ok(MergeOutcome::Conflict { files }),
        };
        if to == from {
            return Ok(MergeOutcome::AlreadyMerged { at: from });
        }
        if let Some(check) = check
            && let CheckOutcome::Failed { report } = self.in_scratch(&to, check).await?
        {
            return Ok(MergeOutcome::CheckFailed { report });
        }
        let note = format!("swarm: merge {}", request.branch);
        Ok(match self.land(&request.into, &from, &to, &note).await? {
            Landed::Moved => {
                tracing::info!(from = from.short(), to = to.short(), "merged");
                let stat = sum(&repository.numstat(&from, &to).await?);
                MergeOutcome::Merged { from, to, stat }
            }
            Landed::TargetMoved { found } => MergeOutcome::TargetMoved { expected: from, found },
            Landed::Refused { reason, files } => MergeOutcome::Refused { reason, files },
        })
    }

    /// Proves that `into` has what `branch` has, or `None`: names and ages prove nothing.
    ///
    /// # Errors
    /// [`MergeError`].
    pub async fn is_merged(
        &self,
        branch: &BranchName,
        into: &BranchName,
    ) -> Result<Option<MergeProof>, MergeError> {
        let repository = self.repository();
        let target = repository.commit_named(&into.full_ref()).await?;
        let named = branch.full_ref();
        let (base, tip) = repository.merge_base(&named, target.as_str()).await?;
        if base == tip {
            return Ok(Some(MergeProof::Ancestry));
        }
        let tree = self.tree_of(&target).await?;
        let carried = repository.carried(&tip, &target).await?;
        Ok(match self.trial(carried.as_ref(), &target, &tip).await? {
            Trial::Clean(merged) if merged == tree => Some(MergeProof::TreeEquality),
            Trial::Clean(_) | Trial::Conflict(_) => None,
        })
    }

    async fn tree_of(&self, commit: &CommitId) -> Result<CommitId, GitError> {
        let expression = format!("{commit}^{{tree}}");
        self.repository().bare_tree().rev(&expression).await
    }

    /// Merges `theirs` into `ours` on objects alone.
    async fn trial(
        &self,
        base: Option<&CommitId>,
        ours: &CommitId,
        theirs: &CommitId,
    ) -> Result<Trial, MergeError> {
        let mut command = self
            .repository()
            .read_common(["merge-tree", "--write-tree", "-z"])
            .neutral(&self.repository().tree().await?.neutral)
            // Attributes come from the target, as in a merge in its working tree.
            .env("GIT_ATTR_SOURCE", ours.as_str());
        if let Some(base) = base {
            command = command.arg(format!("--merge-base={base}"));
        }
        let out = command.arg(ours.as_str()).arg(theirs.as_str()).run().await?;
        let clean = match out.code {
            Some(0) => true,
            Some(1) => false,
            _ => return Err(out.into_error().into()),
        };
        let unreadable = |Malformed(problem)| out.unreadable(problem);
        let trial = porcelain::merge_tree(&out.stdout, clean).map_err(unreadable)?;
        let tree = CommitId::parse(&trial.tree).map_err(|_| out.unreadable("the merged tree has no id"))?;
        if clean {
            return Ok(Trial::Clean(tree));
        }
        Ok(Trial::Conflict(self.conflicts(tree, theirs, trial).await?))
    }

    async fn conflicts(
        &self,
        tree: CommitId,
        theirs: &CommitId,
        trial: TrialTree,
    ) -> Result<Vec<ConflictFile>, ReadError> {
        let (merged, theirs) = (tree.oid(), theirs.oid());
        self.repository()
            .libgit("a trial merge", move |repo| {
                let merged = repo.find_tree(merged)?;
                let theirs = repo.find_commit(theirs)?.tree()?;
                let files = trial.conflicts.into_iter().map(|path| {
                    let blob = |tree: &git2::Tree<'_>| {
                        let entry = tree.get_path(&path.to_path()).ok()?;
                        repo.find_blob(entry.id()).ok().filter(|blob| !blob.is_binary())
                    };
                    let ranges = match (blob(&merged), blob(&theirs)) {
                        (Some(merged), Some(theirs)) => conflict_ranges(repo, &merged, &theirs).ok(),
                        _ => None,
                    };
                    let kinds = trial.kinds.iter().filter(|(p, _)| *p == path);
                    ConflictFile {
                        kinds: kinds.map(|(_, kind)| kind.clone()).collect(),
                        ranges: ranges.unwrap_or_default(),
                        path,
                    }
                });
                Ok(files.collect())
            })
            .await
    }

    async fn merged(
        &self,
        request: &MergeRequest,
        from: &CommitId,
        tip: &CommitId,
    ) -> Result<Result<CommitId, Vec<ConflictFile>>, MergeError> {
        let tree = match self.trial(None, from, tip).await? {
            Trial::Clean(tree) => tree,
            Trial::Conflict(files) => return Ok(Err(files)),
        };
        let default = format!("Merge branch '{}' into {}", request.branch, request.into);
        let message = request.message.as_deref().unwrap_or(&default);
        let by = self.merger().await?;
        Ok(Ok(self.commit(&tree, &[from, tip], message.as_bytes(), &by, None).await?))
    }

    /// What the branch changed since `carried`, on top of `from`: the carried changes are no part of it, neither
    /// as files nor as an ancestor. The result has the tree of one three-way merge from there, whatever its
    /// form; commits that do not add up to it (merges of the branch, say) become one.
    async fn without_carried(
        &self,
        request: &MergeRequest,
        from: &CommitId,
        tip: &CommitId,
        carried: &CommitId,
    ) -> Result<Result<CommitId, Vec<ConflictFile>>, MergeError> {
        let tree = match self.trial(Some(carried), from, tip).await? {
            Trial::Clean(tree) => tree,
            Trial::Conflict(files) => return Ok(Err(files)),
        };
        let in_parts = match request.strategy {
            Strategy::Squash => None,
            Strategy::FastForwardOrMerge | Strategy::MergeCommit | Strategy::Rebase => {
                self.rebased(from, carried, tip).await?.ok()
            }
        };
        let to = match in_parts {
            Some(onto) if self.tree_of(&onto).await? == tree => onto,
            _ => match self.squashed(request, from, carried, tip, Some(carried)).await? {
                Ok(one) => one,
                Err(files) => return Ok(Err(files)),
            },
        };
        if request.strategy != Strategy::MergeCommit || to == *from {
            return Ok(Ok(to));
        }
        let default = format!("Merge branch '{}' into {}", request.branch, request.into);
        let message = request.message.as_deref().unwrap_or(&default);
        let by = self.merger().await?;
        Ok(Ok(self.commit(&tree, &[from, &to], message.as_bytes(), &by, None).await?))
    }

    /// One commit on `from` with all that the branch has; `since` is where its own commits begin.
    async fn squashed(
        &self,
        request: &MergeRequest,
        from: &CommitId,
        since: &CommitId,
        tip: &CommitId,
        base: Option<&CommitId>,
    ) -> Result<Result<CommitId, Vec<ConflictFile>>, MergeError> {
        let tree = match self.trial(base, from, tip).await? {
            Trial::Clean(tree) => tree,
            Trial::Conflict(files) => return Ok(Err(files)),
        };
        if tree == self.tree_of(from).await? {
            return Ok(Ok(from.clone()));
        }
        let commits = self.repository().commits(since, tip).await?;
        let mut default = format!("Squash branch '{}'\n\n", request.branch);
        for commit in commits.listed.iter().rev() {
            default.push_str(&format!("* {}\n", commit.subject));
        }
        let message = request.message.as_deref().unwrap_or(&default);
        let by = self.merger().await?;
        Ok(Ok(self.commit(&tree, &[from], message.as_bytes(), &by, None).await?))
    }

    /// Makes the commits of `tip` that are not below `since` again on top of `from`; merge commits and commits that become
    /// empty are left out, as `git rebase` does.
    async fn rebased(
        &self,
        from: &CommitId,
        since: &CommitId,
        tip: &CommitId,
    ) -> Result<Result<CommitId, Vec<ConflictFile>>, MergeError> {
        let list = self
            .repository()
            .read_common(["rev-list", "--reverse", "--topo-order", "--no-merges", tip.as_str(), "--not"])
            .arg(from.as_str())
            .arg(since.as_str())
            .ok()
            .await?;
        let list = String::from_utf8_lossy(&list).into_owned();
        let by = self.merger().await?;
        let mut onto = from.clone();
        for commit in list.lines().filter_map(|l| CommitId::parse(l).ok()) {
            let oid = commit.oid();
            let (author, message, parent) = self
                .repository()
                .libgit("a commit", move |repo| {
                    let commit = repo.find_commit(oid)?;
                    let author = Author::of(&commit);
                    Ok((author, commit.message_bytes().to_vec(), commit.parent_id(0)?))
                })
                .await?;
            let tree = match self.trial(Some(&parent.into()), &onto, &commit).await? {
                Trial::Clean(tree) => tree,
                Trial::Conflict(files) => return Ok(Err(files)),
            };
            if tree != self.tree_of(&onto).await? {
                onto = self.commit(&tree, &[&onto], &message, &by, Some(&author)).await?;
            }
        }
        Ok(Ok(onto))
    }

    async fn merger(&self) -> Result<Identity, GitError> {
        let tree = self.repository().bare_tree();
        Ok(user_identity(&tree).await?.unwrap_or_else(Identity::swarm))
    }

    async fn commit(
        &self,
        tree: &CommitId,
        parents: &[&CommitId],
        message: &[u8],
        by: &Identity,
        author: Option<&Author>,
    ) -> Result<CommitId, GitError> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let place = self.repository().common_place();
        let args = ["commit-tree", tree.as_str(), "-F", "-"];
        let mut command =
            self.repository().inner.git.command(&place, Access::Write, args).stdin(message.to_vec());
        for parent in parents {
            command = command.arg("-p").arg(parent.as_str());
        }
        command = command.env("GIT_COMMITTER_NAME", &by.name).env("GIT_COMMITTER_EMAIL", &by.email);
        command = match author {
            None => command.env("GIT_AUTHOR_NAME", &by.name).env("GIT_AUTHOR_EMAIL", &by.email),
            Some(author) => command
                .env("GIT_AUTHOR_NAME", OsStr::from_bytes(&author.name))
                .env("GIT_AUTHOR_EMAIL", OsStr::from_bytes(&author.email))
                .env("GIT_AUTHOR_DATE", &author.date),
        };
        crate::tree::Tree::object(command).await
    }

    /// Checks `commit` out in a worktree of its own, runs `check` there, and removes it.
    async fn in_scratch(&self, commit: &CommitId, check: Check<'_>) -> Result<CheckOutcome, MergeError> {
        let (path, admin) = self.make_scratch(commit).await.map_err(|e| MergeError::Scratch(Box::new(e)))?;
        let outcome = check(path.clone()).await;
        self.remove_scratch(&path, &admin).await?;
        Ok(outcome)
    }

    async fn make_scratch(&self, commit: &CommitId) -> Result<(PathBuf, PathBuf), CreateError> {
        let unwritable = |source| CreateError::Directory { path: self.home.clone(), source };
        std::fs::create_dir_all(&self.home).map_err(unwritable)?;
        let path = tempfile::Builder::new()
            .prefix(SCRATCH_PREFIX)
            .tempdir_in(&self.home)
            .map_err(unwritable)?
            .keep();
        let registration = self.register().await?;
        let place = self.repository.common_place();
        let args = ["worktree", "add", "--no-checkout", "--detach", "--lock", "--reason"];
        let add = self.repository.inner.git.command(&place, Access::Write, args);
        add.arg(ProcessStamp::current().to_reason()).arg(&path).arg(commit.as_str()).ok().await?;
        drop(registration);
        let admin = crate::own::git_dir_of(&path, self.repository.common_dir())
            .ok_or_else(|| CreateError::NotRegistered { path: path.clone() })?;
        checkout(&self.tree(&path, &admin).await?).await?;
        Ok((path, admin))
    }

    pub(crate) async fn remove_scratch(&self, path: &Path, admin: &Path) -> Result<(), RemoveError> {
        let _registration = self.register().await?;
        remove_directory(path).await?;
        remove_directory(admin).await
    }
}

struct Author {
    name: Vec<u8>,
    email: Vec<u8>,
    date: String,
}

impl Author {
    fn of(commit: &git2::Commit<'_>) -> Self {
        let author = commit.author();
        let when = author.when();
        let minutes = when.offset_minutes();
        let (sign, minutes) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
        Self {
            name: author.name_bytes().to_vec(),
            email: author.email_bytes().to_vec(),
            date: format!("@{} {sign}{:02}{:02}", when.seconds(), minutes / 60, minutes % 60),
        }
    }
}

/// The conflicting parts of a merged file, in lines of one side's own file.
fn conflict_ranges(
    repo: &git2::Repository,
    merged: &git2::Blob<'_>,
    theirs: &git2::Blob<'_>,
) -> Result<Vec<LineRange>, git2::Error> {
    let sections = porcelain::conflict_sections(merged.content());
    // Which line of theirs a line of the merged text is; other lines come from the other side.
    let mut own_line = BTreeMap::new();
    let mut options = git2::DiffOptions::new();
    let n_lines = merged.content().split(|byte| *byte == b'\n').count();
    options.context_lines(u32::try_from(n_lines).unwrap_or(u32::MAX));
    let mut note = |_: git2::DiffDelta<'_>, _: Option<git2::DiffHunk<'_>>, line: git2::DiffLine<'_>| {
        if let (Some(own), Some(merged)) = (line.old_lineno(), line.new_lineno()) {
            own_line.insert(merged as usize, own as usize);
        }
        true
    };
    repo.diff_blobs(
        Some(theirs),
        None,
        Some(merged),
        None,
        Some(&mut options),
        None,
        None,
        None,
        Some(&mut note),
    )?;
    let ranges = sections.into_iter().map(|section| {
        let first = match own_line.range(section.clone()).next() {
            Some((merged, own)) => own.saturating_sub(merged - section.start),
            // That side has nothing here: the line behind the gap.
            None => own_line.range(..section.start).next_back().map_or(1, |(_, own)| own + 1),
        };
        LineRange { first, last: first + section.len().max(1) - 1 }
    });
    Ok(ranges.collect())
}
