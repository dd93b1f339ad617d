//! Budgets (spec 10.1): what is spent never passes a cap, who reaches one ends with a result and its work kept, and a
//! cap that cannot be kept is refused at the start.

use std::collections::BTreeMap;

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, eventually, wait::LATER, when};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, agent, call, entries, id_of, prompt, write};

/// A model with a price: a dollar for a million tokens of input, ten for a million of output.
const INPUT_PRICE: f64 = 1.0;
const OUTPUT_PRICE: f64 = 10.0;

async fn rig(toml: &str) -> Rig {
    priced(toml, INPUT_PRICE, OUTPUT_PRICE).await
}

/// With a model of these prices.
async fn priced(toml: &str, input: f64, output: f64) -> Rig {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SWARM_MODEL", "lab/test-model");
    let endpoint = format!(
        "{toml}\n[endpoints.lab]\napi = \"anthropic\"\nbase_url = \"{}\"\nkey_env = \"ANTHROPIC_API_KEY\"\n\
         price = {{ input = {input:?}, output = {output:?} }}\n",
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
    let rig = rig("worker.budget_usd = 0.057").await;
    let spawn = Reply::new().tool("Agent", agent("costly")).tool("Agent", agent("cheap"));
    rig.coordinator(spawn);
    let mut turns = vec![call(write("kept.txt", "kept\n")).usage(1_000, 0, 0, 1_000)];
    turns.extend((0..20).map(a_cents_turn));
    rig.model.agent(&prompt("costly"), turns);
    rig.model.agent(&prompt("cheap"), [call(write("cheap.txt", "x\n")), Reply::say("Done.")]);
    let run = rig.home.run(rig.repo.path(), &["run", "--json", "--unattended", COORDINATE]).await;
    let line = run.expect_code(1).json_lines().pop().expect("the result is the last line");
    assert_eq!((&line["kind"], &line["verdict"]), (&json!("session.result"), &json!("degraded")));
    let workers = line["workers"].as_array().expect("the result lists workers");
    let costly = workers.iter().find(|worker| worker["name"] == "costly").expect("it is listed");
    ended_by_budget(costly);
    let cheap = workers.iter().find(|worker| worker["name"] == "cheap").expect("it is listed");
    assert_eq!(cheap["status"], "completed", "the cap is each worker's own: {cheap:#}");
    let detail = rig.api().get(&format!("/workers/{}", id_of(costly))).await;
    let notes = detail["outcome"]["notes"].to_string();
    assert!(notes.contains("% of its budget was spent"), "{notes}");
    let cost = costly["cost_usd"].as_f64().expect("its price is known");
    assert!((0.03..=0.057).contains(&cost), "{cost}");
    assert_eq!(rig.at(costly, "kept.txt").as_deref(), Some("kept\n"));
    let asked = rig.model.requests_of(&prompt("costly"));
    let max_tokens: Vec<u64> = asked
        .iter()
        .map(|request| request.json["max_tokens"].as_u64().expect("each asks for some"))
        .collect();
    assert!(max_tokens.windows(2).all(|pair| pair[1] < pair[0]), "each may ask for less: {max_tokens:?}");
    let told = entries(&rig.last_request());
    let told = told.iter().find(|entry| entry.status == "failed").expect("the coordinator is told");
    assert!(told.part("summary").contains("budget used up: $0.0"), "{}", told.text);
    // Its session's coordinator heard before that it would come.
    let asked = rig.model.requests_of(COORDINATE);
    let heard = asked.iter().flat_map(|request| entries(request)).find(|entry| entry.status == "progress");
    let heard = heard.expect("most of its budget was spent before all of it was");
    assert!(heard.part("summary").contains("Agent \"costly\" has spent"), "{}", heard.text);
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

/// What the model server charged for, in dollars.
fn charged(rig: &Rig, input: f64, output: f64) -> f64 {
    let used = rig.model.requests();
    let used = used.iter().filter_map(|request| request.usage());
    used.map(|usage| (usage.prompt() as f64 * input + usage.output as f64 * output) / 1e6).sum()
}

/// Reads the journal as an auditor would: what is spent and what open grants may cost is within the cap after every
/// event, and nothing is open at the end. Answers with what was spent and how many grants were given.
async fn audited(rig: &Rig, task: &Task, cap: f64) -> (f64, usize) {
    let mut open: BTreeMap<(String, u64), f64> = BTreeMap::new();
    // Use that is recorded, of grants that are still open.
    let mut covered: BTreeMap<String, f64> = BTreeMap::new();
    let (mut spent, mut n_grants) = (0.0, 0);
    for event in rig.journal(task).await {
        let who = event["worker_id"].as_str().unwrap_or("coordinator").to_owned();
        let change = &event["change"];
        match (event["kind"].as_str(), change["what"].as_str()) {
            (Some("budget"), Some("granted")) => {
                let grant = change["grant"].as_u64().expect("a grant has a number");
                let amount = change["amount"]["usd"].as_f64().expect("dollars are capped");
                assert!(open.insert((who, grant), amount).is_none(), "granted twice: {event:#}");
                n_grants += 1;
            }
            (Some("budget"), Some("freed")) => {
                spent += covered.remove(&who).unwrap_or(0.0);
                for grant in change["grants"].as_array().expect("grants") {
                    open.remove(&(who.clone(), grant.as_u64().expect("a number")));
                }
            }
            (Some("budget"), Some("requested")) => {
                for grant in change["request"]["returns"].as_array().into_iter().flatten() {
                    open.remove(&(who.clone(), grant.as_u64().expect("a number")));
                }
            }
            (Some("worker.record"), _) => {
                let used = covered.entry(who.clone()).or_default();
                *used += event["record"]["cost"]["known_usd"].as_f64().unwrap_or(0.0);
                let granted: f64 =
                    open.iter().filter(|((of, _), _)| *of == who).map(|(_, amount)| amount).sum();
                assert!(*used <= granted + 1e-9, "{used} was used of {granted} at {event:#}");
            }
            (Some("coordinator.turn" | "coordinator.helper"), _) => {
                spent += event["cost"]["known_usd"].as_f64().expect("its price is known");
                open.retain(|(other, _), _| other != "coordinator");
            }
            (Some("coordinator.exit"), _) => open.retain(|(other, _), _| other != "coordinator"),
            (Some("worker.run_ended"), _) => {
                spent += covered.remove(&who).unwrap_or(0.0);
                open.retain(|(other, _), _| *other != who);
            }
            _ => {}
        }
        let reserved: f64 = open.values().sum();
        assert!(spent + reserved <= cap + 1e-9, "{spent} + {reserved} at {event:#}");
    }
    assert!(open.is_empty(), "{open:?}");
    (spent, n_grants)
}

/// Every worker of the task, by name.
async fn workers(rig: &Rig, task: &Task) -> BTreeMap<String, Value> {
    let session = rig.session(task).await;
    let workers = session["workers"].as_array().expect("a session lists workers").clone();
    workers.into_iter().map(|worker| (worker["name"].as_str().expect("a name").to_owned(), worker)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_48_five_dollars_over_eight_workers_are_reached_in_the_middle_and_never_passed() {
    // A full answer of 8,000 tokens costs 80 cents.
    let rig = priced("", 1.0, 100.0).await;
    rig.model.charge_randomly(48);
    let names: Vec<String> = (0..8).map(|n| format!("w{n}")).collect();
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name)));
    rig.coordinator(spawn.usage(2_000, 0, 0, 1_000));
    for name in &names {
        let mut turns = vec![call(write(&format!("{name}.txt"), "kept\n"))];
        turns.extend((0..20).map(|n| Reply::call("Glob", json!({"pattern": format!("{n}*")}))));
        rig.model.agent(&prompt(name), turns);
    }
    let task = rig.submit_with(json!({"budget": {"usd": 5}})).await;
    assert_eq!(rig.done(&task).await["verdict"], "failed");
    let spent = charged(&rig, 1.0, 100.0);
    assert!((4.0..=5.0).contains(&spent), "${spent} of $5");
    let warned = rig.events(&task, "budget").await;
    let warned = warned.iter().filter(|event| event["change"]["what"] == "warned").count();
    assert_eq!(warned, 1, "most of it was spent once");
    let repo = rig.repo.path();
    let cost = rig.home.run(repo, &["cost"]).await.expect_code(0).stdout;
    let show = rig.home.run(repo, &["show", &task.session]).await.expect_code(0).stdout;
    let logs = rig.home.run(repo, &["logs", &task.session]).await.expect_code(0).stdout;
    assert!(cost.contains(" % of $5.00") && show.contains(" % of $5.00"), "{cost}\n{show}");
    assert!(logs.contains("% of the session's budget is spent"), "{logs}");
    let (journaled, _) = audited(&rig, &task, 5.0).await;
    assert!((journaled - spent).abs() < 1e-6, "{journaled} is not {spent}");
    for (name, worker) in workers(&rig, &task).await {
        ended_by_budget(&worker);
        let budget = worker["exit_detail"]["budget"].as_str().expect("which");
        assert!(budget.ends_with("of the session's $5.00"), "{budget}");
        if !rig.model.requests_of(&prompt(&name)).is_empty() {
            assert_eq!(rig.at(&worker, &format!("{name}.txt")).as_deref(), Some("kept\n"), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l10_reservations_never_pass_the_cap_and_what_is_not_used_comes_back() {
    // Four reserve 8 cents each, the rest of the budget pays for no fifth; what they use is a tenth of that.
    let rig = rig("budget_usd = 0.4").await;
    let names = ["a", "b", "c", "d"];
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name)));
    rig.coordinator(spawn.usage(1_000, 0, 0, 500));
    for name in names {
        let mut turns = vec![call(write(&format!("{name}.txt"), "x\n")).usage(500, 0, 0, 700)];
        turns.extend(
            (0..4).map(|n| Reply::call("Glob", json!({"pattern": format!("{n}*")})).usage(500, 0, 0, 700)),
        );
        turns.push(Reply::say("Done.").usage(500, 0, 0, 700));
        rig.model.agent(&prompt(name), turns);
    }
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let (spent, n_grants) = audited(&rig, &task, 0.4).await;
    assert!(n_grants >= 4 * 6, "a grant for each call: {n_grants}");
    let budget = &rig.session(&task).await["session"]["budget"];
    assert_eq!(
        (&budget["caps"]["usd"], &budget["open_usd"], &budget["waiting"]),
        (&json!(0.4), &json!(0.0), &json!(0))
    );
    assert!((budget["spent_usd"].as_f64().expect("a number") - spent).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_the_coordinator_is_paid_for_before_its_next_call() {
    let rig = priced("context_window = 200_000", 1.0, 10.0).await;
    rig.model.allow_breaks(None);
    // Of 28 cents, 5 go to the first turn and 8 to the summary; 9 are reserved for the worker.
    let mut long = agent("a");
    long["prompt"] = format!("{} {}", prompt("a"), "Be careful with every detail. ".repeat(500)).into();
    let spawn = Reply::call("Agent", long).usage(1_000, 0, 0, 5_000);
    rig.model.agent(COORDINATE, [spawn, Reply::say("One runs.").usage(1_000, 0, 0, 10)]);
    let summary = Reply::say("Work goes on.").usage(1_000, 0, 0, 7_900);
    rig.model.rule(when().last_user_contains("Write a summary of the conversation"), summary);
    rig.model.rule(when().user_contains(COORDINATE), Reply::say("Noted.").usage(1_000, 0, 0, 10));
    rig.model.agent(&prompt("a"), [Reply::say("Done.").usage(100, 0, 0, 10).hold("worker")]);
    let task = rig.submit_with(json!({"budget": {"usd": 0.28}})).await;
    rig.model.wait_for_request(COORDINATE, 1).await;
    rig.worker_has_status(&task, "a", "running").await;
    let path = format!("/sessions/{}/compact", task.session);
    assert_eq!(rig.api().try_post(&path, &json!({})).await.0, StatusCode::ACCEPTED);
    let path = format!("/sessions/{}/messages", task.session);
    rig.api().post(&path, &json!({"text": "How far is it?"})).await;
    let is_after = "[Summary of prior conversation]";
    let next = rig.model.wait_for("a request with the summary", |requests| {
        requests.iter().find(|request| request.any_user_text_contains(is_after)).cloned()
    });
    let max_tokens = next.await.json["max_tokens"].as_u64().expect("it asks for some");
    assert!(max_tokens < 7_000, "{max_tokens} tokens are not left");
    rig.model.gate("worker").open();
    rig.done(&task).await;
    // Whoever asks between the two sees that it is spent.
    let journal = rig.journal(&task).await;
    let of_coordinator = journal.iter().filter(|event| event.get("worker_id").is_none());
    let order: Vec<&str> = of_coordinator
        .filter_map(|event| match (event["kind"].as_str()?, event["change"]["what"].as_str()) {
            ("budget", Some("granted")) => Some("grant"),
            ("coordinator.turn", _) => Some("turn"),
            ("coordinator.helper", _) => Some("summary"),
            _ => None,
        })
        .collect();
    assert_eq!(order[..6], ["grant", "turn", "grant", "turn", "grant", "summary"], "{order:?}");
    let (spent, _) = audited(&rig, &task, 0.28).await;
    assert!((spent - charged(&rig, 1.0, 10.0)).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_workers_race_for_one_dollar() {
    // All first calls together cost about what there is.
    const PRICES: (f64, f64) = (0.05, 3.0);
    let wide = "max_workers = 64\nmax_workers_per_server = 64\ncontext_window = 200_000";
    let rig = priced(wide, PRICES.0, PRICES.1).await;
    rig.model.charge_randomly(64);
    let names: Vec<String> = (0..64).map(|n| format!("r{n:02}")).collect();
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name)));
    // About what so many calls are long: what is reported now is what the next request is thought to hold.
    rig.coordinator(spawn.usage(2_000, 0, 0, 7_900));
    rig.model.on(|request| {
        let name = request.agent_key.split("work: ").nth(1)?.split('.').next()?.to_owned();
        Some(match request.turn() {
            0 => Reply::say(format!("Writing {name}."))
                .tool("Write", write(&format!("{name}.txt"), "raced\n").1),
            _ => Reply::say(format!("{name} is done.")),
        })
    });
    let task = rig.submit_with(json!({"budget": {"usd": 1}})).await;
    rig.done(&task).await;
    let spent = charged(&rig, PRICES.0, PRICES.1);
    assert!((0.8..=1.0).contains(&spent), "${spent} of $1");
    let (journaled, _) = audited(&rig, &task, 1.0).await;
    assert!((journaled - spent).abs() < 1e-6, "{journaled} is not {spent}");
    let workers = workers(&rig, &task).await;
    assert_eq!(workers.len(), 64);
    let queued = rig.events(&task, "notification.queued").await;
    let (mut n_done, mut n_capped) = (0, 0);
    for (name, worker) in &workers {
        let of_worker =
            queued.iter().filter(|event| event["notification"]["key"]["worker_id"] == worker["id"]);
        let results: Vec<&str> =
            of_worker.filter_map(|event| event["notification"]["result"].as_str()).collect();
        let answers = rig.model.requests_of(&prompt(name)).len();
        let expected = match answers {
            0 => String::new(),
            1 => format!("Writing {name}."),
            _ => format!("{name} is done."),
        };
        assert_eq!(results, [expected], "each ends once, with what it said last");
        if answers == 2 {
            assert_eq!(worker["status"], "completed", "{worker:#}");
            n_done += 1;
        } else {
            ended_by_budget(worker);
            n_capped += 1;
        }
        if answers > 0 {
            assert_eq!(rig.at(worker, &format!("{name}.txt")).as_deref(), Some("raced\n"), "{name}");
        }
    }
    assert!(n_done > 0 && n_capped > 0, "{n_done} were done, {n_capped} met the cap");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_neither_loses_nor_doubles_a_grant() {
    let mut rig = rig("budget_usd = 0.5").await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name)));
    rig.coordinator(spawn.usage(1_000, 0, 0, 500));
    for name in names {
        let first = Reply::new()
            .text("Writing.")
            .gate("go on")
            .tool("Write", write(&format!("{name}.txt"), "x\n").1)
            .usage(500, 0, 0, 250);
        let second = Reply::call("Glob", json!({"pattern": "*"})).usage(500, 0, 0, 250);
        rig.model.agent(&prompt(name), [first, second, Reply::say("Done.").usage(500, 0, 0, 250)]);
    }
    let task = rig.submit().await;
    // Some have a call under way, the others wait for what those give back.
    let full = async |rig: &Rig| {
        eventually(LATER, "a budget that is all given out", async || {
            let budget = rig.session(&task).await["session"]["budget"].clone();
            let all = budget["waiting"].as_u64().unwrap_or(0) as usize + under_way(rig);
            if all == names.len() && under_way(rig) > 0 { Ok(budget) } else { Err(budget.to_string()) }
        })
        .await
    };
    let before = full(&rig).await;
    assert!(before["open_usd"].as_f64().is_some_and(|open| open > 0.3), "{before:#}");
    rig.restart_killed().await;
    assert_eq!(full(&rig).await, before, "the table is what it was");
    rig.kill_server().await;
    // What streams comes to its end without a server; the next call needs a grant, or has one.
    rig.model.gate("go on").open();
    rig.start().await;
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "complete", "{view:#}");
    let (spent, _) = audited(&rig, &task, 0.5).await;
    let on_the_wire = charged(&rig, INPUT_PRICE, OUTPUT_PRICE);
    assert!((spent - on_the_wire).abs() < 1e-6, "{spent} is not {on_the_wire}");
    for name in names {
        assert_eq!(rig.model.requests_of(&prompt(name)).len(), 3, "{name}: each call is made once");
    }
}

/// Calls of workers that were sent.
fn under_way(rig: &Rig) -> usize {
    let requests = rig.model.requests();
    requests.iter().filter(|request| !request.agent_key.contains(COORDINATE)).count()
}
