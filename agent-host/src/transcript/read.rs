//! Reading transcripts that may be torn, padded, or written by another version.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufRead, BufReader, Seek as _, SeekFrom},
    path::Path,
};

use serde_json::Value;
use swarm_protocol::{frame::RecordMark, record::Record};
use uuid::Uuid;

/// A record with the size of its line.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The record.
    pub record: Record,
    /// Bytes of its line, the line break included.
    pub bytes: u64,
}

/// What was wrong with a transcript.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// Bytes at the end that are no whole record: a torn write, or zeros after power loss.
    pub torn_bytes: u64,
    /// Lines in the middle that are no records.
    pub bad_lines: u64,
    /// Records with an identity seen before, left out.
    pub duplicates: u64,
    /// Records that named themselves as their parent; the link was dropped.
    pub self_parents: u64,
    /// Records of a kind that this version does not know; they stay in the file.
    pub unknown: u64,
}

impl Defects {
    /// Whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of a transcript.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its records, in order.
    pub records: Vec<StoredRecord>,
    /// Whether more whole records follow.
    pub has_more: bool,
    /// Lines that hold no whole record, from the start of the file to the end of this page.
    pub bad_lines: u64,
}

pub(super) struct Scan {
    pub(super) records: Vec<StoredRecord>,
    pub(super) last: Option<RecordMark>,
    pub(super) defects: Defects,
    /// Where the last whole line ends.
    pub(super) good_end: u64,
    /// The last record is whole but for its line break.
    pub(super) lacks_line_break: bool,
}

pub(super) fn scan_all(file: &mut File) -> io::Result<Scan> {
    file.seek(SeekFrom::Start(0))?;
    let mut scan = Scan {
        records: Vec::new(),
        last: None,
        defects: Defects::default(),
        good_end: 0,
        lacks_line_break: false,
    };
    let mut seen = HashSet::new();
    let mut bad_since_good = 0;
    let mut position = 0_u64;
    for_each_line(BufReader::new(file), |line| {
        position += line.len() as u64;
        let parsed = parse_line(line);
        if !parsed.is_whole && parsed.items.is_empty() {
            bad_since_good += u64::from(!is_blank(line));
            return true;
        }
        scan.defects.bad_lines += std::mem::take(&mut bad_since_good) + u64::from(!parsed.is_whole);
        scan.good_end = position;
        scan.lacks_line_break = !line.ends_with(b"\n");
        for item in parsed.items {
            take(item, &mut scan, &mut seen);
        }
        true
    })?;
    // What follows the last good line is an end that never became whole.
    scan.defects.torn_bytes = position - scan.good_end;
    Ok(scan)
}

fn take(item: Item, scan: &mut Scan, seen: &mut HashSet<Uuid>) {
    let mark = item.mark();
    if !seen.insert(mark.uuid) {
        scan.defects.duplicates += 1;
        return;
    }
    // Numbers only grow, also where lines were lost.
    if scan.last.is_none_or(|last| last.n < mark.n) {
        scan.last = Some(mark);
    }
    match item {
        Item::Known(mut stored) => {
            if stored.record.parent_uuid == Some(stored.record.uuid) {
                stored.record.parent_uuid = None;
                scan.defects.self_parents += 1;
            }
            scan.records.push(*stored);
        }
        Item::Unknown(_) => scan.defects.unknown += 1,
    }
}

/// Up to `limit` records numbered above `after`. Takes no lock and changes nothing: the writer may be at
/// work, and a line that is not whole yet is not there yet.
///
/// # Errors
/// The file cannot be read; one that does not exist is an empty transcript.
pub fn read_page(path: &Path, after: u64, limit: usize) -> io::Result<Page> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Page::default()),
        Err(error) => return Err(error),
    };
    let mut page = Page::default();
    let mut seen = HashSet::new();
    for_each_line(BufReader::new(file), |line| {
        if !line.ends_with(b"\n") {
            return true;
        }
        if leading_number(line).is_some_and(|n| n <= after) {
            let whole = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
            page.bad_lines += u64::from(!whole);
            return true;
        }
        let parsed = parse_line(line);
        page.bad_lines += u64::from(!parsed.is_whole && !is_blank(line));
        for item in parsed.items {
            if let Item::Known(stored) = item
                && stored.record.n > after
                && seen.insert(stored.record.uuid)
            {
                if page.records.len() == limit {
                    page.has_more = true;
                    return false;
                }
                page.records.push(*stored);
            }
        }
        true
    })?;
    Ok(page)
}

/// Calls with each line, its break included, until the answer is `false`. The last may lack its break.
fn for_each_line(mut reader: impl BufRead, mut each: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 || !each(&line) {
            return Ok(());
        }
    }
}

enum Item {
    Known(Box<StoredRecord>),
    Unknown(RecordMark),
}

impl Item {
    fn mark(&self) -> RecordMark {
        match self {
            Self::Known(stored) => RecordMark { n: stored.record.n, uuid: stored.record.uuid },
            Self::Unknown(mark) => *mark,
        }
    }
}

struct ParsedLine {
    items: Vec<Item>,
    /// Every byte of the line belongs to a record.
    is_whole: bool,
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n'))
}

/// What our own writer puts first, without parsing the rest. A line with a second object on it is caught
/// by neither reader wrongly: both objects of such a line have neighbouring numbers.
fn leading_number(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"n\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Two objects on one line: parse it properly.
    if line.windows(6).skip(1).any(|window| window == b"}{\"n\":") {
        return None;
    }
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

fn parse_line(line: &[u8]) -> ParsedLine {
    let bytes = line.len() as u64;
    let start = line.iter().take_while(|byte| **byte == 0).count();
    let end = line.iter().rposition(|byte| !matches!(byte, 0 | b'\n')).map_or(start, |at| at + 1);
    let text = &line[start..end.max(start)];
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
    let n = value.get("n")?.as_u64()?;
    let uuid = value.get("uuid")?.as_str()?.parse().ok()?;
    match serde_json::from_value::<Record>(value) {
        Ok(record) => Some(Item::Known(Box::new(StoredRecord { record, bytes }))),
        // A record in its outer shape whose body this version does not know.
        Err(_) => Some(Item::Unknown(RecordMark { n, uuid })),
    }
}
