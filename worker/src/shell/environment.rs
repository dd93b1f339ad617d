//! The environment of commands: an allow-list of the parent's variables, answers to programs that
//! would ask a person, and what the caller adds. Never a key or a token of ours.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// Taken over from the parent. No entry may be able to hold a credential.
const PASSED: &[&str] = &[
    "CARGO_HOME",
    "CC",
    "CFLAGS",
    "CONDA_PREFIX",
    "CPATH",
    "CXX",
    "CXXFLAGS",
    "C_INCLUDE_PATH",
    "DOTNET_ROOT",
    "GOPATH",
    "GOROOT",
    "HOME",
    "JAVA_HOME",
    "LANG",
    "LANGUAGE",
    "LDFLAGS",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "LOGNAME",
    "MAKEFLAGS",
    "NIX_PATH",
    "NIX_SSL_CERT_FILE",
    "NODE_PATH",
    "NVM_DIR",
    "PATH",
    "PKG_CONFIG_PATH",
    "PYENV_ROOT",
    "PYTHONPATH",
    "RUSTFLAGS",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "VOLTA_HOME",
];
const PASSED_PREFIX: &str = "LC_";

/// Nobody is there to answer, and no terminal to draw on.
const NON_INTERACTIVE: &[(&str, &str)] = &[
    ("SHELL", "/bin/bash"),
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("AWS_PAGER", ""),
    ("GH_PAGER", "cat"),
    // `false` rather than `true`: an unwritten message must fail, not become an empty commit.
    ("EDITOR", "false"),
    ("VISUAL", "false"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "false"),
    ("SSH_ASKPASS", "false"),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("SUDO_ASKPASS", "/bin/false"),
    // A plain `git status` would run the program that a repository's configuration names.
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"),
    ("GCM_INTERACTIVE", "never"),
    ("GH_PROMPT_DISABLED", "1"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("NPM_CONFIG_YES", "true"),
    ("NPM_CONFIG_FUND", "false"),
    ("NPM_CONFIG_AUDIT", "false"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
    ("PIP_NO_INPUT", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PYTHONUNBUFFERED", "1"),
    ("COREPACK_ENABLE_DOWNLOAD_PROMPT", "0"),
    ("HOMEBREW_NO_AUTO_UPDATE", "1"),
];

/// Marks every process of a run.
pub const RUN_MARKER: &str = "SWARM_RUN";
/// Marks every process of one command; a fresh id each time.
pub const COMMAND_MARKER: &str = "SWARM_COMMAND";
/// First port of the range that a worktree may use.
pub const PORT_BASE: &str = "SWARM_PORT_BASE";

/// What a command starts with, before what earlier commands exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Filters `parent`, usually `std::env::vars_os()` or what a client sent with the task.
    pub fn filtered(parent: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self(parent.into_iter().filter(|(name, _)| is_passed(name)).collect());
        for (name, value) in NON_INTERACTIVE {
            environment.set(name, value);
        }
        environment
    }

    /// Adds a variable; what the caller names itself is not filtered.
    pub fn set(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.0.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    pub fn remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.0.remove(name.as_ref());
        self
    }

    #[must_use]
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.0.get(name.as_ref()).map(OsString::as_os_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

fn is_passed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| PASSED.contains(&name) || name.starts_with(PASSED_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_variables_pass() {
        let parent = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("ANTHROPIC_API_KEY", "secret"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("SSH_AUTH_SOCK", "/x"),
            ("GIT_DIR", "/x"),
            ("LD_PRELOAD", "/x"),
        ];
        let environment = Environment::filtered(parent.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(environment.get("PATH"), Some(OsStr::new("/bin")));
        assert_eq!(environment.get("LC_ALL"), Some(OsStr::new("C")));
        assert!(environment.iter().all(|(_, value)| value != "secret" && value != "/x"));
        assert_eq!(environment.get("GIT_TERMINAL_PROMPT"), Some(OsStr::new("0")));
    }
}
