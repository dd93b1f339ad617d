//! `/metrics` for Prometheus. Counters are kept by the `metrics` crate; what is a state of the server is read
//! when it is asked for.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use swarm_protocol::WorkerStatus;

use crate::{clock, room::Floors, server::Shared};

const STATUSES: [WorkerStatus; 8] = [
    WorkerStatus::Pending,
    WorkerStatus::Starting,
    WorkerStatus::Running,
    WorkerStatus::Waiting,
    WorkerStatus::Finishing,
    WorkerStatus::Completed,
    WorkerStatus::Failed,
    WorkerStatus::Aborted,
];

/// Counts calls by route and status, and their time.
pub(super) async fn count(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = request.method().as_str().to_owned();
    let begun = tokio::time::Instant::now();
    let response = next.run(request).await;
    let labels = [("route", route), ("method", method), ("status", response.status().as_u16().to_string())];
    metrics::with_local_recorder(&shared.recorder, || {
        metrics::counter!("swarm_http_requests_total", &labels).increment(1);
        metrics::histogram!("swarm_http_request_seconds", &labels).record(begun.elapsed().as_secs_f64());
    });
    response
}

/// The figures.
pub(super) async fn show(State(shared): State<Arc<Shared>>) -> String {
    let mut by_status = [0_u64; STATUSES.len()];
    let mut sessions = 0_u64;
    let mut queued = 0_u64;
    let mut oldest_ms = 0_u64;
    let mut asks = 0_u64;
    let mut usage = Vec::new();
    for handle in shared.sessions.all() {
        let now = clock::now();
        let read = handle.read(move |model| {
            let counts = STATUSES
                .map(|status| model.workers.iter().filter(|worker| worker.status == status).count() as u64);
            let pending: Vec<u64> = model
                .pending_entries()
                .map(|entry| now.millis_since(entry.notification.enqueued_at))
                .collect();
            let asks = model.permissions.iter().filter(|permission| permission.is_open()).count() as u64;
            let models =
                (model.spec.models.coordinator.display_name(), model.usage(), model.cost().known_usd);
            (counts, pending, asks, models)
        });
        let Ok((counts, pending, open, models)) = read.await else { continue };
        sessions += 1;
        for (sum, count) in by_status.iter_mut().zip(counts) {
            *sum += count;
        }
        queued += pending.len() as u64;
        oldest_ms = oldest_ms.max(pending.into_iter().max().unwrap_or(0));
        asks += open;
        usage.push(models);
    }
    let mut tokens: std::collections::BTreeMap<String, (u64, u64, u64, f64)> =
        std::collections::BTreeMap::new();
    for (model, used, usd) in usage {
        let sum = tokens.entry(model).or_default();
        sum.0 += used.total_input();
        sum.1 += used.output_tokens;
        sum.2 += used.cache_read_tokens;
        sum.3 += usd;
    }
    let room = shared.room(shared.home.worktrees()).await;
    let floors = Floors::new(&shared.settings);
    metrics::with_local_recorder(&shared.recorder, || {
        for (resource, free, floor) in
            [("memory", room.memory, floors.memory), ("disk", room.disk, floors.disk)]
        {
            if let Some(free) = free {
                metrics::gauge!("swarm_free_bytes", "resource" => resource).set(free as f64);
            }
            metrics::gauge!("swarm_free_bytes_floor", "resource" => resource).set(floor as f64);
        }
        metrics::gauge!("swarm_sessions").set(sessions as f64);
        for (status, count) in STATUSES.iter().zip(by_status) {
            metrics::gauge!("swarm_workers", "status" => status.as_str()).set(count as f64);
        }
        metrics::gauge!("swarm_notifications_queued").set(queued as f64);
        metrics::gauge!("swarm_notification_oldest_seconds").set(oldest_ms as f64 / 1000.0);
        let (held, waiting) = shared.gates.figures();
        metrics::gauge!("swarm_rate_limits_held").set(held as f64);
        metrics::gauge!("swarm_rate_limit_waiting").set(waiting as f64);
        metrics::gauge!("swarm_permission_requests_open").set(asks as f64);
        for (model, (input, output, cached, usd)) in tokens {
            metrics::gauge!("swarm_tokens", "model" => model.clone(), "kind" => "input").set(input as f64);
            metrics::gauge!("swarm_tokens", "model" => model.clone(), "kind" => "output").set(output as f64);
            metrics::gauge!("swarm_tokens", "model" => model.clone(), "kind" => "cache_read")
                .set(cached as f64);
            metrics::gauge!("swarm_cost_usd", "model" => model).set(usd);
        }
    });
    shared.recorder.handle().render()
}
