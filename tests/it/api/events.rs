//! Event streams: nothing twice, nothing missing, and nobody waits for a slow reader (case 50).

use std::collections::BTreeSet;

use integration_tests::{Reply, swarm::Event, wait::LATER, when};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::{assert_problem, authority};
use crate::rig::{COORDINATE, Rig, agent, call, prompt, write};

fn id(event: &Event) -> Option<u64> {
    event.id.as_deref().map(|id| id.parse().expect("our cursors are numbers"))
}

/// Whether this is the last event of a task.
fn is_end(event: &Event) -> bool {
    event.data["kind"] == "task.finished"
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reconnects_gets_everything_once_while_events_flow() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("alpha")).tool("Agent", agent("beta")));
    for name in ["alpha", "beta"] {
        let mut replies: Vec<Reply> =
            (0..6).map(|n| call(write(&format!("{name}-{n}.txt"), "x\n")).chunk(3)).collect();
        replies.push(Reply::say("All six are written.").chunk(2));
        rig.model.agent(&prompt(name), replies);
    }
    let task = rig.submit().await;
    let path = format!("/sessions/{}/events", task.session);
    let mut cursors: Vec<u64> = Vec::new();
    let mut finished = false;
    while !finished {
        // A reader that is cut off after every third event it was given, live ones not counted.
        let last = cursors.last().map(ToString::to_string);
        let mut events = rig.api().events(&path, last.as_deref()).await;
        let mut taken = 0;
        while taken < 3 && !finished {
            let event =
                events.wait_for("an event of the journal", |event| id(event).map(|_| event.clone())).await;
            cursors.extend(id(&event));
            taken += 1;
            assert_eq!(event.data["seq"].as_u64(), id(&event), "{event:?}");
            assert_eq!(event.data["session_id"], task.session.as_str());
            finished = is_end(&event);
        }
    }
    let last = *cursors.last().expect("there were events");
    assert!(last > 30, "the run had few events: {last}");
    assert_eq!(cursors, (1..=last).collect::<Vec<_>>());

    // A cursor in the address does the same, for who cannot set a header.
    let mut events = rig.api().events(&format!("{path}?after={}", last - 2), None).await;
    assert_eq!(events.next().await.and_then(|event| id(&event)), Some(last - 1));
    let request = rig.api().request(reqwest::Method::GET, &path).header("last-event-id", "x");
    let answer = super::sent(request).await;
    super::assert_problem_in(answer, StatusCode::BAD_REQUEST, "bad_request").await;
    assert_problem(rig.api().try_get("/events?after=x").await, StatusCode::BAD_REQUEST, "bad_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn live_news_have_no_id_and_say_what_they_follow() {
    let rig = Rig::new().await;
    // Live news are for who listens: the first words wait for that.
    let words = Reply::new().gate("begin").text("Half of it").gate("half").text(" and the rest.");
    rig.model.agent(COORDINATE, [words]);
    let task = rig.submit().await;
    let path = format!("/sessions/{}/events", task.session);
    let mut events = rig.api().events(&path, None).await;
    rig.model.gate("begin").open();
    let live = events.wait_for("words while they stream", |event| {
        (event.data["kind"] == "live" && event.data.to_string().contains("Half of")).then(|| event.clone())
    });
    let live = live.await;
    assert_eq!((live.id.as_deref(), &live.data["seq"]), (None, &Value::Null));
    let after = live.data["after"].as_u64().expect("live news follow an event");
    assert!(events.seen().iter().any(|event| id(event) == Some(after)), "it follows what was sent: {after}");
    rig.model.gate("half").open();
    events.wait_for("the end", |event| is_end(event).then_some(())).await;
    // Who comes late gets the finished block as an event, not its deltas.
    let mut late = rig.api().events(&path, None).await;
    late.wait_for("the end", |event| is_end(event).then_some(())).await;
    assert!(late.seen().iter().all(|event| event.id.is_some()), "{:#?}", late.seen());
    let turn = late.seen().iter().find(|event| event.data["kind"] == "coordinator.turn");
    let turn = turn.expect("the turn is an event").data.to_string();
    assert!(turn.contains("Half of it") && turn.contains(" and the rest."), "{turn}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_carries_all_sessions() {
    let rig = Rig::new().await;
    rig.model.rule(when(), "Nothing to do.");
    let start = rig.api().get("/overview").await["position"].as_u64().expect("a position");
    let mut all = rig.api().events("/events", None).await;
    let first = rig.submit().await;
    let second = rig.submit().await;
    rig.done(&first).await;
    rig.done(&second).await;
    let mut ended = BTreeSet::new();
    all.wait_for("both ends", |event| {
        if is_end(event) {
            ended.insert(event.data["session_id"].as_str().map(str::to_owned));
        }
        (ended.len() == 2).then_some(())
    })
    .await;
    let positions: Vec<u64> = all.seen().iter().filter_map(id).collect();
    let last = *positions.last().expect("there were events");
    assert_eq!(positions, (start + 1..=last).collect::<Vec<_>>());
    for event in all.seen().iter().filter(|event| event.id.is_some()) {
        assert_eq!(event.data["position"].as_u64(), id(event));
    }
    let mut again = rig.api().events("/events", Some(&(start + 3).to_string())).await;
    again.wait_for("the last event", |event| (id(event) == Some(last)).then_some(())).await;
    let replayed: Vec<u64> = again.seen().iter().filter_map(id).collect();
    assert_eq!(replayed, (start + 4..=last).collect::<Vec<_>>());
}

/// A reader with a small window, which reads only when told to.
struct SlowReader {
    stream: TcpStream,
    read: Vec<u8>,
}

impl SlowReader {
    async fn open(rig: &Rig, path: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(2_048).expect("a small window");
        let address = authority(rig.api()).parse().expect("an address");
        let mut stream = socket.connect(address).await.expect("the server accepts");
        let token = std::fs::read_to_string(rig.home.path().join("token")).expect("a token");
        let request = format!(
            "GET /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n",
        );
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        Self { stream, read: Vec::new() }
    }

    async fn one_byte(&mut self) {
        self.read.push(self.stream.read_u8().await.expect("the stream is open"));
    }

    async fn until(&mut self, text: &str) {
        let mut buffer = [0; 16 * 1024];
        while !self.text().contains(text) {
            let read = self.stream.read(&mut buffer).await.expect("the stream is open");
            assert!(read > 0, "the stream ended before `{text}`");
            self.read.extend_from_slice(&buffer[..read]);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_50_a_slow_reader_harms_nobody_is_told_and_reads_on() {
    let rig = Rig::new().await;
    // More live news than any buffer between takes: no letter waits for the rest of its word.
    let flood: String = ('\u{4e00}'..).take(20_000).collect();
    rig.model.agent(COORDINATE, [Reply::new().gate("readers").text(flood.as_str()).chunk(1)]);
    let task = rig.submit().await;
    rig.model.gate("readers").reached().await;
    let path = format!("/sessions/{}/events", task.session);
    let mut slow = SlowReader::open(&rig, &path).await;
    let vanished = SlowReader::open(&rig, &path).await;
    let mut healthy = rig.api().events(&path, None).await;
    slow.one_byte().await;
    drop(vanished);
    rig.model.gate("readers").open();
    {
        let reading = healthy.wait_for("the end", |event| is_end(event).then_some(()));
        tokio::pin!(reading);
        // One byte now and then, as the slowest of terminals would.
        let mut beat = tokio::time::interval(std::time::Duration::from_millis(50));
        loop {
            tokio::select! {
                () = &mut reading => break,
                _ = beat.tick() => slow.one_byte().await,
            }
        }
    }
    assert_eq!(rig.task(&task).await["verdict"], "complete");
    // Its turn: everything of the journal is there for it, and it learns that live news were lost.
    tokio::time::timeout(LATER, slow.until("\"kind\":\"task.finished\"")).await.expect("it reads on");
    let text = slow.text();
    let ids: Vec<u64> =
        text.lines().filter_map(|line| line.strip_prefix("id: ")?.trim().parse().ok()).collect();
    let last = *ids.last().expect("events");
    assert_eq!(ids, (1..=last).collect::<Vec<_>>());
    let behind = text.split("event: behind\n").nth(1).expect("it is told that it was behind");
    let data = behind.lines().next().and_then(|line| line.strip_prefix("data: ")).expect("with data");
    let cursor: Value = serde_json::from_str(data).expect("which is JSON");
    assert!(cursor["cursor"].as_u64().is_some_and(|cursor| cursor <= last), "{cursor}");
    let live = healthy.seen().iter().filter(|event| event.id.is_none()).count();
    assert!(live > 100, "the healthy reader got {live} live events");
    let text: String = rig.task(&task).await["text"].as_str().expect("a final text").to_owned();
    assert_eq!(text, flood);
    // Nobody looks any more, and the server knows it.
    drop(slow);
    assert_eq!(rig.api().get("/sessions").await[0]["state"], json!("idle"));
}
