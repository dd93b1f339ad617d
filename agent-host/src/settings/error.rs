//! What is wrong with a setting, where, and how to mend it.

use std::{fmt, io, path::PathBuf};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Default,
    /// Path as people should read it, and the line from 1.
    File {
        path: String,
        line: usize,
    },
    /// The variable.
    Env(String),
    /// The flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Env(name) => write!(f, "{name}"),
            Self::Flag(name) => write!(f, "{name}"),
        }
    }
}

/// A place in a text, as an error shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The whole line.
    pub text: String,
    /// Characters to underline, at least 1.
    pub width: usize,
}

impl Place {
    /// The place of a byte range.
    pub(crate) fn of(path: &str, text: &str, span: std::ops::Range<usize>) -> Self {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        let column = text[line_start..start].chars().count();
        let on_line = line.chars().count().saturating_sub(column);
        let end = span.end.min(text.len()).max(start);
        let width = text
            .get(start..end)
            .map_or(1, |marked| marked.lines().next().unwrap_or_default().chars().count());
        Self {
            path: path.to_owned(),
            line: text[..start].matches('\n').count() + 1,
            column: column + 1,
            text: line.to_owned(),
            width: width.min(on_line).max(1),
        }
    }
}

impl fmt::Display for Place {
    /// `path:line:col`, the line, and carets under what is meant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, text, width } = self;
        let number = line.to_string();
        let text = text.replace('\t', " ");
        writeln!(f, "{path}:{line}:{column}")?;
        writeln!(f, "{number} | {text}")?;
        write!(f, "{:n$} | {:c$}{}", "", "", "^".repeat(*width), n = number.len(), c = column - 1)
    }
}

/// A setting that cannot be used. Its text is what is wrong; `place` says where, `hint` how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ConfigError {
    pub problem: ConfigProblem,
    pub place: Option<Box<Place>>,
    /// Variable or flag, where there is no file.
    pub given_by: Option<Source>,
    pub hint: Option<String>,
}

impl ConfigError {
    /// The lines of "cause:", without indent.
    pub fn cause(&self) -> Option<String> {
        match (&self.place, &self.given_by) {
            (Some(place), _) => Some(place.to_string()),
            (None, Some(source)) => Some(source.to_string()),
            (None, None) => None,
        }
    }
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    #[error("the file is not TOML: {message}")]
    Syntax { message: String },
    #[error("there is no setting `{key}`")]
    UnknownKey { key: String },
    #[error("`{key}` is not available yet")]
    NotAvailable { key: String },
    #[error("`{key}` belongs in config.toml, not in a repository's swarm.toml")]
    NotInRepository { key: String },
    #[error("{key} must be {expected}")]
    Invalid { key: String, expected: String },
    #[error("the endpoint `{name}` needs {missing}")]
    IncompleteEndpoint { name: String, missing: &'static str },
}

/// A settings file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {}", .path.display())]
pub struct ConfigReadError {
    pub path: PathBuf,
    pub source: io::Error,
}
