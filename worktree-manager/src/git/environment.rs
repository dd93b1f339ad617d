//! The environment of a command: what a user set for his machine stays, what leads git elsewhere goes, and
//! nobody is asked anything.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use tokio::process::Command;

use super::{Access, Neutral, Place};

/// Variables starting with `GIT_` that a user sets for his machine rather than for one repository.
const KEPT_VARIABLES: [&str; 6] = [
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_EXEC_PATH",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
];

/// Those of them that name a file or directory.
const NAMING_PATHS: [&str; 5] =
    ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH"];

/// In force for every command. `core.fsync` with `batch` costs one flush a command and makes objects
/// as durable as the refs that name them.
const ALWAYS: [(&str, &str); 13] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.splitIndex", "false"),
    ("core.fsync", "committed,reference"),
    ("core.fsyncMethod", "batch"),
    ("core.pager", "cat"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("checkout.workers", "0"),
    ("log.showSignature", "false"),
    ("status.showUntrackedFiles", "all"),
];

/// Takes away the `GIT_` variables of this process, but for a user's own settings.
pub(super) fn scrub(command: &mut Command) {
    for (key, value) in std::env::vars_os() {
        if !key.as_bytes().starts_with(b"GIT_") {
            continue;
        }
        if !KEPT_VARIABLES.iter().any(|kept| key == *kept) {
            command.env_remove(key);
        } else if NAMING_PATHS.iter().any(|naming| key == *naming) && !value.is_empty() {
            // Meant from where this process is, not from inside an agent's tree.
            match std::path::absolute(&value) {
                Ok(absolute) => command.env(key, absolute),
                Err(_) => command.env_remove(key),
            };
        }
    }
}

/// Answers in English, asks nobody, fetches nothing; one that only reads takes no lock that it can do without.
pub(super) fn keep_quiet(command: &mut Command, access: Access) {
    command
        .env("LC_ALL", "C")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_EDITOR", "false")
        .env("GIT_SEQUENCE_EDITOR", "false")
        .env("GIT_ASKPASS", "false")
        .env("GIT_PAGER", "cat")
        .env("GIT_LITERAL_PATHSPECS", "1")
        // Partial clones are refused, so a promise is one that a command wrote into its worktree's
        // configuration, with a program of its own to fetch with.
        .env("GIT_NO_LAZY_FETCH", "1")
        .env_remove("LANGUAGE");
    if access == Access::Read {
        command.env("GIT_OPTIONAL_LOCKS", "0");
    }
}

/// Where it works.
pub(super) fn work_in(command: &mut Command, place: &Place) {
    match place {
        Place::Discover(dir) => {
            command.current_dir(dir);
        }
        Place::Repo { git_dir, common_dir, work_tree } => {
            command
                .env("GIT_DIR", git_dir)
                .env("GIT_COMMON_DIR", common_dir)
                .current_dir(work_tree.as_deref().unwrap_or(git_dir));
            if let Some(work_tree) = work_tree {
                command.env("GIT_WORK_TREE", work_tree);
            }
        }
    }
}

/// The configuration that is in force whatever files say.
pub(super) fn configure(command: &mut Command, neutral: &Neutral) {
    let always = ALWAYS.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes()));
    let neutral = neutral.0.iter().map(|(k, v)| (&k[..], &v[..]));
    let mut count = 0_usize;
    for (key, value) in always.chain(neutral) {
        command.env(format!("GIT_CONFIG_KEY_{count}"), OsStr::from_bytes(key));
        command.env(format!("GIT_CONFIG_VALUE_{count}"), OsStr::from_bytes(value));
        count += 1;
    }
    command.env("GIT_CONFIG_COUNT", count.to_string());
}

/// `path` as an element of `GIT_ALTERNATE_OBJECT_DIRECTORIES`, which quotes like C.
pub(crate) fn alternate_element(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes();
    let plain = bytes.iter().all(|b| !matches!(b, b':' | b'"' | b'#' | b'\\') && *b >= b' ');
    if plain {
        return path.as_os_str().to_owned();
    }
    let mut quoted = vec![b'"'];
    for &b in bytes {
        match b {
            b'"' | b'\\' => quoted.extend([b'\\', b]),
            b if b < b' ' || b == 0x7f => quoted.extend(format!("\\{b:03o}").into_bytes()),
            b => quoted.push(b),
        }
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternates_are_quoted_only_when_needed() {
        let check = |path: &str, expected: &str| {
            assert_eq!(alternate_element(Path::new(path)), OsString::from(expected));
        };
        check("/plain dir/ä", "/plain dir/ä");
        check("/a:b", "\"/a:b\"");
        check("/a\"b", "\"/a\\\"b\"");
        check("/a\nb", "\"/a\\012b\"");
    }
}
