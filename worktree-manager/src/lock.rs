//! Locks: one registrar per repository, one owner per worktree, patience with locks of others, and
//! the proof that a process is gone. A lock file of another program is never removed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::git::{GitError, LockPatience};

/// News while something takes long. Called from the operation itself: be quick.
pub type Progress = Arc<dyn Fn(ProgressEvent) + Send + Sync>;

/// What a [`Progress`] hears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgressEvent {
    /// Shown as "waiting for git lock (who, how old)".
    WaitingForLock { path: PathBuf, holder: Option<String>, age: Option<Duration> },
    /// Another swarm process registers a worktree in the same repository.
    WaitingForRegistration { path: PathBuf },
    /// The lock of a dead process was taken over.
    TookOver { path: PathBuf, from: ProcessStamp },
}

impl std::fmt::Display for ProgressEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WaitingForLock { path, holder, age } => write!(
                f,
                "waiting for git lock {} (held by {}, {})",
                path.display(),
                holder.as_deref().unwrap_or("an unknown program"),
                age_text(*age)
            ),
            Self::WaitingForRegistration { .. } => {
                f.write_str("waiting for another swarm process that makes a worktree in this repository")
            }
            Self::TookOver { path, from } => {
                write!(f, "took over {} from process {}, which is gone", path.display(), from.pid)
            }
        }
    }
}

/// Ignores all news.
pub fn silent() -> Progress {
    Arc::new(|_| {})
}

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStamp {
    /// Process id.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and the process's start.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
}

impl ProcessStamp {
    /// This process.
    pub fn current() -> Self {
        let pid = nix::unistd::Pid::this().as_raw();
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0), boot: boot_id().unwrap_or_default() }
    }

    /// True only with proof: another boot, no such process, or one that started at another time.
    pub fn is_dead(&self) -> bool {
        let Some(boot) = boot_id() else { return false };
        if boot != self.boot {
            return true;
        }
        match std::fs::metadata(format!("/proc/{}", self.pid)) {
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            Ok(_) => start_ticks(self.pid).is_some_and(|ticks| ticks != self.start_ticks),
        }
    }

    /// The reason text of `git worktree lock`.
    pub(crate) fn to_reason(&self) -> String {
        format!("swarm in use pid={} start={} boot={}", self.pid, self.start_ticks, self.boot)
    }

    /// `None` when the reason is not one of ours.
    pub(crate) fn from_reason(reason: &str) -> Option<Self> {
        let mut fields = reason.trim().strip_prefix("swarm in use ")?.split(' ');
        let pid = fields.next()?.strip_prefix("pid=")?.parse().ok()?;
        let start_ticks = fields.next()?.strip_prefix("start=")?.parse().ok()?;
        let boot = fields.next()?.strip_prefix("boot=")?.to_owned();
        Some(Self { pid, start_ticks, boot })
    }
}

fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name and may hold blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Why a lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file cannot be opened or locked.
    #[error("cannot lock {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The worktree has an owner.
    #[error("{} is in use by {}; wait for it or stop that run", path.display(), owner_text(owner.as_ref()))]
    Owned { path: PathBuf, owner: Option<ProcessStamp> },
    /// A foreign lock outlived our patience.
    #[error(
        "waited {waited:?} for the git lock {} (held by {}, {}); it was left alone: end that program, or remove the file if it is certain that none runs",
        path.display(), holder.as_deref().unwrap_or("an unknown program"), age_text(*age)
    )]
    Foreign { path: PathBuf, holder: Option<String>, age: Option<Duration>, waited: Duration },
}

fn owner_text(owner: Option<&ProcessStamp>) -> String {
    owner.map_or_else(|| "another process".to_owned(), |o| format!("process {}", o.pid))
}

fn age_text(age: Option<Duration>) -> String {
    age.map_or_else(|| "of unknown age".to_owned(), |age| format!("{} s old", age.as_secs()))
}

/// Held while worktrees are registered or removed: one at a time per repository, across processes.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub(crate) struct Registration {
    _file: Flock<File>,
}

impl Registration {
    pub(crate) async fn acquire(swarm_dir: &Path, progress: &Progress) -> Result<Self, LockError> {
        let path = swarm_dir.join("registration.lock");
        let file = open_lock(&path)?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Self { _file: file }),
            Err((file, _)) => file,
        };
        progress(ProgressEvent::WaitingForRegistration { path: path.clone() });
        let locked = tokio::task::spawn_blocking(move || lock_blocking(file)).await;
        match locked {
            Ok(Ok(file)) => Ok(Self { _file: file }),
            Ok(Err(errno)) => Err(LockError::Io { path, source: errno.into() }),
            Err(joined) => Err(LockError::Io { path, source: std::io::Error::other(joined) }),
        }
    }
}

fn lock_blocking(mut file: File) -> Result<Flock<File>, Errno> {
    loop {
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(locked) => return Ok(locked),
            Err((again, Errno::EINTR)) => file = again,
            Err((_, errno)) => return Err(errno),
        }
    }
}

fn open_lock(path: &Path) -> Result<File, LockError> {
    let io = |source| LockError::Io { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io)?;
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
        .map_err(io)
}

/// The one owner of a worktree, by a lock on `swarm-owner.lock` in its git directory. The kernel
/// releases it with the process, so an owner that was killed leaves nothing to clean.
#[derive(Debug)]
#[must_use = "ownership ends when this is dropped"]
pub struct Ownership {
    file: Flock<File>,
}

/// The lock file's name in a worktree's git directory.
pub const OWNER_LOCK: &str = "swarm-owner.lock";

impl Ownership {
    /// Takes ownership if nobody has it.
    ///
    /// # Errors
    /// [`LockError::Owned`] names the owner.
    pub fn try_acquire(git_dir: &Path) -> Result<Self, LockError> {
        let path = git_dir.join(OWNER_LOCK);
        loop {
            let file = open_lock(&path)?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    return Err(LockError::Owned { path: git_dir.to_owned(), owner: read_owner(&mut file) });
                }
                Err((_, errno)) => {
                    return Err(LockError::Io { path, source: errno.into() });
                }
            };
            let io = |source| LockError::Io { path: path.clone(), source };
            // The directory may have been removed and made again between opening and locking.
            let here = file.metadata().map_err(io)?.ino();
            if std::fs::symlink_metadata(&path).is_ok_and(|m| m.ino() == here) {
                let text = serde_json::to_vec(&ProcessStamp::current()).map_err(|e| io(e.into()))?;
                file.set_len(0).map_err(io)?;
                file.rewind().map_err(io)?;
                file.write_all(&text).map_err(io)?;
                return Ok(Self { file });
            }
        }
    }

    /// Waits up to `limit` for the owner to go.
    ///
    /// # Errors
    /// [`LockError::Owned`] names the owner when the limit has passed.
    pub async fn acquire(git_dir: &Path, limit: Duration) -> Result<Self, LockError> {
        let end = Instant::now() + limit;
        let mut pause = Duration::from_millis(10);
        loop {
            match Self::try_acquire(git_dir) {
                Err(LockError::Owned { .. }) if Instant::now() + pause <= end => {}
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// Who the lock file names; for messages.
    pub fn owner(&mut self) -> Option<ProcessStamp> {
        read_owner(&mut self.file)
    }
}

fn read_owner(file: &mut File) -> Option<ProcessStamp> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Repeats `attempt` while it fails by a lock file of another program, with growing pauses.
pub(crate) async fn patiently<T, F>(
    patience: LockPatience,
    progress: &Progress,
    mut attempt: impl FnMut() -> F,
) -> Result<T, PatienceError>
where
    F: Future<Output = Result<T, GitError>>,
{
    let begin = Instant::now();
    let mut pause = patience.first_pause;
    loop {
        let path = match attempt().await {
            Ok(value) => return Ok(value),
            Err(GitError::Locked { path, .. }) => path,
            Err(other) => return Err(PatienceError::Git(other)),
        };
        let (holder, age) = describe(&path);
        let waited = begin.elapsed();
        if waited >= patience.limit {
            return Err(PatienceError::Lock(LockError::Foreign { path, holder, age, waited }));
        }
        tracing::info!(lock.path = %path.display(), lock.holder = ?holder, "waiting for git lock");
        progress(ProgressEvent::WaitingForLock { path, holder, age });
        tokio::time::sleep(pause.min(patience.limit.saturating_sub(waited))).await;
        pause = (pause * 2).min(patience.longest_pause);
    }
}

/// Why a command that waits for locks failed.
#[derive(Debug, thiserror::Error)]
pub enum PatienceError {
    /// Any failure but a lock.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The lock stayed.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// In the error of an operation, git's refusal and a lock that stayed are told apart.
macro_rules! patience_becomes {
    ($error:ident) => {
        impl From<$crate::lock::PatienceError> for $error {
            fn from(error: $crate::lock::PatienceError) -> Self {
                match error {
                    $crate::lock::PatienceError::Git(error) => Self::Git(error),
                    $crate::lock::PatienceError::Lock(error) => Self::Lock(error),
                }
            }
        }
    };
}
pub(crate) use patience_becomes;

/// Best effort: which process has the file open, and how old the file is.
fn describe(path: &Path) -> (Option<String>, Option<Duration>) {
    let age = std::fs::symlink_metadata(path)
        .and_then(|m| m.modified())
        .ok()
        .and_then(|at| SystemTime::now().duration_since(at).ok());
    (holder(path), age)
}

fn holder(path: &Path) -> Option<String> {
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(open) = std::fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        if open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (process {pid})", name.trim()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_survives_the_reason_text() {
        let stamp = ProcessStamp::current();
        assert_eq!(ProcessStamp::from_reason(&stamp.to_reason()), Some(stamp));
        assert_eq!(ProcessStamp::from_reason("on a USB stick"), None);
    }

    #[test]
    fn death_needs_proof() {
        let me = ProcessStamp::current();
        let check = |stamp: ProcessStamp, dead: bool| assert_eq!(stamp.is_dead(), dead);
        check(me.clone(), false);
        check(ProcessStamp { start_ticks: me.start_ticks + 1, ..me.clone() }, true);
        check(ProcessStamp { boot: "another".to_owned(), ..me.clone() }, true);
        check(ProcessStamp { pid: i32::MAX, ..me }, true);
    }

    #[test]
    fn a_worktree_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ownership::try_acquire(dir.path()).unwrap();
        let second = Ownership::try_acquire(dir.path());
        let Err(LockError::Owned { owner, .. }) = second else { panic!("{second:?}") };
        assert_eq!(owner, Some(ProcessStamp::current()));
        drop(first);
        drop(Ownership::try_acquire(dir.path()).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn patience_has_an_end_and_reports() {
        let seen = Arc::new(std::sync::Mutex::new(0));
        let count = Arc::clone(&seen);
        let progress: Progress = Arc::new(move |_| *count.lock().unwrap() += 1);
        let result: Result<(), _> = patiently(LockPatience::default(), &progress, || async {
            Err(GitError::Locked { command: "git x".to_owned(), path: PathBuf::from("/nowhere/index.lock") })
        })
        .await;
        assert!(matches!(result, Err(PatienceError::Lock(LockError::Foreign { .. }))));
        assert!(*seen.lock().unwrap() > 5);
    }
}
