//! Who may call: the token, the browser's login, Host and Origin.

use std::{fs, os::unix::fs::PermissionsExt as _};

use integration_tests::{Reply, swarm::API_KEY, swarm::Api, when};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{assert_problem_in, authority, sent, stranger, url};
use crate::rig::{Rig, agent, call, files_below, prompt, write};

const CALLS: [(Method, &str); 10] = [
    (Method::GET, "/api/v1/sessions"),
    (Method::GET, "/api/v1/workers"),
    (Method::GET, "/api/v1/permissions"),
    (Method::GET, "/api/v1/events"),
    (Method::GET, "/api/v1/config"),
    (Method::GET, "/api/v1/info"),
    (Method::GET, "/metrics"),
    (Method::POST, "/api/v1/tasks"),
    (Method::POST, "/api/v1/login-codes"),
    (Method::POST, "/api/v1/server/stop"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_call_needs_the_token() {
    let rig = Rig::new().await;
    for (method, path) in CALLS {
        let none = sent(stranger(rig.api(), method.clone(), path).json(&json!({}))).await;
        assert_problem_in(none, StatusCode::UNAUTHORIZED, "no_token").await;
        let wrong = stranger(rig.api(), method.clone(), path).bearer_auth("0".repeat(64)).json(&json!({}));
        assert_problem_in(sent(wrong).await, StatusCode::UNAUTHORIZED, "wrong_token").await;
        // A token in the address is none: addresses stand in logs.
        let token = fs::read_to_string(rig.home.path().join("token")).expect("the server made its token");
        let in_query = stranger(rig.api(), method, &format!("{path}?token={token}")).json(&json!({}));
        assert_problem_in(sent(in_query).await, StatusCode::UNAUTHORIZED, "no_token").await;
    }
    assert!(rig.home.server_process().is_some(), "nothing of this ended the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_53_a_foreign_host_name_or_origin_is_refused_even_with_the_token() {
    let rig = Rig::new().await;
    let api = rig.api();
    let port = authority(api).rsplit(':').next().expect("an address has a port").to_owned();
    // A page of the web whose name was made to resolve to this machine.
    for host in [format!("swarm.example.org:{port}"), "127.0.0.1".to_owned(), "127.0.0.1:1".to_owned()] {
        for path in ["/api/v1/sessions", "/", "/healthz"] {
            let call = integration_tests::http_client().get(url(api, path)).header("host", &host);
            let call = call.bearer_auth(token(&rig));
            assert_problem_in(sent(call).await, StatusCode::MISDIRECTED_REQUEST, "foreign_host").await;
        }
    }
    let foreign =
        ["http://swarm.example.org".to_owned(), "null".to_owned(), format!("https://localhost:{port}")];
    for origin in foreign {
        let call = api.request(Method::POST, "/tasks").header("origin", &origin).json(&json!({}));
        assert_problem_in(sent(call).await, StatusCode::FORBIDDEN, "foreign_origin").await;
        // A WebSocket of another page.
        let socket = stranger(api, Method::GET, "/api/v1/workers/agent-a1b/terminal")
            .header("origin", &origin)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==");
        assert_problem_in(sent(socket).await, StatusCode::FORBIDDEN, "foreign_origin").await;
    }
    for name in ["127.0.0.1", "localhost"] {
        let call = api.request(Method::GET, "/sessions").header("host", format!("{name}:{port}"));
        let call = call.header("origin", format!("http://{name}:{port}"));
        assert_eq!(sent(call).await.status(), StatusCode::OK);
    }
}

fn token(rig: &Rig) -> String {
    let token = fs::read_to_string(rig.home.path().join("token"));
    token.expect("the server made its token").trim().to_owned()
}

async fn login(api: &Api, origin: Option<&str>, code: &str) -> reqwest::Response {
    let mut call = stranger(api, Method::POST, "/api/v1/login").json(&json!({"code": code}));
    if let Some(origin) = origin {
        call = call.header("origin", origin);
    }
    sent(call).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_logs_in_by_a_code_that_works_once() {
    let rig = Rig::new().await;
    let api = rig.api();
    let own = api.base();
    let made = api.post("/login-codes", &json!({})).await;
    let code = made["code"].as_str().expect("a code");
    // Behind the `#`, which no browser sends and no log sees.
    assert_eq!(made["url"], format!("{own}/#code={code}"));

    for origin in [None, Some("http://swarm.example.org"), Some("null")] {
        assert_problem_in(login(api, origin, code).await, StatusCode::FORBIDDEN, "foreign_origin").await;
    }
    assert_problem_in(login(api, Some(own), "2222-2222").await, StatusCode::UNAUTHORIZED, "code_used").await;
    let answer = login(api, Some(own), code).await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    let cookie = answer.headers()["set-cookie"].to_str().expect("a cookie is text").to_owned();
    for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert_problem_in(login(api, Some(own), code).await, StatusCode::UNAUTHORIZED, "code_used").await;

    let cookie = cookie.split(';').next().expect("name and value");
    let with_cookie = |method, path| stranger(api, method, path).header("cookie", cookie);
    assert_eq!(sent(with_cookie(Method::GET, "/api/v1/sessions")).await.status(), StatusCode::OK);
    let events = sent(with_cookie(Method::GET, "/api/v1/events")).await;
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let change = || with_cookie(Method::POST, "/api/v1/gc").json(&json!({"dry_run": true}));
    assert_eq!(sent(change().header("origin", own)).await.status(), StatusCode::OK);
    for foreign in [
        change(),
        change().header("origin", "http://swarm.example.org"),
        with_cookie(Method::GET, "/api/v1/sessions").header("origin", "http://swarm.example.org"),
        with_cookie(Method::GET, "/api/v1/events").header("sec-fetch-site", "cross-site"),
        with_cookie(Method::GET, "/api/v1/sessions").header("sec-fetch-site", "same-site"),
    ] {
        assert_problem_in(sent(foreign).await, StatusCode::FORBIDDEN, "foreign_origin").await;
    }
    let logout = with_cookie(Method::POST, "/api/v1/logout").header("origin", own);
    assert_eq!(sent(logout).await.status(), StatusCode::NO_CONTENT);
    let after = sent(with_cookie(Method::GET, "/api/v1/sessions")).await;
    assert_problem_in(after, StatusCode::UNAUTHORIZED, "no_token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_stands_in_a_file_a_log_or_an_argument_list() {
    let rig = Rig::new().await;
    let code = rig.api().post("/login-codes", &json!({})).await["code"].as_str().expect("a code").to_owned();
    let answer = login(rig.api(), Some(rig.api().base()), &code).await;
    let cookie = answer.headers()["set-cookie"].to_str().expect("a cookie is text").to_owned();
    let cookie = cookie.split(['=', ';']).nth(1).expect("a value").to_owned();
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(write("a.txt", "a\n")),
            Reply::call("Bash", json!({"command": "env; cat /proc/self/environ | tr '\\0' '\\n'"})),
            Reply::say("Done.").gate("the end"),
        ],
    );
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.model.gate("the end").reached().await;
    let secrets = [
        ("token", token(&rig)),
        ("webhook.key", fs::read_to_string(rig.home.path().join("webhook.key")).expect("a key")),
        ("the login's code", code),
        ("the cookie", cookie),
        ("the provider's key", API_KEY.to_owned()),
    ];
    let worker = rig.worker_has_status(&task, "alpha", "running").await;
    assert!(rig.worker_process(&worker).is_some());
    for process in rig.home.processes() {
        for (name, secret) in &secrets {
            assert!(!process.command.contains(secret.trim()), "{name} in `{}`", process.command);
        }
    }
    rig.model.gate("the end").open();
    rig.done(&task).await;
    for request in rig.model.requests_of(&prompt("alpha")) {
        for (name, secret) in &secrets {
            assert!(
                !String::from_utf8_lossy(&request.raw).contains(secret.trim()),
                "{name} was told to a model"
            );
        }
    }
    for file in files_below(&rig.home.path()) {
        let bytes = fs::read(&file).unwrap_or_default();
        for (name, secret) in &secrets {
            let secret = secret.trim().as_bytes();
            let is_its_own = file.file_name().is_some_and(|file| file == *name);
            let found = bytes.windows(secret.len()).any(|window| window == secret);
            assert!(is_its_own || !found, "{name} in {}", file.display());
        }
    }
    for name in ["token", "webhook.key", "server.json", "journal.sqlite"] {
        let mode = fs::metadata(rig.home.path().join(name)).expect("the file is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} can be read by others: {mode:o}");
    }
}

fn retry_after(answer: &reqwest::Response) -> u64 {
    let value = answer.headers()["retry-after"].to_str().expect("it is text");
    value.parse().expect("it is a number of seconds")
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_meet_a_limit_and_the_right_one_does_not() {
    let rig = Rig::new().await;
    let api = rig.api();
    let wrong = || stranger(api, Method::GET, "/api/v1/sessions").bearer_auth("0".repeat(64));
    let mut refused = None;
    for _ in 0..200 {
        let answer = sent(wrong()).await;
        match answer.status() {
            StatusCode::UNAUTHORIZED => {}
            _ => {
                refused = Some(answer);
                break;
            }
        }
    }
    let refused = refused.expect("two hundred wrong tokens meet a limit");
    assert!((1..=60).contains(&retry_after(&refused)));
    assert_problem_in(refused, StatusCode::TOO_MANY_REQUESTS, "too_many_attempts").await;
    // From the same address, at the same time: polling, a stream, and who has no credentials to try.
    for _ in 0..200 {
        assert_eq!(sent(api.request(Method::GET, "/sessions")).await.status(), StatusCode::OK);
    }
    let events = sent(api.request(Method::GET, "/events")).await;
    assert_eq!(events.status(), StatusCode::OK);
    let none = sent(stranger(api, Method::GET, "/api/v1/sessions")).await;
    assert_problem_in(none, StatusCode::UNAUTHORIZED, "no_token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_of_a_login_code_meet_a_limit() {
    let rig = Rig::new().await;
    let api = rig.api();
    let own = Some(api.base());
    let code = api.post("/login-codes", &json!({})).await["code"].as_str().expect("a code").to_owned();
    for _ in 0..10 {
        assert_problem_in(login(api, own, "2222-2222").await, StatusCode::UNAUTHORIZED, "code_used").await;
    }
    // Beyond the limit nobody learns whether a code is right.
    let refused = login(api, own, &code).await;
    assert!((1..=60).contains(&retry_after(&refused)));
    assert_problem_in(refused, StatusCode::TOO_MANY_REQUESTS, "too_many_attempts").await;
    assert_eq!(sent(api.request(Method::GET, "/sessions")).await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn submissions_beyond_the_configured_limit_are_refused_and_start_nothing() {
    let rig = Rig::configured("[server]\ntasks_per_minute = 2\n").await;
    rig.model.rule(when().agent(crate::rig::COORDINATE), "Nothing to do.");
    for _ in 0..2 {
        rig.submit().await;
    }
    let body = json!({"prompt": crate::rig::COORDINATE, "repo": rig.repo.path()});
    let refused = sent(rig.api().request(Method::POST, "/tasks").json(&body)).await;
    assert!((1..=60).contains(&retry_after(&refused)));
    let problem = assert_problem_in(refused, StatusCode::TOO_MANY_REQUESTS, "too_many_tasks").await;
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("tasks_per_minute")), "{problem:#}");
    let sessions = rig.api().get("/sessions").await;
    assert_eq!(sessions.as_array().map(Vec::len), Some(2));
    let document = rig.api().get("//openapi.json").await;
    let described = &document["paths"]["/api/v1/tasks"]["post"]["responses"]["429"];
    assert!(described["headers"]["retry-after"].is_object(), "{described:#}");
}
