//! What holds for any bytes that a transcript's file may hold: the target of `tests/fuzz`, which the tests of
//! this crate run over its corpus. It panics when a promise is broken.

use std::{
    fs::{self, File, OpenOptions},
    path::Path,
};

use query_engine::LoopState;

use super::{
    after_checkpoint,
    read::{self, Scan, Start, read_page, read_todo},
};

/// Reads the bytes as a file in this directory, in every way there is.
pub fn transcript(data: &[u8], directory: &Path) {
    let path = directory.join("t.jsonl");
    fs::write(&path, data).expect("the directory takes a file");
    let mut file = File::open(&path).expect("it was just written");
    let first = scan(&mut file, Start::default());
    assert_eq!(first.good_end + first.defects.torn_bytes, data.len() as u64, "each byte is accounted for");
    // A fold takes whatever came out.
    let state = LoopState::fold(first.records.iter().map(|stored| &stored.record.body));
    assert!(state.open.is_none());
    // From a checkpoint the same, if there is one that fits.
    let (_, start) = after_checkpoint::<serde_json::Value>(&file).expect("a file is read");
    let tail = scan(&mut file, start);
    assert!(start.at <= data.len() as u64 && tail.records.len() <= first.records.len());
    // Readers without the lock see the same records, but for a last one whose break is missing.
    let page = read_page(&path, 0, usize::MAX).expect("a file is read");
    let mut uuids: Vec<_> = first.records.iter().map(|stored| stored.record.uuid).collect();
    if first.lacks_line_break {
        assert!(page.records.len() <= uuids.len());
        uuids.truncate(page.records.len());
    }
    assert_eq!(page.records.iter().map(|stored| stored.record.uuid).collect::<Vec<_>>(), uuids);
    read_todo(&path).expect("a file is read");
    // Repaired as the writer does, it is whole, and says the same.
    drop(file);
    let writable = OpenOptions::new().write(true).open(&path).expect("it was just written");
    writable.set_len(first.good_end).expect("a file is cut");
    let mut file = File::open(&path).expect("it was just written");
    let again = scan(&mut file, Start::default());
    assert_eq!(again.defects.torn_bytes, 0, "nothing torn is left");
    assert_eq!(again.records, first.records);
    assert_eq!(again.last, first.last);
}

fn scan(file: &mut File, start: Start) -> Scan {
    read::scan(file, start).expect("a file is read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_corpus_is_read_and_repaired() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/transcript");
        let dir = tempfile::tempdir().unwrap();
        let mut count = 0;
        for entry in fs::read_dir(corpus).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let run = std::panic::catch_unwind(|| transcript(&bytes, dir.path()));
            assert!(run.is_ok(), "{} breaks a promise", path.display());
            count += 1;
        }
        assert!(count >= 5, "the corpus has {count} files");
    }

    /// Seeds that are meant to be whole are: else they lead the search nowhere.
    #[test]
    fn the_whole_files_of_the_corpus_have_no_defect() {
        for name in ["plain", "answer", "checkpoint"] {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/transcript");
            let mut file = File::open(corpus.join(name)).unwrap();
            assert!(scan(&mut file, Start::default()).defects.is_clean(), "{name}");
            let (_, start) = after_checkpoint::<serde_json::Value>(&file).unwrap();
            assert_eq!(start.at > 0, name == "checkpoint");
        }
    }
}
