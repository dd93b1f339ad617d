//! The tools of a worker: files, search, shell, to-do list, the web. One tool a file; each answers with a text that
//! the model can act on, and none of them decides whether it may run (that is the gate's).

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use agent_host::{DiskPaths, PathResolver as _};
use query_engine::ports::{Tool, ToolOutput, Transcript};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use swarm_protocol::ToolUseId;

pub mod bash;
mod change;
pub mod config;
pub mod cron;
mod diff;
mod disk;
pub mod edit;
pub mod glob;
pub mod grep;
pub mod lsp;
pub mod masked;
pub mod memory;
mod notebook;
pub mod notebook_edit;
pub mod people;
mod place;
pub mod read;
pub mod remote;
pub mod repl;
pub mod retrieve;
pub mod search;
pub mod sleep;
pub mod tasks;
pub mod todo;
mod view;
pub mod web;
pub mod worktree;
pub mod write;

pub use memory::FileMemory;

/// Says whether a path may be seen; what a deny rule hides is as if it were not there.
pub type Visible = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// Where the key of a service is found once the server has sent it.
pub type ServiceKey = Arc<std::sync::OnceLock<String>>;

/// What the file tools of one run share.
pub struct Files {
    /// Where relative paths start.
    pub root: PathBuf,
    /// For `~`.
    pub home: PathBuf,
    /// What was read, and how it looked.
    pub memory: FileMemory,
    /// What may be seen.
    pub visible: Visible,
    /// Files read or written since somebody last asked: directories below may have instructions of their own.
    touched: Mutex<Vec<PathBuf>>,
    /// Where the paths of a call led when the gate judged it; none where that could not be told.
    passed: Mutex<HashMap<(ToolUseId, PathBuf), Option<PathBuf>>>,
    /// What a person agreed to take for the text that a call names.
    agreed: Mutex<HashMap<ToolUseId, Vec<String>>>,
}

impl Files {
    /// With nothing read yet.
    pub fn new(root: PathBuf, home: PathBuf, visible: Visible) -> Self {
        Self {
            root,
            home,
            memory: FileMemory::default(),
            visible,
            touched: Mutex::default(),
            passed: Mutex::default(),
            agreed: Mutex::default(),
        }
    }

    /// The same ground for an inner agent: what it reads, the worker has not read.
    pub fn copy_for_inner(&self) -> Self {
        let copy = Self::new(self.root.clone(), self.home.clone(), self.visible.clone());
        Self { memory: self.memory.copy(), ..copy }
    }

    /// The gate judged this call for what its path led to then, and the tool works there and nowhere else.
    pub fn pass(&self, call: &ToolUseId, path: &Path, real: Option<PathBuf>) {
        let key = (call.clone(), path.to_owned());
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).insert(key, real);
    }

    /// A person agreed that this call may change these texts, though it names others.
    pub fn agree(&self, call: &ToolUseId, texts: Vec<String>) {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).insert(call.clone(), texts);
    }

    fn agreed(&self, call: &ToolUseId) -> Vec<String> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).remove(call).unwrap_or_default()
    }

    /// The real path of a call that passed; an error when a link was changed since, so that what runs is not
    /// what was allowed.
    fn real_path(&self, call: &ToolUseId, given: &str) -> Result<PathBuf, String> {
        self.real(call, &self.path(given), given)
    }

    fn real(&self, call: &ToolUseId, path: &Path, given: &str) -> Result<PathBuf, String> {
        let real = disk::real_path(path);
        let key = (call.clone(), path.to_owned());
        let Some(passed) = self.passed.lock().unwrap_or_else(PoisonError::into_inner).remove(&key) else {
            return Ok(real);
        };
        match passed {
            Some(passed) if passed == real => Ok(real),
            // A link to nothing: it is not followed, and what opens it says so.
            Some(passed) if DiskPaths.resolve(path).as_ref() == Some(&passed) => Ok(real),
            _ => Err(format!(
                "{given} leads to another place than when the call was allowed; nothing was done."
            )),
        }
    }

    /// Where a search begins.
    fn start(&self, call: &ToolUseId, written: PathBuf, given: &str) -> Result<Start, String> {
        let real = self.real(call, &written, given)?;
        let start = Start { written, real };
        if self.may_see(&start, &start.real) {
            Ok(start)
        } else {
            Err(disk::Unreadable::Missing.sentence(given))
        }
    }

    /// Whether a path of a search may be seen, by its real name and as it would be shown.
    fn may_see(&self, start: &Start, real: &Path) -> bool {
        (self.visible)(real) && (start.written == start.real || (self.visible)(&start.shown(real)))
    }

    /// The absolute path a model means, `.` and `..` taken away; links stay.
    pub fn path(&self, text: &str) -> PathBuf {
        absolute(text, &self.root, &self.home)
    }

    /// The path in the field `file_path` of an input.
    fn path_of(&self, input: &Value) -> Option<PathBuf> {
        input.get("file_path").and_then(Value::as_str).map(|path| self.path(path))
    }

    /// A path as the model reads it best: relative to the root where it is below it.
    pub fn display<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    pub(crate) fn touch(&self, path: &Path) {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    }

    /// Takes what was touched since the last call.
    pub fn take_touched(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.touched.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The root of a search: as it was written, and where that led when it was checked. The search goes over the
/// real one, so that a link that is moved meanwhile does not move the search.
#[derive(Debug, Clone)]
struct Start {
    written: PathBuf,
    real: PathBuf,
}

impl Start {
    /// A found path as the model knows it.
    fn shown(&self, real: &Path) -> PathBuf {
        match real.strip_prefix(&self.real) {
            Ok(rest) if rest.as_os_str().is_empty() => self.written.clone(),
            Ok(rest) => self.written.join(rest),
            Err(_) => real.to_owned(),
        }
    }
}

/// An absolute path without `.` and `..`, from what a model wrote.
pub fn absolute(text: &str, root: &Path, home: &Path) -> PathBuf {
    let path = match text.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => root.join(text),
    };
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// The tools that change nothing.
pub fn read_only(files: &Arc<Files>) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(read::Read::new(files.clone())),
        Arc::new(glob::Glob::new(files.clone())),
        Arc::new(grep::Grep::new(files.clone())),
    ]
}

/// The tools that change files.
pub fn editing(files: &Arc<Files>) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(edit::Edit::new(files.clone())),
        Arc::new(write::Write::new(files.clone())),
        Arc::new(notebook_edit::NotebookEdit::new(files.clone())),
    ]
}

/// The to-do list; it is kept in the transcript.
pub fn todo(transcript: Arc<dyn Transcript>) -> Arc<dyn Tool> {
    Arc::new(todo::TodoWrite::new(transcript))
}

/// The input of a tool, or what is wrong with it.
fn parse<T: DeserializeOwned>(tool: &str, input: Value) -> Result<T, String> {
    serde_json::from_value(input)
        .map_err(|error| format!("The input of {tool} does not fit its schema: {error}."))
}

/// Runs file work off the async threads; a panic in it is an answer, not the end of the agent.
async fn blocking(tool: &str, work: impl FnOnce() -> ToolOutput + Send + 'static) -> ToolOutput {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| failed_inside(tool))
}

fn failed_inside(tool: &str) -> ToolOutput {
    ToolOutput::error(format!("{tool} failed inside; try another way."))
}

/// Numbers that models now and then write as strings.
fn lenient_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) if text.trim().is_empty() => Ok(None),
        Value::String(text) => text.trim().parse().map(Some).map_err(serde::de::Error::custom),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => Ok(Some(whole)),
            (None, Some(real)) if real >= 0.0 => Ok(Some(real as u64)),
            _ => Err(serde::de::Error::custom("expected a number that is not negative")),
        },
        _ => Err(serde::de::Error::custom("expected a number")),
    }
}

/// Truth values that models now and then write as strings.
fn lenient_bool<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(false),
        Value::Bool(value) => Ok(value),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(serde::de::Error::custom("expected true or false")),
    }
}

#[cfg(test)]
mod tests;
