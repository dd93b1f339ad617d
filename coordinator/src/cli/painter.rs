//! The one writer of a follower's output, on a thread of its own: a slow terminal never holds up the events.
//! Its mailbox holds one picture, the newest wins; permanent lines and the coordinator's words are all kept.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{block::Block, output::Stream};

/// At most ten frames a second.
const SHORTEST: Duration = Duration::from_millis(100);

/// A terminal that slow gets one frame a second.
const LONGEST: Duration = Duration::from_secs(1);

/// A write that takes longer halves the rate.
const SLOW_WRITE: Duration = Duration::from_millis(50);

/// A frame is at most this many bytes; longer ones (after a flood of permanent lines) go out in parts.
const FRAME_BYTES: usize = 4096;

/// How much the reader of words may be behind before following waits for the end with it: memory is bounded
/// by what a coordinator says in a session, which is little.
#[derive(Debug, Default)]
struct Mailbox {
    permanent: Vec<String>,
    rows: Option<Vec<String>>,
    words: Vec<u8>,
    alerts: Vec<u8>,
    stale: bool,
    /// Take the block away and wait.
    paused: bool,
    done: bool,
}

#[derive(Debug, Default)]
struct Shared {
    mailbox: Mutex<Mailbox>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        // A panic of the writer leaves the mailbox whole: it only takes.
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's handle.
#[derive(Debug)]
pub(crate) struct Painter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<(Stream, Stream)>>,
}

impl Painter {
    /// Starts the writer; it owns both streams until [`Painter::finish`].
    pub(crate) fn start(out: Stream, err: Stream, has_rows: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new().name("painter".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || paint(&shared, out, err, has_rows)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Lines that stay, on standard error above the block.
    pub(crate) fn permanent(&self, lines: impl IntoIterator<Item = String>) {
        self.shared.lock().permanent.extend(lines);
        self.shared.changed.notify_one();
    }

    /// Bytes for standard output, where that is another place than the block's terminal.
    pub(crate) fn words(&self, bytes: &[u8]) {
        self.shared.lock().words.extend_from_slice(bytes);
        self.shared.changed.notify_one();
    }

    /// Bytes that call somebody and show nothing, for the block's terminal.
    pub(crate) fn alert(&self, bytes: &[u8]) {
        self.shared.lock().alerts.extend_from_slice(bytes);
        self.shared.changed.notify_one();
    }

    /// The newest picture.
    pub(crate) fn rows(&self, rows: Vec<String>) {
        self.shared.lock().rows = Some(rows);
        self.shared.changed.notify_one();
    }

    /// The terminal's size changed: the next frame is a full one.
    pub(crate) fn invalidate(&self) {
        self.shared.lock().stale = true;
    }

    /// Takes the block away before the process is suspended; returns when it is gone.
    pub(crate) fn pause(&self) {
        let mut mailbox = self.shared.lock();
        mailbox.paused = true;
        mailbox.rows = None;
        self.shared.changed.notify_one();
        // The writer clears the mark when it has written.
        let began = Instant::now();
        while mailbox.paused && began.elapsed() < LONGEST {
            mailbox =
                self.shared.changed.wait_timeout(mailbox, SHORTEST).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes everything that is left, takes the block away, and gives the streams back.
    pub(crate) fn finish(mut self) -> Option<(Stream, Stream)> {
        self.shared.lock().done = true;
        self.shared.changed.notify_all();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Painter {
    fn drop(&mut self) {
        // On a panic the block goes away and the cursor comes back, too.
        self.shared.lock().done = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _streams = thread.join();
        }
    }
}

fn paint(shared: &Shared, mut out: Stream, mut err: Stream, has_rows: bool) -> (Stream, Stream) {
    // Nobody is told about output that cannot be written: both streams are made tolerant by the caller.
    let mut block = Block::default();
    let mut pace = SHORTEST;
    let mut last = Instant::now().checked_sub(LONGEST).unwrap_or_else(Instant::now);
    loop {
        let mut mailbox = shared.lock();
        while !mailbox.done
            && !mailbox.paused
            && mailbox.permanent.is_empty()
            && mailbox.words.is_empty()
            && mailbox.alerts.is_empty()
            && mailbox.rows.is_none()
        {
            mailbox = shared.changed.wait(mailbox).unwrap_or_else(PoisonError::into_inner);
        }
        let hurry = mailbox.done || mailbox.paused;
        let rest = pace.saturating_sub(last.elapsed());
        if has_rows && !hurry && !rest.is_zero() {
            drop(mailbox);
            std::thread::sleep(rest);
            mailbox = shared.lock();
        }
        let permanent = std::mem::take(&mut mailbox.permanent);
        let words = std::mem::take(&mut mailbox.words);
        let alerts = std::mem::take(&mut mailbox.alerts);
        let rows = mailbox.rows.take();
        let (done, paused) = (mailbox.done, mailbox.paused);
        if std::mem::take(&mut mailbox.stale) {
            block.invalidate();
        }
        drop(mailbox);

        let began = Instant::now();
        if !words.is_empty() {
            let _unheard = out.bytes(&words);
        }
        if has_rows && !alerts.is_empty() {
            let _unheard = err.bytes(&alerts);
        }
        if has_rows {
            frame(&mut block, &mut err, &permanent, rows, done || paused);
        } else {
            for line in &permanent {
                let _unheard = err.line(line);
            }
        }
        pace = if began.elapsed() > SLOW_WRITE { (pace * 2).min(LONGEST) } else { SHORTEST.max(pace / 2) };
        last = Instant::now();
        if paused {
            shared.lock().paused = false;
            shared.changed.notify_all();
        }
        if done {
            // What came between the last look and the mark.
            let mut mailbox = shared.lock();
            if mailbox.permanent.is_empty() && mailbox.words.is_empty() && mailbox.alerts.is_empty() {
                mailbox.rows = None;
                drop(mailbox);
                return (out, err);
            }
        }
    }
}

fn frame(block: &mut Block, err: &mut Stream, permanent: &[String], rows: Option<Vec<String>>, finish: bool) {
    let plain = |text: &String| anstream::adapter::strip_str(text).to_string();
    let colour = err.has_colour();
    let permanent: Vec<String> =
        if colour { permanent.to_vec() } else { permanent.iter().map(plain).collect() };
    let rows = rows.map(|rows| if colour { rows } else { rows.iter().map(plain).collect() });
    let bytes = match (rows, finish) {
        (_, true) => Some(block.finish(&permanent)),
        (Some(rows), false) => block.frame(&permanent, rows),
        (None, false) if permanent.is_empty() => None,
        (None, false) => block.repeat(&permanent),
    };
    if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
        for part in parts(&bytes) {
            let _unheard = err.bytes(part.as_bytes());
        }
    }
}

/// Parts of at most [`FRAME_BYTES`], cut at line ends.
fn parts(bytes: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while rest.len() > FRAME_BYTES {
        let mut limit = FRAME_BYTES;
        while !rest.is_char_boundary(limit) {
            limit -= 1;
        }
        let end = rest[..limit].rfind('\n').map_or(limit, |end| end + 1);
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::{super::output::testing::Captured, *};

    #[test]
    fn everything_permanent_is_written_before_the_end() {
        let (out, err) = (Captured::default(), Captured::default());
        let painter = Painter::start(out.stream(), err.stream(), false).unwrap();
        for number in 0..200 {
            painter.permanent([format!("line {number}")]);
            painter.words(b"w\n");
        }
        assert!(painter.finish().is_some());
        assert_eq!(err.text().lines().count(), 200);
        assert_eq!(out.text().len(), 400);
    }

    #[test]
    fn with_rows_the_cursor_comes_back() {
        let (out, err) = (Captured::default(), Captured::default());
        let painter = Painter::start(out.stream(), err.stream(), true).unwrap();
        painter.rows(vec!["row".to_owned()]);
        painter.permanent(["kept".to_owned()]);
        painter.finish().unwrap();
        let mut screen = vt100::Parser::new(5.try_into().unwrap(), 20.try_into().unwrap(), 0);
        screen.process(err.text().as_bytes());
        assert_eq!(screen.screen().contents().trim_end(), "kept");
        assert!(!screen.screen().hide_cursor());
    }

    #[test]
    fn no_part_is_longer_than_a_frame() {
        let text = "ä".repeat(5000) + "\n" + &"x\n".repeat(3000);
        let parts = parts(&text);
        assert!(parts.iter().all(|part| part.len() <= FRAME_BYTES));
        assert_eq!(parts.concat(), text);
    }
}
