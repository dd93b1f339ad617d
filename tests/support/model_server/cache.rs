//! The providers' prompt cache, simulated: which part of a prompt would have been read, and which written.
//!
//! Anthropic's rules (reference, chapter 6): the prefix is tools, system, messages, byte for byte; it is stored where
//! a request has a breakpoint, for five minutes or an hour from the request's start; a later request looks at each of
//! its breakpoints and up to 20 blocks before it, and what it finds is renewed. Prefixes shorter than the model's
//! minimum are not cached, without a word.
//!
//! OpenAI's rules: no breakpoints; from 1,024 tokens on, the prompt is cached in steps of 128.
//!
//! A token is 4 bytes of JSON here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    normalise::items,
    prefix::flatten,
    record::{Api, RecordedRequest},
    reply::Usage,
};

/// How a model's name begins, and the least tokens of a prefix that is cached for it.
const MIN_TOKENS: [(&str, u64); 10] = [
    ("claude-opus-5", 512),
    ("claude-fable-5", 512),
    ("claude-mythos-5", 512),
    ("claude-mythos-preview", 2_048),
    ("claude-opus-4-7", 2_048),
    ("claude-opus-4-6", 4_096),
    ("claude-opus-4-5", 4_096),
    ("claude-haiku-4-5", 4_096),
    // Not published for this family: the figure of most models.
    ("claude-opus-5-5", USUAL_MIN_TOKENS),
    ("claude-fable-5-", USUAL_MIN_TOKENS),
];
/// Of all other models, OpenAI's among them.
const USUAL_MIN_TOKENS: u64 = 1_024;
/// OpenAI caches in steps of so many tokens.
const STEP_TOKENS: u64 = 128;
const BYTES_PER_TOKEN: u64 = 4;
const LOOK_BACK: usize = 20;
const SHORT: Duration = Duration::from_secs(5 * 60);
const LONG: Duration = Duration::from_secs(60 * 60);

/// Real time, plus what the test adds.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    added: Mutex<Duration>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now(), added: Mutex::default() }
    }
}

impl Clock {
    /// Ages the cache.
    pub fn advance(&self, by: Duration) {
        *self.added.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// The time since the server's start, as the cache sees it.
    pub fn now(&self) -> Duration {
        self.start.elapsed() + *self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Key = [u8; 32];

/// The end of a block.
#[derive(Debug)]
struct End {
    key: Key,
    tokens: u64,
    /// Breakpoint here, with this lifetime.
    ttl: Option<Duration>,
}

/// A prompt as the cache sees it.
#[derive(Debug)]
pub(crate) struct Prompt {
    ends: Vec<End>,
    tokens: u64,
    min_tokens: u64,
    /// Writes are reported, and a look goes back only so far.
    anthropic: bool,
}

impl Prompt {
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The longest marked prefix that is long enough, of this lifetime or of any.
    fn longest_marked(&self, ttl: Option<Duration>) -> u64 {
        let mut ends = self.ends.iter().rev().filter(|end| end.tokens >= self.min_tokens);
        let end = ends.find(|end| end.ttl.is_some() && (ttl.is_none() || end.ttl == ttl));
        end.map_or(0, |end| end.tokens)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: Mutex<HashMap<Key, (Duration, Duration)>>,
}

impl Cache {
    /// What the answer's usage says of a prompt that came `now`. Reading an entry renews it.
    pub(crate) fn look_up(&self, prompt: &Prompt, now: Duration) -> Usage {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, (expires, _)| *expires > now);
        let mut read = 0;
        let look_back = if prompt.anthropic { LOOK_BACK } else { 0 };
        let breakpoints = prompt.ends.iter().enumerate().rev().filter(|(_, end)| end.ttl.is_some());
        'found: for (at, _) in breakpoints {
            for end in prompt.ends[..=at].iter().rev().take(look_back + 1) {
                if let Some((expires, ttl)) = entries.get_mut(&end.key) {
                    *expires = now + *ttl;
                    read = end.tokens;
                    break 'found;
                }
            }
        }
        let (write, write_1h) = if prompt.anthropic {
            let last = prompt.longest_marked(None).max(read);
            (last - read, prompt.longest_marked(Some(LONG)).saturating_sub(read))
        } else {
            (0, 0)
        };
        Usage {
            input: prompt.tokens - read - write,
            cache_read: read,
            cache_write: write,
            cache_write_1h: write_1h,
            output: 0,
        }
    }

    /// Stores a prompt that came at `arrived`: to be called when its answer begins, for entries are readable from
    /// then on, while their lifetime counts from the request's start.
    pub(crate) fn store(&self, prompt: &Prompt, arrived: Duration) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for end in prompt.ends.iter().filter(|end| end.tokens >= prompt.min_tokens) {
            if let Some(ttl) = end.ttl {
                let entry = entries.entry(end.key).or_insert((arrived + ttl, ttl));
                // The younger one counts, and an hour is not cut to five minutes.
                entry.0 = entry.0.max(arrived + ttl);
                entry.1 = entry.1.max(ttl);
            }
        }
    }
}

pub(crate) fn prompt(request: &RecordedRequest) -> Prompt {
    match request.api {
        Api::Anthropic | Api::CountTokens => anthropic_prompt(request),
        Api::Chat | Api::Responses => openai_prompt(request),
    }
}

fn min_tokens(model: &str) -> u64 {
    let known = MIN_TOKENS.iter().filter(|(start, _)| model.starts_with(start));
    known.max_by_key(|(start, _)| start.len()).map_or(USUAL_MIN_TOKENS, |(_, tokens)| *tokens)
}

/// An end for each block.
fn anthropic_prompt(request: &RecordedRequest) -> Prompt {
    let body = &request.json;
    let mut builder = Builder::new(&request.model);
    items(&body["tools"]).for_each(|tool| builder.json(tool));
    // A change of it costs all but the tools.
    builder.apart(&body["speed"]);
    match &body["system"] {
        Value::String(text) => builder.json(&serde_json::json!({"type": "text", "text": text})),
        system => items(system).for_each(|block| builder.json(block)),
    }
    let flat = flatten(request.api, body);
    // Thinking, effort and tool choice concern the messages only.
    for (_, hash) in flat.header.iter().skip(2) {
        builder.hasher.update(hash);
    }
    let marks = message_marks(body, flat.blocks.len());
    for (block, ttl) in flat.blocks.iter().zip(marks) {
        builder.hasher.update(block.hash);
        builder.end(block.bytes, ttl);
    }
    if let (Some(ttl), Some(end)) = (ttl_of(body), builder.ends.last_mut()) {
        end.ttl = Some(ttl);
    }
    Prompt {
        tokens: builder.bytes as u64 / BYTES_PER_TOKEN,
        min_tokens: min_tokens(&request.model),
        ends: builder.ends,
        anthropic: true,
    }
}

/// An end every 128 tokens, wherever that is.
fn openai_prompt(request: &RecordedRequest) -> Prompt {
    let body = &request.json;
    let mut text = body["tools"].to_string();
    text.push_str(&body["instructions"].to_string());
    match &body["input"] {
        Value::String(input) => text.push_str(input),
        input => items(input).for_each(|item| text.push_str(&item.to_string())),
    }
    items(&body["messages"]).for_each(|message| text.push_str(&message.to_string()));
    let mut hasher = Sha256::new_with_prefix(&request.model);
    // What is set beside the prompt counts from its start.
    flatten(request.api, body).header.iter().skip(2).for_each(|(_, hash)| hasher.update(hash));
    let step = (STEP_TOKENS * BYTES_PER_TOKEN) as usize;
    let ends = text.as_bytes().chunks_exact(step).zip(1..).map(|(piece, n)| {
        hasher.update(piece);
        End { key: hasher.clone().finalize().into(), tokens: n * STEP_TOKENS, ttl: Some(SHORT) }
    });
    Prompt {
        ends: ends.collect(),
        tokens: text.len() as u64 / BYTES_PER_TOKEN,
        min_tokens: USUAL_MIN_TOKENS,
        anthropic: false,
    }
}

struct Builder {
    hasher: Sha256,
    bytes: usize,
    ends: Vec<End>,
}

impl Builder {
    fn new(model: &str) -> Self {
        Self { hasher: Sha256::new_with_prefix(model), bytes: 0, ends: Vec::new() }
    }

    /// A block with its mark. Its length goes in first, so that no two lists of blocks look alike.
    fn json(&mut self, block: &Value) {
        let ttl = ttl_of(block);
        let mut block = block.clone();
        if let Some(object) = block.as_object_mut() {
            object.shift_remove("cache_control");
        }
        let json = block.to_string();
        self.hasher.update(json.len().to_le_bytes());
        self.hasher.update(&json);
        self.end(json.len(), ttl);
    }

    /// What is hashed and no block.
    fn apart(&mut self, value: &Value) {
        self.hasher.update(value.to_string());
    }

    fn end(&mut self, bytes: usize, ttl: Option<Duration>) {
        self.bytes += bytes;
        let tokens = self.bytes as u64 / BYTES_PER_TOKEN;
        self.ends.push(End { key: self.hasher.clone().finalize().into(), tokens, ttl });
    }
}

/// The lifetimes on the blocks of all messages, in order; a plain string has none.
fn message_marks(body: &Value, count: usize) -> Vec<Option<Duration>> {
    let messages = items(&body["messages"]);
    let marks = messages.flat_map(|message| match &message["content"] {
        Value::Array(blocks) => blocks.iter().map(ttl_of).collect(),
        _ => vec![None],
    });
    let mut marks: Vec<_> = marks.collect();
    marks.resize(count, None);
    marks
}

fn ttl_of(block: &Value) -> Option<Duration> {
    let control = block["cache_control"].as_object()?;
    let long = control.get("ttl").is_some_and(|ttl| ttl == "1h");
    Some(if long { LONG } else { SHORT })
}

#[cfg(test)]
#[path = "tests/cache.rs"]
mod tests;
