//! Tool chains that stand on `PATH` outside the usual places: a program that may be started must be able to
//! read what it is installed with.

use std::{
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

/// Names of a tool chain's directory of programs; what is beside it belongs to it.
const PROGRAM_DIRS: [&str; 3] = ["bin", "sbin", "shims"];

/// The directories that the entries of a `PATH` make readable: each entry, and for `X/bin` the whole `X`.
///
/// `X` is left out where it would open more than a tool chain: the home directory or something above it, the
/// root, and first-level directories (`/opt`, `/home`).
pub fn tool_chains(path: &OsStr, home: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::env::split_paths(path) {
        let plain = entry.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // A relative entry would mean another directory in each command.
        if !entry.is_absolute() || !plain || entry.parent().is_none() || home.starts_with(&entry) {
            continue;
        }
        let is_programs =
            entry.file_name().is_some_and(|name| PROGRAM_DIRS.iter().any(|known| name == *known));
        let parent = entry
            .parent()
            .filter(|parent| is_programs && parent.components().count() > 2 && !home.starts_with(parent));
        found.extend(parent.map(Path::to_path_buf));
        found.push(entry);
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &[&str]) {
        let found = tool_chains(OsStr::new(path), Path::new("/home/me"));
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{path}");
    }

    #[test]
    fn a_tool_chain_and_no_more() {
        check("/srv/py/shims:/srv/py/bin", &["/srv/py", "/srv/py/bin", "/srv/py/shims"]);
        check("/usr/bin:/bin", &["/bin", "/usr/bin"]);
        check("/home/me/bin", &["/home/me/bin"]);
        check("/home/me/.tools/bin", &["/home/me/.tools", "/home/me/.tools/bin"]);
        check("/home/me:/home:/:.:bin:/home/me/../you/bin", &[]);
    }
}
