//! Transcripts and sessions after something was lost or came between (rows R of the cases).

use integration_tests::{Reply, when};
use serde_json::json;

use crate::rig::{COORDINATE, Rig, entries, id_of, prompt, reporter};

/// R07: what goes on is the session that was named, not the newest of the same repository.
#[tokio::test(flavor = "multi_thread")]
async fn r07_a_session_goes_on_by_its_id_and_not_because_it_is_the_newest() {
    let mut rig = Rig::new().await;
    let mut tasks = Vec::new();
    for name in ["walnut", "zeppelin"] {
        let words = format!("{COORDINATE} of the {name} session");
        rig.model.agent(&words, [Reply::new().tool("Agent", reporter(name)), Reply::say("It runs.")]);
        rig.model.rule(when().user_contains(&words), "Noted.");
        rig.model.agent(&prompt(name), [Reply::say(format!("The {name} report."))]);
        let task = rig.submit_with(json!({ "prompt": words })).await;
        assert_eq!(rig.done(&task).await["verdict"], "complete");
        tasks.push(task);
    }
    rig.restart_killed().await;
    let path = format!("/sessions/{}/messages", tasks[0].session);
    rig.api().post(&path, &json!({"text": "And what now?"})).await;
    let request = rig
        .model
        .wait_for("the message in a request", |requests| {
            requests.iter().find(|request| request.any_user_text_contains("And what now?")).cloned()
        })
        .await;
    let text = request.json.to_string();
    assert!(text.contains("of the walnut session") && text.contains("The walnut report."));
    assert!(!text.contains("zeppelin"), "{text}");
    // Each worker's transcript is its own, too.
    for (task, own, other) in [(&tasks[0], "walnut", "zeppelin"), (&tasks[1], "zeppelin", "walnut")] {
        let worker = rig.worker(task, own).await;
        let page = rig.api().get(&format!("/workers/{}/transcript", id_of(&worker))).await.to_string();
        assert!(page.contains(&format!("The {own} report.")) && !page.contains(other));
    }
}

/// R11: the journal knows a worker whose transcript is gone. It is shown without, and nothing else is lost.
#[tokio::test(flavor = "multi_thread")]
async fn r11_a_worker_whose_transcript_was_deleted_is_shown_with_what_the_journal_has() {
    let mut rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::new().tool("Agent", reporter("alpha")), Reply::say("It runs.")]);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("alpha"), [Reply::say("Alpha's report.")]);
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    let path = format!("/workers/{}/transcript", id_of(&worker));
    assert!(rig.api().get(&path).await.to_string().contains("Alpha's report."));
    let name = format!("{}.jsonl", id_of(&worker));
    let transcript = find(&rig.home.path(), &name).expect("a worker has a transcript");
    std::fs::remove_file(transcript).expect("a transcript can be deleted");
    for restart in [false, true] {
        if restart {
            rig.restart_killed().await;
        }
        let page = rig.api().get(&path).await;
        assert_eq!((&page["records"], &page["damaged_lines"]), (&json!([]), &json!(0)), "{page:#}");
        let detail = rig.detail(&worker).await;
        assert_eq!(detail["todo"], json!([]));
        assert_eq!(rig.worker(&task, "alpha").await["status"], "completed");
        assert_eq!(rig.task(&task).await["verdict"], "complete");
    }
    // What the worker reported stands in the coordinator's history.
    let last = rig.model.requests().into_iter().rfind(|request| request.any_user_text_contains(COORDINATE));
    assert_eq!(entries(&last.expect("it asked")).len(), 1);
}

/// The file of this name under a directory.
fn find(directory: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().find_map(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory {
            return find(&entry.path(), name);
        }
        (entry.file_name() == name).then(|| entry.path())
    })
}
