//! Parsers of what git prints, on bytes and with NUL between entries. Pure: no process, no file.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::types::RepoPath;

/// How a path differs from HEAD and from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Known to git; staged, changed on disk, or both.
    Tracked { staged: bool, unstaged: bool },
    /// Left by a merge that stopped.
    Unmerged,
    /// Not known to git and not ignored.
    Untracked,
    /// A directory that is a git repository of its own and not a submodule.
    NestedRepository,
}

/// One line of a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusEntry {
    /// Where.
    pub path: RepoPath,
    /// What.
    pub kind: ChangeKind,
    /// The path is a submodule.
    pub submodule: bool,
}

/// A line that does not have the documented form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

fn entries(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == 0).filter(|e| !e.is_empty())
}

/// One path printed by git, with the line end git adds taken off.
pub(crate) fn one_path(mut bytes: Vec<u8>) -> PathBuf {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// `git status --porcelain=v2 -z --no-renames`.
pub(crate) fn status(bytes: &[u8]) -> Result<Vec<StatusEntry>, Malformed> {
    let mut found = Vec::new();
    for entry in entries(bytes) {
        let (mark, rest) = entry.split_at(entry.len().min(2));
        match mark {
            b"1 " => {
                let Tracked { xy, sub, path } = tracked(rest, 8)?;
                let differs = |at: usize| xy.get(at).is_some_and(|b| *b != b'.');
                found.push(StatusEntry {
                    path: RepoPath::from_bytes(path),
                    kind: ChangeKind::Tracked { staged: differs(0), unstaged: differs(1) },
                    submodule: sub.first() == Some(&b'S'),
                });
            }
            b"u " => {
                let Tracked { sub, path, .. } = tracked(rest, 10)?;
                found.push(StatusEntry {
                    path: RepoPath::from_bytes(path),
                    kind: ChangeKind::Unmerged,
                    submodule: sub.first() == Some(&b'S'),
                });
            }
            b"? " => {
                let nested = rest.last() == Some(&b'/');
                let path = if nested { &rest[..rest.len() - 1] } else { rest };
                found.push(StatusEntry {
                    path: RepoPath::from_bytes(path),
                    kind: if nested { ChangeKind::NestedRepository } else { ChangeKind::Untracked },
                    submodule: false,
                });
            }
            b"# " | b"! " => {}
            _ => return Err(Malformed("a status line has an unknown mark")),
        }
    }
    Ok(found)
}

struct Tracked<'a> {
    xy: &'a [u8],
    sub: &'a [u8],
    path: &'a [u8],
}

/// A status line of `fields` fields, of which the last is the path and may hold blanks.
fn tracked(line: &[u8], fields: usize) -> Result<Tracked<'_>, Malformed> {
    let mut parts = line.splitn(fields, |b| *b == b' ');
    let xy = parts.next().unwrap_or_default();
    let sub = parts.next().unwrap_or_default();
    let path = parts.nth(fields - 3).filter(|p| !p.is_empty());
    let path = path.ok_or(Malformed("a status line is too short"))?;
    Ok(Tracked { xy, sub, path })
}

/// One entry of `git worktree list --porcelain -z`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedWorktree {
    pub(crate) path: Vec<u8>,
    pub(crate) branch: Option<Vec<u8>>,
    pub(crate) bare: bool,
}

pub(crate) fn worktree_list(bytes: &[u8]) -> Vec<ListedWorktree> {
    let mut found: Vec<ListedWorktree> = Vec::new();
    for line in entries(bytes) {
        if let Some(path) = line.strip_prefix(b"worktree ") {
            found.push(ListedWorktree { path: path.to_vec(), ..ListedWorktree::default() });
        } else if let Some(current) = found.last_mut() {
            if let Some(branch) = line.strip_prefix(b"branch ") {
                current.branch = Some(branch.to_vec());
            } else if line == b"bare" {
                current.bare = true;
            }
        }
    }
    found
}

/// One value of `git config --list -z --show-scope`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigEntry {
    pub(crate) scope: String,
    pub(crate) key: Vec<u8>,
    /// `None` for `key` without `=`, which git reads as true.
    pub(crate) value: Option<Vec<u8>>,
}

pub(crate) fn config_list(bytes: &[u8]) -> Result<Vec<ConfigEntry>, Malformed> {
    let mut parts = bytes.split(|b| *b == 0);
    let mut found = Vec::new();
    while let Some(scope) = parts.next().filter(|s| !s.is_empty()) {
        let entry = parts.next().ok_or(Malformed("a configuration scope has no entry"))?;
        let mut split = entry.splitn(2, |b| *b == b'\n');
        found.push(ConfigEntry {
            scope: String::from_utf8_lossy(scope).into_owned(),
            key: split.next().unwrap_or_default().to_vec(),
            value: split.next().map(<[u8]>::to_vec),
        });
    }
    Ok(found)
}

/// Lines of one file in a diff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStat {
    /// The path after the change.
    pub path: RepoPath,
    /// The path before, when it was renamed.
    pub renamed_from: Option<RepoPath>,
    /// `None` for binary files.
    pub lines: Option<LineCounts>,
}

/// Lines added and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LineCounts {
    /// Lines added.
    pub insertions: u64,
    /// Lines removed.
    pub deletions: u64,
}

/// `git diff-tree --numstat -z`.
pub(crate) fn numstat(bytes: &[u8]) -> Result<Vec<FileStat>, Malformed> {
    let mut parts = bytes.split(|b| *b == 0);
    let mut found = Vec::new();
    while let Some(head) = parts.next().filter(|h| !h.is_empty()) {
        let mut fields = head.splitn(3, |b| *b == b'\t');
        let insertions = number(fields.next());
        let deletions = number(fields.next());
        let path = fields.next().ok_or(Malformed("a numstat line has no path"))?;
        let (path, renamed_from) = if path.is_empty() {
            let from = parts.next().ok_or(Malformed("a rename has no source"))?;
            let to = parts.next().ok_or(Malformed("a rename has no target"))?;
            (to, Some(RepoPath::from_bytes(from)))
        } else {
            (path, None)
        };
        found.push(FileStat {
            path: RepoPath::from_bytes(path),
            renamed_from,
            lines: insertions
                .zip(deletions)
                .map(|(insertions, deletions)| LineCounts { insertions, deletions }),
        });
    }
    Ok(found)
}

fn number(field: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

/// Paths with NUL between them.
pub(crate) fn paths(bytes: &[u8]) -> Vec<RepoPath> {
    entries(bytes).map(RepoPath::from_bytes).collect()
}

/// `git ls-files -s -z` and `git ls-tree -r -z`: mode, id, stage (0 for trees) and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeLine {
    pub(crate) mode: String,
    pub(crate) id: String,
    pub(crate) stage: u8,
    pub(crate) path: RepoPath,
}

pub(crate) fn index_lines(bytes: &[u8]) -> Result<Vec<TreeLine>, Malformed> {
    entries(bytes)
        .map(|line| {
            let at = line.iter().position(|b| *b == b'\t');
            let (head, path) = line.split_at(at.ok_or(Malformed("an index line has no path"))?);
            let head = String::from_utf8_lossy(head);
            let mut fields = head.split(' ');
            let mode = fields.next().unwrap_or_default().to_owned();
            let id = fields.next().unwrap_or_default().to_owned();
            let stage = fields.next().and_then(|s| s.parse().ok());
            Ok(TreeLine {
                mode,
                id,
                stage: stage.ok_or(Malformed("an index line has no stage"))?,
                path: RepoPath::from_bytes(&path[1..]),
            })
        })
        .collect()
}

/// The answer of `git merge-tree --write-tree -z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrialTree {
    pub(crate) tree: String,
    /// Each once, in git's order.
    pub(crate) conflicts: Vec<RepoPath>,
    /// git's kinds, such as `CONFLICT (contents)`, by path.
    pub(crate) kinds: Vec<(RepoPath, String)>,
}

pub(crate) fn merge_tree(bytes: &[u8], clean: bool) -> Result<TrialTree, Malformed> {
    let mut parts = bytes.split(|b| *b == 0);
    let tree = parts.next().unwrap_or_default();
    let tree = std::str::from_utf8(tree)
        .ok()
        .map(|t| t.trim_end().to_owned())
        .filter(|t| t.len() >= 40)
        .ok_or(Malformed("the merged tree has no id"))?;
    let mut trial = TrialTree { tree, conflicts: Vec::new(), kinds: Vec::new() };
    if clean {
        return Ok(trial);
    }
    for line in parts.by_ref().take_while(|line| !line.is_empty()) {
        let at = line.iter().position(|b| *b == b'\t');
        let path = RepoPath::from_bytes(&line[at.ok_or(Malformed("a conflict has no path"))? + 1..]);
        if trial.conflicts.last() != Some(&path) {
            trial.conflicts.push(path);
        }
    }
    // Messages: count, that many paths, the kind, the text.
    while let Some(count) = parts.next().filter(|c| !c.is_empty()) {
        let count = number(Some(count)).ok_or(Malformed("a merge message has no count"))?;
        let mut named = Vec::new();
        for _ in 0..count {
            named.extend(parts.next().map(RepoPath::from_bytes));
        }
        let kind = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let _text = parts.next();
        if kind.starts_with("CONFLICT") {
            trial.kinds.extend(named.into_iter().map(|path| (path, kind.clone())));
        }
    }
    Ok(trial)
}

/// Lines of a file, counted from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LineRange {
    /// First line.
    pub first: usize,
    /// Last line.
    pub last: usize,
}

/// Where the other side's text stands between conflict markers of a merged file: lines counted from 1, the end
/// not included; empty where that side has nothing.
pub(crate) fn conflict_sections(content: &[u8]) -> Vec<Range<usize>> {
    let mut open = false;
    let mut theirs = None;
    let mut sections = Vec::new();
    for (index, line) in content.split(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"<<<<<<< ") {
            open = true;
            theirs = None;
        } else if open && line == b"=======" {
            theirs = Some(index + 2);
        } else if line.starts_with(b">>>>>>> ") {
            open = false;
            sections.extend(theirs.take().map(|first| first..index + 1));
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RepoPath {
        RepoPath::from_bytes(text.as_bytes())
    }

    #[test]
    fn status_lines() {
        let check = |line: &[u8], expected: Result<Option<(&[u8], ChangeKind)>, ()>| {
            let got = status(line).map_err(|_| ());
            let got = got.map(|entries| entries.first().map(|e| (e.path.as_bytes().to_vec(), e.kind)));
            assert_eq!(got, expected.map(|e| e.map(|(p, k)| (p.to_vec(), k))));
        };
        let tracked = |staged, unstaged| ChangeKind::Tracked { staged, unstaged };
        check(
            b"1 .M N... 100644 100644 100644 aaaa bbbb a b\nc\0",
            Ok(Some((b"a b\nc", tracked(false, true)))),
        );
        check(b"1 A. N... 000000 100644 100644 0000 bbbb \xff\0", Ok(Some((b"\xff", tracked(true, false)))));
        check(b"u UU N... 100644 100644 100644 100644 a b c x y\0", Ok(Some((b"x y", ChangeKind::Unmerged))));
        check(b"? new\0", Ok(Some((b"new", ChangeKind::Untracked))));
        check(b"? sub/\0", Ok(Some((b"sub", ChangeKind::NestedRepository))));
        check(b"", Ok(None));
        check(b"1 .M N...\0", Err(()));
        check(b"z what\0", Err(()));
    }

    #[test]
    fn numstat_lines() {
        let stats = numstat(b"1\t2\ta b\0-\t-\tpic\x000\t0\t\0old\0new\0").unwrap();
        assert_eq!(stats.len(), 3);
        assert_eq!(stats[0].lines, Some(LineCounts { insertions: 1, deletions: 2 }));
        assert_eq!(stats[1].lines, None);
        assert_eq!(stats[2].renamed_from, Some(path("old")));
        assert_eq!(stats[2].path, path("new"));
        assert!(numstat(b"1\0").is_err());
    }

    #[test]
    fn worktrees_and_configuration() {
        let listed =
            worktree_list(b"worktree /r\n x\0HEAD aa\0branch refs/heads/main\0\0worktree /b\0bare\0\0");
        assert_eq!(listed[0].path, b"/r\n x");
        assert_eq!(listed[0].branch.as_deref(), Some(&b"refs/heads/main"[..]));
        assert!(listed[1].bare);
        let config = config_list(b"local\0user.name\nA\nB\0global\0core.bare\0").unwrap();
        assert_eq!(config[0].value.as_deref(), Some(&b"A\nB"[..]));
        assert_eq!(config[1].value, None);
        assert!(config_list(b"local\0").is_ok_and(|c| c[0].key.is_empty()));
    }

    #[test]
    fn trial_trees() {
        let id = "a".repeat(40);
        let text = format!(
            "{id}\x00100644 {id} 1\tf\x00100644 {id} 2\tf\x00100644 {id} 3\tf\0\x001\0f\0CONFLICT (contents)\0text\n\0"
        );
        let trial = merge_tree(text.as_bytes(), false).unwrap();
        assert_eq!(trial.conflicts, [path("f")]);
        assert_eq!(trial.kinds, [(path("f"), "CONFLICT (contents)".to_owned())]);
        assert!(merge_tree(format!("{id}\0").as_bytes(), true).is_ok());
        assert!(merge_tree(b"no\0", true).is_err());
    }

    #[test]
    fn markers() {
        let check =
            |content: &[u8], expected: &[Range<usize>]| assert_eq!(conflict_sections(content), expected);
        let section = 5..6;
        check(b"a\n<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\nd\n", std::slice::from_ref(&section));
        let gap = 4..4;
        check(b"<<<<<<< ours\nb\n=======\n>>>>>>> theirs\n", std::slice::from_ref(&gap));
        check(b">>>>>>> x\n=======\n<<<<<<< y\n", &[]);
    }
}
