//! From a response's bytes to the engine's events: one driver for every provider.
//!
//! A provider supplies a [`Decoder`], a pure fold over SSE events. The driver owns the watchdog, the order of
//! events, and the promise that a stream ends with `Stopped` or with an error.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream::BoxStream};
use query_engine::ports::{ModelError, ModelErrorKind, ModelStream, StreamEvent};
use swarm_protocol::Usage;

use crate::{
    sse::{self, SseError, SseEvent},
    watchdog::Watchdog,
};

/// A provider's reading of SSE events.
pub(crate) trait Decoder: Send + 'static {
    /// Takes one event; pushes what it means.
    fn event(&mut self, event: SseEvent, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError>;

    /// The body ended; called only when nothing was stopped yet. Pushes a `Stopped` if the answer is whole.
    fn end(&mut self, out: &mut VecDeque<StreamEvent>) -> Result<(), ModelError>;
}

/// What the driver knows between two events.
struct Drive<D> {
    events: BoxStream<'static, Result<SseEvent, SseError>>,
    decoder: D,
    watchdog: Watchdog,
    pending: VecDeque<StreamEvent>,
    failure: Option<ModelError>,
    n_events: u64,
    last_event: String,
    ended: bool,
}

/// The engine's events of a body.
pub(crate) fn drive<S, E, D>(bytes: S, decoder: D, watchdog: Watchdog) -> ModelStream
where
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    E: std::fmt::Display + Send + 'static,
    D: Decoder,
{
    let drive = Drive {
        events: sse::events(bytes, watchdog.last_byte()),
        decoder,
        watchdog,
        pending: VecDeque::new(),
        failure: None,
        n_events: 0,
        last_event: "none".to_owned(),
        ended: false,
    };
    Box::pin(futures::stream::unfold(drive, |mut drive| async move {
        let item = drive.next().await?;
        Some((item, drive))
    }))
}

impl<D: Decoder> Drive<D> {
    async fn next(&mut self) -> Option<Result<StreamEvent, ModelError>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                if matches!(event, StreamEvent::Stopped(_)) {
                    self.ended = true;
                    self.pending.clear();
                    self.failure = None;
                    self.events = futures::stream::empty().boxed();
                }
                return Some(Ok(event));
            }
            if let Some(error) = self.failure.take() {
                self.ended = true;
                self.events = futures::stream::empty().boxed();
                return Some(Err(error));
            }
            if self.ended {
                return None;
            }
            self.failure = self.step().await.err();
        }
    }

    /// Takes one event from the wire. What was decoded before a failure is handed out before it.
    async fn step(&mut self) -> Result<(), ModelError> {
        // When the watch wins, a byte that came in the same instant is lost with the connection.
        let item = tokio::select! {
            biased;
            item = self.events.next() => item,
            watchdog = self.watchdog.expired() => return Err(self.stalled(watchdog)),
        };
        let before = self.pending.len();
        let answer = match item {
            Some(Ok(event)) => {
                self.n_events += 1;
                event.name.as_deref().unwrap_or("data").clone_into(&mut self.last_event);
                self.decoder.event(event, &mut self.pending)
            }
            Some(Err(SseError::Connection(problem))) => Err(self.truncated(&problem)),
            Some(Err(error @ (SseError::TooLarge | SseError::NotUtf8))) => {
                Err(crate::error::malformed(&error.to_string()))
            }
            None => self.decoder.end(&mut self.pending).and_then(|()| {
                let stopped = self.pending.iter().any(|event| matches!(event, StreamEvent::Stopped(_)));
                if stopped { Ok(()) } else { Err(self.truncated("the connection was closed")) }
            }),
        };
        for event in self.pending.iter().skip(before) {
            self.watchdog.observe(event);
        }
        answer
    }

    fn truncated(&self, problem: &str) -> ModelError {
        ModelError {
            kind: ModelErrorKind::Truncated,
            message: format!(
                "the answer broke off before it was whole ({problem}; {}, the last was `{}`)",
                self.came(),
                self.last_event
            ),
            retry_after: None,
            status: None,
        }
    }

    fn stalled(&self, watchdog: &'static str) -> ModelError {
        let what = match watchdog {
            "first byte" => "the provider accepted the request but sent nothing",
            "idle" => "the provider stopped sending",
            _ => "the provider keeps the connection open but the answer does not go on",
        };
        ModelError {
            kind: ModelErrorKind::Stalled { watchdog },
            message: format!("{what} (watchdog: {watchdog}; {})", self.came()),
            retry_after: None,
            status: None,
        }
    }

    fn came(&self) -> String {
        format!("{} events in {} bytes came", self.n_events, self.watchdog.n_bytes())
    }
}

/// The most tokens that one figure of a provider can mean: a million times the largest window. Sums of such figures
/// and their weights stay far from the ends of their types.
const MOST_TOKENS: u64 = 1 << 40;

/// A figure of a provider's report; one beyond all reason was not reported.
pub(crate) fn reported(tokens: Option<u64>) -> Option<u64> {
    tokens.filter(|tokens| *tokens <= MOST_TOKENS)
}

/// Use, when a provider reports none: four bytes a token, marked as ours.
pub(crate) fn estimate(request_bytes: usize, output_bytes: usize) -> Usage {
    let tokens = |bytes: usize| u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX);
    Usage {
        input_tokens: tokens(request_bytes),
        output_tokens: tokens(output_bytes),
        estimated: true,
        ..Usage::default()
    }
}

/// Decodes whole bodies in tests, without a clock or a socket.
#[cfg(test)]
pub(crate) mod testing {
    use std::time::Duration;

    use super::*;
    use crate::watchdog::Timeouts;

    /// The events of a body given in chunks.
    pub(crate) fn decode_chunks(
        chunks: Vec<Bytes>,
        decoder: impl Decoder,
    ) -> Vec<Result<StreamEvent, ModelError>> {
        // The body is always ready, so the watchdog's timer is never polled and no runtime is needed.
        let chunks = chunks.into_iter().map(Ok::<_, std::convert::Infallible>);
        let watchdog = Watchdog::start(Timeouts::new(None, false));
        futures::executor::block_on(drive(futures::stream::iter(chunks), decoder, watchdog).collect())
    }

    /// The events of a body.
    pub(crate) fn decode(body: &str, decoder: impl Decoder) -> Vec<Result<StreamEvent, ModelError>> {
        decode_chunks(vec![Bytes::from(body.to_owned())], decoder)
    }

    /// One line an event, for snapshots.
    pub(crate) fn render(events: &[Result<StreamEvent, ModelError>]) -> String {
        let mut text = String::new();
        for event in events {
            let line = match event {
                Ok(event) => format!("{event:?}"),
                Err(error) => format!("ERROR {:?}: {}", error.kind, error.message),
            };
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// A body whose chunks come after pauses.
    pub(crate) fn paced(
        chunks: Vec<(u64, &'static str)>,
    ) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + Unpin + 'static {
        Box::pin(futures::stream::iter(chunks).then(|(seconds, chunk)| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Bytes::from_static(chunk.as_bytes()))
        }))
    }
}
