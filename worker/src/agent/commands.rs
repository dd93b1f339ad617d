//! Carries out the server's commands. Each is recorded before it is obeyed, so that none is obeyed twice; a
//! message is recorded by the turn that takes it in.

use std::sync::{Arc, Mutex, PoisonError};

use query_engine::ports::{Durability, Incoming};
use swarm_protocol::{
    Block, CommandId,
    frame::Command,
    permission::RuleBehavior,
    record::{Origin, RecordBody},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{hidden::Hidden, mailbox::Mailbox};
use crate::{gate::WorkerGate, grants::Leases, record::Recorder};

/// Ends the run, or what it does now.
#[derive(Default)]
pub(crate) struct Brakes {
    /// The run ends.
    pub(crate) stop: CancellationToken,
    /// The present activity ends; made anew for each.
    interrupt: Mutex<CancellationToken>,
}

impl Brakes {
    /// A token for what begins now.
    pub(crate) fn fresh_interrupt(&self) -> CancellationToken {
        let token = CancellationToken::new();
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = token.clone();
        token
    }

    fn interrupt(&self) {
        self.interrupt.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }
}

/// Who obeys.
pub(crate) struct Obedience {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) gate: Arc<WorkerGate>,
    pub(crate) hidden: Arc<Hidden>,
    pub(crate) brakes: Arc<Brakes>,
    pub(crate) leases: Arc<Leases>,
}

impl Obedience {
    /// Obeys until the run's side of the channel is dropped.
    pub(crate) async fn run(self, mut commands: mpsc::Receiver<(CommandId, Command)>) {
        while let Some((id, command)) = commands.recv().await {
            self.obey(id, command).await;
        }
    }

    async fn obey(&self, id: CommandId, command: Command) {
        tracing::info!(command = command.what(), %id, "a command came");
        let what = command.what();
        match command {
            Command::Message { message_id, from_person, text } => {
                let origin = if from_person { Origin::Person { message_id } } else { Origin::Coordinator };
                self.mailbox.push(Incoming { content: vec![Block::text(text)], origin, commands: vec![id] });
            }
            Command::Restore { snapshot } => self.mailbox.restore(id, snapshot),
            Command::Stop { reason, .. } => {
                if self.accept(id, &format!("{what}: {reason}")).await {
                    self.brakes.stop.cancel();
                }
            }
            Command::Interrupt => {
                if self.accept(id, what).await {
                    self.brakes.interrupt();
                }
            }
            Command::Decision { decision } => {
                if self.accept(id, what).await {
                    self.gate.decided(decision);
                }
            }
            Command::Grant { grant, amount } => {
                if self.accept(id, what).await {
                    self.leases.answered(grant, Ok(amount));
                }
            }
            Command::NoGrant { grant, budget } => {
                if self.accept(id, what).await {
                    self.leases.answered(grant, Err(budget));
                }
            }
            Command::AddRule { rule } => {
                if self.accept(id, what).await {
                    if rule.behavior == RuleBehavior::Deny {
                        self.hidden.add(&rule);
                    }
                    if let Err(error) = self.gate.add_rule(rule) {
                        tracing::warn!(%error, "a rule was not taken");
                    }
                }
            }
            Command::SetPermissionMode { mode } => {
                if self.accept(id, what).await {
                    self.gate.set_mode(mode);
                }
            }
        }
    }

    /// Records that the command is taken; without that it is not obeyed, and comes again.
    async fn accept(&self, command: CommandId, what: &str) -> bool {
        let record = RecordBody::CommandAccepted { command, what: what.to_owned() };
        match self.recorder.write(vec![record], Durability::Now).await {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "a command could not be recorded");
                // A run that cannot write must still be stoppable.
                what.starts_with("stop")
            }
        }
    }
}
