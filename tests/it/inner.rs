//! Inner agents: they look for the worker, change nothing, and what they use is the worker's. Through the built worker.

use std::fs;

use integration_tests::{Reply, TestRepo, when};
use serde_json::{Value, json};

use crate::{
    rig::{Rig, agent, bash, call, prompt, write},
    streaming::Told,
};

fn explore(task: &str) -> (&'static str, Value) {
    ("Subagent", json!({"type": "Explore", "prompt": task}))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_inner_agents_read_at_once_and_answer_in_the_order_of_the_calls() {
    let rig = Rig::of(TestRepo::with_files(&[("a.txt", "alpha\n"), ("b.txt", "beta\n")]), "").await;
    let both = Reply::new().tool("Subagent", explore("look at a").1).tool("Subagent", explore("look at b").1);
    for name in ["a", "b"] {
        let read = call(("Read", json!({"file_path": format!("{name}.txt")})));
        // Neither answers before both have begun: they work at once.
        let answer = Reply::say(format!("It says what {name} says.")).gate(name);
        rig.model.agent(&format!("look at {name}"), [read, answer]);
    }
    let edit = call(("Edit", json!({"file_path": "a.txt", "old_string": "alpha", "new_string": "gamma"})));
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model.agent(&prompt("w"), [both, edit, Reply::say("Done.")]);
    let task = rig.submit().await;
    rig.model.gate("a").reached().await;
    rig.model.gate("b").reached().await;
    rig.model.gate("b").open();
    rig.model.gate("a").open();
    rig.done(&task).await;
    let worker = rig.worker(&task, "w").await;
    assert_eq!(worker["status"], "completed", "{worker:#}");
    let last = rig.model.requests_of(&prompt("w")).pop().expect("it asked");
    let results: Vec<(&str, bool)> =
        last.tool_results().map(|(_, text, is_error)| (text, is_error)).collect();
    assert_eq!(results[..2], [("It says what a says.", false), ("It says what b says.", false)]);
    assert!(
        results[2].1 && results[2].0.contains("read"),
        "what they read, the worker has not read: {results:?}"
    );
    let inner = rig.model.requests_of("look at a");
    let tools: Vec<&str> = inner[0].tools.iter().map(String::as_str).collect();
    assert_eq!(tools, ["Glob", "Grep", "Read"]);
    // Six requests in all are the worker's: three of its own, and theirs.
    let asked =
        rig.model.requests_of(&prompt("w")).len() + inner.len() + rig.model.requests_of("look at b").len();
    assert_eq!(asked, 7);
    let all: u64 = ["look at a", "look at b", &prompt("w")]
        .iter()
        .flat_map(|agent| rig.model.requests_of(agent))
        .filter_map(|request| request.usage())
        .map(|usage| usage.prompt() + usage.output)
        .sum();
    let usage = &worker["usage"];
    let counted: u64 = ["input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"]
        .iter()
        .filter_map(|key| usage[key].as_u64())
        .sum();
    assert_eq!(counted, all, "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p37_an_inner_agent_keeps_the_workers_rules_and_asks_nobody() {
    let rig = Rig::of(TestRepo::with_files(&[("secret.txt", "hidden\n"), ("a.txt", "alpha\n")]), "").await;
    let settings = rig.home.user_home().join(".claude");
    fs::create_dir_all(&settings).expect("the home is ours");
    let rules = json!({"permissions": {"deny": ["Read(secret.txt)"], "ask": ["Read(a.txt)"]}});
    fs::write(settings.join("settings.json"), rules.to_string()).expect("the home is ours");
    let read = |file: &str| call(("Read", json!({"file_path": file})));
    rig.model.agent(
        "look around",
        [
            read("secret.txt"),
            read("a.txt"),
            call(write("made.txt", "x\n")),
            call(bash("touch made.txt")),
            call(explore("deeper")),
            Reply::say("I was refused."),
        ],
    );
    let told = Told::in_rig(rig, [call(explore("look around")), Reply::say("Done.")]).await;
    told.assert_completed();
    let last = told.rig.model.requests_of("look around").pop().expect("it asked");
    let results: Vec<(&str, bool)> =
        last.tool_results().map(|(_, text, is_error)| (text, is_error)).collect();
    assert!(results.iter().all(|(_, is_error)| *is_error), "{results:?}");
    assert!(results[1].0.contains("an inner agent cannot"), "{results:?}");
    assert!(results[4].0.contains("Subagent"), "it starts none itself: {results:?}");
    assert_eq!(told.file("made.txt"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_stopped_stops_its_inner_agents() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model.rule(when().agent("look for ever"), Reply::say("never").hold("never"));
    rig.model.agent(&prompt("w"), [call(explore("look for ever"))]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    let worker = rig.worker(&task, "w").await;
    rig.api().post(&format!("/workers/{}/stop", crate::rig::id_of(&worker)), &json!({})).await;
    let worker = rig.worker_has_status(&task, "w", "aborted").await;
    assert_eq!(worker["exit_reason"], "aborted_tools", "{worker:#}");
}
