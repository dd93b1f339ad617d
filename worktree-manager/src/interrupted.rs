//! The crash between moving the files of a checked-out target and moving its ref. A note written
//! before says what was under way; the next start takes the files back, so that a merge nobody was
//! told of has not happened.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::lock::ProcessStamp;
use crate::manager::Manager;
use crate::merge::MergeError;
use crate::name::BranchName;
use crate::reconcile::Report;
use crate::tree::{Tree, write_durably};
use crate::types::CommitId;

#[derive(Serialize, Deserialize)]
struct LandingNote {
    target: BranchName,
    from: CommitId,
    to: CommitId,
    by: ProcessStamp,
}

/// Removes its file when dropped: then the landing has ended, one way or the other.
pub(crate) struct Noted(PathBuf);

impl Drop for Noted {
    fn drop(&mut self) {
        // A note that stays is looked at again at the next start.
        drop(std::fs::remove_file(&self.0));
    }
}

impl Manager {
    fn notes(&self) -> PathBuf {
        self.repository().swarm_dir().join("landing")
    }

    pub(crate) fn note_landing(
        &self,
        target: &BranchName,
        from: &CommitId,
        to: &CommitId,
    ) -> std::io::Result<Noted> {
        let note = LandingNote {
            target: target.clone(),
            from: from.clone(),
            to: to.clone(),
            by: ProcessStamp::current(),
        };
        let path = self.notes().join(format!("{to}.json"));
        write_durably(&path, &serde_json::to_vec(&note)?)?;
        Ok(Noted(path))
    }

    /// Takes back the files of landings whose process is gone.
    pub(crate) async fn undo_interrupted(&self, report: &mut Report) -> Result<(), MergeError> {
        let Ok(entries) = std::fs::read_dir(self.notes()) else {
            return Ok(());
        };
        for path in entries.flatten().map(|e| e.path()) {
            let bytes = std::fs::read(&path).unwrap_or_default();
            let Ok(note) = serde_json::from_slice::<LandingNote>(&bytes) else {
                report.keep(&path, ["the note of a merge cannot be read".to_owned()]);
                continue;
            };
            if note.by.is_dead() {
                self.undo_one(&path, &note, report).await?;
            }
        }
        Ok(())
    }

    async fn undo_one(&self, path: &Path, note: &LandingNote, report: &mut Report) -> Result<(), MergeError> {
        let found = self.repository().branch_tip(&note.target).await?;
        if found.as_ref() == Some(&note.from) {
            // Files that were not moved yet match `from` already, and git leaves them alone.
            for tree in self.target_trees(&note.target).await? {
                if let Err(error) = self.move_files(&tree, &note.to, &note.from).await {
                    let target = &note.target;
                    let reason = format!("an interrupted merge into {target} stays staged: {error}");
                    report.keep(&tree.work_tree, [reason]);
                }
            }
        }
        tracing::warn!(target = %note.target, "ended an interrupted merge");
        drop(Noted(path.to_owned()));
        Ok(())
    }

    async fn target_trees(&self, target: &BranchName) -> Result<Vec<Tree>, MergeError> {
        let mut trees = Vec::new();
        for (git_dir, work_tree) in self.work_trees_on(target).await? {
            trees.push(self.tree(&work_tree, &git_dir).await?);
        }
        Ok(trees)
    }
}
