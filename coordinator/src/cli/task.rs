//! What a shell resolves on its side and sends with a task: settings with their source, keys and endpoints,
//! the environment for commands. What is wrong with it is said before a server is asked, or started.

use std::collections::BTreeMap;

use agent_host::{Config, ConfigError, ConfigInputs, Flag, TomlText};
use swarm_protocol::{
    api::{ClientContext, ClientSetting},
    permission::PermissionMode,
};

use super::{
    args::RunArgs,
    error::{CliError, Result},
    repository::Repository,
    shell::{Shell, Surroundings},
};

/// Endings of variables that name a key or an endpoint.
const SECRET_ENDINGS: [&str; 3] = ["_API_KEY", "_AUTH_TOKEN", "_BASE_URL"];

/// Parts of names that say a variable is nobody's business.
const SECRET_PARTS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];

/// Starts of names that belong to this terminal or this shell, not to commands of workers.
const PRIVATE_STARTS: [&str; 5] = ["SWARM_", "SSH_AUTH_SOCK", "DBUS_", "DISPLAY", "WAYLAND_"];

/// The settings of a command, as far as the shell can see them.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Joined as if the repository were trusted: whether it is, the server knows.
    pub(crate) config: Config,
    flags: Vec<Flag>,
}

/// Joins the settings, or says what is wrong with them, and where.
pub(crate) fn settings(shell: &Shell, repository: Option<&Repository>, flags: Vec<Flag>) -> Result<Settings> {
    let read = |path: &std::path::Path, shown: &str| {
        TomlText::read(path, shown)
            .map_err(|error| CliError::new("bad_config", error.to_string()).cause(error.source.to_string()))
    };
    let home_path = shell.home.config();
    let home = read(&home_path, &shell.path(&home_path))?;
    let own = match repository {
        Some(repository) => read(&repository.checkout.join("swarm.toml"), "swarm.toml")?,
        None => None,
    };
    let env: Vec<(String, String)> = shell
        .around
        .variables
        .iter()
        .filter(|(name, value)| name.starts_with("SWARM_") && !value.is_empty())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let config = Config::new(&ConfigInputs {
        home: home.as_ref(),
        repository: own.as_ref(),
        repository_is_trusted: true,
        env: &env,
        flags: &flags,
    })
    .map_err(|error| config_error(&error))?;
    Ok(Settings { config, flags })
}

/// The flags of `run` that are settings.
pub(crate) fn flags(args: &RunArgs) -> Vec<Flag> {
    [
        flag("--model", "model", args.model.as_deref()),
        flag("--max-workers", "max_workers", args.max_workers.as_deref()),
        flag("--max-turns", "worker.max_turns", args.max_turns.as_deref()),
        flag("--budget-usd", "budget_usd", args.budget_usd.as_deref()),
        flag("--budget-tokens", "budget_tokens", args.budget_tokens.as_deref()),
        flag("--permission-mode", "permission_mode", args.permission_mode.map(PermissionMode::as_str)),
        flag("--check", "check", args.check.as_deref()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A flag that is a setting, if it was given.
pub(crate) fn flag(name: &str, key: &str, value: Option<&str>) -> Option<Flag> {
    value.map(|value| Flag { flag: name.to_owned(), key: key.to_owned(), value: value.to_owned() })
}

/// The error when nothing names a model.
pub(crate) fn require_model(shell: &Shell, settings: &Settings) -> Result<()> {
    let Config { model, coordinator_model, .. } = &settings.config;
    if model.is_some() || coordinator_model.is_some() {
        return Ok(());
    }
    let config = shell.path(&shell.home.config());
    Err(CliError::new("no_model", "no model is configured")
        .cause(format!("looked at --model, SWARM_MODEL, swarm.toml, {config}"))
        .hint(
            "set ANTHROPIC_API_KEY and pass --model anthropic/NAME, or see it work: swarm run --model demo",
        ))
}

/// A setting that is wrong, in our form.
pub(crate) fn config_error(error: &ConfigError) -> CliError {
    let mut shown = CliError::new("bad_config", error.to_string());
    if let Some(cause) = error.cause() {
        shown = shown.cause(cause);
    }
    match &error.hint {
        Some(hint) => shown.hint(hint.clone()),
        None => shown,
    }
}

/// What goes along with a task.
pub(crate) fn context(around: &Surroundings, settings: &Settings) -> ClientContext {
    let from_variables = settings.config.explain().iter().filter_map(|explained| {
        let name = format!("SWARM_{}", explained.key.replace('.', "_").to_ascii_uppercase());
        let value = around.variable(&name)?.to_owned();
        Some(ClientSetting { key: explained.key.clone(), value, source: name })
    });
    let from_flags = settings.flags.iter().map(|flag| ClientSetting {
        key: flag.key.clone(),
        value: flag.value.clone(),
        source: flag.flag.clone(),
    });
    let config = &settings.config;
    let named: Vec<&str> = config
        .endpoints
        .values()
        .filter_map(|endpoint| endpoint.key_env.as_deref())
        .chain(config.tools.key_variables().map(|(_, variable)| variable))
        .collect();
    let (secrets, environment) = sort_variables(&around.variables, &named);
    ClientContext {
        settings: from_variables.chain(from_flags).collect(),
        secrets,
        environment,
        home: Some(around.user_home.to_string_lossy().into_owned()),
    }
}

/// Keys and endpoints apart from what commands may see; what is neither is left here.
fn sort_variables(
    variables: &BTreeMap<String, String>,
    named: &[&str],
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut secrets = BTreeMap::new();
    let mut environment = BTreeMap::new();
    for (name, value) in variables {
        let upper = name.to_ascii_uppercase();
        if PRIVATE_STARTS.iter().any(|start| upper.starts_with(start)) {
            continue;
        }
        let is_endpoint = SECRET_ENDINGS.iter().any(|ending| upper.ends_with(ending));
        if is_endpoint || named.contains(&name.as_str()) {
            if !value.is_empty() {
                secrets.insert(name.clone(), value.clone());
            }
        } else if !SECRET_PARTS.iter().any(|part| upper.contains(part)) {
            environment.insert(name.clone(), value.clone());
        }
    }
    (secrets, environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_reach_the_environment_of_commands() {
        let variables: BTreeMap<String, String> = [
            ("ANTHROPIC_API_KEY", "sk"),
            ("ANTHROPIC_AUTH_TOKEN", "t"),
            ("OPENAI_BASE_URL", "http://x"),
            ("LAB_SECRET_KEY", "lab"),
            ("GITHUB_TOKEN", "gh"),
            ("DB_PASSWORD", "p"),
            ("SWARM_MODEL", "demo"),
            ("SSH_AUTH_SOCK", "/s"),
            ("DBUS_SESSION_BUS_ADDRESS", "d"),
            ("DISPLAY", ":0"),
            ("PATH", "/bin"),
            ("LANG", "C.UTF-8"),
            ("EMPTY_API_KEY", ""),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        let (secrets, environment) = sort_variables(&variables, &["LAB_SECRET_KEY"]);
        assert_eq!(
            secrets.into_keys().collect::<Vec<_>>(),
            ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "LAB_SECRET_KEY", "OPENAI_BASE_URL"]
        );
        assert_eq!(environment.into_keys().collect::<Vec<_>>(), ["LANG", "PATH"]);
    }
}
