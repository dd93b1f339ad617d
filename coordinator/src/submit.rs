//! From a task as it was submitted to a session: repository, settings, trust, models. What is wrong is found
//! here, before anything exists.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_host::{
    ClaudePlaces, ClaudeSettings, ClaudeSettingsError, Config, ConfigError, ConfigInputs, ConfigReadError,
    Flag, RepositoryWants, TomlText, Trust, TrustError,
};
use model_client::EndpointError;
use swarm_protocol::{
    SessionId,
    api::{ClientContext, CreateTask, TaskAccepted},
    event::SessionSpec,
    launch::{AgentLimits, ModelEndpoint, Models},
    permission::PermissionMode,
    usage::Caps,
};
use worktree_manager::{BaseError, Head, OpenError, ReadError, Repository};

use crate::{
    home::Home,
    journal::AppendError,
    prefix_store,
    server::{Shared, profiles},
    session::{KeyRing, Order, OrderError, Submit, engine, title_of},
    sessions,
};

mod carry;

pub(crate) use carry::CarryError;

/// A prompt longer than this is surely a mistake, in bytes.
const PROMPT_BYTES: usize = 1024 * 1024;

/// Why a task was not accepted. Nothing was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    /// Nothing to do.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// More than a megabyte of prompt.
    #[error("the prompt has more than {PROMPT_BYTES} bytes")]
    PromptTooLong,
    /// Neither a repository nor a session.
    #[error("neither `repo` nor `session_id` says where to work")]
    NoPlace,
    /// A field that only a new session takes.
    #[error("`{what}` cannot be given together with `session_id`: the session has its own")]
    NotWithSession {
        /// Which field.
        what: &'static str,
    },
    /// The server is being stopped.
    #[error("the server is being stopped")]
    Stopping,
    /// No repository, or one of a kind that is refused.
    #[error(transparent)]
    Repository(#[from] OpenError),
    /// Its path, or that of its git directory, is no text.
    #[error("the repository's path is not valid UTF-8: {}", path.display())]
    NotUtf8 {
        /// Which.
        path: PathBuf,
    },
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The uncommitted changes cannot come along.
    #[error(transparent)]
    Carry(#[from] CarryError),
    /// It could not be looked at.
    #[error("cannot look at the repository: {0}")]
    Facts(String),
    /// Nothing has that name, or there is no commit.
    #[error("{repo} has no commit `{spec}`")]
    Base {
        /// The repository.
        repo: PathBuf,
        /// As given.
        spec: String,
        /// Why.
        #[source]
        source: BaseError,
        /// Whether it came from `--base`.
        given: bool,
    },
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A settings file could not be read.
    #[error(transparent)]
    ConfigRead(#[from] ConfigReadError),
    /// Claude Code's settings files.
    #[error("{}", first_of(errors))]
    Settings {
        /// All that is wrong.
        errors: Vec<ClaudeSettingsError>,
    },
    /// The store of agreements.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No model was named anywhere.
    #[error("no model is configured")]
    NoModel,
    /// A model's name leads nowhere, or its key is missing.
    #[error(transparent)]
    Model(#[from] EndpointError),
    /// A cap in dollars over a model of unknown price.
    #[error("{cap} needs the price of {model}, which is not known")]
    UnknownPrice {
        /// The setting that caps.
        cap: &'static str,
        /// `provider/model`.
        model: String,
        /// The endpoint profile's name, where a price can stand.
        profile: String,
    },
    /// `bypassPermissions` is forbidden by a managed setting.
    #[error("bypassPermissions is switched off by {by}")]
    BypassDisabled {
        /// Which file.
        by: String,
    },
    /// No such session.
    #[error("no session {0}")]
    UnknownSession(SessionId),
    /// The callback's address.
    #[error("`callback_url` must be an http or https address")]
    CallbackUrl,
    /// The session said no.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] AppendError),
    /// A file of the home.
    #[error("cannot write under {home}: {source}")]
    Home {
        /// The home.
        home: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

fn first_of(errors: &[ClaudeSettingsError]) -> String {
    let first = errors.first().map(ToString::to_string).unwrap_or_default();
    match errors.len() {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

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

/// Accepts a task: opens a session for it, or continues one.
pub(crate) async fn submit(shared: &Arc<Shared>, task: CreateTask) -> Result<TaskAccepted, SubmitError> {
    check_words(&task)?;
    if shared.stopping.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(SubmitError::Stopping);
    }
    if let Some(session_id) = task.session_id {
        let handle = shared.sessions.get(session_id).ok_or(SubmitError::UnknownSession(session_id))?;
        let keys = continue_keys(shared, &handle, task.client.as_ref()).await?;
        let submit = Submit {
            text: task.prompt,
            unattended: task.unattended,
            callback_url: task.callback_url,
            callback_asks: task.callback_asks,
            labels: task.labels,
            keys,
        };
        let submitted = handle.try_ask(|reply| Order::Submit(submit, reply)).await?;
        return Ok(TaskAccepted {
            task_id: submitted.task_id,
            session_id,
            after: submitted.after,
            notices: Vec::new(),
        });
    }
    let (spec, keys, notices) = specify(shared, &task).await?;
    let handle = sessions::open(shared, spec, keys.clone()).await?;
    let submit = Submit {
        text: task.prompt,
        unattended: task.unattended,
        callback_url: task.callback_url,
        callback_asks: task.callback_asks,
        labels: task.labels,
        keys,
    };
    let submitted = handle.try_ask(|reply| Order::Submit(submit, reply)).await?;
    Ok(TaskAccepted {
        task_id: submitted.task_id,
        session_id: handle.id,
        // From the very first event, which opens the session.
        after: swarm_protocol::Seq(0),
        notices,
    })
}

fn check_words(task: &CreateTask) -> Result<(), SubmitError> {
    if task.prompt.trim().is_empty() {
        return Err(SubmitError::EmptyPrompt);
    }
    if task.prompt.len() > PROMPT_BYTES {
        return Err(SubmitError::PromptTooLong);
    }
    if task.session_id.is_some() {
        // A session's repository, base, models and bounds are those it was opened with.
        let given = [
            ("repo", task.repo.is_some()),
            ("base", task.base.is_some()),
            ("carry", task.carry),
            ("model", task.model.is_some()),
            ("permission_mode", task.permission_mode.is_some()),
            ("max_workers", task.max_workers.is_some()),
            ("max_turns", task.max_turns.is_some()),
            ("check", task.check.is_some()),
            ("budget", task.budget.is_some()),
            ("system_prompt", task.system_prompt.is_some()),
            ("tmux", task.tmux),
        ];
        if let Some((what, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(SubmitError::NotWithSession { what });
        }
    }
    if let Some(url) = &task.callback_url {
        let wellformed = reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        if !wellformed {
            return Err(SubmitError::CallbackUrl);
        }
    }
    Ok(())
}

/// Variables and flags of who submits: the client's, else the server's own.
struct Source {
    env: Vec<(String, String)>,
    flags: Vec<Flag>,
    secrets: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    user_home: PathBuf,
}

fn source_of(shared: &Shared, task: &CreateTask) -> Source {
    let mut source = match &task.client {
        Some(client) => client_source(client, &shared.user_home),
        None => Source {
            env: shared.environment.clone().into_iter().collect(),
            flags: Vec::new(),
            secrets: shared.environment.clone(),
            environment: passed(&shared.environment),
            user_home: shared.user_home.clone(),
        },
    };
    let mut flag = |flag: &str, key: &str, value: Option<String>| {
        if let Some(value) = value {
            source.flags.push(Flag { flag: flag.to_owned(), key: key.to_owned(), value });
        }
    };
    flag("--model", "model", task.model.clone());
    flag("--check", "check", task.check.clone());
    flag("--max-workers", "max_workers", task.max_workers.map(|n| n.to_string()));
    let budget = task.budget.unwrap_or_default();
    flag("--budget-usd", "budget_usd", budget.usd.map(|usd| usd.to_string()));
    flag("--budget-tokens", "budget_tokens", budget.tokens.map(|tokens| tokens.to_string()));
    flag("--max-turns", "worker.max_turns", task.max_turns.map(|n| n.to_string()));
    flag("--permission-mode", "permission_mode", task.permission_mode.map(|mode| mode.as_str().to_owned()));
    source
}

fn client_source(client: &ClientContext, user_home: &Path) -> Source {
    let mut env = Vec::new();
    let mut flags = Vec::new();
    for setting in &client.settings {
        if setting.source.starts_with("--") {
            flags.push(Flag {
                flag: setting.source.clone(),
                key: setting.key.clone(),
                value: setting.value.clone(),
            });
        } else {
            env.push((setting.source.clone(), setting.value.clone()));
        }
    }
    Source {
        env,
        flags,
        secrets: client.secrets.clone(),
        environment: passed(&client.environment),
        user_home: client.home.as_ref().map_or_else(|| user_home.to_owned(), PathBuf::from),
    }
}

/// Variables that programs need to be found and to speak, and where tool chains say they stand. Everything else
/// stays out of what commands see and of what is recorded: a name does not tell whether its value opens a door.
const PASSED: [&str; 62] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "CI",
    "CC",
    "CXX",
    "AR",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "MAKEFLAGS",
    "PKG_CONFIG_PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "CMAKE_PREFIX_PATH",
    "CMAKE_GENERATOR",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUSTFLAGS",
    "RUST_BACKTRACE",
    "GOPATH",
    "GOROOT",
    "GOFLAGS",
    "GOBIN",
    "GOCACHE",
    "GOMODCACHE",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "NVM_DIR",
    "NVM_BIN",
    "NODE_PATH",
    "NODE_ENV",
    "VOLTA_HOME",
    "BUN_INSTALL",
    "DENO_DIR",
    "PNPM_HOME",
    "JAVA_HOME",
    "JDK_HOME",
    "MAVEN_HOME",
    "M2_HOME",
    "GRADLE_HOME",
    "GRADLE_USER_HOME",
    "ANDROID_HOME",
    "RBENV_ROOT",
    "GEM_HOME",
    "GEM_PATH",
    "DOTNET_ROOT",
    "SDKMAN_DIR",
    "ASDF_DIR",
];

/// The environment that commands may see of a person's own.
pub(crate) fn passed(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    environment
        .iter()
        .filter(|(name, _)| PASSED.contains(&name.as_str()) || name.starts_with("LC_"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What settings files name for commands: all of it but what looks like a key, and what is swarm's or git's own.
fn named(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const SECRETS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "COOKIE"];
    let keeps = |name: &str| {
        let upper = name.to_uppercase();
        !upper.starts_with("SWARM_")
            && !upper.starts_with("GIT_")
            && !SECRETS.iter().any(|secret| upper.contains(secret))
    };
    let kept = environment.iter().filter(|(name, _)| keeps(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

async fn specify(
    shared: &Arc<Shared>,
    task: &CreateTask,
) -> Result<(SessionSpec, KeyRing, Vec<String>), SubmitError> {
    let place = task.repo.as_deref().ok_or(SubmitError::NoPlace)?;
    let source = source_of(shared, task);
    let repository = Repository::open(Path::new(place)).await?;
    if let Some(path) =
        [repository.root(), repository.common_dir()].into_iter().find(|p| p.to_str().is_none())
    {
        return Err(SubmitError::NotUtf8 { path: path.to_owned() });
    }
    let facts = repository
        .facts()
        .await
        .map_err(|error| SubmitError::Facts(crate::session::actor::error_chain(&error)))?;
    carry::check(task, &facts)?;
    let checkout = repository.root().to_owned();
    let spec_text = task.base.clone().unwrap_or_else(|| "HEAD".to_owned());
    let base = repository.resolve_base(&spec_text).await.map_err(|error| SubmitError::Base {
        repo: checkout.clone(),
        spec: spec_text.clone(),
        source: error,
        given: task.base.is_some(),
    })?;
    let Settings { config, claude, wants, trust } =
        settings_of(&shared.home, &source.user_home, Some(&checkout), &source.env, &source.flags)?;
    let (models, keys) = models(&config, &source)?;
    check_prices(&config, &models)?;
    let permission_mode = permission_mode(&config, &claude)?;
    let carried = carry::take(&repository, task, &facts, &base.commit).await?;
    let mut notices = notices(&facts, &base, carried.as_ref(), &wants, &trust, &claude);
    let untrusted = notices.iter().filter(|notice| notice.starts_with("not trusted")).cloned().collect();
    if let Some(distance) = &base.to_origin
        && (distance.ahead > 0 || distance.behind > 0)
    {
        notices
            .push(format!("base is {} ahead of, {} behind {}", distance.ahead, distance.behind, distance.to));
    }
    let (target_branch, base_name) = match &facts.head {
        Head::Branch { branch, .. } => (Some(branch.clone()), branch.clone()),
        Head::Detached { commit } => (None, commit.short().to_owned()),
        Head::Unborn { branch } => (Some(branch.clone()), branch.clone()),
    };
    let mut environment = source.environment.clone();
    environment.extend(named(&claude.env));
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut spec = SessionSpec {
        repo: checkout,
        repo_key: repository.directory_name().to_owned(),
        base_name: match &carried {
            Some(_) => format!("{base_name} with uncommitted changes"),
            None => task.base.clone().unwrap_or(base_name),
        },
        base: carried.map_or(base.commit, |carried| carried.commit).to_string(),
        target_branch,
        title: title_of(&task.prompt),
        models,
        permission_mode,
        max_workers: config.max_workers,
        coordinator_max_turns: config.coordinator_max_turns,
        worker_limits: AgentLimits {
            max_turns: config.worker_max_turns,
            permission_timeout_ms: millis(config.permission_timeout),
            background_grace_ms: millis(config.background_grace),
            max_tool_concurrency: config.max_tool_concurrency as usize,
            sandbox_auto_allow: config.sandbox_auto_allow,
            sandbox_required: config.sandbox_required,
            sandbox_network: config.sandbox_network,
            git_lock_wait_ms: millis(shared.settings.git_lock_wait),
            budget: Caps { usd: config.worker_budget_usd, tokens: config.worker_budget_tokens },
            cache_keepalive: config.cache_keepalive,
        },
        worker_restarts: config.worker_restarts,
        notification_window_ms: millis(config.notification_window),
        setup: joined(&config.setup),
        check: joined(&config.check),
        branch_prefix: config.worktree_branch_prefix.clone(),
        worktree_root: config.worktree_root.clone(),
        rules: claude.rules.clone(),
        system_prompt: task.system_prompt.clone(),
        tmux: task.tmux,
        environment,
        home: source.user_home,
        untrusted,
        budget: Caps { usd: config.budget_usd, tokens: config.budget_tokens },
        prefix_sha256: String::new(),
    };
    spec.prefix_sha256 = prefix_store::keep(&shared.home.prompts(), &engine::new_prefix(&spec))
        .map_err(|source| SubmitError::Home { home: shared.home.root().to_owned(), source })?;
    Ok((spec, keys, notices))
}

/// A cap in dollars can only be kept where every call has a price.
fn check_prices(config: &Config, models: &Models) -> Result<(), SubmitError> {
    let Models { coordinator, worker, helper, fallback } = models;
    let of_workers = [Some(worker), helper.as_ref(), fallback.as_ref()];
    let cap = match (config.budget_usd, config.worker_budget_usd) {
        (Some(_), _) => "budget_usd",
        (None, Some(_)) => "worker.budget_usd",
        (None, None) => return Ok(()),
    };
    let of_coordinator = config.budget_usd.map(|_| coordinator);
    let mut capped = of_workers.into_iter().chain([of_coordinator]).flatten();
    match capped.find(|endpoint| !model_client::is_priced(endpoint)) {
        None => Ok(()),
        Some(endpoint) => Err(SubmitError::UnknownPrice {
            cap,
            model: endpoint.display_name(),
            profile: endpoint.provider.clone(),
        }),
    }
}

fn joined(commands: &[String]) -> Option<String> {
    (!commands.is_empty()).then(|| commands.join(" && "))
}

fn notices(
    facts: &worktree_manager::Facts,
    base: &worktree_manager::ResolvedBase,
    carried: Option<&carry::Carried>,
    wants: &RepositoryWants,
    trust: &Trust,
    claude: &ClaudeSettings,
) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(carried) = carried {
        notices.extend(carried.notices.iter().cloned());
    } else if !facts.dirty.is_empty() {
        notices.push(format!(
            "{} changed files in your checkout are not part of it: workers start from commit {} (--carry takes them along)",
            facts.dirty.len(),
            base.commit.short()
        ));
    }
    if !trust.holds() {
        notices
            .extend(wants.lines().iter().map(|line| format!("not trusted, ignored: {line} (swarm trust)")));
    }
    notices.extend(
        claude.ignored.iter().map(|ignored| {
            format!("ignored: {} in {}: {}", ignored.what, ignored.path.display(), ignored.why)
        }),
    );
    notices
}

fn permission_mode(config: &Config, claude: &ClaudeSettings) -> Result<PermissionMode, SubmitError> {
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

fn models(config: &Config, source: &Source) -> Result<(Models, KeyRing), SubmitError> {
    let profiles = profiles(config);
    let environment = |name: &str| source.secrets.get(name).cloned();
    let mut keys = KeyRing::default();
    let mut resolve = |name: &str| -> Result<ModelEndpoint, SubmitError> {
        let resolved = model_client::resolve_endpoint(name, &profiles, &environment)?;
        if let Some(key) = resolved.key.and_then(|key| key.read(&environment)) {
            keys.0.insert(resolved.endpoint.provider.clone(), key);
        }
        let mut endpoint = resolved.endpoint;
        if endpoint.context_window.is_none() {
            endpoint.context_window = config.context_window;
        }
        Ok(endpoint)
    };
    let usual = config.model.as_deref();
    let coordinator = config.coordinator_model.as_deref().or(usual).ok_or(SubmitError::NoModel)?;
    let worker = config.worker_model.as_deref().or(usual).unwrap_or(coordinator);
    let models = Models {
        coordinator: resolve(coordinator)?,
        worker: resolve(worker)?,
        helper: config.helper_model.as_deref().map(&mut resolve).transpose()?,
        fallback: config.fallback_model.as_deref().map(&mut resolve).transpose()?,
    };
    Ok((models, keys))
}

/// Keys that a client brings to a session that exists: for the providers it uses.
pub(crate) async fn continue_keys(
    shared: &Shared,
    handle: &crate::session::SessionHandle,
    client: Option<&ClientContext>,
) -> Result<KeyRing, SubmitError> {
    let mut keys = KeyRing::default();
    let Some(client) = client else { return Ok(keys) };
    let models = handle.read(|model| model.spec.models.clone()).await?;
    let environment = |name: &str| client.secrets.get(name).cloned();
    let profiles = profiles(&shared.settings);
    let endpoints =
        [Some(&models.coordinator), Some(&models.worker), models.helper.as_ref(), models.fallback.as_ref()];
    for endpoint in endpoints.into_iter().flatten() {
        // Missing keys are found out when they are needed.
        let resolved = model_client::resolve_endpoint(&endpoint.display_name(), &profiles, &environment);
        if let Some(key) =
            resolved.ok().and_then(|resolved| resolved.key).and_then(|key| key.read(&environment))
        {
            keys.0.insert(endpoint.provider.clone(), key);
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x23_only_what_programs_need_reaches_commands() {
        let environment: BTreeMap<String, String> = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("ANTHROPIC_API_KEY", "k"),
            ("DATABASE_URL", "postgres://u:p@h"),
            ("MYSQL_PWD", "p"),
            ("GITLAB_PAT", "t"),
            ("HTTP_PROXY", "http://u:p@h"),
            ("SSH_AUTH_SOCK", "/x"),
            ("SWARM_HOME", "/y"),
            ("GIT_DIR", "/z"),
            ("CARGO_HOME", "/c"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        assert_eq!(passed(&environment).into_keys().collect::<Vec<_>>(), ["CARGO_HOME", "LC_ALL", "PATH"]);
        // What a settings file names is wanted there.
        let kept: Vec<String> = named(&environment).into_keys().collect();
        assert!(kept.contains(&"DATABASE_URL".to_owned()) && !kept.contains(&"ANTHROPIC_API_KEY".to_owned()));
    }
}
