//! A worker as a fold of its events: its runs, its process, the commands it has not taken yet.

use swarm_protocol::{
    CommandId, RunNumber, Seq, TaskId, Timestamp, ToolUseId, Usage, WaitingFor, WorkerStatus,
    api::StatusChange,
    event::{Event, WorkerPlace},
    frame::{Command, RecordMark},
    launch::{Isolation, WorkerSpec},
    notification::Outcome,
    process::ProcessIdentity,
    record::{Move, RunEnd},
    usage::Cost,
};

/// One activation of a worker.
#[derive(Clone, Debug)]
pub(crate) struct RunModel {
    pub(crate) run: RunNumber,
    pub(crate) reason: String,
    pub(crate) task_id: TaskId,
    pub(crate) restarts: u32,
    pub(crate) end: Option<RunEnd>,
    pub(crate) outcome: Option<Outcome>,
    /// The event that began it: messages before it are those that woke it.
    pub(crate) began_seq: Seq,
    /// When it began, for durations of runs that left no end record.
    pub(crate) began_at: Timestamp,
    pub(crate) turns: u32,
    pub(crate) usage: Usage,
    pub(crate) cost: Cost,
}

/// The process of a run.
#[derive(Clone, Debug)]
pub(crate) struct ProcessModel {
    pub(crate) run: RunNumber,
    pub(crate) keeper: ProcessIdentity,
    pub(crate) token_sha256: String,
}

/// A command that no record has named yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingCommand {
    pub(crate) id: CommandId,
    pub(crate) command: Command,
}

/// A worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerModel {
    pub(crate) spec: WorkerSpec,
    pub(crate) tool_use_id: ToolUseId,
    pub(crate) status: WorkerStatus,
    pub(crate) waiting_for: Option<WaitingFor>,
    pub(crate) cause: String,
    pub(crate) position: Option<u32>,
    pub(crate) runs: Vec<RunModel>,
    pub(crate) process: Option<ProcessModel>,
    pub(crate) sandbox_tier: Option<u8>,
    pub(crate) last_record: Option<RecordMark>,
    pub(crate) commands: Vec<PendingCommand>,
    /// A stop was ordered in the present run, and by whom.
    pub(crate) stop: Option<StopOrder>,
    pub(crate) stop_seq: Option<Seq>,
    pub(crate) worktree_exists: bool,
    pub(crate) branch_exists: bool,
    /// Where the agent wants to go on, as soon as its present process has ended.
    pub(crate) moving: Option<Move>,
    /// Its next process is to be told where it stands.
    pub(crate) moved: bool,
    /// It has a worktree and stands in the user's checkout.
    pub(crate) is_outside: bool,
    pub(crate) snapshots: u32,
    pub(crate) merged_into: Option<String>,
    pub(crate) kept_ref: Option<String>,
    pub(crate) spawned_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) changes: Vec<StatusChange>,
}

/// Who ordered a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOrder {
    Person,
    Coordinator,
}

impl WorkerModel {
    /// The present or last run. Every worker has one from its spawn on.
    pub(crate) fn run(&self) -> RunNumber {
        self.runs.last().map_or(RunNumber::FIRST, |run| run.run)
    }

    pub(crate) fn last_run(&self) -> Option<&RunModel> {
        self.runs.last()
    }

    /// What the server established about the last run that ended.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.runs.iter().rev().find_map(|run| run.outcome.as_ref())
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for run in &self.runs {
            sum += run.usage;
        }
        sum
    }

    pub(crate) fn cost(&self) -> Cost {
        let mut sum = Cost::default();
        for run in &self.runs {
            sum += run.cost;
        }
        sum
    }

    pub(crate) fn turns(&self) -> u32 {
        self.runs.iter().map(|run| run.turns).sum()
    }

    /// Whether a message would be read: the coordinator's is not, from the moment a person stops the worker on.
    pub(crate) fn takes_messages(&self, from_person: bool) -> bool {
        from_person || !self.stopped_by_person()
    }

    /// Whether the coordinator may not wake it.
    pub(crate) fn stopped_by_person(&self) -> bool {
        self.stop == Some(StopOrder::Person)
    }
}

impl WorkerModel {
    pub(super) fn apply(&mut self, seq: Seq, at: Timestamp, event: &Event) {
        match event {
            Event::WorkerRun { run, reason, task_id, restarts, .. } => {
                // A restart of the same run keeps its place.
                if let Some(present) = self.runs.iter_mut().find(|present| present.run == *run) {
                    present.restarts = *restarts;
                    // Its process is gone; the next one is not there yet.
                    self.process = None;
                } else {
                    self.runs.push(RunModel {
                        run: *run,
                        reason: reason.clone(),
                        task_id: *task_id,
                        restarts: *restarts,
                        end: None,
                        outcome: None,
                        began_seq: seq,
                        began_at: at,
                        turns: 0,
                        usage: Usage::default(),
                        cost: Cost::default(),
                    });
                    self.stop = None;
                    self.stop_seq = None;
                    self.ended_at = None;
                    self.merged_into = None;
                }
            }
            Event::WorkerProcess { run, keeper, token_sha256, .. } => {
                self.process = Some(ProcessModel {
                    run: *run,
                    keeper: keeper.clone(),
                    token_sha256: token_sha256.clone(),
                });
                self.moved = false;
            }
            Event::WorkerState { from, status, waiting_for, position, reason, .. } => {
                self.status = *status;
                self.waiting_for = *waiting_for;
                self.position = *position;
                self.cause.clone_from(reason);
                if status.is_ended() {
                    self.ended_at = Some(at);
                }
                self.changes.push(StatusChange { seq, at, from: *from, to: *status, reason: reason.clone() });
            }
            Event::WorkerCommand { command, .. } => {
                if let Command::Stop { by_person, .. } = command {
                    self.stop_seq = Some(seq);
                    self.stop = Some(if *by_person { StopOrder::Person } else { StopOrder::Coordinator });
                }
                self.commands.push(PendingCommand { id: seq, command: command.clone() });
            }
            Event::WorkerCommandSettled { command, .. } => {
                self.commands.retain(|pending| pending.id != *command);
            }
            Event::WorkerRecord { record, started, .. } => {
                if let Some(started) = started {
                    self.sandbox_tier = Some(started.sandbox_tier);
                }
                self.last_record = Some(RecordMark { n: record.n, uuid: record.uuid });
                let moves = record.tools.iter().filter(|tool| tool.is_error == Some(false));
                if let Some(to) = moves.filter_map(|tool| tool.moves.as_ref()).next_back() {
                    self.moving = Some(to.clone());
                }
                if record.record == "snapshot" {
                    self.snapshots += 1;
                }
                if let Some(run) = self.runs.iter_mut().find(|run| run.run == record.run) {
                    if record.record == "assistant" {
                        run.turns += 1;
                    }
                    run.usage += record.usage.unwrap_or_default();
                    run.cost += record.cost.unwrap_or_default();
                }
            }
            Event::WorkerRewound { n, .. } => {
                if let Some(last) = &mut self.last_record
                    && last.n > *n
                {
                    last.n = *n;
                }
            }
            Event::WorkerMoved { place, .. } => {
                self.moving = None;
                self.moved = true;
                self.stand_at(place);
            }
            Event::WorkerRunEnded { run, end, .. } => {
                // It went nowhere, whatever its conversation says.
                self.moved |= self.moving.take().is_some();
                if let Some(present) = self.runs.iter_mut().find(|present| present.run == *run) {
                    present.end = Some((**end).clone());
                }
            }
            Event::WorkerWorktree { exists, branch_exists, branch, .. } => {
                if branch.is_some() {
                    self.spec.branch.clone_from(branch);
                    // What an agent had thrown away is its own again, and it stands outside of it.
                    self.is_outside |= self.spec.isolation == Isolation::None;
                    self.spec.isolation = match self.spec.isolation {
                        Isolation::None => Isolation::Worktree,
                        isolation => isolation,
                    };
                }
                self.worktree_exists = *exists;
                self.branch_exists = *branch_exists;
            }
            Event::ReviewMerged { into, .. } => self.merged_into = Some(into.clone()),
            Event::ReviewDiscarded { kept_ref, .. } => self.kept_ref = Some(kept_ref.clone()),
            Event::ReviewRestored { .. } => self.kept_ref = None,
            _ => {}
        }
    }

    fn stand_at(&mut self, place: &WorkerPlace) {
        self.is_outside = false;
        match place {
            WorkerPlace::Worktree { path, branch, name } => {
                self.spec.isolation = Isolation::Worktree;
                self.spec.worktree.clone_from(path);
                self.spec.branch = Some(branch.clone());
                if let Some(name) = name {
                    self.spec.description.clone_from(name);
                }
            }
            // What is reviewed and continued stays where it is.
            WorkerPlace::Checkout { kept: true, .. } => self.is_outside = true,
            WorkerPlace::Checkout { kept: false, path } => {
                self.spec.isolation = Isolation::None;
                self.spec.worktree.clone_from(path);
                self.spec.branch = None;
            }
        }
    }
}
