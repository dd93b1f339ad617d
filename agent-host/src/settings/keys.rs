//! The table of swarm's settings.

use std::time::Duration;

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `provider/name`, or `demo`.
    Model,
    /// A directory; `~/` is the home directory.
    Directory,
    /// A prefix of branch names.
    BranchPrefix,
    Number {
        least: u64,
        most: u64,
    },
    /// A cap in US dollars. As with tokens: a repository may lower what the user's own file says, never raise it.
    Dollars,
    /// A cap in tokens.
    Tokens,
    Bool,
    /// `90s`, `30m`, `2h`, `50ms`.
    Duration {
        most: Duration,
    },
    PermissionMode,
    /// `off`, `on`, or a list of hosts.
    Network,
    /// A list of directories.
    Directories,
    /// One shell command, or a list of them.
    Commands,
    /// `bell`, `osc9` or `off`.
    Notify,
    /// A list of addresses and networks.
    Addresses,
    /// A URL with `{query}`.
    SearchUrl,
    /// The name of an environment variable.
    Variable,
    /// `Name: value` with `{key}`.
    KeyHeader,
    /// Four JSON pointers.
    Pointers,
    /// Language servers as `EXTENSION,...: COMMAND`.
    LanguageServers,
    /// An `http` or `https` address.
    Url,
    /// Words of the user's own.
    Text,
    /// `json`, `slack` or `telegram`.
    Channel,
    /// `deny` or `ask`.
    Unavailable,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As written in TOML; empty where no value is the default.
    pub(crate) default: &'static str,
    /// What `hint:` shows.
    pub(crate) example: &'static str,
    /// It runs or widens something, so a repository's own value counts only after `swarm trust`.
    pub(crate) is_gated: bool,
    /// It concerns the server, not a repository.
    pub(crate) is_of_server: bool,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, example: &'static str) -> Key {
    Key { name, kind, default, example, is_gated: false, is_of_server: false }
}

const fn gated(name: &'static str, kind: Kind, default: &'static str, example: &'static str) -> Key {
    Key { is_gated: true, ..key(name, kind, default, example) }
}

const fn server(name: &'static str, kind: Kind, default: &'static str, example: &'static str) -> Key {
    Key { is_of_server: true, ..key(name, kind, default, example) }
}

const fn number(least: u64, most: u64) -> Kind {
    Kind::Number { least, most }
}

const fn up_to(seconds: u64) -> Kind {
    Kind::Duration { most: Duration::from_secs(seconds) }
}

const DAY: u64 = 24 * 60 * 60;

/// All settings, in the order `swarm config` prints them.
pub(crate) const KEYS: [Key; 57] = [
    gated("model", Kind::Model, "", "\"anthropic/NAME\""),
    gated("coordinator_model", Kind::Model, "", "\"anthropic/NAME\""),
    gated("worker_model", Kind::Model, "", "\"anthropic/NAME\""),
    gated("helper_model", Kind::Model, "", "\"anthropic/NAME\""),
    gated("fallback_model", Kind::Model, "", "\"openai/NAME\""),
    key("context_window", number(4_096, 10_000_000), "", "200000"),
    key("max_workers", number(1, 64), "8", "3"),
    server("max_workers_per_server", number(1, 256), "32", "16"),
    server("limits.free_memory_mib", number(0, 1_000_000_000), "256", "1024"),
    server("limits.free_disk_mib", number(0, 1_000_000_000), "512", "10240"),
    key("max_tool_concurrency", number(1, 64), "10", "4"),
    key("coordinator.max_turns", number(1, 100_000), "200", "100"),
    key("worker.max_turns", number(1, 100_000), "500", "100"),
    key("worker.restarts", number(0, 10), "1", "2"),
    key("budget_usd", Kind::Dollars, "", "5.00"),
    key("budget_tokens", Kind::Tokens, "", "2000000"),
    key("worker.budget_usd", Kind::Dollars, "", "1.00"),
    key("worker.budget_tokens", Kind::Tokens, "", "500000"),
    gated("permission_mode", Kind::PermissionMode, "\"acceptEdits\"", "\"acceptEdits\""),
    key("permission_timeout", up_to(DAY), "\"10m\"", "\"5m\""),
    gated("classifier.racer", Kind::Bool, "false", "true"),
    gated("auto_mode.unavailable", Kind::Unavailable, "\"deny\"", "\"ask\""),
    server("channel.url", Kind::Url, "", "\"http://127.0.0.1:9000/swarm\""),
    server("channel.kind", Kind::Channel, "\"json\"", "\"slack\""),
    server("channel.chat", Kind::Text, "", "\"-100123\""),
    server("channel.answer_url", Kind::Url, "", "\"https://swarm.example.com\""),
    gated("sandbox.auto_allow", Kind::Bool, "true", "false"),
    gated("sandbox.required", number(0, 2), "0", "2"),
    gated("sandbox.network", Kind::Network, "\"off\"", "\"off\""),
    gated("sandbox.tier", number(0, 2), "1", "2"),
    gated("sandbox.writable", Kind::Directories, "[]", "[\"~/.cache/shared\"]"),
    gated("sandbox.memory_mib", number(0, 1 << 30), "0", "8192"),
    gated("sandbox.processes", number(0, 1 << 20), "4096", "1024"),
    gated("sandbox.disk_mib", number(0, 1 << 30), "16384", "4096"),
    gated("worktree.root", Kind::Directory, "", "\"~/worktrees\""),
    key("worktree.branch_prefix", Kind::BranchPrefix, "\"swarm\"", "\"swarm\""),
    server("worktree.port_base", number(1_024, 60_000), "41000", "42000"),
    server("git.lock_wait", up_to(60 * 60), "\"30s\"", "\"10s\""),
    gated("setup", Kind::Commands, "[]", "[\"npm ci\"]"),
    gated("check", Kind::Commands, "[]", "[\"cargo test\"]"),
    server("server.port", number(0, 65_535), "0", "8080"),
    server("server.idle_exit", up_to(30 * DAY), "\"30m\"", "\"1h\""),
    server("server.tasks_per_minute", number(1, 1_000_000), "120", "600"),
    key("background_grace", up_to(DAY), "\"10m\"", "\"1m\""),
    key("cache_keepalive", Kind::Bool, "false", "true"),
    key("notification_window", up_to(60), "\"50ms\"", "\"50ms\""),
    key("cli.notify", Kind::Notify, "\"bell\"", "\"osc9\""),
    server("web.allow_private", Kind::Addresses, "[]", "[\"127.0.0.1:8080\"]"),
    server(
        "web.search_url",
        Kind::SearchUrl,
        "",
        "\"https://search.example.com/search?q={query}&format=json\"",
    ),
    server("web.search_key_env", Kind::Variable, "", "\"SEARCH_API_KEY\""),
    server(
        "web.search_key_header",
        Kind::KeyHeader,
        "\"authorization: Bearer {key}\"",
        "\"x-api-key: {key}\"",
    ),
    server(
        "web.search_pointers",
        Kind::Pointers,
        "[\"/results\", \"/title\", \"/url\", \"/content\"]",
        "[\"/web/results\", \"/title\", \"/url\", \"/description\"]",
    ),
    server("remote.url", Kind::Url, "", "\"https://swarm.example.com\""),
    server("remote.token_env", Kind::Variable, "", "\"REMOTE_SWARM_TOKEN\""),
    server("remote.repo", Kind::Text, "", "\"/srv/repos/app\""),
    gated("lsp.servers", Kind::LanguageServers, "[]", "[\"zig,zon: zls\"]"),
    gated("repl.enabled", Kind::Bool, "false", "true"),
];

/// Settings of a later version: refused by name, so that nobody believes them in force.
pub(crate) const LATER: [&str; 7] =
    ["budget", "budget_minutes", "webhooks", "otel", "cluster", "hints", "retention"];

pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// `max_workers` is read from `SWARM_MAX_WORKERS`, `server.port` from `SWARM_SERVER_PORT`.
pub(crate) fn env_name(key: &str) -> String {
    format!("SWARM_{}", key.replace('.', "_").to_ascii_uppercase())
}

/// The largest cap in dollars; more is surely a mistake.
pub(crate) const MOST_DOLLARS: f64 = 1_000_000.0;
/// The largest cap in tokens.
pub(crate) const MOST_TOKENS: u64 = 1_000_000_000_000;

impl Kind {
    /// Whether it bounds what is spent.
    pub(crate) const fn is_cap(self) -> bool {
        matches!(self, Self::Dollars | Self::Tokens)
    }

    /// Completes "must be …".
    pub(crate) fn expected(self) -> String {
        match self {
            Self::Model => "a provider and a model, such as \"anthropic/NAME\", or \"demo\"".into(),
            Self::Directory => "a directory".into(),
            Self::BranchPrefix => "a prefix that git takes in a branch name".into(),
            Self::Number { least, most } => format!("a number from {least} to {most}"),
            Self::Dollars => format!("an amount of US dollars above 0, at most {MOST_DOLLARS:.0}"),
            Self::Tokens => format!("a number of tokens from 1 to {MOST_TOKENS}"),
            Self::Bool => "true or false".into(),
            Self::Duration { most } => {
                format!("a time such as \"90s\", \"10m\" or \"2h\", at most {}", show_duration(most))
            }
            Self::PermissionMode => {
                "\"default\", \"acceptEdits\", \"plan\", \"auto\" or \"bypassPermissions\"".into()
            }
            Self::Network => "\"off\", \"on\" or a list of hosts".into(),
            Self::Directories => "a list of absolute paths".into(),
            Self::Commands => "a command, or a list of commands".into(),
            Self::Url => "an http or https address".into(),
            Self::Text => "a text that is not empty".into(),
            Self::Channel => "\"json\", \"slack\" or \"telegram\"".into(),
            Self::Unavailable => "\"deny\" or \"ask\"".into(),
            Self::Notify => "\"bell\", \"osc9\" or \"off\"".into(),
            Self::Addresses => {
                "a list of addresses, addresses with a port, or networks such as \"10.0.0.0/8\"".into()
            }
            Self::SearchUrl => "a URL that begins with https:// or http:// and has {query} in it".into(),
            Self::Variable => "the name of an environment variable, not the key itself".into(),
            Self::KeyHeader => "a header such as \"authorization: Bearer {key}\"".into(),
            Self::LanguageServers => {
                "a list of servers, each as \"EXTENSION: COMMAND\", such as \"zig,zon: zls\"".into()
            }
            Self::Pointers => {
                "four JSON pointers: to the list of results, and in a result to title, URL and snippet".into()
            }
        }
    }
}

/// `90s`, `10m`, `2h`, `30d`, `50ms`; several may follow one another (`1h30m`).
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(60 * 60),
            "d" => Duration::from_secs(DAY),
            _ => return None,
        };
        rest = &rest[end..];
        total = total.checked_add(unit.checked_mul(u32::try_from(number).ok()?)?)?;
    }
    Some(total)
}

fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        s if s % DAY == 0 => format!("{}d", s / DAY),
        s if s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}
