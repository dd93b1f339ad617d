//! What an agent notes that it has to do, as items that may wait for each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// One of an agent's tasks, as it is from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskItem {
    /// Its number, from 1; never used again.
    pub id: u32,
    /// What is to be done, in a line.
    pub subject: String,
    /// All that somebody needs to know who does it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What is shown while it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_form: Option<String>,
    /// Tasks that come first.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub blocked_by: BTreeSet<u32>,
    /// How it stands.
    pub status: TaskItemStatus,
}

/// How a task of an agent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskItemStatus {
    /// Not begun.
    Pending,
    /// Under way.
    InProgress,
    /// Done.
    Completed,
    /// Taken back; its number stays taken.
    Deleted,
}

impl TaskItemStatus {
    /// The word the model uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Deleted => "deleted",
        }
    }
}
