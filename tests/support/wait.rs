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
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    loop {
        tries += 1;
        let failure = match attempt().await {
            Ok(found) => return found,
            Err(failure) => failure,
        };
        let waited = start.elapsed();
        assert!(
            waited < deadline,
            "{what}: not after {waited:.1?} and {tries} tries; the last said: {failure}"
        );
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
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
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let failure = match attempt() {
            Ok(found) => return found,
            Err(failure) => failure,
        };
        let waited = start.elapsed();
        assert!(waited < deadline, "{what}: not after {waited:.1?}; the last try said: {failure}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
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
