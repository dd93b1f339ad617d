//! A worker's life (spec 6.3). Pure: frames, exits, timers and commands are events; statuses are answers.
//!
//! ```text
//!   pending -> starting -> running <-> waiting
//!                 |           \         /
//!                 +-----------> finishing -> completed | failed | aborted
//!      pending -> aborted                        |  (a message: next run)
//!                                 pending <------+
//! ```

use swarm_protocol::{WaitingFor, WorkerStatus, notification::NotificationStatus};

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeEvent {
    /// A place became free for it.
    PlaceFree,
    /// Its process said hello, or goes on after a wait.
    Works,
    /// It waits.
    Waits(WaitingFor),
    /// Its process died and is started again.
    StartedAgain,
    /// The run ended.
    RunEnded,
    /// The outcome is established.
    Established(NotificationStatus),
    /// A message wakes it.
    Revived,
}

/// The event does not fit the state; both are named for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a worker that is {from:?} cannot take {event:?}")]
pub(crate) struct IllegalStep {
    pub(crate) from: WorkerStatus,
    pub(crate) event: LifeEvent,
}

/// The next status and what it waits for.
pub(crate) fn next(
    from: WorkerStatus,
    event: LifeEvent,
) -> Result<(WorkerStatus, Option<WaitingFor>), IllegalStep> {
    use WorkerStatus::{Aborted, Completed, Failed, Finishing, Pending, Running, Starting, Waiting};
    let status = match (from, event) {
        (Pending, LifeEvent::PlaceFree) => Starting,
        (Starting | Running | Waiting, LifeEvent::Works) => Running,
        (Starting | Running | Waiting, LifeEvent::Waits(waiting_for)) => {
            return Ok((Waiting, Some(waiting_for)));
        }
        (Starting | Running | Waiting, LifeEvent::StartedAgain) => Starting,
        // A queued worker that is stopped, or whose worktree cannot be made, ends without a process.
        (Pending | Starting | Running | Waiting, LifeEvent::RunEnded) => Finishing,
        (Finishing, LifeEvent::Established(NotificationStatus::Completed)) => Completed,
        (Finishing, LifeEvent::Established(NotificationStatus::Failed)) => Failed,
        (Finishing, LifeEvent::Established(NotificationStatus::Aborted)) => Aborted,
        (Completed | Failed | Aborted, LifeEvent::Revived) => Pending,
        (
            Pending | Starting | Running | Waiting | Finishing | Completed | Failed | Aborted,
            LifeEvent::PlaceFree
            | LifeEvent::Works
            | LifeEvent::Waits(_)
            | LifeEvent::StartedAgain
            | LifeEvent::RunEnded
            | LifeEvent::Established(_)
            | LifeEvent::Revived,
        ) => return Err(IllegalStep { from, event }),
    };
    Ok((status, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g19_every_state_with_a_run_reaches_an_end() {
        for from in
            [WorkerStatus::Pending, WorkerStatus::Starting, WorkerStatus::Running, WorkerStatus::Waiting]
        {
            let (finishing, _) = next(from, LifeEvent::RunEnded).unwrap();
            for status in
                [NotificationStatus::Completed, NotificationStatus::Failed, NotificationStatus::Aborted]
            {
                let (ended, _) = next(finishing, LifeEvent::Established(status)).unwrap();
                assert!(ended.is_ended());
                assert_eq!(next(ended, LifeEvent::Revived).unwrap().0, WorkerStatus::Pending);
            }
        }
    }

    #[test]
    fn an_ended_worker_is_woken_by_a_message_only() {
        for ended in [WorkerStatus::Completed, WorkerStatus::Failed, WorkerStatus::Aborted] {
            for event in
                [LifeEvent::Works, LifeEvent::RunEnded, LifeEvent::PlaceFree, LifeEvent::StartedAgain]
            {
                assert!(next(ended, event).is_err());
            }
        }
    }
}
