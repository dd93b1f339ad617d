//! How a run began and how it ended.

use serde::{Deserialize, Serialize};

use super::CommandRun;
use crate::{
    ids::RunNumber,
    status::ExitReason,
    usage::{Cost, Usage},
};

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
    /// What was out of the ordinary: most of a budget was spent, compaction was switched off.
    #[serde(default)]
    pub notes: Vec<String>,
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
            notes: Vec::new(),
        }
    }
}
