//! What the model may have meant when its text is not in the file: a hint, never an edit.

use std::fmt::Write as _;

/// Lines shown of the file at the near place.
const SHOWN_LINES: usize = 8;
/// Lines compared at most.
const MAX_LINES: usize = 200_000;

/// A sentence to append, or a general one when nothing is near.
pub(super) fn hint(text: &str, old: &str) -> String {
    let wanted: Vec<&str> = old.lines().filter(|line| !line.trim().is_empty()).collect();
    let Some(first) = wanted.first() else {
        return " It holds only white space; name a line with words in it.".to_owned();
    };
    let key = simplified(first);
    let lines: Vec<&str> = text.lines().take(MAX_LINES).collect();
    let alike: Vec<usize> =
        lines.iter().enumerate().filter(|(_, line)| simplified(line) == key).map(|(at, _)| at).collect();
    // Of several lines alike, the one after which most of the wanted lines follow.
    let follows = |at: usize| {
        let rest = lines[at..].iter().filter(|line| !line.trim().is_empty());
        rest.zip(&wanted).take_while(|(line, wanted)| simplified(line) == simplified(wanted)).count()
    };
    if let Some(at) = alike.iter().copied().max_by_key(|at| (follows(*at), usize::MAX - at)) {
        let n_same = follows(at);
        let line = lines[at];
        let mut hint = String::new();
        if n_same == wanted.len() {
            let _ = write!(
                hint,
                " Line {} and what follows differ from it only in white space, quotes or punctuation",
                at + 1
            );
        } else {
            let _ = write!(hint, " Line {} begins like it; after {n_same} equal lines they differ", at + 1);
        }
        if let Some((theirs, ours)) = line.chars().zip(first.chars()).find(|(a, b)| a != b)
            && !(theirs.is_ascii() && ours.is_ascii())
        {
            let _ = write!(
                hint,
                " (the file has U+{:04X} where old_string has U+{:04X})",
                theirs as u32, ours as u32
            );
        }
        hint.push_str(". The file has:\n");
        show(&mut hint, &lines, at, wanted.len().clamp(1, SHOWN_LINES));
        return hint;
    }
    match nearest(&lines, &key) {
        Some(at) => {
            let mut hint = format!(" The most similar line is {}:\n", at + 1);
            show(&mut hint, &lines, at, 1);
            hint
        }
        None => " Nothing like it stands there; read the file again.".to_owned(),
    }
}

fn show(hint: &mut String, lines: &[&str], at: usize, count: usize) {
    for (index, line) in lines.iter().enumerate().skip(at).take(count) {
        let line: String = line.chars().take(300).collect();
        let _ = writeln!(hint, "{:>6}\t{line}", index + 1);
    }
}

/// Without what editors and typographers change: runs of white space, quotes, dashes.
fn simplified(line: &str) -> String {
    let mut key = String::new();
    for word in line.split(|character: char| character.is_whitespace()).filter(|word| !word.is_empty()) {
        if !key.is_empty() {
            key.push(' ');
        }
        key.extend(word.chars().map(|character| match character {
            '\u{2018}' | '\u{2019}' | '\u{201a}' => '\'',
            '\u{201c}' | '\u{201d}' | '\u{201e}' => '"',
            '\u{2013}' | '\u{2014}' | '\u{2212}' => '-',
            '\u{ff08}' => '(',
            '\u{ff09}' => ')',
            '\u{ff0c}' => ',',
            '\u{ff1a}' => ':',
            '\u{ff1b}' => ';',
            other => other,
        }));
    }
    key
}

/// The line that shares the largest part of its words with the wanted one, if that is at least a half.
fn nearest(lines: &[&str], key: &str) -> Option<usize> {
    let words = |text: &str| {
        text.split(|character: char| !(character.is_alphanumeric() || character == '_'))
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect::<std::collections::HashSet<_>>()
    };
    let wanted = words(key);
    if wanted.is_empty() {
        return None;
    }
    let score = |line: &str| {
        let there = words(line);
        let common = there.intersection(&wanted).count();
        (2 * common * 1_000) / (there.len() + wanted.len()).max(1)
    };
    let (at, best) = lines
        .iter()
        .map(|line| score(line))
        .enumerate()
        .max_by_key(|(at, score)| (*score, usize::MAX - at))?;
    (best >= 500).then_some(at)
}
