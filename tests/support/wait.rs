//! Waiting for something that tells nobody when it happens: a file, a process, an answer of the API.
//!
//! Where an event can be waited for (a gate, a request, a line of output), wait for that instead.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

/// For what should take a moment, on a machine that may be busy.
pub const SOON: Duration = Duration::from_secs(20);
/// For what starts processes, builds or runs several turns.
pub const LATER: Duration = Duration::from_secs(90);

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Tries until it succeeds.
///
/// # Panics
/// At the deadline, with `what` and the reason of the last failure.
pub async fn eventually<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let mut tries = Tries::until(deadline);
    loop {
        match attempt().await {
            Ok(found) => return found,
            Err(failure) => tokio::time::sleep(tries.pause_after(what, &failure)).await,
        }
    }
}

/// As [`eventually`], for a condition that either holds or not.
///
/// # Panics
/// At the deadline.
pub async fn until(deadline: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    eventually(deadline, what, async || if holds().await { Ok(()) } else { Err("no") }).await;
}

/// As [`eventually`], without a runtime.
///
/// # Panics
/// At the deadline.
pub fn eventually_blocking<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> T {
    let mut tries = Tries::until(deadline);
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(failure) => std::thread::sleep(tries.pause_after(what, &failure)),
        }
    }
}

struct Tries {
    start: Instant,
    deadline: Duration,
    n: u32,
    pause: Duration,
}

impl Tries {
    fn until(deadline: Duration) -> Self {
        Self { start: Instant::now(), deadline, n: 0, pause: FIRST_PAUSE }
    }

    /// How long to wait before the next try.
    fn pause_after(&mut self, what: &str, failure: &dyn Display) -> Duration {
        self.n += 1;
        let waited = self.start.elapsed();
        let n = self.n;
        assert!(
            waited < self.deadline,
            "{what}: not after {waited:.1?} and {n} tries; the last said: {failure}"
        );
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_tries_again() {
        let mut n = 0;
        let attempt = async || {
            n += 1;
            if n == 3 { Ok(n) } else { Err(format!("try {n}")) }
        };
        assert_eq!(eventually(SOON, "a third try", attempt).await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "pigs fly: not after")]
    async fn it_says_what_it_waited_for() {
        until(Duration::from_millis(5), "pigs fly", async || false).await;
    }
}
