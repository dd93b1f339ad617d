//! The end of a run: two appends, *run ended* and *notification enqueued* with the final status (spec 6.4). A
//! start finishes every run that ended without a notification.

use std::path::Path;

use swarm_protocol::{
    ExitReason, RunNumber, Seq, TaskId, WorkerId, WorkerStatus,
    event::{Event, WorkerPlace},
    frame::Command,
    notification::{Notification, NotificationKey, NotificationKind, NotificationStatus},
    process::{EXIT_FILE, ExitFile, KEEPER_FILE, ProcessExit},
    record::{Move, RecordBody, RecordHead, RunEnd},
};

use super::Actor;
use crate::{
    clock,
    session::{
        OrderError,
        model::{RunModel, StopOrder, WorkerModel},
    },
    workers::{
        finish::{self, FinishedRun},
        lifecycle::LifeEvent,
        outcome, run,
    },
};

/// `swarm-worker run` ended before it could record anything; its log says why.
const EXIT_NOT_STARTED: i32 = 1;

/// `swarm-worker run` could not record its end: the disk.
const EXIT_NOT_RECORDED: i32 = 4;

impl Actor {
    /// The keeper says that nothing of the run is left. What its process wrote and could not send comes first.
    pub(super) async fn process_gone(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        exit: Option<ExitFile>,
        missed: Vec<(RecordHead, Option<Box<RecordBody>>)>,
    ) -> Result<(), OrderError> {
        self.drop_link(worker_id);
        self.away.remove(worker_id);
        self.stop_deadlines.remove(worker_id);
        let missed = missed.into_iter().map(|(head, body)| (worker_id.clone(), run, head, body)).collect();
        if !self.take_records(missed).await {
            return Err(OrderError::Storage("the records of an ended run could not be stored".to_owned()));
        }
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        if worker.run() != run || worker.status.is_ended() {
            return Ok(());
        }
        let Some(present) = worker.last_run() else { return Ok(()) };
        if present.end.is_none() {
            let task_id = present.task_id;
            if let Some(to) = worker.moving.clone().filter(|_| worker.stop.is_none()) {
                return self.go_on_elsewhere(worker_id, run, &to).await;
            }
            let restarts = present.restarts + 1;
            let bound = self.model.spec.worker_restarts;
            if worker.stop.is_none() && present.restarts < bound && may_start_again(exit.as_ref(), worker) {
                return self.start_again(worker_id, run, task_id, restarts, exit.as_ref()).await;
            }
            let run_dir = self.shared.home.run_dir(&self.model.spec.repo_key, self.model.id, worker_id, run);
            let reason = match (worker.stop, exit.as_ref().map(|exit| exit.exit)) {
                (Some(_), _) => ExitReason::AbortedTools,
                (None, Some(ProcessExit::Signal(signal))) => ExitReason::Killed { signal },
                (None, Some(ProcessExit::Code(EXIT_NOT_RECORDED))) => {
                    ExitReason::StorageError { message: log_tail(&run_dir) }
                }
                (None, Some(ProcessExit::Code(EXIT_NOT_STARTED))) => {
                    ExitReason::SetupFailed { output: log_tail(&run_dir) }
                }
                (None, Some(ProcessExit::Code(_)) | None) => ExitReason::Lost,
            };
            let end = self.end_without_word(worker_id, reason);
            self.end_run(worker_id, run, end).await?;
        }
        self.finish(worker_id, exit);
        Ok(())
    }

    /// The same run goes on at another place, in a new process, from its transcript.
    async fn go_on_elsewhere(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        to: &Move,
    ) -> Result<(), OrderError> {
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        let Some(present) = worker.last_run() else { return Ok(()) };
        let (task_id, restarts) = (present.task_id, present.restarts);
        let place = match to {
            Move::Worktree { name } => {
                let branch = match &worker.spec.branch {
                    Some(branch) => branch.clone(),
                    None => {
                        let words = name.as_deref().unwrap_or(&worker.spec.description);
                        run::planned_branch(&self.model, worker_id, words)
                    }
                };
                let path = run::worktree_path(&self.shared, &self.model, worker_id);
                WorkerPlace::Worktree { path, branch, name: name.clone() }
            }
            Move::Checkout { discard } => {
                WorkerPlace::Checkout { path: self.model.spec.repo.clone(), kept: !discard }
            }
        };
        let mut events = self.withdraw_requests(worker_id, "its agent went elsewhere");
        events.push(Event::WorkerMoved { worker_id: worker_id.clone(), place });
        events.extend(self.next_process(worker_id, run, task_id, restarts, "its agent went elsewhere"));
        self.append(events).await?;
        self.launch(worker_id);
        Ok(())
    }

    /// The same run goes on in a new process, from its transcript.
    async fn start_again(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        task_id: TaskId,
        restarts: u32,
        exit: Option<&ExitFile>,
    ) -> Result<(), OrderError> {
        let mut events = self.withdraw_requests(worker_id, "its process died");
        events.extend(self.next_process(worker_id, run, task_id, restarts, &describe_exit(exit)));
        self.append(events).await?;
        self.launch(worker_id);
        Ok(())
    }

    /// The events that begin another process of the same run.
    fn next_process(
        &self,
        worker_id: &WorkerId,
        run: RunNumber,
        task_id: TaskId,
        restarts: u32,
        why: &str,
    ) -> Vec<Event> {
        // The old process's files must not be taken for the new one's, should this server die before it starts.
        let run_dir = self.shared.home.run_dir(&self.model.spec.repo_key, self.model.id, worker_id, run);
        for stale in [EXIT_FILE, KEEPER_FILE] {
            std::fs::remove_file(run_dir.join(stale)).ok();
        }
        let reason = format!("started again: {why}");
        let mut events =
            vec![Event::WorkerRun { worker_id: worker_id.clone(), run, reason, task_id, restarts }];
        events.extend(self.step(worker_id, LifeEvent::StartedAgain, why));
        events
    }

    pub(super) fn withdraw_requests(&mut self, worker_id: &WorkerId, reason: &str) -> Vec<Event> {
        let open: Vec<_> = self
            .model
            .permissions
            .iter()
            .filter(|permission| permission.is_open() && &permission.request.worker_id == worker_id)
            .map(|permission| permission.request.id.clone())
            .collect();
        open.into_iter()
            .map(|id| {
                self.desk.withdrawn(&id);
                Event::PermissionWithdrawn { id, reason: reason.to_owned() }
            })
            .collect()
    }

    /// The end of a run that left no word of its own.
    pub(super) fn end_without_word(&self, worker_id: &WorkerId, exit_reason: ExitReason) -> RunEnd {
        let run: Option<&RunModel> = self.model.worker(worker_id).and_then(WorkerModel::last_run);
        let end = RunEnd::without_work(exit_reason);
        let Some(run) = run else { return end };
        RunEnd {
            turns: run.turns,
            usage: run.usage,
            cost: run.cost,
            duration_ms: clock::now().millis_since(run.began_at),
            ..end
        }
    }

    pub(super) async fn end_run(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        end: RunEnd,
    ) -> Result<(), OrderError> {
        let reason = end.exit_reason.sentence();
        let mut events = self.withdraw_requests(worker_id, "its run ended");
        events.push(Event::WorkerRunEnded { worker_id: worker_id.clone(), run, end: Box::new(end) });
        events.extend(self.step(worker_id, LifeEvent::RunEnded, reason));
        self.append(events).await
    }

    /// Begins the task that establishes the outcome.
    pub(super) fn finish(&mut self, worker_id: &WorkerId, exit: Option<ExitFile>) {
        let Some(plan) = finish::plan(&self.shared, &self.model, worker_id, exit) else { return };
        let task = finish::start(self.shared.clone(), plan, self.handle.clone());
        self.run_tasks.insert(worker_id.clone(), task);
    }

    /// The outcome is established: the entry is queued, the worker has its final status, its place is free. One
    /// append, so that no crash leaves a part of it.
    pub(super) async fn run_finished(
        &mut self,
        worker_id: &WorkerId,
        run: RunNumber,
        finished: FinishedRun,
    ) -> Result<(), OrderError> {
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        if worker.run() != run || worker.status != WorkerStatus::Finishing {
            return Ok(());
        }
        let Some(present) = worker.last_run() else { return Ok(()) };
        let Some(end) = present.end.clone() else { return Ok(()) };
        let task_id = present.task_id;
        let FinishedRun { mut outcome, worktree_exists, branch_exists } = finished;
        let completed = end.exit_reason == ExitReason::Completed;
        let status = outcome::status_of(&end.exit_reason, worker.stop.is_some() && !completed);
        let stop = worker.stop;
        let Unread { revives, lost, unread } = unread(worker, present.began_seq);
        let revives = revives && !self.interrupted;
        if unread > 0 {
            outcome.notes.push(format!("{unread} messages were not read: the run ended first"));
        }
        let gone = match (worktree_exists, branch_exists) {
            (true, _) => "kept: it has changes",
            (false, true) => "the branch is kept, its worktree is gone",
            (false, false) => "removed: no change",
        };
        let notification = Notification {
            key: NotificationKey { worker_id: worker_id.clone(), run, kind: NotificationKind::End, n: 0 },
            seq: Seq::default(),
            status,
            summary: summary(&worker.spec.name, status, &outcome, stop),
            result: end.result.clone(),
            result_from_earlier: end.result_from_earlier,
            turns: end.turns,
            usage: end.usage,
            cost: end.cost,
            duration_ms: end.duration_ms,
            enqueued_at: clock::now(),
            after_stop: stop.is_some() && completed,
            outcome: Some(Box::new(outcome)),
        };
        let mut events = self.withdraw_requests(worker_id, "its run ended");
        events.extend(lost.into_iter().map(|command| Event::WorkerCommandSettled {
            worker_id: worker_id.clone(),
            command,
            accepted: false,
            note: "the run ended first".to_owned(),
        }));
        events.push(Event::WorkerWorktree {
            worker_id: worker_id.clone(),
            exists: worktree_exists,
            branch_exists,
            branch: None,
            reason: gone.to_owned(),
        });
        events.push(Event::NotificationQueued { notification: Box::new(notification) });
        events.extend(self.step(worker_id, LifeEvent::Established(status), end.exit_reason.sentence()));
        if revives {
            let ended = match status {
                NotificationStatus::Completed | NotificationStatus::Progress => WorkerStatus::Completed,
                NotificationStatus::Failed => WorkerStatus::Failed,
                NotificationStatus::Aborted => WorkerStatus::Aborted,
            };
            events.extend(self.revival(worker_id, ended, "a message it had not read", task_id));
        }
        self.append(events).await?;
        self.places.remove(worker_id);
        self.shared.live.forget(worker_id);
        self.shared.forget_token(worker_id, run);
        self.blocked = false;
        if stop.is_none() {
            // An end that nobody ordered is news, also after a person had interrupted and then sent this one on.
            self.interrupted = false;
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------- after a restart

    /// Every worker goes on where the journal left it: processes are watched again, ended runs are finished once
    /// nothing of them is left, runs that had no process yet are begun again.
    pub(super) async fn recover_workers(&mut self) -> Result<(), OrderError> {
        let workers: Vec<(WorkerId, WorkerStatus)> =
            self.model.workers.iter().map(|worker| (worker.spec.id.clone(), worker.status)).collect();
        for (worker_id, status) in workers {
            if !status.takes_place() || self.run_tasks.contains_key(&worker_id) {
                continue;
            }
            // Places of workers that run already are taken even over the bound.
            if let Some(place) = self.shared.take_place(&self.handle) {
                self.places.insert(worker_id.clone(), place);
            }
            let watched = run::adopt_plan(&self.shared, &self.model, &worker_id);
            match (status, watched) {
                (_, Some(plan)) => {
                    self.watch_stop(&worker_id);
                    self.expect_link(&worker_id);
                    let task = run::adopt(plan, self.handle.clone());
                    self.run_tasks.insert(worker_id.clone(), task);
                }
                (WorkerStatus::Finishing, None) => self.finish(&worker_id, None),
                (WorkerStatus::Starting | WorkerStatus::Running | WorkerStatus::Waiting, None) => {
                    self.launch(&worker_id);
                }
                (
                    WorkerStatus::Pending
                    | WorkerStatus::Completed
                    | WorkerStatus::Failed
                    | WorkerStatus::Aborted,
                    None,
                ) => {}
            }
        }
        Ok(())
    }
}

/// Orders that a run ended without recording.
struct Unread {
    /// A message among them begins the next run.
    revives: bool,
    /// These are settled as failed.
    lost: Vec<Seq>,
    /// How many of them say something: leave to spend is of no use to a run that is over.
    unread: usize,
}

/// A message that came during the run, and after any stop of it, goes to the next run; whatever is older had its
/// chance, and a run that cannot read must not be begun for ever. A worker that a person stopped is woken by the
/// person alone.
fn unread(worker: &WorkerModel, began_seq: Seq) -> Unread {
    let after = worker.stop_seq.unwrap_or(began_seq).max(began_seq);
    let by_person = worker.stopped_by_person();
    let mut revives = false;
    let mut lost = Vec::new();
    let mut unread = 0;
    for pending in &worker.commands {
        match &pending.command {
            Command::Message { from_person, .. } if pending.id > after && (*from_person || !by_person) => {
                revives = true;
            }
            command => {
                lost.push(pending.id);
                unread += usize::from(!matches!(command, Command::Grant { .. } | Command::NoGrant { .. }));
            }
        }
    }
    Unread { revives, lost, unread }
}

/// Whether a run whose process left no end may go on in a new one.
fn may_start_again(exit: Option<&ExitFile>, worker: &WorkerModel) -> bool {
    match exit.map(|exit| exit.exit) {
        // These would meet the same end again.
        Some(ProcessExit::Code(EXIT_NOT_STARTED | EXIT_NOT_RECORDED)) => false,
        Some(ProcessExit::Code(_) | ProcessExit::Signal(_)) => true,
        // Without a keeper's last word nobody knows that the tree is gone, unless the machine was started anew.
        None => worker.process.as_ref().is_some_and(|process| !crate::home::is_this_boot(&process.keeper)),
    }
}

fn log_tail(run_dir: &Path) -> String {
    let log = std::fs::read(run_dir.join("worker.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn describe_exit(exit: Option<&ExitFile>) -> String {
    match exit.map(|exit| exit.exit) {
        Some(ProcessExit::Signal(signal)) => format!("its process was killed (signal {signal})"),
        Some(ProcessExit::Code(code)) => format!("its process ended with code {code} and left no end record"),
        None => "its process is gone".to_owned(),
    }
}

/// The one line of an entry, by the server.
fn summary(
    name: &str,
    status: NotificationStatus,
    outcome: &swarm_protocol::notification::Outcome,
    stop: Option<StopOrder>,
) -> String {
    let name: String = name.chars().take(120).collect();
    match status {
        NotificationStatus::Completed if outcome.doubts.is_empty() => format!("Agent \"{name}\" completed"),
        NotificationStatus::Completed => {
            let doubts: Vec<_> = outcome.doubts.iter().map(|doubt| doubt.sentence()).collect();
            format!("Agent \"{name}\" is done, with doubts: {}", doubts.join("; "))
        }
        NotificationStatus::Failed => format!("Agent \"{name}\" failed: {}", outcome.exit_reason.sentence()),
        NotificationStatus::Aborted => {
            let by = match stop {
                Some(StopOrder::Person) => "by a person",
                Some(StopOrder::Coordinator) => "by you",
                None => "while it worked",
            };
            format!("Agent \"{name}\" was stopped {by}; what it had done is committed")
        }
        NotificationStatus::Progress => format!("Agent \"{name}\""),
    }
}

#[cfg(test)]
mod tests;
