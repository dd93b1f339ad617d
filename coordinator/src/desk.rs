//! The clocks of the permission desk (spec 5.3). Who decides first is decided by the session's actor, which
//! takes one answer at a time: the first that finds a request open claims it, later ones learn who did.
//!
//! A request's clock runs only while its worker is connected; it stands still otherwise.

use std::collections::HashMap;

use swarm_protocol::PermissionRequestId;
use tokio::time::{Duration, Instant};

/// A request's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// Runs out at this moment.
    Runs { until: Instant },
    /// Stands still with this much left.
    Stands { left: Duration },
}

/// The clocks of all open requests of a session. Pure but for the moments passed in.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    clocks: HashMap<PermissionRequestId, Clock>,
    /// Requests whose clock was set, stopped or taken away since the last look.
    changed: Vec<PermissionRequestId>,
}

impl Desk {
    /// Clocks of requests that a restart found open: they stand until their worker is back, and begin anew,
    /// for nobody knows how much of them had passed.
    pub(crate) fn new(open: impl Iterator<Item = (PermissionRequestId, Duration)>) -> Self {
        Self {
            clocks: open.map(|(id, timeout)| (id, Clock::Stands { left: timeout })).collect(),
            changed: Vec::new(),
        }
    }

    /// A request came in; its worker is connected.
    pub(crate) fn open(&mut self, id: PermissionRequestId, timeout: Duration, now: Instant) {
        self.changed.push(id.clone());
        self.clocks.entry(id).or_insert(Clock::Runs { until: now + timeout });
    }

    /// A request is settled.
    pub(crate) fn close(&mut self, id: &PermissionRequestId) {
        self.clocks.remove(id);
        self.changed.push(id.clone());
    }

    /// Its worker is connected: the clock runs.
    pub(crate) fn run(&mut self, id: &PermissionRequestId, now: Instant) {
        if let Some(clock) = self.clocks.get_mut(id)
            && let Clock::Stands { left } = *clock
        {
            *clock = Clock::Runs { until: now + left };
            self.changed.push(id.clone());
        }
    }

    /// Its worker is away: the clock stands.
    pub(crate) fn stand(&mut self, id: &PermissionRequestId, now: Instant) {
        if let Some(clock) = self.clocks.get_mut(id)
            && let Clock::Runs { until } = *clock
        {
            *clock = Clock::Stands { left: until.saturating_duration_since(now) };
            self.changed.push(id.clone());
        }
    }

    /// Requests whose clock changed since the last call.
    pub(crate) fn changed(&mut self) -> Vec<PermissionRequestId> {
        std::mem::take(&mut self.changed)
    }

    /// When the next clock runs out.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.clocks
            .values()
            .filter_map(|clock| match clock {
                Clock::Runs { until } => Some(*until),
                Clock::Stands { .. } => None,
            })
            .min()
    }

    /// When a request's clock runs out, if it runs.
    pub(crate) fn left(&self, id: &PermissionRequestId, now: Instant) -> Option<Duration> {
        match self.clocks.get(id)? {
            Clock::Runs { until } => Some(until.saturating_duration_since(now)),
            Clock::Stands { .. } => None,
        }
    }

    /// Requests whose clock ran out.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<PermissionRequestId> {
        let out = |clock: &Clock| matches!(clock, Clock::Runs { until } if *until <= now);
        self.clocks.iter().filter(|(_, clock)| out(clock)).map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_stands_while_its_worker_is_away() {
        let id: PermissionRequestId = "req-3f2".parse().unwrap();
        let mut desk = Desk::default();
        let start = Instant::now();
        desk.open(id.clone(), Duration::from_secs(600), start);
        // A repeat of the request does not wind the clock up again.
        desk.open(id.clone(), Duration::from_secs(600), start + Duration::from_secs(100));
        assert_eq!(desk.next_deadline(), Some(start + Duration::from_secs(600)));
        desk.stand(&id, start + Duration::from_secs(599));
        assert!(desk.overdue(start + Duration::from_secs(9_999)).is_empty());
        desk.run(&id, start + Duration::from_secs(10_000));
        assert!(desk.overdue(start + Duration::from_secs(10_000)).is_empty());
        assert_eq!(desk.overdue(start + Duration::from_secs(10_001)), std::slice::from_ref(&id));
        desk.close(&id);
        assert_eq!(desk.next_deadline(), None);
    }
}
