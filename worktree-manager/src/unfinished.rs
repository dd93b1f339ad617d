//! What git began in a tree and did not finish, and the commits that only its notes name: a rebase
//! holds the old tip of the work in a file, and nothing else does.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::beneath::small_text;
use crate::tree::Tree;
use crate::types::CommitId;

/// Something git began in a tree and did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `git rebase`.
    Rebase,
    /// `git am`.
    ApplyMailbox,
    /// `git merge`.
    Merge,
    /// `git cherry-pick`.
    CherryPick,
    /// `git revert`.
    Revert,
    /// `git bisect`.
    Bisect,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rebase => "a rebase",
            Self::ApplyMailbox => "`git am`",
            Self::Merge => "a merge",
            Self::CherryPick => "a cherry-pick",
            Self::Revert => "a revert",
            Self::Bisect => "a bisection",
        })
    }
}

impl Operation {
    pub(crate) fn in_git_dir(git_dir: &Path) -> Option<Self> {
        let has = |name: &str| git_dir.join(name).symlink_metadata().is_ok();
        let table = [
            ("rebase-merge", Self::Rebase),
            ("rebase-apply/applying", Self::ApplyMailbox),
            ("rebase-apply", Self::Rebase),
            ("MERGE_HEAD", Self::Merge),
            ("CHERRY_PICK_HEAD", Self::CherryPick),
            ("REVERT_HEAD", Self::Revert),
            ("BISECT_LOG", Self::Bisect),
        ];
        table.into_iter().find_map(|(name, operation)| has(name).then_some(operation)).or_else(|| {
            // Between two picks of a row there is no such file, but what is still to do.
            let todo = small_text(&git_dir.join("sequencer/todo"));
            match todo.split_whitespace().next()? {
                "revert" => Some(Self::Revert),
                _ => Some(Self::CherryPick),
            }
        })
    }

    /// HEAD is not the tip of the work while this lasts.
    pub(crate) fn moves_head(self) -> bool {
        match self {
            Self::Rebase | Self::ApplyMailbox | Self::Bisect => true,
            Self::Merge | Self::CherryPick | Self::Revert => false,
        }
    }
}

/// Files of a worktree's git directory whose words may be commits that no ref names: where the
/// operation began, what it takes in, and what it put aside (`--autostash`).
const NOTES: [&str; 11] = [
    "rebase-merge/orig-head",
    "rebase-merge/autostash",
    "rebase-apply/orig-head",
    "rebase-apply/autostash",
    "MERGE_HEAD",
    "MERGE_AUTOSTASH",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "sequencer/head",
    "BISECT_START",
    "BISECT_LOG",
];

/// More than any operation has in hand; an agent can write these files.
const MOST_HEADS: usize = 64;

/// The commits that an unfinished operation needs and that exist. Whoever stores the state of the tree keeps
/// them with it.
pub(crate) async fn heads(tree: &Tree) -> Vec<CommitId> {
    let mut heads: Vec<CommitId> = Vec::new();
    for name in NOTES {
        let text = small_text(&tree.git_dir.join(name));
        let ids = text.split(|c: char| !c.is_ascii_hexdigit()).filter_map(|word| CommitId::parse(word).ok());
        for id in ids {
            if heads.len() < MOST_HEADS
                && !heads.contains(&id)
                && tree.rev(&format!("{id}^{{commit}}")).await.is_ok_and(|commit| commit == id)
            {
                heads.push(id);
            }
        }
    }
    heads
}
