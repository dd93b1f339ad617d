//! Text files as bytes that must survive: byte order mark, line ends, mode, links. Matching happens on a
//! view with plain `\n`; what is replaced is found again in the bytes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    ops::Range,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::place::Place;

const BOM: &[u8] = b"\xef\xbb\xbf";
/// Read and Edit take files up to this size whole.
pub const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;
/// Where a NUL is looked for.
pub const SNIFF_BYTES: usize = 8 * 1024;

/// Why a file is not opened, or not taken as text.
#[derive(Debug)]
pub enum Unreadable {
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
    pub fn sentence(&self, path: &str) -> String {
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
pub fn open(real: &Path) -> Result<(File, fs::Metadata), Unreadable> {
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
    if ["/proc", "/sys", "/dev"].iter().any(|place| real.starts_with(place)) {
        return Err(Unreadable::Special("a file of the kernel"));
    }
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC | nix::libc::O_NOCTTY | nix::libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(place.path())?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata))
}

/// The whole content of a regular file of at most [`MAX_FILE_BYTES`].
pub fn read_whole(path: &Path) -> Result<Vec<u8>, Unreadable> {
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

/// Whether the beginning holds a NUL.
pub fn looks_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(SNIFF_BYTES)].contains(&0)
}

/// A UTF-8 text as it is matched: without byte order mark, every line end a `\n`.
#[derive(Debug)]
pub struct TextView {
    text: String,
    bom_bytes: usize,
    /// Places in `text` of line ends that are `\r\n` in the bytes, ascending.
    crlf: Vec<usize>,
    n_lf: usize,
}

impl TextView {
    /// None when the bytes are not UTF-8.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let bom_bytes = if bytes.starts_with(BOM) { BOM.len() } else { 0 };
        let source = std::str::from_utf8(&bytes[bom_bytes..]).ok()?;
        let mut text = String::with_capacity(source.len());
        let mut crlf = Vec::new();
        let mut n_lf = 0;
        for line in source.split_inclusive('\n') {
            if let Some(start) = line.strip_suffix("\r\n") {
                text.push_str(start);
                crlf.push(text.len());
                text.push('\n');
            } else {
                n_lf += usize::from(line.ends_with('\n'));
                text.push_str(line);
            }
        }
        Some(Self { text, bom_bytes, crlf, n_lf })
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether most lines end in `\r\n`.
    pub fn is_crlf(&self) -> bool {
        self.crlf.len() > self.n_lf
    }

    /// Whether it began with a byte order mark.
    pub fn has_bom(&self) -> bool {
        self.bom_bytes > 0
    }

    /// Where a piece of the text lies in the bytes.
    pub fn in_bytes(&self, range: &Range<usize>) -> Range<usize> {
        let at =
            |place: usize| self.bom_bytes + place + self.crlf.partition_point(|line_end| *line_end < place);
        at(range.start)..at(range.end)
    }

    /// The line of a place, from 1.
    pub fn line_of(&self, place: usize) -> usize {
        self.text[..place].matches('\n').count() + 1
    }
}

/// `\r\n` to `\n`.
pub fn plain_line_ends(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// `\n` to `\r\n`.
pub fn crlf_line_ends(text: &str) -> String {
    plain_line_ends(text).replace('\n', "\r\n")
}

/// Where a path really leads; for a file that does not exist yet, through its nearest existing directory.
pub fn real_path(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real_path(parent).join(name),
        _ => path.to_owned(),
    }
}

/// Writes a file whole, with the directories it needs. One with a single link is replaced in one step, its
/// mode kept; one with several is written in place, so that its other names keep following it (E14). `real`
/// must be the real path: a link in it was put there since and is not followed.
pub fn write_whole(real: &Path, bytes: &[u8]) -> io::Result<()> {
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
        if metadata.nlink() > 1 {
            return write_in_place(&path, bytes);
        }
    }
    let temporary = tempfile::Builder::new().prefix(".swarm-write-").tempfile_in(place.directory());
    let Ok(mut temporary) = temporary else {
        return write_in_place(&path, bytes);
    };
    temporary.write_all(bytes)?;
    let mode = former.as_ref().map_or_else(new_file_mode, |metadata| metadata.mode() & 0o7777);
    temporary.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    let ours = temporary.as_file().metadata()?;
    if former.as_ref().is_some_and(|former| former.uid() != ours.uid() || former.gid() != ours.gid()) {
        return write_in_place(&path, bytes);
    }
    temporary.persist(&path).map(drop).map_err(|error| error.error)
}

fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
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

/// Lines that differ between two texts, as one region: what stood there and what stands there now.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// Lines before, from 1 (empty range: insertion).
    pub before: Range<usize>,
    /// Lines now.
    pub now: Range<usize>,
}

/// The smallest region of whole lines outside of which both texts are equal; none when they are equal.
pub fn changed_region(before: &str, now: &str) -> Option<Change> {
    if before == now {
        return None;
    }
    let old: Vec<&str> = before.split('\n').collect();
    let new: Vec<&str> = now.split('\n').collect();
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    Some(Change { before: start + 1..old.len() - end + 1, now: start + 1..new.len() - end + 1 })
}

/// The change as a short diff, at most `max_lines` of each side.
pub fn short_diff(before: &str, now: &str, max_lines: usize) -> String {
    let Some(change) = changed_region(before, now) else { return String::new() };
    let side = |text: &str, lines: &Range<usize>, sign: char| {
        let mut side = String::new();
        for line in text.split('\n').skip(lines.start - 1).take(lines.len().min(max_lines)) {
            let line: String = line.chars().take(200).collect();
            side.push_str(&format!("{sign}{line}\n"));
        }
        if lines.len() > max_lines {
            side.push_str(&format!("{sign}[{} more lines]\n", lines.len() - max_lines));
        }
        side
    };
    format!(
        "@@ line {} @@\n{}{}",
        change.now.start,
        side(before, &change.before, '-'),
        side(now, &change.now, '+')
    )
}

/// Lines added and removed from one text to another; moved lines count as kept.
pub fn line_counts(before: &str, now: &str) -> (u32, u32) {
    let old: Vec<&str> = before.lines().collect();
    let new: Vec<&str> = now.lines().collect();
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut counts = std::collections::HashMap::<&str, usize>::new();
    for line in old {
        *counts.entry(line).or_default() += 1;
    }
    let mut kept = 0;
    for line in new {
        if let Some(count) = counts.get_mut(line)
            && *count > 0
        {
            *count -= 1;
            kept += 1;
        }
    }
    let number = |lines: &[&str]| u32::try_from(lines.len() - kept).unwrap_or(u32::MAX);
    (number(new), number(old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again_in_the_bytes() {
        let bytes = b"\xef\xbb\xbfa\r\nb\nc\r\n";
        let view = TextView::new(bytes).unwrap();
        assert_eq!(view.text(), "a\nb\nc\n");
        assert!(view.has_bom() && view.is_crlf());
        let check = |range, expected: &[u8]| assert_eq!(&bytes[view.in_bytes(&range)], expected);
        check(0..1, b"a");
        check(0..2, b"a\r\n");
        check(1..3, b"\r\nb");
        check(2..4, b"b\n");
        check(4..6, b"c\r\n");
        assert_eq!(view.line_of(4), 3);
        assert!(TextView::new(b"\xff\xfe").is_none());
    }

    #[test]
    fn changes_are_counted_by_line() {
        let check =
            |before, now, expected| assert_eq!(line_counts(before, now), expected, "{before:?} {now:?}");
        check("a\nb\n", "a\nb\n", (0, 0));
        check("a\nb\n", "a\nx\n", (1, 1));
        check("a\n", "a\nb\nc\n", (2, 0));
        check("", "a\nb\n", (2, 0));
        check("a\nb\n", "", (0, 2));
        check("a\nb\nc\nd\n", "x\nb\nc\ny\n", (2, 2));
        check("a", "a\n", (0, 0));
    }
}
