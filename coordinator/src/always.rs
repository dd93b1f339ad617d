//! "Always": writing a rule to the settings file that is a person's own.

use std::path::Path;

use agent_host::{RulePlace, remember};
use swarm_protocol::permission::RuleBehavior;

use crate::{server::Shared, session::model::SessionModel};

/// A person's own settings of a project.
const LOCAL: &str = ".claude/settings.local.json";

/// The file `always` writes to: the project's `settings.local.json` when git ignores it, else one under
/// `$SWARM_HOME`.
pub(crate) fn place(shared: &Shared, model: &SessionModel) -> RulePlace {
    let ignored = local_is_ignored(&model.spec.repo);
    RulePlace::of_project(&model.spec.repo, shared.home.root(), ignored)
}

/// Whether `.claude/settings.local.json` of this checkout is the person's own: git ignores it and does not track it, nor
/// what it leads to in the checkout, should there be links on the way.
pub(crate) fn local_is_ignored(checkout: &Path) -> bool {
    let is_own = |path: &Path| worktree_manager::is_ignored(checkout, path).unwrap_or(false);
    let leads_to = || {
        let (root, real) = (checkout.canonicalize().ok()?, checkout.join(LOCAL).canonicalize().ok()?);
        real.strip_prefix(root).ok().map(Path::to_owned)
    };
    is_own(Path::new(LOCAL)) && leads_to().is_none_or(|real| is_own(&real))
}

/// Writes an allow rule; gives the file.
pub(crate) async fn write_rule(shared: &Shared, model: &SessionModel, rule: &str) -> Result<String, String> {
    let place = place(shared, model);
    let shown = place.path().to_string_lossy().into_owned();
    let rule = rule.to_owned();
    let written = tokio::task::spawn_blocking(move || remember(&place, RuleBehavior::Allow, &rule)).await;
    match written {
        Ok(Ok(())) => Ok(shown),
        Ok(Err(error)) => Err(swarm_protocol::error_chain(&error)),
        Err(error) => Err(error.to_string()),
    }
}
