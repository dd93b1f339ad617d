//! Paths: of file tools, of redirections, of arguments.

use std::path::{Path, PathBuf};

use swarm_protocol::{
    launch::Isolation,
    permission::{PermissionMode, RuleBehavior},
};

use super::{Case, DecidedBy, PermissionAnswer};
use crate::{
    dangerous::normalize,
    rules::{Entry, grammar::Specifier, paths::fold},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A path as written (made absolute) and what it leads to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) written: PathBuf,
    /// `None` when it cannot be told.
    pub(super) resolved: Option<PathBuf>,
}

/// Directories and files anywhere in a worktree that configure git, tools or agents.
const PROTECTED: [&str; 16] = [
    ".git",
    ".jj",
    ".claude",
    ".swarm",
    "swarm.toml",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".husky",
    ".cargo",
    ".devcontainer",
    ".gitmodules",
    ".gitattributes",
    ".gitconfig",
    ".worktreeinclude",
    ".envrc",
];

impl Target {
    pub(super) fn spellings(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.written.as_path()).chain(self.resolved.as_deref())
    }
}

impl Case<'_> {
    pub(super) fn target(&self, path: &Path) -> Target {
        let path = match path.strip_prefix("~") {
            Ok(rest) => self.ground.home.join(rest),
            Err(_) => self.query.cwd.join(path),
        };
        Target { written: normalize(&path), resolved: self.ground.paths.resolve(&path) }
    }

    /// A file tool on a path.
    pub(super) fn path(&self, path: &Path, access: Access) -> PermissionAnswer {
        let target = self.target(path);
        if let Some(answer) = self.path_refusal(&target, access) {
            return answer;
        }
        if access == Access::Write && self.ground.isolation == Isolation::None {
            return PermissionAnswer::deny(DecidedBy::ReadOnlyAgent);
        }
        if access == Access::Write && self.plans() {
            return match self.is_plan(&target) {
                true => PermissionAnswer::allow(DecidedBy::Mode(self.ground.mode)),
                false => PermissionAnswer::deny(DecidedBy::Mode(self.ground.mode)),
            };
        }
        let asks_for_protected =
            access == Access::Write && self.ground.mode != PermissionMode::BypassPermissions;
        let protected = asks_for_protected.then(|| self.protected(&target)).flatten();
        let permit = self.path_permit(&target, access);
        match (protected, permit) {
            (None, Some(entry)) => PermissionAnswer::allow(DecidedBy::Rule(entry.rule.clone())),
            (Some(path), _) => PermissionAnswer::ask(DecidedBy::ProtectedPath { path }, None),
            (None, None) => self.unruled_path(&target, access),
        }
    }

    /// `.claude/plans/NAME.md`, and nothing that a link of that name leads to.
    fn is_plan(&self, target: &Target) -> bool {
        let plans = self.ground.worktree.join(".claude/plans");
        target.written.parent() == Some(&plans)
            && target.written.extension().is_some_and(|extension| extension == "md")
            && target.resolved.as_deref() == Some(&target.written)
    }

    fn unruled_path(&self, target: &Target, access: Access) -> PermissionAnswer {
        let (mode, path) = (self.ground.mode, target.written.clone());
        if mode == PermissionMode::BypassPermissions {
            return PermissionAnswer::allow(DecidedBy::Mode(mode));
        }
        let Some(resolved) = target.resolved.as_deref() else {
            return PermissionAnswer::deny(DecidedBy::LinkLeadsOutside { path, target: None });
        };
        let tool = match access {
            Access::Read => "Read",
            Access::Write => "Edit",
        };
        match (self.is_inside(&path, access), self.is_inside(resolved, access)) {
            (true, true) if access == Access::Read => PermissionAnswer::allow(DecidedBy::ReadOnlyTool),
            (true, true) if mode == PermissionMode::AcceptEdits => {
                PermissionAnswer::allow(DecidedBy::Mode(mode))
            }
            (true, true) => PermissionAnswer::ask(DecidedBy::NoRule, self.proposal(tool, &path)),
            (true, false) => PermissionAnswer::deny(DecidedBy::LinkLeadsOutside {
                path,
                target: Some(resolved.to_path_buf()),
            }),
            (false, _) => {
                let proposal = self.proposal(tool, &path);
                PermissionAnswer::ask(DecidedBy::OutsideWorktree { path }, proposal)
            }
        }
    }

    fn proposal(&self, tool: &str, path: &Path) -> Option<String> {
        let text = match path.strip_prefix(self.ground.worktree) {
            Ok(relative) => format!("./{}", relative.to_str()?),
            Err(_) => format!("/{}", path.to_str()?),
        };
        (!text.contains(['*', '?', '[', '{', '(', ')', '\\'])).then(|| format!("{tool}({text})"))
    }

    /// Deny and ask rules; either spelling is enough.
    pub(super) fn path_refusal(&self, target: &Target, access: Access) -> Option<PermissionAnswer> {
        if let Some(entry) = self.path_rule(target, access, RuleBehavior::Deny) {
            return Some(PermissionAnswer::deny(DecidedBy::Rule(entry.rule.clone())));
        }
        let entry = self.path_rule(target, access, RuleBehavior::Ask)?;
        Some(PermissionAnswer::ask(DecidedBy::Rule(entry.rule.clone()), None))
    }

    pub(super) fn path_rule(
        &self,
        target: &Target,
        access: Access,
        behavior: RuleBehavior,
    ) -> Option<&Entry> {
        self.rules.list(behavior).iter().find(|entry| {
            self.concerns(entry, access, behavior)
                && matches!(&entry.pattern.specifier, Specifier::Path(pattern)
                    if target.spellings().any(|path| pattern.matches(path, entry.anchors(self.ground.home, self.ground.worktree))))
        })
    }

    /// Whether a path rule is about this access. What may not be read may not be written either.
    pub(super) fn concerns(&self, entry: &Entry, access: Access, behavior: RuleBehavior) -> bool {
        let reads = entry.pattern.covers_tool("Read");
        let writes = entry.pattern.covers_tool("Edit");
        let by_name = entry.pattern.covers_tool(self.query.tool);
        match access {
            Access::Read => reads || (by_name && !writes),
            Access::Write => writes || by_name || (reads && behavior == RuleBehavior::Deny),
        }
    }

    /// An allow rule; both spellings must be covered.
    pub(super) fn path_permit(&self, target: &Target, access: Access) -> Option<&Entry> {
        let resolved = target.resolved.as_deref()?;
        self.rules.list(RuleBehavior::Allow).iter().find(|entry| {
            let anchors = entry.anchors(self.ground.home, self.ground.worktree);
            self.concerns(entry, access, RuleBehavior::Allow)
                && match &entry.pattern.specifier {
                    // A bare `Edit` speaks of the worktree, not of the whole disk.
                    Specifier::Any => {
                        self.is_inside(&target.written, access) && self.is_inside(resolved, access)
                    }
                    Specifier::Path(pattern) => {
                        pattern.matches(&target.written, anchors) && pattern.matches(resolved, anchors)
                    }
                    _ => false,
                }
        })
    }

    pub(super) fn is_inside(&self, path: &Path, access: Access) -> bool {
        let readable = if access == Access::Read { self.ground.readable } else { &[] };
        path.starts_with(self.ground.worktree)
            || self.ground.writable.iter().chain(readable).any(|directory| path.starts_with(directory))
    }

    /// The protected path that this would change.
    pub(super) fn protected(&self, target: &Target) -> Option<PathBuf> {
        let names_one = |path: &&Path| {
            let inside = path.strip_prefix(self.ground.worktree).unwrap_or(path);
            inside.components().any(|component| {
                let name = fold(&component.as_os_str().to_string_lossy());
                PROTECTED.contains(&name.as_str())
            })
        };
        // The worktree itself lies below `.swarm`: only what is inside counts, or other places named so.
        let outside_root =
            |path: &&Path| path.starts_with(self.ground.worktree) || !self.is_inside(path, Access::Write);
        target.spellings().filter(outside_root).find(names_one).map(Path::to_path_buf)
    }
}
