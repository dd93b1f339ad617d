//! The providers' prompt cache, simulated: which part of a prompt would have been read, and which written.
//!
//! Anthropic's rules (reference, chapter 6): the prefix is tools, system, messages; it is stored where a request has
//! a breakpoint; a later request looks at each of its breakpoints and up to 20 blocks before it. OpenAI's cache needs
//! no breakpoints: every block's end counts as one. Both: at least 1,024 tokens, at 4 bytes a token.

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

const MIN_TOKENS: u64 = 1_024;
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

    fn now(&self) -> Duration {
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
    anthropic: bool,
}

impl Prompt {
    pub(crate) fn tokens(&self) -> u64 {
        self.ends.last().map_or(0, |end| end.tokens)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: Mutex<HashMap<Key, (Duration, Duration)>>,
}

impl Cache {
    /// What the answer's usage says of the prompt. Reading an entry renews it.
    pub(crate) fn look_up(&self, prompt: &Prompt, clock: &Clock) -> Usage {
        let now = clock.now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, (expires, _)| *expires > now);
        let mut read = 0;
        let breakpoints = prompt.ends.iter().enumerate().rev().filter(|(_, end)| end.ttl.is_some());
        'found: for (at, _) in breakpoints {
            for end in prompt.ends[..=at].iter().rev().take(LOOK_BACK + 1) {
                if let Some((expires, ttl)) = entries.get_mut(&end.key) {
                    *expires = now + *ttl;
                    read = end.tokens;
                    break 'found;
                }
            }
        }
        let marked = |ttl: Option<Duration>| {
            let mut ends = prompt.ends.iter().rev().filter(|end| end.tokens >= MIN_TOKENS);
            let end = ends.find(|end| end.ttl.is_some() && (ttl.is_none() || end.ttl == ttl));
            end.map_or(0, |end| end.tokens)
        };
        let (write, write_1h) = if prompt.anthropic {
            let last = marked(None).max(read);
            (last - read, marked(Some(LONG)).saturating_sub(read).min(last - read))
        } else {
            (0, 0)
        };
        Usage {
            input: prompt.tokens().saturating_sub(read + write),
            cache_read: read,
            cache_write: write,
            cache_write_1h: write_1h,
            output: 0,
        }
    }

    /// Stores the prompt: to be called when its answer begins, for entries are readable from then on.
    pub(crate) fn store(&self, prompt: &Prompt, clock: &Clock) {
        let now = clock.now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for end in prompt.ends.iter().filter(|end| end.tokens >= MIN_TOKENS) {
            if let Some(ttl) = end.ttl {
                entries.insert(end.key, (now + ttl, ttl));
            }
        }
    }
}

pub(crate) fn prompt(request: &RecordedRequest) -> Prompt {
    let api = request.api;
    let body = &request.json;
    let anthropic = matches!(api, Api::Anthropic | Api::CountTokens);
    let mut builder = Builder {
        hasher: Sha256::new_with_prefix(&request.model),
        bytes: 0,
        ends: Vec::new(),
        automatic: (!anthropic).then_some(SHORT),
    };
    let mut tools = items(&body["tools"]).peekable();
    while let Some(tool) = tools.next() {
        let last = tools.peek().is_none();
        builder.json(tool, if last || anthropic { ttl_of(tool) } else { None });
    }
    match &body["system"] {
        Value::String(text) => builder.bytes(text.as_bytes(), None),
        system => items(system).for_each(|block| builder.json(block, ttl_of(block))),
    }
    if !anthropic {
        builder.bytes(request.system.as_bytes(), None);
    }
    let flat = flatten(api, body);
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
    Prompt { ends: builder.ends, anthropic }
}

struct Builder {
    hasher: Sha256,
    bytes: usize,
    ends: Vec<End>,
    /// Every end is a breakpoint.
    automatic: Option<Duration>,
}

impl Builder {
    fn json(&mut self, block: &Value, ttl: Option<Duration>) {
        let mut block = block.clone();
        if let Some(object) = block.as_object_mut() {
            object.shift_remove("cache_control");
        }
        self.bytes(block.to_string().as_bytes(), ttl);
    }

    fn bytes(&mut self, bytes: &[u8], ttl: Option<Duration>) {
        self.hasher.update(bytes);
        self.end(bytes.len(), ttl);
    }

    fn end(&mut self, bytes: usize, ttl: Option<Duration>) {
        self.bytes += bytes;
        self.ends.push(End {
            key: self.hasher.clone().finalize().into(),
            tokens: self.bytes as u64 / BYTES_PER_TOKEN,
            ttl: ttl.or(self.automatic),
        });
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
