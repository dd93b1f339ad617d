//! Starting a run and watching it to its end: worktree, launch file, keeper. One task per run, owned by the
//! session's actor; it reports by orders and changes nothing of the session itself.

use std::{
    collections::BTreeMap,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use agent_host::transcript;
use nix::{sys::signal, unistd::Pid};
use swarm_protocol::{
    RunNumber, WorkerId, error_chain,
    frame::PROTOCOL_VERSION,
    launch::{Isolation, WorkerLaunch, WorkerSpec},
    process::{EXIT_FILE, ExitFile, KEEPER_FILE, KeeperFile, ProcessIdentity},
    record::{RecordBody, RecordHead},
};
use tokio_util::task::AbortOnDropHandle;
use worktree_manager::{
    AgentId, BranchName, BranchPrefix, CommitId, CreateSpec, Fingerprint, Force, Manager, Removal,
    Repository, SessionTag, Slug, SubmoduleFill,
};

use crate::{
    home, repositories,
    server::Shared,
    session::{
        Order, SessionHandle,
        model::{SessionModel, WorkerModel},
    },
};

/// How often a run's keeper is looked at. A death is noticed within 2 s (spec 10.3).
const WATCH_INTERVAL: Duration = Duration::from_millis(150);

/// How long a keeper may take to say that it keeps.
const KEEPER_PATIENCE: Duration = Duration::from_secs(15);

/// Records read from a transcript at once.
const PAGE: usize = 500;

/// Name of the fingerprint taken before a run, in the run's directory.
pub(crate) const BEFORE_FILE: &str = "before.json";

/// Everything a run is started from.
pub(crate) struct RunPlan {
    spec: WorkerSpec,
    run: RunNumber,
    restarts: u32,
    launch: WorkerLaunch,
    run_dir: PathBuf,
    repo: PathBuf,
    worktree_root: PathBuf,
    session_tag: String,
    branch_prefix: String,
    tmux: bool,
    /// It has left a worktree that is to go.
    discards: bool,
}

/// A run that is watched again after a restart of the server.
pub(crate) struct AdoptPlan {
    worker_id: WorkerId,
    run: RunNumber,
    keeper: ProcessIdentity,
    run_dir: PathBuf,
    transcript: PathBuf,
}

/// Where worktrees of a session's repository are made.
pub(crate) fn worktree_root(shared: &Shared, model: &SessionModel) -> PathBuf {
    model.spec.worktree_root.clone().unwrap_or_else(|| shared.home.worktrees())
}

/// Where a worker's worktree will be.
pub(crate) fn worktree_path(shared: &Shared, model: &SessionModel, worker_id: &WorkerId) -> PathBuf {
    worktree_root(shared, model).join(&model.spec.repo_key).join(worker_id.as_str())
}

/// The branch as planned; another name is taken when this one is not free.
pub(crate) fn planned_branch(model: &SessionModel, worker_id: &WorkerId, description: &str) -> String {
    let slug = Slug::of(description);
    format!("{}/{}/{worker_id}/{}", model.spec.branch_prefix, model.id.short(), slug.as_str())
}

/// What the present run of a worker is started from.
pub(crate) fn plan(shared: &Shared, model: &SessionModel, worker_id: &WorkerId) -> Option<RunPlan> {
    let worker = model.worker(worker_id)?;
    let present = worker.last_run()?;
    let key = &model.spec.repo_key;
    let run_dir = shared.home.run_dir(key, model.id, worker_id, present.run);
    let mut notes = Vec::new();
    if present.restarts > 0 {
        notes.push(
            "Your process died and was started again from your transcript. Calls without a recorded result have an \
             unknown outcome: look at the state of the files before you repeat anything."
                .to_owned(),
        );
    }
    let unattended = model.task(present.task_id).is_some_and(|task| task.unattended);
    let launch = WorkerLaunch {
        protocol_version: PROTOCOL_VERSION,
        session_id: model.id,
        spec: standing(worker, model),
        run: present.run,
        restarts: present.restarts,
        notes,
        checkout: model.spec.repo.clone(),
        // Known when the worktree is made.
        git_common_dir: PathBuf::new(),
        worktree_git_dir: None,
        temp_dir: shared.home.worker_temp(worker_id),
        transcript: shared.home.transcript(key, model.id, worker_id),
        results_dir: shared.home.worker_results(key, model.id, worker_id),
        prompts_dir: shared.home.prompts(),
        socket: shared.socket.clone(),
        server_file: shared.home.server_file(),
        token: home::random_hex(),
        permission_mode: model.permission_mode,
        unattended,
        rules: model.rules.clone(),
        helper: model.spec.models.helper.clone(),
        fallback: model.spec.models.fallback.clone(),
        limits: model.spec.worker_limits.clone(),
        needs_grants: model.spec.budget.is_capped(),
        setup: model.spec.setup.clone(),
        check: model.spec.check.clone(),
        environment: model.spec.environment.clone(),
        system_prompt: model.spec.system_prompt.clone(),
        home: model.spec.home.clone(),
        included_files: Vec::new(),
        solo: model.spec.solo,
        moved: worker.moved,
    };
    Some(RunPlan {
        spec: launch.spec.clone(),
        run: present.run,
        restarts: present.restarts,
        launch,
        run_dir,
        repo: model.spec.repo.clone(),
        worktree_root: worktree_root(shared, model),
        session_tag: model.id.short(),
        branch_prefix: model.spec.branch_prefix.clone(),
        tmux: model.spec.tmux || worker.spec.isolation == Isolation::Tmux,
        discards: model.spec.solo && worker.worktree_exists && worker.spec.branch.is_none(),
    })
}

/// A worker as its process is to know it: what it left behind in a worktree is not its own while it stands outside.
fn standing(worker: &WorkerModel, model: &SessionModel) -> WorkerSpec {
    let mut spec = worker.spec.clone();
    if worker.is_outside {
        spec.isolation = Isolation::None;
        spec.worktree.clone_from(&model.spec.repo);
        spec.branch = None;
    }
    spec
}

/// The process of a worker's present run, if the journal knows of one or its run directory does.
pub(crate) fn adopt_plan(shared: &Shared, model: &SessionModel, worker_id: &WorkerId) -> Option<AdoptPlan> {
    let worker = model.worker(worker_id)?;
    let present = worker.last_run()?;
    let key = &model.spec.repo_key;
    let run_dir = shared.home.run_dir(key, model.id, worker_id, present.run);
    let keeper = match worker.process.as_ref().filter(|process| process.run == present.run) {
        Some(process) => process.keeper.clone(),
        // The server died between the start of the keeper and the word of it.
        None => read_json::<KeeperFile>(&run_dir.join(KEEPER_FILE))?.keeper(),
    };
    // Known before its worker can say hello.
    if let Some(launch) = read_json::<WorkerLaunch>(&run_dir.join("launch.json")) {
        shared.expect_token(worker_id, present.run, &launch.token);
    }
    Some(AdoptPlan {
        worker_id: worker_id.clone(),
        run: present.run,
        keeper,
        run_dir,
        transcript: shared.home.transcript(key, model.id, worker_id),
    })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Starts a run and watches it. A panic of the starting is a run that was not started.
pub(crate) fn start(shared: Arc<Shared>, plan: RunPlan, handle: SessionHandle) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let worker_id = plan.spec.id.clone();
        let run = plan.run;
        let starter = handle.clone();
        let starting =
            AbortOnDropHandle::new(tokio::spawn(async move { begin(&shared, plan, &starter).await }));
        let begun = starting.await.unwrap_or_else(|error| Err(format!("the start broke: {error}")));
        match begun {
            Ok(watched) => watch(watched, &handle).await,
            Err(problem) => {
                handle
                    .tell_until_stored(|stored| Order::RunNotStarted {
                        worker_id: worker_id.clone(),
                        run,
                        problem: problem.clone(),
                        stored,
                    })
                    .await;
            }
        }
    }))
}

/// Watches a run that a former server started.
pub(crate) fn adopt(plan: AdoptPlan, handle: SessionHandle) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let AdoptPlan { worker_id, run, keeper, run_dir, transcript } = plan;
        watch(Watched { worker_id, run, keeper, run_dir, transcript, child: None }, &handle).await;
    }))
}

struct Watched {
    worker_id: WorkerId,
    run: RunNumber,
    keeper: ProcessIdentity,
    run_dir: PathBuf,
    transcript: PathBuf,
    /// Ours, when this server started it: it has to be reaped.
    child: Option<tokio::process::Child>,
}

async fn begin(shared: &Arc<Shared>, plan: RunPlan, handle: &SessionHandle) -> Result<Watched, String> {
    let RunPlan {
        spec,
        run,
        restarts,
        mut launch,
        run_dir,
        repo,
        worktree_root,
        session_tag,
        branch_prefix,
        tmux,
        discards,
    } = plan;
    let repository = repositories::open(shared, &repo).await.map_err(|error| error_chain(&error))?;
    launch.git_common_dir = repository.common_dir().to_owned();
    if spec.isolation != Isolation::None {
        let manager =
            repositories::manager(shared, launch.session_id, &spec.id, repository.clone(), &worktree_root);
        let made = make_worktree(&manager, &spec, &session_tag, &branch_prefix, run > RunNumber::FIRST).await;
        shared.live.note_wait(&spec.id, None);
        let made = made?;
        if made.again {
            launch.notes.push(
                "Your worktree was removed since your last run and was made again at the same path; files you read \
                 before have to be read again."
                    .to_owned(),
            );
        }
        launch.spec.branch = Some(made.branch.clone());
        launch.worktree_git_dir = Some(made.git_dir);
        launch.included_files = made.included;
        let order = Order::WorktreeReady {
            worker_id: spec.id.clone(),
            branch: (spec.branch.as_deref() != Some(made.branch.as_str())).then_some(made.branch),
            notes: made.notes,
        };
        handle.tell(order).await.map_err(|error| error.to_string())?;
    } else if discards {
        let manager =
            repositories::manager(shared, launch.session_id, &spec.id, repository.clone(), &worktree_root);
        discard_left(&manager, &spec, handle).await?;
    }
    home::private_dir(&run_dir).map_err(|error| error.to_string())?;
    home::private_dir(&launch.temp_dir).map_err(|error| error.to_string())?;
    remember_before(&repository, &run_dir).await;
    write_meta(shared, &launch);
    // What an earlier process of this very run left would be read as this one's.
    for stale in [EXIT_FILE, KEEPER_FILE] {
        std::fs::remove_file(run_dir.join(stale)).ok();
    }
    let launch_file = run_dir.join("launch.json");
    let text = serde_json::to_vec(&launch).map_err(|error| error.to_string())?;
    home::write_private(&launch_file, &text)
        .map_err(|error| format!("cannot write {}: {error}", launch_file.display()))?;
    shared.expect_token(&spec.id, run, &launch.token);
    let run_id = format!("{}/{}/{run}.{restarts}", launch.session_id, spec.id);
    let mut child = spawn_keeper(shared, &run_dir, &launch_file, &run_id, &launch)?;
    let keeper = wait_for_keeper(&run_dir, &mut child).await?;
    let token_sha256 = sha256_hex(launch.token.as_bytes());
    handle
        .tell_until_stored(|stored| Order::ProcessStarted {
            worker_id: spec.id.clone(),
            run,
            keeper: keeper.clone(),
            run_dir: run_dir.clone(),
            token_sha256: token_sha256.clone(),
            stored,
        })
        .await;
    if tmux {
        super::tmux::show(shared, &spec.id, &spec.name).await;
    }
    Ok(Watched {
        worker_id: spec.id,
        run,
        keeper,
        run_dir,
        transcript: launch.transcript,
        child: Some(child),
    })
}

/// The worktree that its agent left for good goes into the recycle bin. What a person locked, or what cannot come back
/// from there, stays and is told of.
async fn discard_left(manager: &Manager, spec: &WorkerSpec, handle: &SessionHandle) -> Result<(), String> {
    let agent = AgentId::parse(spec.id.as_str()).map_err(|error| error.to_string())?;
    let gone = match manager.remove_if_unchanged(&agent).await {
        Ok(Removal::Removed { .. }) => Ok("removed: no change".to_owned()),
        // A person allowed it, whatever git has not finished there.
        Ok(Removal::Kept { .. }) => match manager.discard(&agent, Force::Yes).await {
            Ok(discarded) => Ok(format!("{} is in the recycle bin: swarm restore {agent}", discarded.branch)),
            Err(error) => Err(error_chain(&error)),
        },
        Err(error) => Err(error_chain(&error)),
    };
    let order = Order::WorktreeLeft {
        worker_id: spec.id.clone(),
        is_gone: gone.is_ok(),
        reason: gone.unwrap_or_else(|problem| format!("kept: {problem}")),
    };
    handle.tell(order).await.map_err(|error| error.to_string())
}

struct Made {
    branch: String,
    git_dir: PathBuf,
    again: bool,
    included: Vec<String>,
    notes: Vec<String>,
}

async fn make_worktree(
    manager: &Manager,
    spec: &WorkerSpec,
    session_tag: &str,
    branch_prefix: &str,
    later: bool,
) -> Result<Made, String> {
    let agent = AgentId::parse(spec.id.as_str()).map_err(|error| error.to_string())?;
    let base = CommitId::parse(&spec.base).map_err(|error| error.to_string())?;
    let existed = spec.worktree.is_dir();
    let branch = spec.branch.as_deref().and_then(|name| BranchName::parse(name).ok());
    let kept = match &branch {
        Some(branch) => manager.repository().branch_tip(branch).await.map_err(|error| error_chain(&error))?,
        None => None,
    };
    let found = manager.find(&agent).map_err(|error| error_chain(&error))?.filter(|_| existed);
    if let Some(worktree) = found {
        return Ok(Made {
            branch: worktree.branch.to_string(),
            git_dir: worktree.git_dir,
            again: false,
            included: Vec::new(),
            notes: Vec::new(),
        });
    }
    // A first run takes a branch of its own; a later one goes on with the branch it has, or, when nothing was
    // ever changed, anew from the base.
    let created = match (branch, kept) {
        (Some(branch), Some(_)) if later => manager.recreate(&agent, &branch, &base).await,
        _ => {
            let create = CreateSpec {
                agent,
                session: SessionTag::parse(session_tag).map_err(|error| error.to_string())?,
                description: spec.description.clone(),
                prefix: BranchPrefix::parse(branch_prefix).map_err(|error| error.to_string())?,
                base,
            };
            manager.create(&create).await
        }
    }
    .map_err(|error| error_chain(&error))?;
    let mut notes = Vec::new();
    if let Some(renamed) = &created.worktree.renamed {
        notes.push(format!(
            "{}: works on branch {}, for the planned name was not free: {renamed:?}",
            spec.id, created.worktree.branch
        ));
    }
    for submodule in &created.submodules {
        match &submodule.filled {
            SubmoduleFill::Filled => {}
            SubmoduleFill::NoLocalCopy => notes.push(format!(
                "{}: submodule {} is empty in the worktree: the repository has no copy of it (git submodule update --init)",
                spec.id, submodule.path
            )),
            SubmoduleFill::Failed { error } => {
                notes.push(format!("{}: submodule {} is empty in the worktree: {error}", spec.id, submodule.path));
            }
        }
    }
    Ok(Made {
        branch: created.worktree.branch.to_string(),
        git_dir: created.worktree.git_dir.clone(),
        again: later,
        included: created.included.copied.iter().map(ToString::to_string).collect(),
        notes,
    })
}

/// What the shared repository and the main checkout look like before the run; taken once per run.
async fn remember_before(repository: &Repository, run_dir: &Path) {
    let path = run_dir.join(BEFORE_FILE);
    if path.exists() {
        return;
    }
    match Fingerprint::take(repository).await {
        Ok(fingerprint) => {
            let written = serde_json::to_vec(&fingerprint)
                .map_err(std::io::Error::from)
                .and_then(|bytes| home::replace_file(&path, &bytes));
            if let Err(error) = written {
                tracing::warn!(%error, path = %path.display(), "a run's fingerprint was not kept");
            }
        }
        Err(error) => {
            tracing::warn!(error = %error_chain(&error), "the checkout could not be looked at before a run")
        }
    }
}

/// `.meta.json` beside the transcript: for people and tools, never read back.
fn write_meta(shared: &Shared, launch: &WorkerLaunch) {
    let repo_key =
        launch.transcript.parent().map(|subagents| subagents.join(format!("{}.meta.json", launch.spec.id)));
    let Some(path) = repo_key else { return };
    let meta = serde_json::json!({
        "agentType": launch.spec.agent_type,
        "name": launch.spec.name,
        "description": launch.spec.description,
        "spawnDepth": 1,
        "branch": launch.spec.branch,
        "base": launch.spec.base,
        "model": launch.spec.model.display_name(),
        "version": shared.version,
    });
    if let Err(error) = home::replace_file(&path, meta.to_string().as_bytes()) {
        tracing::debug!(%error, path = %path.display(), "a worker's meta file was not written");
    }
}

fn spawn_keeper(
    shared: &Shared,
    run_dir: &Path,
    launch_file: &Path,
    run_id: &str,
    launch: &WorkerLaunch,
) -> Result<tokio::process::Child, String> {
    let log_path = run_dir.join("worker.log");
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        // What the worker prints may quote what people work on.
        .mode(0o600)
        .open(&log_path)
        .map_err(|error| format!("cannot write {}: {error}", log_path.display()))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    // Nothing of the server's environment but what programs need to be found: keys come over the socket.
    let mut environment: BTreeMap<&str, String> = BTreeMap::new();
    for name in ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "RUST_LOG", "RUST_BACKTRACE"] {
        if let Ok(value) = std::env::var(name) {
            environment.insert(name, value);
        }
    }
    if let Some(path) = launch.environment.get("PATH") {
        environment.insert("PATH", path.clone());
    }
    environment.insert("HOME", launch.home.to_string_lossy().into_owned());
    environment.insert("SWARM_RUN", run_id.to_owned());
    tokio::process::Command::new(&shared.worker_binary)
        .arg("keeper")
        .arg("--run-dir")
        .arg(run_dir)
        .arg("--run-id")
        .arg(run_id)
        .arg("--")
        .arg(&shared.worker_binary)
        .arg("run")
        .arg("--launch")
        .arg(launch_file)
        .env_clear()
        .envs(environment)
        .current_dir(&launch.spec.worktree)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(false)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", shared.worker_binary.display()))
}

async fn wait_for_keeper(
    run_dir: &Path,
    child: &mut tokio::process::Child,
) -> Result<ProcessIdentity, String> {
    let path = run_dir.join(KEEPER_FILE);
    let deadline = tokio::time::Instant::now() + KEEPER_PATIENCE;
    loop {
        if let Some(file) = read_json::<KeeperFile>(&path) {
            return Ok(file.keeper());
        }
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = ended {
            let log = std::fs::read_to_string(run_dir.join("worker.log")).unwrap_or_default();
            let tail: String = log
                .lines()
                .rev()
                .take(5)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("\n");
            return Err(format!("its keeper ended at once ({status}): {tail}"));
        }
        if tokio::time::Instant::now() > deadline {
            // Or it would go on unwatched.
            child.kill().await.ok();
            return Err("its keeper did not say that it keeps".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Waits until nothing of the run is left, then reports it with the records its process could not send.
async fn watch(watched: Watched, handle: &SessionHandle) {
    let Watched { worker_id, run, keeper, run_dir, transcript, mut child } = watched;
    let exit_path = run_dir.join(EXIT_FILE);
    let exit = loop {
        if let Some(exit) = read_json::<ExitFile>(&exit_path) {
            break Some(exit);
        }
        if let Some(own) = &mut child
            && let Ok(Some(_)) = own.try_wait()
        {
            child = None;
        }
        if !home::is_alive(&keeper) {
            // It may have written its last word between the two looks.
            break read_json::<ExitFile>(&exit_path);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    };
    if let Some(mut own) = child {
        // It ends right after its last word.
        own.wait().await.ok();
    }
    let id = worker_id.clone();
    let known = handle
        .read(move |model| model.worker(&id).and_then(|worker| worker.last_record).map_or(0, |mark| mark.n))
        .await;
    let missed = match known {
        Ok(known) => missed_records(transcript, known).await,
        Err(_) => return,
    };
    handle
        .tell_until_stored(|stored| Order::ProcessGone {
            worker_id: worker_id.clone(),
            run,
            exit: exit.clone(),
            missed: missed.clone(),
            stored,
        })
        .await;
}

/// Records after `known` from the file: a worker that ended while the server was away could not send them.
async fn missed_records(path: PathBuf, known: u64) -> Vec<(RecordHead, Option<Box<RecordBody>>)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut missed = Vec::new();
        let mut after = known;
        loop {
            let page = transcript::read_page(&path, after, PAGE)?;
            for stored in page.records {
                after = stored.record.n;
                let head = stored.record.head(stored.bytes);
                let body = stored.record.body;
                missed.push((head, body.travels_whole().then(|| Box::new(body))));
            }
            if !page.has_more {
                return Ok::<_, std::io::Error>(missed);
            }
        }
    })
    .await;
    match read {
        Ok(Ok(missed)) => missed,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a transcript could not be read");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// Tells a keeper to end its worker, tree and all.
pub(crate) fn terminate(keeper: &ProcessIdentity) {
    if home::is_alive(keeper) {
        // Gone between the look and the signal is what was wanted.
        signal::kill(Pid::from_raw(keeper.pid), signal::Signal::SIGTERM).ok();
    }
}

/// SHA-256 in hex.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
