//! The clocks of the permission desk (spec 5.3). Who decides first is decided by the session's actor, which
//! takes one answer at a time: the first that finds a request open claims it, later ones learn who did.
//!
//! A request's clock runs only while its worker is connected; it stands still otherwise.

use std::collections::HashMap;

use swarm_protocol::PermissionRequestId;
use tokio::time::{Duration, Instant};

/// A wait for a person longer than this is news for the coordinator (spec 6.4).
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(60);

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
    /// When requests came in whose long wait was not reported yet.
    waits: HashMap<PermissionRequestId, Instant>,
    /// Requests whose clock was set, stopped or taken away since the last look.
    changed: Vec<PermissionRequestId>,
}

impl Desk {
    /// Clocks of requests that a restart found open: they stand until their worker is back, and begin anew,
    /// for nobody knows how much of them had passed.
    pub(crate) fn new(open: impl Iterator<Item = (PermissionRequestId, Duration)>) -> Self {
        Self {
            clocks: open.map(|(id, timeout)| (id, Clock::Stands { left: timeout })).collect(),
            waits: HashMap::new(),
            changed: Vec::new(),
        }
    }

    /// A request came in; its worker is connected.
    pub(crate) fn open(&mut self, id: PermissionRequestId, timeout: Duration, now: Instant) {
        self.changed.push(id.clone());
        self.waits.entry(id.clone()).or_insert(now);
        self.clocks.entry(id).or_insert(Clock::Runs { until: now + timeout });
    }

    /// A request is settled.
    pub(crate) fn close(&mut self, id: &PermissionRequestId) {
        self.clocks.remove(id);
        self.waits.remove(id);
        self.changed.push(id.clone());
    }

    /// A decision by time could not be stored: it is tried again at this moment.
    pub(crate) fn postpone(&mut self, id: &PermissionRequestId, until: Instant) {
        if let Some(clock) = self.clocks.get_mut(id) {
            *clock = Clock::Runs { until };
        }
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

    /// Requests that have waited longer than [`LONG_WAIT`]; each is told once.
    pub(crate) fn long_waits(&mut self, now: Instant) -> Vec<PermissionRequestId> {
        let long = |since: &Instant| now.saturating_duration_since(*since) >= LONG_WAIT;
        let ids: Vec<_> =
            self.waits.iter().filter(|(_, since)| long(since)).map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.waits.remove(id);
        }
        ids
    }

    /// When the next clock runs out, or the next wait becomes a long one.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let clocks = self.clocks.values().filter_map(|clock| match clock {
            Clock::Runs { until } => Some(*until),
            Clock::Stands { .. } => None,
        });
        clocks.chain(self.waits.values().map(|since| *since + LONG_WAIT)).min()
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
        assert_eq!(desk.next_deadline(), Some(start + LONG_WAIT));
        assert!(desk.long_waits(start).is_empty());
        assert_eq!(desk.long_waits(start + LONG_WAIT), std::slice::from_ref(&id));
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
