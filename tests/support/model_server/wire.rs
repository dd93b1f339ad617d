//! Steps of a rendered reply to bytes on the socket, with the faults the script asks for.

use std::{io, pin::pin, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    gate::Gates,
    listener::Connection,
    record::{Api, Outcome},
    reply::{Cut, How, Reply, Wire},
};

/// The HTTP layer needs a moment to push out what it was given before it learns that the body failed.
const FLUSH_TIME: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// One SSE event.
    Event {
        name: Option<String>,
        data: String,
    },
    Comment(String),
    Raw(Bytes),
    Gate(String),
    Delay(Duration),
    Ping,
    End(How),
}

impl Step {
    pub(crate) fn event(name: &str, data: impl ToString) -> Self {
        Self::Event { name: Some(name.to_owned()), data: data.to_string() }
    }

    pub(crate) fn data(data: impl ToString) -> Self {
        Self::Event { name: None, data: data.to_string() }
    }
}

pub(crate) type Sender = mpsc::Sender<io::Result<Bytes>>;

/// What a reply needs of its surroundings while it is sent.
pub(crate) struct Delivery<'a> {
    pub(crate) api: Api,
    pub(crate) gates: &'a Gates,
    pub(crate) connection: &'a Connection,
    pub(crate) body: &'a Sender,
}

/// How the sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// The body is to fail now, for the connection to be closed. Left to the caller, who first makes the outcome
    /// known: the client may be back with its next request at once.
    pub(crate) must_break: bool,
}

/// Sends the steps; returns when all is sent, cut, or given up by the client.
pub(crate) async fn deliver(steps: Vec<Step>, reply: &Reply, delivery: Delivery<'_>) -> Ended {
    let mut writer = Writer { reply, delivery, events: 0, bytes: 0 };
    match writer.run(steps).await {
        Ok(()) => Ended { outcome: Outcome::Delivered, must_break: false },
        Err(ended) => ended,
    }
}

/// Fails the body.
pub(crate) async fn break_off(body: &Sender) {
    let cut = io::Error::other("the script cuts the reply here");
    let _gone_is_as_good = body.send(Err(cut)).await;
}

const GONE: Ended = Ended { outcome: Outcome::ClientGone, must_break: false };

struct Writer<'a> {
    reply: &'a Reply,
    delivery: Delivery<'a>,
    events: usize,
    bytes: usize,
}

impl Writer<'_> {
    async fn run(&mut self, steps: Vec<Step>) -> Result<(), Ended> {
        let cut = self.reply.cut.clone().unwrap_or_default();
        for step in steps {
            match step {
                Step::Gate(name) => {
                    let gate = self.delivery.gates.get(&name);
                    self.wait(gate.pass()).await?;
                }
                Step::Delay(time) => self.wait(tokio::time::sleep(time)).await?,
                Step::End(how) => return Err(self.end(how).await),
                Step::Comment(_) | Step::Raw(_) => {
                    self.write(encode(&step, &self.reply.wire), &cut).await?;
                }
                Step::Event { .. } | Step::Ping => {
                    if cut.after_event == Some(self.events) {
                        return Err(self.end(cut.how).await);
                    }
                    if self.reply.delay_ms > 0 {
                        let time = Duration::from_millis(self.reply.delay_ms);
                        self.wait(tokio::time::sleep(time)).await?;
                    }
                    self.events += 1;
                    let step = if step == Step::Ping { ping(self.delivery.api) } else { step };
                    self.write(encode(&step, &self.reply.wire), &cut).await?;
                }
            }
        }
        if cut.after_event == Some(self.events) {
            return Err(self.end(cut.how).await);
        }
        Ok(())
    }

    async fn write(&mut self, mut bytes: Bytes, cut: &Cut) -> Result<(), Ended> {
        let room = cut.at_byte.map(|at| at.saturating_sub(self.bytes));
        let ends = room.is_some_and(|room| room <= bytes.len());
        bytes.truncate(room.unwrap_or(usize::MAX));
        self.bytes += bytes.len();
        let piece = self.reply.wire.split.unwrap_or(usize::MAX).max(1);
        while !bytes.is_empty() {
            let next = bytes.split_to(piece.min(bytes.len()));
            self.send(next).await?;
        }
        if ends {
            return Err(self.end(cut.how).await);
        }
        Ok(())
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        let sent = self.delivery.body.send(Ok(bytes)).await;
        sent.map_err(|_| GONE)
    }

    /// Waits, pings meanwhile if asked to, and notices that the client has gone.
    async fn wait(&mut self, what: impl Future<Output = ()>) -> Result<(), Ended> {
        let mut what = pin!(what);
        let every = self.reply.ping_every_ms.map(Duration::from_millis);
        loop {
            let tick = async {
                match every {
                    Some(every) => tokio::time::sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            // Nothing is lost when a branch does not win: `what` is kept, a tick carries no state.
            tokio::select! {
                () = &mut what => return Ok(()),
                () = self.delivery.body.closed() => return Err(GONE),
                () = tick => {
                    let ping = encode(&ping(self.delivery.api), &self.reply.wire);
                    self.send(ping).await?;
                }
            }
        }
    }

    async fn end(&mut self, how: How) -> Ended {
        let cut = Ended { outcome: Outcome::Cut, must_break: false };
        match how {
            How::Eof => cut,
            How::Fin | How::Reset => {
                tokio::time::sleep(FLUSH_TIME).await;
                if how == How::Reset {
                    self.delivery.connection.end_with_reset();
                }
                Ended { must_break: true, ..cut }
            }
            How::Stall => self.wait(std::future::pending()).await.err().unwrap_or(cut),
        }
    }
}

/// A sign of life, in the manner of each API.
fn ping(api: Api) -> Step {
    match api {
        Api::Anthropic | Api::CountTokens => Step::event("ping", r#"{"type":"ping"}"#),
        Api::Chat | Api::Responses => Step::Comment("keep-alive".to_owned()),
    }
}

pub(crate) fn encode(step: &Step, wire: &Wire) -> Bytes {
    let end = if wire.crlf { "\r\n" } else { "\n" };
    let colon = if wire.no_space { ":" } else { ": " };
    let mut out = String::new();
    let mut line = |field: &str, value: &str| {
        out.push_str(field);
        out.push_str(colon);
        out.push_str(value);
        out.push_str(end);
    };
    match step {
        Step::Raw(bytes) => return bytes.clone(),
        Step::Comment(text) => line("", text),
        Step::Event { name, data } => {
            if wire.comments {
                line("", "a comment");
            }
            if let Some(name) = name {
                line("event", name);
            }
            match data.split_once(',') {
                // A line end between two members is white space to JSON.
                Some((head, tail)) if wire.multi_line_data => {
                    line("data", &format!("{head},"));
                    line("data", tail);
                }
                _ => line("data", data),
            }
        }
        Step::Gate(_) | Step::Delay(_) | Step::Ping | Step::End(_) => {}
    }
    out.push_str(end);
    Bytes::from(out)
}
