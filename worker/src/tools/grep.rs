//! Grep: search file contents with the engine of ripgrep.

use std::{fmt::Write as _, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::types::TypesBuilder;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Files, Start, blocking, glob, lenient_bool, lenient_number, parse, text};

mod sink;

use sink::{Lines, Mode};

/// Lines or files of one answer when no `head_limit` is given.
const DEFAULT_HEAD: u64 = 250;
/// Memory of one multi-line search, which takes a file whole.
const MAX_HEAP_BYTES: usize = 64 * 1024 * 1024;
/// Lines around a match at most.
const MAX_CONTEXT: u64 = 100;

/// The tool.
pub struct Grep {
    files: Arc<Files>,
}

impl Grep {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    pattern: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    glob: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    output_mode: Option<String>,
    #[serde(default, rename = "-A", deserialize_with = "lenient_number")]
    after: Option<u64>,
    #[serde(default, rename = "-B", deserialize_with = "lenient_number")]
    before: Option<u64>,
    #[serde(default, rename = "-C", deserialize_with = "lenient_number")]
    around: Option<u64>,
    #[serde(default = "yes", rename = "-n", deserialize_with = "lenient_bool")]
    numbers: bool,
    #[serde(default, rename = "-i", deserialize_with = "lenient_bool")]
    ignore_case: bool,
    #[serde(default, deserialize_with = "lenient_bool")]
    multiline: bool,
    #[serde(default, deserialize_with = "lenient_bool")]
    text: bool,
    #[serde(default, deserialize_with = "lenient_number")]
    head_limit: Option<u64>,
    #[serde(default, deserialize_with = "lenient_number")]
    offset: Option<u64>,
}

fn yes() -> bool {
    true
}

#[async_trait]
impl Tool for Grep {
    fn name(&self) -> &str {
        "Grep"
    }

    fn description(&self) -> String {
        "Searches file contents with a regular expression (ripgrep's syntax; escape literal braces). Files that git \
         ignores are left out unless `path` names one. Prefer it to grep in Bash."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "File or directory, default the root"},
                "glob": {"type": "string", "description": "Only files whose path matches: `*.rs`, `src/**`, `!tests/**`"},
                "type": {"type": "string", "description": "Only files of a type: rust, py, js, go"},
                "output_mode": {"type": "string", "enum": ["files_with_matches", "content", "count"], "description": "Default files_with_matches"},
                "-A": {"type": "integer", "description": "Lines after each match (content)"},
                "-B": {"type": "integer", "description": "Lines before"},
                "-C": {"type": "integer", "description": "Lines before and after"},
                "-n": {"type": "boolean", "description": "Line numbers, default true"},
                "-i": {"type": "boolean", "description": "Ignore case"},
                "multiline": {"type": "boolean", "description": "Let the pattern span lines; . matches line breaks"},
                "text": {"type": "boolean", "description": "Search binary files as if they were text"},
                "head_limit": {"type": "integer", "description": "Lines or files at most, default 250"},
                "offset": {"type": "integer", "description": "Lines or files to leave out first"}
            },
            "required": ["pattern"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        Some(20_000)
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        let path = input.get("path").and_then(Value::as_str).unwrap_or(".");
        vec![Subject::Read(self.files.path(path))]
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Grep", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("Grep", move || grep(&files, &input, &context).unwrap_or_else(ToolOutput::error)).await
    }
}

/// Where to look, in order: real paths.
fn targets(
    files: &Arc<Files>,
    input: &Input,
    start: &Start,
    given: &str,
    cancel: &CancellationToken,
) -> Result<Vec<PathBuf>, String> {
    let metadata = std::fs::symlink_metadata(&start.real).map_err(|_| format!("{given} does not exist."))?;
    if !metadata.is_dir() {
        text::open(&start.real).map_err(|problem| problem.sentence(given))?;
        return Ok(vec![start.real.clone()]);
    }
    let (wanted, unwanted) = name_filters(input.glob.as_deref())?;
    let mut walk = glob::walk(start, files);
    if let Some(kind) = &input.kind {
        let mut types = TypesBuilder::new();
        types.add_defaults();
        types.select(kind);
        walk.types(
            types.build().map_err(|_| format!("`{kind}` is no file type that is known; use `glob`."))?,
        );
    }
    let mut found: Vec<PathBuf> = walk
        .build()
        .take_while(|_| !cancel.is_cancelled())
        .filter_map(Result::ok)
        // Pipes, sockets and devices are never opened, links not followed.
        .filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()))
        .map(ignore::DirEntry::into_path)
        .filter(|path| {
            let shown = start.shown(path);
            let relative = path.strip_prefix(&start.real).unwrap_or(path);
            let from_root = shown.strip_prefix(&files.root).unwrap_or(&shown);
            let is = |glob: &GlobMatcher| glob.is_match(relative) || glob.is_match(from_root);
            (wanted.is_empty() || wanted.iter().any(is)) && !unwanted.iter().any(is)
        })
        .collect();
    found.sort();
    Ok(found)
}

/// `*.{ts,tsx}`, several parted by spaces or commas outside braces; `!` excludes.
fn name_filters(glob: Option<&str>) -> Result<(Vec<GlobMatcher>, Vec<GlobMatcher>), String> {
    let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
    let mut depth = 0_i32;
    let parts = glob.unwrap_or_default().split(|character: char| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        character.is_whitespace() || (character == ',' && depth <= 0)
    });
    for part in parts.filter(|part| !part.is_empty()) {
        match part.strip_prefix('!') {
            Some(part) => unwanted.push(glob::matcher(part)?),
            None => wanted.push(glob::matcher(part)?),
        }
    }
    Ok((wanted, unwanted))
}

fn regex(input: &Input) -> Result<RegexMatcher, String> {
    let mut builder = RegexMatcherBuilder::new();
    builder.case_insensitive(input.ignore_case).multi_line(true).crlf(!input.multiline);
    if input.multiline {
        builder.dot_matches_new_line(true);
    } else {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(&input.pattern).map_err(|error| {
        let hint = if !input.multiline && input.pattern.contains("\\n") {
            " To match line breaks set multiline."
        } else {
            ""
        };
        format!("The pattern is not a regular expression that can be used: {error}.{hint}")
    })
}

fn searcher(input: &Input, mode: Mode) -> Searcher {
    let binary = if input.text { BinaryDetection::none() } else { BinaryDetection::quit(b'\0') };
    let context = |own: Option<u64>| match mode {
        Mode::Content => own.or(input.around).unwrap_or(0).min(MAX_CONTEXT) as usize,
        Mode::Files | Mode::Count => 0,
    };
    SearcherBuilder::new()
        .line_number(true)
        .multi_line(input.multiline)
        .before_context(context(input.before))
        .after_context(context(input.after))
        .binary_detection(binary)
        .heap_limit(Some(MAX_HEAP_BYTES))
        .build()
}

fn grep(files: &Arc<Files>, input: &Input, context: &ToolContext) -> Result<ToolOutput, String> {
    let mode = match input.output_mode.as_deref() {
        None | Some("files_with_matches") => Mode::Files,
        Some("content") => Mode::Content,
        Some("count") => Mode::Count,
        Some(other) => {
            return Err(format!("`{other}` is no output_mode; use files_with_matches, content or count."));
        }
    };
    let matcher = regex(input)?;
    let mut searcher = searcher(input, mode);
    let head = match input.head_limit {
        None => DEFAULT_HEAD,
        Some(0) => u64::MAX,
        Some(limit) => limit,
    };
    let mut lines = Lines::new(mode, input.numbers, input.offset.unwrap_or(0), head);
    let mut problems = Vec::new();
    let given = input.path.as_deref().unwrap_or(".");
    let start = files.start(&context.tool_use_id, files.path(given), given)?;
    let cancel = &context.cancel;
    for path in targets(files, input, &start, given, cancel)? {
        if cancel.is_cancelled() {
            return Err("Cancelled.".to_owned());
        }
        if lines.is_full() {
            break;
        }
        let Ok((mut file, _)) = text::open(&path) else { continue };
        if input.multiline && !input.text && is_binary(&mut file) {
            continue;
        }
        let name = files.display(&start.shown(&path)).to_string();
        let mut sink = lines.file(&name, &matcher, cancel);
        if let Err(error) = searcher.search_file(&matcher, &file, &mut sink)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            problems.push(format!("{name}: {error}"));
        }
        sink.end(&path);
    }
    Ok(ToolOutput::text(render(lines, input, &problems)))
}

fn is_binary(file: &mut std::fs::File) -> bool {
    use std::io::{Read as _, Seek as _};
    let mut start = vec![0; text::SNIFF_BYTES];
    let count = file.read(&mut start).unwrap_or(0);
    let _at_start = file.rewind();
    text::looks_binary(&start[..count])
}

fn render(lines: Lines, input: &Input, problems: &[String]) -> String {
    let unit = match lines.mode() {
        Mode::Content => "lines",
        Mode::Files | Mode::Count => "files",
    };
    let (mut answer, shown, skipped, is_full) = lines.finish();
    if shown == 0 {
        answer = if skipped > 0 {
            format!("There are only {skipped} {unit}; offset {skipped} is past them.")
        } else {
            format!("No match for `{}`.", input.pattern)
        };
    } else if is_full {
        let next = skipped + shown;
        let _ = write!(
            answer,
            "[{shown} {unit} shown; there are more: go on with offset {next}, or narrow the search]"
        );
    }
    for problem in problems.iter().take(5) {
        let _ = write!(answer, "\n[{problem}]");
    }
    answer
}
