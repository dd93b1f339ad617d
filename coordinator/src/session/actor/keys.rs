//! The keys of a session: in memory only, so a restarted server may have to wait until a client brings them again.
//! Whoever lacks its key waits; nobody asks a provider without one that the session had before.

use swarm_protocol::{
    SessionState, WaitingFor, WorkerId, WorkerStatus,
    event::Event,
    frame::{Keys, ToWorker},
    launch::{ModelEndpoint, REMOTE_TOKEN, SEARCH_KEY},
};

use super::Actor;
use crate::{
    session::{KeyRing, OrderError, engine::StartError},
    workers::lifecycle::LifeEvent,
};

impl Actor {
    /// Takes keys that a client brought. The event records which providers they are of, if that is news.
    pub(super) fn take_keys(&mut self, keys: KeyRing) -> Option<Event> {
        let is_new = |provider: &&String| !self.model.keyed.contains(*provider);
        let providers: Vec<String> = keys.0.keys().filter(is_new).cloned().collect();
        keys.0.values().for_each(|key| self.shared.masker.know(key));
        self.keys.0.extend(keys.0);
        (!providers.is_empty()).then_some(Event::SessionKeys { providers })
    }

    /// The first endpoint that an agent of this model needs and that has no key at hand: its provider is not asked
    /// without one, or the session had one. A gateway that never had a key may do without.
    pub(super) fn missing_key(&self, model: &ModelEndpoint) -> Option<String> {
        let others = &self.model.spec.models;
        std::iter::once(model)
            .chain(&others.helper)
            .chain(&others.fallback)
            .find(|endpoint| self.lacks_key(endpoint))
            .map(ModelEndpoint::display_name)
    }

    fn lacks_key(&self, endpoint: &ModelEndpoint) -> bool {
        self.shared.key_for(endpoint, &self.keys).is_none()
            && (self.model.keyed.contains(&endpoint.provider)
                || matches!(self.shared.connect(endpoint, &self.keys), Err(StartError::NoKey { .. })))
    }

    pub(super) fn keys_of(&self, model: &ModelEndpoint) -> Keys {
        let key = |endpoint: &ModelEndpoint| self.shared.key_for(endpoint, &self.keys);
        Keys {
            model: key(model),
            helper: self.model.spec.models.helper.as_ref().and_then(key),
            fallback: self.model.spec.models.fallback.as_ref().and_then(key),
            search: self.service_key(SEARCH_KEY),
            remote: self.service_key(REMOTE_TOKEN),
        }
    }

    /// Of what a tool asks beside the models: the session's, else the server's own. Nobody waits for it.
    fn service_key(&self, name: &str) -> Option<String> {
        let tools = &self.model.spec.worker_limits.tools;
        let (_, variable) = tools.key_variables().find(|(known, _)| *known == name)?;
        let own = || self.shared.environment.get(variable).filter(|key| !key.is_empty()).cloned();
        self.keys.0.get(name).cloned().or_else(own)
    }

    /// What an agent that is queued, or that stands still in its process, lacks.
    pub(super) fn key_a_worker_lacks(&self) -> Option<String> {
        let stands =
            |worker_id: &WorkerId| self.connections.get(worker_id).is_some_and(|link| link.awaits_keys);
        self.model
            .workers
            .iter()
            .filter(|worker| worker.status == WorkerStatus::Pending || stands(&worker.spec.id))
            .find_map(|worker| self.missing_key(&worker.spec.model))
    }

    /// Workers that stood still for keys which are at hand now get them and go on.
    pub(super) async fn give_keys(&mut self) -> Result<(), OrderError> {
        let waiting: Vec<WorkerId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.awaits_keys)
            .map(|(worker_id, _)| worker_id.clone())
            .collect();
        for worker_id in waiting {
            let Some(worker) = self.model.worker(&worker_id) else { continue };
            if self.missing_key(&worker.spec.model).is_some() {
                continue;
            }
            let keys = self.keys_of(&worker.spec.model);
            let waits = worker.waiting_for == Some(WaitingFor::Server);
            let works =
                waits.then(|| self.step(&worker_id, LifeEvent::Works, "its key is at hand")).flatten();
            self.append(works.into_iter().collect()).await?;
            let Some(connection) = self.connections.get_mut(&worker_id) else { continue };
            connection.awaits_keys = false;
            if connection.frames.try_send(ToWorker::Keys { keys }).is_err() {
                // Full or broken: its next hello is answered with them.
                self.drop_link(&worker_id);
            }
            self.join_gates(&worker_id, false);
        }
        Ok(())
    }

    pub(super) fn no_key(&self, endpoint: &str) -> String {
        format!("no key for {endpoint} is at hand; swarm resume {} supplies one", self.id().short())
    }

    pub(super) fn waits_for_key(&self, endpoint: &str) -> Event {
        Event::SessionState {
            state: SessionState::Waiting,
            waiting_for: Some("key".to_owned()),
            reason: self.no_key(endpoint),
        }
    }
}
