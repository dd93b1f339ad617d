//! How often a caller may try (spec 8.2): failed logins by peer address, submissions by token. Reading is never
//! counted, so streams and whoever polls do not meet a limit.

use std::{net::IpAddr, num::NonZeroU32};

use axum::http::StatusCode;
use governor::{DefaultKeyedRateLimiter, Quota, clock::Clock as _};

use super::problem::Fault;

/// Wrong tokens and unknown cookies of one address, a minute and at once. A token is 256 bits: the limit keeps
/// the log and the processor free, not the token safe.
const FAILURES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("60 is not 0");

/// Codes one address may try, a minute and at once: a code holds 40 bits for five minutes.
const CODES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");

/// So many keys are remembered before those that count for nothing any more are forgotten.
const KEYS_KEPT: usize = 1024;

/// Who called: what submissions are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// Has the server's token.
    Token,
    /// Has a browser's cookie: its SHA-256.
    Cookie(String),
}

/// The counters of one server.
pub(crate) struct Limits {
    failures: DefaultKeyedRateLimiter<IpAddr>,
    codes: DefaultKeyedRateLimiter<IpAddr>,
    tasks: DefaultKeyedRateLimiter<Caller>,
}

impl Limits {
    pub(crate) fn new(tasks_per_minute: u32) -> Self {
        let tasks = NonZeroU32::new(tasks_per_minute).unwrap_or(NonZeroU32::MIN);
        Self {
            failures: DefaultKeyedRateLimiter::keyed(Quota::per_minute(FAILURES_PER_MINUTE)),
            codes: DefaultKeyedRateLimiter::keyed(Quota::per_minute(CODES_PER_MINUTE)),
            tasks: DefaultKeyedRateLimiter::keyed(Quota::per_minute(tasks)),
        }
    }

    /// Counts a failed attempt. A caller with a valid token is never asked for it.
    pub(crate) fn failure(&self, peer: IpAddr) -> Result<(), Fault> {
        take(&self.failures, &peer, "too_many_attempts", "too many wrong tokens from this address")
    }

    /// Counts a code before it is looked at: guesses beyond the limit learn nothing.
    pub(crate) fn code(&self, peer: IpAddr) -> Result<(), Fault> {
        take(&self.codes, &peer, "too_many_attempts", "too many login codes from this address")
    }

    /// Counts a submitted task.
    pub(crate) fn task(&self, caller: &Caller) -> Result<(), Fault> {
        take(&self.tasks, caller, "too_many_tasks", "too many tasks in a minute")
            .map_err(|fault| fault.hint("server.tasks_per_minute in $SWARM_HOME/config.toml sets the limit"))
    }
}

fn take<K: Clone + Eq + std::hash::Hash>(
    limiter: &DefaultKeyedRateLimiter<K>,
    key: &K,
    code: &str,
    title: &str,
) -> Result<(), Fault> {
    if limiter.len() > KEYS_KEPT {
        limiter.retain_recent();
    }
    limiter.check_key(key).map_err(|not_until| {
        let wait = not_until.wait_time_from(limiter.clock().now());
        // Whole seconds, and never one too early.
        let seconds = wait.as_secs() + 1;
        Fault::new(StatusCode::TOO_MANY_REQUESTS, code, title)
            .cause(format!("again in {seconds} s"))
            .retry_after(seconds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_count_of_its_own_and_is_told_when_to_come_again() {
        let limits = Limits::new(2);
        let browser = Caller::Cookie("a".to_owned());
        for caller in [&Caller::Token, &browser] {
            limits.task(caller).unwrap();
            limits.task(caller).unwrap();
            let fault = limits.task(caller).unwrap_err();
            assert_eq!(fault.problem.status, 429);
            assert!(matches!(fault.retry_after_s, Some(1..=31)), "{:?}", fault.retry_after_s);
        }
    }
}
