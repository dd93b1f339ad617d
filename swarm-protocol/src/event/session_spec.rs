//! What a session is opened with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    launch::{AgentLimits, Models},
    permission::{PermissionMode, Rule},
    usage::Caps,
};

/// How a session was opened: everything its coordinator and workers are made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionSpec {
    /// The repository: the checkout the task was submitted from.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub repo: PathBuf,
    /// `<name>-<hash>` of the repository: a directory name.
    pub repo_key: String,
    /// The full commit id workers start from.
    pub base: String,
    /// What the base was called: a branch, or the id itself.
    pub base_name: String,
    /// The branch checked out at submit: where merges go unless told otherwise. None when HEAD was detached.
    pub target_branch: Option<String>,
    /// First words of the first prompt.
    pub title: String,
    /// The models.
    pub models: Models,
    /// The mode workers start in.
    pub permission_mode: PermissionMode,
    /// Workers at once.
    pub max_workers: u32,
    /// Turns of the coordinator for one task.
    pub coordinator_max_turns: u32,
    /// Bounds of workers.
    pub worker_limits: AgentLimits,
    /// How often a worker's run is started again after its process died.
    pub worker_restarts: u32,
    /// The window in which a burst of notifications is drained together, in milliseconds.
    pub notification_window_ms: u64,
    /// The project's set-up command (trusted).
    pub setup: Option<String>,
    /// The project's check command (trusted).
    pub check: Option<String>,
    /// Start of branch names.
    pub branch_prefix: String,
    /// Where worktrees are made, when configured.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub worktree_root: Option<PathBuf>,
    /// Rules of all levels.
    pub rules: Vec<Rule>,
    /// Append to the agents' system prompt.
    pub system_prompt: Option<String>,
    /// Each worker gets a tmux window.
    pub tmux: bool,
    /// The filtered environment for commands.
    pub environment: std::collections::BTreeMap<String, String>,
    /// The user's home.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub home: PathBuf,
    /// What of the repository is not trusted and was ignored, one sentence each.
    pub untrusted: Vec<String>,
    /// What the session may spend, workers included.
    #[serde(default)]
    pub budget: Caps,
    /// SHA-256 in hex of the coordinator's system prompt and tools, kept under `$SWARM_HOME/prompts/`: a
    /// resume sends the same bytes.
    #[serde(default)]
    pub prefix_sha256: String,
    /// One agent that people talk to, and no coordinator that thinks.
    #[serde(default)]
    pub solo: bool,
}
