//! Where the text that a model named stands in a file: exactly; else but for typography; else but for white space
//! around it; else but for its indentation. The first rung with a match decides. What the model did not change keeps the
//! file's characters. Pure.

use std::{borrow::Cow, collections::BTreeMap, ops::Range, time::Duration};

use similar::{Algorithm, ChangeTag, DiffOp, TextDiff, capture_diff_slices};

use crate::tools::view::Patch;

/// A diff that would take longer gets coarser.
pub(super) const DEADLINE: Duration = Duration::from_millis(200);
/// How wide a tab counts where indentations are compared.
const TAB_COLUMNS: usize = 4;

/// How a text was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    Exact,
    Typography,
    Trimmed,
    Indentation,
}

/// All places of a text on the first rung where there is one, in order. They overlap only where no more than one is
/// wanted, and there are two at least.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rung: Rung,
    pub(super) patches: Vec<Patch>,
}

/// Looks on each rung. `text`, `old` and `new` have plain line ends. Where not all places are wanted, one that overlaps
/// the first is another place, too.
pub(super) fn find(text: &str, old: &str, new: &str, all: bool) -> Option<Found> {
    let exact: Vec<Patch> =
        places(text, old, all).into_iter().map(|range| Patch { range, new: new.to_owned() }).collect();
    let found = |rung, patches: Vec<Patch>| (!patches.is_empty()).then_some(Found { rung, patches });
    found(Rung::Exact, exact)
        .or_else(|| found(Rung::Typography, typographic(text, old, new, all)))
        .or_else(|| found(Rung::Trimmed, by_lines(text, old, new, false, all)))
        .or_else(|| found(Rung::Indentation, by_lines(text, old, new, true, all)))
}

/// Where a piece stands in a text.
fn places(text: &str, piece: &str, all: bool) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> =
        text.match_indices(piece).map(|(at, piece)| at..at + piece.len()).collect();
    if let ([first], false) = (&places[..], all) {
        let behind = first.start + piece.chars().next().map_or(1, char::len_utf8);
        let again = text[behind..].find(piece).map(|at| behind + at..behind + at + piece.len());
        places.extend(again);
    }
    places
}

/// What quotes and spaces are written as on a plain keyboard.
fn plain(character: char) -> char {
    match character {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' => '"',
        '\u{a0}' | '\u{2007}' | '\u{202f}' => ' ',
        other => other,
    }
}

/// A text in plain characters, and the way back from its places.
struct Plain<'a> {
    text: Cow<'a, str>,
    /// After each character that got shorter: its end here, and how many bytes were saved up to it.
    saved: Vec<(usize, usize)>,
}

impl<'a> Plain<'a> {
    fn new(text: &'a str) -> Self {
        if text.is_ascii() || text.chars().all(|character| plain(character) == character) {
            return Self { text: Cow::Borrowed(text), saved: Vec::new() };
        }
        let mut simple = String::with_capacity(text.len());
        let (mut saved, mut total) = (Vec::new(), 0);
        for character in text.chars() {
            simple.push(plain(character));
            let less = character.len_utf8() - plain(character).len_utf8();
            if less > 0 {
                total += less;
                saved.push((simple.len(), total));
            }
        }
        Self { text: Cow::Owned(simple), saved }
    }

    fn back(&self, place: usize) -> usize {
        let index = self.saved.partition_point(|(end, _)| *end <= place);
        place + index.checked_sub(1).map_or(0, |index| self.saved[index].1)
    }
}

fn typographic(text: &str, old: &str, new: &str, all: bool) -> Vec<Patch> {
    let (there, wanted) = (Plain::new(text), Plain::new(old));
    if matches!((&there.text, &wanted.text), (Cow::Borrowed(_), Cow::Borrowed(_))) {
        return Vec::new();
    }
    places(&there.text, &wanted.text, all)
        .into_iter()
        .map(|range| {
            let range = there.back(range.start)..there.back(range.end);
            let new = carried_over(old, new, &text[range.clone()]);
            Patch { range, new }
        })
        .collect()
}

/// The change from `old` to `new`, made to a text that has a character for each of `old`: what is equal in both
/// keeps the text's characters, and new quotes take their style.
fn carried_over(old: &str, new: &str, there: &str) -> String {
    let (old, new, there): (Vec<char>, Vec<char>, Vec<char>) =
        (old.chars().collect(), new.chars().collect(), there.chars().collect());
    let style = Style::of(&there);
    let mut result = String::new();
    for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
        match op {
            DiffOp::Equal { old_index, len, .. } => result.extend(&there[old_index..old_index + len]),
            DiffOp::Delete { .. } => {}
            DiffOp::Insert { new_index, new_len, .. } | DiffOp::Replace { new_index, new_len, .. } => {
                for &character in &new[new_index..new_index + new_len] {
                    let before = result.chars().next_back();
                    result.push(style.apply(character, before));
                }
            }
        }
    }
    result
}

/// Whether a text writes its quotes curly, and only so.
struct Style {
    double: bool,
    single: bool,
}

impl Style {
    fn of(text: &[char]) -> Self {
        let only = |curly: [char; 2], straight| {
            text.iter().any(|character| curly.contains(character)) && !text.contains(&straight)
        };
        Self { double: only(['\u{201c}', '\u{201d}'], '"'), single: only(['\u{2018}', '\u{2019}'], '\'') }
    }

    fn apply(&self, character: char, before: Option<char>) -> char {
        let opens = before.is_none_or(|before| {
            before.is_whitespace() || matches!(before, '(' | '[' | '{' | '\u{2014}' | '\u{201c}' | '\u{2018}')
        });
        match (character, opens) {
            ('"', true) if self.double => '\u{201c}',
            ('"', false) if self.double => '\u{201d}',
            ('\'', true) if self.single => '\u{2018}',
            ('\'', false) if self.single => '\u{2019}',
            _ => character,
        }
    }
}

/// What a model named, as whole lines without empty ones around.
pub(super) struct Wanted<'a> {
    pub(super) lines: Vec<&'a str>,
    /// Whether the last line's end belongs to it.
    pub(super) has_end: bool,
    /// Empty lines that were left out before and after.
    blank: (usize, usize),
}

impl<'a> Wanted<'a> {
    /// None when it has no words.
    pub(super) fn new(old: &'a str) -> Option<Self> {
        let has_end = old.ends_with('\n');
        let lines: Vec<&str> = old.strip_suffix('\n').unwrap_or(old).split('\n').collect();
        let first = lines.iter().position(|line| !is_blank(line))?;
        let last = lines.iter().rposition(|line| !is_blank(line))?;
        let blank = (first, lines.len() - 1 - last);
        Some(Self { lines: lines[first..=last].to_vec(), has_end, blank })
    }

    /// The lines that shall stand there, with as many empty lines left out as of the old ones.
    pub(super) fn replacement<'n>(&self, new: &'n str) -> Vec<&'n str> {
        let core = if self.has_end { new.strip_suffix('\n').unwrap_or(new) } else { new };
        let mut lines: Vec<&str> = core.split('\n').collect();
        for _ in 0..self.blank.0 {
            if lines.len() > 1 && is_blank(lines[0]) {
                lines.remove(0);
            }
        }
        for _ in 0..self.blank.1 {
            if lines.len() > 1 && lines.last().is_some_and(|line| is_blank(line)) {
                lines.pop();
            }
        }
        lines
    }

    /// The patch that puts these lines in place of those of the file.
    pub(super) fn patch(&self, text: &str, place: Range<usize>, new: &str, lines: &[Cow<'_, str>]) -> Patch {
        let mut range = place;
        let mut joined = lines.join("\n");
        if self.has_end && text[range.end..].starts_with('\n') {
            range.end += 1;
            // Taken away altogether, its line goes as well.
            if !new.is_empty() {
                joined.push('\n');
            }
        }
        Patch { range, new: joined }
    }
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

pub(super) fn indent(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Lines of a text with where they stand.
pub(super) fn lines_of(text: &str) -> Vec<(usize, &str)> {
    let mut at = 0;
    text.split('\n')
        .map(|line| {
            let start = at;
            at += line.len() + 1;
            (start, line)
        })
        .collect()
}

fn by_lines(text: &str, old: &str, new: &str, any_indent: bool, all: bool) -> Vec<Patch> {
    let Some(wanted) = Wanted::new(old) else { return Vec::new() };
    let key = |line: &str| if any_indent { line.trim().to_owned() } else { line.trim_end().to_owned() };
    let keys: Vec<String> = wanted.lines.iter().map(|line| key(line)).collect();
    let same = |line: &str, key: &str| {
        let line = line.trim_end();
        (if any_indent { line.trim_start() } else { line }) == key
    };
    let lines = lines_of(text);
    let new_lines = wanted.replacement(new);
    let mut patches = Vec::new();
    let mut at = 0;
    while at + keys.len() <= lines.len() {
        let window = &lines[at..at + keys.len()];
        let indents = (window.iter().zip(&keys).all(|((_, line), key)| same(line, key)))
            .then(|| Indents::new(wanted.lines.iter().copied().zip(window.iter().map(|(_, line)| *line))))
            .flatten();
        let Some(indents) = indents else {
            at += 1;
            continue;
        };
        let last = window[window.len() - 1];
        let there: Vec<&str> = window.iter().map(|(_, line)| *line).collect();
        let result = lines_carried_over(&wanted.lines, &new_lines, &there, &indents);
        patches.push(wanted.patch(text, window[0].0..last.0 + last.1.len(), new, &result));
        at += if all { keys.len() } else { 1 };
    }
    patches
}

/// The change from `old` to `new`, made to lines that correspond to those of `old`.
fn lines_carried_over<'a>(
    old: &[&'a str],
    new: &[&'a str],
    there: &[&'a str],
    indents: &Indents<'_>,
) -> Vec<Cow<'a, str>> {
    let diff = TextDiff::configure().timeout(DEADLINE).diff_slices(old, new);
    diff.iter_all_changes()
        .filter_map(|change| match change.tag() {
            ChangeTag::Equal => change.old_index().map(|index| Cow::Borrowed(there[index])),
            ChangeTag::Insert => change.new_index().map(|index| indents.apply(new[index])),
            ChangeTag::Delete => None,
        })
        .collect()
}

/// Which indentation of the file stands for which of the model's.
struct Indents<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Indents<'a> {
    /// None when the lines are nested otherwise.
    fn new(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut map = BTreeMap::new();
        for (ours, theirs) in pairs.filter(|(ours, _)| !is_blank(ours)) {
            if *map.entry(indent(ours)).or_insert(indent(theirs)) != indent(theirs) {
                return None;
            }
        }
        let mut widths: Vec<(usize, usize)> =
            map.iter().map(|(ours, theirs)| (columns(ours), columns(theirs))).collect();
        widths.sort_unstable();
        let is_monotone = widths.windows(2).all(|pair| {
            let ((ours, theirs), (next_ours, next_theirs)) = (pair[0], pair[1]);
            (ours == next_ours) == (theirs == next_theirs) && theirs <= next_theirs
        });
        is_monotone.then_some(Self(map))
    }

    /// A new line with the file's indentation.
    fn apply<'l>(&self, line: &'l str) -> Cow<'l, str> {
        let ours = indent(line);
        if is_blank(line) || self.0.get(ours).is_some_and(|theirs| *theirs == ours) {
            return Cow::Borrowed(line);
        }
        let words = &line[ours.len()..];
        if let Some(theirs) = self.0.get(ours) {
            return Cow::Owned(format!("{theirs}{words}"));
        }
        // Further in than a known one, or further out than all.
        let within =
            self.0.iter().filter(|(known, _)| ours.starts_with(**known)).max_by_key(|(known, _)| known.len());
        match (within, self.0.iter().min_by_key(|(known, _)| known.len())) {
            (Some((known, theirs)), _) => {
                Cow::Owned(format!("{theirs}{}{words}", self.deeper(&ours[known.len()..])))
            }
            (None, Some((known, theirs))) => {
                let out = self.deeper(known.get(ours.len()..).unwrap_or_default());
                Cow::Owned(format!("{}{words}", theirs.strip_suffix(out.as_ref()).unwrap_or(ours)))
            }
            (None, None) => Cow::Borrowed(line),
        }
    }

    /// A piece of the model's indentation in the file's characters.
    fn deeper<'s>(&self, ours: &'s str) -> Cow<'s, str> {
        let all =
            |text: &str, wanted: char| !text.is_empty() && text.chars().all(|character| character == wanted);
        if all(ours, ' ')
            && let Some(unit) = self.spaces_for_a_tab(' ')
        {
            return Cow::Owned("\t".repeat(ours.len().div_ceil(unit)));
        }
        if all(ours, '\t')
            && let Some(unit) = self.spaces_for_a_tab('\t')
        {
            return Cow::Owned(" ".repeat(ours.len() * unit));
        }
        Cow::Borrowed(ours)
    }

    /// How many spaces on one side are one tab on the other, where the model indents with `ours` alone.
    fn spaces_for_a_tab(&self, ours: char) -> Option<usize> {
        let theirs = if ours == ' ' { '\t' } else { ' ' };
        let only = |text: &str, wanted: char| text.chars().all(|character| character == wanted);
        let mut sizes: Vec<(usize, usize)> = self
            .0
            .iter()
            .filter(|(known, there)| only(known, ours) && only(there, theirs))
            .map(|(known, there)| (known.len(), there.len()))
            .collect();
        sizes.sort_unstable();
        let steps = sizes.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1));
        // One step tells most; else the whole indentation; else nothing does but what is usual.
        let (known, there) = steps
            .chain(sizes.iter().copied())
            .find(|(known, there)| *known > 0 && *there > 0)
            .or_else(|| {
                sizes.iter().any(|(_, there)| *there > 0).then_some(if ours == ' ' { (4, 1) } else { (1, 4) })
            })?;
        Some(if ours == ' ' { known.div_ceil(there) } else { there.div_ceil(known) })
    }
}

fn columns(indent: &str) -> usize {
    indent.chars().map(|character| if character == '\t' { TAB_COLUMNS } else { 1 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, old: &str, new: &str, rung: Rung, expected: &str) {
        let found = find(text, old, new, true).unwrap_or_else(|| panic!("{old:?} is not found"));
        assert_eq!(found.rung, rung, "{old:?}");
        let mut result = text.to_owned();
        for Patch { range, new } in found.patches.into_iter().rev() {
            result.replace_range(range, &new);
        }
        assert_eq!(result, expected);
    }

    #[test]
    fn typography_is_kept_where_the_model_did_not_change_it() {
        use Rung::{Exact, Typography};
        check("say \"a\" \u{201c}a\u{201d}", "\"a\"", "\"b\"", Exact, "say \"b\" \u{201c}a\u{201d}");
        check(
            "\u{201c}hi\u{201d} it\u{2019}s",
            "\"hi\" it's",
            "\"ho\" it's",
            Typography,
            "\u{201c}ho\u{201d} it\u{2019}s",
        );
        check("10\u{a0}km", "10 km", "12 km far", Typography, "12\u{a0}km far");
        check(
            "a \u{201c}b\u{201d}.",
            "a \"b\"",
            "a \"b\" (\"c\")",
            Typography,
            "a \u{201c}b\u{201d} (\u{201c}c\u{201d}).",
        );
        // The model wrote them curly, the file has them straight.
        check("say \"hi\"\n", "\u{201c}hi\u{201d}", "\u{201c}ho\u{201d}", Typography, "say \"ho\"\n");
        check("\u{e9}\u{2019}\u{e9}\u{2019}x", "'x", "'y", Typography, "\u{e9}\u{2019}\u{e9}\u{2019}y");
    }

    #[test]
    fn white_space_around_lines_does_not_matter_and_stays() {
        use Rung::{Indentation, Trimmed};
        check("a  \nb\t\nc\n", "a\nb\n", "a\nx\n", Trimmed, "a  \nx\nc\n");
        check("a\nb\n", "\na \nb\n\n", "\na\ny\n\n", Trimmed, "a\ny\n");
        check("a\nend", "end\n", "tail\n", Trimmed, "a\ntail");
        check("a\nb \nc\n", "b\n", "", Trimmed, "a\nc\n");
        check(
            "\tif a:\n\t\tb\n",
            "if a:\n    b",
            "if a:\n    c\n    if d:\n        e",
            Indentation,
            "\tif a:\n\t\tc\n\t\tif d:\n\t\t\te\n",
        );
        check("    a\n      b  \n", "a\n  b", "x\n  b", Indentation, "    x\n      b  \n");
        check(
            "  {\n    a\n  }\n",
            "    {\n      a\n    }",
            "    {\n      b\n    }\n  c",
            Indentation,
            "  {\n    b\n  }\nc\n",
        );
        check("  a\n", "\ta", "\ta\n\t\tb", Indentation, "  a\n    b\n");
    }

    #[test]
    fn other_words_or_nesting_are_no_match() {
        for (text, old) in [("abc\n", "b \n"), ("a\n  b\n", "  a\nb"), ("a\nb\n", "a\n  b"), ("x\n", " \n")] {
            assert!(find(text, old, "new", false).is_none(), "{old:?} in {text:?}");
        }
        let found = find("  a\n    a\n", "\ta", "b", false).unwrap();
        assert_eq!((found.rung, found.patches.len()), (Rung::Indentation, 2));
    }

    #[test]
    fn places_that_overlap_are_two_where_one_is_meant() {
        for (text, old, rung) in [
            ("    }\n    }\n    }\n", "    }\n    }\n", Rung::Exact),
            ("\u{201c}\u{201c}\u{201c}", "\"\"", Rung::Typography),
            ("}  \n}  \n}  \n", "}\n}\n", Rung::Trimmed),
            ("  }\n  }\n  }\n", "\t}\n\t}\n", Rung::Indentation),
        ] {
            let places = |all| find(text, old, "x\n", all).map(|found| (found.rung, found.patches.len()));
            assert_eq!(places(false), Some((rung, 2)), "{text:?}");
            assert_eq!(places(true), Some((rung, 1)), "{text:?}");
        }
    }
}
