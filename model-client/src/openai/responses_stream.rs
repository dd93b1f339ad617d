//! Events of a Responses stream to the engine's. A pure fold: deltas are for those who watch, what counts is
//! each item as its `done` event gives it.

use std::collections::{BTreeMap, VecDeque};

use query_engine::ports::{BlockKind, ClosedBlock, Delta, ModelError, ModelRequest, StreamEvent};
use serde_json::Value;
use swarm_protocol::{Block, Usage, record::StopReason};

use super::responses_request::OPAQUE;
use crate::{call_id::CallIds, decoder, error, sse::SseEvent, tool_input};

/// The fold's state.
#[derive(Debug)]
pub(super) struct Decoder {
    ids: CallIds,
    /// The block of each output item.
    indexes: BTreeMap<u64, usize>,
    done: Vec<u64>,
    /// Words of messages that are not done.
    words: BTreeMap<u64, String>,
    next_index: usize,
    called: bool,
    refusal: Option<String>,
    stopped: bool,
    request_bytes: usize,
    output_bytes: usize,
}

impl Decoder {
    pub(super) fn new(request: &ModelRequest, request_bytes: usize) -> Self {
        Self {
            ids: CallIds::of(&request.messages),
            indexes: BTreeMap::new(),
            done: Vec::new(),
            words: BTreeMap::new(),
            next_index: 0,
            called: false,
            refusal: None,
            stopped: false,
            request_bytes,
            output_bytes: 0,
        }
    }

    /// The block of an output item; announces it when it is new.
    fn open(&mut self, place: u64, item: &Value, out: &mut VecDeque<StreamEvent>) -> usize {
        if let Some(index) = self.indexes.get(&place) {
            return *index;
        }
        let index = self.next_index;
        self.next_index += 1;
        self.indexes.insert(place, index);
        let kind = match item["type"].as_str() {
            Some("message") => {
                self.words.insert(place, String::new());
                BlockKind::Text
            }
            Some("reasoning") => BlockKind::Thinking,
            Some("function_call") => {
                BlockKind::ToolUse { name: item["name"].as_str().unwrap_or_default().to_owned() }
            }
            _ => BlockKind::Other,
        };
        out.push_back(StreamEvent::BlockStarted { index, kind });
        index
    }

    fn delta(&mut self, event: &Value, kind: &str, out: &mut VecDeque<StreamEvent>) {
        let text = event["delta"].as_str().unwrap_or_default();
        let place = event["output_index"].as_u64().filter(|place| !self.done.contains(place));
        let found = place.and_then(|place| Some((place, *self.indexes.get(&place)?)));
        let Some((place, index)) = found.filter(|_| !text.is_empty()) else { return };
        self.output_bytes += text.len();
        let delta = match kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                if let Some(words) = self.words.get_mut(&place) {
                    words.push_str(text);
                }
                Delta::Text(text.to_owned())
            }
            "response.function_call_arguments.delta" => Delta::InputBytes(text.len()),
            _ => Delta::Thinking(text.to_owned()),
        };
        out.push_back(StreamEvent::Delta { index, delta });
    }

    fn done(&mut self, place: u64, item: &Value, out: &mut VecDeque<StreamEvent>) {
        if self.done.contains(&place) {
            return;
        }
        self.done.push(place);
        self.words.remove(&place);
        let index = self.open(place, item, out);
        let text = |key: &str| item[key].as_str().unwrap_or_default();
        let block = match item["type"].as_str() {
            Some("message") => ClosedBlock::Valid(Block::Text { text: self.words(&item["content"]) }),
            Some("function_call") => {
                self.called = true;
                let id = self.ids.take(item["call_id"].as_str());
                let (name, arguments) = (text("name").to_owned(), text("arguments"));
                if text("status") == "incomplete" && !tool_input::is_whole(arguments) {
                    tool_input::cut_call(id, name, arguments)
                } else {
                    tool_input::close_call(id, name, arguments, None)
                }
            }
            _ => ClosedBlock::Valid(Block::Opaque { provider: OPAQUE.to_owned(), data: item.clone() }),
        };
        out.push_back(StreamEvent::BlockClosed { index, block });
    }

    fn words(&mut self, parts: &Value) -> String {
        let mut words = String::new();
        for part in parts.as_array().into_iter().flatten() {
            if let Some(refusal) = part["refusal"].as_str() {
                self.refusal = Some(refusal.to_owned());
                words.push_str(refusal);
            }
            words.push_str(part["text"].as_str().unwrap_or_default());
        }
        words
    }

    fn finish(&mut self, response: &Value, incomplete: bool, out: &mut VecDeque<StreamEvent>) {
        self.stopped = true;
        // Items whose own event was lost still count, cut words too; a cut call does not.
        for (place, item) in (0..).zip(response["output"].as_array().into_iter().flatten()) {
            if item["status"] != "incomplete" || item["type"] == "message" {
                self.done(place, item, out);
            }
        }
        // Words that nothing repeats at the end are what was streamed.
        for (place, words) in std::mem::take(&mut self.words) {
            let item = serde_json::json!({"type": "message", "content": [{"text": words}]});
            self.done(place, &item, out);
        }
        let usage = usage(&response["usage"])
            .unwrap_or_else(|| decoder::estimate(self.request_bytes, self.output_bytes));
        out.push_back(StreamEvent::Usage(usage));
        let reason = response["incomplete_details"]["reason"].as_str().unwrap_or("incomplete");
        let stop = match (incomplete, reason) {
            (true, "max_output_tokens") => StopReason::MaxTokens,
            (true, "content_filter") => StopReason::Refusal { explanation: reason.to_owned() },
            (true, other) => StopReason::Unknown { word: other.to_owned() },
            (false, _) if self.called => StopReason::ToolUse,
            (false, _) => match self.refusal.take() {
                Some(explanation) => StopReason::Refusal { explanation },
                None => StopReason::EndTurn,
            },
        };
        out.push_back(StreamEvent::Stopped(stop));
    }
}

impl decoder::Decoder for Decoder {
    fn event(&mut self, event: SseEvent, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let data = event.data.trim();
        if self.stopped || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let value: Value =
            serde_json::from_str(data).map_err(|problem| error::malformed_event(data, &problem))?;
        let kind = value["type"].as_str().or(event.name.as_deref()).unwrap_or_default();
        let place = value["output_index"].as_u64().unwrap_or(0);
        match kind {
            "response.created" => {
                let model = value["response"]["model"].as_str().unwrap_or_default().to_owned();
                out.push_back(StreamEvent::Started { model });
            }
            "response.in_progress" | "response.queued" | "keepalive" => out.push_back(StreamEvent::Ping),
            "response.output_item.added" => {
                self.open(place, &value["item"], out);
            }
            "response.output_item.done" => self.done(place, &value["item"], out),
            "response.output_text.delta"
            | "response.refusal.delta"
            | "response.function_call_arguments.delta"
            | "response.reasoning_summary_text.delta"
            | "response.reasoning_text.delta" => self.delta(&value, kind, out),
            "response.completed" => self.finish(&value["response"], false, out),
            "response.incomplete" => self.finish(&value["response"], true, out),
            "response.failed" => return Err(error::in_band(&value["response"])),
            "error" => return Err(error::in_band(&value)),
            // An error that came without a name.
            "" if !value["error"].is_null() => return Err(error::in_band(&value)),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        Ok(())
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| decoder::reported(value.as_u64());
    let input = count(&usage["input_tokens"])?;
    let cached = count(&usage["input_tokens_details"]["cached_tokens"]).unwrap_or(0).min(input);
    let written =
        count(&usage["input_tokens_details"]["cache_write_tokens"]).unwrap_or(0).min(input - cached);
    Some(Usage {
        input_tokens: input - cached - written,
        output_tokens: count(&usage["output_tokens"]).unwrap_or(0),
        cache_read_tokens: cached,
        cache_write_tokens: written,
        estimated: false,
    })
}
