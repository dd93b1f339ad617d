//! Files on the disk: opened without waiting for anything, written so that mode and links survive.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tokio_util::sync::CancellationToken;

use super::place::{Directory, Place};

/// Read and Edit take files up to this size whole.
pub(super) const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Why a file is not opened, or not taken as text.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Nothing is there.
    Missing,
    /// A directory.
    Directory,
    /// A pipe, socket or device: reading could wait for ever.
    Special(&'static str),
    /// Too large to be taken whole.
    TooLarge(u64),
    /// Another failure.
    Io(io::Error),
}

impl Unreadable {
    /// For the model.
    pub(super) fn sentence(&self, path: &str) -> String {
        match self {
            Self::Missing => format!("{path} does not exist."),
            Self::Directory => format!("{path} is a directory. List it with Glob, or with `ls` in Bash."),
            Self::Special(what) => format!("{path} is {what}, not a file; it was not opened."),
            Self::TooLarge(bytes) => {
                format!("{path} has {bytes} bytes, too many to take whole. Work on it with Bash.")
            }
            Self::Io(error) => format!("{path} cannot be read: {error}."),
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            _ => Self::Io(error),
        }
    }
}

/// What is neither file nor directory, in words.
fn special(metadata: &fs::Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_fifo() {
        Some("a named pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else if kind.is_char_device() || kind.is_block_device() {
        Some("a device")
    } else {
        None
    }
}

/// Opens a regular file for reading, never waiting for anything. `real` must be the real path: a link in it
/// was put there since and is not followed.
pub(super) fn open(real: &Path) -> Result<(File, fs::Metadata), Unreadable> {
    let check = |metadata: &fs::Metadata| match special(metadata) {
        Some(what) => Err(Unreadable::Special(what)),
        None if metadata.is_dir() => Err(Unreadable::Directory),
        None => Ok(()),
    };
    let place = match Place::of(real) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(Unreadable::Directory),
        place => place?,
    };
    // Before opening: the mere opening of some devices does things.
    let metadata = fs::symlink_metadata(place.path())?;
    if metadata.is_symlink() {
        // Where it leads there is nothing, or it is new.
        return match fs::exists(real) {
            Ok(false) => Err(Unreadable::Missing),
            _ => Err(Unreadable::Io(io::Error::other("a link was put there"))),
        };
    }
    check(&metadata)?;
    if is_kernels(real) {
        return Err(Unreadable::Special("a file of the kernel"));
    }
    let file = place.open_for_reading()?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata))
}

/// Whether a path is of the kernel's own file systems, where reading does things and may never end.
pub(super) fn is_kernels(real: &Path) -> bool {
    ["/proc", "/sys", "/dev"].iter().any(|place| real.starts_with(place))
}

/// Opens the files of a walk, which come directory by directory: each directory is opened once, without following a
/// link, and its files by their names in it.
#[derive(Debug, Default)]
pub(super) struct Opener(Option<(PathBuf, Directory)>);

impl Opener {
    /// None for what is not there any more, or is no regular file any more.
    pub(super) fn open(&mut self, real: &Path) -> Option<File> {
        let (parent, name) = (real.parent()?, real.file_name()?);
        let known = self.0.take().filter(|(path, _)| path == parent);
        let (path, directory) = match known {
            Some(known) => known,
            None => (parent.to_owned(), Directory::open(parent).ok()?),
        };
        let file = directory.open_for_reading(name).ok();
        self.0 = Some((path, directory));
        file.filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))
    }
}

/// The whole content of a regular file of at most [`MAX_FILE_BYTES`].
pub(super) fn read_whole(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let (file, metadata) = open(path)?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(Unreadable::TooLarge(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Unreadable::TooLarge(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Where a path really leads; for a file that does not exist yet, through its nearest existing directory.
pub(super) fn real_path(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real_path(parent).join(name),
        _ => path.to_owned(),
    }
}

/// What a write relies on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Basis<'a> {
    /// What the file held when the change was made up; none: it was not there.
    pub(super) former: Option<&'a [u8]>,
    /// Of the call: nothing is changed once it is cancelled.
    pub(super) cancel: &'a CancellationToken,
}

impl Basis<'_> {
    /// Looks once more, right before the change: who writes meanwhile, such as a formatter, is not overwritten.
    fn holds(&self, place: &Place) -> io::Result<()> {
        let now = match place.open_for_reading() {
            Ok(file) => {
                let mut now = Vec::new();
                file.take(MAX_FILE_BYTES + 1).read_to_end(&mut now)?;
                Some(now)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if now.as_deref() != self.former {
            return Err(io::Error::other("it was changed on disk meanwhile; read it again"));
        }
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("the call was cancelled"));
        }
        Ok(())
    }
}

/// Writes a file whole, with the directories it needs. One with a single link is replaced in one step, its
/// mode kept; one with several is written in place, so that its other names keep following it (E14). `real`
/// must be the real path: a link in it was put there since and is not followed. What fails leaves the file as it was.
pub(super) fn write_whole(real: &Path, bytes: &[u8], basis: Basis<'_>) -> io::Result<()> {
    let place = Place::made(real)?;
    let path = place.path();
    let former = match fs::symlink_metadata(&path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(metadata) = &former {
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o222 == 0 {
            let why =
                format!("it is read-only (mode {mode:04o}); chmod it first if it is meant to be changed");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    if former.as_ref().is_some_and(|metadata| metadata.nlink() > 1) {
        return write_in_place(&place, bytes, basis);
    }
    let temporary = tempfile::Builder::new().prefix(".swarm-write-").tempfile_in(place.directory());
    let Ok(mut temporary) = temporary else {
        return write_in_place(&place, bytes, basis);
    };
    temporary.write_all(bytes)?;
    let mode = former.as_ref().map_or_else(new_file_mode, |metadata| metadata.mode() & 0o7777);
    temporary.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    let ours = temporary.as_file().metadata()?;
    if former.as_ref().is_some_and(|former| former.uid() != ours.uid() || former.gid() != ours.gid()) {
        return write_in_place(&place, bytes, basis);
    }
    basis.holds(&place)?;
    let persisted = match &former {
        Some(_) => temporary.persist(&path),
        None => temporary.persist_noclobber(&path),
    };
    persisted.map(drop).map_err(|error| error.error)
}

fn write_in_place(place: &Place, bytes: &[u8], basis: Basis<'_>) -> io::Result<()> {
    basis.holds(place)?;
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options.write(true).truncate(false).custom_flags(flags);
    let path = place.path();
    let Some(former) = basis.former else {
        let mut file = options.create_new(true).open(&path)?;
        return file.write_all(bytes).inspect_err(|_| {
            // A part of it is of no use.
            let _kept: io::Result<()> = fs::remove_file(&path);
        });
    };
    let mut file = options.open(&path)?;
    let written = make_room(&file, former.len(), bytes.len())
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.set_len(bytes.len() as u64));
    written.map_err(|error| {
        let put_back = file
            .rewind()
            .and_then(|()| file.write_all(former))
            .and_then(|()| file.set_len(former.len() as u64));
        match put_back {
            Ok(()) => error,
            Err(second) => io::Error::new(
                error.kind(),
                format!("{error}, and what it held could not be put back: {second}; it is damaged now"),
            ),
        }
    })
}

/// Takes the room that a longer content needs before anything is overwritten.
fn make_room(file: &File, former: usize, now: usize) -> io::Result<()> {
    use nix::{errno::Errno, fcntl::posix_fallocate};
    let (Ok(start), Ok(length)) = (i64::try_from(former), i64::try_from(now.saturating_sub(former))) else {
        return Err(io::ErrorKind::FileTooLarge.into());
    };
    match length {
        0 => Ok(()),
        _ => match posix_fallocate(file, start, length) {
            // A file system that knows no such thing says so when it is full.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        },
    }
}

/// 0666 less the umask, which can only be read by setting it: a file is made and asked instead.
fn new_file_mode() -> u32 {
    static MODE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *MODE.get_or_init(|| {
        let umask = fs::read_to_string("/proc/self/status").ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?.trim().to_owned();
            u32::from_str_radix(&line, 8).ok()
        });
        0o666 & !umask.unwrap_or(0o022)
    })
}
