//! The repository a person stands in: what it is, where HEAD is, which commit a base means. Reads
//! by libgit2; refuses what swarm cannot work in, with the way to proceed.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::git::{Access, Git, GitConfig, GitError, Place};
use crate::name::{BranchName, NameError};
use crate::porcelain::{self, ConfigEntry, StatusEntry};
use crate::tree::{Drivers, Submodules, Tree};
use crate::types::{CommitId, printable};

/// A repository seen from one of its working trees. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Repository {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) git: Git,
    root: PathBuf,
    git_dir: PathBuf,
    pub(crate) common_dir: PathBuf,
    directory_name: String,
    sparse: bool,
}

/// A kind of repository that is refused, and how to proceed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// No working tree to start from.
    #[error(
        "{} is a bare repository: start from one of its worktrees (`git worktree add DIR BRANCH`) or from a clone",
        path.display()
    )]
    Bare { path: PathBuf },
    /// Object ids of 64 digits.
    #[error(
        "{} uses SHA-256 object ids, which swarm cannot read yet: work in a SHA-1 clone of it",
        path.display()
    )]
    Sha256 { path: PathBuf },
    /// Refs in tables.
    #[error(
        "{} stores its refs as reftable, which swarm cannot read yet: run `git refs migrate --ref-format=files` first",
        path.display()
    )]
    RefTable { path: PathBuf },
    /// Objects that are fetched when needed; agents have no network for that.
    #[error(
        "{} is a partial clone, whose missing objects agents could not fetch: run `git fetch --refetch --no-filter` and unset extensions.partialClone, or make a full clone",
        path.display()
    )]
    PartialClone { path: PathBuf },
    /// `extensions.*` unknown here.
    #[error(
        "{} uses the repository extension {name}, which swarm does not know: work in a plain clone of it",
        path.display()
    )]
    Extension { path: PathBuf, name: String },
}

/// Why [`Repository::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither this directory nor one above belongs to a repository.
    #[error(
        "{} is not inside a git repository: change to one, or run `git init` and make a first commit",
        path.display()
    )]
    NotARepository { path: PathBuf },
    /// See [`Unsupported`].
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// git could not say.
    #[error(transparent)]
    Git(#[from] GitError),
    /// libgit2 could not open it.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A read by libgit2 that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// With what was being read.
    #[error("cannot read {what} of the repository at {}", path.display())]
    Libgit {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: git2::Error,
    },
    /// The reading thread ended early.
    #[error("reading the repository was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Where HEAD stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Head {
    /// On a branch with commits. `branch` is what a merge goes to by default.
    Branch { branch: String, commit: CommitId },
    /// On a commit; a merge target has to be asked for.
    Detached { commit: CommitId },
    /// On a branch without a commit.
    Unborn { branch: String },
}

/// How two commits lie to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Distance {
    /// What is compared with, such as `origin/main`.
    pub to: String,
    /// Its commit.
    pub commit: CommitId,
    /// Commits only on our side.
    pub ahead: usize,
    /// Commits only on the other side.
    pub behind: usize,
}

/// A base after resolution, for printing at spawn and for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResolvedBase {
    /// As given.
    pub spec: String,
    /// What it means.
    pub commit: CommitId,
    /// Distance to `origin/HEAD` where that is known.
    pub to_origin: Option<Distance>,
    /// Distance to the commit checked out where the person stands.
    pub to_head: Option<Distance>,
}

/// A branch with a name like the one that was not found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearBranch {
    /// Its name, remote ones with the remote.
    pub name: String,
    /// Seconds since the last commit on it.
    pub age_seconds: u64,
}

/// Why a base names no commit.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The repository has no commit at all.
    #[error(
        "{} has no commit yet: make a first one (`git commit --allow-empty -m start`), or run without worktrees in place",
        path.display()
    )]
    Unborn { path: PathBuf },
    /// Nothing has that name.
    #[error("{spec:?} names no commit{}", near_text(near))]
    Unknown { spec: String, near: Vec<NearBranch> },
    /// It names something else, such as a file's content.
    #[error("{spec:?} names a {kind}, not a commit")]
    NotACommit { spec: String, kind: &'static str },
    /// libgit2 failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

fn near_text(near: &[NearBranch]) -> String {
    if near.is_empty() {
        return "; `git branch -a` lists the branches".to_owned();
    }
    let names: Vec<_> = near.iter().map(|n| format!("{} ({})", n.name, age(n.age_seconds))).collect();
    format!("; did you mean {}?", names.join(", "))
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s old"),
        120..7_200 => format!("{} min old", seconds / 60),
        7_200..172_800 => format!("{} h old", seconds / 3_600),
        _ => format!("{} days old", seconds / 86_400),
    }
}

/// What a person should know before work starts.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Where HEAD stands.
    pub head: Head,
    /// Changes that workers will not see, because they start from the commit.
    pub dirty: Vec<StatusEntry>,
    /// Distance of HEAD to `origin/HEAD`.
    pub to_origin: Option<Distance>,
    /// A sparse checkout; new worktrees are sparse in the same way.
    pub sparse: bool,
    /// Paths of submodules.
    pub submodules: Vec<crate::types::RepoPath>,
}

impl Repository {
    /// Finds the repository `path` lies in; any directory of a main or linked worktree will do.
    ///
    /// # Errors
    /// [`OpenError`], with [`Unsupported`] for kinds swarm refuses.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, GitConfig::default()).await
    }

    /// [`Repository::open`] with other limits or another git.
    ///
    /// # Errors
    /// As [`Repository::open`].
    pub async fn open_with(path: &Path, config: GitConfig) -> Result<Self, OpenError> {
        let git = Git::new(config);
        let here = Place::Discover(path.to_owned());
        if !path.is_dir() {
            return Err(OpenError::NotARepository { path: path.to_owned() });
        }
        let ask =
            |what: &str| git.command(&here, Access::Read, ["rev-parse", "--path-format=absolute", what]);
        let out = ask("--git-dir").run().await?;
        if out.code != Some(0) && out.stderr.contains("not a git repository") {
            return Err(OpenError::NotARepository { path: path.to_owned() });
        }
        let git_dir = porcelain::one_path(out.success()?);
        let common_dir = porcelain::one_path(ask("--git-common-dir").ok().await?);
        let bare = ask("--is-inside-work-tree").run().await?;
        if bare.code != Some(0) || !bare.stdout.starts_with(b"true") {
            return Err(Unsupported::Bare { path: git_dir }.into());
        }
        let root = porcelain::one_path(ask("--show-toplevel").ok().await?);
        let tree = Tree {
            git: git.clone(),
            git_dir: git_dir.clone(),
            common_dir: common_dir.clone(),
            work_tree: root.clone(),
            neutral: crate::git::Neutral::default(),
        };
        let config = tree.config().await?;
        refuse_unsupported(&config, &root)?;
        let repository = Self {
            inner: Arc::new(Inner {
                directory_name: directory_name(&common_dir),
                sparse: last_value(&config, b"core.sparsecheckout").is_some_and(is_true),
                git,
                root,
                git_dir,
                common_dir,
            }),
        };
        repository.libgit("the layout", |_| Ok(())).await?;
        Ok(repository)
    }

    /// The working tree the given path lies in.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// The git directory all worktrees share.
    pub fn common_dir(&self) -> &Path {
        &self.inner.common_dir
    }

    /// The git directory of [`Repository::root`].
    pub fn git_dir(&self) -> &Path {
        &self.inner.git_dir
    }

    /// Whether [`Repository::root`] is a linked worktree.
    pub fn is_linked(&self) -> bool {
        self.inner.git_dir != self.inner.common_dir
    }

    /// `<repo>-<hash>`: the same for all worktrees of a repository, another for each repository.
    pub fn directory_name(&self) -> &str {
        &self.inner.directory_name
    }

    /// Where swarm keeps locks and records, inside the common git directory.
    pub(crate) fn swarm_dir(&self) -> PathBuf {
        self.inner.common_dir.join("swarm")
    }

    /// The tree the person stands in, for commands that may run no driver.
    pub(crate) async fn tree(&self) -> Result<Tree, GitError> {
        self.bare_tree().with_drivers(Drivers::Off).await
    }

    pub(crate) fn bare_tree(&self) -> Tree {
        Tree {
            git: self.inner.git.clone(),
            git_dir: self.inner.git_dir.clone(),
            common_dir: self.inner.common_dir.clone(),
            work_tree: self.inner.root.clone(),
            neutral: crate::git::Neutral::default(),
        }
    }

    /// The repository without any working tree.
    pub(crate) fn common_place(&self) -> Place {
        Place::Repo {
            git_dir: self.inner.common_dir.clone(),
            common_dir: self.inner.common_dir.clone(),
            work_tree: None,
        }
    }

    /// Runs `f` on a libgit2 handle of the common directory, off the runtime's threads.
    pub(crate) async fn libgit<T: Send + 'static>(
        &self,
        what: &'static str,
        f: impl FnOnce(&git2::Repository) -> Result<T, git2::Error> + Send + 'static,
    ) -> Result<T, ReadError> {
        libgit(&self.inner.common_dir, what, f).await
    }

    /// Where HEAD of [`Repository::root`] stands.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn head(&self) -> Result<Head, ReadError> {
        libgit(&self.inner.git_dir, "HEAD", head_of).await
    }

    /// All that a person should be told before workers start.
    ///
    /// # Errors
    /// When git or libgit2 cannot read the repository.
    pub async fn facts(&self) -> Result<Facts, FactsError> {
        let head = self.head().await?;
        let tree = self.tree().await?;
        let dirty = tree.status(Submodules::HeadOnly).await?;
        let (to_origin, submodules) = match &head {
            Head::Unborn { .. } => (None, Vec::new()),
            Head::Branch { commit, .. } | Head::Detached { commit } => {
                let oid = commit.oid();
                self.libgit("the distance to origin", move |repo| {
                    Ok((to_origin(repo, oid), gitlinks(repo, oid)?))
                })
                .await?
            }
        };
        Ok(Facts { head, dirty, to_origin, sparse: self.inner.sparse, submodules })
    }

    /// Finds the commit `spec` means, seen from where the person stands (so `HEAD` is the commit under
    /// the person's feet, also in a linked worktree).
    ///
    /// # Errors
    /// [`BaseError`], with branches of similar names.
    pub async fn resolve_base(&self, spec: &str) -> Result<ResolvedBase, BaseError> {
        let root = self.inner.root.clone();
        let owned = spec.to_owned();
        let answer = libgit(&self.inner.git_dir, "a base", move |repo| Ok(resolve(repo, &owned, root)));
        answer.await?
    }

    /// Every local branch, without `refs/heads/`.
    pub(crate) async fn branch_names(&self) -> Result<std::collections::BTreeSet<String>, ReadError> {
        self.libgit("the branches", |repo| {
            let mut names = std::collections::BTreeSet::new();
            for reference in repo.references_glob("refs/heads/*")? {
                if let Some(name) = reference?.name().ok().and_then(|n| n.strip_prefix("refs/heads/")) {
                    names.insert(name.to_owned());
                }
            }
            Ok(names)
        })
        .await
    }

    /// The commit a ref points to, `None` when there is no such ref.
    pub(crate) async fn ref_target(&self, full: &str) -> Result<Option<CommitId>, ReadError> {
        crate::own::ref_target(&self.inner.common_dir, full).await
    }

    /// The commit of a branch.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn branch_tip(&self, branch: &BranchName) -> Result<Option<CommitId>, ReadError> {
        self.ref_target(&branch.full_ref()).await
    }

    /// The merge target by default: the branch checked out where the person stands.
    ///
    /// # Errors
    /// [`ReadError`]; `Ok(None)` on a detached HEAD.
    pub async fn default_target(&self) -> Result<Option<Result<BranchName, NameError>>, ReadError> {
        Ok(match self.head().await? {
            Head::Branch { branch, .. } => Some(BranchName::parse(&branch)),
            Head::Detached { .. } | Head::Unborn { .. } => None,
        })
    }
}

/// Why facts cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// By libgit2.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// By git.
    #[error(transparent)]
    Git(#[from] GitError),
}

pub(crate) async fn libgit<T: Send + 'static>(
    git_dir: &Path,
    what: &'static str,
    f: impl FnOnce(&git2::Repository) -> Result<T, git2::Error> + Send + 'static,
) -> Result<T, ReadError> {
    let path = git_dir.to_owned();
    let run = move || {
        let read = git2::Repository::open_ext(
            &path,
            git2::RepositoryOpenFlags::NO_SEARCH,
            std::iter::empty::<&Path>(),
        )
        .and_then(|repo| f(&repo));
        read.map_err(|source| ReadError::Libgit { what, path, source })
    };
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(joined) => Err(ReadError::Interrupted(joined)),
    }
}

fn refuse_unsupported(config: &[ConfigEntry], root: &Path) -> Result<(), Unsupported> {
    let path = root.to_owned();
    for entry in config {
        let Some(name) = entry.key.strip_prefix(b"extensions.") else {
            continue;
        };
        let value = entry.value.as_deref().unwrap_or_default();
        match name {
            b"objectformat" if value == b"sha1" => {}
            b"objectformat" => return Err(Unsupported::Sha256 { path }),
            b"refstorage" if value == b"files" => {}
            b"refstorage" => return Err(Unsupported::RefTable { path }),
            b"partialclone" => return Err(Unsupported::PartialClone { path }),
            b"worktreeconfig" | b"noop" | b"preciousobjects" | b"relativeworktrees" => {}
            other => {
                return Err(Unsupported::Extension { path, name: printable(other) });
            }
        }
    }
    let promisor = |e: &ConfigEntry| {
        e.key.starts_with(b"remote.")
            && e.key.ends_with(b".promisor")
            && e.value.as_deref().is_none_or(is_true)
    };
    if config.iter().any(promisor) {
        return Err(Unsupported::PartialClone { path });
    }
    Ok(())
}

pub(crate) fn last_value<'a>(config: &'a [ConfigEntry], key: &[u8]) -> Option<&'a [u8]> {
    let entry = config.iter().rev().find(|e| e.key == key)?;
    Some(entry.value.as_deref().unwrap_or(b"true"))
}

pub(crate) fn is_true(value: &[u8]) -> bool {
    matches!(value.to_ascii_lowercase().as_slice(), b"true" | b"yes" | b"on" | b"1")
}

fn directory_name(common_dir: &Path) -> String {
    let canonical = common_dir.canonicalize().unwrap_or_else(|_| common_dir.to_owned());
    let digest = Sha256::digest(canonical.as_os_str().as_bytes());
    let hash: String = digest.iter().take(6).map(|b| format!("{b:02x}")).collect();
    let named = if canonical.file_name().is_some_and(|n| n == ".git") {
        canonical.parent().and_then(Path::file_name)
    } else {
        canonical.file_stem()
    };
    let name: String = named
        .map(|n| n.to_string_lossy())
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .take(40)
        .collect();
    let name = name.trim_matches(|c| c == '-' || c == '.');
    format!("{}-{hash}", if name.is_empty() { "repo" } else { name })
}

fn head_of(repo: &git2::Repository) -> Result<Head, git2::Error> {
    let reference = repo.find_reference("HEAD")?;
    let target = reference.symbolic_target_bytes().map(|bytes| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.strip_prefix("refs/heads/").map(str::to_owned).unwrap_or(text)
    });
    match (repo.head(), target) {
        (Ok(head), Some(branch)) => Ok(Head::Branch { branch, commit: head.peel_to_commit()?.id().into() }),
        (Ok(head), None) => Ok(Head::Detached { commit: head.peel_to_commit()?.id().into() }),
        (Err(error), Some(branch)) if error.code() == git2::ErrorCode::UnbornBranch => {
            Ok(Head::Unborn { branch })
        }
        (Err(error), _) => Err(error),
    }
}

fn to_origin(repo: &git2::Repository, from: git2::Oid) -> Option<Distance> {
    let head = repo.find_reference("refs/remotes/origin/HEAD").ok()?;
    let resolved = head.resolve().ok()?;
    let name = String::from_utf8_lossy(resolved.name_bytes()).into_owned();
    let name = name.strip_prefix("refs/remotes/").unwrap_or(&name).to_owned();
    distance(repo, from, name, resolved.peel_to_commit().ok()?.id())
}

fn distance(repo: &git2::Repository, from: git2::Oid, to: String, oid: git2::Oid) -> Option<Distance> {
    let (ahead, behind) = repo.graph_ahead_behind(from, oid).ok()?;
    Some(Distance { to, commit: oid.into(), ahead, behind })
}

fn gitlinks(repo: &git2::Repository, commit: git2::Oid) -> Result<Vec<crate::types::RepoPath>, git2::Error> {
    let tree = repo.find_commit(commit)?.tree()?;
    if tree.get_name(".gitmodules").is_none() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let mut visit = |dir: &[u8], entry: &git2::TreeEntry<'_>| {
        if entry.kind() == Some(git2::ObjectType::Commit) {
            let path = [dir, entry.name_bytes()].concat();
            found.push(crate::types::RepoPath::from_bytes(&path));
        }
        git2::TreeWalkResult::Ok
    };
    tree.walk(git2::TreeWalkMode::PreOrder, |dir, entry| visit(dir.as_bytes(), entry))?;
    Ok(found)
}

fn resolve(repo: &git2::Repository, spec: &str, path: PathBuf) -> Result<ResolvedBase, BaseError> {
    let head = repo.head().ok().and_then(|h| h.peel_to_commit().ok());
    if head.is_none() && repo.is_empty().unwrap_or(false) {
        return Err(BaseError::Unborn { path });
    }
    let object = match repo.revparse_single(spec) {
        Ok(object) => object,
        Err(_) if spec == "HEAD" && head.is_none() => return Err(BaseError::Unborn { path }),
        Err(_) => {
            return Err(BaseError::Unknown { spec: spec.to_owned(), near: near_branches(repo, spec) });
        }
    };
    let kind = object.kind().map_or("unknown object", |k| k.str());
    let commit =
        object.peel_to_commit().map_err(|_| BaseError::NotACommit { spec: spec.to_owned(), kind })?.id();
    Ok(ResolvedBase {
        spec: spec.to_owned(),
        commit: commit.into(),
        to_origin: to_origin(repo, commit),
        to_head: head.and_then(|h| distance(repo, commit, "HEAD".to_owned(), h.id())),
    })
}

fn near_branches(repo: &git2::Repository, spec: &str) -> Vec<NearBranch> {
    let now = jiff::Timestamp::now().as_second();
    let Ok(branches) = repo.branches(None) else {
        return Vec::new();
    };
    let mut near: Vec<(f64, NearBranch)> = branches
        .flatten()
        .filter_map(|(branch, _)| {
            let name = String::from_utf8_lossy(branch.name_bytes().ok()?).into_owned();
            let last = name.rsplit('/').next().unwrap_or(&name);
            let like = strsim::jaro_winkler(spec, &name).max(strsim::jaro_winkler(spec, last));
            let at = branch.get().peel_to_commit().ok()?.time().seconds();
            let age_seconds = u64::try_from(now - at).unwrap_or(0);
            (like > 0.8).then_some((like, NearBranch { name, age_seconds }))
        })
        .collect();
    near.sort_by(|(a, x), (b, y)| b.total_cmp(a).then_with(|| x.name.cmp(&y.name)));
    near.into_iter().take(5).map(|(_, n)| n).collect()
}
