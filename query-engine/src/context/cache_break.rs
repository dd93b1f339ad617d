//! Whether the provider's cache served as it should have (spec 3.6): what was in it after the last answer is what the
//! next request should read.

use std::time::Duration;

use swarm_protocol::{Usage, frame::CacheBreakCause};

/// A request that reads this share of what was expected is served, in percent.
const SERVED_PERCENT: u64 = 95;
/// And one that lacks fewer tokens: block sizes and markers differ.
const LEAST_LOSS: u64 = 2_000;

/// What the last answer left in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The tokens of its whole prompt.
    pub tokens: u64,
    /// How long ago that was, when the next request left.
    pub age: Duration,
    /// What the next request changed of it.
    pub changed: Option<CacheBreakCause>,
}

/// Why a request with this use was not served from what was left; nothing when it was.
pub fn cause(left: &Left, usage: &Usage, lifetime: Duration) -> Option<CacheBreakCause> {
    let read = usage.cache_read_tokens;
    let is_served = read * 100 >= left.tokens * SERVED_PERCENT || left.tokens - read < LEAST_LOSS;
    // A provider that reports nothing says nothing about its cache either.
    if is_served || usage.estimated || usage.total_input() == 0 {
        return None;
    }
    // A change explains it whatever the age.
    let by_age = if left.age >= lifetime { CacheBreakCause::Expired } else { CacheBreakCause::Provider };
    Some(left.changed.unwrap_or(by_age))
}

/// What an answer with this use leaves. Nothing where no cache shows, for it would seem to fail each time.
pub fn left_by(usage: &Usage) -> Option<u64> {
    let shows = usage.cache_read_tokens > 0 || usage.cache_write_tokens > 0;
    (shows && !usage.estimated).then(|| usage.total_input())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_break_lacks_a_twentieth_and_two_thousand_tokens_and_has_a_cause() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let check = |tokens, read, age, changed, expected| {
            let usage = Usage { cache_read_tokens: read, input_tokens: 50_000, ..Usage::default() };
            let left = Left { tokens, age: minutes(age), changed };
            assert_eq!(cause(&left, &usage, minutes(5)), expected, "{tokens} {read} {age} {changed:?}");
        };
        let provider = Some(CacheBreakCause::Provider);
        check(100_000, 100_000, 0, None, None);
        check(100_000, 120_000, 0, None, None);
        check(100_000, 95_000, 0, None, None);
        check(100_000, 94_999, 0, None, provider);
        check(10_000, 8_001, 0, None, None);
        check(10_000, 8_000, 0, None, provider);
        check(1_999, 0, 0, None, None);
        check(2_000, 0, 0, None, provider);
        check(100_000, 0, 4, None, provider);
        check(100_000, 0, 5, None, Some(CacheBreakCause::Expired));
        check(100_000, 0, 9, Some(CacheBreakCause::Tools), Some(CacheBreakCause::Tools));
        check(100_000, 100_000, 0, Some(CacheBreakCause::Messages), None);
        let left = Left { tokens: 100_000, age: minutes(0), changed: None };
        let estimated = Usage { input_tokens: 50_000, estimated: true, ..Usage::default() };
        for silent in [estimated, Usage::default()] {
            assert_eq!(cause(&left, &silent, minutes(5)), None);
        }
    }

    #[test]
    fn without_a_sign_of_a_cache_nothing_is_expected() {
        let usage = |read, write| Usage {
            input_tokens: 10,
            cache_read_tokens: read,
            cache_write_tokens: write,
            ..Usage::default()
        };
        assert_eq!(left_by(&usage(0, 0)), None);
        assert_eq!(left_by(&usage(0, 5)), Some(15));
        assert_eq!(left_by(&usage(5, 0)), Some(15));
        assert_eq!(left_by(&Usage { estimated: true, ..usage(5, 5) }), None);
    }
}
