//! Signals of a follower. Listening changes what they do: afterwards none of them ends the process by itself.

use std::io;

use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

/// A signal that somebody who follows answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// ^C.
    Interrupt,
    /// Somebody ends us.
    Terminate,
    /// The terminal is gone.
    Hangup,
    /// The terminal has another size.
    Resized,
    /// ^Z.
    Suspend,
    /// We go on.
    Continue,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Listener,
    terminate: Listener,
    hangup: Listener,
    resized: Listener,
    suspend: Listener,
    go_on: Listener,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
            suspend: signal(SignalKind::from_raw(nix::libc::SIGTSTP))?,
            go_on: signal(SignalKind::from_raw(nix::libc::SIGCONT))?,
        })
    }

    /// The next one. Safe to cancel: a signal that was not taken is still there.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.hangup.recv() => Signal::Hangup,
            _ = self.resized.recv() => Signal::Resized,
            _ = self.suspend.recv() => Signal::Suspend,
            _ = self.go_on.recv() => Signal::Continue,
        }
    }
}
