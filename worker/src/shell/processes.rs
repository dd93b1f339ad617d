//! Looking at processes and ending them: identities that survive the reuse of ids, descendants,
//! the environment marker, and the escalation from SIGTERM to SIGKILL. Synchronous and without a
//! runtime, because the keeper and the exec helper use it too.

use crate::sandbox::PidFd;
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use swarm_protocol::process::{KilledProcess, ProcessIdentity};

/// How long a command line may be in a report.
const MAX_COMMAND_CHARS: usize = 200;
/// How long a look waits for processes in the middle of `execve`; a busy machine may leave one there
/// for some time slices.
const SETTLE_TRIES: u32 = 200;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
/// Pause between two looks at what is left.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// One line of `/proc/<pid>/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessStat {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
    pub start_time: u64,
    /// Ended, but not yet waited for.
    pub is_zombie: bool,
}

/// The identity of a live process; `None` when there is none (a zombie is none).
#[must_use]
pub fn identity_of(pid: i32) -> Option<ProcessIdentity> {
    let stat = stat_of(pid).filter(|stat| !stat.is_zombie)?;
    Some(ProcessIdentity { pid, start_time: stat.start_time, boot_id: boot_id()? })
}

/// Whether exactly this process still runs.
#[must_use]
pub fn is_alive(identity: &ProcessIdentity) -> bool {
    identity_of(identity.pid).as_ref() == Some(identity)
}

#[must_use]
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

#[must_use]
pub fn stat_of(pid: i32) -> Option<ProcessStat> {
    let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&bytes))
}

/// The name in parentheses may itself hold spaces and parentheses; the fields start after the last.
fn parse_stat(pid: i32, text: &str) -> Option<ProcessStat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let threads: i32 = fields.get(17)?.parse().ok()?;
    Some(ProcessStat {
        pid,
        // A first thread that has ended shows as a zombie while others still run.
        is_zombie: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// All processes that can be seen, zombies left out.
#[must_use]
pub fn live_processes() -> Vec<ProcessStat> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(stat_of)
        .filter(|stat| !stat.is_zombie)
        .collect()
}

/// Live processes that have `root` among their ancestors; `root` itself is not one of them.
#[must_use]
pub fn descendants_of(root: i32, all: &[ProcessStat]) -> Vec<ProcessStat> {
    let mut family = BTreeSet::from([root]);
    let mut found = BTreeSet::new();
    // Ids wrap around, so a child may stand before its parent: go over the list until it is stable.
    loop {
        let before = found.len();
        for stat in all {
            if family.contains(&stat.parent) && stat.pid != root && found.insert(*stat) {
                family.insert(stat.pid);
            }
        }
        if found.len() == before {
            return found.into_iter().collect();
        }
    }
}

/// Live processes that were started with `key=value` in their environment, wherever they hang now.
#[must_use]
pub fn find_by_env_marker(key: &str, value: &str) -> Vec<ProcessStat> {
    let mut found = live_processes();
    found.retain(|stat| has_marker(stat.pid, key, value));
    found
}

fn has_marker(pid: i32, key: &str, value: &str) -> bool {
    let marker = format!("{key}={value}");
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes()))
}

/// A process in the middle of `execve` has neither environment nor arguments for a moment, so that
/// no marker can be seen on it. Kernel threads never have them, but no program either.
fn is_in_exec(pid: i32) -> bool {
    let is_empty =
        |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|bytes| bytes.is_empty());
    is_empty("environ") && is_empty("cmdline") && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// The command line for a report, or the short name of a process without one.
#[must_use]
pub fn command_of(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let name = if line.trim().is_empty() {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
    } else {
        line
    };
    name.trim()
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(MAX_COMMAND_CHARS)
        .collect()
}

/// Sends a signal to exactly this process. `false` when it is gone or not ours to signal.
pub fn signal(stat: &ProcessStat, signal: Signal) -> bool {
    // The descriptor is opened first and compared afterwards, so that the id cannot change hands.
    let Ok(process) = PidFd::open(stat.pid) else {
        return false;
    };
    stat_of(stat.pid).is_some_and(|now| now.start_time == stat.start_time) && process.send(signal).is_ok()
}

/// How patient the end of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTiming {
    /// Time to end unasked: the `tee` of a process substitution outlives its shell by a moment.
    pub natural: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How long SIGKILL is repeated before a process counts as a survivor.
    pub kill: Duration,
}

impl EndTiming {
    #[must_use]
    pub fn with_grace(grace: Duration) -> Self {
        Self { natural: Duration::ZERO, grace, kill: Duration::from_secs(5) }
    }
}

/// What ending a tree took.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Got a signal and is gone.
    pub killed: Vec<KilledProcess>,
    /// Still there after `EndTiming::kill`.
    pub survivors: Vec<KilledProcess>,
}

/// Ends what `find` finds, until it finds nothing. `pause` waits at most the given time; a parent
/// reaps in it.
pub fn end_all(
    find: &dyn Fn() -> Vec<ProcessStat>,
    timing: EndTiming,
    pause: &mut dyn FnMut(Duration),
) -> Ended {
    let begin = Instant::now();
    let mut told: BTreeMap<ProcessStat, KilledProcess> = BTreeMap::new();
    loop {
        let left = find();
        if left.is_empty() {
            return Ended { killed: told.into_values().collect(), survivors: Vec::new() };
        }
        let elapsed = begin.elapsed();
        let kill_from = timing.natural + timing.grace;
        if elapsed >= timing.natural {
            for stat in &left {
                // A child handed to a new parent is still the same process.
                let key = ProcessStat { parent: 0, ..*stat };
                if told.contains_key(&key) {
                    continue;
                }
                let command = command_of(stat.pid);
                if elapsed < kill_from {
                    signal(stat, Signal::SIGTERM);
                    // A stopped process takes SIGTERM only once it runs again.
                    signal(stat, Signal::SIGCONT);
                }
                let pid = stat.pid;
                told.insert(key, KilledProcess { pid, command });
            }
        }
        if elapsed >= kill_from {
            // Stopped first, so that nothing forks while the others are being killed.
            for stat in &left {
                signal(stat, Signal::SIGSTOP);
            }
            for stat in &left {
                signal(stat, Signal::SIGKILL);
            }
        }
        if elapsed >= kill_from + timing.kill {
            let survives = |stat: &ProcessStat| left.iter().any(|other| other.pid == stat.pid);
            let (survivors, killed): (Vec<_>, Vec<_>) =
                told.into_iter().partition(|(stat, _)| survives(stat));
            let named = |list: Vec<(ProcessStat, KilledProcess)>| {
                list.into_iter().map(|(_, process)| process).collect()
            };
            return Ended { killed: named(killed), survivors: named(survivors) };
        }
        pause(LOOK_AGAIN);
    }
}

/// Ends `root`, its descendants and whatever carries the marker; blocks until all are gone.
/// This process itself is always spared.
pub fn kill_tree(root: Option<i32>, marker: Option<(&str, &str)>, timing: EndTiming) -> Ended {
    let own = std::process::id().cast_signed();
    let look = || {
        let all = live_processes();
        let mut found = BTreeSet::new();
        if let Some(root) = root {
            found.extend(descendants_of(root, &all));
            found.extend(all.iter().filter(|stat| stat.pid == root));
        }
        if let Some((key, value)) = marker {
            found.extend(all.iter().filter(|stat| has_marker(stat.pid, key, value)));
        }
        found.retain(|stat| stat.pid != own);
        (Vec::from_iter(found), all)
    };
    let find = || {
        for _ in 0..SETTLE_TRIES {
            let (found, all) = look();
            let is_settled = marker.is_none() || !all.iter().any(|stat| is_in_exec(stat.pid));
            if !found.is_empty() || is_settled {
                return found;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        look().0
    };
    end_all(&find, timing, &mut std::thread::sleep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let text = "7 (a) b (c)) S 1 7 5 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4321 0 0";
        let stat = parse_stat(7, text).unwrap();
        assert_eq!((stat.parent, stat.session), (1, 5));
        assert_eq!(stat.start_time, 4321);
        assert!(!stat.is_zombie);
    }

    #[test]
    fn this_process_is_alive_and_a_former_holder_of_its_id_is_not() {
        let own = identity_of(std::process::id().cast_signed()).unwrap();
        assert!(is_alive(&own));
        let former = ProcessIdentity { start_time: own.start_time - 1, ..own.clone() };
        assert!(!is_alive(&former));
        let other_boot = ProcessIdentity { boot_id: "another".to_owned(), ..own };
        assert!(!is_alive(&other_boot));
    }

    #[test]
    fn descendants_are_found_whatever_the_order_of_ids() {
        let process = |pid, parent| ProcessStat { pid, parent, session: 0, start_time: 0, is_zombie: false };
        let all = [process(2, 9), process(5, 1), process(9, 1), process(3, 2)];
        let found: Vec<i32> = descendants_of(9, &all).iter().map(|stat| stat.pid).collect();
        assert_eq!(found, [2, 3]);
    }
}
