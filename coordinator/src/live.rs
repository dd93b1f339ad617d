//! What workers do right now: news that may be lost, for views. A small table read here and there.

use std::{collections::HashMap, sync::Mutex};

use swarm_protocol::{
    PermissionRequestId, Seq, SessionId, Timestamp, WorkerId,
    frame::{CacheBreakCause, Live},
};

/// The last news of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveState {
    /// What it does, in words.
    pub(crate) activity: String,
    /// What the server waits for on its behalf, such as a lock; also before and after its run.
    pub(crate) waits: Option<String>,
    /// Tokens in its window.
    pub(crate) context_tokens: Option<u64>,
    /// Its effective window.
    pub(crate) context_window: Option<u64>,
    /// How often the provider's cache failed it.
    pub(crate) cache_breaks: u32,
    /// Why the last time.
    pub(crate) last_cache_break: Option<CacheBreakCause>,
}

/// The table. Its locks are never held across an await.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    workers: Mutex<HashMap<WorkerId, LiveState>>,
    /// Where each session's journal stands: what a live event follows.
    seqs: Mutex<HashMap<SessionId, Seq>>,
}

impl LiveTable {
    /// Takes in a worker's news.
    pub(crate) fn note(&self, worker_id: &WorkerId, live: &Live) {
        let Ok(mut table) = self.workers.lock() else { return };
        match live {
            Live::Activity { text, context_tokens, context_window } => {
                let state = table.entry(worker_id.clone()).or_default();
                state.activity.clone_from(text);
                state.context_tokens = context_tokens.or(state.context_tokens);
                state.context_window = context_window.or(state.context_window);
            }
            Live::ToolStarted { tool, summary, .. } => {
                table.entry(worker_id.clone()).or_default().activity = format!("{tool} {summary}");
            }
            Live::CacheBreak { cause, .. } => {
                let state = table.entry(worker_id.clone()).or_default();
                state.cache_breaks += 1;
                state.last_cache_break = Some(*cause);
            }
            Live::TextDelta { .. }
            | Live::ToolProgress { .. }
            | Live::ToolEnded { .. }
            | Live::Waiting { .. } => {}
        }
    }

    /// The server waits for something on a worker's behalf, or does no more.
    pub(crate) fn note_wait(&self, worker_id: &WorkerId, waits: Option<String>) {
        let Ok(mut table) = self.workers.lock() else { return };
        match waits {
            Some(waits) => table.entry(worker_id.clone()).or_default().waits = Some(waits),
            None => {
                if let Some(state) = table.get_mut(worker_id) {
                    state.waits = None;
                }
            }
        }
    }

    /// The last news of a worker.
    pub(crate) fn get(&self, worker_id: &WorkerId) -> Option<LiveState> {
        self.workers.lock().ok()?.get(worker_id).cloned()
    }

    /// A worker ended.
    pub(crate) fn forget(&self, worker_id: &WorkerId) {
        if let Ok(mut table) = self.workers.lock() {
            table.remove(worker_id);
        }
    }

    /// A session's journal stands here now.
    pub(crate) fn note_seq(&self, session: SessionId, seq: Seq) {
        if let Ok(mut seqs) = self.seqs.lock() {
            seqs.insert(session, seq);
        }
    }

    /// Where a session's journal stands.
    pub(crate) fn seq(&self, session: SessionId) -> Seq {
        self.seqs.lock().ok().and_then(|seqs| seqs.get(&session).copied()).unwrap_or_default()
    }
}

/// When open permission requests run out, in wall time, for views. Kept by the sessions' actors.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(Mutex<HashMap<PermissionRequestId, Timestamp>>);

impl Deadlines {
    /// The deadline of a request, if its clock runs.
    pub(crate) fn get(&self, id: &PermissionRequestId) -> Option<Timestamp> {
        self.0.lock().ok()?.get(id).copied()
    }

    /// Sets or takes away a deadline.
    pub(crate) fn set(&self, id: &PermissionRequestId, at: Option<Timestamp>) {
        let Ok(mut deadlines) = self.0.lock() else { return };
        match at {
            Some(at) => deadlines.insert(id.clone(), at),
            None => deadlines.remove(id),
        };
    }
}
