//! R14: a disk that is full. Alone in its binary, since the limit that stands in for it is the process's.

use std::fs;

use agent_host::transcript::{TranscriptFile, read_page};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigSet, Signal},
};
use query_engine::ports::Durability;
use swarm_protocol::{RunNumber, Timestamp, record::RecordBody};

fn note(length: usize) -> RecordBody {
    RecordBody::Tombstone { note: "x".repeat(length) }
}

#[test]
fn r14_a_record_that_does_not_fit_is_refused_whole_and_said_and_the_transcript_goes_on_when_there_is_room() {
    // The kernel would end the process for writing over the limit; blocked, the write fails instead.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let (transcript, _) = TranscriptFile::open(&path).unwrap();
    let append = |notes: &[usize]| {
        let batch = notes.iter().map(|length| note(*length)).collect();
        let now = Timestamp::from_millis(0);
        runtime.block_on(transcript.append(RunNumber(1), now, batch, Durability::Now))
    };
    append(&[10]).unwrap();
    let before = fs::read(&path).unwrap();
    let mark = transcript.marks();

    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    // The first record of the batch fits, the second does in part.
    setrlimit(Resource::RLIMIT_FSIZE, before.len() as u64 + 1_000, hard).unwrap();
    let refused = append(&[10, 5_000]);
    let checkpoint = transcript.append_checkpoint(&"y".repeat(5_000));
    let small = append(&[20]);
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();

    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("failed to write the transcript: "), "{error}");
    assert!(error.message.contains("File too large"), "{error}");
    checkpoint.unwrap_err();
    // What fits is written still, with the number that the refused batch did not use.
    assert_eq!(small.unwrap()[0].record.n, mark.unwrap().n + 1);
    append(&[30]).unwrap();
    assert!(fs::read(&path).unwrap().starts_with(&before));
    let page = read_page(&path, 0, 10).unwrap();
    let numbers: Vec<u64> = page.records.iter().map(|stored| stored.record.n).collect();
    assert_eq!((numbers, page.bad_lines), (vec![1, 2, 3], 0));
    drop(transcript);
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert!(loaded.defects.is_clean());
    assert_eq!(loaded.records.len(), 3);
}
