//! What crashes, other versions and other programs leave in a file (rows R of the cases).

use std::fmt::Write as _;

use proptest::prelude::*;
use query_engine::{LoopState, context::view::api_messages};
use swarm_protocol::Block;

use super::*;

const CLEAN: Defects =
    Defects { torn_bytes: 0, bad_lines: 0, duplicates: 0, self_parents: 0, cyclic_parents: 0, unknown: 0 };

/// The lines of a transcript with these texts, without their breaks.
async fn lines(texts: &[&str]) -> Vec<String> {
    let (_dir, path) = place();
    write(&path, texts).await;
    fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect()
}

/// Opens a file with this content; answers with what it holds afterwards.
#[track_caller]
fn check(content: impl AsRef<[u8]>, expected: &[&str], defects: Defects) -> Vec<u8> {
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    let page = read_page(&path, 0, 100).unwrap();
    let (transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(texts(&loaded.records), expected);
    assert_eq!(loaded.defects, defects);
    assert_eq!(transcript.marks().map(|mark| mark.uuid), loaded.records.last().map(|last| last.record.uuid));
    // Who only reads sees the same records, but for a last one whose line break is missing.
    assert!(texts(&loaded.records).starts_with(&texts(&page.records)));
    fs::read(&path).unwrap()
}

#[tokio::test]
async fn r01_two_records_on_a_line_are_both_read() {
    let lines = lines(&["a", "b", "c"]).await;
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    check(format!("{a}{b}\n{c}\n"), &["a", "b", "c"], CLEAN);
    check(format!("{a}\n{b}{c}\n"), &["a", "b", "c"], CLEAN);
    check(format!("{a}\n{b}{c}"), &["a", "b", "c"], CLEAN);
    // The second is torn: the first is whole nevertheless, and the next record has a line of its own.
    let half = &c[..c.len() / 2];
    check(format!("{a}\n{b}{half}\n"), &["a", "b"], Defects { bad_lines: 1, ..CLEAN });
    // A page that begins within such a line has the rest of it.
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("{a}\n{b}{c}\n")).unwrap();
    assert_eq!(texts(&read_page(&path, 2, 9).unwrap().records), ["c"]);
}

#[tokio::test]
async fn r02_a_bad_line_in_the_middle_is_counted_and_the_rest_is_read() {
    let lines = lines(&["a", "b", "c"]).await;
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    for bad in ["{\"n\":2,\"uu", "no json", "[]", "{}", "{\"n\":\"2\"}", "\u{fffd}", "null", "\"}{\"n\":"] {
        let content = format!("{a}\n{bad}\n{c}\n");
        let after = check(&content, &["a", "c"], Defects { bad_lines: 1, ..CLEAN });
        assert_eq!(after, content.as_bytes(), "what is not understood stays in the file");
    }
    check(format!("x\n{a}\ny\nz\n{b}\n{c}\n"), &["a", "b", "c"], Defects { bad_lines: 3, ..CLEAN });
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("{a}\nx\n{c}\n")).unwrap();
    assert_eq!(read_page(&path, 0, 9).unwrap().bad_lines, 1);
}

#[tokio::test]
async fn r04_zeros_of_a_power_loss_are_cut_off_at_the_end_and_skipped_elsewhere() {
    let lines = lines(&["a", "b"]).await;
    let [a, b] = [&lines[0], &lines[1]];
    let whole = format!("{a}\n{b}\n");
    for zeros in [1, 511, 4096, 200_000] {
        let torn = Defects { torn_bytes: zeros as u64, ..CLEAN };
        let after = check(format!("{whole}{}", "\0".repeat(zeros)), &["a", "b"], torn);
        assert_eq!(after, whole.as_bytes(), "the file ends with its last record");
    }
    check(format!("{a}\n{}{b}\n", "\0".repeat(4096)), &["a", "b"], CLEAN);
    // The start of a record reached the disk, the rest of its block did not.
    let torn = format!("{a}\n{}{}", &b[..20], "\0".repeat(4000));
    check(torn, &["a"], Defects { torn_bytes: 4020, ..CLEAN });
    // The break of the last line became a zero.
    check(format!("{a}\n{b}\0\0"), &["a", "b"], CLEAN);
    check("\0".repeat(4096), &[], Defects { torn_bytes: 4096, ..CLEAN });
}

/// Every byte of the last record, and of the one before it in the same write.
#[tokio::test]
async fn r05_a_file_cut_at_any_byte_loses_the_torn_record_only_and_goes_on_on_a_new_line() {
    let (_dir, path) = place();
    write(&path, &["first", "last \u{4f60}\"}{\\"]).await;
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        // A record that lacks nothing but its line break is whole.
        let n_whole = ends.iter().filter(|end| cut + 1 >= **end).count();
        let n_lines = ends.iter().filter(|end| cut >= **end).count();
        let line_start = n_lines.checked_sub(1).map_or(0, |last| ends[last]);
        let torn = if n_whole > n_lines { 0 } else { cut - line_start };
        let page = read_page(&path, 0, 10).unwrap();
        assert_eq!(page.records.len(), n_lines, "cut at {cut}");
        {
            let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
            assert_eq!(loaded.records.len(), n_whole, "cut at {cut}");
            assert_eq!(loaded.defects, Defects { torn_bytes: torn as u64, ..CLEAN }, "cut at {cut}");
        }
        write(&path, &["next"]).await;
        let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
        assert!(loaded.defects.is_clean(), "cut at {cut}");
        assert_eq!(texts(&loaded.records).last().unwrap(), "next");
        assert_eq!(loaded.records.len(), n_whole + 1);
        assert_eq!(loaded.records.last().unwrap().record.n, n_whole as u64 + 1);
    }
}

#[tokio::test]
async fn a_record_that_stands_twice_counts_once_and_a_fork_keeps_its_copies() {
    let lines = lines(&["a", "b", "c"]).await;
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    check(format!("{a}\n{a}\n{b}\n"), &["a", "b"], Defects { duplicates: 1, ..CLEAN });
    check(format!("{a}\n{b}\n{c}\n{b}\n{a}\n"), &["a", "b", "c"], Defects { duplicates: 2, ..CLEAN });
    check(format!("{a}\n{b}{b}\n"), &["a", "b"], Defects { duplicates: 1, ..CLEAN });
    // A fork is a transcript of its own that begins with records of another: identities are compared
    // within a file, never between files.
    let (dir, main) = place();
    let fork = dir.path().join("sub/fork.jsonl");
    fs::create_dir_all(main.parent().unwrap()).unwrap();
    fs::write(&main, format!("{a}\n{b}\n{c}\n")).unwrap();
    fs::write(&fork, format!("{a}\n{b}\n")).unwrap();
    let (_main, of_main) = TranscriptFile::open(&main).unwrap();
    write(&fork, &["d"]).await;
    let (_fork, of_fork) = TranscriptFile::open(&fork).unwrap();
    assert_eq!(texts(&of_fork.records), ["a", "b", "d"]);
    assert_eq!(of_fork.records[..2], of_main.records[..2]);
    assert!(of_fork.defects.is_clean());
}

/// What a chain of parents names, from a record to its start; no more steps than there are records.
fn chain(records: &[StoredRecord], from: usize) -> Option<usize> {
    let mut at = &records[from].record;
    for steps in 0..=records.len() {
        let parent = records.iter().find(|stored| Some(stored.record.uuid) == at.parent_uuid);
        match parent {
            Some(parent) => at = &parent.record,
            None => return Some(steps),
        }
    }
    None
}

#[tokio::test]
async fn r14_a_record_that_is_its_own_parent_or_in_a_circle_loses_the_link_only() {
    let lines = lines(&["a", "b", "c"]).await;
    let uuids: Vec<String> =
        lines.iter().map(|line| serde_json::from_str::<Record>(line).unwrap().uuid.to_string()).collect();
    let with_parent = |line: usize, parent: usize| {
        let mut value: serde_json::Value = serde_json::from_str(&lines[line]).unwrap();
        value["parent_uuid"] = uuids[parent].clone().into();
        value.to_string()
    };
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    let all = ["a", "b", "c"];
    check(format!("{a}\n{}\n{c}\n", with_parent(1, 1)), &all, Defects { self_parents: 1, ..CLEAN });
    check(format!("{}\n{b}\n{c}\n", with_parent(0, 2)), &all, Defects { cyclic_parents: 1, ..CLEAN });
    check(format!("{a}\n{}\n{c}\n", with_parent(1, 2)), &all, Defects { cyclic_parents: 1, ..CLEAN });
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("{}\n{}\n{c}\n", with_parent(0, 1), with_parent(1, 2))).unwrap();
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(loaded.defects, Defects { cyclic_parents: 2, ..CLEAN });
    assert_eq!(chain(&loaded.records, 2), Some(1), "b, whose own parent was c");
    // A parent that was lost is no circle: the link stays.
    check(format!("{a}\n{c}\n"), &["a", "c"], CLEAN);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// R14: whatever the links say, following them ends.
    #[test]
    fn r14_every_chain_of_parents_ends(parents in prop::collection::vec(prop::option::of(0..8_u8), 1..8)) {
        let uuid = |n: usize| Uuid::from_u128(n as u128 + 1);
        let mut content = String::new();
        for (n, parent) in parents.iter().enumerate() {
            let record = Record {
                n: n as u64 + 1,
                uuid: uuid(n),
                parent_uuid: parent.map(|parent| uuid(usize::from(parent))),
                timestamp: Timestamp::from_millis(0),
                run: RunNumber(1),
                body: user("x"),
            };
            writeln!(content, "{}", serde_json::to_string(&record).unwrap()).unwrap();
        }
        let (_dir, path) = place();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
        prop_assert_eq!(loaded.records.len(), parents.len());
        for from in 0..loaded.records.len() {
            prop_assert!(chain(&loaded.records, from).is_some());
        }
    }
}

/// R14: a write that fails is said, and nothing is written after what cannot be taken back.
#[tokio::test]
async fn r14_a_disk_that_refuses_is_said() {
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

#[tokio::test]
async fn r16_what_another_version_wrote_is_read_around_and_stays_as_it_is() {
    let lines = lines(&["a", "b", "c"]).await;
    let [a, b, c] = [&lines[0], &lines[1], &lines[2]];
    let unknown = c.replace("\"type\":\"user\"", "\"type\":\"hologram\"");
    let extra = b
        .replace("\"run\":1", "\"run\":1,\"colour\":\"red\"")
        .replace("\"origin\":", "\"depth\":{\"of\":[1,2.50]},\"origin\":");
    assert!(unknown != *c && extra.contains("colour") && extra.contains("2.50"));
    let mixed = format!("{a}\n{extra}\n{unknown}\n");
    let after = check_unknown(&mixed);
    assert_eq!(after, mixed);
    // Also where the end has to be repaired, and where records and notes follow.
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("{mixed}{{\"n\":4,")).unwrap();
    write(&path, &["d"]).await;
    let (transcript, loaded) = TranscriptFile::open(&path).unwrap();
    transcript.append_checkpoint(&1).unwrap();
    assert!(fs::read_to_string(&path).unwrap().starts_with(&mixed));
    assert_eq!(loaded.records.last().unwrap().record.n, 4, "an unknown record keeps its number");
    let parent = loaded.records.last().unwrap().record.parent_uuid;
    assert_eq!(parent, Some(serde_json::from_str::<Record>(c).unwrap().uuid), "and its place in the chain");
}

fn check_unknown(content: &str) -> String {
    let (_dir, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    assert_eq!(texts(&loaded.records), ["a", "b"]);
    assert_eq!(loaded.defects, Defects { unknown: 1, ..CLEAN });
    fs::read_to_string(&path).unwrap()
}

fn answer(blocks: Vec<Block>) -> RecordBody {
    RecordBody::Assistant {
        message: Message::assistant(blocks),
        request: 1,
        model: "m".to_owned(),
        stop_reason: swarm_protocol::record::StopReason::ToolUse,
        usage: Default::default(),
        cost: Default::default(),
        incomplete: false,
    }
}

fn results(blocks: Vec<Block>) -> RecordBody {
    RecordBody::User { message: Message::user(blocks), origin: Origin::ToolResults, commands: Vec::new() }
}

fn call(id: &str, input: serde_json::Value) -> Block {
    Block::ToolUse { id: id.parse().unwrap(), name: "Read".to_owned(), input, provider_data: None }
}

/// What the model is sent after these records were written and read back.
async fn sent(records: Vec<RecordBody>) -> Vec<Message> {
    let (_dir, path) = place();
    {
        let (transcript, _) = TranscriptFile::open(&path).unwrap();
        let now = Timestamp::from_millis(0);
        transcript.append(RunNumber(1), now, records, Durability::Soon).await.unwrap();
    }
    let (_transcript, loaded) = TranscriptFile::open(&path).unwrap();
    let state = LoopState::fold(loaded.records.iter().map(|stored| &stored.record.body));
    api_messages(&state.messages, &state.asked, "m")
}

#[tokio::test]
async fn s13_a_call_whose_stored_input_is_no_object_is_sent_as_one() {
    let id = || "t1".parse().unwrap();
    let records = vec![
        user("the task"),
        answer(vec![call("t1", serde_json::json!("{\"a\":"))]),
        results(vec![Block::tool_result(id(), "refused", true)]),
    ];
    let sent = sent(records).await;
    let (_, _, input) = sent[1].tool_uses().next().unwrap();
    assert_eq!(*input, serde_json::json!({ "INVALID_JSON": "{\"a\":" }));
}

/// Three calls, two results, one of them after a turn that came between.
#[tokio::test]
async fn a02_each_call_of_a_stored_history_gets_one_result_behind_it() {
    let empty = || serde_json::json!({});
    let result = |id: &str| Block::tool_result(id.parse().unwrap(), id, false);
    let records = vec![
        user("the task"),
        answer(vec![call("t1", empty()), call("t2", empty()), call("t3", empty())]),
        results(vec![result("t3")]),
        answer(vec![Block::text("a side turn")]),
        results(vec![result("t1")]),
    ];
    let sent = sent(records).await;
    let answered: Vec<(&str, bool)> = sent[2]
        .content
        .iter()
        .filter_map(|block| match block {
            Block::ToolResult { tool_use_id, is_error, .. } => Some((tool_use_id.as_str(), *is_error)),
            _ => None,
        })
        .collect();
    assert_eq!(answered, [("t1", false), ("t2", true), ("t3", false)]);
    let n_results = sent
        .iter()
        .flat_map(|message| &message.content)
        .filter(|block| matches!(block, Block::ToolResult { .. }))
        .count();
    assert_eq!(n_results, 3);
}
