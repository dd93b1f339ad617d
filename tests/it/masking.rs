//! What looks like a key, or is one, leaves the server in no answer, stream, export or callback.

use axum::{Router, body::Bytes, routing::post};
use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, eventually, wait::LATER};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, agent, call, id_of, prompt, reporter, write};

/// By its form alone.
const SHAPED: &str = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789";
/// Known to the server, and of no form.
const KNOWN: &str = "plain-words-of-the-model-key";

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_masked_wherever_the_server_speaks() {
    let (sender, mut posted) = tokio::sync::mpsc::channel(8);
    let hook = move |body: Bytes| {
        let sender = sender.clone();
        async move { drop(sender.send(String::from_utf8_lossy(&body).into_owned()).await) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let _serving =
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(hook))).await });

    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("ANTHROPIC_API_KEY", KNOWN);
    let rig = Rig::made(model, home, TestRepo::new(), "").await;
    let spoken = format!("The keys are {SHAPED} and {KNOWN}.");
    rig.coordinator(Reply::new().text(&spoken).tool("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(("AskUserQuestion", json!({"questions": [{"question": spoken}]}))),
            call(write("keys.txt", &spoken)),
            Reply::say(&spoken),
        ],
    );
    let words = format!("{COORDINATE} with {SHAPED}");
    let task = rig
        .submit_with(
            json!({"prompt": words, "callback_url": format!("http://{address}/"), "callback_asks": true}),
        )
        .await;
    let request = rig.permission_request(&task).await;
    rig.answer(&request, &json!({"decision": "allow", "reason": format!("take {SHAPED}")})).await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let id = id_of(&worker);
    let mut heard = Vec::new();
    for path in [
        format!("/tasks/{}", task.id),
        format!("/sessions/{}", task.session),
        format!("/sessions/{}/permissions", task.session),
        format!("/workers/{id}"),
        format!("/workers/{id}/transcript?after=0&limit=500"),
        format!("/workers/{id}/diff"),
        "/overview".to_owned(),
    ] {
        heard.push((path.clone(), rig.api().get(&path).await.to_string()));
    }
    heard.push(("the stream".to_owned(), format!("{:?}", rig.journal(&task).await)));
    let logs = rig.home.run(rig.repo.path(), &["logs", id]).await.expect_code(0);
    heard.push(("logs".to_owned(), logs.stdout));
    for what in ["the question", "the verdict"] {
        let body =
            tokio::time::timeout(LATER, posted.recv()).await.expect("it is posted").expect("it listens");
        heard.push((format!("the callback of {what}"), body));
    }
    for (place, text) in &heard {
        assert!(!text.contains(SHAPED), "{place}: {text}");
        assert!(!text.contains(KNOWN), "{place}: {text}");
    }
    for place in ["/sessions/", "transcript", "the stream", "the callback of the question", "permissions"] {
        let (_, text) = heard.iter().find(|(known, _)| known.contains(place)).expect("it was heard");
        assert!(text.contains("[masked: "), "what is missing is named: {place}: {text}");
    }
    // The person's repository is the person's: what was written there is written.
    eventually(LATER, "the branch", async || {
        let kept = rig.at(&worker, "keys.txt").unwrap_or_default();
        if kept == spoken { Ok(()) } else { Err(kept) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_a_key_can_be_allowed_all_the_same() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    let text = format!("key = {SHAPED}\n");
    rig.model.agent(&prompt("alpha"), [call(write("keys.txt", &text)), Reply::say("Written.")]);
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    let request = rig.permission_request(&task).await;
    assert!(!request.to_string().contains(SHAPED), "{request:#}");
    rig.answer(&request, &json!({"decision": "allow", "args_hash": request["request"]["args_hash"]})).await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(rig.at(&worker, "keys.txt").as_deref(), Some(&*text));
}

/// The words of an agent that were shown live, one after another.
fn live_words(events: &[Value], worker: Option<&str>) -> String {
    let of_agent =
        |event: &&Value| event["data"]["live"] == "text_delta" && event["worker_id"].as_str() == worker;
    events.iter().filter(of_agent).filter_map(|event| event["data"]["text"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_comes_in_pieces_is_masked_while_it_is_said() {
    let rig = Rig::new().await;
    let spoken = format!("The key {SHAPED} opens it, as does {SHAPED}");
    rig.coordinator(Reply::new().text(&spoken).chunk(3).tool("Agent", reporter("alpha")));
    rig.model.agent(&prompt("alpha"), [Reply::say(&spoken).chunk(5)]);
    let mut stream = rig.api().events("/events", None).await;
    let task = rig.submit().await;
    let mut events = Vec::new();
    let listening = async {
        while let Some(event) = stream.next().await {
            let ended = event.data["kind"] == "task.finished";
            events.push(event.data);
            if ended {
                return;
            }
        }
    };
    tokio::time::timeout(LATER, listening).await.expect("the task ends");
    let worker = rig.worker(&task, "alpha").await;
    for agent in [None, Some(id_of(&worker))] {
        let words = live_words(&events, agent);
        let masked = "[masked: anthropic key]";
        assert!(
            words.contains(&format!("The key {masked} opens it, as does {masked}")),
            "{agent:?}: {words}"
        );
    }
    assert!(events.iter().all(|event| !event.to_string().contains(&SHAPED[15..])));
}
