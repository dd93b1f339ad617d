//! How full the window is: the provider's own count as far as it goes, an estimate for the rest (spec 3.1).

use serde_json::Value;
use swarm_protocol::{Block, Message, ResultBlock};

use super::weight;
use crate::{
    ports::{ModelInfo, Offer, Prefix},
    state::LoopState,
};

/// Output that is kept free in the window at most, in tokens.
pub const RESERVED_OUTPUT: u64 = 20_000;
/// Bytes of an answer per token, where nothing better is known; low, so that estimates are high.
pub const BYTES_PER_TOKEN: f64 = 3.5;
/// Tokens the provider counts for one of ours, before it has reported any; some tokenizers make more, so it is high.
pub const UNCALIBRATED: f64 = 1.25;
/// What a report may make of it: beyond that something else was counted.
const SCALES: (f64, f64) = (0.5, 2.5);
/// What a block costs beside its words (framing, names, ids), in tokens.
const BLOCK_TOKENS: u64 = 4;
/// Windows from this size on have fixed distances, smaller ones a share.
const LARGE_WINDOW: u64 = 200_000;

/// Bytes of text in these messages; media not counted.
pub fn message_bytes(messages: &[Message]) -> u64 {
    messages.iter().flat_map(|message| &message.content).map(block_bytes).sum()
}

/// What these messages weigh (see [`weight`]), images included.
pub fn message_weight(messages: &[Message]) -> u64 {
    messages.iter().flat_map(|message| &message.content).map(block_weight).sum()
}

/// Bytes of media in these messages.
pub fn media_bytes(messages: &[Message]) -> u64 {
    let mut bytes = 0;
    for block in messages.iter().flat_map(|message| &message.content) {
        for_each_part(block, |part| match part {
            Part::Image(data) => bytes += data.len(),
            Part::Text(_) | Part::Json(_) => {}
        });
    }
    bytes as u64
}

fn block_bytes(block: &Block) -> u64 {
    let mut bytes = 0;
    for_each_part(block, |part| match part {
        Part::Text(text) => bytes += text.len(),
        Part::Json(value) => bytes += value.to_string().len(),
        Part::Image(_) => {}
    });
    bytes as u64
}

fn block_weight(block: &Block) -> u64 {
    let mut weight = BLOCK_TOKENS * weight::TOKEN;
    for_each_part(block, |part| {
        weight += match part {
            Part::Text(text) => weight::text(text),
            Part::Json(value) => weight::text(&value.to_string()),
            Part::Image(data) => weight::image(data),
        }
    });
    weight
}

/// What a block is made of.
enum Part<'a> {
    Text(&'a str),
    Json(&'a Value),
    Image(&'a str),
}

fn for_each_part<'a>(block: &'a Block, mut see: impl FnMut(Part<'a>)) {
    match block {
        Block::Text { text } => see(Part::Text(text)),
        Block::Thinking { thinking, signature } => {
            see(Part::Text(thinking));
            see(Part::Text(signature));
        }
        Block::RedactedThinking { data } => see(Part::Text(data)),
        Block::ToolUse { name, input, .. } => {
            see(Part::Text(name));
            see(Part::Json(input));
        }
        Block::ToolResult { content, .. } => {
            for part in content {
                see(match part {
                    ResultBlock::Text { text } => Part::Text(text),
                    ResultBlock::ToolReference { definition, .. } => Part::Text(definition),
                    ResultBlock::Image { data, .. } => Part::Image(data),
                });
            }
        }
        Block::Image { data, .. } => see(Part::Image(data)),
        Block::Opaque { data, .. } => see(Part::Json(data)),
    }
}

/// What system prompt and tools weigh.
pub fn prefix_weight(prefix: &Prefix) -> u64 {
    let system: u64 = prefix.system.iter().map(|text| weight::text(text)).sum();
    // A deferred one is in no context before it was found, and counts there then.
    let offered = prefix.tools.iter().filter(|tool| tool.offer != Offer::Deferred);
    let tools = offered.map(|tool| {
        let schema = tool.input_schema.to_string();
        weight::text(&tool.name) + weight::text(&tool.description) + weight::text(&schema)
    });
    system + tools.sum::<u64>()
}

/// The figures of one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accounting {
    /// Tokens the provider counts for one of ours: calibrated.
    pub scale: f64,
    /// System prompt and tools, in tokens.
    pub overhead: u64,
    /// The messages alone, in tokens.
    pub messages: u64,
    /// What the messages may fill.
    pub effective_window: u64,
    /// From here on a warning is in place.
    pub warn_at: u64,
    /// From here on history is compacted.
    pub compact_at: u64,
    /// From here on nothing is sent.
    pub block_at: u64,
}

impl Accounting {
    /// Counts. `prefix_weight`: see [`prefix_weight`].
    pub fn of(state: &LoopState, prefix_weight: u64, model: &ModelInfo) -> Self {
        let scale = state
            .reported
            .map(|reported| (reported.input_tokens, reported.message_weight + prefix_weight))
            .filter(|(tokens, weight)| *tokens > 0 && *weight > 0)
            .map(|(tokens, weight)| (tokens * weight::TOKEN) as f64 / weight as f64)
            .map_or(UNCALIBRATED, |measured| measured.clamp(SCALES.0, SCALES.1));
        let overhead = tokens_of(prefix_weight, scale);
        let messages = match state.reported {
            Some(reported) if reported.current && reported.covered <= state.messages.len() => {
                reported.input_tokens.saturating_sub(overhead)
                    + reported.output_tokens
                    + estimate(&state.messages[reported.covered..], scale)
            }
            Some(_) | None => tokens_of(state.message_weight, scale),
        };
        let window = model.context_window;
        let effective_window =
            window.saturating_sub(model.max_output.min(RESERVED_OUTPUT)).saturating_sub(overhead);
        let (warn, compact, block) = if window >= LARGE_WINDOW {
            (20_000, 13_000, 3_000)
        } else {
            (window / 10, window * 65 / 1_000, window * 15 / 1_000)
        };
        Self {
            scale,
            overhead,
            messages,
            effective_window,
            warn_at: effective_window.saturating_sub(warn),
            compact_at: effective_window.saturating_sub(compact),
            block_at: effective_window.saturating_sub(block),
        }
    }
}

/// The estimate for these messages, in tokens.
pub fn estimate(messages: &[Message], scale: f64) -> u64 {
    tokens_of(message_weight(messages), scale)
}

fn tokens_of(weight: u64, scale: f64) -> u64 {
    (weight as f64 * scale / weight::TOKEN as f64).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::id;
    use swarm_protocol::{
        Usage,
        record::{Origin, RecordBody, StopReason},
        usage::Cost,
    };

    fn model(context_window: u64, max_output: u64) -> ModelInfo {
        ModelInfo { name: "m".to_owned(), context_window, max_output, caches: true }
    }

    #[test]
    fn thresholds_of_the_specification() {
        let check = |window, max_output, expected: [u64; 4]| {
            let figures = Accounting::of(&LoopState::default(), 0, &model(window, max_output));
            let found = [figures.effective_window, figures.warn_at, figures.compact_at, figures.block_at];
            assert_eq!(found, expected);
        };
        check(200_000, 64_000, [180_000, 160_000, 167_000, 177_000]);
        check(1_000_000, 128_000, [980_000, 960_000, 967_000, 977_000]);
        check(100_000, 8_000, [92_000, 82_000, 85_500, 90_500]);
        check(1_000, 8_000, [0, 0, 0, 0]);
    }

    fn user(text: String) -> RecordBody {
        RecordBody::User { message: Message::user_text(text), origin: Origin::Prompt, commands: Vec::new() }
    }

    fn answered(text: &str, usage: Usage) -> RecordBody {
        RecordBody::Assistant {
            message: Message::assistant(vec![Block::text(text)]),
            request: 1,
            model: "m".to_owned(),
            stop_reason: StopReason::EndTurn,
            usage,
            cost: Cost::default(),
            incomplete: false,
        }
    }

    #[test]
    fn the_providers_count_goes_as_far_as_it_does_and_calibrates_the_rest() {
        let mut state = LoopState::default();
        let sent = user("word ".repeat(496));
        state.apply(&sent);
        let weight = state.message_weight;
        let usage = Usage { input_tokens: 100, cache_read_tokens: 400, output_tokens: 7, ..Usage::default() };
        state.apply(&answered("ok", usage));
        state.apply(&sent);
        let figures = Accounting::of(&state, 0, &model(200_000, 8_000));
        assert_eq!(figures.scale, 500.0 * weight::TOKEN as f64 / weight as f64);
        assert_eq!(figures.messages, 500 + 7 + 500);
    }

    /// Texts of a kind with the counts of two tokenizers (npm's `gpt-tokenizer` 4.0.0).
    #[derive(serde::Deserialize)]
    struct Sample {
        kind: String,
        text: String,
        o200k: u64,
        cl100k: u64,
    }

    const TOKENIZERS: [fn(&Sample) -> u64; 2] = [|sample| sample.o200k, |sample| sample.cl100k];
    /// Kinds that differ between tokenizers: a report must have covered some before they are known well.
    const SCRIPTS: [&str; 4] = ["chinese", "japanese", "korean", "russian"];

    fn corpus() -> std::collections::BTreeMap<String, Vec<Sample>> {
        let mut kinds: std::collections::BTreeMap<String, Vec<Sample>> = std::collections::BTreeMap::new();
        for line in include_str!("weight/corpus.jsonl").lines() {
            let sample: Sample = serde_json::from_str(line).expect("a sample");
            kinds.entry(sample.kind.clone()).or_default().push(sample);
        }
        kinds
    }

    /// Texts of a kind with so many tokens or a few more, and how many.
    fn fill(samples: &[Sample], count: fn(&Sample) -> u64, tokens: u64) -> (String, u64) {
        let (mut text, mut counted) = (String::new(), 0);
        for sample in samples.iter().cycle() {
            if counted >= tokens {
                break;
            }
            text.push_str(&sample.text);
            counted += count(sample);
        }
        (text, counted)
    }

    #[test]
    fn at_the_thresholds_the_estimate_is_within_a_tenth_also_where_a_conversation_changes_kind() {
        let corpus = corpus();
        // Small, for speed: only shares matter.
        let model = model(30_000, 2_000);
        let compact_at = Accounting::of(&LoopState::default(), 0, &model).compact_at;
        let check = |from: &str, to: &str, count: fn(&Sample) -> u64, added: u64| {
            let (before, reported) = fill(&corpus[from], count, compact_at - added);
            let (after, unknown) = fill(&corpus[to], count, added);
            let mut state = LoopState::default();
            state.apply(&user(before));
            state.apply(&answered("", Usage { input_tokens: reported, ..Usage::default() }));
            state.apply(&user(after));
            let estimated = Accounting::of(&state, 0, &model).messages as f64;
            let error = estimated / (reported + unknown) as f64 - 1.0;
            assert!(error.abs() <= 0.1, "from {from} to {to}, {added} tokens added: {:.1} %", error * 100.0);
        };
        for count in TOKENIZERS {
            for from in corpus.keys() {
                for to in corpus.keys() {
                    // As the results of one turn may bring to a large window, and twice that.
                    check(from, to, count, compact_at / 4);
                    if [from, to].iter().all(|kind| !SCRIPTS.contains(&kind.as_str())) {
                        check(from, to, count, compact_at / 2);
                    }
                }
            }
        }
    }

    #[test]
    fn before_a_provider_has_reported_estimates_are_rather_high() {
        for count in TOKENIZERS {
            for (kind, samples) in corpus() {
                let (text, tokens) = fill(&samples, count, 50_000);
                let estimated = estimate(&[Message::user_text(text)], UNCALIBRATED);
                assert!(estimated * 10 >= tokens * 9, "{kind}: {estimated} of {tokens}");
            }
        }
    }

    #[test]
    fn images_weigh_by_size_and_their_bytes_are_counted_apart() {
        let image = || ResultBlock::Image { media_type: "image/png".to_owned(), data: "A".repeat(5_000) };
        let result =
            Block::ToolResult { tool_use_id: id("t"), content: vec![image(), image()], is_error: false };
        let messages = [Message::user(vec![result])];
        assert_eq!(estimate(&messages, 1.0), 2 * weight::MAX_IMAGE_TOKENS + BLOCK_TOKENS);
        assert_eq!((message_bytes(&messages), media_bytes(&messages)), (0, 10_000));
    }
}
