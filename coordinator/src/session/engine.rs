//! The coordinator's loop: the engine with the session's actor behind its ports.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_host::secrets::LiveMasker;
use async_trait::async_trait;
use futures::StreamExt as _;
use query_engine::{
    Cancel, Counters, Engine, EngineConfig, LoopState, Ports,
    driver::Keepalive,
    ports::{
        BeforeEnd, Durability, Gate, GateAnswer, Grant, Grants, Inbox, Incoming, Model, NoHooks, Observer,
        PlannedCall, Prefix, StorageError, Surroundings, Tool, ToolContext, Transcript,
    },
};
use serde_json::Value;
use swarm_protocol::{
    Block, ExitReason, Message, RunNumber, Seq, SessionId, Timestamp, ToolUseId, Usage,
    event::{Event, EventLine, SessionSpec},
    frame::Live,
    launch::ModelEndpoint,
    message::Role,
    notification::{
        CheckResult, Notification, NotificationKey, NotificationKind, NotificationStatus, Outcome,
    },
    record::{Origin, RecordBody},
    usage::Cost,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    KeyRing, Order, SessionHandle, actor::pacing::paced, model::SessionModel, prompt, relay::Relay, tools,
};
use crate::{clock, journal::Journal as _, opening, server::Shared};

/// Why the loop cannot begin.
#[derive(Debug)]
pub(crate) enum StartError {
    /// A key is missing.
    NoKey { endpoint: String },
    /// Something else of the model's configuration.
    Other(String),
}

/// The prefix of a new session's coordinator: built once, kept by its hash.
pub(crate) fn new_prefix(spec: &SessionSpec) -> Prefix {
    let mut system = vec![prompt::system_prompt(&example())];
    if let Some(check) = &spec.check {
        system.push(format!("The project's check command is: {check}"));
    }
    system.extend(spec.system_prompt.clone());
    Prefix { system, tools: tools::specs() }
}

/// Begins the loop with the conversation as it stands.
pub(crate) fn start(
    shared: &Arc<Shared>,
    model: &SessionModel,
    keys: &KeyRing,
    handle: &SessionHandle,
    compact: bool,
) -> Result<(CancellationToken, AbortOnDropHandle<()>), StartError> {
    let models = &model.spec.models;
    let actor = Arc::new(ActorPort {
        handle: handle.clone(),
        shared: Arc::clone(shared),
        session: model.id,
        spec: model.spec.clone(),
        results: shared.home.project(&model.spec.repo_key).join(model.id.to_string()).join("results"),
        live_masker: Mutex::new(LiveMasker::new(shared.masker.clone())),
    });
    let observer: Arc<dyn Observer> = actor.clone();
    let connect = |endpoint| {
        let connected = shared.connect(endpoint, keys)?;
        Ok(paced(shared, model, keys, endpoint, connected, &observer))
    };
    let is_solo = model.spec.solo;
    let thinks = |_: &&ModelEndpoint| !is_solo;
    let fallback = models.fallback.as_ref().filter(thinks).map(connect).transpose()?;
    let helper = models.helper.as_ref().filter(thinks).map(connect).transpose()?;
    let main: Arc<dyn Model> =
        if is_solo { Arc::new(Relay::new(handle.clone())) } else { connect(&models.coordinator)? };
    let desk = tools::Desk {
        handle: handle.clone(),
        repo: model.spec.repo.clone(),
        base: model.spec.base.clone(),
        worker_model: models.worker.clone(),
        is_relay: is_solo,
        needs_prices: model.spec.budget.usd.is_some() || model.spec.worker_limits.budget.usd.is_some(),
    };
    let tools = tools::tools(desk);
    let prefix = match agent_host::load_prefix(&shared.home.prompts(), &model.spec.prefix_sha256) {
        Some(prefix) => prefix,
        None => new_prefix(&model.spec),
    };
    let mut config = EngineConfig::new(prefix);
    let turns = model.open_task().map_or(0, |task| task.turns);
    config.max_turns = Some(model.spec.coordinator_max_turns.saturating_sub(turns).max(1));
    if !is_solo {
        config.context_window = models.coordinator.context_window;
        config.cache_ttl = models.coordinator.cache_ttl();
        config.keepalive = model.spec.worker_limits.cache_keepalive;
    }
    let ports = Ports {
        model: main,
        fallback,
        helper,
        tools,
        gate: Arc::new(Open),
        transcript: actor.clone(),
        inbox: actor.clone(),
        grants: actor.clone(),
        hooks: Arc::new(NoHooks),
        surroundings: actor,
        observer,
    };
    let state = restored(model);
    let cancel = Cancel::default();
    let interrupt = cancel.interrupt.clone();
    let handle = handle.clone();
    let task = tokio::spawn(async move {
        let running = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut engine = Engine::new(config, ports, state);
            if compact {
                engine.compact_first();
            }
            let exit = engine.run(&cancel).await.exit;
            (exit, engine.keepalive())
        }));
        // A panic of the loop is an end too: without it the session would stay active for ever.
        let (exit, keepalive) = running.await.unwrap_or_else(|error| {
            let message = format!("the loop broke: {error}");
            (ExitReason::ModelError { error: "internal".to_owned(), message, retry_at: None }, None)
        });
        // The actor is gone only when the server stops.
        handle.tell(Order::EngineEnded(exit, keepalive.map(Box::new))).await.ok();
    });
    Ok((interrupt, AbortOnDropHandle::new(task)))
}

/// Keeps the coordinator's cache alive while it waits, until the token is cancelled.
pub(crate) fn keep_alive(
    handle: &SessionHandle,
    keepalive: Keepalive,
) -> (CancellationToken, AbortOnDropHandle<()>) {
    let (handle, over) = (handle.clone(), keepalive.over());
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut reads = keepalive.reads();
        while let Some(warmed) = reads.next().await {
            let written = handle.ask(|reply| Order::Transcript(vec![warmed.record()], reply)).await;
            if !matches!(written, Ok(Ok(()))) {
                tracing::warn!("what a keepalive used could not be recorded; no more are made");
                return;
            }
        }
    }));
    (over, task)
}

/// The loop's state from the session's.
pub(crate) fn restored(model: &SessionModel) -> LoopState {
    let person: Vec<Message> = model
        .history
        .iter()
        .filter(|message| message.role == Role::User && is_persons(message))
        .cloned()
        .collect();
    let counters = Counters {
        turns_total: model.last_turn,
        request: model.last_request,
        usage: model.own_usage,
        cost: model.own_cost,
        ..Counters::default()
    };
    LoopState::restored(model.history.clone(), person, counters)
}

fn is_persons(message: &Message) -> bool {
    match message.content.first() {
        Some(Block::Text { text }) => {
            !text.starts_with("<task-notification>") && !text.starts_with("<roster>")
        }
        _ => false,
    }
}

/// The coordinator's tools touch nothing that asks.
struct Open;

#[async_trait]
impl Gate for Open {
    async fn check(&self, _: &dyn Tool, _: &Value, _: &ToolContext) -> GateAnswer {
        GateAnswer::Allow
    }
}

/// The actor, as the engine sees it.
struct ActorPort {
    handle: SessionHandle,
    shared: Arc<Shared>,
    session: SessionId,
    spec: SessionSpec,
    results: PathBuf,
    /// Takes keys out of what is shown live.
    live_masker: Mutex<LiveMasker>,
}

#[async_trait]
impl Transcript for ActorPort {
    async fn append(&self, batch: Vec<RecordBody>, _: Durability) -> Result<(), StorageError> {
        // Words that are recorded are whole.
        let rest = self.live_masker().rest();
        self.publish(rest);
        // The journal is durable at once, whatever is asked for.
        self.handle
            .ask(|reply| Order::Transcript(batch, reply))
            .await
            .map_err(|error| StorageError { message: error.to_string() })?
    }
}

#[async_trait]
impl Grants for ActorPort {
    /// What a relay says costs nothing.
    fn is_capped(&self) -> bool {
        self.spec.budget.is_capped() && !self.spec.solo
    }

    async fn grant(&self, call: &PlannedCall) -> Grant {
        if !self.is_capped() {
            return Grant::Call { max_tokens: call.max_tokens };
        }
        match self.handle.ask(|reply| Order::Grant(call.clone(), reply)).await {
            Ok(grant) => grant,
            // The server stops, and this loop with it.
            Err(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Inbox for ActorPort {
    async fn drain(&self) -> Vec<Incoming> {
        let Ok((first, mut incoming)) = self.take_out().await else { return Vec::new() };
        // The agent looks around by itself.
        if self.spec.solo {
            return incoming;
        }
        let mut first = first;
        for entry in &mut incoming {
            if matches!(entry.origin, Origin::Person { message_id: Some(_) }) {
                let mut content = opening::blocks(&self.shared, &self.spec, first).await;
                content.append(&mut entry.content);
                entry.content = content;
                first = false;
            }
        }
        incoming
    }

    async fn before_end(&self, _: &CancellationToken) -> BeforeEnd {
        BeforeEnd::End
    }
}

impl ActorPort {
    fn live_masker(&self) -> MutexGuard<'_, LiveMasker> {
        self.live_masker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, news: impl IntoIterator<Item = Live>) {
        for live in news {
            self.shared.journal.publish_live(EventLine {
                seq: None,
                at: clock::now(),
                session_id: Some(self.session),
                position: None,
                event: Event::Live { worker_id: None, after: self.shared.live.seq(self.session), live },
            });
        }
    }

    async fn take_out(&self) -> Result<(bool, Vec<Incoming>), super::OrderError> {
        let first = self.handle.read(|model| model.history.is_empty() && model.in_flight.is_none()).await?;
        let incoming = self.handle.ask(Order::Drain).await?;
        Ok((first, incoming))
    }
}

#[async_trait]
impl Surroundings for ActorPort {
    fn now(&self) -> Timestamp {
        clock::now()
    }

    /// The roster and git's state go with what is drained; nothing else is due.
    async fn after_turn(&self, _: bool) -> Vec<Block> {
        Vec::new()
    }

    async fn keep_result(&self, tool_use_id: &ToolUseId, text: &str) -> Result<String, StorageError> {
        let name: String =
            tool_use_id.as_str().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let directory = self.results.clone();
        let path = directory.join(format!("{name}.txt"));
        let shown = path.to_string_lossy().into_owned();
        let text = text.to_owned();
        let written = tokio::task::spawn_blocking(move || {
            crate::home::private_dir(&directory).map_err(|error| error.to_string())?;
            crate::home::write_private(&path, text.as_bytes()).map_err(|error| error.to_string())
        })
        .await;
        match written {
            Ok(Ok(())) => Ok(shown),
            Ok(Err(message)) => Err(StorageError { message }),
            Err(error) => Err(StorageError { message: error.to_string() }),
        }
    }

    async fn after_compaction(&self, _: u64) -> Vec<Block> {
        if self.spec.solo {
            return Vec::new();
        }
        opening::blocks(&self.shared, &self.spec, true).await
    }
}

impl Observer for ActorPort {
    fn live(&self, live: Live) {
        let shown = self.live_masker().shown(live);
        self.publish(shown);
    }
}

/// The example the system prompt announces; rendered by the one renderer.
fn example() -> Notification {
    let worker_id = "agent-a1b".parse().expect("the example's id is wellformed: a test renders it");
    Notification {
        key: NotificationKey { worker_id, run: RunNumber::FIRST, kind: NotificationKind::End, n: 0 },
        seq: Seq(0),
        status: NotificationStatus::Completed,
        summary: "Agent \"Investigate auth bug\" completed".to_owned(),
        result: "Found null pointer in src/auth/validate.ts:42".to_owned(),
        result_from_earlier: false,
        outcome: Some(Box::new(Outcome {
            branch: Some("swarm/7c1d09e2/agent-a1b/investigate-auth-bug".to_owned()),
            commits: vec![String::new()],
            files: vec![swarm_protocol::notification::FileChange {
                path: "src/auth/validate.ts".to_owned(),
                added: Some(14),
                removed: Some(3),
            }],
            check: CheckResult::Passed,
            ..Outcome::without_work(ExitReason::Completed)
        })),
        turns: 14,
        usage: Usage { input_tokens: 31_000, output_tokens: 2_100, ..Usage::default() },
        cost: Cost::usd(0.31),
        duration_ms: 151_000,
        enqueued_at: Timestamp::from_millis(0),
        after_stop: false,
    }
}
