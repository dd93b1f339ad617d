//! `[endpoints.NAME]`: where a model is served.

use std::{collections::BTreeMap, time::Duration};

use swarm_protocol::launch::{ApiKind, Price};

use super::{
    error::{ConfigError, ConfigProblem, Place, Source},
    keys::parse_duration,
    toml_file::{Entry, Raw},
};

/// A profile of a model endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointProfile {
    pub name: String,
    pub api: ApiKind,
    /// Without a trailing slash.
    pub base_url: String,
    /// The variable that holds the key; none for servers without one.
    pub key_env: Option<String>,
    /// The key goes into `authorization: Bearer`, also for the Anthropic API.
    pub bearer: bool,
    pub headers: BTreeMap<String, String>,
    pub max_output: Option<u64>,
    pub context_window: Option<u64>,
    /// The largest request the server takes, in bytes.
    pub max_request_bytes: Option<u64>,
    /// Whether it keeps definitions of tools out of the context until they are referred to.
    pub defer_tools: Option<bool>,
    pub first_byte_timeout: Option<Duration>,
    /// How long its cache holds what was sent.
    pub cache_ttl: Option<Duration>,
    /// US dollars per million tokens.
    pub price: Option<Price>,
    pub source: Source,
}

const KEYS: [&str; 12] = [
    "api",
    "base_url",
    "key_env",
    "bearer",
    "headers",
    "max_output",
    "context_window",
    "max_request_bytes",
    "defer_tools",
    "first_byte_timeout",
    "cache_ttl",
    "price",
];
const PRICE_KEYS: [&str; 4] = ["input", "output", "cache_read", "cache_write"];

/// Collects the entries of one profile.
#[derive(Debug, Default)]
struct Draft {
    api: Option<ApiKind>,
    base_url: Option<String>,
    key_env: Option<String>,
    bearer: bool,
    headers: BTreeMap<String, String>,
    max_output: Option<u64>,
    context_window: Option<u64>,
    max_request_bytes: Option<u64>,
    defer_tools: Option<bool>,
    first_byte_timeout: Option<Duration>,
    cache_ttl: Option<Duration>,
    price: BTreeMap<String, f64>,
    first: Option<Place>,
}

/// Reads the profiles among the entries of one file.
pub(super) fn profiles<'a>(
    entries: impl Iterator<Item = &'a Entry>,
) -> Result<Vec<EndpointProfile>, ConfigError> {
    let mut drafts: BTreeMap<String, Draft> = BTreeMap::new();
    for entry in entries {
        let [_, name, field, rest @ ..] = entry.path.as_slice() else {
            return Err(invalid(entry, &entry.path.join("."), "a table such as [endpoints.local]"));
        };
        let draft = drafts.entry(name.clone()).or_default();
        draft.first.get_or_insert_with(|| entry.key_place.clone());
        draft.set(entry, name, field, rest)?;
    }
    drafts.into_iter().map(|(name, draft)| draft.finish(name)).collect()
}

impl Draft {
    fn set(&mut self, entry: &Entry, name: &str, field: &str, rest: &[String]) -> Result<(), ConfigError> {
        let full = entry.path.join(".");
        let text = |expected: &str| match &entry.located.value {
            Raw::Text(text) if !text.is_empty() => Ok(text.clone()),
            _ => Err(invalid(entry, &full, expected)),
        };
        let count = || match entry.located.value {
            Raw::Integer(number) if number > 0 => Ok(number.unsigned_abs()),
            _ => Err(invalid(entry, &full, "a number above 0")),
        };
        let time = || {
            let expected = "a time such as \"90s\" or \"10m\"";
            let duration = parse_duration(&text(expected)?).filter(|duration| !duration.is_zero());
            duration.ok_or_else(|| invalid(entry, &full, expected))
        };
        match (field, rest) {
            ("api", []) => {
                self.api = Some(match text("\"anthropic\", \"chat\" or \"responses\"")?.as_str() {
                    "anthropic" => ApiKind::Anthropic,
                    "chat" => ApiKind::Chat,
                    "responses" => ApiKind::Responses,
                    _ => return Err(invalid(entry, &full, "\"anthropic\", \"chat\" or \"responses\"")),
                });
            }
            ("base_url", []) => {
                let expected = "a URL that begins with https:// or http://";
                let url = text(expected)?;
                if !url.starts_with("https://") && !url.starts_with("http://") {
                    return Err(invalid(entry, &full, expected));
                }
                self.base_url = Some(url.trim_end_matches('/').to_owned());
            }
            ("key_env", []) => {
                let expected = "the name of an environment variable, not the key itself";
                let variable = text(expected)?;
                if !variable.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
                    return Err(invalid(entry, &full, expected));
                }
                self.key_env = Some(variable);
            }
            ("bearer", []) => match entry.located.value {
                Raw::Bool(value) => self.bearer = value,
                _ => return Err(invalid(entry, &full, "true or false")),
            },
            ("headers", [header]) => {
                self.headers.insert(header.to_ascii_lowercase(), text("text")?);
            }
            ("max_output", []) => self.max_output = Some(count()?),
            ("context_window", []) => self.context_window = Some(count()?),
            ("max_request_bytes", []) => self.max_request_bytes = Some(count()?),
            ("defer_tools", []) => match entry.located.value {
                Raw::Bool(value) => self.defer_tools = Some(value),
                _ => return Err(invalid(entry, &full, "true or false")),
            },
            ("first_byte_timeout", []) => self.first_byte_timeout = Some(time()?),
            ("cache_ttl", []) => self.cache_ttl = Some(time()?),
            ("price", [part]) if PRICE_KEYS.contains(&part.as_str()) => {
                let dollars = match entry.located.value {
                    Raw::Integer(number) => number as f64,
                    Raw::Float(number) => number,
                    _ => f64::NAN,
                };
                if !dollars.is_finite() || dollars < 0.0 {
                    return Err(invalid(entry, &full, "US dollars per million tokens, such as 3.0"));
                }
                self.price.insert(part.clone(), dollars);
            }
            _ => return Err(unknown(entry, name, field)),
        }
        Ok(())
    }

    fn finish(self, name: String) -> Result<EndpointProfile, ConfigError> {
        let Self {
            api,
            base_url,
            key_env,
            bearer,
            headers,
            max_output,
            context_window,
            max_request_bytes,
            defer_tools,
            first_byte_timeout,
            cache_ttl,
            price,
            first,
        } = self;
        let missing = |what| ConfigError {
            problem: ConfigProblem::IncompleteEndpoint { name: name.clone(), missing: what },
            place: first.clone().map(Box::new),
            given_by: None,
            hint: Some(format!("[endpoints.{name}] with {what}")),
        };
        let api = api.ok_or_else(|| missing("api = \"anthropic\", \"chat\" or \"responses\""))?;
        let base_url = base_url.ok_or_else(|| missing("base_url = \"https://...\""))?;
        let price = match (price.get("input"), price.get("output")) {
            (None, None) if price.is_empty() => None,
            (Some(input), Some(output)) => Some(Price {
                input: *input,
                output: *output,
                cache_read: price.get("cache_read").copied().unwrap_or(*input),
                cache_write: price.get("cache_write").copied().unwrap_or(*input),
            }),
            _ => return Err(missing("price.input and price.output, or no price at all")),
        };
        let source = match &first {
            Some(place) => Source::File { path: place.path.clone(), line: place.line },
            None => Source::Default,
        };
        Ok(EndpointProfile {
            name,
            api,
            base_url,
            key_env,
            bearer,
            headers,
            max_output,
            context_window,
            max_request_bytes,
            defer_tools,
            first_byte_timeout,
            cache_ttl,
            price,
            source,
        })
    }
}

fn invalid(entry: &Entry, key: &str, expected: &str) -> ConfigError {
    ConfigError {
        problem: ConfigProblem::Invalid { key: key.to_owned(), expected: expected.to_owned() },
        place: Some(Box::new(entry.located.place.clone())),
        given_by: None,
        hint: None,
    }
}

fn unknown(entry: &Entry, name: &str, field: &str) -> ConfigError {
    let near = super::config::nearest(field, KEYS.iter().copied());
    ConfigError {
        problem: ConfigProblem::UnknownKey { key: entry.path.join(".") },
        place: Some(Box::new(entry.key_place.clone())),
        given_by: None,
        hint: near.map(|near| format!("did you mean `endpoints.{name}.{near}`?")),
    }
}
