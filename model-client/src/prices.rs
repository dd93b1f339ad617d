//! What a call costs: the endpoint's own price, else the table in `prices.toml`, else unknown.

use std::sync::LazyLock;

use serde::Deserialize;
use swarm_protocol::{
    Usage,
    launch::{ApiKind, ModelEndpoint, Price},
    usage::Cost,
};

use crate::models::bare_name;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    model: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
    long_prompt: Option<LongPrompt>,
}

/// The price of a prompt over a size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LongPrompt {
    over: u64,
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("prices.toml")).expect("a test reads the table in"));

/// The day the price table was read from its source (the head of `prices.toml`).
pub const TABLE_DATE: &str = "2026-11-30";

/// What a call of this usage cost. `model` is the one that answered; when the table does not know it, the one
/// that was asked counts.
pub fn cost(endpoint: &ModelEndpoint, model: &str, usage: &Usage) -> Cost {
    if let Some(price) = &endpoint.price {
        return price.cost(usage);
    }
    let entry = find(model).or_else(|| find(&endpoint.model));
    match entry {
        Some(entry) => entry.price(usage).cost(usage),
        None => Cost::unknown(),
    }
}

/// Whether calls of this endpoint's model have a known price: configured, of the table, or none because it is the demo.
/// What answers under another name is charged as the model that was asked.
pub fn is_priced(endpoint: &ModelEndpoint) -> bool {
    endpoint.api == ApiKind::Demo || endpoint.price.is_some() || find(&endpoint.model).is_some()
}

fn find(model: &str) -> Option<&'static Entry> {
    let name = bare_name(model);
    TABLE.model.iter().filter(|entry| is_of(name, &entry.name)).max_by_key(|entry| entry.name.len())
}

/// `claude-opus-5` names `claude-opus-5` and `claude-opus-5-20260301`, but not a later `claude-opus-5-7`: a
/// price that is not known is better than a wrong one.
fn is_of(model: &str, name: &str) -> bool {
    model.strip_prefix(name).is_some_and(|rest| match rest.strip_prefix('-') {
        None => rest.is_empty(),
        Some("latest") => true,
        Some(date) => date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit()),
    })
}

impl Entry {
    fn price(&self, usage: &Usage) -> Price {
        match &self.long_prompt {
            Some(long) if usage.total_input() > long.over => {
                let LongPrompt { over: _, input, output, cache_read, cache_write } = *long;
                Price { input, output, cache_read, cache_write }
            }
            _ => {
                let Self { name: _, input, output, cache_read, cache_write, long_prompt: _ } = *self;
                Price { input, output, cache_read, cache_write }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        input_tokens: 1_000_000,
        output_tokens: 100_000,
        cache_read_tokens: 1_000_000,
        cache_write_tokens: 0,
        estimated: false,
    };

    fn check(model: &str, expected: Option<f64>) {
        let endpoint = crate::endpoint::testing::endpoint(ApiKind::Anthropic, model, "http://127.0.0.1:1");
        let exact = cost(&endpoint, model, &USAGE).exact_usd();
        assert_eq!(exact.map(|usd| (usd * 1e6).round() / 1e6), expected, "{model}");
    }

    #[test]
    fn table() {
        assert!(include_str!("prices.toml").contains(&format!("# Read: {TABLE_DATE}.")));
        check("claude-opus-5-5", Some(4.0 + 2.0 + 0.2));
        check("claude-opus-5-20260301", Some(5.0 + 2.5 + 0.5));
        check("anthropic/claude-sonnet-4-6", Some(3.0 + 1.5 + 0.3));
        check("claude-haiku-5-5", Some(0.5 + 0.25 + 0.05));
        check("claude-opus-50", None);
        check("claude-opus-5-7", None);
        check("qwen3", None);
    }

    #[test]
    fn what_is_priced_has_a_cost() {
        let endpoint = |api, model| crate::endpoint::testing::endpoint(api, model, "http://127.0.0.1:1");
        assert!(is_priced(&endpoint(ApiKind::Anthropic, "claude-opus-5")));
        assert!(is_priced(&endpoint(ApiKind::Demo, "demo")));
        let mut unknown = endpoint(ApiKind::Chat, "qwen3");
        assert!(!is_priced(&unknown) && cost(&unknown, "qwen3", &USAGE).exact_usd().is_none());
        unknown.price = Some(Price { input: 0.0, output: 0.0, cache_read: 0.0, cache_write: 0.0 });
        assert!(is_priced(&unknown) && cost(&unknown, "qwen3", &USAGE).exact_usd().is_some());
    }

    #[test]
    fn a_short_prompt_has_the_low_price() {
        let endpoint =
            crate::endpoint::testing::endpoint(ApiKind::Anthropic, "claude-haiku-5-5", "http://127.0.0.1:1");
        let usage = Usage { input_tokens: 100_000, ..Usage::default() };
        assert_eq!(cost(&endpoint, "claude-haiku-5-5", &usage), Cost::usd(0.01));
    }

    #[test]
    fn the_endpoints_price_goes_before() {
        let mut endpoint =
            crate::endpoint::testing::endpoint(ApiKind::Anthropic, "claude-opus-5", "http://127.0.0.1:1");
        endpoint.price = Some(Price { input: 1.0, output: 0.0, cache_read: 0.0, cache_write: 0.0 });
        assert_eq!(cost(&endpoint, "claude-opus-5", &USAGE), Cost::usd(1.0));
    }
}
