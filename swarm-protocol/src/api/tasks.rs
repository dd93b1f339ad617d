//! Tasks: submit and look.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::WorkerView;
use crate::{
    ids::{Seq, SessionId, TaskId},
    permission::PermissionMode,
    status::Verdict,
    time::Timestamp,
    usage::{Caps, Usage},
};

/// `POST /tasks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// What to do; not blank.
    pub prompt: String,
    /// A directory inside the repository; needed unless `session_id` is given.
    #[serde(default)]
    pub repo: Option<String>,
    /// The session to continue.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// The commit workers start from; HEAD when absent.
    #[serde(default)]
    pub base: Option<String>,
    /// Workers start from a snapshot of the uncommitted changes on top of HEAD; a merge leaves them out.
    #[serde(default)]
    pub carry: bool,
    /// `provider/name` or `demo`; the configured one when absent.
    #[serde(default)]
    pub model: Option<String>,
    /// The mode workers start in.
    #[serde(default)]
    pub permission_mode: Option<PermissionMode>,
    /// What would ask a person is denied at once.
    #[serde(default)]
    pub unattended: bool,
    /// Where the verdict is POSTed, signed.
    #[serde(default)]
    pub callback_url: Option<String>,
    /// Each permission request is POSTed there as well, as soon as it waits for a person.
    #[serde(default)]
    pub callback_asks: bool,
    /// The caller's labels.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Workers at once.
    #[serde(default)]
    pub max_workers: Option<u32>,
    /// Turns of a worker's run.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// The project's check for this task.
    #[serde(default)]
    pub check: Option<String>,
    /// Each worker gets a tmux window.
    #[serde(default)]
    pub tmux: bool,
    /// One agent that begins in the checkout, and no coordinator.
    #[serde(default)]
    pub solo: bool,
    /// Append to the agents' system prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// What the session may spend, workers included; the configured caps where it names none.
    #[serde(default)]
    pub budget: Option<Caps>,
    /// What a shell resolved on its side (spec 1.4): model, endpoint, key, environment. Tasks from HTTP
    /// leave it out and use the server's own.
    #[serde(default)]
    pub client: Option<ClientContext>,
}

/// What a shell resolved on its side and sends along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientContext {
    /// `SWARM_*` variables and flags as `key = value` of the configuration, with their source.
    #[serde(default)]
    pub settings: Vec<ClientSetting>,
    /// Variables of the shell that name keys and endpoints; kept in memory only.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// The shell's environment, filtered, for commands.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The user's home.
    #[serde(default)]
    pub home: Option<String>,
}

/// A setting of the client, with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientSetting {
    /// The key, dotted.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// `--max-workers`, `SWARM_MODEL`.
    pub source: String,
}

/// Answer to `POST /tasks`: 202.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskAccepted {
    /// The task.
    pub task_id: TaskId,
    /// Its session.
    pub session_id: SessionId,
    /// The seq before the task's first event: follow from here.
    pub after: Seq,
    /// What a person should know: what is ignored for lack of trust, a dirty checkout.
    pub notices: Vec<String>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not begun.
    Queued,
    /// The coordinator works on it.
    Active,
    /// Workers run, or a question is open.
    Waiting,
    /// It has a verdict.
    Done,
}

/// `GET /tasks/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Its id.
    pub task_id: TaskId,
    /// Its session.
    pub session_id: SessionId,
    /// What was asked.
    pub prompt: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// How it came out.
    pub verdict: Option<Verdict>,
    /// Why, one sentence each.
    pub reasons: Vec<String>,
    /// How the coordinator ended, snake_case.
    pub exit_reason: Option<String>,
    /// Its data.
    pub exit_detail: Option<Value>,
    /// The coordinator's final text.
    pub text: Option<String>,
    /// The workers of this task.
    pub workers: Vec<WorkerView>,
    /// Use of the session, workers included.
    pub usage: Usage,
    /// Dollars, or null when a part is unknown.
    pub cost_usd: Option<f64>,
    /// The caller's labels.
    pub labels: Vec<String>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it was done.
    pub finished_at: Option<Timestamp>,
}
