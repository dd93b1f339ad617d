//! From a task to the spec of a new session.

use std::{path::Path, sync::Arc};

use agent_host::{ClaudeSettings, RepositoryWants, Trust, at_home};
use swarm_protocol::{api::CreateTask, error_chain, event::SessionSpec, launch::AgentLimits, usage::Caps};
use worktree_manager::{Head, Repository};

use super::{
    SubmitError, carry, environment,
    models::{check_prices, models},
    settings::{Settings, permission_mode, settings_of},
    source::source_of,
};
use crate::{
    server::Shared,
    session::{KeyRing, engine, title_of},
};

/// What a new session is made of, its keys, and what the person is told.
pub(super) async fn specify(
    shared: &Arc<Shared>,
    task: &CreateTask,
) -> Result<(SessionSpec, KeyRing, Vec<String>), SubmitError> {
    let place = task.repo.as_deref().ok_or(SubmitError::NoPlace)?;
    let source = source_of(shared, task);
    let repository = Repository::open(Path::new(place)).await?;
    if let Some(path) =
        [repository.root(), repository.common_dir()].into_iter().find(|p| p.to_str().is_none())
    {
        return Err(SubmitError::NotUtf8 { path: path.to_owned() });
    }
    let facts = repository.facts().await.map_err(|error| SubmitError::Facts(error_chain(&error)))?;
    carry::check(task, &facts)?;
    let checkout = repository.root().to_owned();
    let spec_text = task.base.clone().unwrap_or_else(|| "HEAD".to_owned());
    let base = repository.resolve_base(&spec_text).await.map_err(|error| SubmitError::Base {
        repo: checkout.clone(),
        spec: spec_text.clone(),
        source: error,
        given: task.base.is_some(),
    })?;
    let Settings { config, claude, wants, trust } =
        settings_of(&shared.home, &source.user_home, Some(&checkout), &source.env, &source.flags)?;
    let (mut models, keys) = models(&config, &source)?;
    if task.solo {
        // Nobody else thinks.
        models.coordinator = models.worker.clone();
    }
    check_prices(&config, &models)?;
    let permission_mode = permission_mode(&config, &claude)?;
    let carried = carry::take(&repository, task, &facts, &base.commit).await?;
    let mut notices = notices(&facts, &base, carried.as_ref(), &wants, &trust, &claude);
    let untrusted = notices.iter().filter(|notice| notice.starts_with("not trusted")).cloned().collect();
    if let Some(distance) = &base.to_origin
        && (distance.ahead > 0 || distance.behind > 0)
    {
        notices
            .push(format!("base is {} ahead of, {} behind {}", distance.ahead, distance.behind, distance.to));
    }
    let (target_branch, base_name) = match &facts.head {
        Head::Branch { branch, .. } => (Some(branch.clone()), branch.clone()),
        Head::Detached { commit } => (None, commit.short().to_owned()),
        Head::Unborn { branch } => (Some(branch.clone()), branch.clone()),
    };
    let mut environment = source.environment.clone();
    environment.extend(environment::named(&claude.env));
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut spec = SessionSpec {
        repo: checkout,
        repo_key: repository.directory_name().to_owned(),
        base_name: match &carried {
            Some(_) => format!("{base_name} with uncommitted changes"),
            None => task.base.clone().unwrap_or(base_name),
        },
        base: carried.map_or(base.commit, |carried| carried.commit).to_string(),
        target_branch,
        title: title_of(&task.prompt),
        models,
        permission_mode,
        max_workers: config.max_workers,
        coordinator_max_turns: config.coordinator_max_turns,
        worker_limits: AgentLimits {
            max_turns: config.worker_max_turns,
            permission_timeout_ms: millis(config.permission_timeout),
            background_grace_ms: millis(config.background_grace),
            max_tool_concurrency: config.max_tool_concurrency as usize,
            sandbox_auto_allow: config.sandbox_auto_allow,
            sandbox_required: config.sandbox_required,
            sandbox_network: config.sandbox_network,
            sandbox: config.sandbox.clone(),
            git_lock_wait_ms: millis(shared.settings.git_lock_wait),
            budget: Caps { usd: config.worker_budget_usd, tokens: config.worker_budget_tokens },
            cache_keepalive: config.cache_keepalive,
            tools: config.tools.clone(),
            classifier_racer: config.classifier_racer,
            auto_mode_asks: config.auto_mode_asks,
        },
        worker_restarts: config.worker_restarts,
        notification_window_ms: millis(config.notification_window),
        setup: joined(&config.setup),
        check: joined(&config.check),
        branch_prefix: config.worktree_branch_prefix.clone(),
        worktree_root: config.worktree_root.as_deref().map(|root| at_home(root, &source.user_home)),
        rules: claude.rules.clone(),
        system_prompt: task.system_prompt.clone(),
        tmux: task.tmux,
        environment,
        home: source.user_home,
        untrusted,
        budget: Caps { usd: config.budget_usd, tokens: config.budget_tokens },
        prefix_sha256: String::new(),
        solo: task.solo,
    };
    spec.prefix_sha256 = agent_host::keep_prefix(&shared.home.prompts(), &engine::new_prefix(&spec))
        .map_err(|source| SubmitError::Home { home: shared.home.root().to_owned(), source })?;
    Ok((spec, keys, notices))
}

fn notices(
    facts: &worktree_manager::Facts,
    base: &worktree_manager::ResolvedBase,
    carried: Option<&carry::Carried>,
    wants: &RepositoryWants,
    trust: &Trust,
    claude: &ClaudeSettings,
) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(carried) = carried {
        notices.extend(carried.notices.iter().cloned());
    } else if !facts.dirty.is_empty() {
        notices.push(format!(
            "{} changed files in your checkout are not part of it: workers start from commit {} (--carry takes them along)",
            facts.dirty.len(),
            base.commit.short()
        ));
    }
    if !trust.holds() {
        notices
            .extend(wants.lines().iter().map(|line| format!("not trusted, ignored: {line} (swarm trust)")));
    }
    notices.extend(
        claude.ignored.iter().map(|ignored| {
            format!("ignored: {} in {}: {}", ignored.what, ignored.path.display(), ignored.why)
        }),
    );
    notices
}

fn joined(commands: &[String]) -> Option<String> {
    (!commands.is_empty()).then(|| commands.join(" && "))
}
