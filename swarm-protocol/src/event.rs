//! The one event enum: journal, SSE, `--json` and dashboard (spec 8.3).
//!
//! On the wire an event is one flat JSON object: the envelope `{"v","seq","at","session_id","kind"}` and the
//! event's own fields. Readers skip kinds they do not know. Live events have no seq; they carry `after`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    api::WorkerView,
    frame::{Command, Live},
    ids::{CommandId, MessageId, PermissionRequestId, RunNumber, Seq, TaskId, WorkerId},
    launch::WorkerSpec,
    message::{Block, Message},
    notification::{Notification, NotificationKey},
    permission::{PermissionDecision, PermissionMode, PermissionRequest, Rule},
    process::ProcessIdentity,
    record::{CompactBoundary, GrantRequest, RecordHead, RunEnd, RunStarted, StopReason},
    status::{ExitReason, SessionState, Verdict, WaitingFor, WorkerStatus},
    usage::{Caps, Cost, Usage},
};

mod line;
mod session_spec;
mod worker_place;

pub use line::{EventLine, EventLineError};
pub use session_spec::SessionSpec;
pub use worker_place::WorkerPlace;

/// Version of the event schema. Within it keys are only added.
pub const EVENT_VERSION: u32 = 1;

/// An entry as a request of the coordinator carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SentEntry {
    /// Which entry.
    pub key: NotificationKey,
    /// The earlier request that carried it and was not committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_of: Option<u64>,
    /// Why it goes out again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What happens to the budget of a session (spec 10.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum BudgetChange {
    /// A worker asks for a grant.
    Requested {
        /// What it asks.
        request: GrantRequest,
    },
    /// A call may be made; its worst price counts as spent until its use is recorded.
    Granted {
        /// Number of the grant, among those of who asked.
        grant: u64,
        /// What it pays for.
        amount: Caps,
    },
    /// Nothing was left for a call.
    Refused {
        /// Number of the request.
        grant: u64,
        /// Which budget is used up.
        budget: String,
    },
    /// Grants no longer count as spent.
    Freed {
        /// Their numbers.
        grants: Vec<u64>,
        /// Why.
        reason: String,
    },
    /// Most of the budget is spent.
    Warned {
        /// How much, in percent.
        percent: u64,
    },
}

/// Something a person could ask about later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind")]
pub enum Event {
    /// A session was opened.
    #[serde(rename = "session.created")]
    SessionCreated {
        /// Its spec.
        spec: Box<SessionSpec>,
    },
    /// A session changed its state.
    #[serde(rename = "session.state")]
    SessionState {
        /// The state.
        state: SessionState,
        /// `key` when it waits for a key of the provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<String>,
        /// Why, in words.
        reason: String,
    },
    /// The permission mode of a session changed.
    #[serde(rename = "session.permission_mode")]
    SessionPermissionMode {
        /// The mode from now on.
        mode: PermissionMode,
    },
    /// A rule holds for a session from now on.
    #[serde(rename = "session.rule")]
    SessionRule {
        /// The rule.
        rule: Rule,
    },
    /// Keys of these providers came with a task or a resume. The keys stay in memory; the names are recorded, so
    /// that a restart waits for the keys again rather than ask without.
    #[serde(rename = "session.keys")]
    SessionKeys {
        /// The providers, as models are named before the slash.
        providers: Vec<String>,
    },
    /// A task was accepted.
    #[serde(rename = "task.accepted")]
    TaskAccepted {
        /// Its id.
        task_id: TaskId,
        /// What was asked.
        prompt: String,
        /// The message that carries it.
        message_id: MessageId,
        /// Nobody will answer.
        unattended: bool,
        /// Where the verdict is sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        callback_url: Option<String>,
        /// Permission requests are sent there, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        callback_asks: bool,
        /// The caller's labels.
        #[serde(default)]
        labels: Vec<String>,
    },
    /// A task has its verdict.
    #[serde(rename = "task.finished")]
    TaskFinished {
        /// Which.
        task_id: TaskId,
        /// How it came out.
        verdict: Verdict,
        /// Why, one sentence each.
        reasons: Vec<String>,
        /// How the coordinator ended.
        exit_reason: ExitReason,
        /// Its final text.
        text: String,
    },
    /// A callback was answered, or given up.
    #[serde(rename = "task.callback")]
    TaskCallback {
        /// Which task.
        task_id: TaskId,
        /// Whether it was delivered.
        delivered: bool,
        /// What happened.
        note: String,
    },
    /// A person's message to the coordinator waits to be read.
    #[serde(rename = "message.queued")]
    MessageQueued {
        /// Its id.
        message_id: MessageId,
        /// The task it belongs to.
        task_id: TaskId,
        /// The words.
        text: String,
    },
    /// A request of the coordinator is about to leave; it carries these entries and messages.
    #[serde(rename = "coordinator.request")]
    CoordinatorRequest {
        /// Number of the request in this session, from 1.
        request: u64,
        /// The model.
        model: String,
        /// Entries it carries.
        entries: Vec<SentEntry>,
        /// Messages of people it carries.
        messages: Vec<MessageId>,
        /// The user messages it adds, as rendered: a repeat sends the same bytes.
        blocks: Vec<Message>,
    },
    /// A tool acts before the response has ended.
    #[serde(rename = "coordinator.intent")]
    CoordinatorIntent {
        /// The request.
        request: u64,
        /// The blocks closed so far.
        blocks: Vec<Block>,
    },
    /// A tool of the coordinator acted: its result, before the turn is committed.
    #[serde(rename = "coordinator.tool")]
    CoordinatorTool {
        /// The request.
        request: u64,
        /// The result block.
        result: Block,
    },
    /// A turn of the coordinator is committed.
    #[serde(rename = "coordinator.turn")]
    CoordinatorTurn {
        /// The request it came from.
        request: u64,
        /// Number of the turn in this session, from 1.
        turn: u32,
        /// The model's message; none when nothing of it arrived.
        assistant: Option<Message>,
        /// The results of its calls.
        results: Option<Message>,
        /// The model that answered.
        model: String,
        /// Why it stopped.
        stop_reason: StopReason,
        /// Use.
        usage: Usage,
        /// Cost.
        cost: Cost,
        /// Entries that are now delivered.
        entries: Vec<NotificationKey>,
        /// True when a restart committed it from what was recorded.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        recovered: bool,
    },
    /// The coordinator's history was compacted.
    #[serde(rename = "coordinator.compacted")]
    CoordinatorCompacted {
        /// How.
        boundary: Box<CompactBoundary>,
    },
    /// A user message entered the coordinator's history outside a request (go on, a result at an interrupt).
    #[serde(rename = "coordinator.note")]
    CoordinatorNote {
        /// The message.
        message: Message,
    },
    /// A helper of the coordinator used tokens.
    #[serde(rename = "coordinator.helper")]
    CoordinatorHelper {
        /// What for.
        purpose: String,
        /// The model.
        model: String,
        /// Use.
        usage: Usage,
        /// Cost.
        cost: Cost,
    },
    /// The coordinator's loop ended.
    #[serde(rename = "coordinator.exit")]
    CoordinatorExit {
        /// Why.
        exit_reason: ExitReason,
    },
    /// A worker was registered.
    #[serde(rename = "worker.spawned")]
    WorkerSpawned {
        /// Its spec.
        spec: Box<WorkerSpec>,
        /// The call that asked for it: a repeat of the call finds the same worker.
        tool_use_id: crate::ids::ToolUseId,
    },
    /// A run of a worker began.
    #[serde(rename = "worker.run")]
    WorkerRun {
        /// Who.
        worker_id: WorkerId,
        /// Which run.
        run: RunNumber,
        /// What begins it: the prompt or the message.
        reason: String,
        /// The task it belongs to.
        task_id: TaskId,
        /// How often it was started again.
        restarts: u32,
    },
    /// A worker's process exists.
    #[serde(rename = "worker.process")]
    WorkerProcess {
        /// Who.
        worker_id: WorkerId,
        /// Which run.
        run: RunNumber,
        /// Its keeper.
        keeper: ProcessIdentity,
        /// The run's directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        run_dir: PathBuf,
        /// The run's secret, as SHA-256 in hex.
        token_sha256: String,
    },
    /// A worker changed its status.
    #[serde(rename = "worker.state")]
    WorkerState {
        /// Who.
        worker_id: WorkerId,
        /// From.
        from: WorkerStatus,
        /// To.
        status: WorkerStatus,
        /// What it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting_for: Option<WaitingFor>,
        /// Position in the queue, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<u32>,
        /// Why.
        reason: String,
        /// The worker as it stands, for readers without a registry; filled when the event is sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<Box<WorkerView>>,
    },
    /// A command to a worker was decided; its seq is the command's id.
    #[serde(rename = "worker.command")]
    WorkerCommand {
        /// To whom.
        worker_id: WorkerId,
        /// What.
        command: Command,
    },
    /// A command was recorded by its worker, or can no longer be.
    #[serde(rename = "worker.command_settled")]
    WorkerCommandSettled {
        /// To whom.
        worker_id: WorkerId,
        /// Which.
        command: CommandId,
        /// False when it failed.
        accepted: bool,
        /// Why, when it failed.
        note: String,
    },
    /// A record of a worker's transcript, without its body.
    #[serde(rename = "worker.record")]
    WorkerRecord {
        /// Whose.
        worker_id: WorkerId,
        /// The head.
        record: RecordHead,
        /// How the run began, for the record that says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        started: Option<RunStarted>,
    },
    /// A worker lost records that it had sent (power loss).
    #[serde(rename = "worker.rewound")]
    WorkerRewound {
        /// Who.
        worker_id: WorkerId,
        /// The last record that is left.
        n: u64,
    },
    /// A worker's run goes on at another place, in its next process.
    #[serde(rename = "worker.moved")]
    WorkerMoved {
        /// Who.
        worker_id: WorkerId,
        /// Where it stands.
        place: WorkerPlace,
    },
    /// A worker's run ended: what its process said, or what is known without it.
    #[serde(rename = "worker.run_ended")]
    WorkerRunEnded {
        /// Who.
        worker_id: WorkerId,
        /// Which run.
        run: RunNumber,
        /// The end record, or one made by the server for a process that left none.
        end: Box<RunEnd>,
    },
    /// A worker's worktree was removed, or made again.
    #[serde(rename = "worker.worktree")]
    WorkerWorktree {
        /// Whose.
        worker_id: WorkerId,
        /// Whether it exists now.
        exists: bool,
        /// Whether its branch exists now.
        branch_exists: bool,
        /// The branch's name, where it is another than planned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<String>,
        /// Why.
        reason: String,
    },
    /// The session's budget: who may spend, and what is free again.
    #[serde(rename = "budget")]
    Budget {
        /// Whose grants; none: the coordinator's, or the session as a whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_id: Option<WorkerId>,
        /// What.
        change: BudgetChange,
    },
    /// An entry was queued for the coordinator.
    #[serde(rename = "notification.queued")]
    NotificationQueued {
        /// The entry.
        notification: Box<Notification>,
    },
    /// Entries left in a request.
    #[serde(rename = "notification.sent")]
    NotificationSent {
        /// The request.
        request: u64,
        /// Which.
        entries: Vec<SentEntry>,
    },
    /// Entries are in the model's history.
    #[serde(rename = "notification.committed")]
    NotificationCommitted {
        /// The request.
        request: u64,
        /// The turn.
        turn: u32,
        /// Which.
        keys: Vec<NotificationKey>,
    },
    /// A call asks.
    #[serde(rename = "permission.requested")]
    PermissionRequested {
        /// The request.
        request: Box<PermissionRequest>,
    },
    /// A classifier decided about a call that would have asked; nobody waits for anything.
    #[serde(rename = "permission.judged")]
    PermissionJudged {
        /// What would have been asked.
        request: Box<PermissionRequest>,
        /// What was decided.
        decision: PermissionDecision,
    },
    /// A request was decided.
    #[serde(rename = "permission.decided")]
    PermissionDecided {
        /// Who asked.
        worker_id: WorkerId,
        /// The decision.
        decision: PermissionDecision,
        /// The rule that was written and where, for `always`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wrote_rule: Option<String>,
    },
    /// A request no longer waits.
    #[serde(rename = "permission.withdrawn")]
    PermissionWithdrawn {
        /// Which.
        id: PermissionRequestId,
        /// Why.
        reason: String,
    },
    /// A branch was merged.
    #[serde(rename = "review.merged")]
    ReviewMerged {
        /// Whose branch.
        worker_id: WorkerId,
        /// Into which.
        into: String,
        /// The target before.
        from: String,
        /// The target after.
        to: String,
    },
    /// A branch was discarded.
    #[serde(rename = "review.discarded")]
    ReviewDiscarded {
        /// Whose branch.
        worker_id: WorkerId,
        /// The ref that keeps it.
        kept_ref: String,
    },
    /// A branch or a snapshot came back.
    #[serde(rename = "review.restored")]
    ReviewRestored {
        /// Whose.
        worker_id: WorkerId,
        /// What.
        what: String,
    },
    /// Something went wrong that a person should know of.
    #[serde(rename = "error")]
    Error {
        /// Stable code.
        code: String,
        /// The message.
        message: String,
        /// About which worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_id: Option<WorkerId>,
    },
    /// News of a worker or of the coordinator that may be lost: never in the journal.
    #[serde(rename = "live")]
    Live {
        /// About which worker; none: the coordinator.
        worker_id: Option<WorkerId>,
        /// The seq it follows.
        after: Seq,
        /// What.
        #[serde(rename = "data")]
        live: Live,
    },
}

impl Event {
    /// Whether it may be lost and is never in the journal.
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Live { .. })
    }

    /// The worker it is about, if it is about one.
    pub fn worker_id(&self) -> Option<&WorkerId> {
        match self {
            Self::WorkerSpawned { spec, .. } => Some(&spec.id),
            Self::WorkerRun { worker_id, .. }
            | Self::WorkerProcess { worker_id, .. }
            | Self::WorkerState { worker_id, .. }
            | Self::WorkerCommand { worker_id, .. }
            | Self::WorkerCommandSettled { worker_id, .. }
            | Self::WorkerRecord { worker_id, .. }
            | Self::WorkerRewound { worker_id, .. }
            | Self::WorkerMoved { worker_id, .. }
            | Self::WorkerRunEnded { worker_id, .. }
            | Self::WorkerWorktree { worker_id, .. }
            | Self::PermissionDecided { worker_id, .. }
            | Self::ReviewMerged { worker_id, .. }
            | Self::ReviewDiscarded { worker_id, .. }
            | Self::ReviewRestored { worker_id, .. } => Some(worker_id),
            Self::NotificationQueued { notification } => Some(&notification.key.worker_id),
            Self::PermissionRequested { request } | Self::PermissionJudged { request, .. } => {
                Some(&request.worker_id)
            }
            Self::Error { worker_id, .. } | Self::Live { worker_id, .. } | Self::Budget { worker_id, .. } => {
                worker_id.as_ref()
            }
            Self::SessionCreated { .. }
            | Self::SessionState { .. }
            | Self::SessionPermissionMode { .. }
            | Self::SessionRule { .. }
            | Self::SessionKeys { .. }
            | Self::TaskAccepted { .. }
            | Self::TaskFinished { .. }
            | Self::TaskCallback { .. }
            | Self::MessageQueued { .. }
            | Self::CoordinatorRequest { .. }
            | Self::CoordinatorIntent { .. }
            | Self::CoordinatorTool { .. }
            | Self::CoordinatorTurn { .. }
            | Self::CoordinatorCompacted { .. }
            | Self::CoordinatorNote { .. }
            | Self::CoordinatorHelper { .. }
            | Self::CoordinatorExit { .. }
            | Self::NotificationSent { .. }
            | Self::NotificationCommitted { .. }
            | Self::PermissionWithdrawn { .. } => None,
        }
    }
}
