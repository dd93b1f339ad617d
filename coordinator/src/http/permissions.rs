//! The permission desk.

use std::sync::Arc;

use axum::{Json, extract::State};
use swarm_protocol::{
    PermissionRequestId,
    api::{AnswerPermission, AnsweredPermission, PermissionView, Problem},
    permission::Racer,
};

use super::{
    json::{Body, Id},
    problem::Fault,
};
use crate::{
    always,
    server::Shared,
    session::{Order, views},
    sessions,
};

/// Requests that wait, earliest first.
#[utoipa::path(get, path = "/permissions", responses((status = 200, body = Vec<PermissionView>)))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<PermissionView>>, Fault> {
    let mut open = Vec::new();
    for handle in shared.sessions.all() {
        let shared = Arc::clone(&shared);
        open.extend(
            handle
                .read(move |model| {
                    let file = always::place(&shared, model).path().to_string_lossy().into_owned();
                    model
                        .permissions
                        .iter()
                        .filter(|permission| permission.is_open())
                        .map(|permission| {
                            let deadline = shared.deadlines.get(&permission.request.id);
                            views::permission_view(model, permission, Some(file.clone()), deadline)
                        })
                        .collect::<Vec<_>>()
                })
                .await?,
        );
    }
    open.sort_by_key(|view| view.request.requested_at);
    Ok(Json(open))
}

/// Answers a request. The first answer decides; a later one learns which did.
#[utoipa::path(post, path = "/permissions/{id}", params(("id" = String, Path)), request_body = AnswerPermission,
    responses((status = 200, body = AnsweredPermission), (status = 404, body = Problem)))]
pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<PermissionRequestId>,
    Body(answer): Body<AnswerPermission>,
) -> Result<Json<AnsweredPermission>, Fault> {
    let handle = sessions::of_request(&shared, &id)
        .await?
        .ok_or_else(|| Fault::unknown_id("permission request", id.as_str()))?;
    let answered = handle.try_ask(|reply| Order::Answer { id, answer, by: Racer::Person, reply }).await?;
    Ok(Json(answered))
}
