//! The keeper: what it writes, what it ends, what it survives.

use crate::support::{HELPER, Stranger, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use swarm_protocol::process::{EXIT_FILE, ExitFile, KEEPER_FILE, KeeperFile, ProcessExit};
use worker::shell::processes::{command_of, descendants_of, find_by_env_marker, is_alive, live_processes};

struct Kept {
    dir: tempfile::TempDir,
    keeper: Child,
    run_id: String,
}

impl Kept {
    /// A keeper over `bash -c script`; the script finds its run directory as `$RUN_DIR`.
    fn start(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run_id = uuid::Uuid::new_v4().to_string();
        let keeper = Command::new(HELPER)
            .args(["keeper", "--stop-grace-ms", "300", "--run-id", &run_id])
            .arg("--run-dir")
            .arg(dir.path())
            .args(["--", "/bin/bash", "-c", script])
            .env("RUN_DIR", dir.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { dir, keeper, run_id }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn keeper_file(&self) -> KeeperFile {
        until("keeper.json", || self.path(KEEPER_FILE).exists()).await;
        read(&self.path(KEEPER_FILE))
    }

    /// Waits until the script has made a file.
    async fn ready(&self) {
        until("the script is ready", || self.path("ready").exists()).await;
    }

    async fn exit_file(&mut self) -> ExitFile {
        until("exit.json", || self.path(EXIT_FILE).exists()).await;
        assert!(self.keeper.wait().unwrap().success());
        let left = find_by_env_marker("SWARM_RUN", &self.run_id);
        assert_eq!(left, [], "left when exit.json was there");
        read(&self.path(EXIT_FILE))
    }

    fn signal_keeper(&self, signal: Signal) {
        kill(Pid::from_raw(self.keeper.id().cast_signed()), signal).unwrap();
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn an_end_is_written_with_its_code() {
    let mut kept = Kept::start("cat $RUN_DIR/keeper.json >$RUN_DIR/seen; exit 7");
    let exit = kept.exit_file().await;
    assert_eq!(exit.exit, ProcessExit::Code(7));
    assert_eq!(exit.killed, []);
    // The record was there before the worker did anything.
    let keeper: KeeperFile = read(&kept.path("seen"));
    assert_eq!(keeper.pid, kept.keeper.id().cast_signed());
}

#[tokio::test]
async fn a_killed_worker_takes_its_tree_along() {
    // A child, a double fork, a session of its own, and one that ignores SIGTERM and has no marker.
    let mut kept = Kept::start(
        "sleep 1001 & (sleep 1002 &) ; setsid sleep 1003 & \
         (trap '' TERM; env -i setsid /bin/sleep 1004 &) ; sleep 1005; true",
    );
    let expected = ["/bin/sleep 1004", "sleep 1001", "sleep 1002", "sleep 1003", "sleep 1005"];
    let keeper = kept.keeper.id().cast_signed();
    until("all have become what they shall be", || {
        let below = descendants_of(keeper, &live_processes());
        let commands: Vec<String> = below.iter().map(|stat| command_of(stat.pid)).collect();
        expected.iter().all(|name| commands.iter().any(|command| command == name))
    })
    .await;
    let stranger = Stranger::new();
    let file = kept.keeper_file().await;
    let worker = file.worker();
    assert!(is_alive(&worker) && is_alive(&file.keeper()));
    kill(Pid::from_raw(worker.pid), Signal::SIGKILL).unwrap();
    let exit = kept.exit_file().await;
    assert_eq!(exit.exit, ProcessExit::Signal(9));
    let mut killed: Vec<&str> = exit.killed.iter().map(|process| process.command.as_str()).collect();
    killed.sort_unstable();
    assert_eq!(killed, expected);
    assert_eq!(exit.survivors, []);
    assert!(!is_alive(&worker));
    assert!(stranger.is_alive());
}

#[tokio::test]
async fn a_killed_keeper_takes_its_worker_along() {
    let mut kept = Kept::start("touch $RUN_DIR/ready; exec sleep 1010");
    kept.ready().await;
    let worker = kept.keeper_file().await.worker();
    kept.signal_keeper(Signal::SIGKILL);
    until("the worker is dead", || !is_alive(&worker)).await;
    kept.keeper.wait().unwrap();
    assert!(!kept.path(EXIT_FILE).exists());
}

#[tokio::test]
async fn a_hang_up_passes_by_and_a_stop_is_handed_on() {
    let mut kept = Kept::start(
        "trap 'echo told >$RUN_DIR/told; exit 5' TERM; touch $RUN_DIR/ready; while :; do sleep 0.05; done",
    );
    kept.ready().await;
    kept.signal_keeper(Signal::SIGHUP);
    kept.signal_keeper(Signal::SIGTERM);
    let exit = kept.exit_file().await;
    assert_eq!(exit.exit, ProcessExit::Code(5));
    assert!(kept.path("told").exists());
}

#[tokio::test]
async fn a_worker_that_does_not_stop_is_killed() {
    let mut kept = Kept::start("trap '' TERM; touch $RUN_DIR/ready; while :; do sleep 1000; done");
    kept.ready().await;
    kept.signal_keeper(Signal::SIGTERM);
    assert_eq!(kept.exit_file().await.exit, ProcessExit::Signal(9));
}

#[tokio::test]
async fn a_keeper_outlives_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "{HELPER} keeper --run-id x{} --run-dir {} -- /bin/sh -c 'while ! [ -e go ]; do sleep 0.02; done' &",
        std::process::id(),
        dir.path().display()
    );
    let parent = Command::new("/bin/sh").args(["-c", &script]).current_dir(dir.path()).status();
    assert!(parent.unwrap().success());
    until("keeper.json", || dir.path().join(KEEPER_FILE).exists()).await;
    std::fs::write(dir.path().join("go"), "").unwrap();
    until("exit.json", || dir.path().join(EXIT_FILE).exists()).await;
    let exit: ExitFile = read(&dir.path().join(EXIT_FILE));
    assert_eq!(exit.exit, ProcessExit::Code(0));
}

#[tokio::test]
async fn a_keeper_is_small() {
    let mut kept = Kept::start("touch $RUN_DIR/ready; exec sleep 1020");
    kept.ready().await;
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", kept.keeper.id())).unwrap();
    for line in rollup.lines().filter(|line| line.starts_with("Pss") || line.starts_with("Private")) {
        println!("keeper {line}");
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", kept.keeper.id())).unwrap().count();
    assert_eq!(threads, 1);
    kept.signal_keeper(Signal::SIGTERM);
    assert_eq!(kept.exit_file().await.exit, ProcessExit::Signal(15));
}
