//! What deny rules hide from the file tools: as if it were not there.

use std::{
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
};

use agent_host::{DiskPaths, PathResolver as _, RuleSet};
use swarm_protocol::permission::Rule;

/// The rules, asked about every path that a file tool comes to.
pub(crate) struct Hidden {
    home: PathBuf,
    worktree: PathBuf,
    rules: RwLock<RuleSet>,
}

impl Hidden {
    pub(crate) fn new(rules: RuleSet, home: PathBuf, worktree: PathBuf) -> Self {
        Self { rules: RwLock::new(rules), home, worktree }
    }

    /// A rule that does not parse hides nothing; the gate says so.
    pub(crate) fn add(&self, rule: &Rule) {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        drop(rules.add(rule.clone()));
    }

    /// Both the path as written and where it leads have to be free; what leads nobody knows where is hidden.
    pub(crate) fn is_visible(&self, path: &Path) -> bool {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        if !rules.has_read_denials() {
            return true;
        }
        let denies = |path: &Path| rules.denies_read(path, &self.home, &self.worktree);
        !denies(path) && DiskPaths.resolve(path).is_some_and(|real| real == path || !denies(&real))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use swarm_protocol::permission::{RuleBehavior, RuleOrigin};

    use super::*;

    fn hidden(worktree: &Path, rules: &[&str]) -> Hidden {
        let rules = rules.iter().map(|text| Rule {
            behavior: RuleBehavior::Deny,
            text: (*text).to_owned(),
            origin: RuleOrigin {
                level: "project".to_owned(),
                file: None,
                line: None,
                anchor: Some("/project".to_owned()),
            },
        });
        Hidden::new(RuleSet::new(rules).unwrap(), "/home/me".into(), worktree.to_owned())
    }

    #[test]
    fn rules_hide_in_any_case_and_through_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let worktree = dir.path().canonicalize().unwrap().join("tree[1] {a,b}");
        for name in ["Secrets/deep", "sub/secrets", "open"] {
            fs::create_dir_all(worktree.join(name)).unwrap();
            fs::write(worktree.join(name).join("file"), "").unwrap();
        }
        symlink(".", worktree.join("x")).unwrap();
        symlink("Secrets/deep", worktree.join("alias")).unwrap();
        symlink("loop", worktree.join("loop")).unwrap();
        let check = |rule: &str, seen: &[&str], unseen: &[&str]| {
            let hidden = hidden(&worktree, &[rule]);
            for path in seen {
                assert!(hidden.is_visible(&worktree.join(path)), "{rule} {path}");
            }
            for path in unseen {
                assert!(!hidden.is_visible(&worktree.join(path)), "{rule} {path}");
            }
        };
        check(
            "Read(Secrets/**)",
            &["open/file", "x/open/file", "new"],
            &[
                "Secrets",
                "Secrets/deep/file",
                "SECRETS/y",
                "sub/secrets/file",
                "x/Secrets/deep",
                "alias/file",
                "loop",
            ],
        );
        check(
            "Read(/secrets/**)",
            &["open", "sub/secrets/file"],
            &["Secrets/deep/file", "x/secrets", "x/x/Secrets/deep/file", "alias"],
        );
        check("Read(Secrets)", &["open/file"], &["x/x/Secrets/deep/file"]);
        check("Read(sec**)", &["open/file"], &["Secrets/deep/file"]);
        check("Bash(cat *)", &["Secrets/deep/file", "loop"], &[]);
    }

    #[test]
    fn a_rule_that_comes_later_hides_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let worktree = dir.path().canonicalize().unwrap();
        let hidden = hidden(&worktree, &[]);
        assert!(hidden.is_visible(&worktree.join(".env")));
        let origin = RuleOrigin { level: "session".to_owned(), file: None, line: None, anchor: None };
        hidden.add(&Rule { behavior: RuleBehavior::Deny, text: "Read(.ENV)".to_owned(), origin });
        assert!(!hidden.is_visible(&worktree.join(".env")));
    }
}
