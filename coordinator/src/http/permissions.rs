//! The permission desk.

use std::{collections::HashMap, sync::Arc};

use axum::{Json, body::Bytes, extract::State, http::HeaderMap};
use swarm_protocol::{
    PermissionRequestId, SessionId,
    api::{
        AnswerPermission, AnswerPermissions, AnsweredOne, AnsweredPermission, PermissionView, Problem,
        SignedAnswer,
    },
    permission::{Racer, Scope},
};

use super::{
    auth::Peer,
    json::{Body, Id},
    problem::Fault,
};
use crate::{
    always,
    channel::{self, AnswerError},
    clock,
    server::Shared,
    session::{AnsweredRequest, OrderError, SessionHandle, Wanted, views},
    sessions,
};

/// Requests that one call may answer.
const MOST_AT_ONCE: usize = 1_000;

/// Requests that wait, earliest first.
#[utoipa::path(get, path = "/permissions", responses((status = 200, body = Vec<PermissionView>)))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<PermissionView>>, Fault> {
    let mut open = Vec::new();
    for handle in shared.sessions.all() {
        let shared = Arc::clone(&shared);
        open.extend(
            handle
                .read(move |model| {
                    let channel = shared.settings.channel.as_ref().map(|channel| channel.kind.as_str());
                    let file = always::place(&shared, model).path().to_string_lossy().into_owned();
                    model
                        .permissions
                        .iter()
                        .filter(|permission| permission.is_open())
                        .map(|permission| {
                            let deadline = shared.deadlines.get(&permission.request.id);
                            views::permission_view(model, permission, Some(file.clone()), deadline, channel)
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
    Ok(Json(handle.answer(id, answer, Racer::Person, None).await?))
}

/// The remote channel's answer. Its signature stands for a token: it covers time, nonce and body, and counts once.
pub(super) async fn answer_signed(
    State(shared): State<Arc<Shared>>,
    Peer(peer): Peer,
    Id(id): Id<PermissionRequestId>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<AnsweredPermission>, Fault> {
    let channel = shared.settings.channel.as_ref().ok_or(AnswerError::NoChannel)?;
    let text = std::str::from_utf8(&body).map_err(|_| Fault::bad_request("the body is not UTF-8"))?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let signed = (header("swarm-signature"), header("swarm-nonce"));
    let (now, started) = (clock::now().as_millis() / 1000, shared.started_at.as_millis() / 1000);
    if let Err(error) = channel::admit(&shared.nonces, &shared.channel_key, started, now, signed, text) {
        if error == AnswerError::WrongSignature {
            shared.limits.failure(peer)?;
        }
        return Err(error.into());
    }
    let SignedAnswer { request_id, decision, scope, reason, args_hash } =
        serde_json::from_str(text).map_err(|error| Fault::bad_request(error.to_string()))?;
    if request_id != id {
        return Err(Fault::bad_request("`request_id` is not the request of the address"));
    }
    if scope == Scope::Always {
        return Err(Fault::bad_request("a remote channel writes no rule: answer `once` or `session`"));
    }
    let handle = sessions::of_request(&shared, &id)
        .await?
        .ok_or_else(|| Fault::unknown_id("permission request", id.as_str()))?;
    let answer = AnswerPermission { decision, scope, reason, stop: false, args_hash: Some(args_hash) };
    let source = Some(channel.kind.as_str().to_owned());
    Ok(Json(handle.answer(id, answer, Racer::Remote, source).await?))
}

/// Answers several requests at once: those that are named, or all that a session has open.
#[utoipa::path(post, path = "/permissions", request_body = AnswerPermissions,
    responses((status = 200, body = Vec<AnsweredOne>), (status = 400, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn answer_several(
    State(shared): State<Arc<Shared>>,
    Body(body): Body<AnswerPermissions>,
) -> Result<Json<Vec<AnsweredOne>>, Fault> {
    let AnswerPermissions { ids, session_id, answer } = body;
    let answered = match (ids.is_empty(), session_id) {
        (true, Some(session)) => {
            let handle = shared
                .sessions
                .get(session)
                .ok_or_else(|| Fault::unknown_id("session", &session.to_string()))?;
            handle.answer_all(Wanted::AllOpen, answer, Racer::Person, None).await?
        }
        (false, None) if ids.len() <= MOST_AT_ONCE => several(&shared, ids, &answer).await?,
        (false, None) => return Err(Fault::bad_request(format!("at most {MOST_AT_ONCE} requests at once"))),
        (true, None) | (false, Some(_)) => {
            return Err(Fault::bad_request("either `ids` or `session_id` says which requests are meant"));
        }
    };
    Ok(Json(answered.into_iter().map(answered_one).collect()))
}

/// Each session answers its own at once; the answers come back in the order of the question.
async fn several(
    shared: &Arc<Shared>,
    ids: Vec<PermissionRequestId>,
    answer: &AnswerPermission,
) -> Result<Vec<AnsweredRequest>, Fault> {
    let mut order = Vec::new();
    let mut by_session: Vec<(SessionHandle, Vec<PermissionRequestId>)> = Vec::new();
    let mut answered = HashMap::new();
    for id in ids {
        if order.contains(&id) {
            continue;
        }
        match sessions::of_request(shared, &id).await? {
            Some(handle) => match by_session.iter_mut().find(|(known, _)| known.id == handle.id) {
                Some((_, ids)) => ids.push(id.clone()),
                None => by_session.push((handle, vec![id.clone()])),
            },
            None => {
                answered.insert(id.clone(), Err(OrderError::UnknownRequest(id.clone())));
            }
        }
        order.push(id);
    }
    for (handle, ids) in by_session {
        let some = handle.answer_all(Wanted::These(ids), answer.clone(), Racer::Person, None).await?;
        answered.extend(some.into_iter().map(|one| (one.id, one.answered)));
    }
    let one = |id: PermissionRequestId| {
        let answered = answered.remove(&id)?;
        Some(AnsweredRequest { id, answered })
    };
    Ok(order.into_iter().filter_map(one).collect())
}

fn answered_one(one: AnsweredRequest) -> AnsweredOne {
    let (answered, problem) = match one.answered {
        Ok(answered) => (Some(answered), None),
        Err(error) => (None, Some(*Fault::from(error).problem)),
    };
    AnsweredOne { id: one.id, answered, problem }
}

/// Every request that a session ever had, earliest first: what was asked, who decided, when, and on what.
#[utoipa::path(get, path = "/sessions/{id}/permissions", params(("id" = String, Path)),
    responses((status = 200, body = Vec<PermissionView>), (status = 404, body = Problem)))]
pub(super) async fn log(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
) -> Result<Json<Vec<PermissionView>>, Fault> {
    let handle = shared.sessions.get(id).ok_or_else(|| Fault::unknown_id("session", &id.to_string()))?;
    let views = handle
        .read(|model| {
            let view = |permission| views::permission_view(model, permission, None, None, None);
            model.permissions.iter().map(view).collect::<Vec<_>>()
        })
        .await?;
    Ok(Json(views))
}
