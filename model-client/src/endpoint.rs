//! From what a person writes (`anthropic/NAME`, `demo`, `profile/NAME`) to an endpoint and where its key is.
//!
//! Pure: the environment and the profiles are passed in, and keys stay where they are until they are asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use swarm_protocol::launch::{ApiKind, ModelEndpoint, Price};

/// Anthropic's own host.
pub(crate) const ANTHROPIC_URL: &str = "https://api.anthropic.com";

/// OpenAI's own host.
pub(crate) const OPENAI_URL: &str = "https://api.openai.com/v1";

/// An endpoint of the settings, under a name of the user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The wire format.
    pub api: ApiKind,
    /// Base of the URL: with `/v1` for `chat` and `responses`, without for `anthropic`.
    pub base_url: String,
    /// The environment variable that holds the key; none for servers that need none.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Whether an `anthropic` endpoint takes the key as `authorization: Bearer`.
    #[serde(default)]
    pub bearer: bool,
    /// Further headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The context window in tokens.
    #[serde(default)]
    pub context_window: Option<u64>,
    /// The most output tokens.
    #[serde(default)]
    pub max_output: Option<u64>,
    /// The largest request the provider takes, in bytes; Anthropic's own limit for that API when not set.
    #[serde(default)]
    pub max_request_bytes: Option<u64>,
    /// Whether definitions of tools are kept out of the context until they are referred to (Anthropic).
    #[serde(default)]
    pub defer_tools: Option<bool>,
    /// How long the first byte may take, in milliseconds.
    #[serde(default)]
    pub first_byte_timeout_ms: Option<u64>,
    /// How long the provider's cache holds what was sent, in milliseconds.
    #[serde(default)]
    pub cache_ttl_ms: Option<u64>,
    /// Price in US dollars per million tokens.
    #[serde(default)]
    pub price: Option<Price>,
}

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
    /// The environment variable.
    pub variable: String,
}

impl KeySource {
    /// The key. The caller keeps it in memory only.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> Option<String> {
        set(environment, &self.variable)
    }
}

/// An endpoint, and where its key is when it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedEndpoint {
    /// The endpoint; may be recorded.
    pub endpoint: ModelEndpoint,
    /// Where the key is.
    pub key: Option<KeySource>,
}

/// Why a model's name leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No slash, or nothing on one side of it.
    #[error("`{name}` is not a model: write provider/name, such as anthropic/NAME or openai/NAME, or demo")]
    NotAModel {
        /// As written.
        name: String,
    },
    /// A provider nobody configured.
    #[error("no provider `{provider}`: known are {known}")]
    UnknownProvider {
        /// Before the slash.
        provider: String,
        /// The names that would do.
        known: String,
    },
    /// The key is not there.
    #[error("no key for {name}: set {variables}")]
    NoKey {
        /// As written.
        name: String,
        /// The variables that were looked at.
        variables: String,
    },
    /// A variable cannot be read as what it should be.
    #[error("{variable}: {problem}")]
    BadVariable {
        /// The variable.
        variable: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Finds the endpoint of a model. `environment` reads a variable; an empty one counts as unset.
pub fn resolve_endpoint(
    name: &str,
    profiles: &BTreeMap<String, Profile>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedEndpoint, EndpointError> {
    if name == "demo" {
        return Ok(ResolvedEndpoint {
            endpoint: ModelEndpoint::plain("demo", "", ApiKind::Demo, ""),
            key: None,
        });
    }
    let (provider, model) = name
        .split_once('/')
        .filter(|(provider, model)| !provider.is_empty() && !model.trim().is_empty())
        .ok_or_else(|| EndpointError::NotAModel { name: name.to_owned() })?;
    if let Some(profile) = profiles.get(provider) {
        return from_profile(name, provider, model, profile, environment);
    }
    match provider {
        "anthropic" => anthropic(name, model, environment),
        "openai" => openai(name, model, environment),
        other => {
            let mut known = vec!["anthropic", "openai", "demo"];
            known.extend(profiles.keys().map(String::as_str));
            Err(EndpointError::UnknownProvider { provider: other.to_owned(), known: known.join(", ") })
        }
    }
}

/// Endpoints are recorded with their session, header values included: what opens a door comes by a variable
/// whose value stays in memory.
fn not_secret(header: &str, variable: &str, instead: &str) -> Result<(), EndpointError> {
    const SECRET: [&str; 7] = ["authorization", "key", "token", "secret", "password", "cookie", "credential"];
    let lower = header.to_ascii_lowercase();
    if SECRET.iter().any(|secret| lower.contains(secret)) {
        return Err(EndpointError::BadVariable {
            variable: variable.to_owned(),
            problem: format!("header `{}` would be recorded with each session; use {instead}", header.trim()),
        });
    }
    Ok(())
}

fn anthropic(
    name: &str,
    model: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedEndpoint, EndpointError> {
    let base_url = set(environment, "ANTHROPIC_BASE_URL").unwrap_or_else(|| ANTHROPIC_URL.to_owned());
    // People copy bases with `/v1` from other providers' pages; ours has none.
    let base_url = base_url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let mut endpoint = ModelEndpoint::plain("anthropic", model, ApiKind::Anthropic, &base_url);
    if let Some(lines) = set(environment, "ANTHROPIC_CUSTOM_HEADERS") {
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            let (header, value) = line.split_once(':').ok_or_else(|| EndpointError::BadVariable {
                variable: "ANTHROPIC_CUSTOM_HEADERS".to_owned(),
                problem: "each line must be `Name: value`".to_owned(),
            })?;
            not_secret(header, "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_AUTH_TOKEN")?;
            endpoint.headers.insert(header.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    if let Some(betas) = set(environment, "ANTHROPIC_BETAS") {
        endpoint.headers.insert("anthropic-beta".to_owned(), betas);
    }
    let variables = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"];
    let variable = variables.into_iter().find(|variable| set(environment, variable).is_some());
    endpoint.bearer = variable == Some("ANTHROPIC_AUTH_TOKEN");
    match variable {
        Some(variable) => {
            Ok(ResolvedEndpoint { endpoint, key: Some(KeySource { variable: variable.to_owned() }) })
        }
        // A server on this machine may want no key.
        None if base_url.starts_with("http://") => Ok(ResolvedEndpoint { endpoint, key: None }),
        None => Err(EndpointError::NoKey { name: name.to_owned(), variables: variables.join(" or ") }),
    }
}

fn openai(
    name: &str,
    model: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedEndpoint, EndpointError> {
    let base_url = set(environment, "OPENAI_BASE_URL").unwrap_or_else(|| OPENAI_URL.to_owned());
    let base_url = base_url.trim_end_matches('/');
    let official = is_official_openai(base_url);
    // OpenAI's newer models refuse tools with reasoning on chat completions; compatible servers know nothing else.
    let api = if official { ApiKind::Responses } else { ApiKind::Chat };
    let endpoint = ModelEndpoint::plain("openai", model, api, base_url);
    let variable = "OPENAI_API_KEY";
    match set(environment, variable) {
        Some(_) => Ok(ResolvedEndpoint { endpoint, key: Some(KeySource { variable: variable.to_owned() }) }),
        None if !official => Ok(ResolvedEndpoint { endpoint, key: None }),
        None => Err(EndpointError::NoKey { name: name.to_owned(), variables: variable.to_owned() }),
    }
}

fn from_profile(
    name: &str,
    provider: &str,
    model: &str,
    profile: &Profile,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ResolvedEndpoint, EndpointError> {
    let Profile {
        api,
        base_url,
        key_env,
        bearer,
        headers,
        context_window,
        max_output,
        max_request_bytes,
        defer_tools,
        first_byte_timeout_ms,
        cache_ttl_ms,
        price,
    } = profile.clone();
    if let Some(variable) = &key_env
        && set(environment, variable).is_none()
    {
        return Err(EndpointError::NoKey { name: name.to_owned(), variables: variable.clone() });
    }
    for header in headers.keys() {
        not_secret(header, &format!("endpoints.{provider}.headers"), "key_env")?;
    }
    let endpoint = ModelEndpoint {
        provider: provider.to_owned(),
        model: model.to_owned(),
        api,
        base_url: base_url.trim_end_matches('/').to_owned(),
        bearer,
        headers,
        context_window,
        max_output,
        max_request_bytes,
        defer_tools,
        first_byte_timeout_ms,
        cache_ttl_ms,
        price,
    };
    Ok(ResolvedEndpoint { endpoint, key: key_env.map(|variable| KeySource { variable }) })
}

/// Whether a base URL is Anthropic's own.
pub(crate) fn is_official_anthropic(base_url: &str) -> bool {
    has_host(base_url, "api.anthropic.com")
}

/// Whether a base URL is OpenAI's own.
pub(crate) fn is_official_openai(base_url: &str) -> bool {
    has_host(base_url, "api.openai.com")
}

/// Whether a URL's host is this one, or one below it.
pub(crate) fn has_host(url: &str, host: &str) -> bool {
    let found = reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    found.is_some_and(|found| {
        found == host || found.strip_suffix(host).is_some_and(|before| before.ends_with('.'))
    })
}

fn set(environment: &dyn Fn(&str) -> Option<String>, variable: &str) -> Option<String> {
    environment(variable).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// An endpoint of nothing but defaults.
    pub(crate) fn endpoint(api: ApiKind, model: &str, base_url: &str) -> ModelEndpoint {
        ModelEndpoint::plain("test", model, api, base_url)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(name: &str, variables: &[(&str, &str)], expected: Expect) {
        let environment = |variable: &str| {
            variables.iter().find(|(name, _)| *name == variable).map(|(_, value)| (*value).to_owned())
        };
        let profile: Profile = toml::from_str(
            "api = \"chat\"\nbase_url = \"http://localhost:8000/v1/\"\nkey_env = \"LAB_KEY\"\ncontext_window = 65536",
        )
        .unwrap();
        let profiles = BTreeMap::from([("lab".to_owned(), profile)]);
        let text = match resolve_endpoint(name, &profiles, &environment) {
            Ok(ResolvedEndpoint { endpoint, key }) => format!(
                "{} {:?} {} bearer={} headers={:?} key={:?}",
                endpoint.display_name(),
                endpoint.api,
                endpoint.base_url,
                endpoint.bearer,
                endpoint.headers,
                key.map(|key| key.variable)
            ),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn names() {
        check("demo", &[], expect![[r#"demo Demo  bearer=false headers={} key=None"#]]);
        check(
            "anthropic/claude-opus-5-5",
            &[("ANTHROPIC_API_KEY", "k"), ("ANTHROPIC_AUTH_TOKEN", "t")],
            expect![[
                r#"anthropic/claude-opus-5-5 Anthropic https://api.anthropic.com bearer=false headers={} key=Some("ANTHROPIC_API_KEY")"#
            ]],
        );
        check(
            "anthropic/x",
            &[
                ("ANTHROPIC_API_KEY", " "),
                ("ANTHROPIC_AUTH_TOKEN", "t"),
                ("ANTHROPIC_BASE_URL", "https://gateway.example/v1/"),
                ("ANTHROPIC_CUSTOM_HEADERS", "X-Team: blue\n\nX-B: c:d"),
                ("ANTHROPIC_BETAS", "a,b"),
            ],
            expect![[
                r#"anthropic/x Anthropic https://gateway.example bearer=true headers={"anthropic-beta": "a,b", "x-b": "c:d", "x-team": "blue"} key=Some("ANTHROPIC_AUTH_TOKEN")"#
            ]],
        );
        check(
            "openai/gpt-6.2-sol",
            &[("OPENAI_API_KEY", "k")],
            expect![[
                r#"openai/gpt-6.2-sol Responses https://api.openai.com/v1 bearer=false headers={} key=Some("OPENAI_API_KEY")"#
            ]],
        );
        check(
            "openai/qwen3:8b",
            &[("OPENAI_BASE_URL", "http://localhost:11434/v1")],
            expect![[r#"openai/qwen3:8b Chat http://localhost:11434/v1 bearer=false headers={} key=None"#]],
        );
        check(
            "lab/org/model",
            &[("LAB_KEY", "k")],
            expect![[
                r#"lab/org/model Chat http://localhost:8000/v1 bearer=false headers={} key=Some("LAB_KEY")"#
            ]],
        );
    }

    #[test]
    fn names_that_lead_nowhere() {
        check(
            "anthropic/x",
            &[],
            expect!["no key for anthropic/x: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"],
        );
        check("openai/x", &[], expect!["no key for openai/x: set OPENAI_API_KEY"]);
        check("lab/x", &[], expect!["no key for lab/x: set LAB_KEY"]);
        check("other/x", &[], expect!["no provider `other`: known are anthropic, openai, demo, lab"]);
        for name in ["opus", "anthropic/", "/x"] {
            let expected = format!(
                "`{name}` is not a model: write provider/name, such as anthropic/NAME or openai/NAME, or demo"
            );
            let error = resolve_endpoint(name, &BTreeMap::new(), &|_| None).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        check(
            "anthropic/x",
            &[("ANTHROPIC_API_KEY", "k"), ("ANTHROPIC_CUSTOM_HEADERS", "nonsense")],
            expect!["ANTHROPIC_CUSTOM_HEADERS: each line must be `Name: value`"],
        );
    }

    #[test]
    fn hosts_are_compared_whole() {
        assert!(is_official_anthropic("https://api.anthropic.com"));
        assert!(!is_official_anthropic("https://api.anthropic.com.example.org"));
        assert!(!is_official_anthropic("https://notapi.anthropic.com"));
        assert!(has_host("https://eu.api.openai.com/v1", "api.openai.com"));
    }

    #[test]
    fn a_secret_header_is_refused_for_it_would_be_recorded() {
        let environment = |variable: &str| match variable {
            "ANTHROPIC_API_KEY" => Some("k".to_owned()),
            "ANTHROPIC_CUSTOM_HEADERS" => Some("Authorization: Bearer x".to_owned()),
            _ => None,
        };
        let refused =
            resolve_endpoint("anthropic/m", &BTreeMap::new(), &environment).unwrap_err().to_string();
        assert!(refused.contains("ANTHROPIC_AUTH_TOKEN") && !refused.contains("Bearer x"), "{refused}");
    }
}
