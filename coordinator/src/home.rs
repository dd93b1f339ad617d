//! Where everything of a `$SWARM_HOME` stands, and the lock that makes one server its owner.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use swarm_protocol::{RunNumber, SessionId, WorkerId, api::ServerFile, process::ProcessIdentity};

/// A socket's path over this many bytes does not fit `sockaddr_un` everywhere (spec 1.4).
const SOCKET_PATH_BYTES: usize = 100;
/// How the name of a temp directory begins whose run has ended.
const PUT_AWAY: &str = ".gone-";
/// How long a killed server may take to be gone: its last thread gives the lock back.
const DYING: Duration = Duration::from_secs(2);

/// Why the home cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// A file or directory could not be made or read.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another server owns it.
    #[error("another server (process {pid}) serves {home}")]
    Locked {
        /// The home.
        home: PathBuf,
        /// Its process, as it wrote it.
        pid: String,
    },
    /// A file of ours holds something else.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> HomeError + '_ {
    move |source| HomeError::Io { path: path.to_owned(), source }
}

/// The paths of one `$SWARM_HOME`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// A home at this directory; nothing is made.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// `SWARM_HOME`, else `~/.swarm`.
    pub fn from_environment(variable: Option<&str>, home: &Path) -> Self {
        match variable.filter(|path| !path.is_empty()) {
            Some(path) => Self::new(std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))),
            None => Self::new(home.join(".swarm")),
        }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal.sqlite")
    }

    /// How clients find the server.
    pub fn server_file(&self) -> PathBuf {
        self.root.join("server.json")
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.root.join("server.log")
    }

    /// swarm's own settings of the user.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Where worktrees are made by default.
    pub fn worktrees(&self) -> PathBuf {
        self.root.join("worktrees")
    }

    /// System prompts by content hash.
    pub fn prompts(&self) -> PathBuf {
        self.root.join("prompts")
    }

    /// What belongs to one repository.
    pub fn project(&self, repo_key: &str) -> PathBuf {
        self.root.join("projects").join(repo_key)
    }

    /// The coordinator's JSONL projection.
    pub fn session_file(&self, repo_key: &str, session: SessionId) -> PathBuf {
        self.project(repo_key).join(format!("{session}.jsonl"))
    }

    fn subagents(&self, repo_key: &str, session: SessionId) -> PathBuf {
        self.project(repo_key).join(session.to_string()).join("subagents")
    }

    /// A worker's transcript.
    pub fn transcript(&self, repo_key: &str, session: SessionId, worker: &WorkerId) -> PathBuf {
        self.subagents(repo_key, session).join(format!("{worker}.jsonl"))
    }

    /// What people and tools may want to know of a worker beside its transcript.
    pub fn worker_meta(&self, repo_key: &str, session: SessionId, worker: &WorkerId) -> PathBuf {
        self.subagents(repo_key, session).join(format!("{worker}.meta.json"))
    }

    /// Whole results and replaced content of a worker.
    pub fn worker_results(&self, repo_key: &str, session: SessionId, worker: &WorkerId) -> PathBuf {
        self.subagents(repo_key, session).join(format!("{worker}.results"))
    }

    /// The directory of a run: launch file, keeper's files, log.
    pub fn run_dir(&self, repo_key: &str, session: SessionId, worker: &WorkerId, run: RunNumber) -> PathBuf {
        self.subagents(repo_key, session).join(format!("{worker}.run-{run}"))
    }

    /// A worker's temp directory.
    pub fn worker_temp(&self, worker: &WorkerId) -> PathBuf {
        self.temp().join(worker.as_str())
    }

    fn temp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Takes a worker's temp directory away, at once, so that its next run finds none. Where it is now, to be removed;
    /// nothing when there is none.
    ///
    /// # Errors
    /// What the system said.
    pub fn put_away_temp(&self, worker: &WorkerId) -> std::io::Result<Option<PathBuf>> {
        let away = self.temp().join(format!("{PUT_AWAY}{worker}-{}", random_hex()));
        match fs::rename(self.worker_temp(worker), &away) {
            Ok(()) => Ok(Some(away)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Temp directories that were put away and not removed: a server that was killed left them.
    pub fn temps_put_away(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp()).into_iter().flatten().flatten();
        let away = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PUT_AWAY));
        away.map(|entry| entry.path()).collect()
    }

    /// Makes the home, 0700, and checks that it can be written.
    pub fn create(&self) -> Result<(), HomeError> {
        private_dir(&self.root)?;
        // A home that was open to others is closed: transcripts hold what people work on.
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700)).map_err(io_error(&self.root))?;
        for directory in [self.worktrees(), self.prompts(), self.root.join("projects"), self.temp()] {
            private_dir(&directory)?;
        }
        // By a name of this process: two that start at once must not take each other's probe away.
        let probe = self.root.join(format!(".write-probe.{}", std::process::id()));
        let written = write_private(&probe, b"ok").map_err(io_error(&self.root));
        let removed = fs::remove_file(&probe).map_err(io_error(&probe));
        written.and(removed)
    }

    /// Takes the home for this process, until the lock is dropped or the process ends. An owner that was
    /// killed is waited for; one that lives is not.
    pub fn lock(&self) -> Result<HomeLock, HomeError> {
        let path = self.root.join("server.lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error(&path))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let pid = fs::read_to_string(&path).map_err(io_error(&path))?;
                    let dying = pid.trim().parse().is_ok_and(|pid| process_identity(pid).is_none());
                    if !dying || began.elapsed() > DYING {
                        return Err(HomeError::Locked {
                            home: self.root.clone(),
                            pid: pid.trim().to_owned(),
                        });
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::Error(source)) => return Err(HomeError::Io { path, source }),
            }
        }
        file.set_len(0).map_err(io_error(&path))?;
        write!(file, "{}", std::process::id()).map_err(io_error(&path))?;
        Ok(HomeLock { _file: file })
    }

    /// The token of a name (`token`, `webhook.key`): 32 random bytes in hex, made 0600 on first use.
    pub fn secret(&self, name: &str) -> Result<String, HomeError> {
        let path = self.root.join(name);
        loop {
            match fs::read_to_string(&path) {
                Ok(text) if text.trim().len() == 64 => return Ok(text.trim().to_owned()),
                Ok(_) => {
                    return Err(HomeError::Damaged {
                        path,
                        problem: "not 64 hex digits; remove the file and a new one is made".to_owned(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let secret = random_hex();
                    // Made aside and linked into place: a reader never sees half of it, and of two makers one wins.
                    let aside = self.root.join(format!(".{name}.{}", std::process::id()));
                    write_private(&aside, secret.as_bytes()).map_err(io_error(&aside))?;
                    let linked = fs::hard_link(&aside, &path);
                    fs::remove_file(&aside).map_err(io_error(&aside))?;
                    match linked {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(io_error(&path)(error));
                        }
                        _ => {}
                    }
                }
                Err(error) => return Err(io_error(&path)(error)),
            }
        }
    }

    /// Where workers' socket goes: in the home, or in a 0700 directory when that path is too long.
    pub fn socket(&self) -> Result<PathBuf, HomeError> {
        let usual = self.root.join("workers.sock");
        if usual.as_os_str().len() <= SOCKET_PATH_BYTES {
            return Ok(usual);
        }
        let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory = base.join(format!("swarm-{}", self.short_hash()));
        private_dir(&directory)?;
        // In a directory that others write to, this one may be somebody else's.
        let facts = fs::symlink_metadata(&directory).map_err(io_error(&directory))?;
        let own =
            facts.is_dir() && facts.uid() == nix::unistd::geteuid().as_raw() && facts.mode() & 0o077 == 0;
        if !own {
            let problem = "it belongs to another user or is open to others; set XDG_RUNTIME_DIR or a shorter SWARM_HOME";
            return Err(HomeError::Damaged { path: directory, problem: problem.to_owned() });
        }
        Ok(directory.join("workers.sock"))
    }

    /// Eight hex digits that name this home (the tmux server is called by it).
    pub fn short_hash(&self) -> String {
        use sha2::Digest;
        let hash = sha2::Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Tells clients where the server is.
    pub fn write_server_file(&self, file: &ServerFile) -> Result<(), HomeError> {
        let path = self.server_file();
        let text = serde_json::to_vec_pretty(file)
            .map_err(|error| HomeError::Damaged { path: path.clone(), problem: error.to_string() })?;
        replace_file(&path, &text).map_err(io_error(&path))
    }

    /// Where the server is, if a file says so. Whether it still runs is for the caller to find out.
    pub fn read_server_file(&self) -> Result<Option<ServerFile>, HomeError> {
        let path = self.server_file();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| HomeError::Damaged { path, problem: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&path)(error)),
        }
    }
}

/// The hold on a home.
#[derive(Debug)]
#[must_use = "dropping it lets another server in"]
pub struct HomeLock {
    _file: File,
}

/// A 0700 directory and its parents.
pub(crate) fn private_dir(path: &Path) -> Result<(), HomeError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error(path))
}

/// Writes a 0600 file, whole.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Replaces a file so that a reader sees the old or the new one, never half; 0600.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    write_private(&aside, bytes)?;
    fs::rename(&aside, path)
}

/// 32 random bytes in hex.
pub(crate) fn random_hex() -> String {
    // Two UUIDv4 hold 244 random bits; hashing spreads them evenly over 64 digits.
    use sha2::Digest;
    let mut hash = sha2::Sha256::new();
    for _ in 0..4 {
        hash.update(uuid::Uuid::new_v4().as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A short random id part of `length` characters of `[0-9a-z]`, a letter first so that it reads as a name.
pub(crate) fn random_suffix(length: usize) -> String {
    const LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz";
    const ALL: &[u8] = b"0123456789abcdefghjkmnpqrstuvwxyz";
    let bytes = uuid::Uuid::new_v4().into_bytes();
    (0..length)
        .map(|at| {
            // Bytes 6 and 8 of a UUIDv4 hold its version.
            let byte = usize::from(bytes[if at < 6 { at } else { at + 3 } % 16]);
            let set = if at == 0 { LETTERS } else { ALL };
            char::from(set[byte % set.len()])
        })
        .collect()
}

/// The identity of a process; none if it is gone.
pub(crate) fn process_identity(pid: i32) -> Option<ProcessIdentity> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields count from behind the last one.
    let after = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    let start_time = fields.get(19)?.parse().ok()?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    Some(ProcessIdentity { pid, start_time, boot_id })
}

/// Whether a process belongs to the boot that runs now.
pub(crate) fn is_this_boot(identity: &ProcessIdentity) -> bool {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").is_ok_and(|boot| boot.trim() == identity.boot_id)
}

/// Whether exactly this process still runs.
pub(crate) fn is_alive(identity: &ProcessIdentity) -> bool {
    process_identity(identity.pid).as_ref() == Some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_owns_a_home_and_a_second_learns_who() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path().join("home"));
        home.create().unwrap();
        let lock = home.lock().unwrap();
        match home.lock() {
            Err(HomeError::Locked { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("{other:?}"),
        }
        drop(lock);
        drop(home.lock().unwrap());
    }

    #[test]
    fn a_home_of_a_killed_server_is_had_once_its_last_thread_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path().join("home"));
        home.create().unwrap();
        let lock = home.lock().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        fs::write(home.root.join("server.lock"), gone.id().to_string()).unwrap();
        let last_thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(lock);
        });
        let taken = home.lock();
        last_thread.join().unwrap();
        drop(taken.unwrap());
    }

    #[test]
    fn a_secret_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path().to_owned());
        home.create().unwrap();
        let first = home.secret("token").unwrap();
        assert_eq!(home.secret("token").unwrap(), first);
        let mode = fs::metadata(directory.path().join("token")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_long_home_gets_a_short_socket() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path().join("x".repeat(120)));
        let socket = home.socket().unwrap();
        assert!(socket.as_os_str().len() <= SOCKET_PATH_BYTES, "{socket:?}");
    }

    #[test]
    fn a_pid_alone_is_no_identity() {
        let own = process_identity(std::process::id().cast_signed()).unwrap();
        assert!(is_alive(&own));
        assert!(!is_alive(&ProcessIdentity { start_time: own.start_time + 1, ..own.clone() }));
        assert!(!is_alive(&ProcessIdentity { boot_id: "another".to_owned(), ..own }));
    }

    #[test]
    fn suffixes_are_wellformed_ids() {
        for _ in 0..200 {
            format!("agent-{}", random_suffix(3)).parse::<WorkerId>().unwrap();
            format!("agent-{}", random_suffix(5)).parse::<WorkerId>().unwrap();
        }
    }
}
