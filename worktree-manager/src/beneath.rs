//! Files of a directory that commands may write to, reached by descriptors only.
//!
//! A path names whatever lies there at the moment of the call, and a command may put a link in the
//! place of any directory between two calls. So every level is opened from the one above it, and
//! never through a link: a [`Directory`] is the directory that was found, whatever its name leads to
//! later. Moved elsewhere, it is still one that the command could write to. Names handed to these
//! functions are single components.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_CLOEXEC);
/// A directory that may not be read, to change its mode.
const PLACE: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// What an owner needs to empty a directory.
const OWNERS: u32 = 0o700;
/// Without waiting for the other end of a pipe.
const FILE: OFlag = OFlag::O_RDONLY.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

/// Which directory one is, wherever it lies: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64, u64);

impl Directory {
    /// A directory in a place that commands cannot write to; nothing when it is missing.
    pub(crate) fn open(path: &Path) -> std::io::Result<Option<Self>> {
        found(open(path, DIRECTORY, Mode::empty()))
    }

    /// The directory `name` in this one; nothing when it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotADirectory`] for anything else of that name, links to directories included.
    pub(crate) fn sub(&self, name: impl AsRef<OsStr>) -> std::io::Result<Option<Self>> {
        found(openat(&self.0, name.as_ref(), DIRECTORY, Mode::empty()))
    }

    /// The directory of this name in the one above, or at this path in a place that commands cannot write to, with
    /// all that its owner may do to it; nothing when it is missing.
    pub(crate) fn open_up(above: Option<&Self>, name: &Path) -> std::io::Result<Option<Self>> {
        let open_with = |flags: OFlag| match above {
            Some(above) => openat(&above.0, name, flags, Mode::empty()),
            None => open(name, flags, Mode::empty()),
        };
        let opened = match open_with(DIRECTORY) {
            Err(Errno::EACCES) => {
                // Its mode may be changed without the right to read it; by the descriptor, since names may be exchanged.
                let Some(place) = found(open_with(PLACE))? else { return Ok(None) };
                let by_descriptor = format!("/proc/self/fd/{}", place.0.as_raw_fd());
                std::fs::set_permissions(by_descriptor, Permissions::from_mode(OWNERS))?;
                open_with(DIRECTORY)
            }
            opened => opened,
        };
        let Some(opened) = found(opened)? else { return Ok(None) };
        let mode = fstat(&opened.0)?.st_mode;
        if mode & OWNERS != OWNERS {
            fchmod(&opened.0, Mode::from_bits_truncate(OWNERS))?;
        }
        Ok(Some(opened))
    }

    /// Which one it is.
    pub(crate) fn id(&self) -> std::io::Result<Id> {
        let stat = fstat(&self.0)?;
        Ok(Id(stat.st_dev, stat.st_ino))
    }

    /// Names of all that is in it, whatever it is.
    pub(crate) fn names(&self) -> std::io::Result<Vec<OsString>> {
        self.some_names(usize::MAX)
    }

    /// [`Directory::names`], at most so many.
    pub(crate) fn some_names(&self, limit: usize) -> std::io::Result<Vec<OsString>> {
        // A descriptor of its own, since reading moves a position that copies share.
        let mut dir = Dir::from_fd(openat(&self.0, ".", DIRECTORY, Mode::empty())?)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
            if names.len() >= limit {
                break;
            }
        }
        Ok(names)
    }

    /// Opens a plain file and nothing else: no link, no pipe.
    pub(crate) fn file(&self, name: impl AsRef<OsStr>) -> std::io::Result<Option<File>> {
        plain(openat(&self.0, name.as_ref(), FILE, Mode::empty()))
    }

    /// Removes a name that is no directory's; a link itself, not what it leads to.
    pub(crate) fn unlink(&self, name: impl AsRef<OsStr>) -> std::io::Result<()> {
        Ok(unlinkat(&self.0, name.as_ref(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, name: impl AsRef<OsStr>) -> std::io::Result<()> {
        Ok(unlinkat(&self.0, name.as_ref(), UnlinkatFlags::RemoveDir)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn found(opened: nix::Result<OwnedFd>) -> std::io::Result<Option<Directory>> {
    match opened {
        Ok(fd) => Ok(Some(Directory(fd))),
        Err(Errno::ENOENT) => Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            Err(Error::new(ErrorKind::NotADirectory, "something else is in the place of a directory"))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn plain(opened: nix::Result<OwnedFd>) -> std::io::Result<Option<File>> {
    match opened {
        Ok(fd) => {
            let file = File::from(fd);
            Ok(file.metadata()?.is_file().then_some(file))
        }
        // A link, or a socket.
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// [`Directory::file`] for a file whose directory commands cannot exchange.
pub(crate) fn plain_file(path: &Path) -> std::io::Result<Option<File>> {
    plain(open(path, FILE, Mode::empty()))
}

/// Git's own small files are far below this.
const SMALL_BYTES: u64 = 1024 * 1024;

/// The content of one of git's small files, as far as it is a plain file that can be read.
pub(crate) fn small_file(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    plain_file(path).ok()??.take(SMALL_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// [`small_file`] as text; empty when there is none.
pub(crate) fn small_text(path: &Path) -> String {
    small_file(path).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_directories_and_plain_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("real")).unwrap();
        std::fs::write(path("real/file"), "x").unwrap();
        std::os::unix::fs::symlink(path("real"), path("link")).unwrap();
        std::os::unix::fs::symlink(path("real/file"), path("file-link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let top = Directory::open(dir.path()).unwrap().unwrap();
        assert!(top.sub("none").unwrap().is_none());
        for other in ["link", "file-link", "pipe", "socket"] {
            assert_eq!(top.sub(other).unwrap_err().kind(), ErrorKind::NotADirectory, "{other}");
            assert!(top.file(other).unwrap().is_none(), "{other}");
            assert!(small_file(&path(other)).is_none(), "{other}");
        }
        assert!(Directory::open(&path("link")).is_err());
        assert!(top.file("real").unwrap().is_none());
        drop(socket);

        // The directory that was found stays the one that is used.
        let real = top.sub("real").unwrap().unwrap();
        std::fs::create_dir(path("other")).unwrap();
        std::fs::write(path("other/file"), "y").unwrap();
        std::fs::rename(path("real"), path("away")).unwrap();
        std::os::unix::fs::symlink(path("other"), path("real")).unwrap();
        assert_eq!(real.names().unwrap(), ["file"]);
        assert_eq!(real.names().unwrap(), ["file"]);
        real.unlink("file").unwrap();
        assert!(path("other/file").exists() && !path("away/file").exists());
        top.unlink("file-link").unwrap();
        assert!(real.unlink("file").is_err());
    }
}
