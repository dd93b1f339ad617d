//! How long a request waits.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

use crate::link::LinkState;

/// A deadline that counts only while the server is there.
pub(super) struct Deadline {
    left: Duration,
    link: watch::Receiver<LinkState>,
    counting_since: Option<Instant>,
}

impl Deadline {
    pub(super) fn new(left: Duration, link: watch::Receiver<LinkState>) -> Self {
        Self { left, link, counting_since: None }
    }

    fn stop(&mut self) {
        if let Some(since) = self.counting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    pub(super) async fn passed(&mut self) {
        self.stop();
        loop {
            let is_connected = *self.link.borrow_and_update() == LinkState::Connected;
            self.counting_since = is_connected.then(Instant::now);
            let left = self.left;
            let count = async {
                if is_connected { tokio::time::sleep(left).await } else { std::future::pending().await }
            };
            // What was counted is kept by `stop`.
            tokio::select! {
                () = count => return,
                changed = self.link.changed() => {
                    self.stop();
                    if changed.is_err() {
                        // The link has ended with the run.
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}
