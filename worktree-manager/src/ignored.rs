//! Whether git ignores a path: asked before something of a person's own is written into a checkout.

use std::path::Path;

use crate::repository::ReadError;

/// Whether git ignores `path`, relative to the root of the checkout that `inside` lies in, and does not track it all the
/// same: what a repository brings along is nobody's own, whatever its ignore files say. Reads index and ignore files;
/// runs no git.
///
/// # Errors
/// [`ReadError`] when there is no repository or libgit2 fails.
pub fn is_ignored(inside: &Path, path: &Path) -> Result<bool, ReadError> {
    let read = || {
        let repository = git2::Repository::discover(inside)?;
        let is_tracked = path.ancestors().take_while(|path| !path.as_os_str().is_empty()).any(|path| {
            // Any stage counts, and so does a link or a submodule above it.
            repository.index().is_ok_and(|index| (0..4).any(|stage| index.get_path(path, stage).is_some()))
        });
        Ok::<_, git2::Error>(!is_tracked && repository.is_path_ignored(path)?)
    };
    read().map_err(|source| ReadError::Libgit { what: "ignore rules", path: inside.to_owned(), source })
}
