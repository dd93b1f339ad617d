//! What waits to be sent: records until the server has them, live news while there is room.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use agent_host::{
    secrets::{LiveMasker, MARK, Masker},
    transcript::StoredRecord,
};
use query_engine::ports::Observer;
use swarm_protocol::{
    frame::{FromWorker, Live, PACE_SINCE, RecordMark},
    record::RecordHead,
};
use tokio::sync::{Notify, watch};

/// Records kept in memory while the server is away; older ones are read from the transcript again.
const MAX_RECORDS: usize = 1_024;
/// Live news kept while the socket is busy; the oldest go first.
const MAX_LIVE: usize = 256;
/// Words to the gates kept meanwhile: a call has one or two.
const MAX_PACE: usize = 16;

/// The queue between the run and the connection.
pub struct Outbox {
    queue: Mutex<Queue>,
    /// Rung when something new stands in the queue.
    pub(super) news: Notify,
    acknowledged: watch::Sender<u64>,
    /// What leaves holds no keys.
    masker: Masker,
}

#[derive(Default)]
struct Queue {
    /// Consecutive, ending with the last record written.
    records: VecDeque<(u64, FromWorker)>,
    last: Option<RecordMark>,
    live: VecDeque<Live>,
    /// Takes keys out of what is shown live, also of those that come in pieces.
    live_masker: LiveMasker,
    pace: VecDeque<FromWorker>,
    is_connected: bool,
    hears_pace: bool,
}

/// The next records to send.
pub(super) enum Next {
    /// These.
    Frames(Vec<FromWorker>, u64),
    /// They are in the transcript, after this number.
    OnDisk(u64),
    /// None.
    Nothing,
}

impl Default for Outbox {
    fn default() -> Self {
        let masker = Masker::default();
        let queue = Queue { live_masker: LiveMasker::new(masker.clone()), ..Queue::default() };
        Self { queue: Mutex::new(queue), news: Notify::new(), acknowledged: watch::Sender::new(0), masker }
    }
}

impl Queue {
    fn show(&mut self, live: Live) {
        // Deltas that wait grow together: one frame instead of many.
        if let Live::TextDelta { text, thinking } = &live
            && let Some(Live::TextDelta { text: waiting, thinking: same }) = self.live.back_mut()
            && same == thinking
            && waiting.len() < 16 * 1024
        {
            waiting.push_str(text);
            return;
        }
        if self.live.len() == MAX_LIVE {
            self.live.pop_front();
        }
        self.live.push_back(live);
    }
}

impl Outbox {
    /// What finds keys in texts of this process.
    pub fn masker(&self) -> &Masker {
        &self.masker
    }

    /// A record as it travels.
    pub(super) fn frame(&self, stored: &StoredRecord) -> FromWorker {
        let head = stored.record.head(stored.bytes);
        let head = self.masker.masked(head.clone()).unwrap_or_else(|| RecordHead {
            head: format!("{MARK}record]"),
            tools: Vec::new(),
            ..head
        });
        let body = stored.record.body.travels_whole().then(|| self.masker.masked(stored.record.body.clone()));
        FromWorker::Record { head, body: body.flatten().map(Box::new) }
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transcript ends here; what comes is new.
    pub fn start_after(&self, last: Option<RecordMark>) {
        self.queue().last = last;
    }

    /// New records, in order.
    pub fn push(&self, stored: &[StoredRecord]) {
        let mut queue = self.queue();
        // Words that are recorded are whole.
        if let Some(rest) = queue.live_masker.rest()
            && queue.is_connected
        {
            queue.show(rest);
        }
        for record in stored {
            queue.records.push_back((record.record.n, self.frame(record)));
            queue.last = Some(RecordMark { n: record.record.n, uuid: record.record.uuid });
            if queue.records.len() > MAX_RECORDS {
                queue.records.pop_front();
            }
        }
        drop(queue);
        self.news.notify_one();
    }

    /// The last record written.
    pub(super) fn last(&self) -> Option<RecordMark> {
        self.queue().last
    }

    /// There is a link on which this version is spoken; or none.
    pub(crate) fn set_connected(&self, version: Option<u32>) {
        let mut queue = self.queue();
        queue.is_connected = version.is_some();
        queue.hears_pace = version.is_some_and(|version| version >= PACE_SINCE);
        if version.is_none() {
            // Old deltas mean nothing to a server that comes back later.
            queue.live.clear();
            queue.pace.clear();
        }
    }

    /// The server has everything up to here.
    pub(super) fn acknowledge(&self, n: u64) {
        let mut queue = self.queue();
        while queue.records.front().is_some_and(|(first, _)| *first <= n) {
            queue.records.pop_front();
        }
        drop(queue);
        self.acknowledged.send_if_modified(|known| {
            let is_more = n > *known;
            *known = n.max(*known);
            is_more
        });
    }

    /// Waits until the server has record `n`.
    pub async fn acknowledged(&self, n: u64) {
        let mut known = self.acknowledged.subscribe();
        // The sender lives in `self`.
        let _ended = known.wait_for(|known| *known >= n).await;
    }

    /// Records after `sent`, at most `limit`.
    pub(super) fn next_records(&self, sent: u64, limit: usize) -> Next {
        let queue = self.queue();
        let Some(last) = queue.last.filter(|last| last.n > sent) else { return Next::Nothing };
        let first = queue.records.front().map_or(last.n + 1, |(first, _)| *first);
        if first > sent + 1 {
            return Next::OnDisk(sent);
        }
        let frames: Vec<_> = queue.records.iter().filter(|(n, _)| *n > sent).take(limit).cloned().collect();
        let up_to = frames.last().map_or(sent, |(n, _)| *n);
        Next::Frames(frames.into_iter().map(|(_, frame)| frame).collect(), up_to)
    }

    /// A word to the gate before a provider's key; nobody hears it while there is no link.
    pub(crate) fn pace(&self, frame: FromWorker) {
        let mut queue = self.queue();
        if !queue.hears_pace {
            return;
        }
        if queue.pace.len() == MAX_PACE {
            queue.pace.pop_front();
        }
        queue.pace.push_back(frame);
        drop(queue);
        self.news.notify_one();
    }

    pub(crate) fn take_pace(&self) -> Vec<FromWorker> {
        self.queue().pace.drain(..).collect()
    }

    pub(super) fn take_live(&self) -> Vec<Live> {
        self.queue().live.drain(..).collect()
    }
}

impl Observer for Outbox {
    fn live(&self, live: Live) {
        let mut queue = self.queue();
        let shown = queue.live_masker.shown(live);
        if !queue.is_connected {
            return;
        }
        for live in shown {
            queue.show(live);
        }
        drop(queue);
        self.news.notify_one();
    }
}
