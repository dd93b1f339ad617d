//! The parts of a run: sandbox, shell, tools, gate, inbox.

use std::{
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use agent_host::{Memory, MemoryPlaces, RuleSet, SandboxState};
use anyhow::Context as _;
use query_engine::{
    deferral,
    ports::{Observer as _, Tool},
};
use serde_json::json;
use swarm_protocol::{
    frame::Live,
    launch::{Isolation, SandboxSettings, WorkerLaunch},
    permission::PermissionMode,
};

use super::{
    commands::{Brakes, Obedience},
    hidden::Hidden,
    mailbox::{Mailbox, harness},
    surroundings::WorkerSurroundings,
};
use crate::{
    clock::RunClock,
    gate::{GateConfig, GateLink, WorkerGate},
    grants::Leases,
    inner::{Minds, Subagent},
    link::Link,
    originals::Originals,
    proxy::{Allowed, Proxy},
    record::Recorder,
    sandbox::{
        Limits, Network, SandboxPolicy, SandboxReport, SystemPaths, Tier, WriteScope, memory_figure,
        named_tool_chains, tool_chains,
    },
    shell::{
        Environment, Shell, ShellConfig,
        environment::{PORT_BASE, RUN_MARKER},
    },
    tools::{
        self, Files, ServiceKey,
        bash::Commands,
        config::{Adjustable, Config, RunSetting, RunValue},
        cron::Reminders,
        lsp::{Languages, LanguagesConfig, Lsp, WithDiagnostics},
        remote::RemoteTrigger,
        repl::{Repl, ReplTool},
        sleep::Sleep,
        worktree::Standing,
    },
    tree::Tree,
};

pub(crate) struct Parts {
    pub(crate) tree: Option<Arc<Tree>>,
    pub(crate) shell: Arc<Shell>,
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    pub(crate) gate: Arc<WorkerGate>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) surroundings: Arc<WorkerSurroundings>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) brakes: Arc<Brakes>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) policy: SandboxPolicy,
    pub(crate) environment: Environment,
    /// What inner agents think with.
    pub(crate) minds: Arc<OnceLock<Minds>>,
    /// Set when the server has sent its keys.
    pub(crate) search_key: ServiceKey,
    pub(crate) remote_token: ServiceKey,
    pub(crate) languages: Arc<Languages>,
    pub(crate) repl: Arc<Repl>,
    /// Where an agent stands that may move.
    pub(crate) standing: Arc<Standing>,
    hidden: Arc<Hidden>,
    /// Serves as long as commands can run.
    _proxy: Option<Proxy>,
}

/// Whether this agent changes files.
pub(crate) fn may_change(launch: &WorkerLaunch) -> bool {
    launch.spec.isolation != Isolation::None && !matches!(launch.spec.agent_type.as_str(), "Explore" | "Plan")
}

/// Whether it has the tools for that: where it moves, it has the same ones everywhere, and the gate says where they hold.
fn has_editing(launch: &WorkerLaunch) -> bool {
    may_change(launch) || launch.solo
}

/// Whether this agent may let inner agents work for it. One that is read-only itself is as good as they are; and of a
/// budget that a session shares, one grant is held at a time (see [`crate::grants`]).
fn may_start_inner(launch: &WorkerLaunch) -> bool {
    !matches!(launch.spec.agent_type.as_str(), "Explore" | "Plan") && !launch.needs_grants
}

impl Parts {
    pub(crate) async fn build(
        launch: &WorkerLaunch,
        recorder: &Arc<Recorder>,
        link: &Link,
        clock: &Arc<RunClock>,
        sandbox: &SandboxReport,
    ) -> anyhow::Result<Self> {
        let rules = RuleSet::new(launch.rules.iter().cloned()).map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("rules do not parse: {}", errors.join("; "))
        })?;
        let outbox = link.outbox.clone();
        let progress = Arc::new(move |event: worktree_manager::ProgressEvent| {
            let text = event.to_string();
            outbox.live(Live::Activity { text, context_tokens: None, context_window: None });
        });
        let tree = Tree::open(launch, progress).await.context("the worktree cannot be used")?.map(Arc::new);
        for directory in [&launch.temp_dir, &launch.results_dir, &launch.prompts_dir] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| format!("failed to make {}", directory.display()))?;
        }
        let mut policy = policy(launch, tree.as_deref(), sandbox).await;
        let mut environment = environment(launch, tree.as_deref()).await;
        let proxy = proxy(launch, &policy)?;
        if let Some(proxy) = &proxy {
            policy.proxy = Some(proxy.path().to_owned());
            for (name, value) in Proxy::variables() {
                environment.set(name, value);
            }
        }
        let shell = Arc::new(shell(launch, tree.as_deref(), policy.clone(), environment.clone()).await?);

        let root = launch.spec.worktree.canonicalize().unwrap_or_else(|_| launch.spec.worktree.clone());
        let hidden = Arc::new(Hidden::new(rules.clone(), launch.home.clone(), root.clone()));
        let visible = {
            let hidden = hidden.clone();
            Arc::new(move |path: &Path| hidden.is_visible(path))
        };
        let files = Arc::new(Files::new(root.clone(), launch.home.clone(), visible));
        files.memory.restore(recorder.facts().seen);
        let memory = load_memory(launch, root.clone()).await;
        let commands = Commands::new(shell.clone(), tree.clone());
        let timeout = Adjustable::from(Duration::from_millis(launch.limits.permission_timeout_ms));
        let gate = Arc::new(WorkerGate::new(
            gate_config(launch, rules.clone(), sandbox, timeout.clone()),
            files.clone(),
            shell.clone(),
            recorder.clone(),
            GateLink {
                state: link.state.clone(),
                not_taken: link.not_taken.clone(),
                masker: link.outbox.masker().clone(),
            },
            clock.clone(),
        ));
        let grace = Adjustable::from(Duration::from_millis(launch.limits.background_grace_ms));
        let mailbox = Arc::new(Mailbox::new(
            shell.clone(),
            commands.clone(),
            tree.clone(),
            recorder.clone(),
            link.outbox.clone(),
            grace.clone(),
        ));
        let originals = Originals::open(
            launch.session_id,
            recorder.clone(),
            launch.transcript.clone(),
            launch.results_dir.join("originals"),
        )
        .context("old originals cannot be removed")?;
        let originals = Arc::new(originals);
        let surroundings = Arc::new(WorkerSurroundings::new(
            tree.clone(),
            recorder.clone(),
            files.clone(),
            memory.clone(),
            launch.results_dir.clone(),
            originals.clone(),
        ));
        let languages = LanguagesConfig {
            own: launch.limits.tools.language_servers.clone(),
            root: root.clone(),
            scratch: launch.temp_dir.clone(),
            path: environment.get("PATH").map(ToOwned::to_owned),
            is_confined: sandbox.tier != Tier::Unconfined,
        };
        let languages = Arc::new(Languages::new(shell.clone(), languages));
        let mut tools = tools::read_only(&files);
        if has_editing(launch) {
            let told = |tool| -> Arc<dyn Tool> {
                Arc::new(WithDiagnostics::new(tool, files.clone(), languages.clone()))
            };
            tools.extend(tools::editing(&files).into_iter().map(told));
        }
        if languages.has_any() {
            tools.push(Arc::new(Lsp::new(files.clone(), languages.clone())));
        }
        tools.extend(commands.tools());
        tools.push(tools::todo(recorder.clone()));
        tools.extend(tools::tasks::tools(recorder.clone()));
        if !launch.unattended {
            tools.extend(tools::people::tools(&gate, recorder, root.clone(), has_editing(launch)));
        }
        // An accepted plan of its own does not undo the mode that holds now: a person may have set it since. Where the
        // whole session plans, one that is started again plans again.
        if recorder.facts().plans == Some(true) {
            gate.set_mode(PermissionMode::Plan);
        }
        let minds: Arc<OnceLock<Minds>> = Arc::default();
        if may_start_inner(launch) {
            let inner = Subagent::new(
                files.clone(),
                gate.clone(),
                recorder.clone(),
                launch.results_dir.clone(),
                minds.clone(),
                link.outbox.masker().clone(),
            );
            tools.push(Arc::new(inner));
        }
        tools.push(Arc::new(tools::retrieve::Retrieve::new(originals)));
        tools.extend(search(launch, &files));
        let standing = Arc::new(Standing::new(tree.clone(), root.clone(), shell.clone()));
        if launch.solo {
            tools.extend(tools::worktree::tools(&standing));
        }
        let (search_key, remote_token) = (ServiceKey::default(), ServiceKey::default());
        let may_follow = {
            let gate = gate.clone();
            Arc::new(move |host: &str| gate.allows_host("WebFetch", host))
        };
        tools.extend(tools::web::tools(&launch.limits.tools.web, may_follow, search_key.clone()));
        if let Some(server) = launch.limits.tools.remote.clone() {
            tools.push(RemoteTrigger::new(server, remote_token.clone(), launch.session_id, &launch.spec.id));
        }
        let repl = Repl::new(shell.clone());
        if launch.limits.tools.repl {
            tools.push(Arc::new(ReplTool(repl.clone())));
        }
        tools.push(Arc::new(Sleep));
        tools.push(Arc::new(Config::new(settings(launch, sandbox, grace, timeout))));
        tools.extend(reminders(&mailbox).tools());
        tools.retain(|tool| !rules.removes_tool(tool.name()));
        let tools = deferral::with_search(tools);
        let tools = tools::masked::all(tools, link.outbox.masker());
        Ok(Self {
            tree,
            shell,
            tools,
            gate,
            mailbox,
            surroundings,
            memory,
            brakes: Arc::default(),
            leases: Leases::start(recorder.clone()),
            policy,
            environment,
            minds,
            search_key,
            remote_token,
            languages,
            repl,
            standing,
            hidden,
            _proxy: proxy,
        })
    }

    pub(crate) fn obedience(&self, recorder: &Arc<Recorder>) -> Obedience {
        Obedience {
            recorder: recorder.clone(),
            mailbox: self.mailbox.clone(),
            gate: self.gate.clone(),
            hidden: self.hidden.clone(),
            brakes: self.brakes.clone(),
            leases: self.leases.clone(),
        }
    }
}

/// The settings that an agent may know; the last two it may change.
fn settings(
    launch: &WorkerLaunch,
    sandbox: &SandboxReport,
    grace: Adjustable,
    timeout: Adjustable,
) -> Vec<RunSetting> {
    const HOUR: u64 = 60 * 60;
    let limits = &launch.limits;
    let fixed = |name, value| RunSetting { name, value: RunValue::Fixed(value) };
    let seconds = |name, time| RunSetting { name, value: RunValue::Seconds { time, most: HOUR } };
    vec![
        fixed("model", json!(launch.spec.model.display_name())),
        fixed("unattended", json!(launch.unattended)),
        fixed("worker.max_turns", json!(limits.max_turns)),
        fixed("worker.budget_usd", json!(limits.budget.usd)),
        fixed("worker.budget_tokens", json!(limits.budget.tokens)),
        fixed("max_tool_concurrency", json!(limits.max_tool_concurrency)),
        fixed("sandbox.tier", json!(u8::from(sandbox.tier))),
        fixed(
            "sandbox.network",
            match (limits.sandbox_network, limits.sandbox.hosts.as_slice()) {
                (true, _) => json!("on"),
                (false, []) => json!("off"),
                (false, hosts) => json!(hosts),
            },
        ),
        seconds("background_grace", grace),
        seconds("permission_timeout", timeout),
    ]
}

/// Where a session has one agent, there is nobody whose words could be searched.
fn search(launch: &WorkerLaunch, files: &Arc<Files>) -> Option<Arc<dyn Tool>> {
    let subagents = launch.transcript.parent().filter(|_| !launch.solo)?;
    let (own, checkout) = (launch.spec.id.clone(), launch.checkout.clone());
    Some(Arc::new(tools::search::Search::new(subagents.to_owned(), own, checkout, files.clone())))
}

/// Reminders that come to this inbox; the tools keep them.
fn reminders(mailbox: &Arc<Mailbox>) -> Arc<Reminders> {
    let inbox = Arc::downgrade(mailbox);
    let deliver = move |text: String| {
        if let Some(mailbox) = inbox.upgrade() {
            mailbox.push_once(harness(text));
        }
    };
    Reminders::start(Arc::new(jiff::ZonedDateTime::now), Arc::new(deliver))
}

/// The way to the hosts that the settings list, where commands have a network of their own to find it in.
fn proxy(launch: &WorkerLaunch, policy: &SandboxPolicy) -> anyhow::Result<Option<Proxy>> {
    let allowed = Allowed::new(launch.limits.sandbox.hosts.iter().map(String::as_str));
    if allowed.is_empty() || policy.network == Network::On {
        return Ok(None);
    }
    if policy.tier != Tier::Namespaces {
        tracing::warn!("sandbox.network lists hosts, which needs tier 1; commands have no network");
        return Ok(None);
    }
    Proxy::start(allowed).map(Some).context("the proxy of commands cannot be started")
}

/// What a command may use. The memory is bounded unasked, or one command could take the worker and the server along.
fn limits(settings: &SandboxSettings) -> Limits {
    let mib = |mib: u64| (mib > 0).then_some(mib << 20);
    let total = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        Some(memory_figure(&text, "MemTotal:")? / 4 * 3)
    };
    Limits {
        processes: Some(settings.processes).filter(|processes| *processes > 0),
        memory_bytes: mib(settings.memory_mib).or_else(total),
        file_bytes: mib(settings.disk_mib),
        temp_bytes: mib(settings.disk_mib),
        ..Limits::default()
    }
}

/// In a worktree's git directory: how git finds the repository from there, and configuration of its own.
const PROTECTED: [&str; 3] = ["commondir", "config.worktree", "gitdir"];

async fn policy(launch: &WorkerLaunch, tree: Option<&Tree>, sandbox: &SandboxReport) -> SandboxPolicy {
    let mut system = SystemPaths::with_home(&launch.home);
    let path =
        launch.environment.get("PATH").map(std::ffi::OsString::from).or_else(|| std::env::var_os("PATH"));
    system.readable.extend(path.iter().flat_map(|path| tool_chains(path, &launch.home)));
    let variable = |name: &str| launch.environment.get(name).map(String::as_str);
    system.readable.extend(named_tool_chains(variable, &launch.home));
    system.unreadable.extend(private_places(launch));
    let mut policy =
        SandboxPolicy::for_worktree(launch.spec.worktree.clone(), launch.temp_dir.clone(), system);
    policy.tier = sandbox.tier;
    policy.limits = limits(&launch.limits.sandbox);
    if !may_change(launch) {
        policy.write_scope = WriteScope::ReadOnly;
    }
    if let Some(tree) = tree {
        let git_dir = tree.for_commands().await.1;
        // What leads from the worktree to its repository and says how git behaves there.
        policy.protected = PROTECTED.iter().map(|name| git_dir.join(name)).collect();
        policy.protected.push(launch.spec.worktree.join(".git"));
        policy.writable.push(git_dir);
    }
    let writable = launch.limits.sandbox.writable.iter();
    policy.writable.extend(writable.map(|path| agent_host::at_home(path, &launch.home)));
    policy.home = Some(launch.home.clone());
    policy.readable = vec![launch.git_common_dir.clone(), launch.results_dir.clone()];
    policy.network = if launch.limits.sandbox_network { Network::On } else { Network::Off };
    policy
}

/// The server's own places: its directory with token, journal and the worktrees of all workers, and that of
/// its socket. What is this worker's own in there is named by the policy.
fn private_places(launch: &WorkerLaunch) -> Vec<PathBuf> {
    [&launch.server_file, &launch.socket]
        .into_iter()
        .filter_map(|file| file.parent())
        // Not the root, should a path be that short.
        .filter(|directory| directory.parent().is_some())
        .map(Path::to_path_buf)
        .collect()
}

async fn environment(launch: &WorkerLaunch, tree: Option<&Tree>) -> Environment {
    let mut environment = Environment::filtered(std::iter::empty());
    environment.set("HOME", &launch.home);
    if let Some(path) = std::env::var_os("PATH") {
        environment.set("PATH", path);
    }
    // Filtered by the server, which knows what the settings name.
    for (name, value) in &launch.environment {
        environment.set(name, value);
    }
    if let Some(path) = fallback_identity(launch) {
        environment.set("GIT_CONFIG_SYSTEM", path);
    }
    environment.set(PORT_BASE, launch.spec.port_base.to_string());
    if let Some(tree) = tree {
        for (name, value) in tree.for_commands().await.0 {
            environment.set(name, value);
        }
    }
    environment
}

/// A configuration of git below all others, so that `git commit` works for users who told git no name; the
/// commit at the end has the same one.
fn fallback_identity(launch: &WorkerLaunch) -> Option<PathBuf> {
    const SYSTEM: &str = "/etc/gitconfig";
    if launch.environment.keys().any(|name| name.starts_with("GIT_CONFIG_")) {
        return None;
    }
    let path = launch.results_dir.join("gitconfig");
    let text = format!("[user]\n\tname = swarm\n\temail = swarm@localhost\n[include]\n\tpath = {SYSTEM}\n");
    match agent_host::replace_file(&path, 0o600, text.as_bytes()) {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!(%error, "no fallback for git's identity");
            None
        }
    }
}

async fn shell(
    launch: &WorkerLaunch,
    tree: Option<&Tree>,
    policy: SandboxPolicy,
    environment: Environment,
) -> anyhow::Result<Shell> {
    let run_id = run_id(launch);
    let mut config = ShellConfig::new(policy, environment, run_id, launch.results_dir.clone());
    config.git_dir = match tree {
        Some(tree) => Some(tree.for_commands().await.1),
        None => None,
    };
    Shell::new(config).context("failed to set up the shell")
}

/// What marks the processes of this run: the keeper's word, which finds what is left by it.
pub(crate) fn run_id(launch: &WorkerLaunch) -> String {
    std::env::var(RUN_MARKER).unwrap_or_else(|_| {
        format!("{}/{}/{}.{}", launch.session_id, launch.spec.id, launch.run, launch.restarts)
    })
}

fn gate_config(
    launch: &WorkerLaunch,
    rules: RuleSet,
    sandbox: &SandboxReport,
    timeout: Adjustable,
) -> GateConfig {
    GateConfig {
        worker_id: launch.spec.id.clone(),
        run: launch.run,
        rules,
        mode: launch.permission_mode,
        isolation: launch.spec.isolation,
        sandbox: SandboxState {
            enforces: sandbox.tier != Tier::Unconfined,
            auto_allow: launch.limits.sandbox_auto_allow,
            is_read_only: !may_change(launch),
        },
        is_unattended: launch.unattended,
        home: launch.home.clone(),
        writable: vec![launch.temp_dir.clone()],
        readable: vec![launch.results_dir.clone(), launch.temp_dir.clone()],
        timeout,
        asks_when_unavailable: launch.limits.auto_mode_asks,
    }
}

async fn load_memory(launch: &WorkerLaunch, root: PathBuf) -> Arc<Mutex<Memory>> {
    let places = MemoryPlaces {
        user_directory: launch.home.join(".claude"),
        cwd: root.clone(),
        repository: root,
        budget_bytes: agent_host::DEFAULT_MEMORY_BUDGET_BYTES,
    };
    let load = {
        let places = places.clone();
        move || Memory::load(places)
    };
    let memory = tokio::task::spawn_blocking(load).await.unwrap_or_else(|_| {
        tracing::error!("memory files could not be loaded");
        Memory::load(MemoryPlaces {
            user_directory: PathBuf::new(),
            repository: PathBuf::new(),
            cwd: PathBuf::new(),
            ..places
        })
    });
    for notice in memory.notices() {
        tracing::info!(path = %notice.path.display(), why = %notice.why, "a memory file was not loaded");
    }
    Arc::new(Mutex::new(memory))
}
