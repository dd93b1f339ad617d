use std::fs;

use query_engine::ports::Durability;
use swarm_protocol::{
    Message,
    record::{CompactBoundary, Origin},
};

use super::*;

mod checkpoints;
mod damage;

fn user(text: &str) -> RecordBody {
    RecordBody::User { message: Message::user_text(text), origin: Origin::Prompt, commands: Vec::new() }
}

async fn write(path: &Path, texts: &[&str]) -> Vec<StoredRecord> {
    let (transcript, _) = TranscriptFile::open(path).unwrap();
    let batch = texts.iter().map(|text| user(text)).collect();
    let now = Timestamp::from_millis(1_796_060_683_031);
    transcript.append(RunNumber(1), now, batch, Durability::Soon).await.unwrap()
}

fn texts(records: &[StoredRecord]) -> Vec<String> {
    records
        .iter()
        .map(|stored| match &stored.record.body {
            RecordBody::User { message, .. } => message.text(),
            other => other.kind().to_owned(),
        })
        .collect()
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/agent.jsonl");
    (dir, path)
}

#[tokio::test]
async fn numbers_and_parents_go_on_over_restarts() {
    let (_dir, path) = place();
    write(&path, &["a", "b"]).await;
    write(&path, &["c"]).await;
    let (transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(texts(&loaded.records), ["a", "b", "c"]);
    assert!(loaded.defects.is_clean());
    let numbers: Vec<_> = loaded.records.iter().map(|stored| stored.record.n).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let records: Vec<_> = loaded.records.iter().map(|stored| &stored.record).collect();
    assert_eq!(records[0].parent_uuid, None);
    assert_eq!(records[2].parent_uuid, Some(records[1].uuid));
    assert_eq!(transcript.marks(), Some(RecordMark { n: 3, uuid: records[2].uuid }));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes: u64 = loaded.records.iter().map(|stored| stored.bytes).sum();
    assert_eq!(bytes, fs::metadata(&path).unwrap().len());
}

#[tokio::test]
async fn a_second_writer_is_refused_and_told_who_writes() {
    let (_dir, path) = place();
    let (first, _) = TranscriptFile::open(&path).unwrap();
    let error = TranscriptFile::open(&path).unwrap_err();
    assert!(matches!(error, TranscriptError::Locked { .. }));
    let holder = format!("is being written by process {} (", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
    drop(first);
    TranscriptFile::open(&path).unwrap();
}

#[tokio::test]
async fn a_boundary_starts_a_chain_and_names_what_was_before() {
    let (_dir, path) = place();
    let (transcript, _) = TranscriptFile::open(&path).unwrap();
    let boundary = CompactBoundary {
        trigger: "auto".to_owned(),
        steps: Vec::new(),
        pre_tokens: 2,
        post_tokens: 1,
        messages_summarised: 1,
        tool_use_ids: Vec::new(),
        logical_parent_uuid: None,
        messages: Vec::new(),
    };
    let batch = vec![user("a"), RecordBody::CompactBoundary(boundary)];
    let stored =
        transcript.append(RunNumber(1), Timestamp::from_millis(0), batch, Durability::Now).await.unwrap();
    assert_eq!(stored[1].record.parent_uuid, None);
    let RecordBody::CompactBoundary(boundary) = &stored[1].record.body else { panic!() };
    assert_eq!(boundary.logical_parent_uuid, Some(stored[0].record.uuid));
}

#[tokio::test]
async fn pages_follow_numbers_while_the_writer_writes() {
    let (_dir, path) = place();
    write(&path, &["a", "b", "c", "d"]).await;
    let check = |after, limit, expected: &[&str], more: bool| {
        let page = read_page(&path, after, limit).unwrap();
        assert_eq!(texts(&page.records), expected);
        assert_eq!(page.has_more, more);
    };
    check(0, 2, &["a", "b"], true);
    check(2, 2, &["c", "d"], false);
    check(4, 2, &[], false);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"n\":5,\"uuid\":").unwrap();
    check(3, 9, &["d"], false);
    assert_eq!(read_page(Path::new("/nonexistent/x"), 0, 9).unwrap(), Page::default());
}
