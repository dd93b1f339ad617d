//! What only a person can say: answers to questions, and whether a plan is carried out. Through the built worker.

use std::fs;

use integration_tests::Reply;
use serde_json::{Value, json};

use crate::rig::{Rig, agent, bash, call, path_of, prompt, write};

fn results(rig: &Rig, name: &str) -> Vec<(String, bool)> {
    let last = rig.model.requests_of(&prompt(name)).pop().expect("it asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

fn settings(rig: &Rig, rules: &Value) {
    let directory = rig.home.user_home().join(".claude");
    fs::create_dir_all(&directory).expect("the home is ours");
    fs::write(directory.join("settings.json"), json!({"permissions": rules}).to_string())
        .expect("the home is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_reaches_a_person_and_the_words_of_the_answer_reach_the_agent() {
    let rig = Rig::new().await;
    settings(&rig, &json!({"allow": ["AskUserQuestion"]}));
    rig.coordinator(Reply::call("Agent", agent("asks")));
    let question = json!({"questions": [{
        "question": "Which database?", "header": "Storage",
        "options": [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
    }]});
    rig.model.agent(
        &prompt("asks"),
        [
            call(("AskUserQuestion", json!({"questions": []}))),
            call(("AskUserQuestion", question)),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    let request = rig.permission_request(&task).await;
    assert_eq!(request["request"]["tool"], "AskUserQuestion", "no rule answers it: {request:#}");
    assert_eq!(request["request"]["input"]["questions"][0]["options"][1]["label"], "Postgres");
    assert_eq!(request["request"]["summary"], "Which database?");
    rig.answer(&request, &json!({"decision": "allow", "reason": "Postgres, but keep SQLite for tests"}))
        .await;
    rig.done(&task).await;
    let results = results(&rig, "asks");
    assert!(results[0].1 && results[0].0.contains("one to 4"), "{results:?}");
    assert_eq!(results[1], ("The person answers: Postgres, but keep SQLite for tests".to_owned(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn p38_in_plan_mode_nothing_changes_until_a_person_accepts_the_plan() {
    let rig = Rig::new().await;
    // Rules that would allow all of it have no say.
    settings(&rig, &json!({"allow": ["ExitPlanMode", "Write", "Edit", "Bash(*)"]}));
    rig.coordinator(Reply::call("Agent", agent("plans")));
    let exit = |plan: &str| call(("ExitPlanMode", json!({"plan": plan, "name": "two files"})));
    rig.model.agent(
        &prompt("plans"),
        [
            call(("EnterPlanMode", json!({}))),
            call(write("early.txt", "x\n")),
            call(bash("echo x > early.txt; ls")),
            call(bash("python3 -c 'open(\"early.txt\", \"w\")'")),
            exit("# One file\n"),
            call(write("early.txt", "x\n")),
            exit("# Two files\n"),
            call(write("late.txt", "x\n")),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    let first = rig.permission_request(&task).await;
    assert_eq!(first["request"]["tool"], "ExitPlanMode");
    let worker = rig.worker(&task, "plans").await;
    assert!(!path_of(&worker).join("early.txt").exists());
    rig.answer(&first, &json!({"decision": "deny", "reason": "Two, please."})).await;
    let second = rig.permission_request(&task).await;
    assert_eq!(second["request"]["input"]["plan"], "# Two files\n");
    rig.answer(&second, &json!({"decision": "allow"})).await;
    rig.done(&task).await;
    let results = results(&rig, "plans");
    let refused: Vec<bool> = results.iter().map(|(_, is_error)| *is_error).collect();
    assert_eq!(refused, [false, true, true, true, true, true, false, false], "{results:#?}");
    assert!(results[4].0.contains("says: Two, please."), "{results:?}");
    assert!(results[6].0.contains(".claude/plans/two-files.md"), "{results:?}");
    let worker = rig.worker(&task, "plans").await;
    assert_eq!(rig.at(&worker, "late.txt").as_deref(), Some("x\n"));
    assert_eq!(rig.at(&worker, "early.txt"), None);
    assert_eq!(rig.at(&worker, ".claude/plans/two-files.md").as_deref(), Some("# Two files\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_started_again_still_plans() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("plans")));
    rig.model.agent(
        &prompt("plans"),
        [
            call(("EnterPlanMode", json!({}))),
            Reply::say("never").hold("never"),
            call(write("early.txt", "x\n")),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    rig.kill_worker(&rig.worker(&task, "plans").await).await;
    rig.done(&task).await;
    let last = results(&rig, "plans").pop().expect("a result");
    assert!(last.1 && last.0.contains("plan"), "{last:?}");
    let worker = rig.worker(&task, "plans").await;
    assert_eq!(
        (&worker["branch"], &worker["restarts"]),
        (&Value::Null, &json!(1)),
        "nothing was changed: {worker:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unattended_worker_has_nobody_to_ask_and_is_not_offered_it() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("alone")));
    rig.model.agent(&prompt("alone"), [call(("AskUserQuestion", json!({}))), Reply::say("Done.")]);
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("alone"));
    assert!(!requests[0].tools.iter().any(|tool| tool == "AskUserQuestion" || tool == "ExitPlanMode"));
    assert!(results(&rig, "alone")[0].1);
}
