//! The place of a file that is most like the text a model named, when that text is nowhere on the ladder: for a
//! person to agree to, never applied without. Pure.

use std::{borrow::Cow, ops::Range};

use similar::TextDiff;

use super::ladder::{DEADLINE, Wanted, indent, lines_of};
use crate::tools::view::Patch;

/// Parts of a thousand that must be equal (spec 4.6).
const MIN_ALIKE: u32 = 900;
/// The letters of a place must be alike to this degree before its text is compared.
const MIN_LETTERS: u32 = 850;
/// Places compared by text.
const MAX_COMPARED: usize = 40;
/// Longer texts are not looked for.
const MAX_BYTES: usize = 20_000;
/// Lines of the file that are looked at.
const MAX_LINES: usize = 200_000;

/// A place that is like the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alike {
    /// Its lines, from 1.
    pub(super) lines: Range<usize>,
    /// What stands there.
    pub(super) text: String,
    /// How much of it is equal, in percent.
    pub(super) percent: u32,
    /// What would be done.
    pub(super) patch: Patch,
}

/// The one place that is at least 90 % alike; none when there is none, or more than one.
pub(super) fn find(text: &str, old: &str, new: &str) -> Option<Alike> {
    let wanted = Wanted::new(old).filter(|_| old.len() <= MAX_BYTES)?;
    let mut lines = lines_of(text);
    lines.truncate(MAX_LINES);
    let plain_old = dedented(&wanted.lines);
    let mut best: Vec<(u32, Range<usize>)> = candidates(&lines, &wanted)
        .into_iter()
        .map(|window| {
            let there: Vec<&str> = lines[window.clone()].iter().map(|(_, line)| *line).collect();
            let diff =
                TextDiff::configure().timeout(DEADLINE).diff_chars(plain_old.as_str(), dedented(&there));
            ((diff.ratio() * 1_000.0) as u32, window)
        })
        .filter(|(ratio, _)| *ratio >= MIN_ALIKE)
        .collect();
    best.sort_by_key(|(ratio, window)| (std::cmp::Reverse(*ratio), window.start, window.len()));
    let (ratio, window) = best.first()?.clone();
    if best.iter().any(|(_, other)| other.end <= window.start || other.start >= window.end) {
        return None;
    }
    let there: Vec<&str> = lines[window.clone()].iter().map(|(_, line)| *line).collect();
    let (ours, theirs) = (common_indent(&wanted.lines), common_indent(&there));
    let result: Vec<Cow<'_, str>> = wanted
        .replacement(new)
        .into_iter()
        .map(|line| match line.strip_prefix(ours) {
            Some(rest) if ours != theirs && !rest.trim().is_empty() => Cow::Owned(format!("{theirs}{rest}")),
            _ => Cow::Borrowed(line),
        })
        .collect();
    let last = lines[window.end - 1];
    let place = lines[window.start].0..last.0 + last.1.len();
    Some(Alike {
        lines: window.start + 1..window.end + 1,
        text: text[place.clone()].to_owned(),
        percent: ratio / 10,
        patch: wanted.patch(text, place, new, &result),
    })
}

/// Windows of lines whose letters are much the same, the likeliest first.
fn candidates(lines: &[(usize, &str)], wanted: &Wanted<'_>) -> Vec<Range<usize>> {
    let letters = Letters::of(wanted.lines.iter().copied());
    let size = wanted.lines.len();
    // A line too much or too little in a longer text.
    let sizes = if size >= 3 { size - 1..size + 2 } else { size..size + 1 };
    let mut found: Vec<(u32, Range<usize>)> = Vec::new();
    for size in sizes.filter(|size| *size <= lines.len()) {
        let mut window = Letters::of(lines[..size - 1].iter().map(|(_, line)| *line));
        for end in size..=lines.len() {
            window.add(lines[end - 1].1, 1);
            let alike = window.alike(&letters);
            if alike >= MIN_LETTERS {
                found.push((alike, end - size..end));
            }
            window.add(lines[end - size].1, -1);
        }
    }
    found.sort_by_key(|(alike, window)| (std::cmp::Reverse(*alike), window.start));
    found.into_iter().take(MAX_COMPARED).map(|(_, window)| window).collect()
}

/// How often each byte stands in lines, white space left out.
struct Letters {
    counts: [i32; 256],
    total: i32,
}

impl Letters {
    fn of<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut letters = Self { counts: [0; 256], total: 0 };
        lines.for_each(|line| letters.add(line, 1));
        letters
    }

    fn add(&mut self, line: &str, sign: i32) {
        for byte in line.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
            self.counts[usize::from(byte)] += sign;
            self.total += sign;
        }
    }

    /// The part of a thousand that both have; none of it when the lengths alone rule it out.
    fn alike(&self, other: &Self) -> u32 {
        let sum = self.total + other.total;
        if sum == 0
            || 2_000 * i64::from(self.total.min(other.total)) < i64::from(sum) * i64::from(MIN_LETTERS)
        {
            return 0;
        }
        let common: i32 = self.counts.iter().zip(&other.counts).map(|(a, b)| (*a).min(*b)).sum();
        u32::try_from(2_000 * i64::from(common) / i64::from(sum)).unwrap_or(0)
    }
}

fn common_indent<'a>(lines: &[&'a str]) -> &'a str {
    let mut indents = lines.iter().filter(|line| !line.trim().is_empty()).map(|line| indent(line));
    let Some(mut common) = indents.next() else { return "" };
    for other in indents {
        let same = common.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        // White space of several bytes is cut at a character.
        common = common.get(..same).unwrap_or_default();
    }
    common
}

fn dedented(lines: &[&str]) -> String {
    let common = common_indent(lines);
    let lines: Vec<&str> =
        lines.iter().map(|line| line.strip_prefix(common).unwrap_or(line).trim_end()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_that_is_nearly_the_same_is_found() {
        let text = "fn a() {\n    let total = compute(price, amount);\n    total\n}\n\nfn b() {}\n";
        let found =
            find(text, "let total = compute(prices, amount);\ntotal", "let total = 0;\ntotal").unwrap();
        assert_eq!((found.lines, found.percent), (2..4, 98));
        assert_eq!(found.text, "    let total = compute(price, amount);\n    total");
        assert_eq!(found.patch.new, "    let total = 0;\n    total");
        assert_eq!(&text[found.patch.range], found.text);
    }

    #[test]
    fn a_line_more_or_less_is_still_alike() {
        let words =
            ["open the file", "take its size", "read a block", "hash it", "compare both", "close again"];
        let body = words.map(|words| format!("// {words}\n{words}();\n")).concat();
        let less = body.replace("hash it();\n", "");
        let found = find(&format!("start\n{body}end\n"), &less, "x\n").unwrap();
        assert_eq!((found.lines, found.patch.new.as_str()), (2..14, "x\n"));
    }

    #[test]
    fn what_is_less_alike_or_there_twice_is_not() {
        assert_eq!(find("calculate(total, rate)\n", "compute(sums, rate)", "x"), None);
        let twice = "let total = compute(price, amount);\n".repeat(2);
        assert_eq!(find(&twice, "let total = compute(prices, amount);", "x"), None);
        assert_eq!(find("", "abc", "x"), None);
    }
}
