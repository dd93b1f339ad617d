//! One server with its home, repository and scripted model, driven over HTTP as an automation would.

mod entries;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, eventually,
    model_server::Request,
    process::Process,
    swarm::{Api, Running},
    wait::{LATER, SOON},
    when,
};
use nix::sys::signal::Signal;
use reqwest::StatusCode;
use serde_json::{Value, json};

pub(crate) use self::entries::{assert_each_once, entries, spawned};

/// What a coordinator's first user message holds; no worker's does.
pub(crate) const COORDINATE: &str = "coordinate the work";

/// Fields drop in this order: the server ends before its home is swept, and the model answers to the last.
pub(crate) struct Rig {
    server: Option<Running>,
    pub(crate) home: SwarmHome,
    pub(crate) repo: TestRepo,
    pub(crate) model: ModelServer,
    api: Option<Api>,
}

/// A task that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) session: String,
    pub(crate) accepted: Value,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::configured("").await
    }

    /// With this `config.toml`.
    pub(crate) async fn configured(toml: &str) -> Self {
        Self::of(TestRepo::new(), toml).await
    }

    pub(crate) async fn of(repo: TestRepo, toml: &str) -> Self {
        let model = ModelServer::start();
        let home = SwarmHome::new(&model);
        Self::made(model, home, repo, toml).await
    }

    pub(crate) async fn made(model: ModelServer, home: SwarmHome, repo: TestRepo, toml: &str) -> Self {
        home.config(toml);
        let mut rig = Self { server: None, home, repo, model, api: None };
        rig.start().await;
        rig
    }

    /// Starts the server, for the first time or again.
    pub(crate) async fn start(&mut self) {
        self.server = Some(self.home.start(&self.home.user_home(), &["serve"]));
        self.api = Some(self.home.api().await);
    }

    /// Kills the server alone.
    pub(crate) async fn kill_server(&mut self) {
        self.home.kill_server().await;
        // Its first thread may be gone before the others, which still hold its locks: it is waited for.
        if let Some(server) = self.server.take() {
            server.finish().await;
        }
    }

    pub(crate) async fn restart_killed(&mut self) {
        self.kill_server().await;
        self.start().await;
    }

    pub(crate) fn api(&self) -> &Api {
        self.api.as_ref().expect("a rig has started its server")
    }

    // ------------------------------------------------------------------ tasks

    /// Submits the usual prompt.
    pub(crate) async fn submit(&self) -> Task {
        self.submit_with(json!({})).await
    }

    /// With more fields.
    pub(crate) async fn submit_with(&self, more: Value) -> Task {
        let (status, accepted) = self.try_submit(more).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{accepted:#}");
        let text = |key: &str| accepted[key].as_str().expect("an accepted task has its ids").to_owned();
        Task { id: text("task_id"), session: text("session_id"), accepted }
    }

    pub(crate) async fn try_submit(&self, more: Value) -> (StatusCode, Value) {
        let mut body = json!({"prompt": COORDINATE, "repo": self.repo.path()});
        for (key, value) in more.as_object().expect("more fields are an object") {
            body[key] = value.clone();
        }
        self.api().try_post("/tasks", &body).await
    }

    pub(crate) async fn task(&self, task: &Task) -> Value {
        self.api().get(&format!("/tasks/{}", task.id)).await
    }

    /// Waits for the verdict.
    pub(crate) async fn done(&self, task: &Task) -> Value {
        eventually(LATER, "the task's verdict", async || {
            let view = self.task(task).await;
            if view["status"] == "done" { Ok(view) } else { Err(format!("{view:#}")) }
        })
        .await
    }

    pub(crate) async fn session(&self, task: &Task) -> Value {
        self.api().get(&format!("/sessions/{}", task.session)).await
    }

    /// The session's journal up to now.
    pub(crate) async fn journal(&self, task: &Task) -> Vec<Value> {
        let last = self.session(task).await["seq"].as_u64().expect("a session has a seq");
        let mut events = self.api().events(&format!("/sessions/{}/events", task.session), Some("0")).await;
        let mut journal = Vec::new();
        let mut whole = async |journal: &mut Vec<Value>| {
            while let Some(event) = events.next().await {
                let Some(seq) = event.data["seq"].as_u64() else { continue };
                journal.push(event.data);
                if seq >= last {
                    return;
                }
            }
        };
        tokio::time::timeout(SOON, whole(&mut journal)).await.expect("the journal is read to its end");
        journal
    }

    /// Events of a kind.
    pub(crate) async fn events(&self, task: &Task, kind: &str) -> Vec<Value> {
        let mut journal = self.journal(task).await;
        journal.retain(|event| event["kind"] == kind);
        journal
    }

    // ------------------------------------------------------------------ workers

    /// A worker by its name; null while there is none.
    pub(crate) async fn worker(&self, task: &Task, name: &str) -> Value {
        let session = self.session(task).await;
        let workers = session["workers"].as_array().expect("a session lists workers");
        workers.iter().rfind(|worker| worker["name"] == name).cloned().unwrap_or_default()
    }

    /// Waits until a worker is as wanted.
    pub(crate) async fn worker_is(
        &self,
        task: &Task,
        name: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually(LATER, &format!("{name}: {what}"), async || {
            let worker = self.worker(task, name).await;
            if holds(&worker) { Ok(worker) } else { Err(format!("{worker:#}")) }
        })
        .await
    }

    pub(crate) async fn worker_has_status(&self, task: &Task, name: &str, status: &str) -> Value {
        self.worker_is(task, name, status, |worker| worker["status"] == status).await
    }

    /// Outcome, ledger and more of a worker.
    pub(crate) async fn detail(&self, worker: &Value) -> Value {
        self.api().get(&format!("/workers/{}", id_of(worker))).await
    }

    /// The worker's own process (not its keeper's).
    pub(crate) fn worker_process(&self, worker: &Value) -> Option<Process> {
        let id = id_of(worker);
        let of_worker = self.home.programs_named(&format!("/{id}"));
        of_worker.into_iter().find(is_worker)
    }

    /// Workers' own processes that run now.
    pub(crate) fn worker_processes(&self) -> Vec<Process> {
        let mut found = self.home.programs_named("swarm-worker");
        found.retain(is_worker);
        found
    }

    pub(crate) fn keeper_process(&self, worker: &Value) -> Option<Process> {
        let id = id_of(worker);
        let of_worker = self.home.programs_named(&format!("/{id}"));
        of_worker.into_iter().find(|process| process.command.contains("swarm-worker keeper"))
    }

    /// Kills a worker's process, as a crash or the kernel would.
    ///
    /// # Panics
    /// When it does not run.
    pub(crate) async fn kill_worker(&self, worker: &Value) -> Process {
        let process = self.worker_process(worker).expect("the worker's process runs");
        assert!(process.signal(Signal::SIGKILL), "the worker could not be killed");
        process
    }

    /// Whether a commit or branch has this file, and what is in it.
    pub(crate) fn at(&self, worker: &Value, path: &str) -> Option<String> {
        self.repo.read_at(worker["branch"].as_str().expect("the worker's branch was kept"), path)
    }

    // ------------------------------------------------------------------ permissions

    /// Waits for an open request of the session.
    pub(crate) async fn permission_request(&self, task: &Task) -> Value {
        eventually(LATER, "a permission request", async || {
            let open = self.api().get("/permissions").await;
            let of_task = open
                .as_array()
                .and_then(|all| all.iter().find(|view| view["session_id"] == task.session.as_str()).cloned());
            of_task.ok_or(open.to_string())
        })
        .await
    }

    pub(crate) async fn answer(&self, view: &Value, answer: &Value) -> Value {
        let id = view["request"]["id"].as_str().expect("a request has an id");
        self.api().post(&format!("/permissions/{id}"), answer).await
    }

    // ------------------------------------------------------------------ the coordinator

    /// The coordinator's first turn, then a word to every later request.
    pub(crate) fn coordinator(&self, first: Reply) -> &ModelServer {
        self.model.agent(COORDINATE, [first]);
        self.model.rule(when().agent(COORDINATE), "Noted.")
    }

    /// The newest request of the coordinator.
    pub(crate) fn last_request(&self) -> Request {
        let requests = self.model.requests_of(COORDINATE);
        requests.last().cloned().expect("the coordinator has asked")
    }

    /// Waits until a request of the coordinator carries so many entries.
    pub(crate) async fn coordinator_saw(&self, n: usize) -> Request {
        self.model
            .wait_for(&format!("{n} entries in the coordinator's history"), |requests| {
                let mut own = requests.iter().filter(|request| request.agent_key.contains(COORDINATE));
                own.find(|request| entries(request).len() >= n).cloned()
            })
            .await
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // At once: the home sweeps up the rest.
        if let Some(server) = self.home.server_process() {
            server.signal(Signal::SIGKILL);
            while server.is_alive() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The keeper's arguments hold those of its worker.
fn is_worker(process: &Process) -> bool {
    process.command.contains("swarm-worker run --launch") && !process.command.contains("swarm-worker keeper")
}

/// Input of an `Agent` call for a worker of this name, whose prompt is `work: NAME`.
pub(crate) fn agent(name: &str) -> Value {
    json!({"description": format!("work on {name}"), "prompt": prompt(name), "name": name})
}

/// As [`agent`], for one that changes nothing.
pub(crate) fn reporter(name: &str) -> Value {
    let mut input = agent(name);
    input["expects"] = "report".into();
    input
}

/// What tells the requests of a worker from others.
pub(crate) fn prompt(name: &str) -> String {
    format!("work: {name}.")
}

pub(crate) fn id_of(worker: &Value) -> &str {
    worker["id"].as_str().expect("a worker has an id")
}

/// A picture of one pixel, a whole PNG in base64.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

pub(crate) fn write(path: &str, content: &str) -> (&'static str, Value) {
    ("Write", json!({"file_path": path, "content": content}))
}

pub(crate) fn bash(command: &str) -> (&'static str, Value) {
    ("Bash", json!({"command": command}))
}

/// A reply that calls one tool.
pub(crate) fn call((tool, input): (&'static str, Value)) -> Reply {
    Reply::call(tool, input)
}

/// How long a worker's death may go unnoticed: two seconds are promised, the rest is a busy machine's.
pub(crate) const NOTICED: Duration = Duration::from_secs(5);

/// How long until its status says so: its work is committed before.
pub(crate) const TOLD: Duration = Duration::from_secs(10);

pub(crate) fn path_of(worker: &Value) -> PathBuf {
    PathBuf::from(worker["worktree"].as_str().expect("a worker has a worktree"))
}

/// All regular files below a directory.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}
