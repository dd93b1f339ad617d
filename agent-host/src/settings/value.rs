//! A value of a setting: how it is read, when it is fit, and how it is shown.

use std::time::Duration;

use swarm_protocol::permission::PermissionMode;

use super::{
    config::{ChannelKind, Notify},
    error::{ConfigError, ConfigProblem},
    keys::{self, Key, Kind},
    toml_file::{Entry, Raw},
    tools,
};

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Dollars(f64),
    Bool(bool),
    Duration(Duration),
    Mode(PermissionMode),
    /// Commands, addresses, pointers.
    Texts(Vec<String>),
}

pub(super) fn check(key: &Key, entry: &Entry) -> Result<Value, ConfigError> {
    value_of(key, &entry.located.value).ok_or_else(|| ConfigError {
        problem: ConfigProblem::Invalid { key: key.name.into(), expected: key.kind.expected() },
        place: Some(Box::new(entry.located.place.clone())),
        given_by: None,
        hint: Some(format!("{} = {}", entry.path.last().map_or(key.name, String::as_str), key.example)),
    })
}

pub(super) fn value_of(key: &Key, raw: &Raw) -> Option<Value> {
    match (key.kind, raw) {
        (Kind::Directory, Raw::Text(text)) if is_directory(text) => Some(Value::Text(text.clone())),
        (Kind::Directories, Raw::List(list)) => texts(list, is_directory),
        (Kind::Model, Raw::Text(text)) => is_model(text).then(|| Value::Text(text.clone())),
        (Kind::BranchPrefix, Raw::Text(text)) => is_branch_prefix(text).then(|| Value::Text(text.clone())),
        (Kind::Number { least, most }, Raw::Integer(number)) => {
            let number = u64::try_from(*number).ok()?;
            (least..=most).contains(&number).then_some(Value::Number(number))
        }
        (Kind::Tokens, Raw::Integer(number)) => {
            let number = u64::try_from(*number).ok()?;
            (1..=keys::MOST_TOKENS).contains(&number).then_some(Value::Number(number))
        }
        (Kind::Dollars, Raw::Integer(whole)) => value_of(key, &Raw::Float(*whole as f64)),
        // Not a number is no amount either.
        (Kind::Dollars, Raw::Float(dollars)) => {
            (*dollars > 0.0 && *dollars <= keys::MOST_DOLLARS).then_some(Value::Dollars(*dollars))
        }
        (Kind::Bool, Raw::Bool(value)) => Some(Value::Bool(*value)),
        (Kind::Duration { most }, Raw::Text(text)) => {
            keys::parse_duration(text).filter(|duration| *duration <= most).map(Value::Duration)
        }
        (Kind::PermissionMode, Raw::Text(text)) => text.parse().ok().map(Value::Mode),
        (Kind::Network, Raw::Text(text)) if matches!(text.as_str(), "on" | "off") => {
            Some(Value::Text(text.clone()))
        }
        (Kind::Url, Raw::Text(text)) if is_web_address(text) => {
            Some(Value::Text(text.trim_end_matches('/').to_owned()))
        }
        (Kind::Text, Raw::Text(text)) if !text.trim().is_empty() => Some(Value::Text(text.clone())),
        (Kind::Channel, Raw::Text(text)) => ChannelKind::parse(text).map(|_| Value::Text(text.clone())),
        (Kind::Unavailable, Raw::Text(text)) if matches!(text.as_str(), "deny" | "ask") => {
            Some(Value::Text(text.clone()))
        }
        (Kind::Notify, Raw::Text(text)) => Notify::parse(text).map(|_| Value::Text(text.clone())),
        (Kind::Network, Raw::Bool(value)) => Some(Value::Text(if *value { "on" } else { "off" }.into())),
        (Kind::Network, Raw::List(list)) => texts(list, is_host),
        (Kind::Commands, Raw::Text(text)) if !text.trim().is_empty() => {
            Some(Value::Texts(vec![text.clone()]))
        }
        (Kind::Commands, Raw::List(list)) => texts(list, |text| !text.trim().is_empty()),
        (
            Kind::Addresses
            | Kind::SearchUrl
            | Kind::Variable
            | Kind::KeyHeader
            | Kind::Pointers
            | Kind::LanguageServers,
            raw,
        ) => tools::value_of(key.kind, raw),
        _ => None,
    }
}

pub(super) fn texts(list: &[Raw], is_fit: impl Fn(&str) -> bool) -> Option<Value> {
    let texts = list.iter().map(|raw| match raw {
        Raw::Text(text) if is_fit(text) => Some(text.clone()),
        _ => None,
    });
    texts.collect::<Option<Vec<_>>>().map(Value::Texts)
}

fn is_directory(text: &str) -> bool {
    text.starts_with('/') || text.starts_with("~/")
}

/// `crates.io`, `*.example.org`, `127.0.0.1:8080`: a name or an address, with a port where one alone is meant.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok()
            && port.is_none_or(|port| port.parse::<u16>().is_ok());
    }
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    name.split('.').all(is_label) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_model(text: &str) -> bool {
    let plain = |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control());
    match text.split_once('/') {
        Some((provider, model)) => plain(provider) && plain(model),
        None => text == "demo",
    }
}

/// An address with a host; what is wrong beyond that its first use shows.
fn is_web_address(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && !text.chars().any(|c| c.is_whitespace() || c.is_control())
    })
}

pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{text:?}"),
        Value::Number(number) => number.to_string(),
        Value::Dollars(dollars) => format!("{dollars:?}"),
        Value::Bool(value) => value.to_string(),
        Value::Duration(duration) if duration.as_millis() % 1_000 != 0 => {
            format!("\"{}ms\"", duration.as_millis())
        }
        Value::Duration(duration) => format!("\"{}s\"", duration.as_secs()),
        Value::Mode(mode) => format!("\"{}\"", mode.as_str()),
        Value::Texts(commands) => format!("{commands:?}"),
    }
}

/// What git's `check-ref-format` would refuse, and a leading dash.
fn is_branch_prefix(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.ends_with(".lock")
    };
    text.len() <= 100
        && !text.contains("..")
        && !text.contains("@{")
        && !text.chars().any(|c| c.is_whitespace() || c.is_control() || "~^:?*[\\".contains(c))
        && text.split('/').all(part)
}
