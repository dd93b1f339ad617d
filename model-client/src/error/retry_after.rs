//! How long a provider asks to wait, in the forms that were seen.

use std::time::Duration;

use http::HeaderMap;

/// Nobody means more than this, and a duration must not overflow what it is added to.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// `retry-after-ms`, else `retry-after` in seconds or as an HTTP date. A date that has passed is no wait;
/// negative numbers and garbage are no header at all.
pub fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    if let Some(wait) = milliseconds.and_then(|milliseconds| seconds(milliseconds / 1000.0)) {
        return Some(wait);
    }
    let value = text("retry-after")?;
    match value.parse::<f64>() {
        Ok(number) => seconds(number),
        Err(_) => until(value, now),
    }
}

fn seconds(number: f64) -> Option<Duration> {
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(number).unwrap_or(LONGEST).min(LONGEST))
}

fn until(date: &str, now: jiff::Timestamp) -> Option<Duration> {
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    let milliseconds = date.as_millisecond().saturating_sub(now.as_millisecond()).max(0);
    Some(Duration::from_millis(milliseconds.unsigned_abs()).min(LONGEST))
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
}
