//! Chunks of a chat stream to the engine's events. A pure fold; calls are closed at the end of the stream only,
//! since servers write `finish_reason` wherever they like.

use std::collections::VecDeque;

use query_engine::ports::{
    BlockKind, ClosedBlock, Delta, ModelError, ModelErrorKind, ModelRequest, StreamEvent,
};
use serde_json::{Value, json};
use swarm_protocol::{Block, Usage, record::StopReason};

use super::{
    accumulator::{Accumulator, Fragment, Slot},
    unparsed_call,
};
use crate::{call_id::CallIds, decoder, error, sse::SseEvent, tool_input};

/// Words that are being written.
#[derive(Debug)]
struct Prose {
    index: usize,
    is_thinking: bool,
    text: String,
}

/// The fold's state.
#[derive(Debug)]
pub(super) struct Decoder {
    ids: CallIds,
    tools: Vec<String>,
    calls: Accumulator,
    /// The block of each slot, once it was announced.
    announced: Vec<Option<usize>>,
    prose: Option<Prose>,
    next_index: usize,
    said: String,
    refusal: String,
    details: Vec<Value>,
    opaque: String,
    started: bool,
    finish: Option<String>,
    stopped: bool,
    usage: Option<Usage>,
    request_bytes: usize,
    output_bytes: usize,
}

impl Decoder {
    /// `opaque` names the provider of blocks that only this endpoint understands.
    pub(super) fn new(request: &ModelRequest, request_bytes: usize, opaque: &str) -> Self {
        let tools: Vec<String> = request.prefix.tools.iter().map(|tool| tool.name.clone()).collect();
        Self {
            ids: CallIds::of(&request.messages),
            calls: Accumulator::new(tools.clone()),
            tools,
            announced: Vec::new(),
            prose: None,
            next_index: 0,
            said: String::new(),
            refusal: String::new(),
            details: Vec::new(),
            opaque: opaque.to_owned(),
            started: false,
            finish: None,
            stopped: false,
            usage: None,
            request_bytes,
            output_bytes: 0,
        }
    }

    fn chunk(&mut self, chunk: &Value, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        // Some servers number several answers; only one was asked for.
        let choice = chunk["choices"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|choice| choice["index"].as_u64().is_none_or(|index| index == 0));
        let error = [Some(chunk), choice].into_iter().flatten().find(|value| !value["error"].is_null());
        if let Some(error) = error {
            return Err(error::in_band(error));
        }
        if chunk["object"] == "error" {
            return Err(error::in_band(chunk));
        }
        if !self.started {
            self.started = true;
            let model = chunk["model"].as_str().unwrap_or_default().to_owned();
            out.push_back(StreamEvent::Started { model });
        }
        if let Some(usage) = usage(&chunk["usage"]).filter(|usage| Some(*usage) != self.usage) {
            self.usage = Some(usage);
            out.push_back(StreamEvent::Usage(usage));
        }
        let Some(choice) = choice else { return Ok(()) };
        // A server that does not stream sends the whole message in one chunk.
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        self.delta(delta, out);
        match choice["finish_reason"].as_str() {
            None | Some("") => Ok(()),
            Some("error") => {
                Err(error::in_band(&json!({"message": "the provider gave up (finish_reason: error)"})))
            }
            Some(word) => {
                self.finish = Some(word.to_owned());
                Ok(())
            }
        }
    }

    fn delta(&mut self, delta: &Value, out: &mut VecDeque<StreamEvent>) {
        let reasoning = ["reasoning_content", "reasoning"]
            .into_iter()
            .find_map(|key| delta[key].as_str().filter(|text| !text.is_empty()));
        if let Some(text) = reasoning {
            self.prose(true, text, out);
        }
        for detail in delta["reasoning_details"].as_array().into_iter().flatten() {
            self.detail(detail, reasoning.is_none(), out);
        }
        match &delta["content"] {
            Value::String(text) => self.prose(false, text, out),
            Value::Array(parts) => parts.iter().for_each(|part| self.part(part, out)),
            _ => {}
        }
        if let Some(text) = delta["refusal"].as_str() {
            self.refusal.push_str(text);
            self.prose(false, text, out);
        }
        for entry in delta["tool_calls"].as_array().into_iter().flatten() {
            self.fragment(Fragment::read(entry), out);
        }
        if let Some(function) = delta.get("function_call").filter(|function| function.is_object()) {
            self.fragment(Fragment::read(&json!({"index": 0, "function": function})), out);
        }
    }

    /// A part of a content list, as Mistral writes it.
    fn part(&mut self, part: &Value, out: &mut VecDeque<StreamEvent>) {
        if let Some(text) = part["text"].as_str() {
            self.prose(false, text, out);
        }
        match &part["thinking"] {
            Value::String(text) => self.prose(true, text, out),
            Value::Array(parts) => {
                for text in parts.iter().filter_map(|part| part["text"].as_str()) {
                    self.prose(true, text, out);
                }
            }
            _ => {}
        }
    }

    /// A reasoning detail, as OpenRouter writes it: pieces of one kind and index belong together.
    fn detail(&mut self, detail: &Value, shown: bool, out: &mut VecDeque<StreamEvent>) {
        if shown && let Some(text) = detail["text"].as_str().or(detail["summary"].as_str()) {
            self.prose(true, text, out);
        }
        let same = |last: &&mut Value| last["type"] == detail["type"] && last["index"] == detail["index"];
        let Some(last) = self.details.last_mut().filter(same) else {
            self.details.push(detail.clone());
            return;
        };
        for (key, value) in detail.as_object().into_iter().flatten() {
            match (last.get_mut(key), value) {
                (Some(Value::String(before)), Value::String(more))
                    if matches!(key.as_str(), "text" | "summary" | "data") =>
                {
                    before.push_str(more);
                }
                (_, Value::Null) => {}
                _ => last[key] = value.clone(),
            }
        }
    }

    fn prose(&mut self, is_thinking: bool, text: &str, out: &mut VecDeque<StreamEvent>) {
        if text.is_empty() {
            return;
        }
        if self.prose.as_ref().is_some_and(|prose| prose.is_thinking != is_thinking) {
            self.close_prose(out);
        }
        let next_index = &mut self.next_index;
        let prose = self.prose.get_or_insert_with(|| {
            let index = *next_index;
            *next_index += 1;
            let kind = if is_thinking { BlockKind::Thinking } else { BlockKind::Text };
            out.push_back(StreamEvent::BlockStarted { index, kind });
            Prose { index, is_thinking, text: String::new() }
        });
        prose.text.push_str(text);
        self.output_bytes += text.len();
        let delta = if is_thinking { Delta::Thinking(text.to_owned()) } else { Delta::Text(text.to_owned()) };
        out.push_back(StreamEvent::Delta { index: prose.index, delta });
    }

    fn close_prose(&mut self, out: &mut VecDeque<StreamEvent>) {
        let Some(Prose { index, is_thinking, text }) = self.prose.take() else { return };
        let block = if is_thinking {
            Block::Thinking { thinking: text, signature: String::new() }
        } else {
            self.said.push_str(&text);
            Block::Text { text }
        };
        out.push_back(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(block) });
    }

    fn fragment(&mut self, fragment: Fragment, out: &mut VecDeque<StreamEvent>) {
        self.close_prose(out);
        let bytes = fragment.arguments.as_ref().map_or(0, String::len);
        self.output_bytes += bytes;
        let number = self.calls.push(fragment);
        if self.announced.len() <= number {
            self.announced.resize(number + 1, None);
        }
        let slot = self.calls.slot(number);
        match (self.announced[number], &slot.name) {
            (Some(index), _) if bytes > 0 => {
                out.push_back(StreamEvent::Delta { index, delta: Delta::InputBytes(bytes) });
            }
            (None, Some(name)) if self.calls.is_named(number) || !slot.arguments.is_empty() => {
                let (name, bytes) = (name.clone(), slot.arguments.len());
                self.announce(number, name, bytes, out);
            }
            _ => {}
        }
    }

    fn announce(
        &mut self,
        number: usize,
        name: String,
        bytes: usize,
        out: &mut VecDeque<StreamEvent>,
    ) -> usize {
        let index = self.next_index;
        self.next_index += 1;
        if self.announced.len() <= number {
            self.announced.resize(number + 1, None);
        }
        self.announced[number] = Some(index);
        out.push_back(StreamEvent::BlockStarted { index, kind: BlockKind::ToolUse { name } });
        if bytes > 0 {
            out.push_back(StreamEvent::Delta { index, delta: Delta::InputBytes(bytes) });
        }
        index
    }

    fn finish(&mut self, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        self.close_prose(out);
        self.stopped = true;
        let cut = matches!(self.finish.as_deref(), Some("length" | "max_tokens"));
        if self.calls.is_empty()
            && !cut
            && let Some(error) = unparsed_call::diagnosis(&self.said, &self.tools)
        {
            return Err(error);
        }
        if !self.details.is_empty() {
            let index = self.next_index;
            self.next_index += 1;
            let data = json!({"reasoning_details": std::mem::take(&mut self.details)});
            let block = Block::Opaque { provider: self.opaque.clone(), data };
            out.push_back(StreamEvent::BlockStarted { index, kind: BlockKind::Other });
            out.push_back(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(block) });
        }
        let calls = std::mem::take(&mut self.calls).finish();
        let n_calls = calls.len();
        for (place, (number, slot)) in calls.into_iter().enumerate() {
            let Slot { id, name, arguments, extra, .. } = slot;
            let name = name.unwrap_or_default();
            let index = match self.announced.get(number).copied().flatten() {
                Some(index) => index,
                None => self.announce(number, name.clone(), arguments.len(), out),
            };
            let id = self.ids.take(id.as_deref());
            let is_last = place + 1 == n_calls;
            let block = if cut && is_last && !tool_input::is_whole(&arguments) {
                tool_input::cut_call(id, name, &arguments)
            } else {
                let provider_data = extra.map(|extra| json!({"extra_content": extra}));
                tool_input::close_call(id, name, &arguments, provider_data)
            };
            out.push_back(StreamEvent::BlockClosed { index, block });
        }
        if self.usage.is_none() {
            out.push_back(StreamEvent::Usage(decoder::estimate(self.request_bytes, self.output_bytes)));
        }
        self.warn_of_cut_prompt();
        out.push_back(StreamEvent::Stopped(self.stop_reason(n_calls > 0)));
        Ok(())
    }

    fn stop_reason(&self, called: bool) -> StopReason {
        match self.finish.as_deref() {
            Some("length" | "max_tokens") => StopReason::MaxTokens,
            Some(word @ "content_filter") => StopReason::Refusal { explanation: word.to_owned() },
            _ if called => StopReason::ToolUse,
            _ if !self.refusal.is_empty() => StopReason::Refusal { explanation: self.refusal.clone() },
            None | Some("stop" | "tool_calls" | "function_call" | "eos" | "end_turn") => StopReason::EndTurn,
            Some(word) => StopReason::Unknown { word: word.to_owned() },
        }
    }

    /// Some servers cut a long prompt at its start without a word.
    fn warn_of_cut_prompt(&self) {
        let Some(usage) = self.usage else { return };
        let estimate = decoder::estimate(self.request_bytes, 0).input_tokens;
        let counted = usage.total_input();
        if estimate > 3_000 && counted > 0 && counted < estimate / 3 {
            tracing::warn!(
                counted,
                estimate,
                "the server counted far fewer input tokens than were sent: it may cut prompts to a small context \
                 (Ollama: OLLAMA_CONTEXT_LENGTH)"
            );
        }
    }
}

impl decoder::Decoder for Decoder {
    fn event(&mut self, event: SseEvent, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let data = event.data.trim();
        if self.stopped || data.is_empty() {
            return Ok(());
        }
        if data == "[DONE]" {
            return self.finish(out);
        }
        let chunk: Value =
            serde_json::from_str(data).map_err(|problem| error::malformed_event(data, &problem))?;
        if event.name.as_deref() == Some("error") && chunk["choices"].is_null() {
            return Err(error::in_band(&chunk));
        }
        self.chunk(&chunk, out)
    }

    fn end(&mut self, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        // Without a mark of its end the answer is broken off, whatever it holds.
        if self.finish.is_some() { self.finish(out) } else { Ok(()) }
    }
}

/// Use in the engine's terms; none when the server says nothing of substance.
fn usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| decoder::reported(value.as_u64()).unwrap_or(0);
    let prompt = count(&usage["prompt_tokens"]);
    let output = count(&usage["completion_tokens"]);
    if prompt + output == 0 {
        return None;
    }
    let details = &usage["prompt_tokens_details"];
    let cached = count(&details["cached_tokens"]).max(count(&usage["prompt_cache_hit_tokens"])).min(prompt);
    let written = count(&details["cache_write_tokens"]).min(prompt - cached);
    Some(Usage {
        input_tokens: prompt - cached - written,
        output_tokens: output,
        cache_read_tokens: cached,
        cache_write_tokens: written,
        estimated: false,
    })
}

/// Whether a refusal is about a field of the request that can be left out or named otherwise.
pub(super) fn names_field(error: &ModelError, field: &str) -> bool {
    matches!(error.kind, ModelErrorKind::InvalidRequest)
        && matches!(error.status, Some(400 | 422))
        && error.message.contains(field)
}
