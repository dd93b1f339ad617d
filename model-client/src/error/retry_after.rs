//! How long a provider asks to wait, in the forms that were seen.

use std::time::Duration;

use http::HeaderMap;

/// Nobody means more than this, and a duration must not overflow what it is added to.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// What is counted apart by the rate-limit headers of Anthropic, and of OpenAI.
const ANTHROPIC_COUNTS: [&str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];
const OPENAI_COUNTS: [&str; 2] = ["requests", "tokens"];

/// `retry-after-ms`, else `retry-after` in seconds or as an HTTP date, else when the limits that are used up begin anew
/// (the last of them). A date that has passed is no wait; negative numbers and garbage are no header at all.
pub fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = |name| text(headers, name);
    let milliseconds = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    if let Some(wait) = milliseconds.and_then(|milliseconds| seconds(milliseconds / 1000.0)) {
        return Some(wait);
    }
    let Some(value) = text("retry-after") else { return limits_begin_anew(headers, now) };
    match value.parse::<f64>() {
        Ok(number) => seconds(number),
        Err(_) => until(value, now),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// `anthropic-ratelimit-requests-reset: 2026-11-30T12:00:30Z`, `x-ratelimit-reset-requests: 6m0s`.
fn limits_begin_anew(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = |name: &str| text(headers, name);
    let anthropic = ANTHROPIC_COUNTS.into_iter().filter_map(|count| {
        let name = |what: &str| format!("anthropic-ratelimit-{count}-{what}");
        let reset = text(&name("reset")).filter(|_| text(&name("remaining")) == Some("0"))?;
        Some(wait_until(reset.parse().ok()?, now))
    });
    let openai = OPENAI_COUNTS.into_iter().filter_map(|count| {
        let name = |what: &str| format!("x-ratelimit-{what}-{count}");
        let reset = text(&name("reset")).filter(|_| text(&name("remaining")) == Some("0"))?;
        seconds(reset.parse::<jiff::SignedDuration>().ok()?.as_secs_f64())
    });
    anthropic.chain(openai).max()
}

fn seconds(number: f64) -> Option<Duration> {
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(number).unwrap_or(LONGEST).min(LONGEST))
}

fn until(date: &str, now: jiff::Timestamp) -> Option<Duration> {
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(wait_until(date, now))
}

fn wait_until(date: jiff::Timestamp, now: jiff::Timestamp) -> Duration {
    let milliseconds = date.as_millisecond().saturating_sub(now.as_millisecond()).max(0);
    Duration::from_millis(milliseconds.unsigned_abs()).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)], expected: Option<u64>) {
        let map: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let now = "2026-11-30T12:00:00Z".parse().unwrap();
        let found = retry_after(&map, now).map(|wait| wait.as_millis() as u64);
        assert_eq!(found, expected, "{headers:?}");
    }

    #[test]
    fn all_forms() {
        check(&[], None);
        check(&[("retry-after", "7")], Some(7_000));
        check(&[("retry-after", " 1.5 ")], Some(1_500));
        check(&[("retry-after", "0")], Some(0));
        check(&[("retry-after-ms", "250")], Some(250));
        check(&[("retry-after-ms", "250"), ("retry-after", "7")], Some(250));
        check(&[("retry-after-ms", "x"), ("retry-after", "7")], Some(7_000));
        check(&[("retry-after", "Mon, 30 Nov 2026 12:00:30 GMT")], Some(30_000));
        check(&[("retry-after", "Mon, 30 Nov 2026 11:00:00 GMT")], Some(0));
        check(&[("retry-after", "-5")], None);
        check(&[("retry-after-ms", "-5")], None);
        check(&[("retry-after", "soon")], None);
        check(&[("retry-after", "NaN")], None);
        check(&[("retry-after", "inf")], None);
        check(&[("retry-after", "")], None);
        check(&[("retry-after", "1e300")], Some(LONGEST.as_millis() as u64));
    }

    #[test]
    fn without_them_a_limit_that_is_used_up_says_when_it_begins_anew() {
        let (soon, later) = ("2026-11-30T12:00:10Z", "2026-11-30T12:01:00Z");
        let requests = |remaining, reset| {
            [
                ("anthropic-ratelimit-requests-remaining", remaining),
                ("anthropic-ratelimit-requests-reset", reset),
            ]
        };
        let tokens = |remaining, reset| {
            [
                ("anthropic-ratelimit-input-tokens-remaining", remaining),
                ("anthropic-ratelimit-input-tokens-reset", reset),
            ]
        };
        check(&requests("0", soon), Some(10_000));
        check(&requests("7", soon), None);
        check(&requests("0", "soon"), None);
        check(&requests("0", "2026-11-30T11:00:00Z"), Some(0));
        check(&[requests("0", soon), tokens("3", later)].concat(), Some(10_000));
        check(&[requests("0", soon), tokens("0", later)].concat(), Some(60_000));
        check(&[requests("0", later).as_slice(), &[("retry-after", "2")]].concat(), Some(2_000));
        let openai = |remaining, reset| {
            [("x-ratelimit-remaining-tokens", remaining), ("x-ratelimit-reset-tokens", reset)]
        };
        check(&openai("0", "6m0s"), Some(360_000));
        check(&openai("0", "1.5s"), Some(1_500));
        check(&openai("0", "20ms"), Some(20));
        check(&openai("1", "6m0s"), None);
        check(&openai("0", "-3s"), None);
        check(&openai("0", "x"), None);
    }
}
