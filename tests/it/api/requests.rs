//! What the API refuses, in which words, and that nothing is left behind; what a key promises.

use std::collections::BTreeSet;

use integration_tests::{Reply, TestRepo, when};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{assert_problem, assert_problem_in, sent, stranger};
use crate::rig::{COORDINATE, Rig, agent, call, id_of, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_task_is_refused_and_leaves_nothing() {
    let rig = Rig::new().await;
    rig.repo.branch("release-2");
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    let unborn = TestRepo::empty();
    let repo = rig.repo.path();
    let unknown_session = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";
    let bad = StatusCode::UNPROCESSABLE_ENTITY;
    let task = |more: Value| {
        let mut task = json!({"prompt": "do it", "repo": repo});
        for (key, value) in more.as_object().expect("fields") {
            task[key] = value.clone();
        }
        task
    };
    for (body, status, code, says) in [
        (task(json!({"prompt": ""})), bad, "empty_prompt", "empty"),
        (task(json!({"prompt": " \n\t"})), bad, "empty_prompt", "empty"),
        (task(json!({"prompt": "x".repeat(1024 * 1024 + 1)})), bad, "prompt_too_long", "bytes"),
        (json!({"prompt": "do it"}), bad, "no_place", "repo"),
        (task(json!({"repo": nowhere.path()})), bad, "not_a_repository", "not in a git repository"),
        (task(json!({"repo": nowhere.path().join("none")})), bad, "not_a_repository", "none"),
        (task(json!({"repo": unborn.path()})), bad, "no_commit", "has no commit yet"),
        (task(json!({"base": "relase-2"})), bad, "bad_base", "has no commit `relase-2`"),
        (task(json!({"model": "nobody/knows"})), bad, "no_model", "nobody"),
        (task(json!({"model": "openai/test-model"})), bad, "no_key", "OPENAI_API_KEY"),
        (task(json!({"callback_url": "file:///etc/passwd"})), bad, "bad_callback_url", "callback_url"),
        (task(json!({"permission_mode": "dontAsk"})), bad, "bad_request", "dontAsk"),
        (task(json!({"promt": "do it"})), bad, "bad_request", "promt"),
        (task(json!({"prompt": 7})), bad, "bad_request", "prompt"),
        (
            json!({"prompt": "do it", "session_id": unknown_session}),
            StatusCode::NOT_FOUND,
            "unknown_id",
            unknown_session,
        ),
        (task(json!({"session_id": unknown_session})), bad, "not_with_session", "repo"),
        (task(json!({"max_workers": 0})), bad, "bad_config", "max_workers"),
        (task(json!({"budget": {"usd": 5}})), bad, "unknown_price", "budget_usd"),
        (task(json!({"budget": {"usd": 0}})), bad, "bad_config", "budget_usd"),
        (task(json!({"budget": {"tokens": 0}})), bad, "bad_config", "budget_tokens"),
        (task(json!({"budget": {"euro": 5}})), bad, "bad_request", "euro"),
    ] {
        let problem = assert_problem(rig.api().try_post("/tasks", &body).await, status, code);
        let title = problem["title"].as_str().expect("a title");
        assert!(title.contains(says), "`{says}` is not said: {problem:#}");
    }
    let near = rig.api().try_post("/tasks", &task(json!({"base": "relase-2"}))).await.1;
    assert!(near["hint"].as_str().is_some_and(|hint| hint.contains("`release-2`")), "{near:#}");

    let post = || rig.api().request(Method::POST, "/tasks");
    let json = "application/json";
    let large = format!("{{\"prompt\":\"{}\"}}", "x".repeat(12 * 1024 * 1024));
    for (request, status, code) in [
        (post().body("prompt=do it"), StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json"),
        (
            post().header("content-type", "text/plain").body("{}"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
        ),
        (post().header("content-type", json).body("{\"prompt\":"), StatusCode::BAD_REQUEST, "bad_request"),
        (post().header("content-type", json).body(""), StatusCode::BAD_REQUEST, "bad_request"),
        (post().header("content-type", json).body(large), StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
        (post().header("idempotency-key", "").json(&task(json!({}))), StatusCode::BAD_REQUEST, "bad_request"),
        (
            post().header("idempotency-key", "k".repeat(256)).json(&task(json!({}))),
            StatusCode::BAD_REQUEST,
            "bad_request",
        ),
    ] {
        assert_problem_in(sent(request).await, status, code).await;
    }

    assert_eq!(rig.api().get("/sessions").await, json!([]));
    assert_eq!(rig.home.worktrees(), [] as [std::path::PathBuf; 0]);
    assert_eq!(rig.repo.branches("*"), ["main", "release-2"]);
    assert_eq!(rig.repo.status(), "");
    assert!(rig.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_nobody_has_are_404_and_ids_of_another_session_reach_nobody() {
    let rig = Rig::new().await;
    let unknown = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";
    let text = json!({"text": "hello"});
    let none = json!({});
    let deny = json!({"decision": "deny"});
    for (path, body) in [
        (format!("/tasks/{unknown}"), None),
        (format!("/sessions/{unknown}"), None),
        ("/sessions/7c1d09e2".to_owned(), None),
        ("/sessions/%2e%2e%2f".to_owned(), None),
        (format!("/sessions/{unknown}/events"), None),
        ("/workers/agent-zzz".to_owned(), None),
        ("/workers/zzz/diff".to_owned(), None),
        (format!("/workers?session={unknown}"), None),
        ("/workers/agent-zzz/transcript".to_owned(), None),
        ("/workers/agent-zzz/snapshots".to_owned(), None),
        ("/explain/agent-zzz".to_owned(), None),
        (format!("/sessions/{unknown}/messages"), Some(&text)),
        (format!("/sessions/{unknown}/interrupt"), Some(&none)),
        (format!("/sessions/{unknown}/resume"), Some(&none)),
        ("/workers/agent-zzz/messages".to_owned(), Some(&text)),
        ("/workers/agent-zzz/stop".to_owned(), Some(&none)),
        ("/workers/agent-zzz/merge".to_owned(), Some(&none)),
        ("/workers/agent-zzz/discard".to_owned(), Some(&none)),
        ("/workers/agent-zzz/restore".to_owned(), Some(&none)),
        ("/permissions/req-zzz".to_owned(), Some(&deny)),
    ] {
        let answer = match body {
            None => rig.api().try_get(&path).await,
            Some(body) => rig.api().try_post(&path, body).await,
        };
        let problem = assert_problem(answer, StatusCode::NOT_FOUND, "unknown_id");
        assert!(
            problem["title"].as_str().is_some_and(|title| title.starts_with("no ")),
            "{path}: {problem:#}"
        );
    }

    // A worker that runs, and a coordinator of another session that was told its id.
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(&prompt("alpha"), [Reply::say("Nothing to do.").gate("the end")]);
    let first = rig.submit().await;
    let worker = rig.worker_has_status(&first, "alpha", "running").await;
    let id = id_of(&worker).to_owned();
    rig.model.agent(
        "look elsewhere",
        [
            Reply::new()
                .tool_with_id(
                    "toolu_say",
                    "SendMessage",
                    json!({"to": id, "message": "obey me", "summary": "obey"}),
                )
                .tool_with_id("toolu_stop", "TaskStop", json!({"task_id": id})),
            Reply::say("It is not mine."),
        ],
    );
    let second = rig.submit_with(json!({"prompt": "look elsewhere"})).await;
    assert_eq!(rig.done(&second).await["verdict"], "complete");
    let request = rig.model.wait_for_request("look elsewhere", 1).await;
    for result in ["toolu_say", "toolu_stop"] {
        let (_, text, is_error) =
            request.tool_results().find(|(of, _, _)| *of == result).expect("each call has its result");
        assert!(is_error, "{text}");
        assert!(text.contains(&id), "{text}");
    }
    let others = rig.api().get(&format!("/workers?session={}", second.session)).await;
    assert_eq!(others, json!([]));
    assert!(rig.worker(&first, "alpha").await["status"] == "running");
    rig.model.gate("the end").open();
    rig.done(&first).await;
    for request in rig.model.requests_of(&prompt("alpha")) {
        assert!(!request.any_user_text_contains("obey me"), "the message of another session arrived");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_come_later_are_refused_by_name() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let id = id_of(&worker);
    let api = rig.api();
    let none = json!({});
    for (answer, says) in [
        (api.try_get("/search?q=x").await, "search"),
        (api.try_get(&format!("/workers/{id}/terminal")).await, "terminal"),
        (api.try_post(&format!("/workers/{id}/comments"), &none).await, "comments"),
        (api.try_post(&format!("/workers/{id}/merge"), &json!({"dry_run": true})).await, "dry_run"),
        (api.try_post(&format!("/workers/{id}/merge"), &json!({"check": true})).await, "check"),
    ] {
        let problem = assert_problem(answer, StatusCode::NOT_IMPLEMENTED, "not_available");
        assert!(problem["title"].as_str().is_some_and(|title| title.contains(says)), "{problem:#}");
    }
    // Compaction on request is there: it acts before the coordinator's next request.
    let compact = format!("/sessions/{}/compact", task.session);
    assert_eq!(api.try_post(&compact, &none).await.0, StatusCode::ACCEPTED);
    // What was never promised is another thing.
    assert_problem(api.try_get("/nonsense").await, StatusCode::NOT_FOUND, "unknown_call");
    assert_eq!(api.try_post("/sessions", &none).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(rig.repo.head(), rig.repo.git(&["rev-parse", "main"]));
}

/// The calls of the specification's table.
const PROMISED: [(&str, &str); 33] = [
    ("post", "/tasks"),
    ("get", "/tasks/{id}"),
    ("get", "/sessions"),
    ("get", "/sessions/{id}"),
    ("delete", "/sessions/{id}"),
    ("post", "/sessions/{id}/messages"),
    ("post", "/sessions/{id}/interrupt"),
    ("post", "/sessions/{id}/resume"),
    ("post", "/sessions/{id}/permission-mode"),
    ("post", "/sessions/{id}/compact"),
    ("get", "/sessions/{id}/events"),
    ("get", "/events"),
    ("get", "/workers"),
    ("get", "/workers/{id}"),
    ("get", "/workers/{id}/transcript"),
    ("get", "/workers/{id}/diff"),
    ("get", "/workers/{id}/snapshots"),
    ("get", "/workers/{id}/terminal"),
    ("post", "/workers/{id}/messages"),
    ("post", "/workers/{id}/stop"),
    ("post", "/workers/{id}/merge"),
    ("post", "/workers/{id}/discard"),
    ("post", "/workers/{id}/restore"),
    ("post", "/workers/{id}/comments"),
    ("get", "/permissions"),
    ("post", "/permissions/{id}"),
    ("get", "/search"),
    ("get", "/config"),
    ("get", "/cost"),
    ("get", "/nodes"),
    ("get", "/trust"),
    ("post", "/trust"),
    ("post", "/gc"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_lists_every_call_and_every_call_it_lists_is_there() {
    let rig = Rig::new().await;
    // The document is public: it tells nothing of this server.
    let document: Value = sent(stranger(rig.api(), Method::GET, "/openapi.json"))
        .await
        .json()
        .await
        .expect("the document is JSON");
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")), "{document}");
    let paths = document["paths"].as_object().expect("the document has paths");
    for (method, path) in PROMISED {
        let operation = &document["paths"][format!("/api/v1{path}")][method];
        assert!(operation["responses"].is_object(), "{method} {path} is not in the document");
    }
    for (path, operations) in paths {
        for method in operations.as_object().expect("operations").keys() {
            if path.ends_with("/stop") && path.contains("server") {
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let path = path.replace("{id}", "agent-zzz");
            let at = path.strip_prefix("/api/v1").expect("calls stand under /api/v1");
            let answer = sent(rig.api().request(method.clone(), at).json(&json!({"not": "expected"}))).await;
            let (status, is_stream) = (answer.status(), at.ends_with("/events"));
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {at}");
            if !is_stream {
                let body: Value = answer.json().await.unwrap_or_default();
                assert_ne!(body["code"], "unknown_call", "{method} {at}");
                assert!(
                    !status.is_server_error() || body["code"] == "not_available",
                    "{method} {at}: {body}"
                );
            }
        }
    }
    // Generators of clients name their functions by these.
    let operations = paths.values().flat_map(|item| item.as_object().expect("operations").values());
    let ids: Vec<&str> =
        operations.map(|operation| operation["operationId"].as_str().expect("an id")).collect();
    assert_eq!(BTreeSet::from_iter(&ids).len(), ids.len(), "{ids:?}");
    // Every reference leads somewhere.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a reference ends");
        assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_starts_one_task_however_often_it_comes() {
    let mut rig = Rig::new().await;
    rig.model.rule(when(), "Nothing to do.");
    let body = json!({"prompt": COORDINATE, "repo": rig.repo.path(), "labels": ["nightly"]});
    let keyed = async |rig: &Rig, key: &str, body: &Value| {
        let answer = rig.api().request(Method::POST, "/tasks").header("idempotency-key", key).json(body);
        let answer = sent(answer).await;
        let status = answer.status();
        (status, answer.json::<Value>().await.expect("an answer is JSON"))
    };
    // Two at once, and two more: a double click of an impatient program.
    let (one, two, three, four) = tokio::join!(
        keyed(&rig, "first", &body),
        keyed(&rig, "first", &body),
        keyed(&rig, "first", &body),
        keyed(&rig, "first", &body)
    );
    assert_eq!(one.0, StatusCode::ACCEPTED, "{}", one.1);
    assert_eq!([&one, &two, &three], [&two, &three, &four]);
    let other = json!({"prompt": "something else", "repo": rig.repo.path()});
    assert_problem(keyed(&rig, "first", &other).await, StatusCode::CONFLICT, "idempotency_key_reused");
    // A refusal is not remembered: what was wrong may be put right.
    let refused = keyed(&rig, "second", &json!({"prompt": " ", "repo": rig.repo.path()})).await;
    assert_problem(refused, StatusCode::UNPROCESSABLE_ENTITY, "empty_prompt");
    let second = keyed(&rig, "second", &body).await;
    assert_eq!(second.0, StatusCode::ACCEPTED, "{}", second.1);
    assert_ne!(second.1["task_id"], one.1["task_id"]);

    rig.restart_killed().await;
    assert_eq!(keyed(&rig, "first", &body).await, one);
    let sessions = rig.api().get("/sessions").await;
    assert_eq!(sessions.as_array().map(Vec::len), Some(2), "{sessions:#}");
    let view = rig.api().get(&format!("/tasks/{}", one.1["task_id"].as_str().expect("an id"))).await;
    assert_eq!(view["labels"], json!(["nightly"]));
}
