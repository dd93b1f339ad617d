//! A reminder that an agent sets itself and that fires while it works.

use integration_tests::{Reply, when};
use serde_json::json;

use crate::rig::{Rig, call, prompt, reporter};

/// As a provider that keeps no definition back is given it.
fn reminder(name: &str, input: serde_json::Value) -> Reply {
    call(("CallTool", json!({"name": name, "input": input})))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reminder_fires_in_a_worker_that_is_at_work_and_not_after_its_end() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("patient")));
    // Each minute; how long it takes is the minute's.
    let said = "look at the clock";
    rig.model.once(when().agent(&prompt("patient")).last_user_contains(said), Reply::say("I was reminded."));
    rig.model.agent(
        &prompt("patient"),
        [
            reminder("CronCreate", json!({"cron": "* * * * *", "prompt": said})),
            reminder("CronList", json!({})),
        ],
    );
    // It sleeps in small steps, so that it reads what came.
    rig.model.rule(when().agent(&prompt("patient")), call(("Sleep", json!({"seconds": 2}))));
    let task = rig.submit().await;
    let done = rig.done(&task).await;
    assert_eq!(done["verdict"], "complete", "{done:#}");
    let requests = rig.model.requests_of(&prompt("patient"));
    let last = requests.last().expect("it asked");
    assert!(last.last_user_text().contains(said), "{}", last.last_user_text());
    let results: Vec<(&str, bool)> = last.tool_results().map(|(_, text, failed)| (text, failed)).collect();
    assert!(results.iter().all(|(_, failed)| !failed), "{results:#?}");
    assert!(results[1].0.contains(said), "it is listed: {results:#?}");
    assert_eq!(requests.iter().filter(|request| request.last_user_text().contains(said)).count(), 1);
}
