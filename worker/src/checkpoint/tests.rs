use std::{path::Path, sync::Arc};

use agent_host::transcript::TranscriptFile;
use proptest::prelude::*;
use query_engine::ports::Durability;
use serde_json::json;
use swarm_protocol::{
    Block, ExitReason, Message, Timestamp, ToolUseId, Usage,
    ids::{MessageId, Seq},
    permission::PermissionRequest,
    record::{
        CommandRun, CompactBoundary, FileSeen, Origin, RecordBody, RunEnd, RunStarted, StopReason, TodoItem,
        ToolEffect, ToolFinished,
    },
    usage::Cost,
};

use super::*;
use crate::record::Recorder;

/// A record, or what a process does with the file.
#[derive(Clone, Debug)]
enum Step {
    Record(Box<RecordBody>),
    Checkpoint,
    /// The process ends and another begins: of the same run, or of the next.
    Start {
        next_run: bool,
    },
}

fn message(role: u8, words: &str, calls: u8, base: u8) -> Message {
    let call = |n: u8| call_id(base.wrapping_add(n));
    match role {
        0 => Message::user_text(words),
        1 => Message::user((0..calls).map(|n| Block::tool_result(call(n), words, n == 1)).collect()),
        _ => {
            let mut blocks = vec![Block::text(words)];
            blocks.extend((0..calls).map(|n| Block::ToolUse {
                id: call(n),
                name: "Bash".to_owned(),
                input: json!({ "command": words }),
                provider_data: None,
            }));
            Message::assistant(blocks)
        }
    }
}

fn call_id(n: u8) -> ToolUseId {
    format!("t{}", n % 8).parse().unwrap()
}

fn usage(tokens: u64, estimated: bool) -> Usage {
    Usage { input_tokens: tokens, output_tokens: tokens / 2, estimated, ..Usage::default() }
}

/// Whole sixteenths, so that sums are exact: the JSON reader may round other figures in their last bit.
fn cost(tokens: u64) -> Cost {
    Cost::usd(tokens as f64 / 16.0)
}

fn record() -> impl Strategy<Value = RecordBody> {
    let words = || prop_oneof!["[a-z]{0,30}", Just(" \n".to_owned()), Just("\u{4f60}\"\\".to_owned())];
    let origin = prop_oneof![
        Just(Origin::Prompt),
        (0..4_u128).prop_map(|id| Origin::Person { message_id: Some(MessageId(uuid::Uuid::from_u128(id))) }),
        Just(Origin::Person { message_id: None }),
        Just(Origin::Coordinator),
        Just(Origin::Notifications),
        Just(Origin::Harness),
        Just(Origin::Summary),
    ];
    let commands = prop::collection::vec((0..6_u64).prop_map(Seq), 0..3);
    let stop = prop_oneof![Just(StopReason::ToolUse), Just(StopReason::MaxTokens), Just(StopReason::EndTurn)];
    let effect = prop_oneof![
        Just(ToolEffect::None),
        Just(ToolEffect::Edited { path: "/a".to_owned(), added: 1, removed: 2 }),
        prop::option::of(0..3_i32).prop_map(|exit_code| ToolEffect::Command(CommandRun {
            command: "make".to_owned(),
            exit_code,
            ended_by: None,
            benign: false,
            stopped: false,
            children_killed: Vec::new(),
        })),
    ];
    prop_oneof![
        4 => (words(), origin, commands).prop_map(|(words, origin, commands)| RecordBody::User {
            message: message(0, &words, 0, 0), origin, commands,
        }),
        2 => (words(), 0..4_u8, any::<u8>()).prop_map(|(words, calls, base)| RecordBody::User {
            message: message(1, &words, calls, base), origin: Origin::ToolResults, commands: Vec::new(),
        }),
        4 => (1..9_u64).prop_map(|request| RecordBody::RequestStarted {
            request, model: format!("test/{}", request % 2), estimated_tokens: 1,
        }),
        3 => (1..9_u64, words(), 0..4_u8, any::<u8>()).prop_map(|(request, words, calls, base)| {
            RecordBody::Intent { request, blocks: message(2, &words, calls, base).content }
        }),
        3 => (any::<u8>(), words(), effect).prop_map(|(call, words, effect)| RecordBody::ToolFinished(ToolFinished {
            tool_use_id: call_id(call),
            name: "Bash".to_owned(),
            result: Block::tool_result(call_id(call), words, false),
            duration_ms: 1,
            effect,
            seen: (call % 2 == 0)
                .then(|| Box::new(FileSeen { path: format!("/f{}", call % 3), sha256: format!("{call:064x}") })),
        })),
        5 => (words(), 0..3_u8, any::<u8>(), 1..9_u64, stop, 0..900_u64, any::<(bool, bool)>()).prop_map(
            |(words, calls, base, request, stop_reason, tokens, (incomplete, estimated))| RecordBody::Assistant {
                message: message(2, &words, calls, base),
                request,
                model: "test/model".to_owned(),
                stop_reason,
                usage: usage(tokens, estimated),
                cost: cost(tokens),
                incomplete,
            }
        ),
        2 => (any::<bool>(), 0..900_u64).prop_map(|(failed, tokens)| RecordBody::HelperCall {
            purpose: if failed { "compaction failed: too long" } else { "compaction" }.to_owned(),
            model: "test/helper".to_owned(),
            usage: usage(tokens, false),
            cost: cost(tokens),
        }),
        2 => (any::<bool>(), words()).prop_map(|(auto, words)| RecordBody::CompactBoundary(CompactBoundary {
            trigger: "auto".to_owned(),
            steps: vec![if auto { "autocompact" } else { "strip_media" }.to_owned()],
            pre_tokens: 9,
            post_tokens: 1,
            messages_summarised: 3,
            tool_use_ids: Vec::new(),
            logical_parent_uuid: None,
            messages: vec![message(0, &words, 0, 0), message(2, "on", 0, 0)],
        })),
        1 => (0..6_u64).prop_map(|id| RecordBody::CommandAccepted {
            command: Seq(id), what: "stop".to_owned(),
        }),
        1 => (0..3_u32).prop_map(|n| RecordBody::Snapshot { n, commit: "c".to_owned() }),
        1 => words().prop_map(|content| RecordBody::Todo {
            items: vec![TodoItem { content, status: "pending".to_owned(), active_form: None }],
        }),
        1 => Just(RecordBody::Tombstone { note: "dropped".to_owned() }),
        1 => (0..4_u8, any::<u8>()).prop_map(|(id, call)| RecordBody::PermissionRequested {
            request: Box::new(permission(id, call)),
        }),
        1 => (0..4_u8).prop_map(|id| RecordBody::PermissionWithdrawn {
            id: permission(id, 0).id, reason: "over".to_owned(),
        }),
        1 => Just(RecordBody::ContentReplacement {
            tool_use_id: call_id(1), path: "/r".to_owned(), bytes: 9,
        }),
        1 => Just(RecordBody::RunEnded(Box::new(RunEnd::without_work(ExitReason::Completed)))),
    ]
}

fn permission(id: u8, call: u8) -> PermissionRequest {
    serde_json::from_value(json!({
        "id": format!("req-00{id}"),
        "worker_id": "agent-a1b",
        "run": 1,
        "tool_use_id": call_id(call),
        "tool": "Bash",
        "input": {},
        "summary": "make",
        "why": "no rule",
        "proposed_rule": null,
        "description": null,
        "requested_at": Timestamp::from_millis(0),
        "timeout_ms": 1,
    }))
    .unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => record().prop_map(|body| Step::Record(Box::new(body))),
        1 => Just(Step::Checkpoint),
        1 => any::<bool>().prop_map(|next_run| Step::Start { next_run }),
    ]
}

fn started(run: RunNumber) -> RecordBody {
    RecordBody::RunStarted(RunStarted {
        run,
        restarts: 0,
        pid: 1,
        model: "test/model".to_owned(),
        sandbox_tier: 2,
        version: "0".to_owned(),
    })
}

/// State and facts of a run by a fold of every record of the file.
fn whole(file: &TranscriptFile, run: RunNumber) -> (LoopState, Facts) {
    // No checkpoint is a truth value: all is read.
    let loaded = file.read_after_checkpoint::<bool>().unwrap();
    assert_eq!((loaded.skipped_bytes, loaded.defects.is_clean()), (0, true));
    let mut facts = Facts::new(run);
    for stored in &loaded.records {
        facts.apply(&stored.record);
    }
    (LoopState::fold(bodies(&loaded.records)), facts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fold_from_a_checkpoint_equals_the_fold_of_the_whole(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut run = RunNumber(1);
        let mut millis = 0;
        let (mut file, _) = TranscriptFile::open(&path).unwrap();
        let mut write = |file: &TranscriptFile, run, batch| {
            millis += 7;
            let now = Timestamp::from_millis(millis);
            runtime.block_on(file.append(run, now, batch, Durability::Soon)).unwrap();
        };
        write(&file, run, vec![started(run)]);
        let mut skips = false;
        for step in steps {
            match step {
                Step::Record(body) => write(&file, run, vec![*body]),
                Step::Checkpoint => {
                    let loaded = file.read_after_checkpoint().unwrap();
                    file.append_checkpoint(&Checkpoint::after(&loaded, run)).unwrap();
                    skips = true;
                }
                Step::Start { next_run } => {
                    drop(file);
                    run = RunNumber(run.0 + u32::from(next_run));
                    let loaded;
                    (file, loaded) = TranscriptFile::open_after_checkpoint(&path).unwrap();
                    let mut batch = super::state(&loaded).unsaved;
                    batch.push(started(run));
                    write(&file, run, batch);
                }
            }
            let loaded = file.read_after_checkpoint().unwrap();
            prop_assert_eq!(loaded.skipped_bytes > 0, skips);
            let (state, facts) = whole(&file, run);
            prop_assert_eq!(super::state(&loaded), state);
            prop_assert_eq!(super::facts(&loaded, run), facts);
        }
        // Also for the run after the last.
        let loaded = file.read_after_checkpoint().unwrap();
        let next = RunNumber(run.0 + 1);
        prop_assert_eq!(super::facts(&loaded, next), whole(&file, next).1);
    }
}

#[test]
fn a_checkpoint_of_another_version_is_not_read() {
    let loaded =
        Loaded { checkpoint: None, skipped_bytes: 0, records: Vec::new(), defects: Default::default() };
    let checkpoint = Checkpoint::after(&loaded, RunNumber(1));
    let mut json = serde_json::to_value(&checkpoint).unwrap();
    assert_eq!(serde_json::from_value::<Checkpoint>(json.clone()).unwrap(), checkpoint);
    json["version"] = "0.0.7".into();
    let error = serde_json::from_value::<Checkpoint>(json).unwrap_err();
    assert!(error.to_string().contains("version 0.0.7"), "{error}");
}

fn recorder(path: &Path, run: RunNumber) -> (Recorder, Loaded<Checkpoint>) {
    let (file, loaded) = TranscriptFile::open_after_checkpoint(path).unwrap();
    (Recorder::new(file, run, Arc::default(), &loaded), loaded)
}

#[tokio::test]
async fn a_start_reads_nothing_before_the_last_compaction_and_knows_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let (run, next) = (RunNumber(1), RunNumber(2));
    let boundary = CompactBoundary {
        trigger: "auto".to_owned(),
        steps: vec!["autocompact".to_owned()],
        pre_tokens: 9,
        post_tokens: 1,
        messages_summarised: 1,
        tool_use_ids: Vec::new(),
        logical_parent_uuid: None,
        messages: vec![Message::user_text("the task"), Message::user_text("in short")],
    };
    let user = |text: &str, command| RecordBody::User {
        message: Message::user_text(text),
        origin: Origin::Prompt,
        commands: vec![Seq(command)],
    };
    {
        let (recorder, _) = recorder(&path, run);
        recorder.write(vec![started(run), user("the task", 41)], Durability::Soon).await.unwrap();
        let answer = RecordBody::Assistant {
            message: Message::assistant(vec![Block::text("so far")]),
            request: 7,
            model: "test/model".to_owned(),
            stop_reason: StopReason::EndTurn,
            usage: usage(100, false),
            cost: Cost::default(),
            incomplete: false,
        };
        recorder.write(vec![answer], Durability::Soon).await.unwrap();
        let batch = vec![RecordBody::CompactBoundary(boundary), user("more", 42)];
        let stored = recorder.write(batch, Durability::Now).await.unwrap();
        assert_eq!(stored.len(), 2, "a checkpoint is no record");
        recorder.write(vec![user("after", 43)], Durability::Soon).await.unwrap();
    }
    let (recorder, loaded) = recorder(&path, next);
    assert_eq!(loaded.records.len(), 1, "what follows the checkpoint");
    let state = super::state(&loaded);
    let texts: Vec<String> = state.messages.iter().map(Message::text).collect();
    assert_eq!(texts, ["the task", "in short", "more", "after"]);
    assert_eq!((state.turns_total, state.request, state.usage), (1, 7, usage(100, false)));
    assert_eq!(state.first.map(|first| first.text()).as_deref(), Some("the task"));
    for command in [41, 42, 43] {
        assert!(recorder.has_taken(Seq(command)), "{command} would be obeyed twice");
    }
    assert_eq!(recorder.last().map(|last| last.n), Some(6));
    assert_eq!((recorder.facts().this_run.turns, recorder.facts().has_earlier_runs), (0, true));
}

#[tokio::test]
async fn a_start_reads_a_bounded_part_where_nothing_was_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let run = RunNumber(1);
    {
        let (recorder, _) = recorder(&path, run);
        recorder.write(vec![started(run)], Durability::Soon).await.unwrap();
        let note = "x".repeat(LONGEST_TAIL as usize / 8);
        for _ in 0..20 {
            let record = RecordBody::Tombstone { note: note.clone() };
            recorder.write(vec![record], Durability::Soon).await.unwrap();
        }
    }
    let length = std::fs::metadata(&path).unwrap().len();
    let (recorder, loaded) = recorder(&path, run);
    assert!(length > 2 * LONGEST_TAIL && length - loaded.skipped_bytes <= LONGEST_TAIL);
    assert_eq!((recorder.facts().this_run.starts, recorder.last().map(|last| last.n)), (1, Some(21)));
}
