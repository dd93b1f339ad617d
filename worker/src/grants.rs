//! Leave to spend from the session's budget (spec 10.1): one grant for each call, asked for over the link while the
//! call before it still streams, so that no call waits for a round trip.
//!
//! ```text
//! nothing -> asked -> lease -> in use (a call is made) -> settled by the next record of use
//!              \-> refused       \-> the call failed and nothing was charged: it pays for the next try
//! ```
//! With the server away the lease that is there is used, and then the run waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use query_engine::{
    budget::Budget,
    ports::{Durability, Grant, Grants, Model, Observer, PlannedCall},
};
use swarm_protocol::{
    Usage, WaitingFor,
    frame::Live,
    record::{GrantRequest, RecordBody},
    usage::{Caps, Cost},
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Duration,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    link::{LinkState, Outbox},
    record::Recorder,
};

/// Requests on their way to the transcript: one that somebody waits for, one ahead, and those that interrupts left.
const ASKS: usize = 16;
/// How soon a request that the disk refused is written again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// A lease that was asked for a smaller call is used if it pays for so much output, else exchanged.
const ENOUGH_OUTPUT: u64 = 1_024;

/// A grant that was given.
#[derive(Clone, Debug)]
struct Lease {
    grant: u64,
    amount: Budget,
    /// The input it was asked for.
    input_tokens: u64,
}

/// A grant that was asked for.
#[derive(Clone, Debug)]
struct Asked {
    grant: u64,
    ahead: bool,
    input_tokens: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last request.
    last: u64,
    /// Requests up to this number are of earlier processes: what answers them late is a lease too.
    inherited: u64,
    asked: Option<Asked>,
    lease: Option<Lease>,
    in_use: Option<Lease>,
    refused: Option<String>,
    /// Requests for calls beside the conversation's, with who waits for the answer.
    aside: HashMap<u64, oneshot::Sender<Result<Caps, String>>>,
    /// Grants of such calls that were not made: the next request gives them back.
    unused: Vec<u64>,
}

/// Leave for one call beside the conversation's. Dropped before it is settled, it is given back.
pub struct Aside {
    /// The most output that it pays for.
    pub max_tokens: u64,
    held: Held,
}

impl Aside {
    /// The number that a record of settlement names.
    pub fn settle(mut self) -> u64 {
        self.held.is_settled = true;
        self.held.grant
    }
}

/// A number that is asked for or granted.
struct Held {
    leases: Arc<Leases>,
    grant: u64,
    is_settled: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_settled {
            let mut state = self.leases.state();
            state.aside.remove(&self.grant);
            state.unused.push(self.grant);
        }
    }
}

/// What follows for a call.
#[derive(Debug, PartialEq)]
enum Next {
    Go { max_tokens: u64 },
    Spent { budget: String },
    Ask(GrantRequest),
    Wait,
}

/// The grants of a run.
pub struct Leases {
    state: Mutex<State>,
    /// Rung by an answer.
    news: Notify,
    recorder: Arc<Recorder>,
    asks: mpsc::Sender<GrantRequest>,
    _writing: AbortOnDropHandle<()>,
}

impl Leases {
    /// Of a run whose transcript is `recorder`'s.
    pub fn start(recorder: Arc<Recorder>) -> Arc<Self> {
        let last = recorder.facts().last_grant;
        let (asks, receiver) = mpsc::channel(ASKS);
        // Apart from who asks: a question may be taken back while it is written.
        let writing = AbortOnDropHandle::new(tokio::spawn(write(recorder.clone(), receiver)));
        let state = State { last, inherited: last, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), news: Notify::new(), recorder, asks, _writing: writing })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's answer to a request.
    pub fn answered(&self, grant: u64, answer: Result<Caps, String>) {
        let mut state = self.state();
        if let Some(waiting) = state.aside.remove(&grant) {
            // Who asked may have given up; the grant is then given back.
            drop(waiting.send(answer));
            return;
        }
        let input_tokens = match &state.asked {
            Some(asked) if asked.grant == grant => {
                let input_tokens = asked.input_tokens;
                state.asked = None;
                input_tokens
            }
            // Nothing is known of the call it was for.
            _ if grant <= state.inherited && state.lease.is_none() && answer.is_ok() => 0,
            // Returned before it came.
            _ => return,
        };
        match answer {
            Ok(Caps { usd, tokens }) => {
                state.lease = Some(Lease { grant, amount: Budget { usd, tokens }, input_tokens });
            }
            Err(budget) => state.refused = Some(budget),
        }
        drop(state);
        self.news.notify_one();
    }

    fn next(&self, call: &PlannedCall, price: &dyn Fn(&Usage) -> Cost) -> Next {
        let mut state = self.state();
        if let Some(budget) = state.refused.take() {
            return Next::Spent { budget };
        }
        let enough = |lease: &Lease| {
            let most = lease.amount.pays_for(call, price);
            let least = if call.input_tokens <= lease.input_tokens { 1 } else { ENOUGH_OUTPUT };
            (most >= least.min(call.max_tokens)).then_some(most)
        };
        // The last call brought no record of use, so nothing was charged: this is its next try.
        if let Some(max_tokens) =
            state.in_use.as_ref().filter(|held| self.recorder.is_in_use(held.grant)).and_then(enough)
        {
            return Next::Go { max_tokens };
        }
        let returns = match (state.lease.take(), &state.asked) {
            (Some(lease), _) => match enough(&lease) {
                Some(max_tokens) => {
                    self.recorder.use_grant(lease.grant);
                    state.in_use = Some(lease);
                    return Next::Go { max_tokens };
                }
                None => vec![lease.grant],
            },
            (None, Some(Asked { ahead: false, .. })) => return Next::Wait,
            // It was not given yet: the same is asked for again, by somebody who waits for it.
            (None, Some(asked)) => vec![asked.grant],
            (None, None) => Vec::new(),
        };
        Next::Ask(request(&mut state, call, false, returns))
    }

    /// Waits for leave for a call beside the conversation's.
    ///
    /// # Errors
    /// The budget that is used up.
    pub async fn aside(
        self: &Arc<Self>,
        call: &PlannedCall,
        price: &(dyn Fn(&Usage) -> Cost + Sync),
    ) -> Result<Aside, String> {
        let (sender, answer) = oneshot::channel();
        let (ask, held) = {
            let mut state = self.state();
            state.last += 1;
            let grant = state.last;
            state.aside.insert(grant, sender);
            let returns = std::mem::take(&mut state.unused);
            let ask = GrantRequest {
                grant,
                model: call.model.clone(),
                input_tokens: call.input_tokens,
                max_tokens: call.max_tokens,
                ahead: false,
                returns,
            };
            (ask, Held { leases: Arc::clone(self), grant, is_settled: false })
        };
        let over = |_| "the run is over".to_owned();
        self.asks.send(ask).await.map_err(|_| "the run is over".to_owned())?;
        let Caps { usd, tokens } = answer.await.map_err(over)??;
        let max_tokens = Budget { usd, tokens }.pays_for(call, price);
        if max_tokens == 0 {
            return Err("what was granted pays for no answer".to_owned());
        }
        Ok(Aside { max_tokens, held })
    }

    /// Asks for the grant of the call after this one.
    fn ask_ahead(&self, call: &PlannedCall, max_tokens: u64) {
        let mut state = self.state();
        if state.lease.is_some() || state.asked.is_some() {
            return;
        }
        let next = PlannedCall { input_tokens: call.input_tokens.saturating_add(max_tokens), ..call.clone() };
        let ask = request(&mut state, &next, true, Vec::new());
        drop(state);
        // Full: it is asked for when it is needed.
        if self.asks.try_send(ask).is_err() {
            self.state().asked = None;
        }
    }
}

fn request(state: &mut State, call: &PlannedCall, ahead: bool, returns: Vec<u64>) -> GrantRequest {
    state.last += 1;
    state.asked = Some(Asked { grant: state.last, ahead, input_tokens: call.input_tokens });
    GrantRequest {
        grant: state.last,
        model: call.model.clone(),
        input_tokens: call.input_tokens,
        max_tokens: call.max_tokens,
        ahead,
        returns,
    }
}

/// Writes requests to the transcript, from where they travel.
async fn write(recorder: Arc<Recorder>, mut asks: mpsc::Receiver<GrantRequest>) {
    while let Some(ask) = asks.recv().await {
        let record = RecordBody::GrantRequested(ask);
        while let Err(error) = recorder.write(vec![record.clone()], Durability::Soon).await {
            tracing::error!(%error, "a request for a grant could not be recorded");
            tokio::time::sleep(WRITE_AGAIN).await;
        }
    }
}

/// The port of the engine.
pub struct LeasedGrants {
    leases: Arc<Leases>,
    /// Those that may be asked, for their prices.
    models: Vec<Arc<dyn Model>>,
    outbox: Arc<Outbox>,
    link: watch::Receiver<LinkState>,
}

impl LeasedGrants {
    /// The grants of a run for these models.
    pub fn new(
        leases: Arc<Leases>,
        models: Vec<Arc<dyn Model>>,
        outbox: Arc<Outbox>,
        link: watch::Receiver<LinkState>,
    ) -> Self {
        Self { leases, models, outbox, link }
    }

    fn cost(&self, name: &str, usage: &Usage) -> Cost {
        match self.models.iter().find(|model| model.info().name == name) {
            Some(model) => model.cost(name, usage),
            None => Cost::unknown(),
        }
    }

    fn tell(&self, waits: bool) {
        let cause = match (waits, &*self.link.borrow()) {
            (false, _) => String::new(),
            (true, LinkState::Connected) => "its budget: calls of others are under way".to_owned(),
            (true, LinkState::Away | LinkState::Refused { .. }) => "a grant of its budget".to_owned(),
        };
        let waiting_for = waits.then_some(WaitingFor::Server);
        self.outbox.live(Live::Waiting { waiting_for, cause, until: None });
    }
}

/// Takes back that the agent waits, also when the question is dropped.
struct Told<'a>(&'a LeasedGrants);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.tell(false);
    }
}

/// A grant that takes longer is shown as a wait.
const PATIENCE: Duration = Duration::from_millis(500);

#[async_trait]
impl Grants for LeasedGrants {
    fn is_capped(&self) -> bool {
        true
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        let price = |usage: &Usage| self.cost(&call.model, usage);
        let mut told = None;
        loop {
            match self.leases.next(call, &price) {
                Next::Go { max_tokens } => {
                    self.leases.ask_ahead(call, max_tokens);
                    return Grant::Call { max_tokens };
                }
                Next::Spent { budget } => return Grant::Spent { budget },
                Next::Ask(ask) => {
                    // Full only while the disk refuses everything.
                    if self.leases.asks.send(ask).await.is_err() {
                        return Grant::Spent { budget: "the run is over".to_owned() };
                    }
                }
                Next::Wait => {}
            }
            // An answer that came meanwhile has rung already.
            if told.is_none() {
                tokio::select! {
                    () = self.leases.news.notified() => continue,
                    () = tokio::time::sleep(PATIENCE) => {}
                }
                self.tell(true);
                told = Some(Told(self));
            }
            self.leases.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests;
