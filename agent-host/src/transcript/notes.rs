//! What the writer leaves for the next reader between the records: checkpoints and metadata.
//!
//! Neither is a record: they have no number, nobody is sent them, and a transcript without them says the
//! same. A checkpoint holds what the records before it add up to, so that a reader may begin there. Metadata
//! says where the last checkpoint and the last to-do list stand; it is written again before it is more than
//! [`METADATA_WINDOW`] from the end, so that the end of the file is all that must be searched (spec 10.2).

use std::{fs::File, io, os::unix::fs::FileExt as _};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use swarm_protocol::frame::RecordMark;

/// Metadata stands within so many bytes of the end of a transcript that is longer than that.
pub const METADATA_WINDOW: u64 = 64 * 1024;
/// No metadata line is longer: two numbers and their names.
pub(super) const MAX_METADATA_LINE: u64 = 256;
/// Read at once when a file is searched backwards.
const CHUNK: u64 = 1024 * 1024;

/// A line that begins so is a checkpoint.
const CHECKPOINT_START: &[u8] = b"{\"checkpoint\":{\"at\":";
/// A line that begins so is metadata.
const METADATA_START: &[u8] = b"{\"metadata\":{";

/// A checkpoint as it stands on its line.
#[derive(Serialize, Deserialize)]
pub(super) struct Checkpoint<T> {
    /// Where its line begins. A file that was changed before it no longer fits it.
    pub(super) at: u64,
    /// The last record before it.
    pub(super) last: Option<RecordMark>,
    /// Where the last to-do list before it stands.
    pub(super) todo_at: Option<u64>,
    /// What the records before it add up to.
    pub(super) content: T,
}

#[derive(Serialize, Deserialize)]
struct CheckpointLine<T> {
    checkpoint: Checkpoint<T>,
}

/// Where things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Metadata {
    /// The last checkpoint's line.
    pub(super) checkpoint_at: Option<u64>,
    /// The line of the last to-do list.
    pub(super) todo_at: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct MetadataLine {
    metadata: Metadata,
}

/// A checkpoint that was found, with the end of its line.
pub(super) struct Found<T> {
    pub(super) checkpoint: Checkpoint<T>,
    pub(super) end: u64,
}

/// Whether a value on a line is a note.
pub(super) fn is_note(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        object.len() == 1 && (object.contains_key("checkpoint") || object.contains_key("metadata"))
    })
}

/// Whether a line begins as our writer's notes do.
pub(super) fn begins_as_note(line: &[u8]) -> bool {
    line.starts_with(CHECKPOINT_START) || line.starts_with(METADATA_START)
}

/// Whether a line is a checkpoint by its start; the content is not looked at.
pub(super) fn is_checkpoint(line: &[u8]) -> bool {
    line.starts_with(CHECKPOINT_START)
}

/// The metadata on a line, if it is such a line.
pub(super) fn metadata(line: &[u8]) -> Option<Metadata> {
    if !line.starts_with(METADATA_START) {
        return None;
    }
    serde_json::from_slice::<MetadataLine>(line).ok().map(|line| line.metadata)
}

/// Appends a checkpoint's line.
pub(super) fn write_checkpoint<T: Serialize>(
    checkpoint: Checkpoint<T>,
    bytes: &mut Vec<u8>,
) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *bytes, &CheckpointLine { checkpoint })?;
    bytes.push(b'\n');
    Ok(())
}

/// Appends a metadata line.
pub(super) fn write_metadata(metadata: Metadata, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *bytes, &MetadataLine { metadata })?;
    bytes.push(b'\n');
    Ok(())
}

/// Whole lines within the last [`METADATA_WINDOW`] of a file, and where they begin.
pub(super) fn tail(file: &File) -> io::Result<(u64, Vec<u8>)> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(METADATA_WINDOW);
    let mut bytes = read_range(file, from, length)?;
    if from == 0 {
        return Ok((0, bytes));
    }
    let skipped = memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |at| at + 1);
    bytes.drain(..skipped);
    Ok((from + skipped as u64, bytes))
}

/// The last metadata of these whole lines, with the place of its line in them.
pub(super) fn last_metadata(lines: &[u8]) -> Option<(usize, Metadata)> {
    let mut end = lines.len();
    while let Some(at) = rfind_line(&lines[..end], METADATA_START) {
        let line = lines[at..].split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        if let Some(metadata) = metadata(line).filter(|_| line.ends_with(b"\n")) {
            return Some((at, metadata));
        }
        end = at;
    }
    None
}

/// The last checkpoint whose content is a `T`: where metadata says, or else wherever one is found going
/// backwards. One that is torn, of another version, or in a file that was changed before it is passed over.
pub(super) fn find_checkpoint<T: DeserializeOwned>(file: &File) -> io::Result<Option<Found<T>>> {
    let (from, lines) = tail(file)?;
    let end = from + lines.len() as u64;
    if let Some((_, metadata)) = last_metadata(&lines) {
        let Some(at) = metadata.checkpoint_at else { return Ok(None) };
        if let Some(found) = checkpoint_at(file, at)? {
            return Ok(Some(found));
        }
    }
    let mut before = end;
    while let Some(at) = last_checkpoint_before(file, before)? {
        if let Some(found) = checkpoint_at(file, at)? {
            return Ok(Some(found));
        }
        before = at;
    }
    Ok(None)
}

/// Where the last line before `end` begins that looks like a checkpoint.
fn last_checkpoint_before(file: &File, end: u64) -> io::Result<Option<u64>> {
    let overlap = CHECKPOINT_START.len() as u64;
    let mut until = end;
    while until > 0 {
        let from = until.saturating_sub(CHUNK);
        // The line break before the first line of the chunk, and the start of a line that is cut by its end.
        let first = from.saturating_sub(1);
        let bytes = read_range(file, first, (until + overlap).min(end))?;
        let mut found = rfind_line(&bytes, CHECKPOINT_START);
        if found == Some(0) && first > 0 {
            found = None;
        }
        if let Some(at) = found {
            return Ok(Some(first + at as u64));
        }
        until = from;
    }
    Ok(None)
}

/// Where the last line begins that begins so. The bytes count as the start of a line.
fn rfind_line(bytes: &[u8], start: &[u8]) -> Option<usize> {
    let mut end = bytes.len();
    while let Some(at) = memchr::memmem::rfind(&bytes[..end], start) {
        if at == 0 || bytes[at - 1] == b'\n' {
            return Some(at);
        }
        // A match may begin inside this one's place only if it ends before its last byte.
        end = at + start.len() - 1;
    }
    None
}

/// The checkpoint on the line that begins there, if that holds one which fits the file.
fn checkpoint_at<T: DeserializeOwned>(file: &File, at: u64) -> io::Result<Option<Found<T>>> {
    let length = file.metadata()?.len();
    if at >= length || (at > 0 && read_range(file, at - 1, at)? != b"\n") {
        return Ok(None);
    }
    let Some(line) = line_at(file, at)? else { return Ok(None) };
    let end = at + line.len() as u64;
    let parsed = is_checkpoint(&line).then(|| serde_json::from_slice::<CheckpointLine<T>>(&line));
    Ok(parsed
        .and_then(Result::ok)
        .filter(|line| line.checkpoint.at == at)
        .map(|line| Found { checkpoint: line.checkpoint, end }))
}

/// The line that begins there, its break included; none if it has no break.
pub(super) fn line_at(file: &File, at: u64) -> io::Result<Option<Vec<u8>>> {
    let length = file.metadata()?.len();
    let mut line = Vec::new();
    let mut from = at;
    while from < length {
        let chunk = read_range(file, from, (from + CHUNK).min(length))?;
        if chunk.is_empty() {
            break;
        }
        if let Some(end) = memchr::memchr(b'\n', &chunk) {
            line.extend_from_slice(&chunk[..=end]);
            return Ok(Some(line));
        }
        from += chunk.len() as u64;
        line.extend_from_slice(&chunk);
    }
    Ok(None)
}

/// These bytes of a file, or fewer if it became shorter meanwhile.
pub(super) fn read_range(file: &File, from: u64, until: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(until.saturating_sub(from)).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
