use super::*;
use crate::testing::error;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn failure(kind: ModelErrorKind, retry_after: Option<u64>, elapsed: u64) -> Failure {
    let error = ModelError { retry_after: retry_after.map(Duration::from_secs), ..error(kind, "no") };
    Failure { error, elapsed: Duration::from_secs(elapsed), jitter: 0.0 }
}

#[track_caller]
fn check(failure: &Failure, attempts: u32, expected: Remedy) {
    assert_eq!(remedy(failure, attempts, &RetryPolicy::default(), NOW), expected);
}

fn wait(millis: u64) -> Remedy {
    Remedy::Wait(Duration::from_millis(millis))
}

#[test]
fn a07_waits_double_up_to_a_cap() {
    let waits: Vec<u128> =
        (1..=9).map(|attempt| backoff(attempt, 0.0, &RetryPolicy::default()).as_millis()).collect();
    assert_eq!(waits, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    assert_eq!(backoff(2, 1.0, &RetryPolicy::default()), Duration::from_millis(750));
    // Without jitter ten tries end before the total bound.
    assert!(waits.iter().sum::<u128>() < 480_000);
}

#[test]
fn a08_retry_after_is_honoured_up_to_five_minutes() {
    use ModelErrorKind::RateLimited;
    check(&failure(RateLimited, Some(7), 0), 1, wait(7_000));
    check(&failure(RateLimited, Some(300), 0), 1, wait(300_000));
    check(&failure(RateLimited, Some(0), 0), 1, wait(500));
    let until = Some(Timestamp::from_millis(1_301_000));
    check(&failure(RateLimited, Some(301), 0), 1, Remedy::TryAnother { retry_at: until });
}

#[test]
fn a17_only_what_may_pass_is_tried_again() {
    use ModelErrorKind::*;
    for kind in [
        RateLimited,
        Overloaded,
        Server,
        Transient,
        Connection,
        Stalled { watchdog: "idle" },
        Truncated,
        Malformed,
    ] {
        check(&failure(kind.clone(), None, 0), 1, wait(500));
        // The tenth failure, and a wait over the total bound, are the end.
        check(&failure(kind.clone(), None, 0), 10, Remedy::TryAnother { retry_at: None });
        check(&failure(kind, None, 480), 1, Remedy::TryAnother { retry_at: None });
    }
    for kind in [KeyRefused, PermissionRefused, UnknownModel, InvalidRequest, QuotaSpent] {
        check(&failure(kind, None, 0), 1, Remedy::GiveUp { retry_at: None });
    }
    check(&failure(PromptTooLong { limit: None }, None, 0), 1, Remedy::MakeRoom);
    check(&failure(RequestTooLarge, None, 0), 1, Remedy::StripMedia);
    check(&failure(ImageRefused, None, 0), 1, Remedy::StripMedia);
    let limit = Some(4_096);
    check(&failure(MaxTokensTooLarge { limit }, None, 0), 1, Remedy::ClampOutput { limit });
    check(&failure(Cancelled, None, 0), 1, Remedy::Cancelled);
}

#[test]
fn a16_output_is_clamped_to_what_was_named_and_never_up() {
    assert_eq!(clamp_output(64_000, Some(8_192)), Some(8_192));
    assert_eq!(clamp_output(64_000, None), Some(32_000));
    assert_eq!(clamp_output(8_000, Some(9_000)), Some(4_000));
    assert_eq!(clamp_output(400, None), None);
}
