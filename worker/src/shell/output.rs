//! Collects what a command prints: bounded in memory, whole on disk, readable for a model.

use super::decode::{StreamDecoder, decode};
use super::screen::Screen;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// How much of a command's output is kept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLimits {
    /// Text longer than this is cut to a tenth of it from each end (spec 3.2).
    pub text_chars: usize,
    /// Output on disk per command; what comes after is read and dropped.
    pub spill_bytes: u64,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { text_chars: 30_000, spill_bytes: 256 * 1024 * 1024 }
    }
}

/// What a command printed, both streams in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// For the model: decoded, without terminal control, cut to the budget.
    pub text: String,
    /// Raw bytes in all.
    pub total_bytes: u64,
    /// Text is missing from `text`.
    pub is_cut: bool,
    /// All raw bytes, when `text` does not hold them as they were.
    pub spill: Option<PathBuf>,
}

/// Raw bytes kept from each end; four bytes a character of the default budget, twice over.
const KEPT_BYTES: usize = 256 * 1024;
/// Characters of the live view.
const LIVE_CHARS: usize = 2_000;

/// Everything raw goes to a file once the head is full, or from the start.
#[derive(Debug)]
pub(super) struct Collector {
    limits: OutputLimits,
    /// Raw bytes kept in memory from each end.
    kept: usize,
    path: PathBuf,
    file: Option<File>,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// Bytes in the file; less than `total` when the cap was met or the disk is full.
    written: u64,
    disk_failed: bool,
    live: Live,
}

impl Collector {
    /// Nothing is created before it is needed.
    pub(super) fn new(path: PathBuf, limits: OutputLimits) -> Self {
        Self {
            limits,
            kept: KEPT_BYTES,
            path,
            file: None,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
            written: 0,
            disk_failed: false,
            live: Live::default(),
        }
    }

    /// For jobs, whose output is read from the file while they run.
    pub(super) fn on_disk(path: PathBuf, limits: OutputLimits) -> io::Result<Self> {
        let mut collector = Self::new(path, limits);
        collector.kept = 0;
        collector.file = Some(create(&collector.path)?);
        Ok(collector)
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.live.push(bytes);
        if self.file.is_none() && self.head.len() + bytes.len() > self.kept {
            self.spill();
        }
        self.write(bytes);
        let room = self.kept - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let excess = self.tail.len().saturating_sub(self.kept);
        self.tail.drain(..excess);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The last lines as they look now.
    pub(super) fn live_text(&self) -> String {
        self.live.text()
    }

    pub(super) fn finish(&mut self) -> CapturedOutput {
        let gap = self.total > (self.head.len() + self.tail.len()) as u64;
        let budget = self.limits.text_chars;
        let tail = self.tail.make_contiguous();
        let (text, is_cut) = if gap {
            let part = budget / 10;
            let head = first_chars(&readable(&self.head), part).to_owned();
            // The first character of the tail may be cut.
            let start = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80);
            let tail = last_chars(&readable(&tail[start.count()..]), part).to_owned();
            (Some((head, tail)), true)
        } else {
            self.head.extend_from_slice(tail);
            let text = readable(&self.head);
            if text.chars().count() <= budget {
                let same = text.as_bytes() == self.head;
                if !same {
                    self.spill();
                }
                return CapturedOutput {
                    text,
                    total_bytes: self.total,
                    is_cut: false,
                    spill: (!same).then(|| self.spilled()).flatten(),
                };
            }
            let part = budget / 10;
            (Some((first_chars(&text, part).to_owned(), last_chars(&text, part).to_owned())), true)
        };
        self.spill();
        let (head, tail) = text.unwrap_or_default();
        CapturedOutput {
            text: format!("{head}\n{}\n{tail}", self.cut_note()),
            total_bytes: self.total,
            is_cut,
            spill: self.spilled(),
        }
    }

    fn cut_note(&self) -> String {
        let total = self.total;
        match self.spilled() {
            Some(path) if self.written == total => {
                format!("[... cut: {total} bytes in all, whole in {} ...]", path.display())
            }
            Some(path) => format!(
                "[... cut: {total} bytes in all, the first {} of them in {} ...]",
                self.written,
                path.display()
            ),
            None => format!("[... cut: {total} bytes in all, not kept: the disk refused them ...]"),
        }
    }

    fn spilled(&self) -> Option<PathBuf> {
        self.file.is_some().then(|| self.path.clone())
    }

    /// Moves what is in memory to the file. A disk that refuses costs the file, never the command.
    fn spill(&mut self) {
        if self.file.is_some() || self.disk_failed {
            return;
        }
        match create(&self.path) {
            Ok(file) => {
                self.file = Some(file);
                let head = std::mem::take(&mut self.head);
                self.write(&head);
                self.head = head;
            }
            Err(error) => {
                self.disk_failed = true;
                tracing::warn!(path = %self.path.display(), %error, "output cannot be kept");
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else {
            return;
        };
        if self.disk_failed {
            return;
        }
        let room =
            usize::try_from(self.limits.spill_bytes.saturating_sub(self.written)).unwrap_or(usize::MAX);
        let bytes = &bytes[..room.min(bytes.len())];
        match file.write_all(bytes) {
            Ok(()) => self.written += bytes.len() as u64,
            Err(error) => {
                self.disk_failed = true;
                tracing::warn!(path = %self.path.display(), %error, "output is kept in part only");
            }
        }
    }
}

/// A file for raw output, readable by its owner alone.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Bytes as a person would have read them.
pub(super) fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut screen = Screen::new();
    screen.push(&decode(bytes), &mut text);
    screen.finish(&mut text);
    text
}

/// Bytes of a word that is left out when it is cut: half a key has not the form of one.
const CUT_WORD: usize = 512;

fn first_chars(text: &str, count: usize) -> &str {
    let end = text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    let (first, rest) = text.split_at(end);
    let whole = first.trim_end_matches(is_in_word);
    if rest.starts_with(is_in_word) && first.len() - whole.len() <= CUT_WORD { whole } else { first }
}

fn last_chars(text: &str, count: usize) -> &str {
    let skip = text.chars().count().saturating_sub(count);
    let start = text.char_indices().nth(skip).map_or(text.len(), |(at, _)| at);
    let (rest, last) = text.split_at(start);
    let whole = last.trim_start_matches(is_in_word);
    if rest.ends_with(is_in_word) && last.len() - whole.len() <= CUT_WORD { whole } else { last }
}

fn is_in_word(char: char) -> bool {
    char.is_ascii_graphic()
}

/// The live view of the last lines.
#[derive(Debug)]
struct Live {
    decoder: StreamDecoder,
    screen: Screen,
    done: String,
}

impl Default for Live {
    fn default() -> Self {
        Self { decoder: StreamDecoder::default(), screen: Screen::new(), done: String::new() }
    }
}

impl Live {
    fn push(&mut self, bytes: &[u8]) {
        let text = self.decoder.push(bytes);
        self.screen.push(&text, &mut self.done);
        if self.done.len() > LIVE_CHARS * 8 {
            self.done = last_chars(&self.done, LIVE_CHARS).to_owned();
        }
    }

    fn text(&self) -> String {
        last_chars(&(self.done.clone() + &self.screen.open_line()), LIVE_CHARS).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(chunks: &[&[u8]], limits: OutputLimits) -> (CapturedOutput, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut collector = Collector::new(dir.path().join("out"), limits);
        for chunk in chunks {
            collector.push(chunk);
        }
        (collector.finish(), dir)
    }

    #[test]
    fn short_plain_output_leaves_no_file() {
        let (output, dir) = collect(&[b"he", b"llo\n"], OutputLimits::default());
        assert_eq!(output.text, "hello\n");
        assert_eq!(output.spill, None);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn changed_output_is_kept_raw() {
        let (output, _dir) = collect(&[b"1%\r2%\n\xff"], OutputLimits::default());
        let raw = std::fs::read(output.spill.unwrap()).unwrap();
        assert_eq!(raw, b"1%\r2%\n\xff");
    }

    #[test]
    fn long_output_keeps_both_ends_and_all_on_disk() {
        let limits = OutputLimits { text_chars: 100, spill_bytes: u64::MAX };
        let chunk = [b'x'; 7919];
        let mut chunks: Vec<&[u8]> = vec![b"first\n"];
        chunks.extend(std::iter::repeat_n(&chunk[..], 100));
        chunks.push(b"\nlast");
        let (output, _dir) = collect(&chunks, limits);
        assert!(output.is_cut);
        assert!(output.text.starts_with("first\n"), "{}", output.text);
        assert!(output.text.ends_with("\nlast"), "{}", output.text);
        assert!(output.text.contains("791911 bytes in all"), "{}", output.text);
        let size = std::fs::metadata(output.spill.unwrap()).unwrap().len();
        assert_eq!(size, output.total_bytes);
    }

    #[test]
    fn the_disk_cap_holds() {
        let limits = OutputLimits { text_chars: 100, spill_bytes: 300_000 };
        let chunk = [b'y'; 100_000];
        let (output, _dir) = collect(&[&chunk[..]; 8], limits);
        let size = std::fs::metadata(output.spill.unwrap()).unwrap().len();
        assert_eq!(size, 300_000);
        assert!(output.text.contains("the first 300000 of them"));
    }
}
