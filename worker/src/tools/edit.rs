//! Edit: replace an exact piece of a file. What the model did not name keeps its bytes: line ends, byte
//! order mark, mode, links.

use std::{fmt::Write as _, ops::Range, path::Path, sync::Arc};

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{ToolUseId, record::ToolEffect};

use super::{
    Files, blocking, lenient_bool, parse,
    text::{self, TextView, Unreadable},
};

mod near;

/// Line numbers named when a text stands there more than once.
const MAX_NAMED_LINES: usize = 10;
/// Lines around a match that must be unchanged for an edit of a file that changed elsewhere.
const CONTEXT_LINES: usize = 3;

/// The tool.
pub struct Edit {
    files: Arc<Files>,
}

impl Edit {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default, deserialize_with = "lenient_bool")]
    replace_all: bool,
}

#[async_trait]
impl Tool for Edit {
    fn name(&self) -> &str {
        "Edit"
    }

    fn description(&self) -> String {
        "Replaces `old_string` by `new_string` in a file that was read before. `old_string` must match exactly \
         (indentation included, line numbers of Read left out) and stand there once, unless `replace_all` is \
         true. Line ends, encoding and mode of the file are kept."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "old_string": {"type": "string"},
                "new_string": {"type": "string"},
                "replace_all": {"type": "boolean", "description": "Replace every occurrence"}
            },
            "required": ["file_path", "old_string", "new_string"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        self.files.path_of(input).map(Subject::Write).into_iter().collect()
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Edit", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("Edit", move || edit(&files, &input, &context.tool_use_id).unwrap_or_else(ToolOutput::error))
            .await
    }
}

fn edit(files: &Files, input: &Input, call: &ToolUseId) -> Result<ToolOutput, String> {
    let given = &input.file_path;
    if input.old_string.is_empty() {
        return Err("old_string is empty. To make or overwrite a file use Write.".to_owned());
    }
    let path = files.real_path(call, given)?;
    if !(files.visible)(&path) {
        return Err(Unreadable::Missing.sentence(given));
    }
    let bytes = text::read_whole(&path).map_err(|problem| problem.sentence(given))?;
    let Some(view) = TextView::new(&bytes) else {
        return Err(format!(
            "{given} is not UTF-8, so it is not changed. Convert it with iconv in Bash first."
        ));
    };
    let old = text::plain_line_ends(&input.old_string);
    let new = text::plain_line_ends(&input.new_string);
    if old == new {
        return Err("old_string and new_string are equal; nothing would change.".to_owned());
    }
    let found: Vec<Range<usize>> =
        view.text().match_indices(old.as_str()).map(|(at, piece)| at..at + piece.len()).collect();
    let changed = check_still_as_read(files, &path, given, &bytes, &view, &old, &found)?;
    if found.is_empty() {
        return Err(format!("old_string was not found in {given}.{}", near::hint(view.text(), &old)));
    }
    if found.len() > 1 && !input.replace_all {
        let lines: Vec<String> =
            found.iter().take(MAX_NAMED_LINES).map(|range| view.line_of(range.start).to_string()).collect();
        let more = if found.len() > MAX_NAMED_LINES { ", .." } else { "" };
        return Err(format!(
            "old_string stands {} times in {given}, at lines {}{more}. Add lines around it until it is unique, or set replace_all.",
            found.len(),
            lines.join(", ")
        ));
    }
    let result = replace(&bytes, &view, &found, &new);
    text::write_whole(&path, &result).map_err(|error| format!("{given} cannot be written: {error}."))?;
    let seen = files.memory.note(&path, &result);
    files.touch(&path);
    Ok(answer(given, &path, &view, &found, &result, changed).with_seen(seen))
}

/// The new bytes. A line break that is put in takes the style of those it replaces, else the file's.
fn replace(bytes: &[u8], view: &TextView, found: &[Range<usize>], new: &str) -> Vec<u8> {
    let crlf = text::crlf_line_ends(new);
    let mut result = Vec::with_capacity(bytes.len() + found.len() * new.len());
    let mut copied = 0;
    for range in found {
        let place = view.in_bytes(range);
        let replaced = &bytes[place.clone()];
        let breaks = replaced.iter().filter(|byte| **byte == b'\n').count();
        let crlf_breaks = replaced.windows(2).filter(|pair| pair == b"\r\n").count();
        let use_crlf = if breaks > 0 { 2 * crlf_breaks > breaks } else { view.is_crlf() };
        result.extend_from_slice(&bytes[copied..place.start]);
        result.extend_from_slice(if use_crlf { crlf.as_bytes() } else { new.as_bytes() });
        copied = place.end;
    }
    result.extend_from_slice(&bytes[copied..]);
    result
}

/// A note when the file changed elsewhere; a refusal when it was not read, or changed where the edit goes.
fn check_still_as_read(
    files: &Files,
    path: &Path,
    given: &str,
    bytes: &[u8],
    view: &TextView,
    old: &str,
    found: &[Range<usize>],
) -> Result<Option<String>, String> {
    let Some(seen) = files.memory.seen(path) else {
        return Err(format!("{given} has not been read yet. Read it before you edit it."));
    };
    if seen.is(bytes) {
        return Ok(None);
    }
    let again = "Read it again before you edit it.";
    let Some(before) = seen.bytes.as_deref().and_then(TextView::new) else {
        return Err(format!("{given} was changed on disk since you read it. {again}"));
    };
    let diff = text::short_diff(before.text(), view.text(), 20);
    let around = |view: &TextView, at: &Range<usize>| {
        let lines: Vec<&str> = view.text().split('\n').collect();
        let first = view.line_of(at.start).saturating_sub(1 + CONTEXT_LINES);
        let last = (view.line_of(at.end) + CONTEXT_LINES).min(lines.len());
        lines[first..last].join("\n")
    };
    let before_found: Vec<Range<usize>> =
        before.text().match_indices(old).map(|(at, piece)| at..at + piece.len()).collect();
    let is_elsewhere = !found.is_empty()
        && found.len() == before_found.len()
        && found.iter().zip(&before_found).all(|(now, then)| around(view, now) == around(&before, then));
    if is_elsewhere {
        Ok(Some(format!("The file was changed on disk since you read it, in another place:\n{diff}")))
    } else {
        Err(format!("{given} was changed on disk since you read it:\n{diff}{again}"))
    }
}

fn answer(
    given: &str,
    path: &Path,
    before: &TextView,
    found: &[Range<usize>],
    result: &[u8],
    changed: Option<String>,
) -> ToolOutput {
    let now = TextView::new(result);
    let now_text = now.as_ref().map_or("", TextView::text);
    let (added, removed) = text::line_counts(before.text(), now_text);
    let mut answer = match found {
        [only] => {
            let first = before.line_of(only.start);
            let mut answer = format!("{given} was edited. Around the change:\n");
            let span = text::changed_region(before.text(), now_text).map_or(1, |change| change.now.len());
            let from = first.saturating_sub(CONTEXT_LINES).max(1);
            let shown =
                now_text.split('\n').enumerate().skip(from - 1).take(span.min(40) + 2 * CONTEXT_LINES);
            for (index, line) in shown {
                let line: String = line.chars().take(300).collect();
                let _ = writeln!(answer, "{:>6}\t{line}", index + 1);
            }
            answer
        }
        many => format!("{given} was edited in {} places.", many.len()),
    };
    if let Some(changed) = changed {
        let _ = write!(answer, "\n{changed}");
    }
    let path = path.to_string_lossy().into_owned();
    ToolOutput::text(answer).with_effect(ToolEffect::Edited { path, added, removed })
}
