//! The commit at a worker's end: everything not ignored, made by plumbing, so no hook and no
//! signature can stop it.

use serde::Serialize;

use crate::git::GitError;
use crate::lock::{Progress, patience_becomes, patiently};
use crate::name::AgentId;
use crate::porcelain::ChangeKind;
use crate::repository::last_value;
use crate::snapshot::{self, DEFAULT_FILE_LIMIT_BYTES, SWARM_EMAIL, SWARM_NAME, Skipped, SnapshotError};
use crate::tree::Tree;
use crate::types::CommitId;
use crate::unfinished::Operation;

/// A name and an address for a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// `user.name`.
    pub name: String,
    /// `user.email`.
    pub email: String,
}

impl Identity {
    /// For users who configured none.
    pub fn swarm() -> Self {
        Self { name: SWARM_NAME.to_owned(), email: SWARM_EMAIL.to_owned() }
    }
}

/// What to write into the commit.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// Subject and body, without trailers.
    pub message: String,
    /// `None`: the user's of the repository's configuration, else [`Identity::swarm`].
    pub identity: Option<Identity>,
    /// The worker, named in a `Co-authored-by` trailer.
    pub co_author: Option<Identity>,
    /// Larger files are skipped and named.
    pub file_limit_bytes: u64,
}

impl CommitRequest {
    /// With the defaults.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            identity: None,
            co_author: None,
            file_limit_bytes: DEFAULT_FILE_LIMIT_BYTES,
        }
    }
}

/// How the commit at the end went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[must_use = "skipped files and held operations must be reported"]
pub enum CommitOutcome {
    /// A commit was made on HEAD.
    Committed { commit: CommitId, skipped: Vec<Skipped> },
    /// HEAD has everything but what was skipped.
    Nothing { skipped: Vec<Skipped> },
    /// git is in the middle of something that a commit would spoil. The tree was left as it is, and
    /// its state is stored in the snapshot.
    Held { operation: Operation, snapshot: u32 },
}

/// Why there is no commit. Files and index are as before.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The state could not be stored.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The index is locked by another program.
    #[error(transparent)]
    Lock(#[from] crate::lock::LockError),
    /// The state of a finished merge could not be cleared.
    #[error("the commit {commit} was made, but the merge state in {} could not be cleared", path.display())]
    MergeState {
        commit: CommitId,
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
}

patience_becomes!(CommitError);

/// The user's identity in the tree's configuration.
pub(crate) async fn user_identity(tree: &Tree) -> Result<Option<Identity>, GitError> {
    let config = tree.config().await?;
    let text = |key: &[u8]| {
        last_value(&config, key)
            .map(|v| String::from_utf8_lossy(v).trim().to_owned())
            .filter(|v| !v.is_empty())
    };
    Ok(text(b"user.name").zip(text(b"user.email")).map(|(name, email)| Identity { name, email }))
}

/// `message` with a trailer block.
pub(crate) fn with_co_author(message: &str, co_author: Option<&Identity>) -> String {
    let message = message.trim_end();
    let subject = if message.is_empty() { "changes" } else { message };
    // A line break in a name would forge further trailers.
    let clean =
        |text: &str| text.chars().filter(|c| !c.is_control() && !"<>".contains(*c)).collect::<String>();
    match co_author {
        None => format!("{subject}\n"),
        Some(who) => format!("{subject}\n\nCo-authored-by: {} <{}>\n", clean(&who.name), clean(&who.email)),
    }
}

pub(crate) async fn commit_all(
    tree: &Tree,
    agent: &AgentId,
    request: &CommitRequest,
    progress: &Progress,
) -> Result<CommitOutcome, CommitError> {
    let operation = tree.operation();
    if let Some(operation) = operation.filter(|o| o.moves_head()) {
        return hold(tree, agent, operation).await;
    }
    let capture = snapshot::capture(tree, Some(request.file_limit_bytes)).await?;
    let unmerged = capture.status.iter().any(|e| e.kind == ChangeKind::Unmerged);
    if let Some(operation) = operation.filter(|_| unmerged) {
        return hold(tree, agent, operation).await;
    }
    let head_tree = tree.rev("HEAD^{tree}").await?;
    let merging = operation == Some(Operation::Merge);
    if head_tree == capture.work && !merging {
        return Ok(CommitOutcome::Nothing { skipped: capture.skipped });
    }
    let identity = match &request.identity {
        Some(identity) => identity.clone(),
        None => user_identity(tree).await?.unwrap_or_else(Identity::swarm),
    };
    let message = with_co_author(&request.message, request.co_author.as_ref());
    let mut command = tree
        .write(["commit-tree", capture.work.as_str(), "-F", "-", "-p"])
        .arg(capture.head.as_str())
        .stdin(message.into_bytes());
    if merging {
        let heads = crate::beneath::small_text(&tree.git_dir.join("MERGE_HEAD"));
        for other in heads.lines().filter_map(|l| CommitId::parse(l).ok()) {
            command = command.arg("-p").arg(other.as_str());
        }
    }
    for role in ["AUTHOR", "COMMITTER"] {
        command = command
            .env(&format!("GIT_{role}_NAME"), &identity.name)
            .env(&format!("GIT_{role}_EMAIL"), &identity.email);
    }
    let commit = Tree::object(command).await?;
    let (new, old) = (commit.as_str(), capture.head.as_str());
    // Without following a symbolic HEAD: the commit must not land on a branch a command switched to.
    patiently(tree.git.lock_patience(), progress, || async {
        tree.write(["update-ref", "--no-deref", "-m", "swarm: commit", "HEAD", new, old]).ok().await
    })
    .await?;
    patiently(tree.git.lock_patience(), progress, || snapshot::reset_index(tree, new)).await?;
    if operation.is_some() {
        clear_finished(tree, &commit)?;
    }
    Ok(CommitOutcome::Committed { commit, skipped: capture.skipped })
}

async fn hold(tree: &Tree, agent: &AgentId, operation: Operation) -> Result<CommitOutcome, CommitError> {
    let (snapshot, _) = snapshot::take(tree, agent, None).await?;
    Ok(CommitOutcome::Held { operation, snapshot: snapshot.number })
}

fn clear_finished(tree: &Tree, commit: &CommitId) -> Result<(), CommitError> {
    for name in ["MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD"] {
        let path = tree.git_dir.join(name);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(CommitError::MergeState { commit: commit.clone(), path, source });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_co_author_cannot_forge_trailers() {
        let who = Identity { name: "a\nSigned-off-by: b".to_owned(), email: "x@y>".to_owned() };
        assert_eq!(
            with_co_author("do it\n", Some(&who)),
            "do it\n\nCo-authored-by: aSigned-off-by: b <x@y>\n"
        );
        assert_eq!(with_co_author("", None), "changes\n");
    }
}
