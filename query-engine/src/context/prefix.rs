//! The prefix rule (spec 3.2): each request extends the one before it, save at a declared break.

use std::hash::{DefaultHasher, Hash, Hasher};

use swarm_protocol::{Message, Role};

use crate::ports::ModelRequest;

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

#[derive(Debug)]
struct Sent {
    prefix: u64,
    blocks: Vec<u64>,
    messages: usize,
}

impl PrefixGuard {
    /// The next request may differ.
    pub fn declare_break(&mut self, why: &'static str) {
        self.declared = Some(why);
    }

    /// Checks a request that is about to leave, and remembers it.
    pub fn check(&mut self, request: &ModelRequest) -> Result<(), PrefixBroken> {
        let sent = Sent {
            prefix: hash(&format!("{:?}", request.prefix)),
            blocks: blocks(&request.messages),
            messages: request.messages.len(),
        };
        let answer = match (&self.last, self.declared) {
            (None, _) | (Some(_), Some(_)) => Ok(()),
            (Some(last), None) => compare(last, &sent),
        };
        self.last = Some(sent);
        self.declared = None;
        answer
    }

    /// How many messages the last request had; 0 at a declared break.
    pub fn sent_messages(&self) -> usize {
        match (&self.last, self.declared) {
            (Some(last), None) => last.messages,
            (None, _) | (Some(_), Some(_)) => 0,
        }
    }
}

fn compare(last: &Sent, sent: &Sent) -> Result<(), PrefixBroken> {
    if last.prefix != sent.prefix {
        return Err(PrefixBroken::Prefix);
    }
    match last.blocks.iter().enumerate().find(|(index, block)| sent.blocks.get(*index) != Some(block)) {
        Some((index, _)) => Err(PrefixBroken::Block { index }),
        None => Ok(()),
    }
}

fn blocks(messages: &[Message]) -> Vec<u64> {
    messages
        .iter()
        .flat_map(|message| {
            message.content.iter().map(|block| hash(&(message.role == Role::User, format!("{block:?}"))))
        })
        .collect()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Prefix;
    use std::sync::Arc;

    fn request(system: &str, messages: &[&str]) -> ModelRequest {
        ModelRequest {
            prefix: Arc::new(Prefix { system: vec![system.to_owned()], tools: Vec::new() }),
            messages: messages.iter().map(|text| Message::user_text(*text)).collect(),
            max_tokens: 1,
            breakpoints: Vec::new(),
        }
    }

    #[test]
    fn l11_a_request_extends_the_one_before_or_says_why_not() {
        let mut guard = PrefixGuard::default();
        assert_eq!(guard.check(&request("s", &["a"])), Ok(()));
        assert_eq!(guard.check(&request("s", &["a", "b"])), Ok(()));
        assert_eq!(guard.sent_messages(), 2);
        assert_eq!(guard.check(&request("s", &["a", "c"])), Err(PrefixBroken::Block { index: 1 }));
        assert_eq!(guard.check(&request("s", &["a"])), Err(PrefixBroken::Block { index: 1 }));
        assert_eq!(guard.check(&request("t", &["a"])), Err(PrefixBroken::Prefix));
        guard.declare_break("compaction");
        assert_eq!(guard.sent_messages(), 0);
        assert_eq!(guard.check(&request("u", &["z"])), Ok(()));
    }
}
