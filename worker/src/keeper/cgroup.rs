//! A cgroup v2 for a run, where one can be made. It makes the last blow atomic and knows about a
//! death by memory; without it the run is ended process by process just the same.

use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel empties a killed group in milliseconds.
const EMPTY_TRIES: u32 = 100;
const EMPTY_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// A group below the keeper's own; `None` where that is not allowed.
    pub(super) fn create() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mount = mount_of_version_2(&mounts)?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let path = mount.join(own).join(format!("swarm-run-{}", std::process::id()));
        // Left over from a former process of this id, it is empty: a group with members cannot go.
        let _absent = fs::remove_dir(&path);
        fs::create_dir(&path).ok()?;
        if path.join("cgroup.kill").exists() {
            return Some(Self(path));
        }
        let _kept = fs::remove_dir(&path);
        None
    }

    /// Best effort: a worker outside its group is found by the other ways.
    pub(super) fn add(&self, pid: Pid) {
        let _refused = fs::write(self.0.join("cgroup.procs"), pid.to_string());
    }

    /// Kills what is left and removes the group. Says whether the kernel killed for want of memory.
    pub(super) fn end(self) -> Option<bool> {
        let oom = fs::read_to_string(self.0.join("memory.events")).ok().and_then(|events| {
            let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            Some(count.trim() != "0")
        });
        let _refused = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..EMPTY_TRIES {
            if remove(&self.0) {
                break;
            }
            std::thread::sleep(EMPTY_PAUSE);
        }
        oom
    }
}

/// Removes a group with the groups inside it; the files in it are not real.
fn remove(path: &Path) -> bool {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
            }
        }
    }
    fs::remove_dir(path).is_ok()
}

fn mount_of_version_2(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let is_cgroup = after.split(' ').next() == Some("cgroup2");
        let point = before.split(' ').nth(4)?;
        is_cgroup.then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_among_others() {
        let text = "25 1 0:22 / /sys rw - sysfs sysfs rw\n\
                    30 25 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of_version_2(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_of_version_2("x"), None);
    }
}
