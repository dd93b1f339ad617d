use swarm_protocol::{Message, frame::Live, record::StopReason};

use super::*;
use crate::cli::fixtures::{event, session, worker, worker_state};

const SESSION: &str = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";

fn state() -> StateView {
    StateView::new(&session(SESSION, "refactor auth module"), Seq(10), Timestamp::from_millis(0), true)
}

#[test]
fn an_event_counts_once() {
    let mut state = state();
    let mut view = worker("agent-a1b", "Investigate");
    view.status = WorkerStatus::Starting;
    let line = worker_state(11, &view, WorkerStatus::Pending);
    assert_eq!(state.apply(line.clone()), [News::Started(view.id.clone())]);
    assert_eq!(state.apply(line), []);
    assert_eq!(state.workers.len(), 1);
    assert_eq!(state.cursor, Seq(11));
}

#[test]
fn what_ended_says_how() {
    let mut state = state();
    let mut view = worker("agent-a1b", "Investigate");
    state.apply(worker_state(11, &view, WorkerStatus::Starting));
    view.status = WorkerStatus::Completed;
    view.ended_at = Some(Timestamp::from_millis(5_000));
    view.files_changed = 2;
    let news = state.apply(worker_state(12, &view, WorkerStatus::Finishing));
    assert_eq!(news, [News::Ended(view.id.clone())]);
    assert_eq!(state.worker(&view.id).unwrap().files_changed, 2);
    assert_eq!(state.worker(&view.id).unwrap().age(Timestamp::from_millis(99_000)), 5_000);
}

#[test]
fn words_come_in_whole_lines_and_once() {
    let mut state = state();
    let delta = |text: &str| {
        event(
            None,
            Event::Live {
                worker_id: None,
                after: Seq(10),
                live: Live::TextDelta { text: text.to_owned(), thinking: false },
            },
        )
    };
    assert_eq!(state.apply(delta("I split ")), []);
    assert_eq!(state.apply(delta("this\nin two")), [News::Words(vec!["I split this".to_owned()])]);
    assert_eq!(state.words.half(), "in two");
    let turn = Event::CoordinatorTurn {
        request: 1,
        turn: 1,
        assistant: Some(Message::assistant(vec![swarm_protocol::Block::text("I split this\nin two parts.")])),
        results: None,
        model: "m".to_owned(),
        stop_reason: StopReason::EndTurn,
        usage: Usage { input_tokens: 5, ..Usage::default() },
        cost: Cost::usd(0.5),
        entries: Vec::new(),
        recovered: false,
    };
    assert_eq!(state.apply(event(Some(11), turn)), [News::Words(vec!["in two parts.".to_owned()])]);
    assert_eq!(state.usage().total(), 5);
    assert_eq!(state.words.half(), "");
}

#[test]
fn an_answered_request_is_gone() {
    let mut state = state();
    let view = crate::cli::fixtures::permission("req-3f2", "agent-h7q", "pip install x");
    let asked = Event::PermissionRequested { request: Box::new(view.request.clone()) };
    assert_eq!(state.apply(event(Some(11), asked)).len(), 1);
    assert_eq!(state.asks.len(), 1);
    let decision = PermissionDecision {
        id: view.request.id.clone(),
        decision: swarm_protocol::permission::Decision::Allow,
        scope: swarm_protocol::permission::Scope::Once,
        by: swarm_protocol::permission::Racer::Person,
        source: None,
        args_hash: String::new(),
        reason: None,
        stop: false,
        decided_at: Timestamp::from_millis(0),
    };
    let worker_id = view.request.worker_id.clone();
    state.apply(event(Some(12), Event::PermissionDecided { worker_id, decision, wrote_rule: None }));
    assert!(state.asks.is_empty());
}

#[test]
fn records_after_a_view_add_to_it() {
    let mut state = state();
    let mut view = worker("agent-a1b", "Investigate");
    view.usage.input_tokens = 100;
    view.cost_usd = Some(0.25);
    state.apply(worker_state(11, &view, WorkerStatus::Starting));
    let record = crate::cli::fixtures::record_head("assistant", 50, Some(Cost::usd(0.25)));
    state.apply(event(Some(12), Event::WorkerRecord { worker_id: view.id.clone(), record, started: None }));
    let row = state.worker(&view.id).unwrap();
    assert_eq!(row.usage.input_tokens, 150);
    assert_eq!(row.cost_usd, Some(0.5));
}
