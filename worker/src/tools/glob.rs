//! Glob: files by the pattern of their path, newest first.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Files, Start, blocking, disk, parse};

/// Files of one answer.
const MAX_FILES: usize = 100;
/// Directories named that were left out.
const MAX_LEFT_OUT: usize = 5;

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

/// Directories that a walk left out, and why.
#[derive(Clone, Default)]
pub(super) struct LeftOut(Arc<Mutex<Vec<(PathBuf, String)>>>);

impl LeftOut {
    pub(super) fn take(&self) -> Vec<(PathBuf, String)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A walk as git sees the tree: ignored files left out, hidden ones kept, links not followed. Rules of ignore files hold
/// inside of a repository only, and those of a directory above it do not.
///
/// # Errors
/// What the walk would read before it begins cannot be read.
pub(super) fn walk(start: &Start, files: &Arc<Files>) -> Result<(WalkBuilder, LeftOut), String> {
    for directory in start.real.ancestors() {
        if let Some(why) = unreadable_rules(directory) {
            return Err(format!("{}: {why}", files.display(directory)));
        }
    }
    let mut walk = WalkBuilder::new(&start.real);
    let (start, files) = (start.clone(), files.clone());
    let left_out = LeftOut::default();
    let noted = left_out.clone();
    walk.hidden(false).require_git(true).follow_links(false).filter_entry(move |entry| {
        if entry.file_name() == ".git"
            || disk::is_kernels(entry.path())
            || !files.may_see(&start, entry.path())
        {
            return false;
        }
        let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
        let Some(why) = is_directory.then(|| unreadable_rules(entry.path())).flatten() else { return true };
        noted.0.lock().unwrap_or_else(PoisonError::into_inner).push((entry.path().to_owned(), why));
        false
    });
    Ok((walk, left_out))
}

/// Bytes of a file of rules at most: the walk takes it whole.
const MAX_RULES_BYTES: u64 = 4 * 1024 * 1024;

/// Why the files with git's rules in a directory cannot be read: the walk opens them whatever they are, and a pipe or a
/// device has no end. None when they can, or when there are none.
fn unreadable_rules(directory: &Path) -> Option<String> {
    let is_plain = |path: &Path| match std::fs::metadata(path) {
        Ok(metadata) => {
            let is_file = metadata.is_file() && metadata.len() <= MAX_RULES_BYTES;
            is_file && !disk::is_kernels(&disk::real_path(path))
        }
        Err(_) => true,
    };
    let why = |name: &str| {
        format!("not searched, because its {name} is no plain file of at most {} MiB", MAX_RULES_BYTES >> 20)
    };
    if let Some(name) = [".ignore", ".gitignore"].into_iter().find(|name| !is_plain(&directory.join(name))) {
        return Some(why(name));
    }
    let git = directory.join(".git");
    let metadata = std::fs::metadata(&git).ok()?;
    let common = if metadata.is_dir() {
        git
    } else {
        if !is_plain(&git) {
            return Some(why(".git"));
        }
        let text = std::fs::read_to_string(&git).ok()?;
        let own = PathBuf::from(text.lines().next()?.strip_prefix("gitdir: ")?);
        if !is_plain(&own.join("commondir")) {
            return Some(why("commondir"));
        }
        let common = std::fs::read_to_string(own.join("commondir")).ok()?;
        own.join(common.lines().next()?)
    };
    (!is_plain(&common.join("info/exclude"))).then(|| why("info/exclude"))
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
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    let (walk, left_out) = walk(&start, files)?;
    for entry in walk.build() {
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
    let left_out = left_out.take();
    let note = |answer: &mut String| {
        for (directory, why) in left_out.iter().take(MAX_LEFT_OUT) {
            let _ = write!(answer, "\n[{}: {why}]", files.display(&start.shown(directory)));
        }
    };
    if found.is_empty() {
        let mut answer = format!("No file matches `{}`.", input.pattern);
        note(&mut answer);
        return Ok(ToolOutput::text(answer));
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
    note(&mut answer);
    Ok(ToolOutput::text(answer))
}
