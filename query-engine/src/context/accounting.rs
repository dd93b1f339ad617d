//! How full the window is: the provider's own count as far as it goes, an estimate for the rest (spec 3.1).

use swarm_protocol::{Block, Message, ResultBlock};

use crate::{
    ports::{ModelInfo, Prefix},
    state::LoopState,
};

/// Output that is kept free in the window at most, in tokens.
pub const RESERVED_OUTPUT: u64 = 20_000;
/// Tokens an image is counted as: about the dearest an Anthropic model makes of one (1,568), rounded up.
pub const IMAGE_TOKENS: u64 = 1_600;
/// Bytes per token before a provider has reported any; low, so that estimates are high.
pub const BYTES_PER_TOKEN: f64 = 3.5;
/// What a block costs beside its words (framing, names, ids), in bytes.
const BLOCK_BYTES: u64 = 16;
/// Windows from this size on have fixed distances, smaller ones a share.
const LARGE_WINDOW: u64 = 200_000;

/// Bytes of text in these messages; media not counted.
pub fn message_bytes(messages: &[Message]) -> u64 {
    messages.iter().flat_map(|message| &message.content).map(|block| block_size(block).0).sum()
}

/// Bytes of media in these messages.
pub fn media_bytes(messages: &[Message]) -> u64 {
    messages
        .iter()
        .flat_map(|message| &message.content)
        .map(|block| match block {
            Block::Image { data, .. } => data.len() as u64,
            Block::ToolResult { content, .. } => content
                .iter()
                .map(|part| match part {
                    ResultBlock::Image { data, .. } => data.len() as u64,
                    ResultBlock::Text { .. } => 0,
                })
                .sum(),
            Block::Text { .. }
            | Block::Thinking { .. }
            | Block::RedactedThinking { .. }
            | Block::ToolUse { .. }
            | Block::Opaque { .. } => 0,
        })
        .sum()
}

/// Bytes of text and number of images of a block.
fn block_size(block: &Block) -> (u64, u64) {
    let (bytes, images) = match block {
        Block::Text { text } => (text.len(), 0),
        Block::Thinking { thinking, signature } => (thinking.len() + signature.len(), 0),
        Block::RedactedThinking { data } => (data.len(), 0),
        Block::ToolUse { name, input, .. } => (name.len() + input.to_string().len(), 0),
        Block::ToolResult { content, .. } => {
            content.iter().fold((0, 0), |(bytes, images), part| match part {
                ResultBlock::Text { text } => (bytes + text.len(), images),
                ResultBlock::Image { .. } => (bytes, images + 1),
            })
        }
        Block::Image { .. } => (0, 1),
        Block::Opaque { data, .. } => (data.to_string().len(), 0),
    };
    (bytes as u64 + BLOCK_BYTES, images)
}

/// Bytes of system prompt and tools.
pub fn prefix_bytes(prefix: &Prefix) -> u64 {
    let system: usize = prefix.system.iter().map(String::len).sum();
    let tools: usize = prefix
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len())
        .sum();
    (system + tools) as u64
}

/// The figures of one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accounting {
    /// Calibrated bytes per token.
    pub bytes_per_token: f64,
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
    /// Counts. `prefix_bytes`: see [`prefix_bytes`].
    pub fn of(state: &LoopState, prefix_bytes: u64, model: &ModelInfo) -> Self {
        let bytes_per_token = state
            .reported
            .filter(|reported| reported.input_tokens > 0)
            .map(|reported| (reported.message_bytes + prefix_bytes) as f64 / reported.input_tokens as f64)
            .map_or(BYTES_PER_TOKEN, |measured| measured.clamp(1.5, 6.0));
        let overhead = (prefix_bytes as f64 / bytes_per_token).ceil() as u64;
        let messages = match state.reported {
            Some(reported) if reported.current && reported.covered <= state.messages.len() => {
                reported.input_tokens.saturating_sub(overhead)
                    + reported.output_tokens
                    + estimate(&state.messages[reported.covered..], bytes_per_token)
            }
            Some(_) | None => estimate(&state.messages, bytes_per_token),
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
            bytes_per_token,
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
pub fn estimate(messages: &[Message], bytes_per_token: f64) -> u64 {
    let (bytes, images) = messages
        .iter()
        .flat_map(|message| &message.content)
        .map(block_size)
        .fold((0, 0), |(bytes, images), (more, pictures)| (bytes + more, images + pictures));
    (bytes as f64 / bytes_per_token).ceil() as u64 + images * IMAGE_TOKENS
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

    #[test]
    fn the_providers_count_goes_as_far_as_it_does_and_calibrates_the_rest() {
        let user = |text: String| RecordBody::User {
            message: Message::user_text(text),
            origin: Origin::Prompt,
            commands: Vec::new(),
        };
        let mut state = LoopState::default();
        // 984 bytes and 16 for the block: 1,000.
        state.apply(&user("x".repeat(984)));
        state.apply(&RecordBody::Assistant {
            message: Message::assistant(vec![Block::text("ok")]),
            request: 1,
            model: "m".to_owned(),
            stop_reason: StopReason::EndTurn,
            usage: Usage { input_tokens: 100, cache_read_tokens: 400, output_tokens: 7, ..Usage::default() },
            cost: Cost::default(),
            incomplete: false,
        });
        state.apply(&user("x".repeat(184)));
        let figures = Accounting::of(&state, 0, &model(200_000, 8_000));
        assert_eq!(figures.bytes_per_token, 2.0);
        assert_eq!(figures.messages, 500 + 7 + 100);
    }

    #[test]
    fn images_count_by_number_and_bytes_apart() {
        let image = || ResultBlock::Image { media_type: "image/png".to_owned(), data: "A".repeat(5_000) };
        let result =
            Block::ToolResult { tool_use_id: id("t"), content: vec![image(), image()], is_error: false };
        let messages = [Message::user(vec![result])];
        assert_eq!(estimate(&messages, 1.0), 2 * IMAGE_TOKENS + BLOCK_BYTES);
        assert_eq!(media_bytes(&messages), 10_000);
    }
}
