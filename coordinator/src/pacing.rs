//! The gates that all agents of one provider key share (spec 10.1): a limit that one of them meets holds the calls of
//! all, which then leave one after the other. Where nobody has met a limit, nobody asks here.
//!
//! Workers ask over their links, the coordinators' loops in this process. Nothing of it is stored: a server that is
//! started again learns of a limit when the next call meets it, and a worker without a link goes by its own waits.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sha2::Digest as _;
use swarm_protocol::frame::{PaceOrder, ToWorker};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

mod burst;
mod gate;

use burst::Bursts;
pub(crate) use burst::Cached;
use gate::Gate;

/// Tells the key of an endpoint from others, without being one; kept in memory only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyId([u8; 32]);

impl KeyId {
    /// Of a key at an address. Without a key, all who ask there share what the address gives.
    pub(crate) fn new(base_url: &str, key: Option<&str>) -> Self {
        let mut digest = sha2::Sha256::new();
        digest.update(base_url);
        digest.update([0]);
        digest.update(key.unwrap_or_default());
        Self(digest.finalize().into())
    }
}

/// A worker's link, as a member of a gate's. Weak: the session's actor ends links by dropping its side.
#[derive(Debug)]
struct Member {
    key: KeyId,
    frames: mpsc::WeakSender<ToWorker>,
    is_attended: bool,
}

/// Who waits for a turn.
#[derive(Debug)]
enum Waiter {
    /// A coordinator.
    Here(oneshot::Sender<()>),
    /// A worker.
    There { frames: mpsc::WeakSender<ToWorker>, provider: String, turn: u64 },
}

impl Waiter {
    /// Gives the turn; false when nobody wants it any more.
    fn go(self) -> bool {
        match self {
            Self::Here(sender) => sender.send(()).is_ok(),
            Self::There { frames, provider, turn } => tell(&frames, &provider, PaceOrder::Turn { turn }),
        }
    }
}

/// A link that is full or gone hears nothing: its worker goes by its own waits.
fn tell(frames: &mpsc::WeakSender<ToWorker>, provider: &str, order: PaceOrder) -> bool {
    let frame = ToWorker::Pace { provider: provider.to_owned(), order };
    frames.upgrade().is_some_and(|frames| frames.try_send(frame).is_ok())
}

#[derive(Debug, Default)]
struct Table {
    gates: HashMap<KeyId, Gate<Waiter>>,
    /// By the number of a link and the provider's name there.
    members: HashMap<(u64, String), Member>,
    bursts: Bursts,
}

impl Table {
    /// Whoever waited for a prefix on these links goes on.
    fn written(&self, links: &[u64]) {
        for ((link, provider), member) in &self.members {
            if links.contains(link) {
                tell(&member.frames, provider, PaceOrder::Written);
            }
        }
    }
}

/// The gates of a server. Its lock is never held across an await.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    table: Mutex<Table>,
    /// Rung when a turn may be due sooner than was thought.
    news: Notify,
}

impl Gates {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is whole before anything that could panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's link asks this provider with this key.
    pub(crate) fn join(
        &self,
        link: u64,
        provider: &str,
        key: KeyId,
        frames: &mpsc::Sender<ToWorker>,
        is_attended: bool,
    ) {
        let mut table = self.table();
        let frames = frames.downgrade();
        if let Some(gate) = table.gates.get(&key) {
            tell(&frames, provider, held(gate, Instant::now()));
        }
        table.members.insert((link, provider.to_owned()), Member { key, frames, is_attended });
    }

    /// A worker of this link begins a run, with a prefix that others may have.
    pub(crate) fn begins(&self, link: u64, provider: &str, cached: Cached) {
        let mut table = self.table();
        let Some(wait) = table.bursts.begins(link, cached, Instant::now()) else { return };
        if let Some(member) = table.members.get(&(link, provider.to_owned())) {
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            tell(&member.frames, provider, PaceOrder::After { wait_ms });
        }
    }

    /// The first answer to a worker has begun; what it was sent stays in the cache for so long.
    pub(crate) fn began(&self, link: u64, ttl: Duration) {
        let mut table = self.table();
        let waiting = table.bursts.began(link, ttl, Instant::now());
        table.written(&waiting);
    }

    /// A link ended.
    pub(crate) fn leave(&self, link: u64) {
        let mut table = self.table();
        table.members.retain(|(number, _), _| *number != link);
        let waiting = table.bursts.leave(link);
        table.written(&waiting);
    }

    /// A worker met a limit.
    pub(crate) fn limited_there(&self, link: u64, provider: &str, retry_after: Option<Duration>) {
        let member = (link, provider.to_owned());
        let key = self.table().members.get(&member).map(|member| member.key.clone());
        if let Some(key) = key {
            self.limited(&key, retry_after);
        }
    }

    /// Somebody met the limit of a key: all who share it are told.
    pub(crate) fn limited(&self, key: &KeyId, retry_after: Option<Duration>) {
        let Some(pause) = gate::pause(retry_after) else { return };
        let now = Instant::now();
        let mut table = self.table();
        let Table { gates, members, .. } = &mut *table;
        let is_news = match gates.get_mut(key) {
            Some(gate) => gate.limited(pause, now),
            None => {
                gates.insert(key.clone(), Gate::close(pause, now));
                true
            }
        };
        if let Some(gate) = gates.get(key).filter(|_| is_news) {
            tracing::info!(
                wait_ms = gate.wait(now).as_millis() as u64,
                "a provider's limit holds all who share its key"
            );
            tell_all(members, key, &held(gate, now));
        }
        drop(table);
        self.news.notify_one();
    }

    /// A worker wants a turn.
    pub(crate) fn ask_there(&self, link: u64, provider: &str, turn: u64) {
        let mut table = self.table();
        let Table { gates, members, .. } = &mut *table;
        let Some(member) = members.get(&(link, provider.to_owned())) else { return };
        match gates.get_mut(&member.key) {
            Some(gate) => {
                let frames = member.frames.clone();
                let waiter = Waiter::There { frames, provider: provider.to_owned(), turn };
                gate.ask(waiter, member.is_attended);
            }
            // It has not heard yet.
            None => {
                tell(&member.frames, provider, PaceOrder::Free);
            }
        }
        drop(table);
        self.news.notify_one();
    }

    /// Waits for a turn of a call that is made in this process. Dropping the future takes the question back.
    pub(crate) async fn turn(&self, key: &KeyId, is_attended: bool) {
        let (sender, receiver) = oneshot::channel();
        match self.table().gates.get_mut(key) {
            Some(gate) => gate.ask(Waiter::Here(sender), is_attended),
            None => return,
        }
        self.news.notify_one();
        // A gate that is gone holds nobody.
        receiver.await.ok();
    }

    /// How long until the first turn of a key that is held.
    pub(crate) fn wait(&self, key: &KeyId) -> Option<Duration> {
        let wait = self.table().gates.get(key)?.wait(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    /// Keys that are held, and agents that wait for a turn.
    pub(crate) fn figures(&self) -> (usize, usize) {
        let table = self.table();
        (table.gates.len(), table.gates.values().map(Gate::n_waiting).sum())
    }

    /// Hands out turns until shutdown.
    pub(crate) async fn serve(&self, shutdown: &CancellationToken) {
        loop {
            let next = self.hand_out(Instant::now(), any_jitter());
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            // Nothing is lost when a branch does not win: the table is looked at again.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.news.notified() => {}
                () = due => {}
            }
        }
    }

    /// Gives the turns that are due, and forgets gates that are over. Answers when to look again.
    fn hand_out(&self, now: Instant, jitter: f64) -> Option<Instant> {
        let mut table = self.table();
        let Table { gates, members, .. } = &mut *table;
        for gate in gates.values_mut() {
            gate.give_turn(now, jitter, Waiter::go);
        }
        gates.retain(|key, gate| {
            let is_over = gate.n_waiting() == 0 && gate.is_over_at() <= now;
            if is_over {
                tell_all(members, key, &PaceOrder::Free);
            }
            !is_over
        });
        gates.values().map(|gate| gate.next_turn().unwrap_or_else(|| gate.is_over_at())).min()
    }
}

fn held(gate: &Gate<Waiter>, now: Instant) -> PaceOrder {
    PaceOrder::Held { wait_ms: u64::try_from(gate.wait(now).as_millis()).unwrap_or(u64::MAX) }
}

fn tell_all(members: &HashMap<(u64, String), Member>, key: &KeyId, order: &PaceOrder) {
    for ((_, provider), member) in members.iter().filter(|(_, member)| member.key == *key) {
        tell(&member.frames, provider, order.clone());
    }
}

/// A figure in `0.0..1.0`.
fn any_jitter() -> f64 {
    (uuid::Uuid::new_v4().as_u128() % 1_000) as f64 / 1_000.0
}

#[cfg(test)]
mod tests;
