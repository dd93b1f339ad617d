//! What holds for any bytes a provider may send: the targets of `tests/fuzz`, which the tests of this crate
//! run over its corpus. Each panics when a promise is broken.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt as _, executor::block_on, stream};
use query_engine::{
    ports::{BlockKind, ClosedBlock, ModelRequest, Prefix, StreamEvent, ToolSpec},
    response::Response,
};
use swarm_protocol::Block;

use crate::{
    anthropic,
    decoder::Decoder,
    openai,
    sse::{self, SseEvent},
    watchdog::LastByte,
};

/// The events of a body that comes in these pieces, and the error that ended it.
fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<SseEvent>, Option<String>) {
    let pieces: Vec<_> = pieces.map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
    let mut items: Vec<_> = block_on(sse::events(stream::iter(pieces), LastByte::unpaced()).collect());
    let error = items.pop_if(|last| last.is_err()).and_then(Result::err).map(|error| error.to_string());
    let events = items.into_iter().map(|item| item.expect("nothing comes after an error")).collect();
    (events, error)
}

/// SSE framing: how a body was cut into pieces never shows. The first byte says how long a piece is.
pub fn sse(data: &[u8]) {
    let Some((size, body)) = data.split_first() else { return };
    let whole = events(std::iter::once(body));
    assert_eq!(events(body.chunks(usize::from(*size).max(1))), whole, "pieces of {size}");
    assert_eq!(events(body.chunks(1)), whole, "byte by byte");
    assert!(whole.0.iter().map(|event| event.data.len()).sum::<usize>() <= body.len());
}

/// Chunks of a chat stream: whatever comes, blocks begin once and close once, calls have arguments that a
/// provider takes back, and after the end nothing comes.
pub fn chat(data: &[u8]) {
    answer(data, openai::chat_decoder(&request()));
}

/// Events of a Responses stream: the promises of [`chat`].
pub fn responses(data: &[u8]) {
    answer(data, openai::responses_decoder(&request()));
}

/// Events of a Messages stream: the promises of [`chat`].
pub fn messages(data: &[u8]) {
    answer(data, anthropic::decoder(&request()));
}

fn request() -> ModelRequest {
    let tool = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        input_schema: serde_json::json!({"type": "object"}),
        offer: query_engine::ports::Offer::Always,
    };
    ModelRequest {
        prefix: Arc::new(Prefix { system: Vec::new(), tools: vec![tool("Bash"), tool("Read")] }),
        messages: Vec::new(),
        max_tokens: 1_000,
        breakpoints: Vec::new(),
    }
}

fn answer(data: &[u8], mut decoder: impl Decoder) {
    let (events, _) = events(std::iter::once(data));
    let mut out = VecDeque::new();
    let mut failed = false;
    for event in events {
        failed = decoder.event(event, &mut out).is_err();
        if failed || out.iter().any(|event| matches!(event, StreamEvent::Stopped(_))) {
            break;
        }
    }
    if !failed && !out.iter().any(|event| matches!(event, StreamEvent::Stopped(_))) {
        failed = decoder.end(&mut out).is_err();
    }
    check(&out.into_iter().collect::<Vec<_>>(), failed);
}

fn check(events: &[StreamEvent], failed: bool) {
    let mut open = Vec::new();
    let mut words = BTreeSet::new();
    let mut begun = BTreeSet::new();
    let mut ids = Vec::new();
    let mut stopped = false;
    let mut used = 0;
    let mut response = Response::default();
    for event in events {
        response.take(event);
        assert!(!stopped, "an event after the end: {event:?}");
        match event {
            StreamEvent::BlockStarted { index, kind } => {
                assert!(begun.insert(*index), "block {index} begins twice");
                open.push(*index);
                words.extend((*kind == BlockKind::Text).then_some(*index));
            }
            StreamEvent::Delta { index, .. } => assert!(open.contains(index), "a delta of a closed block"),
            StreamEvent::BlockClosed { index, block } => {
                let place = open.iter().position(|open| open == index).expect("only an open block is closed");
                open.remove(place);
                let (id, input) = match block {
                    ClosedBlock::Valid(Block::ToolUse { id, input, .. })
                    | ClosedBlock::InvalidCall { id, input, .. } => (id, input),
                    ClosedBlock::Valid(_) => continue,
                };
                assert!(input.is_object(), "arguments that no provider takes back: {input}");
                assert!(!ids.contains(&id), "two calls have the id {id}");
                ids.push(id);
            }
            StreamEvent::Stopped(_) => stopped = true,
            // Sums of what a provider says do not overflow.
            StreamEvent::Usage(usage) => used = used.max(usage.total()),
            StreamEvent::Started { .. } | StreamEvent::Ping => {}
        }
    }
    let charged = response.usage_so_far(1).map_or(0, |usage| usage.total());
    assert!(charged >= response.output_estimate(), "words that cost nothing");
    assert!(used < 1 << 43, "a figure of {used}");
    assert!(!(stopped && failed), "an answer is whole or has failed");
    // A call that was never closed is no call.
    assert!(
        !stopped || !open.iter().any(|index| words.contains(index)),
        "a whole answer leaves no words open"
    );
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    fn replay(target: fn(&[u8]), name: &str) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(name);
        let mut count = 0;
        for entry in fs::read_dir(&corpus).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let run = std::panic::catch_unwind(|| target(&bytes));
            assert!(run.is_ok(), "{} breaks a promise", path.display());
            count += 1;
        }
        assert!(count >= 5, "the corpus of {name} has {count} files");
    }

    #[test]
    fn every_body_of_the_corpus_is_framed_the_same_however_it_is_cut() {
        replay(super::sse, "sse");
    }

    #[test]
    fn every_chat_stream_of_the_corpus_keeps_the_promises_of_an_answer() {
        replay(super::chat, "chat");
    }

    #[test]
    fn every_responses_stream_of_the_corpus_keeps_the_promises_of_an_answer() {
        replay(super::responses, "responses");
    }

    #[test]
    fn every_messages_stream_of_the_corpus_keeps_the_promises_of_an_answer() {
        replay(super::messages, "messages");
    }

    #[test]
    #[should_panic(expected = "a delta of a closed block")]
    fn a_broken_promise_is_noticed() {
        use query_engine::ports::{Delta, StreamEvent};
        super::check(&[StreamEvent::Delta { index: 0, delta: Delta::InputBytes(1) }], false);
    }
}
