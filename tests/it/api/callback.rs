//! The callback of a task: signed, retried, delivered once, over the server's death.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use hmac::{Hmac, Mac as _};
use integration_tests::{Reply, eventually, wait::LATER, when};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::task::JoinSet;

use crate::rig::{Rig, agent, call, prompt, write};

/// A second is promised, the rest is a busy machine's.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A call that came.
#[derive(Clone, Debug)]
struct Call {
    signature: String,
    key: String,
    body: Bytes,
    answered: StatusCode,
}

/// Answers in turn what it was told, then 200.
#[derive(Clone, Default)]
struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    answers: Arc<Mutex<Vec<StatusCode>>>,
}

impl Receiver {
    /// Starts it; where it listens, and who ends it when dropped.
    async fn start(answers: &[StatusCode]) -> (Self, String, JoinSet<()>) {
        let receiver = Self::default();
        *receiver.answers.lock().expect("no test panics with the lock") = answers.to_vec();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let app = Router::new().route("/hook", post(take)).with_state(receiver.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.expect("the listener accepts") });
        (receiver, url, serving)
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no test panics with the lock").clone()
    }

    fn of_task(&self, task: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.key == task).collect()
    }

    async fn saw(&self, n: usize) -> Vec<Call> {
        eventually(LATER, &format!("{n} calls"), async || {
            let calls = self.calls();
            if calls.len() >= n { Ok(calls) } else { Err(format!("{} so far", calls.len())) }
        })
        .await
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut answers = receiver.answers.lock().expect("no test panics with the lock");
    let answered = if answers.is_empty() { StatusCode::OK } else { answers.remove(0) };
    drop(answers);
    let call = Call { signature: header("swarm-signature"), key: header("idempotency-key"), body, answered };
    receiver.calls.lock().expect("no test panics with the lock").push(call);
    answered
}

/// As the documentation tells a receiver to: `t=<unix>,v1=<hex HMAC-SHA256 of "t.body">`.
fn assert_signed(call: &Call, key: &str) {
    let (time, signature) = call.signature.split_once(",v1=").expect("two parts");
    let time = time.strip_prefix("t=").expect("a time");
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().expect("unix seconds");
    assert!((0..120).contains(&age), "signed {age} s ago");
    let mut mac = Hmac::<Sha256>::new_from_slice(key.trim().as_bytes()).expect("any length is a key");
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(&call.body);
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(signature, expected);
}

fn key(rig: &Rig) -> String {
    std::fs::read_to_string(rig.home.path().join("webhook.key")).expect("the server made its key")
}

async fn delivered(rig: &Rig, task: &crate::rig::Task) -> Value {
    eventually(LATER, "the record of the callback", async || {
        rig.events(task, "task.callback").await.pop().ok_or("none")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_signed_retried_and_delivered_once() {
    let rig = Rig::new().await;
    rig.model.rule(when(), "Nothing to do.");
    let (receiver, url, _serving) =
        Receiver::start(&[StatusCode::INTERNAL_SERVER_ERROR, StatusCode::ACCEPTED]).await;
    let task = rig.submit_with(json!({"callback_url": url, "labels": ["nightly"]})).await;
    let calls = receiver.saw(2).await;
    for call in &calls {
        assert_signed(call, &key(&rig));
        let body: Value = serde_json::from_slice(&call.body).expect("the body is JSON");
        assert_eq!(body["task_id"], task.id.as_str());
        assert_eq!((&body["status"], &body["verdict"]), (&json!("done"), &json!("complete")));
        assert_eq!((&body["text"], &body["labels"]), (&json!("Nothing to do."), &json!(["nightly"])));
        assert_eq!(call.key, task.id);
    }
    assert_eq!(calls[0].answered, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(calls[0].body, calls[1].body);
    assert_eq!(delivered(&rig, &task).await["delivered"], true);
    // A second one, so that a third call of the first would have been seen by now.
    let second = rig.submit_with(json!({"callback_url": url})).await;
    assert_eq!(delivered(&rig, &second).await["delivered"], true);
    assert_eq!((receiver.of_task(&task.id).len(), receiver.of_task(&second.id).len()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_47_who_wants_to_hear_of_permission_requests_is_told_at_once_on_every_way() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(&prompt("writer"), [call(write("a.txt", "x\n")), Reply::say("Done.")]);
    let (receiver, url, _serving) = Receiver::start(&[]).await;
    let mut stream = rig.api().events("/events", None).await;
    let task = rig
        .submit_with(json!({"permission_mode": "default", "callback_url": url, "callback_asks": true}))
        .await;
    let asked = |event: &integration_tests::swarm::Event| event.data["kind"] == "permission.requested";
    stream.wait_for("the request on the stream", |event| asked(event).then_some(())).await;
    let journaled = Instant::now();
    let calls = receiver.saw(1).await;
    let told = journaled.elapsed();
    assert!(told < AT_ONCE, "the webhook came after {told:?}");
    assert_signed(&calls[0], &key(&rig));
    let body: Value = serde_json::from_slice(&calls[0].body).expect("the body is JSON");
    assert_eq!((&body["kind"], &body["task_id"]), (&json!("permission.requested"), &json!(task.id)));
    assert_eq!((&body["session_id"], &body["request"]["tool"]), (&json!(task.session), &json!("Write")));
    assert_eq!(body["request"]["id"], calls[0].key.as_str());
    let view = rig.permission_request(&task).await;
    assert_eq!(view["request"]["id"], body["request"]["id"]);
    assert_eq!(rig.session(&task).await["session"]["state"], "waiting");
    let metrics = rig.api().request(Method::GET, "//metrics").send().await.expect("figures");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("swarm_permission_requests_open 1"), "{metrics}");
    // What is still open is told again by the next server, recognisably.
    rig.restart_killed().await;
    let again = receiver.saw(2).await;
    assert_eq!((&again[1].key, &again[1].body), (&calls[0].key, &calls[0].body));
    let view = rig.permission_request(&task).await;
    rig.answer(&view, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    assert_eq!(delivered(&rig, &task).await["delivered"], true);
    let verdicts = receiver.of_task(&task.id);
    assert_eq!((verdicts.len(), receiver.calls().len()), (1, 3), "the verdict comes once, as ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_outlives_the_server_and_comes_once_after_it() {
    let mut rig = Rig::new().await;
    rig.model.rule(when(), "Nothing to do.");
    let (receiver, url, _serving) = Receiver::start(&[StatusCode::SERVICE_UNAVAILABLE]).await;
    let task = rig.submit_with(json!({"callback_url": url})).await;
    let first = receiver.saw(1).await;
    rig.restart_killed().await;
    assert_eq!(delivered(&rig, &task).await["delivered"], true);
    let calls = receiver.saw(2).await;
    assert_signed(&calls[1], &key(&rig));
    assert_eq!((&first[0].key, calls[1].answered), (&task.id, StatusCode::OK));
    // What was delivered is not delivered again by the next server.
    rig.restart_killed().await;
    let second = rig.submit_with(json!({"callback_url": url})).await;
    assert_eq!(delivered(&rig, &second).await["delivered"], true);
    assert_eq!((receiver.of_task(&task.id).len(), receiver.of_task(&second.id).len()), (2, 1));
}
