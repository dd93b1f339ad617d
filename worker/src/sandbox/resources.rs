//! Control groups of one command, where they can be made: version 1 or 2, whichever has the controller. They
//! bound processes and memory in the kernel, to the byte; [`super::guard`] looks from time to time and is always there.

use super::policy::Limits;
use super::raw;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "swarm-command-";
/// The share of the processor when it is contended: half of what others have.
const CPU_SHARES: [(&str, &str); 2] = [("cpu.shares", "512"), ("cpu.weight", "50")];
/// The kernel takes a moment to let go of a group's last process.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// The groups, removed with this.
#[derive(Debug, Default)]
pub(super) struct Groups {
    paths: Vec<PathBuf>,
}

impl Groups {
    /// What of the limits can be had.
    pub(super) fn create(limits: &Limits) -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let mut groups = Self::default();
        for own in own_groups(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup")) {
            groups.create_below(&own, limits);
        }
        groups
    }

    fn create_below(&mut self, own: &Path, limits: &Limits) {
        let path = own.join(format!("{PREFIX}{}", std::process::id()));
        remove_abandoned(own);
        if fs::create_dir(&path).is_err() {
            return;
        }
        let set = |name: &str, value: &str| {
            let file = path.join(name);
            file.exists() && fs::write(file, value).is_ok()
        };
        let mut is_of_use = false;
        if let Some(processes) = limits.processes {
            is_of_use |= set("pids.max", &processes.to_string());
        }
        if let Some(memory) = limits.memory_bytes {
            let memory = memory.to_string();
            is_of_use |= set("memory.max", &memory) || set("memory.limit_in_bytes", &memory);
            // Or the same again is taken from swap.
            let _none = set("memory.swap.max", "0") || set("memory.memsw.limit_in_bytes", &memory);
        }
        for (name, value) in CPU_SHARES {
            is_of_use |= set(name, value);
        }
        if is_of_use {
            self.paths.push(path);
        } else {
            let _kept: io::Result<()> = fs::remove_dir(path);
        }
    }

    /// Moves the calling process into the groups, before it becomes the command. Best effort: the guard looks as
    /// well.
    pub(super) fn join(&self) {
        give_way();
        for path in &self.paths {
            let _refused: io::Result<()> = fs::write(path.join("cgroup.procs"), "0");
        }
    }

    /// Whether the kernel killed for want of memory in them.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        ["memory.events", "memory.oom_control"].iter().any(|name| {
            self.paths.iter().any(|path| {
                fs::read_to_string(path.join(name)).is_ok_and(|text| {
                    text.lines()
                        .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
                })
            })
        })
    }

    /// Removes them, once nothing is in them any more.
    pub(super) fn remove(&self) {
        for path in &self.paths {
            for _ in 0..REMOVE_TRIES {
                if fs::remove_dir(path).is_ok() {
                    break;
                }
                std::thread::sleep(REMOVE_PAUSE);
            }
        }
    }
}

/// Others go first: the processor is theirs, and when memory ends this goes. Best effort, as it bounds nothing.
fn give_way() {
    const NICER: i32 = 5;
    raw::be_nice(NICER);
    let _kept: io::Result<()> = fs::write("/proc/self/oom_score_adj", "300");
}

/// Removes what a helper left that was killed. Its processes are gone with it, or keep the group busy.
fn remove_abandoned(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|id| id.parse::<u32>().ok());
        if owner.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            let _kept: io::Result<()> = fs::remove_dir(entry.path());
        }
    }
}

/// The directories of this process's own groups that hold a controller of use here.
fn own_groups(mountinfo: &str, own: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (kind, options) = (after.split(' ').next(), after.rsplit(' ').next().unwrap_or_default());
        let Some(point) = before.split(' ').nth(4) else { continue };
        let of_mount = |line: &&str| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers) = (fields.next()?, fields.next()?);
            let path = fields.next()?;
            let is_of_mount = match kind {
                Some("cgroup2") => number == "0",
                Some("cgroup") => controllers.split(',').any(|name| {
                    ["pids", "memory", "cpu"].contains(&name)
                        && options.split(',').any(|option| option == name)
                }),
                _ => false,
            };
            is_of_mount.then(|| PathBuf::from(point).join(path.trim_start_matches('/')))
        };
        let path = own.lines().find_map(|line| of_mount(&line));
        // Seen through a mount of a part of the tree, one's own path may begin above it.
        found.extend(path.map(|path| if path.is_dir() { path } else { PathBuf::from(point) }));
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let mounts = "1 0 0:1 / /proc rw - proc proc rw\n\
                      2 1 0:2 / /cg/pids rw,relatime - cgroup cgroup rw,pids\n\
                      3 1 0:3 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
                      4 1 0:4 / /cg/both rw - cgroup cgroup rw,cpu,cpuacct\n\
                      5 1 0:5 / /cg/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let own = "8:pids:/a\n7:cpu,cpuacct:/b\n6:cpuset:/c\n0::/d\n";
        // None of these is there, so the mount itself is taken.
        let expected = ["/cg/pids", "/cg/both", "/cg/unified"].map(PathBuf::from);
        assert_eq!(own_groups(mounts, own), expected);
        assert_eq!(own_groups("x\n", "y\n"), Vec::<PathBuf>::new());
    }
}
