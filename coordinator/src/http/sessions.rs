//! Sessions.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode};
use swarm_protocol::{
    SessionId, SessionState, Timestamp, Usage,
    api::{
        MessageAccepted, PermissionModeBody, Problem, ResumeBody, ResumeView, SendMessageBody, SessionDetail,
        SessionView, StopBody, StopView,
    },
    permission::PermissionMode,
    usage::Cost,
};

use super::{
    json::{Body, Id},
    problem::Fault,
};
use crate::{
    always, clock,
    server::Shared,
    session::{KeyRing, Order, SessionHandle, Submit, model::SessionModel, views},
    sessions::Damaged,
    submit,
};

fn find(shared: &Shared, id: SessionId) -> Result<SessionHandle, Fault> {
    if let Some(handle) = shared.sessions.get(id) {
        return Ok(handle);
    }
    match shared.sessions.damaged_one(id) {
        Some(damaged) => {
            Err(Fault::new(StatusCode::CONFLICT, "session_damaged", format!("session {id} cannot be read"))
                .cause(damaged.problem)
                .hint(
                    "the others are not touched; its events still tell what can be read, and which rows of \
                     $SWARM_HOME/journal.sqlite to put back from a copy",
                ))
        }
        None => Err(Fault::unknown_id("session", &id.to_string())),
    }
}

fn damaged_view(damaged: Damaged) -> SessionView {
    SessionView {
        session_id: damaged.session_id,
        short: damaged.session_id.short(),
        title: "damaged".to_owned(),
        repo: String::new(),
        state: SessionState::Ended,
        waiting_for: None,
        base: String::new(),
        base_name: String::new(),
        target_branch: None,
        model: String::new(),
        permission_mode: PermissionMode::Default,
        task_id: None,
        verdict: None,
        workers: 0,
        workers_running: 0,
        queued: 0,
        asks: 0,
        usage: Usage::default(),
        own_usage: Usage::default(),
        cost_usd: None,
        cost: Cost::default(),
        budget: None,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        seq: damaged.last,
        damaged_events: damaged.n_events,
        damaged: Some(damaged.problem),
    }
}

/// All sessions as lists show them, newest change first.
pub(super) async fn all_views(shared: &Shared) -> Result<Vec<SessionView>, Fault> {
    let mut all = Vec::new();
    for handle in shared.sessions.all() {
        all.push(handle.read(views::session_view).await?);
    }
    all.extend(shared.sessions.damaged().into_iter().map(damaged_view));
    all.sort_by_key(|view| std::cmp::Reverse((view.updated_at, view.session_id)));
    Ok(all)
}

/// All sessions, newest change first.
#[utoipa::path(get, path = "/sessions", responses((status = 200, body = Vec<SessionView>)))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<SessionView>>, Fault> {
    all_views(&shared).await.map(Json)
}

/// One session, with its conversation, workers and queue.
#[utoipa::path(get, path = "/sessions/{id}", params(("id" = String, Path)),
    responses((status = 200, body = SessionDetail), (status = 404, body = Problem)))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
) -> Result<Json<SessionDetail>, Fault> {
    let handle = find(&shared, id)?;
    let detail = handle
        .read(move |model| with_extras(&shared, model, |extras| views::session_detail(model, extras)))
        .await?;
    Ok(Json(detail))
}

/// What a view shows beside the session's own state.
pub(super) fn with_extras<T>(
    shared: &Shared,
    model: &SessionModel,
    view: impl FnOnce(&views::Extras<'_>) -> T,
) -> T {
    view(&views::Extras {
        live: &|worker| shared.live.get(worker),
        always_file: Some(always::place(shared, model).path().to_string_lossy().into_owned()),
        channel: shared.settings.channel.as_ref().map(|channel| channel.kind.as_str()),
        deadline: &|request| shared.deadlines.get(request),
        now: clock::now(),
    })
}

/// Ends a session: its workers are stopped, it takes no more messages.
#[utoipa::path(delete, path = "/sessions/{id}", params(("id" = String, Path)),
    responses((status = 200, body = StopView), (status = 404, body = Problem)))]
pub(super) async fn end(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
) -> Result<Json<StopView>, Fault> {
    let stopping = find(&shared, id)?.try_ask(Order::End).await?;
    Ok(Json(StopView { stopping: stopping.workers, already: stopping.already }))
}

/// Sends a message to the coordinator: opens a task in an idle session, joins the open one in a busy one.
#[utoipa::path(post, path = "/sessions/{id}/messages", params(("id" = String, Path)), request_body = SendMessageBody,
    responses((status = 202, body = MessageAccepted), (status = 404, body = Problem)))]
pub(super) async fn message(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
    Body(body): Body<SendMessageBody>,
) -> Result<(StatusCode, Json<MessageAccepted>), Fault> {
    let handle = find(&shared, id)?;
    if body.text.trim().is_empty() {
        return Err(Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "empty_message", "the message is empty"));
    }
    let submit = Submit {
        text: body.text,
        unattended: false,
        callback_url: None,
        callback_asks: false,
        labels: Vec::new(),
        keys: KeyRing::default(),
    };
    let submitted = handle.try_ask(|reply| Order::Submit(submit, reply)).await?;
    let note = if submitted.opened { "opens a task" } else { "joins the open task; read at the next turn" };
    Ok((
        StatusCode::ACCEPTED,
        Json(MessageAccepted {
            message_id: Some(submitted.message_id),
            task_id: Some(submitted.task_id),
            status: "queued".to_owned(),
            note: note.to_owned(),
        }),
    ))
}

/// Interrupts: the coordinator's turn and all workers are stopped, work is committed. Can be resumed.
#[utoipa::path(post, path = "/sessions/{id}/interrupt", params(("id" = String, Path)), request_body = StopBody,
    responses((status = 200, body = StopView), (status = 404, body = Problem)))]
pub(super) async fn interrupt(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
    Body(body): Body<StopBody>,
) -> Result<Json<StopView>, Fault> {
    let reason = body.reason.unwrap_or_else(|| "interrupted by a person".to_owned());
    let stopping = find(&shared, id)?.try_ask(|reply| Order::Interrupt(reason, reply)).await?;
    Ok(Json(StopView { stopping: stopping.workers, already: stopping.already }))
}

/// Goes on: with a key that was missing, with what a person had stopped, with what waits.
#[utoipa::path(post, path = "/sessions/{id}/resume", params(("id" = String, Path)), request_body = ResumeBody,
    responses((status = 200, body = ResumeView), (status = 404, body = Problem)))]
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
    Body(body): Body<ResumeBody>,
) -> Result<Json<ResumeView>, Fault> {
    let handle = find(&shared, id)?;
    let keys = submit::continue_keys(&shared, &handle, body.client.as_ref()).await?;
    let resumed = handle.try_ask(|reply| Order::Resume(keys, reply)).await?;
    Ok(Json(ResumeView { workers: resumed.workers, queued: resumed.queued, after: resumed.after }))
}

/// Changes the mode of the session's workers, those at work included.
#[utoipa::path(post, path = "/sessions/{id}/permission-mode", params(("id" = String, Path)),
    request_body = PermissionModeBody, responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn permission_mode(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
    Body(body): Body<PermissionModeBody>,
) -> Result<StatusCode, Fault> {
    find(&shared, id)?.try_ask(|reply| Order::PermissionMode(body.mode, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has the coordinator's history compacted before its next request.
#[utoipa::path(post, path = "/sessions/{id}/compact", params(("id" = String, Path)),
    responses((status = 202), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn compact(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
) -> Result<StatusCode, Fault> {
    if find(&shared, id)?.ask(Order::Compact).await? {
        Ok(StatusCode::ACCEPTED)
    } else {
        Err(Fault::new(StatusCode::CONFLICT, "nothing_to_compact", "the coordinator has no history yet"))
    }
}
