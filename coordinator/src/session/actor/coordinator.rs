//! What the coordinator's engine asks of the actor: what waits, and to record its turns.

use query_engine::{
    budget::WARN_PERCENT,
    ports::{Incoming, StorageError},
    state::OUTCOME_UNKNOWN,
};
use swarm_protocol::{
    Block, Message,
    event::{Event, SentEntry},
    message::Role,
    notification::NotificationKey,
    record::{Origin, RecordBody},
};

use super::{Actor, Drained};
use crate::session::{OrderError, model::SessionModel, tools};

impl Actor {
    /// What a start finds half done: a turn whose tools had acted is committed from what was recorded; workers
    /// go on or are finished.
    pub(super) async fn recover(&mut self) -> Result<(), OrderError> {
        if let Some(events) = recovered_turn(&self.model) {
            self.append(events).await?;
        }
        self.free_lost_grants().await?;
        self.recover_workers().await?;
        let owed: Vec<_> =
            self.model.tasks.iter().filter(|task| task.callback_owed).map(|task| task.id).collect();
        for task_id in owed {
            self.deliver_callback(task_id);
        }
        for open in self.model.permissions.iter().filter(|permission| permission.is_open()) {
            crate::callback::ask(&self.shared, &self.model, &open.request);
            crate::channel::ask(&self.shared, &self.model, &open.request);
        }
        Ok(())
    }

    /// Everything that waits, in order: what an uncommitted request carried, as the same bytes; then entries;
    /// then people's messages; then the roster, if it is not the one last sent.
    pub(super) fn drain(&mut self) -> Vec<Incoming> {
        let repeats = self.engine.as_ref().is_none_or(|engine| !engine.requested);
        let (incoming, drained) = drain(&self.model, &self.drained, repeats);
        self.drained.entries.extend(drained.entries);
        self.drained.messages.extend(drained.messages);
        incoming
    }

    /// Turns the engine's records into events.
    pub(super) async fn transcript(&mut self, bodies: Vec<RecordBody>) -> Result<(), StorageError> {
        let mut events = Vec::new();
        let mut added: Vec<Message> = Vec::new();
        let mut turn: Option<Event> = None;
        // The compacted history holds what was added before it.
        let mut compacted = false;
        for body in bodies {
            match body {
                RecordBody::User { message, origin: Origin::ToolResults, .. } => match &mut turn {
                    Some(Event::CoordinatorTurn { results, .. }) => *results = Some(message),
                    _ => events.push(Event::CoordinatorNote { message }),
                },
                RecordBody::User { message, .. } => added.push(message),
                RecordBody::RequestStarted { request, model, .. } => {
                    let Drained { mut entries, mut messages } = std::mem::take(&mut self.drained);
                    let mut blocks = std::mem::take(&mut added);
                    let earlier = self.model.in_flight.as_ref();
                    let same_loop = self.engine.as_ref().is_some_and(|engine| engine.requested);
                    if let Some(earlier) = earlier.filter(|_| same_loop) {
                        // The same loop asks again (room was made, another model): its conversation holds what the
                        // earlier request carried, so this one carries it too.
                        let again = earlier.entries.iter().map(|sent| SentEntry {
                            key: sent.key.clone(),
                            repeat_of: Some(earlier.request),
                            reason: Some(format!("request {} was given up", earlier.request)),
                        });
                        entries = again.chain(entries).collect();
                        messages = earlier.messages.iter().copied().chain(messages).collect();
                        if !compacted {
                            blocks = earlier.blocks.iter().cloned().chain(blocks).collect();
                        }
                    }
                    if let Some(engine) = &mut self.engine {
                        engine.requested = true;
                    }
                    compacted = false;
                    events.push(Event::CoordinatorRequest {
                        request,
                        model,
                        entries: entries.clone(),
                        messages,
                        blocks,
                    });
                    if !entries.is_empty() {
                        events.push(Event::NotificationSent { request, entries });
                    }
                }
                RecordBody::Intent { request, blocks } => {
                    events.push(Event::CoordinatorIntent { request, blocks })
                }
                RecordBody::ToolFinished(finished) => {
                    let request = self.model.last_request;
                    events.push(Event::CoordinatorTool { request, result: finished.result });
                }
                RecordBody::Assistant { message, request, model, stop_reason, usage, cost, .. } => {
                    events.extend(turn.take());
                    let in_flight =
                        self.model.in_flight.as_ref().filter(|in_flight| in_flight.request == request);
                    let entries = in_flight
                        .map(|in_flight| in_flight.entries.iter().map(|sent| sent.key.clone()).collect())
                        .unwrap_or_default();
                    turn = Some(Event::CoordinatorTurn {
                        request,
                        turn: self.model.last_turn + 1,
                        assistant: Some(message).filter(|message| !message.content.is_empty()),
                        results: None,
                        model,
                        stop_reason,
                        usage,
                        cost,
                        entries,
                        recovered: false,
                    });
                }
                RecordBody::HelperCall { purpose, model, usage, cost } => {
                    events.push(Event::CoordinatorHelper { purpose, model, usage, cost });
                }
                RecordBody::CompactBoundary(boundary) => {
                    added.clear();
                    compacted = true;
                    events.push(Event::CoordinatorCompacted { boundary: Box::new(boundary) });
                }
                // What only a worker's file needs.
                RecordBody::RunStarted(_)
                | RecordBody::CommandAccepted { .. }
                | RecordBody::PermissionRequested { .. }
                | RecordBody::PermissionWithdrawn { .. }
                | RecordBody::PermissionBid { .. }
                | RecordBody::PermissionJudged { .. }
                | RecordBody::Snapshot { .. }
                | RecordBody::ContentReplacement { .. }
                | RecordBody::Todo { .. }
                | RecordBody::TaskItem { .. }
                | RecordBody::PlanMode { .. }
                | RecordBody::GrantRequested(_)
                | RecordBody::GrantSettled { .. }
                | RecordBody::Tombstone { .. }
                | RecordBody::RunEnded(_) => {}
            }
        }
        if let Some(Event::CoordinatorTurn { request, turn: number, entries, .. }) = &turn {
            let committed = committed(*request, *number, entries.clone());
            events.extend(turn);
            events.extend(committed);
        }
        // Messages that were taken out and whose request never left (an interrupt came first) are not recorded:
        // what they carry still waits, and goes out with the next request.
        self.append(events).await.map_err(|error| StorageError { message: error.to_string() })
    }
}

fn committed(request: u64, turn: u32, keys: Vec<NotificationKey>) -> Option<Event> {
    (!keys.is_empty()).then_some(Event::NotificationCommitted { request, turn, keys })
}

/// The turn of a request whose tools had acted when the server died, from what was recorded (spec 1.5); none
/// when no tool had: then its entries simply wait.
pub(super) fn recovered_turn(model: &SessionModel) -> Option<Vec<Event>> {
    let in_flight = model.in_flight.as_ref()?;
    let blocks = in_flight.intent.clone()?;
    let assistant = Message::assistant(blocks);
    let results: Vec<Block> = assistant
        .tool_uses()
        .map(|(id, name, _)| {
            let recorded = in_flight
                .results
                .iter()
                .find(|block| matches!(block, Block::ToolResult { tool_use_id, .. } if tool_use_id == id));
            if let Some(block) = recorded {
                return block.clone();
            }
            // A spawned worker is never unknown to the conversation that spawned it.
            match model.workers.iter().find(|worker| &worker.tool_use_id == id) {
                Some(worker) => Block::tool_result(
                    id.clone(),
                    tools::spawn_answer(&worker.spec.id, worker.position, worker.spec.branch.as_deref()),
                    false,
                ),
                None if name != "Agent" => Block::tool_result(id.clone(), OUTCOME_UNKNOWN, true),
                None => Block::tool_result(
                    id.clone(),
                    format!("The server was restarted before {name} was carried out; it had no effect. Call it again if it is still wanted."),
                    true,
                ),
            }
        })
        .collect();
    let entries: Vec<NotificationKey> = in_flight.entries.iter().map(|sent| sent.key.clone()).collect();
    let request = in_flight.request;
    let turn = model.last_turn + 1;
    let mut events = vec![Event::CoordinatorTurn {
        request,
        turn,
        assistant: Some(assistant),
        results: (!results.is_empty()).then(|| Message::user(results)),
        model: model.spec.models.coordinator.display_name(),
        stop_reason: swarm_protocol::record::StopReason::Truncated,
        usage: Default::default(),
        cost: Default::default(),
        entries: entries.clone(),
        recovered: true,
    }];
    events.extend(committed(request, turn, entries));
    Some(events)
}

/// What waits, beyond what was handed out since the last request. `repeats`: an uncommitted request is one of a
/// loop that is gone; the present loop has not sent one. Pure.
pub(super) fn drain(model: &SessionModel, handed_out: &Drained, repeats: bool) -> (Vec<Incoming>, Drained) {
    let mut incoming = Vec::new();
    let mut drained = Drained::default();
    let fresh_request = handed_out.entries.is_empty() && handed_out.messages.is_empty();
    let repeated = model.in_flight.as_ref();
    if let Some(in_flight) = repeated.filter(|_| fresh_request && repeats) {
        for message in &in_flight.blocks {
            incoming.push(Incoming {
                content: message.content.clone(),
                origin: origin_of(message),
                commands: Vec::new(),
            });
        }
        for sent in &in_flight.entries {
            drained.entries.push(SentEntry {
                key: sent.key.clone(),
                repeat_of: Some(in_flight.request),
                reason: Some(format!("request {} was not committed", in_flight.request)),
            });
        }
        drained.messages.extend(in_flight.messages.iter().copied());
    }
    let known_entry = |key: &NotificationKey| {
        handed_out.entries.iter().any(|sent| &sent.key == key)
            || repeated.is_some_and(|in_flight| in_flight.entries.iter().any(|sent| &sent.key == key))
    };
    let fresh: Vec<_> =
        model.pending_entries().filter(|entry| !known_entry(&entry.notification.key)).collect();
    if !fresh.is_empty() {
        incoming.push(Incoming {
            content: fresh.iter().map(|entry| Block::text(entry.notification.render())).collect(),
            origin: Origin::Notifications,
            commands: Vec::new(),
        });
        drained.entries.extend(fresh.iter().map(|entry| SentEntry {
            key: entry.notification.key.clone(),
            repeat_of: None,
            reason: None,
        }));
    }
    let known_message = |id| {
        handed_out.messages.contains(&id)
            || repeated.is_some_and(|in_flight| in_flight.messages.contains(&id))
    };
    for waiting in model.waiting_messages.iter().filter(|waiting| !known_message(waiting.id)) {
        incoming.push(Incoming {
            content: vec![Block::text(waiting.text.clone())],
            origin: Origin::Person { message_id: Some(waiting.id) },
            commands: Vec::new(),
        });
        drained.messages.push(waiting.id);
    }
    // What was handed out since the last request holds the roster of that moment.
    let roster = roster(model).filter(|_| fresh_request || !incoming.is_empty());
    let last_sent = incoming
        .iter()
        .rev()
        .flat_map(|incoming| incoming.content.iter().rev())
        .chain(
            repeated
                .into_iter()
                .flat_map(|in_flight| in_flight.blocks.iter().rev())
                .chain(model.history.iter().rev())
                .filter(|message| message.role == Role::User)
                .flat_map(|message| message.content.iter().rev()),
        )
        .find_map(|block| block.as_text().filter(|text| text.starts_with(ROSTER_START)));
    if let Some(roster) = roster
        && last_sent != Some(roster.as_str())
    {
        incoming.push(Incoming {
            content: vec![Block::text(roster)],
            origin: Origin::Harness,
            commands: Vec::new(),
        });
    }
    (incoming, drained)
}

fn origin_of(message: &Message) -> Origin {
    match message.content.first().and_then(Block::as_text) {
        Some(text) if text.starts_with("<task-notification>") => Origin::Notifications,
        Some(text) if text.starts_with(ROSTER_START) => Origin::Harness,
        _ => Origin::Person { message_id: None },
    }
}

const ROSTER_START: &str = "<roster>";

/// The true table of the session's workers (spec 6.4); none while there are none. What changes by the second
/// (age, cost of a running worker) is not in it: it would be sent with every request.
pub(super) fn roster(model: &SessionModel) -> Option<String> {
    use std::fmt::Write as _;

    use swarm_protocol::notification::escape;
    if model.workers.is_empty() {
        return None;
    }
    let mut text = format!("{ROSTER_START}\nid | task | state | branch | last news | cost\n");
    for worker in &model.workers {
        let state = match (worker.position, worker.waiting_for) {
            (Some(position), _) => format!("pending, position {position}"),
            (None, Some(waiting_for)) => format!("waiting ({waiting_for:?})").to_lowercase(),
            (None, None) => worker.status.as_str().to_owned(),
        };
        let outcome = worker.outcome().filter(|_| worker.status.is_ended());
        let news = match outcome {
            Some(outcome) if outcome.doubts.is_empty() => {
                format!(
                    "{}, {} commits, {} files",
                    outcome.exit_reason.code(),
                    outcome.commits.len(),
                    outcome.files.len()
                )
            }
            Some(outcome) => {
                let doubts: Vec<_> = outcome.doubts.iter().map(|doubt| doubt.as_str()).collect();
                format!("{}, doubts: {}", outcome.exit_reason.code(), doubts.join(" "))
            }
            None => format!("run {}", worker.run()),
        };
        let branch = worker.spec.branch.as_deref().unwrap_or("none");
        let cost = match worker.cost().exact_usd() {
            Some(usd) if worker.status.is_ended() => format!("${usd:.2}"),
            None if worker.status.is_ended() => "unknown".to_owned(),
            _ => "-".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{} | {} | {state} | {} | {} | {cost}",
            worker.spec.id,
            escape(&worker.spec.name).replace('\n', " "),
            escape(branch),
            escape(&news),
        );
    }
    // Said once it is so; a figure would change with every request.
    if model.governor.is_warned() {
        let _ = writeln!(
            text,
            "Over {WARN_PERCENT} % of this session's budget is spent: start only what is needed to finish."
        );
    }
    text.push_str("</roster>");
    Some(text)
}

#[cfg(test)]
mod tests;
