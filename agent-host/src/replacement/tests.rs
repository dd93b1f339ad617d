use query_engine::ports::Durability;
use swarm_protocol::{Message, RunNumber, record::Origin};

use super::*;
use crate::transcript::TranscriptFile;

const NOW: Timestamp = Timestamp::from_millis(1_796_060_683_031);

struct Rig {
    dir: tempfile::TempDir,
    store: ReplacementStore,
}

fn result(text: &str) -> Block {
    Block::tool_result("t1".parse().unwrap(), text, false)
}

fn key(n: u128) -> ReplacementKey {
    ReplacementKey { session: SessionId(Uuid::nil()), message: Uuid::from_u128(n), block: 0 }
}

/// Bytes of a result of one character.
fn small() -> u64 {
    serde_json::to_vec(&result("x")).unwrap().len() as u64
}

impl Rig {
    fn new(limits: ReplacementLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store =
            ReplacementStore::open(dir.path().join("kept"), dir.path().join("t.jsonl"), limits).unwrap();
        Self { dir, store }
    }

    async fn put(&self, n: u128, text: &str) {
        self.store.put(key(n), &result(text), NOW).await.unwrap();
    }

    /// The text of an original, if it can be had.
    async fn text(&self, n: u128) -> Option<String> {
        let found = self.store.get(key(n)).await.unwrap()?;
        assert_eq!((found.at, found.bytes), (NOW, serde_json::to_vec(&found.content).unwrap().len() as u64));
        let Block::ToolResult { content, .. } = found.content else { panic!() };
        Some(content.iter().filter_map(swarm_protocol::message::ResultBlock::as_text).collect())
    }

    async fn has(&self, n: u128) -> bool {
        self.text(n).await.is_some()
    }

    fn files(&self) -> usize {
        fs::read_dir(self.dir.path().join("kept")).map_or(0, Iterator::count)
    }

    fn sums(&self) -> (usize, u64, u64) {
        let entries = self.store.shared.lock();
        let memory: u64 =
            entries.by_key.values().filter(|entry| entry.memory.is_some()).map(|entry| entry.bytes).sum();
        let all: u64 = entries.by_key.values().map(|entry| entry.bytes).sum();
        assert_eq!((entries.memory_bytes, entries.bytes), (memory, all));
        (entries.by_key.len(), all, memory)
    }
}

#[tokio::test]
async fn an_original_comes_back_as_it_was() {
    let rig = Rig::new(ReplacementLimits::default());
    rig.put(1, "first \u{4f60}\0\"").await;
    assert_eq!(rig.text(1).await.as_deref(), Some("first \u{4f60}\0\""));
    rig.put(1, "again").await;
    assert_eq!(rig.text(1).await.as_deref(), Some("again"));
    assert_eq!((rig.sums().0, rig.files()), (1, 0));
    assert!(!rig.has(2).await);
    let other_block = ReplacementKey { block: 1, ..key(1) };
    assert_eq!(rig.store.get(other_block).await.unwrap(), None);
    let text = key(1).to_string();
    assert_eq!(text, "00000000-0000-0000-0000-000000000000:00000000-0000-0000-0000-000000000001:0");
}

#[tokio::test]
async fn the_501st_entry_costs_the_least_recently_used() {
    let rig = Rig::new(ReplacementLimits::default());
    for n in 0..500 {
        rig.put(n, "x").await;
    }
    assert!(rig.has(0).await, "and it is used now");
    rig.put(500, "x").await;
    assert_eq!(rig.sums().0, 500);
    assert_eq!([rig.has(0).await, rig.has(1).await, rig.has(2).await], [true, false, true]);
}

/// At a sixteenth of the usual size, so that the test is quick.
#[tokio::test]
async fn memory_and_disk_hold_no_more_than_they_may() {
    const UNIT: u64 = 64 * 1024;
    let usual = ReplacementLimits::default();
    assert_eq!((usual.bytes, usual.memory_bytes), (16 * 50 * UNIT, 16 * 4 * UNIT));
    let limits = ReplacementLimits { bytes: 50 * UNIT, memory_bytes: 4 * UNIT, ..usual };
    let rig = Rig::new(limits);
    // With its JSON around it just under a unit.
    let text = "x".repeat(UNIT as usize - 200);
    for n in 0..60 {
        rig.put(n, &text).await;
        let (count, bytes, memory) = rig.sums();
        assert!(bytes <= limits.bytes && memory <= limits.memory_bytes);
        assert_eq!(rig.files(), count - count.min(4), "what memory does not hold stands on disk");
    }
    assert_eq!(rig.sums().0, 50);
    assert_eq!([rig.has(9).await, rig.has(10).await, rig.has(59).await], [false, true, true]);
    assert_eq!(rig.text(10).await.as_deref(), Some(text.as_str()), "from disk, whole");
    // One that is larger than memory goes to disk at once; one larger than all is not kept, and costs none.
    rig.put(100, &"y".repeat(5 * UNIT as usize)).await;
    assert_eq!(rig.text(100).await.map(|text| text.len() as u64), Some(5 * UNIT));
    let before = rig.sums();
    rig.put(101, &"z".repeat(51 * UNIT as usize)).await;
    assert_eq!((rig.has(101).await, rig.sums()), (false, before));
}

#[tokio::test(start_paused = true)]
async fn what_is_idle_for_half_an_hour_is_forgotten() {
    let limits = ReplacementLimits { memory_bytes: small(), ..ReplacementLimits::default() };
    let rig = Rig::new(limits);
    rig.put(1, "x").await;
    rig.put(2, "x").await;
    assert_eq!((rig.sums(), rig.files()), ((2, 2 * small(), small()), 1));
    tokio::time::advance(Duration::from_secs(29 * 60)).await;
    assert!(rig.has(1).await, "a use begins the time anew");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(!rig.has(2).await);
    assert!(rig.has(1).await);
    tokio::time::advance(Duration::from_secs(30 * 60)).await;
    rig.store.expire().await;
    assert_eq!((rig.sums(), rig.files()), ((0, 0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn what_the_store_forgot_comes_from_the_transcript_and_then_is_gone() {
    let rig = Rig::new(ReplacementLimits::default());
    let path = rig.dir.path().join("t.jsonl");
    let body = |texts: &[&str]| RecordBody::User {
        message: Message::user(texts.iter().map(|text| result(text)).collect()),
        origin: Origin::ToolResults,
        commands: Vec::new(),
    };
    let (transcript, _) = TranscriptFile::open(&path).unwrap();
    let batch = vec![body(&["a"]), body(&["b", "c"]), body(&["d"])];
    let stored = transcript.append(RunNumber(1), NOW, batch, Durability::Soon).await.unwrap();
    let message = stored[1].record.uuid;
    let key = |block| ReplacementKey { session: SessionId(Uuid::nil()), message, block };
    rig.store.put(key(1), &result("c"), NOW).await.unwrap();
    tokio::time::advance(Duration::from_secs(3600)).await;
    for (block, text) in [(0, "b"), (1, "c")] {
        let found = rig.store.get(key(block)).await.unwrap().unwrap();
        assert_eq!((found.content, found.at), (result(text), NOW));
    }
    assert_eq!(rig.store.get(key(2)).await.unwrap(), None, "no such block");
    fs::remove_file(&path).unwrap();
    assert_eq!(rig.store.get(key(1)).await.unwrap(), None);
}

#[tokio::test]
async fn files_that_vanish_count_as_evicted_and_none_are_left_behind() {
    let limits = ReplacementLimits { memory_bytes: 0, ..ReplacementLimits::default() };
    let rig = Rig::new(limits);
    rig.put(1, "x").await;
    rig.put(2, "x").await;
    assert_eq!(rig.files(), 2);
    fs::remove_file(rig.store.shared.file(&key(1))).unwrap();
    fs::write(rig.store.shared.file(&key(2)), "{\"type\":").unwrap();
    assert!(!rig.has(1).await && !rig.has(2).await);
    assert_eq!(rig.sums(), (0, 0, 0));
    rig.put(3, "x").await;
    let Rig { dir, store } = rig;
    let kept = dir.path().join("kept");
    fs::write(kept.join("of-a-dead-process.original"), "").unwrap();
    fs::write(kept.join("foreign"), "").unwrap();
    drop(store);
    let left = || fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(left(), ["foreign"]);
    fs::write(kept.join("of-a-dead-process.original"), "").unwrap();
    let _store = ReplacementStore::open(kept.clone(), dir.path().join("t.jsonl"), limits).unwrap();
    assert_eq!(left(), ["foreign"]);
}

#[tokio::test]
async fn a_disk_that_refuses_costs_the_entry_and_says_so() {
    let limits = ReplacementLimits { memory_bytes: small(), ..ReplacementLimits::default() };
    let dir = tempfile::tempdir().unwrap();
    // A file where the directory should be.
    let store = ReplacementStore::open(dir.path().join("kept"), dir.path().join("t.jsonl"), limits).unwrap();
    fs::write(dir.path().join("kept"), "").unwrap();
    let rig = Rig { dir, store };
    rig.put(1, "x").await;
    rig.store.put(key(2), &result("x"), NOW).await.unwrap_err();
    assert_eq!([rig.has(1).await, rig.has(2).await], [false, true]);
    assert_eq!(rig.sums(), (1, small(), small()));
}
