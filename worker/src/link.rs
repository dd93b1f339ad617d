//! The connection to the server: one at a time, made again for ever while the run lasts. The transcript is
//! the outbox; nothing that matters is lost with a connection.
//!
//! ```text
//! away -> connecting -> greeting (Hello, Welcome) -> connected -> away ...
//!                          \-> refused (the end of this process)
//! ```

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent_host::transcript::read_page;
use swarm_protocol::{
    CommandId, PermissionRequestId, RunNumber, SessionId, WorkerId,
    codec::{Decoder, encode},
    frame::{Command, FromWorker, Keys, OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, RecordMark, ToWorker},
    process::ProcessIdentity,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{broadcast, mpsc, watch},
    time::Instant,
};

mod outbox;

use outbox::Next;
pub use outbox::Outbox;

use crate::pacing::Gates;

/// Pauses between two tries to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long the server may take to greet, and to take what is written.
const PATIENCE: Duration = Duration::from_secs(30);
/// A server that pings and then says nothing for so long is taken for gone.
const SILENCE: Duration = Duration::from_secs(90);
/// Records in one write.
const BATCH: usize = 64;
/// Commands that wait for the run; a person cannot give them faster than they are taken.
const COMMANDS: usize = 64;

/// Who connects, and where to.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The session.
    pub session_id: SessionId,
    /// The worker.
    pub worker_id: WorkerId,
    /// The run.
    pub run: RunNumber,
    /// The run's secret.
    pub token: String,
    /// This process.
    pub process: ProcessIdentity,
    /// The server's socket at launch.
    pub socket: PathBuf,
    /// Says where it is now.
    pub server_file: PathBuf,
    /// Where older records are read from.
    pub transcript: PathBuf,
}

/// Where the connection stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// No server.
    #[default]
    Away,
    /// Records flow.
    Connected,
    /// The server will not have this process.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Permission requests that the server could not journal, each with the reason.
pub type NotTaken = broadcast::Sender<(PermissionRequestId, String)>;

/// Words of [`NotTaken`] that wait for a gate; one that misses some waits for the repeat of its request.
const NOT_TAKEN: usize = 64;

/// The run's view of the connection.
pub struct Link {
    /// What is sent.
    pub outbox: Arc<Outbox>,
    /// Where it stands.
    pub state: watch::Receiver<LinkState>,
    /// The keys, once the server gave them.
    pub keys: watch::Receiver<Option<Keys>>,
    /// What it tells of limits that others met.
    pub gates: Arc<Gates>,
    /// What it tells of permission requests that nobody will answer.
    pub not_taken: NotTaken,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Starts connecting. `has_taken` says which commands stand in the transcript already; the others come
    /// through the receiver, each id once in this process.
    pub fn start(
        config: LinkConfig,
        outbox: Arc<Outbox>,
        has_taken: impl Fn(CommandId) -> bool + Send + Sync + 'static,
    ) -> (Self, mpsc::Receiver<(CommandId, Command)>) {
        let (state_sender, state) = watch::channel(LinkState::Away);
        let (keys_sender, keys) = watch::channel(None);
        let (commands_sender, commands) = mpsc::channel(COMMANDS);
        let gates = Arc::<Gates>::default();
        let (not_taken, _) = broadcast::channel(NOT_TAKEN);
        let connector = Connector {
            socket: config.socket.clone(),
            config,
            outbox: outbox.clone(),
            state: state_sender,
            keys: keys_sender,
            commands: commands_sender,
            gates: gates.clone(),
            not_taken: not_taken.clone(),
            has_taken: Box::new(has_taken),
            delivered: HashSet::new(),
        };
        (Self { outbox, state, keys, gates, not_taken, task: tokio::spawn(connector.run()) }, commands)
    }

    /// Waits until there are keys, or the server refuses this process.
    ///
    /// # Errors
    /// The server's reason.
    pub async fn keys(&mut self) -> Result<Keys, String> {
        loop {
            if let Some(keys) = self.keys.borrow_and_update().clone() {
                return Ok(keys);
            }
            if let LinkState::Refused { reason } = &*self.state.borrow_and_update() {
                return Err(reason.clone());
            }
            // Whichever changes, both are looked at again.
            tokio::select! {
                _ = self.keys.changed() => {}
                _ = self.state.changed() => {}
            }
        }
    }
}

struct Connector {
    config: LinkConfig,
    socket: PathBuf,
    outbox: Arc<Outbox>,
    state: watch::Sender<LinkState>,
    keys: watch::Sender<Option<Keys>>,
    commands: mpsc::Sender<(CommandId, Command)>,
    gates: Arc<Gates>,
    not_taken: NotTaken,
    has_taken: Box<dyn Fn(CommandId) -> bool + Send + Sync>,
    /// Given to the run by this process, recorded or about to be.
    delivered: HashSet<CommandId>,
}

enum Ended {
    /// Try again.
    Lost(io::Error),
    Refused(String),
}

impl Connector {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            match self.connection().await {
                Ended::Refused(reason) => {
                    tracing::warn!(reason, "the server refused this process");
                    self.state.send_replace(LinkState::Refused { reason });
                    return;
                }
                Ended::Lost(error) => tracing::debug!(%error, "no connection to the server"),
            }
            self.outbox.set_connected(None);
            self.gates.forget();
            // A try that fails is no news.
            self.state.send_if_modified(|state| std::mem::replace(state, LinkState::Away) != LinkState::Away);
            if began.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.socket = self.moved_socket().await.unwrap_or_else(|| self.config.socket.clone());
        }
    }

    /// What the server's file says, if the socket we knew does not answer.
    async fn moved_socket(&self) -> Option<PathBuf> {
        let text = tokio::fs::read_to_string(&self.config.server_file).await.ok()?;
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        // Only this one field is read: the file may be of another version.
        let path = PathBuf::from(value.get("socket")?.as_str()?);
        path.is_absolute().then_some(path)
    }

    async fn connection(&mut self) -> Ended {
        let greeted = tokio::time::timeout(PATIENCE, self.greet()).await;
        let (reader, writer, decoder, sent, version) = match greeted {
            Ok(Ok(connection)) => connection,
            Ok(Err(ended)) => return ended,
            Err(_) => return Ended::Lost(io::ErrorKind::TimedOut.into()),
        };
        self.outbox.set_connected(Some(version));
        self.state.send_replace(LinkState::Connected);
        let outbox = self.outbox.clone();
        let transcript = self.config.transcript.clone();
        // Both sides end with the first of them; records that were on their way are sent again.
        tokio::select! {
            ended = self.read(reader, decoder) => ended,
            error = write(writer, &outbox, &transcript, sent) => Ended::Lost(error),
        }
    }

    async fn greet(&self) -> Result<(OwnedReadHalf, OwnedWriteHalf, Decoder, u64, u32), Ended> {
        let stream = UnixStream::connect(&self.socket).await.map_err(Ended::Lost)?;
        let (mut reader, mut writer) = stream.into_split();
        let config = &self.config;
        // What is written after this the server cannot have.
        let last_record = self.outbox.last();
        let hello = FromWorker::Hello {
            oldest_version: OLDEST_PROTOCOL_VERSION,
            newest_version: PROTOCOL_VERSION,
            session_id: config.session_id,
            worker_id: config.worker_id.clone(),
            run: config.run,
            token: config.token.clone(),
            last_record,
            process: config.process.clone(),
            needs_keys: self.keys.borrow().is_none(),
        };
        let lost = |error| Ended::Lost(io::Error::other(error));
        writer.write_all(&encode(&hello).map_err(lost)?).await.map_err(Ended::Lost)?;
        let mut decoder = Decoder::default();
        loop {
            match decoder.next_frame::<ToWorker>().map_err(lost)? {
                Some(ToWorker::Welcome { version, acknowledged, keys }) => {
                    if !(OLDEST_PROTOCOL_VERSION..=PROTOCOL_VERSION).contains(&version) {
                        return Err(Ended::Refused(format!("the server speaks version {version} only")));
                    }
                    self.take_keys(keys);
                    let sent = self.known_to(acknowledged, last_record).await;
                    self.outbox.acknowledge(sent);
                    return Ok((reader, writer, decoder, sent, version));
                }
                Some(ToWorker::Refused { reason }) => return Err(Ended::Refused(reason)),
                Some(_) => {}
                None => {
                    let mut bytes = Vec::with_capacity(4096);
                    if reader.read_buf(&mut bytes).await.map_err(Ended::Lost)? == 0 {
                        return Err(Ended::Lost(io::ErrorKind::UnexpectedEof.into()));
                    }
                    decoder.push(&bytes);
                }
            }
        }
    }

    /// The number up to which the server has this transcript.
    async fn known_to(&self, mark: Option<RecordMark>, last: Option<RecordMark>) -> u64 {
        let (Some(mark), Some(last)) = (mark, last) else { return 0 };
        if mark == last {
            return mark.n;
        }
        if mark.n > last.n {
            // We lost records to a power failure; the server has seen so in our greeting.
            return last.n;
        }
        let transcript = self.config.transcript.clone();
        let page = tokio::task::spawn_blocking(move || read_page(&transcript, mark.n - 1, 1)).await;
        let same = page
            .ok()
            .and_then(Result::ok)
            .is_some_and(|page| page.records.first().is_some_and(|stored| stored.record.uuid == mark.uuid));
        if same {
            mark.n
        } else {
            tracing::warn!(n = mark.n, "the server knows another record of this number; all are sent again");
            0
        }
    }

    async fn read(&mut self, mut reader: OwnedReadHalf, mut decoder: Decoder) -> Ended {
        let mut pings = false;
        let mut bytes = Vec::with_capacity(64 * 1024);
        loop {
            loop {
                match decoder.next_frame::<ToWorker>() {
                    Ok(Some(ToWorker::Ping)) => pings = true,
                    Ok(Some(frame)) => {
                        if let Some(ended) = self.take(frame).await {
                            return ended;
                        }
                    }
                    Ok(None) => break,
                    Err(error @ swarm_protocol::codec::CodecError::TooLong) => {
                        return Ended::Lost(io::Error::other(error));
                    }
                    // Of a newer server: what this version does not know it cannot obey.
                    Err(error) => tracing::warn!(%error, "a frame was skipped"),
                }
            }
            bytes.clear();
            let read = reader.read_buf(&mut bytes);
            let read = if pings { tokio::time::timeout(SILENCE, read).await } else { Ok(read.await) };
            match read {
                Ok(Ok(0)) => return Ended::Lost(io::ErrorKind::UnexpectedEof.into()),
                Ok(Ok(_)) => decoder.push(&bytes),
                Ok(Err(error)) => return Ended::Lost(error),
                Err(_) => return Ended::Lost(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    async fn take(&mut self, frame: ToWorker) -> Option<Ended> {
        match frame {
            ToWorker::Acknowledged { n } => self.outbox.acknowledge(n),
            ToWorker::Command { id, command } => {
                if !(self.has_taken)(id) && self.delivered.insert(id) {
                    // A run that ends drops its side; the command then goes to the next run.
                    let _ended = self.commands.send((id, command)).await;
                }
            }
            ToWorker::Refused { reason } => return Some(Ended::Refused(reason)),
            ToWorker::Welcome { keys, .. } => self.take_keys(keys),
            ToWorker::Keys { keys } => self.take_keys(Some(keys)),
            ToWorker::Pace { provider, order } => self.gates.take(&provider, &order),
            // Who waits for it is told at once; one who looked away takes the repeat.
            ToWorker::PermissionNotTaken { id, reason } => drop(self.not_taken.send((id, reason))),
            ToWorker::Ping => {}
        }
        None
    }

    /// A server that has none yet takes none away.
    fn take_keys(&self, keys: Option<Keys>) {
        if let Some(keys) = keys {
            self.keys.send_replace(Some(keys));
        }
    }
}

/// Sends records after `sent`, then live news, as they come. Ends only by an error.
async fn write(mut writer: OwnedWriteHalf, outbox: &Outbox, transcript: &Path, mut sent: u64) -> io::Error {
    loop {
        let mut bytes = Vec::new();
        let add = |bytes: &mut Vec<u8>, frame: &FromWorker| match encode(frame) {
            Ok(line) => bytes.extend(line),
            // A record this large can only be an end record with a huge result; its file has it whole.
            Err(error) => tracing::error!(%error, "a frame was not sent"),
        };
        // A call waits for their answer.
        outbox.take_pace().iter().for_each(|frame| add(&mut bytes, frame));
        match outbox.next_records(sent, BATCH) {
            Next::Frames(frames, up_to) => {
                frames.iter().for_each(|frame| add(&mut bytes, frame));
                sent = up_to;
            }
            Next::OnDisk(after) => {
                let path = transcript.to_owned();
                let page = tokio::task::spawn_blocking(move || read_page(&path, after, BATCH)).await;
                match page {
                    Ok(Ok(page)) => {
                        page.records.iter().for_each(|stored| add(&mut bytes, &outbox.frame(stored)));
                        // What the file lacks was lost or is unknown to this version: go past it.
                        sent = page.records.last().map_or_else(
                            || outbox.last().map_or(after, |last| last.n),
                            |stored| stored.record.n,
                        );
                    }
                    Ok(Err(error)) => return error,
                    Err(error) => return io::Error::other(error),
                }
            }
            Next::Nothing => {
                for live in outbox.take_live() {
                    add(&mut bytes, &FromWorker::Live { live });
                }
                if bytes.is_empty() {
                    outbox.news.notified().await;
                    continue;
                }
            }
        }
        match tokio::time::timeout(PATIENCE, writer.write_all(&bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            Err(_) => return io::ErrorKind::TimedOut.into(),
        }
    }
}

#[cfg(test)]
mod tests;
