//! The calls of one response: dispatched as their blocks close, while the model still streams; results come
//! back in the order of the calls, exactly one each (I1).
//!
//! The executor starts tasks and tells what happened; it appends no record. A call passes the gate in its
//! own task, then the driver records the intent, then [`Executor::run`] starts it.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use swarm_protocol::{
    Block, ResultBlock, ToolUseId,
    frame::Live,
    record::{ToolEffect, input_summary},
};
use tokio::{
    task::{Id, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    deferral,
    ports::{Gate, GateAnswer, Observer, Tool, ToolContext, ToolOutput},
    schedule::{Slot, Stand, startable},
};

/// The result of a call that an interrupt ended.
pub const INTERRUPTED: &str = "Interrupted by the user";
/// The result of a call whose sibling failed (spec 4.4).
pub const SIBLING_FAILED: &str = "Cancelled due to sibling error";

/// The result of a call beside one that a person denied with the order to stop.
pub const STOPPED: &str = "Cancelled: a person denied another call and stopped the agent";
/// The result of a call beside one by which the agent went elsewhere.
pub(crate) const LEFT: &str =
    "Cancelled: another call of the same answer ended your stay here; call it again if it is still wanted";

/// Tools by name.
pub(crate) type Tools = Arc<BTreeMap<String, Arc<dyn Tool>>>;

/// What a response's calls need.
#[derive(Clone)]
pub(crate) struct ExecutorConfig {
    pub(crate) tools: Tools,
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) max_concurrency: usize,
    /// How long a cancelled call may take to return before it is dropped.
    pub(crate) grace: Duration,
}

/// News of a call.
#[derive(Debug, PartialEq)]
pub(crate) enum Progress {
    /// The gate let it pass: the driver records what must be recorded, then calls [`Executor::run`].
    Passed {
        /// Its place.
        index: usize,
        /// Whether it may change something.
        has_effect: bool,
    },
    /// It has its result.
    Finished {
        /// Its place.
        index: usize,
    },
}

/// A call with its result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) output: ToolOutput,
    pub(crate) duration: Duration,
    /// Whether a side effect was possible: it passed the gate and is not read-only.
    pub(crate) had_effect: bool,
}

struct Call {
    id: ToolUseId,
    name: String,
    input: Value,
    tool: Option<Arc<dyn Tool>>,
    is_read_only: bool,
    is_concurrency_safe: bool,
    token: CancellationToken,
    began: Option<Instant>,
    ran: bool,
    /// Set when it was cancelled while it ran: what its result says.
    cancelled: Option<&'static str>,
    finished: Option<Finished>,
}

enum Done {
    Gate(GateAnswer),
    Output(ToolOutput),
}

/// Runs the calls of one response.
pub(crate) struct Executor {
    config: ExecutorConfig,
    calls: Vec<Call>,
    tasks: JoinSet<Done>,
    places: HashMap<Id, usize>,
    cancel: CancellationToken,
    /// Calls that finished and were not told yet.
    untold: std::collections::VecDeque<usize>,
    /// Set when no further call may begin: what their results say.
    closed: Option<&'static str>,
    deadline: Option<Instant>,
}

impl Executor {
    pub(crate) fn new(config: ExecutorConfig, cancel: CancellationToken) -> Self {
        Self {
            config,
            calls: Vec::new(),
            tasks: JoinSet::new(),
            places: HashMap::new(),
            cancel,
            untold: std::collections::VecDeque::new(),
            closed: None,
            deadline: None,
        }
    }

    /// Takes a closed call. `problem`: it must not run, and this is its result.
    pub(crate) fn push(&mut self, id: ToolUseId, name: String, input: Value, problem: Option<String>) {
        let (name, input, unreadable) = match deferral::meant(&name, &input) {
            Ok(Some((name, input))) => (name, input, None),
            Ok(None) => (name, input, None),
            Err(unreadable) => (name, input, Some(unreadable)),
        };
        let tool = self.config.tools.get(&name).cloned();
        let problem = problem.or(unreadable).or_else(|| match &tool {
            None => Some(unknown_tool(&name, &self.config.tools)),
            Some(tool) => invalid_input(tool.as_ref(), &input),
        });
        let ask = |question: &dyn Fn(&dyn Tool) -> bool| {
            problem.is_none()
                && tool
                    .as_deref()
                    .is_some_and(|tool| catch_unwind(AssertUnwindSafe(|| question(tool))).unwrap_or(false))
        };
        let index = self.calls.len();
        let call = Call {
            is_read_only: ask(&|tool| tool.is_read_only(&input)),
            is_concurrency_safe: ask(&|tool| tool.is_concurrency_safe(&input)),
            id,
            name,
            input,
            tool,
            token: self.cancel.child_token(),
            began: None,
            ran: false,
            cancelled: None,
            finished: None,
        };
        self.calls.push(call);
        if let Some(problem) = problem {
            self.finish(index, ToolOutput::error(problem));
        } else if let Some(text) = self.closed {
            self.finish(index, ToolOutput::error(text));
        }
        self.start_ready();
    }

    /// How many calls there are.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether each call has its result and it was told.
    pub(crate) fn is_idle(&self) -> bool {
        self.untold.is_empty() && self.calls.iter().all(|call| call.finished.is_some())
    }

    /// Whether a call has begun or waits to.
    pub(crate) fn has_open(&self) -> bool {
        self.calls.iter().any(|call| call.finished.is_none())
    }

    /// The id of a call.
    pub(crate) fn id(&self, index: usize) -> Option<&ToolUseId> {
        self.calls.get(index).map(|call| &call.id)
    }

    /// The id, name and result of a finished call.
    pub(crate) fn finished(&self, index: usize) -> Option<(&ToolUseId, &str, &Finished)> {
        let call = self.calls.get(index)?;
        call.finished.as_ref().map(|finished| (&call.id, call.name.as_str(), finished))
    }

    /// How much of a call's result is kept; none: all of it.
    pub(crate) fn max_result_size_chars(&self, index: usize) -> Option<usize> {
        self.calls
            .get(index)
            .and_then(|call| call.tool.as_deref())
            .map_or(Some(50_000), |tool| tool.max_result_size_chars())
    }

    /// Replaces what a finished call answers, before it is sent for the first time.
    pub(crate) fn replace_content(&mut self, index: usize, content: Vec<ResultBlock>) {
        if let Some(finished) = self.calls.get_mut(index).and_then(|call| call.finished.as_mut()) {
            finished.output.content = content;
        }
    }

    /// The results, in the order of the calls. A call without one would break I1, so it gets one here.
    pub(crate) fn results(&self) -> Vec<Block> {
        self.calls
            .iter()
            .map(|call| match &call.finished {
                Some(finished) => Block::ToolResult {
                    tool_use_id: call.id.clone(),
                    content: finished.output.content.clone(),
                    is_error: finished.output.is_error,
                },
                None => Block::tool_result(call.id.clone(), INTERRUPTED, true),
            })
            .collect()
    }

    /// Whether a call asks for the end of the agent.
    pub(crate) fn wants_stop(&self) -> bool {
        self.calls.iter().any(|call| call.finished.as_ref().is_some_and(|finished| finished.output.stop))
    }

    /// Whether something outside may have changed.
    pub(crate) fn changed_something(&self) -> bool {
        self.calls.iter().any(|call| {
            call.finished
                .as_ref()
                .is_some_and(|finished| finished.had_effect || finished.output.effect != ToolEffect::None)
        })
    }

    /// The next news. Pends for ever while nothing runs, so it is polled beside something else or only
    /// when [`Self::is_idle`] is false. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Progress {
        loop {
            if let Some(index) = self.untold.pop_front() {
                return Progress::Finished { index };
            }
            let deadline = self.deadline;
            let late = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            // A task that ends as the deadline passes counts as ended: it is asked first.
            let joined = tokio::select! {
                biased;
                joined = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => joined,
                () = late => {
                    self.drop_cancelled();
                    continue;
                }
            };
            let Some(joined) = joined else { continue };
            let (task, done) = match joined {
                Ok((task, done)) => (task, done),
                Err(error) => {
                    let text = if error.is_panic() {
                        "the tool failed inside and was stopped; the error is logged"
                    } else {
                        INTERRUPTED
                    };
                    let task = error.id();
                    tracing::error!(%error, "a tool's task did not return");
                    (task, Done::Output(ToolOutput::error(text)))
                }
            };
            let Some(index) = self.places.remove(&task) else { continue };
            if let Some(progress) = self.settle(index, done) {
                return progress;
            }
        }
    }

    fn settle(&mut self, index: usize, done: Done) -> Option<Progress> {
        let call = &mut self.calls[index];
        if call.finished.is_some() {
            return None;
        }
        let output = match (done, call.cancelled) {
            (Done::Gate(GateAnswer::Allow), None) => {
                return Some(Progress::Passed { index, has_effect: !call.is_read_only });
            }
            (Done::Gate(GateAnswer::Deny { text, stop }), None) => {
                ToolOutput { stop, ..ToolOutput::error(text) }
            }
            (Done::Gate(_), Some(reason)) => ToolOutput::error(reason),
            (Done::Output(output), None) => output,
            // What ended well in spite of an interrupt has happened, and the model should know.
            (Done::Output(output), Some(INTERRUPTED)) if !output.is_error => output,
            (Done::Output(output), Some(reason)) => {
                ToolOutput { effect: output.effect, spent: output.spent, ..ToolOutput::error(reason) }
            }
        };
        self.finish(index, output);
        self.untold.pop_front().map(|index| Progress::Finished { index })
    }

    /// Starts a call that passed the gate.
    pub(crate) fn run(&mut self, index: usize) {
        let call = &mut self.calls[index];
        if call.finished.is_some() {
            return;
        }
        if let Some(reason) = call.cancelled.or(self.closed) {
            self.finish(index, ToolOutput::error(reason));
            return;
        }
        let Some(tool) = call.tool.clone() else { return };
        call.ran = true;
        call.began = Some(Instant::now());
        let context = ToolContext {
            tool_use_id: call.id.clone(),
            cancel: call.token.clone(),
            observer: Arc::clone(&self.config.observer),
        };
        self.config.observer.live(Live::ToolStarted {
            tool_use_id: call.id.clone(),
            tool: call.name.clone(),
            summary: input_summary(&call.input),
        });
        let input = call.input.clone();
        let handle = self.tasks.spawn(async move { Done::Output(tool.call(input, context).await) });
        self.places.insert(handle.id(), index);
    }

    /// Ends every open call: queued ones at once, running ones are cancelled and dropped after the grace.
    pub(crate) fn cancel_open(&mut self, reason: &'static str) {
        self.closed = Some(self.closed.unwrap_or(reason));
        for index in 0..self.calls.len() {
            let call = &mut self.calls[index];
            if call.finished.is_some() {
                continue;
            }
            if self.places.values().any(|place| *place == index) {
                call.cancelled = Some(call.cancelled.unwrap_or(reason));
                call.token.cancel();
            } else {
                self.finish(index, ToolOutput::error(reason));
            }
        }
        self.deadline = Some(Instant::now() + self.config.grace);
    }

    /// The grace is over: what was cancelled and still runs is dropped.
    fn drop_cancelled(&mut self) {
        self.deadline = None;
        let late: Vec<usize> = (0..self.calls.len())
            .filter(|&index| self.calls[index].finished.is_none())
            .filter(|&index| self.calls[index].cancelled.is_some())
            .collect();
        if late.is_empty() {
            return;
        }
        self.places.retain(|_, place| !late.contains(place));
        // Once a reason to cancel exists no other call begins, so all that runs is late.
        self.tasks.abort_all();
        for index in late {
            let reason = self.calls[index].cancelled.unwrap_or(INTERRUPTED);
            self.finish(index, ToolOutput::error(reason));
        }
    }

    fn finish(&mut self, index: usize, mut output: ToolOutput) {
        output.content.retain(|part| !part.is_blank());
        if output.content.is_empty() {
            output.content.push(ResultBlock::text(""));
        }
        let call = &mut self.calls[index];
        let cancels_siblings = output.cancels_siblings && output.is_error && call.ran;
        let stop = output.stop;
        let moves = matches!(output.effect, ToolEffect::Moves { .. });
        self.config
            .observer
            .live(Live::ToolEnded { tool_use_id: call.id.clone(), is_error: output.is_error });
        call.finished = Some(Finished {
            output,
            duration: call.began.map_or(Duration::ZERO, |began| began.elapsed()),
            had_effect: call.ran && !call.is_read_only,
        });
        self.untold.push_back(index);
        if (cancels_siblings || stop) && self.closed.is_none() {
            self.cancel_open(match (stop, moves) {
                (true, false) => STOPPED,
                (true, true) => LEFT,
                (false, _) => SIBLING_FAILED,
            });
        }
        self.start_ready();
    }

    fn start_ready(&mut self) {
        if self.closed.is_some() {
            return;
        }
        let slots: Vec<Slot> = (0..self.calls.len()).map(|index| self.slot(index)).collect();
        for index in startable(&slots, self.config.max_concurrency) {
            self.ask_gate(index);
        }
    }

    fn slot(&self, index: usize) -> Slot {
        let call = &self.calls[index];
        let stand = match (&call.finished, call.began) {
            (Some(_), _) => Stand::Done,
            (None, Some(_)) => Stand::Running,
            (None, None) => Stand::Queued,
        };
        Slot { is_concurrency_safe: call.is_concurrency_safe, stand }
    }

    fn ask_gate(&mut self, index: usize) {
        let call = &mut self.calls[index];
        let Some(tool) = call.tool.clone() else { return };
        call.began = Some(Instant::now());
        let context = ToolContext {
            tool_use_id: call.id.clone(),
            cancel: call.token.clone(),
            observer: Arc::clone(&self.config.observer),
        };
        let gate = Arc::clone(&self.config.gate);
        let input = call.input.clone();
        // A cancelled gate withdraws its request itself; one that hangs is dropped after the grace.
        let handle =
            self.tasks.spawn(async move { Done::Gate(gate.check(tool.as_ref(), &input, &context).await) });
        self.places.insert(handle.id(), index);
    }
}

fn unknown_tool(name: &str, tools: &BTreeMap<String, Arc<dyn Tool>>) -> String {
    let names: Vec<&str> = tools.keys().map(String::as_str).collect();
    format!("There is no tool named {name:?}. The tools are: {}.", names.join(", "))
}

/// What is wrong with arguments, as far as it shows without the tool: they are an object and have what is
/// required.
fn invalid_input(tool: &dyn Tool, input: &Value) -> Option<String> {
    let Some(fields) = input.as_object() else {
        return Some(format!("The arguments of {} must be a JSON object.", tool.name()));
    };
    let schema = catch_unwind(AssertUnwindSafe(|| tool.input_schema())).unwrap_or_default();
    let missing: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|name| !fields.contains_key(*name))
        .collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!("The arguments of {} lack {}. It did not run.", tool.name(), missing.join(", ")))
}
