//! Who submits: variables, flags and keys of the client, or of the server itself.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use agent_host::Flag;
use swarm_protocol::api::{ClientContext, CreateTask};

use super::environment::passed;
use crate::server::Shared;

/// Variables and flags of who submits: the client's, else the server's own.
pub(super) struct Source {
    pub(super) env: Vec<(String, String)>,
    pub(super) flags: Vec<Flag>,
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) user_home: PathBuf,
}

pub(super) fn source_of(shared: &Shared, task: &CreateTask) -> Source {
    let mut source = match &task.client {
        Some(client) => client_source(client, &shared.user_home),
        None => Source {
            env: shared.environment.clone().into_iter().collect(),
            flags: Vec::new(),
            secrets: shared.environment.clone(),
            environment: passed(&shared.environment),
            user_home: shared.user_home.clone(),
        },
    };
    let mut flag = |flag: &str, key: &str, value: Option<String>| {
        if let Some(value) = value {
            source.flags.push(Flag { flag: flag.to_owned(), key: key.to_owned(), value });
        }
    };
    flag("--model", "model", task.model.clone());
    flag("--check", "check", task.check.clone());
    flag("--max-workers", "max_workers", task.max_workers.map(|n| n.to_string()));
    let budget = task.budget.unwrap_or_default();
    flag("--budget-usd", "budget_usd", budget.usd.map(|usd| usd.to_string()));
    flag("--budget-tokens", "budget_tokens", budget.tokens.map(|tokens| tokens.to_string()));
    flag("--max-turns", "worker.max_turns", task.max_turns.map(|n| n.to_string()));
    flag("--permission-mode", "permission_mode", task.permission_mode.map(|mode| mode.as_str().to_owned()));
    source
}

fn client_source(client: &ClientContext, user_home: &Path) -> Source {
    let mut env = Vec::new();
    let mut flags = Vec::new();
    for setting in &client.settings {
        if setting.source.starts_with("--") {
            flags.push(Flag {
                flag: setting.source.clone(),
                key: setting.key.clone(),
                value: setting.value.clone(),
            });
        } else {
            env.push((setting.source.clone(), setting.value.clone()));
        }
    }
    Source {
        env,
        flags,
        secrets: client.secrets.clone(),
        environment: passed(&client.environment),
        user_home: client.home.as_ref().map_or_else(|| user_home.to_owned(), PathBuf::from),
    }
}
