//! Turns what the searcher finds into lines for the model: bounded in number and width.

use std::{io, path::Path, path::PathBuf, time::SystemTime};

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

/// The answer as it grows.
pub(super) struct Lines {
    mode: Mode,
    numbers: bool,
    skip: u64,
    limit: u64,
    skipped: u64,
    shown: u64,
    full: bool,
    text: String,
    /// Files with matches, for the order by time.
    files: Vec<(SystemTime, PathBuf, String)>,
}

impl Lines {
    pub(super) fn new(mode: Mode, numbers: bool, skip: u64, limit: u64) -> Self {
        Self {
            mode,
            numbers,
            skip,
            limit,
            skipped: 0,
            shown: 0,
            full: false,
            text: String::new(),
            files: Vec::new(),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// No more will be taken. Files are ordered by time, so for them all must be seen first.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn file<'a>(
        &'a mut self,
        name: &'a str,
        matcher: &'a RegexMatcher,
        cancel: &'a CancellationToken,
    ) -> FileSink<'a> {
        FileSink { lines: self, name, matcher, cancel, count: 0, binary_at: None }
    }

    fn push(&mut self, line: &str) {
        if self.skipped < self.skip {
            self.skipped += 1;
        } else if self.shown == self.limit {
            self.full = true;
        } else {
            self.shown += 1;
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    /// The text, how many lines or files it shows, how many were left out first, and whether there are more.
    pub(super) fn finish(mut self) -> (String, u64, u64, bool) {
        let mut files = std::mem::take(&mut self.files);
        if self.mode == Mode::Files {
            files.sort_by(|(a_time, a, _), (b_time, b, _)| b_time.cmp(a_time).then_with(|| a.cmp(b)));
        }
        for (_, _, line) in files {
            self.push(&line);
        }
        (self.text, self.shown, self.skipped, self.full)
    }
}

/// One file of a search.
pub(super) struct FileSink<'a> {
    lines: &'a mut Lines,
    name: &'a str,
    matcher: &'a RegexMatcher,
    cancel: &'a CancellationToken,
    count: u64,
    binary_at: Option<u64>,
}

impl FileSink<'_> {
    /// The file is searched.
    pub(super) fn end(self, path: &Path) {
        if self.count == 0 {
            return;
        }
        let mut line = match self.lines.mode {
            Mode::Files => self.name.to_owned(),
            Mode::Count => format!("{}:{}", self.name, self.count),
            Mode::Content => String::new(),
        };
        if let Some(offset) = self.binary_at {
            let note =
                format!("[binary after byte {offset}; what follows was not searched, set `text` to do so]");
            if self.lines.mode == Mode::Content {
                self.lines.push(&format!("{}: {note}", self.name));
            } else {
                line = format!("{line} {note}");
            }
        }
        if self.lines.mode != Mode::Content {
            let time = std::fs::metadata(path).and_then(|metadata| metadata.modified());
            self.lines.files.push((time.unwrap_or(SystemTime::UNIX_EPOCH), path.to_owned(), line));
        }
    }

    fn line(&mut self, number: Option<u64>, bytes: &[u8], mark: char) {
        let text = self.cut(bytes, mark == ':');
        let line = match number.filter(|_| self.lines.numbers) {
            Some(number) => format!("{}{mark}{number}{mark}{text}", self.name),
            None => format!("{}{mark}{text}", self.name),
        };
        self.lines.push(&line);
    }

    /// A long line as a window around its first match.
    fn cut(&self, bytes: &[u8], is_match: bool) -> String {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() <= MAX_LINE_CHARS {
            return String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}");
        }
        let found = if is_match { self.matcher.find(bytes).ok().flatten() } else { None };
        let at = found.map_or(0, |found| found.start());
        let boundary = |mut place: usize| {
            while place < bytes.len() && bytes[place] & 0xc0 == 0x80 {
                place += 1;
            }
            place.min(bytes.len())
        };
        let start = boundary(at.saturating_sub(MAX_LINE_CHARS / 4));
        let end = boundary((start + MAX_LINE_CHARS).min(bytes.len()));
        let before = if start > 0 { ".." } else { "" };
        let after = if end < bytes.len() { ".." } else { "" };
        let shown = String::from_utf8_lossy(&bytes[start..end]).replace('\0', "\u{fffd}");
        format!("{before}{shown}{after} [bytes {} to {end} of a line of {}]", start + 1, bytes.len())
    }

    fn go_on(&self) -> bool {
        !self.cancel.is_cancelled() && !self.lines.full
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.count += 1;
        match self.lines.mode {
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
        if self.lines.shown > 0 {
            self.lines.text.push_str("--\n");
        }
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, offset: u64) -> Result<bool, io::Error> {
        self.binary_at = Some(offset);
        Ok(true)
    }
}
