//! Reading a branch: patch, figures, commits. By `diff-tree`, which heeds no user setting.

use serde::Serialize;

use crate::git::{Access, GitCommand, GitError};
use crate::manager::Manager;
use crate::porcelain::{self, FileStat, Malformed};
use crate::repository::{ReadError, Repository};
use crate::types::{CommitId, DiffStat, RepoPath, printable};

/// A diff between two commits.
#[derive(Clone, Debug)]
pub struct Diff {
    /// The older side: the merge base.
    pub from: CommitId,
    /// The newer side.
    pub to: CommitId,
    /// Figures by file.
    pub files: Vec<FileStat>,
    /// Their sum.
    pub stat: DiffStat,
    /// What `git apply` takes; bytes, since files need not be UTF-8.
    pub patch: Vec<u8>,
}

/// Why there is no diff.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The two have no common ancestor.
    #[error("{branch} and {against} have no common history")]
    Unrelated { branch: String, against: String },
    /// One of them names nothing.
    #[error("{name:?} names no commit; `git branch -a` lists the branches")]
    Unknown { name: String },
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Commits could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A commit in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommitInfo {
    /// Which.
    pub id: CommitId,
    /// First line of its message, control characters escaped.
    pub subject: String,
}

/// At most this many commits are listed; the count goes on.
const LISTED_COMMITS: usize = 1_000;

/// Commits from a base to a tip.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Commits {
    /// Newest first, at most 1,000.
    pub listed: Vec<CommitInfo>,
    /// How many there are.
    pub count: usize,
}

impl Repository {
    pub(crate) fn read_common<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> GitCommand {
        let place = self.common_place();
        self.inner.git.command(&place, Access::Read, args)
    }

    /// The diff of `branch` against its merge base with `against`.
    ///
    /// # Errors
    /// [`DiffError`].
    pub async fn diff(&self, branch: &str, against: &str) -> Result<Diff, DiffError> {
        let (from, to) = self.merge_base(branch, against).await?;
        let files = self.numstat(&from, &to).await?;
        let patch = self.patch(&from, &to, None).await?;
        Ok(Diff { stat: sum(&files), from, to, files, patch })
    }

    /// Figures alone, for lists of branches.
    ///
    /// # Errors
    /// [`DiffError`].
    pub async fn diff_stat(&self, branch: &str, against: &str) -> Result<Vec<FileStat>, DiffError> {
        let (from, to) = self.merge_base(branch, against).await?;
        Ok(self.numstat(&from, &to).await?)
    }

    /// The patch of one file, for diffs too large to show at once.
    ///
    /// # Errors
    /// [`DiffError`].
    pub async fn diff_file(
        &self,
        branch: &str,
        against: &str,
        path: &RepoPath,
    ) -> Result<Vec<u8>, DiffError> {
        let (from, to) = self.merge_base(branch, against).await?;
        Ok(self.patch(&from, &to, Some(path)).await?)
    }

    /// The newest `n` commits of HEAD; none when it has no commit.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn recent_commits(&self, n: usize) -> Result<Vec<CommitInfo>, ReadError> {
        self.libgit("recent commits", move |repo| {
            let mut walk = repo.revwalk()?;
            match walk.push_head() {
                Err(error) if error.code() == git2::ErrorCode::UnbornBranch => return Ok(Vec::new()),
                pushed => pushed?,
            }
            let mut recent = Vec::new();
            for id in walk.take(n) {
                recent.push(info(repo, id?)?);
            }
            Ok(recent)
        })
        .await
    }

    /// Commits reachable from `tip` and not from `base`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn commits(&self, base: &CommitId, tip: &CommitId) -> Result<Commits, ReadError> {
        let (base, tip) = (base.oid(), tip.oid());
        self.libgit("commits", move |repo| {
            let mut walk = repo.revwalk()?;
            walk.set_sorting(git2::Sort::TOPOLOGICAL)?;
            walk.push(tip)?;
            walk.hide(base)?;
            let mut commits = Commits::default();
            for id in walk {
                let id = id?;
                commits.count += 1;
                if commits.listed.len() < LISTED_COMMITS {
                    commits.listed.push(info(repo, id)?);
                }
            }
            Ok(commits)
        })
        .await
    }

    pub(crate) async fn merge_base(
        &self,
        branch: &str,
        against: &str,
    ) -> Result<(CommitId, CommitId), DiffError> {
        let to = self.commit_named(branch).await?;
        let other = self.commit_named(against).await?;
        let (a, b) = (to.oid(), other.oid());
        let base = self
            .libgit("the merge base", move |repo| match repo.merge_base(a, b) {
                Ok(base) => Ok(Some(CommitId::from(base))),
                Err(error) if error.code() == git2::ErrorCode::NotFound => Ok(None),
                Err(error) => Err(error),
            })
            .await?;
        let base = base
            .ok_or_else(|| DiffError::Unrelated { branch: branch.to_owned(), against: against.to_owned() })?;
        Ok((base, to))
    }

    /// A branch, tag, remote branch or id; branches win.
    pub(crate) async fn commit_named(&self, name: &str) -> Result<CommitId, DiffError> {
        let owned = name.to_owned();
        let found = self
            .libgit("a commit", move |repo| {
                let object = repo
                    .revparse_single(&format!("refs/heads/{owned}"))
                    .or_else(|_| repo.revparse_single(&owned));
                Ok(object.and_then(|o| o.peel_to_commit()).ok().map(|c| c.id().into()))
            })
            .await?;
        found.ok_or_else(|| DiffError::Unknown { name: name.to_owned() })
    }

    pub(crate) async fn numstat(&self, from: &CommitId, to: &CommitId) -> Result<Vec<FileStat>, GitError> {
        let out = self
            .read_common(["diff-tree", "-r", "-z", "-M", "--numstat", "--no-ext-diff"])
            .arg("--no-textconv")
            .arg(from.as_str())
            .arg(to.as_str())
            .run()
            .await?;
        if out.code != Some(0) {
            return Err(out.into_error());
        }
        porcelain::numstat(&out.stdout).map_err(|Malformed(problem)| out.unreadable(problem))
    }

    async fn patch(
        &self,
        from: &CommitId,
        to: &CommitId,
        path: Option<&RepoPath>,
    ) -> Result<Vec<u8>, GitError> {
        let command = self
            .read_common(["diff-tree", "-r", "-p", "-M", "--binary", "--full-index"])
            .arg("--no-ext-diff")
            .arg("--no-textconv")
            .arg("--no-color")
            .arg(from.as_str())
            .arg(to.as_str())
            .arg("--");
        match path {
            None => command.ok().await,
            Some(path) => command.arg(path.to_path()).ok().await,
        }
    }
}

pub(crate) fn sum(files: &[FileStat]) -> DiffStat {
    let lines = files.iter().filter_map(|f| f.lines);
    DiffStat {
        files: files.len(),
        insertions: lines.clone().map(|l| l.insertions).sum(),
        deletions: lines.map(|l| l.deletions).sum(),
    }
}

impl Manager {
    /// What a worker's branch and worktree show, whatever the worker says.
    ///
    /// # Errors
    /// [`EvidenceError`].
    pub async fn evidence(
        &self,
        agent: &crate::name::AgentId,
    ) -> Result<crate::evidence::Evidence, crate::evidence::EvidenceError> {
        crate::evidence::gather(self, agent).await
    }
}

fn info(repo: &git2::Repository, id: git2::Oid) -> Result<CommitInfo, git2::Error> {
    let commit = repo.find_commit(id)?;
    let subject = commit.summary_bytes().unwrap_or_default();
    Ok(CommitInfo { id: id.into(), subject: printable(subject) })
}
