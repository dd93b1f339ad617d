//! Tasks: submit and look.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use rusqlite::OptionalExtension;
use swarm_protocol::{
    TaskId,
    api::{CreateTask, Problem, TaskAccepted, TaskView},
};

use super::{
    json::{Body, Id},
    limits::Caller,
    problem::Fault,
};
use crate::{clock, server::Shared, session::views, sessions, submit, workers::run::sha256_hex};

/// How long a repeated key gets the first answer, in milliseconds.
const KEY_LIFE_MS: i64 = 24 * 60 * 60 * 1000;

/// Submits a task. A repeat with the same `Idempotency-Key` within 24 h gets the first answer.
#[utoipa::path(post, path = "/tasks", request_body = CreateTask,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202, body = TaskAccepted), (status = 422, body = Problem), (status = 409, body = Problem),
        (status = 429, body = Problem, description = "More than server.tasks_per_minute; `retry-after` says when to come again",
            headers(("retry-after" = u64)))))]
pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(task): Body<CreateTask>,
) -> Result<Response, Fault> {
    shared.limits.task(&caller)?;
    let key = match headers.get("idempotency-key").map(|value| value.to_str()) {
        None => None,
        Some(Ok(key)) if (1..=255).contains(&key.len()) => Some(key.to_owned()),
        Some(_) => return Err(Fault::bad_request("Idempotency-Key must be 1 to 255 visible characters")),
    };
    let Some(key) = key else {
        return Ok((StatusCode::ACCEPTED, Json(submit::submit(&shared, task).await?)).into_response());
    };
    // In a task of its own: a caller that hangs up half way must not leave a task without its key.
    let work = tokio::spawn(async move { create_once(&shared, key, task).await });
    work.await
        .map_err(|error| Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?
}

async fn create_once(shared: &Arc<Shared>, key: String, task: CreateTask) -> Result<Response, Fault> {
    // Secrets are no part of what makes two requests the same.
    let mut plain = task.clone();
    plain.client = None;
    let request = sha256_hex(serde_json::to_vec(&plain).unwrap_or_default().as_slice());
    // One request of a key at a time: a double click starts one task.
    let _turn = shared.idempotency.lock().await;
    if let Some(answer) = known_answer(shared, &key, &request).await? {
        return Ok(answer);
    }
    let accepted = submit::submit(shared, task).await?;
    remember(shared, key, request, &accepted).await?;
    Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
}

async fn known_answer(shared: &Shared, key: &str, request: &str) -> Result<Option<Response>, Fault> {
    let wanted = key.to_owned();
    let oldest = clock::now().as_millis() - KEY_LIFE_MS;
    let found: Option<(String, String)> = shared
        .journal
        .query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT request_sha256, body FROM idempotency WHERE key = ?1 AND created_ms > ?2",
            )?;
            Ok(statement.query_row((wanted, oldest), |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
        })
        .await?;
    match found {
        None => Ok(None),
        Some((known, _)) if known != request => Err(Fault::new(
            StatusCode::CONFLICT,
            "idempotency_key_reused",
            "this Idempotency-Key came with another request before",
        )),
        Some((_, body)) => {
            let accepted: TaskAccepted = serde_json::from_str(&body).map_err(|error| {
                Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "storage", error.to_string())
            })?;
            Ok(Some((StatusCode::ACCEPTED, Json(accepted)).into_response()))
        }
    }
}

async fn remember(
    shared: &Shared,
    key: String,
    request: String,
    accepted: &TaskAccepted,
) -> Result<(), Fault> {
    let body = serde_json::to_string(accepted).unwrap_or_default();
    let now = clock::now().as_millis();
    shared
        .journal
        .write(move |transaction| {
            transaction.execute("DELETE FROM idempotency WHERE created_ms <= ?1", [now - KEY_LIFE_MS])?;
            transaction.execute(
                "INSERT OR REPLACE INTO idempotency (key, request_sha256, created_ms, status, body) VALUES (?1, ?2, ?3, 202, ?4)",
                (key, request, now, body),
            )?;
            Ok(())
        })
        .await?;
    Ok(())
}

/// Where a task stands and how it came out.
#[utoipa::path(get, path = "/tasks/{id}", params(("id" = String, Path)),
    responses((status = 200, body = TaskView), (status = 404, body = Problem)))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<TaskId>,
) -> Result<Json<TaskView>, Fault> {
    let unknown = || Fault::unknown_id("task", &id.to_string());
    let handle = sessions::of_task(&shared, id).await?.ok_or_else(unknown)?;
    let now = clock::now();
    let view =
        handle.read(move |model| model.task(id).map(|task| views::task_view(model, task, now))).await?;
    view.map(Json).ok_or_else(unknown)
}
