//! Commands against a server played by a test: what is said where, and the exit codes.

mod flow;
mod usage;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use swarm_protocol::api::ServerFile;

use super::{
    output::testing::Captured,
    shell::{Shell, Surroundings},
    *,
};

/// What the played server answers: by method and path, in order; the last answer stays.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    answers: BTreeMap<String, Vec<(u16, String)>>,
    requests: Vec<(String, Value)>,
}

impl Script {
    fn answer(&self, call: &str, status: u16, body: impl ToString) {
        let mut played = self.0.lock().unwrap();
        played.answers.entry(call.to_owned()).or_default().push((status, body.to_string()));
    }

    /// Bodies of the calls that were made.
    fn requests(&self, call: &str) -> Vec<Value> {
        let played = self.0.lock().unwrap();
        played.requests.iter().filter(|(made, _)| made == call).map(|(_, body)| body.clone()).collect()
    }
}

async fn play(State(script): State<Script>, request: Request) -> Response {
    if request.headers().get("authorization").is_none_or(|value| value.to_str().unwrap().len() < 64) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let path = request.uri().path().trim_start_matches("/api/v1").to_owned();
    let call = format!("{} {path}", request.method());
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let mut played = script.0.lock().unwrap();
    played.requests.push((call.clone(), body));
    let Some(answers) = played.answers.get_mut(&call) else {
        let problem = serde_json::json!({"type": "about:blank", "status": 404, "title": format!("nothing at {call}"), "code": "unknown_id"});
        return (StatusCode::NOT_FOUND, Json(problem)).into_response();
    };
    let (status, text) = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
    let kind = if path.ends_with("/events") { "text/event-stream" } else { "application/json" };
    Response::builder().status(status).header(header::CONTENT_TYPE, kind).body(Body::from(text)).unwrap()
}

/// A home, a repository, and a server that plays a script.
struct World {
    script: Script,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = directory.path().join("shop");
        std::fs::create_dir_all(repository.join(".git")).unwrap();
        std::fs::write(repository.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        let script = Script::default();
        script.answer("GET /healthz", 200, "ok");
        // Two threads: the shell's own runtime blocks one.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let variables =
            [("SWARM_HOME", directory.path().join("home").to_str().unwrap()), ("LANG", "C.UTF-8")]
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
        Self { script, runtime, directory, variables }
    }

    /// Lets the server listen, of this version.
    fn serve(&self, version: &str) {
        let router = Router::new().fallback(play).with_state(self.script.clone());
        let listener = self.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        self.runtime.spawn(async move { axum::serve(listener, router).await });
        let home = crate::home::Home::new(self.directory.path().join("home"));
        home.create().unwrap();
        home.write_server_file(&ServerFile {
            address,
            process: crate::home::process_identity(std::process::id().cast_signed()).unwrap(),
            version: version.to_owned(),
            socket: String::new(),
        })
        .unwrap();
    }

    fn repository(&self) -> std::path::PathBuf {
        std::fs::canonicalize(self.directory.path().join("shop")).unwrap()
    }

    /// Carries a command out in the repository: exit code, standard output, standard error.
    fn swarm(&self, arguments: &[&str]) -> (u8, String, String) {
        self.swarm_in(&self.repository(), arguments)
    }

    fn swarm_in(&self, directory: &Path, arguments: &[&str]) -> (u8, String, String) {
        let arguments: Vec<OsString> =
            std::iter::once("swarm").chain(arguments.iter().copied()).map(OsString::from).collect();
        let (out, err) = (Captured::default(), Captured::default());
        let around = Surroundings {
            variables: self.variables.clone(),
            unreadable: Vec::new(),
            directory: directory.to_owned(),
            user_home: self.directory.path().to_owned(),
            program: "/nonexistent/swarm".into(),
            stdin_is_terminal: false,
        };
        let exit = match parse(&arguments) {
            Ok(cli) => {
                let mut shell = Shell::with_streams(around, cli.global, out.stream(), err.stream());
                dispatch(&mut shell, &cli.command)
            }
            Err(Unparsed::Said(code)) => code,
            Err(Unparsed::Wrong(error)) => {
                let options =
                    GlobalArgs { json: wants_json(&arguments).then_some(1), ..GlobalArgs::default() };
                let mut shell = Shell::with_streams(around, options, out.stream(), err.stream());
                shell.report(&error);
                error.exit
            }
        };
        let home = self.directory.path().to_str().unwrap();
        (exit, out.text(), err.text().replace(home, "~"))
    }
}
