//! What can go wrong on the way to a provider and back, against servers of this machine.

use std::time::Duration;

use futures::StreamExt as _;
use query_engine::ports::{Model, ModelErrorKind};
use swarm_protocol::launch::ApiKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{
    connect,
    endpoint::testing::endpoint,
    testing::{Answer, Provider, collect, hello},
};

const START: &str = "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m\"}}\n\n";

fn model(url: &str, first_byte_timeout_ms: Option<u64>) -> Arc<dyn Model> {
    let mut endpoint = endpoint(ApiKind::Anthropic, "m", url);
    endpoint.first_byte_timeout_ms = first_byte_timeout_ms;
    connect(&endpoint, None, &HttpClient::new().unwrap()).unwrap()
}

#[tokio::test]
async fn a_broken_connection_is_a_truncated_answer() {
    let mut answer = Answer::sse(START);
    answer.broken = true;
    let provider = Provider::start(vec![answer]).await;
    let error = collect(&*model(&provider.url, None), &hello()).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Truncated);
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_sent() {
    let provider = Provider::start(vec![Answer::sse(START)]).await;
    let of = |api, max_request_bytes| {
        let mut endpoint = endpoint(api, "m", &provider.url);
        endpoint.max_request_bytes = max_request_bytes;
        connect(&endpoint, None, &HttpClient::new().unwrap()).unwrap()
    };
    for api in [ApiKind::Anthropic, ApiKind::Chat, ApiKind::Responses] {
        let bytes = of(api, None).request_bytes(&hello()) as u64;
        let error = collect(&*of(api, Some(bytes - 1)), &hello()).await.remove(0).unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::RequestTooLarge);
        let message =
            format!("the request has {bytes} bytes, and {} is the most; it was not sent", bytes - 1);
        assert_eq!(error.message, message);
    }
    assert!(provider.received().is_empty());
    let fits = of(ApiKind::Anthropic, None).request_bytes(&hello()) as u64;
    collect(&*of(ApiKind::Anthropic, Some(fits)), &hello()).await;
    assert_eq!(provider.received().len(), 1);
    // Without a setting it is the API's own limit.
    let long = crate::testing::request(vec![swarm_protocol::Message::user_text("x".repeat(32_000_000))]);
    let error = collect(&*of(ApiKind::Anthropic, None), &long).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::RequestTooLarge);
    assert_eq!(provider.received().len(), 1);
}

#[tokio::test]
async fn no_server_is_a_connection_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = collect(&*model(&url, None), &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Connection);
    assert!(error.message.contains("refused"), "{}", error.message);
}

#[tokio::test]
async fn headers_and_then_nothing_is_the_first_byte_watch() {
    let mut answer = Answer::sse("");
    answer.silent = true;
    let provider = Provider::start(vec![answer]).await;
    let error = collect(&*model(&provider.url, Some(200)), &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Stalled { watchdog: "first byte" });
}

#[tokio::test]
async fn a_200_that_is_no_stream() {
    let mut error_page = Answer::refusal(200, r#"{"error":{"message":"upstream","code":429}}"#);
    let provider = Provider::start(vec![error_page.clone()]).await;
    let error = collect(&*model(&provider.url, None), &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::RateLimited);
    error_page.body = "<html>".to_owned();
    error_page.headers = vec![("content-type", "text/html".to_owned())];
    let provider = Provider::start(vec![error_page]).await;
    let error = collect(&*model(&provider.url, None), &hello()).await.remove(0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Malformed);
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let n_read = connection.read(&mut buffer).await.unwrap();
        assert!(n_read > 0);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        connection.write_all(format!("{head}{START}").as_bytes()).await.unwrap();
        // Ends when the client lets go.
        while connection.read(&mut buffer).await.is_ok_and(|n_read| n_read > 0) {}
    });
    let model = model(&url, None);
    let mut stream = model.stream(&hello()).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    tokio::time::timeout(Duration::from_secs(20), server).await.unwrap().unwrap();
}

#[test]
fn what_cannot_be_sent_is_refused_at_once() {
    let client = HttpClient::new().unwrap();
    let refusal = |endpoint: &ModelEndpoint, key| connect(endpoint, key, &client).err().unwrap().to_string();
    let mut bad = endpoint(ApiKind::Anthropic, "m", "ftp://x");
    assert_eq!(refusal(&bad, None), "`ftp://x` is no http or https URL: the scheme is `ftp`");
    bad.base_url = "nonsense".to_owned();
    assert!(refusal(&bad, None).starts_with("`nonsense` is no http or https URL"));
    bad.base_url = "http://127.0.0.1:1".to_owned();
    // A key with a line break comes from a badly read file; it must not show in the error.
    assert_eq!(
        refusal(&bad, Some("secret\nkey")),
        "header `x-api-key` of endpoint test/m has a name or value that HTTP does not allow"
    );
    bad.headers.insert("bad name".to_owned(), "x".to_owned());
    assert!(refusal(&bad, None).contains("header `bad name`"));
}

#[test]
fn who_is_on_this_machine() {
    let local = |url: &str| is_local(&reqwest::Url::parse(url).unwrap());
    for url in ["http://localhost:1", "http://127.0.0.1:1/v1", "http://[::1]:1", "https://127.9.9.9"] {
        assert!(local(url), "{url}");
    }
    for url in ["https://api.anthropic.com", "http://10.0.0.1", "http://localhost.example.org"] {
        assert!(!local(url), "{url}");
    }
}
