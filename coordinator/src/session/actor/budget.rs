//! Leave to spend from the session's budget (spec 10.1): answers follow from the table as it stands, so that none is
//! lost or given twice.

use query_engine::{
    budget::{Budget, WARN_PERCENT},
    ports::{Grant, PlannedCall},
};
use swarm_protocol::{
    Usage, WorkerId,
    event::{BudgetChange, Event},
    frame::Command,
    launch::ModelEndpoint,
    notification::{NotificationKey, NotificationKind},
    record::GrantRequest,
    usage::{Caps, Cost},
};

use super::{Actor, people::progress};
use crate::{
    governor::{Decision, Governor},
    session::{OrderError, model::SessionModel},
};

impl Actor {
    /// A worker has spent most of its own budget: news for the coordinator, once, which wakes nobody.
    pub(super) async fn report_budgets(&mut self) -> Result<(), OrderError> {
        let Caps { usd, tokens } = self.model.spec.worker_limits.budget;
        let budget = Budget { usd, tokens };
        if !budget.is_capped() {
            return Ok(());
        }
        let is_told = |worker_id: &WorkerId| {
            self.model.fifo.iter().any(|entry| {
                let NotificationKey { worker_id: of, kind, n, run: _ } = &entry.notification.key;
                of == worker_id && *kind == NotificationKind::Progress && *n == 0
            })
        };
        let mut events = Vec::new();
        for worker in self.model.workers.iter().filter(|worker| worker.status.takes_place()) {
            let percent = budget.percent(&worker.usage(), &worker.cost()).unwrap_or(0);
            if percent >= WARN_PERCENT && !is_told(&worker.spec.id) {
                let summary = format!("Agent \"{}\" has spent {percent} % of its budget", worker.spec.name);
                events.push(progress(&worker.spec.id, worker.run(), 0, summary));
            }
        }
        self.append(events).await
    }

    /// Answers every request that can be answered, the coordinator's first. A grant is journaled before it is sent.
    pub(super) async fn serve_grants(&mut self) -> Result<(), OrderError> {
        if !self.model.governor.caps().is_capped() {
            return Ok(());
        }
        self.serve_coordinator().await?;
        let (events, workers) = answers(&self.model);
        self.append(events).await?;
        for worker_id in workers {
            self.send_pending(&worker_id);
        }
        match self.model.governor.warning() {
            Some(percent) => {
                let change = BudgetChange::Warned { percent };
                self.append(vec![Event::Budget { worker_id: None, change }]).await
            }
            None => Ok(()),
        }
    }

    async fn serve_coordinator(&mut self) -> Result<(), OrderError> {
        // A closed reply is a question that was taken back.
        let Some((call, reply)) = self.asks.take().filter(|(_, reply)| !reply.is_closed()) else {
            return Ok(());
        };
        let governor = &self.model.governor;
        let endpoint = endpoint(&self.model, None, &call.model);
        let price = |usage: &Usage| price(endpoint, usage);
        let grant = governor.next_of_coordinator();
        let (answer, change) = match governor.decide(&None, &call, false, &price) {
            Decision::Wait => {
                self.asks = Some((call, reply));
                return Ok(());
            }
            Decision::Granted { amount, max_tokens } => {
                (Grant::Call { max_tokens }, BudgetChange::Granted { grant, amount })
            }
            Decision::Refused { budget } => {
                (Grant::Spent { budget: budget.clone() }, BudgetChange::Refused { grant, budget })
            }
        };
        if let Err(error) = self.append(vec![Event::Budget { worker_id: None, change }]).await {
            // It is asked again when the journal can be written.
            self.asks = Some((call, reply));
            return Err(error);
        }
        // Dropped meanwhile: the next grant of the coordinator replaces this one.
        reply.send(answer).ok();
        Ok(())
    }

    /// The loop of a server that died makes no call any more.
    pub(super) async fn free_lost_grants(&mut self) -> Result<(), OrderError> {
        let grants = self.model.governor.coordinator_grants();
        if grants.is_empty() {
            return Ok(());
        }
        let reason = "the server was started again".to_owned();
        self.append(vec![Event::Budget { worker_id: None, change: BudgetChange::Freed { grants, reason } }])
            .await
    }
}

/// The answers to workers, as the table stands, and who gets them. Each is made with those before it in force.
fn answers(model: &SessionModel) -> (Vec<Event>, Vec<WorkerId>) {
    let mut governor: Governor = model.governor.clone();
    let mut events = Vec::new();
    let mut workers = Vec::new();
    for (worker_id, request) in governor.waiting() {
        let GrantRequest { grant, model: name, input_tokens, max_tokens, ahead, returns: _ } = request;
        let endpoint = endpoint(model, Some(&worker_id), &name);
        let price = |usage: &Usage| price(endpoint, usage);
        let call = PlannedCall { model: name.clone(), input_tokens, max_tokens };
        let spender = Some(worker_id.clone());
        let (change, command) = match governor.decide(&spender, &call, ahead, &price) {
            Decision::Wait => continue,
            Decision::Granted { amount, .. } => {
                (BudgetChange::Granted { grant, amount }, Command::Grant { grant, amount })
            }
            Decision::Refused { budget } => {
                (BudgetChange::Refused { grant, budget: budget.clone() }, Command::NoGrant { grant, budget })
            }
        };
        governor.apply(&spender, &change);
        events.push(Event::Budget { worker_id: spender, change });
        events.push(Event::WorkerCommand { worker_id: worker_id.clone(), command });
        workers.push(worker_id);
    }
    (events, workers)
}

/// The endpoint that a spender means by a name.
fn endpoint<'a>(model: &'a SessionModel, worker: Option<&WorkerId>, name: &str) -> Option<&'a ModelEndpoint> {
    let models = &model.spec.models;
    let own = worker.and_then(|worker_id| model.worker(worker_id)).map(|worker| &worker.spec.model);
    [own, Some(&models.coordinator), models.helper.as_ref(), models.fallback.as_ref()]
        .into_iter()
        .flatten()
        .find(|endpoint| endpoint.display_name() == name)
}

fn price(endpoint: Option<&ModelEndpoint>, usage: &Usage) -> Cost {
    match endpoint {
        Some(endpoint) if endpoint.api == swarm_protocol::launch::ApiKind::Demo => Cost::usd(0.0),
        Some(endpoint) => model_client::cost(endpoint, &endpoint.model, usage),
        None => Cost::unknown(),
    }
}
