//! Stand-ins for every port, stepped by hand: for tests of the engine and of the programs.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::stream;
use serde_json::{Value, json};
use swarm_protocol::{
    Block, ResultBlock, Timestamp, ToolUseId, Usage,
    frame::Live,
    record::{Origin, RecordBody, StopReason, ToolEffect},
    usage::Cost,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    driver::{Engine, EngineConfig, Ports, build_prefix},
    ports::{
        BeforeEnd, BlockKind, ClosedBlock, Delta, Durability, Gate, GateAnswer, Grant, Grants, HookAnswer,
        Hooks, Inbox, Incoming, Model, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelStream,
        Observer, PlannedCall, Repeats, StorageError, StreamEvent, Surroundings, Tool, ToolContext,
        ToolOutput, Transcript,
    },
    state::LoopState,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---------------------------------------------------------------------------------------------- model

/// One thing a scripted answer does.
#[derive(Clone, Debug)]
pub enum Step {
    /// An event.
    Event(StreamEvent),
    /// The stream fails.
    Fail(ModelError),
    /// Waits until the gate is opened.
    Gate(Arc<Notify>),
    /// Waits this long.
    Sleep(Duration),
    /// Never goes on.
    Hang,
}

/// An answer: refused at once, or a stream.
#[derive(Clone, Debug)]
pub enum Script {
    /// The request fails.
    Refuse(ModelError),
    /// It streams.
    Stream(Vec<Step>),
}

impl From<Vec<Step>> for Script {
    fn from(steps: Vec<Step>) -> Self {
        Self::Stream(steps)
    }
}

impl From<ModelError> for Script {
    fn from(error: ModelError) -> Self {
        Self::Refuse(error)
    }
}

/// A model that answers from a queue and records what it was asked.
pub struct ScriptedModel {
    info: ModelInfo,
    scripts: Mutex<VecDeque<Script>>,
    requests: Mutex<Vec<ModelRequest>>,
}

impl ScriptedModel {
    /// A model with a window of 200,000 tokens.
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Self::with_info(
            ModelInfo {
                name: "test/model".to_owned(),
                context_window: 200_000,
                max_output: 8_000,
                caches: true,
            },
            scripts,
        )
    }

    /// A model of this kind.
    pub fn with_info(info: ModelInfo, scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Arc::new(Self {
            info,
            scripts: Mutex::new(scripts.into_iter().collect()),
            requests: Mutex::default(),
        })
    }

    /// Queues one more answer.
    pub fn push(&self, script: impl Into<Script>) {
        lock(&self.scripts).push_back(script.into());
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<ModelRequest> {
        lock(&self.requests).clone()
    }

    /// Answers that were not used.
    pub fn left(&self) -> usize {
        lock(&self.scripts).len()
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        lock(&self.requests).push(request.clone());
        let script = lock(&self.scripts).pop_front();
        match script {
            None => Err(error(ModelErrorKind::InvalidRequest, "the script is at its end")),
            Some(Script::Refuse(error)) => Err(error),
            Some(Script::Stream(steps)) => {
                let steps: VecDeque<Step> = steps.into();
                Ok(Box::pin(stream::unfold(steps, async |mut steps| {
                    loop {
                        match steps.pop_front()? {
                            Step::Event(event) => return Some((Ok(event), steps)),
                            Step::Fail(error) => return Some((Err(error), VecDeque::new())),
                            Step::Gate(gate) => gate.notified().await,
                            Step::Sleep(time) => tokio::time::sleep(time).await,
                            Step::Hang => std::future::pending::<()>().await,
                        }
                    }
                })))
            }
        }
    }

    fn cost(&self, _: &str, usage: &Usage) -> Cost {
        Cost::usd(usage.total() as f64 / 1e6)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        serde_json::to_string(&request.messages).map_or(0, |text| text.len())
    }
}

/// An error of this kind.
pub fn error(kind: ModelErrorKind, message: &str) -> ModelError {
    ModelError { kind, message: message.to_owned(), retry_after: None, status: None }
}

/// The stream ends without `message_stop`.
pub fn fin() -> Step {
    Step::Fail(error(ModelErrorKind::Truncated, "the stream ended before the answer was whole"))
}

/// A tool call id.
pub fn id(text: &str) -> ToolUseId {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Words that come in two deltas and close.
pub fn text(index: usize, words: &str) -> Vec<Step> {
    let mut steps = open_text(index, words);
    steps
        .push(Step::Event(StreamEvent::BlockClosed { index, block: ClosedBlock::Valid(Block::text(words)) }));
    steps
}

/// Words whose block stays open.
pub fn open_text(index: usize, words: &str) -> Vec<Step> {
    let half = words.chars().count() / 2;
    let (head, tail): (String, String) =
        (words.chars().take(half).collect(), words.chars().skip(half).collect());
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::Text }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Text(head) }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Text(tail) }),
    ]
}

/// A whole thinking block.
pub fn thinking(index: usize, words: &str) -> Vec<Step> {
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::Thinking }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::Thinking(words.to_owned()) }),
        Step::Event(StreamEvent::BlockClosed {
            index,
            block: ClosedBlock::Valid(Block::Thinking {
                thinking: words.to_owned(),
                signature: format!("signed {words}"),
            }),
        }),
    ]
}

/// A call that closes.
pub fn call(index: usize, call_id: &str, name: &str, input: Value) -> Vec<Step> {
    let mut steps = open_call(index, name);
    steps.push(Step::Event(StreamEvent::BlockClosed {
        index,
        block: ClosedBlock::Valid(Block::ToolUse {
            id: id(call_id),
            name: name.to_owned(),
            input,
            provider_data: None,
        }),
    }));
    steps
}

/// A call that begins and does not close.
pub fn open_call(index: usize, name: &str) -> Vec<Step> {
    vec![
        Step::Event(StreamEvent::BlockStarted { index, kind: BlockKind::ToolUse { name: name.to_owned() } }),
        Step::Event(StreamEvent::Delta { index, delta: Delta::InputBytes(10) }),
    ]
}

/// A call whose arguments are no JSON object.
pub fn invalid_call(index: usize, call_id: &str, name: &str, problem: &str) -> Vec<Step> {
    let mut steps = open_call(index, name);
    steps.push(Step::Event(StreamEvent::BlockClosed {
        index,
        block: ClosedBlock::InvalidCall {
            id: id(call_id),
            name: name.to_owned(),
            input: json!({}),
            problem: problem.to_owned(),
        },
    }));
    steps
}

/// Use and the stop.
pub fn stop(reason: StopReason) -> Vec<Step> {
    stop_with(reason, Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() })
}

/// This use and the stop.
pub fn stop_with(reason: StopReason, usage: Usage) -> Vec<Step> {
    vec![Step::Event(StreamEvent::Usage(usage)), Step::Event(StreamEvent::Stopped(reason))]
}

/// An answer of these parts.
pub fn answer(parts: impl IntoIterator<Item = Vec<Step>>) -> Script {
    let start = Step::Event(StreamEvent::Started { model: "test/model".to_owned() });
    Script::Stream(std::iter::once(start).chain(parts.into_iter().flatten()).collect())
}

/// An answer of words that ends its turn.
pub fn says(words: &str) -> Script {
    answer([text(0, words), stop(StopReason::EndTurn)])
}

/// An answer of one call.
pub fn calls(call_id: &str, name: &str, input: Value) -> Script {
    answer([call(0, call_id, name, input), stop(StopReason::ToolUse)])
}

// ---------------------------------------------------------------------------------------------- tools

/// How a fake tool behaves.
#[derive(Clone)]
pub enum Behaviour {
    /// Answers so.
    Answer(ToolOutput),
    /// Answers with these in turn, then with the last for ever.
    Sequence(Arc<Mutex<VecDeque<ToolOutput>>>),
    /// Waits for the notice, then answers.
    Wait(Arc<Notify>, ToolOutput),
    /// Waits for its cancel, then answers with this.
    UntilCancelled(ToolOutput),
    /// Takes this long, then answers.
    Sleep(Duration, ToolOutput),
    /// Never answers, even when cancelled.
    Hang,
    /// Panics.
    Panic,
}

/// A tool that records its calls.
pub struct FakeTool {
    name: String,
    behaviour: Behaviour,
    read_only: bool,
    concurrency_safe: bool,
    required: Vec<String>,
    limit: Option<usize>,
    calls: Mutex<Vec<Value>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl FakeTool {
    /// A tool that reads and may run beside others.
    pub fn reads(name: &str, behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self::new(name, behaviour, true))
    }

    /// A tool with side effects that runs alone.
    pub fn writes(name: &str, behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self::new(name, behaviour, false))
    }

    /// A tool, to be adjusted.
    pub fn new(name: &str, behaviour: Behaviour, reads: bool) -> Self {
        Self {
            name: name.to_owned(),
            behaviour,
            read_only: reads,
            concurrency_safe: reads,
            required: Vec::new(),
            limit: Some(50_000),
            calls: Mutex::default(),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        }
    }

    /// With required arguments.
    pub fn requiring(mut self, names: &[&str]) -> Self {
        self.required = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// With this bound on results.
    pub fn limited(mut self, limit: Option<usize>) -> Self {
        self.limit = limit;
        self
    }

    /// The arguments it was called with.
    pub fn calls(&self) -> Vec<Value> {
        lock(&self.calls).clone()
    }

    /// The most calls of it that ran together.
    pub fn most_running(&self) -> usize {
        self.most_running.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Tool for FakeTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        format!("The tool {}.", self.name)
    }

    fn input_schema(&self) -> Value {
        json!({ "type": "object", "properties": {}, "required": self.required })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        self.read_only
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        self.concurrency_safe
    }

    fn max_result_size_chars(&self) -> Option<usize> {
        self.limit
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        lock(&self.calls).push(input);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let output = match &self.behaviour {
            Behaviour::Answer(output) => output.clone(),
            Behaviour::Sequence(outputs) => {
                let mut outputs = lock(outputs);
                match outputs.len() {
                    0 => ToolOutput::text("nothing is left"),
                    1 => outputs[0].clone(),
                    _ => outputs.pop_front().unwrap_or_else(|| ToolOutput::text("")),
                }
            }
            Behaviour::Wait(notify, output) => {
                notify.notified().await;
                output.clone()
            }
            Behaviour::UntilCancelled(output) => {
                context.cancel.cancelled().await;
                output.clone()
            }
            Behaviour::Sleep(time, output) => {
                tokio::time::sleep(*time).await;
                output.clone()
            }
            Behaviour::Hang => std::future::pending().await,
            Behaviour::Panic => panic!("a tool's bug"),
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        output
    }
}

/// A failed command, which cancels its siblings.
pub fn failed_command(text: &str) -> ToolOutput {
    ToolOutput { cancels_siblings: true, ..ToolOutput::error(text) }
}

/// A successful write.
pub fn wrote(path: &str) -> ToolOutput {
    ToolOutput::text(format!("wrote {path}")).with_effect(ToolEffect::Edited {
        path: path.to_owned(),
        added: 1,
        removed: 0,
    })
}

/// A gate with an answer per tool; what is not named passes.
#[derive(Default)]
pub struct FakeGate {
    answers: Mutex<Vec<(String, GateAnswer)>>,
    held: Mutex<Vec<(String, Arc<Notify>)>>,
    may_go_on: AtomicBool,
    questions: Mutex<Vec<String>>,
    asked: Mutex<Option<Arc<Notify>>>,
}

impl FakeGate {
    /// Lets an agent that repeats itself go on.
    pub fn let_go_on(&self) {
        self.may_go_on.store(true, Ordering::SeqCst);
    }

    /// Lets the question whether it may go on wait for ever; the notice comes when it is asked.
    pub fn hold_question(&self) -> Arc<Notify> {
        let asked = Arc::new(Notify::new());
        *lock(&self.asked) = Some(Arc::clone(&asked));
        asked
    }

    /// What the person was asked about repetitions.
    pub fn questions(&self) -> Vec<String> {
        lock(&self.questions).clone()
    }

    /// Denies calls of this tool.
    pub fn deny(&self, tool: &str, text: &str, stop: bool) {
        lock(&self.answers).push((tool.to_owned(), GateAnswer::Deny { text: text.to_owned(), stop }));
    }

    /// Lets calls of this tool wait until the notice.
    pub fn hold(&self, tool: &str) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        lock(&self.held).push((tool.to_owned(), Arc::clone(&notify)));
        notify
    }
}

#[async_trait]
impl Gate for FakeGate {
    async fn check(&self, tool: &dyn Tool, _: &Value, _: &ToolContext) -> GateAnswer {
        let held = lock(&self.held)
            .iter()
            .find(|(name, _)| name == tool.name())
            .map(|(_, notify)| Arc::clone(notify));
        if let Some(notify) = held {
            notify.notified().await;
        }
        lock(&self.answers)
            .iter()
            .find(|(name, _)| name == tool.name())
            .map_or(GateAnswer::Allow, |(_, answer)| answer.clone())
    }

    async fn may_go_on(&self, repeats: &Repeats, _: &Arc<dyn Observer>, _: &CancellationToken) -> bool {
        lock(&self.questions).push(repeats.what.clone());
        let held = lock(&self.asked).clone();
        if let Some(asked) = held {
            asked.notify_one();
            std::future::pending::<()>().await;
        }
        self.may_go_on.load(Ordering::SeqCst)
    }
}

// ------------------------------------------------------------------------------------------ the others

/// Grants everything, until a script says otherwise; keeps what was asked.
#[derive(Default)]
pub struct FakeGrants {
    answers: Mutex<VecDeque<Grant>>,
    asked: Mutex<Vec<PlannedCall>>,
}

impl FakeGrants {
    /// The next answer that is not given yet. A cap is known from now on.
    pub fn push(&self, answer: Grant) {
        lock(&self.answers).push_back(answer);
    }

    /// What was asked.
    pub fn asked(&self) -> Vec<PlannedCall> {
        lock(&self.asked).clone()
    }
}

#[async_trait]
impl Grants for FakeGrants {
    fn is_capped(&self) -> bool {
        !lock(&self.answers).is_empty()
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        lock(&self.asked).push(call.clone());
        lock(&self.answers).pop_front().unwrap_or(Grant::Call { max_tokens: call.max_tokens })
    }
}

/// A transcript in memory: each append with its durability.
#[derive(Default)]
pub struct RecordingTranscript {
    batches: Mutex<Vec<(Vec<RecordBody>, Durability)>>,
    full: AtomicBool,
}

impl RecordingTranscript {
    /// The appends so far.
    pub fn batches(&self) -> Vec<(Vec<RecordBody>, Durability)> {
        lock(&self.batches).clone()
    }

    /// The records so far.
    pub fn records(&self) -> Vec<RecordBody> {
        lock(&self.batches).iter().flat_map(|(batch, _)| batch.clone()).collect()
    }

    /// From now on nothing can be written.
    pub fn fill_up(&self) {
        self.full.store(true, Ordering::SeqCst);
    }

    /// The kinds of the records of each append: `user request_started | assistant user`.
    pub fn shape(&self) -> String {
        let batches: Vec<String> = lock(&self.batches)
            .iter()
            .map(|(batch, _)| batch.iter().map(RecordBody::kind).collect::<Vec<_>>().join(" "))
            .collect();
        batches.join(" | ")
    }
}

#[async_trait]
impl Transcript for RecordingTranscript {
    async fn append(&self, batch: Vec<RecordBody>, durability: Durability) -> Result<(), StorageError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StorageError { message: "no space left on device".to_owned() });
        }
        lock(&self.batches).push((batch, durability));
        Ok(())
    }
}

/// An inbox that is filled by hand.
#[derive(Default)]
pub struct FakeInbox {
    waiting: Mutex<Vec<Incoming>>,
    before_end: Mutex<VecDeque<BeforeEnd>>,
}

impl FakeInbox {
    /// A message of this origin.
    pub fn put(&self, text: &str, origin: Origin) {
        lock(&self.waiting).push(Incoming { content: vec![Block::text(text)], origin, commands: Vec::new() });
    }

    /// A whole message.
    pub fn put_incoming(&self, incoming: Incoming) {
        lock(&self.waiting).push(incoming);
    }

    /// What the next end is answered with; the default is to end.
    pub fn before_end(&self, answer: BeforeEnd) {
        lock(&self.before_end).push_back(answer);
    }
}

#[async_trait]
impl Inbox for FakeInbox {
    async fn drain(&self) -> Vec<Incoming> {
        std::mem::take(&mut *lock(&self.waiting))
    }

    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        lock(&self.before_end).pop_front().unwrap_or(BeforeEnd::End)
    }
}

/// Hooks that answer from a queue, then go on.
#[derive(Default)]
pub struct FakeHooks {
    answers: Mutex<VecDeque<HookAnswer>>,
}

impl FakeHooks {
    /// The next answer.
    pub fn push(&self, answer: HookAnswer) {
        lock(&self.answers).push_back(answer);
    }
}

#[async_trait]
impl Hooks for FakeHooks {
    async fn on_stop(&self) -> HookAnswer {
        lock(&self.answers).pop_front().unwrap_or(HookAnswer::GoOn)
    }
}

/// Surroundings in memory.
#[derive(Default)]
pub struct FakeSurroundings {
    now: AtomicI64,
    reminders: Mutex<VecDeque<Vec<Block>>>,
    attachments: Mutex<Vec<Block>>,
    kept: Mutex<Vec<(ToolUseId, String)>>,
    turns: Mutex<Vec<bool>>,
}

impl FakeSurroundings {
    /// Sets the wall clock.
    pub fn set_now(&self, millis: i64) {
        self.now.store(millis, Ordering::SeqCst);
    }

    /// What the next turn's end reminds of.
    pub fn remind(&self, text: &str) {
        lock(&self.reminders).push_back(vec![Block::text(text)]);
    }

    /// What re-enters after a compaction.
    pub fn attach(&self, text: &str) {
        lock(&self.attachments).push(Block::text(text));
    }

    /// Results that were kept whole.
    pub fn kept(&self) -> Vec<(ToolUseId, String)> {
        lock(&self.kept).clone()
    }

    /// Of each turn: whether something changed.
    pub fn turns(&self) -> Vec<bool> {
        lock(&self.turns).clone()
    }
}

#[async_trait]
impl Surroundings for FakeSurroundings {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }

    async fn after_turn(&self, changed: bool) -> Vec<Block> {
        lock(&self.turns).push(changed);
        lock(&self.reminders).pop_front().unwrap_or_default()
    }

    async fn keep_result(&self, tool_use_id: &ToolUseId, text: &str) -> Result<String, StorageError> {
        lock(&self.kept).push((tool_use_id.clone(), text.to_owned()));
        Ok(format!("/kept/{tool_use_id}"))
    }

    async fn after_compaction(&self, _: u64) -> Vec<Block> {
        lock(&self.attachments).clone()
    }
}

/// An observer that records.
#[derive(Default)]
pub struct RecordingObserver {
    live: Mutex<Vec<Live>>,
}

impl RecordingObserver {
    /// The news so far.
    pub fn live(&self) -> Vec<Live> {
        lock(&self.live).clone()
    }
}

impl Observer for RecordingObserver {
    fn live(&self, live: Live) {
        lock(&self.live).push(live);
    }
}

// ------------------------------------------------------------------------------------------- all of it

/// Every port, played; an engine is made of it.
pub struct Bench {
    /// The model.
    pub model: Arc<ScriptedModel>,
    /// The fallback, if any.
    pub fallback: Option<Arc<ScriptedModel>>,
    /// The helper, if any.
    pub helper: Option<Arc<ScriptedModel>>,
    /// The tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The gate.
    pub gate: Arc<FakeGate>,
    /// The transcript.
    pub transcript: Arc<RecordingTranscript>,
    /// The inbox.
    pub inbox: Arc<FakeInbox>,
    /// The grants.
    pub grants: Arc<FakeGrants>,
    /// The hooks.
    pub hooks: Arc<FakeHooks>,
    /// The surroundings.
    pub surroundings: Arc<FakeSurroundings>,
    /// The observer.
    pub observer: Arc<RecordingObserver>,
}

impl Bench {
    /// A bench with these answers and a prompt that waits in the inbox.
    pub fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        let inbox = Arc::new(FakeInbox::default());
        inbox.put("the task", Origin::Prompt);
        Self {
            model: ScriptedModel::new(scripts),
            fallback: None,
            helper: None,
            tools: Vec::new(),
            gate: Arc::default(),
            transcript: Arc::default(),
            inbox,
            grants: Arc::default(),
            hooks: Arc::default(),
            surroundings: Arc::default(),
            observer: Arc::default(),
        }
    }

    /// With a tool.
    pub fn tool(mut self, tool: Arc<FakeTool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// The ports.
    pub fn ports(&self) -> Ports {
        Ports {
            model: Arc::clone(&self.model) as Arc<dyn Model>,
            fallback: self.fallback.clone().map(|model| model as Arc<dyn Model>),
            helper: self.helper.clone().map(|model| model as Arc<dyn Model>),
            tools: self.tools.clone(),
            gate: Arc::clone(&self.gate) as Arc<dyn Gate>,
            transcript: Arc::clone(&self.transcript) as Arc<dyn Transcript>,
            inbox: Arc::clone(&self.inbox) as Arc<dyn Inbox>,
            grants: Arc::clone(&self.grants) as Arc<dyn Grants>,
            hooks: Arc::clone(&self.hooks) as Arc<dyn Hooks>,
            surroundings: Arc::clone(&self.surroundings) as Arc<dyn Surroundings>,
            observer: Arc::clone(&self.observer) as Arc<dyn Observer>,
        }
    }

    /// Settings without jitter.
    pub fn config(&self) -> EngineConfig {
        let prefix = build_prefix(vec!["You are a test.".to_owned()], &self.tools);
        EngineConfig { jitter: Arc::new(|| 0.0), ..EngineConfig::new(prefix) }
    }

    /// A new engine.
    pub fn engine(&self) -> Engine {
        Engine::new(self.config(), self.ports(), LoopState::default())
    }

    /// An engine over what was recorded, as a resume makes it.
    pub fn resumed(&self) -> Engine {
        let records = self.transcript.records();
        Engine::new(self.config(), self.ports(), LoopState::fold(records.iter()))
    }
}

/// A conversation of one call a turn, `t0`, `t1`, ..: tool, input, result, whether it failed.
pub fn history(turns: &[(&str, Value, &str, bool)]) -> Vec<swarm_protocol::Message> {
    let mut messages = vec![swarm_protocol::Message::user_text("the task")];
    for (n, (tool, input, result, is_error)) in turns.iter().enumerate() {
        let id = id(&format!("t{n}"));
        messages.push(swarm_protocol::Message::assistant(vec![Block::ToolUse {
            id: id.clone(),
            name: (*tool).to_owned(),
            input: input.clone(),
            provider_data: None,
        }]));
        messages.push(swarm_protocol::Message::user(vec![Block::tool_result(id, *result, *is_error)]));
    }
    messages
}

/// A conversation as text, one line a block: `user: the task`, `assistant> Read {..}`, `user< ok`.
pub fn render<M: std::borrow::Borrow<swarm_protocol::Message>>(messages: &[M]) -> String {
    let mut lines = Vec::new();
    for message in messages {
        let message = message.borrow();
        let role = match message.role {
            swarm_protocol::Role::User => "user",
            swarm_protocol::Role::Assistant => "assistant",
        };
        for block in &message.content {
            lines.push(match block {
                Block::Text { text } => format!("{role}: {text}"),
                Block::Thinking { thinking, .. } => format!("{role} thinks: {thinking}"),
                Block::RedactedThinking { .. } => format!("{role} thinks: (redacted)"),
                Block::ToolUse { id, name, input, .. } => format!("{role} calls {id}: {name} {input}"),
                Block::ToolResult { tool_use_id, content, is_error } => {
                    let mark = if *is_error { " failed" } else { "" };
                    let parts: Vec<&str> = content
                        .iter()
                        .map(|part| match part {
                            ResultBlock::Text { text } => text.as_str(),
                            ResultBlock::Image { .. } => "(image)",
                        })
                        .collect();
                    format!("{role} answers {tool_use_id}{mark}: {}", parts.join("\n"))
                }
                Block::Image { .. } => format!("{role}: (image)"),
                Block::Opaque { provider, .. } => format!("{role}: (opaque of {provider})"),
            });
        }
    }
    lines.join("\n")
}
