//! The demo model is a provider like any other: the same script, served over HTTP, does the same.

use std::{collections::BTreeMap, path::Path, process::Command};

use integration_tests::{
    ModelServer, Reply, SwarmHome,
    swarm::{Api, Finished},
};
use serde_json::{Value, json};

const PROMPT: &str = "refactor auth module";

/// What a run came to, as far as two runs of one script must agree.
#[derive(Debug, PartialEq, Eq)]
struct Came {
    verdict: String,
    text: String,
    /// By the worker's name: its branch's tree, turns, runs, doubts, and its events in order.
    workers: BTreeMap<String, Worker>,
}

#[derive(Debug, PartialEq, Eq)]
struct Worker {
    tree: Option<String>,
    turns: u64,
    runs: u64,
    doubts: Value,
    events: Vec<String>,
}

/// The sample repository, made anew by the script that the documentation names.
fn sample(at: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/sample.sh");
    let output = Command::new(script).arg(at).output().expect("the script can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn came(home: &SwarmHome, repo: &Path, finished: &Finished) -> Came {
    let lines = finished.json_lines();
    let result = lines.last().expect("a result");
    let api = home.api().await;
    let mut workers = BTreeMap::new();
    for view in result["workers"].as_array().expect("workers are a list") {
        let name = view["name"].as_str().expect("a name").to_owned();
        workers.insert(name, worker(&api, repo, view, &lines).await);
    }
    let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
    Came { verdict: text("verdict"), text: without_ids(&text("text"), result), workers }
}

/// Ids are the server's own and differ from run to run.
fn without_ids(text: &str, result: &Value) -> String {
    let session = result["session_id"].as_str().expect("a session");
    let text = text.replace(&session[session.len() - 8..], "SESSION");
    let workers = result["workers"].as_array().expect("workers are a list");
    workers.iter().fold(text, |text, worker| {
        let (id, name) = (worker["id"].as_str().expect("an id"), worker["name"].as_str().expect("a name"));
        text.replace(id, name)
    })
}

async fn worker(api: &Api, repo: &Path, view: &Value, lines: &[Value]) -> Worker {
    let id = view["id"].as_str().expect("an id");
    let tree = view["branch"].as_str().map(|branch| {
        let mut git = Command::new("git");
        git.current_dir(repo).args(["rev-parse", &format!("{branch}^{{tree}}")]);
        let output = git.output().expect("git can be started");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    });
    let detail = api.get(&format!("/workers/{id}")).await;
    let events = lines.iter().filter(|line| line["kind"] != "live").filter_map(|line| {
        let spawned = &line["spec"]["id"];
        (line["worker_id"] == id || spawned == id).then(|| step(line)).flatten()
    });
    Worker {
        tree,
        turns: view["turns"].as_u64().expect("turns"),
        runs: detail["worker"]["run"].as_u64().expect("a run"),
        doubts: view["doubts"].clone(),
        events: events.collect(),
    }
}

/// What an event is, without what depends on the moment: waits for the model, snapshots beside the work.
fn step(line: &Value) -> Option<String> {
    let kind = line["kind"].as_str().expect("a kind");
    match kind {
        "worker.state" => {
            let status = line["status"].as_str().expect("a status");
            (status != "waiting" && line["from"] != "waiting").then(|| format!("{kind} {status}"))
        }
        "worker.record" => {
            let record = line["record"]["record"].as_str().expect("records have a kind");
            (record != "snapshot").then(|| format!("{kind} {record}"))
        }
        _ => Some(kind.to_owned()),
    }
}

/// A reply of the script, in the model server's terms.
fn reply(request: &Value) -> Reply {
    let answer = model_client::demo_reply_json(request);
    let blocks = answer["content"].as_array().expect("content").iter();
    blocks.fold(Reply::new(), |reply, block| {
        let text = |key: &str| block[key].as_str().expect("a text");
        match text("type") {
            "text" => reply.text(text("text")),
            _ => reply.tool_with_id(text("id"), text("name"), block["input"].clone()),
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_model_s_script_over_http_makes_the_same_branches_events_and_verdict() {
    let model = ModelServer::start();
    model.on(|request| Some(reply(&request.json)));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = async |home: &SwarmHome, name: &str, arguments: &[&str]| {
        let repo = directory.path().join(name);
        sample(&repo);
        let arguments = [&["run", "--json"], arguments, &[PROMPT]].concat();
        let finished = home.run(&repo, &arguments).await.expect_code(0);
        came(home, &repo, &finished).await
    };
    let built_in = SwarmHome::without_model();
    let over_http = SwarmHome::new(&model);
    let (built_in, over_http) =
        tokio::join!(run(&built_in, "one", &["--model", "demo"]), run(&over_http, "two", &[]));
    assert_eq!(built_in, over_http);
    assert_eq!(built_in.verdict, "complete");
    assert_eq!(built_in.workers.len(), 3);
    assert!(built_in.workers.values().all(|worker| worker.tree.is_some() && worker.doubts == json!([])));
    // One of them is continued.
    assert_eq!(built_in.workers.values().filter(|worker| worker.runs == 2).count(), 1);
    assert!(!model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_any_other_repository_the_demo_adds_a_file_per_worker() {
    let home = SwarmHome::without_model();
    let repo = integration_tests::TestRepo::new();
    let finished = home.run(repo.path(), &["run", "--model", "demo", "make it better"]).await.expect_code(0);
    assert!(finished.stderr.contains("scripted"), "{}", finished.stderr);
    let branches = repo.branches("swarm");
    assert!(branches.len() >= 2, "{branches:?}");
    for branch in &branches {
        let changed = repo.git(&["diff", "--name-only", "main", branch]);
        assert_eq!(changed.lines().count(), 1, "{changed}");
        assert!(changed.starts_with("swarm-demo/"), "{changed}");
    }
    assert_eq!(repo.status(), "");
}
