//! Figures as people read them: ages, tokens, money, sizes. English, no digit grouping. Pure.

use swarm_protocol::usage::{BudgetView, Cost};

/// An age that still grows: `41s`, `2m04s`, `1h02m`, `3d04h`.
pub(crate) fn age(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// How long something took: `4.2s` under ten seconds, else as an age.
pub(crate) fn duration(millis: u64) -> String {
    if millis < 10_000 {
        // Never rounded up to a figure that the next form would show.
        format!("{}.{}s", millis / 1000, millis / 100 % 10)
    } else {
        age(millis)
    }
}

/// How long ago, roughly: `2m`, `3h`, `4 days`.
pub(crate) fn ago(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        86_400..172_800 => "1 day".to_owned(),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Tokens: `950`, `4.1k`, `48k`, `1.2M`.
pub(crate) fn tokens(count: u64) -> String {
    match count {
        0..1000 => count.to_string(),
        1000..9_950 => tenths(count, 1000, "k"),
        9_950..999_500 => format!("{}k", (count + 500) / 1000),
        999_500..9_950_000 => tenths(count, 1_000_000, "M"),
        _ => format!("{}M", (count + 500_000) / 1_000_000),
    }
}

fn tenths(count: u64, unit: u64, name: &str) -> String {
    let tenths = (count * 10 + unit / 2) / unit;
    match tenths % 10 {
        0 => format!("{}{name}", tenths / 10),
        rest => format!("{}.{rest}{name}", tenths / 10),
    }
}

/// Dollars: `$0.31`, `<$0.01`, `n/a` when unknown.
pub(crate) fn money(dollars: Option<f64>) -> String {
    match dollars {
        None => "n/a".to_owned(),
        Some(dollars) if dollars > 0.0 && dollars < 0.01 => "<$0.01".to_owned(),
        Some(dollars) => format!("${dollars:.2}"),
    }
}

/// What is spent of a budget: `81 % of $2.00`, `12 % of $2.00, 100k tokens`.
pub(crate) fn budget(budget: &BudgetView) -> String {
    let usd = budget.caps.usd.map(|usd| money(Some(usd)));
    let tokens = budget.caps.tokens.map(|cap| format!("{} tokens", tokens(cap)));
    let caps: Vec<String> = usd.into_iter().chain(tokens).collect();
    format!("{} % of {}", budget.percent, caps.join(", "))
}

/// Whether most of a budget is spent, so that it is marked.
pub(crate) fn is_nearly_spent(budget: &BudgetView) -> bool {
    budget.percent >= query_engine::budget::WARN_PERCENT
}

/// A sum: with an unknown part it is a lower bound, `>$0.40`; `n/a` when nothing of it is known.
pub(crate) fn cost(cost: &Cost) -> String {
    match (cost.unpriced_calls, cost.known_usd) {
        (0, known) => money(Some(known)),
        (_, known) if known > 0.0 => format!(">{}", money(Some(known)).trim_start_matches('<')),
        _ => "n/a".to_owned(),
    }
}

/// Bytes: `421 MiB`, `2.3 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit >= 3 && value < 10.0 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The first digits of a commit id.
pub(crate) fn commit(id: &str) -> &str {
    id.get(..7).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_durations() {
        let check = |millis, expected_age: &str, expected_duration: &str| {
            assert_eq!(age(millis), expected_age);
            assert_eq!(duration(millis), expected_duration);
        };
        check(0, "0s", "0.0s");
        check(4_260, "4s", "4.2s");
        check(41_999, "41s", "41s");
        check(124_000, "2m04s", "2m04s");
        check(3_720_000, "1h02m", "1h02m");
        check(273_600_000, "3d04h", "3d04h");
    }

    #[test]
    fn tokens_in_at_most_four_cells() {
        for (count, expected) in [
            (950, "950"),
            (4_120, "4.1k"),
            (9_949, "9.9k"),
            (8_000, "8k"),
            (9_950, "10k"),
            (48_000, "48k"),
            (999_499, "999k"),
            (999_500, "1M"),
            (1_200_000, "1.2M"),
            (12_400_000, "12M"),
        ] {
            assert_eq!(tokens(count), expected);
        }
    }

    #[test]
    fn money_says_what_it_does_not_know() {
        assert_eq!(money(Some(0.312)), "$0.31");
        assert_eq!(money(Some(0.0)), "$0.00");
        assert_eq!(money(Some(0.004)), "<$0.01");
        assert_eq!(money(None), "n/a");
        assert_eq!(cost(&Cost { known_usd: 0.4, unpriced_calls: 1 }), ">$0.40");
        assert_eq!(cost(&Cost::unknown()), "n/a");
        assert_eq!(cost(&Cost::usd(1.62)), "$1.62");
    }

    #[test]
    fn sizes_and_counts() {
        assert_eq!(size(441_450_000), "421 MiB");
        assert_eq!(size(2_469_606_195), "2.3 GiB");
        assert_eq!(size(0), "0 B");
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
    }
}
