//! Keepalive (spec 3.6), opt-in: while an agent waits for longer than the provider's cache lives, what was sent last is
//! read once more before its entry runs out.

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use swarm_protocol::{Block, Message, Role, Usage, record::RecordBody, usage::Cost};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Engine, turn::Turn};
use crate::{
    budget::Budget,
    context::cache,
    ports::{Model, ModelError, ModelRequest, PlannedCall, StorageError, StreamEvent},
    response::Response,
    state::PURPOSE_KEEPALIVE,
};

/// Failures in a row that switch it off (spec 3.6).
const FAILURES: u32 = 3;
/// Reads after which it stops. One costs a tenth of the input, writing the entry again five quarters: after twelve
/// reads nothing is saved any more.
const READS: u32 = 12;
/// How long a turn waits for a read that is under way at its end.
const LAST_READ: Duration = Duration::from_secs(5);
/// What is said where a request must end with a person's words.
const SAYS: &str = ".";

/// What one read used.
#[derive(Clone, Debug, PartialEq)]
pub struct Warmed {
    /// The model that answered.
    pub model: String,
    /// Its use.
    pub usage: Usage,
    /// What that cost.
    pub cost: Cost,
}

impl Warmed {
    /// The record of it.
    pub fn record(self) -> RecordBody {
        let Self { model, usage, cost } = self;
        RecordBody::HelperCall { purpose: PURPOSE_KEEPALIVE.to_owned(), model, usage, cost }
    }
}

/// Keeps what a conversation last sent in the provider's cache.
pub struct Keepalive {
    model: Arc<dyn Model>,
    request: ModelRequest,
    input_tokens: u64,
    /// The agent's own budget, with what it has spent.
    budget: Budget,
    spent: (Usage, Cost),
    /// Between two reads.
    every: Duration,
    next: Instant,
    reads: u32,
    /// There is work again: no read begins any more.
    over: CancellationToken,
}

impl Keepalive {
    /// Ends it: what is under way is read to its end, because it is paid for.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// The reads as they are made, each of which is to be recorded. Nothing is lost when it is asked again after
    /// another branch of a `select!` has won. It ends when it is over, when a read cannot be paid for, has failed again
    /// and again, or saves nothing any more.
    pub fn reads(self) -> BoxStream<'static, Warmed> {
        let next = |mut keepalive: Self| async move {
            let mut failures = 0;
            while keepalive.reads < READS && failures < FAILURES {
                tokio::select! {
                    biased;
                    () = keepalive.over.cancelled() => return None,
                    () = tokio::time::sleep_until(keepalive.next) => {}
                }
                match keepalive.read().await {
                    Ok(Some(warmed)) => {
                        keepalive.reads += 1;
                        keepalive.next = Instant::now() + keepalive.every;
                        return Some((warmed, keepalive));
                    }
                    Ok(None) => return None,
                    Err(error) => {
                        tracing::debug!(%error, "the cache was not kept alive");
                        failures += 1;
                        // The tries fit into what is left of the entry's life.
                        keepalive.next = Instant::now() + keepalive.every / 16;
                    }
                }
            }
            None
        };
        // It may be asked again after its end.
        stream::unfold(self, next).fuse().boxed()
    }

    /// Reads once; none when nothing pays for it.
    async fn read(&mut self) -> Result<Option<Warmed>, ModelError> {
        let call = PlannedCall {
            model: self.model.info().name,
            input_tokens: self.input_tokens,
            max_tokens: self.request.max_tokens,
        };
        let price = |usage: &Usage| self.model.cost(&call.model, usage);
        if self.budget.allows(&self.spent.0, &self.spent.1, &call, &price).is_err() {
            return Ok(None);
        }
        self.model.ready().await;
        let mut response = Response::default();
        let mut stream = self.model.stream(&self.request).await?;
        while let Some(event) = stream.next().await {
            let event = event?;
            let _call = response.take(&event);
            if let StreamEvent::Stopped(_) = event {
                break;
            }
        }
        let usage = response.usage.unwrap_or_default();
        let model = response.model.unwrap_or(call.model);
        let cost = self.model.cost(&model, &usage);
        self.spent.0 += usage;
        self.spent.1 += cost;
        Ok(Some(Warmed { model, usage, cost }))
    }
}

/// The reads of a turn, and what ends them.
pub(super) struct Keeping {
    over: CancellationToken,
    pub(super) reads: BoxStream<'static, Warmed>,
}

impl Engine {
    /// Keeps the conversation warm after a run; none where it is not wanted, or where nothing is warm.
    pub fn keepalive(&mut self) -> Option<Keepalive> {
        let name = self.model().info().name;
        let state = &self.state;
        let mut messages = self.view.grow(&state.messages, &state.asked, &name, state.rewrites).to_vec();
        let sent = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
        let breakpoints = cache::breakpoints(&messages, sent);
        if messages.last()?.role == Role::Assistant {
            messages.push(Arc::new(Message::user(vec![Block::text(SAYS)])));
        }
        let request =
            ModelRequest { prefix: Arc::clone(&self.config.prefix), messages, breakpoints, max_tokens: 0 };
        let heard = self.warm_until?.checked_sub(self.config.cache_ttl)?;
        self.keeps(request, heard)
    }

    /// As [`Engine::keepalive`], while the calls of a turn run.
    pub(super) fn keeps_turn(&self, request: &ModelRequest, turn: &Turn) -> Keeping {
        let Some(mut keepalive) = self.keeps(request.clone(), turn.heard) else {
            return Keeping { over: CancellationToken::new(), reads: stream::empty().boxed() };
        };
        if let Some(usage) = turn.response.usage {
            keepalive.input_tokens = keepalive.input_tokens.max(usage.total_input());
            keepalive.spent.0 += usage;
            keepalive.spent.1 += turn.model.cost(&keepalive.model.info().name, &usage);
        }
        Keeping { over: keepalive.over(), reads: keepalive.reads() }
    }

    /// The calls are done: a read under way is counted.
    pub(super) async fn stops_keeping(
        &mut self,
        mut keeping: Keeping,
        turn: &mut Turn,
    ) -> Result<(), StorageError> {
        keeping.over.cancel();
        match tokio::time::timeout(LAST_READ, keeping.reads.next()).await {
            Ok(Some(warmed)) => self.warmed(turn, warmed).await,
            Ok(None) => Ok(()),
            Err(_) => {
                tracing::warn!("a read that kept the cache alive does not end; what it used is not known");
                Ok(())
            }
        }
    }

    fn keeps(&self, request: ModelRequest, heard: Instant) -> Option<Keepalive> {
        let model = self.model();
        // A shared budget gives leave for one call after the other, each recorded before the next: there is no
        // place for a read that is given up when there is work again.
        if !self.config.keepalive || !model.info().caches || self.ports.grants.is_capped() {
            return None;
        }
        let ttl = self.config.cache_ttl;
        // After 4 of 5 minutes, after 55 of 60 (spec 3.6).
        let every = ttl - (ttl / 5).min(Duration::from_secs(5 * 60));
        let accounting = self.accounting();
        Some(Keepalive {
            request: ModelRequest { max_tokens: model.least_output(), ..request },
            model,
            input_tokens: accounting.overhead + accounting.messages,
            budget: self.config.budget,
            spent: (self.state.usage, self.state.cost),
            every,
            next: heard + every,
            reads: 0,
            over: CancellationToken::new(),
        })
    }

    /// What the provider holds is as new as if it had just answered.
    pub(super) async fn warmed(&mut self, turn: &mut Turn, warmed: Warmed) -> Result<(), StorageError> {
        turn.heard = Instant::now();
        let Warmed { model, usage, cost } = warmed;
        self.charge(PURPOSE_KEEPALIVE.to_owned(), model, usage, cost).await
    }
}
