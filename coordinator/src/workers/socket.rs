//! The workers' unix socket: frames in, orders to sessions; frames out as their actor says.

use std::{path::Path, sync::Arc, time::Duration};

use swarm_protocol::{
    codec::{self, Decoder},
    event::{Event, EventLine},
    frame::{FromWorker, Live, OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, Pace, ToWorker},
    launch::CACHE_TTL,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    clock,
    journal::Journal as _,
    server::Shared,
    session::{HelloAnswer, HelloOrder, Order, SessionHandle},
};

/// Frames that wait for a worker. The actor never waits for a link: one that is this far behind is dropped
/// and catches up by its next hello.
pub(crate) const FRAME_QUEUE: usize = 1024;

/// How long a new connection may take to say who it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// A ping goes out this often, so that a worker notices a dead server.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Binds the socket, 0600, in place of one that a dead server left (the home's lock proves it dead).
pub(crate) fn bind(path: &Path) -> std::io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves links until shutdown.
pub(crate) async fn serve(shared: Arc<Shared>, listener: UnixListener) {
    let mut links = JoinSet::new();
    let mut number = 0_u64;
    loop {
        tokio::select! {
            () = shared.shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    number += 1;
                    links.spawn(link(Arc::clone(&shared), stream, number));
                }
                Err(error) => {
                    tracing::warn!(%error, "a worker could not connect");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            // Joined as they end; the set is dropped, and they with it, at shutdown.
            Some(_) = links.join_next(), if !links.is_empty() => {}
        }
    }
}

struct Link {
    stream: UnixStream,
    decoder: Decoder,
}

impl Link {
    /// The next frame; `None` at the end of the connection. Cancellation-safe: bytes read are in the decoder.
    async fn next(&mut self) -> Option<FromWorker> {
        let mut buffer = [0_u8; 16 * 1024];
        loop {
            match self.decoder.next_frame::<FromWorker>() {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a worker sent what is no frame");
                    return None;
                }
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
            }
        }
    }

    async fn send(&mut self, frame: &ToWorker) -> bool {
        match codec::encode(frame) {
            Ok(line) => self.stream.write_all(&line).await.is_ok(),
            Err(error) => {
                tracing::error!(%error, "a frame for a worker could not be written");
                false
            }
        }
    }
}

async fn link(shared: Arc<Shared>, stream: UnixStream, number: u64) {
    let mut link = Link { stream, decoder: Decoder::default() };
    let Ok(Some(hello)) = tokio::time::timeout(HELLO_PATIENCE, link.next()).await else { return };
    let FromWorker::Hello {
        oldest_version,
        newest_version,
        session_id,
        worker_id,
        run,
        token,
        last_record,
        process: _,
        needs_keys,
    } = hello
    else {
        return;
    };
    if oldest_version > PROTOCOL_VERSION || newest_version < OLDEST_PROTOCOL_VERSION {
        let reason = format!(
            "this server speaks versions {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}, the worker {oldest_version} to {newest_version}"
        );
        link.send(&ToWorker::Refused { reason }).await;
        return;
    }
    let Some(session) = shared.sessions.get(session_id) else {
        link.send(&ToWorker::Refused { reason: format!("no session {session_id}") }).await;
        return;
    };
    let version = newest_version.min(PROTOCOL_VERSION);
    let (frames, mut outgoing) = mpsc::channel(FRAME_QUEUE);
    let order = HelloOrder {
        worker_id: worker_id.clone(),
        run,
        token,
        last_record,
        needs_keys,
        frames,
        connection: number,
        version,
    };
    match session.ask(|reply| Order::Hello(order, reply)).await {
        Ok(HelloAnswer::Welcome { acknowledged, keys }) => {
            if !link.send(&ToWorker::Welcome { version, acknowledged, keys }).await {
                return;
            }
        }
        Ok(HelloAnswer::Refused(reason)) => {
            tracing::info!(worker.id = %worker_id, %reason, "a worker was refused");
            link.send(&ToWorker::Refused { reason }).await;
            return;
        }
        // The session is not served yet, or no longer, or cannot say: the worker tries again.
        Ok(HelloAnswer::NotNow) | Err(_) => return,
    }
    let mut ping = tokio::time::interval(PING_INTERVAL);
    loop {
        // A frame half read stays in the decoder when another branch wins.
        let alive = tokio::select! {
            frame = link.next() => match frame {
                Some(FromWorker::Pace { provider, pace }) => {
                    take_pace(&shared, number, &provider, &pace);
                    true
                }
                Some(frame) => take(&shared, &session, &worker_id, run, frame).await,
                None => false,
            },
            frame = outgoing.recv() => match frame {
                Some(frame) => link.send(&frame).await,
                // The actor dropped this link: a gap, or a later connection.
                None => false,
            },
            _ = ping.tick() => link.send(&ToWorker::Ping).await,
        };
        if !alive {
            break;
        }
    }
    shared.gates.leave(number);
    session.tell(Order::Disconnected { worker_id, connection: number }).await.ok();
}

fn take_pace(shared: &Shared, link: u64, provider: &str, pace: &Pace) {
    match *pace {
        Pace::Limited { retry_after_ms } => {
            shared.count_limit(provider);
            shared.gates.limited_there(link, provider, retry_after_ms.map(Duration::from_millis));
        }
        Pace::Began => shared.gates.began(link, CACHE_TTL),
        Pace::Asks { turn } => shared.gates.ask_there(link, provider, turn),
    }
}

async fn take(
    shared: &Shared,
    session: &SessionHandle,
    worker_id: &swarm_protocol::WorkerId,
    run: swarm_protocol::RunNumber,
    frame: FromWorker,
) -> bool {
    match frame {
        // Taken up before, or not now.
        FromWorker::Hello { .. } | FromWorker::Pace { .. } => false,
        FromWorker::Record { head, body } => {
            session.tell(Order::Record1 { worker_id: worker_id.clone(), run, head, body }).await.is_ok()
        }
        FromWorker::Live { live } => {
            shared.live.note(worker_id, &live);
            if let Live::CacheBreak { cause, .. } = &live {
                metrics::with_local_recorder(&shared.recorder, || {
                    metrics::counter!("swarm_cache_breaks_total", "cause" => cause.as_str()).increment(1);
                });
            }
            if let Live::Waiting { waiting_for, cause, .. } = &live {
                let order = Order::WorkerWaits {
                    worker_id: worker_id.clone(),
                    waiting_for: *waiting_for,
                    cause: cause.clone(),
                };
                if session.tell(order).await.is_err() {
                    return false;
                }
            }
            shared.journal.publish_live(EventLine {
                seq: None,
                at: clock::now(),
                session_id: Some(session.id),
                position: None,
                event: Event::Live {
                    worker_id: Some(worker_id.clone()),
                    after: shared.live.seq(session.id),
                    live,
                },
            });
            true
        }
    }
}
