//! Old results are put away when the window fills, before anything is summarised, and can be had again (spec 3.2,
//! 3.3). Through the built worker.

use integration_tests::{Reply, model_server::Request};
use serde_json::{Value, json};

use crate::rig::{Rig, agent, call, prompt};

/// A window in which some twelve of the files fill what may be filled before a warning.
const WINDOW: &str = "context_window = 40000\n";
const FILES: usize = 20;

fn read(n: usize) -> Reply {
    let input = json!({"file_path": format!("big/{n}.txt")});
    Reply::new().tool_with_id(&format!("toolu_read{n}"), "Read", input)
}

fn retrieve(id: &str) -> Reply {
    call(("Retrieve", json!({ "id": id })))
}

fn content(n: usize) -> String {
    (0..120).map(|line| format!("file {n}, line {line}: nothing here is said twice\n")).collect()
}

async fn reader(rig: &Rig, replies: impl IntoIterator<Item = Reply>) -> Vec<Request> {
    for n in 0..FILES {
        rig.repo.write(&format!("big/{n}.txt"), content(n));
    }
    rig.repo.commit("big files");
    rig.model.allow_breaks(None);
    rig.coordinator(Reply::call("Agent", agent("reader")));
    rig.model.agent(&prompt("reader"), replies);
    let task = rig.submit().await;
    rig.done(&task).await;
    rig.model.requests_of(&prompt("reader"))
}

fn cleared(request: &Request) -> Vec<String> {
    request
        .tool_results()
        .filter(|(_, text, _)| text.starts_with("[Old tool result content cleared; Retrieve returns it: "))
        .map(|(id, ..)| id.to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_results_are_put_away_without_a_summary_and_retrieve_returns_them() {
    let rig = Rig::configured(WINDOW).await;
    let replies = (0..FILES).map(read).chain([
        retrieve("toolu_read0"),
        retrieve("toolu_nobody"),
        Reply::say("Read them all."),
    ]);
    let requests = reader(&rig, replies).await;
    let last = requests.last().expect("it asked");
    assert!(!rig.model.requests().iter().any(is_summary), "nothing was summarised");
    let gone = cleared(last);
    assert!(gone.len() >= 5 && gone[0] == "toolu_read0", "{gone:?}");
    // The newest stay, and calls with their results are never parted: the model server checks that.
    let results: Vec<(&str, &str, bool)> = last.tool_results().collect();
    assert!(results[FILES - 5..FILES].iter().all(|(_, text, _)| text.contains("nothing here is said twice")));
    let (_, returned, is_error) = results[FILES];
    assert!(
        !is_error && returned.contains("file 0, line 119: nothing here is said twice"),
        "{returned:.200}"
    );
    let (_, unknown, is_error) = results[FILES + 1];
    assert!(is_error && unknown.contains("content no longer available"), "{unknown}");
    assert!(last.any_user_text_contains("work: reader"), "the task is there word for word");
}

fn is_summary(request: &Request) -> bool {
    request.last_user_text().contains("Write a summary of the conversation")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_started_again_still_returns_what_was_put_away() {
    let rig = Rig::configured(WINDOW).await;
    for n in 0..FILES {
        rig.repo.write(&format!("big/{n}.txt"), content(n));
    }
    rig.repo.commit("big files");
    rig.model.allow_breaks(None);
    rig.coordinator(Reply::call("Agent", agent("reader")));
    let replies = (0..FILES).map(read).chain([
        Reply::say("never said").hold("killed"),
        retrieve("toolu_read0"),
        Reply::say("Read them all."),
    ]);
    rig.model.agent(&prompt("reader"), replies);
    let task = rig.submit().await;
    rig.model.gate("killed").reached().await;
    let before = rig.model.requests_of(&prompt("reader")).last().cloned().expect("it asked");
    let worker: Value = rig.worker(&task, "reader").await;
    rig.kill_worker(&worker).await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("reader"));
    let last = requests.last().expect("it asked");
    let (_, returned, is_error) = last.last_tool_results()[0];
    assert!(
        !is_error && returned.contains("file 0, line 119: nothing here is said twice"),
        "{returned:.200}"
    );
    // What was cleared stays cleared, byte for byte: the prefix of the request before is that of the next.
    assert_eq!(cleared(&before), cleared(last));
    assert_eq!(rig.worker(&task, "reader").await["restarts"], 1);
}
