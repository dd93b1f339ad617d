//! When a stream counts as dead: no first byte, no byte, no progress (spec 2.5).
//!
//! Pings and comments extend the second watch, never the third. An open thinking block, or an open tool
//! block whose provider holds its input back, stretches the third.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use query_engine::ports::{BlockKind, StreamEvent};
use tokio::time::Instant;

/// How long each watch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// From sending to the first byte of the body.
    pub(crate) first_byte: Duration,
    /// Between two bytes.
    pub(crate) idle: Duration,
    /// Between two pieces of the answer.
    pub(crate) progress: Duration,
    /// The same, while the model thinks or the provider holds a tool's input back.
    pub(crate) quiet_block: Duration,
    /// Whether the provider holds tool inputs back.
    pub(crate) buffers_tool_input: bool,
}

impl Timeouts {
    /// Spec 2.5, with the endpoint's own first-byte time.
    pub(crate) fn new(first_byte_timeout_ms: Option<u64>, buffers_tool_input: bool) -> Self {
        Self {
            first_byte: Duration::from_millis(first_byte_timeout_ms.unwrap_or(120_000)),
            idle: Duration::from_secs(90),
            progress: Duration::from_secs(300),
            quiet_block: Duration::from_secs(15 * 60),
            buffers_tool_input,
        }
    }
}

/// When the last byte came, and how many did; shared between the bytes and the watch: comments are bytes that no
/// event shows.
#[derive(Clone, Debug)]
pub(crate) struct LastByte {
    started: Option<Instant>,
    n_bytes: Arc<AtomicU64>,
    millis: Arc<AtomicU64>,
}

impl LastByte {
    fn new(started: Instant) -> Self {
        Self { started: Some(started), n_bytes: Arc::default(), millis: Arc::default() }
    }

    /// One that keeps no time, for tests without a clock.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn unpaced() -> Self {
        Self { started: None, n_bytes: Arc::default(), millis: Arc::default() }
    }

    /// So many bytes came now; none is no sign of life.
    pub(crate) fn note(&self, count: usize) {
        if count == 0 {
            return;
        }
        if let Some(started) = self.started {
            let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.millis.store(elapsed, Ordering::Relaxed);
        }
        self.n_bytes.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many bytes came so far.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    fn get(&self) -> Option<Instant> {
        let started = self.started?;
        (self.n_bytes() > 0).then(|| started + Duration::from_millis(self.millis.load(Ordering::Relaxed)))
    }
}

/// The three watches over one request.
#[derive(Debug)]
pub(crate) struct Watchdog {
    timeouts: Timeouts,
    started: Instant,
    last_byte: LastByte,
    last_progress: Option<Instant>,
    open: Vec<(usize, bool)>,
}

impl Watchdog {
    /// Starts now: call it before the request is sent.
    pub(crate) fn start(timeouts: Timeouts) -> Self {
        let started = Instant::now();
        Self { timeouts, started, last_byte: LastByte::new(started), last_progress: None, open: Vec::new() }
    }

    /// For the byte side.
    pub(crate) fn last_byte(&self) -> LastByte {
        self.last_byte.clone()
    }

    /// How many bytes of the body came so far.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.last_byte.n_bytes()
    }

    /// When the first byte must have come.
    pub(crate) fn first_byte_deadline(&self) -> Instant {
        self.started + self.timeouts.first_byte
    }

    /// A piece of the answer came.
    pub(crate) fn observe(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Ping | StreamEvent::Usage(_) => return,
            StreamEvent::BlockStarted { index, kind } => {
                let quiet = match kind {
                    BlockKind::Thinking => true,
                    BlockKind::ToolUse { .. } => self.timeouts.buffers_tool_input,
                    BlockKind::Text | BlockKind::Other => false,
                };
                self.open.push((*index, quiet));
            }
            StreamEvent::BlockClosed { index, .. } => self.open.retain(|(open, _)| open != index),
            StreamEvent::Started { .. } | StreamEvent::Delta { .. } | StreamEvent::Stopped(_) => {}
        }
        self.last_progress = Some(Instant::now());
    }

    /// The next time to look, and what it would mean.
    fn next(&self) -> (Instant, &'static str) {
        let Some(last_byte) = self.last_byte.get() else {
            return (self.first_byte_deadline(), "first byte");
        };
        let idle = last_byte + self.timeouts.idle;
        let progress = match self.last_progress {
            // A server that says something while it still reads the prompt has the longer of both times.
            None => self.started + self.timeouts.progress.max(self.timeouts.first_byte),
            Some(last) if self.open.iter().any(|(_, quiet)| *quiet) => last + self.timeouts.quiet_block,
            Some(last) => last + self.timeouts.progress,
        };
        if idle <= progress { (idle, "idle") } else { (progress, "no progress") }
    }

    /// Waits until a watch fires; says which. Cancel-safe: it holds no state of its own.
    pub(crate) async fn expired(&self) -> &'static str {
        loop {
            let (deadline, name) = self.next();
            if Instant::now() >= deadline {
                return name;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use query_engine::ports::{ClosedBlock, Delta};
    use swarm_protocol::Block;

    use super::*;

    fn watchdog(buffers: bool) -> Watchdog {
        Watchdog::start(Timeouts::new(None, buffers))
    }

    async fn after(watchdog: &Watchdog) -> (&'static str, u64) {
        let name = watchdog.expired().await;
        (name, watchdog.started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn no_first_byte() {
        assert_eq!(after(&watchdog(false)).await, ("first byte", 120));
        let patient = Watchdog::start(Timeouts::new(Some(600_000), false));
        assert_eq!(after(&patient).await, ("first byte", 600));
    }

    #[tokio::test(start_paused = true)]
    async fn no_byte_after_the_first() {
        let watchdog = watchdog(false);
        tokio::time::advance(Duration::from_secs(10)).await;
        watchdog.last_byte().note(1);
        assert_eq!(after(&watchdog).await, ("idle", 100));
    }

    async fn ping_forever(mut watchdog: Watchdog) -> (&'static str, u64) {
        let mut interval = tokio::time::interval(Duration::from_secs(2));
        loop {
            tokio::select! {
                name = watchdog.expired() => return (name, watchdog.started.elapsed().as_secs()),
                _ = interval.tick() => {}
            }
            watchdog.last_byte().note(1);
            watchdog.observe(&StreamEvent::Ping);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pings_extend_the_second_watch_never_the_third() {
        assert_eq!(ping_forever(watchdog(false)).await, ("no progress", 300));
    }

    #[tokio::test(start_paused = true)]
    async fn thinking_stretches_the_third_watch_to_a_cap() {
        let mut watchdog = watchdog(false);
        watchdog.observe(&StreamEvent::BlockStarted { index: 0, kind: BlockKind::Thinking });
        assert_eq!(ping_forever(watchdog).await, ("no progress", 900));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_block_stretches_it_only_where_input_is_held_back() {
        for (buffers, expected) in [(true, 900), (false, 300)] {
            let mut watchdog = watchdog(buffers);
            let kind = BlockKind::ToolUse { name: "Write".to_owned() };
            watchdog.observe(&StreamEvent::BlockStarted { index: 0, kind });
            assert_eq!(ping_forever(watchdog).await, ("no progress", expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deltas_are_progress_and_a_closed_block_stretches_nothing() {
        let mut watchdog = watchdog(true);
        watchdog.last_byte().note(1);
        watchdog.observe(&StreamEvent::BlockStarted { index: 0, kind: BlockKind::Thinking });
        tokio::time::advance(Duration::from_secs(200)).await;
        let delta = Delta::Thinking("x".to_owned());
        watchdog.observe(&StreamEvent::Delta { index: 0, delta });
        watchdog.last_byte().note(1);
        let block = ClosedBlock::Valid(Block::text("x"));
        watchdog.observe(&StreamEvent::BlockClosed { index: 0, block });
        assert_eq!(ping_forever(watchdog).await, ("no progress", 500));
    }
}
