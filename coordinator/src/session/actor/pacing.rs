//! A session's agents at the gates of their providers' keys (spec 10.1).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use query_engine::{
    pacing::{Paced, Turns},
    ports::{Model, Observer},
};
use swarm_protocol::{
    Timestamp, WorkerId,
    frame::PACE_SINCE,
    launch::{ApiKind, ModelEndpoint},
};

use super::Actor;
use crate::{
    clock,
    pacing::{Cached, KeyId},
    server::Shared,
    session::{KeyRing, model::SessionModel},
};

impl Actor {
    /// A worker's link is told from now on of limits that others meet; and at the begin of a run, of others that
    /// begin with the same prefix.
    pub(super) fn join_gates(&self, worker_id: &WorkerId, is_new: bool) {
        let (Some(connection), Some(worker)) =
            (self.connections.get(worker_id), self.model.worker(worker_id))
        else {
            return;
        };
        if connection.version < PACE_SINCE {
            return;
        }
        let others = &self.model.spec.models;
        for endpoint in std::iter::once(&worker.spec.model).chain(&others.helper).chain(&others.fallback) {
            if has_gate(endpoint) {
                let key = key_id(&self.shared, endpoint, &self.keys);
                let is_attended = is_attended(&self.model);
                let (link, frames) = (connection.number, &connection.frames);
                self.shared.gates.join(link, &endpoint.provider, key, frames, is_attended);
            }
        }
        let endpoint = &worker.spec.model;
        if is_new && has_gate(endpoint) && model_client::caches(endpoint) {
            let key = key_id(&self.shared, endpoint, &self.keys);
            let cached = Cached { key, session: self.model.id, model: endpoint.display_name() };
            self.shared.gates.begins(connection.number, &endpoint.provider, cached);
        }
    }
}

/// A model of the coordinator's, behind the gate of its key.
pub(crate) fn paced(
    shared: &Arc<Shared>,
    session: &SessionModel,
    keys: &KeyRing,
    endpoint: &ModelEndpoint,
    model: Arc<dyn Model>,
    observer: &Arc<dyn Observer>,
) -> Arc<dyn Model> {
    if !has_gate(endpoint) {
        return model;
    }
    let turns = Here {
        shared: Arc::clone(shared),
        provider: endpoint.provider.clone(),
        key: key_id(shared, endpoint, keys),
        is_attended: is_attended(session),
    };
    Arc::new(Paced::new(model, &endpoint.provider, Arc::new(turns), Arc::clone(observer)))
}

/// The script inside this program has no limits.
fn has_gate(endpoint: &ModelEndpoint) -> bool {
    endpoint.api != ApiKind::Demo
}

fn key_id(shared: &Shared, endpoint: &ModelEndpoint, keys: &KeyRing) -> KeyId {
    KeyId::new(&endpoint.base_url, shared.key_for(endpoint, keys).as_deref())
}

/// Whether a person is there for what the session does now.
fn is_attended(session: &SessionModel) -> bool {
    !session.open_task().is_some_and(|task| task.unattended)
}

/// The gate of a key, in the server's process.
struct Here {
    shared: Arc<Shared>,
    provider: String,
    key: KeyId,
    is_attended: bool,
}

#[async_trait]
impl Turns for Here {
    async fn turn(&self) {
        self.shared.gates.turn(&self.key, self.is_attended).await;
    }

    fn opens(&self) -> Option<Timestamp> {
        let wait = self.shared.gates.wait(&self.key)?;
        Some(clock::now().plus_millis(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)))
    }

    fn is_limited(&self) -> bool {
        true
    }

    // A coordinator has its prefix for itself.
    fn began(&self) {}

    fn limited(&self, retry_after: Option<Duration>) {
        self.shared.count_limit(&self.provider);
        self.shared.gates.limited(&self.key, retry_after);
    }
}
