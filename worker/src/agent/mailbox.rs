//! What waits for the agent: messages from the server, ends of its own background jobs, restores. Everything
//! here is taken at phase 0, in order, when no tool runs.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::FutureExt as _;
use query_engine::ports::{BeforeEnd, Durability, Inbox, Incoming, Observer};
use swarm_protocol::{
    Block, CommandId, WaitingFor,
    frame::Live,
    record::{Origin, RecordBody},
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    record::{Recorder, now},
    shell::{JobId, JobStatus, Shell},
    tools::{
        bash::{Commands, job_end},
        config::Adjustable,
    },
    tree::Tree,
};

/// Output of an ended job that goes with the news of its end.
const JOB_TAIL_CHARS: usize = 4_000;

/// Something that waits.
enum Waiting {
    Message(Incoming),
    Restore { command: CommandId, snapshot: u32 },
}

/// The inbox of a run.
pub(crate) struct Mailbox {
    queue: Mutex<VecDeque<Waiting>>,
    news: Notify,
    shell: Arc<Shell>,
    commands: Arc<Commands>,
    tree: Option<Arc<Tree>>,
    recorder: Arc<Recorder>,
    observer: Arc<dyn Observer>,
    grace: Adjustable,
}

/// A message of the harness.
pub(crate) fn harness(text: impl Into<String>) -> Incoming {
    Incoming { content: vec![Block::text(text)], origin: Origin::Harness, commands: Vec::new() }
}

impl Mailbox {
    pub(crate) fn new(
        shell: Arc<Shell>,
        commands: Arc<Commands>,
        tree: Option<Arc<Tree>>,
        recorder: Arc<Recorder>,
        observer: Arc<dyn Observer>,
        grace: Adjustable,
    ) -> Self {
        Self {
            queue: Mutex::default(),
            news: Notify::new(),
            shell,
            commands,
            tree,
            recorder,
            observer,
            grace,
        }
    }

    pub(crate) fn push(&self, message: Incoming) {
        self.put(Waiting::Message(message));
    }

    /// Unless the same text waits already: what comes again and again is read once.
    pub(crate) fn push_once(&self, message: Incoming) {
        let same = |waiting: &Waiting| matches!(waiting, Waiting::Message(other) if other.content == message.content);
        if !self.queue.lock().unwrap_or_else(PoisonError::into_inner).iter().any(same) {
            self.push(message);
        }
    }

    /// Before everything that waits.
    pub(crate) fn push_first(&self, message: Incoming) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_front(Waiting::Message(message));
        self.news.notify_one();
    }

    pub(crate) fn restore(&self, command: CommandId, snapshot: u32) {
        self.put(Waiting::Restore { command, snapshot });
    }

    fn put(&self, waiting: Waiting) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(waiting);
        self.news.notify_one();
    }

    /// Waits until somebody's message, or a restore, is there. Takes nothing.
    pub(crate) async fn has_message(&self) {
        let is_one = |waiting: &Waiting| match waiting {
            Waiting::Message(message) => message.origin != Origin::Harness,
            Waiting::Restore { .. } => true,
        };
        while !self.queue.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_one) {
            self.news.notified().await;
        }
    }

    /// What stands first: all messages up to a restore, or the news of one restore. When this is dropped
    /// while it waits, nothing has left the queue.
    async fn take(&self) -> Option<Vec<Incoming>> {
        let (command, snapshot) = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let mut messages = Vec::new();
            loop {
                match queue.pop_front() {
                    Some(Waiting::Message(message)) => messages.push(message),
                    Some(Waiting::Restore { command, snapshot }) => {
                        queue.push_front(Waiting::Restore { command, snapshot });
                        if messages.is_empty() {
                            break (command, snapshot);
                        }
                        return Some(messages);
                    }
                    None => return (!messages.is_empty()).then_some(messages),
                }
            }
        };
        let news = self.carry_out(command, snapshot).await;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Some(vec![news])
    }

    fn take_ended_jobs(&self) {
        while let Some(id) = self.shell.next_job_end().now_or_never() {
            self.push(self.job_news(id));
        }
    }

    fn job_news(&self, id: JobId) -> Incoming {
        let jobs = self.shell.jobs();
        let job = jobs.iter().find(|job| job.id == id);
        let command = job.map_or("", |job| job.command.as_str());
        let how = match job.map(|job| &job.status) {
            Some(JobStatus::Ended(end)) => job_end(end),
            Some(JobStatus::Running) | None => "ended".to_owned(),
        };
        let tail = self.commands.last_news_of(id, JOB_TAIL_CHARS).unwrap_or_else(|problem| problem);
        let place = job.map(|job| {
            let part = if job.is_whole { "whole" } else { "its beginning" };
            format!(" ({part} in {})", job.output_path.display())
        });
        let place = place.unwrap_or_default();
        harness(format!(
            "<system-reminder>\nYour background job {id} (`{command}`) ended: {how}. Its last output{place}:\n{tail}\n</system-reminder>"
        ))
    }

    async fn carry_out(&self, command: CommandId, snapshot: u32) -> Incoming {
        let text = match &self.tree {
            None => "A person wanted the worktree put back, but you have none of your own.".to_owned(),
            Some(tree) => match tree.restore(snapshot).await {
                Ok(before) => {
                    let record =
                        RecordBody::Snapshot { n: before.number, commit: before.commit.as_str().to_owned() };
                    // A record that is not written says so at the next one.
                    drop(self.recorder.write(vec![record], Durability::Soon).await);
                    format!(
                        "A person put your worktree back to snapshot {snapshot}; what was there is snapshot {}. Read files again before you go on.",
                        before.number
                    )
                }
                Err(problem) => format!(
                    "A person wanted your worktree put back to snapshot {snapshot}; it failed: {problem}."
                ),
            },
        };
        let mut message = harness(format!("<system-reminder>\n{text}\n</system-reminder>"));
        message.commands = vec![command];
        message
    }

    fn wait_news(&self, is_waiting: bool, running: usize) {
        let waiting_for = is_waiting.then_some(WaitingFor::OwnJobs);
        let cause = if is_waiting { format!("{running} background jobs") } else { String::new() };
        let until = is_waiting.then(|| now().plus_millis(self.grace.get().as_millis() as i64));
        self.observer.live(Live::Waiting { waiting_for, cause, until });
    }
}

#[async_trait]
impl Inbox for Mailbox {
    async fn drain(&self) -> Vec<Incoming> {
        self.take_ended_jobs();
        let mut messages = Vec::new();
        while let Some(more) = self.take().await {
            messages.extend(more);
        }
        messages
    }

    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        let deadline = Instant::now() + self.grace.get();
        let mut told = false;
        let answer = loop {
            self.take_ended_jobs();
            if let Some(messages) = self.take().await {
                break BeforeEnd::GoOn(messages);
            }
            if !self.shell.has_running_jobs() {
                break BeforeEnd::End;
            }
            if !told {
                told = true;
                let running = self.shell.jobs().iter().filter(|job| job.status == JobStatus::Running).count();
                self.wait_news(true, running);
            }
            // An end that is taken is put in the queue before anything else can be dropped.
            tokio::select! {
                id = self.shell.next_job_end() => self.push(self.job_news(id)),
                () = self.news.notified() => {}
                () = tokio::time::sleep_until(deadline) => break BeforeEnd::End,
            }
        };
        if told {
            self.wait_news(false, 0);
        }
        answer
    }
}
