//! The records of an agent's transcript: what a worker writes to its JSONL file, what the server
//! acknowledges by number, and what the loop's state is folded from (spec 1.6, 10.2).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    ids::{CommandId, MessageId, PermissionRequestId, RunNumber, ToolUseId},
    message::{Block, Message},
    permission::PermissionRequest,
    status::ExitReason,
    time::Timestamp,
    usage::{Cost, Usage},
};

/// One line of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Record {
    /// Number in this transcript, from 1, without gaps.
    pub n: u64,
    /// Its identity.
    pub uuid: Uuid,
    /// The record before it in the conversation; null for the first and after a boundary.
    pub parent_uuid: Option<Uuid>,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The run that wrote it.
    pub run: RunNumber,
    /// What it says.
    pub body: RecordBody,
}

/// Why a user message stands in the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The first message: surroundings, memory and the prompt.
    Prompt,
    /// A person wrote it.
    Person {
        /// The message.
        message_id: Option<MessageId>,
    },
    /// The coordinator sent it.
    Coordinator,
    /// Results of the tool calls before it.
    ToolResults,
    /// Ends and news of workers.
    Notifications,
    /// Written by the harness: go on, a job ended, a reminder. Hidden from people's main view.
    Harness,
    /// The summary of what a compaction removed.
    Summary,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RecordBody {
    /// A run began.
    RunStarted(RunStarted),
    /// A user message entered the conversation.
    User {
        /// The message.
        message: Message,
        /// Why.
        origin: Origin,
        /// Commands of the server that it carries.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        commands: Vec<CommandId>,
    },
    /// A request is about to leave.
    RequestStarted {
        /// Number of the request in this agent's life, from 1.
        request: u64,
        /// The model asked.
        model: String,
        /// The estimate of what it carries, in tokens.
        estimated_tokens: u64,
    },
    /// A tool is about to have its first effect while the response goes on: what was closed so far.
    Intent {
        /// The request.
        request: u64,
        /// The closed blocks, in order.
        blocks: Vec<Block>,
    },
    /// A tool call ended; synced when the call had a side effect.
    ToolFinished(ToolFinished),
    /// The model's answer, whole or as far as it came.
    Assistant {
        /// The message.
        message: Message,
        /// The request it answers.
        request: u64,
        /// The model that answered.
        model: String,
        /// Why it stopped.
        stop_reason: StopReason,
        /// What it used.
        usage: Usage,
        /// What that cost.
        cost: Cost,
        /// True when the stream broke.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        incomplete: bool,
    },
    /// A helper's call (a summary, say): counted, not part of the conversation.
    HelperCall {
        /// What for.
        purpose: String,
        /// The model.
        model: String,
        /// What it used.
        usage: Usage,
        /// What that cost.
        cost: Cost,
    },
    /// A command of the server was taken over; it is never taken twice.
    CommandAccepted {
        /// Which.
        command: CommandId,
        /// What it was, in a word.
        what: String,
    },
    /// A call waits for a decision.
    PermissionRequested {
        /// The request.
        request: Box<PermissionRequest>,
    },
    /// A request no longer waits: its call was cancelled.
    PermissionWithdrawn {
        /// Which.
        id: PermissionRequestId,
        /// Why.
        reason: String,
    },
    /// The working tree was kept under a hidden ref.
    Snapshot {
        /// Number of the snapshot.
        n: u32,
        /// The commit.
        commit: String,
    },
    /// History before this point is no longer sent.
    CompactBoundary(CompactBoundary),
    /// An original result was moved to disk.
    ContentReplacement {
        /// The call.
        tool_use_id: ToolUseId,
        /// The file that holds it.
        path: String,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The to-do list as it stands.
    Todo {
        /// The items.
        items: Vec<TodoItem>,
    },
    /// A call wants leave to spend from the session's budget.
    GrantRequested(GrantRequest),
    /// The use of these grants' calls stands in the records before this one.
    GrantSettled {
        /// Their numbers.
        grants: Vec<u64>,
    },
    /// A person interrupted; what was queued was dropped.
    Tombstone {
        /// What was dropped.
        note: String,
    },
    /// The run ended.
    RunEnded(Box<RunEnd>),
}

/// What a worker asks of the session's budget (spec 10.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantRequest {
    /// Number of the grant in this worker's life, from 1.
    pub grant: u64,
    /// The model to be asked, `provider/name`.
    pub model: String,
    /// The estimate of the call's input, in tokens.
    pub input_tokens: u64,
    /// The most output it would ask for, in tokens.
    pub max_tokens: u64,
    /// It is for the call after the present one; nobody waits for it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ahead: bool,
    /// Grants that no call was or will be made with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<u64>,
}

/// How a run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunStarted {
    /// The run.
    pub run: RunNumber,
    /// How often this run was started again after its process died.
    pub restarts: u32,
    /// The worker's process id.
    pub pid: u32,
    /// The model, as `provider/name`.
    pub model: String,
    /// 2, 1 or 0 (spec 5.5).
    pub sandbox_tier: u8,
    /// The version of the binary.
    pub version: String,
}

/// A finished tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolFinished {
    /// The call.
    pub tool_use_id: ToolUseId,
    /// The tool.
    pub name: String,
    /// The answer: a `ToolResult` block.
    pub result: Block,
    /// How long it took.
    pub duration_ms: u64,
    /// What it did outside the conversation.
    pub effect: ToolEffect,
    /// The file whose content the agent knows by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Box<FileSeen>>,
}

/// A file as an agent read or wrote it, so that a later run can tell whether it is still so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileSeen {
    /// The file: absolute, links resolved.
    pub path: String,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// What a tool call did outside the conversation; what outcomes are computed from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToolEffect {
    /// Nothing.
    #[default]
    None,
    /// It wrote a file.
    Edited {
        /// The file, absolute.
        path: String,
        /// Lines added.
        added: u32,
        /// Lines removed.
        removed: u32,
    },
    /// It ran a command.
    Command(CommandRun),
    /// Something else that this version does not name.
    Other {
        /// Free data.
        data: Value,
    },
}

/// A command and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommandRun {
    /// The command line, cut at 2,000 characters.
    pub command: String,
    /// Its exit code; null when a signal or a time-out ended it.
    pub exit_code: Option<i32>,
    /// `signal 9 (SIGKILL)`, `timed out after 120s`, when there is no exit code.
    pub ended_by: Option<String>,
    /// Whether a non-zero code is benign for this program (grep 1 and the like).
    pub benign: bool,
    /// Processes that it left and that were killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children_killed: Vec<String>,
    /// It ran in the background and was ended on purpose, by the agent or with the run: how it would have ended
    /// nobody knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

impl CommandRun {
    /// Whether it counts as failed for doubts and sibling cancellation.
    pub fn failed(&self) -> bool {
        !(self.stopped || self.exit_code == Some(0) || (self.exit_code.is_some() && self.benign))
    }
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// It wants tools.
    ToolUse,
    /// Its output was cut.
    MaxTokens,
    /// A stop sequence.
    StopSequence,
    /// A server-side tool loop paused: send the same again.
    PauseTurn,
    /// It declined.
    Refusal {
        /// The provider's explanation.
        explanation: String,
    },
    /// The window was full while it generated.
    ContextWindowExceeded,
    /// The stream broke before a reason came.
    Truncated,
    /// A reason this version does not know.
    Unknown {
        /// The provider's word.
        word: String,
    },
}

/// A compaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompactBoundary {
    /// `auto`, `cold`, `overflow` or `manual`.
    pub trigger: String,
    /// The steps that acted, in order.
    pub steps: Vec<String>,
    /// Estimate of the messages before, in tokens.
    pub pre_tokens: u64,
    /// Estimate of the messages after, in tokens.
    pub post_tokens: u64,
    /// How many messages a summary stands for.
    pub messages_summarised: u64,
    /// Calls whose results were put away; `Retrieve` returns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_use_ids: Vec<ToolUseId>,
    /// The last record before, which `parent_uuid` no longer names.
    pub logical_parent_uuid: Option<Uuid>,
    /// The conversation as it goes on: what the provider sees from here.
    pub messages: Vec<Message>,
}

/// An item of the to-do list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TodoItem {
    /// What is to be done.
    pub content: String,
    /// `pending`, `in_progress` or `completed`.
    pub status: String,
    /// What is shown while it is done.
    #[serde(rename = "activeForm", default, skip_serializing_if = "Option::is_none")]
    pub active_form: Option<String>,
}

/// The end record of a run, whose body goes to the server whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunEnd {
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// The text of the last assistant message, or the last one that had any.
    pub result: String,
    /// True when the last assistant message was empty and `result` is an earlier one.
    pub result_from_earlier: bool,
    /// Turns of this run.
    pub turns: u32,
    /// Use of this run, helpers included.
    pub usage: Usage,
    /// Cost of this run.
    pub cost: Cost,
    /// How long the run took, waits for people not counted.
    pub duration_ms: u64,
    /// The last commands of this run, oldest first, at most 200.
    pub commands: Vec<CommandRun>,
    /// How many commands came after the last edit (they are the last of `commands`).
    pub commands_after_last_edit: u32,
    /// Whether anything was edited in this run.
    pub edited: bool,
    /// Files over the size limit that were not committed.
    pub skipped_files: Vec<String>,
    /// What could not be committed at the end, as a sentence.
    pub commit_error: Option<String>,
    /// Processes that were alive at the end and were killed, background jobs over their grace included.
    pub children_killed: Vec<String>,
}

impl RunEnd {
    /// Of a run of which nothing but its end is known.
    pub fn without_work(exit_reason: ExitReason) -> Self {
        Self {
            exit_reason,
            result: String::new(),
            result_from_earlier: false,
            turns: 0,
            usage: Usage::default(),
            cost: Cost::default(),
            duration_ms: 0,
            commands: Vec::new(),
            commands_after_last_edit: 0,
            edited: false,
            skipped_files: Vec::new(),
            commit_error: None,
            children_killed: Vec::new(),
        }
    }
}

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
    const KEYS: [&str; 8] =
        ["command", "file_path", "pattern", "path", "description", "to", "task_id", "bash_id"];
    KEYS.iter().find_map(|key| input.get(key).and_then(Value::as_str)).map(head_of).unwrap_or_default()
}

impl RecordBody {
    /// The `type` tag.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RunStarted(_) => "run_started",
            Self::User { .. } => "user",
            Self::RequestStarted { .. } => "request_started",
            Self::Intent { .. } => "intent",
            Self::ToolFinished(_) => "tool_finished",
            Self::Assistant { .. } => "assistant",
            Self::HelperCall { .. } => "helper_call",
            Self::CommandAccepted { .. } => "command_accepted",
            Self::PermissionRequested { .. } => "permission_requested",
            Self::PermissionWithdrawn { .. } => "permission_withdrawn",
            Self::Snapshot { .. } => "snapshot",
            Self::CompactBoundary(_) => "compact_boundary",
            Self::ContentReplacement { .. } => "content_replacement",
            Self::Todo { .. } => "todo",
            Self::GrantRequested(_) => "grant_requested",
            Self::GrantSettled { .. } => "grant_settled",
            Self::Tombstone { .. } => "tombstone",
            Self::RunEnded(_) => "run_ended",
        }
    }

    /// Whether the server needs the body, not only the head.
    pub fn travels_whole(&self) -> bool {
        // A message that carries commands settles them.
        if let Self::User { commands, .. } = self {
            return !commands.is_empty();
        }
        matches!(
            self,
            Self::RunStarted(_)
                | Self::CommandAccepted { .. }
                | Self::PermissionRequested { .. }
                | Self::PermissionWithdrawn { .. }
                | Self::Snapshot { .. }
                | Self::GrantRequested(_)
                | Self::GrantSettled { .. }
                | Self::RunEnded(_)
        )
    }

    fn head_text(&self) -> String {
        match self {
            Self::User { message, .. } | Self::Assistant { message, .. } => head_of(&message.text()),
            Self::ToolFinished(finished) => match &finished.result {
                Block::ToolResult { content, .. } => content
                    .iter()
                    .find_map(|block| match block {
                        crate::message::ResultBlock::Text { text } => Some(head_of(text)),
                        crate::message::ResultBlock::Image { .. } => None,
                    })
                    .unwrap_or_default(),
                _ => String::new(),
            },
            Self::RunStarted(started) => format!("run {} on {}", started.run, started.model),
            Self::RequestStarted { request, model, .. } => format!("request {request} to {model}"),
            Self::HelperCall { purpose, .. } => head_of(purpose),
            Self::CommandAccepted { what, .. } => head_of(what),
            Self::PermissionRequested { request } => head_of(&request.summary),
            Self::PermissionWithdrawn { reason, .. } => head_of(reason),
            Self::Snapshot { n, .. } => format!("snapshot {n}"),
            Self::CompactBoundary(boundary) => {
                format!("compacted: {} to {} tokens", boundary.pre_tokens, boundary.post_tokens)
            }
            Self::ContentReplacement { path, .. } => head_of(path),
            Self::Todo { items } => {
                let done = items.iter().filter(|item| item.status == "completed").count();
                format!("{done} of {} done", items.len())
            }
            Self::GrantRequested(request) => format!("grant {} for {}", request.grant, request.model),
            Self::GrantSettled { grants } => format!("{} grants settled", grants.len()),
            Self::Tombstone { note } => head_of(note),
            Self::RunEnded(end) => head_of(&end.result),
            Self::Intent { .. } => String::new(),
        }
    }
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
                })
                .collect(),
            RecordBody::ToolFinished(finished) => {
                let (summary, exit_code, lines) = match &finished.effect {
                    ToolEffect::Command(run) => (head_of(&run.command), run.exit_code, None),
                    ToolEffect::Edited { path, added, removed } => {
                        (head_of(path), None, Some((*added, *removed)))
                    }
                    ToolEffect::None | ToolEffect::Other { .. } => (String::new(), None, None),
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
