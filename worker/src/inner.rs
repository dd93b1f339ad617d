//! Inner agents: `Subagent {type: Explore | Plan, prompt}` runs a query loop of its own within the worker, which reads
//! and never changes, and answers with its last words (spec 4.6).
//!
//! It gets a copy of what the worker has read, and the worker's rules and mode as they are at each call: what would
//! ask a person is refused, for nobody watches it. What it uses is the worker's. It cannot start agents itself.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use agent_host::secrets::Masker;
use agent_host::{EXPLORE_PROMPT, PLAN_PROMPT, SystemPromptParts, transcript::TranscriptFile};
use async_trait::async_trait;
use query_engine::{
    Cancel, Engine, EngineConfig, LoopState, Ports,
    budget::Budget,
    build_prefix,
    ports::{
        BeforeEnd, Durability, Gate, GateAnswer, Inbox, Incoming, Model, NoHooks, Observer, Spent,
        StorageError, Subject, Surroundings, Tool, ToolContext, ToolOutput, Transcript, Unlimited,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{
    Block, ExitReason, RunNumber, Timestamp, ToolUseId,
    frame::Live,
    record::{Origin, RecordBody},
    usage::Caps,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    gate::WorkerGate,
    record::{Recorder, now},
    tools::{self, Files},
};

/// So many work at once.
const AT_ONCE: usize = 4;
/// Turns of one.
const MAX_TURNS: u32 = 40;
/// An interrupt has to reach the end of the inner loop before the outer one drops it.
const GRACE: Duration = Duration::from_millis(300);
/// Characters of a result that is kept whole on disk.
const MAX_RESULT_CHARS: usize = 30_000;

/// The kinds there are; a general one never nests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Kind {
    Explore,
    Plan,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Explore => "Explore",
            Self::Plan => "Plan",
        }
    }

    fn prompt(self) -> &'static str {
        match self {
            Self::Explore => EXPLORE_PROMPT,
            Self::Plan => PLAN_PROMPT,
        }
    }
}

/// What an inner agent is made of; said once, when the run has its model.
pub struct Minds {
    /// The worker's own model.
    pub model: Arc<dyn Model>,
    /// What the worker may spend in all.
    pub budget: Caps,
    /// Tokens that it had used before this run.
    pub earlier_tokens: u64,
    /// Dollars that it had spent before this run.
    pub earlier_usd: f64,
    /// The window, where the setting says something else than the provider.
    pub context_window: Option<u64>,
}

/// The tool.
pub struct Subagent {
    files: Arc<Files>,
    gate: Arc<WorkerGate>,
    recorder: Arc<Recorder>,
    results_dir: PathBuf,
    minds: Arc<OnceLock<Minds>>,
    masker: Masker,
    places: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Input {
    #[serde(rename = "type", alias = "subagent_type")]
    kind: Kind,
    prompt: String,
}

impl Subagent {
    /// For a worker with these files, gate and transcript.
    pub fn new(
        files: Arc<Files>,
        gate: Arc<WorkerGate>,
        recorder: Arc<Recorder>,
        results_dir: PathBuf,
        minds: Arc<OnceLock<Minds>>,
        masker: Masker,
    ) -> Self {
        Self { files, gate, recorder, results_dir, minds, masker, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    async fn run(&self, input: Input, context: &ToolContext) -> Result<ToolOutput, String> {
        let minds = self.minds.get().ok_or("The worker has no model yet.")?;
        let Ok(_place) = self.places.try_acquire() else {
            return Err(format!("{AT_ONCE} inner agents work already; wait for one of them."));
        };
        let name = input.kind.as_str();
        let files = Arc::new(self.files.copy_for_inner());
        let tools = tools::masked::all(tools::read_only(&files), &self.masker);
        let system = agent_host::system_prompt(&SystemPromptParts {
            agent_definition: Some(input.kind.prompt()),
            ..SystemPromptParts::default()
        });
        let mut config = EngineConfig::new(build_prefix(vec![system], &tools));
        config.max_turns = Some(MAX_TURNS);
        config.budget = self.share(minds);
        config.context_window = minds.context_window;
        config.grace = GRACE;
        let keep = Keep::new(&self.results_dir, &context.tool_use_id)?;
        let observer = Arc::new(Seen { name, outer: context.observer.clone() });
        let ports = Ports {
            model: minds.model.clone(),
            fallback: None,
            helper: None,
            tools,
            gate: Arc::new(InnerGate { gate: self.gate.clone(), files: files.clone() }),
            transcript: Arc::new(keep.transcript(self.recorder.run())?),
            inbox: Arc::new(Once::new(opening(&self.files, &input.prompt))),
            grants: Arc::new(Unlimited),
            hooks: Arc::new(NoHooks),
            surroundings: Arc::new(keep),
            observer,
        };
        let mut engine = Engine::new(config, ports, LoopState::default());
        let cancel = Cancel { interrupt: context.cancel.child_token(), stop: CancellationToken::new() };
        let exit = engine.run(&cancel).await;
        let spent = Spent {
            purpose: format!("inner agent {name}"),
            model: minds.model.info().name,
            usage: exit.usage,
            cost: exit.cost,
        };
        let words = exit.text.trim();
        let text = match (&exit.exit, words.is_empty()) {
            (ExitReason::Completed, false) => words.to_owned(),
            (reason, true) => format!("{name} ended without an answer: {}.", reason.sentence()),
            (reason, false) => {
                format!("{name} did not finish: {}. Its last words:\n{words}", reason.sentence())
            }
        };
        let is_error = exit.exit != ExitReason::Completed || words.is_empty();
        Ok(ToolOutput { is_error, spent: vec![spent], ..ToolOutput::text(text) })
    }

    /// A share of what is left of the worker's caps, so that all who may work at once, and the worker's own call under
    /// way, stay within them.
    fn share(&self, minds: &Minds) -> Budget {
        let run = self.recorder.facts().this_run;
        let tokens = minds.earlier_tokens.saturating_add(run.usage.total());
        let usd = minds.earlier_usd + run.cost.known_usd;
        let shares = AT_ONCE as u64 + 1;
        Budget {
            usd: minds.budget.usd.map(|cap| (cap - usd).max(0.0) / shares as f64),
            tokens: minds.budget.tokens.map(|cap| cap.saturating_sub(tokens) / shares),
        }
    }
}

fn opening(files: &Files, prompt: &str) -> Incoming {
    let place = format!("<system-reminder>\nWorking directory: {}\n</system-reminder>", files.root.display());
    Incoming {
        content: vec![Block::text(place), Block::text(prompt)],
        origin: Origin::Prompt,
        commands: Vec::new(),
    }
}

#[async_trait]
impl Tool for Subagent {
    fn name(&self) -> &str {
        "Subagent"
    }

    fn description(&self) -> String {
        format!(
            "Lets an agent of its own look for something and report, so that what it reads does not fill your context. \
             It reads files and changes nothing. `Explore` finds and explains; `Plan` thinks through how a change is to \
             be made. It knows nothing of your conversation: say in `prompt` all that it needs, and what it should \
             answer. At most {AT_ONCE} at once."
        )
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["Explore", "Plan"]},
                "description": {"type": "string", "description": "What it does, in three to five words"},
                "prompt": {"type": "string"}
            },
            "required": ["type", "prompt"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn subjects(&self, input: &Value) -> Vec<Subject> {
        let kind = input.get("type").or_else(|| input.get("subagent_type")).and_then(Value::as_str);
        kind.map(|kind| Subject::Name(kind.to_owned())).into_iter().collect()
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        Some(MAX_RESULT_CHARS)
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match serde_json::from_value(input) {
            Ok(input) => input,
            Err(error) => {
                return ToolOutput::error(format!("The input of Subagent does not fit its schema: {error}."));
            }
        };
        self.run(input, &context).await.unwrap_or_else(ToolOutput::error)
    }
}

/// The worker's rules and mode, with nobody to ask.
struct InnerGate {
    gate: Arc<WorkerGate>,
    files: Arc<Files>,
}

#[async_trait]
impl Gate for InnerGate {
    async fn check(&self, tool: &dyn Tool, input: &Value, context: &ToolContext) -> GateAnswer {
        self.gate.check_inner(tool, input, context, &self.files).await
    }
}

/// The prompt, and nothing after it.
struct Once(Mutex<Option<Incoming>>);

impl Once {
    fn new(message: Incoming) -> Self {
        Self(Mutex::new(Some(message)))
    }
}

#[async_trait]
impl Inbox for Once {
    async fn drain(&self) -> Vec<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().into_iter().collect()
    }

    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        BeforeEnd::End
    }
}

/// Where its transcript and its long results are kept, beside those of the worker.
struct Keep {
    directory: PathBuf,
}

impl Keep {
    fn new(results_dir: &Path, call: &ToolUseId) -> Result<Self, String> {
        let plain: String = call
            .as_str()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
            .take(80)
            .collect();
        Ok(Self { directory: results_dir.join(format!("inner-{plain}")) })
    }

    fn transcript(&self, run: RunNumber) -> Result<InnerTranscript, String> {
        let path = self.directory.join("transcript.jsonl");
        let (file, _) = TranscriptFile::open(&path)
            .map_err(|error| format!("The inner agent has no transcript: {error}."))?;
        Ok(InnerTranscript { file, run })
    }
}

#[async_trait]
impl Surroundings for Keep {
    fn now(&self) -> Timestamp {
        now()
    }

    async fn after_turn(&self, _: bool) -> Vec<Block> {
        Vec::new()
    }

    async fn keep_result(&self, call: &ToolUseId, text: &str) -> Result<String, StorageError> {
        crate::agent::keep_text(&self.directory, call, text).await
    }

    async fn after_compaction(&self, _: u64) -> Vec<Block> {
        Vec::new()
    }
}

struct InnerTranscript {
    file: TranscriptFile,
    run: RunNumber,
}

#[async_trait]
impl Transcript for InnerTranscript {
    async fn append(&self, batch: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError> {
        self.file.append(self.run, now(), batch, durability).await.map(drop)
    }
}

/// Who watches the worker sees what its inner agents do, as activity.
struct Seen {
    name: &'static str,
    outer: Arc<dyn Observer>,
}

impl Observer for Seen {
    fn live(&self, live: Live) {
        if let Live::ToolStarted { tool, summary, .. } = live {
            let text = format!("{}: {tool} {summary}", self.name);
            self.outer.live(Live::Activity { text, context_tokens: None, context_window: None });
        }
    }
}
