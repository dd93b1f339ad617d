//! What the coordinator's model was told about its workers, read from the requests it got.

use std::collections::BTreeMap;

use integration_tests::model_server::{Block, RecordedRequest, Role};
use serde_json::Value;

/// A `<task-notification>` as it stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) task_id: String,
    pub(crate) status: String,
    pub(crate) text: String,
}

impl Entry {
    /// What stands between two tags; empty when they are not there.
    pub(crate) fn part(&self, tag: &str) -> &str {
        between(&self.text, &format!("<{tag}"), &format!("</{tag}>"))
            .split_once('>')
            .map_or("", |(_, text)| text)
    }

    /// The first line of `<outcome …`.
    pub(crate) fn outcome(&self) -> &str {
        between(&self.text, "<outcome ", ">")
    }
}

/// All entries in a request's history, in order.
pub(crate) fn entries(request: &RecordedRequest) -> Vec<Entry> {
    let users = request.messages.iter().filter(|message| message.role == Role::User);
    let texts = users.flat_map(|message| &message.blocks).filter_map(|block| match block {
        Block::Text { text } if text.starts_with("<task-notification>") => Some(text),
        _ => None,
    });
    texts
        .map(|text| Entry {
            task_id: between(text, "<task-id>", "</task-id>").to_owned(),
            status: between(text, "<status>", "</status>").to_owned(),
            text: text.clone(),
        })
        .collect()
}

/// The answers of `Agent` in a request's history, in order.
pub(crate) fn spawned(request: &RecordedRequest) -> Vec<Value> {
    let calls: Vec<&str> =
        request.tool_uses().filter(|(_, name, _)| *name == "Agent").map(|(id, _, _)| id).collect();
    let results = request.tool_results().filter(|(id, _, is_error)| !is_error && calls.contains(id));
    results.filter_map(|(_, text, _)| serde_json::from_str(text).ok()).collect()
}

/// Each spawned worker's end stands in this history exactly once, and nothing else does.
#[track_caller]
pub(crate) fn assert_each_once(request: &RecordedRequest, n_workers: usize) {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for answer in spawned(request) {
        count.insert(answer["task_id"].as_str().expect("Agent answers with an id").to_owned(), 0);
    }
    assert_eq!(count.len(), n_workers, "workers that the conversation knows: {count:?}");
    for entry in entries(request) {
        let known = count.get_mut(&entry.task_id);
        *known.unwrap_or_else(|| panic!("an entry of an unknown worker: {}", entry.text)) += 1;
    }
    assert!(count.values().all(|n| *n == 1), "entries by worker: {count:?}");
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let Some((_, rest)) = text.split_once(start) else { return "" };
    rest.split_once(end).map_or("", |(found, _)| found)
}
