use swarm_protocol::{
    ExitReason, RunNumber, Seq, SessionId, TaskId, Timestamp, Verdict, WorkerStatus,
    event::{Event, EventLine},
    frame::Command,
    launch::{Expects, Isolation, WorkerSpec},
    notification::{CheckResult, Doubt, Outcome},
};
use uuid::Uuid;

use super::verdict;
use crate::{
    journal::conformance::sample_spec,
    session::model::{RunModel, SessionModel},
};

#[derive(Clone, Copy)]
enum End {
    Clean,
    Doubtful,
    Failed,
    StoppedByPerson,
    StoppedByCoordinator,
}

fn outcome(doubts: Vec<Doubt>, exit_reason: ExitReason) -> Outcome {
    Outcome {
        exit_reason,
        branch: None,
        base: String::new(),
        commits: vec![],
        files: vec![],
        dirty: vec![],
        commands: vec![],
        commands_after_last_edit: 0,
        check: CheckResult::None,
        children_killed: vec![],
        restarts: 0,
        foreign_changes: vec![],
        doubts,
        notes: vec![],
    }
}

fn model(ends: &[End]) -> (SessionModel, TaskId) {
    let session_id = SessionId(Uuid::from_u128(7));
    let task_id = TaskId(Uuid::from_u128(1));
    let mut seq = 0;
    let mut line = |event| {
        seq += 1;
        EventLine {
            seq: Some(Seq(seq)),
            at: Timestamp::from_millis(0),
            session_id: Some(session_id),
            position: None,
            event,
        }
    };
    let mut model =
        SessionModel::begin(&line(Event::SessionCreated { spec: Box::new(sample_spec()) })).unwrap();
    for (n, end) in ends.iter().enumerate() {
        let id: swarm_protocol::WorkerId = format!("agent-w{n:02}").parse().unwrap();
        let spec = WorkerSpec {
            id: id.clone(),
            name: "w".to_owned(),
            description: "w".to_owned(),
            prompt: "p".to_owned(),
            agent_type: "general-purpose".to_owned(),
            isolation: Isolation::Worktree,
            expects: Expects::Changes,
            model: sample_spec().models.worker,
            base: String::new(),
            branch: None,
            worktree: "/w".into(),
            port_base: 1,
            task_id,
            parent_turn: 1,
        };
        let call = format!("t{n}").parse().unwrap();
        model.apply(&line(Event::WorkerSpawned { spec: Box::new(spec), tool_use_id: call }));
        let run = RunNumber::FIRST;
        model.apply(&line(Event::WorkerRun {
            worker_id: id.clone(),
            run,
            reason: String::new(),
            task_id,
            restarts: 0,
        }));
        if let End::StoppedByPerson | End::StoppedByCoordinator = end {
            let by_person = matches!(end, End::StoppedByPerson);
            let command = Command::Stop { reason: String::new(), by_person };
            model.apply(&line(Event::WorkerCommand { worker_id: id.clone(), command }));
        }
        let (status, doubts, exit) = match end {
            End::Clean => (WorkerStatus::Completed, vec![], ExitReason::Completed),
            End::Doubtful => (WorkerStatus::Completed, vec![Doubt::NoChange], ExitReason::Completed),
            End::Failed => (WorkerStatus::Failed, vec![], ExitReason::Killed { signal: 9 }),
            End::StoppedByPerson | End::StoppedByCoordinator => {
                (WorkerStatus::Aborted, vec![], ExitReason::AbortedTools)
            }
        };
        model.workers[n].status = status;
        let run: &mut RunModel = model.workers[n].runs.last_mut().unwrap();
        run.outcome = Some(outcome(doubts, exit));
    }
    (model, task_id)
}

fn check(ends: &[End], exit: ExitReason, expected: Verdict) {
    let (model, task_id) = model(ends);
    let (found, reasons) = verdict(&model, task_id, &exit);
    assert_eq!(found, expected, "{reasons:?}");
    assert_eq!(
        reasons.is_empty(),
        expected == Verdict::Complete && !ends.iter().any(|end| matches!(end, End::StoppedByCoordinator))
    );
}

#[test]
fn each_kind_of_end_alone_and_beside_a_clean_one() {
    use End::{Clean, Doubtful, Failed, StoppedByCoordinator, StoppedByPerson};
    let done = ExitReason::Completed;
    check(&[], done.clone(), Verdict::Complete);
    check(&[Clean, Clean], done.clone(), Verdict::Complete);
    check(&[Clean, Doubtful], done.clone(), Verdict::Degraded);
    check(&[Clean, Failed], done.clone(), Verdict::Degraded);
    check(&[Failed, Failed], done.clone(), Verdict::Failed);
    check(&[Clean, StoppedByPerson], done.clone(), Verdict::Degraded);
    check(&[StoppedByPerson], done.clone(), Verdict::Failed);
    check(&[Clean, StoppedByCoordinator], done.clone(), Verdict::Complete);
    check(&[StoppedByCoordinator], done, Verdict::Failed);
    check(&[Clean], ExitReason::MaxTurns { limit: 3 }, Verdict::Failed);
}
