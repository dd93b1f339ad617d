//! The verdict of a task (spec 6.4). Pure.

use swarm_protocol::{ExitReason, TaskId, Verdict, WorkerStatus};

use super::model::{SessionModel, StopOrder, WorkerModel};

/// The verdict of a task whose workers have all ended, and the reasons for it, one sentence each.
pub(crate) fn verdict(model: &SessionModel, task: TaskId, exit: &ExitReason) -> (Verdict, Vec<String>) {
    let mut reasons = Vec::new();
    if *exit != ExitReason::Completed {
        reasons.push(format!("the coordinator: {}", exit.sentence()));
        return (Verdict::Failed, reasons);
    }
    // Each worker counts by its last run in this task.
    let workers: Vec<&WorkerModel> =
        model.workers.iter().filter(|worker| worker.runs.iter().any(|run| run.task_id == task)).collect();
    if workers.is_empty() && model.spec.solo {
        reasons.push("the agent was not reached".to_owned());
        return (Verdict::Failed, reasons);
    }
    let completed = workers.iter().filter(|worker| worker.status == WorkerStatus::Completed).count();
    let mut degraded = false;
    for worker in &workers {
        let name = format!("{} ({})", worker.spec.id, worker.spec.name);
        match worker.status {
            WorkerStatus::Completed => {
                for doubt in worker.outcome().map(|outcome| outcome.doubts.as_slice()).unwrap_or_default() {
                    degraded = true;
                    reasons.push(format!("{name}: {}", doubt.sentence()));
                }
            }
            WorkerStatus::Aborted if worker.stop == Some(StopOrder::Coordinator) => {
                reasons.push(format!("{name}: stopped by the coordinator"));
                degraded |= completed == 0;
            }
            WorkerStatus::Aborted => {
                degraded = true;
                reasons.push(format!("{name}: stopped"));
            }
            WorkerStatus::Failed => {
                degraded = true;
                let why = worker.outcome().map(|outcome| outcome.exit_reason.sentence());
                reasons.push(format!("{name}: {}", why.unwrap_or_else(|| "failed".to_owned())));
            }
            WorkerStatus::Pending
            | WorkerStatus::Starting
            | WorkerStatus::Running
            | WorkerStatus::Waiting
            | WorkerStatus::Finishing => {
                degraded = true;
                reasons.push(format!("{name}: not ended"));
            }
        }
    }
    let verdict = if !workers.is_empty() && completed == 0 {
        Verdict::Failed
    } else if degraded {
        Verdict::Degraded
    } else {
        Verdict::Complete
    };
    (verdict, reasons)
}

#[cfg(test)]
mod tests;
