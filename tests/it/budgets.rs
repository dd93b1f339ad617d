//! Budgets (spec 10.1): what is spent never passes a cap, who reaches one ends with a result and its work kept, and a
//! cap that cannot be kept is refused at the start.

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{Rig, agent, call, entries, prompt, write};

/// A model with a price: a dollar for a million tokens of input, ten for a million of output.
const INPUT_PRICE: f64 = 1.0;
const OUTPUT_PRICE: f64 = 10.0;

async fn rig(toml: &str) -> Rig {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SWARM_MODEL", "lab/test-model");
    let endpoint = format!(
        "{toml}\n[endpoints.lab]\napi = \"anthropic\"\nbase_url = \"{}\"\nkey_env = \"ANTHROPIC_API_KEY\"\n\
         price = {{ input = {INPUT_PRICE:?}, output = {OUTPUT_PRICE:?} }}\n",
        model.url()
    );
    Rig::made(model, home, TestRepo::new(), &endpoint).await
}

/// A turn that reads something else each time and is charged for 1,000 tokens of output: a cent.
fn a_cents_turn(n: usize) -> Reply {
    Reply::call("Glob", json!({"pattern": format!("{n}*")})).usage(1_000, 0, 0, 1_000)
}

fn ended_by_budget(worker: &Value) {
    let end = (&worker["status"], &worker["exit_reason"]);
    assert_eq!(end, (&json!("failed"), &json!("budget_exceeded")), "{worker:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l07_a_worker_that_reaches_its_cap_ends_with_its_work_and_its_coordinator_hears_of_it() {
    let rig = rig("worker.budget_usd = 0.06").await;
    let spawn = Reply::new().tool("Agent", agent("costly")).tool("Agent", agent("cheap"));
    rig.coordinator(spawn);
    let mut turns = vec![call(write("kept.txt", "kept\n")).usage(1_000, 0, 0, 1_000)];
    turns.extend((0..20).map(a_cents_turn));
    rig.model.agent(&prompt("costly"), turns);
    rig.model.agent(&prompt("cheap"), [call(write("cheap.txt", "x\n")), Reply::say("Done.")]);
    let run = rig.home.run(rig.repo.path(), &["run", "--json", "--unattended", crate::rig::COORDINATE]).await;
    let line = run.expect_code(1).json_lines().pop().expect("the result is the last line");
    assert_eq!((&line["kind"], &line["verdict"]), (&json!("session.result"), &json!("degraded")));
    let workers = line["workers"].as_array().expect("the result lists workers");
    let costly = workers.iter().find(|worker| worker["name"] == "costly").expect("it is listed");
    ended_by_budget(costly);
    let cheap = workers.iter().find(|worker| worker["name"] == "cheap").expect("it is listed");
    assert_eq!(cheap["status"], "completed", "the cap is each worker's own: {cheap:#}");
    let cost = costly["cost_usd"].as_f64().expect("its price is known");
    assert!((0.03..=0.06).contains(&cost), "{cost}");
    assert_eq!(rig.at(costly, "kept.txt").as_deref(), Some("kept\n"));
    let asked = rig.model.requests_of(&prompt("costly"));
    let max_tokens: Vec<u64> = asked
        .iter()
        .map(|request| request.json["max_tokens"].as_u64().expect("each asks for some"))
        .collect();
    assert!(max_tokens.windows(2).all(|pair| pair[1] < pair[0]), "each may ask for less: {max_tokens:?}");
    let told = entries(&rig.last_request());
    let told = told.iter().find(|entry| entry.text.contains("budget")).expect("the coordinator is told");
    assert_eq!(told.status, "failed");
    assert!(told.part("summary").contains("budget used up: $0.0"), "{}", told.text);
    let shown = rig.home.run(rig.repo.path(), &["show", "costly"]).await.expect_code(0);
    assert!(shown.stdout.contains("budget used up: $0.0"), "{}", shown.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_reaches_its_cap_of_tokens_ends_so() {
    let rig = rig("worker.budget_tokens = 30_000").await;
    rig.coordinator(Reply::call("Agent", agent("costly")));
    rig.model.agent(
        &prompt("costly"),
        (0..20).map(|n| Reply::call("Glob", json!({"pattern": format!("{n}*")})).usage(4_000, 0, 0, 2_000)),
    );
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "failed");
    let worker = rig.worker(&task, "costly").await;
    ended_by_budget(&worker);
    assert_eq!(rig.model.requests_of(&prompt("costly")).len(), 4, "a fifth might have passed the cap");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_48_an_unknown_price_under_a_cap_in_dollars_is_refused_at_the_start() {
    let rig = Rig::configured("worker.budget_usd = 5\n").await;
    let (status, problem) = rig.try_submit(json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("unknown_price")));
    let title = problem["title"].as_str().expect("a title");
    assert!(title.contains("worker.budget_usd") && title.contains("anthropic/test-model"), "{title}");
    assert!(
        problem["hint"].as_str().is_some_and(|hint| hint.contains("[endpoints.anthropic]")),
        "{problem:#}"
    );
    let shell = rig.home.run(rig.repo.path(), &["run", "do it"]).await.expect_code(2);
    assert!(shell.stderr.starts_with("error[unknown_price]: worker.budget_usd needs"), "{}", shell.stderr);
    assert_eq!(rig.api().get("/sessions").await, json!([]), "and nothing was made");
    assert!(rig.model.requests().is_empty());
}
