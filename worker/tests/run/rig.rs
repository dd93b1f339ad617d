//! A repository, a worktree, a launch file, and the server's side of the socket.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use swarm_protocol::{
    RunNumber, Seq, SessionId, TaskId,
    codec::{Decoder, encode},
    frame::{Command, FromWorker, Keys, RecordMark, ToWorker},
    launch::{AgentLimits, ApiKind, Expects, Isolation, ModelEndpoint, WorkerLaunch, WorkerSpec},
    permission::PermissionMode,
    record::{RecordBody, RecordHead, RunEnd},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    process::Child,
};
use worktree_manager::{AgentId, BranchPrefix, CreateSpec, Manager, Repository, SessionTag};

use super::model::Model;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server gives each run for its model.
pub(super) const MODEL_KEY: &str = "key-of-the-scripted-model";

pub(super) struct Rig {
    dir: tempfile::TempDir,
    pub(super) launch: WorkerLaunch,
    pub(super) model: Model,
    listener: UnixListener,
    /// What the server has.
    pub(super) heads: Vec<RecordHead>,
    pub(super) bodies: Vec<RecordBody>,
    /// All frames but greetings, as text.
    pub(super) said: String,
}

/// A worker that is connected.
pub(super) struct Running {
    pub(super) child: Child,
    stream: UnixStream,
    decoder: Decoder,
}

pub(super) fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Rig {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let repo = root.join("repo");
        for name in ["repo", "home", "temp", "run"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        git(&repo, &["init", "-q", "-b", "main"]);
        git(&repo, &["config", "user.name", "t"]);
        git(&repo, &["config", "user.email", "t@localhost"]);
        std::fs::write(repo.join("a.txt"), "one\ntwo\n").unwrap();
        git(&repo, &["add", "."]);
        git(&repo, &["commit", "-q", "-m", "start"]);
        let repository = Repository::open(&repo).await.unwrap();
        let base = git(&repo, &["rev-parse", "HEAD"]);
        let manager = Manager::new(repository.clone(), &root.join("worktrees"));
        let made = manager
            .create(&CreateSpec {
                agent: AgentId::parse("agent-a1b").unwrap(),
                session: SessionTag::parse("7c1d09e2").unwrap(),
                description: "try things".to_owned(),
                prefix: BranchPrefix::parse("swarm").unwrap(),
                base: worktree_manager::CommitId::parse(&base).unwrap(),
            })
            .await
            .unwrap();
        let model = Model::start().await;
        let spec = WorkerSpec {
            id: "agent-a1b".parse().unwrap(),
            name: "try things".to_owned(),
            description: "try things".to_owned(),
            prompt: "Try things.".to_owned(),
            agent_type: "general-purpose".to_owned(),
            isolation: Isolation::Worktree,
            expects: Expects::Changes,
            model: endpoint(&model.url),
            base,
            branch: Some(made.worktree.branch.to_string()),
            worktree: made.worktree.path.clone(),
            port_base: 20_000,
            task_id: TaskId(uuid::Uuid::nil()),
            parent_turn: 1,
        };
        let launch = launch(&root, spec, repository.common_dir().to_owned(), made.worktree.git_dir.clone());
        let listener = UnixListener::bind(&launch.socket).unwrap();
        Self { dir, launch, model, listener, heads: Vec::new(), bodies: Vec::new(), said: String::new() }
    }

    /// The server goes, and its socket with it.
    pub(super) fn forget_the_socket(&mut self) {
        std::fs::remove_file(&self.launch.socket).unwrap();
        self.listener = UnixListener::bind(self.root().join("elsewhere")).unwrap();
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub(super) fn worktree(&self) -> &Path {
        &self.launch.spec.worktree
    }

    /// Starts a process of the run and welcomes it.
    pub(super) async fn start(&mut self) -> Running {
        let file = self.root().join("run/launch.json");
        std::fs::write(&file, serde_json::to_vec(&self.launch).unwrap()).unwrap();
        let child = tokio::process::Command::new(env!("CARGO_BIN_EXE_swarm-worker"))
            .arg("run")
            .arg("--launch")
            .arg(file)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.connected(child).await
    }

    /// Takes the next connection and welcomes it.
    pub(super) async fn connected(&self, child: Child) -> Running {
        let (stream, _) = tokio::time::timeout(PATIENCE, self.listener.accept()).await.unwrap().unwrap();
        let mut running = Running { child, stream, decoder: Decoder::default() };
        let Some(FromWorker::Hello { token, .. }) = running.next().await else { panic!("no greeting") };
        assert_eq!(token, self.launch.token);
        let acknowledged = self.heads.last().map(|head| RecordMark { n: head.n, uuid: head.uuid });
        let keys = Some(Keys { model: Some(MODEL_KEY.to_owned()), ..Keys::default() });
        running.send(&ToWorker::Welcome { version: 1, acknowledged, keys }).await;
        running
    }

    /// Reads and acknowledges records until one is of this kind.
    pub(super) async fn until(&mut self, running: &mut Running, kind: &str) -> Option<RecordBody> {
        loop {
            let frame = running.next().await?;
            self.said.push_str(&serde_json::to_string(&frame).unwrap());
            match frame {
                FromWorker::Record { head, body } => {
                    assert_eq!(head.n, self.heads.last().map_or(1, |head| head.n + 1), "no gap, no repeat");
                    running.send(&ToWorker::Acknowledged { n: head.n }).await;
                    let found = head.record == kind;
                    self.heads.push(head);
                    self.bodies.extend(body.as_deref().cloned());
                    if found {
                        return Some(
                            body.map_or(RecordBody::Tombstone { note: String::new() }, |body| *body),
                        );
                    }
                }
                FromWorker::Live { .. } | FromWorker::Pace { .. } | FromWorker::Hello { .. } => {}
            }
        }
    }

    /// Follows the run to its end.
    pub(super) async fn end(&mut self, mut running: Running) -> RunEnd {
        let Some(RecordBody::RunEnded(end)) = self.until(&mut running, "run_ended").await else {
            panic!("no end record")
        };
        let status = tokio::time::timeout(PATIENCE, running.child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(0));
        *end
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.heads.iter().filter(|head| head.record == kind).count()
    }

    pub(super) fn on_branch(&self, file: &str) -> String {
        let branch = self.launch.spec.branch.clone().unwrap();
        git(&self.launch.checkout, &["show", &format!("{branch}:{file}")])
    }
}

impl Running {
    pub(super) async fn send(&mut self, frame: &ToWorker) {
        self.stream.write_all(&encode(frame).unwrap()).await.unwrap();
    }

    pub(super) async fn command(&mut self, id: u64, command: Command) {
        self.send(&ToWorker::Command { id: Seq(id), command }).await;
    }

    /// Ends the connection; the process goes on.
    pub(super) fn hang_up(self) -> Child {
        self.child
    }

    async fn next(&mut self) -> Option<FromWorker> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let mut bytes = Vec::with_capacity(4096);
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut bytes)).await;
            if read.expect("the worker says nothing").unwrap_or(0) == 0 {
                return None;
            }
            self.decoder.push(&bytes);
        }
    }
}

fn endpoint(url: &str) -> ModelEndpoint {
    let plain = ModelEndpoint::plain("anthropic", "scripted", ApiKind::Anthropic, url);
    ModelEndpoint { context_window: Some(200_000), ..plain }
}

fn launch(root: &Path, spec: WorkerSpec, git_common_dir: PathBuf, worktree_git_dir: PathBuf) -> WorkerLaunch {
    WorkerLaunch {
        protocol_version: 1,
        session_id: SessionId(uuid::Uuid::nil()),
        spec,
        run: RunNumber(1),
        restarts: 0,
        notes: Vec::new(),
        checkout: root.join("repo"),
        git_common_dir,
        worktree_git_dir: Some(worktree_git_dir),
        temp_dir: root.join("temp"),
        transcript: root.join("run/agent-a1b.jsonl"),
        results_dir: root.join("results"),
        prompts_dir: root.join("prompts"),
        socket: root.join("s"),
        server_file: root.join("server.json"),
        token: "secret".to_owned(),
        permission_mode: PermissionMode::AcceptEdits,
        unattended: false,
        rules: Vec::new(),
        helper: None,
        fallback: None,
        limits: AgentLimits {
            max_turns: 50,
            permission_timeout_ms: 60_000,
            background_grace_ms: 2_000,
            max_tool_concurrency: 10,
            cache_keepalive: false,
            tools: Default::default(),
            classifier_racer: false,
            auto_mode_asks: false,
            git_lock_wait_ms: 30_000,
            sandbox_auto_allow: true,
            sandbox_required: 0,
            sandbox_network: false,
            sandbox: swarm_protocol::launch::SandboxSettings::default(),
            budget: Default::default(),
        },
        needs_grants: false,
        setup: None,
        check: None,
        environment: BTreeMap::new(),
        system_prompt: None,
        home: root.join("home"),
        included_files: Vec::new(),
        solo: false,
        moved: false,
    }
}
