//! The control endpoint, for tests and programs that run in another process than the server.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Shared, script::Script};

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/requests", get(requests))
        .route("/violations", get(violations))
        .route("/break", post(declare_break))
        .route("/script", post(script))
        .route("/gates/{name}/open", post(open_gate))
        .route("/gates/{name}", get(gate))
        .route("/clock", get(clock).post(advance_clock))
        .route("/shutdown", post(shutdown))
}

async fn requests(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let requests = shared.requests();
    let requests: Vec<Value> = requests.iter().map(|request| request.to_json()).collect();
    Json(json!({"requests": requests, "peak_concurrency": shared.peak()}))
}

async fn violations(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"violations": shared.violations()}))
}

#[derive(Debug, Deserialize)]
struct DeclaredBreak {
    /// Part of the conversation's first user text; null: any conversation.
    conversation: Option<String>,
    /// How many changes it covers; left out: one.
    #[serde(default = "once")]
    times: Option<usize>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form serde wants of a default")]
fn once() -> Option<usize> {
    Some(1)
}

async fn declare_break(State(shared): State<Arc<Shared>>, Json(declared): Json<DeclaredBreak>) -> StatusCode {
    shared.declare_break(declared.conversation, declared.times);
    StatusCode::NO_CONTENT
}

async fn script(State(shared): State<Arc<Shared>>, Json(script): Json<Value>) -> impl IntoResponse {
    match serde_json::from_value::<Script>(script) {
        Ok(script) => {
            shared.add_script(script);
            (StatusCode::NO_CONTENT, String::new())
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    }
}

async fn open_gate(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> StatusCode {
    shared.gates.get(&name).open();
    StatusCode::NO_CONTENT
}

async fn gate(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Json<Value> {
    let gate = shared.gates.get(&name);
    Json(json!({"open": gate.is_open(), "waiting": gate.waiting()}))
}

/// The clock of the simulated cache, in seconds since the server's start.
async fn clock(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"now": shared.clock.now().as_secs_f64()}))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    /// How much older all entries become.
    seconds: u64,
}

async fn advance_clock(State(shared): State<Arc<Shared>>, Json(advance): Json<Advance>) -> Json<Value> {
    shared.clock.advance(Duration::from_secs(advance.seconds));
    clock(State(shared)).await
}

async fn shutdown(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.stop.cancel();
    StatusCode::NO_CONTENT
}
