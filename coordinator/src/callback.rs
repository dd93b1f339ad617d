//! The callback of a task: once, when its verdict is known, signed, retried (spec 8.2).

use std::{sync::Arc, time::Duration};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use swarm_protocol::{TaskId, event::Event};

use crate::{
    clock,
    server::Shared,
    session::{Order, SessionHandle, model::SessionModel, views},
};

/// Waits before the second and later tries.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(600),
];

/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// `t=<unix>,v1=<hex HMAC-SHA256 of "t.body">`.
pub(crate) fn signature(key: &str, unix: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(format!("{unix}.{body}").as_bytes());
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={unix},v1={hex}")
}

/// Delivers the callback of a finished task beside the session; the journal records what became of it. The
/// tries end with the server and begin anew with the next one.
pub(crate) fn deliver(shared: &Arc<Shared>, model: &SessionModel, task_id: TaskId, handle: &SessionHandle) {
    let Some(task) = model.task(task_id) else { return };
    let Some(url) = task.callback_url.clone() else { return };
    let view = views::task_view(model, task, clock::now());
    let Ok(body) = serde_json::to_string(&view) else { return };
    let shared = Arc::clone(shared);
    let handle = handle.clone();
    let key = shared.webhook_key.clone();
    shared.clone().background(async move {
        let client = match reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()
        {
            Ok(client) => client,
            Err(error) => {
                record(&handle, task_id, false, error.to_string()).await;
                return;
            }
        };
        let mut problem = String::new();
        for attempt in 0..=PAUSES.len() {
            if attempt > 0 {
                tokio::time::sleep(PAUSES[attempt - 1]).await;
            }
            let unix = clock::now().as_millis() / 1000;
            let sent = client
                .post(&url)
                .header("content-type", "application/json")
                .header("swarm-signature", signature(&key, unix, &body))
                .header("idempotency-key", task_id.to_string())
                .body(body.clone())
                .send()
                .await;
            match sent {
                Ok(answer) if answer.status().is_success() => {
                    record(&handle, task_id, true, format!("answered {}", answer.status().as_u16())).await;
                    return;
                }
                Ok(answer) => problem = format!("answered {}", answer.status().as_u16()),
                Err(error) => problem = error.without_url().to_string(),
            }
        }
        record(&handle, task_id, false, format!("given up after {} tries: {problem}", PAUSES.len() + 1))
            .await;
    });
}

async fn record(handle: &SessionHandle, task_id: TaskId, delivered: bool, note: String) {
    let event = Event::TaskCallback { task_id, delivered, note };
    // The session is gone only with the server; the next one delivers again.
    handle.try_ask(|reply| Order::Record(vec![event], reply)).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_covers_time_and_body() {
        // Checked against Python's hmac module.
        let signed = signature("k", 1_700_000_000, "{}");
        let expected = "c6ef4734033cee2367414a0939385eca0397754aa7a59716da7463a9298b5146";
        assert_eq!(signed, format!("t=1700000000,v1={expected}"));
        assert_ne!(signed, signature("k", 1_700_000_001, "{}"));
        assert_ne!(signed, signature("k", 1_700_000_000, "{ }"));
    }
}
