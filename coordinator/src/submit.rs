//! From a task as it was submitted to a session: repository, settings, trust, models. What is wrong is found
//! here, before anything exists.

use std::sync::{Arc, atomic::Ordering};

use swarm_protocol::{
    Seq,
    api::{CreateTask, TaskAccepted},
};

use crate::{
    server::Shared,
    session::{Order, Submit},
    sessions,
};

mod carry;
mod environment;
mod error;
mod models;
mod settings;
mod source;
mod specify;

use specify::specify;

pub(crate) use error::SubmitError;
pub(crate) use models::continue_keys;
pub(crate) use settings::{Settings, permission_mode, settings_of, shown, trust_store};

/// A prompt longer than this is surely a mistake, in bytes.
const PROMPT_BYTES: usize = 1024 * 1024;

/// Accepts a task: opens a session for it, or continues one.
pub(crate) async fn submit(shared: &Arc<Shared>, task: CreateTask) -> Result<TaskAccepted, SubmitError> {
    check_words(&task)?;
    if shared.stopping.load(Ordering::Relaxed) {
        return Err(SubmitError::Stopping);
    }
    let (handle, keys, notices, first) = match task.session_id {
        Some(session_id) => {
            let handle = shared.sessions.get(session_id).ok_or(SubmitError::UnknownSession(session_id))?;
            let keys = continue_keys(shared, &handle, task.client.as_ref()).await?;
            (handle, keys, Vec::new(), None)
        }
        None => {
            let (spec, keys, notices) = specify(shared, &task).await?;
            let handle = sessions::open(shared, spec, keys.clone()).await?;
            // Followed from its very first event, which opens it.
            (handle, keys, notices, Some(Seq(0)))
        }
    };
    let submit = Submit {
        text: task.prompt,
        unattended: task.unattended,
        callback_url: task.callback_url,
        callback_asks: task.callback_asks,
        labels: task.labels,
        keys,
    };
    let submitted = handle.try_ask(|reply| Order::Submit(submit, reply)).await?;
    Ok(TaskAccepted {
        task_id: submitted.task_id,
        session_id: handle.id,
        after: first.unwrap_or(submitted.after),
        notices,
    })
}

fn check_words(task: &CreateTask) -> Result<(), SubmitError> {
    if task.prompt.trim().is_empty() {
        return Err(SubmitError::EmptyPrompt);
    }
    if task.prompt.len() > PROMPT_BYTES {
        return Err(SubmitError::PromptTooLong);
    }
    if task.session_id.is_some() {
        // A session's repository, base, models and bounds are those it was opened with.
        let given = [
            ("repo", task.repo.is_some()),
            ("base", task.base.is_some()),
            ("carry", task.carry),
            ("model", task.model.is_some()),
            ("permission_mode", task.permission_mode.is_some()),
            ("max_workers", task.max_workers.is_some()),
            ("max_turns", task.max_turns.is_some()),
            ("check", task.check.is_some()),
            ("budget", task.budget.is_some()),
            ("system_prompt", task.system_prompt.is_some()),
            ("tmux", task.tmux),
            ("solo", task.solo),
        ];
        if let Some((what, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(SubmitError::NotWithSession { what });
        }
    }
    if let Some(url) = &task.callback_url {
        let wellformed = reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        if !wellformed {
            return Err(SubmitError::CallbackUrl);
        }
    }
    Ok(())
}
