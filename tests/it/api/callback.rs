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
    nonce: String,
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
    let (signature, nonce) = (header("swarm-signature"), header("swarm-nonce"));
    let call = Call { signature, nonce, key: header("idempotency-key"), body, answered };
    receiver.calls.lock().expect("no test panics with the lock").push(call);
    answered
}

/// As the documentation tells a receiver to: `t=<unix>,v1=<hex HMAC-SHA256 of "t.body">`.
fn assert_signed(call: &Call, key: &str) {
    let (time, signature) = call.signature.split_once(",v1=").expect("two parts");
    let time = time.strip_prefix("t=").expect("a time");
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().expect("unix seconds");
    assert!((0..120).contains(&age), "signed {age} s ago");
    let body = match call.nonce.as_str() {
        "" => call.body.to_vec(),
        nonce => [nonce.as_bytes(), b".", &call.body].concat(),
    };
    assert_eq!(signature, hmac(key, time, &body));
}

fn hmac(key: &str, time: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.trim().as_bytes()).expect("any length is a key");
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A channel's signed answer, as the documentation tells it to; the status and what the server said.
async fn answer_signed(rig: &Rig, key: &str, id: &str, nonce: &str, body: &Value) -> (StatusCode, Value) {
    let time = jiff::Timestamp::now().as_second().to_string();
    let text = body.to_string();
    let signature = hmac(key, &time, format!("{nonce}.{text}").as_bytes());
    // No token: this is not the rig's own client.
    let answered = reqwest::Client::new()
        .post(format!("{}/api/v1/permissions/{id}/answer", address(rig)))
        .header("swarm-signature", format!("t={time},v1={signature}"))
        .header("swarm-nonce", nonce)
        .body(text)
        .send()
        .await
        .expect("the server answers");
    (answered.status(), answered.json().await.expect("it answers JSON"))
}

fn address(rig: &Rig) -> String {
    let file = rig.home.server_file().expect("the server says where it is");
    format!("http://{}", file["address"].as_str().expect("an address"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_channel_is_told_in_its_form_and_answers_once_by_its_signature() {
    let (receiver, url, _serving) = Receiver::start(&[StatusCode::INTERNAL_SERVER_ERROR]).await;
    let rig = Rig::configured(&format!("[channel]\nurl = \"{url}\"\nkind = \"slack\"\n")).await;
    rig.coordinator(Reply::call("Agent", agent("writer")));
    rig.model.agent(
        &prompt("writer"),
        [call(write("a.txt", "x\n")), call(write("b.txt", "x\n")), Reply::say("Done.")],
    );
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    let key = std::fs::read_to_string(rig.home.path().join("channel.key")).expect("the server made its key");
    let key = key.trim();
    let told = receiver.saw(2).await;
    for call in &told {
        assert_signed(call, key);
    }
    assert_eq!((told[0].answered, &told[0].body), (StatusCode::INTERNAL_SERVER_ERROR, &told[1].body));
    assert_ne!(told[0].nonce, told[1].nonce);
    let message: Value = serde_json::from_slice(&told[1].body).expect("the body is JSON");
    let view = rig.permission_request(&task).await;
    let id = view["request"]["id"].as_str().expect("an id");
    assert_eq!((&message["kind"], &message["request_id"]), (&json!("permission.requested"), &json!(id)));
    let text = message["text"].as_str().expect("a text");
    assert!(text.contains("writer") && text.contains("a.txt"), "{text}");
    assert_eq!(message["blocks"][1]["elements"][0]["value"], format!("allow:once:{id}"));
    let rule = view["request"]["proposed_rule"].as_str().expect("a rule for more than once");
    assert!(text.ends_with(&format!("\nFor this session: {rule}")), "{text}");
    let answer_url = message["actions"][0]["url"].as_str().expect("where answers go");
    assert_eq!(answer_url, format!("{}/api/v1/permissions/{id}/answer", address(&rig)));
    assert!(view["racers"].as_array().expect("racers").contains(&json!({"by": "remote", "source": "slack"})));

    let body = json!({"request_id": id, "decision": "allow", "args_hash": message["args_hash"]});
    let with = |key: &str, value: Value| {
        let mut body = body.clone();
        body[key] = value;
        body
    };
    for (key, nonce, body, status, code) in [
        ("0000", "nonce-0001", body.clone(), StatusCode::UNAUTHORIZED, "wrong_signature"),
        (key, "no", body.clone(), StatusCode::UNAUTHORIZED, "not_signed"),
        (key, "nonce-0002", with("scope", json!("always")), StatusCode::BAD_REQUEST, "bad_request"),
        (
            key,
            "nonce-0003",
            with("request_id", json!("req-00000000")),
            StatusCode::BAD_REQUEST,
            "bad_request",
        ),
        (
            key,
            "nonce-0004",
            with("args_hash", json!("0".repeat(64))),
            StatusCode::CONFLICT,
            "other_arguments",
        ),
    ] {
        let (answered, problem) = answer_signed(&rig, key, id, nonce, &body).await;
        assert_eq!((answered, &problem["code"]), (status, &json!(code)), "{problem:#}");
    }
    let (status, answered) = answer_signed(&rig, key, id, "nonce-0005", &body).await;
    assert_eq!((status, &answered["won"]), (StatusCode::OK, &json!(true)), "{answered:#}");
    assert_eq!(
        (&answered["decision"]["by"], &answered["decision"]["source"]),
        (&json!("remote"), &json!("slack"))
    );
    let (status, problem) = answer_signed(&rig, key, id, "nonce-0005", &body).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("replayed")));
    let (_, late) = answer_signed(&rig, key, id, "nonce-0006", &body).await;
    assert_eq!(late["won"], false, "it is decided");
    // The next one is a person's at the desk, and the channel hears of it.
    let second = eventually(LATER, "the second request", async || {
        let view = rig.permission_request(&task).await;
        if view["request"]["id"] == id { Err("the first".to_owned()) } else { Ok(view) }
    })
    .await;
    rig.answer(&second, &json!({"decision": "deny"})).await;
    rig.done(&task).await;
    let heard = eventually(LATER, "word of both decisions", async || {
        let calls = receiver.calls().into_iter();
        let bodies = calls.filter_map(|call| serde_json::from_slice::<Value>(&call.body).ok());
        let decided: Vec<Value> = bodies.filter(|body| body["kind"] == "permission.decided").collect();
        if decided.len() == 2 { Ok(decided) } else { Err(format!("{decided:#?}")) }
    })
    .await;
    let mut deciders: Vec<&str> = heard.iter().filter_map(|body| body["decision"]["by"].as_str()).collect();
    deciders.sort_unstable();
    assert_eq!(deciders, ["person", "remote"]);
    let worker = rig.worker(&task, "writer").await;
    assert_eq!((rig.at(&worker, "a.txt").as_deref(), rig.at(&worker, "b.txt")), (Some("x\n"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_channel_takes_no_signed_answer() {
    let rig = Rig::new().await;
    let body = json!({"request_id": "req-00000000", "decision": "allow", "args_hash": ""});
    let (status, problem) = answer_signed(&rig, "k", "req-00000000", "nonce-0001", &body).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("no_channel")));
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
