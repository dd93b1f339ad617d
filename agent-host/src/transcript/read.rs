//! Reading transcripts that may be torn, padded, or written by another version.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use swarm_protocol::{
    Block, ToolUseId,
    frame::RecordMark,
    record::{Origin, Record, RecordBody, TodoItem},
};
use uuid::Uuid;

use super::{
    line::{self, Item, parse_line},
    notes::{self, Metadata},
};

/// A record with the size of its line.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The record.
    pub record: Record,
    /// Bytes of its line, the line break included.
    pub bytes: u64,
}

/// What was wrong with a transcript, or with the part of it that was read.
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
    /// Records whose parent stands behind them, so that following the links would not end; the link was
    /// dropped.
    pub cyclic_parents: u64,
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

/// Where reading begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Start {
    /// The first byte that is read; a line begins there.
    pub(super) at: u64,
    /// The last record before it.
    pub(super) last: Option<RecordMark>,
    /// What is known of the file before it.
    pub(super) metadata: Metadata,
}

/// What reading to the end found.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) records: Vec<StoredRecord>,
    pub(super) last: Option<RecordMark>,
    pub(super) defects: Defects,
    /// Where the last whole line ends.
    pub(super) good_end: u64,
    /// The last record is whole but for its line break.
    pub(super) lacks_line_break: bool,
    pub(super) metadata: Metadata,
    /// Where the last metadata line begins.
    pub(super) metadata_at: u64,
    /// Where the last checkpoint's line ends; 0 without one.
    pub(super) checkpoint_end: u64,
    seen: HashSet<Uuid>,
    /// Places in `records` of those whose parent had not come yet.
    unresolved: Vec<usize>,
    /// Numbers up to here belong to what precedes the part that is read.
    floor: u64,
}

pub(super) fn scan(file: &mut File, start: Start) -> io::Result<Scan> {
    file.seek(SeekFrom::Start(start.at))?;
    let mut scan = Scan {
        last: start.last,
        floor: start.last.map_or(0, |last| last.n),
        good_end: start.at,
        metadata: start.metadata,
        checkpoint_end: start.at,
        ..Scan::default()
    };
    let mut bad_since_good = 0;
    let mut position = start.at;
    for_each_line(BufReader::new(file), |line| {
        let at = position;
        position += line.len() as u64;
        let parsed = parse_line(line);
        if !parsed.is_whole && parsed.items.is_empty() {
            bad_since_good += u64::from(!line::is_blank(line));
            return true;
        }
        scan.defects.bad_lines += std::mem::take(&mut bad_since_good) + u64::from(!parsed.is_whole);
        scan.good_end = position;
        scan.lacks_line_break = !line.ends_with(b"\n");
        if notes::is_checkpoint(line) {
            scan.metadata.checkpoint_at = Some(at);
            scan.checkpoint_end = position;
        }
        if notes::metadata(line).is_some() {
            scan.metadata_at = at;
        }
        for item in parsed.items {
            scan.take(item, at);
        }
        true
    })?;
    // What follows the last good line is an end that never became whole.
    scan.defects.torn_bytes = position - scan.good_end;
    scan.break_cycles();
    Ok(scan)
}

impl Scan {
    fn take(&mut self, item: Item, at: u64) {
        let Some(mark) = item.mark() else { return };
        if mark.n <= self.floor || !self.seen.insert(mark.uuid) {
            self.defects.duplicates += 1;
            return;
        }
        // Numbers only grow, also where lines were lost.
        if self.last.is_none_or(|last| last.n < mark.n) {
            self.last = Some(mark);
        }
        match item {
            Item::Known(mut stored) => {
                if let RecordBody::Todo { .. } = stored.record.body {
                    self.metadata.todo_at = Some(at);
                }
                match stored.record.parent_uuid {
                    Some(parent) if parent == stored.record.uuid => {
                        stored.record.parent_uuid = None;
                        self.defects.self_parents += 1;
                    }
                    Some(parent) if !self.seen.contains(&parent) => self.unresolved.push(self.records.len()),
                    Some(_) | None => {}
                }
                self.records.push(*stored);
            }
            Item::Unknown(_) => self.defects.unknown += 1,
            Item::Note => {}
        }
    }

    /// A parent that comes later would make a circle of the chain. One that never came is only lost.
    fn break_cycles(&mut self) {
        for &place in &self.unresolved {
            let record = &mut self.records[place].record;
            if record.parent_uuid.is_some_and(|parent| self.seen.contains(&parent)) {
                record.parent_uuid = None;
                self.defects.cyclic_parents += 1;
            }
        }
    }
}

/// Up to `limit` records numbered above `after`. Takes no lock and changes nothing: the writer may be at
/// work, and a line that is not whole yet is not there yet.
///
/// # Errors
/// The file cannot be read; one that does not exist is an empty transcript.
pub fn read_page(path: &Path, after: u64, limit: usize) -> io::Result<Page> {
    let Some(mut file) = open_existing(path)? else { return Ok(Page::default()) };
    let start = place_after(&file, after)?;
    file.seek(SeekFrom::Start(start))?;
    let mut page = Page::default();
    let mut seen = HashSet::new();
    for_each_line(BufReader::new(file), |line| {
        if !line.ends_with(b"\n") {
            return true;
        }
        let is_before =
            line::leading_number(line).is_some_and(|n| n <= after) && !line::holds_a_second_record(line);
        if is_before {
            let whole = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
            page.bad_lines += u64::from(!whole);
            return true;
        }
        let parsed = parse_line(line);
        page.bad_lines += u64::from(!parsed.is_whole && !line::is_blank(line));
        for item in parsed.items {
            let is_new = item.mark().is_some_and(|mark| mark.n > after && seen.insert(mark.uuid));
            if let Item::Known(stored) = item
                && is_new
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

/// The record with this identity. Lines are searched for its text; only those that hold it are parsed.
///
/// # Errors
/// The file cannot be read; one that does not exist has no records.
pub fn read_record(path: &Path, uuid: Uuid) -> io::Result<Option<Record>> {
    let Some(file) = open_existing(path)? else { return Ok(None) };
    let text = format!("\"uuid\":\"{uuid}\"");
    let finder = memchr::memmem::Finder::new(&text);
    let mut found = None;
    for_each_line(BufReader::new(file), |line| {
        if line.ends_with(b"\n") && finder.find(line).is_some() {
            found = parse_line(line).items.into_iter().find_map(|item| match item {
                Item::Known(stored) if stored.record.uuid == uuid => Some(stored.record),
                Item::Known(_) | Item::Unknown(_) | Item::Note => None,
            });
        }
        found.is_none()
    })?;
    Ok(found)
}

/// Where the results of these calls stand: the record and the block in it. Calls whose result was not committed are
/// missing. Lines are searched for their text; only those that may hold one are parsed.
///
/// # Errors
/// The file cannot be read; one that does not exist holds nothing.
pub fn find_results(
    path: &Path,
    calls: &HashSet<ToolUseId>,
) -> io::Result<HashMap<ToolUseId, (Uuid, usize)>> {
    let mut found = HashMap::new();
    let Some(file) = open_existing(path)? else { return Ok(found) };
    let finder = memchr::memmem::Finder::new("\"tool_result\"");
    for_each_line(BufReader::new(file), |line| {
        if !line.ends_with(b"\n") || finder.find(line).is_none() {
            return true;
        }
        for item in parse_line(line).items {
            let Item::Known(stored) = item else { continue };
            let RecordBody::User { message, origin: Origin::ToolResults, .. } = &stored.record.body else {
                continue;
            };
            for (index, block) in message.content.iter().enumerate() {
                if let Block::ToolResult { tool_use_id, .. } = block
                    && calls.contains(tool_use_id)
                {
                    found.entry(tool_use_id.clone()).or_insert((stored.record.uuid, index));
                }
            }
        }
        found.len() < calls.len()
    })?;
    Ok(found)
}

/// The to-do list as last recorded, from the end of the file and what its metadata points to.
///
/// # Errors
/// The file cannot be read; one that does not exist has no list.
pub fn read_todo(path: &Path) -> io::Result<Vec<TodoItem>> {
    let Some(mut file) = open_existing(path)? else { return Ok(Vec::new()) };
    let (from, lines) = notes::tail(&file)?;
    let metadata = notes::last_metadata(&lines);
    let (place, at) = match metadata {
        Some((place, metadata)) => (place, metadata.todo_at),
        None if from == 0 => (0, None),
        // Of a writer that left no metadata, or with a long torn end.
        None => return scan_todo(&mut file),
    };
    let newer = lines[place..].split_inclusive(|byte| *byte == b'\n').filter_map(todo_of).next_back();
    if let Some(items) = newer {
        return Ok(items);
    }
    let Some(at) = at else { return Ok(Vec::new()) };
    match notes::line_at(&file, at)?.as_deref().and_then(todo_of) {
        Some(items) => Ok(items),
        None => scan_todo(&mut file),
    }
}

/// The last to-do list on a whole line.
fn todo_of(line: &[u8]) -> Option<Vec<TodoItem>> {
    // Most lines are no such list; the writer's own key is looked for before anything is parsed.
    if !line.ends_with(b"\n") || memchr::memmem::find(line, b"\"todo\"").is_none() {
        return None;
    }
    parse_line(line).items.into_iter().rev().find_map(|item| match item {
        Item::Known(stored) => match stored.record.body {
            RecordBody::Todo { items } => Some(items),
            _ => None,
        },
        Item::Unknown(_) | Item::Note => None,
    })
}

fn scan_todo(file: &mut File) -> io::Result<Vec<TodoItem>> {
    file.seek(SeekFrom::Start(0))?;
    let mut last = Vec::new();
    for_each_line(BufReader::new(file), |line| {
        if let Some(items) = todo_of(line) {
            last = items;
        }
        true
    })?;
    Ok(last)
}

pub(super) fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A line's start such that every record numbered above `after` stands behind it. Numbers only grow in a
/// transcript, so the place is found by halving; no more is read than a line for each half.
fn place_after(file: &File, after: u64) -> io::Result<u64> {
    /// Below this, reading on is no dearer than halving.
    const CLOSE: u64 = 64 * 1024;
    let (mut low, mut high) = (0, file.metadata()?.len());
    while after > 0 && high - low > CLOSE {
        let middle = low + (high - low) / 2;
        match numbered_line(file, middle, high)? {
            Some((start, n)) if n <= after => low = start,
            Some(_) | None => high = middle,
        }
    }
    Ok(low)
}

/// The first line that begins within these bytes and is one of our records, with its number.
fn numbered_line(file: &File, from: u64, until: u64) -> io::Result<Option<(u64, u64)>> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(from))?;
    let mut position = from + reader.skip_until(b'\n')? as u64;
    while position < until {
        let mut start = Vec::with_capacity(line::NUMBER_BYTES as usize);
        reader.by_ref().take(line::NUMBER_BYTES).read_to_end(&mut start)?;
        if let Some(n) = line::leading_number(&start) {
            return Ok(Some((position, n)));
        }
        let length = match memchr::memchr(b'\n', &start) {
            Some(at) => {
                // Back to the line that was begun.
                reader.seek_relative(at as i64 + 1 - start.len() as i64)?;
                at + 1
            }
            None => start.len() + reader.skip_until(b'\n')?,
        };
        if length == 0 {
            break;
        }
        position += length as u64;
    }
    Ok(None)
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
