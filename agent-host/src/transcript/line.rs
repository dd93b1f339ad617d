//! One line of a transcript: a record, several by accident, or a note of the writer to itself.

use serde::de::IgnoredAny;
use serde_json::Value;
use swarm_protocol::{frame::RecordMark, record::Record};

use super::{notes, read::StoredRecord};

/// What stands on a line.
pub(super) enum Item {
    /// A record of a kind that this version knows.
    Known(Box<StoredRecord>),
    /// A record in its outer shape whose body this version does not know.
    Unknown(RecordMark),
    /// A checkpoint or metadata: no record, and nothing is wrong with the line.
    Note,
}

impl Item {
    /// Number and identity, of a record.
    pub(super) fn mark(&self) -> Option<RecordMark> {
        match self {
            Self::Known(stored) => Some(RecordMark { n: stored.record.n, uuid: stored.record.uuid }),
            Self::Unknown(mark) => Some(*mark),
            Self::Note => None,
        }
    }
}

/// A line, taken apart.
pub(super) struct ParsedLine {
    pub(super) items: Vec<Item>,
    /// Every byte of the line belongs to an item.
    pub(super) is_whole: bool,
}

/// Nothing but space and zeros.
pub(super) fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n'))
}

/// Bytes of a line that [`leading_number`] needs.
pub(super) const NUMBER_BYTES: u64 = 48;

/// The number of the record a line begins with, if our own writer wrote it, without parsing the rest. What
/// follows the number shows that it was not torn.
pub(super) fn leading_number(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"n\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !rest[digits..].starts_with(b",\"uuid\":\"") {
        return None;
    }
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Whether a second record of our writer follows on the same line. Inside a record these bytes cannot stand:
/// JSON escapes the quotes of a text.
pub(super) fn holds_a_second_record(line: &[u8]) -> bool {
    memchr::memmem::find(line, b"}{\"n\":").is_some()
}

/// Takes a line apart.
pub(super) fn parse_line(line: &[u8]) -> ParsedLine {
    let bytes = line.len() as u64;
    let start = line.iter().take_while(|byte| **byte == 0).count();
    let end = line.iter().rposition(|byte| !matches!(byte, 0 | b'\n')).map_or(start, |at| at + 1);
    let text = &line[start..end.max(start)];
    if notes::begins_as_note(text) && serde_json::from_slice::<IgnoredAny>(text).is_ok() {
        return ParsedLine { items: vec![Item::Note], is_whole: true };
    }
    if let Ok(record) = serde_json::from_slice::<Record>(text) {
        let stored = StoredRecord { record, bytes };
        return ParsedLine { items: vec![Item::Known(Box::new(stored))], is_whole: true };
    }
    let mut items = Vec::new();
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let mut before = 0;
    let mut is_whole = true;
    while let Some(value) = values.next() {
        let length = (values.byte_offset() - before) as u64;
        before = values.byte_offset();
        match value.ok().and_then(|value| item(value, length)) {
            Some(item) => items.push(item),
            None => {
                is_whole = false;
                break;
            }
        }
    }
    is_whole &= !items.is_empty();
    ParsedLine { items, is_whole }
}

fn item(value: Value, bytes: u64) -> Option<Item> {
    if notes::is_note(&value) {
        return Some(Item::Note);
    }
    let n = value.get("n")?.as_u64()?;
    let uuid = value.get("uuid")?.as_str()?.parse().ok()?;
    match serde_json::from_value::<Record>(value) {
        Ok(record) => Some(Item::Known(Box::new(StoredRecord { record, bytes }))),
        Err(_) => Some(Item::Unknown(RecordMark { n, uuid })),
    }
}
