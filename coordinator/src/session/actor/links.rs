//! Links of workers: greeting, commands until a record names them, waits, and links that are gone.

use swarm_protocol::{
    WaitingFor, WorkerId, WorkerStatus,
    event::Event,
    frame::{Command, ToWorker},
};
use tokio::time::Instant;

use super::{AWAY_PATIENCE, Actor, Connection};
use crate::{
    session::{HelloAnswer, HelloOrder, OrderError},
    workers::lifecycle::LifeEvent,
};

impl Actor {
    /// A command is decided, then sent until a record names it.
    pub(super) async fn command(&mut self, worker_id: &WorkerId, command: Command) -> Result<(), OrderError> {
        self.append(vec![Event::WorkerCommand { worker_id: worker_id.clone(), command }]).await?;
        self.send_pending(worker_id);
        Ok(())
    }

    /// Sends what no record of the worker has named yet. The worker drops what it knows.
    pub(super) fn send_pending(&mut self, worker_id: &WorkerId) {
        let (Some(connection), Some(worker)) =
            (self.connections.get(worker_id), self.model.worker(worker_id))
        else {
            return;
        };
        let sent = worker.commands.iter().all(|pending| {
            let frame = ToWorker::Command { id: pending.id, command: pending.command.clone() };
            connection.frames.try_send(frame).is_ok()
        });
        if !sent {
            // Full or broken: the worker comes again, and its hello is answered with everything.
            self.drop_link(worker_id);
        }
    }

    /// Ends a link. The worker connects again and resends from what is known.
    pub(super) fn drop_link(&mut self, worker_id: &WorkerId) {
        if self.connections.remove(worker_id).is_some() {
            self.desk.away(worker_id, Instant::now());
            self.expect_link(worker_id);
        }
    }

    /// A process that runs and has no link connects again, soon or when it can.
    pub(super) fn expect_link(&mut self, worker_id: &WorkerId) {
        self.away.insert(worker_id.clone(), Instant::now() + AWAY_PATIENCE);
    }

    /// A link has been gone for long: what is shown of the worker is old, and the state says so. A question to a
    /// person stays one.
    pub(super) async fn note_away(&mut self, worker_id: &WorkerId) -> Result<(), OrderError> {
        let Some(worker) = self.model.worker(worker_id) else { return Ok(()) };
        let is_news = match (worker.status, worker.waiting_for) {
            (WorkerStatus::Running, _) => true,
            (WorkerStatus::Waiting, waiting_for) => {
                !matches!(waiting_for, Some(WaitingFor::Permission | WaitingFor::Server))
            }
            // Its process is being made, or the run is over.
            (
                WorkerStatus::Pending
                | WorkerStatus::Starting
                | WorkerStatus::Finishing
                | WorkerStatus::Completed
                | WorkerStatus::Failed
                | WorkerStatus::Aborted,
                _,
            ) => false,
        };
        if !is_news || self.connections.contains_key(worker_id) {
            return Ok(());
        }
        let waits = self.step(
            worker_id,
            LifeEvent::Waits(WaitingFor::Server),
            "its process has no link to the server",
        );
        self.append(waits.into_iter().collect()).await
    }

    pub(super) async fn hello(&mut self, hello: HelloOrder) -> HelloAnswer {
        use sha2::Digest;
        let Some(worker) = self.model.worker(&hello.worker_id) else {
            return HelloAnswer::Refused(format!("no worker {} in this session", hello.worker_id));
        };
        if hello.run != worker.run() {
            return HelloAnswer::Refused(format!(
                "run {} is over; the present one is {}",
                hello.run,
                worker.run()
            ));
        }
        let digest: String =
            sha2::Sha256::digest(hello.token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        // The token of the newest start; the journal's, when no start of this server's is known.
        let journaled = worker.process.as_ref().filter(|process| process.run == hello.run);
        let expected = self
            .shared
            .expected_token(&hello.worker_id, hello.run)
            .or_else(|| journaled.map(|process| process.token_sha256.clone()));
        let Some(expected) = expected else {
            return HelloAnswer::Refused("this run is not known to the server".to_owned());
        };
        if digest != expected {
            return HelloAnswer::Refused("wrong token".to_owned());
        }
        if worker.status.is_ended() {
            return HelloAnswer::Refused("this run has ended".to_owned());
        }
        let mut acknowledged = worker.last_record;
        let mut events = Vec::new();
        // After power loss the worker may have less than it had sent.
        if let Some(ours) = acknowledged {
            let theirs = hello.last_record.map_or(0, |mark| mark.n);
            if theirs < ours.n {
                events.push(Event::WorkerRewound { worker_id: hello.worker_id.clone(), n: theirs });
                acknowledged = hello.last_record;
            }
        }
        // News of these waits may have been lost with the link.
        let waited =
            matches!(worker.waiting_for, Some(WaitingFor::Server | WaitingFor::Model | WaitingFor::OwnJobs));
        let starting = worker.status == WorkerStatus::Starting;
        let missing = self.missing_key(&worker.spec.model).filter(|_| hello.needs_keys);
        let keys = missing.is_none().then(|| self.keys_of(&worker.spec.model));
        let awaits_keys = missing.is_some();
        if let Some(endpoint) = missing {
            let event = LifeEvent::Waits(WaitingFor::Server);
            events.extend(self.step(&hello.worker_id, event, self.no_key(&endpoint)));
        } else if waited || starting {
            events.extend(self.step(&hello.worker_id, LifeEvent::Works, "connected"));
        }
        if let Err(error) = self.append(events).await {
            // A passing fault of the disk ends no healthy run: it tries again.
            self.note_failure(&error);
            return HelloAnswer::NotNow;
        }
        let (number, version) = (hello.connection, hello.version);
        let connection = Connection { number, version, frames: hello.frames, awaits_keys };
        self.connections.insert(hello.worker_id.clone(), connection);
        self.away.remove(&hello.worker_id);
        self.desk.back(&hello.worker_id, Instant::now());
        self.join_gates(&hello.worker_id, starting);
        self.send_pending(&hello.worker_id);
        HelloAnswer::Welcome { acknowledged, keys }
    }

    /// A link ended; if it is the present one, its worker is away.
    pub(super) fn disconnected(&mut self, worker_id: &WorkerId, connection: u64) {
        let ours = self.connections.get(worker_id).is_some_and(|known| known.number == connection);
        if !ours {
            return;
        }
        self.drop_link(worker_id);
    }

    pub(super) async fn worker_waits(
        &mut self,
        worker_id: &WorkerId,
        waiting_for: Option<WaitingFor>,
        cause: String,
    ) {
        let Some(worker) = self.model.worker(worker_id) else { return };
        if worker.waiting_for == waiting_for {
            return;
        }
        let event = match waiting_for {
            // A wait for a decision is known from its request, which cannot be lost.
            Some(WaitingFor::Permission) => return,
            Some(waiting_for) => LifeEvent::Waits(waiting_for),
            None if worker.waiting_for == Some(WaitingFor::Permission) => return,
            None => LifeEvent::Works,
        };
        let events = self.step(worker_id, event, cause).into_iter().collect();
        if let Err(error) = self.append(events).await {
            self.note_failure(&error);
        }
    }
}
