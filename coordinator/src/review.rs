//! Review of branches: diff, merge, discard, restore, clean-up. Works on git by the worktree manager and
//! tells the session what became of it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use swarm_protocol::{
    Timestamp, WorkerId,
    api::{
        ConflictFile, DiffView, DiscardView, GcBody, GcView, MergeBody, MergeStrategy, MergeView,
        RestoreBody, RestoreView, SnapshotView,
    },
    error_chain,
    event::Event,
    frame::Command,
    launch::Isolation,
    notification::FileChange,
};
use worktree_manager::{
    AgentId, BranchName, CommitId, DiscardError, Force, KeepReason, LandingRefusal, Manager, MergeOutcome,
    MergeRequest, Strategy,
};

use crate::{
    repositories,
    server::Shared,
    session::{
        Order, OrderError, SessionHandle,
        model::{SessionModel, WorkerModel},
    },
};

/// How long a discarded branch can be brought back.
pub(crate) const BIN_DAYS: u32 = 30;

/// Why a review call did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    /// The session said no.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Its work is under way.
    #[error("{0} is still at work; stop it first (swarm stop {0}) or wait for its end")]
    AtWork(WorkerId),
    /// It has no branch.
    #[error("{0} has no branch: it changed nothing, or works without one")]
    NoBranch(WorkerId),
    /// It was discarded already.
    #[error("{0} was discarded; bring it back with: swarm restore {0}")]
    Discarded(WorkerId),
    /// Nothing to bring back.
    #[error("{0} was not discarded; name a snapshot to go back to: swarm restore {0} N")]
    NotDiscarded(WorkerId),
    /// HEAD was detached at submit.
    #[error("no branch was checked out when the task was submitted; say where to merge: --into NAME")]
    NoTarget,
    /// The name is none of a branch.
    #[error("{0}")]
    BadName(String),
    /// The target is checked out and cannot move now, for another reason than changed files.
    #[error("{0}")]
    Refused(String),
    /// Something in its worktree cannot come back from the bin, or is locked by a person.
    #[error("{id} was kept: {why}")]
    Kept { id: WorkerId, why: String, locked: bool },
    /// git.
    #[error("{0}")]
    Git(String),
}

fn git(error: impl std::error::Error) -> ReviewError {
    ReviewError::Git(error_chain(&error))
}

/// What a review call needs to know of a worker.
struct Subject {
    id: WorkerId,
    agent: AgentId,
    branch: Option<BranchName>,
    base: CommitId,
    target: Option<String>,
    manager: Manager,
    ended: bool,
    discarded: bool,
    isolated: bool,
    worktree_exists: bool,
}

async fn subject(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
) -> Result<Subject, ReviewError> {
    struct Known {
        branch: Option<String>,
        base: String,
        target: Option<String>,
        repo: std::path::PathBuf,
        root: std::path::PathBuf,
        ended: bool,
        discarded: bool,
        isolated: bool,
        worktree_exists: bool,
    }
    let wanted = id.clone();
    let default_root = shared.home.worktrees();
    let read = move |model: &SessionModel| {
        let worker: &WorkerModel = model.worker(&wanted)?;
        Some(Known {
            branch: worker.spec.branch.clone(),
            base: worker.spec.base.clone(),
            target: model.spec.target_branch.clone(),
            repo: model.spec.repo.clone(),
            root: model.spec.worktree_root.clone().unwrap_or(default_root),
            ended: worker.status.is_ended(),
            discarded: worker.kept_ref.is_some(),
            isolated: worker.spec.isolation != Isolation::None,
            worktree_exists: worker.worktree_exists,
        })
    };
    let known = handle.read(read).await?.ok_or_else(|| {
        ReviewError::Order(OrderError::UnknownWorker { name: id.to_string(), known: Vec::new() })
    })?;
    let repository = repositories::open(shared, &known.repo).await.map_err(git)?;
    Ok(Subject {
        id: id.clone(),
        agent: AgentId::parse(id.as_str()).map_err(git)?,
        branch: known.branch.map(|name| BranchName::parse(&name)).transpose().map_err(git)?,
        base: CommitId::parse(&known.base).map_err(git)?,
        target: known.target,
        manager: repositories::manager(shared, handle.id, id, repository, &known.root),
        ended: known.ended,
        discarded: known.discarded,
        isolated: known.isolated,
        worktree_exists: known.worktree_exists,
    })
}

impl Subject {
    async fn live_branch(&self) -> Result<BranchName, ReviewError> {
        if self.discarded {
            return Err(ReviewError::Discarded(self.id.clone()));
        }
        let branch = self
            .branch
            .clone()
            .filter(|_| self.isolated)
            .ok_or_else(|| ReviewError::NoBranch(self.id.clone()))?;
        match self.manager.repository().branch_tip(&branch).await.map_err(git)? {
            Some(_) => Ok(branch),
            None => Err(ReviewError::NoBranch(self.id.clone())),
        }
    }

    fn must_have_ended(&self) -> Result<(), ReviewError> {
        if self.ended { Ok(()) } else { Err(ReviewError::AtWork(self.id.clone())) }
    }
}

/// The branch against its base.
pub(crate) async fn diff(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
    stat_only: bool,
) -> Result<DiffView, ReviewError> {
    let subject = subject(shared, handle, id).await?;
    let branch = subject.live_branch().await?;
    let repository = subject.manager.repository();
    let tip = repository
        .branch_tip(&branch)
        .await
        .map_err(git)?
        .ok_or_else(|| ReviewError::NoBranch(id.clone()))?;
    let commits = repository.commits(&subject.base, &tip).await.map_err(git)?;
    let change = |file: &worktree_manager::FileStat| FileChange {
        path: file.path.to_string(),
        added: file.lines.map(|lines| lines.insertions),
        removed: file.lines.map(|lines| lines.deletions),
    };
    let (base, files, patch) = if stat_only {
        let files = repository.diff_stat(branch.as_str(), subject.base.as_str()).await.map_err(git)?;
        (subject.base.to_string(), files.iter().map(change).collect(), String::new())
    } else {
        let diff = repository.diff(branch.as_str(), subject.base.as_str()).await.map_err(git)?;
        // A patch of files that are not UTF-8 is shown with replacement characters; git has the bytes.
        let patch = String::from_utf8_lossy(&diff.patch).into_owned();
        (diff.from.to_string(), diff.files.iter().map(change).collect(), patch)
    };
    let uncommitted = match subject.worktree_exists {
        true => subject
            .manager
            .evidence(&subject.agent)
            .await
            .map(|evidence| evidence.dirty.iter().map(|entry| entry.path.to_string()).collect()),
        false => Ok(Vec::new()),
    };
    Ok(DiffView {
        base,
        head: tip.to_string(),
        branch: branch.to_string(),
        commits: commits.count as u64,
        files,
        uncommitted: uncommitted.unwrap_or_default(),
        patch,
    })
}

/// Merges a branch, or says why nothing moved.
pub(crate) async fn merge(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
    body: MergeBody,
) -> Result<MergeView, ReviewError> {
    let MergeBody { into, strategy, check, dry_run } = body;
    if check || dry_run {
        let what = if check { "check" } else { "dry_run" };
        return Err(ReviewError::Refused(format!("`{what}` is not available yet")));
    }
    let subject = subject(shared, handle, id).await?;
    subject.must_have_ended()?;
    let branch = subject.live_branch().await?;
    let into = into.or(subject.target.clone()).ok_or(ReviewError::NoTarget)?;
    let into = BranchName::parse(&into).map_err(|error| ReviewError::BadName(error.to_string()))?;
    let request = MergeRequest {
        branch,
        into: into.clone(),
        strategy: match strategy {
            MergeStrategy::Merge => Strategy::FastForwardOrMerge,
            MergeStrategy::Squash => Strategy::Squash,
            MergeStrategy::Rebase => Strategy::Rebase,
            MergeStrategy::NoFf => Strategy::MergeCommit,
        },
        message: None,
    };
    let outcome = subject.manager.merge(&request, None).await;
    // What it waited for is past.
    shared.live.note_wait(id, None);
    let outcome = outcome.map_err(git)?;
    let into = into.to_string();
    Ok(match outcome {
        MergeOutcome::Merged { from, to, stat } => {
            let event = Event::ReviewMerged {
                worker_id: id.clone(),
                into: into.clone(),
                from: from.to_string(),
                to: to.to_string(),
            };
            handle.try_ask(|reply| Order::Record(vec![event], reply)).await?;
            MergeView::Merged {
                into,
                from: from.to_string(),
                to: to.to_string(),
                files: stat.files as u64,
                insertions: stat.insertions,
                deletions: stat.deletions,
            }
        }
        MergeOutcome::AlreadyMerged { .. } => MergeView::AlreadyMerged { into },
        MergeOutcome::Conflict { files } => MergeView::Conflict {
            at: subject
                .manager
                .repository()
                .branch_tip(&request.into)
                .await
                .map_err(git)?
                .map(|tip| tip.to_string())
                .unwrap_or_default(),
            into,
            files: files
                .into_iter()
                .map(|file| ConflictFile {
                    path: file.path.to_string(),
                    lines: file
                        .ranges
                        .iter()
                        .map(|range| format!("{}-{}", range.first, range.last))
                        .collect(),
                })
                .collect(),
        },
        MergeOutcome::Refused { reason: LandingRefusal::Changed { worktree }, files } => {
            MergeView::TargetDirty {
                into,
                checkout: worktree,
                files: files.iter().map(|file| format!("M {file}")).collect(),
            }
        }
        MergeOutcome::Refused { reason, .. } => return Err(ReviewError::Refused(reason.to_string())),
        MergeOutcome::TargetMoved { expected, found } => MergeView::TargetMoved {
            into,
            expected: expected.to_string(),
            actual: found.map(|found| found.to_string()).unwrap_or_else(|| "gone".to_owned()),
        },
        MergeOutcome::CheckFailed { report } => MergeView::CheckFailed { output: report },
    })
}

/// Takes a branch and its worktree away, into the recycle bin.
pub(crate) async fn discard(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
    force: Force,
) -> Result<DiscardView, ReviewError> {
    let subject = subject(shared, handle, id).await?;
    subject.must_have_ended()?;
    subject.live_branch().await?;
    let discarded = subject.manager.discard(&subject.agent, force).await;
    shared.live.note_wait(id, None);
    let discarded = discarded.map_err(|error| match error {
        DiscardError::Kept { reasons, .. } => ReviewError::Kept {
            id: id.clone(),
            why: joined(&reasons),
            locked: reasons.iter().any(|reason| matches!(reason, KeepReason::Locked { .. })),
        },
        error => git(error),
    })?;
    let kept_ref = format!("refs/swarm/trash/{}/{}", discarded.agent, discarded.at);
    let events = vec![
        Event::ReviewDiscarded { worker_id: id.clone(), kept_ref: kept_ref.clone() },
        Event::WorkerWorktree {
            worker_id: id.clone(),
            exists: false,
            branch_exists: false,
            branch: None,
            reason: "discarded".to_owned(),
        },
    ];
    handle.try_ask(|reply| Order::Record(events, reply)).await?;
    Ok(DiscardView { worker_id: id.clone(), kept_ref: Some(kept_ref), days: BIN_DAYS })
}

fn joined(reasons: &[KeepReason]) -> String {
    let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Brings a discarded branch back, or puts a worktree back to a snapshot.
pub(crate) async fn restore(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
    body: RestoreBody,
) -> Result<RestoreView, ReviewError> {
    let subject = subject(shared, handle, id).await?;
    if !subject.ended {
        // The run owns its worktree: it restores by itself, between two turns.
        let snapshot = body.snapshot.ok_or_else(|| ReviewError::AtWork(id.clone()))?;
        let event = Event::WorkerCommand { worker_id: id.clone(), command: Command::Restore { snapshot } };
        handle.try_ask(|reply| Order::Record(vec![event], reply)).await?;
        return Ok(RestoreView {
            message: format!("{id} is at work and goes back to snapshot {snapshot} before its next turn"),
            kept_as: None,
        });
    }
    match body.snapshot {
        None => bring_back(handle, &subject).await,
        Some(number) => {
            let kept = subject.manager.restore_snapshot(&subject.agent, number).await.map_err(git)?;
            let what = format!("snapshot {number}");
            let events = vec![Event::ReviewRestored { worker_id: id.clone(), what }];
            handle.try_ask(|reply| Order::Record(events, reply)).await?;
            Ok(RestoreView {
                message: format!(
                    "{} is at snapshot {number}; what was there is now snapshot {}",
                    id.suffix(),
                    kept.number
                ),
                kept_as: Some(kept.number),
            })
        }
    }
}

async fn bring_back(handle: &SessionHandle, subject: &Subject) -> Result<RestoreView, ReviewError> {
    let id = &subject.id;
    // The bin is asked, not the journal: a crash may have come between the two.
    let bin = subject.manager.discarded().await.map_err(git)?;
    let newest = bin.iter().filter(|entry| entry.agent == subject.agent).max_by_key(|entry| entry.at);
    let newest = newest.ok_or_else(|| ReviewError::NotDiscarded(id.clone()))?;
    let restored = subject.manager.restore_discarded(&subject.agent, newest.at).await.map_err(git)?;
    let branch = restored.branch.to_string();
    let events = vec![
        Event::ReviewRestored { worker_id: id.clone(), what: branch.clone() },
        Event::WorkerWorktree {
            worker_id: id.clone(),
            exists: true,
            branch_exists: true,
            branch: Some(branch.clone()),
            reason: "restored".to_owned(),
        },
    ];
    handle.try_ask(|reply| Order::Record(events, reply)).await?;
    let mut message = format!("{} is back on branch {branch}", id.suffix());
    if let Some(operation) = restored.operation {
        message.push_str(&format!(
            "; {operation} was in progress: its commits, index and files are back, begin it again to go on"
        ));
    }
    Ok(RestoreView { message, kept_as: None })
}

/// The snapshots of a worker, newest last.
pub(crate) async fn snapshots(
    shared: &Arc<Shared>,
    handle: &SessionHandle,
    id: &WorkerId,
) -> Result<Vec<SnapshotView>, ReviewError> {
    let subject = subject(shared, handle, id).await?;
    let snapshots = subject.manager.snapshots(&subject.agent).await.map_err(git)?;
    Ok(snapshots
        .into_iter()
        .map(|snapshot| SnapshotView {
            n: snapshot.number,
            commit: snapshot.commit.to_string(),
            at: Some(Timestamp::from_millis(snapshot.made_at.saturating_mul(1000))),
        })
        .collect())
}

/// Removes what no session needs; unmerged work only when forced, and then into the recycle bin.
pub(crate) async fn gc(shared: &Arc<Shared>, body: GcBody) -> Result<GcView, ReviewError> {
    let mut view = GcView::default();
    // Workers of any session that is there may still begin at its base.
    let mut needed = BTreeSet::new();
    for handle in shared.sessions.all() {
        needed.extend(CommitId::parse(&handle.read(|model| model.spec.base.clone()).await?));
    }
    for handle in shared.sessions.all() {
        let found = handle
            .read(|model| {
                let workers: Vec<(WorkerId, bool, bool)> = model
                    .workers
                    .iter()
                    .filter(|worker| worker.worktree_exists)
                    .map(|worker| {
                        (worker.spec.id.clone(), worker.status.is_ended(), worker.merged_into.is_some())
                    })
                    .collect();
                (
                    model.spec.repo.clone(),
                    model.spec.worktree_root.clone(),
                    model.spec.target_branch.clone(),
                    workers,
                )
            })
            .await?;
        let (repo, root, target, workers) = found;
        let Ok(repository) = repositories::open(shared, &repo).await else {
            view.kept.push(format!("{}: the repository is gone", repo.display()));
            continue;
        };
        let manager = Manager::new(repository, &root.unwrap_or_else(|| shared.home.worktrees()));
        let sizes: std::collections::HashMap<_, _> = manager.disk_use().map_err(git)?.into_iter().collect();
        view.used_bytes += sizes.values().sum::<u64>();
        let Some(into) = target.and_then(|name| BranchName::parse(&name).ok()) else { continue };
        for (id, ended, _) in workers {
            let Ok(agent) = AgentId::parse(id.as_str()) else { continue };
            let Ok(Some(worktree)) = manager.find(&agent) else { continue };
            let short = id.suffix();
            if !ended {
                view.kept.push(format!("{short}: at work"));
                continue;
            }
            let merged = manager.is_merged(&worktree.branch, &into).await.map_err(git)?.is_some();
            if !body.force {
                // Merged is the branch; what else lies in the worktree is nowhere else.
                let mut reasons = match manager.keep_reasons(&agent).await {
                    Ok(reasons) => reasons.iter().map(ToString::to_string).collect(),
                    Err(error) => vec![error_chain(&error)],
                };
                if !merged {
                    reasons.insert(0, format!("not merged into {into}"));
                }
                if !reasons.is_empty() {
                    let ways = if merged { String::new() } else { format!("swarm merge {short} | ") };
                    view.kept
                        .push(format!("{short}: {}     {ways}swarm discard {short}", reasons.join("; ")));
                    continue;
                }
            }
            let bytes = sizes.get(&agent).copied().unwrap_or(0);
            let line =
                format!("{short}: worktree {}     back: swarm restore {short}", worktree.path.display());
            if body.dry_run {
                view.removed.push(line);
                view.freed_bytes += bytes;
                continue;
            }
            // Merged or not, the bin keeps it for thirty days.
            let force = if body.force { Force::Yes } else { Force::No };
            match discard(shared, &handle, &id, force).await {
                Ok(_) => {
                    view.removed.push(line);
                    view.freed_bytes += bytes;
                }
                Err(error) => view.kept.push(format!("{short}: {error}")),
            }
        }
        if !body.dry_run {
            sweep(&manager, &needed, &mut view).await?;
        }
    }
    Ok(view)
}

/// What crashes and age left behind.
async fn sweep(manager: &Manager, needed: &BTreeSet<CommitId>, view: &mut GcView) -> Result<(), ReviewError> {
    let report = manager.reconcile().await.map_err(git)?;
    view.removed.extend(report.removed.iter().map(|swept| format!("leftover {}", swept.path)));
    view.freed_bytes += report.bytes;
    let days = |n: u64| Duration::from_secs(n * 24 * 60 * 60);
    let emptied = manager.empty_bin(days(u64::from(BIN_DAYS))).await.map_err(git)?;
    view.removed.extend(emptied.iter().map(|entry| format!("recycle bin: {}", entry.branch)));
    let carried = manager.expire_carried(needed, days(u64::from(BIN_DAYS))).await.map_err(git)?;
    view.removed.extend(carried.iter().map(|commit| format!("carried changes: {}", commit.short())));
    Ok(())
}
