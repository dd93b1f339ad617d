//! The server itself: overview, cost, configuration, logins, its file.

use serde::{Deserialize, Serialize};

use super::{SessionView, WorkerView};
use crate::{
    ids::SessionId,
    time::Timestamp,
    usage::{BudgetView, Cost, Usage},
};

/// A row of `GET /cost`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CostRow {
    /// Session id, worker id, model or day.
    pub key: String,
    /// Title or name.
    pub label: String,
    /// Use.
    pub usage: Usage,
    /// Cost.
    pub cost: Cost,
    /// Calls.
    pub calls: u64,
    /// The budget of a session that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetView>,
}

/// `GET /cost?by=session|worker|model|day`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CostView {
    /// Rows.
    pub rows: Vec<CostRow>,
    /// The date of the price table.
    pub prices_of: String,
}

/// A value of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ConfigValue {
    /// The key, dotted.
    pub key: String,
    /// The value as text; secrets never.
    pub value: String,
    /// `swarm.toml:7`, `SWARM_MODEL`, `built in`.
    pub source: String,
    /// What it overrides.
    pub overrides: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeView {
    /// `local`.
    pub name: String,
    /// Workers with a run under way.
    pub workers: u32,
    /// The most it takes.
    pub max_workers: u32,
    /// Cores.
    pub cores: u32,
    /// Free memory in bytes.
    pub free_memory: u64,
    /// Free disk of `$SWARM_HOME` in bytes.
    pub free_disk: u64,
    /// 2, 1 or 0.
    pub sandbox_tier: u8,
}

/// What a person must or may look at: a row of Home.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OverviewRow {
    /// `needs_you`, `failed`, `ready`, `watch`, `working`, `queued`, `done`.
    pub group: String,
    /// The word of the one table of states.
    pub word: String,
    /// The glyph of that table.
    pub glyph: String,
    /// The one fact that matters in that state.
    pub fact: String,
    /// The worker; none for a need of the session itself.
    pub worker: Option<WorkerView>,
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    pub title: String,
    /// The deadline, when something waits.
    pub deadline_at: Option<Timestamp>,
    /// Path of the page where the need is met.
    pub link: String,
}

/// `GET /overview`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Overview {
    /// Rows, grouped in the fixed order, each group in its own order.
    pub rows: Vec<OverviewRow>,
    /// Sessions, newest need first.
    pub sessions: Vec<SessionView>,
    /// Requests that wait.
    pub asks: u32,
    /// Cost of today.
    pub today: Cost,
    /// The cursor of this snapshot for `GET /events`.
    pub position: u64,
    /// The server's clock.
    pub now: Timestamp,
}

/// `GET /info`: what the shell compares before it talks to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ServerInfo {
    /// The version of the binary.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// Its home.
    pub home: String,
    /// When it started.
    pub started_at: Timestamp,
    /// The sandbox's tier.
    pub sandbox_tier: u8,
    /// What that tier does not hold, and other notes.
    pub sandbox_notes: Vec<String>,
    /// Whether the server itself has a model configured.
    pub model: Option<String>,
}

/// `$SWARM_HOME/server.json` (0600): how clients find the server. No token stands in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    /// `127.0.0.1:43117`.
    pub address: String,
    /// Its process.
    pub process: crate::process::ProcessIdentity,
    /// The version of the binary.
    pub version: String,
    /// The workers' socket.
    pub socket: String,
}

/// `GET /gc` (what would go) and `POST /gc` (it goes).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GcView {
    /// What was, or would be, removed: one line each.
    pub removed: Vec<String>,
    /// What is kept and why: one line each.
    pub kept: Vec<String>,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes in use before.
    pub used_bytes: u64,
}

/// `POST /gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GcBody {
    /// Only list.
    #[serde(default)]
    pub dry_run: bool,
    /// Remove unmerged work too (into the recycle bin).
    #[serde(default)]
    pub force: bool,
}

/// `POST /server/stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StopServerBody {
    /// Stop workers first, their work committed.
    #[serde(default)]
    pub workers: bool,
    /// End the server alone; workers run on.
    #[serde(default)]
    pub leave: bool,
}

/// `POST /login`: the one-time code for the browser's cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginBody {
    /// The code.
    pub code: String,
}

/// Answer to `POST /login-codes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoginCode {
    /// The code: works once, for five minutes.
    pub code: String,
    /// The address to open.
    pub url: String,
}
