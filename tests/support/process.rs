//! Processes of a test: finding what it left behind, and ending that by id.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A process as /proc shows it. With its start time, for ids are used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub start_time: u64,
    pub state: char,
    pub command: String,
}

impl Process {
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; what follows the last one may not.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
            state: fields.first()?.chars().next()?,
            command: command.trim_end().to_owned(),
        })
    }

    /// Whether this very process still runs. A zombie does not, unless it is the first of several threads: then
    /// the others still hold its files and locks.
    pub fn is_alive(&self) -> bool {
        let n_threads = || fs::read_dir(format!("/proc/{}/task", self.pid)).map_or(0, Iterator::count);
        Self::read(self.pid)
            .is_some_and(|now| now.start_time == self.start_time && (now.state != 'Z' || n_threads() > 1))
    }

    /// Whether it was there to be signalled.
    pub fn signal(&self, signal: Signal) -> bool {
        self.is_alive() && kill(Pid::from_raw(self.pid), signal).is_ok()
    }
}

/// Every process that belongs to a directory: its environment or its arguments name it, or it works inside it.
pub fn of_directory(directory: &Path) -> Vec<Process> {
    let name = directory.as_os_str().as_bytes();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if pid == std::process::id().cast_signed() {
            continue;
        }
        let names_it = |file: &str| {
            let content = fs::read(entry.path().join(file)).unwrap_or_default();
            content.windows(name.len()).any(|window| window == name)
        };
        let works_there = || {
            let at = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            at.starts_with(directory)
        };
        if (names_it("environ") || names_it("cmdline") || works_there())
            && let Some(process) = Process::read(pid)
            && process.state != 'Z'
        {
            found.insert(pid, process);
        }
    }
    found.into_values().collect()
}

/// Children of a process, and theirs.
pub fn descendants(pid: i32) -> Vec<Process> {
    let all: Vec<Process> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|process| process.parent == parent);
        for child in children {
            parents.push(child.pid);
            found.push(child.clone());
        }
    }
    found
}

/// Directories directly inside one that may be missing.
pub(crate) fn directories(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::wait::{SOON, eventually_blocking};

    #[test]
    fn processes_of_a_directory_are_found_and_ended_by_id() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut by_environment = Command::new("sleep");
        by_environment.arg("1000").env("HOME", directory.path());
        let mut by_directory = Command::new("sleep");
        by_directory.arg("1000").current_dir(directory.path());
        let mut children = [by_environment, by_directory]
            .map(|mut command| command.stdin(Stdio::null()).spawn().expect("sleep can be started"));
        let mine = std::process::id().cast_signed();
        for child in &children {
            let pid = child.id().cast_signed();
            // Until exec, the child still has our environment.
            let found =
                || of_directory(directory.path()).into_iter().find(|p| p.pid == pid).ok_or("not found");
            let process = eventually_blocking(SOON, "the process", found);
            // What it does at this moment, and before exec its command, may have changed since.
            assert!(
                descendants(mine)
                    .iter()
                    .any(|other| { (other.pid, other.start_time) == (process.pid, process.start_time) })
            );
            assert!(process.is_alive() && process.signal(Signal::SIGKILL));
        }
        for child in &mut children {
            child.wait().expect("the child ends");
        }
        assert_eq!(of_directory(directory.path()), []);
    }
}
