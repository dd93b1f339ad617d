//! The routes that a provider has.

use std::sync::{Arc, PoisonError};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, DefaultBodyLimit, Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Shared, cache, charge, control, invariants,
    listener::Connection,
    normalise::normalise,
    prefix::flatten,
    record::{Api, Outcome, RecordedRequest},
    render::{Rendering, error_json, http_error, request_id},
    reply::{Reply, Usage},
    wire::{self, Delivery, Ended},
};

/// The limit of the real messages endpoint.
const MAX_BODY: usize = 32 * 1024 * 1024;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(async || StatusCode::OK))
        .route("/v1/messages", post(model_call))
        .route("/v1/messages/count_tokens", post(model_call))
        .route("/v1/chat/completions", post(model_call))
        .route("/v1/responses", post(model_call))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .nest("/__control", control::routes())
        .layer(DefaultBodyLimit::disable())
        .fallback(async |method: Method, uri: Uri, State(shared): State<Arc<Shared>>| {
            shared.violation(&format!("{method} {uri} is no call of these APIs"));
            answer(404, json!({"error": {"message": "not found"}}).to_string(), 0, &[])
        })
        .with_state(shared)
}

async fn model_call(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    uri: Uri,
    headers: HeaderMap,
    raw: Bytes,
) -> Response {
    let api = match uri.path() {
        "/v1/messages" => Api::Anthropic,
        "/v1/chat/completions" => Api::Chat,
        "/v1/responses" => Api::Responses,
        _ => Api::CountTokens,
    };
    let too_large = raw.len() > MAX_BODY;
    let arrived = shared.clock.now();
    let request = shared.record(|id, nth| record(id, nth, api, &uri, headers, raw));
    if too_large {
        // The real one answers before the API sees it, and not in JSON.
        let page = "<html><body><h1>413 Request Entity Too Large</h1></body></html>";
        shared.ended(&request, Outcome::HttpError(413));
        return answer(413, page.to_owned(), request.id, &[]);
    }
    if let Some(refusal) = refuse_key(&shared, &request) {
        return refusal;
    }
    let violations = violations(&shared, &request);
    if !violations.is_empty() {
        for violation in &violations {
            shared.violation(&format!("request {}: {violation}", request.id));
        }
        return refuse(&shared, &request, 400, &format!("violation: {}", violations.join("; ")));
    }
    let prompt = cache::prompt(&request);
    if api == Api::CountTokens {
        shared.ended(&request, Outcome::Delivered);
        let body = json!({"input_tokens": prompt.tokens()});
        return answer(200, body.to_string(), request.id, &[]);
    }
    if let Some(window) = shared.window()
        && prompt.tokens() > window
    {
        let reply = Reply::prompt_too_long(prompt.tokens(), window);
        return fail(&shared, &request, &reply);
    }
    // There is room for one word, whatever the script has to say.
    let reads = request.only_reads().then(|| Reply::say(".").stop("max_tokens"));
    let Some(mut reply) = reads.or_else(|| shared.answer(&request)) else {
        let text = format!("request {}: no rule answers {}", request.id, shown(&request));
        shared.violation(&text);
        return refuse(&shared, &request, 400, &format!("violation: {text}"));
    };
    let usage = match &reply.http {
        Some(_) => Usage::default(),
        None => shared.cache.look_up(&prompt, arrived),
    };
    let seed = shared.lock().charges;
    if let Some(seed) = seed {
        reply.usage.get_or_insert(Usage { output: charge::output(seed, &request), ..usage });
    }
    if let Some(gate) = &reply.hold {
        let guard = HangUp { shared: &shared, request: &request, done: false };
        guard.wait(shared.gates.get(gate).pass()).await;
    }
    if reply.http.is_some() {
        return fail(&shared, &request, &reply);
    }
    shared.cache.store(&prompt, arrived);
    speak(shared, request, reply, usage, connection)
}

fn record(
    id: u64,
    nth: &mut dyn FnMut(Api, &str) -> usize,
    api: Api,
    uri: &Uri,
    headers: HeaderMap,
    raw: Bytes,
) -> RecordedRequest {
    let json: Value = serde_json::from_slice(&raw).unwrap_or_default();
    let normal = normalise(api, &json);
    let agent_key = normal.agent_key();
    RecordedRequest {
        id,
        api,
        path: uri.to_string(),
        headers,
        raw,
        nth: nth(api, &agent_key),
        json,
        model: normal.model,
        stream: normal.stream,
        system: normal.system,
        messages: normal.messages,
        tools: normal.tools,
        agent_key,
        at: jiff::Timestamp::now(),
        outcome: Arc::new(Outcome::InFlight.into()),
        usage: Arc::default(),
    }
}

fn violations(shared: &Shared, request: &RecordedRequest) -> Vec<String> {
    let paused = shared.lock().paused.contains(&request.agent_key);
    let mut found = invariants::check(request.api, &request.headers, &request.json, paused);
    if request.api == Api::CountTokens {
        return found;
    }
    found.extend(shared.check_thinking(request));
    // A malformed history must not become something to compare with.
    if found.is_empty() && shared.settings.check_prefix {
        let flat = flatten(request.api, &request.json);
        let mut prefixes = shared.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        found.extend(prefixes.check(request, flat).err());
    }
    found
}

/// A client that goes away while the answer has not begun drops the handler; the record must not stay in flight.
struct HangUp<'a> {
    shared: &'a Shared,
    request: &'a RecordedRequest,
    done: bool,
}

impl HangUp<'_> {
    async fn wait(mut self, what: impl Future<Output = ()>) {
        what.await;
        self.done = true;
    }
}

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.shared.ended(self.request, Outcome::ClientGone);
        }
    }
}

/// Begins the answer; the rest of it is sent by a task that the server owns.
fn speak(
    shared: Arc<Shared>,
    request: Arc<RecordedRequest>,
    reply: Reply,
    usage: Usage,
    connection: Connection,
) -> Response {
    let rendering = Rendering::new(&reply, &request, usage);
    shared.issue(&request, &rendering);
    request.set_usage(rendering.usage());
    let (steps, content_type) = match request.stream {
        true => (rendering.stream(), "text/event-stream; charset=utf-8"),
        false => (rendering.whole(), "application/json"),
    };
    let id = request.id;
    // One piece at a time: what is counted as sent has been asked for by the connection.
    let (body, pieces) = mpsc::channel(1);
    let tasks = shared.tasks.clone();
    let stop = shared.stop.clone();
    tasks.spawn(async move {
        let delivery =
            Delivery { api: request.api, gates: &shared.gates, connection: &connection, body: &body };
        // When the server stops, the reply is lost on purpose.
        let ended = tokio::select! {
            ended = wire::deliver(steps, &reply, delivery) => ended,
            () = stop.cancelled() => Ended { outcome: Outcome::Cut, must_break: false },
        };
        shared.ended(&request, ended.outcome);
        if ended.must_break {
            // A client that reads no more must not keep the server from stopping.
            tokio::select! {
                () = wire::break_off(&body) => {}
                () = stop.cancelled() => {}
            }
        }
    });
    let body = Body::from_stream(ReceiverStream::new(pieces));
    respond(200, body, content_type, id, &[])
}

fn fail(shared: &Shared, request: &RecordedRequest, reply: &Reply) -> Response {
    let http = reply.http.clone().unwrap_or_default();
    let (status, headers, body) = http_error(&http, request);
    shared.ended(request, Outcome::HttpError(status.as_u16()));
    answer(status.as_u16(), body, request.id, &headers)
}

fn refuse(shared: &Shared, request: &RecordedRequest, status: u16, message: &str) -> Response {
    shared.ended(request, Outcome::HttpError(status));
    let kind = "invalid_request_error";
    let body = error_json(request.api, kind, message, None, request.id);
    answer(status, body, request.id, &[])
}

/// 401, if the server was told which key is right.
fn refuse_key(shared: &Shared, request: &RecordedRequest) -> Option<Response> {
    let expected = shared.settings.api_key.as_deref()?;
    let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let given = request.header("x-api-key").or(bearer);
    let wrong = given != Some(expected);
    wrong.then(|| fail(shared, request, &Reply::error(401)))
}

fn shown(request: &RecordedRequest) -> String {
    let last: String = request.last_user_text().chars().take(200).collect();
    let key: String = request.agent_key.chars().take(200).collect();
    format!(
        "{} {} (agent `{key}`, turn {}, last user text `{last}`)",
        request.model,
        request.path,
        request.turn(),
    )
}

async fn models(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let models = &shared.settings.models;
    let list: Vec<Value> = models.iter().map(|id| model_info(id, &shared, &headers)).collect();
    let body = match headers.contains_key("anthropic-version") {
        true => json!({
            "data": list, "has_more": false, "first_id": models.first(), "last_id": models.last(),
        }),
        false => json!({"object": "list", "data": list}),
    };
    answer(200, body.to_string(), 0, &[])
}

async fn model(State(shared): State<Arc<Shared>>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    if shared.settings.models.contains(&id) {
        return answer(200, model_info(&id, &shared, &headers).to_string(), 0, &[]);
    }
    let message = format!("model: {id}");
    let body = error_json(Api::Anthropic, "not_found_error", &message, None, 0);
    answer(404, body, 0, &[])
}

fn model_info(id: &str, shared: &Shared, headers: &HeaderMap) -> Value {
    let window = shared.window().unwrap_or(200_000);
    if !headers.contains_key("anthropic-version") {
        return json!({
            "id": id, "object": "model", "created": 1, "owned_by": "tests", "context_length": window,
            "max_model_len": window,
        });
    }
    let yes = json!({"supported": true});
    let no = json!({"supported": false});
    json!({
        "id": id, "type": "model", "display_name": id, "created_at": "2026-01-01T00:00:00Z",
        "max_input_tokens": window, "max_tokens": 64_000, "lifecycle": "active", "deprecated_at": null,
        "retires_at": null, "line": "opus",
        "capabilities": {
            "batch": no, "citations": no, "code_execution": no, "image_input": yes, "pdf_input": yes,
            "server_tools": no, "structured_outputs": yes,
            "context_management": {
                "supported": true, "clear_thinking_20251015": yes, "clear_tool_uses_20250919": yes,
                "compact_20260112": yes,
            },
            "effort": {"supported": true, "low": yes, "medium": yes, "high": yes, "xhigh": yes, "max": yes},
            "thinking": {
                "supported": true,
                "types": {"adaptive": yes, "between_tools": no, "disabled": yes, "enabled": no},
            },
        },
    })
}

fn answer(status: u16, body: String, id: u64, headers: &[(String, String)]) -> Response {
    let content_type = match body.starts_with('<') {
        true => "text/html",
        false => "application/json",
    };
    respond(status, Body::from(body), content_type, id, headers)
}

fn respond(
    status: u16,
    body: Body,
    content_type: &'static str,
    id: u64,
    headers: &[(String, String)],
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let into = response.headers_mut();
    into.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for name in ["request-id", "x-request-id"] {
        if let Ok(value) = HeaderValue::from_str(&request_id(id)) {
            into.insert(name, value);
        }
    }
    for (name, value) in headers {
        let parsed = (HeaderName::try_from(name.as_str()), HeaderValue::from_str(value));
        if let (Ok(name), Ok(value)) = parsed {
            into.append(name, value);
        }
    }
    response
}
