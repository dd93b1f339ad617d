//! A TOML text as a flat list of values with their places.

use std::{fmt, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::{ConfigError, ConfigProblem, ConfigReadError, Place},
    file::{MAX_BYTES, read_bounded},
};

/// A settings file as text. The reading is the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TomlText {
    /// The path as people should read it: `swarm.toml`, `~/.swarm/config.toml`.
    pub path: String,
    pub text: String,
}

impl TomlText {
    /// Reads a file; `None` when there is none. `shown` is the path as people should read it.
    pub fn read(path: &Path, shown: &str) -> Result<Option<Self>, ConfigReadError> {
        let text = read_bounded(path, MAX_BYTES)
            .map_err(|source| ConfigReadError { path: path.to_path_buf(), source })?;
        Ok(text.map(|text| Self { path: shown.to_owned(), text }))
    }
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Located {
    pub(crate) value: Raw,
    pub(crate) place: Place,
}

/// A value before it is checked against its key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Raw>),
    /// A table in braces.
    Table(Vec<(String, Raw)>),
    /// A date, or a number too large.
    Other(String),
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(Self::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Table(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                write!(f, "{{ {} }}", fields.join(", "))
            }
            Self::Other(text) => write!(f, "{text}"),
        }
    }
}

/// One line of settings: its path of keys, the place of the key, the value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<String>,
    pub(crate) key_place: Place,
    pub(crate) located: Located,
}

/// Deepest nesting of tables that is followed.
const MAX_DEPTH: usize = 8;

pub(crate) fn entries(file: &TomlText) -> Result<Vec<Entry>, ConfigError> {
    let table = DeTable::parse(&file.text).map_err(|error| {
        let place = error.span().map(|span| Box::new(Place::of(&file.path, &file.text, span)));
        let message = error.message().lines().next().unwrap_or_default().to_owned();
        ConfigError { problem: ConfigProblem::Syntax { message }, place, given_by: None, hint: None }
    })?;
    let mut entries = Vec::new();
    walk(file, &[], table.get_ref(), &mut entries);
    Ok(entries)
}

fn walk(file: &TomlText, above: &[String], table: &DeTable<'_>, entries: &mut Vec<Entry>) {
    for (key, value) in table {
        let mut path = above.to_vec();
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            // An empty table in the place of a value is a wrong value, not nothing.
            DeValue::Table(table) if path.len() < MAX_DEPTH && !(table.is_empty() && is_key(&path)) => {
                walk(file, &path, table, entries)
            }
            _ => entries.push(Entry {
                path,
                key_place: Place::of(&file.path, &file.text, key.span()),
                located: Located {
                    value: raw(value),
                    place: Place::of(&file.path, &file.text, value.span()),
                },
            }),
        }
    }
}

fn is_key(path: &[String]) -> bool {
    super::keys::find(&path.join(".")).is_some()
}

fn raw(value: &Spanned<DeValue<'_>>) -> Raw {
    match value.get_ref() {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Raw::Integer(number),
            Err(_) => Raw::Other(number.as_str().to_owned()),
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Raw::Float(number),
            Err(_) => Raw::Other(number.as_str().to_owned()),
        },
        DeValue::Boolean(value) => Raw::Bool(*value),
        DeValue::Datetime(date) => Raw::Other(date.to_string()),
        DeValue::Array(values) => Raw::List(values.iter().map(raw).collect()),
        DeValue::Table(table) => {
            Raw::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), raw(value))).collect())
        }
    }
}
