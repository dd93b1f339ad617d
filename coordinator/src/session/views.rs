//! A session's state as the API shows it. Pure: the live table is passed in.

use swarm_protocol::{
    ExitReason, PermissionRequestId, SessionState, Timestamp, Usage, WaitingFor, WorkerStatus,
    api::{
        ConversationItem, ExplainView, LedgerEntry, PermissionRacer, PermissionView, RunView, SessionDetail,
        SessionView, TaskStatus, TaskView, UnreadMessage, WorkerDetail, WorkerView,
    },
    frame::Command,
    notification::Doubt,
};

use super::model::{FifoEntry, PermissionModel, SessionModel, TaskModel, WorkerModel};
use crate::{desk, live::LiveState};

/// Conversation items in a detail.
const ITEMS_SHOWN: usize = 500;

/// Committed entries in a detail.
const COMMITTED_SHOWN: usize = 100;

pub(crate) fn worker_view(
    model: &SessionModel,
    worker: &WorkerModel,
    live: Option<&LiveState>,
    now: Timestamp,
) -> WorkerView {
    let outcome = worker.outcome();
    // While a run is under way, the last run's end is not news any more.
    let ended_outcome = if worker.status.is_ended() { outcome } else { None };
    let cost = worker.cost();
    let request = model
        .permissions
        .iter()
        .find(|permission| permission.is_open() && permission.request.worker_id == worker.spec.id);
    let exit: Option<&ExitReason> = ended_outcome.map(|outcome| &outcome.exit_reason);
    let branch = match outcome {
        Some(outcome) if worker.status.is_ended() => outcome.branch.clone(),
        _ => worker.spec.branch.clone(),
    };
    let doubts: Vec<Doubt> = ended_outcome.map(|outcome| outcome.doubts.clone()).unwrap_or_default();
    let activity = match (worker.status, live) {
        (_, Some(LiveState { waits: Some(waits), .. })) => waits.clone(),
        (WorkerStatus::Running | WorkerStatus::Starting, Some(live)) => live.activity.clone(),
        _ => String::new(),
    };
    let unread =
        worker.commands.iter().filter(|pending| matches!(pending.command, Command::Message { .. })).count();
    WorkerView {
        id: worker.spec.id.clone(),
        name: worker.spec.name.clone(),
        status: worker.status,
        exit_reason: exit.map(|exit| exit.code().to_owned()),
        exit_detail: exit.map(ExitReason::detail).filter(|detail| !detail.is_null()),
        doubts,
        branch: branch.filter(|_| worker.kept_ref.is_none()),
        base: worker.spec.base.clone(),
        commits: outcome.map_or(0, |outcome| outcome.commits.len() as u64),
        files_changed: outcome.map_or(0, |outcome| outcome.files.len() as u64),
        insertions: outcome.map_or(0, |outcome| outcome.insertions()),
        deletions: outcome.map_or(0, |outcome| outcome.deletions()),
        turns: worker.turns(),
        usage: worker.usage(),
        cost_usd: cost.exact_usd(),
        session_id: model.id,
        task_id: worker.last_run().map_or(worker.spec.task_id, |run| run.task_id),
        run: worker.run(),
        agent_type: worker.spec.agent_type.clone(),
        isolation: worker.spec.isolation,
        expects: worker.spec.expects,
        model: worker.spec.model.display_name(),
        waiting_for: worker.waiting_for,
        cause: cause(worker, exit),
        request_id: request.map(|permission| permission.request.id.clone()),
        position: worker.position,
        activity,
        context_tokens: live.and_then(|live| live.context_tokens),
        context_window: live.and_then(|live| live.context_window),
        cache_breaks: live.map_or(0, |live| live.cache_breaks),
        last_cache_break: live.and_then(|live| live.last_cache_break),
        worktree: worker.spec.worktree.to_string_lossy().into_owned(),
        worktree_exists: worker.worktree_exists,
        port_base: worker.spec.port_base,
        sandbox_tier: worker.sandbox_tier,
        pid: worker
            .process
            .as_ref()
            .filter(|_| worker.status.takes_place())
            .map(|process| process.keeper.pid),
        restarts: worker.last_run().map_or(0, |run| run.restarts),
        merged_into: worker.merged_into.clone(),
        discarded: worker.kept_ref.is_some(),
        stopped_by_person: worker.stopped_by_person(),
        unread: unread as u32,
        snapshots: worker.snapshots,
        spawned_at: worker.spawned_at,
        updated_at: worker.updated_at,
        ended_at: worker.ended_at.filter(|_| worker.status.is_ended()),
        age_ms: worker
            .ended_at
            .filter(|_| worker.status.is_ended())
            .unwrap_or(now)
            .millis_since(worker.spawned_at),
    }
}

fn cause(worker: &WorkerModel, exit: Option<&ExitReason>) -> Option<String> {
    match (exit, worker.status) {
        (Some(ExitReason::Completed), _) => None,
        (Some(exit), _) => Some(exit.sentence()),
        (None, WorkerStatus::Waiting | WorkerStatus::Pending) => {
            Some(worker.cause.clone()).filter(|cause| !cause.is_empty())
        }
        (None, _) => None,
    }
}

pub(crate) fn session_view(model: &SessionModel) -> SessionView {
    let cost = model.cost();
    let task = model.tasks.last();
    SessionView {
        session_id: model.id,
        short: model.id.short(),
        title: model.spec.title.clone(),
        repo: model.spec.repo.to_string_lossy().into_owned(),
        state: model.state,
        waiting_for: waiting_for(model),
        base: model.spec.base.clone(),
        base_name: model.spec.base_name.clone(),
        target_branch: model.spec.target_branch.clone(),
        model: model.spec.models.coordinator.display_name(),
        permission_mode: model.permission_mode,
        task_id: task.map(|task| task.id),
        verdict: task.and_then(|task| task.finished.as_ref()).map(|finished| finished.verdict),
        workers: model.workers.len() as u32,
        workers_running: model.places_taken() as u32,
        queued: model.pending_entries().count() as u32,
        asks: model.permissions.iter().filter(|permission| permission.is_open()).count() as u32,
        usage: model.usage(),
        own_usage: model.own_usage,
        cost_usd: cost.exact_usd(),
        cost,
        budget: model.governor.view(),
        created_at: model.created_at,
        updated_at: model.updated_at,
        seq: model.seq,
        damaged_events: 0,
        damaged: None,
    }
}

fn waiting_for(model: &SessionModel) -> Option<String> {
    if model.state != SessionState::Waiting {
        return None;
    }
    if let Some(key) = &model.waiting_for {
        return Some(key.clone());
    }
    let asks = model.workers.iter().any(|worker| worker.waiting_for == Some(WaitingFor::Permission));
    Some(if asks { "question" } else { "workers" }.to_owned())
}

pub(crate) fn task_view(model: &SessionModel, task: &TaskModel, now: Timestamp) -> TaskView {
    let finished = task.finished.as_ref();
    let status = match (finished, task.begun, model.state) {
        (Some(_), _, _) => TaskStatus::Done,
        (None, false, _) => TaskStatus::Queued,
        (None, true, SessionState::Waiting) => TaskStatus::Waiting,
        (None, true, _) => TaskStatus::Active,
    };
    let usage: Usage = model.usage();
    TaskView {
        task_id: task.id,
        session_id: model.id,
        prompt: task.prompt.clone(),
        status,
        verdict: finished.map(|finished| finished.verdict),
        reasons: finished.map(|finished| finished.reasons.clone()).unwrap_or_default(),
        exit_reason: finished.map(|finished| finished.exit_reason.code().to_owned()),
        exit_detail: finished
            .map(|finished| finished.exit_reason.detail())
            .filter(|detail| !detail.is_null()),
        text: finished.map(|finished| finished.text.clone()),
        workers: model
            .workers
            .iter()
            .filter(|worker| worker.runs.iter().any(|run| run.task_id == task.id))
            .map(|worker| worker_view(model, worker, None, now))
            .collect(),
        usage,
        cost_usd: model.cost().exact_usd(),
        labels: task.labels.clone(),
        accepted_at: task.accepted_at,
        finished_at: finished.map(|finished| finished.at),
    }
}

pub(crate) fn ledger_entry(entry: &FifoEntry) -> LedgerEntry {
    LedgerEntry { notification: entry.notification.clone(), steps: entry.steps.clone() }
}

pub(crate) fn permission_view(
    model: &SessionModel,
    permission: &PermissionModel,
    always_file: Option<String>,
    deadline_at: Option<Timestamp>,
    channel: Option<&str>,
) -> PermissionView {
    let worker = model.worker(&permission.request.worker_id);
    PermissionView {
        request: permission.request.clone(),
        session_id: model.id,
        worker_name: worker.map(|worker| worker.spec.name.clone()).unwrap_or_default(),
        deadline_at: deadline_at.filter(|_| permission.is_open()),
        always_file,
        decision: permission.decision.clone(),
        withdrawn: permission.withdrawn.clone(),
        sandbox_tier: worker.and_then(|worker| worker.sandbox_tier),
        joined: if permission.is_open() { joined(model, permission) } else { Vec::new() },
        racers: if permission.is_open() { racers(model, channel) } else { Vec::new() },
        wrote_rule: permission.wrote_rule.clone(),
    }
}

/// Who may decide it.
fn racers(model: &SessionModel, channel: Option<&str>) -> Vec<PermissionRacer> {
    let models = &model.spec.models;
    let small = models.helper.as_ref().unwrap_or(&models.worker).display_name();
    let classifier = model.spec.worker_limits.classifier_racer.then_some(small);
    desk::racers(channel.into_iter(), classifier.as_deref())
}

/// Other open requests of the same agent that ask the same.
fn joined(model: &SessionModel, permission: &PermissionModel) -> Vec<PermissionRequestId> {
    let asked = &permission.request;
    let same = |other: &&PermissionModel| {
        other.is_open()
            && other.request.id != asked.id
            && other.request.worker_id == asked.worker_id
            && other.request.args_hash == asked.args_hash
            && !asked.args_hash.is_empty()
    };
    model.permissions.iter().filter(same).map(|other| other.request.id.clone()).collect()
}

/// Live states by worker, and what the desk knows, for views of a whole session.
pub(crate) struct Extras<'a> {
    pub(crate) live: &'a dyn Fn(&swarm_protocol::WorkerId) -> Option<LiveState>,
    pub(crate) always_file: Option<String>,
    /// The remote channel, where there is one.
    pub(crate) channel: Option<&'a str>,
    pub(crate) deadline: &'a dyn Fn(&swarm_protocol::PermissionRequestId) -> Option<Timestamp>,
    pub(crate) now: Timestamp,
}

pub(crate) fn session_detail(model: &SessionModel, extras: &Extras<'_>) -> SessionDetail {
    let first_committed =
        model.fifo.iter().filter(|entry| entry.committed).count().saturating_sub(COMMITTED_SHOWN);
    let mut committed = 0;
    let notifications = model
        .fifo
        .iter()
        .filter(|entry| {
            committed += usize::from(entry.committed);
            !entry.committed || committed > first_committed
        })
        .map(ledger_entry)
        .collect();
    let skipped = model.items.len().saturating_sub(ITEMS_SHOWN);
    let conversation: Vec<ConversationItem> = model.items[skipped..].to_vec();
    SessionDetail {
        session: session_view(model),
        tasks: model.tasks.iter().map(|task| task_view(model, task, extras.now)).collect(),
        workers: model
            .workers
            .iter()
            .map(|worker| worker_view(model, worker, (extras.live)(&worker.spec.id).as_ref(), extras.now))
            .collect(),
        notifications,
        permissions: model
            .permissions
            .iter()
            .filter(|permission| permission.is_open())
            .map(|permission| {
                let deadline = (extras.deadline)(&permission.request.id);
                permission_view(model, permission, extras.always_file.clone(), deadline, extras.channel)
            })
            .collect(),
        conversation,
        seq: model.seq,
    }
}

pub(crate) fn worker_detail(model: &SessionModel, worker: &WorkerModel, extras: &Extras<'_>) -> WorkerDetail {
    let id = &worker.spec.id;
    let permission = model
        .permissions
        .iter()
        .find(|permission| permission.is_open() && &permission.request.worker_id == id)
        .map(|permission| {
            let deadline = (extras.deadline)(&permission.request.id);
            permission_view(model, permission, extras.always_file.clone(), deadline, extras.channel)
        });
    WorkerDetail {
        worker: worker_view(model, worker, (extras.live)(id).as_ref(), extras.now),
        prompt: worker.spec.prompt.clone(),
        result: worker.runs.iter().rev().find_map(|run| run.end.as_ref()).map(|end| end.result.clone()),
        outcome: worker.outcome().cloned(),
        ledger: model
            .fifo
            .iter()
            .filter(|entry| &entry.notification.key.worker_id == id)
            .map(ledger_entry)
            .collect(),
        permission,
        todo: Vec::new(),
        unread: worker
            .commands
            .iter()
            .filter_map(|pending| match &pending.command {
                Command::Message { text, from_person, .. } => {
                    Some(UnreadMessage { seq: pending.id, text: text.clone(), from_person: *from_person })
                }
                _ => None,
            })
            .collect(),
        seq: model.seq,
    }
}

pub(crate) fn explain(model: &SessionModel, worker: &WorkerModel, now: Timestamp) -> ExplainView {
    let id = &worker.spec.id;
    ExplainView {
        worker: worker_view(model, worker, None, now),
        runs: worker
            .runs
            .iter()
            .map(|run| RunView {
                run: run.run,
                reason: run.reason.clone(),
                exit_reason: run.end.as_ref().map(|end| end.exit_reason.clone()),
                outcome: run.outcome.clone(),
            })
            .collect(),
        ledger: model
            .fifo
            .iter()
            .filter(|entry| &entry.notification.key.worker_id == id)
            .map(ledger_entry)
            .collect(),
        permissions: model
            .permissions
            .iter()
            .filter(|permission| &permission.request.worker_id == id)
            .map(|permission| permission_view(model, permission, None, None, None))
            .collect(),
        changes: worker.changes.clone(),
    }
}
