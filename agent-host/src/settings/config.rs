//! The values in force, each with its source.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    time::Duration,
};

use swarm_protocol::{
    launch::{SandboxSettings, ToolSettings},
    permission::PermissionMode,
};

use super::{
    endpoint::{self, EndpointProfile},
    error::{ConfigError, ConfigProblem, Place, Source},
    keys::{self, KEYS, Key, Kind},
    toml_file::{self, Entry, Raw, TomlText},
    tools,
    value::{Value, check, show, value_of},
};

/// What [`Config::new`] joins; strongest last.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfigInputs<'a> {
    /// `$SWARM_HOME/config.toml`
    pub home: Option<&'a TomlText>,
    /// `swarm.toml` at the repository's root, of the checkout the task was submitted from.
    pub repository: Option<&'a TomlText>,
    /// Whether `swarm trust` covers what that file runs or widens.
    pub repository_is_trusted: bool,
    /// Variables of the client; those that are no setting are passed over.
    pub env: &'a [(String, String)],
    pub flags: &'a [Flag],
}

/// A setting given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// With its dashes.
    pub flag: String,
    /// The setting's name.
    pub key: String,
    pub value: String,
}

/// One line of `swarm config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedValue {
    pub key: String,
    /// As in TOML; `-` for none.
    pub value: String,
    pub source: Source,
    /// Values below that are not in force, strongest first.
    pub overrides: Vec<(String, Source)>,
    /// Set when the value of an untrusted repository was passed over.
    pub ignored: Option<(String, Source)>,
}

/// How a terminal is told that something waits for a person, or that a task has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Notify {
    /// BEL: what the terminal makes of it is the person's choice there.
    #[default]
    Bell,
    /// OSC 9: a notification of the desktop, with words.
    Osc9,
    Off,
}

impl Notify {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "bell" => Some(Self::Bell),
            "osc9" => Some(Self::Osc9),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// The remote channel of the permission desk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Where messages go.
    pub url: String,
    pub kind: ChannelKind,
    /// The chat that a bot writes to.
    pub chat: Option<String>,
    /// Where answers reach this server from there; its own address, if not said.
    pub answer_url: Option<String>,
}

/// The form of a channel's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChannelKind {
    /// Text and actions as they are.
    #[default]
    Json,
    /// With Slack's blocks.
    Slack,
    /// As Telegram's `sendMessage` takes it.
    Telegram,
}

impl ChannelKind {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "json" => Some(Self::Json),
            "slack" => Some(Self::Slack),
            "telegram" => Some(Self::Telegram),
            _ => None,
        }
    }

    /// As in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Slack => "slack",
            Self::Telegram => "telegram",
        }
    }
}

/// The settings of swarm.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub model: Option<String>,
    pub coordinator_model: Option<String>,
    pub worker_model: Option<String>,
    pub helper_model: Option<String>,
    pub fallback_model: Option<String>,
    /// Tokens; for models whose window the provider does not tell.
    pub context_window: Option<u64>,
    /// Workers of one session at a time.
    pub max_workers: u32,
    pub max_workers_per_server: u32,
    /// Free memory below which no worker is started; 0 asks for none.
    pub limits_free_memory_mib: u32,
    /// Free disk below which no worker is started; 0 asks for none.
    pub limits_free_disk_mib: u32,
    pub max_tool_concurrency: u32,
    pub coordinator_max_turns: u32,
    pub worker_max_turns: u32,
    /// How often a worker that died is started again.
    pub worker_restarts: u32,
    /// What a session may spend in US dollars, workers included.
    pub budget_usd: Option<f64>,
    /// The same in tokens.
    pub budget_tokens: Option<u64>,
    /// What each worker may spend in US dollars.
    pub worker_budget_usd: Option<f64>,
    /// The same in tokens.
    pub worker_budget_tokens: Option<u64>,
    pub permission_mode: PermissionMode,
    pub permission_timeout: Duration,
    /// Whether a small model may allow what a person is asked.
    pub classifier_racer: bool,
    /// Whether a person is asked when the classifier of the mode `auto` is out of reach.
    pub auto_mode_asks: bool,
    pub channel: Option<ChannelSettings>,
    pub sandbox_auto_allow: bool,
    /// The weakest tier that is accepted; 0 accepts none at all.
    pub sandbox_required: u8,
    pub sandbox_network: bool,
    /// The rest about the sandbox.
    pub sandbox: SandboxSettings,
    pub worktree_root: Option<PathBuf>,
    pub worktree_branch_prefix: String,
    pub worktree_port_base: u16,
    /// How long a lock file of another program is waited for.
    pub git_lock_wait: Duration,
    pub setup: Vec<String>,
    pub check: Vec<String>,
    /// 0 takes a free port.
    pub server_port: u16,
    pub server_idle_exit: Duration,
    /// Tasks that one token may submit in a minute, and at once.
    pub server_tasks_per_minute: u32,
    pub background_grace: Duration,
    /// Whether the provider's cache is kept alive while an agent waits.
    pub cache_keepalive: bool,
    pub notification_window: Duration,
    pub cli_notify: Notify,
    /// What single tools need to know.
    pub tools: ToolSettings,
    pub endpoints: BTreeMap<String, EndpointProfile>,
    explained: Vec<ExplainedValue>,
}

/// All values given for one key, weakest first.
#[derive(Debug, Default)]
struct Given {
    values: Vec<(Value, String, Source)>,
    ignored: Option<(String, Source)>,
}

impl Config {
    /// Joins the levels. The first thing that is wrong is the error.
    pub fn new(inputs: &ConfigInputs<'_>) -> Result<Self, ConfigError> {
        let mut given: HashMap<&'static str, Given> = HashMap::new();
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let file = TomlText { path: "default".into(), text: format!("value = {}", key.default) };
            for entry in toml_file::entries(&file)? {
                let value = check(key, &entry)?;
                given.entry(key.name).or_default().values.push((
                    value,
                    key.default.to_owned(),
                    Source::Default,
                ));
            }
        }
        let mut endpoints = BTreeMap::new();
        if let Some(file) = inputs.home {
            add_file(file, Level::Home, &mut given, &mut endpoints)?;
        }
        if let Some(file) = inputs.repository {
            let level =
                if inputs.repository_is_trusted { Level::Repository } else { Level::UntrustedRepository };
            add_file(file, level, &mut given, &mut endpoints)?;
        }
        for key in &KEYS {
            let name = keys::env_name(key.name);
            if let Some((_, value)) = inputs.env.iter().find(|(variable, _)| *variable == name) {
                add_text(key, value, Source::Env(name), &mut given)?;
            }
        }
        for flag in inputs.flags {
            let source = Source::Flag(flag.flag.clone());
            let key =
                keys::find(&flag.key).ok_or_else(|| unknown_key(&flag.key, None, Some(source.clone())))?;
            add_text(key, &flag.value, source, &mut given)?;
        }
        Ok(Self::build(&given, endpoints))
    }

    fn build(given: &HashMap<&'static str, Given>, endpoints: BTreeMap<String, EndpointProfile>) -> Self {
        let value = |key: &str| given.get(key).and_then(|given| given.values.last()).map(|(value, ..)| value);
        let text = |key: &str| match value(key) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let number = |key: &str| match value(key) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        };
        let dollars = |key: &str| match value(key) {
            Some(Value::Dollars(dollars)) => Some(*dollars),
            _ => None,
        };
        // Each has a default of its kind, which a test reads; 0 and false are never reached.
        let small = |key: &str| number(key).and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
        let port = |key: &str| number(key).and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
        let flag = |key: &str| matches!(value(key), Some(Value::Bool(true)));
        let duration = |key: &str| match value(key) {
            Some(Value::Duration(duration)) => *duration,
            _ => Duration::ZERO,
        };
        let texts = |key: &str| match value(key) {
            Some(Value::Texts(commands)) => commands.clone(),
            _ => Vec::new(),
        };
        let permission_mode = match value("permission_mode") {
            Some(Value::Mode(mode)) => *mode,
            _ => PermissionMode::Default,
        };
        Self {
            model: text("model"),
            coordinator_model: text("coordinator_model"),
            worker_model: text("worker_model"),
            helper_model: text("helper_model"),
            fallback_model: text("fallback_model"),
            context_window: number("context_window"),
            max_workers: small("max_workers"),
            max_workers_per_server: small("max_workers_per_server"),
            limits_free_memory_mib: small("limits.free_memory_mib"),
            limits_free_disk_mib: small("limits.free_disk_mib"),
            max_tool_concurrency: small("max_tool_concurrency"),
            coordinator_max_turns: small("coordinator.max_turns"),
            worker_max_turns: small("worker.max_turns"),
            worker_restarts: small("worker.restarts"),
            budget_usd: dollars("budget_usd"),
            budget_tokens: number("budget_tokens"),
            worker_budget_usd: dollars("worker.budget_usd"),
            worker_budget_tokens: number("worker.budget_tokens"),
            permission_mode,
            permission_timeout: duration("permission_timeout"),
            classifier_racer: flag("classifier.racer"),
            auto_mode_asks: text("auto_mode.unavailable").as_deref() == Some("ask"),
            channel: text("channel.url").map(|url| ChannelSettings {
                url,
                kind: text("channel.kind").as_deref().and_then(ChannelKind::parse).unwrap_or_default(),
                chat: text("channel.chat"),
                answer_url: text("channel.answer_url"),
            }),
            sandbox_auto_allow: flag("sandbox.auto_allow"),
            sandbox_required: number("sandbox.required")
                .and_then(|tier| u8::try_from(tier).ok())
                .unwrap_or_default(),
            sandbox_network: text("sandbox.network").as_deref() == Some("on"),
            sandbox: SandboxSettings {
                strongest_tier: number("sandbox.tier")
                    .and_then(|tier| u8::try_from(tier).ok())
                    .unwrap_or_default(),
                writable: texts("sandbox.writable").into_iter().map(PathBuf::from).collect(),
                hosts: texts("sandbox.network"),
                memory_mib: number("sandbox.memory_mib").unwrap_or_default(),
                processes: number("sandbox.processes").unwrap_or_default(),
                disk_mib: number("sandbox.disk_mib").unwrap_or_default(),
            },
            worktree_root: text("worktree.root").map(PathBuf::from),
            worktree_branch_prefix: text("worktree.branch_prefix").unwrap_or_default(),
            worktree_port_base: port("worktree.port_base"),
            git_lock_wait: duration("git.lock_wait"),
            setup: texts("setup"),
            check: texts("check"),
            server_port: port("server.port"),
            server_idle_exit: duration("server.idle_exit"),
            server_tasks_per_minute: small("server.tasks_per_minute"),
            background_grace: duration("background_grace"),
            cache_keepalive: flag("cache_keepalive"),
            notification_window: duration("notification_window"),
            cli_notify: text("cli.notify").as_deref().and_then(Notify::parse).unwrap_or_default(),
            tools: tools::settings(&text, &texts, &flag),
            explained: explain(given, &endpoints),
            endpoints,
        }
    }

    /// Every value in force with its source, in a fixed order.
    pub fn explain(&self) -> &[ExplainedValue] {
        &self.explained
    }

    /// Where the value in force comes from.
    pub fn source(&self, key: &str) -> Option<&Source> {
        self.explained.iter().find(|value| value.key == key).map(|value| &value.source)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Home,
    Repository,
    UntrustedRepository,
}

fn add_file(
    file: &TomlText,
    level: Level,
    given: &mut HashMap<&'static str, Given>,
    endpoints: &mut BTreeMap<String, EndpointProfile>,
) -> Result<(), ConfigError> {
    let entries = toml_file::entries(file)?;
    let is_endpoint = |entry: &&Entry| entry.path.first().is_some_and(|first| first == "endpoints");
    let profiles = endpoint::profiles(entries.iter().filter(is_endpoint))?;
    if level != Level::UntrustedRepository {
        endpoints.extend(profiles.into_iter().map(|profile| (profile.name.clone(), profile)));
    }
    for entry in entries.iter().filter(|entry| !is_endpoint(entry)) {
        let name = entry.path.join(".");
        let key = keys::find(&name).ok_or_else(|| unknown_key(&name, Some(entry.key_place.clone()), None))?;
        if key.is_of_server && level != Level::Home {
            return Err(ConfigError {
                problem: ConfigProblem::NotInRepository { key: name },
                place: Some(Box::new(entry.key_place.clone())),
                given_by: None,
                hint: None,
            });
        }
        let value = check(key, entry)?;
        let source = Source::File { path: file.path.clone(), line: entry.key_place.line };
        let slot = given.entry(key.name).or_default();
        let shown = show(&value);
        if key.is_gated && level == Level::UntrustedRepository {
            slot.ignored = Some((shown, source));
        } else {
            // A repository's cap that is higher than the user's own stays below it.
            let at = match slot.values.last() {
                Some((own, ..)) if key.kind.is_cap() && level != Level::Home && exceeds(&value, own) => {
                    slot.values.len() - 1
                }
                _ => slot.values.len(),
            };
            slot.values.insert(at, (value, shown, source));
        }
    }
    Ok(())
}

fn exceeds(cap: &Value, other: &Value) -> bool {
    match (cap, other) {
        (Value::Number(cap), Value::Number(other)) => cap > other,
        (Value::Dollars(cap), Value::Dollars(other)) => cap > other,
        _ => false,
    }
}

/// What a repository's `swarm.toml` runs or widens, one line each.
pub(crate) fn gated_lines(file: &TomlText) -> Result<Vec<String>, ConfigError> {
    let mut lines = Vec::new();
    for entry in toml_file::entries(file)? {
        let name = entry.path.join(".");
        let is_endpoint = entry.path.first().is_some_and(|first| first == "endpoints");
        match keys::find(&name) {
            Some(key) if key.is_gated => {
                lines.push(format!("swarm.toml: {name} = {}", show(&check(key, &entry)?)))
            }
            None if is_endpoint => lines.push(format!("swarm.toml: {name} = {}", entry.located.value)),
            _ => {}
        }
    }
    Ok(lines)
}

/// A value from a variable or a flag: bare text, or TOML where the key is not text.
fn add_text(
    key: &'static Key,
    text: &str,
    source: Source,
    given: &mut HashMap<&'static str, Given>,
) -> Result<(), ConfigError> {
    let raw = match key.kind {
        Kind::Dollars => match text.trim().parse() {
            Ok(dollars) => Raw::Float(dollars),
            Err(_) => Raw::Other(text.into()),
        },
        Kind::Number { .. } | Kind::Tokens => {
            text.trim().replace('_', "").parse().map_or_else(|_| Raw::Other(text.into()), Raw::Integer)
        }
        Kind::Bool => match text.trim() {
            "true" | "1" | "yes" | "on" => Raw::Bool(true),
            "false" | "0" | "no" | "off" => Raw::Bool(false),
            _ => Raw::Other(text.into()),
        },
        _ => Raw::Text(text.to_owned()),
    };
    let value = value_of(key, &raw).ok_or_else(|| ConfigError {
        problem: ConfigProblem::Invalid { key: key.name.into(), expected: key.kind.expected() },
        place: None,
        given_by: Some(source.clone()),
        hint: Some(match &source {
            Source::Flag(flag) => format!("{flag} {}", key.example.trim_matches('"')),
            _ => format!("{source}={}", key.example.trim_matches('"')),
        }),
    })?;
    let shown = show(&value);
    given.entry(key.name).or_default().values.push((value, shown, source));
    Ok(())
}

fn unknown_key(name: &str, place: Option<Place>, given_by: Option<Source>) -> ConfigError {
    let is_later = keys::LATER.iter().any(|later| {
        name == *later || name.starts_with(&format!("{later}_")) || name.starts_with(&format!("{later}."))
    });
    let near = nearest(name, KEYS.iter().map(|key| key.name));
    let (problem, hint) = match is_later {
        true => (ConfigProblem::NotAvailable { key: name.into() }, Some(format!("remove `{name}`"))),
        false => {
            let hint = near.map(|near| format!("did you mean `{near}`?"));
            (ConfigProblem::UnknownKey { key: name.into() }, hint)
        }
    };
    ConfigError { problem, place: place.map(Box::new), given_by, hint }
}

fn explain(
    given: &HashMap<&'static str, Given>,
    endpoints: &BTreeMap<String, EndpointProfile>,
) -> Vec<ExplainedValue> {
    let none = Given::default();
    let mut explained: Vec<ExplainedValue> = KEYS
        .iter()
        .map(|key| {
            let given = given.get(key.name).unwrap_or(&none);
            let mut strongest_first = given.values.iter().rev();
            let (value, source) = match strongest_first.next() {
                Some((_, shown, source)) => (shown.clone(), source.clone()),
                None => ("-".to_owned(), Source::Default),
            };
            let overrides =
                strongest_first.map(|(_, shown, source)| (shown.clone(), source.clone())).collect();
            ExplainedValue { key: key.name.into(), value, source, overrides, ignored: given.ignored.clone() }
        })
        .collect();
    explained.extend(endpoints.values().map(|profile| ExplainedValue {
        key: format!("endpoints.{}", profile.name),
        value: format!("{:?}", profile.base_url),
        source: profile.source.clone(),
        overrides: Vec::new(),
        ignored: None,
    }));
    explained
}

/// The name a person most likely meant.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |text: &str| text.rsplit('.').next().unwrap_or_default().to_owned();
    known
        .map(|known| {
            let whole = strsim::damerau_levenshtein(name, known);
            // `max_turns` for `worker.max_turns`
            let part = if last(known) == last(name) { 1 } else { usize::MAX };
            (whole.min(part), known)
        })
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
