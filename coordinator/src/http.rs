//! The HTTP API: parse, send an order to the owner of the state, map its answer. No logic stands here.
//!
//! `auth` says who may call, `problem` maps errors to codes, one file per resource holds the handlers, `sse`
//! the streams, `assets` the dashboard. OpenAPI is made from the same handlers.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::StreamExt as _;
use tower_http::{catch_panic::CatchPanicLayer, set_header::SetResponseHeaderLayer, timeout::TimeoutLayer};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::server::Shared;

pub(crate) use auth::Logins;
pub(crate) use limits::Limits;

mod assets;
mod auth;
mod json;
mod limits;
mod metrics;
mod permissions;
pub(crate) mod problem;
mod server;
mod sessions;
mod sse;
mod tasks;
mod workers;

/// The largest body, in bytes: a prompt of a megabyte and its surroundings.
const BODY_LIMIT: usize = 4 * 1024 * 1024;

/// What is read of a body that is too long, in bytes, and for how long, before the answer: most clients read one
/// only when they have sent everything, and lose it when the connection is closed before.
const DRAIN_LIMIT: usize = 64 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// How long a call may take, streams aside. A merge with a check is the longest.
const CALL_LIMIT: Duration = Duration::from_secs(600);

#[derive(OpenApi)]
#[openapi(
    info(title = "swarm", description = "Parallel work of many agents on git repositories."),
    components(schemas(swarm_protocol::event::Event, swarm_protocol::api::Problem,))
)]
struct Document;

fn api() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(tasks::create))
        .routes(routes!(tasks::show))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show, sessions::end))
        .routes(routes!(sessions::message))
        .routes(routes!(sessions::interrupt))
        .routes(routes!(sessions::resume))
        .routes(routes!(sessions::permission_mode))
        .routes(routes!(sessions::compact))
        .routes(routes!(sse::session_events))
        .routes(routes!(sse::all_events))
        .routes(routes!(workers::list))
        .routes(routes!(workers::show))
        .routes(routes!(workers::transcript))
        .routes(routes!(workers::diff))
        .routes(routes!(workers::snapshots))
        .routes(routes!(workers::message))
        .routes(routes!(workers::stop))
        .routes(routes!(workers::merge))
        .routes(routes!(workers::discard))
        .routes(routes!(workers::restore))
        .routes(routes!(workers::explain))
        .routes(routes!(workers::terminal))
        .routes(routes!(workers::comments))
        .routes(routes!(permissions::list, permissions::answer_several))
        .routes(routes!(permissions::answer))
        .routes(routes!(permissions::log))
        .routes(routes!(server::info))
        .routes(routes!(server::overview))
        .routes(routes!(server::cost))
        .routes(routes!(server::config))
        .routes(routes!(server::nodes))
        .routes(routes!(server::search))
        .routes(routes!(server::gc))
        .routes(routes!(server::trust_show, server::trust_agree))
        .routes(routes!(server::login_code))
        .routes(routes!(server::stop))
}

/// Gives each operation an id of its own, as generators of clients need them: its method and path. By themselves
/// they would have the names of functions, of which several modules have the same.
fn name_operations(document: &mut utoipa::openapi::OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let words = path.trim_start_matches("/api/v1/").replace(['{', '}'], "").replace(['/', '-'], "_");
        let operations = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
            ("patch", &mut item.patch),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                operation.operation_id = Some(format!("{method}_{words}"));
            }
        }
    }
}

/// Everything the server answers.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let (api, mut document) =
        OpenApiRouter::with_openapi(Document::openapi()).nest("/api/v1", api()).split_for_parts();
    name_operations(&mut document);
    let guarded = api
        .route("/metrics", get(metrics::show))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shared), mask))
        .route_layer(middleware::from_fn(limit_body))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shared), auth::require))
        .route("/api/v1/permissions/{id}/answer", axum::routing::post(permissions::answer_signed))
        .route("/api/v1/login", axum::routing::post(auth::login))
        .route("/api/v1/logout", axum::routing::post(auth::logout));
    let header = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value))
    };
    guarded
        .route("/openapi.json", get(move || async move { Json(document) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(assets::serve)
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, CALL_LIMIT))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), auth::check_host))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), metrics::count))
        .layer(CatchPanicLayer::new())
        .layer(header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(header(header::REFERRER_POLICY, "no-referrer"))
        .layer(header(header::X_FRAME_OPTIONS, "DENY"))
        .with_state(shared)
}

/// Takes keys out of answers in JSON. Streams do so for themselves, event by event.
async fn mask(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/") && kind.contains("json")) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Made here, in memory, so it is neither endless nor broken off.
    let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let masked = std::str::from_utf8(&bytes).ok().map(|text| shared.masker.mask_json(text));
    let Some(Cow::Owned(masked)) = masked else { return Response::from_parts(parts, bytes.into()) };
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, masked.into())
}

/// Refuses a body by the length it announces.
async fn limit_body(request: Request, next: Next) -> Response {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if announced.and_then(|length| length.parse().ok()).is_none_or(|length: usize| length <= BODY_LIMIT) {
        return next.run(request).await;
    }
    let mut body = request.into_body().into_data_stream();
    let drained = async {
        let mut n_bytes = 0;
        while let Some(Ok(chunk)) = body.next().await {
            n_bytes += chunk.len();
            if n_bytes > DRAIN_LIMIT {
                return;
            }
        }
    };
    // Whether all was read or not, the answer is the same.
    let _in_time = tokio::time::timeout(DRAIN_TIME, drained).await;
    json::too_large("the body is too long").into_response()
}

/// Ready when the journal answers.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    use crate::journal::Journal as _;
    match shared.journal.position().await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}
