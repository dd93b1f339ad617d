//! What a tool call did.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ids::ToolUseId, message::Block};

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
    /// The agent's process ends now, and the run goes on in another one that stands elsewhere.
    Moves {
        /// Where.
        to: Move,
    },
    /// Something else that this version does not name.
    Other {
        /// Free data.
        data: Value,
    },
}

/// Where an agent wants to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// In its worktree, which is made where it has none.
    Worktree {
        /// What the work is called; the last part of the branch's name comes from it.
        name: Option<String>,
    },
    /// In the user's checkout, read-only.
    Checkout {
        /// Its worktree and branch go into the recycle bin.
        discard: bool,
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
