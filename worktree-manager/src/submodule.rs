//! Submodules of a new worktree, filled from the copies the repository already has and never from
//! the network. Those without a copy are named.

use std::path::Path;

use serde::Serialize;

use crate::git::GitError;
use crate::repository::libgit;
use crate::tree::Tree;
use crate::types::{CommitId, RepoPath};

/// A submodule of a new worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubmoduleState {
    /// Where.
    pub path: RepoPath,
    /// Filled or not.
    pub filled: SubmoduleFill,
}

/// Whether a submodule has its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SubmoduleFill {
    /// Checked out at the recorded commit.
    Filled,
    /// The repository has no copy of it; run `git submodule update --init` in the main checkout.
    NoLocalCopy,
    /// The copy lacks the commit, or git refused.
    Failed { error: String },
}

/// Fills the submodules of `commit` in `tree`, which is checked out.
pub(crate) async fn fill(tree: &Tree, commit: &CommitId) -> Result<Vec<SubmoduleState>, GitError> {
    let oid = commit.oid();
    let found = libgit(&tree.common_dir, "submodules", move |repo| submodules(repo, oid)).await;
    let mut states = Vec::new();
    // A damaged .gitmodules concerns submodules only.
    for (name, path) in found.unwrap_or_default() {
        let copy = tree.common_dir.join("modules").join(&name);
        let filled = if copy.join("objects").is_dir() {
            fill_one(tree, &name, &path, &copy).await?
        } else {
            SubmoduleFill::NoLocalCopy
        };
        tracing::info!(submodule = %path, ?filled, "submodule");
        states.push(SubmoduleState { path, filled });
    }
    Ok(states)
}

fn submodules(repo: &git2::Repository, commit: git2::Oid) -> Result<Vec<(String, RepoPath)>, git2::Error> {
    let tree = repo.find_commit(commit)?.tree()?;
    let Some(entry) = tree.get_name(".gitmodules") else {
        return Ok(Vec::new());
    };
    let blob = repo.find_blob(entry.id())?;
    let file = tempfile::NamedTempFile::new()
        .and_then(|f| std::fs::write(f.path(), blob.content()).map(|()| f))
        .map_err(|e| git2::Error::from_str(&e.to_string()))?;
    let config = git2::Config::open(file.path())?;
    let mut found = Vec::new();
    let entries = config.entries(Some(r"submodule\..*\.path"))?;
    entries.for_each(|entry| {
        if let (Ok(key), Ok(path)) = (entry.name(), entry.value())
            && let Some(name) = key.strip_prefix("submodule.").and_then(|k| k.strip_suffix(".path"))
            && !name.split('/').any(|part| part == "..")
            && tree.get_path(Path::new(path)).is_ok_and(|e| e.kind() == Some(git2::ObjectType::Commit))
        {
            found.push((name.to_owned(), RepoPath::from_bytes(path.as_bytes())));
        }
    })?;
    Ok(found)
}

async fn fill_one(tree: &Tree, name: &str, path: &RepoPath, copy: &Path) -> Result<SubmoduleFill, GitError> {
    // The URL is overridden for this command alone; the shared configuration is not written.
    let mut settled = tree.clone();
    let mut pairs = tree.neutral.0.to_vec();
    let mut set = |key: String, value: &[u8]| pairs.push((key.into_bytes(), value.to_vec()));
    use std::os::unix::ffi::OsStrExt;
    set(format!("submodule.{name}.url"), copy.as_os_str().as_bytes());
    set(format!("submodule.{name}.active"), b"true");
    set(format!("submodule.{name}.update"), b"checkout");
    set("protocol.allow".to_owned(), b"never");
    set("protocol.file.allow".to_owned(), b"always");
    settled.neutral = crate::git::Neutral(pairs.into());
    let out = settled
        .write(["submodule", "--quiet", "update", "--no-recommend-shallow", "--"])
        .arg(path.to_path())
        .run()
        .await?;
    if out.code == Some(0) {
        return Ok(SubmoduleFill::Filled);
    }
    let error = out.stderr.lines().last().unwrap_or_default().to_owned();
    Ok(SubmoduleFill::Failed { error })
}
