//! What the searcher finds in one file, as lines for the model: bounded in number and width.

use std::io;

use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};
use tokio_util::sync::CancellationToken;

/// Characters shown of a longer line, around its match.
const MAX_LINE_CHARS: usize = 400;

/// What the answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Files,
    Content,
    Count,
}

/// A line of an answer.
#[derive(Debug)]
pub(super) enum Line {
    /// What stands after the name of the file.
    Text(String),
    /// Between places that are not next to each other.
    Break,
}

/// One file of a search.
pub(super) struct FileSink<'a> {
    mode: Mode,
    numbers: bool,
    /// No answer needs more lines of one file.
    most: u64,
    matcher: &'a RegexMatcher,
    cancel: &'a CancellationToken,
    pub(super) count: u64,
    pub(super) lines: Vec<Line>,
    /// Of `lines`, those that count in an answer.
    n_texts: u64,
    /// Where a NUL ended the search.
    pub(super) binary_at: Option<u64>,
}

impl<'a> FileSink<'a> {
    pub(super) fn new(
        mode: Mode,
        numbers: bool,
        most: u64,
        matcher: &'a RegexMatcher,
        cancel: &'a CancellationToken,
    ) -> Self {
        Self {
            mode,
            numbers,
            most,
            matcher,
            cancel,
            count: 0,
            lines: Vec::new(),
            n_texts: 0,
            binary_at: None,
        }
    }

    fn line(&mut self, number: Option<u64>, bytes: &[u8], mark: char) {
        let text = self.cut(bytes, mark == ':');
        self.n_texts += 1;
        self.lines.push(Line::Text(match number.filter(|_| self.numbers) {
            Some(number) => format!("{mark}{number}{mark}{text}"),
            None => format!("{mark}{text}"),
        }));
    }

    /// A long line as a window around its first match.
    fn cut(&self, bytes: &[u8], is_match: bool) -> String {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() <= MAX_LINE_CHARS {
            return String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}");
        }
        let found = if is_match { self.matcher.find(bytes).ok().flatten() } else { None };
        let before_match = String::from_utf8_lossy(&bytes[..found.map_or(0, |found| found.start())]);
        let line = String::from_utf8_lossy(bytes);
        let total = line.chars().count();
        let start = before_match.chars().count().saturating_sub(MAX_LINE_CHARS / 4);
        let end = (start + MAX_LINE_CHARS).min(total);
        let shown: String = line.chars().skip(start).take(end - start).collect();
        let shown = shown.replace('\0', "\u{fffd}");
        if end - start == total {
            return shown;
        }
        let before = if start > 0 { ".." } else { "" };
        let after = if end < total { ".." } else { "" };
        format!(
            "{before}{shown}{after} [columns {} to {end} of {total}; Read shows more with `column`]",
            start + 1
        )
    }

    fn go_on(&self) -> bool {
        !self.cancel.is_cancelled() && self.n_texts < self.most
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.count += 1;
        match self.mode {
            Mode::Files => return Ok(false),
            Mode::Count => {}
            Mode::Content => {
                let first = found.line_number();
                for (offset, line) in (0_u64..).zip(found.lines()) {
                    self.line(first.map(|first| first + offset), line, ':');
                }
            }
        }
        Ok(self.go_on())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.line(context.line_number(), context.bytes(), '-');
        Ok(self.go_on())
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        self.lines.push(Line::Break);
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, offset: u64) -> Result<bool, io::Error> {
        self.binary_at = Some(offset);
        Ok(true)
    }
}
