//! The HTTP API over a real socket: who may call, what is refused and how, what is kept once it is promised.

mod access;
mod callback;
mod events;
mod requests;
mod review;
mod server;
mod trust;

use integration_tests::swarm::Api;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

/// An answer that is a problem of this status and code, said in a form that people and programs can use.
#[track_caller]
fn assert_problem((status, body): (StatusCode, Value), expected: StatusCode, code: &str) -> Value {
    assert_eq!((status, &body["code"]), (expected, &Value::from(code)), "{body:#}");
    assert_eq!(body["status"], expected.as_u16(), "{body:#}");
    assert_eq!(body["type"], "about:blank", "{body:#}");
    assert!(body["title"].as_str().is_some_and(|title| !title.is_empty()), "{body:#}");
    body
}

/// As [`assert_problem`], of an answer that was not read yet: its media type says what it is.
async fn assert_problem_in(response: Response, expected: StatusCode, code: &str) -> Value {
    let media_type = response.headers().get("content-type").cloned();
    assert_eq!(media_type.as_ref().and_then(|kind| kind.to_str().ok()), Some("application/problem+json"));
    let status = response.status();
    let body = response.json().await.expect("a problem is JSON");
    assert_problem((status, body), expected, code)
}

/// A call without the token.
fn stranger(api: &Api, method: Method, path: &str) -> reqwest::RequestBuilder {
    integration_tests::http_client().request(method, url(api, path))
}

fn url(api: &Api, path: &str) -> String {
    format!("{}{path}", api.base())
}

async fn sent(request: reqwest::RequestBuilder) -> Response {
    request.send().await.expect("the server answers")
}

/// Host and port of a server.
fn authority(api: &Api) -> &str {
    api.base().strip_prefix("http://").expect("a base is an address")
}
