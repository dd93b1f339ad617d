//! The permission desk (spec 5.3) as a pure machine: who may decide a request, whose word claims it, and how long
//! it waits. It knows no journal, no link and no person; the session's actor tells it what happened and does what
//! follows.
//!
//! ```text
//!            claim                  journaled
//!   open ───────────▶ claimed ─────────────────▶ settled (sent)
//!    ▲ │                 │
//!    │ └─ withdrawn      │ not journaled: the word is dropped, who gave it is told
//!    └───────────────────┘
//! ```
//!
//! Words come as bids and are claimed together: of those that were ready together the first in the order of
//! [`Racer`] decides, and of two of one kind the one that came first. A request's clock runs only while its worker is
//! connected; it stands still otherwise.

use std::collections::BTreeMap;

use agent_host::secrets::MARK;
use swarm_protocol::{
    PermissionRequestId, RunNumber, ToolUseId, WorkerId,
    permission::{Decision, PermissionRequest, Racer, Scope},
};
use tokio::time::{Duration, Instant};

mod clock;
mod racers;
#[cfg(test)]
mod tests;

use clock::{Clock, Clocks};
pub(crate) use racers::racers;

/// Which call a request is for. Ids of calls are the models' and repeat between agents (Z01).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestKey {
    pub(crate) worker_id: WorkerId,
    pub(crate) run: RunNumber,
    pub(crate) call: ToolUseId,
}

/// What a request asks. Open requests of one agent that ask the same are answered together (Z02).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    worker_id: WorkerId,
    args_hash: String,
}

/// Tells who bids apart: the actor knows whom a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// A word about a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bid {
    pub(crate) ticket: Ticket,
    pub(crate) by: Racer,
    pub(crate) source: Option<String>,
    pub(crate) decision: Decision,
    pub(crate) scope: Scope,
    /// Words to the model.
    pub(crate) reason: Option<String>,
    /// Deny, and end the agent.
    pub(crate) stop: bool,
}

/// A request that a word has claimed: it is journaled next, then sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) id: PermissionRequestId,
    pub(crate) bid: Bid,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    /// Another call has this id.
    #[error("its id belongs to the request of another call")]
    IdOfAnother,
    /// The call asks already, under another id.
    #[error("its call asks already")]
    AsksAlready,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Open,
    /// Its decision is being journaled.
    Claimed(Ticket),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    key: RequestKey,
    question: Question,
    state: State,
    /// In the order they came.
    bids: Vec<Bid>,
}

/// The requests of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Desk {
    waiting: BTreeMap<PermissionRequestId, Entry>,
    /// Calls of requests that were settled or withdrawn: their ids stay theirs.
    gone: BTreeMap<PermissionRequestId, RequestKey>,
    clocks: Clocks,
    /// The desk's own bids: time, and the end of the session.
    last_ticket: u64,
}

fn key_of(request: &PermissionRequest) -> RequestKey {
    RequestKey { worker_id: request.worker_id.clone(), run: request.run, call: request.tool_use_id.clone() }
}

impl Desk {
    /// A desk as a restart finds it. Clocks stand until their worker is back, and begin anew, for nobody knows how
    /// much of them had passed.
    pub(crate) fn new<'a>(requests: impl Iterator<Item = (&'a PermissionRequest, bool)>) -> Self {
        let mut desk = Self::default();
        for (request, is_open) in requests {
            if is_open {
                desk.enter(request);
                let left = Duration::from_millis(request.timeout_ms);
                desk.clocks.restore(request.id.clone(), Clock::Stands { left });
            } else {
                desk.gone.insert(request.id.clone(), key_of(request));
            }
        }
        desk
    }

    fn enter(&mut self, request: &PermissionRequest) {
        // Two that differ in their keys alone look the same, and are not.
        let is_masked = request.input.to_string().contains(MARK);
        let args_hash = if is_masked { String::new() } else { request.args_hash.clone() };
        let question = Question { worker_id: request.worker_id.clone(), args_hash };
        let entry = Entry { key: key_of(request), question, state: State::Open, bids: Vec::new() };
        self.waiting.insert(request.id.clone(), entry);
    }

    /// Whether a request would be taken. One that is there already, under its own id, is: workers resend.
    pub(crate) fn may_ask(&self, request: &PermissionRequest) -> Result<(), NotTaken> {
        let key = key_of(request);
        let known = self.waiting.get(&request.id).map(|entry| &entry.key).or(self.gone.get(&request.id));
        if let Some(known) = known {
            return if *known == key { Ok(()) } else { Err(NotTaken::IdOfAnother) };
        }
        if self.waiting.values().any(|entry| entry.key == key) {
            return Err(NotTaken::AsksAlready);
        }
        Ok(())
    }

    /// A request is journaled; its worker is connected. One that was settled does not come back.
    pub(crate) fn asked(&mut self, request: &PermissionRequest, now: Instant) {
        if self.gone.contains_key(&request.id) || self.waiting.contains_key(&request.id) {
            return;
        }
        self.enter(request);
        self.clocks.open(request.id.clone(), Duration::from_millis(request.timeout_ms), now);
    }

    /// Whether a request waits for a word.
    pub(crate) fn is_open(&self, id: &PermissionRequestId) -> bool {
        self.waiting.get(id).is_some_and(|entry| entry.state == State::Open)
    }

    /// Open requests of the same agent that ask the same, this one first.
    pub(crate) fn together(&self, id: &PermissionRequestId) -> Vec<PermissionRequestId> {
        let Some(entry) = self.waiting.get(id) else { return Vec::new() };
        let same = |other: &Entry| {
            // Without a hash nothing is known to be the same.
            other.question == entry.question && !entry.question.args_hash.is_empty()
        };
        let others = self.waiting.iter().filter(|(other, _)| *other != id);
        let others = others.filter(|(_, other)| same(other) && other.state == State::Open);
        std::iter::once(id.clone()).chain(others.map(|(other, _)| other.clone())).collect()
    }

    /// A word for a request and those that ask the same. It decides nothing before [`Self::claim`].
    pub(crate) fn bid(&mut self, id: &PermissionRequestId, bid: &Bid) {
        for id in self.together(id) {
            if let Some(entry) = self.waiting.get_mut(&id) {
                entry.bids.push(bid.clone());
            }
        }
    }

    /// A number for who bids next.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// A word of the desk's own.
    fn own_bid(&mut self, id: &PermissionRequestId, by: Racer) {
        let ticket = self.ticket();
        if let Some(entry) = self.waiting.get_mut(id) {
            entry.bids.push(Bid {
                ticket,
                by,
                source: None,
                decision: Decision::Deny,
                scope: Scope::Once,
                reason: None,
                stop: false,
            });
        }
    }

    /// Time passed: requests whose clock ran out get the word of time.
    pub(crate) fn pass_time(&mut self, now: Instant) {
        for id in self.clocks.overdue(now) {
            if self.is_open(&id) {
                self.own_bid(&id, Racer::Timeout);
            }
        }
    }

    /// The session ends: so does every request.
    pub(crate) fn end(&mut self) {
        for id in self.waiting.keys().cloned().collect::<Vec<_>>() {
            self.own_bid(&id, Racer::SessionEnd);
        }
    }

    /// Of the words that are ready, the first claims each request. What is claimed must be told
    /// [`Self::journaled`] or [`Self::not_journaled`].
    #[must_use = "a claim that is not carried out holds its request for ever"]
    pub(crate) fn claim(&mut self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (id, entry) in &mut self.waiting {
            if entry.state != State::Open {
                continue;
            }
            // The first of those that rank the same.
            let Some(bid) = entry.bids.iter().min_by_key(|bid| bid.by).cloned() else { continue };
            entry.state = State::Claimed(bid.ticket);
            claims.push(Claim { id: id.clone(), bid });
        }
        claims
    }

    /// A decision is durable: it may be sent, and nothing else decides this request any more.
    pub(crate) fn journaled(&mut self, id: &PermissionRequestId) {
        self.leave(id);
    }

    /// A decision could not be stored: the request is open again. The word is dropped, and who gave it is told; time
    /// gives its word again after `pause`.
    pub(crate) fn not_journaled(&mut self, id: &PermissionRequestId, now: Instant, pause: Duration) {
        if let Some(entry) = self.waiting.get_mut(id)
            && let State::Claimed(ticket) = entry.state
        {
            entry.bids.retain(|bid| bid.ticket != ticket && bid.by != Racer::Timeout);
            entry.state = State::Open;
            self.clocks.postpone(id, now + pause);
        }
    }

    /// A request does not wait any more, without a decision.
    pub(crate) fn withdrawn(&mut self, id: &PermissionRequestId) {
        self.leave(id);
    }

    fn leave(&mut self, id: &PermissionRequestId) {
        if let Some(entry) = self.waiting.remove(id) {
            self.gone.insert(id.clone(), entry.key);
        }
        self.clocks.close(id);
    }

    /// A worker is connected: its clocks run.
    pub(crate) fn back(&mut self, worker_id: &WorkerId, now: Instant) {
        for id in self.of(worker_id) {
            self.clocks.run(&id, now);
        }
    }

    /// A worker is away: its clocks stand.
    pub(crate) fn away(&mut self, worker_id: &WorkerId, now: Instant) {
        for id in self.of(worker_id) {
            self.clocks.stand(&id, now);
        }
    }

    fn of(&self, worker_id: &WorkerId) -> Vec<PermissionRequestId> {
        let of_worker = self.waiting.iter().filter(|(_, entry)| &entry.key.worker_id == worker_id);
        of_worker.map(|(id, _)| id.clone()).collect()
    }

    /// Requests whose clock changed since the last call.
    pub(crate) fn changed(&mut self) -> Vec<PermissionRequestId> {
        self.clocks.changed()
    }

    /// Requests that have waited longer than a minute (`clock`); each is told once.
    pub(crate) fn long_waits(&mut self, now: Instant) -> Vec<PermissionRequestId> {
        self.clocks.long_waits(now)
    }

    /// When the next clock runs out, or the next wait becomes a long one.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.clocks.next_deadline()
    }

    /// When a request's clock runs out, if it runs.
    pub(crate) fn left(&self, id: &PermissionRequestId, now: Instant) -> Option<Duration> {
        self.clocks.left(id, now)
    }
}
