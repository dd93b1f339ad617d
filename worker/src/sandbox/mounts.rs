//! Builds a [`View`] out of mounts, in the first process of a mount namespace.
//!
//! The places are taken from outside as detached copies, then this process enters an empty root, and only in
//! there places are made and filled. Commands can write some of the directories on the way, so no link is ever
//! followed: neither when something is taken, nor when it is put somewhere.

use super::raw;
use super::view::{Access, Content, Place, View};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc::{MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{chdir, pivot_root, symlinkat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Some directory on which the new root is put before it becomes the root.
const STAGES: [&str; 4] = ["/tmp", "/var", "/usr", "/etc"];
/// Of a file system in memory that holds names alone.
const SKELETON: &str = "mode=0755,size=4m";
/// `/dev/shm` as a share of the memory where nothing else bounds it, as distributions do, or less.
const SHARED_MEMORY: &str = "25%";

#[derive(Debug, thiserror::Error)]
#[error("failed to {step} {}", path.display())]
pub(super) struct MountError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> MountError {
    move |error| MountError { step, path: path.to_owned(), source: error.into() }
}

/// Makes `view` all that this process and its children see, with so many bytes for files in memory. Of no use outside
/// of a mount namespace of its own.
pub(super) fn build(view: &View, memory_bytes: Option<u64>) -> Result<(), MountError> {
    let root = Path::new("/");
    let none: Option<&str> = None;
    mount(none, root, none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(failed("part from", root))?;
    let mut taken = Vec::new();
    for (target, place) in &view.places {
        if let Some(content) = take(target, place)? {
            taken.push((target, place.is_dir, content));
        }
    }
    enter_empty_root()?;

    let root_fd = open(None, root, OFlag::O_DIRECTORY).map_err(failed("open", root))?;
    make_devices(&root_fd, memory_bytes)?;
    let mut covers = Vec::new();
    for (target, is_dir, content) in taken {
        let point = mount_point(&root_fd, target, is_dir).map_err(failed("make a place for", target))?;
        match content {
            Taken::Copy(copy) => raw::attach_mount(&copy, &point).map_err(failed("mount", target))?,
            Taken::Nothing => {
                // By its name: a cover stands in what commands cannot write, so no link can have come there.
                file_system("tmpfs", target, MsFlags::empty(), Some(SKELETON))?;
                covers.push(target);
            }
        }
    }
    for (link, text) in &view.links {
        make_link(&root_fd, link, text)?;
    }
    make_link(&root_fd, Path::new("/var/tmp"), Path::new("/tmp"))?;
    // Now that all stands in them.
    for covered in covers {
        close(covered)?;
    }
    close(Path::new("/proc"))?;
    close(root)
}

enum Taken {
    /// A detached mount.
    Copy(OwnedFd),
    /// An empty directory.
    Nothing,
}

/// What shall be seen at `target`.
fn take(target: &Path, place: &Place) -> Result<Option<Taken>, MountError> {
    let closed = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    let (path, source, attributes) = match &place.content {
        Content::Tree { source, access } => {
            let attributes = match access {
                Access::ReadOnly => closed | MOUNT_ATTR_RDONLY,
                Access::ReadWrite => closed,
                Access::Device => MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
            };
            (source.as_path(), open(None, source, OFlag::empty()), attributes)
        }
        Content::Home { source } => (source.as_path(), open_home(source), closed),
        Content::Protected { made } => match open_file(target, *made) {
            Err(Errno::ENOENT) => return Ok(None),
            opened => (target, opened, closed | MOUNT_ATTR_RDONLY),
        },
        Content::Cover if place.is_dir => return Ok(Some(Taken::Nothing)),
        // A device that may not be opened.
        Content::Cover => {
            let null = Path::new("/dev/null");
            (null, open(None, null, OFlag::empty()), closed | MOUNT_ATTR_RDONLY)
        }
    };
    let source = source.map_err(failed("open", path))?;
    let copy = raw::copy_of_mounts(&source).map_err(failed("take", path))?;
    raw::set_mount_attributes(&copy, attributes, true).map_err(failed("protect", path))?;
    Ok(Some(Taken::Copy(copy)))
}

/// A handle of a place, reached through no link. Below `parent`, or from the root.
fn open(parent: Option<&OwnedFd>, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match parent {
        Some(parent) => openat2(parent, path, how),
        None => openat2(AT_FDCWD, path, how),
    }
}

/// The private home, made when it is missing.
fn open_home(path: &Path) -> Result<OwnedFd, Errno> {
    let (parent, name) = parent_of(path)?;
    there(mkdirat(&parent, name, Mode::S_IRWXU))?;
    open(Some(&parent), Path::new(name), OFlag::O_DIRECTORY)
}

/// A file that may have to be made; what is no regular file is passed over.
fn open_file(path: &Path, made: bool) -> Result<OwnedFd, Errno> {
    let (parent, name) = parent_of(path)?;
    if made {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        there(openat(&parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR))?;
    }
    let file = open(Some(&parent), Path::new(name), OFlag::empty())?;
    let is_file = fstat(&file)?.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    if is_file { Ok(file) } else { Err(Errno::ENOENT) }
}

fn parent_of(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::EINVAL) };
    Ok((open(None, parent, OFlag::O_DIRECTORY)?, name))
}

/// Puts an empty root with a view of its own processes in the place of the one there is.
fn enter_empty_root() -> Result<(), MountError> {
    let stage = STAGES.iter().map(Path::new).find(|stage| stage.is_dir()).unwrap_or(Path::new("/"));
    file_system("tmpfs", stage, MsFlags::empty(), Some(SKELETON))?;
    // While the old one is there to be seen: the kernel gives no view that shows more than that did.
    let proc = stage.join("proc");
    std::fs::create_dir(&proc).map_err(failed("make", &proc))?;
    file_system("proc", &proc, MsFlags::MS_NOEXEC | MsFlags::MS_NODEV, None)?;
    let here = Path::new(".");
    chdir(stage).map_err(failed("enter", stage))?;
    // The old root comes to stand on top of the new one, and goes from there.
    pivot_root(here, here).map_err(failed("enter", stage))?;
    umount2(here, MntFlags::MNT_DETACH).map_err(failed("leave the root for", stage))?;
    chdir(Path::new("/")).map_err(failed("enter", stage))
}

fn make_devices(root: &OwnedFd, memory_bytes: Option<u64>) -> Result<(), MountError> {
    for name in ["/dev/pts", "/dev/shm"] {
        let path = Path::new(name);
        mount_point(root, path, true).map_err(failed("make", path))?;
    }
    let quiet = MsFlags::MS_NOEXEC;
    file_system("devpts", Path::new("/dev/pts"), quiet, Some("newinstance,ptmxmode=0666,mode=0620"))?;
    let size = memory_bytes.map_or_else(|| SHARED_MEMORY.to_owned(), |bytes| bytes.to_string());
    let options = format!("mode=1777,size={size}");
    file_system("tmpfs", Path::new("/dev/shm"), MsFlags::MS_NODEV, Some(&options))?;
    for (name, text) in [
        ("/dev/ptmx", "pts/ptmx"),
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        make_link(root, Path::new(name), Path::new(text))?;
    }
    Ok(())
}

/// A handle of the place `path`, made with what is missing on the way.
fn mount_point(root: &OwnedFd, path: &Path, is_dir: bool) -> Result<OwnedFd, Errno> {
    let kind = if is_dir { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let inside = path.strip_prefix("/").unwrap_or(path);
    match open(Some(root), inside, kind) {
        Err(Errno::ENOENT) => {}
        opened => return opened,
    }
    let parent = directory(root, inside.parent().unwrap_or(Path::new("")))?;
    let name = Path::new(inside.file_name().ok_or(Errno::EINVAL)?);
    if is_dir {
        there(mkdirat(&parent, name, Mode::from_bits_truncate(0o755)))?;
    } else {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        there(openat(&parent, name, flags, Mode::S_IRUSR | Mode::S_IWUSR))?;
    }
    open(Some(&parent), name, kind)
}

/// Commands that begin at once share a home and a temp directory: what another one made meanwhile is as good. Whether it
/// is what was wanted shows when it is opened.
fn there<T>(made: Result<T, Errno>) -> Result<(), Errno> {
    match made {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A directory, made with those above it.
fn directory(root: &OwnedFd, inside: &Path) -> Result<OwnedFd, Errno> {
    let mut at = root.try_clone().map_err(|_| Errno::EMFILE)?;
    for part in inside.components() {
        let Component::Normal(name) = part else { continue };
        let name = Path::new(name);
        at = match open(Some(&at), name, OFlag::O_DIRECTORY) {
            Err(Errno::ENOENT) => {
                there(mkdirat(&at, name, Mode::from_bits_truncate(0o755)))?;
                open(Some(&at), name, OFlag::O_DIRECTORY)?
            }
            opened => opened?,
        };
    }
    Ok(at)
}

/// What is there already stays.
fn make_link(root: &OwnedFd, link: &Path, text: &Path) -> Result<(), MountError> {
    let make = || {
        let inside = link.strip_prefix("/").unwrap_or(link);
        let parent = directory(root, inside.parent().unwrap_or(Path::new("")))?;
        match symlinkat(text, &parent, Path::new(inside.file_name().ok_or(Errno::EINVAL)?)) {
            // In a place that is shown as it is, the link is shown with it.
            Ok(()) | Err(Errno::EEXIST | Errno::EROFS | Errno::EACCES) => Ok(()),
            Err(error) => Err(error),
        }
    };
    make().map_err(failed("link", link))
}

/// Lets nothing be written in the file system that stands at `path`.
fn close(path: &Path) -> Result<(), MountError> {
    let at = open(None, path, OFlag::O_DIRECTORY).map_err(failed("open", path))?;
    raw::set_mount_attributes(&at, MOUNT_ATTR_RDONLY, false).map_err(failed("close", path))
}

fn file_system(kind: &str, target: &Path, flags: MsFlags, data: Option<&str>) -> Result<(), MountError> {
    mount(Some(kind), target, Some(kind), flags | MsFlags::MS_NOSUID, data).map_err(failed("mount", target))
}
