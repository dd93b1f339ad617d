//! Where paths lead on the real disk.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

use crate::rules::{Look, PathResolver};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
/// Most entries of one look: a second on a disk that is not warm.
const MAX_ENTRIES: usize = 200_000;

/// A path of the settings, which may begin with `~`.
pub fn at_home(path: &Path, home: &Path) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Follows links one by one, so that a link to a file that does not exist yet resolves to that file: what
/// a write through it would create.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskPaths;

impl PathResolver for DiskPaths {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        if !path.is_absolute() {
            return None;
        }
        let mut left: Vec<OsString> = parts(path);
        let mut out = PathBuf::from("/");
        let mut n_links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                out.pop();
                continue;
            }
            out.push(&part);
            match fs::symlink_metadata(&out) {
                Ok(metadata) if metadata.is_symlink() => {
                    n_links += 1;
                    if n_links > MAX_LINKS {
                        return None;
                    }
                    let target = fs::read_link(&out).ok()?;
                    out.pop();
                    if target.is_absolute() {
                        out = PathBuf::from("/");
                    }
                    left.append(&mut parts(&target));
                }
                Ok(_) => {}
                // What is not there cannot be a link; `..` behind it still goes up.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(_) => return None,
            }
        }
        Some(out)
    }

    fn exists(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }

    fn names(&self, directory: &Path, most: usize) -> Option<Vec<OsString>> {
        let Ok(entries) = fs::read_dir(directory) else { return Some(Vec::new()) };
        let names: Vec<OsString> = entries.flatten().take(most + 1).map(|entry| entry.file_name()).collect();
        (names.len() <= most).then_some(names)
    }

    fn look_below(&self, directory: &Path, is_it: &dyn Fn(&Path) -> bool) -> Look {
        let mut open = vec![directory.to_path_buf()];
        let mut n_seen = 0;
        while let Some(directory) = open.pop() {
            // What cannot be listed cannot be read below either.
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for entry in entries.flatten() {
                n_seen += 1;
                if n_seen > MAX_ENTRIES {
                    return Look::TooMuch;
                }
                let path = entry.path();
                if is_it(&path) {
                    return Look::Found(path);
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(path);
                }
            }
        }
        Look::Nothing
    }
}

/// The parts of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let mut parts: Vec<OsString> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_the_kernel_does() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().canonicalize().unwrap().join(path);
        fs::create_dir_all(at("w/src")).unwrap();
        fs::create_dir_all(at("out/deep")).unwrap();
        symlink("/", at("w/all")).unwrap();
        symlink(at("out/new"), at("w/dangling")).unwrap();
        symlink("src", at("w/alias")).unwrap();
        symlink(at("out/deep"), at("w/deep")).unwrap();
        symlink("loop", at("w/loop")).unwrap();
        let resolve = |path: &str| DiskPaths.resolve(&at(path));
        assert_eq!(resolve("w/all/etc/passwd"), DiskPaths.resolve(Path::new("/etc/passwd")));
        assert_eq!(resolve("w/dangling"), Some(at("out/new")));
        assert_eq!(resolve("w/alias/x"), Some(at("w/src/x")));
        // `..` behind a link goes up from its target.
        assert_eq!(resolve("w/deep/../x"), Some(at("out/x")));
        assert_eq!(resolve("w/none/../src"), Some(at("w/src")));
        assert_eq!(resolve("w/loop"), None);
        assert_eq!(DiskPaths.resolve(Path::new("w")), None);
        assert!(DiskPaths.exists(&at("w/dangling")) && !DiskPaths.exists(&at("w/none")));
    }
}
