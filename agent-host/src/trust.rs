//! What a repository's own files run or widen, and whether a person agreed to it.
//!
//! Agreement is bound to the content: any change asks again and shows the difference.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use swarm_protocol::permission::RuleBehavior;

use crate::settings::{ClaudeSettingsFile, ConfigError, TomlText, gated_lines, locked_update, read_bounded};

/// Everything that counts only after `swarm trust`, one line each: the file, the setting, its value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryWants {
    lines: Vec<String>,
}

/// Where a repository stands with the person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Its files run and widen nothing.
    NothingAsked,
    Trusted,
    /// Never agreed to.
    Unknown,
    /// Agreed to something else; lines with `+ ` and `- `.
    Changed {
        difference: Vec<String>,
    },
}

impl Trust {
    /// Whether what the repository wants counts.
    pub fn holds(&self) -> bool {
        matches!(self, Self::NothingAsked | Self::Trusted)
    }
}

/// The store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("failed to use {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Never taken as trust.
    #[error("{} does not parse; remove it to be asked again", .path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
}

/// One repository in `trust.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Agreed {
    hash: String,
    lines: Vec<String>,
}

type Store = BTreeMap<String, Agreed>;

const MAX_BYTES: u64 = 16 * 1024 * 1024;

impl RepositoryWants {
    /// Collects from `swarm.toml` and the settings files that came with the repository.
    pub fn collect(
        swarm_toml: Option<&TomlText>,
        claude: &[ClaudeSettingsFile],
    ) -> Result<Self, ConfigError> {
        let mut lines = match swarm_toml {
            Some(file) => gated_lines(file)?,
            None => Vec::new(),
        };
        for file in claude.iter().filter(|file| file.is_of_repository) {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let line = |what: String| one_line(&format!(".claude/{name}: {what}"));
            let allow = file.rules.iter().filter(|rule| rule.behavior == RuleBehavior::Allow);
            lines.extend(allow.map(|rule| line(format!("allow {}", rule.text))));
            lines.extend(
                file.additional_directories.iter().map(|path| line(format!("may write {}", path.display()))),
            );
            lines.extend(file.default_mode.iter().map(|mode| line(format!("mode {mode}"))));
            lines.extend(file.env.iter().map(|(name, value)| line(format!("env {name}={value}"))));
        }
        lines.sort_unstable();
        lines.dedup();
        Ok(Self { lines })
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Hash of the content that an agreement is bound to.
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        for line in &self.lines {
            hasher.update(line.as_bytes());
            hasher.update([0]);
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compares with what the person agreed to.
    pub fn check(&self, store: &Path, repository: &Path) -> Result<Trust, TrustError> {
        if self.lines.is_empty() {
            return Ok(Trust::NothingAsked);
        }
        let text =
            read_bounded(store, MAX_BYTES).map_err(|source| TrustError::Io { path: store.into(), source })?;
        let known = parse(store, text.as_deref())?;
        Ok(match known.get(&key(repository)) {
            None => Trust::Unknown,
            Some(agreed) if agreed.hash == self.hash() => Trust::Trusted,
            Some(agreed) => Trust::Changed { difference: difference(&agreed.lines, &self.lines) },
        })
    }

    /// Records the person's agreement.
    pub fn agree(&self, store: &Path, repository: &Path) -> Result<(), TrustError> {
        let agreed = Agreed { hash: self.hash(), lines: self.lines.clone() };
        change(store, |known| {
            known.insert(key(repository), agreed);
        })
    }
}

/// Takes an agreement back.
pub fn revoke_trust(store: &Path, repository: &Path) -> Result<(), TrustError> {
    change(store, |known| {
        known.remove(&key(repository));
    })
}

fn change(store: &Path, change: impl FnOnce(&mut Store)) -> Result<(), TrustError> {
    /// Lets the closure fail in two ways.
    enum Failure {
        Io(io::Error),
        Trust(TrustError),
    }
    impl From<io::Error> for Failure {
        fn from(error: io::Error) -> Self {
            Self::Io(error)
        }
    }
    let updated = locked_update(store, 0o600, |old| {
        let mut known = parse(store, old.as_deref()).map_err(Failure::Trust)?;
        change(&mut known);
        let text = serde_json::to_string_pretty(&known).map_err(io::Error::from)?;
        Ok(Some(text + "\n"))
    });
    updated.map_err(|failure| match failure {
        Failure::Io(source) => TrustError::Io { path: store.into(), source },
        Failure::Trust(error) => error,
    })
}

fn parse(path: &Path, text: Option<&str>) -> Result<Store, TrustError> {
    match text.map(str::trim) {
        None | Some("") => Ok(Store::new()),
        Some(text) => {
            serde_json::from_str(text).map_err(|source| TrustError::Parse { path: path.into(), source })
        }
    }
}

fn key(repository: &Path) -> String {
    repository.to_string_lossy().into_owned()
}

/// Both lists are sorted, so a set difference is the difference.
fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests;
