//! A Jupyter notebook as text: where its cells stand in the file, so that one can be changed and every other byte
//! stays. What Read shows of it and what NotebookEdit writes both start here. Pure.

use std::{fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The members of a JSON object in their order, as they are written.
pub(super) struct Members<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Collect).map(Members)
    }
}

impl<'a> Members<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.get())
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(joined)
    }
}

/// A string, or the lines of a list put together: notebooks have both.
pub(super) fn joined(raw: &str) -> Option<String> {
    serde_json::from_str::<Vec<String>>(raw)
        .map(|lines| lines.concat())
        .or_else(|_| serde_json::from_str::<String>(raw))
        .ok()
}

/// One cell.
pub(super) struct Cell<'a> {
    /// Where it stands in the text of the file.
    pub(super) range: Range<usize>,
    pub(super) members: Members<'a>,
}

impl Cell<'_> {
    /// Its own id; older notebooks have none.
    pub(super) fn id(&self) -> Option<String> {
        self.members.text("id")
    }

    /// code, markdown or raw.
    pub(super) fn kind(&self) -> String {
        self.members.text("cell_type").unwrap_or_default()
    }

    pub(super) fn source(&self) -> String {
        self.members.text("source").unwrap_or_default()
    }
}

/// A notebook.
pub(super) struct Notebook<'a> {
    pub(super) cells: Vec<Cell<'a>>,
    /// Where the list of the cells stands.
    pub(super) list: Range<usize>,
    /// Whether its cells have ids (from format 4.5 on).
    pub(super) has_ids: bool,
    pub(super) layout: Layout,
}

impl<'a> Notebook<'a> {
    /// An error says why the text is none that can be understood.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let top: Members<'a> = serde_json::from_str(text)
            .map_err(|error| format!("it is no notebook, its JSON is broken: {error}"))?;
        let number = |key: &str| top.get(key).and_then(|raw| raw.parse::<u64>().ok());
        let major = number("nbformat").unwrap_or(0);
        if major != 4 {
            return Err(format!(
                "its notebook format is {major}, and only 4 is known (jupyter nbconvert converts it)"
            ));
        }
        let list = top.get("cells").ok_or("it has no list of cells")?;
        let raw_cells: Vec<&'a RawValue> =
            serde_json::from_str(list).map_err(|error| format!("its cells are no list: {error}"))?;
        let cells = raw_cells
            .into_iter()
            .map(|raw| {
                let members =
                    serde_json::from_str(raw.get()).map_err(|error| format!("a cell is broken: {error}"))?;
                Ok(Cell { range: place(text, raw.get()), members })
            })
            .collect::<Result<Vec<_>, String>>()?;
        Ok(Self {
            cells,
            list: place(text, list),
            has_ids: number("nbformat_minor").unwrap_or(0) >= 5,
            layout: Layout::of(text, top.0.first().map(|(_, first)| place(text, first.get()).start)),
        })
    }

    /// The place of a cell by its id, or its number from 1.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let name = name.trim();
        self.cells.iter().position(|cell| cell.id().as_deref() == Some(name)).or_else(|| {
            let number = name.strip_prefix("cell").unwrap_or(name).trim_start_matches(['-', ' ']);
            number.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < self.cells.len())
        })
    }
}

/// Where a piece of a text stands in it.
fn place(text: &str, piece: &str) -> Range<usize> {
    let start = piece.as_ptr().addr() - text.as_ptr().addr();
    start..start + piece.len()
}

/// How the file writes its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// One step of indentation; none: all on one line.
    pub(super) step: Option<String>,
    colon: &'static str,
    comma: &'static str,
}

impl Layout {
    fn of(text: &str, first_value: Option<usize>) -> Self {
        let head = text.trim_start().strip_prefix('{').unwrap_or_default();
        let space = &head[..head.len() - head.trim_start().len()];
        let step = space.rfind('\n').map(|at| space[at + 1..].to_owned());
        let is_wide = first_value.is_none_or(|at| text[..at].ends_with(' '));
        Self {
            comma: if step.is_none() && is_wide { ", " } else { "," },
            colon: if is_wide { ": " } else { ":" },
            step,
        }
    }

    /// What stands between two parts at a depth.
    pub(super) fn between(&self, depth: usize) -> String {
        match &self.step {
            Some(step) => format!(",\n{}", step.repeat(depth)),
            None => self.comma.to_owned(),
        }
    }

    fn enclosed(&self, open: char, parts: &[String], close: char, depth: usize) -> String {
        if parts.is_empty() {
            return format!("{open}{close}");
        }
        let inside = parts.join(&self.between(depth + 1));
        match &self.step {
            Some(step) => {
                format!("{open}\n{}{inside}\n{}{close}", step.repeat(depth + 1), step.repeat(depth))
            }
            None => format!("{open}{inside}{close}"),
        }
    }

    /// An object at a depth, of values that are written already.
    pub(super) fn object(&self, members: &[(String, String)], depth: usize) -> String {
        let parts: Vec<String> =
            members.iter().map(|(key, value)| format!("{}{}{value}", quoted(key), self.colon)).collect();
        self.enclosed('{', &parts, '}', depth)
    }

    /// A text as the list of its lines.
    pub(super) fn lines(&self, text: &str, depth: usize) -> String {
        let parts: Vec<String> = text.split_inclusive('\n').map(quoted).collect();
        self.enclosed('[', &parts, ']', depth)
    }

    /// A list around parts that are written already.
    pub(super) fn list(&self, parts: &[String], depth: usize) -> String {
        self.enclosed('[', parts, ']', depth)
    }
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
