//! The cells of a notebook with their outputs, pictures among them.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use query_engine::ports::ToolOutput;
use swarm_protocol::ResultBlock;

use super::{Input, MAX_ANSWER_BYTES, image};
use crate::tools::notebook::{Cell, Members, Notebook, joined};

/// Bytes shown of the text of one output.
const MAX_OUTPUT_BYTES: usize = 10_000;
/// Pictures of one answer.
const MAX_PICTURES: usize = 10;
/// Bytes of their data, after which no more are shown: a request has 32 MB in all.
const MAX_PICTURE_BYTES: usize = 5_000_000;

/// These cells; an error says why the text is no notebook.
pub(super) fn shown(text: &str, input: &Input) -> Result<ToolOutput, String> {
    let notebook = Notebook::parse(text)?;
    let total = notebook.cells.len();
    if total == 0 {
        return Ok(ToolOutput::text("(the notebook has no cells)"));
    }
    let first = usize::try_from(input.offset.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    if first > total {
        return Ok(ToolOutput::error(format!(
            "The notebook has {total} cells; offset {first} is past its end."
        )));
    }
    let limit = input.limit.map_or(usize::MAX, |limit| usize::try_from(limit.max(1)).unwrap_or(usize::MAX));
    let mut answer = Answer::default();
    let mut last = first - 1;
    for (number, cell) in (first..).zip(notebook.cells.iter().skip(first - 1).take(limit)) {
        if answer.bytes > MAX_ANSWER_BYTES {
            break;
        }
        last = number;
        answer.cell(number, cell);
    }
    if last < total {
        answer.push(&format!("[cells {first} to {last} of {total}; go on with offset {}]\n", last + 1));
    }
    Ok(answer.finish())
}

/// The answer as it grows.
#[derive(Default)]
struct Answer {
    blocks: Vec<ResultBlock>,
    text: String,
    bytes: usize,
    pictures: usize,
    /// Of their data, as it is sent.
    picture_bytes: usize,
}

impl Answer {
    fn push(&mut self, text: &str) {
        self.bytes += text.len();
        self.text.push_str(&text.replace('\0', "\u{2400}"));
    }

    /// Ends its line, and is cut when it is long.
    fn push_bounded(&mut self, text: &str, most: usize) {
        let cut = text.floor_char_boundary(most);
        self.push(&text[..cut]);
        if !text[..cut].is_empty() && !text[..cut].ends_with('\n') {
            self.push("\n");
        }
        if cut < text.len() {
            self.push(&format!("[{} of {} bytes are left out]\n", text.len() - cut, text.len()));
        }
    }

    fn cell(&mut self, number: usize, cell: &Cell<'_>) {
        let id = cell.id().map_or_else(String::new, |id| format!(", id {id}"));
        self.push(&format!("[cell {number}, {}{id}]\n", cell.kind()));
        self.push_bounded(&cell.source(), MAX_ANSWER_BYTES);
        let outputs: Vec<Members<'_>> =
            cell.members.get("outputs").and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
        for (n_before, output) in outputs.iter().enumerate() {
            if self.bytes > MAX_ANSWER_BYTES {
                let left = outputs.len() - n_before;
                self.push(&format!("[{left} more outputs of cell {number} are left out]\n"));
                break;
            }
            self.output(number, output);
        }
        self.push("\n");
    }

    fn output(&mut self, number: usize, output: &Members<'_>) {
        let kind = output.text("output_type").unwrap_or_default();
        match kind.as_str() {
            "stream" => {
                self.push(&format!("[{} of cell {number}]\n", output.text("name").unwrap_or_default()));
                self.push_bounded(&plain(&output.text("text").unwrap_or_default()), MAX_OUTPUT_BYTES);
            }
            "error" => {
                self.push(&format!("[error of cell {number}]\n"));
                let (name, value) = (output.text("ename"), output.text("evalue"));
                let mut text = format!("{}: {}\n", name.unwrap_or_default(), value.unwrap_or_default());
                let trace: Vec<String> = output
                    .get("traceback")
                    .and_then(|raw| serde_json::from_str(raw).ok())
                    .unwrap_or_default();
                let _ = write!(text, "{}", plain(&trace.join("\n")));
                self.push_bounded(&text, MAX_OUTPUT_BYTES);
            }
            _ => self.data(number, output),
        }
    }

    /// A result in several forms: its words, and its picture.
    fn data(&mut self, number: usize, output: &Members<'_>) {
        self.push(&format!("[output of cell {number}]\n"));
        let Some(forms) = output.get("data").and_then(|raw| serde_json::from_str::<Members<'_>>(raw).ok())
        else {
            return;
        };
        let is_picture = |form: &str| matches!(form, "image/png" | "image/jpeg" | "image/gif" | "image/webp");
        let has_picture = forms.0.iter().any(|(form, _)| is_picture(form));
        let words =
            ["text/plain", "text/markdown", "text/latex", "text/html", "application/json", "image/svg+xml"];
        if let Some(form) = words.into_iter().find(|form| forms.get(form).is_some())
            // Beside a picture the other forms only describe it.
            && (!has_picture || form == "text/plain")
        {
            let raw = forms.get(form).unwrap_or_default();
            self.push_bounded(&plain(&joined(raw).unwrap_or_else(|| raw.to_owned())), MAX_OUTPUT_BYTES);
        }
        for (form, raw) in forms.0.iter().filter(|(form, _)| is_picture(form)) {
            self.picture(form, &joined(raw.get()).unwrap_or_default());
        }
    }

    fn picture(&mut self, form: &str, data: &str) {
        if self.pictures == MAX_PICTURES || self.picture_bytes > MAX_PICTURE_BYTES {
            self.push(&format!("[{form} is left out: enough pictures are shown at once]\n"));
            return;
        }
        let data: String = data.split_whitespace().collect();
        let picture = BASE64_STANDARD.decode(data).map_err(|error| error.to_string()).and_then(|bytes| {
            match image::format(&bytes) {
                Some(format) => image::picture(&bytes, format),
                None => Err("it is no picture".to_owned()),
            }
        });
        match picture {
            Ok(picture) => {
                self.push(&format!("[{}]\n", picture.note));
                self.pictures += 1;
                if let ResultBlock::Image { data, .. } = &picture.block {
                    self.picture_bytes += data.len();
                }
                self.blocks.push(ResultBlock::text(std::mem::take(&mut self.text)));
                self.blocks.push(picture.block);
            }
            Err(problem) => self.push(&format!("[{form} cannot be shown: {problem}]\n")),
        }
    }

    fn finish(mut self) -> ToolOutput {
        let mut answer = ToolOutput::text(self.text.trim_end());
        if !self.blocks.is_empty() {
            if !self.text.trim().is_empty() {
                self.blocks.append(&mut answer.content);
            }
            answer.content = self.blocks;
        }
        answer
    }
}

/// Without colours and cursor movements.
fn plain(text: &str) -> String {
    strip_ansi_escapes::strip_str(text)
}
