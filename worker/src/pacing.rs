//! The gates of this run's providers (spec 10.1), as the server tells of them over the link. Without a link nothing is
//! known of others: the run goes by its own waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use query_engine::pacing::Turns;
use swarm_protocol::{
    Timestamp,
    frame::{FromWorker, Pace, PaceOrder},
};
use tokio::{sync::watch, time::Instant};

use crate::{link::Outbox, record::now};

/// After so long a turn is not waited for any more: the question or its answer was lost.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// What is known of a provider's gate.
#[derive(Debug, Default)]
struct Gate {
    /// Each call needs a turn.
    is_held: bool,
    opens: Option<Timestamp>,
    /// Number of the last question.
    asked: u64,
    /// Number of the last that was answered.
    given: u64,
    /// Until then, or until it is told, the first call waits for another worker's.
    after: Option<Instant>,
    /// The first answer has begun, and was told.
    has_begun: bool,
}

/// What is known of all, by the provider's name.
#[derive(Debug, Default)]
pub struct Gates(Mutex<HashMap<String, watch::Sender<Gate>>>);

impl Gates {
    fn of(&self, provider: &str) -> watch::Sender<Gate> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(provider.to_owned()).or_default().clone()
    }

    /// The server's word.
    pub(crate) fn take(&self, provider: &str, order: &PaceOrder) {
        self.of(provider).send_modify(|gate| match *order {
            PaceOrder::Held { wait_ms } => {
                gate.is_held = true;
                gate.opens = Some(now().plus_millis(i64::try_from(wait_ms).unwrap_or(i64::MAX)));
            }
            PaceOrder::After { wait_ms } => {
                gate.after =
                    Some(Instant::now() + Duration::from_millis(wait_ms)).filter(|_| !gate.has_begun);
            }
            PaceOrder::Written => gate.after = None,
            PaceOrder::Turn { turn } => gate.given = gate.given.max(turn),
            PaceOrder::Free => gate.is_held = false,
        });
    }

    /// The link is gone, and with it what it told and what was asked.
    pub(crate) fn forget(&self) {
        let gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for gate in gates.values() {
            gate.send_modify(|gate| {
                gate.is_held = false;
                gate.after = None;
                gate.given = gate.asked;
            });
        }
    }

    /// The gate of a provider, for its model.
    pub fn turns(&self, provider: &str, outbox: Arc<Outbox>) -> Arc<dyn Turns> {
        Arc::new(There { provider: provider.to_owned(), gate: self.of(provider), outbox })
    }
}

/// A gate that the server keeps.
struct There {
    provider: String,
    gate: watch::Sender<Gate>,
    outbox: Arc<Outbox>,
}

impl There {
    fn say(&self, pace: Pace) {
        self.outbox.pace(FromWorker::Pace { provider: self.provider.clone(), pace });
    }
}

#[async_trait]
impl Turns for There {
    async fn turn(&self) {
        let mut gate = self.gate.subscribe();
        let after = gate.borrow().after;
        if let Some(after) = after {
            // Told or not, it goes on then.
            tokio::time::timeout_at(after, gate.wait_for(|gate| gate.after.is_none())).await.ok();
        }
        if !gate.borrow().is_held {
            return;
        }
        let mut turn = 0;
        self.gate.send_modify(|gate| {
            gate.asked += 1;
            turn = gate.asked;
        });
        self.say(Pace::Asks { turn });
        // The sender is ours. A link that ends answers what was asked, so a question that could not be sent is none.
        let given = gate.wait_for(|gate| !gate.is_held || gate.given >= turn);
        if tokio::time::timeout(PATIENCE, given).await.is_err() {
            tracing::warn!(provider = self.provider, "no turn came; the call is made without one");
        }
    }

    fn is_limited(&self) -> bool {
        self.gate.borrow().is_held
    }

    fn opens(&self) -> Option<Timestamp> {
        self.gate.borrow().opens.filter(|opens| *opens > now())
    }

    fn began(&self) {
        let is_first = self.gate.send_if_modified(|gate| !std::mem::replace(&mut gate.has_begun, true));
        if is_first {
            self.say(Pace::Began);
        }
    }

    fn limited(&self, retry_after: Option<Duration>) {
        let retry_after_ms = retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        self.say(Pace::Limited { retry_after_ms });
    }
}

#[cfg(test)]
mod tests;
