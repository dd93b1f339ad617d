use std::{fs, io::Write as _};

use query_engine::ports::Durability;
use swarm_protocol::{
    Message, RunNumber, Timestamp,
    record::{CompactBoundary, Origin, RecordBody},
};

use super::*;

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
async fn a_second_writer_is_refused() {
    let (_dir, path) = place();
    let (_first, _) = TranscriptFile::open(&path).unwrap();
    assert!(matches!(TranscriptFile::open(&path), Err(TranscriptError::Locked { .. })));
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

/// R05: a last line cut at every byte is dropped, and the next append starts on a new line.
#[tokio::test]
async fn a_torn_last_line_is_dropped_wherever_it_is_torn() {
    let (_dir, path) = place();
    write(&path, &["first", "last \u{4f60}\"}{\\"]).await;
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in first..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let lost = cut < whole.len() - 1;
        let page = read_page(&path, 0, 10).unwrap();
        assert_eq!(page.records.len(), if cut == whole.len() { 2 } else { 1 }, "cut at {cut}");
        {
            let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
            assert_eq!(loaded.records.len(), if lost { 1 } else { 2 }, "cut at {cut}");
            assert_eq!(loaded.defects.torn_bytes, if lost { (cut - first) as u64 } else { 0 });
        }
        write(&path, &["next"]).await;
        let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
        assert!(loaded.defects.is_clean(), "cut at {cut}");
        assert_eq!(texts(&loaded.records).last().unwrap(), "next");
        let number = loaded.records.last().unwrap().record.n;
        assert_eq!(number, if lost { 2 } else { 3 });
    }
}

/// R01, R02, R04, R14, R16.
#[tokio::test]
async fn what_crashes_and_other_versions_leave_is_read_around() {
    let (_dir, path) = place();
    write(&path, &["a", "b", "c"]).await;
    let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let unknown = lines[2].replace("\"type\":\"user\"", "\"type\":\"hologram\"");
    let extra = lines[1].replace("\"run\":1", "\"run\":1,\"colour\":\"red\"");

    let check = |content: &[u8], expected: &[&str], defects: Defects| {
        fs::write(&path, content).unwrap();
        let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
        assert_eq!(texts(&loaded.records), expected);
        assert_eq!(loaded.defects, defects);
    };
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    let clean = Defects::default();
    check(format!("{a}{b}\n{c}\n").as_bytes(), &["a", "b", "c"], clean);
    check(format!("{a}\n{{\"n\":2,\"uu\n{c}\n").as_bytes(), &["a", "c"], Defects { bad_lines: 1, ..clean });
    check(
        format!("{a}\n{b}\n{}", "\0".repeat(700)).as_bytes(),
        &["a", "b"],
        Defects { torn_bytes: 700, ..clean },
    );
    check(format!("{a}\n\0\0\0{b}\n").as_bytes(), &["a", "b"], clean);
    check(format!("{a}\n{a}\n{b}\n").as_bytes(), &["a", "b"], Defects { duplicates: 1, ..clean });
    check(format!("{a}\n{extra}\n").as_bytes(), &["a", "b"], clean);
    check(format!("{a}\n{b}\n{unknown}\n").as_bytes(), &["a", "b"], Defects { unknown: 1, ..clean });
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{a}\n{b}\n{unknown}\n"));
    write(&path, &["d"]).await;
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(loaded.records.last().unwrap().record.n, 4, "an unknown record keeps its number");
}

#[tokio::test]
async fn a_record_that_is_its_own_parent_loses_the_link_only() {
    let (_dir, path) = place();
    write(&path, &["a", "b"]).await;
    let mut lines = fs::read_to_string(&path).unwrap();
    let (_, loaded) = TranscriptFile::open(&path).unwrap();
    let [first, second] = [&loaded.records[0].record, &loaded.records[1].record];
    let own = format!("\"parent_uuid\":\"{}\"", second.uuid);
    lines = lines.replace(&format!("\"parent_uuid\":\"{}\"", first.uuid), &own);
    fs::write(&path, lines).unwrap();
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(texts(&loaded.records), ["a", "b"]);
    assert_eq!(loaded.records[1].record.parent_uuid, None);
    assert_eq!(loaded.defects.self_parents, 1);
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

/// R14: a write that fails is said, and nothing is written after what cannot be taken back.
#[tokio::test]
async fn a_disk_that_refuses_is_said() {
    let (_dir, path) = place();
    write(&path, &["a"]).await;
    let (mut transcript, _) = TranscriptFile::open(&path).unwrap();
    let writable = std::mem::replace(&mut transcript.file, Arc::new(File::open(&path).unwrap()));
    let now = Timestamp::from_millis(0);
    let mark = transcript.marks();
    transcript.append(RunNumber(1), now, vec![user("b")], Durability::Soon).await.unwrap_err();
    assert_eq!(transcript.marks(), mark);
    transcript.file = writable;
    let error = transcript.append(RunNumber(1), now, vec![user("c")], Durability::Now).await.unwrap_err();
    assert!(error.message.contains("could not be taken back"), "{error}");
    let page = read_page(&path, 0, 9).unwrap();
    assert_eq!(texts(&page.records), ["a"]);
}
