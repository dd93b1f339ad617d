//! "Always": writing a rule to the settings file that is a person's own.

use agent_host::{RulePlace, remember};
use swarm_protocol::permission::RuleBehavior;

use crate::{server::Shared, session::model::SessionModel};

/// The file `always` writes to: the project's `settings.local.json` when git ignores it, else one under
/// `$SWARM_HOME`.
pub(crate) fn place(shared: &Shared, model: &SessionModel) -> RulePlace {
    let ignored = local_is_ignored(&model.spec.repo);
    RulePlace::of_project(&model.spec.repo, shared.home.root(), ignored)
}

/// Whether git ignores `.claude/settings.local.json` in this checkout.
pub(crate) fn local_is_ignored(checkout: &std::path::Path) -> bool {
    worktree_manager::is_ignored(checkout, std::path::Path::new(".claude/settings.local.json"))
        .unwrap_or(false)
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
