//! Answers of servers as text: `file:line:col` and the line itself, from 1. Pure but for reading the lines.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use lsp_types::{
    Diagnostic, DiagnosticSeverity, DocumentSymbol, DocumentSymbolResponse, GotoDefinitionResponse, Hover,
    HoverContents, Location, MarkedString, NumberOrString, Position, Range, SymbolKind,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::tools::{Files, disk};

/// Places of one answer.
const MAX_PLACES: usize = 100;
/// Characters of a line.
const MAX_LINE_CHARS: usize = 200;
const MAX_HOVER_CHARS: usize = 8_000;
const MAX_SYMBOLS: usize = 500;
const MAX_DIAGNOSTICS: usize = 100;
const MAX_MESSAGE_CHARS: usize = 600;
/// Symbols inside one another that are shown so.
const MAX_DEPTH: usize = 12;
pub(super) const NOTHING: &str = "The server knows nothing about this place.";

/// How a server counts columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// In bytes; else in units of UTF-16.
    pub(super) counts_bytes: bool,
}

impl Columns {
    fn width(self, c: char) -> u32 {
        let width = if self.counts_bytes { c.len_utf8() } else { c.len_utf16() };
        u32::try_from(width).unwrap_or(1)
    }

    /// A line and a column from 1, as the server counts them.
    pub(super) fn position(
        self,
        source: &str,
        line: Option<u64>,
        character: Option<u64>,
    ) -> Result<Position, String> {
        let (Some(line), Some(character)) = (line, character) else {
            return Err("give line and character of the name, both from 1".to_owned());
        };
        let n_lines = source.lines().count();
        let index = usize::try_from(line).unwrap_or(usize::MAX);
        let Some(text) = index.checked_sub(1).and_then(|index| source.lines().nth(index)) else {
            return Err(format!("the file has {n_lines} lines; line {line} is none of them"));
        };
        let n_chars = text.chars().count();
        let before = usize::try_from(character).unwrap_or(usize::MAX).checked_sub(1);
        let Some(before) = before.filter(|before| *before <= n_chars) else {
            return Err(format!("line {line} has {n_chars} characters; {character} is none of them: {text}"));
        };
        let units = text.chars().take(before).map(|c| self.width(c)).sum();
        Ok(Position::new(u32::try_from(index - 1).unwrap_or(u32::MAX), units))
    }

    /// The column from 1, in characters, of a place that the server named.
    fn column(self, line: &str, character: u32) -> usize {
        let mut units = 0;
        line.chars()
            .take_while(|c| {
                units += self.width(*c);
                units <= character
            })
            .count()
            + 1
    }
}

/// What may be shown, and how.
pub(super) struct Shown<'a> {
    pub(super) files: &'a Files,
    pub(super) columns: Columns,
}

impl Shown<'_> {
    /// Places of definitions or references.
    pub(super) async fn places(&self, answer: Value, what: &str) -> Result<String, String> {
        let places = locations(answer)?;
        let mut by_file: BTreeMap<PathBuf, Vec<Range>> = BTreeMap::new();
        for (path, range) in places {
            if self.may_show(&path) {
                by_file.entry(path).or_default().push(range);
            }
        }
        if by_file.is_empty() {
            return Ok(NOTHING.to_owned());
        }
        let n_shown: usize = by_file.values().map(Vec::len).sum();
        let lines = read_lines(by_file.keys().take(MAX_PLACES).cloned().collect()).await;
        let mut out = match n_shown {
            1 => format!("1 {what}:\n"),
            n => format!("{n} {what}s:\n"),
        };
        let mut n = 0;
        for (path, mut ranges) in by_file {
            ranges.sort_by_key(|range| (range.start.line, range.start.character));
            for range in ranges {
                n += 1;
                if n > MAX_PLACES {
                    break;
                }
                let line = lines.get(&path).and_then(|lines| lines.get(range.start.line as usize));
                let line = line.map_or("", String::as_str);
                let _ =
                    writeln!(out, "{}: {}", self.place(&path, range, line), cut(line.trim(), MAX_LINE_CHARS));
            }
        }
        if n > MAX_PLACES {
            let _ = writeln!(out, "[{} more; Grep for the name shows them all]", n_shown - MAX_PLACES);
        }
        Ok(out)
    }

    fn place(&self, path: &Path, range: Range, line: &str) -> String {
        let column = self.columns.column(line, range.start.character);
        format!("{}:{}:{column}", self.files.display(path), range.start.line + 1)
    }

    fn may_show(&self, path: &Path) -> bool {
        (self.files.visible)(path) && (self.files.visible)(&disk::real_path(path))
    }

    /// Whether one of the places may not be seen.
    pub(super) fn hides_one(&self, definition: Value) -> Result<bool, String> {
        Ok(locations(definition)?.iter().any(|(path, _)| !self.may_show(path)))
    }

    /// The problems of a file.
    pub(super) fn diagnostics(&self, path: &Path, source: &str, list: &[Diagnostic]) -> String {
        if list.is_empty() {
            return "No problems are known in this file.".to_owned();
        }
        let mut sorted: Vec<&Diagnostic> = list.iter().collect();
        sorted.sort_by_key(|one| (one.range.start.line, one.range.start.character));
        let lines: Vec<&str> = source.lines().collect();
        let mut out = String::new();
        for one in sorted.iter().take(MAX_DIAGNOSTICS) {
            let line = lines.get(one.range.start.line as usize).copied().unwrap_or_default();
            let _ = writeln!(out, "{}: {}", self.place(path, one.range, line), message(one));
            let _ = writeln!(out, "    {}", cut(line.trim(), MAX_LINE_CHARS));
        }
        if sorted.len() > MAX_DIAGNOSTICS {
            let _ = writeln!(out, "[{} more]", sorted.len() - MAX_DIAGNOSTICS);
        }
        out
    }

    /// The outline of a file.
    pub(super) fn symbols(&self, answer: Value, path: &Path, source: &str) -> Result<String, String> {
        let answer: Option<DocumentSymbolResponse> = understood(answer)?;
        let lines: Vec<&str> = source.lines().collect();
        let mut all: Vec<(usize, String)> = Vec::new();
        let mut push = |depth: usize, name: &str, kind: SymbolKind, range: Range| {
            let line = lines.get(range.start.line as usize).copied().unwrap_or_default();
            let name = cut(name, MAX_LINE_CHARS);
            all.push((depth, format!("{}: {} {name}", self.place(path, range, line), kind_word(kind))));
        };
        match answer {
            None => {}
            Some(DocumentSymbolResponse::Flat(list)) => {
                for one in list {
                    push(0, &one.name, one.kind, one.location.range);
                }
            }
            Some(DocumentSymbolResponse::Nested(list)) => {
                let mut open: Vec<(usize, DocumentSymbol)> =
                    list.into_iter().rev().map(|one| (0, one)).collect();
                while let Some((depth, one)) = open.pop() {
                    push(depth, &one.name, one.kind, one.selection_range);
                    let children = one.children.unwrap_or_default();
                    open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
                }
            }
        }
        if all.is_empty() {
            return Ok("The server knows no symbols in this file.".to_owned());
        }
        let n_more = all.len().saturating_sub(MAX_SYMBOLS);
        let mut out = String::new();
        for (depth, line) in all.iter().take(MAX_SYMBOLS) {
            let _ = writeln!(out, "{}{line}", "  ".repeat((*depth).min(MAX_DEPTH)));
        }
        if n_more > 0 {
            let _ = writeln!(out, "[{n_more} more]");
        }
        Ok(out)
    }
}

/// What a server says about a name.
pub(super) fn hover(answer: Value) -> Result<String, String> {
    let Some(hover) = understood::<Option<Hover>>(answer)? else { return Ok(NOTHING.to_owned()) };
    let marked = |one: MarkedString| match one {
        MarkedString::String(text) => text,
        MarkedString::LanguageString(code) => format!("```{}\n{}\n```", code.language, code.value),
    };
    let text = match hover.contents {
        HoverContents::Scalar(one) => marked(one),
        HoverContents::Array(list) => list.into_iter().map(marked).collect::<Vec<_>>().join("\n\n"),
        HoverContents::Markup(markup) => markup.value,
    };
    if text.trim().is_empty() { Ok(NOTHING.to_owned()) } else { Ok(cut(text.trim(), MAX_HOVER_CHARS)) }
}

/// `error[E0308] rustc: mismatched types`
pub(super) fn message(one: &Diagnostic) -> String {
    let severity = match one.severity {
        Some(DiagnosticSeverity::WARNING) => "warning",
        Some(DiagnosticSeverity::INFORMATION) => "information",
        Some(DiagnosticSeverity::HINT) => "hint",
        _ => "error",
    };
    let code = match &one.code {
        Some(NumberOrString::String(code)) => format!("[{code}]"),
        Some(NumberOrString::Number(code)) => format!("[{code}]"),
        None => String::new(),
    };
    let source = one.source.as_ref().map(|source| format!(" {source}")).unwrap_or_default();
    let text = one.message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{severity}{code}{source}: {}", cut(&text, MAX_MESSAGE_CHARS))
}

fn locations(answer: Value) -> Result<Vec<(PathBuf, Range)>, String> {
    let found = match understood::<Option<GotoDefinitionResponse>>(answer)? {
        None => Vec::new(),
        Some(GotoDefinitionResponse::Scalar(one)) => vec![one],
        Some(GotoDefinitionResponse::Array(list)) => list,
        Some(GotoDefinitionResponse::Link(list)) => {
            list.into_iter().map(|link| Location::new(link.target_uri, link.target_selection_range)).collect()
        }
    };
    // What is no file, such as code inside an archive, cannot be opened either.
    let path = |location: Location| {
        let url = reqwest::Url::parse(location.uri.as_str()).ok()?;
        Some((url.to_file_path().ok()?, location.range))
    };
    let mut found: Vec<_> = found.into_iter().filter_map(path).collect();
    found.dedup();
    Ok(found)
}

fn understood<T: DeserializeOwned>(answer: Value) -> Result<T, String> {
    serde_json::from_value(answer).map_err(|error| format!("its answer is not understood: {error}"))
}

/// The lines of files; those that cannot be read have none.
async fn read_lines(paths: Vec<PathBuf>) -> HashMap<PathBuf, Vec<String>> {
    let read = move || {
        let lines = |path: &PathBuf| {
            let bytes = disk::read_whole(path).ok()?;
            Some(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect::<Vec<_>>())
        };
        paths.into_iter().filter_map(|path| lines(&path).map(|lines| (path, lines))).collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

fn kind_word(kind: SymbolKind) -> &'static str {
    match kind {
        SymbolKind::FILE => "file",
        SymbolKind::MODULE => "module",
        SymbolKind::NAMESPACE => "namespace",
        SymbolKind::PACKAGE => "package",
        SymbolKind::CLASS => "class",
        SymbolKind::METHOD => "method",
        SymbolKind::PROPERTY => "property",
        SymbolKind::FIELD => "field",
        SymbolKind::CONSTRUCTOR => "constructor",
        SymbolKind::ENUM => "enum",
        SymbolKind::INTERFACE => "interface",
        SymbolKind::FUNCTION => "function",
        SymbolKind::VARIABLE => "variable",
        SymbolKind::CONSTANT => "constant",
        SymbolKind::ENUM_MEMBER => "enum member",
        SymbolKind::STRUCT => "struct",
        SymbolKind::TYPE_PARAMETER => "type parameter",
        _ => "symbol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_characters_whatever_the_server_counts() {
        let source = "a\n\u{1f600}\u{e4} name\r\nend";
        // line, character, in UTF-16, in bytes
        for (line, character, utf16, utf8) in
            [(1, 1, 0, 0), (2, 1, 0, 0), (2, 4, 4, 7), (2, 8, 8, 11), (3, 4, 3, 3)]
        {
            for (counts_bytes, expected) in [(false, utf16), (true, utf8)] {
                let columns = Columns { counts_bytes };
                let at = columns.position(source, Some(line), Some(character)).unwrap();
                assert_eq!(at, Position::new(line as u32 - 1, expected), "{line}:{character}");
                let text = source.lines().nth(line as usize - 1).unwrap();
                assert_eq!(columns.column(text, at.character), character as usize);
            }
        }
        let columns = Columns { counts_bytes: false };
        for (line, character, problem) in [
            (Some(4), Some(1), "has 3 lines"),
            (Some(0), Some(1), "has 3 lines"),
            (Some(1), Some(3), "has 1 characters"),
            (Some(1), Some(0), "has 1 characters"),
            (None, Some(1), "give line and character"),
        ] {
            assert!(columns.position(source, line, character).unwrap_err().contains(problem));
        }
    }
}
