//! Write: make a file, or overwrite one that was read.

use std::{io, sync::Arc};

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::record::ToolEffect;

use super::{
    Files, blocking, diff,
    disk::{self, Basis, Unreadable},
    parse,
    view::{self, TextView},
};

/// The tool.
pub struct Write {
    files: Arc<Files>,
}

impl Write {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    file_path: String,
    content: String,
}

#[async_trait]
impl Tool for Write {
    fn name(&self) -> &str {
        "Write"
    }

    fn description(&self) -> String {
        "Writes a whole file, with the directories it needs. A file that exists must have been read before; for \
         small changes use Edit."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "content": {"type": "string"}
            },
            "required": ["file_path", "content"]
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
        let input: Input = match parse("Write", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("Write", move || write(&files, &input, &context).unwrap_or_else(ToolOutput::error)).await
    }
}

fn write(files: &Files, input: &Input, context: &ToolContext) -> Result<ToolOutput, String> {
    let given = &input.file_path;
    let path = files.real_path(&context.tool_use_id, given)?;
    if !(files.visible)(&path) {
        return Err(format!("{given} may not be written: a deny rule hides it."));
    }
    let former = match disk::read_whole(&path) {
        Ok(bytes) => Some(bytes),
        Err(Unreadable::Missing) => None,
        Err(problem) => return Err(problem.sentence(given)),
    };
    let failed = |error: io::Error| format!("{given} cannot be written: {error}.");
    let mut content = input.content.clone().into_bytes();
    let mut note = "";
    let before = match &former {
        None => Some(String::new()),
        Some(bytes) => {
            check_read(files, &path, given, bytes)?;
            let view = TextView::new(bytes);
            if let Some(view) = &view {
                content = view.replaced(&input.content).map_err(|problem| {
                    format!("{given} is left as it is: {problem}. Write it otherwise, or convert the file with iconv first.")
                })?;
                if view.is_crlf() && !input.content.contains('\r') {
                    note = " Its line ends stay \\r\\n.";
                }
            }
            view.map(|view| view.text().to_owned())
        }
    };
    let basis = Basis { former: former.as_deref(), cancel: &context.cancel };
    disk::write_whole(&path, &content, basis).map_err(failed)?;
    let seen = files.memory.note(&path, &content);
    files.touch(&path);
    let now = view::plain_line_ends(&input.content);
    let (added, removed) = diff::line_counts(before.as_deref().unwrap_or_default(), &now);
    let lines = now.lines().count();
    let done = if former.is_some() { "overwritten" } else { "made" };
    let effect = ToolEffect::Edited { path: path.to_string_lossy().into_owned(), added, removed };
    Ok(ToolOutput::text(format!("{given} was {done} ({lines} lines).{note}"))
        .with_effect(effect)
        .with_seen(seen))
}

fn check_read(files: &Files, path: &std::path::Path, given: &str, bytes: &[u8]) -> Result<(), String> {
    match files.memory.seen(path) {
        // Nothing can be lost of an empty file.
        None if bytes.is_empty() => Ok(()),
        None => Err(format!("{given} exists and has not been read yet. Read it before you overwrite it.")),
        Some(seen) if seen.is(bytes) => Ok(()),
        Some(seen) => {
            let before = seen.bytes.as_deref().and_then(TextView::new);
            let diff = match (before, TextView::new(bytes)) {
                (Some(before), Some(now)) => diff::short_diff(before.text(), now.text(), 20),
                _ => String::new(),
            };
            Err(format!(
                "{given} was changed on disk since you read it.\n{diff}Read it again before you overwrite it."
            ))
        }
    }
}
