//! The only file that starts git. Runs one command with a scrubbed environment, bounded output and a
//! time limit, and sorts its failures. Knows no subcommand's meaning: parsing is in `porcelain`.
//!
//! No command started here may run a program a repository names: hooks and fsmonitor are always off,
//! and filters and merge drivers are switched off by name (see [`Neutral`]), because a checkout that
//! an agent can write to chooses them by `.gitattributes`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

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

/// Why a git command brought no result.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program is missing or cannot be executed.
    #[error("cannot start {}: is git installed and in PATH?", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Talking to the child failed.
    #[error("lost the connection to `{command}`")]
    Pipe {
        command: String,
        #[source]
        source: std::io::Error,
    },
    /// The time limit passed; the process group was ended.
    #[error("`{command}` took longer than {after:?} and was ended; is the disk or a remote slow?")]
    Timeout { command: String, after: Duration },
    /// Another program holds a lock file.
    #[error("`{command}` needs {}, which another program holds", path.display())]
    Locked { command: String, path: PathBuf },
    /// git answered with a failure.
    #[error("`{command}` failed ({}): {}", code_text(*code), stderr.trim_end())]
    Failed { command: String, code: Option<i32>, stderr: String },
    /// More output than an answer of this kind can have.
    #[error("`{command}` printed more than {limit_bytes} bytes")]
    TooMuchOutput { command: String, limit_bytes: usize },
    /// git answered in a form this version of swarm does not know.
    #[error("cannot read the answer of `{command}`: {problem}")]
    Answer { command: String, problem: &'static str },
}

fn code_text(code: Option<i32>) -> String {
    code.map_or_else(|| "killed by a signal".to_owned(), |c| format!("exit code {c}"))
}

/// Whether a command may take optional locks and how long it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Where a command works. `Discover` is only for the directory a person stands in; a worktree that an
/// agent can write to is always named by `Repo`, since its `.git` file may have been replaced.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Discover(PathBuf),
    Repo { git_dir: PathBuf, common_dir: PathBuf, work_tree: Option<PathBuf> },
}

/// Configuration that takes the commands of filters and merge drivers away.
///
/// A driver becomes `false`, so a file that needs one is reported as a conflict instead of being
/// merged wrongly; a filter becomes empty, so a file is checked out and stored as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neutral(pub(crate) Arc<[(Vec<u8>, Vec<u8>)]>);

/// Output of a command that ran to its end.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    command: String,
}

/// A way to start git.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    config: Arc<GitConfig>,
    programs: Arc<Programs>,
}

const STDOUT_LIMIT_BYTES: usize = 512 * 1024 * 1024;
const STDERR_LIMIT_BYTES: usize = 64 * 1024;
/// Between the polite and the hard signal: git removes its lock files on the first.
const GRACE: Duration = Duration::from_secs(2);
/// The same when the caller has gone and a thread of the runtime is held up.
const DROP_GRACE: Duration = Duration::from_millis(200);

/// Variables starting with `GIT_` that a user sets for his machine rather than for one repository.
const KEPT_VARIABLES: [&str; 6] = [
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_EXEC_PATH",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
];

/// Those of them that name a file or directory.
const NAMING_PATHS: [&str; 5] =
    ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_EXEC_PATH", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH"];

/// In force for every command. `core.fsync` with `batch` costs one flush a command and makes objects
/// as durable as the refs that name them.
const ALWAYS: [(&str, &str); 13] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.splitIndex", "false"),
    ("core.fsync", "committed,reference"),
    ("core.fsyncMethod", "batch"),
    ("core.pager", "cat"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("checkout.workers", "0"),
    ("log.showSignature", "false"),
    ("status.showUntrackedFiles", "all"),
];

impl Git {
    pub(crate) fn new(config: GitConfig) -> Self {
        let programs = Arc::new(Programs::new(&config));
        Self { config: Arc::new(config), programs }
    }

    pub(crate) fn lock_patience(&self) -> LockPatience {
        self.config.lock_patience
    }

    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        place: &Place,
        access: Access,
        args: impl IntoIterator<Item = A>,
    ) -> GitCommand {
        GitCommand {
            git: self.clone(),
            place: place.clone(),
            access,
            args: args.into_iter().map(|a| a.as_ref().to_owned()).collect(),
            env: Vec::new(),
            stdin: None,
            neutral: Neutral::default(),
        }
    }
}

/// Where programs are looked for. The working directory of a command is an agent's tree, so neither
/// git nor what git starts may be found relative to it or in it.
#[derive(Debug)]
struct Programs {
    /// Places of git, the preferred one first.
    git: Vec<Located>,
    /// Entries of `PATH`.
    entries: Vec<Located>,
}

/// An absolute path, and where it leads.
#[derive(Debug)]
struct Located {
    path: PathBuf,
    real: PathBuf,
}

impl Located {
    fn new(path: PathBuf) -> Self {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        Self { path, real }
    }

    fn is_outside(&self, forbidden: &[PathBuf]) -> bool {
        !forbidden.iter().any(|dir| self.path.starts_with(dir) || self.real.starts_with(dir))
    }
}

/// Without a usable entry in `PATH`; an empty one would mean the working directory.
const DEFAULT_PATH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

impl Programs {
    fn new(config: &GitConfig) -> Self {
        let path = config.env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, path)| path.clone());
        let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let entries = absolute_entries(&path);
        let name = &config.program;
        let git = if name.as_os_str().as_bytes().contains(&b'/') {
            // One that is named is wanted, wherever it is; but not relative to an agent's tree.
            vec![std::path::absolute(name).unwrap_or_else(|_| name.clone())]
        } else {
            let places = entries.iter().map(|entry| entry.join(name));
            places.filter(|place| is_executable(place)).collect()
        };
        let located = |paths: Vec<PathBuf>| paths.into_iter().map(Located::new).collect();
        Self { git: located(git), entries: located(entries) }
    }

    /// The program and `PATH` for a command that works in `place`.
    fn outside(&self, program: &Path, place: &Place) -> (Option<&Path>, OsString) {
        let mut forbidden = Vec::new();
        if let Place::Repo { git_dir, work_tree, .. } = place {
            for dir in std::iter::once(git_dir).chain(work_tree) {
                forbidden.extend(dir.canonicalize());
                forbidden.push(dir.clone());
            }
        }
        let named = program.as_os_str().as_bytes().contains(&b'/');
        let git = self.git.iter().find(|git| named || git.is_outside(&forbidden));
        let entries = self.entries.iter().filter(|entry| entry.is_outside(&forbidden));
        let path = std::env::join_paths(entries.map(|entry| &entry.path)).unwrap_or_default();
        (git.map(|git| &*git.path), path)
    }
}

fn absolute_entries(path: &OsStr) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::env::split_paths(path).filter(|entry| entry.is_absolute()).collect();
    if entries.is_empty() {
        entries = DEFAULT_PATH.map(PathBuf::from).into();
    }
    entries
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// One command being put together.
#[must_use = "a command does nothing until it is run"]
pub(crate) struct GitCommand {
    git: Git,
    place: Place,
    access: Access,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Input>,
    neutral: Neutral,
}

enum Input {
    Bytes(Vec<u8>),
    File(std::fs::File),
}

impl GitCommand {
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(Input::Bytes(bytes));
        self
    }

    pub(crate) fn stdin_file(mut self, file: std::fs::File) -> Self {
        self.stdin = Some(Input::File(file));
        self
    }

    pub(crate) fn neutral(mut self, neutral: &Neutral) -> Self {
        self.neutral = neutral.clone();
        self
    }

    /// The subcommand for messages: arguments can be long and hold contents.
    fn title(&self) -> String {
        let mut title = String::from("git");
        for arg in self.args.iter().take(4) {
            title.push(' ');
            title.push_str(&crate::types::printable(arg.as_bytes()));
        }
        if self.args.len() > 4 {
            title.push_str(" …");
        }
        title
    }

    /// Runs and requires exit code 0.
    pub(crate) async fn ok(self) -> Result<Vec<u8>, GitError> {
        self.run().await?.success()
    }

    /// Runs to the end, whatever the exit code.
    pub(crate) async fn run(mut self) -> Result<Output, GitError> {
        let title = self.title();
        let limit = match self.access {
            Access::Read => self.git.config.read_timeout,
            Access::Write => self.git.config.write_timeout,
        };
        let input = self.stdin.take();
        let mut command = self.build()?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let bytes = match input {
            None => {
                command.stdin(Stdio::null());
                None
            }
            Some(Input::File(file)) => {
                command.stdin(file);
                None
            }
            Some(Input::Bytes(bytes)) => {
                command.stdin(Stdio::piped());
                Some(bytes)
            }
        };
        let mut child = command
            .spawn()
            .map_err(|source| GitError::Start { program: self.git.config.program.clone(), source })?;
        let mut group = Group(child.id());
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let work = async {
            let feed = async {
                if let (Some(mut pipe), Some(bytes)) = (stdin, bytes) {
                    // A child that stops reading early tells why by its exit code.
                    drop(pipe.write_all(&bytes).await);
                }
            };
            let ((), out, err) = tokio::join!(
                feed,
                read_bounded(stdout, STDOUT_LIMIT_BYTES),
                read_bounded(stderr, STDERR_LIMIT_BYTES)
            );
            let status = child.wait().await;
            (out, err, status)
        };
        let finished = tokio::time::timeout(limit, work).await;
        let Ok((out, err, status)) = finished else {
            group.end();
            if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
                group.kill();
                drop(child.wait().await);
            }
            group.0 = None;
            return Err(GitError::Timeout { command: title, after: limit });
        };
        group.0 = None;
        let pipe = |source| GitError::Pipe { command: title.clone(), source };
        let (stdout, cut) = out.map_err(pipe)?;
        let (stderr, _) = err.map_err(pipe)?;
        let status = status.map_err(pipe)?;
        if cut {
            return Err(GitError::TooMuchOutput { command: title, limit_bytes: STDOUT_LIMIT_BYTES });
        }
        Ok(Output {
            code: status.code(),
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            command: title,
        })
    }

    fn build(&self) -> Result<Command, GitError> {
        let program = &self.git.config.program;
        let (found, path) = self.git.programs.outside(program, &self.place);
        let found = found.ok_or_else(|| GitError::Start {
            program: program.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let mut command = Command::new(found);
        for (key, value) in std::env::vars_os() {
            if !key.as_bytes().starts_with(b"GIT_") {
                continue;
            }
            if !KEPT_VARIABLES.iter().any(|kept| key == *kept) {
                command.env_remove(key);
            } else if NAMING_PATHS.iter().any(|naming| key == *naming) && !value.is_empty() {
                // Meant from where this process is, not from inside an agent's tree.
                match std::path::absolute(&value) {
                    Ok(absolute) => command.env(key, absolute),
                    Err(_) => command.env_remove(key),
                };
            }
        }
        command
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_EDITOR", "false")
            .env("GIT_SEQUENCE_EDITOR", "false")
            .env("GIT_ASKPASS", "false")
            .env("GIT_PAGER", "cat")
            .env("GIT_LITERAL_PATHSPECS", "1")
            // Partial clones are refused, so a promise is one that a command wrote into its worktree's
            // configuration, with a program of its own to fetch with.
            .env("GIT_NO_LAZY_FETCH", "1")
            .env_remove("LANGUAGE");
        if self.access == Access::Read {
            command.env("GIT_OPTIONAL_LOCKS", "0");
        }
        match &self.place {
            Place::Discover(dir) => {
                command.current_dir(dir);
            }
            Place::Repo { git_dir, common_dir, work_tree } => {
                command
                    .env("GIT_DIR", git_dir)
                    .env("GIT_COMMON_DIR", common_dir)
                    .current_dir(work_tree.as_deref().unwrap_or(git_dir));
                if let Some(work_tree) = work_tree {
                    command.env("GIT_WORK_TREE", work_tree);
                }
            }
        }
        let always = ALWAYS.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes()));
        let neutral = self.neutral.0.iter().map(|(k, v)| (&k[..], &v[..]));
        let mut count = 0_usize;
        for (key, value) in always.chain(neutral) {
            command.env(format!("GIT_CONFIG_KEY_{count}"), OsStr::from_bytes(key));
            command.env(format!("GIT_CONFIG_VALUE_{count}"), OsStr::from_bytes(value));
            count += 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.envs(self.git.config.env.iter().map(|(k, v)| (k, v)));
        command.env("PATH", if path.is_empty() { OsString::from("/usr/bin:/bin") } else { path });
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.args(&self.args);
        Ok(command)
    }
}

impl Output {
    pub(crate) fn success(self) -> Result<Vec<u8>, GitError> {
        if self.code == Some(0) {
            return Ok(self.stdout);
        }
        Err(self.into_error())
    }

    pub(crate) fn into_error(self) -> GitError {
        match lock_named_in(&self.stderr) {
            Some(path) => GitError::Locked { command: self.command, path },
            None => GitError::Failed { command: self.command, code: self.code, stderr: self.stderr },
        }
    }

    pub(crate) fn unreadable(&self, problem: &'static str) -> GitError {
        GitError::Answer { command: self.command.clone(), problem }
    }
}

/// git says `Unable to create '<path>.lock': File exists.` for every kind of lock file.
fn lock_named_in(stderr: &str) -> Option<PathBuf> {
    let (_, rest) = stderr.split_once("Unable to create '")?;
    let (path, _) = rest.split_once("': File exists")?;
    Some(PathBuf::from(OsString::from_vec(path.as_bytes().to_vec())))
}

/// Ends the process group of a command whose future is dropped.
struct Group(Option<u32>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) {
            // A group that is gone already is the aim.
            let _gone = killpg(Pid::from_raw(id), signal);
        }
    }
    fn end(&self) {
        self.signal(Signal::SIGTERM);
    }
    fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Group {
    /// Whether the leader has ended within `limit`; it is left for the runtime to reap.
    fn gone_within(&self, limit: Duration) -> bool {
        let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) else {
            return true;
        };
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let end = std::time::Instant::now() + limit;
        loop {
            match waitid(Id::Pid(Pid::from_raw(id)), flags) {
                Ok(WaitStatus::StillAlive) if std::time::Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(WaitStatus::StillAlive) => return false,
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

/// A dropped command must have ended before the locks of its caller are released, or it would write
/// to a repository that somebody else works in already. This blocks, but git ends in a millisecond.
impl Drop for Group {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.end();
            if !self.gone_within(DROP_GRACE) {
                self.kill();
                self.gone_within(DROP_GRACE);
            }
        }
    }
}

/// Reads to the end but keeps at most `limit` bytes; says whether something was cut.
async fn read_bounded(
    pipe: Option<impl AsyncRead + Unpin>,
    limit: usize,
) -> std::io::Result<(Vec<u8>, bool)> {
    let Some(mut pipe) = pipe else {
        return Ok((Vec::new(), false));
    };
    let mut kept = Vec::new();
    let mut cut = false;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let n = pipe.read(&mut chunk).await?;
        if n == 0 {
            return Ok((kept, cut));
        }
        let room = limit - kept.len();
        cut |= n > room;
        kept.extend_from_slice(&chunk[..n.min(room)]);
    }
}

/// One path printed by git, with the line end git adds taken off.
pub(crate) fn one_path(mut bytes: Vec<u8>) -> PathBuf {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// `path` as an element of `GIT_ALTERNATE_OBJECT_DIRECTORIES`, which quotes like C.
pub(crate) fn alternate_element(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes();
    let plain = bytes.iter().all(|b| !matches!(b, b':' | b'"' | b'#' | b'\\') && *b >= b' ');
    if plain {
        return path.as_os_str().to_owned();
    }
    let mut quoted = vec![b'"'];
    for &b in bytes {
        match b {
            b'"' | b'\\' => quoted.extend([b'\\', b]),
            b if b < b' ' || b == 0x7f => quoted.extend(format!("\\{b:03o}").into_bytes()),
            b => quoted.push(b),
        }
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_in_a_refusal_is_recognised() {
        let check = |stderr: &str, expected: Option<&str>| {
            assert_eq!(lock_named_in(stderr), expected.map(PathBuf::from));
        };
        check(
            "fatal: Unable to create '/r/.git/index.lock': File exists.\n\nAnother git process",
            Some("/r/.git/index.lock"),
        );
        check(
            "fatal: update_ref failed: cannot lock ref 'refs/heads/a': Unable to create '/r/it's/a.lock': File exists.",
            Some("/r/it's/a.lock"),
        );
        check("fatal: not a git repository", None);
    }

    #[test]
    fn alternates_are_quoted_only_when_needed() {
        let check = |path: &str, expected: &str| {
            assert_eq!(alternate_element(Path::new(path)), OsString::from(expected));
        };
        check("/plain dir/ä", "/plain dir/ä");
        check("/a:b", "\"/a:b\"");
        check("/a\"b", "\"/a\\\"b\"");
        check("/a\nb", "\"/a\\012b\"");
    }

    #[tokio::test]
    async fn programs_are_not_found_in_the_tree_of_a_command() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let script = |at: PathBuf, text: &str| {
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(&at, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        for at in ["tool", "bin/tool", "sub/bin/tool"] {
            script(tree.join(at), "echo from the tree");
        }
        let good = dir.path().join("good");
        script(good.join("tool"), "echo \"$PATH\"");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(tree.join("bin"), &link).unwrap();
        let place = Place::Repo {
            git_dir: dir.path().to_owned().join("git"),
            common_dir: dir.path().to_owned(),
            work_tree: Some(tree.clone()),
        };
        std::fs::create_dir(dir.path().join("git")).unwrap();
        let git = |entries: &str| {
            let env = vec![("PATH".into(), entries.into())];
            Git::new(GitConfig { program: "tool".into(), env, ..GitConfig::default() })
        };
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let all = [".", "", "bin", &text(&tree.join("bin")), &text(&link), &text(&good), "/bin"].join(":");
        let out = git(&all).command(&place, Access::Read, ["x"]).ok().await.unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{}:/bin\n", text(&good)));
        let none = [".", "", "bin", &text(&link)].join(":");
        let error = git(&none).command(&place, Access::Read, ["x"]).ok().await.unwrap_err();
        assert!(matches!(error, GitError::Start { .. }), "{error:?}");
        assert_eq!(absolute_entries(OsStr::new("::.:bin")), DEFAULT_PATH.map(PathBuf::from));
    }

    #[tokio::test]
    async fn a_dropped_command_has_ended() {
        let git = Git::new(GitConfig { program: PathBuf::from("sleep"), ..GitConfig::default() });
        let place = Place::Discover(PathBuf::from("/"));
        let mut run = Box::pin(git.command(&place, Access::Read, ["987654"]).run());
        let started = std::future::poll_fn(|cx| std::task::Poll::Ready(run.as_mut().poll(cx).is_pending()));
        assert!(started.await);
        let sleeping = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let children = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
            let all = children.collect::<Vec<_>>().join(" ");
            // Its own number of seconds tells it from other tests' commands; a dead one has no line.
            let lines = all
                .split_whitespace()
                .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
            lines.filter(|line| line.contains("987654")).count()
        };
        assert_eq!(sleeping(), 1);
        drop(run);
        assert_eq!(sleeping(), 0);
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_ended() {
        let git = Git::new(GitConfig {
            program: PathBuf::from("sleep"),
            read_timeout: Duration::from_millis(50),
            ..GitConfig::default()
        });
        let place = Place::Discover(PathBuf::from("/"));
        let result = git.command(&place, Access::Read, ["1000"]).run().await;
        assert!(matches!(result, Err(GitError::Timeout { .. })), "{result:?}");
    }
}
