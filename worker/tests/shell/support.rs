//! A shell over a temporary worktree, and waiting for events.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use worker::sandbox::{SandboxPolicy, SystemPaths, Tier, probe};
use worker::shell::{CommandOutcome, CommandRequest, Environment, Shell, ShellConfig};

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_swarm-worker");

/// The helper, which another user may need at another place.
pub(crate) fn helper() -> PathBuf {
    std::env::var_os("SWARM_TEST_HELPER").map_or_else(|| PathBuf::from(HELPER), PathBuf::from)
}

/// Everything here takes milliseconds; this is for a machine that does not answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    pub(crate) shell: Arc<Shell>,
    /// Worktree, temp and output directory, and a place outside.
    pub(crate) dir: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// On the strongest tier of this machine.
    pub(crate) fn with(change: impl FnOnce(&mut ShellConfig)) -> Self {
        Self::on(strongest_tier(), change)
    }

    pub(crate) fn on(tier: Tier, change: impl FnOnce(&mut ShellConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["tree", "outside"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let home = std::env::var_os("HOME").map_or_else(|| root.clone(), PathBuf::from);
        let mut policy =
            SandboxPolicy::for_worktree(root.join("tree"), root.join("temp"), SystemPaths::with_home(&home));
        policy.tier = tier;
        let mut config = ShellConfig::new(
            policy,
            Environment::filtered(std::env::vars_os()),
            uuid::Uuid::new_v4().to_string(),
            root.join("output"),
        );
        config.helper = helper();
        config.stop_grace = Duration::from_millis(500);
        change(&mut config);
        Self { shell: Arc::new(Shell::new(config).unwrap()), dir }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.root().join("tree")
    }

    pub(crate) async fn outcome(&self, command: &str) -> CommandOutcome {
        self.request(CommandRequest::new(command)).await
    }

    pub(crate) async fn request(&self, request: CommandRequest) -> CommandOutcome {
        let cancel = CancellationToken::new();
        let run = self.shell.run(request, &cancel, None);
        tokio::time::timeout(DEADLINE, run).await.unwrap()
    }

    /// Text and exit of a command, as `exit: text`.
    pub(crate) async fn render(&self, command: &str) -> String {
        let outcome = self.outcome(command).await;
        format!("{}: {}", outcome.exit, outcome.output.text.trim_end())
    }
}

/// A process that is nobody's business; ended with the test, whatever its outcome.
pub(crate) struct Stranger(std::process::Child);

impl Stranger {
    pub(crate) fn new() -> Self {
        let child = std::process::Command::new("sleep")
            .arg("1030")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn is_alive(&self) -> bool {
        worker::shell::processes::identity_of(self.pid()).is_some()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Fails loudly on a machine without one, unless that was asked for.
pub(crate) fn strongest_tier() -> Tier {
    let report = probe(&helper()).unwrap();
    assert!(
        report.tier != Tier::Unconfined || std::env::var_os("SWARM_TEST_NO_SANDBOX").is_some(),
        "no sandbox on this machine (SWARM_TEST_NO_SANDBOX=1 skips): {report:?}"
    );
    report.tier
}

/// Whether commands are confined here at all.
pub(crate) fn sandbox_is_there() -> bool {
    strongest_tier() != Tier::Unconfined
}

/// Whether the machine has this tier. Fails loudly where it has not, unless that was asked for.
pub(crate) fn has(tier: Tier) -> bool {
    let report = probe(&helper()).unwrap();
    let is_there = report.tiers.iter().any(|found| found.tier == tier && found.obstacles.is_empty());
    assert!(
        is_there || std::env::var_os("SWARM_TEST_NO_SANDBOX").is_some(),
        "no tier {} on this machine (SWARM_TEST_NO_SANDBOX=1 skips): {report:?}",
        u8::from(tier)
    );
    is_there
}

/// Looks again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let look = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let seen = tokio::time::timeout(DEADLINE, look).await;
    assert!(seen.is_ok(), "waited in vain: {what}");
}
