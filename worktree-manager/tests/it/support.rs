//! Real repositories in temporary directories: no user configuration, fixed dates.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use worktree_manager::{
    AgentId, BranchName, BranchPrefix, CommitId, CreateSpec, Created, GitConfig, LockPatience, Manager,
    MergeRequest, OwnWorktree, Repository, SessionTag, Strategy, Worktree, silent,
};

pub(crate) const ENV: [(&str, &str); 5] = [
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_AUTHOR_DATE", "2001-02-03T04:05:06+00:00"),
    ("GIT_COMMITTER_DATE", "2001-02-03T04:05:06+00:00"),
    ("HOME", "/nonexistent"),
];

pub(crate) fn config() -> GitConfig {
    GitConfig {
        lock_patience: LockPatience {
            limit: Duration::from_millis(300),
            first_pause: Duration::from_millis(5),
            longest_pause: Duration::from_millis(20),
        },
        env: ENV.iter().map(|(k, v)| (k.into(), v.into())).collect(),
        ..GitConfig::default()
    }
}

/// A repository with one commit of `a.txt`, `b.txt` and `.gitignore`, and a manager for it.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) repo: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::named("repo".as_bytes())
    }

    pub(crate) fn named(name: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join(OsStr::from_bytes(name));
        std::fs::create_dir(&repo).unwrap();
        let bench = Self { dir, repo };
        bench.git(["init", "-q", "-b", "main"]);
        bench.git(["config", "user.name", "Ada"]);
        bench.git(["config", "user.email", "ada@example.org"]);
        bench.write("a.txt", "one\ntwo\nthree\n");
        bench.write("b.txt", "bee\n");
        bench.write(".gitignore", "*.log\n.env\ntarget/\nnode_modules\n");
        bench.git(["add", "."]);
        bench.git(["commit", "-q", "-m", "first"]);
        bench
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        write(&self.repo, path, content);
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.repo.join(path)).unwrap()
    }

    pub(crate) fn git<const N: usize>(&self, args: [&str; N]) -> String {
        git(&self.repo, &args)
    }

    pub(crate) fn rev(&self, spec: &str) -> CommitId {
        CommitId::parse(&self.git(["rev-parse", "--verify", spec])).unwrap()
    }

    pub(crate) async fn repository(&self) -> Repository {
        Repository::open_with(&self.repo, config()).await.unwrap()
    }

    pub(crate) async fn manager(&self) -> Manager {
        Manager::new(self.repository().await, &self.dir.path().join("home"))
    }

    /// Proves that the store is whole and has nothing of a half-finished write.
    pub(crate) fn fsck(&self) {
        let out = raw_git(&self.repo, &["fsck", "--full", "--no-dangling", "--no-progress"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.is_empty(), "{text}");
    }
}

pub(crate) fn write(dir: &Path, path: &str, content: &str) {
    let full = dir.join(path);
    std::fs::create_dir_all(full.parent().unwrap()).unwrap();
    std::fs::write(full, content).unwrap();
}

pub(crate) fn raw_git(dir: &Path, args: &[&str]) -> Output {
    Command::new("git").current_dir(dir).args(args).envs(ENV).output().unwrap()
}

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let out = raw_git(dir, args);
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

pub(crate) fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

pub(crate) fn spec(name: &str, base: &CommitId) -> CreateSpec {
    CreateSpec {
        agent: agent(name),
        session: SessionTag::parse("7c1d09e2").unwrap(),
        description: "Fix the bug".to_owned(),
        prefix: BranchPrefix::default(),
        base: base.clone(),
    }
}

pub(crate) async fn create(bench: &Bench, manager: &Manager, name: &str) -> Created {
    manager.create(&spec(name, &bench.rev("HEAD"))).await.unwrap()
}

pub(crate) fn into_main(worktree: &Worktree, strategy: Strategy) -> MergeRequest {
    MergeRequest {
        branch: worktree.branch.clone(),
        into: BranchName::parse("main").unwrap(),
        strategy,
        message: None,
    }
}

pub(crate) async fn own(manager: &Manager, worktree: &Worktree) -> OwnWorktree {
    let assignment = manager.assignment(worktree);
    OwnWorktree::open_with(&worktree.path, assignment, config(), silent()).await.unwrap()
}

/// Runs git as an agent's confined command would: with the worktree's environment.
pub(crate) fn command(own: &OwnWorktree, args: &[&str]) -> Output {
    let identity = [
        ("GIT_AUTHOR_NAME", "worker"),
        ("GIT_AUTHOR_EMAIL", "w@x"),
        ("GIT_COMMITTER_NAME", "worker"),
        ("GIT_COMMITTER_EMAIL", "w@x"),
    ];
    Command::new("git")
        .current_dir(own.path())
        .args(args)
        .envs(ENV)
        .envs(identity)
        .envs(own.environment())
        .output()
        .unwrap()
}

pub(crate) fn command_ok(own: &OwnWorktree, args: &[&str]) -> String {
    let out = command(own, args);
    assert!(
        out.status.success(),
        "git {args:?}: {}{}",
        String::from_utf8_lossy(&out.stderr),
        String::from_utf8_lossy(&out.stdout)
    );
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

/// Commits everything in a worktree and moves its branch, as a worker does at its end.
pub(crate) async fn finish(manager: &Manager, worktree: &Worktree, message: &str) {
    let mut own = own(manager, worktree).await;
    let request = worktree_manager::CommitRequest::new(message);
    let _committed = own.commit_all(&request).await.unwrap();
    own.advance_branch().await.unwrap();
}

/// Every file below, with its content, except below `but`.
pub(crate) fn contents(dir: &Path, but: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.starts_with(but) {
                continue;
            }
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path);
            } else {
                found.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
            }
        }
    }
    found
}
