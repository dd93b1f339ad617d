//! What a refused call tells the model: who refused, and that another way should be sought.

use agent_host::PermissionAnswer;
use query_engine::ports::GateAnswer;
use swarm_protocol::permission::{Decision, PermissionDecision, Racer};

use super::TIMED_OUT;

pub(super) const SEEK: &str =
    "Seek another way that does not need it; if there is none, say what you need and why.";

pub(super) fn refused(text: String) -> GateAnswer {
    GateAnswer::Deny { text, stop: false }
}

pub(super) fn by_rules(answer: &PermissionAnswer) -> GateAnswer {
    refused(format!("Permission was refused by the settings: {}. {SEEK}", answer.by.because()))
}

pub(super) fn from_decision(decision: &PermissionDecision) -> GateAnswer {
    if decision.decision == Decision::Allow {
        return GateAnswer::Allow;
    }
    let reason = decision.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    let text = match (decision.by, reason) {
        (Racer::Person, Some(reason)) => format!("A person refused this call and said: {reason}"),
        (Racer::Person, None) => format!("A person refused this call. {SEEK}"),
        (Racer::Rule, reason) => {
            format!(
                "Permission was refused by a rule{}. {SEEK}",
                reason.map(|text| format!(": {text}")).unwrap_or_default()
            )
        }
        (Racer::Timeout, _) => format!("{TIMED_OUT}: nobody answered. {SEEK}"),
        (Racer::Unattended, _) => {
            format!("Permission was refused, because the task is unattended and nobody can be asked. {SEEK}")
        }
        (Racer::SessionEnd, _) => "Permission was refused, because the session has ended.".to_owned(),
    };
    GateAnswer::Deny { text, stop: decision.stop }
}
