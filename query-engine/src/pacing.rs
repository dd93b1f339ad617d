//! A model whose provider takes so many calls in a time from all who share a key (spec 10.1): each call waits for its
//! turn at the gate they have in common, and a limit that is met is told there. Where the gate stands, and who goes
//! first, is not known here.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::StreamExt as _;
use swarm_protocol::{Timestamp, Usage, frame::Live, status::WaitingFor, usage::Cost};

use crate::ports::{
    Model, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelStream, Observer, StreamEvent,
};

/// The gate of a key, as one agent sees it.
#[async_trait]
pub trait Turns: Send + Sync {
    /// Waits until the next call may leave; at once while no limit was met. Dropping the future takes the question
    /// back.
    async fn turn(&self);

    /// Whether it is a limit that calls wait for; else the wait is too short to be told of.
    fn is_limited(&self) -> bool;

    /// The earliest time at which somebody has a turn, where that is known and ahead.
    fn opens(&self) -> Option<Timestamp>;

    /// An answer has begun.
    fn began(&self);

    /// The provider refused a call because there were too many, and asked to wait so long.
    fn limited(&self, retry_after: Option<Duration>);
}

/// A turn that takes longer to come is shown as a wait.
const PATIENCE: Duration = Duration::from_millis(500);

/// A model behind such a gate.
pub struct Paced {
    model: Arc<dyn Model>,
    turns: Arc<dyn Turns>,
    observer: Arc<dyn Observer>,
    cause: String,
}

impl Paced {
    /// Calls of `model` take their turns; a wait is told to `observer`, by the name of the provider.
    pub fn new(
        model: Arc<dyn Model>,
        provider: &str,
        turns: Arc<dyn Turns>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { model, turns, observer, cause: format!("rate limit of {provider}, next try") }
    }
}

/// Takes back that the agent waits, also when the question is dropped.
struct Told<'a>(&'a dyn Observer);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.live(Live::Waiting { waiting_for: None, cause: String::new(), until: None });
    }
}

#[async_trait]
impl Model for Paced {
    fn info(&self) -> ModelInfo {
        self.model.info()
    }

    async fn ready(&self) {
        let mut turn = self.turns.turn();
        // The turn is waited for on, whichever wins.
        tokio::select! {
            biased;
            () = &mut turn => return,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        if !self.turns.is_limited() {
            turn.await;
            return;
        }
        let (waiting_for, cause) = (Some(WaitingFor::Model), self.cause.clone());
        self.observer.live(Live::Waiting { waiting_for, cause, until: self.turns.opens() });
        let _told = Told(&*self.observer);
        turn.await;
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let turns = Arc::clone(&self.turns);
        let report = move |error: &ModelError| {
            if is_limit(&error.kind) {
                turns.limited(error.retry_after);
            }
        };
        match self.model.stream(request).await {
            Ok(stream) => {
                let turns = Arc::clone(&self.turns);
                let told = move |event: &Result<StreamEvent, ModelError>| match event {
                    Ok(StreamEvent::Started { .. }) => turns.began(),
                    Ok(_) => {}
                    Err(error) => report(error),
                };
                Ok(stream.inspect(told).boxed())
            }
            Err(error) => {
                report(&error);
                Err(error)
            }
        }
    }

    fn cost(&self, model: &str, usage: &Usage) -> Cost {
        self.model.cost(model, usage)
    }

    fn least_output(&self) -> u64 {
        self.model.least_output()
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        self.model.request_bytes(request)
    }
}

/// Whether others who share the key would be refused too.
fn is_limit(kind: &ModelErrorKind) -> bool {
    match kind {
        ModelErrorKind::RateLimited | ModelErrorKind::Overloaded => true,
        ModelErrorKind::KeyRefused
        | ModelErrorKind::PermissionRefused
        | ModelErrorKind::UnknownModel
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::PromptTooLong { .. }
        | ModelErrorKind::RequestTooLarge
        | ModelErrorKind::ImageRefused
        | ModelErrorKind::MaxTokensTooLarge { .. }
        | ModelErrorKind::QuotaSpent
        | ModelErrorKind::Server
        | ModelErrorKind::Transient
        | ModelErrorKind::Connection
        | ModelErrorKind::Stalled { .. }
        | ModelErrorKind::Truncated
        | ModelErrorKind::Malformed
        | ModelErrorKind::Cancelled => false,
    }
}

#[cfg(test)]
mod tests;
