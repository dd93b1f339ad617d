use swarm_protocol::{
    ExitReason, RunNumber, Verdict, WorkerStatus,
    event::Event,
    frame::Command,
    notification::{Doubt, Outcome},
};

use super::verdict;
use crate::session::{
    model::{RunModel, SessionModel},
    samples,
};

#[derive(Clone, Copy)]
enum End {
    Clean,
    Doubtful,
    Failed,
    StoppedByPerson,
    StoppedByCoordinator,
}

fn model(ends: &[End]) -> SessionModel {
    let mut model = samples::session();
    for (n, end) in ends.iter().enumerate() {
        let id = samples::spawn(&mut model, &format!("agent-w{n:02}"), &format!("t{n}"));
        samples::begin_run(&mut model, &id, RunNumber::FIRST);
        if let End::StoppedByPerson | End::StoppedByCoordinator = end {
            let by_person = matches!(end, End::StoppedByPerson);
            let command = Command::Stop { reason: String::new(), by_person };
            samples::apply(&mut model, Event::WorkerCommand { worker_id: id, command });
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
        run.outcome = Some(Outcome { doubts, ..Outcome::without_work(exit) });
    }
    model
}

fn check(ends: &[End], exit: ExitReason, expected: Verdict) {
    let (found, reasons) = verdict(&model(ends), samples::TASK, &exit);
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
