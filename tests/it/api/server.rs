//! The server itself: health, figures, settings, its journal's schema, ports of workers, permission mode.

use std::{collections::HashSet, fs};

use integration_tests::{Reply, eventually, wait::SOON};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{sent, stranger};
use crate::rig::{Rig, agent, bash, call, prompt, write};

#[tokio::test(flavor = "multi_thread")]
async fn health_is_public_and_figures_are_for_who_has_the_token() {
    let rig = Rig::new().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(sent(stranger(rig.api(), Method::GET, path)).await.status(), StatusCode::OK, "{path}");
    }
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
    rig.done(&rig.submit().await).await;
    let metrics = rig.api().get("//metrics").await;
    let metrics = metrics.as_str().expect("figures are text");
    for line in [
        "swarm_sessions 1",
        "swarm_workers{status=\"completed\"} 1",
        "swarm_workers{status=\"running\"} 0",
        "swarm_notifications_queued 0",
        "swarm_permission_requests_open 0",
        "swarm_http_requests_total{route=\"/api/v1/tasks\",method=\"POST\",status=\"202\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no `{line}` in:\n{metrics}");
    }
    assert!(metrics.contains("swarm_tokens{model=\"anthropic/test-model\",kind=\"output\"}"), "{metrics}");
    let info = rig.api().get("/info").await;
    assert_eq!(info["model"], "anthropic/test-model");
    assert_eq!(info["home"], rig.home.path().to_str().expect("a path of text"));
    let nodes = rig.api().get("/nodes").await;
    assert_eq!((&nodes[0]["name"], &nodes[0]["workers"]), (&json!("local"), &json!(0)));
    for by in ["session", "worker", "model", "day"] {
        let cost = rig.api().get(&format!("/cost?by={by}")).await;
        assert!(cost["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{by}: {cost:#}");
    }
    assert_eq!(rig.api().try_get("/cost?by=phase_of_the_moon").await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_names_its_source_and_what_it_overrides() {
    let rig = Rig::configured("max_workers = 3\nworker.max_turns = 40\n").await;
    rig.repo.write("swarm.toml", "\n\nmax_workers = 5\n").commit("settings");
    let setting = |all: &Value, key: &str| {
        let all = all.as_array().expect("settings are a list");
        all.iter().find(|value| value["key"] == key).cloned().unwrap_or_default()
    };
    let of_server = rig.api().get("/config").await;
    let workers = setting(&of_server, "max_workers");
    assert_eq!(workers["value"], "3");
    assert!(
        workers["source"].as_str().is_some_and(|source| source.ends_with("config.toml:1")),
        "{workers:#}"
    );
    let model = setting(&of_server, "model");
    // As it would stand in a file.
    let value = json!("\"anthropic/test-model\"");
    assert_eq!((&model["value"], &model["source"]), (&value, &json!("SWARM_MODEL")));
    let repo = rig.repo.path().display();
    let of_repo = rig.api().get(&format!("/config?repo={repo}")).await;
    let workers = setting(&of_repo, "max_workers");
    assert_eq!((&workers["value"], &workers["source"]), (&json!("5"), &json!("swarm.toml:3")));
    assert!(workers["overrides"].to_string().contains("config.toml:1"), "{workers:#}");
    assert!(!of_repo.to_string().contains(integration_tests::swarm::API_KEY));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_newer_journal_is_refused_and_left_as_it_is() {
    let rig = Rig::new().await;
    rig.home.stop().await.expect_code(0);
    let journal = rig.home.path().join("journal.sqlite");
    let connection = rusqlite::Connection::open(&journal).expect("the journal is a database");
    connection.pragma_update(None, "user_version", 4711).expect("the version can be written");
    connection.close().expect("the database closes");
    let before = fs::read(&journal).expect("the journal can be read");
    let finished = rig.home.run(&rig.home.user_home(), &["serve"]).await.expect_code(1);
    for part in ["4711", "later version"] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    assert_eq!(finished.stderr.matches("error[").count(), 1, "{}", finished.stderr);
    assert_eq!(fs::read(&journal).expect("the journal can be read"), before);
    let run = rig.home.run(rig.repo.path(), &["run", "do it"]).await.expect_code(1);
    assert!(run.stderr.contains("4711"), "{}", run.stderr);
    rig.home.assert_no_processes().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_56_each_worker_has_ports_of_its_own() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("alpha")).tool("Agent", agent("beta")));
    for name in ["alpha", "beta"] {
        rig.model
            .agent(&prompt(name), [call(bash("echo base=$SWARM_PORT_BASE")), Reply::say("I know my ports.")]);
    }
    let task = rig.submit().await;
    rig.done(&task).await;
    let mut ports = HashSet::new();
    for name in ["alpha", "beta"] {
        let base = rig.worker(&task, name).await["port_base"].as_u64().expect("a worker has ports");
        let told = rig.model.wait_for_request(&prompt(name), 1).await;
        let (_, said, _) = told.last_tool_results()[0];
        assert!(said.contains(&format!("base={base}")), "{said}");
        // The model knows them too, from its first message on.
        let first = rig.model.wait_for_request(&prompt(name), 0).await;
        assert!(String::from_utf8_lossy(&first.raw).contains(&format!("{base}-{}", base + 9)), "{name}");
        for port in base..base + 10 {
            assert!(ports.insert(port), "port {port} was given twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_s_permission_mode_reaches_workers_at_work() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [call(write("a.txt", "a\n")), call(write("b.txt", "b\n")).hold("mode"), Reply::say("Done.")],
    );
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    let asked = rig.permission_request(&task).await;
    assert_eq!(asked["request"]["tool"], "Write");
    let session = rig.session(&task).await;
    assert_eq!((&session["session"]["asks"], &session["session"]["state"]), (&json!(1), &json!("waiting")));
    let answered = rig.answer(&asked, &json!({"decision": "allow"})).await;
    assert_eq!((&answered["won"], &answered["decision"]["by"]), (&json!(true), &json!("person")));
    // The race is over: a second answer learns who won.
    let late = rig.answer(&asked, &json!({"decision": "deny"})).await;
    assert_eq!((&late["won"], &late["decision"]["decision"]), (&json!(false), &json!("allow")));
    rig.model.gate("mode").reached().await;
    let mode = json!({"mode": "acceptEdits"});
    let path = format!("/sessions/{}/permission-mode", task.session);
    assert_eq!(rig.api().try_post(&path, &mode).await.0, StatusCode::NO_CONTENT);
    assert_eq!(
        rig.api().try_post(&path, &json!({"mode": "dontAsk"})).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    // The worker has heard of it before its model goes on.
    eventually(SOON, "the worker's record of the command", async || {
        let settled = rig.events(&task, "worker.command_settled").await;
        settled.iter().find(|event| event["accepted"] == true).cloned().ok_or("not recorded")
    })
    .await;
    rig.model.gate("mode").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(rig.session(&task).await["session"]["permission_mode"], "acceptEdits");
    assert_eq!(rig.events(&task, "permission.requested").await.len(), 1);
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(rig.at(&worker, "b.txt").as_deref(), Some("b\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_s_own_check_is_what_its_workers_are_told_to_run() {
    let rig = Rig::configured("check = [\"make everything\"]\n").await;
    rig.coordinator(Reply::call("Agent", crate::rig::reporter("alpha")));
    rig.model.agent(&prompt("alpha"), [Reply::say("All is well.")]);
    let task = rig.submit_with(json!({"check": "make just-this"})).await;
    rig.done(&task).await;
    let worker = rig.model.wait_for_request(&prompt("alpha"), 0).await;
    for told in [worker, rig.last_request()] {
        let told = String::from_utf8_lossy(&told.raw).into_owned();
        assert!(told.contains("make just-this") && !told.contains("make everything"), "{told}");
    }
}
