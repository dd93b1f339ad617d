//! What deny rules hide from the file tools: as if it were not there.

use std::{
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

use agent_host::RuleSet;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use swarm_protocol::permission::Rule;

/// Globs over absolute paths.
pub(crate) struct Hidden {
    home: PathBuf,
    worktree: PathBuf,
    set: RwLock<(RuleSet, GlobSet)>,
}

impl Hidden {
    pub(crate) fn new(rules: RuleSet, home: PathBuf, worktree: PathBuf) -> Self {
        let set = compile(&rules, &home, &worktree);
        Self { set: RwLock::new((rules, set)), home, worktree }
    }

    pub(crate) fn add(&self, rule: &Rule) {
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        if set.0.add(rule.clone()).is_ok() {
            set.1 = compile(&set.0, &self.home, &self.worktree);
        }
    }

    pub(crate) fn is_visible(&self, path: &Path) -> bool {
        let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
        set.1.is_empty() || !path.ancestors().any(|path| set.1.is_match(path))
    }
}

/// A glob that does not compile cannot hide anything here; the gate still matches its rule.
fn compile(rules: &RuleSet, home: &Path, worktree: &Path) -> GlobSet {
    let mut set = GlobSetBuilder::new();
    for glob in rules.denied_read_globs(home, worktree) {
        match GlobBuilder::new(&glob).literal_separator(true).build() {
            Ok(glob) => {
                set.add(glob);
            }
            Err(error) => tracing::warn!(%error, "a deny rule hides nothing from searches"),
        }
    }
    set.build().unwrap_or_default()
}
