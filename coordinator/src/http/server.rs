//! The server itself: what it is, what it costs, its settings, its end.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use swarm_protocol::{
    Timestamp, Usage,
    api::{
        ConfigValue, CostRow, CostView, GcBody, GcView, LoginCode, NodeView, Overview, Problem, ServerInfo,
        StopServerBody,
    },
    usage::Cost,
};
use worktree_manager::Repository;

use super::{
    json::{Asked, Body},
    problem::Fault,
    sessions,
};
use crate::{
    clock,
    journal::{Journal as _, StorageFault},
    overview, review,
    server::Shared,
    session::{Order, views},
    submit,
};

/// What this server is.
#[utoipa::path(get, path = "/info", responses((status = 200, body = ServerInfo)))]
pub(super) async fn info(State(shared): State<Arc<Shared>>) -> Json<ServerInfo> {
    let sandbox = shared.sandbox().await;
    Json(ServerInfo {
        version: shared.version.to_owned(),
        pid: std::process::id().cast_signed(),
        home: shared.home.root().to_string_lossy().into_owned(),
        started_at: shared.started_at,
        sandbox_tier: sandbox.tier,
        sandbox_notes: sandbox.notes,
        model: shared.settings.model.clone(),
    })
}

/// Home by need.
#[utoipa::path(get, path = "/overview", responses((status = 200, body = Overview)))]
pub(super) async fn overview(State(shared): State<Arc<Shared>>) -> Result<Json<Overview>, Fault> {
    // The cursor first: what happens while the rows are gathered comes again by the stream.
    let position = shared.journal.position().await?;
    let now = clock::now();
    let sessions = sessions::all_views(&shared).await?;
    let mut rows: Vec<_> = sessions.iter().filter_map(overview::session_row).collect();
    for handle in shared.sessions.all() {
        let shared = Arc::clone(&shared);
        rows.extend(
            handle
                .read(move |model| {
                    let row = |worker: &crate::session::model::WorkerModel| {
                        let live = shared.live.get(&worker.spec.id);
                        let view = views::worker_view(model, worker, live.as_ref(), now);
                        let deadline = view.request_id.as_ref().and_then(|id| shared.deadlines.get(id));
                        overview::worker_row(view, &model.spec.title, deadline, now)
                    };
                    model.workers.iter().map(row).collect::<Vec<_>>()
                })
                .await?,
        );
    }
    overview::sort(&mut rows);
    let asks = sessions.iter().map(|session| session.asks).sum();
    let today = cost_since(&shared, start_of_day(now)).await?;
    Ok(Json(Overview { rows, sessions, asks, today, position, now }))
}

fn start_of_day(now: Timestamp) -> i64 {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    now.as_millis().div_euclid(DAY) * DAY
}

async fn cost_since(shared: &Shared, since_ms: i64) -> Result<Cost, StorageFault> {
    shared
        .journal
        .query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT COALESCE(SUM(known_usd), 0.0), COALESCE(SUM(unpriced), 0) FROM usage WHERE at_ms >= ?1",
            )?;
            Ok(statement.query_row([since_ms], |row| {
                Ok(Cost { known_usd: row.get(0)?, unpriced_calls: row.get::<_, i64>(1)? as u64 })
            })?)
        })
        .await
}

/// How cost is summed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct CostQuery {
    /// `session` (default), `worker`, `model` or `day`.
    by: Option<String>,
}

/// What was used and what it cost.
#[utoipa::path(get, path = "/cost", params(CostQuery),
    responses((status = 200, body = CostView), (status = 400, body = Problem)))]
pub(super) async fn cost(
    State(shared): State<Arc<Shared>>,
    Asked(query): Asked<CostQuery>,
) -> Result<Json<CostView>, Fault> {
    // The column is one of ours, never of the caller.
    let (key, label) = match query.by.as_deref().unwrap_or("session") {
        "session" => ("usage.session_id", "COALESCE(MAX(sessions.title), '')"),
        "worker" => {
            ("COALESCE(usage.worker_id, usage.session_id)", "COALESCE(MAX(workers.name), 'coordinator')")
        }
        "model" => ("usage.model", "''"),
        "day" => ("date(usage.at_ms / 1000, 'unixepoch')", "''"),
        other => {
            return Err(Fault::bad_request(format!(
                "cannot sum by `{other}`: session, worker, model or day"
            )));
        }
    };
    let sql = format!(
        "SELECT {key}, {label}, SUM(input), SUM(output), SUM(cache_read), SUM(cache_write), SUM(known_usd), SUM(unpriced), COUNT(*)
         FROM usage LEFT JOIN sessions ON sessions.session_id = usage.session_id
                    LEFT JOIN workers ON workers.worker_id = usage.worker_id
         GROUP BY {key} ORDER BY MAX(usage.position) DESC"
    );
    let mut rows = shared
        .journal
        .query(move |connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let count = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(|n| n as u64);
            let rows = statement
                .query_map([], |row| {
                    Ok(CostRow {
                        key: row.get(0)?,
                        label: row.get(1)?,
                        usage: Usage {
                            input_tokens: count(row, 2)?,
                            output_tokens: count(row, 3)?,
                            cache_read_tokens: count(row, 4)?,
                            cache_write_tokens: count(row, 5)?,
                            estimated: false,
                        },
                        cost: Cost { known_usd: row.get(6)?, unpriced_calls: count(row, 7)? },
                        calls: count(row, 8)?,
                        budget: None,
                    })
                })?
                .collect::<Result<Vec<_>, _>>()?;
            Ok(rows)
        })
        .await?;
    if key == "usage.session_id" {
        for row in &mut rows {
            let handle = row.key.parse().ok().and_then(|id| shared.sessions.get(id));
            if let Some(handle) = handle {
                row.budget = handle.read(|model| model.governor.view()).await.ok().flatten();
            }
        }
    }
    Ok(Json(CostView { rows, prices_of: model_client::TABLE_DATE.to_owned() }))
}

/// Whose settings.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct RepoQuery {
    /// A directory inside the repository.
    repo: Option<String>,
}

async fn checkout(repo: Option<&str>) -> Result<Option<PathBuf>, Fault> {
    match repo {
        None => Ok(None),
        Some(path) => {
            let repository =
                Repository::open(Path::new(path)).await.map_err(submit::SubmitError::Repository)?;
            Ok(Some(repository.root().to_owned()))
        }
    }
}

/// Every setting of the server, or as a repository sees them, with its source.
#[utoipa::path(get, path = "/config", params(RepoQuery), responses((status = 200, body = Vec<ConfigValue>)))]
pub(super) async fn config(
    State(shared): State<Arc<Shared>>,
    Asked(query): Asked<RepoQuery>,
) -> Result<Json<Vec<ConfigValue>>, Fault> {
    let checkout = checkout(query.repo.as_deref()).await?;
    let env: Vec<(String, String)> = shared.environment.clone().into_iter().collect();
    let settings = submit::settings_of(&shared.home, &shared.user_home, checkout.as_deref(), &env, &[])?;
    let values = settings
        .config
        .explain()
        .iter()
        .map(|value| ConfigValue {
            key: value.key.clone(),
            value: value.value.clone(),
            source: value.source.to_string(),
            overrides: value.overrides.iter().map(|(value, source)| format!("{source} {value}")).collect(),
        })
        .collect();
    Ok(Json(values))
}

/// The machines that run workers: this one.
#[utoipa::path(get, path = "/nodes", responses((status = 200, body = Vec<NodeView>)))]
pub(super) async fn nodes(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<NodeView>>, Fault> {
    let mut workers = 0;
    for handle in shared.sessions.all() {
        workers += handle.read(|model| model.places_taken() as u32).await?;
    }
    let room = shared.room(shared.home.worktrees()).await;
    Ok(Json(vec![NodeView {
        name: "local".to_owned(),
        workers,
        max_workers: shared.settings.max_workers_per_server,
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        free_memory: room.memory.unwrap_or(0),
        free_disk: room.disk.unwrap_or(0),
        sandbox_tier: shared.sandbox().await.tier,
    }]))
}

/// Not available yet.
#[utoipa::path(get, path = "/search", responses((status = 501, body = Problem)))]
pub(super) async fn search() -> Fault {
    Fault::not_available("search")
}

/// Removes what no session needs.
#[utoipa::path(post, path = "/gc", request_body = GcBody, responses((status = 200, body = GcView)))]
pub(super) async fn gc(
    State(shared): State<Arc<Shared>>,
    Body(body): Body<GcBody>,
) -> Result<Json<GcView>, Fault> {
    let work = tokio::spawn(async move { review::gc(&shared, body).await });
    let done = work
        .await
        .map_err(|error| Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    Ok(Json(done?))
}

/// What a repository wants to run or widen.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub(super) struct TrustView {
    /// One line each.
    lines: Vec<String>,
    /// Whether a person agreed to exactly this.
    trusted: bool,
    /// What an agreement is bound to.
    hash: String,
    /// What changed since the last agreement, with `+ ` and `- `.
    difference: Vec<String>,
    /// The checkout.
    repo: String,
}

/// An agreement.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TrustBody {
    /// A directory inside the repository.
    repo: String,
    /// The hash that was shown.
    hash: String,
}

async fn wants(shared: &Shared, repo: &str) -> Result<(PathBuf, submit::Settings), Fault> {
    let checkout = checkout(Some(repo)).await?.ok_or_else(|| Fault::bad_request("`repo` is needed"))?;
    let settings = submit::settings_of(&shared.home, &shared.user_home, Some(&checkout), &[], &[])?;
    Ok((checkout, settings))
}

fn trust_view(checkout: &Path, settings: &submit::Settings) -> TrustView {
    let difference = match &settings.trust {
        agent_host::Trust::Changed { difference } => difference.clone(),
        agent_host::Trust::NothingAsked | agent_host::Trust::Trusted | agent_host::Trust::Unknown => {
            Vec::new()
        }
    };
    TrustView {
        lines: settings.wants.lines().to_vec(),
        trusted: settings.trust.holds(),
        hash: settings.wants.hash(),
        difference,
        repo: checkout.display().to_string(),
    }
}

/// What a repository wants to run or widen, and whether a person agreed.
#[utoipa::path(get, path = "/trust", params(RepoQuery), responses((status = 200, body = TrustView)))]
pub(super) async fn trust_show(
    State(shared): State<Arc<Shared>>,
    Asked(query): Asked<RepoQuery>,
) -> Result<Json<TrustView>, Fault> {
    let repo = query.repo.ok_or_else(|| Fault::bad_request("`repo` is needed"))?;
    let (checkout, settings) = wants(&shared, &repo).await?;
    Ok(Json(trust_view(&checkout, &settings)))
}

/// Agrees to what was shown; refused when it has changed since.
#[utoipa::path(post, path = "/trust", request_body = TrustBody,
    responses((status = 200, body = TrustView), (status = 409, body = Problem)))]
pub(super) async fn trust_agree(
    State(shared): State<Arc<Shared>>,
    Body(body): Body<TrustBody>,
) -> Result<Json<TrustView>, Fault> {
    let (checkout, settings) = wants(&shared, &body.repo).await?;
    if settings.wants.hash() != body.hash {
        return Err(Fault::new(
            StatusCode::CONFLICT,
            "trust_changed",
            "what the repository wants has changed meanwhile",
        )
        .hint("look at it again: swarm trust"));
    }
    settings.wants.agree(&submit::trust_store(&shared.home), &checkout).map_err(submit::SubmitError::from)?;
    let (checkout, settings) = wants(&shared, &body.repo).await?;
    Ok(Json(trust_view(&checkout, &settings)))
}

/// A one-time code for a browser.
#[utoipa::path(post, path = "/login-codes", responses((status = 200, body = LoginCode)))]
pub(super) async fn login_code(State(shared): State<Arc<Shared>>) -> Json<LoginCode> {
    let code = shared.logins.new_code();
    let url = format!("http://{}/#code={code}", shared.address);
    Json(LoginCode { code, url })
}

/// Ends the server. With workers at work it refuses, unless told to stop or to leave them.
#[utoipa::path(post, path = "/server/stop", request_body = StopServerBody,
    responses((status = 202), (status = 409, body = Problem)))]
pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    Body(body): Body<StopServerBody>,
) -> Result<StatusCode, Fault> {
    if body.workers {
        shared.stopping.store(true, std::sync::atomic::Ordering::Relaxed);
        stop_workers(&shared).await?;
    } else if !body.leave {
        let live = live_workers(&shared).await?;
        if !live.is_empty() {
            let mut fault = Fault::new(
                StatusCode::CONFLICT,
                "workers_running",
                format!("{} workers are at work", live.len()),
            );
            for line in live.into_iter().take(20) {
                fault = fault.cause(line);
            }
            return Err(fault.hint("swarm serve --stop --workers stops them first, work committed; --leave ends the server alone"));
        }
    }
    shared.shutdown.cancel();
    Ok(StatusCode::ACCEPTED)
}

async fn live_workers(shared: &Shared) -> Result<Vec<String>, Fault> {
    let mut live = Vec::new();
    for handle in shared.sessions.all() {
        live.extend(
            handle
                .read(|model| {
                    let lines = model.workers.iter().filter(|worker| !worker.status.is_ended());
                    lines
                        .map(|worker| {
                            format!("{} {} {}", worker.spec.id, worker.status.as_str(), worker.spec.name)
                        })
                        .collect::<Vec<_>>()
                })
                .await?,
        );
    }
    Ok(live)
}

/// Interrupts every session and waits until nothing of its workers is left.
async fn stop_workers(shared: &Shared) -> Result<(), Fault> {
    for handle in shared.sessions.all() {
        handle.try_ask(|reply| Order::Interrupt("the server is stopped".to_owned(), reply)).await?;
    }
    loop {
        if live_workers(shared).await?.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
