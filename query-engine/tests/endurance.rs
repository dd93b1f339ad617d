//! The memory of a loop that turns ten thousand times and then stands still for a day (Z16). In a process of its own, with
//! nothing around the loop that keeps anything: what grows is the loop's.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::stream;
use query_engine::{
    Cancel, Engine, EngineConfig, LoopState, Ports, build_prefix,
    ports::{
        BeforeEnd, BlockKind, ClosedBlock, Durability, Gate, GateAnswer, Inbox, Incoming, Model, ModelError,
        ModelInfo, ModelRequest, ModelStream, NoHooks, NoObserver, StorageError, StreamEvent, Surroundings,
        Tool, ToolContext, ToolOutput, Transcript, Unlimited,
    },
};
use serde_json::{Value, json};
use swarm_protocol::{
    Block, ExitReason, Timestamp, ToolUseId, Usage,
    record::{Origin, RecordBody, StopReason},
    usage::Cost,
};
use tokio_util::sync::CancellationToken;

const TURNS: u64 = 10_000;
/// From here on the loop has been through all it does.
const WARM: u64 = 1_000;
/// What may be added after that, in kB: what allocators keep. Keeping every result would be 9 MB, and every request more than 100.
const MOST_KB: u64 = 6 * 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Resident memory in kB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says it");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Looks at something else each time; sums up when it is asked to.
#[derive(Default)]
struct Tireless {
    turn: AtomicU64,
    summaries: AtomicU64,
    warm_kb: AtomicU64,
}

#[async_trait]
impl Model for Tireless {
    fn info(&self) -> ModelInfo {
        ModelInfo {
            name: "test/tireless".to_owned(),
            context_window: 60_000,
            max_output: 4_000,
            caches: true,
        }
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let last = request.messages.last().map(|message| message.text()).unwrap_or_default();
        let input = self.request_bytes(request);
        let turn = match last.contains("Write a summary") {
            true => {
                self.summaries.fetch_add(1, Ordering::Relaxed);
                TURNS
            }
            false => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        if turn == WARM {
            self.warm_kb.store(resident(), Ordering::Relaxed);
        }
        let (kind, block, stop) = if turn < TURNS {
            let id: ToolUseId = format!("toolu_{turn}").parse().expect("it is an id");
            let input = json!({"at": turn});
            let block = Block::ToolUse { id, name: "Look".to_owned(), input, provider_data: None };
            (BlockKind::ToolUse { name: "Look".to_owned() }, block, StopReason::ToolUse)
        } else {
            (BlockKind::Text, Block::text("<summary>It looks at things.</summary>"), StopReason::EndTurn)
        };
        let usage = Usage { input_tokens: input as u64 / 4 + 500, output_tokens: 20, ..Usage::default() };
        let events = [
            StreamEvent::Started { model: "tireless".to_owned() },
            StreamEvent::BlockStarted { index: 0, kind },
            StreamEvent::BlockClosed { index: 0, block: ClosedBlock::Valid(block) },
            StreamEvent::Usage(usage),
            StreamEvent::Stopped(stop),
        ];
        Ok(Box::pin(stream::iter(events.map(Ok))))
    }

    fn cost(&self, _: &str, _: &Usage) -> Cost {
        Cost::usd(0.0)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        let blocks = request.messages.iter().flat_map(|message| &message.content);
        let bytes = blocks.map(|block| match block {
            Block::Text { text } => text.len(),
            Block::ToolResult { content, .. } => {
                60 + content.iter().filter_map(|part| part.as_text()).map(str::len).sum::<usize>()
            }
            _ => 100,
        });
        bytes.sum()
    }
}

struct Look;

#[async_trait]
impl Tool for Look {
    fn name(&self) -> &str {
        "Look"
    }

    fn description(&self) -> String {
        "Looks.".to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({"type": "object", "properties": {"at": {"type": "number"}}})
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        ToolOutput::text(format!("at {}: {}", input["at"], "something to see ".repeat(60)))
    }
}

/// What stands around the loop, and keeps nothing.
struct Around {
    asked: AtomicU64,
}

#[async_trait]
impl Transcript for Around {
    async fn append(&self, _: Vec<RecordBody>, _: Durability) -> Result<(), StorageError> {
        Ok(())
    }
}

#[async_trait]
impl Gate for Around {
    async fn check(&self, _: &dyn Tool, _: &Value, _: &ToolContext) -> GateAnswer {
        GateAnswer::Allow
    }
}

#[async_trait]
impl Inbox for Around {
    async fn drain(&self) -> Vec<Incoming> {
        let first = self.asked.fetch_add(1, Ordering::Relaxed) == 0;
        let prompt = || Incoming {
            content: vec![Block::text("Look at everything.")],
            origin: Origin::Prompt,
            commands: Vec::new(),
        };
        first.then(prompt).into_iter().collect()
    }

    /// As one that waits for a job of a day.
    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        tokio::time::sleep(DAY).await;
        BeforeEnd::End
    }
}

#[async_trait]
impl Surroundings for Around {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0)
    }

    async fn after_turn(&self, _: bool) -> Vec<Block> {
        Vec::new()
    }

    async fn keep_result(&self, _: &ToolUseId, _: &str) -> Result<String, StorageError> {
        Ok("kept".to_owned())
    }

    async fn after_compaction(&self, _: u64) -> Vec<Block> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn z16_ten_thousand_turns_and_a_day_of_idleness_take_no_more_memory_than_a_thousand() {
    let model = Arc::new(Tireless::default());
    let around = Arc::new(Around { asked: AtomicU64::new(0) });
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(Look)];
    let ports = Ports {
        model: model.clone(),
        fallback: None,
        helper: None,
        tools: tools.clone(),
        gate: around.clone(),
        transcript: around.clone(),
        inbox: around.clone(),
        grants: Arc::new(Unlimited),
        hooks: Arc::new(NoHooks),
        surroundings: around,
        observer: Arc::new(NoObserver),
    };
    let config = EngineConfig::new(build_prefix(vec!["You look.".to_owned()], &tools));
    let mut engine = Engine::new(config, ports, LoopState::default());
    let began = tokio::time::Instant::now();
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!(exit.exit, ExitReason::Completed, "{:?}", exit.notes);
    assert!(u64::from(exit.turns) > TURNS, "{}", exit.turns);
    assert!(began.elapsed() >= DAY);
    let (warm, end) = (model.warm_kb.load(Ordering::Relaxed), resident());
    let summaries = model.summaries.load(Ordering::Relaxed);
    println!("{summaries} summaries; {warm} kB after {WARM} turns, {end} kB after {TURNS} and a day");
    assert!(summaries > 1, "history was compacted");
    assert!(end <= warm + MOST_KB, "{warm} to {end} kB");
}
