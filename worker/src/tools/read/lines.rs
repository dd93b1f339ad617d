//! A page of a text file: lines with their numbers, long ones by columns.

use std::fmt::Write as _;

use query_engine::ports::ToolOutput;

use super::{Input, MAX_ANSWER_BYTES};
use crate::tools::view::TextView;

/// Lines of one answer.
const DEFAULT_LIMIT: u64 = 2_000;
/// Characters of one line, and of a line that is asked for alone.
const MAX_LINE_CHARS: usize = 2_000;
const MAX_ONE_LINE_CHARS: usize = 20_000;

pub(super) fn page(view: &TextView, input: &Input) -> ToolOutput {
    let text = view.text();
    if text.is_empty() {
        return ToolOutput::text("(the file is empty)");
    }
    let first = input.offset.unwrap_or(1).max(1);
    let limit = input.limit.unwrap_or(DEFAULT_LIMIT).max(1);
    let skip = usize::try_from(input.column.unwrap_or(1).max(1) - 1).unwrap_or(usize::MAX);
    let width = if limit == 1 { MAX_ONE_LINE_CHARS } else { MAX_LINE_CHARS };
    let total = text.lines().count() as u64;
    if first > total {
        return ToolOutput::error(format!("The file has {total} lines; offset {first} is past its end."));
    }
    let mut answer = String::new();
    let mut last = first - 1;
    let begin = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let count = usize::try_from(limit).unwrap_or(usize::MAX);
    for (number, line) in (first..).zip(text.lines().skip(begin).take(count)) {
        if answer.len() > MAX_ANSWER_BYTES {
            break;
        }
        last = number;
        let _ = write!(answer, "{number:>6}\t");
        part(&mut answer, line, number, skip, width);
        answer.push('\n');
    }
    if last < total {
        let _ = write!(answer, "\n[lines {first} to {last} of {total}; go on with offset {}]", last + 1);
    }
    if let Some(encoding) = view.encoding() {
        let _ = write!(answer, "\n[the file is {encoding}]");
    }
    if answer.contains('\0') {
        answer = answer.replace('\0', "\u{2400}");
        answer.push_str("\n[\u{2400} stands for a NUL byte]");
    }
    ToolOutput::text(answer)
}

/// The characters of a line that are asked for, and how to get the others.
fn part(answer: &mut String, line: &str, number: u64, skip: usize, width: usize) {
    // Most lines are shown whole, and need not be counted.
    if skip == 0 && line.len() <= width {
        answer.push_str(line);
        return;
    }
    let at = |count: usize| line.char_indices().nth(count).map_or(line.len(), |(place, _)| place);
    let (start, end) = (at(skip), at(skip.saturating_add(width)));
    answer.push_str(&line[start..end]);
    let length = line.chars().count();
    if end < line.len() {
        let next = skip + width + 1;
        let _ = write!(
            answer,
            " [line {number} has {length} characters, {} to {} are shown; go on with offset {number}, limit 1, column {next}]",
            skip + 1,
            next - 1,
        );
    } else if skip > 0 {
        let _ = write!(answer, " [line {number} ends here, it has {length} characters]");
    }
}
