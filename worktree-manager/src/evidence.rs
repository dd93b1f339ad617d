//! What a run did, established from git: commits, files, leftovers; and what changed meanwhile in
//! the places a worker must not touch.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::diff::{Commits, sum};
use crate::git::GitError;
use crate::manager::Manager;
use crate::name::{AgentId, BranchName};
use crate::porcelain::{ConfigEntry, FileStat, StatusEntry};
use crate::record::RecordError;
use crate::repository::{ReadError, Repository, last_value};
use crate::tree::{Submodules, Tree};
use crate::types::{CommitId, DiffStat, printable};
use crate::unfinished::Operation;

/// Git's side of an outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// The worker's branch.
    pub branch: BranchName,
    /// Where it began.
    pub base: CommitId,
    /// Where it is; `None` when the branch is gone.
    pub tip: Option<CommitId>,
    /// Between the two.
    pub commits: Commits,
    /// Changed between the two.
    pub files: Vec<FileStat>,
    /// Their sum.
    pub stat: DiffStat,
    /// Left uncommitted in the worktree.
    pub dirty: Vec<StatusEntry>,
    /// Left unfinished in the worktree.
    pub operation: Option<Operation>,
}

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// No such worktree.
    #[error("{agent} has no worktree in this repository")]
    Unknown { agent: AgentId },
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Commits could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The record could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

pub(crate) async fn gather(manager: &Manager, agent: &AgentId) -> Result<Evidence, EvidenceError> {
    let worktree = manager.find(agent)?.ok_or_else(|| EvidenceError::Unknown { agent: agent.clone() })?;
    let tree = manager.tree(&worktree.path, &worktree.git_dir).await?;
    let dirty = tree.status(Submodules::HeadOnly).await?;
    let operation = tree.operation();
    let repository = manager.repository();
    let tip = repository.branch_tip(&worktree.branch).await?;
    let (commits, files) = match &tip {
        None => Default::default(),
        Some(tip) => {
            (repository.commits(&worktree.base, tip).await?, repository.numstat(&worktree.base, tip).await?)
        }
    };
    Ok(Evidence {
        branch: worktree.branch,
        base: worktree.base,
        tip,
        commits,
        stat: sum(&files),
        files,
        dirty,
        operation,
    })
}

/// Shared configuration, hooks and the main checkout at one moment. Can be stored between start and
/// end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    head: String,
    config: BTreeMap<String, String>,
    hooks: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
}

/// What a [`Change`] concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "what", content = "name", rename_all = "snake_case")]
pub enum Watched {
    /// HEAD of the main checkout.
    Head,
    /// A key of the repository's configuration.
    Config(String),
    /// A file in the hooks directory.
    Hook(String),
    /// A file of the main checkout.
    File(String),
}

/// "Changed while X ran". Never undone: the person works there too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where.
    pub what: Watched,
    /// Before, if it was there.
    pub old: Option<String>,
    /// After, if it is there.
    pub new: Option<String>,
}

/// Files larger than this are compared by size and time.
const HASHED_BYTES: u64 = 4 * 1024 * 1024;

impl Fingerprint {
    /// Reads HEAD, configuration, hooks, and all files that differ from HEAD in the checkout of
    /// `repository`.
    ///
    /// # Errors
    /// git refused.
    pub async fn take(repository: &Repository) -> Result<Self, GitError> {
        let tree = repository.tree().await?;
        let config = tree.config().await?;
        let status = tree.status(Submodules::HeadOnly).await?;
        let files = status
            .iter()
            .map(|entry| {
                let content = describe(&tree.work_tree.join(entry.path.to_path()));
                (entry.path.to_string(), format!("{} {content}", state(entry)))
            })
            .collect();
        Ok(Self {
            head: head_text(&tree).await,
            hooks: hooks(&tree, &config),
            config: shared_config(&config),
            files,
        })
    }

    /// What is different in `after`, in a fixed order.
    pub fn diff(&self, after: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.head != after.head {
            changes.push(Change {
                what: Watched::Head,
                old: Some(self.head.clone()),
                new: Some(after.head.clone()),
            });
        }
        compare(&self.config, &after.config, Watched::Config, &mut changes);
        compare(&self.hooks, &after.hooks, Watched::Hook, &mut changes);
        compare(&self.files, &after.files, Watched::File, &mut changes);
        changes
    }
}

fn compare(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    what: fn(String) -> Watched,
    changes: &mut Vec<Change>,
) {
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        if old != new {
            changes.push(Change { what: what(key.clone()), old: old.cloned(), new: new.cloned() });
        }
    }
}

fn state(entry: &StatusEntry) -> &'static str {
    use crate::porcelain::ChangeKind;
    match entry.kind {
        ChangeKind::Tracked { staged: true, .. } => "staged",
        ChangeKind::Tracked { staged: false, .. } => "modified",
        ChangeKind::Unmerged => "unmerged",
        ChangeKind::Untracked => "untracked",
        ChangeKind::NestedRepository => "repository",
    }
}

async fn head_text(tree: &Tree) -> String {
    let text = crate::beneath::small_text(&tree.git_dir.join("HEAD"));
    let id = tree.head().await.map(|id| id.to_string());
    format!("{} {}", text.trim(), id.unwrap_or_default()).trim_end().to_owned()
}

/// The repository's own values; those that may hold a secret only as a hash.
fn shared_config(config: &[ConfigEntry]) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for entry in config.iter().filter(|e| e.scope == "local") {
        let key = printable(&entry.key);
        let value = entry.value.as_deref().unwrap_or(b"true");
        let text = if may_hold_secret(&key, value) {
            format!("(hidden, sha256 {})", short_hash(value))
        } else {
            printable(value)
        };
        map.entry(key)
            .and_modify(|all| {
                all.push_str(", ");
                all.push_str(&text);
            })
            .or_insert(text);
    }
    map
}

fn may_hold_secret(key: &str, value: &[u8]) -> bool {
    let key = key.to_ascii_lowercase();
    let by_key = ["extraheader", "token", "password", "secret", "credential"];
    let with_user = value.windows(3).any(|w| w == b"://") && value.contains(&b'@');
    by_key.iter().any(|word| key.contains(word)) || with_user
}

fn hooks(tree: &Tree, config: &[ConfigEntry]) -> BTreeMap<String, String> {
    let user: Vec<ConfigEntry> = config.iter().filter(|e| e.scope != "command").cloned().collect();
    let dir = match last_value(&user, b"core.hookspath") {
        Some(path) => tree.work_tree.join(PathBuf::from(std::ffi::OsStr::from_bytes(path))),
        None => tree.common_dir.join("hooks"),
    };
    let Ok(entries) = std::fs::read_dir(&dir) else {
        return BTreeMap::new();
    };
    entries.flatten().map(|e| (printable(e.file_name().as_bytes()), describe(&e.path()))).collect()
}

fn short_hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// A file's content in few words.
fn describe(path: &Path) -> String {
    let Ok(meta) = path.symlink_metadata() else {
        return "absent".to_owned();
    };
    if meta.is_symlink() {
        let target = std::fs::read_link(path).unwrap_or_default();
        return format!("link to {}", printable(target.as_os_str().as_bytes()));
    }
    if !meta.is_file() {
        return "directory".to_owned();
    }
    let content = if meta.len() <= HASHED_BYTES {
        std::fs::read(path).ok().map(|bytes| format!("sha256 {}", short_hash(&bytes)))
    } else {
        let since = meta.modified().ok();
        let since = since.and_then(|m| m.duration_since(std::time::UNIX_EPOCH).ok());
        since.map(|d| format!("changed at {}", d.as_nanos()))
    };
    format!("{} bytes, {}", meta.len(), content.unwrap_or_else(|| "unreadable".to_owned()))
}
