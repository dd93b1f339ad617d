//! What the settings files of a person and of a repository come to, under trust.

use std::path::{Path, PathBuf};

use agent_host::{
    ClaudePlaces, ClaudeSettings, Config, ConfigInputs, Flag, RepositoryWants, TomlText, Trust,
};
use swarm_protocol::permission::PermissionMode;

use super::SubmitError;
use crate::home::Home;

/// What a repository's settings come to.
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) claude: ClaudeSettings,
    pub(crate) wants: RepositoryWants,
    pub(crate) trust: Trust,
}

/// Where a person's agreements are kept.
pub(crate) fn trust_store(home: &Home) -> PathBuf {
    home.root().join("trust.json")
}

/// Reads all settings that count for a checkout.
pub(crate) fn settings_of(
    home: &Home,
    user_home: &Path,
    checkout: Option<&Path>,
    env: &[(String, String)],
    flags: &[Flag],
) -> Result<Settings, SubmitError> {
    let own = TomlText::read(&home.config(), &shown(&home.config(), user_home))?;
    let repository = match checkout {
        Some(checkout) => TomlText::read(&checkout.join("swarm.toml"), "swarm.toml")?,
        None => None,
    };
    let project = checkout.unwrap_or(user_home);
    let local_is_ignored = checkout.is_some_and(crate::always::local_is_ignored);
    let claude_dir =
        env.iter().find(|(name, _)| name == "CLAUDE_CONFIG_DIR").map(|(_, path)| PathBuf::from(path));
    let places =
        ClaudePlaces::usual(project, user_home, claude_dir.as_deref(), home.root(), local_is_ignored);
    let files = ClaudeSettings::load_files(&places).map_err(|errors| SubmitError::Settings { errors })?;
    let wants = RepositoryWants::collect(repository.as_ref(), &files)?;
    let trust = match checkout {
        Some(checkout) => wants.check(&trust_store(home), checkout)?,
        None => Trust::NothingAsked,
    };
    let config = Config::new(&ConfigInputs {
        home: own.as_ref(),
        repository: repository.as_ref(),
        repository_is_trusted: trust.holds(),
        env,
        flags,
    })?;
    let claude = ClaudeSettings::join(&files, trust.holds());
    Ok(Settings { config, claude, wants, trust })
}

/// A path as people read it: `~` for the home directory.
pub(crate) fn shown(path: &Path, user_home: &Path) -> String {
    match path.strip_prefix(user_home) {
        Ok(rest) => format!("~/{}", rest.display()),
        Err(_) => path.display().to_string(),
    }
}

pub(crate) fn permission_mode(
    config: &Config,
    claude: &ClaudeSettings,
) -> Result<PermissionMode, SubmitError> {
    // A mode given to swarm itself is stronger than the settings files' default.
    let built_in = matches!(config.source("permission_mode"), None | Some(agent_host::Source::Default));
    let mode = match claude.default_mode {
        Some(mode) if built_in => mode,
        _ => config.permission_mode,
    };
    if mode == PermissionMode::BypassPermissions && claude.disables_bypass {
        let by = claude.files.first().map(|path| path.display().to_string()).unwrap_or_default();
        return Err(SubmitError::BypassDisabled { by });
    }
    Ok(mode)
}
