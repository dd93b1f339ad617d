//! The messages of the last request as they were written, so that a conversation that grows is not written
//! anew for each request (spec 10.5): what a turn adds is written, the rest is copied.

use std::sync::{Arc, Mutex, PoisonError};

use query_engine::ports::{Offer, ToolSpec};
use serde_json::{Map, Value};
use swarm_protocol::Message;

/// Tools in one order, whatever the order they are given in: a prefix has to stay a prefix.
///
/// A provider that keeps definitions back (`defers`) is told of all; another of what stands in their place.
pub(crate) fn tools_by_name(tools: &[ToolSpec], defers: bool) -> impl Iterator<Item = &ToolSpec> {
    let is_told = |tool: &&ToolSpec| match tool.offer {
        Offer::Always => true,
        Offer::Deferred => defers,
        Offer::InPlaceOfDeferred => !defers,
    };
    let mut sorted: Vec<&ToolSpec> = tools.iter().filter(is_told).collect();
    sorted.sort_by(|left, right| left.name.cmp(&right.name));
    sorted.into_iter()
}

/// Keeps one conversation. `K` is all that the written form depends on beside the message itself.
#[derive(Debug)]
pub(crate) struct Written<K>(Mutex<Kept<K>>);

#[derive(Debug)]
struct Kept<K> {
    key: Option<K>,
    messages: Vec<Arc<Message>>,
    /// Where each message ends in `bytes`.
    ends: Vec<usize>,
    /// JSON values, a comma after each.
    bytes: Vec<u8>,
}

impl<K> Default for Written<K> {
    fn default() -> Self {
        Self(Mutex::new(Kept { key: None, messages: Vec::new(), ends: Vec::new(), bytes: Vec::new() }))
    }
}

impl<K: PartialEq + Clone> Written<K> {
    /// A request's body, whose last field is a list, with the messages after what stands in the list; as
    /// [`Self::append`] writes them.
    pub(crate) fn complete(
        &self,
        body: &Map<String, Value>,
        key: &K,
        messages: &[Arc<Message>],
        special: &[usize],
        write: impl Fn(usize, &Message, bool) -> Vec<Value>,
    ) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(body).expect("a JSON value with string keys is always written");
        bytes.truncate(bytes.len() - b"]}".len());
        let has_more = bytes.last() != Some(&b'[');
        if has_more {
            bytes.push(b',');
        }
        let start = bytes.len();
        self.append(&mut bytes, key, messages, special, write);
        if has_more && bytes.len() == start {
            bytes.pop();
        }
        bytes.extend_from_slice(b"]}");
        bytes
    }

    /// Appends the messages to `out`: JSON values with commas between them. `write(index, message, special)`
    /// gives the values of one; those in `special` (ascending indices) are written each time and not kept.
    fn append(
        &self,
        out: &mut Vec<u8>,
        key: &K,
        messages: &[Arc<Message>],
        special: &[usize],
        write: impl Fn(usize, &Message, bool) -> Vec<Value>,
    ) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take(key, messages, &write);
        out.reserve(kept.bytes.len() + 4_096);
        let start = out.len();
        let mut from = 0;
        for &index in special.iter().filter(|index| **index < messages.len()) {
            out.extend_from_slice(&kept.bytes[from..kept.start(index)]);
            push(out, write(index, &messages[index], true));
            from = kept.ends[index];
        }
        out.extend_from_slice(&kept.bytes[from..]);
        if out.len() > start {
            out.pop();
        }
    }
}

impl<K: PartialEq + Clone> Kept<K> {
    /// Keeps these messages; those that stand there already are not written again.
    fn take(
        &mut self,
        key: &K,
        messages: &[Arc<Message>],
        write: &impl Fn(usize, &Message, bool) -> Vec<Value>,
    ) {
        let known = match &self.key {
            Some(last) if last == key => {
                self.messages.iter().zip(messages).take_while(|(kept, new)| Arc::ptr_eq(kept, new)).count()
            }
            Some(_) | None => 0,
        };
        self.key = Some(key.clone());
        self.bytes.truncate(self.start(known));
        self.messages.truncate(known);
        self.ends.truncate(known);
        for (index, message) in messages.iter().enumerate().skip(known) {
            push(&mut self.bytes, write(index, message, false));
            self.messages.push(Arc::clone(message));
            self.ends.push(self.bytes.len());
        }
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

fn push(bytes: &mut Vec<u8>, values: Vec<Value>) {
    for value in values {
        serde_json::to_writer(&mut *bytes, &value).expect("a JSON value is always written to memory");
        bytes.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_new_is_written() {
        let written: Written<u8> = Written::default();
        let messages: Vec<Arc<Message>> =
            ["a", "b", "c", "d"].iter().map(|text| Arc::new(Message::user_text(*text))).collect();
        let calls = RefCell::new(Vec::new());
        let check = |key: u8,
                     messages: &[Arc<Message>],
                     special: &[usize],
                     expected: &str,
                     expected_calls: &[&str]| {
            let mut out = b"[".to_vec();
            written.append(&mut out, &key, messages, special, |_, message, special| {
                let text = message.text();
                calls.borrow_mut().push(if special { text.to_uppercase() } else { text.clone() });
                match (text.as_str(), special) {
                    // Some messages come to nothing, some to several.
                    ("c", _) => Vec::new(),
                    ("d", _) => vec![json!(1), json!(2)],
                    (_, true) => vec![json!(text.to_uppercase())],
                    (_, false) => vec![json!(text)],
                }
            });
            assert_eq!(String::from_utf8(out).unwrap(), format!("[{expected}"));
            assert_eq!(calls.take(), expected_calls);
        };
        check(0, &[], &[], "", &[]);
        check(0, &messages[..2], &[1], r#""a","B""#, &["a", "b", "B"]);
        check(0, &messages[..4], &[0, 2], r#""A","b",1,2"#, &["c", "d", "A", "C"]);
        check(0, &messages[..1], &[9], r#""a""#, &[]);
        check(0, &messages[1..3], &[], r#""b""#, &["b", "c"]);
        check(1, &messages[1..2], &[], r#""b""#, &["b"]);
        let equal = [Arc::new((*messages[1]).clone())];
        check(1, &equal, &[], r#""b""#, &["b"]);
    }
}
