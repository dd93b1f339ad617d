//! Objects that confined commands made, moved into the repository's store.
//!
//! Commands write to a private directory (`swarm-objects` in the worktree's git directory) and read
//! the shared store as an alternate. Nothing there is trusted: each loose object is copied to a
//! place commands cannot reach, checked against its name, flushed, and only then linked into the
//! store; packs are rebuilt by `git index-pack`, which does the same. A hard link from the private
//! directory would be faster, and would leave a command holding a writable door to shared history.
//!
//! The private directory itself may be exchanged while this works: for a link to the store, whose
//! files would then be taken for private ones and removed, or to another repository's. So it is
//! walked by descriptors from the worktree's git directory down ([`crate::beneath`]): what is
//! listed, read and removed is in directories that were real ones under it when they were opened. A
//! pack is read by `git index-pack` from the descriptor that was checked, not by name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::beneath::Directory;
use crate::git::GitError;
use crate::tree::Tree;

/// The private object directory's name in a worktree's git directory.
pub const QUARANTINE_DIR: &str = "swarm-objects";

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Loose objects new to the store.
    pub objects: usize,
    /// Packs.
    pub packs: usize,
}

/// Why objects stayed where they were. Nothing that was moved is undone; repeating is safe.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Reading or writing failed.
    #[error("cannot move objects: {} failed", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A link or a file, where a command may have put it to lead somewhere else.
    #[error(
        "{} is no directory, so no objects were taken over from there; remove it and repeat the command",
        path.display()
    )]
    NotADirectory { path: PathBuf },
    /// The content does not have the hash its name says.
    #[error(
        "object {id} made by a command is damaged and was not taken over; remove {} and repeat the command",
        path.display()
    )]
    Damaged {
        id: String,
        path: PathBuf,
        #[source]
        source: git2::Error,
    },
    /// Larger than an object may be.
    #[error("object {id} has {bytes} bytes, more than the {limit} that are taken over")]
    TooLarge { id: String, bytes: u64, limit: u64 },
    /// libgit2 could not open the copies.
    #[error("cannot check the objects in {}", path.display())]
    Check {
        path: PathBuf,
        #[source]
        source: git2::Error,
    },
    /// `git index-pack` refused a pack.
    #[error(transparent)]
    Pack(#[from] GitError),
    /// The moving thread ended early.
    #[error("moving objects was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Checked in memory, so a limit is needed; git itself refuses to handle much larger ones well.
const OBJECT_LIMIT_BYTES: u64 = 2 * 1024 * 1024 * 1024 - 1;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> MigrateError {
    let path = path.to_owned();
    move |source| match source.kind() {
        std::io::ErrorKind::NotADirectory => MigrateError::NotADirectory { path },
        _ => MigrateError::Io { path, source },
    }
}

/// The private directory, with its name for messages alone.
#[derive(Debug)]
struct Private {
    dir: Directory,
    path: PathBuf,
}

impl Private {
    fn open(git_dir: &Path) -> Result<Option<Self>, MigrateError> {
        let path = git_dir.join(QUARANTINE_DIR);
        let Some(above) = Directory::open(git_dir).map_err(io(git_dir))? else {
            return Ok(None);
        };
        let dir = above.sub(QUARANTINE_DIR).map_err(io(&path))?;
        Ok(dir.map(|dir| Self { dir, path }))
    }

    fn sub(&self, name: impl AsRef<OsStr>) -> Result<Option<Self>, MigrateError> {
        let path = self.path.join(name.as_ref());
        let dir = self.dir.sub(name).map_err(io(&path))?;
        Ok(dir.map(|dir| Self { dir, path }))
    }

    fn names(&self) -> Result<Vec<OsString>, MigrateError> {
        self.dir.names().map_err(io(&self.path))
    }

    fn file(&self, name: impl AsRef<OsStr>) -> Result<Option<File>, MigrateError> {
        self.dir.file(&name).map_err(io(&self.path.join(name.as_ref())))
    }
}

/// Makes the private directory unless there is one.
pub(crate) fn make(git_dir: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(git_dir.join(QUARANTINE_DIR)) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            // A link in its place is refused here as in moving.
            Directory::open(&git_dir.join(QUARANTINE_DIR)).map(drop)
        }
        made => made,
    }
}

/// Moves everything; the store is complete when this returns, and only then may a ref move.
pub(crate) async fn migrate(tree: &Tree) -> Result<Migrated, MigrateError> {
    let git_dir = tree.git_dir.clone();
    let Some((private, packs)) = blocking(move || {
        let Some(private) = Private::open(&git_dir)? else {
            return Ok(None);
        };
        let packs = Packs::open(&private)?;
        Ok(Some((private, packs)))
    })
    .await?
    else {
        return Ok(Migrated::default());
    };
    let mut migrated = Migrated::default();
    if let Some(packs) = packs {
        migrated.packs = migrate_packs(tree, packs).await?;
    }
    let store = tree.common_dir.join("objects");
    migrated.objects = blocking(move || migrate_loose(&private, &store)).await?;
    Ok(migrated)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MigrateError> + Send + 'static,
) -> Result<T, MigrateError> {
    tokio::task::spawn_blocking(work).await.map_err(MigrateError::Interrupted)?
}

/// The directory of packs and the names in it that are to be taken over, without their endings.
struct Packs {
    within: Arc<Private>,
    stems: Vec<OsString>,
}

impl Packs {
    fn open(private: &Private) -> Result<Option<Self>, MigrateError> {
        let Some(within) = private.sub("pack")? else {
            return Ok(None);
        };
        let names: BTreeSet<_> = within.names()?.into_iter().collect();
        let packs = names.iter().map(Path::new).filter(|name| name.extension().is_some_and(|e| e == "pack"));
        // A pack counts when its index is there: git writes that last.
        let whole = packs.filter(|name| names.contains(name.with_extension("idx").as_os_str()));
        let stems = whole.filter_map(|name| name.file_stem()).map(OsStr::to_owned).collect();
        Ok(Some(Self { within: Arc::new(within), stems }))
    }
}

async fn migrate_packs(tree: &Tree, packs: Packs) -> Result<usize, MigrateError> {
    let common = crate::git::Place::Repo {
        git_dir: tree.common_dir.clone(),
        common_dir: tree.common_dir.clone(),
        work_tree: None,
    };
    let mut count = 0;
    for stem in packs.stems {
        let name = |ending: &str| {
            let mut name = stem.clone();
            name.push(".");
            name.push(ending);
            name
        };
        let (within, pack) = (Arc::clone(&packs.within), name("pack"));
        let Some(file) = blocking(move || within.file(pack)).await? else {
            continue;
        };
        tree.git
            .command(&common, crate::git::Access::Write, ["index-pack", "--stdin", "--fix-thin"])
            .stdin_file(file)
            .ok()
            .await?;
        for ending in ["idx", "rev", "bitmap", "mtimes", "keep", "pack"] {
            drop(packs.within.dir.unlink(name(ending)));
        }
        count += 1;
    }
    Ok(count)
}

/// A loose object: `id` is `<fan><rest>`.
struct Loose {
    id: git2::Oid,
    rest: String,
}

/// By the names of their fan directories.
type Fans = BTreeMap<String, Vec<Loose>>;

fn loose_objects(private: &Private) -> Result<Fans, MigrateError> {
    let hex = |name: &OsStr, len: usize| {
        name.to_str()
            .filter(|name| {
                name.len() == len && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            })
            .map(str::to_owned)
    };
    let mut fans = Fans::new();
    for fan in private.names()?.iter().filter_map(|name| hex(name, 2)) {
        let Some(dir) = private.sub(&fan)? else {
            continue;
        };
        let mut found = Vec::new();
        // Others are git's temporary files.
        for rest in dir.names()?.iter().filter_map(|name| hex(name, 38)) {
            if let Ok(id) = git2::Oid::from_str(&format!("{fan}{rest}")) {
                found.push(Loose { id, rest });
            }
        }
        if !found.is_empty() {
            fans.insert(fan, found);
        }
    }
    Ok(fans)
}

fn migrate_loose(private: &Private, store: &Path) -> Result<usize, MigrateError> {
    let fans = loose_objects(private)?;
    if fans.is_empty() {
        return Ok(0);
    }
    // The prefix is git's own for such directories, so `git prune` removes one that a crash left.
    let staging =
        tempfile::Builder::new().prefix("tmp_objdir-swarm-").tempdir_in(store).map_err(io(store))?;
    let staged = prepare(staging.path()).map_err(io(staging.path()))?;
    let mut copied = Vec::new();
    let mut done: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (fan, objects) in &fans {
        let Some(dir) = private.sub(fan)? else {
            continue;
        };
        for object in objects {
            let target = path_in(store, object.id);
            if target.symlink_metadata().is_err() {
                let Some(source) = dir.file(&object.rest)? else {
                    continue;
                };
                let copy = path_in(&staged, object.id);
                copy_object(object.id, source, &copy)?;
                copied.push(Copied { id: object.id, private: dir.path.join(&object.rest), copy, target });
            }
            done.entry(fan).or_default().push(&object.rest);
        }
    }
    let mut ordered = check(staging.path(), copied)?;
    // What others refer to goes first, so a crash in between leaves no tree without its files.
    ordered.sort_by_key(|(kind, _)| match kind {
        git2::ObjectType::Blob => 0,
        git2::ObjectType::Tree => 1,
        git2::ObjectType::Commit => 2,
        _ => 3,
    });
    let mut dirs = BTreeSet::new();
    for (_, Copied { copy, target, .. }) in &ordered {
        if let Some(dir) = target.parent()
            && dirs.insert(dir.to_owned())
        {
            std::fs::create_dir_all(dir).map_err(io(dir))?;
        }
        match std::fs::hard_link(copy, target) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            // A file system without hard links: the name appears at once either way.
            Err(_) => std::fs::rename(copy, target).map_err(io(target))?,
        }
    }
    dirs.insert(store.to_owned());
    for dir in &dirs {
        File::open(dir).and_then(|d| d.sync_all()).map_err(io(dir))?;
    }
    for (fan, names) in done {
        // Exchanged meanwhile: what is there is left to the next call, which tells.
        let Ok(Some(dir)) = private.sub(fan) else {
            continue;
        };
        for name in names {
            drop(dir.dir.unlink(name));
        }
    }
    Ok(ordered.len())
}

/// The least that libgit2 takes for a repository, so that paths of any bytes can be checked.
fn prepare(staging: &Path) -> std::io::Result<PathBuf> {
    std::fs::write(staging.join("HEAD"), "ref: refs/heads/none\n")?;
    std::fs::create_dir(staging.join("refs"))?;
    let objects = staging.join("objects");
    std::fs::create_dir(&objects)?;
    Ok(objects)
}

fn path_in(dir: &Path, id: git2::Oid) -> PathBuf {
    let hex = id.to_string();
    dir.join(&hex[..2]).join(&hex[2..])
}

/// By size first, since a file with holes costs a command nothing; then no more than the limit, since
/// the file may grow.
fn copy_object(id: git2::Oid, source: File, copy: &Path) -> Result<(), MigrateError> {
    let size = source.metadata().map_err(io(copy))?.len();
    within_limit(id, size)?;
    let copied = (|| {
        if let Some(dir) = copy.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut target = OpenOptions::new().write(true).create_new(true).open(copy)?;
        let copied = std::io::copy(&mut source.take(OBJECT_LIMIT_BYTES + 1), &mut target)?;
        target.set_permissions(std::fs::Permissions::from_mode(0o444))?;
        target.sync_all()?;
        Ok(copied)
    })();
    within_limit(id, copied.map_err(io(copy))?)
}

fn within_limit(id: git2::Oid, bytes: u64) -> Result<(), MigrateError> {
    if bytes > OBJECT_LIMIT_BYTES {
        return Err(MigrateError::TooLarge { id: id.to_string(), bytes, limit: OBJECT_LIMIT_BYTES });
    }
    Ok(())
}

/// An object on its way; the private name is for messages.
struct Copied {
    id: git2::Oid,
    private: PathBuf,
    copy: PathBuf,
    target: PathBuf,
}

/// Reads every copy back; libgit2 compares content and name.
fn check(staging: &Path, copied: Vec<Copied>) -> Result<Vec<(git2::ObjectType, Copied)>, MigrateError> {
    let flags = git2::RepositoryOpenFlags::NO_SEARCH | git2::RepositoryOpenFlags::BARE;
    let unreadable = |source| MigrateError::Check { path: staging.to_owned(), source };
    let repo = git2::Repository::open_ext(staging, flags, std::iter::empty::<&Path>()).map_err(unreadable)?;
    let odb = repo.odb().map_err(unreadable)?;
    let mut ordered = Vec::new();
    for object in copied {
        let damaged = |source| MigrateError::Damaged {
            id: object.id.to_string(),
            path: object.private.clone(),
            source,
        };
        let (bytes, kind) = odb.read_header(object.id).map_err(damaged)?;
        within_limit(object.id, bytes as u64)?;
        odb.read(object.id).map_err(damaged)?;
        ordered.push((kind, object));
    }
    Ok(ordered)
}
