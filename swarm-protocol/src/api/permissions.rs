//! The permission desk.

use serde::{Deserialize, Serialize};

use crate::{
    api::Problem,
    ids::{PermissionRequestId, SessionId},
    permission::{Decision, PermissionDecision, PermissionRequest, Racer, Scope},
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
    /// Other open calls of the same agent that ask exactly the same: one answer is for all of them.
    #[serde(default)]
    pub joined: Vec<PermissionRequestId>,
    /// Who may decide it, first who comes before others when they are ready together.
    #[serde(default)]
    pub racers: Vec<PermissionRacer>,
    /// The rule that the answer wrote, and where.
    #[serde(default)]
    pub wrote_rule: Option<String>,
}

/// Somebody or something that may decide a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionRacer {
    /// Of which kind.
    pub by: Racer,
    /// Which one of them, where there may be several.
    pub source: Option<String>,
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
    /// What was shown to who answers (`args_hash` of the request): an answer to anything else is refused.
    #[serde(default)]
    pub args_hash: Option<String>,
}

/// `POST /permissions/{id}/answer`: a remote channel's answer, signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignedAnswer {
    /// The request of the address: it is signed with the rest.
    pub request_id: PermissionRequestId,
    /// Yes or no.
    pub decision: Decision,
    /// How far: `once` or `session`.
    #[serde(default)]
    pub scope: Scope,
    /// Words to the model.
    #[serde(default)]
    pub reason: Option<String>,
    /// `args_hash` of the message that is answered.
    pub args_hash: String,
}

/// `POST /permissions`: one answer to several requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerPermissions {
    /// Which.
    #[serde(default)]
    pub ids: Vec<PermissionRequestId>,
    /// Or all that are open in this session now.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// The answer.
    pub answer: AnswerPermission,
}

/// What became of one of several answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AnsweredOne {
    /// The request.
    pub id: PermissionRequestId,
    /// The answer that holds; none when there is none.
    pub answered: Option<AnsweredPermission>,
    /// Why it was not answered.
    pub problem: Option<Problem>,
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
