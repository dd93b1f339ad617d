//! The recycle bin: a discarded branch and the last state of its worktree, under one ref
//! `refs/swarm/trash/<agent>/<time>`, until it is restored or emptied. And going back to snapshots
//! from the server's side.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::git::{Access, GitError};
use crate::lock::{LockError, PatienceError, patience_becomes, patiently};
use crate::manager::{CreateError, Created, Manager, NO_COMMIT};
use crate::name::{AgentId, BranchName};
use crate::record::RecordError;
use crate::removal::{BranchFate, Force, KeepReason, RemoveError, locked};
use crate::repository::{ReadError, libgit};
use crate::snapshot::{self, RestoreError, Retention, Snapshot, SnapshotError, SnapshotInfo};
use crate::tree::Tree;
use crate::types::CommitId;
use crate::unfinished::Operation;

/// Something in the recycle bin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Discarded {
    /// Whose.
    pub agent: AgentId,
    /// Seconds since 1970; names it together with the agent.
    pub at: i64,
    /// The branch's name.
    pub branch: BranchName,
    /// Where the branch was.
    pub tip: CommitId,
    /// Where the work began.
    pub base: CommitId,
    /// To be shown.
    pub restore_command: String,
}

/// A discarded worker that is back.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its worktree.
    pub created: Created,
    /// Its branch, under another name if the old one was taken meanwhile.
    pub branch: BranchName,
    /// What git had not finished when it was discarded. Its commits, index and files are back, the operation
    /// itself is not.
    pub operation: Option<Operation>,
}

/// Written into the message of the commit in the bin.
#[derive(Serialize, Deserialize)]
struct TrashNote {
    version: u32,
    agent: AgentId,
    branch: BranchName,
    base: CommitId,
    snapshot: Option<CommitId>,
    #[serde(default)]
    operation: Option<Operation>,
}

const NOTE_VERSION: u32 = 1;

/// Why discarding or restoring failed. Branch and worktree are then as they were.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// No such entry.
    #[error("nothing of {agent} discarded at {at} is in the recycle bin")]
    NotInBin { agent: AgentId, at: i64 },
    /// The entry was not written by this version.
    #[error("the recycle bin's entry {name} cannot be read; `git show {name}` shows its branch")]
    Unreadable { name: String },
    /// Something stands in the way.
    #[error("{agent} was kept: {}", reasons_text(reasons))]
    Kept { agent: AgentId, reasons: Vec<KeepReason> },
    /// The branch is gone.
    #[error("branch {branch} of {agent} does not exist")]
    NoBranch { agent: AgentId, branch: BranchName },
    /// The worktree could not be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// The worktree could not be made again.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The state could not be stored.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Records could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Refs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A lock stayed.
    #[error(transparent)]
    Lock(#[from] LockError),
}

patience_becomes!(DiscardError);

/// Why a snapshot could not be restored by the server.
#[derive(Debug, thiserror::Error)]
pub enum RestoreSnapshotError {
    /// The worktree could not be had.
    #[error(transparent)]
    Hold(#[from] RemoveError),
    /// Going back failed.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

const TRASH: &str = "refs/swarm/trash/";

impl Manager {
    /// Moves branch and worktree of `agent` to the recycle bin. What git has not finished there stops it
    /// unless forced, because the bin keeps commits, index and files, but not how far the operation was. A
    /// worktree that a person locked stays in any case.
    ///
    /// # Errors
    /// [`DiscardError`].
    pub async fn discard(&self, agent: &AgentId, force: Force) -> Result<Discarded, DiscardError> {
        let held = self.hold(agent).await?;
        let record = &held.record;
        let operation = held.tree.operation();
        let reasons: Vec<KeepReason> = locked(&held.tree)
            .into_iter()
            .chain(
                operation
                    .filter(|_| force == Force::No)
                    .map(|operation| KeepReason::InProgress { operation }),
            )
            .collect();
        if !reasons.is_empty() {
            return Err(DiscardError::Kept { agent: agent.clone(), reasons });
        }
        let tip = self.repository().branch_tip(&record.branch).await?;
        let tip = tip
            .ok_or_else(|| DiscardError::NoBranch { agent: agent.clone(), branch: record.branch.clone() })?;
        let state = if held.tree.work_tree.is_dir() {
            let capture = snapshot::capture(&held.tree, None).await?;
            let commit = snapshot::commit_capture(&held.tree, agent, &capture).await?;
            Some((commit, capture.work))
        } else {
            None
        };
        let note = TrashNote {
            version: NOTE_VERSION,
            agent: agent.clone(),
            branch: record.branch.clone(),
            base: record.base.clone(),
            snapshot: state.as_ref().map(|(commit, _)| commit.clone()),
            operation,
        };
        let entry = self.trash_commit(&held.tree, &note, &tip, state).await?;
        let now = jiff::Timestamp::now().as_second();
        let taken = self.trash_of(agent).await?;
        let at = taken.iter().map(|d| d.at + 1).fold(now, i64::max);
        // One transaction: either the bin has it and the branch is gone, or neither.
        let moved =
            format!("create {TRASH}{agent}/{at} {entry}\ndelete {} {tip}\n", record.branch.full_ref());
        self.ref_transaction(&moved).await?;
        self.delete(&held, BranchFate::Stays).await?;
        Ok(Discarded {
            restore_command: restore_command(agent, at),
            agent: agent.clone(),
            at,
            branch: note.branch,
            tip,
            base: note.base,
        })
    }

    /// What is in the recycle bin, oldest first.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn discarded(&self) -> Result<Vec<Discarded>, ReadError> {
        self.trash_below(TRASH.to_owned()).await
    }

    async fn trash_of(&self, agent: &AgentId) -> Result<Vec<Discarded>, ReadError> {
        self.trash_below(format!("{TRASH}{agent}/")).await
    }

    async fn trash_below(&self, prefix: String) -> Result<Vec<Discarded>, ReadError> {
        let read = move |repo: &git2::Repository| {
            let mut found = Vec::new();
            for reference in repo.references_glob(&format!("{prefix}*"))? {
                let reference = reference?;
                let Ok(name) = reference.name() else { continue };
                let commit = reference.peel_to_commit()?;
                let at = name.rsplit('/').next().and_then(|at| at.parse().ok());
                if let (Some(at), Some(note), Ok(tip)) = (at, note_of(&commit), commit.parent_id(0)) {
                    found.push(Discarded {
                        restore_command: restore_command(&note.agent, at),
                        agent: note.agent,
                        at,
                        branch: note.branch,
                        tip: tip.into(),
                        base: note.base,
                    });
                }
            }
            found.sort_by(|a, b| (a.at, &a.agent).cmp(&(b.at, &b.agent)));
            Ok(found)
        };
        libgit(self.repository().common_dir(), "the recycle bin", read).await
    }

    /// Brings a discarded worker back: branch, worktree, and the state it had.
    ///
    /// # Errors
    /// [`DiscardError`].
    pub async fn restore_discarded(&self, agent: &AgentId, at: i64) -> Result<Restored, DiscardError> {
        let name = format!("{TRASH}{agent}/{at}");
        let missing = || DiscardError::NotInBin { agent: agent.clone(), at };
        let entry = self.repository().ref_target(&name).await?.ok_or_else(missing)?;
        let oid = entry.oid();
        let read = move |repo: &git2::Repository| {
            let commit = repo.find_commit(oid)?;
            let tip = commit.parent_id(0)?;
            Ok(note_of(&commit).map(|note| (note, CommitId::from(tip))))
        };
        let note = self.repository().libgit("the recycle bin", read).await?;
        let (note, tip) = note.ok_or_else(|| DiscardError::Unreadable { name: name.clone() })?;
        let branch = self.free_name(&note.branch).await?;
        self.update_ref(&["-m", "swarm: restore", &branch.full_ref(), tip.as_str(), NO_COMMIT]).await?;
        let created = match self.recreate(agent, &branch, &note.base).await {
            Ok(created) => created,
            Err(error) => {
                self.update_ref(&["-d", &branch.full_ref(), tip.as_str()]).await?;
                return Err(error.into());
            }
        };
        if let Some(state) = &note.snapshot {
            let held = self.hold(agent).await?;
            let now = snapshot::capture(&held.tree, None).await?;
            snapshot::put_back(&held.tree, &now, state).await?;
        }
        self.update_ref(&["-d", &name, entry.as_str()]).await?;
        Ok(Restored { created, branch, operation: note.operation })
    }

    /// Goes back to a snapshot; returns the one made of the state before.
    ///
    /// # Errors
    /// [`RestoreSnapshotError`].
    pub async fn restore_snapshot(
        &self,
        agent: &AgentId,
        number: u32,
    ) -> Result<Snapshot, RestoreSnapshotError> {
        let held = self.hold(agent).await?;
        Ok(snapshot::restore(&held.tree, agent, number).await?)
    }

    /// Snapshots of `agent`, oldest first; also after its worktree is gone.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn snapshots(&self, agent: &AgentId) -> Result<Vec<SnapshotInfo>, ReadError> {
        snapshot::list(self.repository().common_dir(), agent).await
    }

    /// Drops snapshots of `agent` by age and bytes; the newest stays. Returns their numbers.
    ///
    /// # Errors
    /// [`DiscardError`].
    pub async fn expire_snapshots(
        &self,
        agent: &AgentId,
        retention: Retention,
    ) -> Result<Vec<u32>, DiscardError> {
        let now = jiff::Timestamp::now().as_second();
        let mut dropped = Vec::new();
        let mut bytes = 0_u64;
        let mut newer: Vec<String> = Vec::new();
        for (index, info) in self.snapshots(agent).await?.iter().rev().enumerate() {
            let head = format!("{}^1", info.commit);
            let args = ["rev-list", "--objects", "--disk-usage", info.commit.as_str(), "--not"];
            let command = newer.iter().fold(self.repository().read_common(args).arg(head), |c, n| c.arg(n));
            let own = String::from_utf8_lossy(&command.ok().await?).trim().parse::<u64>();
            bytes = bytes.saturating_add(own.unwrap_or(0));
            let age = u64::try_from(now - info.made_at).unwrap_or(0);
            let old = Duration::from_secs(age) > retention.max_age;
            if index > 0 && (old || bytes > retention.max_bytes) {
                let name = format!("{}{}", snapshot::snapshot_refs(agent), info.number);
                self.update_ref(&["-d", &name, info.commit.as_str()]).await?;
                dropped.push(info.number);
            }
            newer.push(info.commit.to_string());
        }
        Ok(dropped)
    }

    /// Empties the recycle bin of what is older than `max_age` (spec: 30 days).
    ///
    /// # Errors
    /// [`DiscardError`].
    pub async fn empty_bin(&self, max_age: Duration) -> Result<Vec<Discarded>, DiscardError> {
        let now = jiff::Timestamp::now().as_second();
        let mut gone = Vec::new();
        for entry in self.discarded().await? {
            let age = Duration::from_secs(u64::try_from(now - entry.at).unwrap_or(0));
            if age >= max_age {
                let name = format!("{TRASH}{}/{}", entry.agent, entry.at);
                self.update_ref(&["-d", &name]).await?;
                gone.push(entry);
            }
        }
        Ok(gone)
    }

    async fn trash_commit(
        &self,
        tree: &Tree,
        note: &TrashNote,
        tip: &CommitId,
        state: Option<(CommitId, CommitId)>,
    ) -> Result<CommitId, GitError> {
        let json = serde_json::to_string(note).expect("a note of texts is JSON");
        let message = format!("discarded {}\n\n{json}\n", note.agent);
        let repository = self.repository().bare_tree();
        let (mut parents, of) = (
            vec![tip.as_str()],
            match &state {
                Some((_, work)) => work.clone(),
                None => repository.rev(&format!("{tip}^{{tree}}")).await?,
            },
        );
        parents.extend(state.iter().map(|(commit, _)| commit.as_str()));
        let tree = if tree.work_tree.is_dir() { tree } else { &repository };
        snapshot::commit_tree(tree, &of, &parents, &message).await
    }

    pub(crate) async fn ref_transaction(&self, commands: &str) -> Result<(), PatienceError> {
        let patience = self.repository().inner.git.lock_patience();
        patiently(patience, &self.progress, || async {
            let place = self.repository().common_place();
            let args = ["update-ref", "--stdin", "-m", "swarm: discard"];
            let command = self.repository().inner.git.command(&place, Access::Write, args);
            command.stdin(commands.as_bytes().to_vec()).ok().await.map(drop)
        })
        .await
    }

    async fn free_name(&self, wanted: &BranchName) -> Result<BranchName, DiscardError> {
        let existing = self.repository().branch_names().await?;
        let names =
            std::iter::once(wanted.as_str().to_owned()).chain((2_u32..).map(|n| format!("{wanted}-{n}")));
        let free =
            names.filter(|name| !existing.contains(name)).find_map(|name| BranchName::parse(&name).ok());
        Ok(free.expect("numbers do not run out before branches"))
    }
}

fn reasons_text(reasons: &[KeepReason]) -> String {
    let texts: Vec<String> = reasons.iter().map(KeepReason::to_string).collect();
    texts.join("; ")
}

fn restore_command(agent: &AgentId, at: i64) -> String {
    format!("swarm restore {agent} --discarded {at}")
}

fn note_of(commit: &git2::Commit<'_>) -> Option<TrashNote> {
    let message = commit.message_bytes();
    let start = message.windows(2).position(|w| w == b"\n\n")?;
    let note: TrashNote = serde_json::from_slice(&message[start + 2..]).ok()?;
    (note.version == NOTE_VERSION).then_some(note)
}
