//! Git repositories for tests: no user's configuration, fixed names and dates, so that commit ids are the same in
//! every run.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

const DATE: &str = "2026-01-02T03:04:05+00:00";

/// A repository in a directory of its own, removed when dropped.
#[derive(Debug)]
pub struct TestRepo {
    _dir: TempDir,
    root: PathBuf,
}

impl Default for TestRepo {
    fn default() -> Self {
        Self::new()
    }
}

impl TestRepo {
    /// A repository with one commit on `main`, which holds `README.md`.
    pub fn new() -> Self {
        let repo = Self::empty();
        repo.write("README.md", "# A project\n");
        repo.commit("first");
        repo
    }

    /// A repository with these files in its one commit.
    pub fn with_files(files: &[(&str, &str)]) -> Self {
        let repo = Self::empty();
        for (path, content) in files {
            repo.write(path, content);
        }
        repo.commit("first");
        repo
    }

    /// A repository without any commit.
    pub fn empty() -> Self {
        let dir = tempfile::Builder::new().prefix("repo-").tempdir().expect("a temporary directory");
        // Resolved, for programs report resolved paths.
        let root = fs::canonicalize(dir.path()).expect("the directory exists").join("project");
        fs::create_dir(&root).expect("the directory is empty");
        let repo = Self { _dir: dir, root };
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo.git(&["config", "user.name", "A. Person"]);
        repo.git(&["config", "user.email", "person@example.org"]);
        repo.git(&["config", "commit.gpgsign", "false"]);
        repo
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Writes a file of the working tree, and its directories.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root.join(path);
        let parent = path.parent().expect("a file has a directory");
        fs::create_dir_all(parent).expect("a directory can be made");
        fs::write(&path, content)
            .unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
        self
    }

    pub fn write_executable(&self, path: &str, content: &str) -> &Self {
        self.write(path, content);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.root.join(path), mode).expect("the file is ours");
        self
    }

    pub fn read(&self, path: &str) -> String {
        let path = self.root.join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
    }

    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Commits all there is, untracked files too; returns the id.
    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
        self.head()
    }

    pub fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    /// Makes a branch at HEAD without going to it.
    pub fn branch(&self, name: &str) -> &Self {
        self.git(&["branch", name]);
        self
    }

    pub fn switch(&self, name: &str) -> &Self {
        self.git(&["switch", "--quiet", name]);
        self
    }

    /// Names of local branches that match a pattern such as `swarm/*`; all with `*`.
    pub fn branches(&self, pattern: &str) -> Vec<String> {
        let list = self.git(&["for-each-ref", "--format=%(refname:short)", &format!("refs/heads/{pattern}")]);
        list.lines().map(str::to_owned).collect()
    }

    /// A file as a commit or branch has it; none if it has none.
    pub fn read_at(&self, commit: &str, path: &str) -> Option<String> {
        let output = self.try_git(&["show", &format!("{commit}:{path}")]);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Worktrees beside the main one.
    pub fn worktrees(&self) -> Vec<PathBuf> {
        let list = self.git(&["worktree", "list", "--porcelain"]);
        let paths = list.lines().filter_map(|line| line.strip_prefix("worktree "));
        paths.map(PathBuf::from).filter(|path| *path != self.root).collect()
    }

    /// Working tree against HEAD, in git's short form; empty when clean.
    pub fn status(&self) -> String {
        self.git(&["status", "--porcelain"])
    }

    /// Runs git here; returns its output without the last line end.
    ///
    /// # Panics
    /// When git fails.
    pub fn git(&self, arguments: &[&str]) -> String {
        self.git_in(&self.root, arguments)
    }

    /// The same in another directory, a worktree or a clone.
    ///
    /// # Panics
    /// When git fails.
    pub fn git_in(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.try_git_in(directory, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?} failed: {error}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    pub fn try_git(&self, arguments: &[&str]) -> Output {
        self.try_git_in(&self.root, arguments)
    }

    pub fn try_git_in(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut git = Command::new("git");
        git.current_dir(directory).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GIT_") {
                git.env_remove(name);
            }
        }
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C");
        git.env("GIT_AUTHOR_DATE", DATE).env("GIT_COMMITTER_DATE", DATE).env("GIT_TERMINAL_PROMPT", "0");
        git.output().expect("git can be started")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_the_same_in_every_run() {
        let repo = TestRepo::new();
        assert_eq!(repo.head(), TestRepo::new().head());
        repo.branch("side").write("src/a.txt", "a\n").write_executable("run.sh", "#!/bin/sh\n");
        assert_eq!(repo.status(), "?? run.sh\n?? src/");
        repo.commit("second");
        assert_eq!(repo.branches("*"), ["main", "side"]);
        assert_eq!(repo.read_at("main", "src/a.txt").as_deref(), Some("a\n"));
        assert_eq!(repo.read_at("side", "src/a.txt"), None);
        assert!(repo.git(&["ls-files", "--stage", "run.sh"]).starts_with("100755"));
        repo.git(&["worktree", "add", "--quiet", "../other", "side"]);
        assert_eq!(repo.worktrees().len(), 1);
        repo.switch("main");
        assert!(repo.exists("src/a.txt") && repo.read("README.md").contains("project"));
    }
}
