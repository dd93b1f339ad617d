//! Background jobs: commands that may outlive the call that started them, but not the shell.

use super::outcome::{CommandExit, ProcessInfo};
use super::output::{Collector, readable};
use super::process::{Running, Stop, locked};
use super::{CommandRequest, Shell};
use crate::sandbox::ExecReport;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Jobs alive at the same time. A model that wants more has lost count of them.
const MAX_RUNNING: usize = 32;
/// Bytes of one look at a job's output; the rest comes with the next.
const LOOK_BYTES: u64 = 128 * 1024;

/// Unique in its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "job-{}", self.0)
    }
}

impl std::str::FromStr for JobId {
    type Err = JobError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("job-").and_then(|number| number.parse().ok()).map(Self).ok_or(JobError::Unknown)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("no such job")]
    Unknown,
    #[error("{MAX_RUNNING} jobs run already; stop one first")]
    TooMany,
    #[error("the job could not be started")]
    NotStarted(#[source] io::Error),
    #[error("the output of the job cannot be read")]
    Output(#[source] io::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStatus {
    Running,
    Ended(JobEnd),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    /// `Cancelled` when it was killed on request.
    pub exit: CommandExit,
    pub duration: Duration,
    /// Outlived the job and were ended.
    pub killed: Vec<ProcessInfo>,
}

/// One line of the list of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub command: String,
    pub description: String,
    pub status: JobStatus,
    /// Raw output, whole up to the cap.
    pub output_path: PathBuf,
    /// All that it printed is there.
    pub is_whole: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutput {
    pub text: String,
    /// Where to look on.
    pub next: u64,
    /// Bytes that are there but not in `text` yet.
    pub remaining: u64,
    /// Bytes between where the look was to begin and where `text` does.
    pub left_out: u64,
    /// Bytes that were printed after these and are nowhere: too many, or the disk is full.
    pub not_kept: u64,
    pub status: JobStatus,
}

struct Entry {
    command: String,
    description: String,
    collector: Arc<Mutex<Collector>>,
    stop: CancellationToken,
    status: watch::Receiver<JobStatus>,
}

/// The table and the tasks that watch the jobs. Dropping it stops every job.
pub(super) struct Jobs {
    table: Mutex<BTreeMap<JobId, Entry>>,
    /// Ends that nobody has asked for yet; at most one for each job of the table.
    ended: Arc<Mutex<VecDeque<JobId>>>,
    bell: Arc<Notify>,
    tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Jobs").finish_non_exhaustive()
    }
}

impl Jobs {
    pub(super) fn new() -> Self {
        Self { table: Mutex::default(), ended: Arc::default(), bell: Arc::default(), tasks: Mutex::default() }
    }

    fn n_running(&self) -> usize {
        let running = |entry: &&Entry| *entry.status.borrow() == JobStatus::Running;
        locked(&self.table).values().filter(running).count()
    }
}

impl Shell {
    /// Starts a command that goes on while others run. It starts from the current state and leaves none.
    pub async fn spawn_background(&self, request: CommandRequest) -> Result<JobId, JobError> {
        if self.jobs.n_running() >= MAX_RUNNING {
            return Err(JobError::TooMany);
        }
        let id = JobId(self.next_number());
        let path = self.output_path("job", id.0);
        let collector = Collector::on_disk(path, self.config.output.clone()).map_err(JobError::NotStarted)?;
        let (cwd, _, restore) = self.starting_point();
        let state = restore.as_deref().map(|dir| dir.0.as_path());
        let running =
            self.start(&request.command, cwd, state, None, collector).await.map_err(JobError::NotStarted)?;

        let stop = CancellationToken::new();
        let (sender, status) = watch::channel(JobStatus::Running);
        let entry = Entry {
            command: request.command,
            description: request.description,
            collector: running.collector().clone(),
            stop: stop.clone(),
            status,
        };
        locked(&self.jobs.table).insert(id, entry);
        let ended = self.jobs.ended.clone();
        let bell = self.jobs.bell.clone();
        let kindly = Stop::kindly(self.config.stop_grace);
        let mut tasks = locked(&self.jobs.tasks);
        // Joined here and there so that the set does not grow; a watcher does not panic.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let end = watch_job(running, &stop, kindly).await;
            drop(restore);
            // The list keeps a receiver of every job.
            sender.send_replace(JobStatus::Ended(end));
            locked(&ended).push_back(id);
            bell.notify_one();
        });
        Ok(id)
    }

    /// What a job printed from raw byte `since` on (0, then [`JobOutput::next`]).
    pub fn job_output(&self, id: JobId, since: u64) -> Result<JobOutput, JobError> {
        self.look_at_job(id, |written| since.min(written), since)
    }

    /// The end of it, of at most so many raw bytes.
    pub fn job_tail(&self, id: JobId, since: u64, most: u64) -> Result<JobOutput, JobError> {
        self.look_at_job(
            id,
            |written| written.saturating_sub(most.min(LOOK_BYTES)).max(since.min(written)),
            since,
        )
    }

    fn look_at_job(&self, id: JobId, begin: impl Fn(u64) -> u64, since: u64) -> Result<JobOutput, JobError> {
        let (status, written, total, path) = {
            let table = locked(&self.jobs.table);
            let entry = table.get(&id).ok_or(JobError::Unknown)?;
            // The status first: what is ended prints no more.
            let status = entry.status.borrow().clone();
            let collector = locked(&entry.collector);
            (status, collector.written(), collector.total(), collector.path().to_owned())
        };
        let begin = begin(written);
        let wanted = (written - begin).min(LOOK_BYTES);
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(begin))?;
                file.take(wanted).read_to_end(&mut bytes)
            })
            .map_err(JobError::Output)?;
        let is_last = status != JobStatus::Running && begin + wanted == written;
        if !is_last {
            bytes.truncate(whole_characters(&bytes));
        }
        let next = begin + bytes.len() as u64;
        let left_out = begin.saturating_sub(since);
        Ok(JobOutput {
            text: readable(&bytes),
            next,
            remaining: written - next,
            left_out,
            not_kept: total - written,
            status,
        })
    }

    /// Stops a job and waits for its end.
    pub async fn kill_job(&self, id: JobId) -> Result<JobEnd, JobError> {
        let (stop, mut status) = {
            let table = locked(&self.jobs.table);
            let entry = table.get(&id).ok_or(JobError::Unknown)?;
            (entry.stop.clone(), entry.status.clone())
        };
        stop.cancel();
        loop {
            if let JobStatus::Ended(end) = &*status.borrow_and_update() {
                return Ok(end.clone());
            }
            // The sender goes without a word only when the shell is dropped.
            if status.changed().await.is_err() {
                return Err(JobError::Unknown);
            }
        }
    }

    /// All jobs of this shell, oldest first.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        let table = locked(&self.jobs.table);
        let job = |(id, entry): (&JobId, &Entry)| {
            let collector = locked(&entry.collector);
            Job {
                id: *id,
                command: entry.command.clone(),
                description: entry.description.clone(),
                status: entry.status.borrow().clone(),
                output_path: collector.path().to_owned(),
                is_whole: collector.written() == collector.total(),
            }
        };
        table.iter().map(job).collect()
    }

    /// The next job that has ended, each once, in the order of their ends. Cancel-safe. Waits for
    /// ever when no job runs: ask [`Shell::has_running_jobs`] first.
    pub async fn next_job_end(&self) -> JobId {
        loop {
            if let Some(id) = locked(&self.jobs.ended).pop_front() {
                return id;
            }
            self.jobs.bell.notified().await;
        }
    }

    /// Whether a job has ended whose end nobody has asked for.
    #[must_use]
    pub fn has_untold_ends(&self) -> bool {
        !locked(&self.jobs.ended).is_empty()
    }

    #[must_use]
    pub fn has_running_jobs(&self) -> bool {
        self.jobs.n_running() > 0
    }

    /// Stops every job, for the end of a run. Answers what was stopped.
    pub async fn kill_all_jobs(&self) -> Vec<(JobId, JobEnd)> {
        let running: Vec<JobId> = self
            .jobs()
            .into_iter()
            .filter(|job| job.status == JobStatus::Running)
            .map(|job| job.id)
            .collect();
        // Together, so that their grace times do not add up.
        let ends = running.iter().map(|id| async move { (*id, self.kill_job(*id).await) });
        let ends = futures::future::join_all(ends).await;
        ends.into_iter().filter_map(|(id, end)| Some((id, end.ok()?))).collect()
    }
}

async fn watch_job(mut running: Running, stop: &CancellationToken, kindly: Stop) -> JobEnd {
    let begin = Instant::now();
    // `ended` keeps what it has read when the stop wins.
    let (report, stopped) = tokio::select! {
        report = running.ended() => (report, false),
        () = stop.cancelled() => (running.stop(kindly).await, true),
    };
    running.drain().await;
    let (exit, killed) = match report {
        ExecReport::NotStarted { message } => (CommandExit::NotStarted { message }, Vec::new()),
        ExecReport::Ended { exit, killed, .. } if !stopped => (exit.into(), killed),
        ExecReport::Ended { killed, .. } => (CommandExit::Cancelled, killed),
    };
    JobEnd { exit, duration: begin.elapsed(), killed }
}

/// Length without a UTF-8 character whose end has not come yet.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(&bytes[bytes.len().saturating_sub(4)..]) {
        Ok(_) => bytes.len(),
        Err(_) => {
            // Go back over at most three continuation bytes to the byte that began the character.
            let back = bytes.iter().rev().take(3);
            let continuation = back.take_while(|byte| **byte & 0xc0 == 0x80).count();
            let Some(start) = bytes.len().checked_sub(continuation + 1) else {
                return bytes.len();
            };
            let expected = match bytes[start] {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => return bytes.len(),
            };
            if continuation + 1 < expected && start > 0 { start } else { bytes.len() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_character_waits_for_its_end() {
        assert_eq!(whole_characters("a你".as_bytes()), 4);
        assert_eq!(whole_characters(b"a\xe4\xbd"), 1);
        assert_eq!(whole_characters(b"a\xe4"), 1);
        assert_eq!(whole_characters(b"ab\xff"), 3);
        assert_eq!(whole_characters(b""), 0);
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id: JobId = "job-7".parse().unwrap();
        assert_eq!(id.to_string(), "job-7");
        assert!("7".parse::<JobId>().is_err());
    }
}
