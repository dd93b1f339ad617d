//! Permission: modes, requests, decisions (spec chapter 5).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ids::{PermissionRequestId, RunNumber, ToolUseId, WorkerId},
    time::Timestamp,
};

/// How an agent decides what no rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PermissionMode {
    /// What no rule allows asks a person.
    #[serde(rename = "default")]
    Default,
    /// Edits inside the worktree are allowed.
    #[serde(rename = "acceptEdits")]
    AcceptEdits,
    /// Nothing is changed: no edits, and commands only where they cannot write.
    #[serde(rename = "plan")]
    Plan,
    /// As `acceptEdits`, and a classifier decides what would ask but for ask rules and critical paths.
    #[serde(rename = "auto")]
    Auto,
    /// Nothing asks, except what ask rules and critical paths demand.
    #[serde(rename = "bypassPermissions")]
    BypassPermissions,
}

impl PermissionMode {
    /// The word users know.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::AcceptEdits => "acceptEdits",
            Self::Plan => "plan",
            Self::Auto => "auto",
            Self::BypassPermissions => "bypassPermissions",
        }
    }
}

impl std::str::FromStr for PermissionMode {
    type Err = UnknownPermissionMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "default" => Ok(Self::Default),
            "acceptEdits" => Ok(Self::AcceptEdits),
            "plan" => Ok(Self::Plan),
            "auto" => Ok(Self::Auto),
            "bypassPermissions" => Ok(Self::BypassPermissions),
            _ => Err(UnknownPermissionMode { text: text.chars().take(64).collect() }),
        }
    }
}

/// A permission mode that does not exist, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a permission mode that is offered: default, acceptEdits, plan, auto, bypassPermissions"
)]
pub struct UnknownPermissionMode {
    /// What was given.
    pub text: String,
}

/// Where a rule comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RuleOrigin {
    /// The settings level: managed, command_line, local, project, user, session.
    pub level: String,
    /// The file, if it stands in one.
    pub file: Option<String>,
    /// The line in that file, from 1.
    pub line: Option<u32>,
    /// The directory that `/relative` patterns of this file start from.
    pub anchor: Option<String>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RuleBehavior {
    /// Refuse.
    Deny,
    /// Ask a person.
    Ask,
    /// Let pass.
    Allow,
}

/// One rule as text, with its origin: how rules travel to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rule {
    /// What it does.
    pub behavior: RuleBehavior,
    /// `Tool` or `Tool(specifier)`.
    pub text: String,
    /// Where it stands.
    pub origin: RuleOrigin,
}

/// A call that asks. A record of the worker; resent under its id after a reconnection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionRequest {
    /// Its id.
    pub id: PermissionRequestId,
    /// Who asks.
    pub worker_id: WorkerId,
    /// In which run.
    pub run: RunNumber,
    /// For which call.
    pub tool_use_id: ToolUseId,
    /// The tool.
    pub tool: String,
    /// The whole input.
    pub input: Value,
    /// What a person reads first: the command, or the path.
    pub summary: String,
    /// Why it asks, as a sentence.
    pub why: String,
    /// The rule that "always" would write, and "session" would add; none when no rule can say it.
    pub proposed_rule: Option<String>,
    /// What the model gave as its reason, if the tool has such a field.
    pub description: Option<String>,
    /// When it was made.
    pub requested_at: Timestamp,
    /// How long it waits while the desk is up and the worker is connected, in milliseconds.
    pub timeout_ms: u64,
    /// Where it would run; none of a version that did not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// SHA-256 in hex of [`canonical_arguments`]: what an answer is bound to. Empty of a version that had none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub args_hash: String,
}

/// What a call would do, as one text that does not depend on the order of keys: the tool, where, and its input.
/// Two calls are the same question when their texts are equal.
pub fn canonical_arguments(tool: &str, cwd: Option<&str>, input: &Value) -> String {
    let mut text = String::new();
    write_canonical(&serde_json::json!({ "cwd": cwd, "input": input, "tool": tool }), &mut text);
    text
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string())
        }
        Value::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (n, key) in keys.into_iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
    }
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Yes.
    Allow,
    /// No; the model sees who refused.
    Deny,
}

/// How far a decision reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// This call.
    #[default]
    Once,
    /// Every call of this session that the proposed rule matches.
    Session,
    /// As `session`, and the rule is written to the settings.
    Always,
}

/// Who may decide a request; in the order of priority when two are ready together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Racer {
    /// A rule or mode that changed meanwhile.
    Rule,
    /// A `PermissionRequest` hook.
    Hook,
    /// A person at dashboard, shell or API.
    Person,
    /// A person at a remote channel, by a signed answer.
    Remote,
    /// A small model that was sure.
    Classifier,
    /// Nobody answered in time.
    Timeout,
    /// The task is unattended.
    Unattended,
    /// The session ended.
    SessionEnd,
    /// The desk itself, which does not take the request.
    Desk,
}

impl Racer {
    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Hook => "hook",
            Self::Person => "person",
            Self::Remote => "remote",
            Self::Classifier => "classifier",
            Self::Timeout => "timeout",
            Self::Unattended => "unattended",
            Self::SessionEnd => "session_end",
            Self::Desk => "desk",
        }
    }
}

/// What a racer beside the agent says to an open request: a record of its worker. The desk decides whether it
/// claims the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionBid {
    /// Which request.
    pub id: PermissionRequestId,
    /// Yes or no.
    pub decision: Decision,
    /// Who says so.
    pub by: Racer,
    /// Which one of them: the rule, the hook's command, the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// What was decided about a request, by whom and when. Journaled before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionDecision {
    /// Which request.
    pub id: PermissionRequestId,
    /// Yes or no.
    pub decision: Decision,
    /// How far.
    pub scope: Scope,
    /// Who decided.
    pub by: Racer,
    /// A person's words to the model, or the reason of a machine.
    pub reason: Option<String>,
    /// Deny, and end the agent.
    #[serde(default)]
    pub stop: bool,
    /// When.
    pub decided_at: Timestamp,
    /// Which one of its kind decided: the rule, the channel, the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// [`PermissionRequest::args_hash`] of what was decided: it lets nothing else run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub args_hash: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn z02_the_order_of_keys_makes_no_other_question_and_anything_else_does() {
        let text = |tool, cwd, input: &Value| canonical_arguments(tool, cwd, input);
        let one = json!({"command": "ls", "more": [{"b": 1, "a": null}]});
        let same = json!({"more": [{"a": null, "b": 1}], "command": "ls"});
        assert_eq!(text("Bash", Some("/w"), &one), text("Bash", Some("/w"), &same));
        assert_eq!(
            text("Bash", Some("/w"), &one),
            r#"{"cwd":"/w","input":{"command":"ls","more":[{"a":null,"b":1}]},"tool":"Bash"}"#
        );
        for (tool, cwd, input) in [
            ("Bash", Some("/x"), one.clone()),
            ("Bash", None, one.clone()),
            ("Write", Some("/w"), one.clone()),
            ("Bash", Some("/w"), json!({"command": "ls ", "more": [{"b": 1, "a": null}]})),
            ("Bash", Some("/w"), json!({"command": "ls", "more": [{"b": "1", "a": null}]})),
            ("Bash", Some("/w"), json!({"command": "ls"})),
        ] {
            assert_ne!(text("Bash", Some("/w"), &one), text(tool, cwd, &input), "{tool} {cwd:?} {input}");
        }
    }
}
