//! The worker's own worktree, shared by tools, turns and the end of the run. One thing at a time: git's
//! index is one, and the branch follows HEAD in order.

use swarm_protocol::{error_chain, launch::WorkerLaunch};
use tokio::sync::Mutex;
use worktree_manager::{
    Advance, AgentId, Assignment, BranchName, CommitId, CommitOutcome, CommitRequest, GitConfig, Identity,
    LockPatience, OwnWorktree, Progress, Snapshot,
};

/// The worktree of an agent.
pub struct Tree(Mutex<Held>);

struct Held {
    tree: OwnWorktree,
    /// How the tree looked when it was last kept.
    kept: Option<Looks>,
}

/// HEAD, and name, size and time of each changed file.
type Looks = (CommitId, Vec<(std::path::PathBuf, u64, Option<std::time::SystemTime>)>);

/// What the commit at the end came to.
#[derive(Debug, Default)]
pub struct FinalCommit {
    /// Files over the size limit and the like.
    pub skipped: Vec<String>,
    /// What went wrong, as a sentence.
    pub error: Option<String>,
}

impl Tree {
    /// Takes ownership of the launch's worktree; none when it has none. `progress` hears of long waits.
    ///
    /// # Errors
    /// It is no worktree any more, or another process owns it.
    pub async fn open(launch: &WorkerLaunch, progress: Progress) -> anyhow::Result<Option<Self>> {
        let (Some(branch), Some(git_dir)) = (&launch.spec.branch, &launch.worktree_git_dir) else {
            return Ok(None);
        };
        let assignment = Assignment {
            agent: AgentId::parse(launch.spec.id.as_str())?,
            branch: BranchName::parse(branch)?,
            base: CommitId::parse(&launch.spec.base)?,
            common_dir: launch.git_common_dir.clone(),
            git_dir: git_dir.clone(),
        };
        let limit = std::time::Duration::from_millis(launch.limits.git_lock_wait_ms);
        let config = GitConfig {
            lock_patience: LockPatience { limit, ..LockPatience::default() },
            ..GitConfig::default()
        };
        let tree = OwnWorktree::open_with(&launch.spec.worktree, assignment, config, progress).await?;
        Ok(Some(Self(Mutex::new(Held { tree, kept: None }))))
    }

    /// What commands need in their environment, and the directory of git they may write.
    pub async fn for_commands(&self) -> (Vec<(std::ffi::OsString, std::ffi::OsString)>, std::path::PathBuf) {
        let held = self.0.lock().await;
        (held.tree.environment(), held.tree.git_dir().to_owned())
    }

    /// Moves new objects to the shared store, then the branch to HEAD. Answers what the agent should know.
    pub async fn follow_head(&self) -> Option<String> {
        let advanced = self.0.lock().await.tree.advance_branch().await;
        match advanced {
            Ok(Advance::Unmoved | Advance::Moved { kept: None, .. } | Advance::Held { .. }) => None,
            Ok(Advance::Moved { kept: Some(number), .. }) => {
                Some(format!("commits that HEAD no longer contains were kept as snapshot {number}"))
            }
            Err(error) => Some(format!("the branch did not follow HEAD: {}", error_chain(&error))),
        }
    }

    /// Keeps the working tree under a hidden ref, if it differs from the base and from what was kept last.
    ///
    /// # Errors
    /// As a sentence.
    pub async fn snapshot_if_changed(&self) -> Result<Option<Snapshot>, String> {
        let mut held = self.0.lock().await;
        let state = held.tree.state().await.map_err(|error| error_chain(&error))?;
        if state.is_unchanged() {
            return Ok(None);
        }
        let root = held.tree.path().to_owned();
        let looks = |entry: &worktree_manager::StatusEntry| {
            let path = root.join(entry.path.to_path());
            let metadata = std::fs::symlink_metadata(&path).ok();
            let size = metadata.as_ref().map_or(0, std::fs::Metadata::len);
            (path, size, metadata.and_then(|metadata| metadata.modified().ok()))
        };
        let looks = (state.head, state.dirty.iter().map(looks).collect());
        if held.kept.as_ref() == Some(&looks) {
            return Ok(None);
        }
        let snapshot = held.tree.snapshot().await.map_err(|error| error_chain(&error))?;
        held.kept = Some(looks);
        Ok(Some(snapshot))
    }

    /// HEAD and what is not committed, as `git status --short` says it.
    pub async fn status(&self) -> Result<(CommitId, String), String> {
        let state = self.0.lock().await.tree.state().await.map_err(|error| error_chain(&error))?;
        let lines: Vec<String> =
            state.dirty.iter().take(200).map(|entry| format!("M {}", entry.path)).collect();
        Ok((state.head, lines.join("\n")))
    }

    /// What a person would miss of this worktree: commits since its base, and at most `shown` of the files that are not
    /// committed; none when it is as it was made.
    ///
    /// # Errors
    /// As a sentence.
    pub async fn changes(&self, shown: usize) -> Result<Option<String>, String> {
        let held = self.0.lock().await;
        let state = held.tree.state().await.map_err(|error| error_chain(&error))?;
        if state.is_unchanged() {
            return Ok(None);
        }
        let mut parts = Vec::new();
        if state.head != state.base {
            parts.push(format!("commits up to {}", state.head.short()));
        }
        parts.extend(state.operation.map(|operation| format!("{operation} in progress")));
        let files: Vec<String> = state.dirty.iter().take(shown).map(|entry| entry.path.to_string()).collect();
        if !files.is_empty() {
            let more = state.dirty.len() - files.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            parts.push(format!("uncommitted: {}{more}", files.join(", ")));
        }
        Ok(Some(parts.join("; ")))
    }

    /// Puts the working tree back; answers with the snapshot of what was there.
    ///
    /// # Errors
    /// As a sentence.
    pub async fn restore(&self, number: u32) -> Result<Snapshot, String> {
        self.0.lock().await.tree.restore_snapshot(number).await.map_err(|error| error_chain(&error))
    }

    /// Commits everything that is not ignored and moves the branch.
    pub async fn commit_everything(&self, message: &str, worker: &str) -> FinalCommit {
        let mut request = CommitRequest::new(message);
        request.co_author =
            Some(Identity { name: worker.to_owned(), email: format!("{worker}@swarm.localhost") });
        let tree = &mut self.0.lock().await.tree;
        let mut end = FinalCommit::default();
        match tree.commit_all(&request).await {
            Ok(CommitOutcome::Committed { skipped, .. } | CommitOutcome::Nothing { skipped }) => {
                end.skipped = skipped.iter().map(|file| file.path.to_path().display().to_string()).collect();
            }
            Ok(CommitOutcome::Held { operation, snapshot }) => {
                end.error = Some(format!(
                    "an unfinished {operation:?} was left as it is, and the tree kept as snapshot {snapshot}"
                ));
            }
            Err(error) => end.error = Some(error_chain(&error)),
        }
        if let Err(error) = tree.advance_branch().await {
            let problem = format!("the branch did not follow HEAD: {}", error_chain(&error));
            end.error = Some(end.error.map_or(problem.clone(), |first| format!("{first}; {problem}")));
        }
        end
    }
}
