//! Anthropic's events to the engine's. A pure fold; unknown events and deltas are ignored, as the provider's
//! versioning policy asks.

use std::collections::{BTreeMap, HashSet, VecDeque};

use query_engine::ports::{BlockKind, ClosedBlock, Delta, ModelError, ModelRequest, StreamEvent};
use serde::Deserialize;
use serde_json::Value;
use swarm_protocol::{Block, ToolUseId, Usage, record::StopReason};

use crate::{call_id::CallIds, decoder, error, sse::SseEvent, tool_input};

/// The provider of blocks that only Anthropic understands.
pub(super) const OPAQUE: &str = "anthropic";

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: MessageStart,
    },
    ContentBlockStart {
        index: usize,
        content_block: Value,
    },
    ContentBlockDelta {
        index: usize,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        #[serde(default)]
        delta: MessageDelta,
        usage: Option<WireUsage>,
    },
    MessageStop,
    Ping,
    Error,
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct MessageStart {
    #[serde(default)]
    model: String,
    usage: Option<WireUsage>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BlockDelta {
    TextDelta {
        text: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Default, Deserialize)]
struct MessageDelta {
    stop_reason: Option<String>,
    stop_details: Option<StopDetails>,
}

#[derive(Debug, Deserialize)]
struct StopDetails {
    explanation: Option<String>,
    category: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// A block that is still being written.
#[derive(Debug)]
enum Open {
    Text(String),
    Thinking { thinking: String, signature: String },
    ToolUse { id: ToolUseId, name: String, json: String, input: Option<Value> },
    Whole(Block),
}

/// The fold's state.
#[derive(Debug)]
pub(crate) struct Decoder {
    ids: CallIds,
    open: BTreeMap<usize, Open>,
    /// Blocks that began.
    begun: HashSet<usize>,
    /// A closed call whose arguments are empty or broken: what follows tells whether the output limit cut it.
    held: Option<(usize, ToolUseId, String, String)>,
    called: bool,
    stop: Option<StopReason>,
    stopped: bool,
    usage: Usage,
    request_bytes: usize,
    output_bytes: usize,
}

impl Decoder {
    pub(crate) fn new(request: &ModelRequest, request_bytes: usize) -> Self {
        Self {
            ids: CallIds::of(&request.messages),
            open: BTreeMap::new(),
            begun: HashSet::new(),
            held: None,
            called: false,
            stop: None,
            stopped: false,
            usage: Usage::default(),
            request_bytes,
            output_bytes: 0,
        }
    }

    fn start(&mut self, index: usize, block: Value, out: &mut VecDeque<StreamEvent>) {
        let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (open, kind) = match block.get("type").and_then(Value::as_str) {
            Some("text") => (Open::Text(text("text")), BlockKind::Text),
            Some("thinking") => (
                Open::Thinking { thinking: text("thinking"), signature: text("signature") },
                BlockKind::Thinking,
            ),
            Some("redacted_thinking") => {
                (Open::Whole(Block::RedactedThinking { data: text("data") }), BlockKind::Thinking)
            }
            Some("tool_use") => {
                let name = text("name");
                let id = self.ids.take(block.get("id").and_then(Value::as_str));
                // Usually a placeholder; servers that do not stream inputs put the whole one here.
                let input = block
                    .get("input")
                    .filter(|input| input.as_object().is_some_and(|input| !input.is_empty()))
                    .cloned();
                (
                    Open::ToolUse { id, name: name.clone(), json: String::new(), input },
                    BlockKind::ToolUse { name },
                )
            }
            _ => {
                let data = block.clone();
                (Open::Whole(Block::Opaque { provider: OPAQUE.to_owned(), data }), BlockKind::Other)
            }
        };
        out.push_back(StreamEvent::BlockStarted { index, kind });
        if let Open::Text(text) = &open
            && !text.is_empty()
        {
            out.push_back(StreamEvent::Delta { index, delta: Delta::Text(text.clone()) });
        }
        self.open.insert(index, open);
    }

    fn delta(
        &mut self,
        index: usize,
        delta: BlockDelta,
        out: &mut VecDeque<StreamEvent>,
    ) -> Result<(), ModelError> {
        let open = self
            .open
            .get_mut(&index)
            .ok_or_else(|| error::malformed(&format!("a delta for block {index}, which is not open")))?;
        let delta = match (open, delta) {
            (Open::Text(text), BlockDelta::TextDelta { text: more }) => {
                text.push_str(&more);
                Delta::Text(more)
            }
            (Open::Thinking { thinking, .. }, BlockDelta::ThinkingDelta { thinking: more }) => {
                thinking.push_str(&more);
                Delta::Thinking(more)
            }
            (Open::Thinking { signature, .. }, BlockDelta::SignatureDelta { signature: whole }) => {
                *signature = whole;
                return Ok(());
            }
            (Open::ToolUse { json, .. }, BlockDelta::InputJsonDelta { partial_json }) => {
                json.push_str(&partial_json);
                Delta::InputBytes(partial_json.len())
            }
            _ => return Ok(()),
        };
        let bytes = match &delta {
            Delta::Text(text) | Delta::Thinking(text) => text.len(),
            Delta::InputBytes(bytes) => *bytes,
        };
        self.output_bytes += bytes;
        if bytes > 0 {
            out.push_back(StreamEvent::Delta { index, delta });
        }
        Ok(())
    }

    fn close(&mut self, index: usize, out: &mut VecDeque<StreamEvent>) {
        let Some(open) = self.open.remove(&index) else { return };
        let block = match open {
            Open::Text(text) => ClosedBlock::Valid(Block::Text { text }),
            Open::Thinking { thinking, signature } => {
                ClosedBlock::Valid(Block::Thinking { thinking, signature })
            }
            Open::Whole(block) => ClosedBlock::Valid(block),
            Open::ToolUse { id, name, json, input } => {
                self.called = true;
                match input {
                    Some(input) if json.trim().is_empty() => {
                        ClosedBlock::Valid(Block::ToolUse { id, name, input, provider_data: None })
                    }
                    _ if tool_input::is_whole(&json) => tool_input::close_call(id, name, &json, None),
                    _ => {
                        self.held = Some((index, id, name, json));
                        return;
                    }
                }
            }
        };
        out.push_back(StreamEvent::BlockClosed { index, block });
    }

    /// Hands out the held call: whatever came next shows how it ended.
    fn release(&mut self, cut: bool, out: &mut VecDeque<StreamEvent>) {
        if let Some((index, id, name, json)) = self.held.take() {
            let block = match cut {
                true => tool_input::cut_call(id, name, &json),
                false => tool_input::close_call(id, name, &json, None),
            };
            out.push_back(StreamEvent::BlockClosed { index, block });
        }
    }

    fn merge(&mut self, usage: WireUsage, out: &mut VecDeque<StreamEvent>) {
        let WireUsage { input_tokens, cache_creation_input_tokens, cache_read_input_tokens, output_tokens } =
            usage;
        // Cumulative, not additive; what is absent keeps its value.
        let set = |to: &mut u64, from: Option<u64>| *to = decoder::reported(from).unwrap_or(*to);
        set(&mut self.usage.input_tokens, input_tokens);
        set(&mut self.usage.cache_write_tokens, cache_creation_input_tokens);
        set(&mut self.usage.cache_read_tokens, cache_read_input_tokens);
        set(&mut self.usage.output_tokens, output_tokens);
        out.push_back(StreamEvent::Usage(self.usage));
    }

    fn stop(&mut self, out: &mut VecDeque<StreamEvent>) {
        self.release(false, out);
        // Words that a server forgot to close are whole; a call that it did not close is not.
        let forgotten: Vec<usize> = self
            .open
            .iter()
            .filter(|(_, open)| !matches!(open, Open::ToolUse { .. }))
            .map(|(index, _)| *index)
            .collect();
        for index in forgotten {
            self.close(index, out);
        }
        // No request is empty: a report without input is none.
        if self.usage.total_input() == 0 {
            let estimate = decoder::estimate(self.request_bytes, self.output_bytes);
            let output_tokens = estimate.output_tokens.max(self.usage.output_tokens);
            out.push_back(StreamEvent::Usage(Usage { output_tokens, ..estimate }));
        }
        let default = if self.called { StopReason::ToolUse } else { StopReason::EndTurn };
        out.push_back(StreamEvent::Stopped(self.stop.take().unwrap_or(default)));
        self.stopped = true;
    }
}

impl decoder::Decoder for Decoder {
    fn event(&mut self, event: SseEvent, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        if self.stopped || event.data.trim().is_empty() || event.data.trim() == "[DONE]" {
            return Ok(());
        }
        let parsed: Event = serde_json::from_str(&event.data)
            .map_err(|problem| error::malformed_event(&event.data, &problem))
            .or_else(|problem| self.tolerate(&event, problem))?;
        match parsed {
            Event::MessageStart { message } => {
                out.push_back(StreamEvent::Started { model: message.model });
                if let Some(usage) = message.usage {
                    self.merge(usage, out);
                }
            }
            Event::ContentBlockStart { index, content_block } => {
                self.release(false, out);
                if !self.begun.insert(index) {
                    // It would take the place of what a tool may have acted on.
                    return Err(error::malformed(&format!("block {index} begins twice")));
                }
                self.start(index, content_block, out);
            }
            Event::ContentBlockDelta { index, delta } => self.delta(index, delta, out)?,
            Event::ContentBlockStop { index } => self.close(index, out),
            Event::MessageDelta { delta, usage } => {
                if let Some(word) = delta.stop_reason {
                    let stop = stop_reason(&word, delta.stop_details);
                    let cut = matches!(stop, StopReason::MaxTokens | StopReason::ContextWindowExceeded);
                    self.release(cut, out);
                    self.stop = Some(stop);
                }
                if let Some(usage) = usage {
                    self.merge(usage, out);
                }
            }
            Event::MessageStop => self.stop(out),
            Event::Ping => out.push_back(StreamEvent::Ping),
            Event::Error => {
                self.release(false, out);
                let value: Value = serde_json::from_str(&event.data).unwrap_or_default();
                return Err(error::in_band(&value));
            }
            Event::Other => {}
        }
        Ok(())
    }

    fn end(&mut self, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        // The connection broke right after a call had closed; its arguments are what they are.
        if let Some((_, _, _, json)) = &self.held
            && !json.trim().is_empty()
        {
            self.release(false, out);
        }
        Ok(())
    }
}

impl Decoder {
    /// An event of a future kind may reuse a field's name with another type; an event we need may not.
    fn tolerate(&self, event: &SseEvent, problem: ModelError) -> Result<Event, ModelError> {
        const NEEDED: &[&str] = &[
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        let value: Value = serde_json::from_str(&event.data).map_err(|_| problem.clone())?;
        match value.get("type").and_then(Value::as_str) {
            Some(kind) if NEEDED.contains(&kind) => Err(problem),
            Some(_) => Ok(Event::Other),
            // An error without a `type`, as gateways write it.
            None if value.get("error").is_some() => Ok(Event::Error),
            None => Ok(Event::Other),
        }
    }
}

fn stop_reason(word: &str, details: Option<StopDetails>) -> StopReason {
    match word {
        "end_turn" => StopReason::EndTurn,
        "tool_use" => StopReason::ToolUse,
        "max_tokens" => StopReason::MaxTokens,
        "stop_sequence" => StopReason::StopSequence,
        "pause_turn" => StopReason::PauseTurn,
        "refusal" => {
            let (explanation, category) =
                details.map(|details| (details.explanation, details.category)).unwrap_or_default();
            let explanation = explanation.filter(|text| !text.is_empty()).or(category);
            StopReason::Refusal {
                explanation: explanation.unwrap_or_else(|| "no explanation given".to_owned()),
            }
        }
        "model_context_window_exceeded" => StopReason::ContextWindowExceeded,
        other => StopReason::Unknown { word: other.to_owned() },
    }
}
