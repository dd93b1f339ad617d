//! Beginning at a checkpoint, and finding what stands where.

use proptest::prelude::*;
use serde::Deserialize;
use swarm_protocol::record::TodoItem;

use super::*;

/// What stands in for what records add up to: their texts.
type Texts = Vec<String>;

async fn append(transcript: &TranscriptFile, bodies: Vec<RecordBody>) {
    transcript.append(RunNumber(1), Timestamp::from_millis(0), bodies, Durability::Soon).await.unwrap();
}

fn todo(text: &str) -> RecordBody {
    let item = TodoItem { content: text.to_owned(), status: "pending".to_owned(), active_form: None };
    RecordBody::Todo { items: vec![item] }
}

fn todo_text(path: &Path) -> String {
    read_todo(path).unwrap().into_iter().map(|item| item.content).collect()
}

/// Checkpoint and records put together, with what was skipped.
fn all(path: &Path) -> (Texts, u64) {
    let (_transcript, loaded) = TranscriptFile::open_after_checkpoint::<Texts>(path).unwrap();
    assert!(loaded.defects.is_clean(), "{:?}", loaded.defects);
    let mut all = loaded.checkpoint.unwrap_or_default();
    all.extend(texts(&loaded.records));
    (all, loaded.skipped_bytes)
}

#[tokio::test]
async fn what_precedes_the_last_checkpoint_is_not_read() {
    let (_dir, path) = place();
    assert_eq!(all(&path), (vec![], 0));
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        append(&transcript, vec![user("a")]).await;
        transcript.append_checkpoint(&["a"]).unwrap();
        append(&transcript, vec![user("b"), user("c")]).await;
        transcript.append_checkpoint(&["a", "b", "c"]).unwrap();
        append(&transcript, vec![user("d")]).await;
    }
    let (read, skipped) = all(&path);
    assert_eq!(read, ["a", "b", "c", "d"]);
    // Nothing of it is looked at: it may be anything.
    let mut bytes = fs::read(&path).unwrap();
    let before = bytes.windows(14).position(|window| window == b"{\"checkpoint\":").unwrap();
    assert!(skipped > before as u64);
    bytes[..before - 1].fill(b'x');
    fs::write(&path, bytes).unwrap();
    assert_eq!(all(&path), (read, skipped));
    // Numbers and links go on.
    let written = write_one(&path, "e").await;
    assert_eq!(written.record.n, 5);
    let (_transcript, loaded) = TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap();
    assert_eq!(written.record.parent_uuid, Some(loaded.records[0].record.uuid));
    assert_eq!(texts(&loaded.records), ["d", "e"]);
}

async fn write_one(path: &Path, text: &str) -> StoredRecord {
    let (transcript, _) = TranscriptFile::open_after_checkpoint::<Texts>(path).unwrap();
    let now = Timestamp::from_millis(0);
    transcript.append(RunNumber(1), now, vec![user(text)], Durability::Soon).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_checkpoint_that_does_not_fit_is_passed_over() {
    #[derive(Debug, Deserialize)]
    struct OfLater {
        #[expect(dead_code, reason = "only its presence matters")]
        words: Texts,
    }

    let (_dir, path) = place();
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        append(&transcript, vec![user("a")]).await;
        transcript.append_checkpoint(&["a"]).unwrap();
        append(&transcript, vec![user("b")]).await;
    }
    let whole = fs::read_to_string(&path).unwrap();
    // Of another version.
    let (transcript, loaded) = TranscriptFile::open_after_checkpoint::<OfLater>(&path).unwrap();
    assert!(loaded.checkpoint.is_none());
    assert_eq!((texts(&loaded.records), loaded.skipped_bytes), (vec!["a".to_owned(), "b".to_owned()], 0));
    drop(transcript);
    // Something before it is missing, or is more than it was.
    for changed in [whole[1..].to_owned(), format!("\n{whole}")] {
        fs::write(&path, &changed).unwrap();
        let (_transcript, loaded) = TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap();
        assert!(loaded.checkpoint.is_none(), "{changed}");
    }
    // The words of a message are no checkpoint.
    fs::remove_file(&path).unwrap();
    let sly = "\n{\"checkpoint\":{\"at\":0,\"last\":null,\"todo_at\":null,\"content\":[\"evil\"]}}\n";
    write(&path, &[sly]).await;
    assert_eq!(all(&path), (vec![sly.to_owned()], 0));
}

/// R05 again: with checkpoints and metadata in the file, cut at every byte.
#[tokio::test]
async fn r05_a_torn_checkpoint_costs_nothing_but_time() {
    let (_dir, path) = place();
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        append(&transcript, vec![user("a")]).await;
        transcript.append_checkpoint(&["a"]).unwrap();
        append(&transcript, vec![user("b")]).await;
        transcript.append_checkpoint(&["a", "b"]).unwrap();
        append(&transcript, vec![user("c")]).await;
    }
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let expected = {
            let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
            texts(&loaded.records)
        };
        fs::write(&path, &whole[..cut]).unwrap();
        let (resumed, loaded) = TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap();
        drop(resumed);
        let mut read = loaded.checkpoint.unwrap_or_default();
        read.extend(texts(&loaded.records));
        assert_eq!(read, expected, "cut at {cut}");
        write_one(&path, "next").await;
        let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
        assert!(loaded.defects.is_clean(), "cut at {cut}: {:?}", loaded.defects);
        assert_eq!(texts(&loaded.records)[..expected.len()], expected, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_record_from_before_the_checkpoint_that_stands_behind_it_again_counts_once() {
    let (_dir, path) = place();
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        append(&transcript, vec![user("a")]).await;
        transcript.append_checkpoint(&["a"]).unwrap();
    }
    let first = fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
    let mut content = fs::read_to_string(&path).unwrap();
    content.push_str(&first);
    content.push('\n');
    fs::write(&path, content).unwrap();
    let (_transcript, loaded) = TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap();
    assert_eq!(loaded.checkpoint.unwrap(), ["a"]);
    assert_eq!((loaded.records.len(), loaded.defects.duplicates), (0, 1));
}

#[tokio::test]
async fn a_checkpoint_is_wanted_after_a_long_tail_and_never_for_its_own_length() {
    let (_dir, path) = place();
    let (transcript, _) = TranscriptFile::open(&path).unwrap();
    assert!(!transcript.wants_checkpoint(1_000));
    append(&transcript, vec![user(&"x".repeat(1_000))]).await;
    assert!(transcript.wants_checkpoint(1_000));
    transcript.append_checkpoint(&["y".repeat(5_000)]).unwrap();
    append(&transcript, vec![user(&"x".repeat(2_000))]).await;
    assert!(!transcript.wants_checkpoint(1_000), "less than the checkpoint's length");
    append(&transcript, vec![user(&"x".repeat(4_000))]).await;
    assert!(transcript.wants_checkpoint(1_000));
    drop(transcript);
    let check = |reopened: TranscriptFile| {
        assert!(reopened.wants_checkpoint(1_000) && !reopened.wants_checkpoint(10_000));
    };
    check(TranscriptFile::open(&path).unwrap().0);
    check(TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap().0);
}

/// A step of a generated writer.
#[derive(Clone, Debug)]
enum Step {
    /// Records of so many bytes.
    Records(Vec<usize>),
    Todo(u8),
    Checkpoint,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prop::collection::vec(prop_oneof![0..200_usize, 1_000..30_000_usize, 60_000..90_000_usize], 1..5)
            .prop_map(Step::Records),
        1 => any::<u8>().prop_map(Step::Todo),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn metadata_stays_near_the_end_and_finds_everything(steps in prop::collection::vec(step(), 1..20)) {
        let (_dir, path) = place();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut transcript, _) = TranscriptFile::open(&path).unwrap();
        let (mut expected, mut list) = (Texts::new(), String::new());
        for step in steps {
            match step {
                Step::Records(sizes) => {
                    let batch: Texts = sizes.iter().map(|size| "x".repeat(*size)).collect();
                    expected.extend(batch.iter().cloned());
                    runtime.block_on(append(&transcript, batch.iter().map(|text| user(text)).collect()));
                }
                Step::Todo(n) => {
                    list = n.to_string();
                    expected.push("todo".to_owned());
                    runtime.block_on(append(&transcript, vec![todo(&list)]));
                }
                Step::Checkpoint => transcript.append_checkpoint(&expected).unwrap(),
                Step::Reopen => {
                    drop(transcript);
                    transcript = TranscriptFile::open_after_checkpoint::<Texts>(&path).unwrap().0;
                }
            }
            let bytes = fs::read(&path).unwrap();
            let window = &bytes[bytes.len().saturating_sub(METADATA_WINDOW as usize)..];
            let has_metadata = memchr::memmem::find(window, b"\n{\"metadata\":").is_some();
            prop_assert!(has_metadata || bytes.len() <= METADATA_WINDOW as usize);
            prop_assert_eq!(todo_text(&path), list.as_str());
            let loaded = transcript.read_after_checkpoint::<Texts>().unwrap();
            prop_assert!(loaded.defects.is_clean());
            let mut read = loaded.checkpoint.unwrap_or_default();
            read.extend(texts(&loaded.records));
            prop_assert_eq!(&read, &expected);
        }
        // Any page, wherever it begins.
        for after in 0..=expected.len() {
            let page = read_page(&path, after as u64, 3).unwrap();
            let rest = &expected[after..];
            prop_assert_eq!(&texts(&page.records)[..], &rest[..rest.len().min(3)]);
            prop_assert_eq!(page.has_more, rest.len() > 3);
            prop_assert_eq!(page.bad_lines, 0);
        }
    }
}

#[tokio::test]
async fn a_todo_list_is_found_where_no_metadata_tells() {
    let (_dir, path) = place();
    assert_eq!(todo_text(&path), "");
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        append(&transcript, vec![todo("old"), todo("list"), user(&"x".repeat(200_000)), user("y")]).await;
    }
    assert_eq!(todo_text(&path), "list");
    let without: String = fs::read_to_string(&path)
        .unwrap()
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("{\"metadata\""))
        .collect();
    fs::write(&path, &without).unwrap();
    assert_eq!(todo_text(&path), "list");
    // A long torn end hides what metadata there is.
    fs::write(&path, format!("{without}{}", "\0".repeat(100_000))).unwrap();
    assert_eq!(todo_text(&path), "list");
}
