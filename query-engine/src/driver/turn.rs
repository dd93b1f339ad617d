//! Phase 2: one request, its stream and its tools; what they brought is kept by [`commit`].

use std::{collections::HashSet, sync::Arc};

use futures::StreamExt;
use swarm_protocol::{
    Block, Role, ToolUseId,
    frame::{CacheBreakCause, Live},
    record::{Origin, RecordBody, StopReason, ToolFinished},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cancel, Engine};
use crate::{
    context::{
        cache,
        cache_break::Left,
        tool_result_budget::{self as budget, PER_TURN_CHARS, Size},
    },
    executor::{Executor, ExecutorConfig, INTERRUPTED, Progress},
    loop_detection::PassageWatch,
    ports::{
        BlockKind, Delta, Durability, Model, ModelError, ModelErrorKind, ModelRequest, ModelStream,
        StorageError, StreamEvent,
    },
    response::{ClosedCall, Response},
    transition::{Interrupted, StepOutcome},
};

mod commit;

/// The result of a call whose arguments the output limit cut (S17, S20).
const CUT_CALL: &str = "Your output reached its limit inside this call, so its arguments are incomplete and it did not run. \
     Call it again with less in one call (write a large file in several smaller pieces).";

/// Bytes of arguments between two news of them.
const TOLD_BYTES: usize = 64_000;

/// Arguments of a call as they come.
struct Arguments {
    tool: String,
    bytes: usize,
    told: usize,
}

/// What ended the streaming of one response.
enum Ended {
    Whole,
    /// The model said the same again and again, and was cut short.
    Repeating,
    Broken(ModelError),
    Cancelled(Interrupted),
}

/// One response under way.
pub(super) struct Turn {
    pub(super) model: Arc<dyn Model>,
    request: u64,
    estimated_tokens: u64,
    /// What the provider's cache held when it left.
    left: Option<Left>,
    /// When the provider last said something: tools may run long after that.
    pub(super) heard: Instant,
    pub(super) response: Response,
    executor: Executor,
    /// A call whose arguments may be cut: it waits for what follows it.
    held: Option<ClosedCall>,
    /// Calls that an intent covers.
    covered: HashSet<ToolUseId>,
    watch: PassageWatch,
    /// The call whose arguments come now.
    arguments: Option<Arguments>,
    cut_calls: Vec<String>,
}

impl Engine {
    /// Sends one request and carries out what it asks for.
    pub(super) async fn turn(
        &mut self,
        model: Arc<dyn Model>,
        max_tokens: u64,
        cancel: &Cancel,
    ) -> Result<StepOutcome, StorageError> {
        let (request, mut turn) = self.begin_turn(model, max_tokens).await?;
        // A request that is dropped here was not answered: it counts as not sent.
        let opened = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            opened = turn.model.stream(&request) => Some(opened),
        };
        let ended = match opened {
            None => Ended::Cancelled(Interrupted::Streaming),
            Some(Err(error)) => Ended::Broken(error),
            Some(Ok(stream)) => self.stream(&mut turn, stream, cancel).await?,
        };
        let ended = self.finish_calls(&request, &mut turn, ended, cancel).await?;
        match ended {
            Ended::Cancelled(during) => self.commit_interrupted(turn, during).await,
            Ended::Repeating => self.commit_repeating(turn).await,
            Ended::Broken(error) => self.commit_broken(turn, &request, error, cancel).await,
            Ended::Whole => self.commit_whole(turn).await,
        }
    }

    async fn begin_turn(
        &mut self,
        model: Arc<dyn Model>,
        max_tokens: u64,
    ) -> Result<(ModelRequest, Turn), StorageError> {
        let info = model.info();
        let accounting = self.accounting();
        let estimated_tokens = accounting.overhead + accounting.messages;
        if !self.in_request {
            let started = RecordBody::RequestStarted {
                request: self.state.request + 1,
                model: info.name.clone(),
                estimated_tokens,
            };
            let carries_commands = self.pending.iter().any(|record| match record {
                RecordBody::User { commands, origin, .. } => {
                    !commands.is_empty() || *origin == Origin::Notifications
                }
                _ => false,
            });
            let durability = if carries_commands { Durability::Now } else { Durability::Soon };
            self.flush(vec![started], durability).await?;
            self.in_request = true;
        }
        let is_other_model = self.last_model.as_ref().is_some_and(|last| *last != info.name);
        if is_other_model {
            self.guard.declare_break("model changed");
        }
        self.last_model = Some(info.name.clone());
        let state = &self.state;
        let messages = self.view.grow(&state.messages, &state.asked, &info.name, state.rewrites).to_vec();
        // Where the last answered request ended there is an entry in the cache, be it of an earlier process.
        let sent = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
        let request = ModelRequest {
            prefix: Arc::clone(&self.config.prefix),
            breakpoints: cache::breakpoints(&messages, sent),
            messages,
            max_tokens,
        };
        let changed =
            is_other_model.then_some(CacheBreakCause::Model).or_else(|| self.guard.change(&request));
        let left = self.cached.as_mut().map(|cached| {
            cached.changed = cached.changed.or(changed);
            Left { tokens: cached.tokens, age: cached.since.elapsed(), changed: cached.changed }
        });
        if let Err(error) = self.guard.check(&request) {
            tracing::error!(%error, request = self.state.request, "the prefix rule is broken");
            debug_assert!(false, "the prefix rule is broken: {error}");
        }
        self.ports.observer.live(Live::Activity {
            text: "thinking".to_owned(),
            context_tokens: Some(accounting.messages),
            context_window: Some(accounting.effective_window),
        });
        let executor = Executor::new(
            ExecutorConfig {
                tools: Arc::clone(&self.tools),
                gate: Arc::clone(&self.ports.gate),
                observer: Arc::clone(&self.ports.observer),
                max_concurrency: self.config.max_tool_concurrency,
                grace: self.config.grace,
            },
            CancellationToken::new(),
        );
        let turn = Turn {
            model,
            request: self.state.request,
            estimated_tokens,
            left,
            heard: Instant::now(),
            response: Response::default(),
            executor,
            held: None,
            covered: HashSet::new(),
            watch: PassageWatch::default(),
            arguments: None,
            cut_calls: Vec::new(),
        };
        Ok((request, turn))
    }

    /// Reads the stream to its end while calls already run.
    async fn stream(
        &mut self,
        turn: &mut Turn,
        mut stream: ModelStream,
        cancel: &Cancel,
    ) -> Result<Ended, StorageError> {
        loop {
            let busy = !turn.executor.is_idle();
            // Events and news are whole: the branch that does not win is asked again.
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(Ended::Cancelled(Interrupted::Streaming)),
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        turn.heard = Instant::now();
                        self.observe(&event);
                        self.observe_arguments(turn, &event);
                        let stopped = take_event(turn, &event);
                        if let Some(bytes) = repeated_bytes(turn, &event) {
                            turn.response.cut_open_text(bytes);
                            release(turn, None);
                            return Ok(Ended::Repeating);
                        }
                        if let Some(reason) = stopped {
                            return Ok(match reason {
                                StopReason::Truncated => Ended::Broken(truncated()),
                                StopReason::EndTurn
                                | StopReason::ToolUse
                                | StopReason::MaxTokens
                                | StopReason::StopSequence
                                | StopReason::PauseTurn
                                | StopReason::Refusal { .. }
                                | StopReason::ContextWindowExceeded
                                | StopReason::Repetition
                                | StopReason::Unknown { .. } => Ended::Whole,
                            });
                        }
                    }
                    Some(Err(error)) => return Ok(broken(turn, error)),
                    None => return Ok(broken(turn, truncated())),
                },
                progress = turn.executor.next(), if busy => self.progress(turn, progress).await?,
            }
        }
    }

    /// Waits for every call of the response, and ends them when cancelled.
    async fn finish_calls(
        &mut self,
        request: &ModelRequest,
        turn: &mut Turn,
        mut ended: Ended,
        cancel: &Cancel,
    ) -> Result<Ended, StorageError> {
        if let Ended::Cancelled(_) = ended {
            release(turn, None);
            turn.executor.cancel_open(INTERRUPTED);
        }
        let mut keeping = self.keeps_turn(request, turn);
        while !turn.executor.is_idle() {
            let cancelled = matches!(ended, Ended::Cancelled(_));
            // News are whole; a cancel is seen once.
            tokio::select! {
                biased;
                () = cancel.cancelled(), if !cancelled => {
                    let during =
                        if turn.executor.has_open() { Interrupted::Tools } else { Interrupted::Streaming };
                    turn.executor.cancel_open(INTERRUPTED);
                    ended = Ended::Cancelled(during);
                }
                progress = turn.executor.next() => self.progress(turn, progress).await?,
                Some(warmed) = keeping.reads.next() => self.warmed(turn, warmed).await?,
            }
        }
        self.stops_keeping(keeping, turn).await?;
        Ok(ended)
    }

    /// Records what a call's news ask for.
    async fn progress(&mut self, turn: &mut Turn, progress: Progress) -> Result<(), StorageError> {
        match progress {
            Progress::Passed { index, has_effect } => {
                if has_effect {
                    self.record_intent(turn, index).await?;
                    self.ports.surroundings.before_effect().await;
                }
                turn.executor.run(index);
                Ok(())
            }
            Progress::Finished { index } => self.record_finished(turn, index).await,
        }
    }

    /// Before the first effect of a call, what was closed so far is on disk.
    async fn record_intent(&mut self, turn: &mut Turn, index: usize) -> Result<(), StorageError> {
        let Some(id) = turn.executor.id(index).cloned() else { return Ok(()) };
        if turn.covered.contains(&id) {
            return Ok(());
        }
        let blocks = turn.response.closed_blocks();
        turn.covered.extend(blocks.iter().filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id.clone()),
            _ => None,
        }));
        let intent = RecordBody::Intent { request: turn.request, blocks };
        self.flush(vec![intent], Durability::Now).await
    }

    async fn record_finished(&mut self, turn: &mut Turn, index: usize) -> Result<(), StorageError> {
        let mut records = Vec::new();
        if let Some(limit) = turn.executor.max_result_size_chars(index) {
            records.extend(self.cut_result(turn, index, limit, limit).await?);
        }
        let Some((id, name, finished)) = turn.executor.finished(index) else { return Ok(()) };
        let durability = if finished.had_effect { Durability::Now } else { Durability::Soon };
        records.extend(finished.output.spent.iter().map(|spent| RecordBody::HelperCall {
            purpose: spent.purpose.clone(),
            model: spent.model.clone(),
            usage: spent.usage,
            cost: spent.cost,
        }));
        records.push(RecordBody::ToolFinished(ToolFinished {
            tool_use_id: id.clone(),
            name: name.to_owned(),
            result: Block::ToolResult {
                tool_use_id: id.clone(),
                content: finished.output.content.clone(),
                is_error: finished.output.is_error,
            },
            duration_ms: finished.duration.as_millis() as u64,
            effect: finished.output.effect.clone(),
            seen: finished.output.seen.clone(),
        }));
        self.flush(records, durability).await
    }

    /// Cuts a result that is over `limit` characters to the head and tail of `budget`, and keeps it whole.
    async fn cut_result(
        &mut self,
        turn: &mut Turn,
        index: usize,
        limit: usize,
        budget: usize,
    ) -> Result<Option<RecordBody>, StorageError> {
        let Some((id, _, finished)) = turn.executor.finished(index) else { return Ok(None) };
        if budget::chars_of(&finished.output.content) <= limit {
            return Ok(None);
        }
        let (id, content) = (id.clone(), finished.output.content.clone());
        let text = budget::whole_text(&content);
        let path = self.ports.surroundings.keep_result(&id, &text).await?;
        turn.executor.replace_content(index, budget::cut(&content, budget, Some(&path)));
        Ok(Some(RecordBody::ContentReplacement { tool_use_id: id, path, bytes: text.len() as u64 }))
    }

    /// The results of a turn fit its budget together.
    async fn fit_turn(&mut self, turn: &mut Turn) -> Result<(), StorageError> {
        let sizes: Vec<Size> = (0..turn.executor.len())
            .map(|index| Size {
                chars: turn
                    .executor
                    .finished(index)
                    .map_or(0, |(_, _, finished)| budget::chars_of(&finished.output.content)),
                exempt: turn.executor.max_result_size_chars(index).is_none(),
            })
            .collect();
        let mut records = Vec::new();
        for index in budget::over_the_turn(&sizes, PER_TURN_CHARS) {
            let budget = turn.executor.max_result_size_chars(index).unwrap_or(PER_TURN_CHARS);
            records.extend(self.cut_result(turn, index, 0, budget).await?);
        }
        if records.is_empty() { Ok(()) } else { self.flush(records, Durability::Soon).await }
    }

    /// A long call is seen to grow (S29).
    fn observe_arguments(&self, turn: &mut Turn, event: &StreamEvent) {
        match event {
            StreamEvent::BlockStarted { kind, .. } => {
                turn.arguments = match kind {
                    BlockKind::ToolUse { name } => Some(Arguments { tool: name.clone(), bytes: 0, told: 0 }),
                    BlockKind::Text | BlockKind::Thinking | BlockKind::Other => None,
                };
            }
            StreamEvent::Delta { delta: Delta::InputBytes(bytes), .. } => {
                let Some(arguments) = &mut turn.arguments else { return };
                arguments.bytes += bytes;
                if arguments.bytes >= arguments.told + TOLD_BYTES {
                    arguments.told = arguments.bytes;
                    let text = format!("{}: {} KB of arguments", arguments.tool, arguments.bytes / 1_000);
                    let live = Live::Activity { text, context_tokens: None, context_window: None };
                    self.ports.observer.live(live);
                }
            }
            _ => {}
        }
    }

    fn observe(&self, event: &StreamEvent) {
        let live = match event {
            StreamEvent::Delta { delta: Delta::Text(text), .. } => {
                Live::TextDelta { text: text.clone(), thinking: false }
            }
            StreamEvent::Delta { delta: Delta::Thinking(text), .. } => {
                Live::TextDelta { text: text.clone(), thinking: true }
            }
            StreamEvent::BlockStarted { kind: BlockKind::ToolUse { name }, .. } => {
                Live::Activity { text: name.clone(), context_tokens: None, context_window: None }
            }
            StreamEvent::Started { .. }
            | StreamEvent::Ping
            | StreamEvent::BlockStarted { .. }
            | StreamEvent::Delta { delta: Delta::InputBytes(_), .. }
            | StreamEvent::BlockClosed { .. }
            | StreamEvent::Usage(_)
            | StreamEvent::Stopped(_) => return,
        };
        self.ports.observer.live(live);
    }
}

/// How many bytes at the end of the open words are repeats of what stands before them, when they are too many.
fn repeated_bytes(turn: &mut Turn, event: &StreamEvent) -> Option<usize> {
    match event {
        StreamEvent::Delta { delta: Delta::Text(words) | Delta::Thinking(words), .. } => {
            turn.watch.push(words)
        }
        StreamEvent::BlockStarted { .. } => {
            turn.watch = PassageWatch::default();
            None
        }
        _ => None,
    }
}

/// Takes an event into the turn; answers with the reason when the answer is whole.
fn take_event(turn: &mut Turn, event: &StreamEvent) -> Option<StopReason> {
    let closed = turn.response.take(event);
    match event {
        StreamEvent::BlockStarted { .. } | StreamEvent::BlockClosed { .. } => release(turn, None),
        StreamEvent::Stopped(StopReason::MaxTokens) => {
            turn.cut_calls = turn.response.open_calls();
            let cut = turn.held.as_ref().is_some_and(|held| turn.response.ends_with_call(&held.id));
            release(turn, cut.then_some(CUT_CALL));
        }
        StreamEvent::Stopped(_) => release(turn, None),
        StreamEvent::Started { .. }
        | StreamEvent::Ping
        | StreamEvent::Delta { .. }
        | StreamEvent::Usage(_) => {}
    }
    if let Some(call) = closed {
        // Empty or broken arguments may be what the output limit left of a call; the stop reason tells.
        let may_be_cut =
            call.problem.is_some() || call.input.as_object().is_none_or(serde_json::Map::is_empty);
        turn.held = Some(call);
        if !may_be_cut {
            release(turn, None);
        }
    }
    match event {
        StreamEvent::Stopped(reason) => Some(reason.clone()),
        StreamEvent::Started { .. }
        | StreamEvent::Ping
        | StreamEvent::BlockStarted { .. }
        | StreamEvent::Delta { .. }
        | StreamEvent::BlockClosed { .. }
        | StreamEvent::Usage(_) => None,
    }
}

/// Hands a held call to the executor.
fn release(turn: &mut Turn, problem: Option<&str>) {
    if let Some(ClosedCall { id, name, input, problem: own }) = turn.held.take() {
        turn.executor.push(id, name, input, problem.map(str::to_owned).or(own));
    }
}

fn broken(turn: &mut Turn, error: ModelError) -> Ended {
    release(turn, None);
    Ended::Broken(error)
}

fn truncated() -> ModelError {
    ModelError {
        kind: ModelErrorKind::Truncated,
        message: "the stream ended before the answer was whole".to_owned(),
        retry_after: None,
        status: None,
    }
}

/// `529 overloaded, try 3`.
fn describe(error: &ModelError, attempt: u32) -> String {
    let status = error.status.map(|status| format!("{status} ")).unwrap_or_default();
    format!("{status}{}, try {attempt}", error.kind.code())
}
