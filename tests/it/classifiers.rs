//! Both classifiers: the gate of the mode `auto`, and the racer beside a person.

use integration_tests::{
    Reply, eventually,
    model_server::{Matcher, Request},
    wait::LATER,
    when,
};
use serde_json::{Value, json};

use crate::rig::{Rig, Task, agent, bash, call, prompt};

/// Every command asks.
const ASKS: &str = "[sandbox]\nauto_allow = false\n";

fn auto() -> Value {
    json!({"permission_mode": "auto"})
}

fn gate() -> Matcher {
    when().system_contains("You guard the machine")
}

fn first_look() -> Matcher {
    gate().last_user_contains("Answer with one line")
}

fn second_look() -> Matcher {
    gate().last_user_contains("Look at the last call again")
}

fn blocks(reason: &str) -> String {
    format!("It is not asked for. <block>yes</block><reason>{reason}</reason>")
}

/// A worker that makes these files by commands, one a turn, and ends. Rules of the gate come before.
fn toucher(rig: &Rig, files: &[&str]) {
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    let mut replies: Vec<Reply> = files.iter().map(|file| call(bash(&format!("touch {file}")))).collect();
    replies.push(Reply::say("Touched all."));
    rig.model.agent(&prompt("toucher"), replies);
}

/// Questions to the gate.
fn looks(rig: &Rig) -> Vec<Request> {
    let mut requests = rig.model.requests();
    requests.retain(|request| request.system.contains("You guard the machine"));
    requests
}

/// The results of all calls, as the worker's last request has them.
fn results(rig: &Rig) -> Vec<(String, bool)> {
    let mut requests = rig.model.requests_of(&prompt("toucher"));
    requests.retain(|request| !request.system.contains("You guard the machine"));
    let last = requests.last().expect("it asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

async fn asked(rig: &Rig, task: &Task) -> usize {
    rig.events(task, "permission.requested").await.len()
}

/// Who decided each call, in order.
async fn log(rig: &Rig, task: &Task) -> Vec<(String, String)> {
    let log = rig.api().get(&format!("/sessions/{}/permissions", task.session)).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |view: &Value| (text(&view["decision"]["by"]), text(&view["decision"]["decision"]));
    log.as_array().expect("a list").iter().map(entry).collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(by, decision)| (by.to_owned(), decision.to_owned())).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_gate_lets_pass_runs_without_a_person_and_is_paid_for_by_the_worker() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), Reply::say("<block>no</block>").usage(900, 0, 0, 7));
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    rig.model.agent(
        &prompt("toucher"),
        [
            call(("Read", json!({"file_path": "README.md"}))),
            call(bash("touch a.txt")),
            call(bash("touch b.txt")),
            Reply::say("Touched all."),
        ],
    );
    let task = rig.submit_with(auto()).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(asked(&rig, &task).await, 0);
    let worker = rig.worker(&task, "toucher").await;
    assert_eq!(
        (rig.at(&worker, "a.txt"), rig.at(&worker, "b.txt")),
        (Some(String::new()), Some(String::new()))
    );
    // A tool that only reads is not looked at; the first look is a short one, behind a prefix that is cached.
    let looks = looks(&rig);
    assert_eq!(looks.len(), 2);
    for look in &looks {
        assert!(look.json["max_tokens"].as_u64().is_some_and(|most| most <= 64), "{}", look.json);
        assert!(look.json["system"][0]["cache_control"].is_object(), "{}", look.json["system"]);
        assert_eq!(look.json["system"], looks[0].json["system"]);
        assert!(look.tools.is_empty());
    }
    // Compact history: what it was given, and its calls, but not their results.
    let shown = looks[1].last_user_text();
    for line in [r#"{"Bash":"touch a.txt"}"#, r#"{"Read":"{\"file_path\":\"README.md\"}"}"#, "work: toucher."]
    {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    assert!(!shown.contains("A project"), "results are not shown: {shown}");
    assert_eq!(log(&rig, &task).await, pairs([("classifier", "allow"), ("classifier", "allow")]));
    let records = rig.events(&task, "worker.record").await;
    let looked: Vec<&Value> = records
        .iter()
        .map(|event| &event["record"])
        .filter(|record| record["record"] == "helper_call")
        .collect();
    assert_eq!(looked.len(), 2);
    assert_eq!(looked[0]["usage"]["output_tokens"], 7);
    let sum =
        |key: &str| records.iter().filter_map(|event| event["record"]["usage"][key].as_u64()).sum::<u64>();
    assert_eq!(worker["usage"]["output_tokens"], sum("output_tokens"), "its use is the worker's");
    let cost = rig.home.run(rig.repo.path(), &["cost", "--by", "worker", "--json"]).await.expect_code(0);
    let row = cost
        .json_lines()
        .into_iter()
        .find(|line| line["row"]["usage"]["output_tokens"] == sum("output_tokens"));
    assert!(row.is_some(), "{}", cost.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_forbids_while_the_gate_looks_is_not_done() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), Reply::say("<block>no</block>").hold("look"));
    toucher(&rig, &["a.txt"]);
    let task = rig.submit_with(auto()).await;
    rig.model.gate("look").reached().await;
    rig.api().post(&format!("/sessions/{}/permission-mode", task.session), &json!({"mode": "plan"})).await;
    eventually(LATER, "the worker takes the mode", async || {
        let records = rig.events(&task, "worker.record").await;
        let is_taken = records.iter().any(|event| event.to_string().contains("command_accepted"));
        if is_taken { Ok(()) } else { Err("not yet") }
    })
    .await;
    rig.model.gate("look").open();
    rig.done(&task).await;
    let results = results(&rig);
    assert!(results[0].1 && !results[0].0.is_empty(), "{results:?}");
    assert_eq!(rig.repo.branches("swarm"), [] as [&str; 0], "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_gate_blocks_is_refused_with_its_reason_after_a_second_look() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), "<block>yes</block>");
    rig.model.once(second_look(), Reply::say(blocks("nobody asked for it")));
    rig.model.rule(second_look(), "On reflection it is harmless. <block>no</block>");
    toucher(&rig, &["a.txt", "b.txt"]);
    let task = rig.submit_with(auto()).await;
    rig.done(&task).await;
    let results = results(&rig);
    assert!(
        results[0].1 && results[0].0.contains("the classifier of the mode auto: nobody asked for it"),
        "{results:?}"
    );
    assert!(!results[1].1, "{results:?}");
    assert_eq!(asked(&rig, &task).await, 0);
    assert_eq!(log(&rig, &task).await, pairs([("classifier", "deny"), ("classifier", "allow")]));
    let looks = looks(&rig);
    assert_eq!(looks.len(), 4);
    assert_eq!(looks[1].json["max_tokens"], 4_096);
    let shown = rig.home.run(rig.repo.path(), &["permissions", "log", "toucher"]).await.expect_code(0).stdout;
    assert!(shown.contains("denied by the classifier") && shown.contains("nobody asked for it"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn z07_a_person_can_let_through_what_the_gate_refused() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), "<block>yes</block>");
    rig.model.rule(second_look(), Reply::say(blocks("it looks odd")));
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    rig.model.agent(
        &prompt("toucher"),
        [
            call(bash("touch a.txt")),
            call(bash("touch a.txt")).hold("refused once"),
            Reply::say("Touched all."),
        ],
    );
    let task = rig.submit_with(auto()).await;
    rig.model.gate("refused once").reached().await;
    let refused = results(&rig);
    assert!(refused[0].1 && refused[0].0.contains("A person who wants it can say so"), "{refused:?}");
    // In another mode the same call is a person's to decide.
    let mode = json!({"mode": "default"});
    rig.api().post(&format!("/sessions/{}/permission-mode", task.session), &mode).await;
    rig.worker_is(&task, "toucher", "the mode is taken", |worker| worker["status"] == "running").await;
    eventually(LATER, "the worker has the mode", async || {
        let settled = rig.events(&task, "worker.command_settled").await;
        if settled.is_empty() { Err("not yet".to_owned()) } else { Ok(()) }
    })
    .await;
    rig.model.gate("refused once").open();
    let request = rig.permission_request(&task).await;
    rig.answer(&request, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "toucher").await;
    assert_eq!(rig.at(&worker, "a.txt").as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn z07_after_three_refusals_in_a_row_the_desk_asks_and_its_yes_counts() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), "<block>yes</block>");
    rig.model.rule(second_look(), Reply::say(blocks("it looks odd")));
    toucher(&rig, &["a.txt", "b.txt", "c.txt", "d.txt"]);
    let task = rig.submit_with(auto()).await;
    let request = rig.permission_request(&task).await;
    assert_eq!(request["request"]["input"]["command"], "touch c.txt");
    let why = request["request"]["why"].as_str().expect("why it asks");
    assert!(why.contains("the classifier refused it (it looks odd)"), "{why}");
    rig.answer(&request, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    let errors: Vec<bool> = results(&rig).iter().map(|(_, is_error)| *is_error).collect();
    assert_eq!(errors, [true, true, false, true], "the person's word ended the row");
    assert_eq!(asked(&rig, &task).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_nobody_watches_keeps_failing_instead() {
    let rig = Rig::configured(ASKS).await;
    rig.model.rule(first_look(), "<block>yes</block>");
    rig.model.rule(second_look(), Reply::say(blocks("it looks odd")));
    toucher(&rig, &["a.txt", "b.txt", "c.txt", "d.txt"]);
    let task = rig.submit_with(json!({"permission_mode": "auto", "unattended": true})).await;
    rig.done(&task).await;
    let results = results(&rig);
    assert!(results.iter().all(|(text, is_error)| *is_error && text.contains("it looks odd")), "{results:?}");
    assert_eq!((results.len(), asked(&rig, &task).await), (4, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn z08_a_gate_that_is_out_of_reach_fails_closed_with_its_reason_or_asks_where_that_is_set() {
    type Break = fn(&Rig);
    let breaks: [(&str, Break); 2] = [
        ("500", |rig| {
            rig.model.rule(gate(), Reply::error(500));
        }),
        ("of no use", |rig| {
            rig.model.rule(gate(), "I had rather not say.");
        }),
    ];
    for (why, breaks) in breaks {
        // Closed, whether somebody watches or not.
        for more in [auto(), json!({"permission_mode": "auto", "unattended": true})] {
            let rig = Rig::configured(ASKS).await;
            breaks(&rig);
            toucher(&rig, &["a.txt"]);
            let task = rig.submit_with(more).await;
            rig.done(&task).await;
            let results = results(&rig);
            assert!(results[0].1 && results[0].0.contains("out of reach"), "{why}: {results:?}");
            assert!(results[0].0.contains(why), "{why}: {results:?}");
            assert_eq!(asked(&rig, &task).await, 0);
            assert_eq!(log(&rig, &task).await, pairs([("classifier", "deny")]));
        }
        // Asks.
        let rig = Rig::configured(&format!("{ASKS}[auto_mode]\nunavailable = \"ask\"\n")).await;
        breaks(&rig);
        toucher(&rig, &["a.txt"]);
        let task = rig.submit_with(auto()).await;
        let request = rig.permission_request(&task).await;
        assert!(
            request["request"]["why"].as_str().is_some_and(|text| text.contains("out of reach")),
            "{request:#}"
        );
        rig.answer(&request, &json!({"decision": "allow"})).await;
        rig.done(&task).await;
        assert!(!results(&rig)[0].1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_rule_asks_a_person_whatever_the_gate_would_say() {
    let rig = Rig::configured(ASKS).await;
    rig.repo.write(".claude/settings.local.json", r#"{"permissions": {"ask": ["Bash(touch *)"]}}"#);
    rig.model.rule(first_look(), "<block>no</block>");
    toucher(&rig, &["a.txt"]);
    let task = rig.submit_with(auto()).await;
    let request = rig.permission_request(&task).await;
    assert_eq!(looks(&rig).len(), 0);
    rig.answer(&request, &json!({"decision": "deny"})).await;
    rig.done(&task).await;
}

const RACES: &str = "[sandbox]\nauto_allow = false\n[classifier]\nracer = true\n";

fn racer(answer: &str) -> (Matcher, Reply) {
    (when().system_contains("waits for a person"), Reply::say(answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_racer_claims_what_it_is_sure_of_and_leaves_the_rest_to_a_person() {
    let rig = Rig::configured(RACES).await;
    let (asked_it, sure) = racer(r#"{"decision": "allow", "confidence": 0.97, "reason": "an empty file"}"#);
    rig.model.once(asked_it.clone(), sure);
    for answer in [
        r#"{"decision": "allow", "confidence": 0.5, "reason": "perhaps"}"#,
        r#"{"decision": "deny", "confidence": 1.0, "reason": "no"}"#,
        "what?",
    ] {
        rig.model.once(asked_it.clone(), Reply::say(answer));
    }
    rig.model.rule(asked_it, Reply::error(500));
    let files = ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"];
    toucher(&rig, &files);
    let task = rig.submit().await;
    for file in &files[1..] {
        let request = eventually(LATER, "the next request", async || {
            let view = rig.permission_request(&task).await;
            let command = view["request"]["input"]["command"].clone();
            if command == format!("touch {file}") { Ok(view) } else { Err(command.to_string()) }
        })
        .await;
        let n_asked = 1 + files.iter().position(|other| other == file).expect("it is one of them");
        rig.model
            .wait_for("the racer was asked", |requests| {
                let racing = requests.iter().filter(|request| request.system.contains("waits for a person"));
                (racing.count() >= n_asked).then_some(())
            })
            .await;
        let racers: Vec<&Value> =
            request["racers"].as_array().expect("racers").iter().map(|racer| &racer["by"]).collect();
        assert_eq!(racers, ["rule", "person", "classifier", "timeout"]);
        rig.answer(&request, &json!({"decision": "allow"})).await;
    }
    rig.done(&task).await;
    let by: Vec<String> = log(&rig, &task).await.into_iter().map(|(by, _)| by).collect();
    assert_eq!(by, ["classifier", "person", "person", "person", "person"]);
    let decided = rig.events(&task, "permission.decided").await;
    assert_eq!(decided[0]["decision"]["reason"], "an empty file");
    assert!(decided[0]["decision"]["source"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_racer_is_off_unless_it_is_switched_on() {
    let rig = Rig::configured(ASKS).await;
    toucher(&rig, &["a.txt"]);
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    rig.answer(&request, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    let racing =
        rig.model.requests().into_iter().filter(|request| request.system.contains("waits for a person"));
    assert_eq!(racing.count(), 0);
}

/// What the classifier asks is granted from the session's budget like every call; without a grant it is out of reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_budget_holds_for_the_gate_as_well() {
    let cap: u64 = 60_000;
    let rig = Rig::configured(&format!("budget_tokens = {cap}\n{ASKS}")).await;
    rig.model.rule(first_look(), Reply::say("<block>no</block>").usage(9_000, 0, 0, 7));
    rig.coordinator(Reply::call("Agent", agent("toucher")));
    let touches = (0..12).map(|n| call(bash(&format!("touch {n}.txt"))));
    rig.model.agent(&prompt("toucher"), touches.chain([Reply::say("Touched all.")]));
    let task = rig.submit_with(auto()).await;
    let done = rig.done(&task).await;
    let looked = looks(&rig).len() as u64;
    assert!((2..12).contains(&looked), "the budget ends it: {looked}");
    let session = rig.session(&task).await;
    let budget = &session["session"]["budget"];
    let spent = budget["spent_tokens"].as_u64().expect("it is counted");
    assert!(spent >= looked * 9_000, "the looks count: {budget}");
    assert!(spent <= cap, "and the cap holds: {budget}");
    assert_ne!(done["verdict"], "complete", "{done:#}");
}
