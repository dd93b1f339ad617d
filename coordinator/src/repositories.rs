//! Git as this server uses it: with its patience for locks of other programs, and with news of a wait where
//! people look.

use std::{path::Path, sync::Arc, time::Duration};

use swarm_protocol::{
    SessionId, WorkerId,
    event::{Event, EventLine},
    frame::Live,
};
use worktree_manager::{GitConfig, LockPatience, Manager, OpenError, Progress, Repository};

use crate::{clock, journal::Journal as _, server::Shared};

/// How git is called, with this patience.
pub(crate) fn git_config(lock_wait: Duration) -> GitConfig {
    let lock_patience = LockPatience { limit: lock_wait, ..LockPatience::default() };
    GitConfig { lock_patience, ..GitConfig::default() }
}

/// Opens a repository that worktrees are made in or merged into.
///
/// # Errors
/// [`OpenError`].
pub(crate) async fn open(shared: &Shared, path: &Path) -> Result<Repository, OpenError> {
    Repository::open_with(path, git_config(shared.settings.git_lock_wait)).await
}

/// Worktrees of a repository, on behalf of one worker: what is waited for is its activity.
pub(crate) fn manager(
    shared: &Arc<Shared>,
    session: SessionId,
    worker_id: &WorkerId,
    repository: Repository,
    root: &Path,
) -> Manager {
    Manager::with_progress(repository, root, progress(shared, session, worker_id))
}

/// Tells of a wait as live news of the worker.
pub(crate) fn progress(shared: &Arc<Shared>, session: SessionId, worker_id: &WorkerId) -> Progress {
    let (shared, worker_id) = (Arc::downgrade(shared), worker_id.clone());
    Arc::new(move |event| {
        let Some(shared) = shared.upgrade() else { return };
        let text = event.to_string();
        shared.live.note_wait(&worker_id, Some(text.clone()));
        let live = Live::Activity { text, context_tokens: None, context_window: None };
        shared.journal.publish_live(EventLine {
            seq: None,
            at: clock::now(),
            session_id: Some(session),
            position: None,
            event: Event::Live { worker_id: Some(worker_id.clone()), after: shared.live.seq(session), live },
        });
    })
}
