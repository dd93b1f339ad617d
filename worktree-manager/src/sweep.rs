//! Removing a directory that commands filled. They may nest directories as deep as the disk lets them, so
//! neither the stack nor the number of open descriptors may grow with the depth: the way back up is `..`, and
//! what that leads to is compared with what was left.

use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use nix::errno::Errno;

use crate::beneath::{Directory, Id};

/// Names that are read at once; a directory may hold millions.
const BATCH: usize = 1024;

/// Removes a directory and all that is in it, without following a link; of a link or a file only itself. Absent
/// is fine. What its owner may not read or write is opened up first: caches of modules are read-only directories.
///
/// # Errors
/// What the system said to the first thing that could not be removed; what is below it stays, as does what was
/// not looked at yet.
pub fn remove_all(path: &Path) -> Result<()> {
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !meta.is_dir() {
        return std::fs::remove_file(path);
    }
    if let Some(top) = Directory::open_up(None, path)? {
        empty(top)?;
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A directory on the way down.
struct Level {
    /// In the one above; nothing reads that of the top.
    name: OsString,
    id: Id,
    waiting: Vec<OsString>,
}

fn empty(top: Directory) -> Result<()> {
    let mut here = top;
    let mut way = vec![Level { name: OsString::new(), id: here.id()?, waiting: Vec::new() }];
    while let Some(level) = way.last_mut() {
        if let Some(name) = level.waiting.pop() {
            if let Some(sub) = remove_or_open(&here, &name)? {
                way.push(Level { name, id: sub.id()?, waiting: Vec::new() });
                here = sub;
            }
            continue;
        }
        level.waiting = here.some_names(BATCH)?;
        if !level.waiting.is_empty() {
            continue;
        }
        let emptied = way.pop();
        if let (Some(emptied), Some(above)) = (emptied, way.last()) {
            here = above_of(&here, above.id)?;
            here.rmdir(&emptied.name)?;
        }
    }
    Ok(())
}

/// Removes what has this name; a directory with something in it is opened instead.
fn remove_or_open(here: &Directory, name: &OsString) -> Result<Option<Directory>> {
    let errno = match here.unlink(name) {
        Err(error) => error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw),
        Ok(()) => return Ok(None),
    };
    match errno {
        Errno::ENOENT => return Ok(None),
        // Linux says the first of a directory, POSIX the second.
        Errno::EISDIR | Errno::EPERM => {}
        other => return Err(other.into()),
    }
    match here.rmdir(name) {
        Ok(()) => Ok(None),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Ok(None),
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                Directory::open_up(Some(here), name.as_ref())
            }
            _ => Err(error),
        },
    }
}

fn above_of(here: &Directory, id: Id) -> Result<Directory> {
    match here.sub("..")? {
        Some(above) if above.id()? == id => Ok(above),
        _ => Err(Error::other("a directory was moved while its content was being removed")),
    }
}

/// Bytes of the files below, links not followed. What lies deeper than a path can say is left out.
pub(crate) fn size(path: &Path) -> u64 {
    let mut bytes = 0;
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {
                let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                open.extend(entries.map(|entry| entry.path()));
            }
            Ok(meta) => bytes += meta.len(),
            Err(_) => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    /// Made as a command makes it: no path is long enough to say where it ends.
    fn nest(top: &Path, depth: usize) {
        let mut here = Directory::open(top).unwrap().unwrap();
        for _ in 0..depth {
            mkdirat(&here, "d", Mode::S_IRWXU).unwrap();
            here = here.sub("d").unwrap().unwrap();
        }
    }

    #[test]
    fn no_depth_takes_the_stack_or_the_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir(&top).unwrap();
        nest(&top, 20_000);
        // Far less than a thread of the server has.
        let small = std::thread::Builder::new().stack_size(128 * 1024);
        small.spawn(move || remove_all(&top).map(|()| top)).unwrap().join().unwrap().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn everything_goes_and_nothing_that_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("kept")).unwrap();
        std::fs::write(path("kept/file"), "x").unwrap();
        std::fs::create_dir_all(path("top/a/b")).unwrap();
        std::fs::create_dir_all(path("top/closed/inner")).unwrap();
        for n in 0..2 * BATCH + 7 {
            std::fs::write(path(&format!("top/a/{n}")), "").unwrap();
        }
        std::fs::write(path("top/a/b/file"), "x").unwrap();
        std::fs::write(path("top/closed/inner/file"), "x").unwrap();
        symlink(path("kept"), path("top/a/link")).unwrap();
        symlink("nowhere", path("top/dangling")).unwrap();
        nix::unistd::mkfifo(&path("top/pipe"), Mode::S_IRWXU).unwrap();
        for closed in ["top/closed/inner", "top/closed", "top"] {
            std::fs::set_permissions(path(closed), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_all(&path("top")).unwrap();
        assert!(!path("top").exists());
        assert!(path("kept/file").exists());
        // Of a link only the link; what is not there is fine.
        symlink(path("kept"), path("link")).unwrap();
        remove_all(&path("link")).unwrap();
        remove_all(&path("link")).unwrap();
        assert!(path("kept/file").exists() && path("link").symlink_metadata().is_err());
    }

    #[test]
    fn a_size_counts_files_and_no_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "12345").unwrap();
        std::fs::write(dir.path().join("file"), "123").unwrap();
        symlink(dir.path().join("file"), dir.path().join("a/link")).unwrap();
        let link = dir.path().join("a/link").symlink_metadata().unwrap().len();
        assert_eq!(size(dir.path()), 8 + link);
        assert_eq!(size(&dir.path().join("none")), 0);
    }
}
