//! What is known of models by name. A setting of the endpoint goes before; an unknown name gets cautious
//! figures.
//!
//! Anthropic's: <https://platform.claude.com/docs/en/about-claude/models/overview>, read in November 2026.
//! OpenAI's: <https://platform.openai.com/docs/models>.

use query_engine::ports::ModelInfo;
use swarm_protocol::launch::{ApiKind, ModelEndpoint};

/// The window of a model nobody knows anything about (spec 3.1).
pub const DEFAULT_CONTEXT_WINDOW: u64 = 32_768;

/// The output of such a model.
const DEFAULT_MAX_OUTPUT: u64 = 8_192;

/// A line of the table: how a name begins, the window, the most output.
type Known = (&'static str, u64, u64);

/// The longest beginning wins.
const ANTHROPIC: &[Known] = &[
    ("claude-fable-5", 1_000_000, 128_000),
    ("claude-mythos-5", 1_000_000, 128_000),
    ("claude-opus-5", 1_000_000, 128_000),
    ("claude-opus-4-8", 1_000_000, 128_000),
    ("claude-opus-4-7", 1_000_000, 128_000),
    ("claude-opus-4-6", 1_000_000, 128_000),
    ("claude-opus-4-5", 200_000, 64_000),
    ("claude-sonnet-5", 1_000_000, 128_000),
    ("claude-sonnet-4-6", 1_000_000, 128_000),
    ("claude-sonnet-4-5", 200_000, 64_000),
    ("claude-haiku-5-5", 1_000_000, 128_000),
    ("claude-haiku-4-5", 200_000, 64_000),
    // A name of a newer line: what all of the last two years had at least.
    ("claude-", 200_000, 64_000),
];

const OPENAI: &[Known] = &[
    ("gpt-6", 400_000, 128_000),
    ("gpt-5", 400_000, 128_000),
    ("gpt-4.1", 1_047_576, 32_768),
    ("gpt-4o", 128_000, 16_384),
    ("o3", 200_000, 100_000),
    ("o4-mini", 200_000, 100_000),
];

fn lookup(table: &[Known], model: &str) -> Option<(u64, u64)> {
    table
        .iter()
        .filter(|(prefix, _, _)| model.starts_with(prefix))
        .max_by_key(|(prefix, _, _)| prefix.len())
        .map(|(_, window, output)| (*window, *output))
}

/// A model's name without a gateway's vendor prefix.
pub(crate) fn bare_name(model: &str) -> &str {
    model.rsplit_once('/').map_or(model, |(_, name)| name)
}

/// What is known of an endpoint's model.
pub(crate) fn info(endpoint: &ModelEndpoint) -> ModelInfo {
    let name = bare_name(&endpoint.model);
    let known = lookup(ANTHROPIC, name).or_else(|| match endpoint.api {
        ApiKind::Responses => lookup(OPENAI, name),
        // A compatible server may serve anything under a borrowed name, with a window of its own.
        ApiKind::Chat | ApiKind::Anthropic | ApiKind::Demo => None,
    });
    let (window, output) = known.unwrap_or((DEFAULT_CONTEXT_WINDOW, DEFAULT_MAX_OUTPUT));
    let context_window = endpoint.context_window.unwrap_or(window);
    // With a small configured window the output must leave room for a prompt.
    let max_output = endpoint.max_output.unwrap_or_else(|| output.min((context_window / 2).max(1)));
    ModelInfo { name: endpoint.display_name(), context_window, max_output, caches: caches(endpoint) }
}

/// Whether what is sent there is cached.
pub fn caches(endpoint: &ModelEndpoint) -> bool {
    matches!(endpoint.api, ApiKind::Anthropic | ApiKind::Responses)
}

/// Whether a model takes `thinking: {"type": "adaptive"}`; unknown names do not get it.
pub(crate) fn thinks_adaptively(model: &str) -> bool {
    let name = bare_name(model);
    [
        "claude-opus-4-6",
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-sonnet-4-6",
        "claude-sonnet-5",
        "claude-haiku-5",
        "claude-fable-5",
        "claude-mythos-5",
    ]
    .iter()
    .any(|line| name.starts_with(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(api: ApiKind, model: &str, expected: (u64, u64)) {
        let endpoint = crate::endpoint::testing::endpoint(api, model, "http://127.0.0.1:1");
        let info = info(&endpoint);
        assert_eq!((info.context_window, info.max_output), expected, "{model}");
    }

    #[test]
    fn windows() {
        check(ApiKind::Anthropic, "claude-opus-5-5", (1_000_000, 128_000));
        check(ApiKind::Anthropic, "claude-opus-4-5-20251101", (200_000, 64_000));
        check(ApiKind::Anthropic, "claude-sonnet-5", (1_000_000, 128_000));
        check(ApiKind::Anthropic, "claude-haiku-4-5-20251001", (200_000, 64_000));
        check(ApiKind::Anthropic, "claude-lyric-7", (200_000, 64_000));
        check(ApiKind::Anthropic, "qwen3", (32_768, 8_192));
        check(ApiKind::Chat, "gpt-5", (32_768, 8_192));
        check(ApiKind::Chat, "anthropic/claude-opus-5", (1_000_000, 128_000));
        check(ApiKind::Responses, "gpt-6.2-sol", (400_000, 128_000));
    }

    #[test]
    fn settings_go_before() {
        let mut endpoint = crate::endpoint::testing::endpoint(ApiKind::Chat, "qwen3", "http://127.0.0.1:1");
        endpoint.context_window = Some(8_000);
        assert_eq!(info(&endpoint).max_output, 4_000);
        endpoint.max_output = Some(6_000);
        assert_eq!((info(&endpoint).context_window, info(&endpoint).max_output), (8_000, 6_000));
    }

    #[test]
    fn adaptive_thinking_by_line() {
        for model in
            ["claude-opus-5-5", "claude-sonnet-4-6", "claude-haiku-5-5", "anthropic/claude-fable-5-2"]
        {
            assert!(thinks_adaptively(model), "{model}");
        }
        for model in
            ["claude-opus-4-5-20251101", "claude-haiku-4-5", "claude-sonnet-4-5", "scripted", "claude-new-9"]
        {
            assert!(!thinks_adaptively(model), "{model}");
        }
    }
}
