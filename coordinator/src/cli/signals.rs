//! Signals of a follower, and of who is about to follow. Listening changes what they do: afterwards none of them ends the process by itself.

use std::io;

use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use super::error::{EXIT_HANGUP, EXIT_INTERRUPTED, EXIT_TERMINATED};

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

/// Signals that come before there is anything to follow. They are kept for the follower, which knows what to do.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) signals: Signals,
    /// What came so far and asks to stop or to leave, in order.
    pub(crate) came: Vec<Signal>,
}

/// A second signal came before the first could be acted upon: whoever sent it does not want to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impatient(pub(crate) Signal);

impl Early {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { signals: Signals::listen()?, came: Vec::new() })
    }

    /// Does this to its end, whatever comes, so that it is known what became of it; unless a second signal says
    /// that nobody wants to know.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Impatient> {
        let mut work = std::pin::pin!(work);
        loop {
            // A signal that was not taken is still there; the work goes on where it was. One that came before the work was
            // done counts as such, though both are seen at once.
            let signal = tokio::select! {
                biased;
                signal = self.signals.next() => signal,
                done = &mut work => return Ok(done),
            };
            match signal {
                Signal::Interrupt | Signal::Terminate | Signal::Hangup if self.came.is_empty() => {
                    self.came.push(signal);
                }
                Signal::Interrupt | Signal::Terminate | Signal::Hangup => return Err(Impatient(signal)),
                Signal::Suspend => suspend(),
                Signal::Resized | Signal::Continue => {}
            }
        }
    }

    /// The exit code of who was told to end before there was a session.
    pub(crate) fn exit(&self) -> Option<u8> {
        self.came.first().map(|signal| signal.exit())
    }
}

impl Signal {
    /// The exit code of who ends because of it.
    pub(crate) fn exit(self) -> u8 {
        match self {
            Self::Terminate => EXIT_TERMINATED,
            Self::Hangup => EXIT_HANGUP,
            Self::Interrupt | Self::Resized | Self::Suspend | Self::Continue => EXIT_INTERRUPTED,
        }
    }
}

/// Stops this process; returns when somebody lets it go on.
pub(crate) fn suspend() {
    let _stopped = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGSTOP);
}
