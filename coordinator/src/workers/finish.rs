//! The end of a run, once nothing of it is left: what is uncommitted is committed, git is asked what there
//! is, an unchanged worktree is removed, and the outcome is established.

use std::{path::PathBuf, sync::Arc};

use swarm_protocol::{
    RunNumber, SessionId, WorkerId, error_chain,
    launch::{Isolation, WorkerSpec},
    notification::{CheckResult, FileChange, Outcome},
    process::ExitFile,
    record::RunEnd,
};
use tokio_util::task::AbortOnDropHandle;
use worktree_manager::{
    AgentId, BranchName, CommitId, CommitOutcome, CommitRequest, Fingerprint, GitConfig, Identity, Manager,
    OwnWorktree, Progress, Removal, Repository,
};

use super::{
    outcome::{self, Facts, GitFacts},
    run,
};
use crate::{
    repositories,
    server::Shared,
    session::{Order, SessionHandle, model::SessionModel},
};

/// What an end is established from.
pub(crate) struct FinishPlan {
    spec: WorkerSpec,
    run: RunNumber,
    restarts: u32,
    end: RunEnd,
    exit: Option<ExitFile>,
    repo: PathBuf,
    worktree_root: PathBuf,
    run_dir: PathBuf,
    check: Option<String>,
}

/// What was established.
#[derive(Clone)]
pub(crate) struct FinishedRun {
    pub(crate) outcome: Outcome,
    pub(crate) worktree_exists: bool,
    pub(crate) branch_exists: bool,
}

/// What the end of a worker's present run is established from; none when it has not ended.
pub(crate) fn plan(
    shared: &Shared,
    model: &SessionModel,
    worker_id: &WorkerId,
    exit: Option<ExitFile>,
) -> Option<FinishPlan> {
    let worker = model.worker(worker_id)?;
    let present = worker.last_run()?;
    Some(FinishPlan {
        spec: worker.spec.clone(),
        run: present.run,
        restarts: present.restarts,
        end: present.end.clone()?,
        exit,
        repo: model.spec.repo.clone(),
        worktree_root: run::worktree_root(shared, model),
        run_dir: shared.home.run_dir(&model.spec.repo_key, model.id, worker_id, present.run),
        check: model.spec.check.clone(),
    })
}

/// Establishes an end and reports it.
pub(crate) fn start(shared: Arc<Shared>, plan: FinishPlan, handle: SessionHandle) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let worker_id = plan.spec.id.clone();
        let run = plan.run;
        let fallback = unknown(&plan);
        let establishing = establish(shared.clone(), handle.id, plan);
        let establishing = AbortOnDropHandle::new(tokio::spawn(establishing));
        // A panic of ours must not keep an end from its coordinator: it is reported with what is known.
        let finished = establishing.await.unwrap_or_else(|error| {
            tracing::error!(worker.id = %worker_id, %error, "an outcome could not be established");
            fallback
        });
        // Its temp directory is nobody's now. Commands may have filled it: it is removed when the end is told.
        let away = shared.home.put_away_temp(&worker_id).unwrap_or_else(|error| {
            tracing::warn!(worker.id = %worker_id, %error, "a temp directory could not be put away");
            None
        });
        handle
            .tell_until_stored(|stored| Order::RunFinished {
                worker_id: worker_id.clone(),
                run,
                finished: Box::new(finished.clone()),
                stored,
            })
            .await;
        remove_temps(&shared, away.into_iter().collect());
    }))
}

/// Removes temp directories of runs that ended, beside everything else. What stays is for the server's next start.
pub(crate) fn remove_temps(shared: &Shared, temps: Vec<PathBuf>) {
    shared.background(async move {
        let removing = tokio::task::spawn_blocking(move || {
            for temp in temps {
                if let Err(error) = worktree_manager::remove_all(&temp) {
                    tracing::warn!(%error, path = %temp.display(), "a temp directory could not be removed");
                }
            }
        });
        if let Err(error) = removing.await {
            tracing::error!(%error, "a temp directory could not be removed");
        }
    });
}

/// What is known without looking.
fn unknown(plan: &FinishPlan) -> FinishedRun {
    let git = GitFacts {
        branch: plan.spec.branch.clone(),
        notes: vec!["git could not be asked what the run left; the worktree was kept".to_owned()],
        ..GitFacts::default()
    };
    let outcome = outcome::establish(Facts {
        end: &plan.end,
        expects: plan.spec.expects,
        base: &plan.spec.base,
        git,
        check: CheckResult::None,
        check_command: None,
        killed_by_keeper: Vec::new(),
        restarts: plan.restarts,
    });
    FinishedRun { outcome, worktree_exists: true, branch_exists: true }
}

async fn establish(shared: Arc<Shared>, session: SessionId, plan: FinishPlan) -> FinishedRun {
    let FinishPlan { spec, run: _, restarts, end, exit, repo, worktree_root, run_dir, check } = plan;
    // After a restart of the server the keeper's file is the source.
    let exit = exit.or_else(|| {
        serde_json::from_slice(&std::fs::read(run_dir.join(swarm_protocol::process::EXIT_FILE)).ok()?).ok()
    });
    let mut git = GitFacts::default();
    let mut worktree_exists = false;
    let mut branch_exists = false;
    match repositories::open(&shared, &repo).await {
        Ok(repository) => {
            git.foreign_changes = foreign_changes(&repository, &run_dir).await;
            if spec.isolation != Isolation::None {
                let manager = repositories::manager(&shared, session, &spec.id, repository, &worktree_root);
                let progress = repositories::progress(&shared, session, &spec.id);
                let config = repositories::git_config(shared.settings.git_lock_wait);
                let leftovers = (config, progress);
                (worktree_exists, branch_exists) = look(&manager, &spec, leftovers, &mut git).await;
            }
        }
        Err(error) => git.notes.push(format!("the repository could not be opened: {}", error_chain(&error))),
    }
    let killed_by_keeper =
        exit.map(|exit| exit.killed.into_iter().map(|process| process.command).collect()).unwrap_or_default();
    let outcome = outcome::establish(Facts {
        end: &end,
        expects: spec.expects,
        base: &spec.base,
        git,
        check: CheckResult::None,
        check_command: check.as_deref(),
        killed_by_keeper,
        restarts,
    });
    FinishedRun { outcome, worktree_exists, branch_exists }
}

/// Commits what a dead process left, gathers git's side, removes what is unchanged.
async fn look(
    manager: &Manager,
    spec: &WorkerSpec,
    with: (GitConfig, Progress),
    git: &mut GitFacts,
) -> (bool, bool) {
    let agent = match AgentId::parse(spec.id.as_str()) {
        Ok(agent) => agent,
        Err(error) => {
            git.notes.push(error.to_string());
            return (false, false);
        }
    };
    match manager.find(&agent) {
        Ok(Some(worktree)) => {
            if let Err(problem) = commit_leftovers(manager, &worktree, spec, with).await {
                git.notes.push(problem);
            }
        }
        // It was never made, or was removed by somebody: then the branch alone tells what there is.
        Ok(None) => return (false, look_at_branch(manager, spec, git).await),
        Err(error) => git.notes.push(error_chain(&error)),
    }
    match manager.evidence(&agent).await {
        Ok(evidence) => {
            git.commits = evidence.commits.listed.iter().rev().map(|commit| commit.id.to_string()).collect();
            git.files = evidence.files.iter().map(change).collect();
            git.dirty = evidence.dirty.iter().map(|entry| entry.path.to_string()).collect();
            if let Some(operation) = evidence.operation {
                git.notes.push(format!("{operation} is in progress in its worktree"));
            }
        }
        Err(error) => git.notes.push(format!("git gave no evidence: {}", error_chain(&error))),
    }
    let (worktree_exists, branch_exists) = match manager.remove_if_unchanged(&agent).await {
        Ok(Removal::Removed { .. }) => (false, false),
        Ok(Removal::Kept { .. }) => (true, true),
        Err(error) => {
            git.notes.push(format!("the worktree was kept: {}", error_chain(&error)));
            (true, true)
        }
    };
    if branch_exists {
        git.branch.clone_from(&spec.branch);
        if let Ok(Some(worktree)) = manager.find(&agent) {
            git.branch = Some(worktree.branch.to_string());
        }
    }
    (worktree_exists, branch_exists)
}

/// What a branch without a worktree shows against its base; whether it exists.
async fn look_at_branch(manager: &Manager, spec: &WorkerSpec, git: &mut GitFacts) -> bool {
    let Some(branch) = spec.branch.as_deref().and_then(|name| BranchName::parse(name).ok()) else {
        return false;
    };
    let repository = manager.repository();
    let Ok(Some(tip)) = repository.branch_tip(&branch).await else { return false };
    let Ok(base) = CommitId::parse(&spec.base) else { return false };
    match repository.commits(&base, &tip).await {
        Ok(commits) => {
            git.commits = commits.listed.iter().rev().map(|commit| commit.id.to_string()).collect();
        }
        Err(error) => git.notes.push(format!("git gave no evidence: {}", error_chain(&error))),
    }
    match repository.diff_stat(branch.as_str(), base.as_str()).await {
        Ok(files) => git.files = files.iter().map(change).collect(),
        Err(error) => git.notes.push(format!("git gave no evidence: {}", error_chain(&error))),
    }
    git.notes.push("its worktree is gone; what was not committed there is lost".to_owned());
    git.branch = Some(branch.to_string());
    true
}

fn change(file: &worktree_manager::FileStat) -> FileChange {
    FileChange {
        path: file.path.to_string(),
        added: file.lines.map(|lines| lines.insertions),
        removed: file.lines.map(|lines| lines.deletions),
    }
}

/// A run that ended by itself has committed its work; one that was killed has not.
async fn commit_leftovers(
    manager: &Manager,
    worktree: &worktree_manager::Worktree,
    spec: &WorkerSpec,
    (config, progress): (GitConfig, Progress),
) -> Result<(), String> {
    let mut own = OwnWorktree::open_with(&worktree.path, manager.assignment(worktree), config, progress)
        .await
        .map_err(|error| error_chain(&error))?;
    // Objects first, then the branch: never a ref to a missing object.
    own.migrate_objects().await.map_err(|error| error_chain(&error))?;
    own.advance_branch().await.map_err(|error| error_chain(&error))?;
    let state = own.state().await.map_err(|error| error_chain(&error))?;
    if state.dirty.is_empty() {
        return Ok(());
    }
    let mut request = CommitRequest::new(format!("{} (left uncommitted)", spec.description));
    request.co_author =
        Some(Identity { name: spec.id.to_string(), email: format!("{}@swarm.localhost", spec.id) });
    match own.commit_all(&request).await.map_err(|error| error_chain(&error))? {
        CommitOutcome::Committed { .. } | CommitOutcome::Nothing { .. } => {}
        CommitOutcome::Held { operation, snapshot } => {
            return Err(format!("{operation} is in progress; what there was is kept as snapshot {snapshot}"));
        }
    }
    own.migrate_objects().await.map_err(|error| error_chain(&error))?;
    own.advance_branch().await.map_err(|error| error_chain(&error))?;
    Ok(())
}

async fn foreign_changes(repository: &Repository, run_dir: &std::path::Path) -> Vec<String> {
    let before: Option<Fingerprint> = std::fs::read(run_dir.join(run::BEFORE_FILE))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(before) = before else { return Vec::new() };
    match Fingerprint::take(repository).await {
        Ok(after) => before.diff(&after).iter().map(describe).collect(),
        Err(error) => {
            vec![format!("the checkout could not be looked at after the run: {}", error_chain(&error))]
        }
    }
}

fn describe(change: &worktree_manager::Change) -> String {
    use worktree_manager::Watched;
    let what = match &change.what {
        Watched::Head => "HEAD of the main checkout".to_owned(),
        Watched::Config(key) => format!("git config {key}"),
        Watched::Hook(name) => format!("git hook {name}"),
        Watched::File(path) => format!("{path} of the main checkout"),
    };
    let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    format!("{what}: {} -> {}", side(&change.old), side(&change.new))
}
