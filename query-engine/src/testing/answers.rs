//! What a scripted model streams: blocks, whole and broken off, and the answers made of them.

use serde_json::{Value, json};
use swarm_protocol::{Block, ToolUseId, Usage, record::StopReason};

use super::model::{Script, Step, error};
use crate::ports::{BlockKind, ClosedBlock, Delta, ModelErrorKind, StreamEvent};

/// An answer of these parts.
pub fn answer(parts: impl IntoIterator<Item = Vec<Step>>) -> Script {
    let start = Step::Event(StreamEvent::Started { model: "test/model".to_owned() });
    Script::Stream(std::iter::once(start).chain(parts.into_iter().flatten()).collect())
}

/// An answer of words that ends its turn.
pub fn says(words: &str) -> Script {
    answer([text(0, words), stop(StopReason::EndTurn)])
}

/// An answer of one call.
pub fn calls(call_id: &str, name: &str, input: Value) -> Script {
    answer([call(0, call_id, name, input), stop(StopReason::ToolUse)])
}

/// Words that come in two deltas and close.
pub fn text(index: usize, words: &str) -> Vec<Step> {
    let mut steps = open_text(index, words);
    steps
        .push(Step::Event(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(Block::text(words)) }));
    steps
}

/// Words whose block stays open.
pub fn open_text(index: usize, words: &str) -> Vec<Step> {
    let half = words.chars().count() / 2;
    let (head, tail): (String, String) =
        (words.chars().take(half).collect(), words.chars().skip(half).collect());
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::Text }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Text(head) }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Text(tail) }),
    ]
}

/// A whole thinking block.
pub fn thinking(index: usize, words: &str) -> Vec<Step> {
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::Thinking }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Thinking(words.to_owned()) }),
        Step::Event(StreamEvent::BlockClosed {
            index,
            block: ClosedBlock::Valid(Block::Thinking {
                thinking: words.to_owned(),
                signature: format!("signed {words}"),
            }),
        }),
    ]
}

/// A call that closes.
pub fn call(index: usize, call_id: &str, name: &str, input: Value) -> Vec<Step> {
    let mut steps = open_call(index, name);
    steps.push(Step::Event(StreamEvent::BlockClosed {
        index,
        block: ClosedBlock::Valid(Block::ToolUse {
            id: id(call_id),
            name: name.to_owned(),
            input,
            provider_data: None,
        }),
    }));
    steps
}

/// A call that begins and does not close.
pub fn open_call(index: usize, name: &str) -> Vec<Step> {
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::ToolUse { name: name.to_owned() } }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::InputBytes(10) }),
    ]
}

/// A call whose arguments are no JSON object.
pub fn invalid_call(index: usize, call_id: &str, name: &str, problem: &str) -> Vec<Step> {
    let mut steps = open_call(index, name);
    steps.push(Step::Event(StreamEvent::BlockClosed {
        index,
        block: ClosedBlock::InvalidCall {
            id: id(call_id),
            name: name.to_owned(),
            input: json!({}),
            problem: problem.to_owned(),
        },
    }));
    steps
}

/// A tool call id.
pub fn id(text: &str) -> ToolUseId {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Use and the stop.
pub fn stop(reason: StopReason) -> Vec<Step> {
    stop_with(reason, Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() })
}

/// This use and the stop.
pub fn stop_with(reason: StopReason, usage: Usage) -> Vec<Step> {
    vec![Step::Event(StreamEvent::Usage(usage)), Step::Event(StreamEvent::Stopped(reason))]
}

/// The stream ends without `message_stop`.
pub fn fin() -> Step {
    Step::Fail(error(ModelErrorKind::Truncated, "the stream ended before the answer was whole"))
}
