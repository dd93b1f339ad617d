//! Models by name, with their keys.

use agent_host::Config;
use swarm_protocol::{
    api::ClientContext,
    launch::{ModelEndpoint, Models, ToolSettings},
};

use super::{SubmitError, source::Source};
use crate::{
    server::{Shared, profiles},
    session::{KeyRing, SessionHandle},
};

pub(super) fn models(config: &Config, source: &Source) -> Result<(Models, KeyRing), SubmitError> {
    let profiles = profiles(config);
    let environment = |name: &str| source.secrets.get(name).cloned();
    let mut keys = KeyRing::default();
    let mut resolve = |name: &str| -> Result<ModelEndpoint, SubmitError> {
        let resolved = model_client::resolve_endpoint(name, &profiles, &environment)?;
        if let Some(key) = resolved.key.and_then(|key| key.read(&environment)) {
            keys.0.insert(resolved.endpoint.provider.clone(), key);
        }
        let mut endpoint = resolved.endpoint;
        if endpoint.context_window.is_none() {
            endpoint.context_window = config.context_window;
        }
        Ok(endpoint)
    };
    let usual = config.model.as_deref();
    let coordinator = config.coordinator_model.as_deref().or(usual).ok_or(SubmitError::NoModel)?;
    let worker = config.worker_model.as_deref().or(usual).unwrap_or(coordinator);
    let models = Models {
        coordinator: resolve(coordinator)?,
        worker: resolve(worker)?,
        helper: config.helper_model.as_deref().map(&mut resolve).transpose()?,
        fallback: config.fallback_model.as_deref().map(&mut resolve).transpose()?,
    };
    keys.0.extend(of_services(&config.tools, &environment));
    Ok((models, keys))
}

/// Keys of what tools ask beside the models, under their names.
fn of_services(
    tools: &ToolSettings,
    environment: &impl Fn(&str) -> Option<String>,
) -> impl Iterator<Item = (String, String)> {
    tools.key_variables().filter_map(|(name, variable)| Some((name.to_owned(), environment(variable)?)))
}

/// A cap in dollars can only be kept where every call has a price.
pub(super) fn check_prices(config: &Config, models: &Models) -> Result<(), SubmitError> {
    let Models { coordinator, worker, helper, fallback } = models;
    let of_workers = [Some(worker), helper.as_ref(), fallback.as_ref()];
    let cap = match (config.budget_usd, config.worker_budget_usd) {
        (Some(_), _) => "budget_usd",
        (None, Some(_)) => "worker.budget_usd",
        (None, None) => return Ok(()),
    };
    let of_coordinator = config.budget_usd.map(|_| coordinator);
    let mut capped = of_workers.into_iter().chain([of_coordinator]).flatten();
    match capped.find(|endpoint| !model_client::is_priced(endpoint)) {
        None => Ok(()),
        Some(endpoint) => Err(SubmitError::UnknownPrice {
            cap,
            model: endpoint.display_name(),
            profile: endpoint.provider.clone(),
        }),
    }
}

/// Keys that a client brings to a session that exists: for the providers it uses.
pub(crate) async fn continue_keys(
    shared: &Shared,
    handle: &SessionHandle,
    client: Option<&ClientContext>,
) -> Result<KeyRing, SubmitError> {
    let mut keys = KeyRing::default();
    let Some(client) = client else { return Ok(keys) };
    let (models, tools) =
        handle.read(|model| (model.spec.models.clone(), model.spec.worker_limits.tools.clone())).await?;
    let environment = |name: &str| client.secrets.get(name).cloned();
    let profiles = profiles(&shared.settings);
    let endpoints =
        [Some(&models.coordinator), Some(&models.worker), models.helper.as_ref(), models.fallback.as_ref()];
    for endpoint in endpoints.into_iter().flatten() {
        // Missing keys are found out when they are needed.
        let resolved = model_client::resolve_endpoint(&endpoint.display_name(), &profiles, &environment);
        if let Some(key) =
            resolved.ok().and_then(|resolved| resolved.key).and_then(|key| key.read(&environment))
        {
            keys.0.insert(endpoint.provider.clone(), key);
        }
    }
    keys.0.extend(of_services(&tools, &environment));
    Ok(keys)
}
