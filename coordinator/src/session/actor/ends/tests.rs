//! What becomes of a message that races with its recipient's end: read, passed on to a next run, refused, or
//! failed where people see it; never nothing. Generated interleavings of the pure side; real processes race in
//! the integration tests.

use std::collections::BTreeMap;

use proptest::prelude::*;
use swarm_protocol::{RunNumber, Seq, WorkerId, event::Event, frame::Command};

use super::{Unread, unread};
use crate::session::{model::SessionModel, samples};

/// What may happen next, in any order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Message {
        from_person: bool,
    },
    /// The worker records the oldest message it has not read.
    Read,
    Stop {
        by_person: bool,
    },
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waits,
    Read,
    FailedVisibly,
}

struct Race {
    model: SessionModel,
    id: WorkerId,
    fates: BTreeMap<Seq, Fate>,
    ended: bool,
}

impl Race {
    fn new() -> Self {
        let mut model = samples::session();
        let id = samples::spawn(&mut model, "agent-a1b", "call");
        let mut race = Self { model, id, fates: BTreeMap::new(), ended: false };
        race.begin(RunNumber::FIRST);
        race
    }

    fn apply(&mut self, event: Event) -> Seq {
        samples::apply(&mut self.model, event)
    }

    fn begin(&mut self, run: RunNumber) {
        self.ended = false;
        samples::begin_run(&mut self.model, &self.id, run);
    }

    fn settle(&mut self, command: Seq, accepted: bool) {
        self.apply(Event::WorkerCommandSettled {
            worker_id: self.id.clone(),
            command,
            accepted,
            note: String::new(),
        });
    }

    fn next_run(&self) -> RunNumber {
        self.model.worker(&self.id).unwrap().run().next()
    }

    fn step(&mut self, step: Step) {
        let worker_id = self.id.clone();
        match step {
            Step::Message { from_person } => {
                // The sender is told at once.
                if !self.model.worker(&self.id).unwrap().takes_messages(from_person) {
                    return;
                }
                let command = Command::Message { message_id: None, from_person, text: "m".to_owned() };
                let seq = self.apply(Event::WorkerCommand { worker_id, command });
                self.fates.insert(seq, Fate::Waits);
                if self.ended {
                    self.begin(self.next_run());
                }
            }
            Step::Read if !self.ended => {
                let waits = self.fates.iter_mut().find(|(_, fate)| **fate == Fate::Waits);
                if let Some((&seq, fate)) = waits {
                    *fate = Fate::Read;
                    self.settle(seq, true);
                }
            }
            Step::Stop { by_person } if !self.ended => {
                let command = Command::Stop { reason: String::new(), by_person };
                self.apply(Event::WorkerCommand { worker_id, command });
            }
            Step::End if !self.ended => self.end(),
            Step::Read | Step::Stop { .. } | Step::End => {}
        }
    }

    /// As `run_finished` does: what is lost is settled in the same append as the end.
    fn end(&mut self) {
        let worker = self.model.worker(&self.id).unwrap();
        let Unread { revives, lost, unread: _ } = unread(worker, worker.last_run().unwrap().began_seq);
        for seq in lost {
            if let Some(fate) = self.fates.get_mut(&seq) {
                assert_eq!(*fate, Fate::Waits, "what was read did not fail");
                *fate = Fate::FailedVisibly;
            }
            self.settle(seq, false);
        }
        self.ended = true;
        let waits = self.fates.values().any(|fate| *fate == Fate::Waits);
        assert_eq!(waits, revives, "a next run begins if and only if a message waits for it");
        if revives {
            self.begin(self.next_run());
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(|from_person| Step::Message { from_person }),
        2 => Just(Step::Read),
        1 => any::<bool>().prop_map(|by_person| Step::Stop { by_person }),
        2 => Just(Step::End),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn g23_a_message_that_races_with_an_end_is_read_passed_on_or_seen_to_fail(steps in steps()) {
        let mut race = Race::new();
        for step in steps {
            race.step(step);
        }
        // No more news: the worker ends as often as it is begun again, and it is not begun for ever.
        for _ in 0..3 {
            if !race.ended {
                race.end();
            }
        }
        prop_assert!(race.ended, "a run that reads nothing is begun again and again");
        prop_assert!(race.fates.values().all(|fate| *fate != Fate::Waits), "{:?}", race.fates);
        prop_assert!(race.model.worker(&race.id).unwrap().commands.is_empty());
    }
}

#[test]
fn g23_a_worker_that_a_person_is_stopping_refuses_the_coordinators_messages_at_once() {
    let mut race = Race::new();
    race.step(Step::Stop { by_person: true });
    race.step(Step::Message { from_person: false });
    assert!(race.fates.is_empty(), "it was not taken");
    race.step(Step::Message { from_person: true });
    race.step(Step::End);
    assert!(!race.ended, "the person's own word wakes it");
}
