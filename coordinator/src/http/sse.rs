//! Event streams (spec 8.2). Journal events carry their cursor as `id`; live ones none. Who reconnects with
//! `Last-Event-ID` gets everything after it, without gap or repeat. A slow reader slows nobody: when it falls
//! behind the fan-out it reads on from the journal by its own cursor, and is told that live news were lost.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        Sse,
        sse::{Event as Frame, KeepAlive},
    },
};
use futures::Stream;
use serde::Deserialize;
use swarm_protocol::{Seq, SessionId, api::Problem, event::EventLine};
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    json::{Asked, Id},
    problem::Fault,
};
use crate::{journal::Journal as _, server::Shared};

/// Events read from the journal at once.
const PAGE: usize = 500;

/// A beat this often; readers give up after two.
const BEAT: Duration = Duration::from_secs(15);

/// Where a stream begins.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct From {
    /// After this cursor; without it, and without `Last-Event-ID`, from the beginning (a session) or from now
    /// (all sessions).
    after: Option<u64>,
    /// The same by another name, for cursors of `GET /overview`.
    from: Option<u64>,
}

/// What a stream follows.
#[derive(Clone, Copy)]
enum Scope {
    Session(SessionId),
    All,
}

impl Scope {
    fn cursor(self, line: &EventLine) -> Option<u64> {
        match self {
            Self::Session(_) => line.seq.map(|seq| seq.0),
            Self::All => line.position,
        }
    }

    fn wants(self, line: &EventLine) -> bool {
        match self {
            Self::Session(id) => line.session_id == Some(id),
            Self::All => true,
        }
    }
}

/// Counts an open stream: somebody looks, the server stays.
struct Looking(Arc<Shared>);

impl Looking {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.clients.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Feed {
    looking: Looking,
    scope: Scope,
    /// The last cursor that was sent.
    sent: u64,
    lines: broadcast::Receiver<Arc<EventLine>>,
    /// Read from the journal and not yet sent.
    ready: VecDeque<Arc<EventLine>>,
    /// Whether the journal holds more than what was read.
    catching_up: bool,
    /// Live news were lost since the last frame.
    lost: bool,
    /// Lines in the fan-out that are older than what was read from the journal: their live news are stale.
    stale: usize,
}

impl Feed {
    /// The next frame; `None` ends the stream.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if std::mem::take(&mut self.lost) {
                return Some(Frame::default().event("behind").data(format!("{{\"cursor\":{}}}", self.sent)));
            }
            if let Some(line) = self.ready.pop_front() {
                match self.frame(&line) {
                    Some(frame) => return Some(frame),
                    None => continue,
                }
            }
            if self.catching_up {
                self.read_on().await?;
                continue;
            }
            let shutdown = self.looking.0.shutdown.clone();
            // Nothing is lost when shutdown wins: the stream ends.
            let received = tokio::select! {
                () = shutdown.cancelled() => return None,
                received = self.lines.recv() => received,
            };
            let stale = self.stale > 0;
            self.stale = self.stale.saturating_sub(1);
            match received {
                // A delta of a block that the journal has given whole already.
                Ok(line) if stale && line.event.is_live() => {}
                Ok(line) if self.scope.wants(&line) => {
                    if let Some(frame) = self.frame(&line) {
                        return Some(frame);
                    }
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => {
                    self.catching_up = true;
                    self.lost = true;
                    self.stale = 0;
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    async fn read_on(&mut self) -> Option<()> {
        let journal = &self.looking.0.journal;
        let read = match self.scope {
            Scope::Session(id) => journal.read(id, Seq(self.sent), PAGE).await,
            Scope::All => journal.read_all(self.sent, PAGE).await,
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "a stream could not read the journal");
                return None;
            }
        };
        if read.last == 0 {
            self.catching_up = false;
            self.stale = self.lines.len();
            return Some(());
        }
        if read.lines.is_empty() {
            // Rows of kinds this build does not know: passed over, their cursor is taken.
            self.sent = read.last;
        }
        self.ready.extend(read.lines.into_iter().map(Arc::new));
        Some(())
    }

    /// The frame of a line; none for one that was sent already.
    fn frame(&mut self, line: &EventLine) -> Option<Frame> {
        let cursor = self.scope.cursor(line);
        if cursor.is_some_and(|cursor| cursor <= self.sent) {
            return None;
        }
        let frame = match line.to_json() {
            Ok(json) => Frame::default().data(self.looking.0.masker.mask_json(&json.to_string())),
            Err(error) => {
                // The stream lives on; the reader learns that something was not shown.
                tracing::error!(%error, "an event could not be written as JSON");
                let event = serde_json::json!({
                    "v": 1, "seq": line.seq, "at": line.at, "session_id": line.session_id, "kind": "error",
                    "code": "unwritable_event", "message": "an event could not be shown; swarm doctor",
                });
                Frame::default().data(event.to_string())
            }
        };
        match cursor {
            Some(cursor) => {
                self.sent = cursor;
                Some(frame.id(cursor.to_string()))
            }
            None => Some(frame),
        }
    }
}

fn stream(
    shared: &Arc<Shared>,
    scope: Scope,
    after: u64,
    lines: broadcast::Receiver<Arc<EventLine>>,
) -> Sse<impl Stream<Item = Result<Frame, Infallible>> + use<>> {
    let feed = Feed {
        looking: Looking::new(shared),
        scope,
        sent: after,
        lines,
        ready: VecDeque::new(),
        catching_up: true,
        lost: false,
        stale: 0,
    };
    let frames = futures::stream::unfold(feed, |mut feed| async move {
        let frame = feed.next().await?;
        Some((Ok(frame), feed))
    });
    Sse::new(frames).keep_alive(KeepAlive::new().interval(BEAT).text("beat"))
}

fn cursor(headers: &HeaderMap, from: &From) -> Result<Option<u64>, Fault> {
    let given = match headers.get("last-event-id") {
        Some(value) => {
            let text = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
            Some(text.ok_or_else(|| Fault::bad_request("Last-Event-ID is none of this stream's cursors"))?)
        }
        None => from.after.or(from.from),
    };
    Ok(given)
}

/// A cursor that is ahead of the stream is of another one, or of a journal that was put back: following it would
/// pass over events in silence.
fn not_ahead(after: u64, last: u64) -> Result<u64, Fault> {
    if after <= last {
        return Ok(after);
    }
    let fault = Fault::new(
        StatusCode::GONE,
        "unknown_cursor",
        format!("this stream stands at {last}, not at {after}"),
    );
    Err(fault.hint("take a new snapshot and follow from its cursor"))
}

/// Events of one session.
#[utoipa::path(get, path = "/sessions/{id}/events", params(("id" = String, Path), From),
    responses((status = 200, content_type = "text/event-stream"), (status = 404, body = Problem)))]
pub(super) async fn session_events(
    State(shared): State<Arc<Shared>>,
    Id(id): Id<SessionId>,
    Asked(from): Asked<From>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Frame, Infallible>>>, Fault> {
    let unknown = || Fault::unknown_id("session", &id.to_string());
    let handle = shared.sessions.get(id);
    // Subscribed before the journal is read: nothing falls between.
    let lines = shared.journal.subscribe();
    let after = cursor(&headers, &from)?.unwrap_or(0);
    let last = match handle {
        Some(handle) => handle.read(|model| model.seq.0).await?,
        // What can be read of it is shown, and a marker for what cannot.
        None => shared.sessions.damaged_one(id).ok_or_else(unknown)?.last.0,
    };
    let after = not_ahead(after, last)?;
    Ok(stream(&shared, Scope::Session(id), after, lines))
}

/// Events of all sessions.
#[utoipa::path(get, path = "/events", params(From),
    responses((status = 200, content_type = "text/event-stream")))]
pub(super) async fn all_events(
    State(shared): State<Arc<Shared>>,
    Asked(from): Asked<From>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Frame, Infallible>>>, Fault> {
    let lines = shared.journal.subscribe();
    let after = match cursor(&headers, &from)? {
        Some(after) => not_ahead(after, shared.journal.position().await?)?,
        None => shared.journal.position().await?,
    };
    Ok(stream(&shared, Scope::All, after, lines))
}
