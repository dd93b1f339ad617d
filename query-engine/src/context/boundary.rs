//! Where history was made smaller (spec 3.4).

use swarm_protocol::{Message, ToolUseId, record::CompactBoundary};

/// Why room is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Our own estimate passed the threshold.
    Auto,
    /// The provider's cache is cold anyway, so that a change costs nothing.
    Cold,
    /// The provider refused the size.
    Overflow,
    /// A person asked.
    Manual,
}

impl Trigger {
    /// The word in the record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cold => "cold",
            Self::Overflow => "overflow",
            Self::Manual => "manual",
        }
    }
}

/// The record of a compaction. The transcript's writer fills `logical_parent_uuid`.
pub fn boundary(
    trigger: Trigger,
    steps: &[&str],
    pre_tokens: u64,
    post_tokens: u64,
    messages_summarised: u64,
    tool_use_ids: Vec<ToolUseId>,
    messages: Vec<Message>,
) -> CompactBoundary {
    CompactBoundary {
        trigger: trigger.as_str().to_owned(),
        steps: steps.iter().map(|&step| step.to_owned()).collect(),
        pre_tokens,
        post_tokens,
        messages_summarised,
        tool_use_ids,
        logical_parent_uuid: None,
        messages,
    }
}
