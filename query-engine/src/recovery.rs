//! What follows a failed request: how long to wait, what to repair, when to give up. Pure; jitter and time
//! come in as figures.

use std::time::Duration;

use swarm_protocol::Timestamp;

use crate::ports::{ModelError, ModelErrorKind};

/// How often and how long a request is tried again (spec 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries of one request in all.
    pub tries: u32,
    /// From the first failure to the last try.
    pub total: Duration,
    /// The first wait.
    pub base: Duration,
    /// The longest wait of our own choice.
    pub cap: Duration,
    /// The longest `retry-after` that is waited for; a longer one fails at once.
    pub longest_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries: 10,
            total: Duration::from_secs(8 * 60),
            base: Duration::from_millis(500),
            cap: Duration::from_secs(60),
            longest_retry_after: Duration::from_secs(5 * 60),
        }
    }
}

/// A failed request with all that is needed to judge it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What failed.
    pub error: ModelError,
    /// Since the first failure of this request.
    pub elapsed: Duration,
    /// In `0.0..1.0`.
    pub jitter: f64,
}

/// What a failure calls for.
#[derive(Clone, Debug, PartialEq)]
pub enum Remedy {
    /// The same again after this wait.
    Wait(Duration),
    /// Too many tokens: compact, then again.
    MakeRoom,
    /// Too many bytes, or an image that is refused: take media out, then again.
    StripMedia,
    /// Less output, then again at once.
    ClampOutput {
        /// What the provider named.
        limit: Option<u64>,
    },
    /// The bound is reached; another model may answer.
    TryAnother {
        /// When the provider said to come back.
        retry_at: Option<Timestamp>,
    },
    /// Nothing helps.
    GiveUp {
        /// When the provider said to come back.
        retry_at: Option<Timestamp>,
    },
    /// The caller cancelled.
    Cancelled,
}

/// Judges a failure; `attempts` counts it and those before it.
pub fn remedy(failure: &Failure, attempts: u32, policy: &RetryPolicy, now: Timestamp) -> Remedy {
    let retry_at = failure.error.retry_after.map(|after| now.plus_millis(after.as_millis() as i64));
    match &failure.error.kind {
        ModelErrorKind::KeyRefused
        | ModelErrorKind::PermissionRefused
        | ModelErrorKind::UnknownModel
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::QuotaSpent => Remedy::GiveUp { retry_at },
        ModelErrorKind::PromptTooLong { limit: _ } => Remedy::MakeRoom,
        ModelErrorKind::RequestTooLarge | ModelErrorKind::ImageRefused => Remedy::StripMedia,
        ModelErrorKind::MaxTokensTooLarge { limit } => Remedy::ClampOutput { limit: *limit },
        ModelErrorKind::Cancelled => Remedy::Cancelled,
        ModelErrorKind::RateLimited
        | ModelErrorKind::Overloaded
        | ModelErrorKind::Server
        | ModelErrorKind::Transient
        | ModelErrorKind::Connection
        | ModelErrorKind::Stalled { watchdog: _ }
        | ModelErrorKind::Truncated
        | ModelErrorKind::Malformed => match wait(failure, attempts, policy) {
            Some(wait) => Remedy::Wait(wait),
            None => Remedy::TryAnother { retry_at },
        },
    }
}

/// How long to wait before the next try, or nothing when the bound is reached.
pub fn wait(failure: &Failure, attempts: u32, policy: &RetryPolicy) -> Option<Duration> {
    let wait = match failure.error.retry_after {
        Some(after) if after > policy.longest_retry_after => return None,
        Some(after) => after.max(policy.base),
        None => backoff(attempts, failure.jitter, policy),
    };
    let within = attempts < policy.tries && failure.elapsed + wait <= policy.total;
    within.then_some(wait)
}

/// `base * 2^(attempts - 1)`, at most `cap`, less up to a quarter of it.
pub fn backoff(attempts: u32, jitter: f64, policy: &RetryPolicy) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    let full = policy.base.saturating_mul(1 << doublings).min(policy.cap);
    full.mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

/// Whether an error inside a stream is one of the provider's own, in band, rather than a broken
/// connection: with no block closed the request is then issued again (A10), while a broken stream's words
/// are kept (S01).
pub fn is_in_band(kind: &ModelErrorKind) -> bool {
    match kind {
        ModelErrorKind::RateLimited
        | ModelErrorKind::Overloaded
        | ModelErrorKind::Server
        | ModelErrorKind::Transient
        | ModelErrorKind::KeyRefused
        | ModelErrorKind::PermissionRefused
        | ModelErrorKind::UnknownModel
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::PromptTooLong { .. }
        | ModelErrorKind::RequestTooLarge
        | ModelErrorKind::ImageRefused
        | ModelErrorKind::MaxTokensTooLarge { .. }
        | ModelErrorKind::QuotaSpent
        | ModelErrorKind::Cancelled => true,
        ModelErrorKind::Connection
        | ModelErrorKind::Stalled { .. }
        | ModelErrorKind::Truncated
        | ModelErrorKind::Malformed => false,
    }
}

/// The next bound on output after a provider refused `asked`; nothing when it cannot go lower.
pub fn clamp_output(asked: u64, limit: Option<u64>) -> Option<u64> {
    const LEAST: u64 = 256;
    let next = match limit {
        Some(limit) if limit < asked => limit,
        Some(_) | None => asked / 2,
    };
    (next >= LEAST).then_some(next)
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
