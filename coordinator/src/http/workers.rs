//! Workers: look, steer, review.

use std::sync::Arc;

use agent_host::transcript;
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use swarm_protocol::{
    SessionId, WorkerId,
    api::{
        DiffView, DiscardView, ExplainView, MergeBody, MergeView, MessageAccepted, Problem, RestoreBody,
        RestoreView, SendMessageBody, SnapshotView, StopBody, StopView, TranscriptPage, WorkerDetail,
        WorkerView,
    },
};
use worktree_manager::Force;

use super::{
    json::{Asked, Body, Id},
    problem::Fault,
    sessions::with_extras,
};
use crate::{
    clock, review,
    server::Shared,
    session::{Order, SessionHandle, WorkerMessage, views},
    sessions,
};

/// Records in a page, unless asked for fewer.
const PAGE: usize = 200;

/// Records in a page at the most.
const LARGEST_PAGE: usize = 1_000;

async fn find(shared: &Shared, id: &WorkerId) -> Result<SessionHandle, Fault> {
    match sessions::of_worker(shared, id).await? {
        Some(handle) => Ok(handle),
        None => Err(Fault::unknown_id("worker", id.as_str())),
    }
}

/// Runs what changes git and then tells the journal, whether or not the caller waits for it: the two belong
/// together.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, review::ReviewError>> + Send + 'static,
) -> Result<Json<T>, Fault> {
    match tokio::spawn(work).await {
        Ok(done) => Ok(Json(done?)),
        Err(error) => Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())),
    }
}

/// Which workers are listed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct ListQuery {
    /// Only those of this session.
    session: Option<SessionId>,
}

/// Workers of all sessions, or of one, in spawn order.
#[utoipa::path(get, path = "/workers", params(ListQuery), responses((status = 200, body = Vec<WorkerView>)))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Vec<WorkerView>>, Fault> {
    let handles = match query.session {
        Some(id) => {
            vec![shared.sessions.get(id).ok_or_else(|| Fault::unknown_id("session", &id.to_string()))?]
        }
        None => shared.sessions.all(),
    };
    let mut all = Vec::new();
    for handle in handles {
        let shared = Arc::clone(&shared);
        all.extend(
            handle
                .read(move |model| {
                    let now = clock::now();
                    let view = |worker: &crate::session::model::WorkerModel| {
                        views::worker_view(model, worker, shared.live.get(&worker.spec.id).as_ref(), now)
                    };
                    model.workers.iter().map(view).collect::<Vec<_>>()
                })
                .await?,
        );
    }
    all.sort_by(|left, right| (left.spawned_at, &left.id).cmp(&(right.spawned_at, &right.id)));
    Ok(Json(all))
}

/// One worker, with its outcome and the way of its news.
#[utoipa::path(get, path = "/workers/{id}", params(("id" = String, Path)),
    responses((status = 200, body = WorkerDetail), (status = 404, body = Problem)))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
) -> Result<Json<WorkerDetail>, Fault> {
    let handle = find(&shared, &id).await?;
    let unknown = Fault::unknown_id("worker", id.as_str());
    let path = transcript_path(&shared, &handle, &id).await?;
    let detail = handle
        .read(move |model| {
            let worker = model.worker(&id)?;
            Some(with_extras(&shared, model, |extras| views::worker_detail(model, worker, extras)))
        })
        .await?;
    let mut detail = detail.ok_or(unknown)?;
    detail.todo = last_todo(path).await;
    Ok(Json(detail))
}

async fn transcript_path(
    shared: &Shared,
    handle: &SessionHandle,
    id: &WorkerId,
) -> Result<std::path::PathBuf, Fault> {
    let key = handle.read(|model| model.spec.repo_key.clone()).await?;
    Ok(shared.home.transcript(&key, handle.id, id))
}

/// The to-do list as last recorded; the transcript has it, the journal only heads.
async fn last_todo(path: std::path::PathBuf) -> Vec<swarm_protocol::record::TodoItem> {
    // A detail of the view: where it cannot be read, the rest is shown without it.
    tokio::task::spawn_blocking(move || transcript::read_todo(&path))
        .await
        .ok()
        .and_then(|read| {
            read.inspect_err(|error| tracing::warn!(%error, "a to-do list could not be read")).ok()
        })
        .unwrap_or_default()
}

/// Which records.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct TranscriptQuery {
    /// Records after this number; 0 begins at the start.
    #[serde(default)]
    after: u64,
    /// How many, at most 1,000.
    limit: Option<usize>,
}

/// A page of a worker's transcript, bodies included.
#[utoipa::path(get, path = "/workers/{id}/transcript", params(("id" = String, Path), TranscriptQuery),
    responses((status = 200, body = TranscriptPage), (status = 404, body = Problem)))]
pub(super) async fn transcript(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Asked(query): Asked<TranscriptQuery>,
) -> Result<Json<TranscriptPage>, Fault> {
    let handle = find(&shared, &id).await?;
    let path = transcript_path(&shared, &handle, &id).await?;
    let last = handle
        .read(move |model| model.worker(&id).and_then(|worker| worker.last_record).map_or(0, |mark| mark.n))
        .await?;
    let limit = query.limit.unwrap_or(PAGE).clamp(1, LARGEST_PAGE);
    let read = tokio::task::spawn_blocking(move || match transcript::read_page(&path, query.after, limit) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        page => page.map(Some),
    })
    .await;
    let page = match read {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => {
            return Err(Fault::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "storage",
                format!("the transcript cannot be read: {error}"),
            ));
        }
        Err(error) => {
            return Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()));
        }
    };
    let page = page.unwrap_or_default();
    let records: Vec<_> = page.records.into_iter().map(|stored| stored.record).collect();
    let last = records.last().map_or(last, |record| record.n.max(last));
    Ok(Json(TranscriptPage { records, last, damaged_lines: page.bad_lines }))
}

/// How much of a diff.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct DiffQuery {
    /// Figures alone.
    #[serde(default)]
    stat: bool,
}

/// A worker's branch against its base.
#[utoipa::path(get, path = "/workers/{id}/diff", params(("id" = String, Path), DiffQuery),
    responses((status = 200, body = DiffView), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn diff(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Asked(query): Asked<DiffQuery>,
) -> Result<Json<DiffView>, Fault> {
    let handle = find(&shared, &id).await?;
    Ok(Json(review::diff(&shared, &handle, &id, query.stat).await?))
}

/// Snapshots of a worker's tree.
#[utoipa::path(get, path = "/workers/{id}/snapshots", params(("id" = String, Path)),
    responses((status = 200, body = Vec<SnapshotView>), (status = 404, body = Problem)))]
pub(super) async fn snapshots(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
) -> Result<Json<Vec<SnapshotView>>, Fault> {
    let handle = find(&shared, &id).await?;
    Ok(Json(review::snapshots(&shared, &handle, &id).await?))
}

/// Sends a message to a worker; a finished one goes on with it.
#[utoipa::path(post, path = "/workers/{id}/messages", params(("id" = String, Path)), request_body = SendMessageBody,
    responses((status = 202, body = MessageAccepted), (status = 404, body = Problem)))]
pub(super) async fn message(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Body(body): Body<SendMessageBody>,
) -> Result<(StatusCode, Json<MessageAccepted>), Fault> {
    let handle = find(&shared, &id).await?;
    if body.text.trim().is_empty() {
        return Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "empty_message", "the message is empty"));
    }
    let message = WorkerMessage { to: id.to_string(), text: body.text, from_person: true };
    let sent = handle.try_ask(|reply| Order::WorkerMessage(message, reply)).await?;
    let (status, note) = match (sent.revived, sent.position) {
        (true, Some(position)) => ("revived", format!("run {} waits at place {position}", sent.run)),
        (true, None) => ("revived", format!("run {} begins", sent.run)),
        (false, _) => ("queued", format!("queued for {}, read before its next turn", id.suffix())),
    };
    let accepted = MessageAccepted { message_id: None, task_id: None, status: status.to_owned(), note };
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

/// Stops a worker; its work is committed.
#[utoipa::path(post, path = "/workers/{id}/stop", params(("id" = String, Path)), request_body = StopBody,
    responses((status = 200, body = StopView), (status = 404, body = Problem)))]
pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Body(body): Body<StopBody>,
) -> Result<Json<StopView>, Fault> {
    let handle = find(&shared, &id).await?;
    let reason = body.reason.unwrap_or_else(|| "stopped by a person".to_owned());
    let to = id.to_string();
    let stopping = handle.try_ask(|reply| Order::WorkerStop { to, reason, by_person: true, reply }).await?;
    Ok(Json(StopView { stopping: stopping.workers, already: stopping.already }))
}

/// Merges a worker's branch, or says why nothing moved.
#[utoipa::path(post, path = "/workers/{id}/merge", params(("id" = String, Path)), request_body = MergeBody,
    responses((status = 200, body = MergeView), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn merge(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Body(body): Body<MergeBody>,
) -> Result<Json<MergeView>, Fault> {
    if body.check || body.dry_run {
        return Err(Fault::not_available(if body.check {
            "`check` of a merge"
        } else {
            "`dry_run` of a merge"
        }));
    }
    let handle = find(&shared, &id).await?;
    to_its_end(async move { review::merge(&shared, &handle, &id, body).await }).await
}

/// How to discard.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct DiscardQuery {
    /// Also while git has something unfinished there, such as a rebase.
    #[serde(default)]
    force: bool,
}

/// Takes a branch and its worktree into the recycle bin.
#[utoipa::path(post, path = "/workers/{id}/discard", params(("id" = String, Path), DiscardQuery),
    responses((status = 200, body = DiscardView), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn discard(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Asked(query): Asked<DiscardQuery>,
) -> Result<Json<DiscardView>, Fault> {
    let handle = find(&shared, &id).await?;
    let force = if query.force { Force::Yes } else { Force::No };
    to_its_end(async move { review::discard(&shared, &handle, &id, force).await }).await
}

/// Brings a discarded branch back, or puts a worktree back to a snapshot.
#[utoipa::path(post, path = "/workers/{id}/restore", params(("id" = String, Path)), request_body = RestoreBody,
    responses((status = 200, body = RestoreView), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn restore(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
    Body(body): Body<RestoreBody>,
) -> Result<Json<RestoreView>, Fault> {
    let handle = find(&shared, &id).await?;
    to_its_end(async move { review::restore(&shared, &handle, &id, body).await }).await
}

/// Why a worker ended as it did, and the way of its news to the coordinator.
#[utoipa::path(get, path = "/explain/{id}", params(("id" = String, Path)),
    responses((status = 200, body = ExplainView), (status = 404, body = Problem)))]
pub(super) async fn explain(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<WorkerId>,
) -> Result<Json<ExplainView>, Fault> {
    let handle = find(&shared, &id).await?;
    let unknown = Fault::unknown_id("worker", id.as_str());
    let view = handle
        .read(move |model| model.worker(&id).map(|worker| views::explain(model, worker, clock::now())))
        .await?;
    view.map(Json).ok_or(unknown)
}

/// Not available yet.
#[utoipa::path(get, path = "/workers/{id}/terminal", params(("id" = String, Path)),
    responses((status = 501, body = Problem)))]
pub(super) async fn terminal() -> Fault {
    Fault::not_available("the terminal")
}

/// Not available yet.
#[utoipa::path(post, path = "/workers/{id}/comments", params(("id" = String, Path)),
    responses((status = 501, body = Problem)))]
pub(super) async fn comments() -> Fault {
    Fault::not_available("review comments")
}
