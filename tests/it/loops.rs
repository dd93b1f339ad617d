//! A worker that repeats itself (spec 2.6): reminded, then a person is asked, and unattended it ends with what
//! it has.

use integration_tests::{Reply, when};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, agent, bash, call, entries, prompt, write};

/// A worker that writes a file and then asks for the same command for ever.
fn stuck(rig: &Rig) {
    let mut replies = vec![call(write("first.txt", "kept\n"))];
    replies.extend((0..20).map(|_| call(bash("cat first.txt"))));
    rig.model.agent(&prompt("stuck"), replies);
}

#[tokio::test(flavor = "multi_thread")]
async fn l01_unattended_a_worker_that_repeats_itself_ends_with_its_work_kept() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("stuck")));
    stuck(&rig);
    let task = rig.submit_with(json!({"unattended": true})).await;
    assert_eq!(rig.done(&task).await["verdict"], "failed");
    let requests = rig.model.requests_of(&prompt("stuck"));
    assert_eq!(requests.len(), 6, "one to write, five times the same");
    let reminded: Vec<bool> =
        requests.iter().map(|request| request.any_user_text_contains("You repeat yourself")).collect();
    assert_eq!(reminded, [false, false, false, false, true, true]);
    let worker = rig.worker(&task, "stuck").await;
    assert_eq!((&worker["status"], &worker["exit_reason"]), (&json!("failed"), &json!("loop_detected")));
    assert_eq!(rig.at(&worker, "first.txt").as_deref(), Some("kept\n"));
    assert!(rig.events(&task, "permission.requested").await.is_empty(), "nobody is there to be asked");
    let told = &entries(&rig.last_request())[0];
    assert!(told.text.contains("it repeated itself"), "{}", told.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_asked_and_may_end_it_or_let_it_go_on() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", agent("stuck"))]);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    stuck(&rig);
    let task = rig.submit().await;
    let asked: Value = rig.permission_request(&task).await;
    let request = &asked["request"];
    assert_eq!(request["tool"], "Repetition");
    let what = "the same call of Bash with the same result, 5 times in a row";
    assert_eq!(request["summary"], what);
    assert!(request["proposed_rule"].is_null(), "no rule can say it");
    rig.worker_has_status(&task, "stuck", "waiting").await;
    rig.answer(&asked, &json!({"decision": "allow"})).await;
    // It goes on, and is asked about once more when it does not stop.
    let again = rig.permission_request(&task).await;
    assert_ne!(again["request"]["id"], request["id"]);
    let so_far = rig.model.requests_of(&prompt("stuck")).len();
    assert!(so_far > 6, "{so_far} requests");
    rig.answer(&again, &json!({"decision": "deny"})).await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "stuck").await;
    assert_eq!((&worker["status"], &worker["exit_reason"]), (&json!("failed"), &json!("loop_detected")));
    assert_eq!(rig.at(&worker, "first.txt").as_deref(), Some("kept\n"));
}
