use std::{
    sync::Mutex,
    time::{Duration, Instant as StdInstant},
};

use agent_host::transcript::TranscriptFile;
use query_engine::ports::{Durability, Observer as _};
use swarm_protocol::{
    Message, Timestamp,
    frame::Live,
    record::{Origin, RecordBody},
};
use tokio::net::{UnixListener, UnixStream};

use super::*;
use crate::record::Recorder;

/// A server played by hand.
struct Server {
    listener: UnixListener,
}

struct Connection {
    stream: UnixStream,
    decoder: Decoder,
}

impl Server {
    fn bind(path: &Path) -> Self {
        Self { listener: UnixListener::bind(path).unwrap() }
    }

    /// Accepts, reads the greeting, and welcomes with this mark.
    async fn welcome(&self, acknowledged: Option<RecordMark>) -> (Connection, Option<RecordMark>) {
        let mut connection = self.accept().await;
        let Some(FromWorker::Hello { last_record, token, .. }) = connection.next().await else { panic!() };
        assert_eq!(token, "secret");
        let keys = Some(Keys { model: Some("key".to_owned()), ..Keys::default() });
        connection.send(&ToWorker::Welcome { version: 1, acknowledged, keys }).await;
        (connection, last_record)
    }

    async fn accept(&self) -> Connection {
        let accepted = tokio::time::timeout(Duration::from_secs(20), self.listener.accept()).await;
        Connection { stream: accepted.unwrap().unwrap().0, decoder: Decoder::default() }
    }
}

impl Connection {
    async fn send(&mut self, frame: &ToWorker) {
        self.stream.write_all(&encode(frame).unwrap()).await.unwrap();
    }

    async fn next(&mut self) -> Option<FromWorker> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let mut bytes = Vec::with_capacity(4096);
            let read = tokio::time::timeout(Duration::from_secs(20), self.stream.read_buf(&mut bytes)).await;
            if read.unwrap().unwrap_or(0) == 0 {
                return None;
            }
            self.decoder.push(&bytes);
        }
    }

    /// The numbers of the next records.
    async fn records(&mut self, count: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            if let Some(FromWorker::Record { head, .. }) = self.next().await {
                numbers.push(head.n);
            }
        }
        numbers
    }
}

struct Rig {
    dir: tempfile::TempDir,
    recorder: Arc<Recorder>,
    outbox: Arc<Outbox>,
}

fn note(text: &str) -> RecordBody {
    RecordBody::Tombstone { note: text.to_owned() }
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, loaded) = TranscriptFile::open_after_checkpoint(&dir.path().join("t.jsonl")).unwrap();
        let outbox = Arc::new(Outbox::default());
        let recorder = Arc::new(Recorder::new(file, RunNumber(1), outbox.clone(), &loaded));
        Self { dir, recorder, outbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn write(&self, count: usize) {
        for n in 0..count {
            self.recorder.write(vec![note(&n.to_string())], Durability::Soon).await.unwrap();
        }
    }

    fn start(&self) -> (Link, mpsc::Receiver<(CommandId, Command)>) {
        let config = LinkConfig {
            session_id: SessionId(uuid::Uuid::nil()),
            worker_id: "agent-a1b".parse().unwrap(),
            run: RunNumber(1),
            token: "secret".to_owned(),
            process: ProcessIdentity { pid: 1, start_time: 1, boot_id: "b".to_owned() },
            socket: self.path("s"),
            server_file: self.path("server.json"),
            transcript: self.path("t.jsonl"),
        };
        let taken = self.recorder.clone();
        Link::start(config, self.outbox.clone(), move |id| taken.has_taken(id))
    }
}

#[tokio::test]
async fn records_are_sent_again_until_they_are_acknowledged() {
    let rig = Rig::new();
    rig.write(3).await;
    let server = Server::bind(&rig.path("s"));
    let (mut link, _commands) = rig.start();
    let (mut connection, last) = server.welcome(None).await;
    assert_eq!(last.unwrap().n, 3);
    assert_eq!(link.keys().await.unwrap().model.as_deref(), Some("key"));
    assert_eq!(connection.records(3).await, [1, 2, 3]);
    connection.send(&ToWorker::Acknowledged { n: 2 }).await;
    rig.outbox.acknowledged(2).await;
    // The acknowledgement of 3 is lost with the connection.
    drop(connection);
    rig.write(2).await;
    let page = read_page(&rig.path("t.jsonl"), 1, 1).unwrap();
    let mark = RecordMark { n: 2, uuid: page.records[0].record.uuid };
    let (mut connection, _) = server.welcome(Some(mark)).await;
    assert_eq!(connection.records(3).await, [3, 4, 5]);
    rig.write(1).await;
    assert_eq!(connection.records(1).await, [6]);
    connection.send(&ToWorker::Acknowledged { n: 6 }).await;
    rig.outbox.acknowledged(6).await;
    drop(connection);
    // A server that knows another record of that number gets everything.
    let stranger = RecordMark { n: 4, uuid: uuid::Uuid::nil() };
    let (mut connection, _) = server.welcome(Some(stranger)).await;
    assert_eq!(connection.records(6).await, [1, 2, 3, 4, 5, 6]);
    drop(connection);
    // One that has more than this transcript has lost nothing.
    let (mut connection, _) = server.welcome(Some(RecordMark { n: 9, uuid: uuid::Uuid::nil() })).await;
    rig.write(1).await;
    assert_eq!(connection.records(1).await, [7]);
}

#[tokio::test]
async fn more_records_than_memory_holds_come_from_the_transcript() {
    let rig = Rig::new();
    rig.write(1_500).await;
    let server = Server::bind(&rig.path("s"));
    let (_link, _commands) = rig.start();
    let (mut connection, _) = server.welcome(None).await;
    let numbers = connection.records(1_500).await;
    assert_eq!(numbers, (1..=1_500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_command_reaches_the_run_once() {
    let rig = Rig::new();
    let server = Server::bind(&rig.path("s"));
    let (_link, mut commands) = rig.start();
    let (mut connection, _) = server.welcome(None).await;
    let command = |n| ToWorker::Command { id: swarm_protocol::Seq(n), command: Command::Interrupt };
    connection.send(&command(7)).await;
    connection.send(&command(7)).await;
    connection.send(&ToWorker::Ping).await;
    connection.stream.write_all(b"{\"frame\":\"of the future\"}\n").await.unwrap();
    connection.send(&command(8)).await;
    assert_eq!(commands.recv().await.unwrap().0.0, 7);
    assert_eq!(commands.recv().await.unwrap().0.0, 8);
    // A message is taken by the record of the user message that carries it.
    let message = RecordBody::User {
        message: Message::user_text("x"),
        origin: Origin::Coordinator,
        commands: vec![swarm_protocol::Seq(9)],
    };
    rig.recorder.write(vec![message], Durability::Soon).await.unwrap();
    drop(connection);
    let (mut connection, _) = server.welcome(None).await;
    for n in [7, 8, 9, 10] {
        connection.send(&command(n)).await;
    }
    assert_eq!(commands.recv().await.unwrap().0.0, 10);
}

#[tokio::test]
async fn a_server_that_moved_is_found_and_one_that_refuses_is_obeyed() {
    let rig = Rig::new();
    let (mut link, _commands) = rig.start();
    let moved = rig.path("elsewhere");
    let server = Server::bind(&moved);
    std::fs::write(rig.path("server.json"), serde_json::json!({"socket": moved}).to_string()).unwrap();
    let mut connection = server.accept().await;
    assert!(matches!(connection.next().await, Some(FromWorker::Hello { .. })));
    connection.send(&ToWorker::Refused { reason: "another run".to_owned() }).await;
    assert_eq!(link.keys().await.unwrap_err(), "another run");
}

#[tokio::test]
async fn live_news_are_bounded_and_do_not_outlive_a_connection() {
    let rig = Rig::new();
    let server = Server::bind(&rig.path("s"));
    let delta = |text: &str| Live::TextDelta { text: text.to_owned(), thinking: false };
    rig.outbox.live(delta("before any connection "));
    let (_link, _commands) = rig.start();
    let (mut connection, _) = server.welcome(None).await;
    let begun = StdInstant::now();
    while rig.outbox.take_live().is_empty() && begun.elapsed() < Duration::from_secs(20) {
        // Connected a moment after the welcome.
        rig.outbox.live(delta("x "));
        tokio::task::yield_now().await;
    }
    let seen = Mutex::new(0);
    rig.outbox.live(delta("a "));
    rig.outbox.live(delta("b "));
    loop {
        let Some(FromWorker::Live { live: Live::TextDelta { text, .. } }) = connection.next().await else {
            panic!()
        };
        *seen.lock().unwrap() += 1;
        assert_ne!(text, "before any connection ");
        if text.ends_with("a b ") {
            break;
        }
    }
    assert_eq!(Timestamp::from_millis(0).as_millis(), 0);
}
