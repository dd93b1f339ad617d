//! What brings a run to its end from outside, and how its process takes its leave.

use std::{sync::Arc, time::Duration};

use super::commands::Brakes;
use crate::{
    link::{Link, LinkState},
    record::Recorder,
};

/// How long a server that is there may take to acknowledge the end.
const GOODBYE: Duration = Duration::from_secs(10 * 60);
/// How long a server that is away is waited for at the end: it reads the transcript when it comes back.
const GOODBYE_AWAY: Duration = Duration::from_secs(3);

/// Waits until the server has the end, while there is a server.
pub(super) async fn goodbye(link: &Link, recorder: &Recorder, code: i32) -> i32 {
    let Some(last) = recorder.last() else { return code };
    let mut state = link.state.clone();
    let away = async {
        loop {
            let now = state.borrow_and_update().clone();
            let changed = state.changed();
            let goes_on = match now {
                LinkState::Refused { .. } => false,
                LinkState::Connected => changed.await.is_ok(),
                // A server that comes back within the time is waited for.
                LinkState::Away => matches!(tokio::time::timeout(GOODBYE_AWAY, changed).await, Ok(Ok(()))),
            };
            if !goes_on {
                return;
            }
        }
    };
    // The record is on disk whoever wins.
    tokio::select! {
        () = link.outbox.acknowledged(last.n) => {}
        () = away => tracing::info!("the server is away; it will read the transcript"),
        () = tokio::time::sleep(GOODBYE) => tracing::warn!("the server did not acknowledge the end"),
    }
    code
}

/// SIGTERM, SIGINT and a refusing server end the run as a stop does.
pub(super) async fn watch_for_the_end(
    mut link: tokio::sync::watch::Receiver<LinkState>,
    brakes: Arc<Brakes>,
) {
    use tokio::signal::unix::{SignalKind, signal};
    let signalled = async {
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = signalled => tracing::info!("a signal ends the run"),
        Ok(_) = link.wait_for(|state| matches!(state, LinkState::Refused { .. })) => {}
    }
    brakes.stop.cancel();
}
