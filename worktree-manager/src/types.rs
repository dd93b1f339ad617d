//! Words the whole crate shares: commit ids, paths inside a repository, agents. No git, no files.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A full object id, in lower-case hex.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommitId(String);

/// The text is no full object id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a full commit id (40 hex digits)")]
pub struct InvalidCommitId(String);

impl CommitId {
    /// Accepts exactly 40 hex digits.
    ///
    /// # Errors
    /// [`InvalidCommitId`] for anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidCommitId> {
        let text = text.trim();
        if text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(InvalidCommitId(text.chars().take(80).collect()))
        }
    }

    /// The 40 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first ten digits, for people.
    pub fn short(&self) -> &str {
        &self.0[..10]
    }

    pub(crate) fn oid(&self) -> git2::Oid {
        git2::Oid::from_str(&self.0).expect("a CommitId holds 40 hex digits")
    }
}

impl From<git2::Oid> for CommitId {
    fn from(oid: git2::Oid) -> Self {
        Self(oid.to_string())
    }
}

impl TryFrom<String> for CommitId {
    type Error = InvalidCommitId;
    fn try_from(text: String) -> Result<Self, InvalidCommitId> {
        Self::parse(&text)
    }
}

impl From<CommitId> for String {
    fn from(id: CommitId) -> Self {
        id.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitId({})", self.0)
    }
}

/// A path inside a repository as git stores it: bytes, `/` between the parts.
/// Printed with control characters and invalid UTF-8 escaped.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoPath(Vec<u8>);

impl RepoPath {
    /// Takes the bytes as git printed them.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The bytes as git knows them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For the file system.
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.0))
    }

    /// Whether one of the two names a directory the other lies in, or both are equal.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (short, long) =
            if self.0.len() <= other.0.len() { (&self.0, &other.0) } else { (&other.0, &self.0) };
        long.starts_with(short) && (long.len() == short.len() || long[short.len()] == b'/')
    }
}

impl From<&Path> for RepoPath {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl fmt::Debug for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepoPath({self})")
    }
}

impl Serialize for RepoPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes for a message: valid text stays, everything else is escaped, so that a file name can neither
/// forge a line of a log nor get lost.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for b in chunk.invalid() {
            text.push_str(&format!("\\x{b:02x}"));
        }
    }
    text
}

/// File paths joined for a message, at most ten by name.
pub(crate) fn list(paths: &[RepoPath]) -> String {
    let shown: Vec<Cow<'_, str>> = paths.iter().take(10).map(|p| Cow::Owned(p.to_string())).collect();
    let more = paths.len().saturating_sub(10);
    let mut text = shown.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Lines added and removed; binary files count as changed without lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiffStat {
    /// Files that differ.
    pub files: usize,
    /// Lines added.
    pub insertions: u64,
    /// Lines removed.
    pub deletions: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_bytes_are_printed_escaped() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(printable(bytes), expected);
        check("a b/ü漢".as_bytes(), "a b/ü漢");
        check(b"a\nb", "a\\nb");
        check(b"\xff.txt", "\\xff.txt");
    }

    #[test]
    fn paths_overlap_by_whole_parts() {
        let check = |a: &str, b: &str, expected: bool| {
            let (a, b) = (RepoPath::from_bytes(a.as_bytes()), RepoPath::from_bytes(b.as_bytes()));
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (expected, expected));
        };
        check("a/b", "a/b", true);
        check("a", "a/b", true);
        check("a/b", "a/bc", false);
    }

    #[test]
    fn a_commit_id_is_forty_hex_digits() {
        assert!(CommitId::parse("abc").is_err());
        assert!(CommitId::parse("-0000000000000000000000000000000000000000").is_err());
        let id = CommitId::parse("ABCDEF0123456789abcdef0123456789abcdef01").unwrap();
        assert_eq!(id.short(), "abcdef0123");
    }
}
