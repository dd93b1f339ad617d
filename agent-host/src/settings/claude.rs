//! `settings.json` files of Claude Code's format: permission rules, directories, mode, environment.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use swarm_protocol::permission::{PermissionMode, Rule, RuleBehavior, RuleOrigin};

use super::{
    error::Place,
    file::{MAX_BYTES, read_bounded},
    json_position::{self, StringAt},
};
use crate::rules::{RuleSet, RuleSyntaxError};

/// The levels, strongest first. Lists join over all of them; single values follow this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaudeLevel {
    Managed,
    /// `.claude/settings.local.json`, or the same under `$SWARM_HOME/projects`.
    Local,
    Project,
    User,
}

impl ClaudeLevel {
    /// The word of [`RuleOrigin::level`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Managed => "managed",
            Self::Local => "local",
            Self::Project => "project",
            Self::User => "user",
        }
    }
}

/// Where the files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaudePlaces {
    /// `/etc/claude-code/managed-settings.json` on Linux.
    pub managed: PathBuf,
    /// `~/.claude`, or `CLAUDE_CONFIG_DIR`.
    pub user_directory: PathBuf,
    /// The checkout the task was submitted from, never a worktree of a worker.
    pub project: PathBuf,
    /// `$SWARM_HOME/projects/<hash>/settings.local.json`
    pub swarm_local: PathBuf,
    /// Whether git ignores `.claude/settings.local.json`; if not, it is the repository's own.
    pub local_is_ignored: bool,
}

impl ClaudePlaces {
    /// The usual places on Linux. `claude_config_dir` is the variable `CLAUDE_CONFIG_DIR`.
    pub fn usual(
        project: &Path,
        home: &Path,
        claude_config_dir: Option<&Path>,
        swarm_home: &Path,
        local_is_ignored: bool,
    ) -> Self {
        Self {
            managed: PathBuf::from("/etc/claude-code/managed-settings.json"),
            user_directory: claude_config_dir.map_or_else(|| home.join(".claude"), Path::to_path_buf),
            project: project.to_path_buf(),
            swarm_local: super::RulePlace::under_swarm_home(project, swarm_home),
            local_is_ignored,
        }
    }
}

/// One file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaudeSettingsFile {
    pub path: PathBuf,
    pub level: ClaudeLevel,
    /// It came with the repository, so what it widens counts only after `swarm trust`.
    pub is_of_repository: bool,
    pub rules: Vec<Rule>,
    pub additional_directories: Vec<PathBuf>,
    /// As written; a mode that is not offered is kept for the notice.
    pub default_mode: Option<String>,
    pub disables_bypass: bool,
    pub env: BTreeMap<String, String>,
}

/// All levels together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaudeSettings {
    pub rules: Vec<Rule>,
    pub additional_directories: Vec<PathBuf>,
    pub default_mode: Option<PermissionMode>,
    /// A managed or other level forbids `bypassPermissions`.
    pub disables_bypass: bool,
    pub env: BTreeMap<String, String>,
    /// What was passed over, and why; to be told to a person.
    pub ignored: Vec<IgnoredSetting>,
    /// The files that were read, strongest first.
    pub files: Vec<PathBuf>,
}

/// A setting without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredSetting {
    pub path: PathBuf,
    /// Such as `allow Bash(npm *)`.
    pub what: String,
    pub why: &'static str,
}

const UNTRUSTED: &str = "the repository is not trusted: swarm trust";
const MODE_NOT_OFFERED: &str = "this mode is not offered yet";
const BYPASS_DISABLED: &str = "disableBypassPermissionsMode is set";

/// A settings file that cannot be used. A rule that does not parse is such an error, so that a refusal
/// is never lost.
#[derive(Debug, thiserror::Error)]
pub enum ClaudeSettingsError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not JSON: {message}")]
    Json { path: String, message: String, place: Box<Place> },
    #[error("{what}")]
    Shape { what: String, place: Box<Place> },
    #[error("the rule `{rule}` does not parse: {source}")]
    Rule { rule: String, place: Box<Place>, source: RuleSyntaxError },
}

impl ClaudeSettingsError {
    /// Where, if the file could be read.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Read { .. } => None,
            Self::Json { place, .. } | Self::Shape { place, .. } | Self::Rule { place, .. } => Some(place),
        }
    }
}

impl ClaudeSettings {
    /// Reads the files of all levels.
    pub fn load(
        places: &ClaudePlaces,
        repository_is_trusted: bool,
    ) -> Result<Self, Vec<ClaudeSettingsError>> {
        let files = Self::load_files(places)?;
        Ok(Self::join(&files, repository_is_trusted))
    }

    /// The files that exist, strongest first.
    pub fn load_files(places: &ClaudePlaces) -> Result<Vec<ClaudeSettingsFile>, Vec<ClaudeSettingsError>> {
        let ClaudePlaces { managed, user_directory, project, swarm_local, local_is_ignored } = places;
        let claude = project.join(".claude");
        let candidates = [
            (managed.clone(), ClaudeLevel::Managed, false, managed.parent().unwrap_or(managed)),
            (claude.join("settings.local.json"), ClaudeLevel::Local, !local_is_ignored, project),
            (swarm_local.clone(), ClaudeLevel::Local, false, project),
            (claude.join("settings.json"), ClaudeLevel::Project, true, project),
            (user_directory.join("settings.json"), ClaudeLevel::User, false, user_directory),
        ];
        let mut files = Vec::new();
        let mut errors = Vec::new();
        for (path, level, is_of_repository, anchor) in candidates {
            match read_bounded(&path, MAX_BYTES) {
                Ok(None) => {}
                Ok(Some(text)) => {
                    match ClaudeSettingsFile::parse(&path, &text, level, is_of_repository, anchor) {
                        Ok(file) => files.push(file),
                        Err(mut found) => errors.append(&mut found),
                    }
                }
                Err(source) => errors.push(ClaudeSettingsError::Read { path, source }),
            }
        }
        if errors.is_empty() { Ok(files) } else { Err(errors) }
    }

    /// Joins levels. Deny and ask rules always count.
    pub fn join(files: &[ClaudeSettingsFile], repository_is_trusted: bool) -> Self {
        let mut joined = Self::default();
        for file in files {
            let widens = repository_is_trusted || !file.is_of_repository;
            joined.add(file, widens);
        }
        if joined.disables_bypass && joined.default_mode == Some(PermissionMode::BypassPermissions) {
            joined.default_mode = None;
            let path = joined.files.first().cloned().unwrap_or_default();
            let what = "defaultMode bypassPermissions".into();
            joined.ignored.push(IgnoredSetting { path, what, why: BYPASS_DISABLED });
        }
        joined
    }

    fn add(&mut self, file: &ClaudeSettingsFile, widens: bool) {
        let ClaudeSettingsFile {
            path,
            level: _,
            is_of_repository: _,
            rules,
            additional_directories,
            default_mode,
            disables_bypass,
            env,
        } = file;
        self.files.push(path.clone());
        self.disables_bypass |= disables_bypass;
        for rule in rules {
            if widens || rule.behavior != RuleBehavior::Allow {
                self.rules.push(rule.clone());
            } else {
                self.ignore(path, format!("allow {}", rule.text), UNTRUSTED);
            }
        }
        for directory in additional_directories {
            if widens {
                self.additional_directories.push(directory.clone());
            } else {
                self.ignore(path, format!("additionalDirectories {}", directory.display()), UNTRUSTED);
            }
        }
        if let Some(word) = default_mode {
            match word.parse() {
                _ if !widens => self.ignore(path, format!("defaultMode {word}"), UNTRUSTED),
                Ok(mode) => {
                    self.default_mode.get_or_insert(mode);
                }
                Err(_) => self.ignore(path, format!("defaultMode {word}"), MODE_NOT_OFFERED),
            }
        }
        for (name, value) in env {
            if widens {
                self.env.entry(name.clone()).or_insert_with(|| value.clone());
            } else {
                self.ignore(path, format!("env {name}"), UNTRUSTED);
            }
        }
    }

    fn ignore(&mut self, path: &Path, what: String, why: &'static str) {
        self.ignored.push(IgnoredSetting { path: path.to_path_buf(), what, why });
    }
}

impl fmt::Display for IgnoredSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is ignored: {}", self.path.display(), self.what, self.why)
    }
}

impl ClaudeSettingsFile {
    /// Reads one text. `anchor` is the directory that `/relative` patterns start from.
    pub fn parse(
        path: &Path,
        text: &str,
        level: ClaudeLevel,
        is_of_repository: bool,
        anchor: &Path,
    ) -> Result<Self, Vec<ClaudeSettingsError>> {
        let reader = Reader { path: path.display().to_string(), text, strings: json_position::strings(text) };
        let root = reader.root().map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        let empty = Map::new();
        let permissions = match root.get("permissions") {
            Some(Value::Object(permissions)) => permissions,
            None | Some(Value::Null) => &empty,
            Some(_) => {
                errors.push(reader.shape("permissions", "permissions must be an object"));
                &empty
            }
        };
        let mut rules = Vec::new();
        for (key, behavior) in
            [("deny", RuleBehavior::Deny), ("ask", RuleBehavior::Ask), ("allow", RuleBehavior::Allow)]
        {
            for (index, text) in reader.texts(permissions, key, &mut errors).into_iter().enumerate() {
                let place = reader.element(key, index);
                let origin = RuleOrigin {
                    level: level.as_str().into(),
                    file: Some(reader.path.clone()),
                    line: u32::try_from(place.line).ok(),
                    anchor: Some(anchor.display().to_string()),
                };
                match RuleSet::default().add(Rule { behavior, text: text.clone(), origin: origin.clone() }) {
                    Ok(()) => rules.push(Rule { behavior, text, origin }),
                    Err(error) => errors.push(reader.rule_error(text, place, error.source)),
                }
            }
        }
        let additional_directories = reader
            .texts(permissions, "additionalDirectories", &mut errors)
            .into_iter()
            .map(|directory| crate::dangerous::normalize(&anchor.join(directory)))
            .collect();
        let text_of = |key: &str| permissions.get(key).and_then(Value::as_str).map(str::to_owned);
        let env = reader.env(&root, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            path: path.to_path_buf(),
            level,
            is_of_repository,
            rules,
            additional_directories,
            default_mode: text_of("defaultMode"),
            disables_bypass: text_of("disableBypassPermissionsMode").as_deref() == Some("disable"),
            env,
        })
    }
}

/// One file under reading.
struct Reader<'a> {
    path: String,
    text: &'a str,
    strings: Vec<StringAt>,
}

impl Reader<'_> {
    fn root(&self) -> Result<Map<String, Value>, ClaudeSettingsError> {
        // An empty file is what an interrupted editor leaves; it holds no rule.
        if self.text.trim().is_empty() {
            return Ok(Map::new());
        }
        match serde_json::from_str(self.text.trim_start_matches('\u{feff}')) {
            Ok(Value::Object(root)) => Ok(root),
            Ok(_) => Err(self.shape("", "the file must hold a JSON object")),
            Err(error) => {
                let line_start: usize =
                    self.text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
                let at = line_start + error.column().saturating_sub(1);
                let message = error.to_string();
                let message = message.split(" at line ").next().unwrap_or_default().to_owned();
                let place = Box::new(Place::of(&self.path, self.text, at..at + 1));
                Err(ClaudeSettingsError::Json { path: self.path.clone(), message, place })
            }
        }
    }

    fn shape(&self, key: &str, what: &str) -> ClaudeSettingsError {
        let quoted = format!("\"{key}\"");
        let at = self.text.find(&quoted).map_or(0..1, |at| at..at + quoted.len());
        ClaudeSettingsError::Shape {
            what: what.to_owned(),
            place: Box::new(Place::of(&self.path, self.text, at)),
        }
    }

    fn texts(
        &self,
        permissions: &Map<String, Value>,
        key: &str,
        errors: &mut Vec<ClaudeSettingsError>,
    ) -> Vec<String> {
        let wrong = || self.shape(key, &format!("permissions.{key} must be a list of texts"));
        let list = match permissions.get(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                errors.push(wrong());
                return Vec::new();
            }
        };
        let texts: Option<Vec<String>> = list.iter().map(|value| value.as_str().map(str::to_owned)).collect();
        texts.unwrap_or_else(|| {
            errors.push(wrong());
            Vec::new()
        })
    }

    fn env(
        &self,
        root: &Map<String, Value>,
        errors: &mut Vec<ClaudeSettingsError>,
    ) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        match root.get("env") {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) => {
                for (name, value) in map {
                    match value {
                        Value::String(text) => drop(env.insert(name.clone(), text.clone())),
                        Value::Number(_) | Value::Bool(_) => {
                            drop(env.insert(name.clone(), value.to_string()))
                        }
                        _ => errors.push(self.shape(name, &format!("env.{name} must be text"))),
                    }
                }
            }
            Some(_) => errors.push(self.shape("env", "env must be an object")),
        }
        env
    }

    /// The place of an element of `permissions.<key>`. Of keys given twice the last one counts.
    fn element(&self, key: &str, index: usize) -> Place {
        let wanted = ["permissions".to_owned(), key.to_owned(), index.to_string()];
        let span = self
            .strings
            .iter()
            .rev()
            .find(|string| string.path == wanted)
            .map_or(0..1, |string| string.span.clone());
        Place::of(&self.path, self.text, span)
    }

    fn rule_error(&self, rule: String, mut place: Place, source: RuleSyntaxError) -> ClaudeSettingsError {
        // Into the string, behind its quote; escapes before it would shift this by a little.
        let into = source.at() + 1;
        if into < place.width {
            place.column += into;
            place.width = 1;
        }
        ClaudeSettingsError::Rule { rule, place: Box::new(place), source }
    }
}
