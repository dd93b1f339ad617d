//! Whether this machine has room for one more worker (spec 10.1): free memory, and free disk where state and worktrees
//! are. A worker that is started into too little of either takes others down with it.

use std::path::Path;

use agent_host::Config;

const MIB: u64 = 1 << 20;

/// What is free, in bytes; none: nobody can tell, and nothing is refused for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) memory: Option<u64>,
    pub(crate) disk: Option<u64>,
}

/// What has to be free for a worker to be started, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floors {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Memory { free: u64, floor: u64 },
    Disk { free: u64, floor: u64 },
}

impl Floors {
    pub(crate) fn new(settings: &Config) -> Self {
        Self {
            memory: u64::from(settings.limits_free_memory_mib) * MIB,
            disk: u64::from(settings.limits_free_disk_mib) * MIB,
        }
    }
}

impl Room {
    /// Of this machine now; the disk is that of the place with the least.
    pub(crate) fn measure(places: &[&Path]) -> Self {
        let disk = places.iter().filter_map(|place| free_disk(place)).min();
        let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_memory(&text));
        Self { memory, disk }
    }

    /// What keeps a worker from being started.
    pub(crate) fn lacks(&self, floors: &Floors) -> Option<Lack> {
        let below = |free: Option<u64>, floor: u64| free.filter(|free| *free < floor);
        if let Some(free) = below(self.memory, floors.memory) {
            return Some(Lack::Memory { free, floor: floors.memory });
        }
        below(self.disk, floors.disk).map(|free| Lack::Disk { free, floor: floors.disk })
    }
}

impl Lack {
    /// How every reason of this kind begins.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "waits for memory",
            Self::Disk { .. } => "waits for disk space",
        }
    }

    /// For people: what is missing, and which setting says so.
    pub(crate) fn reason(&self) -> String {
        let (free, floor, setting) = match self {
            Self::Memory { free, floor } => (free, floor, "limits.free_memory_mib"),
            Self::Disk { free, floor } => (free, floor, "limits.free_disk_mib"),
        };
        format!("{}: {} MiB free, {setting} is {}", self.kind(), free / MIB, floor / MIB)
    }
}

/// Whether a worker that is queued for `cause` is to be told another one. Figures that move are no news.
pub(crate) fn is_news(cause: &str, lack: Option<&Lack>) -> bool {
    const KINDS: [&str; 2] =
        [Lack::Memory { free: 0, floor: 0 }.kind(), Lack::Disk { free: 0, floor: 0 }.kind()];
    let told = KINDS.into_iter().find(|kind| cause.starts_with(kind));
    told != lack.map(Lack::kind)
}

/// Free bytes for this user on the file system of a path, or of its first ancestor that exists.
pub(crate) fn free_disk(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
    let figures = nix::sys::statvfs::statvfs(existing).ok()?;
    Some(figures.blocks_available() * figures.fragment_size())
}

/// What `/proc/meminfo` says can be had without swapping.
fn available_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_worker_from_being_started() {
        let check = |memory, disk, floors: (u64, u64), expected: Option<&str>| {
            let floors = Floors { memory: floors.0 * MIB, disk: floors.1 * MIB };
            let lack = Room { memory, disk }.lacks(&floors);
            assert_eq!(lack.map(|lack| lack.reason()).as_deref(), expected);
        };
        check(Some(200 * MIB), Some(9 * MIB), (200, 9), None);
        check(Some(0), Some(0), (0, 0), None);
        check(None, None, (200, 9), None);
        let memory = "waits for memory: 120 MiB free, limits.free_memory_mib is 256";
        check(Some(120 * MIB), Some(9 * MIB), (256, 512), Some(memory));
        let disk = "waits for disk space: 9 MiB free, limits.free_disk_mib is 512";
        check(Some(300 * MIB), Some(9 * MIB), (256, 512), Some(disk));
        check(None, Some(9 * MIB), (256, 512), Some(disk));
    }

    #[test]
    fn another_cause_is_news_and_another_figure_is_not() {
        let memory = |free| Lack::Memory { free, floor: 256 * MIB };
        let disk = Lack::Disk { free: 1, floor: 2 };
        let place = swarm_protocol::status::WAITS_FOR_PLACE;
        assert!(!is_news(place, None));
        assert!(is_news(place, Some(&memory(1))));
        assert!(!is_news(&memory(1).reason(), Some(&memory(2))));
        assert!(is_news(&memory(1).reason(), Some(&disk)));
        assert!(is_news(&disk.reason(), None));
    }

    #[test]
    fn this_machine_can_be_measured() {
        let directory = tempfile::tempdir().unwrap();
        let room = Room::measure(&[directory.path(), &directory.path().join("not/made/yet")]);
        assert!(room.memory.is_some_and(|free| free > MIB), "{room:?}");
        assert_eq!(room.disk.is_some(), free_disk(Path::new("/")).is_some());
        assert_eq!(available_memory("MemTotal: 10 kB\nMemAvailable:   7 kB\n"), Some(7 * 1024));
        assert_eq!(available_memory("MemTotal: 10 kB\n"), None);
    }
}
