//! A record as the journal and people's lists know it: without its body.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Move, Record, RecordBody, ToolEffect};
use crate::{
    ids::{RunNumber, ToolUseId},
    message::Block,
    time::Timestamp,
    usage::{Cost, Usage},
};

/// A record as the journal knows it: without its body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RecordHead {
    /// Number in the transcript.
    pub n: u64,
    /// Identity of the record.
    pub uuid: Uuid,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The run.
    pub run: RunNumber,
    /// The `type` of its body.
    pub record: String,
    /// Size of the line in bytes.
    pub bytes: u64,
    /// The first words, for lists: at most 200 characters.
    pub head: String,
    /// The model, when it reports use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Use, when it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Cost, when it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The tool calls it holds or ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolHead>,
}

/// A tool call in a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolHead {
    /// The call.
    pub tool_use_id: ToolUseId,
    /// The tool.
    pub name: String,
    /// The one thing that matters of its input: command, path, pattern; at most 200 characters.
    pub summary: String,
    /// Set when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// Set when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Lines added and removed by an edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<(u32, u32)>,
    /// Where the agent goes on after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<Move>,
}

/// At most this many characters of a text stand in a head.
pub const HEAD_CHARS: usize = 200;

/// The first [`HEAD_CHARS`] characters of a text, on one line.
pub fn head_of(text: &str) -> String {
    let mut head = String::new();
    for (count, character) in text.trim_start().chars().enumerate() {
        if count == HEAD_CHARS {
            head.push_str("..");
            break;
        }
        head.push(if character.is_control() { ' ' } else { character });
    }
    head
}

/// The one thing that matters of a tool's input, for people: the command, the path, the pattern.
pub fn input_summary(input: &Value) -> String {
    const KEYS: [&str; 14] = [
        "command",
        "file_path",
        "notebook_path",
        "pattern",
        "path",
        "description",
        "to",
        "task_id",
        "bash_id",
        "url",
        "query",
        "subject",
        "plan",
        "prompt",
    ];
    let question = || input.pointer("/questions/0/question").and_then(Value::as_str);
    let found = KEYS.iter().find_map(|key| input.get(key).and_then(Value::as_str)).or_else(question);
    found.map(head_of).unwrap_or_default()
}

impl Record {
    /// The record without its body; `bytes` is the size of its line.
    pub fn head(&self, bytes: u64) -> RecordHead {
        let (model, usage, cost) = match &self.body {
            RecordBody::Assistant { model, usage, cost, .. }
            | RecordBody::HelperCall { model, usage, cost, .. } => {
                (Some(model.clone()), Some(*usage), Some(*cost))
            }
            _ => (None, None, None),
        };
        let tools = match &self.body {
            RecordBody::Assistant { message, .. } => message
                .tool_uses()
                .map(|(id, name, input)| ToolHead {
                    tool_use_id: id.clone(),
                    name: name.to_owned(),
                    summary: input_summary(input),
                    is_error: None,
                    duration_ms: None,
                    exit_code: None,
                    lines: None,
                    moves: None,
                })
                .collect(),
            RecordBody::ToolFinished(finished) => {
                let (summary, exit_code, lines) = match &finished.effect {
                    ToolEffect::Command(run) => (head_of(&run.command), run.exit_code, None),
                    ToolEffect::Edited { path, added, removed } => {
                        (head_of(path), None, Some((*added, *removed)))
                    }
                    ToolEffect::None | ToolEffect::Moves { .. } | ToolEffect::Other { .. } => {
                        (String::new(), None, None)
                    }
                };
                let moves = match &finished.effect {
                    ToolEffect::Moves { to } => Some(to.clone()),
                    _ => None,
                };
                let is_error = matches!(finished.result, Block::ToolResult { is_error: true, .. });
                vec![ToolHead {
                    tool_use_id: finished.tool_use_id.clone(),
                    name: finished.name.clone(),
                    summary,
                    is_error: Some(is_error),
                    duration_ms: Some(finished.duration_ms),
                    exit_code,
                    lines,
                    moves,
                }]
            }
            _ => Vec::new(),
        };
        RecordHead {
            n: self.n,
            uuid: self.uuid,
            timestamp: self.timestamp,
            run: self.run,
            record: self.body.kind().to_owned(),
            bytes,
            head: self.body.head_text(),
            model,
            usage,
            cost,
            tools,
        }
    }
}

impl RecordBody {
    fn head_text(&self) -> String {
        match self {
            Self::User { message, .. } | Self::Assistant { message, .. } => head_of(&message.text()),
            Self::ToolFinished(finished) => match &finished.result {
                Block::ToolResult { content, .. } => {
                    content.iter().find_map(|block| block.as_text().map(head_of)).unwrap_or_default()
                }
                _ => String::new(),
            },
            Self::RunStarted(started) => format!("run {} on {}", started.run, started.model),
            Self::RequestStarted { request, model, .. } => format!("request {request} to {model}"),
            Self::HelperCall { purpose, .. } => head_of(purpose),
            Self::CommandAccepted { what, .. } => head_of(what),
            Self::PermissionRequested { request } => head_of(&request.summary),
            Self::PermissionWithdrawn { reason, .. } => head_of(reason),
            Self::PermissionBid { bid } => {
                format!("{} says {}", bid.by.as_str(), head_of(bid.reason.as_deref().unwrap_or_default()))
            }
            Self::PermissionJudged { request, .. } => head_of(&request.summary),
            Self::Snapshot { n, .. } => format!("snapshot {n}"),
            Self::CompactBoundary(boundary) => {
                format!("compacted: {} to {} tokens", boundary.pre_tokens, boundary.post_tokens)
            }
            Self::ContentReplacement { path, .. } => head_of(path),
            Self::Todo { items } => {
                let done = items.iter().filter(|item| item.status == "completed").count();
                format!("{done} of {} done", items.len())
            }
            Self::PlanMode { is_on: true, .. } => "it plans".to_owned(),
            Self::PlanMode { is_on: false, path } => {
                head_of(&format!("accepted: {}", path.as_deref().unwrap_or("the plan")))
            }
            Self::TaskItem { item } => {
                head_of(&format!("#{} [{}] {}", item.id, item.status.as_str(), item.subject))
            }
            Self::GrantRequested(request) => format!("grant {} for {}", request.grant, request.model),
            Self::GrantSettled { grants } => format!("{} grants settled", grants.len()),
            Self::Tombstone { note } => head_of(note),
            Self::RunEnded(end) => head_of(&end.result),
            Self::Intent { .. } => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_the_tag_on_the_wire() {
        let body = RecordBody::Tombstone { note: "x".to_owned() };
        assert_eq!(serde_json::to_value(&body).unwrap()["type"], body.kind());
        let body = RecordBody::RequestStarted { request: 1, model: "m".to_owned(), estimated_tokens: 0 };
        assert_eq!(serde_json::to_value(&body).unwrap()["type"], body.kind());
    }

    #[test]
    fn a_head_is_one_line_and_bounded() {
        let head = head_of(&format!("  a\nb{}", "x".repeat(500)));
        assert!(head.starts_with("a b"));
        assert!(head.chars().count() <= HEAD_CHARS + 2);
    }
}
