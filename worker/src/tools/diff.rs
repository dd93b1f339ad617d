//! What differs between two texts, by line.

use std::{ops::Range, time::Duration};

use similar::{Algorithm, DiffOp, TextDiff};

/// A diff that would take longer gets coarser; a worker waits for it.
const DEADLINE: Duration = Duration::from_millis(200);
/// Characters shown of a line.
const MAX_LINE_CHARS: usize = 200;

/// Lines that differ: what stood there and what stands there now, from 0. One of both may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    pub(super) before: Range<usize>,
    pub(super) now: Range<usize>,
}

/// The differences of two texts, in order.
pub(super) fn hunks(before: &str, now: &str) -> Vec<Hunk> {
    if before == now {
        return Vec::new();
    }
    let diff = TextDiff::configure().algorithm(Algorithm::Myers).timeout(DEADLINE).diff_lines(before, now);
    let mut hunks: Vec<Hunk> = Vec::new();
    for op in diff.ops().iter().filter(|op| !matches!(op, DiffOp::Equal { .. })) {
        let hunk = Hunk { before: op.old_range(), now: op.new_range() };
        match hunks.last_mut() {
            Some(last) if last.before.end == hunk.before.start && last.now.end == hunk.now.start => {
                last.before.end = hunk.before.end;
                last.now.end = hunk.now.end;
            }
            _ => hunks.push(hunk),
        }
    }
    hunks
}

/// The differences as a short diff of at most about `max_lines`.
pub(super) fn short_diff(before: &str, now: &str, max_lines: usize) -> String {
    use std::fmt::Write as _;
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    let hunks = hunks(before, now);
    let mut shown = 0;
    let mut text = String::new();
    for (index, hunk) in hunks.iter().enumerate() {
        if shown >= max_lines {
            let _ = writeln!(text, "[{} more places differ]", hunks.len() - index);
            break;
        }
        let _ = writeln!(text, "@@ line {} @@", hunk.now.start + 1);
        for (lines, range, sign) in [(&old, &hunk.before, '-'), (&new, &hunk.now, '+')] {
            let room = (max_lines - shown.min(max_lines)).max(1);
            for line in lines.get(range.clone()).into_iter().flatten().take(room) {
                let line: String = line.chars().take(MAX_LINE_CHARS).collect();
                let _ = writeln!(text, "{sign}{line}");
            }
            if range.len() > room {
                let _ = writeln!(text, "{sign}[{} more lines]", range.len() - room);
            }
            shown += range.len().min(room);
        }
    }
    text
}

/// Lines added and removed from one text to another; moved lines count as kept.
pub(super) fn line_counts(before: &str, now: &str) -> (u32, u32) {
    let old: Vec<&str> = before.lines().collect();
    let new: Vec<&str> = now.lines().collect();
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut counts = std::collections::HashMap::<&str, usize>::new();
    for line in old {
        *counts.entry(line).or_default() += 1;
    }
    let mut kept = 0;
    for line in new {
        if let Some(count) = counts.get_mut(line)
            && *count > 0
        {
            *count -= 1;
            kept += 1;
        }
    }
    let number = |lines: &[&str]| u32::try_from(lines.len() - kept).unwrap_or(u32::MAX);
    (number(new), number(old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_that_differs_is_shown() {
        let check = |before, now, expected: &str| assert_eq!(short_diff(before, now, 4), expected);
        check("a\n", "a\n", "");
        check("1\n2\n3\n4\n5\n", "one\n2\n3\n4\nfive\n", "@@ line 1 @@\n-1\n+one\n@@ line 5 @@\n-5\n+five\n");
        check("a\nb\n", "b\n", "@@ line 1 @@\n-a\n");
        check("", "1\n2\n3\n4\n5\n6\n", "@@ line 1 @@\n+1\n+2\n+3\n+4\n+[2 more lines]\n");
        check("a", "a\n", "@@ line 1 @@\n-a\n+a\n");
        assert_eq!(short_diff("1\n2\n3\n", "a\n2\nb\n", 2), "@@ line 1 @@\n-1\n+a\n[1 more places differ]\n");
    }

    #[test]
    fn changes_are_counted_by_line() {
        let check =
            |before, now, expected| assert_eq!(line_counts(before, now), expected, "{before:?} {now:?}");
        check("a\nb\n", "a\nb\n", (0, 0));
        check("a\nb\n", "a\nx\n", (1, 1));
        check("a\n", "a\nb\nc\n", (2, 0));
        check("", "a\nb\n", (2, 0));
        check("a\nb\n", "", (0, 2));
        check("a\nb\nc\nd\n", "x\nb\nc\ny\n", (2, 2));
        check("a", "a\n", (0, 0));
    }
}
