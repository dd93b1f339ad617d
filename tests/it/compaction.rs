//! A coordinator whose history was compacted still knows its workers: the server's roster says who they are.

use integration_tests::{Reply, when};
use reqwest::StatusCode;
use serde_json::json;

use crate::rig::{COORDINATE, Rig, entries, id_of, prompt, reporter};

#[tokio::test(flavor = "multi_thread")]
async fn case_44_a_compaction_with_nine_workers_in_flight_forgets_none_and_starts_none_twice() {
    let rig = Rig::configured("max_workers = 9\n").await;
    rig.model.allow_breaks(None);
    let names: Vec<String> = (0..9).map(|n| format!("w{n}")).collect();
    let long = |name: &String| {
        let mut input = reporter(name);
        input["prompt"] = format!("{} {}", prompt(name), "Be careful with every detail. ".repeat(300)).into();
        input
    };
    let spawn = names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", long(name)));
    rig.model.agent(COORDINATE, [spawn, Reply::say("Nine run.")]);
    rig.model.rule(when().last_user_contains("Write a summary of the conversation"), "Work goes on.");
    rig.model.rule(when().user_contains(COORDINATE), "Noted.");
    for name in &names {
        rig.model.agent(&prompt(name), [Reply::say("Done.").hold("nine")]);
    }
    let task = rig.submit().await;
    rig.model.gate("nine").reached_by(9).await;
    rig.model.wait_for_request(COORDINATE, 1).await;
    for name in &names {
        rig.worker_has_status(&task, name, "running").await;
    }
    let path = format!("/sessions/{}/compact", task.session);
    assert_eq!(rig.api().try_post(&path, &json!({})).await.0, StatusCode::ACCEPTED);
    rig.api()
        .post(&format!("/sessions/{}/messages", task.session), &json!({"text": "How far are they?"}))
        .await;
    let compacted = rig
        .model
        .wait_for("a request with the summary", |requests| {
            let mut own =
                requests.iter().filter(|request| request.any_user_text_contains("How far are they?"));
            own.find(|request| request.any_user_text_contains("[Summary of prior conversation]")).cloned()
        })
        .await;
    let text: String = compacted.messages.iter().map(|message| message.text()).collect();
    let roster = text.rsplit("<roster>").next().expect("there is a last part");
    for name in &names {
        let worker = rig.worker(&task, name).await;
        let row = roster.lines().find(|line| line.starts_with(id_of(&worker)));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the roster: {roster}"));
        assert!(row.contains(name.as_str()) && row.contains("running"), "{row}");
    }
    rig.model.gate("nine").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(rig.session(&task).await["workers"].as_array().map(Vec::len), Some(9));
    let last = rig.model.requests().into_iter().rfind(|request| request.any_user_text_contains(COORDINATE));
    let mut told: Vec<String> =
        entries(&last.expect("it asked")).into_iter().map(|entry| entry.task_id).collect();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 9, "each end came after the compaction, once");
}
