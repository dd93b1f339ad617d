//! The process group of a command, and its end.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Between the polite and the hard signal: git removes its lock files on the first.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// The same when the caller has gone and a thread of the runtime is held up.
const DROP_GRACE: Duration = Duration::from_millis(200);

/// Ends the process group of a command whose future is dropped.
pub(super) struct Group(pub(super) Option<u32>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) {
            // A group that is gone already is the aim.
            let _gone = killpg(Pid::from_raw(id), signal);
        }
    }

    pub(super) fn end(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub(super) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Whether the leader has ended within `limit`; it is left for the runtime to reap.
    fn gone_within(&self, limit: Duration) -> bool {
        let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) else {
            return true;
        };
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let end = std::time::Instant::now() + limit;
        loop {
            match waitid(Id::Pid(Pid::from_raw(id)), flags) {
                Ok(WaitStatus::StillAlive) if std::time::Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(WaitStatus::StillAlive) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

/// A dropped command must have ended before the locks of its caller are released, or it would write
/// to a repository that somebody else works in already. This blocks, but git ends in a millisecond.
impl Drop for Group {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.end();
            if !self.gone_within(DROP_GRACE) {
                self.kill();
                self.gone_within(DROP_GRACE);
            }
        }
    }
}
