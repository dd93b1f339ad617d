//! Ctrl-C while `swarm run` has nothing to follow yet. A relay between shell and server holds a call where the
//! test wants it, as a slow machine would.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use integration_tests::{Reply, model_server::Gate, swarm::Running};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Shell;
use crate::rig::{COORDINATE, call, prompt, write};

/// Where a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    BeforeTheServer,
    BeforeTheShell,
}

/// Passes calls on to the server; the first to `path` is held at the gate.
struct Relay {
    server: String,
    path: &'static str,
    held: Held,
    gate: Gate,
    client: reqwest::Client,
}

impl Relay {
    /// Stands between the shell and a running server: the server's file names the relay.
    async fn of(shell: &Shell, path: &'static str, held: Held) -> (Gate, JoinHandle<()>) {
        let file = shell.home.server_file().expect("a server runs");
        let server = file["address"].as_str().expect("it has an address").to_owned();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let gate = shell.model.gate("relay");
        let client = integration_tests::http_client();
        let relay = Arc::new(Self { server, path, held, gate: gate.clone(), client });
        let router = Router::new().fallback(pass).with_state(relay);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("a relay serves") });
        let mut changed = file;
        changed["address"] = address.into();
        std::fs::write(shell.home.path().join("server.json"), changed.to_string()).expect("the home is ours");
        (gate, task)
    }

    async fn hold(&self, path: &str, held: Held) {
        if path == self.path && held == self.held {
            self.gate.pass().await;
        }
    }
}

async fn pass(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, usize::MAX).await.expect("the shell sends whole bodies");
    let path = head.uri.path().to_owned();
    relay.hold(&path, Held::BeforeTheServer).await;
    let url = format!("http://{}{}", relay.server, head.uri);
    let mut headers = head.headers;
    headers.remove("host");
    let answer = relay.client.request(head.method, url).headers(headers).body(body).send().await;
    let answer = answer.expect("the server answers");
    relay.hold(&path, Held::BeforeTheShell).await;
    let mut response = Response::builder().status(answer.status());
    for name in ["content-type", "content-length"] {
        if let Some(value) = answer.headers().get(name) {
            response = response.header(name, value);
        }
    }
    response.body(Body::from_stream(answer.bytes_stream())).expect("its head was a head")
}

/// A shell whose server runs already, and that server.
async fn with_server() -> (Shell, Running) {
    let shell = Shell::new();
    let server = shell.home.start(shell.repo.path(), &["serve"]);
    shell.home.api().await;
    (shell, server)
}

async fn sessions(shell: &Shell) -> Vec<Value> {
    shell.api().await.get("/sessions").await.as_array().expect("sessions are a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_while_the_task_is_submitted_stops_its_session() {
    for held in [Held::BeforeTheServer, Held::BeforeTheShell] {
        let (shell, _server) = with_server().await;
        shell.spawns(&["alpha"]);
        shell
            .model
            .agent(&prompt("alpha"), [call(write("one.txt", "1\n")), Reply::say("never said").hold("never")]);
        let (gate, relay) = Relay::of(&shell, "/api/v1/tasks", held).await;
        let running = shell.start(&["run", COORDINATE]);
        gate.reached().await;
        if held == Held::BeforeTheShell {
            // The session is at work already; the shell does not know its id.
            shell.model.gate("never").reached().await;
        }
        running.interrupt();
        gate.open();
        let finished = running.finish().await.expect_code(130);
        let all = sessions(&shell).await;
        assert_eq!(all.len(), 1, "{all:#?}");
        assert_eq!(all[0]["state"], "idle", "{held:?}: {}\n{:#}", finished.stderr, all[0]);
        for worker in shell.workers().await {
            assert_eq!(worker["status"], "aborted", "{worker:#}");
        }
        assert_eq!(shell.home.processes_named("swarm-worker run"), [], "nothing works on");
        relay.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_before_a_session_leaves_nothing() {
    for (signal, exit) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let (shell, _server) = with_server().await;
        let (gate, relay) = Relay::of(&shell, "/healthz", Held::BeforeTheServer).await;
        let running = shell.start(&["run", COORDINATE]);
        gate.reached().await;
        running.signal(signal);
        gate.open();
        running.finish().await.expect_code(exit);
        assert_eq!(sessions(&shell).await, [json!(null); 0]);
        assert!(shell.model.requests().is_empty(), "a model was asked");
        relay.abort();
    }
}
