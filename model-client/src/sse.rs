//! SSE framing: `sse-stream` parses, this file bounds it and notes when the last byte came.
//!
//! Knows no vendor and no JSON.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream::BoxStream};
use sse_stream::SseByteStream;

use crate::watchdog::LastByte;

/// The most bytes between two events. The largest honest event is a whole tool input or an encrypted
/// reasoning item, both well under a request's 32 MB.
pub(crate) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// An event as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// The `event:` field.
    pub(crate) name: Option<String>,
    /// The `data:` lines, joined by line breaks.
    pub(crate) data: String,
}

/// Why a stream of events broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SseError {
    /// The connection broke.
    #[error("{0}")]
    Connection(String),
    /// An event never ends.
    #[error("an event of more than {MAX_EVENT_BYTES} bytes")]
    TooLarge,
    /// Not UTF-8.
    #[error("the stream is not UTF-8")]
    NotUtf8,
}

/// What the byte side tells the event side through the parser, whose errors are boxed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct ByteError(SseError);

/// Counts bytes since the last event, and notes when bytes came.
struct Bounded<S> {
    inner: S,
    since_event: Arc<AtomicUsize>,
    last_byte: LastByte,
}

impl<S, E> Stream for Bounded<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    type Item = Result<Bytes, ByteError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = match self.inner.poll_next_unpin(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(ByteError(SseError::Connection(error.to_string())))));
            }
            Poll::Ready(Some(Ok(chunk))) => chunk,
        };
        self.last_byte.note(chunk.len());
        // Whole events within the chunk set the counter back as they are taken, so one chunk of many small
        // events passes; only what stands before the chunk counts against the limit.
        let before = self.since_event.fetch_add(chunk.len(), Ordering::Relaxed);
        if before > MAX_EVENT_BYTES {
            return Poll::Ready(Some(Err(ByteError(SseError::TooLarge))));
        }
        Poll::Ready(Some(Ok(chunk)))
    }
}

/// The events of a response's body. After an error nothing comes; an unfinished last event is dropped.
pub(crate) fn events<S, E>(bytes: S, last_byte: LastByte) -> BoxStream<'static, Result<SseEvent, SseError>>
where
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let since_event = Arc::new(AtomicUsize::new(0));
    let bounded = Bounded { inner: bytes, since_event: Arc::clone(&since_event), last_byte };
    SseByteStream::new(bounded)
        .filter_map(move |item| {
            let answer = match item {
                Ok(sse) => {
                    since_event.store(0, Ordering::Relaxed);
                    sse.data.map(|data| Ok(SseEvent { name: sse.event, data }))
                }
                Err(sse_stream::Error::Body(source)) => Some(Err(match source.downcast::<ByteError>() {
                    Ok(error) => error.0,
                    Err(other) => SseError::Connection(other.to_string()),
                })),
                Err(_) => Some(Err(SseError::NotUtf8)),
            };
            std::future::ready(answer)
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{executor::block_on, stream};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::pieces;

    fn parse(chunks: Vec<Vec<u8>>) -> Vec<Result<SseEvent, String>> {
        let bytes = stream::iter(chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))));
        let events = events(bytes, LastByte::unpaced());
        block_on(events.map(|event| event.map_err(|error| error.to_string())).collect())
    }

    fn event(name: Option<&str>, data: &str) -> Result<SseEvent, String> {
        Ok(SseEvent { name: name.map(str::to_owned), data: data.to_owned() })
    }

    const TANGLED: &str = "\u{feff}: hello\r\nevent: a\r\ndata: {\"x\":\r\ndata: \"é🙂\"}\r\n\r\nretry: 5\n\n: c\n\ndata:second\n\nevent: future_thing\ndata: {}\n\ndata: cut";

    #[test]
    fn comments_crlf_multiline_and_an_unfinished_end() {
        let expected = vec![
            event(Some("a"), "{\"x\":\n\"é🙂\"}"),
            event(None, "second"),
            event(Some("future_thing"), "{}"),
        ];
        assert_eq!(parse(vec![TANGLED.as_bytes().to_vec()]), expected);
    }

    proptest! {
        #[test]
        fn cut_anywhere_gives_the_same_events(cuts in prop::collection::vec(0..TANGLED.len(), 0..12)) {
            let chunks = pieces(TANGLED.as_bytes(), cuts).into_iter().map(|piece| piece.to_vec()).collect();
            prop_assert_eq!(parse(chunks), parse(vec![TANGLED.as_bytes().to_vec()]));
        }
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let mut chunks = vec![b"data: ".to_vec()];
        chunks.extend(std::iter::repeat_n(vec![b'x'; 1024 * 1024], 18));
        assert_eq!(parse(chunks), vec![Err(SseError::TooLarge.to_string())]);
    }

    #[test]
    fn many_events_may_be_large_together() {
        let chunk = format!("data: {}\n\n", "x".repeat(1000)).into_bytes().repeat(1000);
        assert_eq!(parse(vec![chunk; 20]).len(), 20_000);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_an_error() {
        assert_eq!(parse(vec![b"data: \xff\n\n".to_vec()]), vec![Err(SseError::NotUtf8.to_string())]);
    }
}
