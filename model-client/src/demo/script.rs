//! What the demo model says and does: a pure function of the request. It keeps no state, so a resumed agent
//! goes on where its transcript ends, and the tests' model server can play the same script.

use query_engine::ports::{Prefix, ToolSpec};
use serde_json::Value;
use swarm_protocol::{Block, Message, Role, ToolUseId, record::StopReason};

use super::{coordinator, worker};

/// How the demo model marks its words.
pub(super) const LABEL: &str = "[scripted demo model]";

/// A request, as the script reads it.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'request> {
    /// The system prompt, as blocks.
    pub system: &'request [String],
    /// The tools.
    pub tools: &'request [ToolSpec],
    /// The conversation; the last message is of the user.
    pub messages: &'request [Message],
}

impl<'request> RequestView<'request> {
    /// Of the parts of a request to any model.
    pub fn new(prefix: &'request Prefix, messages: &'request [Message]) -> Self {
        Self { system: &prefix.system, tools: &prefix.tools, messages }
    }

    /// Whether the agent has this tool.
    pub(super) fn has(&self, tool: &str) -> bool {
        self.tools.iter().any(|spec| spec.name == tool)
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoReply {
    /// Texts and tool calls.
    pub blocks: Vec<Block>,
    /// Why it stops.
    pub stop: StopReason,
}

/// A call, before it has an id.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) tool: &'static str,
    pub(super) input: Value,
}

/// The next answer in this conversation. Coordinators are known by `Agent` without `Write`, workers by any
/// tool of theirs, and a request without tools is a helper's.
pub fn demo_reply(view: &RequestView<'_>) -> DemoReply {
    if view.has("Agent") && !view.has("Write") {
        coordinator::reply(view)
    } else if view.has("Read") || view.has("Write") || view.has("Bash") {
        worker::reply(view)
    } else {
        say(summary(view))
    }
}

/// Words, and the turn ends.
pub(super) fn say(text: impl Into<String>) -> DemoReply {
    DemoReply { blocks: vec![Block::text(text)], stop: StopReason::EndTurn }
}

/// Words and calls. Calls of tools that the agent does not have are left out.
pub(super) fn call(view: &RequestView<'_>, text: impl Into<String>, calls: Vec<Call>) -> DemoReply {
    let text = text.into();
    let mut blocks = Vec::new();
    if !text.is_empty() {
        blocks.push(Block::text(text));
    }
    let turn = view.messages.len();
    let calls = calls.into_iter().filter(|call| view.has(call.tool));
    for (index, Call { tool, input }) in calls.enumerate() {
        let id = free_id(view, &format!("toolu_demo_{turn}_{index}"));
        blocks.push(Block::ToolUse { id, name: tool.to_owned(), input, provider_data: None });
    }
    let called = blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
    let stop = if called { StopReason::ToolUse } else { StopReason::EndTurn };
    DemoReply { blocks, stop }
}

/// An id that the conversation does not hold yet; after a compaction the number of messages says little.
fn free_id(view: &RequestView<'_>, wanted: &str) -> ToolUseId {
    let is_taken = |id: &str| {
        view.messages.iter().any(|message| message.tool_uses().any(|(taken, _, _)| taken.as_str() == id))
    };
    let mut id = wanted.to_owned();
    while is_taken(&id) {
        id.push('x');
    }
    id.parse().expect("a short text is a tool call id")
}

/// The results in a message, as texts with their error flags.
pub(super) fn results(message: &Message) -> impl Iterator<Item = (&ToolUseId, String, bool)> {
    message.content.iter().filter_map(|block| match block {
        Block::ToolResult { tool_use_id, content, is_error } => {
            let texts: Vec<&str> = content.iter().filter_map(swarm_protocol::ResultBlock::as_text).collect();
            Some((tool_use_id, texts.join("\n"), *is_error))
        }
        _ => None,
    })
}

/// The first words of a tool's answer, on one line.
pub(super) fn excerpt(text: &str) -> String {
    crate::error::cut(text.trim(), 200)
}

/// A summary of a conversation, as a helper is asked for one.
fn summary(view: &RequestView<'_>) -> String {
    let n_messages = view.messages.len();
    let n_calls: usize = view.messages.iter().map(|message| message.tool_uses().count()).sum();
    let request = view
        .messages
        .iter()
        .find(|message| message.role == Role::User)
        .map(|message| excerpt(&message.text()))
        .unwrap_or_default();
    format!(
        "{LABEL} Summary of the conversation.\n\
         1. Goal and open items: {request}\n\
         2. Files changed: see the tool calls that were kept.\n\
         3. Key errors and fixes: none that matter.\n\
         4. Preferences and constraints: none stated.\n\
         ({n_messages} messages with {n_calls} tool calls were summarised.)"
    )
}
