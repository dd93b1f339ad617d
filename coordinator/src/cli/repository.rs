//! Which repository a command is about. Only found, never read: git's own questions are the server's.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    error::{CliError, Result},
    shell::Shell,
    text,
};

/// A repository as the file system shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// The checkout around the directory.
    pub(crate) checkout: PathBuf,
    /// What its worktrees share: equal for two checkouts of one repository.
    common: PathBuf,
}

impl Repository {
    /// The repository around a directory.
    pub(crate) fn find(directory: &Path) -> Option<Self> {
        let directory = fs::canonicalize(directory).ok()?;
        directory.ancestors().find_map(|candidate| {
            let common = common_dir(candidate)?;
            Some(Self { checkout: candidate.to_owned(), common })
        })
    }

    /// Whether a checkout (of a session) belongs to this repository.
    pub(crate) fn owns(&self, checkout: &str) -> bool {
        let checkout = Path::new(checkout);
        checkout == self.checkout || Self::find(checkout).is_some_and(|other| other.common == self.common)
    }
}

/// The common git directory, if `checkout` is the top of a checkout.
fn common_dir(checkout: &Path) -> Option<PathBuf> {
    let dot_git = checkout.join(".git");
    let kind = fs::metadata(&dot_git).ok()?;
    let git_dir = if kind.is_dir() {
        dot_git
    } else {
        let bytes = fs::read(&dot_git).ok()?;
        checkout.join(OsStr::from_bytes(bytes.strip_prefix(b"gitdir:")?.trim_ascii()))
    };
    // A directory called .git that is no repository is passed over, as git does.
    if !git_dir.join("HEAD").exists() {
        return None;
    }
    let common = match fs::read(git_dir.join("commondir")) {
        Ok(bytes) => git_dir.join(OsStr::from_bytes(bytes.trim_ascii())),
        Err(_) => git_dir,
    };
    Some(fs::canonicalize(&common).unwrap_or(common))
}

/// The directory a command is about: `--repo`, else where it was called.
pub(crate) fn directory(shell: &Shell) -> PathBuf {
    match &shell.options.repo {
        Some(path) => shell.around.directory.join(path),
        None => shell.around.directory.clone(),
    }
}

/// The repository a command is about, if there is one.
pub(crate) fn around(shell: &Shell) -> Option<Repository> {
    Repository::find(&directory(shell))
}

/// The repository a command is about, or the error that says there is none.
pub(crate) fn required(shell: &Shell) -> Result<Repository> {
    let found = around(shell).ok_or_else(|| {
        let directory = directory(shell);
        let shown = shell.path(&directory);
        if directory.exists() {
            CliError::new("not_a_repository", format!("{shown} is not in a git repository"))
                .cause("no .git here or above")
                .hint("cd into one, pass --repo PATH, or: git init")
        } else {
            CliError::new("not_a_repository", format!("{shown} does not exist"))
                .hint("cd into a repository, or pass --repo PATH")
        }
    })?;
    text::utf8("the repository's path", &found.checkout)?;
    text::utf8("the repository's path", &found.common)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linked_worktree_belongs_to_its_repository() {
        let temp = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(temp.path()).unwrap();
        let main = root.join("main");
        let linked = root.join("linked");
        let administration = main.join(".git/worktrees/linked");
        fs::create_dir_all(&administration).unwrap();
        fs::create_dir_all(main.join("src/deep")).unwrap();
        fs::create_dir_all(&linked).unwrap();
        fs::write(main.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(administration.join("HEAD"), "ref: refs/heads/x\n").unwrap();
        fs::write(administration.join("commondir"), "../..\n").unwrap();
        fs::write(linked.join(".git"), format!("gitdir: {}\n", administration.display())).unwrap();

        let repository = Repository::find(&main.join("src/deep")).unwrap();
        assert_eq!(repository.checkout, main);
        assert!(repository.owns(linked.to_str().unwrap()));
        assert!(!repository.owns(root.to_str().unwrap()));
        assert_eq!(Repository::find(&root.join("elsewhere")), None);
    }

    #[test]
    fn an_empty_directory_called_git_is_no_repository() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join(".git")).unwrap();
        // Above a temp directory there is none either.
        assert_eq!(Repository::find(temp.path()), None);
    }
}
