//! Gates: named points at which a reply waits until the test lets it go on.
//!
//! A gate is a level, not a pulse: once open it stays open, so that a test cannot lose a wake-up by opening it
//! before the reply gets there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

/// How long [`Gate::reached`] waits: longer than any honest step of a test, short enough for a useful failure.
const REACH_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    open: bool,
    waiting: usize,
    arrived: usize,
}

#[derive(Debug, Clone)]
pub struct Gate {
    name: Arc<str>,
    level: watch::Sender<Level>,
}

impl Gate {
    fn new(name: &str) -> Self {
        Self { name: name.into(), level: watch::Sender::new(Level::default()) }
    }

    /// Lets every reply through that waits here, and every later one.
    pub fn open(&self) {
        self.level.send_modify(|level| level.open = true);
    }

    /// Later replies wait here again.
    pub fn close(&self) {
        self.level.send_modify(|level| level.open = false);
    }

    pub fn is_open(&self) -> bool {
        self.level.borrow().open
    }

    /// How many replies wait here now.
    pub fn waiting(&self) -> usize {
        self.level.borrow().waiting
    }

    /// Returns as soon as any reply has come to this gate, whether or not it was open.
    ///
    /// # Panics
    /// When none has after a minute.
    pub async fn reached(&self) {
        self.reached_by(1).await;
    }

    /// As [`Gate::reached`], for `n` arrivals in all.
    ///
    /// # Panics
    /// When fewer have come after a minute.
    pub async fn reached_by(&self, n: usize) {
        let mut level = self.level.subscribe();
        let reached = tokio::time::timeout(REACH_DEADLINE, level.wait_for(|level| level.arrived >= n));
        let failed = reached.await.is_err();
        let arrived = self.level.borrow().arrived;
        assert!(
            !failed,
            "gate `{}`: {arrived} of {n} replies had come to it after {REACH_DEADLINE:?}",
            self.name
        );
    }

    /// What a reply does at this gate, or anything else that a test holds up.
    pub async fn pass(&self) {
        struct Waiting<'a>(&'a watch::Sender<Level>);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|level| level.waiting -= 1);
            }
        }
        let mut level = self.level.subscribe();
        self.level.send_modify(|level| {
            level.waiting += 1;
            level.arrived += 1;
        });
        let _waiting = Waiting(&self.level);
        // The sender is `self`, so the channel cannot close before this returns.
        let _open = level.wait_for(|level| level.open).await;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<String, Gate>>);

impl Gates {
    pub(crate) fn get(&self, name: &str) -> Gate {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(name.to_owned()).or_insert_with(|| Gate::new(name)).clone()
    }
}
