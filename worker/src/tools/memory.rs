//! What a run has read: the basis for "read before you change it" and for telling whether a file is still
//! as it was read. Compared are contents, never times: a touch or a formatter that changes nothing is no
//! change (E10).

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};
use swarm_protocol::record::FileSeen;

/// Longer contents are remembered by hash alone.
const MAX_TEXT_BYTES: usize = 256 * 1024;
/// Contents kept in all; beyond it the oldest are remembered by hash alone.
const MAX_KEPT_BYTES: usize = 4 * 1024 * 1024;

/// How a file looked when it was last read or written.
#[derive(Clone, Debug)]
pub struct Seen {
    /// SHA-256, in hexadecimal digits.
    hash: String,
    /// Its content, while it is kept.
    pub bytes: Option<Arc<[u8]>>,
    age: u64,
}

impl Seen {
    /// Whether the file is still so.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.hash == hash(bytes)
    }
}

/// Files a run has read.
#[derive(Debug, Default)]
pub struct FileMemory(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    seen: HashMap<PathBuf, Seen>,
    kept_bytes: usize,
    clock: u64,
}

impl FileMemory {
    /// The model knows this content now. `path` is the real one, links resolved. The answer is for the record.
    pub fn note(&self, path: &Path, bytes: &[u8]) -> FileSeen {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clock += 1;
        let age = table.clock;
        let kept = (bytes.len() <= MAX_TEXT_BYTES).then(|| Arc::from(bytes));
        table.kept_bytes += if kept.is_some() { bytes.len() } else { 0 };
        let hash = hash(bytes);
        let seen = FileSeen { path: path.to_string_lossy().into_owned(), sha256: hash.clone() };
        let former = table.seen.insert(path.to_owned(), Seen { hash, bytes: kept, age });
        table.kept_bytes -= former.and_then(|seen| seen.bytes).map_or(0, |bytes| bytes.len());
        while table.kept_bytes > MAX_KEPT_BYTES {
            let oldest =
                table.seen.values_mut().filter(|seen| seen.bytes.is_some()).min_by_key(|seen| seen.age);
            let Some(freed) = oldest.and_then(|seen| seen.bytes.take()) else { break };
            table.kept_bytes -= freed.len();
        }
        seen
    }

    /// A copy for an inner agent, which then goes its own way.
    pub fn copy(&self) -> Self {
        let Table { seen, kept_bytes, clock } = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self(Mutex::new(Table { seen: seen.clone(), kept_bytes: *kept_bytes, clock: *clock }))
    }

    /// The files that this process read or wrote last, newest first.
    pub fn recent(&self, most: usize) -> Vec<PathBuf> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recent: Vec<(&PathBuf, u64)> =
            table.seen.iter().map(|(path, seen)| (path, seen.age)).collect();
        recent.retain(|(_, age)| *age > 0);
        recent.sort_unstable_by_key(|(_, age)| std::cmp::Reverse(*age));
        recent.into_iter().take(most).map(|(path, _)| path.clone()).collect()
    }

    /// What earlier processes of this agent saw, by path.
    pub fn restore(&self, seen: impl IntoIterator<Item = (PathBuf, String)>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, hash) in seen {
            table.seen.entry(path).or_insert(Seen { hash, bytes: None, age: 0 });
        }
    }

    /// How a file looked.
    pub fn seen(&self, path: &Path) -> Option<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seen.get(path).cloned()
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_contents_go_but_their_hashes_stay() {
        let memory = FileMemory::default();
        let block = vec![b'x'; MAX_TEXT_BYTES];
        for n in 0..40 {
            memory.note(Path::new(&format!("/{n}")), &block);
        }
        let first = memory.seen(Path::new("/0")).unwrap();
        assert!(first.bytes.is_none() && first.is(&block) && !first.is(b"y"));
        assert!(memory.seen(Path::new("/39")).unwrap().bytes.is_some());
        assert!(memory.0.lock().unwrap().kept_bytes <= MAX_KEPT_BYTES);
        memory.restore([(PathBuf::from("/earlier"), "00".to_owned())]);
        memory.note(Path::new("/1"), b"again");
        assert_eq!(memory.recent(2), [Path::new("/1"), Path::new("/39")]);
    }
}
