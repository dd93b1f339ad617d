//! Glob: files by the pattern of their path, newest first.

use std::{fmt::Write as _, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Files, Start, blocking, disk, parse};

/// Files of one answer.
const MAX_FILES: usize = 100;

/// The tool.
pub struct Glob {
    files: Arc<Files>,
}

impl Glob {
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
}

#[async_trait]
impl Tool for Glob {
    fn name(&self) -> &str {
        "Glob"
    }

    fn description(&self) -> String {
        "Finds files by path pattern (`**/*.rs`, `src/**/test_*.py`), newest first, at most 100. A pattern \
         without a slash matches names in every directory. Files that git ignores are left out."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "Directory to search, default the root"}
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
        // An absolute pattern looks where its fixed part leads.
        let text = |key: &str| input.get(key).and_then(Value::as_str);
        let pattern = text("pattern").unwrap_or_default();
        let fixed = pattern.split(['*', '?', '[', '{']).next().unwrap_or_default();
        let place = match fixed.rfind('/') {
            Some(cut) if pattern.starts_with('/') => &pattern[..cut.max(1)],
            _ => text("path").unwrap_or("."),
        };
        vec![Subject::Read(self.files.path(place))]
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Glob", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("Glob", move || glob(&files, &input, &context).unwrap_or_else(ToolOutput::error)).await
    }
}

/// A walk as git sees the tree: ignored files left out, hidden ones kept, links not followed. Rules of ignore files hold
/// inside of a repository only, and those of a directory above it do not.
pub(super) fn walk(start: &Start, files: &Arc<Files>) -> WalkBuilder {
    let mut walk = WalkBuilder::new(&start.real);
    let (start, files) = (start.clone(), files.clone());
    walk.hidden(false).require_git(true).follow_links(false).filter_entry(move |entry| {
        entry.file_name() != ".git" && !disk::is_kernels(entry.path()) && files.may_see(&start, entry.path())
    });
    walk
}

/// A pattern over paths relative to the searched directory.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let pattern = pattern.trim_start_matches("./");
    let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    GlobBuilder::new(&pattern)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| format!("`{pattern}` is no path pattern: {error}."))
}

fn glob(files: &Arc<Files>, input: &Input, context: &ToolContext) -> Result<ToolOutput, String> {
    let mut directory = files.path(input.path.as_deref().unwrap_or("."));
    let mut pattern = input.pattern.as_str();
    if pattern.starts_with('/') {
        // An absolute pattern: its part without wildcards is where to look.
        let fixed = pattern.find(['*', '?', '[', '{']).map_or(pattern.len(), |at| at);
        let cut = pattern[..fixed].rfind('/').unwrap_or(0);
        directory = files.path(if cut == 0 { "/" } else { &pattern[..cut] });
        pattern = &pattern[cut + 1..];
    }
    let given = directory.display().to_string();
    let start = files.start(&context.tool_use_id, directory, &given)?;
    if !start.real.is_dir() {
        return Err(format!("{given} is not a directory."));
    }
    let matcher = matcher(pattern)?;
    let mut found: Vec<(SystemTime, std::path::PathBuf)> = Vec::new();
    for entry in walk(&start, files).build() {
        if context.cancel.is_cancelled() {
            return Err("Cancelled.".to_owned());
        }
        // What vanishes during the walk is not there.
        let Ok(entry) = entry else { continue };
        if entry.file_type().is_none_or(|kind| kind.is_dir()) {
            continue;
        }
        let relative = entry.path().strip_prefix(&start.real).unwrap_or(entry.path());
        if matcher.is_match(relative) {
            let time = entry.metadata().ok().and_then(|metadata| metadata.modified().ok());
            found.push((time.unwrap_or(SystemTime::UNIX_EPOCH), entry.into_path()));
        }
    }
    // A directory that became a link while it was walked shows what is elsewhere.
    found.retain(|(_, path)| path.parent().is_none_or(|parent| disk::real_path(parent) == parent));
    if found.is_empty() {
        return Ok(ToolOutput::text(format!("No file matches `{}`.", input.pattern)));
    }
    found.sort_by(|(a_time, a), (b_time, b)| b_time.cmp(a_time).then_with(|| a.cmp(b)));
    let mut answer = String::new();
    for (_, path) in found.iter().take(MAX_FILES) {
        let _ = writeln!(answer, "{}", files.display(&start.shown(path)));
    }
    if found.len() > MAX_FILES {
        let _ = write!(
            answer,
            "[the newest {MAX_FILES} of {} files; narrow the pattern for the rest]",
            found.len()
        );
    }
    Ok(ToolOutput::text(answer))
}
