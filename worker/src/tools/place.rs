//! A file by its directory, which is held open: a directory that is swapped for a link between the check of a
//! path and its use leads nowhere else.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    sys::stat::{Mode, mkdirat},
};

/// A directory that is held open.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// By its real path: an error where a link stands in it.
    pub(super) fn open(real: &Path) -> io::Result<Self> {
        open_directory(real, false).map(Self)
    }

    /// Opens a file in it by name, never waiting for anything and following no link.
    pub(super) fn open_for_reading(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
        Ok(File::from(openat(&self.0, name, flags, Mode::empty())?))
    }
}

/// Where a file is, or will be.
#[derive(Debug)]
pub(super) struct Place {
    directory: Directory,
    name: OsString,
}

impl Place {
    /// The place of a real path: an error where a link stands in it.
    pub(super) fn of(real: &Path) -> io::Result<Self> {
        Self::open(real, false)
    }

    /// The same; directories that are missing are made.
    pub(super) fn made(real: &Path) -> io::Result<Self> {
        Self::open(real, true)
    }

    fn open(real: &Path, makes: bool) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        };
        Ok(Self { directory: Directory(open_directory(parent, makes)?), name: name.to_owned() })
    }

    /// Opens the file, as [`Directory::open_for_reading`] does.
    pub(super) fn open_for_reading(&self) -> io::Result<File> {
        self.directory.open_for_reading(&self.name)
    }

    /// A path of the directory, good while this lives.
    pub(super) fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.0.as_raw_fd()))
    }

    /// A path of the file, good while this lives. Its last part may be a link.
    pub(super) fn path(&self) -> PathBuf {
        self.directory().join(&self.name)
    }
}

/// Step by step, because only so no step follows a link on every kernel.
fn open_directory(path: &Path, makes: bool) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut directory = open("/", flags, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
        };
        let mut next = openat(&directory, name, flags, Mode::empty());
        if makes && matches!(next, Err(Errno::ENOENT)) {
            match mkdirat(&directory, name, Mode::from_bits_truncate(0o777)) {
                // Somebody was faster; what stands there is looked at like any other.
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            next = openat(&directory, name, flags, Mode::empty());
        }
        directory = next?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_link_is_followed_and_a_swapped_directory_stays_the_one_that_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(root.join("outside")).unwrap();
        symlink("a", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        for path in ["link/b/f", "link/f", "dangling/f", "a/../a/f"] {
            assert!(Place::of(&root.join(path)).is_err() && Place::made(&root.join(path)).is_err(), "{path}");
        }
        assert!(!root.join("nowhere").exists());
        assert_eq!(Place::of(&root.join("new/f")).unwrap_err().kind(), io::ErrorKind::NotFound);
        Place::made(&root.join("new/er/f")).unwrap();
        assert!(root.join("new/er").is_dir());
        assert!(Place::of(Path::new("/")).is_err());

        let place = Place::of(&root.join("a/b/f")).unwrap();
        fs::rename(root.join("a/b"), root.join("moved")).unwrap();
        symlink(root.join("outside"), root.join("a/b")).unwrap();
        fs::write(place.path(), "x").unwrap();
        assert!(root.join("moved/f").exists() && !root.join("outside/f").exists());
    }
}
