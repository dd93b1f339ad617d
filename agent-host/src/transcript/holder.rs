//! Who holds a transcript's lock, for people: nothing is decided by it.

use std::{fs, path::Path};

/// The process that holds a lock on this file, if the kernel tells: `process 4711 (swarm-worker)`.
pub(super) fn of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().filter_map(pid).find(|pid| has_open(*pid, &path)).map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match name.trim() {
            "" => format!("process {pid}"),
            name => format!("process {pid} ({name})"),
        }
    })
}

/// The pid in a line such as `1: FLOCK  ADVISORY  WRITE 4711 00:2a:13 0 EOF`.
fn pid(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    words.nth(2)?.parse().ok()
}

/// The numbers in `/proc/locks` are those of the file system below, which may differ from what the path
/// shows; the names of open files do not.
fn has_open(pid: u32, path: &Path) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_names_a_process() {
        let check = |line, expected| assert_eq!(pid(line), expected, "{line}");
        check("1: FLOCK  ADVISORY  WRITE 4711 00:2a:13 0 EOF", Some(4711));
        check("2: POSIX  ADVISORY  WRITE 4711 00:2a:13 0 EOF", None);
        check("1: -> FLOCK  ADVISORY  WRITE 4711 00:2a:13 0 EOF", None);
        check("3: FLOCK  ADVISORY  WRITE -1 00:2a:13 0 EOF", None);
        check("", None);
    }
}
