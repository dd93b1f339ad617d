//! One run of one agent, from its launch file to its end record.
//!
//! ```text
//! launch file -> locks -> RunStarted -> keys -> set-up -> turns -> commit -> RunEnded -> acknowledged
//! ```
//!
//! Whatever goes wrong after `RunStarted` ends in `RunEnded`; what kills the process is the keeper's.

use std::{path::Path, sync::Arc, time::Duration};

use agent_host::{
    secrets::MaskedWriter,
    transcript::{Loaded, TranscriptFile},
};
use anyhow::Context as _;
use query_engine::{
    Cancel, Engine, EngineConfig, LoopState, Ports,
    budget::Budget,
    pacing::Paced,
    ports::{Durability, Grants, Model, NoHooks, Observer as _, Prefix, Unlimited},
};
use swarm_protocol::{
    ExitReason,
    frame::{Keys, Live},
    launch::{ModelEndpoint, SandboxSettings, WorkerLaunch},
    record::{Move, RecordBody, RunEnd, RunStarted},
    usage::Caps,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    checkpoint::{self, Checkpoint},
    clock::RunClock,
    gate::{Classifier, ClassifierRacer},
    grants::LeasedGrants,
    inner::Minds,
    link::{Link, LinkConfig, LinkState, Outbox},
    record::Recorder,
    sandbox::{SandboxReport, Tier},
    shell::{JobEnd, JobId, JobStatus, processes::identity_of},
    tools::bash::job_run,
    tree::FinalCommit,
};

mod commands;
mod ending;
mod hidden;
mod links;
mod mailbox;
mod opening;
mod parts;
mod prefix;
mod setup;
mod surroundings;

pub(crate) use surroundings::keep_text;

use ending::{goodbye, watch_for_the_end};
use mailbox::harness;
use parts::Parts;

/// The run is over and recorded.
pub const EXIT_RECORDED: i32 = 0;
/// The run could not begin; nothing was recorded.
pub const EXIT_NOT_STARTED: i32 = 1;
/// The server will not have this process.
pub const EXIT_REFUSED: i32 = 3;
/// The end could not be recorded.
pub const EXIT_NOT_RECORDED: i32 = 4;
/// The run is not over: it goes on in another process, elsewhere. A record says where.
pub const EXIT_MOVED: i32 = 5;

/// How long a later run waits for the message that it was started for.
const FIRST_MESSAGE: Duration = Duration::from_secs(60);

/// How long the end waits for commands whose call was dropped: they are being killed.
const LAST_COMMANDS: Duration = Duration::from_secs(5);

/// Processes named in the end record.
const MAX_NAMED: usize = 100;

/// The subcommand `run`.
pub fn main(launch: &Path) -> i32 {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "warn,worker=info".into()),
        )
        .with_writer(|| MaskedWriter(std::io::stderr()))
        .with_ansi(false)
        .init();
    // Keys will stand in memory: neither a core dump nor another process of the user may read them.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "this process stays readable for others of its user");
    }
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")
        .and_then(|runtime| {
            let result = runtime.block_on(run(launch));
            // A file system that hangs must not hold the process.
            runtime.shutdown_timeout(Duration::from_secs(5));
            result
        });
    result.unwrap_or_else(|error| {
        tracing::error!(error = format!("{error:#}"), "the run could not begin");
        EXIT_NOT_STARTED
    })
}

async fn run(path: &Path) -> anyhow::Result<i32> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let launch: WorkerLaunch =
        serde_json::from_slice(&text).with_context(|| format!("{} is no launch file", path.display()))?;
    let launch = Arc::new(launch);
    let (file, loaded) = TranscriptFile::open_after_checkpoint(&launch.transcript)?;
    if !loaded.defects.is_clean() {
        tracing::warn!(defects = ?loaded.defects, "the transcript was damaged; what was whole is used");
    }
    let outbox = Arc::new(Outbox::default());
    let recorder = Arc::new(Recorder::new(file, launch.run, outbox.clone(), &loaded));
    let begin = || async {
        let process = identity_of(std::process::id().cast_signed()).context("failed to read /proc")?;
        let config = LinkConfig {
            session_id: launch.session_id,
            worker_id: launch.spec.id.clone(),
            run: launch.run,
            token: launch.token.clone(),
            process,
            socket: launch.socket.clone(),
            server_file: launch.server_file.clone(),
            transcript: launch.transcript.clone(),
        };
        let taken = recorder.clone();
        anyhow::Ok(Link::start(config, outbox.clone(), move |id| taken.has_taken(id)))
    };
    if recorder.facts().this_run.has_ended {
        // Only the goodbye is missing.
        let (link, _commands) = begin().await?;
        return Ok(goodbye(&link, &recorder, EXIT_RECORDED).await);
    }
    let sandbox = probe_sandbox(&launch.limits.sandbox).await;
    let state = start_record(&launch, &recorder, &loaded, &sandbox).await?;
    drop(loaded);
    let (link, commands) = begin().await?;
    let mut agent =
        Agent { launch, recorder, link, clock: Arc::default(), killed: Vec::new(), notes: Vec::new() };
    let code = agent.live(state, &sandbox, commands).await;
    Ok(goodbye(&agent.link, &agent.recorder, code).await)
}

/// What this machine holds and the settings want; no confinement where that cannot be told.
async fn probe_sandbox(settings: &SandboxSettings) -> SandboxReport {
    let probe = || crate::sandbox::probe(Path::new("/proc/self/exe"));
    let report = tokio::task::spawn_blocking(probe).await;
    let report = report.ok().and_then(Result::ok);
    let report = report.unwrap_or_else(|| SandboxReport::none("the sandbox could not be probed"));
    // A number that nobody knows switches nothing off.
    report.at_most(Tier::try_from(settings.strongest_tier).unwrap_or(Tier::Namespaces))
}

/// Closes what a dead process left open and records the start, in one batch. Answers with the loop's state.
async fn start_record(
    launch: &WorkerLaunch,
    recorder: &Recorder,
    loaded: &Loaded<Checkpoint>,
    sandbox: &SandboxReport,
) -> anyhow::Result<LoopState> {
    let open_requests = recorder.facts().open_requests;
    let mut state = checkpoint::state(loaded);
    let started = RecordBody::RunStarted(RunStarted {
        run: launch.run,
        restarts: launch.restarts,
        pid: std::process::id(),
        model: launch.spec.model.display_name(),
        sandbox_tier: sandbox.tier.into(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    state.apply(&started);
    let mut batch = std::mem::take(&mut state.unsaved);
    batch.push(started);
    batch.extend(open_requests.into_iter().map(|(id, _)| RecordBody::PermissionWithdrawn {
        id,
        reason: "the worker was started again".to_owned(),
    }));
    recorder.write(batch, Durability::Now).await?;
    Ok(state)
}

/// Ends what runs beside the agent; answers with the jobs that did.
async fn still(parts: &Parts) -> Vec<(JobId, JobEnd)> {
    parts.languages.end().await;
    parts.repl.end().await;
    parts.shell.kill_all_jobs().await
}

struct Agent {
    launch: Arc<WorkerLaunch>,
    recorder: Arc<Recorder>,
    link: Link,
    clock: Arc<RunClock>,
    /// What was alive at the end and was killed.
    killed: Vec<String>,
    /// What the loop has to say of the run.
    notes: Vec<String>,
}

impl Agent {
    /// Everything between the start and the end record; answers with the exit code.
    async fn live(
        &mut self,
        state: LoopState,
        sandbox: &SandboxReport,
        commands: tokio::sync::mpsc::Receiver<(swarm_protocol::CommandId, swarm_protocol::frame::Command)>,
    ) -> i32 {
        let parts = match Parts::build(&self.launch, &self.recorder, &self.link, &self.clock, sandbox).await {
            Ok(parts) => parts,
            Err(error) => {
                let message = format!("{error:#}");
                return self.end(ExitReason::StorageError { message }, None).await;
            }
        };
        let obedience = parts.obedience(&self.recorder);
        let _obeying = AbortOnDropHandle::new(tokio::spawn(obedience.run(commands)));
        let _watching = AbortOnDropHandle::new(tokio::spawn(watch_for_the_end(
            self.link.state.clone(),
            parts.brakes.clone(),
        )));
        let exit = self.work(state, &parts, sandbox).await;
        if let Some(to) = parts.standing.moves()
            && exit == ExitReason::DeniedAndStopped
            && !parts.brakes.stop.is_cancelled()
        {
            return self.leave(&parts, to).await;
        }
        tracing::info!(exit = exit.code(), "the run ends");
        self.end(exit, Some(&parts)).await
    }

    async fn work(&mut self, state: LoopState, parts: &Parts, sandbox: &SandboxReport) -> ExitReason {
        let required = self.launch.limits.sandbox_required;
        // One that nobody knows is held by nothing.
        if Tier::try_from(required).ok().is_none_or(|required| sandbox.tier < required) {
            let notes = sandbox.notes.join("; ");
            let held = u8::from(sandbox.tier);
            let output = format!("sandbox tier {required} is required, this machine holds {held}: {notes}");
            return ExitReason::SetupFailed { output };
        }
        self.activity("waiting for the server");
        // A stop that wins leaves the keys for nobody.
        let keys = tokio::select! {
            () = parts.brakes.stop.cancelled() => return ExitReason::AbortedStreaming,
            keys = self.link.keys() => match keys {
                Ok(keys) => keys,
                Err(_) => return ExitReason::AbortedStreaming,
            },
        };
        for key in
            [&keys.model, &keys.helper, &keys.fallback, &keys.search, &keys.remote].into_iter().flatten()
        {
            self.link.outbox.masker().know(key);
        }
        for (key, place) in [(&keys.search, &parts.search_key), (&keys.remote, &parts.remote_token)] {
            if let Some(key) = key {
                // It comes once; a second one would be the same.
                drop(place.set(key.clone()));
            }
        }
        if let Some(command) = self.launch.setup.clone()
            && setup::is_due(&self.launch, parts, self.recorder.facts().has_requests)
        {
            self.activity(&format!("setting up: {command}"));
            if let Err(failed) = setup::run(&self.launch, &command, parts, sandbox.tier).await {
                return failed;
            }
        }
        match self.engine(state, parts, &keys).await {
            Ok(engine) => self.turns(engine, parts).await,
            Err(exit) => exit,
        }
    }

    fn activity(&self, text: &str) {
        let text = text.to_owned();
        self.link.outbox.live(Live::Activity { text, context_tokens: None, context_window: None });
    }

    async fn engine(&self, state: LoopState, parts: &Parts, keys: &Keys) -> Result<Engine, ExitReason> {
        let launch = &self.launch;
        let unusable = |error: model_client::ConnectError| ExitReason::ModelError {
            error: match error {
                model_client::ConnectError::NoKey { .. } => "no_key".to_owned(),
                _ => "bad_endpoint".to_owned(),
            },
            message: error.to_string(),
            retry_at: None,
        };
        let client = model_client::HttpClient::new().map_err(unusable)?;
        let model =
            model_client::connect(&launch.spec.model, keys.model.as_deref(), &client).map_err(unusable)?;
        let model = self.paced(&launch.spec.model, model);
        // Without its key a second model is as good as not configured.
        let other = |endpoint: &Option<ModelEndpoint>, key: &Option<String>| {
            let endpoint = endpoint.as_ref()?;
            model_client::connect(endpoint, key.as_deref(), &client)
                .inspect_err(|error| tracing::warn!(%error, "a second model cannot be used"))
                .ok()
                .map(|model| self.paced(endpoint, model))
        };
        let used = self.recorder.facts().this_run;
        let minds = Minds {
            model: model.clone(),
            budget: launch.limits.budget,
            // The state counts all runs, this one as far as it came with an earlier process included.
            earlier_tokens: state.usage.total().saturating_sub(used.usage.total()),
            earlier_usd: (state.cost.known_usd - used.cost.known_usd).max(0.0),
            context_window: launch.spec.model.context_window,
        };
        if parts.minds.set(minds).is_err() {
            tracing::error!("inner agents were told of their model twice");
        }
        let prefix =
            self.prefix(parts).map_err(|error| ExitReason::StorageError { message: format!("{error:#}") })?;
        let mut config = EngineConfig::new(prefix);
        config.max_turns = Some(launch.limits.max_turns);
        let Caps { usd, tokens } = launch.limits.budget;
        config.budget = Budget { usd, tokens };
        config.max_tool_concurrency = launch.limits.max_tool_concurrency.max(1);
        config.context_window = launch.spec.model.context_window;
        config.cache_ttl = launch.spec.model.cache_ttl();
        config.keepalive = launch.limits.cache_keepalive;
        config.idle_for = self
            .recorder
            .facts()
            .last_answer
            .map(|at| Duration::from_millis(crate::record::now().millis_since(at)));
        let fallback = other(&launch.fallback, &keys.fallback);
        let helper = other(&launch.helper, &keys.helper);
        let grants: Arc<dyn Grants> = if launch.needs_grants {
            let models = [Some(&model), fallback.as_ref(), helper.as_ref()].into_iter().flatten().cloned();
            let (outbox, state) = (self.link.outbox.clone(), self.link.state.clone());
            Arc::new(LeasedGrants::new(parts.leases.clone(), models.collect(), outbox, state))
        } else {
            Arc::new(Unlimited)
        };
        self.arm(parts, helper.as_ref().unwrap_or(&model));
        let ports = Ports {
            model,
            fallback,
            helper,
            tools: parts.tools.clone(),
            gate: parts.gate.clone(),
            transcript: self.recorder.clone(),
            inbox: parts.mailbox.clone(),
            grants,
            hooks: Arc::new(NoHooks),
            surroundings: parts.surroundings.clone(),
            observer: self.link.outbox.clone(),
        };
        Ok(Engine::new(config, ports, state))
    }

    /// Gives the gate the model that its classifiers ask: the small one, where there is one.
    fn arm(&self, parts: &Parts, model: &Arc<dyn Model>) {
        let limits = &self.launch.limits;
        let Caps { usd, tokens } = limits.budget;
        let leases = self.launch.needs_grants.then(|| parts.leases.clone());
        let budget = Budget { usd, tokens };
        let classifier = Arc::new(Classifier::new(model.clone(), self.recorder.clone(), leases, budget));
        if limits.classifier_racer && !self.launch.unattended {
            parts.gate.race(vec![Arc::new(ClassifierRacer(classifier.clone()))]);
        }
        parts.gate.judge_by(classifier);
    }

    /// A model behind the gate that all who share its key have.
    fn paced(&self, endpoint: &ModelEndpoint, model: Arc<dyn Model>) -> Arc<dyn Model> {
        let turns = self.link.gates.turns(&endpoint.provider, self.link.outbox.clone());
        Arc::new(Paced::new(model, &endpoint.provider, turns, self.link.outbox.clone()))
    }

    fn prefix(&self, parts: &Parts) -> anyhow::Result<Prefix> {
        let system = vec![opening::system_prompt(&self.launch)];
        let fresh = query_engine::build_prefix(system, &parts.tools);
        prefix::kept(&self.launch.prompts_dir, &self.launch.results_dir, fresh)
    }

    async fn turns(&mut self, mut engine: Engine, parts: &Parts) -> ExitReason {
        let launch = &self.launch;
        let facts = self.recorder.facts();
        if !launch.notes.is_empty() {
            let notes = launch.notes.join("\n");
            parts.mailbox.push_first(harness(format!("<system-reminder>\n{notes}\n</system-reminder>")));
        }
        let links = links::warning(&launch.spec.worktree, &launch.checkout).await;
        if !facts.has_prompt {
            parts.mailbox.push_first(opening::first_message(launch, parts, links).await);
        } else {
            // A later run was started for a message, which comes as a command.
            let waits = facts.this_run.starts <= 1 && launch.restarts == 0;
            if launch.moved {
                parts.mailbox.push_first(opening::moved_message(launch, parts, links).await);
            } else if waits && let Some(links) = links {
                parts.mailbox.push_first(harness(format!("<system-reminder>\n{links}\n</system-reminder>")));
            }
            if waits {
                self.activity("waiting for its message");
                tokio::select! {
                    () = parts.mailbox.has_message() => {}
                    () = parts.brakes.stop.cancelled() => return ExitReason::AbortedStreaming,
                    () = tokio::time::sleep(FIRST_MESSAGE) => tracing::warn!("no message came for this run"),
                }
            }
        }
        loop {
            let cancel =
                Cancel { interrupt: parts.brakes.fresh_interrupt(), stop: parts.brakes.stop.clone() };
            let exit = engine.run(&cancel).await;
            self.notes.extend(exit.notes);
            self.notes.truncate(MAX_NAMED);
            let leaves = exit.exit == ExitReason::DeniedAndStopped && parts.standing.moves().is_some();
            if leaves || cancel.stop.is_cancelled() || !cancel.interrupt.is_cancelled() {
                return exit.exit;
            }
            // Interrupted: it listens for what comes next.
            self.activity("interrupted; waiting for a message");
            let _standstill = self.clock.stand_still();
            tokio::select! {
                () = parts.mailbox.has_message() => {}
                () = parts.brakes.stop.cancelled() => return exit.exit,
            }
        }
    }

    /// Leaves this place as the run's end would leave it; the server begins the run anew at the other one. Answers with
    /// the exit code.
    async fn leave(&self, parts: &Parts, to: &Move) -> i32 {
        self.activity("leaving");
        let ended = still(parts).await;
        if !ended.is_empty() {
            tracing::warn!(?ended, "jobs began while the agent was leaving, and were ended");
        }
        let commit = self.commit(parts, &ExitReason::Completed).await;
        if let Some(problem) = commit.error {
            tracing::warn!(problem, "what is uncommitted stays in the worktree");
        }
        if *to == (Move::Checkout { discard: true }) {
            setup::forget(&self.launch);
        }
        EXIT_MOVED
    }

    /// Waits for what still writes, and commits everything.
    async fn commit(&self, parts: &Parts, exit: &ExitReason) -> FinalCommit {
        if !parts.shell.settle(LAST_COMMANDS).await {
            tracing::warn!("a cancelled command is still there; the commit may miss what it writes");
        }
        parts.surroundings.settle().await;
        match &parts.tree {
            Some(tree) => {
                let message = opening::commit_message(&self.launch, exit);
                tree.commit_everything(&message, self.launch.spec.id.as_str()).await
            }
            None => FinalCommit::default(),
        }
    }

    /// Ends what is left, commits, and writes the end record.
    async fn end(&mut self, exit_reason: ExitReason, parts: Option<&Parts>) -> i32 {
        let mut commit = FinalCommit::default();
        let mut job_ends = std::collections::HashMap::new();
        if let Some(parts) = parts {
            self.activity("ending");
            let ended = still(parts).await;
            let jobs = parts.shell.jobs();
            for job in &jobs {
                if let JobStatus::Ended(end) = &job.status {
                    let at_end = ended.iter().any(|(id, _)| *id == job.id);
                    let by = if at_end { "killed at the end of the run" } else { "stopped by the agent" };
                    job_ends.insert(job.id.to_string(), job_run(&job.command, end, by));
                }
            }
            for (id, end) in ended {
                let job = jobs.iter().find(|job| job.id == id);
                self.killed.extend(job.map(|job| job.command.chars().take(200).collect::<String>()));
                self.killed.extend(end.killed.into_iter().map(|process| process.command));
            }
            commit = self.commit(parts, &exit_reason).await;
        }
        let facts = self.recorder.facts().this_run;
        let commands = facts.commands(|job| job_ends.get(job).cloned());
        let mut children_killed = std::mem::take(&mut self.killed);
        children_killed.truncate(MAX_NAMED);
        let end = RunEnd {
            exit_reason,
            result: facts.words.text().to_owned(),
            result_from_earlier: facts.words.is_from_earlier(),
            turns: facts.turns,
            usage: facts.usage,
            cost: facts.cost,
            duration_ms: facts.earlier_ms + self.clock.worked().as_millis() as u64,
            commands,
            commands_after_last_edit: facts.commands_after_last_edit,
            edited: facts.edited,
            skipped_files: commit.skipped,
            commit_error: commit.error,
            children_killed,
            notes: std::mem::take(&mut self.notes),
        };
        match self.recorder.write(vec![RecordBody::RunEnded(Box::new(end))], Durability::Now).await {
            Ok(_) if matches!(*self.link.state.borrow(), LinkState::Refused { .. }) => EXIT_REFUSED,
            Ok(_) => EXIT_RECORDED,
            Err(error) => {
                tracing::error!(%error, "the end could not be recorded");
                EXIT_NOT_RECORDED
            }
        }
    }
}
