//! How long a transcript takes to open: the whole of it, and from its last checkpoint.
//!
//!     cargo run --release -p agent-host --example bench_transcript_load
//!
//! Prints a line for 10, 50 and 200 MB before the last boundary. The part after it is the same, so the time
//! from the checkpoint should not grow.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for people")]

use std::{path::Path, time::Instant};

use agent_host::transcript::{TranscriptFile, read_page, read_todo};
use query_engine::{LoopState, ports::Durability};
use swarm_protocol::{
    Block, Message, RunNumber, Timestamp,
    record::{CompactBoundary, Origin, RecordBody, StopReason},
};

/// Bytes of a tool result, of the common kind.
const RESULT_BYTES: usize = 8_000;
/// Turns after the boundary.
const TAIL_TURNS: u64 = 100;

fn turn(request: u64) -> Vec<RecordBody> {
    let id = || format!("toolu_{request}").parse().unwrap();
    let call = Block::ToolUse {
        id: id(),
        name: "Read".to_owned(),
        input: serde_json::json!({ "file_path": "/src/main.rs" }),
        provider_data: None,
    };
    let text = "let answer = compute(\"a line of code\", 42);\n".repeat(RESULT_BYTES / 44);
    let results = vec![Block::tool_result(id(), text, false)];
    vec![
        RecordBody::RequestStarted { request, model: "test/model".to_owned(), estimated_tokens: 1 },
        RecordBody::Assistant {
            message: Message::assistant(vec![Block::text("I read on."), call]),
            request,
            model: "test/model".to_owned(),
            stop_reason: StopReason::ToolUse,
            usage: Default::default(),
            cost: Default::default(),
            incomplete: false,
        },
        RecordBody::User {
            message: Message::user(results),
            origin: Origin::ToolResults,
            commands: Vec::new(),
        },
    ]
}

fn make(path: &Path, bytes: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (file, _) = TranscriptFile::open(path).unwrap();
    let append = |batch| {
        let now = Timestamp::from_millis(0);
        runtime.block_on(file.append(RunNumber(1), now, batch, Durability::Soon)).unwrap();
    };
    append(vec![RecordBody::User {
        message: Message::user_text("the task"),
        origin: Origin::Prompt,
        commands: Vec::new(),
    }]);
    append(vec![RecordBody::Todo { items: Vec::new() }]);
    let mut request = 0;
    while std::fs::metadata(path).unwrap().len() < bytes {
        request += 1;
        append(turn(request));
    }
    append(vec![RecordBody::CompactBoundary(CompactBoundary {
        trigger: "auto".to_owned(),
        steps: vec!["autocompact".to_owned()],
        pre_tokens: 150_000,
        post_tokens: 20_000,
        messages_summarised: request,
        tool_use_ids: Vec::new(),
        logical_parent_uuid: None,
        messages: vec![Message::user_text("a summary. ".repeat(8_000))],
    })]);
    let loaded = file.read_after_checkpoint::<LoopState>().unwrap();
    let state = LoopState::replay(loaded.records.iter().map(|stored| &stored.record.body));
    file.append_checkpoint(&state).unwrap();
    for n in 1..=TAIL_TURNS {
        append(turn(request + n));
    }
}

/// The shortest of five, in milliseconds.
fn millis(mut work: impl FnMut()) -> f64 {
    let one = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1_000.0
    };
    (0..5).map(|_| one(&mut work)).fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("before the boundary   whole      from checkpoint   a page in the middle   to-do list");
    for megabytes in [10, 50, 200] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        make(&path, megabytes * 1_000_000);
        let mut whole = LoopState::default();
        let whole_ms = millis(|| {
            let (_file, loaded) = TranscriptFile::open(&path).unwrap();
            whole = LoopState::fold(loaded.records.iter().map(|stored| &stored.record.body));
        });
        let mut resumed = LoopState::default();
        let (mut last, mut state) = (0, LoopState::default());
        let resumed_ms = millis(|| {
            let (file, loaded) = TranscriptFile::open_after_checkpoint::<LoopState>(&path).unwrap();
            last = file.marks().map_or(0, |mark| mark.n);
            state = loaded.checkpoint.unwrap();
            resumed =
                std::mem::take(&mut state).resume(loaded.records.iter().map(|stored| &stored.record.body));
        });
        assert_eq!(whole, resumed);
        let page_ms = millis(|| assert_eq!(read_page(&path, last / 2, 50).unwrap().records.len(), 50));
        let todo_ms = millis(|| assert!(read_todo(&path).unwrap().is_empty()));
        println!(
            "{megabytes:>4} MB {whole_ms:>21.1} ms {resumed_ms:>14.1} ms {page_ms:>18.1} ms {todo_ms:>15.2} ms"
        );
    }
}
