//! The permission desk.

use serde::{Deserialize, Serialize};

use crate::{
    ids::SessionId,
    permission::{Decision, PermissionDecision, PermissionRequest, Scope},
    time::Timestamp,
};

/// A request at the desk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionView {
    /// The request.
    pub request: PermissionRequest,
    /// The session.
    pub session_id: SessionId,
    /// The worker's name.
    pub worker_name: String,
    /// When it is denied, if nobody answers and nothing pauses the clock.
    pub deadline_at: Option<Timestamp>,
    /// Where `always` would write.
    pub always_file: Option<String>,
    /// The decision, once there is one.
    pub decision: Option<PermissionDecision>,
    /// Set when it no longer waits without a decision.
    pub withdrawn: Option<String>,
    /// 2, 1 or 0.
    pub sandbox_tier: Option<u8>,
}

/// `POST /permissions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerPermission {
    /// Yes or no.
    pub decision: Decision,
    /// How far.
    #[serde(default)]
    pub scope: Scope,
    /// Words to the model.
    #[serde(default)]
    pub reason: Option<String>,
    /// Deny, and end the agent.
    #[serde(default)]
    pub stop: bool,
}

/// Answer to `POST /permissions/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AnsweredPermission {
    /// Whether this answer decided; else the one that did is given.
    pub won: bool,
    /// The decision that holds.
    pub decision: PermissionDecision,
    /// The rule that was written and where.
    pub wrote_rule: Option<String>,
}
