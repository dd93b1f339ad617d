//! The model of `--model demo`: no network, no key, no cost. It speaks through the same port as every other
//! model and decides by reading the request alone; what it does is in [`script`].

mod coordinator;
mod json;
mod sample;
mod script;
mod worker;

use std::{collections::VecDeque, time::Duration};

use async_trait::async_trait;
use query_engine::ports::{
    BlockKind, ClosedBlock, Delta, Model, ModelError, ModelInfo, ModelRequest, ModelStream, StreamEvent,
};
use swarm_protocol::{Block, Message, Usage, launch::ModelEndpoint, usage::Cost};

pub use json::demo_reply_json;
pub use script::{DemoReply, RequestView, demo_reply};

use crate::decoder;

/// Between two pieces of an answer: fast enough to be over in seconds, slow enough to be seen.
const DELTA_PAUSE: Duration = Duration::from_millis(8);

/// Before an answer begins.
const FIRST_PAUSE: Duration = Duration::from_millis(120);

/// A long text or input comes in at most so many pieces.
const MAX_DELTAS: usize = 60;

/// The scripted model.
#[derive(Clone, Debug)]
pub struct DemoModel {
    name: String,
    first_pause: Duration,
    delta_pause: Duration,
}

impl DemoModel {
    /// One that takes its time.
    pub fn new(endpoint: &ModelEndpoint) -> Self {
        Self { name: endpoint.display_name(), first_pause: FIRST_PAUSE, delta_pause: DELTA_PAUSE }
    }

    /// One that answers at once.
    pub fn instant() -> Self {
        Self { name: "demo".to_owned(), first_pause: Duration::ZERO, delta_pause: Duration::ZERO }
    }
}

#[async_trait]
impl Model for DemoModel {
    fn info(&self) -> ModelInfo {
        ModelInfo { name: self.name.clone(), context_window: 200_000, max_output: 32_000, caches: false }
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let messages: Vec<Message> = request.messages.iter().map(|message| (**message).clone()).collect();
        let reply = demo_reply(&RequestView::new(&request.prefix, &messages));
        let events = events(reply, self.request_bytes(request));
        let (first, between) = (self.first_pause, self.delta_pause);
        let paced = futures::stream::unfold((events, true), move |(mut events, is_first)| async move {
            let event = events.pop_front()?;
            let pause = match event {
                _ if is_first => first,
                StreamEvent::Delta { .. } => between,
                _ => Duration::ZERO,
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Some((Ok(event), (events, false)))
        });
        Ok(Box::pin(paced))
    }

    fn cost(&self, _: &str, _: &Usage) -> Cost {
        Cost::usd(0.0)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        let ModelRequest { prefix, messages, max_tokens: _, breakpoints: _ } = request;
        let system: usize = prefix.system.iter().map(String::len).sum();
        let tools: usize = prefix.tools.iter().map(|tool| tool.name.len() + tool.description.len()).sum();
        // What has no JSON cannot be in a message.
        system + tools + serde_json::to_vec(messages).map_or(0, |json| json.len())
    }
}

fn events(reply: DemoReply, request_bytes: usize) -> VecDeque<StreamEvent> {
    let DemoReply { blocks, stop } = reply;
    let mut events = VecDeque::from([StreamEvent::Started { model: "demo".to_owned() }]);
    let mut output_bytes = 0;
    for (index, block) in blocks.into_iter().enumerate() {
        match &block {
            Block::Text { text } => {
                output_bytes += text.len();
                events.push_back(StreamEvent::BlockStarted { index, kind: BlockKind::Text });
                let deltas = pieces(text).map(|piece| Delta::Text(piece.to_owned()));
                events.extend(deltas.map(|delta| StreamEvent::Delta { index, delta }));
            }
            Block::ToolUse { name, input, .. } => {
                let input = input.to_string();
                output_bytes += input.len();
                events.push_back(StreamEvent::BlockStarted {
                    index,
                    kind: BlockKind::ToolUse { name: name.clone() },
                });
                let deltas = pieces(&input).map(|piece| Delta::InputBytes(piece.len()));
                events.extend(deltas.map(|delta| StreamEvent::Delta { index, delta }));
            }
            _ => events.push_back(StreamEvent::BlockStarted { index, kind: BlockKind::Other }),
        }
        events.push_back(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(block) });
    }
    events.push_back(StreamEvent::Usage(decoder::estimate(request_bytes, output_bytes)));
    events.push_back(StreamEvent::Stopped(stop));
    events
}

/// A text in pieces of a few letters, or larger ones if there would be too many.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let size = text.len().div_ceil(MAX_DELTAS).max(9);
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(size));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests;
