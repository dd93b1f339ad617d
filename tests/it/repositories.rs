//! Repositories as people have them, and what becomes of a worker's tree: seen from the API.

use std::path::Path;

use integration_tests::Reply;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{Rig, Task, agent, call, id_of, prompt, write};

mod locks;
mod removal;
mod start;
mod uncommitted;
mod worktrees;
mod wrapped_git;

/// A worker that writes one file; ready to be submitted.
fn one_writer(rig: &Rig, name: &str, file: &str) {
    rig.coordinator(Reply::call("Agent", agent(name)));
    rig.model.agent(&prompt(name), [call(write(file, "new\n")), Reply::say("Written.")]);
}

async fn post(rig: &Rig, worker: &Value, what: &str, body: Value) -> (StatusCode, Value) {
    rig.api().try_post(&format!("/workers/{}/{what}", id_of(worker)), &body).await
}

fn notices(task: &Task) -> String {
    task.accepted["notices"].to_string()
}

async fn refused(rig: &Rig, repo: &Path) -> Value {
    let (status, problem) = rig.try_submit(json!({"repo": repo})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem:#}");
    assert_eq!(rig.api().get("/sessions").await, json!([]), "nothing was made");
    assert!(rig.home.worktrees().is_empty());
    problem
}
