//! Keys live in memory: a server that lost them waits until somebody brings them, and asks nobody without.

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, eventually, swarm::API_KEY, wait::SOON, when,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, call, prompt, reporter, write};

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_start_without_their_key_wait_for_it_and_go_on_with_it() {
    let model = ModelServer::builder().api_key(API_KEY).start();
    let home = SwarmHome::new(&model);
    let mut rig = Rig::made(model, home, TestRepo::new(), "max_workers = 1\n").await;
    let both = Reply::new().tool("Agent", reporter("first")).tool("Agent", reporter("second"));
    rig.coordinator(both);
    rig.model.agent(&prompt("first"), [call(write("kept.txt", "kept\n"))]);
    rig.model.once(when().agent(&prompt("first")), Reply::say("never heard").hold("never"));
    rig.model.rule(when().agent(&prompt("first")), "The first is done.");
    rig.model.agent(&prompt("second"), [Reply::say("The second is done.")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    let first = rig.worker_has_status(&task, "first", "running").await;
    rig.worker_has_status(&task, "second", "pending").await;

    rig.kill_server().await;
    let process = rig.worker_process(&first).expect("the worker goes on without its server");
    assert!(process.signal(Signal::SIGKILL), "the worker could not be killed");
    let asked = rig.model.requests().len();
    rig.home.unset("ANTHROPIC_API_KEY");
    rig.start().await;

    let waits = |worker: &Value| worker["status"] == "waiting" && worker["waiting_for"] == "server";
    let waiting = rig.worker_is(&task, "first", "waits for its key", waits).await;
    let new_process = rig.worker_process(&waiting).expect("it waits in a process of its own");
    assert_ne!(new_process.pid, process.pid);
    eventually(SOON, "a session that waits for a key", async || {
        let session = rig.session(&task).await["session"].clone();
        let waits = session["state"] == "waiting" && session["waiting_for"] == "key";
        if waits { Ok(()) } else { Err(session.to_string()) }
    })
    .await;
    let states = rig.events(&task, "worker.state").await;
    let reason = states.last().expect("a worker has states")["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("no key for anthropic/test-model") && reason.contains("swarm resume"),
        "{reason}"
    );
    assert_eq!(rig.worker(&task, "second").await["status"], "pending");
    assert_eq!(rig.model.requests().len(), asked, "nobody asked without a key");

    let secrets = json!({"ANTHROPIC_API_KEY": API_KEY, "ANTHROPIC_BASE_URL": rig.model.url()});
    let key = json!({"client": {"secrets": secrets}});
    rig.api().post(&format!("/sessions/{}/resume", task.session), &key).await;
    let done = rig.done(&task).await;
    assert_eq!(done["verdict"], "complete", "{done:#}");
    for name in ["first", "second"] {
        let worker = rig.worker(&task, name).await;
        assert_eq!((&worker["status"], &worker["run"]), (&json!("completed"), &json!(1)), "{worker:#}");
    }
    assert!(rig.model.requests_of(COORDINATE).len() > 1);
    let keyless = rig.model.requests().iter().filter(|request| request.header("x-api-key").is_none()).count();
    assert_eq!(keyless, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_for_its_key_can_be_stopped() {
    let model = ModelServer::builder().api_key(API_KEY).start();
    let home = SwarmHome::new(&model);
    let mut rig = Rig::made(model, home, TestRepo::new(), "").await;
    rig.coordinator(Reply::call("Agent", reporter("keyless")));
    rig.model.rule(when().agent(&prompt("keyless")), Reply::say("never heard").hold("never"));
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    let worker = rig.worker_has_status(&task, "keyless", "running").await;
    rig.kill_server().await;
    let process = rig.worker_process(&worker).expect("the worker goes on without its server");
    assert!(process.signal(Signal::SIGKILL), "the worker could not be killed");
    rig.home.unset("ANTHROPIC_API_KEY");
    rig.start().await;
    let waits = |worker: &Value| worker["status"] == "waiting" && worker["waiting_for"] == "server";
    rig.worker_is(&task, "keyless", "waits for its key", waits).await;
    rig.api().post(&format!("/sessions/{}/interrupt", task.session), &json!({"reason": "enough"})).await;
    let done = rig.done(&task).await;
    assert_eq!(done["verdict"], "failed", "{done:#}");
    rig.worker_has_status(&task, "keyless", "aborted").await;
}
