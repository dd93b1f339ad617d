//! The callback of a task: once, when its verdict is known, signed, retried (spec 8.2); and, for who wants it, of
//! each permission request that waits.

use std::{sync::Arc, time::Duration};

use hmac::{Hmac, Mac};
use serde::Serialize;
use sha2::Sha256;
use swarm_protocol::{SessionId, TaskId, event::Event, permission::PermissionRequest};

use crate::{
    clock,
    server::Shared,
    session::{Order, SessionHandle, model::SessionModel, views},
};

/// Waits before the second and later tries.
pub(crate) const PAUSES: [Duration; 5] = [
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
    let mac = mac(key, unix, body);
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={unix},v1={hex}")
}

/// Whether a key made this signature. Takes as long whatever is wrong.
pub(crate) fn is_signed(key: &str, unix: i64, body: &str, signature: &[u8]) -> bool {
    mac(key, unix, body).verify_slice(signature).is_ok()
}

fn mac(key: &str, unix: i64, body: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(format!("{unix}.{body}").as_bytes());
    mac
}

/// Delivers the callback of a finished task beside the session; the journal records what became of it. The
/// tries end with the server and begin anew with the next one.
pub(crate) fn deliver(shared: &Arc<Shared>, model: &SessionModel, task_id: TaskId, handle: &SessionHandle) {
    let Some(task) = model.task(task_id) else { return };
    let Some(url) = task.callback_url.clone() else { return };
    let view = views::task_view(model, task, clock::now());
    let Ok(body) = serde_json::to_string(&view) else { return };
    let body = shared.masker.mask_json(&body).into_owned();
    let handle = handle.clone();
    let key = shared.webhook_key.clone();
    let post = Post { url, key, id: task_id.to_string(), body, signs_nonce: false };
    shared.background(async move {
        match post.deliver(&PAUSES).await {
            Ok(note) => record(&handle, task_id, true, note).await,
            Err(note) => record(&handle, task_id, false, note).await,
        }
    });
}

/// A permission request, as it is told.
#[derive(Serialize)]
struct Ask<'a> {
    kind: &'static str,
    session_id: SessionId,
    task_id: TaskId,
    request: &'a PermissionRequest,
}

/// Tells of a permission request that waits, if the task's owner wants to hear of it. After a restart of the
/// server what is still open is told again, under the same idempotency key.
pub(crate) fn ask(shared: &Arc<Shared>, model: &SessionModel, request: &PermissionRequest) {
    let worker = model.worker(&request.worker_id);
    let Some(task) = worker.and_then(|worker| model.task(worker.last_run()?.task_id)) else { return };
    let Some(url) = task.callback_url.clone().filter(|_| task.callback_asks) else { return };
    let ask = Ask { kind: "permission.requested", session_id: model.id, task_id: task.id, request };
    let Ok(body) = serde_json::to_string(&ask) else { return };
    let body = shared.masker.mask_json(&body).into_owned();
    let id = request.id.to_string();
    let post = Post { url, key: shared.webhook_key.clone(), id: id.clone(), body, signs_nonce: false };
    shared.background(async move {
        // Not for longer than a request waits by default.
        if let Err(note) = post.deliver(&PAUSES[..4]).await {
            tracing::warn!(request.id = %id, note, "nobody could be told of a permission request");
        }
    });
}

/// A signed POST.
pub(crate) struct Post {
    pub(crate) url: String,
    pub(crate) key: String,
    /// The idempotency key.
    pub(crate) id: String,
    pub(crate) body: String,
    /// A nonce goes along in `Swarm-Nonce` and is signed before the body, so that a reader can tell a repeat by
    /// somebody else; tries of ours have each their own.
    pub(crate) signs_nonce: bool,
}

impl Post {
    /// Tries until it is taken; what came of it, as a note.
    pub(crate) async fn deliver(&self, pauses: &[Duration]) -> Result<String, String> {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()
            .map_err(|error| error.to_string())?;
        let mut problem = String::new();
        for attempt in 0..=pauses.len() {
            if attempt > 0 {
                tokio::time::sleep(pauses[attempt - 1]).await;
            }
            let unix = clock::now().as_millis() / 1000;
            let mut request = client
                .post(&self.url)
                .header("content-type", "application/json")
                .header("idempotency-key", &self.id);
            let signed = if self.signs_nonce {
                let nonce = uuid::Uuid::new_v4().to_string();
                let signed = signature(&self.key, unix, &format!("{nonce}.{}", self.body));
                request = request.header("swarm-nonce", nonce);
                signed
            } else {
                signature(&self.key, unix, &self.body)
            };
            let sent = request.header("swarm-signature", signed).body(self.body.clone()).send().await;
            match sent {
                Ok(answer) if answer.status().is_success() => {
                    return Ok(format!("answered {}", answer.status().as_u16()));
                }
                Ok(answer) => problem = format!("answered {}", answer.status().as_u16()),
                Err(error) => problem = error.without_url().to_string(),
            }
        }
        Err(format!("given up after {} tries: {problem}", pauses.len() + 1))
    }
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
