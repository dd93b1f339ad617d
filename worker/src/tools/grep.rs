//! Grep: search file contents with the engine of ripgrep.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::{
    WalkBuilder, WalkState,
    types::{Types, TypesBuilder},
};
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Files, Start, blocking, disk, glob, lenient_bool, lenient_number, parse, view};

mod answer;
mod sink;

use answer::Answer;
use sink::{FileSink, Mode};

/// Lines or files of one answer when no `head_limit` is given.
const DEFAULT_HEAD: u64 = 250;
/// The same when all are asked for: what is more is of no use to a model.
const MAX_HEAD: u64 = 20_000;
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

/// Which files of a directory are searched.
struct Filter {
    wanted: Vec<GlobMatcher>,
    unwanted: Vec<GlobMatcher>,
    start: Start,
    root: PathBuf,
}

impl Filter {
    fn takes(&self, path: &Path) -> bool {
        if self.wanted.is_empty() && self.unwanted.is_empty() {
            return true;
        }
        let shown = self.start.shown(path);
        let relative = path.strip_prefix(&self.start.real).unwrap_or(path);
        let from_root = shown.strip_prefix(&self.root).unwrap_or(&shown);
        let is = |glob: &GlobMatcher| glob.is_match(relative) || glob.is_match(from_root);
        (self.wanted.is_empty() || self.wanted.iter().any(is)) && !self.unwanted.iter().any(is)
    }
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
        // They are counted only where they are shown.
        .line_number(mode == Mode::Content && input.numbers)
        .multi_line(input.multiline)
        .before_context(context(input.before))
        .after_context(context(input.after))
        .binary_detection(binary)
        .heap_limit(Some(MAX_HEAP_BYTES))
        .build()
}

/// A search that is under way; each thread has its own searcher.
struct Search<'a> {
    files: &'a Files,
    start: &'a Start,
    input: &'a Input,
    mode: Mode,
    matcher: RegexMatcher,
    cancel: &'a CancellationToken,
    answer: Answer,
}

impl Search<'_> {
    /// `is_asked_for`: the call names this file.
    fn file(&self, searcher: &mut Searcher, path: &Path, mut file: File, is_asked_for: bool) {
        let name = || self.files.display(&self.start.shown(path)).to_string();
        if self.input.multiline && !self.input.text && is_binary(&mut file) {
            if is_asked_for {
                self.answer.problem(path, format!("{}: binary, not searched; set `text` to do so", name()));
            }
            return;
        }
        let mut sink = self.sink();
        let mut searched = searcher.search_file(&self.matcher, &file, &mut sink);
        if searched.is_ok() && sink.count == 0 && sink.binary_at.is_none() && !self.input.pattern.is_ascii() {
            // The characters of the pattern are other bytes in a file that is not UTF-8.
            if let Some(text) = foreign_text(&mut file) {
                sink = self.sink();
                searched = searcher.search_slice(&self.matcher, text.as_bytes(), &mut sink);
            }
        }
        if let Err(error) = searched {
            self.answer.problem(path, format!("{}: {error}", name()));
        }
        self.answer.take(path, name, sink, is_asked_for);
    }

    fn sink(&self) -> FileSink<'_> {
        FileSink::new(self.mode, self.input.numbers, self.answer.most(), &self.matcher, self.cancel)
    }

    /// All files of a directory, on as many threads as there are cores.
    fn directory(&self, walk: &WalkBuilder, filter: &Filter) {
        walk.build_parallel().run(|| {
            let mut searcher = searcher(self.input, self.mode);
            let mut opener = disk::Opener::default();
            Box::new(move |entry| {
                if self.cancel.is_cancelled() {
                    return WalkState::Quit;
                }
                // What vanishes during the walk is not there. Pipes, sockets and devices are never opened, links
                // not followed.
                if let Ok(entry) = entry
                    && entry.file_type().is_some_and(|kind| kind.is_file())
                    && filter.takes(entry.path())
                    && !self.answer.is_past(entry.path())
                    && let Some(file) = opener.open(entry.path())
                {
                    self.file(&mut searcher, entry.path(), file, false);
                }
                WalkState::Continue
            })
        });
    }
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
    let limit = match input.head_limit {
        None => DEFAULT_HEAD,
        Some(0) => MAX_HEAD,
        Some(limit) => limit.min(MAX_HEAD),
    };
    let given = input.path.as_deref().unwrap_or(".");
    let start = files.start(&context.tool_use_id, files.path(given), given)?;
    let metadata = std::fs::symlink_metadata(&start.real).map_err(|_| format!("{given} does not exist."))?;
    let answer = Answer::new(mode, input.offset.unwrap_or(0), limit);
    let search = Search { files, start: &start, input, mode, matcher, cancel: &context.cancel, answer };
    if metadata.is_dir() {
        let (wanted, unwanted) = name_filters(input.glob.as_deref())?;
        let filter = Filter { wanted, unwanted, start: start.clone(), root: files.root.clone() };
        let (mut walk, left_out) = glob::walk(&start, files)?;
        if let Some(kind) = &input.kind {
            walk.types(types(kind)?);
        }
        search.directory(&walk, &filter);
        for (directory, why) in left_out.take() {
            search.answer.problem(&directory, format!("{}: {why}", files.display(&start.shown(&directory))));
        }
    } else {
        let (file, _) = disk::open(&start.real).map_err(|problem| problem.sentence(given))?;
        search.file(&mut searcher(input, mode), &start.real, file, true);
    }
    if context.cancel.is_cancelled() {
        return Err("Cancelled.".to_owned());
    }
    Ok(ToolOutput::text(search.answer.finish(&input.pattern)))
}

fn types(kind: &str) -> Result<Types, String> {
    let mut types = TypesBuilder::new();
    types.add_defaults();
    types.select(kind);
    types.build().map_err(|_| format!("`{kind}` is no file type that is known; use `glob`."))
}

/// The text of a file in an encoding that is not UTF-8 and has no mark; none for any other.
fn foreign_text(file: &mut File) -> Option<String> {
    let mut bytes = Vec::new();
    file.rewind().ok()?;
    file.take(disk::MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    if std::str::from_utf8(&bytes).is_ok() {
        return None;
    }
    view::TextView::new(&bytes).map(|view| view.text().to_owned())
}

fn is_binary(file: &mut File) -> bool {
    let mut start = Vec::with_capacity(view::SNIFF_BYTES);
    let read = file.take(view::SNIFF_BYTES as u64).read_to_end(&mut start);
    // What cannot be read from its beginning again is not searched.
    let is_wide = start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
    read.is_err() || file.rewind().is_err() || (!is_wide && view::looks_binary(&start))
}
