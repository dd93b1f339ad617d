//! The answer of a search as files are found, in any order and from several threads: the same whatever the order
//! was, and no larger than what is shown of it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use super::sink::{FileSink, Line, Mode};
use crate::tools::view::SNIFF_BYTES;

/// Files named that could not be searched to their end.
const MAX_PROBLEMS: usize = 5;

/// What was found so far.
pub(super) struct Answer {
    mode: Mode,
    skip: u64,
    limit: u64,
    /// Lines are kept of files up to a path, when there are enough of them.
    is_bounded: AtomicBool,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    files: BTreeMap<PathBuf, Hit>,
    lines: u64,
    problems: BTreeMap<PathBuf, String>,
}

struct Hit {
    /// As the model knows it.
    name: String,
    lines: Vec<Line>,
    n_lines: u64,
    /// For the order of files.
    time: SystemTime,
}

impl Answer {
    pub(super) fn new(mode: Mode, skip: u64, limit: u64) -> Self {
        Self { mode, skip, limit, is_bounded: AtomicBool::new(false), found: Mutex::default() }
    }

    /// Lines of one file that can be of use: those that are shown, and one that says there are more.
    pub(super) fn most(&self) -> u64 {
        self.skip.saturating_add(self.limit).saturating_add(1)
    }

    /// Whether nothing of this file would be shown.
    pub(super) fn is_past(&self, path: &Path) -> bool {
        self.is_bounded.load(Ordering::Relaxed) && {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.files.last_key_value().is_some_and(|(last, _)| last.as_path() < path)
        }
    }

    pub(super) fn problem(&self, path: &Path, problem: String) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.problems.insert(path.to_owned(), problem);
    }

    /// A file was searched. `name` is how the model knows it, `is_asked_for` whether it was named itself.
    pub(super) fn take(
        &self,
        path: &Path,
        name: impl FnOnce() -> String,
        sink: FileSink<'_>,
        is_asked_for: bool,
    ) {
        let binary = sink
            .binary_at
            .map(|at| format!("binary after byte {at}; what follows was not searched, set `text` to do so"));
        if sink.count == 0 {
            // A file that is binary from its beginning is left out in silence where others are searched.
            let is_told = is_asked_for || sink.binary_at.is_some_and(|at| at >= SNIFF_BYTES as u64);
            if let Some(binary) = binary.filter(|_| is_told) {
                self.problem(path, format!("{}: {binary}", name()));
            }
            return;
        }
        let binary = binary.map(|binary| format!("[{binary}]"));
        let mut lines = sink.lines;
        let mut time = SystemTime::UNIX_EPOCH;
        match self.mode {
            Mode::Content => lines.extend(binary.map(|binary| Line::Text(format!(": {binary}")))),
            Mode::Count | Mode::Files => {
                let count = if self.mode == Mode::Count { format!(":{}", sink.count) } else { String::new() };
                let binary = binary.map_or_else(String::new, |binary| format!(" {binary}"));
                lines = vec![Line::Text(format!("{count}{binary}"))];
                time =
                    std::fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(time);
            }
        }
        let n_lines = lines.iter().filter(|line| matches!(line, Line::Text(_))).count() as u64;
        let hit = Hit { name: name(), lines, n_lines, time };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.lines += n_lines;
        found.files.insert(path.to_owned(), hit);
        // Files are ordered by time, so all of them must be seen.
        while self.mode != Mode::Files
            && let Some(last) = found.files.last_entry()
            && let n_last = last.get().n_lines
            && found.lines - n_last >= self.most()
        {
            found.files.pop_last();
            found.lines -= n_last;
        }
        if self.mode != Mode::Files && found.lines >= self.most() {
            self.is_bounded.store(true, Ordering::Relaxed);
        }
    }

    /// The text. `pattern` is what was looked for.
    pub(super) fn finish(self, pattern: &str) -> String {
        let unit = match self.mode {
            Mode::Content => "lines",
            Mode::Files | Mode::Count => "files",
        };
        let Found { files, problems, .. } = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<(PathBuf, Hit)> = files.into_iter().collect();
        if self.mode == Mode::Files {
            files.sort_by(|(a, a_hit), (b, b_hit)| b_hit.time.cmp(&a_hit.time).then_with(|| a.cmp(b)));
        }
        let mut answer = String::new();
        let (mut skipped, mut shown) = (0, 0);
        let mut has_more = false;
        'files: for (_, hit) in &files {
            for line in &hit.lines {
                match line {
                    Line::Text(_) if skipped < self.skip => skipped += 1,
                    Line::Text(_) if shown == self.limit => {
                        has_more = true;
                        break 'files;
                    }
                    Line::Text(text) => {
                        shown += 1;
                        let _ = writeln!(answer, "{}{text}", hit.name);
                    }
                    Line::Break if shown > 0 => answer.push_str("--\n"),
                    Line::Break => {}
                }
            }
        }
        if shown == 0 {
            answer = if skipped > 0 {
                format!("There are only {skipped} {unit}; offset {} is past them.", self.skip)
            } else {
                format!("No match for `{pattern}`.")
            };
        } else if has_more {
            let next = skipped + shown;
            let _ = write!(
                answer,
                "[{shown} {unit} shown; there are more: go on with offset {next}, or narrow the search]"
            );
        }
        for problem in problems.values().take(MAX_PROBLEMS) {
            let _ = write!(answer, "\n[{problem}]");
        }
        if problems.len() > MAX_PROBLEMS {
            let _ = write!(answer, "\n[and {} more files like that]", problems.len() - MAX_PROBLEMS);
        }
        answer
    }
}
