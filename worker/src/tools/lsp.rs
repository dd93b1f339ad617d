//! LSP: what language servers know about the code. Servers are programs on PATH, started when they are first asked,
//! confined as commands are but without leave to write in the worktree, one for each language, and ended with the run.
//!
//! Lines and columns are the model's: both from 1, columns in characters. Nothing is shown of files that may not be
//! seen, whatever the server says.

mod answers;
mod client;
mod framing;
mod fresh;
mod languages;
mod registry;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use query_engine::ports::{Subject, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::ToolUseId;
use tokio::time::Instant;

use self::{
    answers::{Columns, Shown},
    client::{Client, uri},
    registry::Place,
};
pub use self::{
    fresh::WithDiagnostics,
    registry::{Languages, LanguagesConfig},
};
use super::{Files, disk, lenient_number, parse};

/// How long a server may be busy with the project before it is asked all the same.
const BUSY_TIME: Duration = Duration::from_secs(60);
/// How long it may take to say something about a file that it was shown.
const DIAGNOSTICS_TIME: Duration = Duration::from_secs(15);
/// Files of source code are smaller.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The tool.
pub struct Lsp {
    files: Arc<Files>,
    languages: Arc<Languages>,
}

impl Lsp {
    /// Over these files and servers.
    pub fn new(files: Arc<Files>, languages: Arc<Languages>) -> Self {
        Self { files, languages }
    }

    async fn answer(&self, input: Input, call: &ToolUseId) -> Result<String, String> {
        let given = &input.file_path;
        let real = self.files.real_path(call, given)?;
        let is_visible = (self.files.visible)(&self.files.path(given)) && (self.files.visible)(&real);
        if !is_visible {
            return Err(disk::Unreadable::Missing.sentence(given));
        }
        let source = source(&real, given).await?;
        let place = self.languages.place_of(&real)?;
        let client = self.languages.client(&place).await?;
        let answer = self.ask(&client, &place, &real, &source, &input).await;
        match answer {
            // It is started again by the next call, as often as that is allowed.
            Err(problem) if !client.is_alive() => {
                Err(format!("{}: {problem}. Call again to start it anew", place.program()))
            }
            Err(problem) => Err(format!("{}: {problem}", place.program())),
            Ok(answer) => Ok(answer),
        }
    }

    async fn ask(
        &self,
        client: &Client,
        place: &Place,
        path: &std::path::Path,
        source: &str,
        input: &Input,
    ) -> Result<String, String> {
        let before = client.published(path);
        let is_news = client.show(path, place.language(), source).await?;
        self.languages.refresh(client).await?;
        let busy_until = Instant::now() + BUSY_TIME;
        let columns = Columns { counts_bytes: client.counts_bytes };
        let shown = Shown { files: &self.files, columns };
        let document = json!({"textDocument": {"uri": uri(path).ok_or("the path is no URI")?}});
        let mut answer = match input.operation {
            Operation::Diagnostics => {
                let deadline = Instant::now() + DIAGNOSTICS_TIME;
                let mut known = client.published(path);
                if is_news || !client.has_published(path) {
                    match client.published_after(path, &before, deadline).await {
                        Some(published) => known = published,
                        None if !client.is_alive() => return Err("it ended".to_owned()),
                        None => return Ok(silent(client.has_published(path))),
                    }
                    // A check of the whole project comes after the first words.
                    client.settled(deadline).await;
                    let last = client.published(path);
                    if client.is_alive() {
                        known = last
                    }
                }
                shown.diagnostics(path, source, &known.list)
            }
            Operation::DocumentSymbol => {
                client.settled(busy_until).await;
                let answer = client.request("textDocument/documentSymbol", document).await?;
                shown.symbols(answer, path, source)?
            }
            operation => {
                let at = columns.position(source, input.line, input.character)?;
                client.settled(busy_until).await;
                let mut params = document;
                params["position"] = json!({"line": at.line, "character": at.character});
                if operation == Operation::References {
                    params["context"] = json!({"includeDeclaration": true});
                }
                self.at_position(client, operation, params, &shown).await?
            }
        };
        if !client.settled(Instant::now()).await {
            answer.push_str("\n[The server is still busy with the project; it may know more later]");
        }
        Ok(answer)
    }

    async fn at_position(
        &self,
        client: &Client,
        operation: Operation,
        params: Value,
        shown: &Shown<'_>,
    ) -> Result<String, String> {
        match operation {
            Operation::References => {
                shown.places(client.request("textDocument/references", params).await?, "reference").await
            }
            Operation::Hover => {
                let hover = client.request("textDocument/hover", params.clone()).await?;
                // What it quotes stands where the thing is defined, which may be hidden.
                let defined = client.request("textDocument/definition", params).await.map_err(|error| {
                    format!(
                        "{error}, so it is not known where this comes from, and its description is not shown"
                    )
                })?;
                Ok(if shown.hides_one(defined)? {
                    answers::NOTHING.to_owned()
                } else {
                    answers::hover(hover)?
                })
            }
            Operation::Definition | Operation::Diagnostics | Operation::DocumentSymbol => {
                shown.places(client.request("textDocument/definition", params).await?, "definition").await
            }
        }
    }
}

fn silent(has_published: bool) -> String {
    let seconds = DIAGNOSTICS_TIME.as_secs();
    match has_published {
        true => {
            format!("The server said nothing new about this file within {seconds} s; ask again in a while.")
        }
        false => format!(
            "The server said nothing about this file within {seconds} s; it may know no problems in it."
        ),
    }
}

/// The file as text.
async fn source(real: &std::path::Path, given: &str) -> Result<String, String> {
    let path = real.to_owned();
    let read = tokio::task::spawn_blocking(move || disk::read_whole(&path)).await;
    let bytes =
        read.map_err(|_| format!("{given} could not be read"))?.map_err(|problem| problem.sentence(given))?;
    if bytes.len() > MAX_BYTES {
        return Err(format!("{given} has {} bytes, too many for a language server.", bytes.len()));
    }
    String::from_utf8(bytes).map_err(|_| format!("{given} is not UTF-8."))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Operation {
    Definition,
    References,
    Hover,
    Diagnostics,
    DocumentSymbol,
}

#[derive(Deserialize)]
struct Input {
    operation: Operation,
    file_path: String,
    #[serde(default, deserialize_with = "lenient_number")]
    line: Option<u64>,
    #[serde(default, deserialize_with = "lenient_number")]
    character: Option<u64>,
}

#[async_trait]
impl Tool for Lsp {
    fn name(&self) -> &str {
        "LSP"
    }

    fn description(&self) -> String {
        format!(
            "Asks a language server about code: where a name is defined, all references to it, its type and \
             documentation (hover), the problems of a file (diagnostics), or its outline (documentSymbol). `line` and \
             `character` say where the name stands, both from 1. For files that end in {}. The first question of a \
             language takes a while.",
            self.languages.extensions()
        )
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "operation": {
                    "type": "string",
                    "enum": ["definition", "references", "hover", "diagnostics", "documentSymbol"]
                },
                "file_path": {"type": "string"},
                "line": {"type": "integer", "description": "Of the name, from 1; for definition, references, hover"},
                "character": {"type": "integer", "description": "Column of the name's first character, from 1"}
            },
            "required": ["operation", "file_path"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        // Servers run what projects bring along: build scripts, macros, plugins.
        self.languages.is_confined()
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        let path: Option<PathBuf> = self.files.path_of(input);
        let mut subjects: Vec<Subject> = path.map(Subject::Read).into_iter().collect();
        if !self.languages.is_confined() {
            subjects.push(Subject::Name("server".to_owned()));
        }
        subjects
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "language server: go to definition, find references, hover, type errors, diagnostics, symbols of a file"
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("LSP", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        // A question that is dropped takes itself back.
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => ToolOutput::error("The question was cancelled."),
            answer = self.answer(input, &context.tool_use_id) => answer.map_or_else(ToolOutput::error, ToolOutput::text),
        }
    }
}
