//! Tool chains that stand on `PATH` outside the usual places: a program that may be started must be able to
//! read what it is installed with.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

/// Names of a tool chain's directory of programs; what is beside it belongs to it.
const PROGRAM_DIRS: [&str; 3] = ["bin", "sbin", "shims"];

/// Directories in a home that hold tool chains and nothing else worth keeping from programs.
const TOOL_CHAIN_ROOTS: [&str; 8] =
    [".asdf", ".cargo", ".goenv", ".nodenv", ".pyenv", ".rbenv", ".rustup", ".volta"];

/// What programs in a home are installed with, beside their directory: libraries, and the file that makes a
/// virtual environment of Python one.
const SIBLINGS: [&str; 3] = ["include", "libexec", "pyvenv.cfg"];

/// The directories that the entries of a `PATH` make readable: each entry, and for `X/bin` the whole `X`.
///
/// `X` is left out where it would open more than a tool chain: the home directory or something above it, the
/// root, and first-level directories (`/opt`, `/home`). Below the home, where `X` may hold credentials
/// (`~/.local`), only its libraries are added, unless it is a known root of tool chains.
pub fn tool_chains(path: &OsStr, home: &Path) -> Vec<PathBuf> {
    let homes: Vec<PathBuf> = std::iter::once(home.to_owned()).chain(home.canonicalize().ok()).collect();
    let mut found = BTreeSet::new();
    for entry in std::env::split_paths(path) {
        let plain = entry.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // A relative entry would mean another directory in each command.
        if !entry.is_absolute() || !plain {
            continue;
        }
        // Rules follow links, so both names count.
        let names: Vec<PathBuf> = std::iter::once(entry.clone()).chain(entry.canonicalize().ok()).collect();
        let is_too_much =
            |path: &Path| path.parent().is_none() || homes.iter().any(|home| home.starts_with(path));
        if names.iter().any(|name| is_too_much(name)) {
            continue;
        }
        found.insert(entry.clone());
        let is_programs =
            entry.file_name().is_some_and(|name| PROGRAM_DIRS.iter().any(|known| name == *known));
        let Some(parent) = entry.parent().filter(|_| is_programs) else { continue };
        let real = parent.canonicalize().ok();
        let places = || {
            std::iter::once(parent)
                .chain(real.as_deref())
                .chain(names[1..].iter().filter_map(|name| name.parent()))
        };
        let is_at_home =
            |place: &Path| homes.iter().any(|home| place.starts_with(home) || home.starts_with(place));
        if !places().any(is_at_home) {
            if parent.components().count() > 2
                && real.as_deref().is_none_or(|real| real.components().count() > 2)
            {
                found.insert(parent.to_owned());
            }
        } else if is_known_root(parent, &homes) {
            found.insert(parent.to_owned());
        } else {
            found.extend(siblings(parent));
        }
    }
    found.into_iter().collect()
}

/// Variables that say where a tool chain is, and what below it programs need. Credentials are none of it.
const NAMED_PLACES: [(&str, &[&str]); 2] =
    [("RUSTUP_HOME", &[""]), ("CARGO_HOME", &["bin", "registry", "git"])];

/// The directories that variables such as `RUSTUP_HOME` name, where they name a tool chain and nothing more: never the
/// home directory or something above it, nor a first-level directory.
pub fn named_tool_chains<'a>(variable: impl Fn(&str) -> Option<&'a str>, home: &Path) -> Vec<PathBuf> {
    let homes: Vec<PathBuf> = std::iter::once(home.to_owned()).chain(home.canonicalize().ok()).collect();
    let is_fit = |place: &Path| {
        let plain = place.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let real = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        place.is_absolute()
            && plain
            && [place, &real]
                .iter()
                .all(|name| name.components().count() > 2 && !homes.iter().any(|home| home.starts_with(name)))
    };
    let mut found = Vec::new();
    for (name, below) in NAMED_PLACES {
        let Some(place) = variable(name).map(PathBuf::from).filter(|place| is_fit(place)) else { continue };
        found.extend(below.iter().map(|part| if part.is_empty() { place.clone() } else { place.join(part) }));
    }
    found
}

fn is_known_root(directory: &Path, homes: &[PathBuf]) -> bool {
    homes.iter().any(|home| TOOL_CHAIN_ROOTS.iter().any(|name| directory == home.join(name)))
}

fn siblings(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let belongs = |name: &OsStr| {
        // `lib`, `lib64`, `lib32`; not `library`.
        let is_lib = |name: &str| {
            name.strip_prefix("lib")
                .is_some_and(|bits| bits.chars().all(|digit| digit.is_ascii_digit() || digit == 'x'))
        };
        name.to_str().is_some_and(|name| is_lib(name) || SIBLINGS.contains(&name))
    };
    entries
        .filter(|entry| {
            entry.file_type().is_ok_and(|kind| !kind.is_symlink()) || leads_beside(&entry.path(), directory)
        })
        .filter(|entry| belongs(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

/// `lib64 -> lib`; a link to another place is not the tool chain's.
fn leads_beside(link: &Path, directory: &Path) -> bool {
    match (link.canonicalize(), directory.canonicalize()) {
        (Ok(real), Ok(directory)) => {
            real.parent() == Some(&directory)
                && real.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lib"))
        }
        _ => false,
    }
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
        check("/home/me/.tools/bin", &["/home/me/.tools/bin"]);
        check("/home/me/.pyenv/shims", &["/home/me/.pyenv", "/home/me/.pyenv/shims"]);
        check("/home/me/x/.pyenv/shims", &["/home/me/x/.pyenv/shims"]);
        check("/home/me:/home:/:.:bin:/home/me/../you/bin", &[]);
    }

    #[test]
    fn variables_name_tool_chains_and_nothing_wider() {
        let named = |rustup: &'static str, cargo: Option<&'static str>| {
            let variable = |name: &str| if name == "RUSTUP_HOME" { Some(rustup) } else { cargo };
            let found = named_tool_chains(variable, Path::new("/home/me"));
            found.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(named("/srv/rust/up", None), ["/srv/rust/up"]);
        assert_eq!(
            named("/opt", Some("/srv/rust/cargo")),
            ["/srv/rust/cargo/bin", "/srv/rust/cargo/registry", "/srv/rust/cargo/git"]
        );
        for wide in ["/home/me", "/home", "/", "", "relative/up", "/srv/../home/me", "/srv"] {
            assert!(named(wide, None).is_empty(), "{wide}");
        }
    }

    #[test]
    fn below_a_home_libraries_come_along_and_credentials_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let home = root.join("home");
        for name in [
            ".local/bin",
            ".local/lib",
            ".local/lib64",
            ".local/libexec",
            ".local/library",
            ".local/share/keyrings",
            ".pulumi/bin",
            ".pulumi/credentials",
            "tools",
        ] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        let link = |target: PathBuf, name: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link(home.clone(), "me");
        link(home.join(".pulumi"), "alias");
        link(home.join(".pulumi/bin"), "tools-bin");
        link(home.join(".pulumi/credentials"), "home/.local/lib32");
        let check = |path: &Path, expected: &[&str]| {
            let found = tool_chains(path.as_os_str(), &home);
            assert_eq!(found, expected.iter().map(|name| root.join(name)).collect::<Vec<_>>(), "{path:?}");
        };
        check(
            &home.join(".local/bin"),
            &["home/.local/bin", "home/.local/lib", "home/.local/lib64", "home/.local/libexec"],
        );
        check(&home.join(".pulumi/bin"), &["home/.pulumi/bin"]);
        check(&root.join("alias/bin"), &["alias/bin"]);
        check(&root.join("me/.pulumi/bin"), &["me/.pulumi/bin"]);
        check(&root.join("me"), &[]);
    }
}
