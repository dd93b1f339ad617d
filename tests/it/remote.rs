//! RemoteTrigger: a worker of one server gives a task to another. Two real servers.

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, eventually, wait::LATER, when};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, call, files_below, prompt, reporter};

const THERE: &str = "coordinate the work of the other server";

/// As a provider that keeps no definition back is given it.
fn trigger(input: Value) -> Reply {
    call(("CallTool", json!({"name": "RemoteTrigger", "input": input})))
}

/// A server whose agents may give tasks to the one at `url`.
async fn near(url: &str, repo: Option<&str>, token: &str) -> Rig {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("OTHER_SWARM_TOKEN", token);
    let repo = repo.map(|repo| format!("repo = \"{repo}\"\n")).unwrap_or_default();
    let toml = format!("[remote]\nurl = \"{url}\"\ntoken_env = \"OTHER_SWARM_TOKEN\"\n{repo}");
    Rig::made(model, home, TestRepo::new(), &toml).await
}

fn results(rig: &Rig) -> Vec<(String, bool)> {
    let last = rig.model.requests_of(&prompt("alpha")).pop().expect("it asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gives_a_task_to_another_server_when_a_person_allows_it() {
    let far = Rig::new().await;
    far.model.agent(THERE, [Reply::call("Agent", reporter("beta"))]);
    far.model.rule(when().agent(THERE), "Noted.");
    far.model.agent(&prompt("beta"), [Reply::say("Done there.")]);
    let server = far.home.server_file().expect("it runs");
    let address = server["address"].as_str().expect("an address");
    let token = std::fs::read_to_string(far.home.path().join("token")).expect("its token");
    let token = token.trim();
    let there = far.repo.path().display().to_string();

    let rig = near(&format!("http://{address}"), Some(&there), token).await;
    rig.coordinator(Reply::call("Agent", reporter("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            trigger(json!({"prompt": THERE})),
            trigger(json!({"prompt": THERE})),
            trigger(json!({"prompt": "x", "repo": "/nowhere"})),
            trigger(json!({"prompt": " "})),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    let mut answers = ["deny", "allow", "allow", "allow"].into_iter();
    for decision in answers.by_ref() {
        let request = rig.permission_request(&task).await;
        assert_eq!(request["request"]["tool"], "RemoteTrigger", "{request:#}");
        rig.answer(&request, &json!({"decision": decision})).await;
        let id = request["request"]["id"].clone();
        eventually(LATER, "the next request", async || {
            let open = rig.api().get("/permissions").await;
            let done = rig.task(&task).await["status"] == "done";
            let same = open.as_array().is_some_and(|all| all.iter().any(|view| view["request"]["id"] == id));
            let next = open.as_array().is_some_and(|all| !all.is_empty());
            if !same && (next || done) { Ok(()) } else { Err(open.to_string()) }
        })
        .await;
    }
    rig.done(&task).await;
    let results = results(&rig);
    assert!(results[0].1, "{results:#?}");
    let (text, failed) = &results[1];
    assert!(!failed && text.contains("has the task: task "), "{results:#?}");
    assert!(results[2].1 && results[2].0.contains("/nowhere"), "what the other server says: {results:#?}");
    assert!(results[3].1 && results[3].0.contains("empty"), "{results:#?}");

    let tasks = far.api().get("/sessions").await;
    let sessions = tasks.as_array().expect("a list");
    assert_eq!(sessions.len(), 1, "{tasks:#}");
    let session = sessions[0]["session_id"].as_str().expect("an id");
    assert!(text.contains(session), "{text}");
    let detail = eventually(LATER, "the task's end there", async || {
        let detail = far.api().get(&format!("/sessions/{session}")).await;
        if detail["tasks"][0]["verdict"] == "complete" { Ok(detail) } else { Err(format!("{detail:#}")) }
    })
    .await;
    let label = detail["tasks"][0]["labels"][0].as_str().unwrap_or_default();
    assert!(label.starts_with("from ") && label.contains("agent-"), "{detail:#}");

    // The token went nowhere but there.
    for file in files_below(&rig.home.path()) {
        if file.ends_with("token") {
            continue;
        }
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
        assert!(!found, "{}", file.display());
    }
    let asked = rig.model.requests();
    assert!(asked.iter().all(|request| !request.json.to_string().contains(token)), "the model saw the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_and_a_server_that_is_gone_are_said_and_without_a_setting_there_is_no_tool() {
    let far = Rig::new().await;
    let server = far.home.server_file().expect("it runs");
    let address = server["address"].as_str().expect("an address").to_owned();
    let rig = near(&format!("http://{address}/"), None, "wrong-token-of-nobody").await;
    let settings = rig.home.user_home().join(".claude");
    std::fs::create_dir_all(&settings).expect("the home is ours");
    let allow = json!({"permissions": {"allow": ["RemoteTrigger"]}});
    std::fs::write(settings.join("settings.json"), allow.to_string()).expect("the home is ours");
    rig.coordinator(Reply::call("Agent", reporter("alpha")));
    let input = json!({"prompt": "x", "repo": "/r"});
    rig.model.agent(
        &prompt("alpha"),
        [
            trigger(json!({"prompt": "x"})),
            trigger(input.clone()),
            trigger(input).hold("gone"),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    rig.model.gate("gone").reached().await;
    drop(far);
    rig.model.gate("gone").open();
    rig.done(&task).await;
    let results = results(&rig);
    assert!(results[0].1 && results[0].0.contains("lack repo"), "{results:#?}");
    assert!(
        results[1].1 && results[1].0.contains("401") && results[1].0.contains("remote.token_env"),
        "{results:#?}"
    );
    assert!(!results[1].0.contains("wrong-token"), "{results:#?}");
    assert!(results[2].1 && results[2].0.contains("could not be asked"), "{results:#?}");

    let without = Rig::new().await;
    without.coordinator(Reply::call("Agent", reporter("alpha")));
    without.model.agent(&prompt("alpha"), [Reply::say("Done.")]);
    let task = without.submit().await;
    without.done(&task).await;
    let asked = without.model.requests_of(&prompt("alpha"));
    assert!(
        !asked[0].json.to_string().contains("RemoteTrigger") && rig.model.requests_of(COORDINATE).len() > 1
    );
}
