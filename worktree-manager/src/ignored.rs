//! Whether git ignores a path: asked before something of a person's own is written into a checkout.

use std::path::Path;

use crate::repository::ReadError;

/// Whether git ignores `path`, relative to the root of the checkout that `inside` lies in. Reads ignore
/// files only; runs no git.
///
/// # Errors
/// [`ReadError`] when there is no repository or libgit2 fails.
pub fn is_ignored(inside: &Path, path: &Path) -> Result<bool, ReadError> {
    let read = || {
        let repository = git2::Repository::discover(inside)?;
        repository.is_path_ignored(path)
    };
    read().map_err(|source| ReadError::Libgit { what: "ignore rules", path: inside.to_owned(), source })
}
