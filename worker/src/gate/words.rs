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

/// How a person gets a call through that was refused without one (Z07).
const OVERRIDE: &str = "A person who wants it can say so: an allow rule lets it pass, and in another permission mode they are asked.";

pub(super) fn by_classifier(reason: &str) -> GateAnswer {
    refused(format!("Permission was refused by the classifier of the mode auto: {reason}. {SEEK} {OVERRIDE}"))
}

pub(super) fn without_classifier(why: &str) -> GateAnswer {
    refused(format!(
        "Permission was refused, because the classifier of the mode auto is out of reach: {why}. Try it again later, or seek another \
         way. {OVERRIDE}"
    ))
}

fn said(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
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
            format!("Permission was refused by the settings{}. {SEEK}", said(reason))
        }
        (Racer::Hook, reason) => {
            format!("Permission was refused by a hook{}. {SEEK}", said(reason))
        }
        (Racer::Remote, Some(reason)) => format!("A person refused this call and said: {reason}"),
        (Racer::Remote, None) => format!("A person refused this call. {SEEK}"),
        (Racer::Classifier, reason) => {
            format!("Permission was refused by the classifier{}. {SEEK}", said(reason))
        }
        (Racer::Desk, reason) => {
            format!("The permission request was not taken{}. {SEEK}", said(reason))
        }
        (Racer::Timeout, _) => format!("{TIMED_OUT}: nobody answered. {SEEK}"),
        (Racer::Unattended, _) => {
            format!("Permission was refused, because the task is unattended and nobody can be asked. {SEEK}")
        }
        (Racer::SessionEnd, _) => "Permission was refused, because the session has ended.".to_owned(),
    };
    GateAnswer::Deny { text, stop: decision.stop }
}
