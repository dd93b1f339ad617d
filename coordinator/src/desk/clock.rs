//! How long requests wait. Pure but for the moments passed in.

use std::collections::BTreeMap;

use swarm_protocol::PermissionRequestId;
use tokio::time::{Duration, Instant};

/// A wait for a person longer than this is news for the coordinator (spec 6.4).
pub(super) const LONG_WAIT: Duration = Duration::from_secs(60);

/// A request's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Clock {
    /// Runs out at this moment.
    Runs { until: Instant },
    /// Stands still with this much left.
    Stands { left: Duration },
}

/// The clocks of all requests that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Clocks {
    clocks: BTreeMap<PermissionRequestId, Clock>,
    /// When requests came in whose long wait was not reported yet.
    waits: BTreeMap<PermissionRequestId, Instant>,
    /// Requests whose clock was set, stopped or taken away since the last look.
    changed: Vec<PermissionRequestId>,
}

impl Clocks {
    pub(super) fn restore(&mut self, id: PermissionRequestId, clock: Clock) {
        self.clocks.insert(id, clock);
    }

    pub(super) fn open(&mut self, id: PermissionRequestId, timeout: Duration, now: Instant) {
        self.changed.push(id.clone());
        self.waits.entry(id.clone()).or_insert(now);
        self.clocks.entry(id).or_insert(Clock::Runs { until: now + timeout });
    }

    pub(super) fn close(&mut self, id: &PermissionRequestId) {
        self.clocks.remove(id);
        self.waits.remove(id);
        self.changed.push(id.clone());
    }

    /// A clock that ran out runs on until this moment; others are left as they are.
    pub(super) fn postpone(&mut self, id: &PermissionRequestId, until: Instant) {
        if let Some(Clock::Runs { until: end }) = self.clocks.get_mut(id) {
            *end = (*end).max(until);
        }
    }

    pub(super) fn run(&mut self, id: &PermissionRequestId, now: Instant) {
        if let Some(clock) = self.clocks.get_mut(id)
            && let Clock::Stands { left } = *clock
        {
            *clock = Clock::Runs { until: now + left };
            self.changed.push(id.clone());
        }
    }

    pub(super) fn stand(&mut self, id: &PermissionRequestId, now: Instant) {
        if let Some(clock) = self.clocks.get_mut(id)
            && let Clock::Runs { until } = *clock
        {
            *clock = Clock::Stands { left: until.saturating_duration_since(now) };
            self.changed.push(id.clone());
        }
    }

    pub(super) fn changed(&mut self) -> Vec<PermissionRequestId> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn long_waits(&mut self, now: Instant) -> Vec<PermissionRequestId> {
        let long = |since: &Instant| now.saturating_duration_since(*since) >= LONG_WAIT;
        let ids: Vec<_> =
            self.waits.iter().filter(|(_, since)| long(since)).map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.waits.remove(id);
        }
        ids
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let clocks = self.clocks.values().filter_map(|clock| match clock {
            Clock::Runs { until } => Some(*until),
            Clock::Stands { .. } => None,
        });
        clocks.chain(self.waits.values().map(|since| *since + LONG_WAIT)).min()
    }

    pub(super) fn left(&self, id: &PermissionRequestId, now: Instant) -> Option<Duration> {
        match self.clocks.get(id)? {
            Clock::Runs { until } => Some(until.saturating_duration_since(now)),
            Clock::Stands { .. } => None,
        }
    }

    pub(super) fn overdue(&self, now: Instant) -> Vec<PermissionRequestId> {
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
        let mut clocks = Clocks::default();
        let start = Instant::now();
        clocks.open(id.clone(), Duration::from_secs(600), start);
        // A repeat of the request does not wind the clock up again.
        clocks.open(id.clone(), Duration::from_secs(600), start + Duration::from_secs(100));
        assert_eq!(clocks.next_deadline(), Some(start + LONG_WAIT));
        assert!(clocks.long_waits(start).is_empty());
        assert_eq!(clocks.long_waits(start + LONG_WAIT), std::slice::from_ref(&id));
        assert_eq!(clocks.next_deadline(), Some(start + Duration::from_secs(600)));
        clocks.stand(&id, start + Duration::from_secs(599));
        assert!(clocks.overdue(start + Duration::from_secs(9_999)).is_empty());
        clocks.run(&id, start + Duration::from_secs(10_000));
        assert!(clocks.overdue(start + Duration::from_secs(10_000)).is_empty());
        assert_eq!(clocks.overdue(start + Duration::from_secs(10_001)), std::slice::from_ref(&id));
        clocks.close(&id);
        assert_eq!(clocks.next_deadline(), None);
    }
}
