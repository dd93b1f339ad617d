//! Writing the answer "always" into a settings file.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use swarm_protocol::permission::RuleBehavior;

use super::file::locked_update;
use crate::rules::{RuleSet, RuleSyntaxError};

/// Which file takes a standing answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePlace(PathBuf);

impl RulePlace {
    /// The project's `settings.local.json` when git ignores it, else one under `$SWARM_HOME`: an answer of
    /// one person never lands in a commit.
    pub fn of_project(project: &Path, swarm_home: &Path, local_is_ignored: bool) -> Self {
        match local_is_ignored {
            true => Self(project.join(".claude").join("settings.local.json")),
            false => Self(Self::under_swarm_home(project, swarm_home)),
        }
    }

    /// `$SWARM_HOME/projects/<hash>/settings.local.json`
    pub fn under_swarm_home(project: &Path, swarm_home: &Path) -> PathBuf {
        let digest = Sha256::digest(project.as_os_str().as_encoded_bytes());
        let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        swarm_home.join("projects").join(hash).join("settings.local.json")
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The rule was not written.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    #[error("the rule `{rule}` does not parse")]
    Rule { rule: String, source: RuleSyntaxError },
    #[error("{} is not a JSON object with lists of rules; it was left as it is", .path.display())]
    Shape { path: PathBuf },
    #[error("failed to write the rule")]
    Io(#[from] io::Error),
}

/// Adds a rule to a settings file, once. Other keys and their order survive; concurrent writers wait for
/// one another, readers see whole files.
pub fn remember(place: &RulePlace, behavior: RuleBehavior, rule: &str) -> Result<(), RememberError> {
    let origin = swarm_protocol::permission::RuleOrigin {
        level: "local".into(),
        file: None,
        line: None,
        anchor: None,
    };
    RuleSet::default()
        .add(swarm_protocol::permission::Rule { behavior, text: rule.to_owned(), origin })
        .map_err(|error| RememberError::Rule { rule: rule.to_owned(), source: error.source })?;
    let list = match behavior {
        RuleBehavior::Deny => "deny",
        RuleBehavior::Ask => "ask",
        RuleBehavior::Allow => "allow",
    };
    locked_update(place.path(), 0o600, |old| {
        let shape = || RememberError::Shape { path: place.path().to_path_buf() };
        let mut root: Map<String, Value> = match old.as_deref().map(str::trim) {
            None | Some("") => Map::new(),
            Some(text) => serde_json::from_str(text).map_err(|_| shape())?,
        };
        let permissions = root.entry("permissions").or_insert_with(|| Value::Object(Map::new()));
        let permissions = permissions.as_object_mut().ok_or_else(shape)?;
        let rules = permissions.entry(list).or_insert_with(|| Value::Array(Vec::new()));
        let rules = rules.as_array_mut().ok_or_else(shape)?;
        if rules.iter().any(|known| known.as_str() == Some(rule)) {
            return Ok(None);
        }
        rules.push(Value::String(rule.to_owned()));
        let mut text = serde_json::to_string_pretty(&root).map_err(io::Error::from)?;
        text.push('\n');
        Ok(Some(text))
    })
}
