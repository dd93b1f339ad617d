//! `.worktreeinclude`: ignored files a new worktree gets a copy of, such as `.env`.
//!
//! Copied is what the list names *and* git ignores: what git knows comes from the checkout, and what
//! it neither knows nor ignores would be committed by accident.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::{Deserialize, Serialize};

use crate::git::GitError;
use crate::porcelain;
use crate::tree::Tree;
use crate::types::{RepoPath, printable};

/// The list's name, at the root of the checkout the task was submitted from.
pub const INCLUDE_FILE: &str = ".worktreeinclude";

/// What was copied; names only, never content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Included {
    /// Copied files and links.
    pub copied: Vec<RepoPath>,
    /// Named but left out.
    pub refused: Vec<IncludeRefusal>,
}

/// A file that matched and was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IncludeRefusal {
    /// Which.
    pub path: RepoPath,
    /// Why.
    pub why: IncludeRefused,
}

/// Why a matching file was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncludeRefused {
    /// A link that leads out of the checkout.
    LinkLeadsOut,
    /// The new tree has a file there.
    Exists,
    /// A pipe, socket or device.
    Special,
    /// It vanished or cannot be read.
    Unreadable,
}

/// Why the list could not be used at all.
#[derive(Debug, thiserror::Error)]
pub enum IncludeError {
    /// The list itself cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A pattern with `..`.
    #[error("{} line {line}: {pattern:?} leads out of the checkout; name files inside it", path.display())]
    LeadsOut { path: PathBuf, line: usize, pattern: String },
    /// A pattern that is no gitignore pattern.
    #[error("{} line {line} is no gitignore pattern", path.display())]
    Pattern {
        path: PathBuf,
        line: usize,
        #[source]
        source: ignore::Error,
    },
    /// The copy failed.
    #[error("cannot copy {} into the new worktree", path.display())]
    Copy {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// git could not list ignored files.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The copying thread ended early.
    #[error("copying included files was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Reads the list of `source`; `None` when there is none.
fn read_list(source: &Path) -> Result<Option<Gitignore>, IncludeError> {
    let path = source.join(INCLUDE_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(IncludeError::Read { path, source }),
    };
    parse_list(source, &path, &bytes).map(Some)
}

fn parse_list(root: &Path, path: &Path, bytes: &[u8]) -> Result<Gitignore, IncludeError> {
    let mut builder = GitignoreBuilder::new(root);
    for (index, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        if line.split('/').any(|part| part.trim_start_matches('!') == "..") {
            return Err(IncludeError::LeadsOut {
                path: path.to_owned(),
                line: index + 1,
                pattern: printable(line.as_bytes()),
            });
        }
        builder.add_line(None, line).map_err(|source| IncludeError::Pattern {
            path: path.to_owned(),
            line: index + 1,
            source,
        })?;
    }
    builder.build().map_err(|source| IncludeError::Pattern { path: path.to_owned(), line: 0, source })
}

/// Copies from the tree `source` to the directory `target`.
pub(crate) async fn copy_included(source: &Tree, target: &Path) -> Result<Included, IncludeError> {
    let Some(list) = read_list(&source.work_tree)? else {
        return Ok(Included::default());
    };
    let ignored = source.read(["ls-files", "--others", "--ignored", "--exclude-standard", "-z"]).ok().await?;
    let wanted: Vec<RepoPath> = porcelain::paths(&ignored)
        .into_iter()
        .filter(|p| list.matched_path_or_any_parents(p.to_path(), false).is_ignore())
        .collect();
    let (from, to) = (source.work_tree.clone(), target.to_owned());
    let copy = tokio::task::spawn_blocking(move || copy_all(&from, &to, wanted));
    copy.await.map_err(IncludeError::Interrupted)?
}

fn copy_all(from: &Path, to: &Path, wanted: Vec<RepoPath>) -> Result<Included, IncludeError> {
    let mut included = Included::default();
    for path in wanted {
        let relative = path.to_path();
        let why =
            copy_one(from, to, &relative).map_err(|source| IncludeError::Copy { path: relative, source })?;
        match why {
            None => included.copied.push(path),
            Some(why) => included.refused.push(IncludeRefusal { path, why }),
        }
    }
    Ok(included)
}

fn copy_one(from: &Path, to: &Path, relative: &Path) -> std::io::Result<Option<IncludeRefused>> {
    let inside = relative.components().all(|c| matches!(c, Component::Normal(_)));
    let source = from.join(relative);
    let target = to.join(relative);
    let Ok(meta) = source.symlink_metadata() else {
        return Ok(Some(IncludeRefused::Unreadable));
    };
    if !inside || !parent_is_inside(&target, to) {
        return Ok(Some(IncludeRefused::LinkLeadsOut));
    }
    if target.symlink_metadata().is_ok() {
        return Ok(Some(IncludeRefused::Exists));
    }
    if meta.is_symlink() {
        let link = std::fs::read_link(&source)?;
        if !link_stays_inside(relative, &link) {
            return Ok(Some(IncludeRefused::LinkLeadsOut));
        }
        make_parent(&target)?;
        symlink(link, &target)?;
        return Ok(None);
    }
    if !meta.is_file() {
        return Ok(Some(IncludeRefused::Special));
    }
    if std::fs::File::open(&source).is_err() {
        return Ok(Some(IncludeRefused::Unreadable));
    }
    make_parent(&target)?;
    reflink_copy::reflink_or_copy(&source, &target)?;
    let mode = meta.permissions().mode() & 0o7777;
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))?;
    Ok(None)
}

fn make_parent(target: &Path) -> std::io::Result<()> {
    target.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// The nearest existing directory above `target` lies inside `root`: a link in the new tree must not
/// lead the copy elsewhere.
fn parent_is_inside(target: &Path, root: &Path) -> bool {
    let Ok(root) = root.canonicalize() else {
        return false;
    };
    let existing = target.ancestors().skip(1).find(|dir| dir.symlink_metadata().is_ok());
    existing.and_then(|dir| dir.canonicalize().ok()).is_some_and(|dir| dir.starts_with(&root))
}

/// By the text alone: an absolute link or one with too many `..` leads out.
fn link_stays_inside(at: &Path, link: &Path) -> bool {
    let mut depth = at.components().count().saturating_sub(1);
    if link.as_os_str().as_bytes().starts_with(b"/") {
        return false;
    }
    for component in link.components() {
        match component {
            Component::ParentDir if depth == 0 => return false,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_gitignore_syntax_without_parents() {
        let check = |text: &str, ok: bool| {
            let parsed = parse_list(Path::new("/r"), Path::new("list"), text.as_bytes());
            assert_eq!(parsed.is_ok(), ok, "{text:?}: {parsed:?}");
        };
        check("# secrets\n.env\r\n!x\nconfig/*.pem\na..b\n", true);
        check("../.ssh/id\n", false);
        check("a/../../b\n", false);
        check("!../b\n", false);
    }

    #[test]
    fn links_are_judged_by_their_text() {
        let check = |at: &str, link: &str, inside: bool| {
            assert_eq!(link_stays_inside(Path::new(at), Path::new(link)), inside);
        };
        check("a/b", "../c", true);
        check("a/b", "../../c", false);
        check("a", "/etc/passwd", false);
        check("a", "b/../../x", false);
        check("a", "./b", true);
    }
}
