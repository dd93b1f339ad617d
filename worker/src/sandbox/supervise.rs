//! A single-threaded parent that loses nobody: as subreaper every descendant stays below it, so
//! double forks, new sessions and emptied environments do not get away. Used by the exec helper
//! for one command and by the keeper for a run.

use super::guard::{Bounds, Guard, TICK};
use crate::shell::processes::{self, EndTiming, Ended, ProcessStat, descendants_of, live_processes};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};
use swarm_protocol::process::ProcessExit;

/// Before looking again for a child that was not seen.
const MISSED_PAUSE: Duration = Duration::from_millis(5);

/// How a child is watched, and what a request to stop (SIGTERM, SIGINT) does.
#[derive(Debug, Clone)]
pub struct Supervision {
    pub stop: StopOrder,
    /// For what is left when the child has ended by itself.
    pub leftovers: EndTiming,
    /// `KEY`, `value`: what carries it belongs to the tree even if it hangs elsewhere.
    pub marker: Option<(String, String)>,
    /// The first process of a pid namespace: left alone until all else is gone, then killed, and with it
    /// whatever was missed in there.
    pub spared: Option<Pid>,
    /// What is looked at while the child runs; too much of it ends the tree at once.
    pub bounds: Bounds,
}

#[derive(Debug, Clone, Copy)]
pub enum StopOrder {
    /// The whole tree is told at once, and killed after the grace time; after the urgent one when SIGINT came.
    Tree { grace: Duration, urgent_grace: Duration },
    /// The child is told alone, so that it can put its house in order.
    ChildFirst { grace: Duration },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisionEnd {
    pub exit: ProcessExit,
    pub ended: Ended,
    /// Ended because this process was told to.
    pub stopped: bool,
    /// Ended because of what it had too much of, in words.
    pub exceeded: Option<String>,
}

/// Blocks the signals a supervisor waits for. Before the child is made, so that none is missed; the
/// child empties its mask again. SIGHUP is taken and ignored.
pub(crate) fn watched_signals() -> nix::Result<SignalFd> {
    prctl::set_child_subreaper(true)?;
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        mask.add(signal);
    }
    mask.thread_block()?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Waits for `child`, then ends all that is left of its tree.
pub fn supervise(signals: &SignalFd, child: Pid, plan: &Supervision) -> SupervisionEnd {
    let mut watch = Watch {
        signals,
        child,
        exit: None,
        spared: plan.spared,
        childless: false,
        stop: false,
        is_urgent: false,
    };
    watch.reap();
    let own = Pid::this().as_raw();
    let mut guard = (!plan.bounds.is_empty()).then(|| Guard::new(plan.bounds.clone()));
    let mut exceeded = None;
    while watch.exit.is_none() && !watch.stop && exceeded.is_none() {
        watch.pause(guard.is_some().then_some(TICK));
        exceeded = guard.as_mut().and_then(|guard| guard.exceeded(own));
    }
    let stopped = watch.exit.is_none() && exceeded.is_none();
    if exceeded.is_some() {
        // At a blow, where there is one to give.
        watch.kill_spared();
    }
    let timing = match (stopped, plan.stop) {
        _ if exceeded.is_some() => EndTiming::with_grace(Duration::ZERO),
        (false, _) => plan.leftovers,
        (true, StopOrder::Tree { urgent_grace, .. }) if watch.is_urgent => {
            EndTiming::with_grace(urgent_grace)
        }
        (true, StopOrder::Tree { grace, .. }) => EndTiming::with_grace(grace),
        (true, StopOrder::ChildFirst { grace }) => {
            watch.stop_child(grace);
            plan.leftovers
        }
    };
    let find = || -> Vec<ProcessStat> {
        let all = live_processes();
        let mut found = descendants_of(own, &all);
        found.retain(|stat| plan.spared.is_none_or(|spared| spared.as_raw() != stat.pid));
        if let Some((key, value)) = &plan.marker {
            for stat in processes::find_by_env_marker(key, value) {
                if stat.pid != own && !found.iter().any(|other| other.pid == stat.pid) {
                    found.push(stat);
                }
            }
        }
        found
    };
    let mut ended = Ended::default();
    if !watch.childless || plan.marker.is_some() {
        ended = processes::end_all(&find, timing, &mut |time| watch.pause(Some(time)));
        watch.reap();
    }
    watch.kill_spared();
    // A look at /proc is no snapshot and may miss a process that was just being made; the kernel's
    // word that there is no child is the proof.
    while !watch.childless && ended.survivors.is_empty() {
        watch.pause(Some(MISSED_PAUSE));
        let more = processes::end_all(&find, timing, &mut |time| watch.pause(Some(time)));
        watch.reap();
        ended.killed.extend(more.killed);
        ended.survivors.extend(more.survivors);
    }
    SupervisionEnd {
        // Without a status the child is a survivor of SIGKILL.
        exit: watch.exit.unwrap_or(ProcessExit::Signal(Signal::SIGKILL as i32)),
        ended,
        stopped,
        exceeded,
    }
}

struct Watch<'a> {
    signals: &'a SignalFd,
    child: Pid,
    exit: Option<ProcessExit>,
    /// Until it is reaped.
    spared: Option<Pid>,
    /// No child of any kind: for a subreaper that means nothing is left.
    childless: bool,
    stop: bool,
    /// It was SIGINT.
    is_urgent: bool,
}

impl Watch<'_> {
    /// Waits for a signal, at most `time`, and takes what has come.
    fn pause(&mut self, time: Option<Duration>) {
        let timeout = match time {
            None => PollTimeout::NONE,
            Some(time) => PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX),
        };
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        // An interrupted poll is as good as a signal: what follows does not block.
        let _ready: nix::Result<i32> = poll(&mut fds, timeout);
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            self.is_urgent |= number == Signal::SIGINT as i32;
            self.stop |= number == Signal::SIGTERM as i32 || number == Signal::SIGINT as i32;
        }
        self.reap();
    }

    fn reap(&mut self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.child => {
                    self.exit = Some(ProcessExit::Code(code));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.child => {
                    self.exit = Some(ProcessExit::Signal(signal as i32));
                }
                Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..))
                    if Some(pid) == self.spared =>
                {
                    self.spared = None;
                }
                Ok(WaitStatus::StillAlive) => return,
                Err(Errno::EINTR) | Ok(_) => {}
                Err(_) => {
                    self.childless = true;
                    return;
                }
            }
        }
    }

    fn kill_spared(&mut self) {
        if let Some(spared) = self.spared {
            // Not reaped yet, so the id is still its own.
            let _gone: nix::Result<()> = kill(spared, Signal::SIGKILL);
            self.reap();
        }
    }

    fn stop_child(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        // Not reaped yet, so the id is still the child's.
        let _gone: nix::Result<()> = kill(self.child, Signal::SIGTERM);
        while self.exit.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let _gone: nix::Result<()> = kill(self.child, Signal::SIGKILL);
                return;
            }
            self.pause(Some(left));
        }
    }
}
