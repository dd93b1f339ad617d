//! What people ask of a session: tasks, messages, stops, decisions.

use swarm_protocol::{
    ExitReason, MessageId, RunNumber, SessionState, TaskId, WorkerId, WorkerStatus,
    event::Event,
    frame::Command,
    notification::{Notification, NotificationKey, NotificationKind, NotificationStatus},
    permission::PermissionMode,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::Actor;
use crate::{
    clock,
    session::{KeyRing, OrderError, Resumed, Stopping, Submit, Submitted, WorkerMessage, model::StopOrder},
};

impl Actor {
    pub(super) async fn submit(&mut self, submit: Submit) -> Result<Submitted, OrderError> {
        if self.model.state == SessionState::Ended {
            return Err(OrderError::Ended(self.id()));
        }
        let Submit { text, unattended, callback_url, callback_asks, labels, keys } = submit;
        let keys = self.take_keys(keys);
        let after = self.model.seq;
        let message_id = MessageId(Uuid::now_v7());
        let open = self.model.open_task().map(|task| task.id);
        let (task_id, opened, mut events) = match open {
            Some(task_id) => (task_id, false, Vec::new()),
            None => {
                let task_id = TaskId(Uuid::now_v7());
                let accepted = Event::TaskAccepted {
                    task_id,
                    prompt: text.clone(),
                    message_id,
                    unattended,
                    callback_url,
                    callback_asks,
                    labels,
                };
                (task_id, true, vec![accepted])
            }
        };
        events.push(Event::MessageQueued { message_id, task_id, text });
        events.extend(keys);
        self.append(events).await?;
        self.news();
        Ok(Submitted { task_id, message_id, opened, after })
    }

    /// Opens a task that carries no message of its own.
    pub(super) async fn open_task(
        &mut self,
        prompt: String,
        unattended: bool,
        callback_url: Option<String>,
        labels: Vec<String>,
    ) -> Result<TaskId, OrderError> {
        let task_id = TaskId(Uuid::now_v7());
        let message_id = MessageId(Uuid::now_v7());
        self.append(vec![Event::TaskAccepted {
            task_id,
            prompt,
            message_id,
            unattended,
            callback_url,
            callback_asks: false,
            labels,
        }])
        .await?;
        Ok(task_id)
    }

    /// Something new came for the coordinator: it is woken at once.
    fn news(&mut self) {
        self.blocked = false;
        self.interrupted = false;
        self.wake_at = Some(Instant::now());
    }

    pub(super) async fn interrupt(&mut self, reason: &str) -> Result<Stopping, OrderError> {
        let mut stopping = Stopping::default();
        let idle = self.engine.is_none() && !self.model.workers_live() && self.model.open_task().is_none();
        if idle {
            stopping.already = true;
            return Ok(stopping);
        }
        self.interrupted = true;
        self.stop_keepalive();
        self.wake_at = None;
        match &self.engine {
            Some(engine) => engine.interrupt.cancel(),
            // Recorded, so that a restart does not take the workers' ends for news.
            None => {
                self.append(vec![Event::CoordinatorExit { exit_reason: ExitReason::AbortedTools }]).await?;
            }
        }
        let live: Vec<WorkerId> = self
            .model
            .workers
            .iter()
            .filter(|worker| !worker.status.is_ended())
            .map(|worker| worker.spec.id.clone())
            .collect();
        for worker_id in live {
            self.stop_worker(&worker_id, reason, true).await?;
            stopping.workers.push(worker_id);
        }
        Ok(stopping)
    }

    pub(super) async fn end(&mut self) -> Result<Stopping, OrderError> {
        self.reject_all().await?;
        let stopping = self.interrupt("the session was ended").await?;
        if self.model.state != SessionState::Ended {
            self.append(vec![Event::SessionState {
                state: SessionState::Ended,
                waiting_for: None,
                reason: "ended by a person".to_owned(),
            }])
            .await?;
        }
        Ok(stopping)
    }

    pub(super) async fn resume(&mut self, keys: KeyRing) -> Result<Resumed, OrderError> {
        if self.model.state == SessionState::Ended {
            return Err(OrderError::Ended(self.id()));
        }
        let keys = self.take_keys(keys);
        let after = self.model.seq;
        self.append(keys.into_iter().collect()).await?;
        let mut resumed =
            Resumed { after, queued: self.model.pending_entries().count() as u32, ..Resumed::default() };
        if self.model.waiting_for.as_deref() == Some("key") {
            self.append(vec![Event::SessionState {
                state: SessionState::Active,
                waiting_for: None,
                reason: "resumed with a key".to_owned(),
            }])
            .await?;
        }
        // What a person's stop ended in the last task goes on with its context.
        let last_task = self.model.tasks.last().map(|task| task.id);
        let stopped: Vec<WorkerId> = self
            .model
            .workers
            .iter()
            .filter(|worker| worker.status == WorkerStatus::Aborted && worker.stop == Some(StopOrder::Person))
            .filter(|worker| worker.kept_ref.is_none())
            .filter(|worker| worker.last_run().map(|run| run.task_id) == last_task)
            .map(|worker| worker.spec.id.clone())
            .collect();
        let ended_badly = self.model.exit.as_ref().is_some_and(|exit| *exit != ExitReason::Completed);
        let has_work = !stopped.is_empty() || self.model.wakes() || ended_badly;
        if self.model.open_task().is_none() && has_work {
            self.open_task("resume".to_owned(), false, None, Vec::new()).await?;
        }
        self.interrupted = false;
        for worker_id in stopped {
            let message = WorkerMessage {
                to: worker_id.to_string(),
                text: "You were stopped by the person, who now wants you to go on. Continue where you were."
                    .to_owned(),
                from_person: true,
            };
            self.message_worker(message).await?;
            resumed.workers.push(worker_id);
        }
        // A loop that ended badly (no key, no model) goes on from its history, though nothing new waits.
        self.go_on = ended_badly && resumed.workers.is_empty();
        if has_work {
            self.news();
        }
        Ok(resumed)
    }

    pub(super) async fn set_permission_mode(&mut self, mode: PermissionMode) -> Result<(), OrderError> {
        self.append(vec![Event::SessionPermissionMode { mode }]).await?;
        self.command_all(&Command::SetPermissionMode { mode }).await
    }

    /// The same command to every worker with a run under way.
    async fn command_all(&mut self, command: &Command) -> Result<(), OrderError> {
        for worker_id in self.at_work() {
            self.command(&worker_id, command.clone()).await?;
        }
        Ok(())
    }

    /// Workers with a run under way.
    pub(super) fn at_work(&self) -> Vec<WorkerId> {
        let at_work = self.model.workers.iter().filter(|worker| worker.status.takes_place());
        at_work.map(|worker| worker.spec.id.clone()).collect()
    }

    // ------------------------------------------------------------------------------- the loop's end

    pub(super) async fn engine_ended(&mut self, exit: ExitReason) {
        self.engine = None;
        self.blocked = exit != ExitReason::Completed;
        self.drained = Default::default();
        let key_is_gone = self.lost_its_key(&exit);
        let mut events = vec![Event::CoordinatorExit { exit_reason: exit }];
        if key_is_gone {
            events.push(self.waits_for_key(&self.model.spec.models.coordinator.display_name()));
        }
        if let Err(error) = self.append(events).await {
            self.note_failure(&error);
        }
    }

    /// Whether a provider refused a session that has no key any more: one that its client had brought is gone
    /// with the server that had it in memory. The vendors' own addresses are not even asked without a key; a
    /// gateway may do without, so it is asked.
    fn lost_its_key(&self, exit: &ExitReason) -> bool {
        let refused = matches!(exit, ExitReason::ModelError { error, .. } if error == "key_refused");
        let endpoint = &self.model.spec.models.coordinator;
        refused && self.model.last_turn > 0 && self.shared.key_for(endpoint, &self.keys).is_none()
    }
}

/// News of a run that goes on. `n` tells those of one run apart: from 1 its waits, 0 its budget.
pub(super) fn progress(worker_id: &WorkerId, run: RunNumber, n: u32, summary: String) -> Event {
    let notification = Notification {
        key: NotificationKey { worker_id: worker_id.clone(), run, kind: NotificationKind::Progress, n },
        seq: Default::default(),
        status: NotificationStatus::Progress,
        summary,
        result: String::new(),
        result_from_earlier: false,
        outcome: None,
        turns: 0,
        usage: Default::default(),
        cost: Default::default(),
        duration_ms: 0,
        enqueued_at: clock::now(),
        after_stop: false,
    };
    Event::NotificationQueued { notification: Box::new(notification) }
}
