//! Reading with a bound, and changing a file that others change too.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// `None` when there is no such file. Links are followed.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    let n = file.take(most + 1).read_to_string(&mut text)?;
    if n as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {most} bytes")));
    }
    Ok(Some(text))
}

/// Reads, changes and replaces a file under a lock that lies beside it. Readers see the old content or
/// the new one, whole. `change` gets the old text and returns the new one, or nothing to keep the old.
pub(crate) fn locked_update<E: From<io::Error>>(
    path: &Path,
    mode: u32,
    change: impl FnOnce(Option<String>) -> Result<Option<String>, E>,
) -> Result<(), E> {
    // Through a link, so that a linked settings file stays linked.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock_path(&path))?;
    lock.lock()?;
    let old = read_bounded(&path, MAX_BYTES)?;
    if let Some(new) = change(old)? {
        replace(&path, mode, new.as_bytes())?;
    }
    // Dropping the handle releases the lock. The lock file stays: removing it would let two in.
    drop(lock);
    Ok(())
}

/// The reference's limit for a settings file.
pub(crate) const MAX_BYTES: u64 = 2 * 1024 * 1024;

fn lock_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".lock");
    path.with_file_name(name)
}

/// Replaces a file: readers see the old content or the new one, whole, also after a crash.
///
/// # Errors
/// What the system says.
pub fn replace(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file =
        tempfile::Builder::new().prefix(".swarm-").permissions(permissions(mode)).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

fn permissions(mode: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}
