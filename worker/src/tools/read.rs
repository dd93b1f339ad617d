//! Read: a part of a text file with line numbers, or a picture.

use std::{fmt::Write as _, path::Path, sync::Arc};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{ResultBlock, ToolUseId};

use super::{
    Files, blocking, lenient_number, parse,
    text::{self, Unreadable},
};

/// Lines of one answer.
const DEFAULT_LIMIT: u64 = 2_000;
/// Characters of one line.
const MAX_LINE_CHARS: usize = 2_000;
/// Bytes of one answer: no later step cuts what Read gives, it pages instead.
const MAX_ANSWER_BYTES: usize = 100_000;
/// Providers take 5 MB of base64.
const MAX_IMAGE_BYTES: usize = 3_750_000;

/// The tool.
pub struct Read {
    files: Arc<Files>,
}

impl Read {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    #[serde(default, deserialize_with = "lenient_number")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "lenient_number")]
    limit: Option<u64>,
}

#[async_trait]
impl Tool for Read {
    fn name(&self) -> &str {
        "Read"
    }

    fn description(&self) -> String {
        "Reads a text file with line numbers (`number<tab>line`), or shows an image (PNG, JPEG, GIF, WebP). \
         Gives 2,000 lines from the start unless `offset` and `limit` say otherwise; longer lines are cut. \
         Read a file before you edit or overwrite it."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string", "description": "Path, absolute or from the working directory's root"},
                "offset": {"type": "integer", "description": "First line, from 1"},
                "limit": {"type": "integer", "description": "How many lines"}
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
        let files = self.files.clone();
        blocking("Read", move || read(&files, &input, &context.tool_use_id)).await
    }
}

fn read(files: &Files, input: &Input, call: &ToolUseId) -> ToolOutput {
    let path = files.path(&input.file_path);
    if !(files.visible)(&path) {
        return ToolOutput::error(Unreadable::Missing.sentence(&input.file_path));
    }
    let real = match files.real_path(call, &input.file_path) {
        Ok(real) => real,
        Err(problem) => return ToolOutput::error(problem),
    };
    // It may lead elsewhere than a moment ago.
    if !(files.visible)(&real) {
        return ToolOutput::error(Unreadable::Missing.sentence(&input.file_path));
    }
    let bytes = match text::read_whole(&real) {
        Ok(bytes) => bytes,
        Err(Unreadable::Missing) => return missing(files, &path, &input.file_path),
        Err(problem) => return ToolOutput::error(problem.sentence(&input.file_path)),
    };
    files.touch(&path);
    if let Some(media_type) = image_type(&bytes) {
        return image(&bytes, media_type, &input.file_path);
    }
    if text::looks_binary(&bytes) {
        let kind = binary_kind(&bytes);
        return ToolOutput::error(format!(
            "{} is a binary file ({kind}, {} bytes). Look at it with a program in Bash.",
            input.file_path,
            bytes.len()
        ));
    }
    let answer = page(&bytes, input);
    if std::str::from_utf8(&bytes).is_ok() {
        answer.with_seen(files.memory.note(&real, &bytes))
    } else {
        answer
    }
}

fn missing(files: &Files, path: &Path, given: &str) -> ToolOutput {
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
    ToolOutput::error(answer)
}

fn page(bytes: &[u8], input: &Input) -> ToolOutput {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.is_empty() {
        return ToolOutput::text("(the file is empty)");
    }
    let text = String::from_utf8_lossy(bytes);
    let is_lossy = matches!(text, std::borrow::Cow::Owned(_));
    let first = input.offset.unwrap_or(1).max(1);
    let limit = input.limit.unwrap_or(DEFAULT_LIMIT).max(1);
    let total = text.lines().count() as u64;
    if first > total {
        return ToolOutput::error(format!("The file has {total} lines; offset {first} is past its end."));
    }
    let mut answer = String::new();
    let mut last = first - 1;
    for (number, line) in (1_u64..).zip(text.lines()).skip((first - 1) as usize).take(limit as usize) {
        if answer.len() > MAX_ANSWER_BYTES {
            break;
        }
        last = number;
        let _ = write!(answer, "{number:>6}\t");
        match line.char_indices().nth(MAX_LINE_CHARS) {
            None => answer.push_str(line),
            Some((cut, _)) => {
                let length = line.chars().count();
                let _ = write!(
                    answer,
                    "{} [line {number} has {length} characters, the first {MAX_LINE_CHARS} are shown; for more: \
                     sed -n '{number}p' FILE | cut -c{}-{}]",
                    &line[..cut],
                    MAX_LINE_CHARS + 1,
                    2 * MAX_LINE_CHARS
                );
            }
        }
        answer.push('\n');
    }
    if last < total {
        let _ = write!(answer, "\n[lines {first} to {last} of {total}; go on with offset {}]", last + 1);
    }
    if is_lossy {
        answer.push_str(
            "\n[the file is not UTF-8; \u{fffd} stands for what is not. Edit and Write will not change it]",
        );
    }
    ToolOutput::text(answer)
}

fn image(bytes: &[u8], media_type: &str, path: &str) -> ToolOutput {
    if bytes.len() > MAX_IMAGE_BYTES {
        return ToolOutput::error(format!(
            "{path} is an image of {} bytes; at most {MAX_IMAGE_BYTES} can be shown. Make it smaller with a program first.",
            bytes.len()
        ));
    }
    let mut answer = ToolOutput::text(String::new());
    answer.content =
        vec![ResultBlock::Image { media_type: media_type.to_owned(), data: BASE64_STANDARD.encode(bytes) }];
    answer
}

fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn binary_kind(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16 text; convert it with iconv to read it",
        [0x7f, b'E', b'L', b'F', ..] => "a program",
        [b'P', b'K', 3, 4, ..] => "a zip archive",
        [0x1f, 0x8b, ..] => "gzip data",
        [b'%', b'P', b'D', b'F', ..] => "a PDF; pdftotext shows its words",
        _ => "no text",
    }
}
