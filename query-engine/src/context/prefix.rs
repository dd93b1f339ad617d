//! The prefix rule (spec 3.2): each request extends the one before it, save at a declared break.

use std::sync::Arc;

use swarm_protocol::{Message, frame::CacheBreakCause};

use crate::ports::{ModelRequest, Prefix};

/// Where a request differs from the one before it without a declared break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixBroken {
    /// Tools or system prompt.
    #[error("tools or system prompt changed without a declared break")]
    Prefix,
    /// A block of the conversation.
    #[error("block {index} of the conversation changed without a declared break")]
    Block {
        /// Counted over all messages.
        index: usize,
    },
}

/// Compares each request with the one before it.
#[derive(Debug, Default)]
pub struct PrefixGuard {
    last: Option<Sent>,
    declared: Option<&'static str>,
}

/// What was sent; it shares its messages with the request, so that what is the same one is equal at a glance.
#[derive(Debug)]
struct Sent {
    prefix: Arc<Prefix>,
    messages: Vec<Arc<Message>>,
}

impl PrefixGuard {
    /// The next request may differ.
    pub fn declare_break(&mut self, why: &'static str) {
        self.declared = Some(why);
    }

    /// Checks a request that is about to leave, and remembers it.
    pub fn check(&mut self, request: &ModelRequest) -> Result<(), PrefixBroken> {
        let answer = match (&self.last, self.declared) {
            (None, _) | (Some(_), Some(_)) => Ok(()),
            (Some(last), None) => compare(last, request),
        };
        self.last = Some(Sent { prefix: Arc::clone(&request.prefix), messages: request.messages.clone() });
        self.declared = None;
        answer
    }

    /// What of the last request is different in this one; nothing when it goes on from it.
    pub fn change(&self, request: &ModelRequest) -> Option<CacheBreakCause> {
        let last = self.last.as_ref()?;
        if !Arc::ptr_eq(&last.prefix, &request.prefix) {
            if last.prefix.tools != request.prefix.tools {
                return Some(CacheBreakCause::Tools);
            }
            if last.prefix.system != request.prefix.system {
                return Some(CacheBreakCause::System);
            }
        }
        compare(last, request).is_err().then_some(CacheBreakCause::Messages)
    }
}

fn compare(last: &Sent, request: &ModelRequest) -> Result<(), PrefixBroken> {
    if !Arc::ptr_eq(&last.prefix, &request.prefix) && last.prefix != request.prefix {
        return Err(PrefixBroken::Prefix);
    }
    let mut blocks_before = 0;
    for (index, before) in last.messages.iter().enumerate() {
        let now = request.messages.get(index);
        if !now.is_some_and(|now| Arc::ptr_eq(before, now)) {
            let is_last = index + 1 == last.messages.len();
            if let Some(at) = first_difference(before, now.map(Arc::as_ref), is_last) {
                return Err(PrefixBroken::Block { index: blocks_before + at });
            }
        }
        blocks_before += before.content.len();
    }
    Ok(())
}

/// The first block in which a message is not what it was. The last one of a request may have got more.
fn first_difference(before: &Message, now: Option<&Message>, may_grow: bool) -> Option<usize> {
    let Some(now) = now.filter(|now| now.role == before.role) else { return Some(0) };
    let differs = before.content.iter().enumerate().find(|(at, block)| now.content.get(*at) != Some(block));
    match differs {
        Some((at, _)) => Some(at),
        None if may_grow || now.content.len() == before.content.len() => None,
        None => Some(before.content.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::ToolSpec;
    use serde_json::json;
    use swarm_protocol::Block;

    fn request(system: &str, messages: &[&str]) -> ModelRequest {
        ModelRequest {
            prefix: Arc::new(Prefix { system: vec![system.to_owned()], tools: Vec::new() }),
            messages: messages.iter().map(|text| Arc::new(Message::user_text(*text))).collect(),
            max_tokens: 1,
            breakpoints: Vec::new(),
        }
    }

    #[test]
    fn l11_a_request_extends_the_one_before_or_says_why_not() {
        let mut guard = PrefixGuard::default();
        assert_eq!(guard.check(&request("s", &["a"])), Ok(()));
        assert_eq!(guard.check(&request("s", &["a", "b"])), Ok(()));
        assert_eq!(guard.check(&request("s", &["a", "c"])), Err(PrefixBroken::Block { index: 1 }));
        assert_eq!(guard.check(&request("s", &["a"])), Err(PrefixBroken::Block { index: 1 }));
        assert_eq!(guard.check(&request("t", &["a"])), Err(PrefixBroken::Prefix));
        assert_eq!(guard.check(&request("t", &[])), Err(PrefixBroken::Block { index: 0 }));
        let tools = |mut request: ModelRequest| {
            let tool = ToolSpec {
                name: "t".to_owned(),
                description: String::new(),
                input_schema: json!({}),
                offer: crate::ports::Offer::Always,
            };
            Arc::make_mut(&mut request.prefix).tools.push(tool);
            request
        };
        assert_eq!(guard.check(&request("t", &["a"])), Ok(()));
        assert_eq!(guard.change(&request("t", &["a", "b"])), None);
        assert_eq!(guard.change(&request("t", &["b"])), Some(CacheBreakCause::Messages));
        assert_eq!(guard.change(&request("s", &["b"])), Some(CacheBreakCause::System));
        assert_eq!(guard.change(&tools(request("s", &["b"]))), Some(CacheBreakCause::Tools));
        let more = |mut request: ModelRequest| {
            Arc::make_mut(&mut request.messages[0]).content.push(Block::text("more"));
            request
        };
        assert_eq!(guard.check(&request("t", &["a"])), Ok(()));
        assert_eq!(guard.check(&more(request("t", &["a"]))), Ok(()), "the last message may get more");
        assert_eq!(guard.check(&more(request("t", &["a", "b"]))), Ok(()));
        assert_eq!(guard.check(&request("t", &["a", "b"])), Err(PrefixBroken::Block { index: 1 }));
        assert_eq!(guard.check(&more(request("t", &["a", "b"]))), Err(PrefixBroken::Block { index: 1 }));
        guard.declare_break("compaction");
        assert_eq!(guard.check(&request("u", &["z"])), Ok(()));
    }
}
