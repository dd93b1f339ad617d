//! Where git, and what git starts, is found.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{GitConfig, Place};

/// Where programs are looked for. The working directory of a command is an agent's tree, so neither
/// git nor what git starts may be found relative to it or in it.
#[derive(Debug)]
pub(super) struct Programs {
    /// Places of git, the preferred one first.
    git: Vec<Located>,
    /// Entries of `PATH`.
    entries: Vec<Located>,
}

impl Programs {
    pub(super) fn new(config: &GitConfig) -> Self {
        let path = config.env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, path)| path.clone());
        let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let entries = absolute_entries(&path);
        let name = &config.program;
        let git = if name.as_os_str().as_bytes().contains(&b'/') {
            // One that is named is wanted, wherever it is; but not relative to an agent's tree.
            vec![std::path::absolute(name).unwrap_or_else(|_| name.clone())]
        } else {
            let places = entries.iter().map(|entry| entry.join(name));
            places.filter(|place| is_executable(place)).collect()
        };
        let located = |paths: Vec<PathBuf>| paths.into_iter().map(Located::new).collect();
        Self { git: located(git), entries: located(entries) }
    }

    /// The program and `PATH` for a command that works in `place`.
    pub(super) fn outside(&self, program: &Path, place: &Place) -> (Option<&Path>, OsString) {
        let mut forbidden = Vec::new();
        if let Place::Repo { git_dir, work_tree, .. } = place {
            for dir in std::iter::once(git_dir).chain(work_tree) {
                forbidden.extend(dir.canonicalize());
                forbidden.push(dir.clone());
            }
        }
        let named = program.as_os_str().as_bytes().contains(&b'/');
        let git = self.git.iter().find(|git| named || git.is_outside(&forbidden));
        let entries = self.entries.iter().filter(|entry| entry.is_outside(&forbidden));
        let path = std::env::join_paths(entries.map(|entry| &entry.path)).unwrap_or_default();
        (git.map(|git| &*git.path), path)
    }
}

/// Without a usable entry in `PATH`; an empty one would mean the working directory.
const DEFAULT_PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// An absolute path, and where it leads.
#[derive(Debug)]
struct Located {
    path: PathBuf,
    real: PathBuf,
}

impl Located {
    fn new(path: PathBuf) -> Self {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        Self { path, real }
    }

    fn is_outside(&self, forbidden: &[PathBuf]) -> bool {
        !forbidden.iter().any(|dir| self.path.starts_with(dir) || self.real.starts_with(dir))
    }
}

fn absolute_entries(path: &OsStr) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::env::split_paths(path).filter(|entry| entry.is_absolute()).collect();
    if entries.is_empty() {
        entries = DEFAULT_PATH.map(PathBuf::from).into();
    }
    entries
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::{Access, Git, GitError};

    #[tokio::test]
    async fn programs_are_not_found_in_the_tree_of_a_command() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let script = |at: PathBuf, text: &str| {
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(&at, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        for at in ["tool", "bin/tool", "sub/bin/tool"] {
            script(tree.join(at), "echo from the tree");
        }
        let good = dir.path().join("good");
        script(good.join("tool"), "echo \"$PATH\"");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(tree.join("bin"), &link).unwrap();
        let place = Place::Repo {
            git_dir: dir.path().to_owned().join("git"),
            common_dir: dir.path().to_owned(),
            work_tree: Some(tree.clone()),
        };
        std::fs::create_dir(dir.path().join("git")).unwrap();
        let git = |entries: &str| {
            let env = vec![("PATH".into(), entries.into())];
            Git::new(GitConfig { program: "tool".into(), env, ..GitConfig::default() })
        };
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let all = [".", "", "bin", &text(&tree.join("bin")), &text(&link), &text(&good), "/bin"].join(":");
        let out = git(&all).command(&place, Access::Read, ["x"]).ok().await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{}:/bin\n", text(&good)));
        let none = [".", "", "bin", &text(&link)].join(":");
        let error = git(&none).command(&place, Access::Read, ["x"]).ok().await.unwrap_err();
        assert!(matches!(error, GitError::Start { .. }), "{error:?}");
        assert_eq!(absolute_entries(OsStr::new("::.:bin")), DEFAULT_PATH.map(PathBuf::from));
    }
}
