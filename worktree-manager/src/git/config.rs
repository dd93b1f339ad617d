//! How git is called.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How git is called. Cloned freely; the defaults suit a server.
#[derive(Clone, Debug)]
pub struct GitConfig {
    /// The program, looked up in `PATH` when it has no slash. Entries of `PATH` that are relative or
    /// lie in the tree a command works in are passed over, here and by git itself.
    pub program: PathBuf,
    /// Limit of a command that only reads.
    pub read_timeout: Duration,
    /// Limit of a command that writes a tree (50k files take 3.3 s here; slow disks take minutes).
    pub write_timeout: Duration,
    /// How long a foreign lock file is waited for, and how often it is looked at.
    pub lock_patience: LockPatience,
    /// Set for every git command, after the scrubbing (tests fix dates and configuration here).
    pub env: Vec<(OsString, OsString)>,
}

/// Back-off while a lock file of another program exists.
#[derive(Clone, Copy, Debug)]
pub struct LockPatience {
    /// After this the operation fails and names the file.
    pub limit: Duration,
    /// First pause; doubles until [`LockPatience::longest_pause`].
    pub first_pause: Duration,
    /// Longest pause between two looks.
    pub longest_pause: Duration,
}

impl Default for LockPatience {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(30),
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(1),
        }
    }
}

impl Default for GitConfig {
    fn default() -> Self {
        Self {
            program: PathBuf::from("git"),
            read_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(600),
            lock_patience: LockPatience::default(),
            env: Vec::new(),
        }
    }
}
