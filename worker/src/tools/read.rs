//! Read: a part of a text file with line numbers, a picture, pages of a PDF, cells of a notebook.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Files,
    disk::{self, Unreadable},
    failed_inside, lenient_number, parse,
    view::TextView,
};
use crate::convert::Converter;

mod cells;
mod image;
mod lines;
mod pages;

#[cfg(test)]
pub(super) use image::tests::drawn;

/// Bytes of one answer's text: no later step cuts what Read gives, it pages instead.
const MAX_ANSWER_BYTES: usize = 100_000;

/// The tool.
pub struct Read {
    files: Arc<Files>,
    converter: Converter,
}

impl Read {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files, converter: Converter::default() }
    }
}

/// What a file holds for a model.
enum Held {
    Answer(ToolOutput),
    /// To be converted, which takes a while.
    Pdf(Vec<u8>),
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    #[serde(default, deserialize_with = "lenient_number")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "lenient_number")]
    limit: Option<u64>,
    #[serde(default, deserialize_with = "lenient_number")]
    column: Option<u64>,
    #[serde(default)]
    pages: Option<Value>,
}

#[async_trait]
impl Tool for Read {
    fn name(&self) -> &str {
        "Read"
    }

    fn description(&self) -> String {
        "Reads a text file with line numbers (`number<tab>line`), shows an image (PNG, JPEG, GIF, WebP), gives the \
         text of a PDF by page, or the cells of a notebook with their outputs. Of a text it gives 2,000 lines from \
         the start unless `offset` and `limit` say otherwise; longer lines are cut, and `column` goes on in them. \
         Read a file before you edit or overwrite it."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string", "description": "Path, absolute or from the working directory's root"},
                "offset": {"type": "integer", "description": "First line, from 1 (of a notebook: first cell)"},
                "limit": {"type": "integer", "description": "How many lines (cells)"},
                "column": {"type": "integer", "description": "First character of each line, from 1, to go on in lines that were cut"},
                "pages": {"type": "string", "description": "Pages of a PDF, `3` or `1-5`; at most 20 at once"}
            },
            "required": ["file_path"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        None
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        self.files.path_of(input).map(Subject::Read).into_iter().collect()
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Read", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let wanted = match input.pages.as_ref().map(pages::range).transpose() {
            Ok(wanted) => wanted.flatten(),
            Err(problem) => return ToolOutput::error(problem),
        };
        let (files, given) = (self.files.clone(), input.file_path.clone());
        let cancel = context.cancel.clone();
        let held = tokio::task::spawn_blocking(move || read(&files, &input, &context)).await;
        match held {
            Ok(Held::Answer(answer)) => answer,
            Ok(Held::Pdf(bytes)) => tokio::select! {
                biased;
                () = cancel.cancelled() => ToolOutput::error("The call was cancelled."),
                answer = pages::shown(&self.converter, bytes, wanted, &given) => answer,
            },
            Err(_) => failed_inside("Read"),
        }
    }
}

fn read(files: &Files, input: &Input, context: &ToolContext) -> Held {
    match bytes_of(files, input, context) {
        Ok((_, bytes)) if bytes.starts_with(b"%PDF-") => Held::Pdf(bytes),
        Ok((real, bytes)) => Held::Answer(shown(files, input, &real, &bytes)),
        Err(problem) => Held::Answer(ToolOutput::error(problem)),
    }
}

fn bytes_of(files: &Files, input: &Input, context: &ToolContext) -> Result<(PathBuf, Vec<u8>), String> {
    let given = &input.file_path;
    let path = files.path(given);
    if !(files.visible)(&path) {
        return Err(Unreadable::Missing.sentence(given));
    }
    let real = files.real_path(&context.tool_use_id, given)?;
    // It may lead elsewhere than a moment ago.
    if !(files.visible)(&real) {
        return Err(Unreadable::Missing.sentence(given));
    }
    match disk::read_whole(&real) {
        Ok(bytes) => {
            files.touch(&path);
            Ok((real, bytes))
        }
        Err(Unreadable::Missing) => Err(missing(files, &path, given)),
        Err(problem) => Err(problem.sentence(given)),
    }
}

fn shown(files: &Files, input: &Input, real: &Path, bytes: &[u8]) -> ToolOutput {
    let given = &input.file_path;
    if let Some(format) = image::format(bytes) {
        return image::shown(bytes, format, given);
    }
    let Some(view) = TextView::new(bytes).filter(|_| !is_archive(bytes)) else {
        let kind = binary_kind(bytes);
        return ToolOutput::error(format!(
            "{given} is a binary file ({kind}, {} bytes). Look at it with a program in Bash.",
            bytes.len()
        ));
    };
    let is_notebook = real.extension().is_some_and(|extension| extension == "ipynb");
    let answer = match is_notebook.then(|| cells::shown(view.text(), input)) {
        Some(Ok(answer)) => answer,
        Some(Err(problem)) => {
            let mut answer = lines::page(&view, input);
            answer.content.push(swarm_protocol::ResultBlock::text(format!("[shown as text: {problem}]")));
            answer
        }
        None => lines::page(&view, input),
    };
    // What was not shown was not read.
    if answer.is_error { answer } else { answer.with_seen(files.memory.note(real, bytes)) }
}

fn missing(files: &Files, path: &Path, given: &str) -> String {
    let mut answer = Unreadable::Missing.sentence(given);
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let similar: Vec<String> = path
        .parent()
        .and_then(|parent| std::fs::read_dir(parent).ok())
        .into_iter()
        .flatten()
        .flatten()
        .take(5_000)
        .filter(|entry| {
            let other = entry.file_name().to_string_lossy().to_lowercase();
            !stem.is_empty() && other.split('.').next() == Some(stem) && (files.visible)(&entry.path())
        })
        .map(|entry| files.display(&entry.path()).to_string())
        .take(3)
        .collect();
    if similar.is_empty() {
        let _ = write!(answer, " The working directory's root is {}.", files.root.display());
    } else {
        let _ = write!(answer, " There is {}.", similar.join(", "));
    }
    answer
}

/// Bytes that begin like no text, though a guess at an encoding might take them for one.
fn is_archive(bytes: &[u8]) -> bool {
    matches!(bytes, [0x1f, 0x8b, ..] | [b'P', b'K', 3, 4, ..] | [0x7f, b'E', b'L', b'F', ..])
}

fn binary_kind(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it begins like UTF-16 text, but is not valid",
        [0x7f, b'E', b'L', b'F', ..] => "a program",
        [b'P', b'K', 3, 4, ..] => "a zip archive",
        [0x1f, 0x8b, ..] => "gzip data",
        _ => "no text",
    }
}
