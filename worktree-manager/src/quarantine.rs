//! Objects that confined commands made, moved into the repository's store.
//!
//! Commands write to a private directory (`swarm-objects` in the worktree's git directory) and read
//! the shared store as an alternate. Nothing there is trusted: each loose object is copied to a
//! place commands cannot reach, checked against its name, flushed, and only then linked into the
//! store; packs are rebuilt by `git index-pack`, which does the same. A hard link from the private
//! directory would be faster, and would leave a command holding a writable door to shared history.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
    TooLarge { id: String, bytes: usize, limit: usize },
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
const OBJECT_LIMIT_BYTES: usize = 2 * 1024 * 1024 * 1024 - 1;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> MigrateError {
    let path = path.to_owned();
    move |source| MigrateError::Io { path, source }
}

/// Moves everything; the store is complete when this returns, and only then may a ref move.
pub(crate) async fn migrate(tree: &Tree) -> Result<Migrated, MigrateError> {
    let private = tree.git_dir.join(QUARANTINE_DIR);
    let store = tree.common_dir.join("objects");
    let mut migrated = Migrated::default();
    for pack in packs(&private)? {
        let Some(file) = open_regular(&pack)? else {
            continue;
        };
        let common = crate::git::Place::Repo {
            git_dir: tree.common_dir.clone(),
            common_dir: tree.common_dir.clone(),
            work_tree: None,
        };
        tree.git
            .command(&common, crate::git::Access::Write, ["index-pack", "--stdin", "--fix-thin"])
            .stdin_file(file)
            .ok()
            .await?;
        for ending in ["idx", "rev", "bitmap", "mtimes", "keep", "pack"] {
            drop(std::fs::remove_file(pack.with_extension(ending)));
        }
        migrated.packs += 1;
    }
    let moved = tokio::task::spawn_blocking(move || migrate_loose(&private, &store)).await;
    migrated.objects = moved.map_err(MigrateError::Interrupted)??;
    Ok(migrated)
}

fn packs(private: &Path) -> Result<Vec<PathBuf>, MigrateError> {
    let dir = private.join("pack");
    let mut found = Vec::new();
    for entry in read_dir(&dir)? {
        let path = entry.map_err(io(&dir))?.path();
        // A pack counts when its index is there: git writes that last.
        if path.extension().is_some_and(|e| e == "pack") && path.with_extension("idx").exists() {
            found.push(path);
        }
    }
    Ok(found)
}

fn read_dir(
    dir: &Path,
) -> Result<Box<dyn Iterator<Item = std::io::Result<std::fs::DirEntry>>>, MigrateError> {
    match std::fs::read_dir(dir) {
        Ok(entries) => Ok(Box::new(entries)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Box::new(std::iter::empty())),
        Err(error) => Err(io(dir)(error)),
    }
}

/// Opens a plain file and nothing else: no link, no pipe.
fn open_regular(path: &Path) -> Result<Option<File>, MigrateError> {
    let opened =
        OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path);
    match opened {
        Ok(file) if file.metadata().map_err(io(path))?.is_file() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => Ok(None),
        Err(error) => Err(io(path)(error)),
    }
}

struct Loose {
    id: git2::Oid,
    private: PathBuf,
}

fn loose_objects(private: &Path) -> Result<Vec<Loose>, MigrateError> {
    let hex = |name: &str, len: usize| {
        name.len() == len && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut found = Vec::new();
    for fan in read_dir(private)? {
        let fan = fan.map_err(io(private))?;
        let name = fan.file_name();
        let Some(first) = name.to_str().filter(|n| hex(n, 2)) else {
            continue;
        };
        if !fan.file_type().map_err(io(private))?.is_dir() {
            continue;
        }
        let dir = fan.path();
        for entry in read_dir(&dir)? {
            let entry = entry.map_err(io(&dir))?;
            let name = entry.file_name();
            // Others are git's temporary files.
            if let Some(rest) = name.to_str().filter(|n| hex(n, 38))
                && let Ok(id) = git2::Oid::from_str(&format!("{first}{rest}"))
            {
                found.push(Loose { id, private: entry.path() });
            }
        }
    }
    Ok(found)
}

fn migrate_loose(private: &Path, store: &Path) -> Result<usize, MigrateError> {
    let objects = loose_objects(private)?;
    if objects.is_empty() {
        return Ok(0);
    }
    // The prefix is git's own for such directories, so `git prune` removes one that a crash left.
    let staging =
        tempfile::Builder::new().prefix("tmp_objdir-swarm-").tempdir_in(store).map_err(io(store))?;
    let staged = prepare(staging.path()).map_err(io(staging.path()))?;
    let mut copied = Vec::new();
    for object in objects {
        let target = path_in(store, object.id);
        if target.symlink_metadata().is_ok() {
            drop(std::fs::remove_file(&object.private));
            continue;
        }
        let Some(mut source) = open_regular(&object.private)? else {
            continue;
        };
        let copy = path_in(&staged, object.id);
        copy_object(&mut source, &copy).map_err(io(&copy))?;
        copied.push((object, copy, target));
    }
    let mut ordered = check(staging.path(), copied)?;
    // What others refer to goes first, so a crash in between leaves no tree without its files.
    ordered.sort_by_key(|(kind, ..)| match kind {
        git2::ObjectType::Blob => 0,
        git2::ObjectType::Tree => 1,
        git2::ObjectType::Commit => 2,
        _ => 3,
    });
    let mut dirs = std::collections::BTreeSet::new();
    for (_, _, copy, target) in &ordered {
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
    for (_, object, ..) in &ordered {
        drop(std::fs::remove_file(&object.private));
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

fn copy_object(source: &mut File, copy: &Path) -> std::io::Result<()> {
    if let Some(dir) = copy.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes)?;
    let mut target = OpenOptions::new().write(true).create_new(true).open(copy)?;
    target.write_all(&bytes)?;
    target.set_permissions(std::fs::Permissions::from_mode(0o444))?;
    target.sync_all()
}

type Checked = (git2::ObjectType, Loose, PathBuf, PathBuf);

/// Reads every copy back; libgit2 compares content and name.
fn check(staging: &Path, copied: Vec<(Loose, PathBuf, PathBuf)>) -> Result<Vec<Checked>, MigrateError> {
    let flags = git2::RepositoryOpenFlags::NO_SEARCH | git2::RepositoryOpenFlags::BARE;
    let unreadable = |source| MigrateError::Check { path: staging.to_owned(), source };
    let repo = git2::Repository::open_ext(staging, flags, std::iter::empty::<&Path>()).map_err(unreadable)?;
    let odb = repo.odb().map_err(unreadable)?;
    let mut ordered = Vec::new();
    for (object, copy, target) in copied {
        let damaged = |source| MigrateError::Damaged {
            id: object.id.to_string(),
            path: object.private.clone(),
            source,
        };
        let (bytes, kind) = odb.read_header(object.id).map_err(damaged)?;
        if bytes > OBJECT_LIMIT_BYTES {
            return Err(MigrateError::TooLarge {
                id: object.id.to_string(),
                bytes,
                limit: OBJECT_LIMIT_BYTES,
            });
        }
        odb.read(object.id).map_err(damaged)?;
        ordered.push((kind, object, copy, target));
    }
    Ok(ordered)
}
