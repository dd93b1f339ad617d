//! What the records of a run add up to: the material of its end record. A pure fold, so that a run that was
//! interrupted counts what it did before.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    path::PathBuf,
};

use query_engine::classifier::CompactHistory;
use serde::{Deserialize, Serialize};
use swarm_protocol::{
    Block, CommandId, Message, PermissionRequestId, RunNumber, Timestamp, ToolUseId, Usage,
    ids::MessageId,
    record::{CommandRun, LastWords, Origin, Record, RecordBody, TaskItem, TodoItem, ToolEffect},
    usage::Cost,
};

/// Commands kept for the end record.
pub const MAX_COMMANDS: usize = 200;

/// What must be known of all runs, and the sums of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    run: RunNumber,
    /// The sums of this run: they begin anew with each.
    pub this_run: RunFacts,
    /// Whether any earlier run left records.
    pub has_earlier_runs: bool,
    /// Commands of the server in the whole transcript: never taken twice.
    pub taken: HashSet<CommandId>,
    /// Whether the agent's first message is in the conversation.
    pub has_prompt: bool,
    /// The last snapshot of the agent.
    pub last_snapshot: Option<u32>,
    /// Files the agent read or wrote in any run, with the hash of what it saw last.
    pub seen: HashMap<PathBuf, String>,
    /// The to-do list.
    pub todo: Vec<TodoItem>,
    /// Whether it plans, as it said last; none: it never said.
    pub plans: Option<bool>,
    /// The accepted plan, below the worktree.
    pub plan_path: Option<String>,
    /// The tasks as last recorded, by number.
    pub tasks: BTreeMap<u32, TaskItem>,
    /// Whether a request was ever sent.
    pub has_requests: bool,
    /// When the model last answered, in any run.
    pub last_answer: Option<Timestamp>,
    /// Requests for permission that nothing has settled, with their calls.
    pub open_requests: Vec<(PermissionRequestId, ToolUseId)>,
    /// Number of the last grant that was asked for, in any run.
    pub last_grant: u64,
    /// Messages of persons that are in the conversation.
    pub messages: HashSet<MessageId>,
    /// What a classifier is shown of the conversation.
    #[serde(default)]
    pub history: CompactHistory,
    /// What all calls of this agent used, in any run.
    #[serde(default)]
    pub spent: (Usage, Cost),
}

/// The sums of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// How often the run began.
    pub starts: u32,
    /// Whether it has ended.
    pub has_ended: bool,
    /// Turns.
    pub turns: u32,
    /// Use, helpers included.
    pub usage: Usage,
    /// Cost.
    pub cost: Cost,
    /// The last words.
    pub words: LastWords,
    /// The last commands, those in the background with their job.
    commands: VecDeque<(CommandRun, Option<String>)>,
    /// How many of them came after the last edit.
    pub commands_after_last_edit: u32,
    /// Whether anything was edited.
    pub edited: bool,
    /// How long the processes before the last start worked.
    pub earlier_ms: u64,
    /// First and last record of the present process.
    process: Option<(Timestamp, Timestamp)>,
}

impl Facts {
    /// Of a run without records.
    pub fn new(run: RunNumber) -> Self {
        Self {
            run,
            this_run: RunFacts::default(),
            has_earlier_runs: false,
            taken: HashSet::new(),
            has_prompt: false,
            last_snapshot: None,
            seen: HashMap::new(),
            todo: Vec::new(),
            plans: None,
            plan_path: None,
            tasks: BTreeMap::new(),
            has_requests: false,
            last_answer: None,
            open_requests: Vec::new(),
            last_grant: 0,
            messages: HashSet::new(),
            history: CompactHistory::default(),
            spent: Default::default(),
        }
    }

    /// These facts for a run that may be a later one: what is known of all runs stays.
    pub fn of_run(self, run: RunNumber) -> Self {
        if run == self.run {
            return self;
        }
        Self { run, this_run: RunFacts::default(), has_earlier_runs: true, ..self }
    }

    /// Adds a record.
    pub fn apply(&mut self, record: &Record) {
        self.of_every_run(record);
        if record.run == self.run {
            self.this_run.apply(record);
        } else {
            self.has_earlier_runs = true;
        }
    }

    fn of_every_run(&mut self, record: &Record) {
        match &record.body {
            RecordBody::Assistant { message, usage, cost, .. } => {
                self.last_answer = Some(record.timestamp);
                self.spend(*usage, *cost);
                for (id, tool, input) in message.tool_uses() {
                    self.history.called(id.as_str(), tool, input);
                }
            }
            RecordBody::HelperCall { usage, cost, .. } => self.spend(*usage, *cost),
            RecordBody::User { message, commands, origin } => {
                self.taken.extend(commands);
                self.note_words(message, origin);
                match origin {
                    Origin::Prompt => self.has_prompt = true,
                    Origin::Person { message_id: Some(id) } => {
                        self.messages.insert(*id);
                    }
                    Origin::Person { message_id: None }
                    | Origin::Coordinator
                    | Origin::ToolResults
                    | Origin::Notifications
                    | Origin::Harness
                    | Origin::Summary => {}
                }
            }
            RecordBody::CommandAccepted { command, .. } => {
                self.taken.insert(*command);
            }
            RecordBody::Todo { items } => self.todo.clone_from(items),
            RecordBody::PlanMode { is_on, path } => {
                self.plans = Some(*is_on);
                if path.is_some() {
                    self.plan_path.clone_from(path);
                }
            }
            RecordBody::TaskItem { item } => {
                self.tasks.insert(item.id, item.clone());
            }
            RecordBody::RequestStarted { .. } => self.has_requests = true,
            RecordBody::GrantRequested(request) => self.last_grant = self.last_grant.max(request.grant),
            RecordBody::Snapshot { n, .. } => self.last_snapshot = Some(*n),
            RecordBody::PermissionRequested { request } => {
                self.open_requests.push((request.id.clone(), request.tool_use_id.clone()));
            }
            RecordBody::PermissionWithdrawn { id, .. } => self.open_requests.retain(|(open, _)| open != id),
            RecordBody::ToolFinished(finished) => {
                self.open_requests.retain(|(_, call)| *call != finished.tool_use_id);
                if let Some(seen) = &finished.seen {
                    self.seen.insert(PathBuf::from(&seen.path), seen.sha256.clone());
                }
            }
            _ => {}
        }
    }
}

impl Facts {
    fn spend(&mut self, usage: Usage, cost: Cost) {
        self.spent.0 += usage;
        self.spent.1 += cost;
    }

    /// What was said to the agent, for classifiers: of its first message the task alone, which stands last.
    fn note_words(&mut self, message: &Message, origin: &Origin) {
        match origin {
            Origin::Prompt => {
                if let Some(Block::Text { text }) = message.content.last() {
                    self.history.given(text);
                }
            }
            Origin::Person { .. } => self.history.said(&message.text()),
            Origin::Coordinator => self.history.given(&message.text()),
            Origin::ToolResults | Origin::Notifications | Origin::Harness | Origin::Summary => {}
        }
    }
}

impl RunFacts {
    fn apply(&mut self, record: &Record) {
        match (&record.body, &mut self.process) {
            (RecordBody::RunStarted(_), process) => {
                if let Some((from, to)) = process.replace((record.timestamp, record.timestamp)) {
                    self.earlier_ms += to.millis_since(from);
                }
            }
            (_, Some((_, to))) => *to = record.timestamp,
            (_, None) => {}
        }
        match &record.body {
            RecordBody::RunStarted(_) => {
                self.starts += 1;
                self.has_ended = false;
            }
            // What closes an earlier run's open turn stands before the start of this one.
            RecordBody::Assistant { .. } if self.starts == 0 => {}
            RecordBody::Assistant { message, stop_reason, usage, cost, .. } => {
                self.turns += 1;
                self.usage += *usage;
                self.cost += *cost;
                self.words.answer(message, stop_reason);
            }
            RecordBody::User { origin, .. } => self.words.heard(origin),
            RecordBody::HelperCall { usage, cost, .. } => {
                self.usage += *usage;
                self.cost += *cost;
            }
            RecordBody::ToolFinished(finished) => match &finished.effect {
                ToolEffect::Command(run) => self.count(run.clone(), None),
                ToolEffect::Edited { .. } => {
                    self.edited = true;
                    self.commands_after_last_edit = 0;
                }
                ToolEffect::Other { data } => {
                    if let Some((run, job)) = started_job(data) {
                        self.count(run, Some(job));
                    }
                }
                ToolEffect::None | ToolEffect::Moves { .. } => {}
            },
            RecordBody::RunEnded(_) => self.has_ended = true,
            _ => {}
        }
    }

    fn count(&mut self, run: CommandRun, job: Option<String>) {
        if self.commands.len() == MAX_COMMANDS {
            self.commands.pop_front();
        }
        self.commands.push_back((run, job));
        self.commands_after_last_edit = (self.commands_after_last_edit + 1).min(MAX_COMMANDS as u32);
    }

    /// The last commands, in the order of their starts. `end_of` knows how a job of this process ended; a job of an
    /// earlier one died with it.
    pub fn commands(&self, end_of: impl Fn(&str) -> Option<CommandRun>) -> Vec<CommandRun> {
        let mut seen = HashSet::new();
        let mut commands: Vec<CommandRun> = self
            .commands
            .iter()
            // The later of two jobs of one name: names begin anew with each process.
            .rev()
            .map(|(run, job)| match job {
                Some(job) if seen.insert(job) => end_of(job).unwrap_or_else(|| run.clone()),
                _ => run.clone(),
            })
            .collect();
        commands.reverse();
        commands
    }
}

/// What the start of a background job says of it.
fn started_job(data: &serde_json::Value) -> Option<(CommandRun, String)> {
    let text = |key: &str| data.get(key).and_then(|value| value.as_str()).map(str::to_owned);
    let run = CommandRun {
        command: text("background")?.chars().take(crate::tools::bash::MAX_COMMAND_CHARS).collect(),
        exit_code: None,
        ended_by: Some("its end is not known: the worker's process died first".to_owned()),
        benign: false,
        children_killed: Vec::new(),
        stopped: false,
    };
    Some((run, text("job")?))
}
