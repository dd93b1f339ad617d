//! Looks at what a command uses, for where the kernel does not bound it, and says when it is too much.

use crate::shell::processes::{descendants_of, live_processes};
use nix::sys::statvfs::statvfs;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two cheap looks.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Between two thorough looks, unless a cheap one found reason.
const THOROUGH: Duration = Duration::from_secs(3);
/// Entries of a directory tree that are counted before it is called full.
const MOST_ENTRIES: u64 = 1_000_000;

/// What is bounded by looking.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    pub processes: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// A directory, and how many bytes its files may take.
    pub directory: Option<(PathBuf, u64)>,
}

impl Bounds {
    pub(crate) fn is_empty(&self) -> bool {
        self.processes.is_none() && self.memory_bytes.is_none() && self.directory.is_none()
    }
}

#[derive(Debug)]
pub(crate) struct Guard {
    bounds: Bounds,
    before: Machine,
    looked: Instant,
}

/// What one read tells about the whole machine.
#[derive(Debug, Clone, Copy, Default)]
struct Machine {
    tasks: u64,
    available_bytes: u64,
    /// Of files in memory.
    shared_bytes: u64,
    free_bytes: u64,
}

impl Guard {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let before = Machine::read(&bounds);
        Self { bounds, before, looked: Instant::now() }
    }

    /// What there is too much of, in words, below the process `root`.
    pub(crate) fn exceeded(&mut self, root: i32) -> Option<String> {
        let now = Machine::read(&self.bounds);
        let reason = |bound: Option<u64>, grown: u64| bound.is_some_and(|bound| grown >= bound / 4);
        let has_reason = reason(self.bounds.processes, now.tasks.saturating_sub(self.before.tasks))
            || reason(
                self.bounds.memory_bytes,
                self.before.available_bytes.saturating_sub(now.available_bytes),
            );
        let bytes = self.bounds.directory.as_ref().map(|(_, bytes)| *bytes);
        let disk_has_reason = reason(bytes, self.before.free_bytes.saturating_sub(now.free_bytes));
        let is_time = self.looked.elapsed() >= THOROUGH;
        if has_reason || is_time {
            self.looked = Instant::now();
            let shared_grown = now.shared_bytes.saturating_sub(self.before.shared_bytes);
            // What others gave back hides what this one took, so that now and then it is looked for without a reason.
            let looks_at_files = is_time || reason(self.bounds.memory_bytes, shared_grown);
            if let Some(what) = self.too_many(root, looks_at_files) {
                return Some(what);
            }
        }
        if disk_has_reason && let Some((directory, bytes)) = &self.bounds.directory {
            // Counted afresh only when as much again is gone.
            self.before.free_bytes = now.free_bytes;
            if size_of_tree(directory) > *bytes {
                return Some(format!("more than {} MiB in its temp directory", bytes >> 20));
            }
        }
        None
    }

    fn too_many(&self, root: i32, looks_at_files: bool) -> Option<String> {
        if self.bounds.processes.is_none() && self.bounds.memory_bytes.is_none() {
            return None;
        }
        let all = descendants_of(root, &live_processes());
        if let Some(most) = self.bounds.processes {
            let threads =
                |pid: i32| fs::read_dir(format!("/proc/{pid}/task")).map_or(1, Iterator::count) as u64;
            if all.iter().map(|stat| threads(stat.pid)).sum::<u64>() > most {
                return Some(format!("more than {most} processes and threads"));
            }
        }
        let most = self.bounds.memory_bytes?;
        let used: Vec<Resident> = all.iter().map(|stat| Resident::of(stat.pid)).collect();
        let own: u64 = used.iter().map(|resident| resident.own).sum();
        // Shared pages count for each process that has them mapped, which errs on the safe side.
        let mapped: u64 = used.iter().map(|resident| resident.shared).sum();
        let in_files =
            if looks_at_files { bytes_in_memory_files(all.iter().map(|stat| stat.pid)) } else { 0 };
        (own + mapped.max(in_files) > most).then(|| format!("more than {} MiB of memory", most >> 20))
    }
}

impl Machine {
    fn read(bounds: &Bounds) -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let mut machine = Self::default();
        if bounds.processes.is_some() {
            // `running/all` in the fourth place.
            let text = read("/proc/loadavg");
            let all = text.split_whitespace().nth(3).and_then(|pair| pair.split_once('/'));
            machine.tasks = all.and_then(|(_, all)| all.parse().ok()).unwrap_or_default();
        }
        if bounds.memory_bytes.is_some() {
            let text = read("/proc/meminfo");
            machine.available_bytes = memory_figure(&text, "MemAvailable:").unwrap_or_default();
            machine.shared_bytes = memory_figure(&text, "Shmem:").unwrap_or_default();
        }
        if let Some((directory, _)) = &bounds.directory {
            machine.free_bytes =
                statvfs(directory).map_or(0, |free| free.blocks_free() * free.fragment_size());
        }
        machine
    }
}

/// A figure of `/proc/meminfo`, in bytes.
pub(crate) fn memory_figure(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// What of a process's memory is in use.
struct Resident {
    own: u64,
    shared: u64,
}

impl Resident {
    fn of(pid: i32) -> Self {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let figure = |name| memory_figure(&text, name).unwrap_or_default();
        Self { own: figure("RssAnon:"), shared: figure("RssShmem:") }
    }
}

/// What files hold that lie in memory: open ones, and all of `/dev/shm` where it is the command's own. They need not be
/// mapped by anybody.
fn bytes_in_memory_files(pids: impl Iterator<Item = i32>) -> u64 {
    const SHARED: &str = "dev/shm";
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let outside = device(&Path::new("/").join(SHARED));
    let mut seen = BTreeSet::new();
    let mut bytes = 0;
    for process in pids.map(|pid| PathBuf::from(format!("/proc/{pid}"))) {
        let shared = process.join("root").join(SHARED);
        // By its device: those below are counted with it.
        if let Some(inside) = device(&shared).filter(|device| Some(*device) != outside)
            && seen.insert((inside, 0))
        {
            let used = |sizes: nix::sys::statvfs::Statvfs| {
                (sizes.blocks() - sizes.blocks_free()) * sizes.fragment_size()
            };
            bytes += statvfs(&shared).map_or(0, used);
        }
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if fs::read_link(entry.path()).is_ok_and(|target| is_in_memory(&target))
                && let Ok(metadata) = fs::metadata(entry.path())
                && seen.insert((metadata.dev(), metadata.ino()))
                && !seen.contains(&(metadata.dev(), 0))
            {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    bytes
}

/// As the kernel shows them: of `memfd_create`, of shared memory without a file, of `/dev/shm`, removed or not.
fn is_in_memory(target: &Path) -> bool {
    let target = target.as_os_str().as_bytes();
    let is_nameless =
        ["/memfd:", "/dev/zero", "/SYSV"].iter().any(|start| target.starts_with(start.as_bytes()))
            && target.ends_with(b" (deleted)");
    is_nameless || target.starts_with(b"/dev/shm/")
}

fn size_of_tree(directory: &Path) -> u64 {
    let mut bytes = 0;
    let mut entries = 0;
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            entries += 1;
            if entries > MOST_ENTRIES {
                return u64::MAX;
            }
            // Not through links: what is elsewhere counts there.
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_named() {
        let own = std::process::id().cast_signed();
        let mut child = std::process::Command::new("sleep").arg("1040").spawn().unwrap();
        let guard = |bounds| Guard::new(bounds);
        let many = guard(Bounds { processes: Some(0), ..Bounds::default() }).exceeded(own);
        let much = guard(Bounds { memory_bytes: Some(0), ..Bounds::default() }).exceeded(own);
        let few = Bounds { processes: Some(100_000), memory_bytes: Some(1 << 50), directory: None };
        let mut few = guard(few);
        few.looked -= THOROUGH;
        let nothing = few.exceeded(own);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(many.as_deref(), Some("more than 0 processes and threads"));
        assert_eq!(much.as_deref(), Some("more than 0 MiB of memory"));
        assert_eq!(nothing, None);
    }

    #[test]
    fn a_tree_is_measured_without_its_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("link")).unwrap();
        let size = size_of_tree(dir.path());
        assert!((100_000..200_000).contains(&size), "{size}");
    }
}
