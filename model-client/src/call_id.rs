//! Ids of tool calls: kept as the provider gave them when they are usable and new, made otherwise.

use std::{collections::HashSet, sync::Arc};

use swarm_protocol::{Block, Message, ToolUseId};

/// The ids a conversation already holds. Some servers number their calls `0`, `1` anew in each answer, and
/// an id must be unique in its conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallIds {
    /// The conversation; looked through only when a call comes.
    messages: Vec<Arc<Message>>,
    /// Ids of the answer under way.
    taken: HashSet<String>,
}

impl CallIds {
    /// From the messages of a request.
    pub(crate) fn of(messages: &[Arc<Message>]) -> Self {
        Self { messages: messages.to_vec(), taken: HashSet::new() }
    }

    fn is_in_history(&self, given: &str) -> bool {
        let mut blocks = self.messages.iter().flat_map(|message| &message.content);
        blocks.any(|block| match block {
            Block::ToolUse { id, .. } => id.as_str() == given,
            _ => false,
        })
    }

    /// The id to use for a call that came with `given`.
    pub(crate) fn take(&mut self, given: Option<&str>) -> ToolUseId {
        if let Some(given) = given
            && let Ok(id) = given.parse::<ToolUseId>()
            && !self.is_in_history(given)
            && self.taken.insert(given.to_owned())
        {
            return id;
        }
        let random = uuid::Uuid::new_v4().simple().to_string();
        let made = format!("call_{}", &random[..24]);
        self.taken.insert(made.clone());
        made.parse().expect("29 characters are a tool call id")
    }
}

/// An id as providers that allow only `[a-zA-Z0-9_-]` accept it back.
pub(crate) fn plain_id(id: &ToolUseId) -> String {
    plain(id.as_str())
}

/// A tool's name as providers accept it back, whatever the model wrote.
pub(crate) fn plain_name(name: &str) -> String {
    let name = plain(name);
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(128).collect() }
}

fn plain(text: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    text.chars().map(|character| if allowed(character) { character } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_unique_in_a_conversation() {
        let call = Block::ToolUse {
            id: "0".parse().unwrap(),
            name: "Read".to_owned(),
            input: serde_json::json!({}),
            provider_data: None,
        };
        let mut ids = CallIds::of(&[Arc::new(Message::assistant(vec![call]))]);
        assert_eq!(ids.take(Some("1")).as_str(), "1");
        for given in [Some("0"), Some("1"), Some(""), None] {
            let made = ids.take(given);
            assert!(made.as_str().starts_with("call_") && made.as_str().len() == 29, "{made}");
        }
    }

    #[test]
    fn names_become_acceptable() {
        assert_eq!(plain_name("Re ad\n"), "Re_ad_");
        assert_eq!(plain_name(""), "unknown");
        assert_eq!(plain_name("mcp__a__b-c"), "mcp__a__b-c");
    }
}
