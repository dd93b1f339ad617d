//! The clock of a run: it stands still while people are waited for.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Measures a run.
#[derive(Debug)]
pub struct RunClock {
    began: Instant,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    open: usize,
    since: Option<Instant>,
    total: Duration,
}

/// A wait for people; it ends with this.
#[derive(Debug)]
#[must_use = "the clock stands still while this lives"]
pub struct Standstill<'a>(&'a RunClock);

impl Default for RunClock {
    fn default() -> Self {
        Self { began: Instant::now(), waits: Mutex::default() }
    }
}

impl RunClock {
    /// Stands still until the answer is dropped; waits may overlap.
    pub fn stand_still(&self) -> Standstill<'_> {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.open == 0 {
            waits.since = Some(Instant::now());
        }
        waits.open += 1;
        Standstill(self)
    }

    /// How long the run worked.
    pub fn worked(&self) -> Duration {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let open = waits.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.began.elapsed().saturating_sub(waits.total + open)
    }
}

impl Drop for Standstill<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.open -= 1;
        if waits.open == 0
            && let Some(since) = waits.since.take()
        {
            waits.total += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_that_overlap_count_once() {
        let clock = RunClock::default();
        let second = Duration::from_secs(1);
        tokio::time::advance(second).await;
        let one = clock.stand_still();
        tokio::time::advance(second).await;
        let two = clock.stand_still();
        tokio::time::advance(second).await;
        drop(one);
        tokio::time::advance(second).await;
        drop(two);
        tokio::time::advance(second).await;
        assert_eq!(clock.worked(), 2 * second);
        let _three = clock.stand_still();
        tokio::time::advance(second).await;
        assert_eq!(clock.worked(), 2 * second);
    }
}
