//! The states of sessions and workers, and why a loop ended.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Why a query loop ended (spec 2.4). On the wire a snake_case string in `exit_reason` with its data in
/// `exit_detail`; see [`ExitReason::code`] and [`ExitReason::detail`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum ExitReason {
    /// The model stopped without a tool call.
    Completed,
    /// A person or the coordinator interrupted while the model streamed.
    AbortedStreaming,
    /// A person or the coordinator interrupted while tools ran.
    AbortedTools,
    /// The provider refuses the prompt as too long even after compaction.
    PromptTooLong,
    /// Our own estimate is over the hard line; nothing was sent.
    BlockingLimit,
    /// The output was cut four times in a row.
    MaxOutputTokensEscalate,
    /// A Stop hook refused the end too often.
    StopHookPrevented,
    /// A hook ended the loop.
    HookStopped {
        /// What the hook said.
        message: String,
    },
    /// The bound on turns was reached.
    MaxTurns {
        /// The bound.
        limit: u32,
    },
    /// The model could not be reached, or refused, beyond the retry bound.
    ModelError {
        /// Which kind of error: a stable code.
        error: String,
        /// What it said, for people.
        message: String,
        /// When the provider said to come back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Timestamp>,
    },
    /// An image that no shrinking made acceptable.
    ImageError {
        /// What the provider said.
        message: String,
    },
    /// The model declined.
    Refused {
        /// The provider's explanation, if it gave one.
        message: String,
    },
    /// A budget of tokens or dollars was used up.
    BudgetExceeded {
        /// Which one.
        budget: String,
    },
    /// The agent repeated itself.
    LoopDetected,
    /// A person denied a permission and stopped the agent.
    DeniedAndStopped,
    /// The transcript or journal could not be written.
    StorageError {
        /// What failed.
        message: String,
    },
    /// The worktree, the process or the project's set-up command could not be had.
    SetupFailed {
        /// What was said, cut.
        output: String,
    },
    /// Set from outside: the process was killed.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// Set from outside: the process is gone and nobody knows how.
    Lost,
}

impl ExitReason {
    /// The stable snake_case word of the `--json` contract.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::AbortedStreaming => "aborted_streaming",
            Self::AbortedTools => "aborted_tools",
            Self::PromptTooLong => "prompt_too_long",
            Self::BlockingLimit => "blocking_limit",
            Self::MaxOutputTokensEscalate => "max_output_tokens_escalate",
            Self::StopHookPrevented => "stop_hook_prevented",
            Self::HookStopped { .. } => "hook_stopped",
            Self::MaxTurns { .. } => "max_turns",
            Self::ModelError { .. } => "model_error",
            Self::ImageError { .. } => "image_error",
            Self::Refused { .. } => "refused",
            Self::BudgetExceeded { .. } => "budget_exceeded",
            Self::LoopDetected => "loop_detected",
            Self::DeniedAndStopped => "denied_and_stopped",
            Self::StorageError { .. } => "storage_error",
            Self::SetupFailed { .. } => "setup_failed",
            Self::Killed { .. } => "killed",
            Self::Lost => "lost",
        }
    }

    /// The data of the reason, for `exit_detail`; null when there is none.
    pub fn detail(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        match value.as_object_mut() {
            Some(object) => {
                object.remove("reason");
                if object.is_empty() { serde_json::Value::Null } else { value }
            }
            None => serde_json::Value::Null,
        }
    }

    /// What people read.
    pub fn sentence(&self) -> String {
        match self {
            Self::Completed => "the model stopped without a tool call".to_owned(),
            Self::AbortedStreaming => "interrupted while the model streamed".to_owned(),
            Self::AbortedTools => "interrupted while tools ran".to_owned(),
            Self::PromptTooLong => "the prompt stayed too long after compaction".to_owned(),
            Self::BlockingLimit => "the context is over the hard line; nothing was sent".to_owned(),
            Self::MaxOutputTokensEscalate => "the output was cut four times in a row".to_owned(),
            Self::StopHookPrevented => "a Stop hook refused the end 8 times running".to_owned(),
            Self::HookStopped { message } => format!("a hook stopped it: {message}"),
            Self::MaxTurns { limit } => format!("reached its {limit} turns"),
            Self::ModelError { error, message, retry_at: None } => format!("{error}: {message}"),
            Self::ModelError { error, message, retry_at: Some(at) } => {
                format!("{error}: {message}; retry after {at}")
            }
            Self::ImageError { message } => format!("image refused: {message}"),
            Self::Refused { message } if message.is_empty() => "the model declined".to_owned(),
            Self::Refused { message } => format!("the model declined: {message}"),
            Self::BudgetExceeded { budget } => format!("budget used up: {budget}"),
            Self::LoopDetected => "it repeated itself".to_owned(),
            Self::DeniedAndStopped => "a person denied a permission and stopped it".to_owned(),
            Self::StorageError { message } => format!("its record could not be written: {message}"),
            Self::SetupFailed { output } => {
                format!("it could not be set up: {}", crate::record::head_of(output))
            }
            Self::Killed { signal } => format!("killed (signal {signal})"),
            Self::Lost => "its process is gone and left no word".to_owned(),
        }
    }
}

/// What a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// A decision about a tool call.
    Permission,
    /// Background jobs that it started.
    OwnJobs,
    /// The model provider, between two tries.
    Model,
    /// The server: it cannot be reached, or has no key for this worker's model yet.
    Server,
}

/// Why a worker is queued, unless its cause names something else.
pub const WAITS_FOR_PLACE: &str = "waits for a place";

/// Where a worker stands (spec 6.3). A finished worker goes back to `starting` by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Queued: `max_workers` others run.
    Pending,
    /// Its worktree or process is being made, or its set-up command runs.
    Starting,
    /// It works.
    Running,
    /// It waits; `waiting_for` says for what.
    Waiting,
    /// Its run ended; the server establishes the outcome.
    Finishing,
    /// Its last run ended as the model wished.
    Completed,
    /// Its last run ended otherwise.
    Failed,
    /// It was stopped, and nothing of it is left running.
    Aborted,
}

impl WorkerStatus {
    /// Whether no run is under way.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Aborted)
    }

    /// Whether it takes one of the `max_workers` places.
    pub const fn takes_place(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Waiting | Self::Finishing)
    }

    /// The snake_case word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Finishing => "finishing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }
}

/// Where a session stands (spec 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The coordinator's turn is under way, or about to be.
    Active,
    /// Workers run, a question is open, or a key is missing (`waiting_for_key`).
    Waiting,
    /// Nothing runs and nothing is queued.
    Idle,
    /// It takes no more messages.
    Ended,
}

impl SessionState {
    /// The snake_case word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Idle => "idle",
            Self::Ended => "ended",
        }
    }
}

/// How a task came out (spec 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was started completed without a doubt, or nothing was started.
    Complete,
    /// A worker failed, has a doubt, or was stopped by a person.
    Degraded,
    /// No worker completed, or the coordinator itself did not.
    Failed,
}

impl Verdict {
    /// The snake_case word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_the_wire_word_and_detail_the_rest() {
        let reason = ExitReason::Killed { signal: 9 };
        let value = serde_json::to_value(&reason).unwrap();
        assert_eq!(value["reason"], reason.code());
        assert_eq!(reason.detail(), serde_json::json!({"signal": 9}));
        assert_eq!(ExitReason::Completed.detail(), serde_json::Value::Null);
    }

    #[test]
    fn a_refusal_with_a_time_says_it() {
        let reason = |retry_at| ExitReason::ModelError {
            error: "rate_limited".to_owned(),
            message: "too many requests".to_owned(),
            retry_at,
        };
        assert_eq!(reason(None).sentence(), "rate_limited: too many requests");
        let at = Timestamp::from_millis(1_000);
        let said = "rate_limited: too many requests; retry after 1970-01-01T00:00:01.000Z";
        assert_eq!(reason(Some(at)).sentence(), said);
    }
}
