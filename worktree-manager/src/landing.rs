//! Moving a target branch. If a worktree has it checked out, ref and files move together, and only
//! when nothing the move touches is changed there; otherwise nothing moves.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::git::{Access, GitError, Neutral};
use crate::lock::{PatienceError, patiently};
use crate::manager::Manager;
use crate::merge::MergeError;
use crate::name::{AgentId, BranchName};
use crate::porcelain;
use crate::tree::{Drivers, Submodules, Tree, filter_name};
use crate::types::{CommitId, RepoPath, printable};
use crate::unfinished::Operation;

/// Why a checked-out target stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum LandingRefusal {
    /// The files listed are changed there and by the merge.
    #[error("files the merge touches are changed in {worktree}: commit or move them first")]
    Changed { worktree: String },
    /// A rebase or merge is unfinished there.
    #[error("{operation} is in progress in {worktree}: finish or abort it first")]
    InProgress { worktree: String, operation: Operation },
    /// The files listed need a filter, which the server does not run.
    #[error(
        "the merge touches files with a filter in {worktree}, and the server runs no filter: merge there with `git merge`"
    )]
    Filtered { worktree: String },
    /// Two worktrees have it checked out.
    #[error("the target is checked out in several worktrees: {}", worktrees.join(", "))]
    Several { worktrees: Vec<String> },
    /// A worker switched to it.
    #[error("worker {agent} has the target checked out: wait for its end, or discard it")]
    Worker { agent: AgentId },
    /// git itself said no.
    #[error("git refused to update {worktree}: {message}")]
    Git { worktree: String, message: String },
}

pub(crate) enum Landed {
    Moved,
    TargetMoved { found: Option<CommitId> },
    Refused { reason: LandingRefusal, files: Vec<RepoPath> },
}

/// A working tree of the repository as its HEAD file tells.
struct Checkout {
    git_dir: PathBuf,
    work_tree: PathBuf,
    agent: Option<AgentId>,
}

impl Checkout {
    fn name(&self) -> String {
        printable(self.work_tree.as_os_str().as_bytes())
    }
}

impl Manager {
    pub(crate) async fn land(
        &self,
        target: &BranchName,
        from: &CommitId,
        to: &CommitId,
        note: &str,
    ) -> Result<Landed, MergeError> {
        let full = target.full_ref();
        let holders = self.checkouts_of(&full).await?;
        let refuse = |reason| Ok(Landed::Refused { reason, files: Vec::new() });
        let [holder] = holders.as_slice() else {
            if !holders.is_empty() {
                return refuse(LandingRefusal::Several {
                    worktrees: holders.iter().map(Checkout::name).collect(),
                });
            }
            let args = ["-m", note, &full, to.as_str(), from.as_str()];
            let moved = self.update_ref(&args).await;
            return self.after_move(&full, from, moved).await;
        };
        if let Some(agent) = &holder.agent {
            return refuse(LandingRefusal::Worker { agent: agent.clone() });
        }
        if let Some(operation) = Operation::in_git_dir(&holder.git_dir) {
            return refuse(LandingRefusal::InProgress { worktree: holder.name(), operation });
        }
        let tree = Tree {
            git: self.repository().inner.git.clone(),
            git_dir: holder.git_dir.clone(),
            common_dir: self.repository().common_dir().to_owned(),
            work_tree: holder.work_tree.clone(),
            neutral: Neutral::default(),
        }
        .with_drivers(Drivers::Off)
        .await?;
        let touched = tree.touched(from.as_str(), to.as_str()).await?;
        let changed = in_the_way(&tree, from, to, &touched).await?;
        if !changed.is_empty() {
            return Ok(Landed::Refused {
                reason: LandingRefusal::Changed { worktree: holder.name() },
                files: changed,
            });
        }
        let filtered = filtered(&tree, to, &touched).await?;
        if !filtered.is_empty() {
            return Ok(Landed::Refused {
                reason: LandingRefusal::Filtered { worktree: holder.name() },
                files: filtered,
            });
        }
        let _noted = self.note_landing(target, from, to).map_err(|source| MergeError::Note { source })?;
        // Files first, as git does: a crash in between leaves the merge staged and loses nothing.
        match self.move_files(&tree, from, to).await {
            Ok(()) => {}
            Err(PatienceError::Git(GitError::Failed { stderr, .. })) => {
                return refuse(LandingRefusal::Git {
                    worktree: holder.name(),
                    message: stderr.trim().to_owned(),
                });
            }
            Err(error) => return Err(error.into()),
        }
        let patience = tree.git.lock_patience();
        let moved = patiently(patience, &self.progress, || async {
            let args = ["update-ref", "-m", note, &full, to.as_str(), from.as_str()];
            tree.write(args).ok().await.map(drop)
        })
        .await;
        if moved.is_err() {
            self.move_files(&tree, to, from).await?;
        }
        self.after_move(&full, from, moved).await
    }

    /// git's two-tree merge: touches what differs between the two, keeps every other change, and
    /// does nothing at all if something is in the way.
    pub(crate) async fn move_files(
        &self,
        tree: &Tree,
        from: &CommitId,
        to: &CommitId,
    ) -> Result<(), PatienceError> {
        patiently(tree.git.lock_patience(), &self.progress, || async {
            let refreshed = tree.write(["update-index", "--refresh"]).run().await?;
            // Answers 1 when files differ from the index; a lock is answered with more.
            if !matches!(refreshed.code, Some(0 | 1)) {
                return Err(refreshed.into_error());
            }
            let args = ["read-tree", "-m", "-u", from.as_str(), to.as_str()];
            tree.write(args).ok().await.map(drop)
        })
        .await
    }

    async fn after_move(
        &self,
        full: &str,
        from: &CommitId,
        moved: Result<(), PatienceError>,
    ) -> Result<Landed, MergeError> {
        let Err(error) = moved else {
            return Ok(Landed::Moved);
        };
        let found = self.repository().ref_target(full).await?;
        if found.as_ref() != Some(from) {
            return Ok(Landed::TargetMoved { found });
        }
        Err(error.into())
    }

    /// Git directory and directory of the persons' worktrees that have `target` checked out.
    pub(crate) async fn work_trees_on(
        &self,
        target: &BranchName,
    ) -> Result<Vec<(PathBuf, PathBuf)>, MergeError> {
        let found = self.checkouts_of(&target.full_ref()).await?;
        let persons = found.into_iter().filter(|c| c.agent.is_none());
        Ok(persons.map(|c| (c.git_dir, c.work_tree)).collect())
    }

    /// Working trees on the branch, or in the middle of rebasing it.
    async fn checkouts_of(&self, full: &str) -> Result<Vec<Checkout>, MergeError> {
        let common = self.repository().common_dir();
        let list = self.repository().read_common(["worktree", "list", "--porcelain", "-z"]).ok().await?;
        let main = porcelain::worktree_list(&list).into_iter().next();
        let mut candidates = Vec::new();
        if let Some(main) = main.filter(|m| !m.bare) {
            candidates.push(Checkout {
                git_dir: common.to_owned(),
                work_tree: PathBuf::from(OsStr::from_bytes(&main.path)),
                agent: None,
            });
        }
        let mut agents = Vec::new();
        for agent in self.records.agents()? {
            agents.extend(self.records.read(&agent)?.map(|r| (r.admin, agent)));
        }
        let linked = std::fs::read_dir(common.join("worktrees"));
        for entry in linked.into_iter().flatten().flatten() {
            let git_dir = entry.path();
            let Some(path) = crate::beneath::small_file(&git_dir.join("gitdir")) else {
                continue;
            };
            let path = path.strip_suffix(b"\n").unwrap_or(&path);
            let dot_git = git_dir.join(OsStr::from_bytes(path));
            let Some(work_tree) = dot_git.parent().filter(|p| p.is_dir()) else {
                continue;
            };
            let name = entry.file_name();
            let agent = agents.iter().find(|(admin, _)| admin.as_deref().is_some_and(|a| name == a));
            candidates.push(Checkout {
                work_tree: work_tree.to_owned(),
                agent: agent.map(|(_, agent)| agent.clone()),
                git_dir,
            });
        }
        candidates.retain(|c| is_on(&c.git_dir, full));
        Ok(candidates)
    }
}

fn is_on(git_dir: &Path, full: &str) -> bool {
    let says =
        |name: &str, expected: &str| crate::beneath::small_text(&git_dir.join(name)).trim_end() == expected;
    says("HEAD", &format!("ref: {full}"))
        || says("rebase-merge/head-name", full)
        || says("rebase-apply/head-name", full)
}

/// Changes of the person's that the move would meet: tracked, untracked, and ignored files where new
/// ones would be written.
async fn in_the_way(
    tree: &Tree,
    from: &CommitId,
    to: &CommitId,
    touched: &[RepoPath],
) -> Result<Vec<RepoPath>, GitError> {
    let status = tree.status(Submodules::HeadOnly).await?;
    let mut found: Vec<RepoPath> = status
        .into_iter()
        .map(|entry| entry.path)
        .filter(|path| touched.iter().any(|t| t.overlaps(path)))
        .collect();
    let added = tree
        .read(["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A"])
        .arg(from.as_str())
        .arg(to.as_str())
        .ok()
        .await?;
    for path in porcelain::paths(&added) {
        let there = tree.work_tree.join(path.to_path()).symlink_metadata();
        // A directory there holds files that the merge removes, or it was found above.
        if there.is_ok_and(|meta| !meta.is_dir()) && !found.contains(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Touched files whose filter has commands in the configuration.
async fn filtered(tree: &Tree, to: &CommitId, touched: &[RepoPath]) -> Result<Vec<RepoPath>, GitError> {
    let config = tree.config().await?;
    let names: Vec<&[u8]> =
        config.iter().filter(|e| e.scope != "command").filter_map(|e| filter_name(&e.key)).collect();
    if names.is_empty() || touched.is_empty() {
        return Ok(Vec::new());
    }
    let mut input = Vec::new();
    for path in touched {
        input.extend_from_slice(path.as_bytes());
        input.push(0);
    }
    let place = tree.place();
    let out = tree
        .git
        .command(&place, Access::Read, ["check-attr", "-z", "--stdin"])
        .arg(format!("--source={to}"))
        .arg("filter")
        .stdin(input)
        .ok()
        .await?;
    // Path, attribute and value take turns.
    let parts: Vec<&[u8]> = out.split(|b| *b == 0).collect();
    let hits = parts.chunks_exact(3).filter(|c| names.contains(&c[2]));
    Ok(hits.map(|c| RepoPath::from_bytes(c[0])).collect())
}
