//! Snapshots: index, working tree and untracked files as one commit under a hidden ref, made without
//! touching the index, and the way back.
//!
//! A snapshot's tree is the working tree; its first parent is HEAD, its second a commit of the
//! index. An index with unmerged entries cannot be one tree: then that commit holds the directories
//! `stage0` to `stage3`. Two facts for users: `git log --all` shows these refs, and `git gc` keeps
//! what they reach.

use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::git::GitError;
use crate::name::AgentId;
use crate::porcelain::{self, ChangeKind, Malformed, StatusEntry};
use crate::tree::{Submodules, Tree};
use crate::types::{CommitId, RepoPath};
use crate::unfinished;

/// Larger files are left out of end-of-run commits and of snapshots at the end of a turn.
pub const DEFAULT_FILE_LIMIT_BYTES: u64 = 50 * 1024 * 1024;

/// Why a changed file is not in a commit or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum SkipReason {
    /// Over the limit.
    TooLarge { bytes: u64 },
    /// A git repository of its own; git stores only a link to it.
    NestedRepository,
    /// No permission to read it.
    Unreadable,
}

impl std::fmt::Display for SkipReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { bytes } => write!(f, "{bytes} bytes, more than is taken"),
            Self::NestedRepository => f.write_str("a git repository of its own"),
            Self::Unreadable => f.write_str("it cannot be read"),
        }
    }
}

/// A changed file that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Where.
    pub path: RepoPath,
    /// Why.
    pub reason: SkipReason,
}

/// A stored state of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Counted from 1 for each agent.
    pub number: u32,
    /// The commit under the ref.
    pub commit: CommitId,
    /// HEAD at the time.
    pub head: CommitId,
    /// What could not be stored.
    pub skipped: Vec<Skipped>,
}

/// A snapshot in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Counted from 1 for each agent.
    pub number: u32,
    /// The commit under the ref.
    pub commit: CommitId,
    /// Seconds since 1970.
    pub made_at: i64,
}

/// Which snapshots stay. The newest of an agent always does.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Older ones go.
    pub max_age: Duration,
    /// Once the newer ones of an agent need this much, the older ones go.
    pub max_bytes: u64,
}

/// Why a snapshot failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The copying thread ended early.
    #[error("copying the index was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    /// The copy of the index failed.
    #[error("cannot copy the index in {}", path.display())]
    Index {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] crate::repository::ReadError),
}

/// Why going back failed. The state before is in snapshot `before` if that is set.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// No such number.
    #[error("{agent} has no snapshot {number}; it has {}", numbers(existing))]
    Unknown { agent: AgentId, number: u32, existing: Vec<u32> },
    /// The present state could not be stored, so nothing was touched.
    #[error("nothing was restored, because the present state could not be stored first")]
    Before(#[source] SnapshotError),
    /// Ignored or locked files are in the way.
    #[error("restoring stopped; the state before is snapshot {before}")]
    Stopped {
        before: u32,
        #[source]
        source: GitError,
    },
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] crate::repository::ReadError),
}

fn numbers(existing: &[u32]) -> String {
    if existing.is_empty() {
        return "none".to_owned();
    }
    let texts: Vec<_> = existing.iter().map(u32::to_string).collect();
    texts.join(", ")
}

/// The identity of commits only swarm makes.
pub(crate) const SWARM_NAME: &str = "swarm";
pub(crate) const SWARM_EMAIL: &str = "swarm@localhost";

/// Names of temporary indexes.
const INDEX_PREFIX: &str = "swarm-index-";

/// Git's own limit lies in this region; a file with holes costs a command nothing.
const INDEX_LIMIT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Where temporary indexes of all trees of a repository are. Commands may write to a tree's git
/// directory and could read or exchange them there; to this one they cannot write.
pub(crate) fn indexes_dir(common_dir: &Path) -> PathBuf {
    common_dir.join("swarm").join("indexes")
}

/// Those of one tree, so that what a killed process left can be told from what is in use.
pub(crate) fn indexes_of(common_dir: &Path, git_dir: &Path) -> PathBuf {
    indexes_dir(common_dir).join(git_dir.file_name().unwrap_or_default())
}

/// The whole state of a tree as objects.
pub(crate) struct Capture {
    pub(crate) head: CommitId,
    pub(crate) status: Vec<StatusEntry>,
    pub(crate) skipped: Vec<Skipped>,
    /// Tree of the working tree with untracked files.
    pub(crate) work: CommitId,
    /// Tree of the index, or of its stages.
    index: CommitId,
    staged: bool,
    /// A copy of the index in which everything captured is added.
    pub(crate) index_file: tempfile::TempPath,
}

/// Reads the tree into objects; neither index nor files change.
pub(crate) async fn capture(tree: &Tree, file_limit: Option<u64>) -> Result<Capture, SnapshotError> {
    let (git_dir, dir) = (tree.git_dir.clone(), indexes_of(&tree.common_dir, &tree.git_dir));
    let index_file = tokio::task::spawn_blocking(move || copy_index(&git_dir, &dir))
        .await
        .map_err(SnapshotError::Interrupted)?
        .map_err(|source| SnapshotError::Index { path: tree.git_dir.clone(), source })?;
    let head = tree.head().await?;
    let status = tree.status(Submodules::HeadOnly).await?;
    let (index, staged) = index_tree(tree, &index_file, &status).await?;
    let (add, skipped) = sort_out(tree, &status, file_limit);
    if !add.is_empty() {
        let mut input = Vec::new();
        for path in &add {
            input.extend_from_slice(path.as_bytes());
            input.push(0);
        }
        tree.write(["update-index", "--add", "--remove", "--replace", "-z", "--stdin"])
            .env("GIT_INDEX_FILE", &index_file)
            .stdin(input)
            .ok()
            .await?;
    }
    let write = tree.write(["write-tree"]).env("GIT_INDEX_FILE", &index_file);
    let work = Tree::object(write).await?;
    Ok(Capture { head, status, skipped, work, index, staged, index_file })
}

/// Copies the index with its time: git tells by it which entries may have changed unseen. Anything
/// but a plain file in its place (a link to a file that commands cannot read, a pipe) is refused.
fn copy_index(git_dir: &Path, dir: &Path) -> std::io::Result<tempfile::TempPath> {
    // A repository that was moved away is not begun anew where it was.
    std::fs::metadata(git_dir)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let copy = tempfile::Builder::new().prefix(INDEX_PREFIX).tempfile_in(dir)?;
    let index = git_dir.join("index");
    let Some(source) = crate::beneath::plain_file(&index)? else {
        return match index.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // git takes a missing file for an empty index, but not an empty file.
                std::fs::remove_file(copy.path())?;
                Ok(copy.into_temp_path())
            }
            _ => Err(Error::other("`index` is no plain file; remove it and run `git reset`")),
        };
    };
    let modified = source.metadata()?.modified()?;
    let mut target = copy.as_file();
    if source.metadata()?.len() > INDEX_LIMIT_BYTES
        || std::io::copy(&mut source.take(INDEX_LIMIT_BYTES + 1), &mut target)? > INDEX_LIMIT_BYTES
    {
        return Err(Error::other(format!("`index` has more than {INDEX_LIMIT_BYTES} bytes")));
    }
    target.set_modified(modified)?;
    Ok(copy.into_temp_path())
}

async fn index_tree(
    tree: &Tree,
    index_file: &Path,
    status: &[StatusEntry],
) -> Result<(CommitId, bool), SnapshotError> {
    let unmerged = status.iter().any(|e| e.kind == ChangeKind::Unmerged);
    if !unmerged {
        let write = tree.write(["write-tree"]).env("GIT_INDEX_FILE", index_file);
        return Ok((Tree::object(write).await?, false));
    }
    let out = tree.read(["ls-files", "--stage", "-z"]).env("GIT_INDEX_FILE", index_file).run().await?;
    let lines = porcelain::index_lines(&out.stdout).map_err(|Malformed(problem)| out.unreadable(problem))?;
    let mut input = Vec::new();
    for line in lines {
        input.extend(format!("{} {} 0\tstage{}/", line.mode, line.id, line.stage).bytes());
        input.extend_from_slice(line.path.as_bytes());
        input.push(0);
    }
    let dir = indexes_of(&tree.common_dir, &tree.git_dir);
    let stages = match tempfile::Builder::new().prefix(INDEX_PREFIX).tempdir_in(&dir) {
        Ok(stages) => stages,
        Err(source) => return Err(SnapshotError::Index { path: dir, source }),
    };
    let file = stages.path().join("index");
    tree.write(["update-index", "-z", "--index-info"]).env("GIT_INDEX_FILE", &file).stdin(input).ok().await?;
    let write = tree.write(["write-tree"]).env("GIT_INDEX_FILE", &file);
    Ok((Tree::object(write).await?, true))
}

/// Splits the changed paths into those to add and those to leave out.
fn sort_out(tree: &Tree, status: &[StatusEntry], file_limit: Option<u64>) -> (Vec<RepoPath>, Vec<Skipped>) {
    let mut add = Vec::new();
    let mut skipped = Vec::new();
    for entry in status {
        let full = tree.work_tree.join(entry.path.to_path());
        let reason = match (&entry.kind, full.symlink_metadata()) {
            (ChangeKind::NestedRepository, _) => Some(SkipReason::NestedRepository),
            (_, Ok(meta)) if meta.is_file() => {
                if file_limit.is_some_and(|limit| meta.len() > limit) {
                    Some(SkipReason::TooLarge { bytes: meta.len() })
                } else {
                    let open = std::fs::OpenOptions::new()
                        .read(true)
                        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
                        .open(&full);
                    open.is_err().then_some(SkipReason::Unreadable)
                }
            }
            _ => None,
        };
        match reason {
            None => add.push(entry.path.clone()),
            Some(reason) => skipped.push(Skipped { path: entry.path.clone(), reason }),
        }
    }
    (add, skipped)
}

/// `refs/swarm/snapshots/<agent>/`.
pub(crate) fn snapshot_refs(agent: &AgentId) -> String {
    format!("refs/swarm/snapshots/{agent}/")
}

/// Stores the tree's state under the agent's next number.
pub(crate) async fn take(
    tree: &Tree,
    agent: &AgentId,
    file_limit: Option<u64>,
) -> Result<(Snapshot, Capture), SnapshotError> {
    let capture = capture(tree, file_limit).await?;
    let commit = commit_capture(tree, agent, &capture).await?;
    let number = store_next(tree, agent, &commit).await?;
    let snapshot = Snapshot { number, commit, head: capture.head.clone(), skipped: capture.skipped.clone() };
    Ok((snapshot, capture))
}

/// The commit of a snapshot, without a ref.
pub(crate) async fn commit_capture(
    tree: &Tree,
    agent: &AgentId,
    capture: &Capture,
) -> Result<CommitId, GitError> {
    let head = capture.head.as_str();
    let index = commit_tree(tree, &capture.index, &[head], &format!("index of {agent}\n")).await?;
    // Head and index first: `put_back` asks for them by number.
    let mut parents = vec![head, index.as_str()];
    let unfinished = unfinished::heads(tree).await;
    parents.extend(unfinished.iter().map(CommitId::as_str).filter(|id| *id != head));
    let mut message = format!("snapshot of {agent}\n\n");
    message.push_str(if capture.staged { "swarm-index: stages\n" } else { "swarm-index: tree\n" });
    for skipped in &capture.skipped {
        message.push_str(&format!("swarm-skipped: {}\n", skipped.path));
    }
    commit_tree(tree, &capture.work, &parents, &message).await
}

pub(crate) async fn commit_tree(
    tree: &Tree,
    of: &CommitId,
    parents: &[&str],
    message: &str,
) -> Result<CommitId, GitError> {
    let mut command = tree.write(["commit-tree", of.as_str(), "-F", "-"]);
    for parent in parents {
        command = command.arg("-p").arg(parent);
    }
    for role in ["AUTHOR", "COMMITTER"] {
        command = command
            .env(&format!("GIT_{role}_NAME"), SWARM_NAME)
            .env(&format!("GIT_{role}_EMAIL"), SWARM_EMAIL);
    }
    Tree::object(command.stdin(message.as_bytes().to_vec())).await
}

/// Makes the ref with the next free number; whoever is faster gets the lower one.
pub(crate) async fn store_next(
    tree: &Tree,
    agent: &AgentId,
    commit: &CommitId,
) -> Result<u32, SnapshotError> {
    const TRIES: u32 = 16;
    let mut last = None;
    for _ in 0..TRIES {
        let newest = list(&tree.common_dir, agent).await?.last().map_or(0, |s| s.number);
        let number = newest + 1;
        let name = format!("{}{number}", snapshot_refs(agent));
        let update = tree.write(["update-ref", &name, commit.as_str(), &"0".repeat(40)]);
        match update.ok().await {
            Ok(_) => return Ok(number),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("every try but the successful one leaves an error").into())
}

/// Snapshots of an agent, oldest first.
pub(crate) async fn list(
    common_dir: &Path,
    agent: &AgentId,
) -> Result<Vec<SnapshotInfo>, crate::repository::ReadError> {
    let prefix = snapshot_refs(agent);
    crate::repository::libgit(common_dir, "the snapshots", move |repo| {
        let mut found = Vec::new();
        for reference in repo.references_glob(&format!("{prefix}*"))? {
            let reference = reference?;
            let number =
                reference.name().ok().and_then(|n| n.strip_prefix(&prefix)).and_then(|n| n.parse().ok());
            if let Some(number) = number {
                let commit = reference.peel_to_commit()?;
                found.push(SnapshotInfo {
                    number,
                    commit: commit.id().into(),
                    made_at: commit.time().seconds(),
                });
            }
        }
        found.sort_by_key(|s| s.number);
        Ok(found)
    })
    .await
}

/// Brings the tree to the state of snapshot `number`; returns the snapshot of the state before.
pub(crate) async fn restore(tree: &Tree, agent: &AgentId, number: u32) -> Result<Snapshot, RestoreError> {
    let existing = list(&tree.common_dir, agent).await?;
    let Some(wanted) = existing.iter().find(|s| s.number == number) else {
        return Err(RestoreError::Unknown {
            agent: agent.clone(),
            number,
            existing: existing.iter().map(|s| s.number).collect(),
        });
    };
    let (before, now) = take(tree, agent, None).await.map_err(RestoreError::Before)?;
    put_back(tree, &now, &wanted.commit)
        .await
        .map_err(|source| RestoreError::Stopped { before: before.number, source })?;
    Ok(before)
}

/// Turns the captured present state into that of `snapshot`.
pub(crate) async fn put_back(tree: &Tree, now: &Capture, snapshot: &CommitId) -> Result<(), GitError> {
    let message = tree.read(["cat-file", "commit", snapshot.as_str()]).ok().await?;
    let staged = String::from_utf8_lossy(&message).contains("\nswarm-index: stages\n");
    let head = tree.rev(&format!("{snapshot}^1")).await?;
    let index = tree.rev(&format!("{snapshot}^2^{{tree}}")).await?;
    let target = tree.rev(&format!("{snapshot}^{{tree}}")).await?;
    // From the captured tree to the wanted one: files in neither stay, ignored files in the way stop it.
    tree.write(["read-tree", "-m", "-u", now.work.as_str(), target.as_str()])
        .env("GIT_INDEX_FILE", &now.index_file)
        .ok()
        .await?;
    tree.write(["update-ref", "--no-deref", "-m", "swarm: restore", "HEAD", head.as_str()]).ok().await?;
    if staged { put_back_stages(tree, &index).await } else { reset_index(tree, index.as_str()).await }
}

/// Sets the index without touching files, keeping what git knows about unchanged ones.
pub(crate) async fn reset_index(tree: &Tree, to: &str) -> Result<(), GitError> {
    tree.write(["read-tree", "--reset", to]).ok().await?;
    // Answers 1 when files differ from the index, which is no failure here.
    tree.write(["update-index", "-q", "--refresh"]).run().await?;
    Ok(())
}

async fn put_back_stages(tree: &Tree, stages: &CommitId) -> Result<(), GitError> {
    let out = tree.read(["ls-tree", "-r", "-z", stages.as_str()]).ok().await?;
    let mut input = Vec::new();
    for line in out.split(|b| *b == 0).filter(|l| !l.is_empty()) {
        // "<mode> <kind> <id>\tstage<n>/<path>"
        let at = line.iter().position(|b| *b == b'\t').unwrap_or(line.len());
        let (head, path) = line.split_at(at);
        let head = String::from_utf8_lossy(head);
        let mut fields = head.split(' ');
        let (mode, id) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        let Some((stage, path)) =
            path.strip_prefix(b"\tstage").and_then(|rest| rest.split_first_chunk::<2>())
        else {
            continue;
        };
        input.extend(format!("{mode} {id} {}\t", char::from(stage[0])).bytes());
        input.extend_from_slice(path);
        input.push(0);
    }
    tree.write(["read-tree", "--empty"]).ok().await?;
    tree.write(["update-index", "-z", "--index-info"]).stdin(input).ok().await?;
    tree.write(["update-index", "-q", "--refresh"]).run().await?;
    Ok(())
}
