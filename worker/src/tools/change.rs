//! A change of a file that was read: checked against what is on the disk now, written so that nothing else of
//! the file changes. What Edit and NotebookEdit share.

use std::{fmt::Write as _, ops::Range, path::PathBuf};

use query_engine::ports::ToolOutput;
use swarm_protocol::{ToolUseId, record::ToolEffect};
use tokio_util::sync::CancellationToken;

use super::{
    Files, diff,
    disk::{self, Basis, Unreadable},
    view::{Patch, TextView},
};

/// Lines around a match that must be unchanged for a change of a file that changed elsewhere.
const CONTEXT_LINES: usize = 3;
/// Lines of a diff for the model.
const DIFF_LINES: usize = 40;
/// Places of a change that are shown.
const SHOWN_PLACES: usize = 4;
/// Lines shown of one place.
const SHOWN_LINES: usize = 40;
/// Characters shown of a line.
const SHOWN_CHARS: usize = 300;

/// A file as it is before the change.
pub(super) struct Draft<'a> {
    files: &'a Files,
    given: &'a str,
    path: PathBuf,
    bytes: Vec<u8>,
    view: TextView,
    since_read: SinceRead,
}

/// What became of a file since it was read.
enum SinceRead {
    Same,
    /// How it was is known.
    Changed(TextView),
    /// How it was is not kept.
    Unknown,
}

impl<'a> Draft<'a> {
    /// Takes the file up for a call that passed the gate.
    pub(super) fn open(files: &'a Files, call: &ToolUseId, given: &'a str) -> Result<Self, String> {
        Self::of(files, files.real_path(call, given)?, given)
    }

    /// Takes the file up to look at what a call would do.
    pub(super) fn look(files: &'a Files, given: &'a str) -> Result<Self, String> {
        Self::of(files, disk::real_path(&files.path(given)), given)
    }

    fn of(files: &'a Files, path: PathBuf, given: &'a str) -> Result<Self, String> {
        if !(files.visible)(&path) {
            return Err(Unreadable::Missing.sentence(given));
        }
        let bytes = disk::read_whole(&path).map_err(|problem| problem.sentence(given))?;
        let Some(view) = TextView::new(&bytes) else {
            return Err(format!(
                "{given} is not text, so it is not changed. Change it with a program in Bash."
            ));
        };
        let Some(seen) = files.memory.seen(&path) else {
            return Err(format!("{given} has not been read yet. Read it before you edit it."));
        };
        let since_read = if seen.is(&bytes) {
            SinceRead::Same
        } else {
            seen.bytes.as_deref().and_then(TextView::new).map_or(SinceRead::Unknown, SinceRead::Changed)
        };
        Ok(Self { files, given, path, bytes, view, since_read })
    }

    pub(super) fn view(&self) -> &TextView {
        &self.view
    }

    /// That the file changed, with the difference; none when it did not.
    pub(super) fn changed(&self) -> Option<String> {
        match &self.since_read {
            SinceRead::Same => None,
            SinceRead::Unknown => Some("it was changed on disk since you read it.\n".to_owned()),
            SinceRead::Changed(before) => {
                let diff = diff::short_diff(before.text(), self.view.text(), DIFF_LINES);
                Some(format!("it was changed on disk since you read it:\n{diff}"))
            }
        }
    }

    /// Refuses to change what was changed since it was read; a note when that was elsewhere.
    pub(super) fn check(&self, targets: &[Range<usize>]) -> Result<Option<String>, String> {
        let Some(changed) = self.changed() else { return Ok(None) };
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', self.view.text().as_bytes()).collect();
        let line_of = |place: usize| ends.partition_point(|end| *end < place);
        let lines = |place: &Range<usize>| {
            let last_place = place.end.saturating_sub(1).max(place.start);
            line_of(place.start).saturating_sub(CONTEXT_LINES)..line_of(last_place) + 1 + CONTEXT_LINES
        };
        let is_elsewhere = match &self.since_read {
            SinceRead::Changed(before) => {
                let hunks = diff::hunks(before.text(), self.view.text());
                targets.iter().map(lines).all(|target| {
                    hunks.iter().all(|hunk| match hunk.now.is_empty() {
                        // Where lines went away: it touches the lines on both sides.
                        true => hunk.now.start < target.start || hunk.now.start > target.end,
                        false => hunk.now.end <= target.start || hunk.now.start >= target.end,
                    })
                })
            }
            SinceRead::Same | SinceRead::Unknown => false,
        };
        if is_elsewhere {
            Ok(Some(format!("In another place {changed}")))
        } else {
            Err(format!("{} is left as it is: {changed}Read it again before you edit it.", self.given))
        }
    }

    /// Writes the file with these pieces changed, which are in order and do not overlap, and shows them.
    pub(super) fn write(
        self,
        patches: &[Patch],
        notes: &[String],
        cancel: &CancellationToken,
    ) -> Result<ToolOutput, String> {
        let mut answer = match patches.len() {
            1 => format!("{} was edited. Around the change:\n", self.given),
            many => format!("{} was edited in {many} places.\n", self.given),
        };
        if patches.len() <= SHOWN_PLACES {
            show(&mut answer, &patched_text(self.view.text(), patches), patches);
        }
        self.write_saying(patches, notes, &answer, cancel)
    }

    /// The same, with these words as the answer.
    pub(super) fn write_saying(
        self,
        patches: &[Patch],
        notes: &[String],
        words: &str,
        cancel: &CancellationToken,
    ) -> Result<ToolOutput, String> {
        let Self { files, given, path, bytes, view, .. } = self;
        let result = view.patched(patches).map_err(|problem| {
            format!("{given} is left as it is: {problem}. Write it otherwise, or convert the file with iconv first.")
        })?;
        let basis = Basis { former: Some(&bytes), cancel };
        disk::write_whole(&path, &result, basis)
            .map_err(|error| format!("{given} cannot be written: {error}."))?;
        let seen = files.memory.note(&path, &result);
        files.touch(&path);
        let now = patched_text(view.text(), patches);
        let (added, removed) = diff::line_counts(view.text(), &now);
        let mut answer = words.to_owned();
        for note in notes {
            let _ = write!(answer, "\n{note}");
        }
        let effect = ToolEffect::Edited { path: path.to_string_lossy().into_owned(), added, removed };
        Ok(ToolOutput::text(answer).with_effect(effect).with_seen(seen))
    }
}

fn patched_text(text: &str, patches: &[Patch]) -> String {
    let mut now = String::with_capacity(text.len());
    let mut copied = 0;
    for Patch { range, new } in patches {
        now.push_str(&text[copied..range.start]);
        now.push_str(new);
        copied = range.end;
    }
    now.push_str(&text[copied..]);
    now
}

/// The lines around each change, as they are now.
fn show(answer: &mut String, now: &str, patches: &[Patch]) {
    let lines: Vec<&str> = now.split('\n').collect();
    let line_of = |place: usize| memchr::memchr_iter(b'\n', &now.as_bytes()[..place]).count();
    let mut moved = 0_isize;
    let mut shown_to = 0;
    for Patch { range, new } in patches {
        let start = range.start.saturating_add_signed(moved);
        moved += new.len() as isize - range.len() as isize;
        let changed = new.strip_suffix('\n').unwrap_or(new);
        let first = line_of(start).saturating_sub(CONTEXT_LINES).max(shown_to);
        let end = (line_of(start + changed.len()) + 1 + CONTEXT_LINES).min(lines.len());
        if shown_to > 0 && first > shown_to {
            answer.push_str("   ...\n");
        }
        for (index, line) in lines.iter().enumerate().take(end.min(first + SHOWN_LINES)).skip(first) {
            if index + 1 == lines.len() && line.is_empty() {
                continue;
            }
            let line: String = line.chars().take(SHOWN_CHARS).collect();
            let _ = writeln!(answer, "{:>6}\t{line}", index + 1);
        }
        shown_to = end;
    }
}
