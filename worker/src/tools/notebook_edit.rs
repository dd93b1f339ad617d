//! NotebookEdit: replace, insert or delete one cell of a Jupyter notebook. The rest of the file keeps its bytes.

use std::sync::Arc;

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Files, blocking,
    change::Draft,
    notebook::{Cell, Notebook, quoted},
    parse,
    view::{self, Patch},
};

/// How deep the cells of a notebook stand in its JSON.
const CELL_DEPTH: usize = 2;

/// The tool.
pub struct NotebookEdit {
    files: Arc<Files>,
}

impl NotebookEdit {
    /// Over these files.
    pub fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[derive(Deserialize)]
struct Input {
    notebook_path: String,
    #[serde(default)]
    cell_id: Option<Value>,
    #[serde(default)]
    new_source: Option<String>,
    #[serde(default)]
    cell_type: Option<Kind>,
    #[serde(default)]
    edit_mode: Mode,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Replace,
    Insert,
    Delete,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Code,
    Markdown,
    Raw,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Markdown => "markdown",
            Self::Raw => "raw",
        }
    }
}

#[async_trait]
impl Tool for NotebookEdit {
    fn name(&self) -> &str {
        "NotebookEdit"
    }

    fn description(&self) -> String {
        "Changes one cell of a Jupyter notebook (.ipynb) that was read before: replaces its source, inserts a new \
         cell after it (without `cell_id`: at the beginning), or deletes it. A cell is named by its id or its number \
         as Read shows them. The outputs of a code cell that is replaced go, since they are of the old source."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "notebook_path": {"type": "string"},
                "cell_id": {"type": "string", "description": "Id of the cell, or its number from 1"},
                "new_source": {"type": "string", "description": "The whole source of the cell"},
                "cell_type": {"type": "string", "enum": ["code", "markdown", "raw"], "description": "Needed to insert; else it stays"},
                "edit_mode": {"type": "string", "enum": ["replace", "insert", "delete"], "description": "Default replace"}
            },
            "required": ["notebook_path"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        let path = input.get("notebook_path").and_then(Value::as_str);
        path.map(|path| Subject::Write(self.files.path(path))).into_iter().collect()
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "jupyter notebook cell ipynb"
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("NotebookEdit", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let files = self.files.clone();
        blocking("NotebookEdit", move || change(&files, &input, &context).unwrap_or_else(ToolOutput::error))
            .await
    }
}

fn change(files: &Files, input: &Input, context: &ToolContext) -> Result<ToolOutput, String> {
    let given = &input.notebook_path;
    let draft = Draft::open(files, &context.tool_use_id, given)?;
    let notebook = Notebook::parse(draft.view().text())
        .map_err(|problem| format!("{given} is left as it is: {problem}. Change its text with Edit."))?;
    let (patch, done) = patch(&notebook, input, given)?;
    let note = draft.check(std::slice::from_ref(&patch.range))?;
    draft.write_saying(&[patch], &note.into_iter().collect::<Vec<_>>(), &done, &context.cancel)
}

/// What is changed in the text of the notebook, and how that is said.
fn patch(notebook: &Notebook<'_>, input: &Input, given: &str) -> Result<(Patch, String), String> {
    let count = notebook.cells.len();
    let named = match &input.cell_id {
        None | Some(Value::Null) => None,
        Some(name) => {
            let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
            let index = notebook.find(&name).ok_or_else(|| {
                format!("{given} has no cell `{name}`; it has {count} cells. Read it to see their ids and numbers.")
            })?;
            Some(index)
        }
    };
    let source = input.new_source.as_deref().map(view::plain_line_ends);
    let needed = |what: &str| format!("To {what} a cell NotebookEdit needs ");
    match input.edit_mode {
        Mode::Insert => {
            let source = source.ok_or_else(|| needed("insert") + "`new_source`.")?;
            let kind = input.cell_type.ok_or_else(|| needed("insert") + "`cell_type`.")?;
            let index = named.map_or(0, |named| named + 1);
            let cell = new_cell(notebook, kind, &source);
            Ok((
                insertion(notebook, index, cell),
                format!(
                    "A {} cell was put in as cell {}; {given} has {} cells now.",
                    kind.name(),
                    index + 1,
                    count + 1
                ),
            ))
        }
        Mode::Delete => {
            let index = named.ok_or_else(|| needed("delete") + "its `cell_id`.")?;
            Ok((
                deletion(notebook, index),
                format!("Cell {} was deleted; {given} has {} cells now.", index + 1, count - 1),
            ))
        }
        Mode::Replace => {
            let index = named.ok_or_else(|| needed("replace") + "its `cell_id`.")?;
            let source = source.ok_or_else(|| needed("replace") + "`new_source`.")?;
            let cell = &notebook.cells[index];
            let kind = input.cell_type.map_or_else(|| cell.kind(), |kind| kind.name().to_owned());
            if cell.source() == source && cell.kind() == kind {
                return Err(format!("Cell {} has this source already; nothing would change.", index + 1));
            }
            let had_outputs = cell.members.get("outputs").is_some_and(|raw| raw.len() > 2);
            let outputs = if had_outputs { " Its outputs were of the old source and are gone." } else { "" };
            let new = replaced_cell(notebook, cell, &kind, &source);
            Ok((
                Patch { range: cell.range.clone(), new },
                format!("Cell {} of {given} was replaced.{outputs}", index + 1),
            ))
        }
    }
}

fn insertion(notebook: &Notebook<'_>, index: usize, cell: String) -> Patch {
    let between = notebook.layout.between(CELL_DEPTH);
    match (index.checked_sub(1).and_then(|before| notebook.cells.get(before)), notebook.cells.first()) {
        (Some(before), _) => {
            Patch { range: before.range.end..before.range.end, new: format!("{between}{cell}") }
        }
        (None, Some(first)) => {
            Patch { range: first.range.start..first.range.start, new: format!("{cell}{between}") }
        }
        (None, None) => {
            Patch { range: notebook.list.clone(), new: notebook.layout.list(&[cell], CELL_DEPTH - 1) }
        }
    }
}

/// A cell with what parts it from its neighbour.
fn deletion(notebook: &Notebook<'_>, index: usize) -> Patch {
    let cells = &notebook.cells;
    let cell = &cells[index].range;
    let range = match (cells.get(index + 1), index.checked_sub(1)) {
        (Some(next), _) => cell.start..next.range.start,
        (None, Some(before)) => cells[before].range.end..cell.end,
        (None, None) => return Patch { range: notebook.list.clone(), new: "[]".to_owned() },
    };
    Patch { range, new: String::new() }
}

/// As Jupyter writes one.
fn new_cell(notebook: &Notebook<'_>, kind: Kind, source: &str) -> String {
    let mut members = vec![("cell_type", quoted(kind.name()))];
    if kind == Kind::Code {
        members.push(("execution_count", "null".to_owned()));
    }
    if notebook.has_ids {
        let mut id = uuid::Uuid::new_v4().simple().to_string();
        id.truncate(8);
        members.push(("id", quoted(&id)));
    }
    members.push(("metadata", "{}".to_owned()));
    if kind == Kind::Code {
        members.push(("outputs", "[]".to_owned()));
    }
    members.push(("source", notebook.layout.lines(source, CELL_DEPTH + 1)));
    let members: Vec<(String, String)> =
        members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    notebook.layout.object(&members, CELL_DEPTH)
}

/// The same cell with another source; its other members stay as they are written.
fn replaced_cell(notebook: &Notebook<'_>, cell: &Cell<'_>, kind: &str, source: &str) -> String {
    let is_code = kind == Kind::Code.name();
    let as_text = cell.members.get("source").is_some_and(|raw| raw.starts_with('"'));
    let source = if as_text { quoted(source) } else { notebook.layout.lines(source, CELL_DEPTH + 1) };
    let mut members: Vec<(String, String)> = Vec::new();
    for (key, value) in &cell.members.0 {
        let value = match key.as_str() {
            "cell_type" => quoted(kind),
            "source" => source.clone(),
            "execution_count" | "outputs" if !is_code => continue,
            "execution_count" => "null".to_owned(),
            "outputs" => "[]".to_owned(),
            _ => value.get().to_owned(),
        };
        members.push((key.clone(), value));
    }
    let lacks = |members: &[(String, String)], key: &str| !members.iter().any(|(name, _)| name == key);
    let due = [("cell_type", quoted(kind)), ("source", source)];
    let due_of_code = [("execution_count", "null".to_owned()), ("outputs", "[]".to_owned())];
    for (key, value) in due.into_iter().chain(due_of_code.into_iter().filter(|_| is_code)) {
        if lacks(&members, key) {
            members.push((key.to_owned(), value));
        }
    }
    notebook.layout.object(&members, CELL_DEPTH)
}
