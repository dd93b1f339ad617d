//! A task that failed at once because the provider refused the key or the model: the error a person can act
//! on, and exit code 3.

use swarm_protocol::{Verdict, api::TaskView};

use super::{error::CliError, shell::Shell};

/// The error, if the coordinator's first request was refused so.
pub(crate) fn of(shell: &Shell, task: &TaskView, own_turns: u32) -> Option<CliError> {
    if task.verdict != Some(Verdict::Failed) || own_turns > 0 || !task.workers.is_empty() {
        return None;
    }
    let detail = task.exit_detail.as_ref()?;
    let said = detail.get("message").and_then(|message| message.as_str()).unwrap_or_default();
    let short = task.session_id.short();
    let error = match detail.get("error").and_then(|error| error.as_str())? {
        "key_refused" => {
            CliError::new("key_refused", with_status("the provider refused the key", said, "401"))
                .cause(key_source(shell))
                .hint(format!("replace it, then go on: swarm resume {short}"))
        }
        "unknown_model" => {
            CliError::new("unknown_model", with_status("the provider does not know the model", said, "404"))
                .cause(model_source(shell))
                .hint("swarm run --model anthropic/NAME ...")
        }
        _ => return None,
    };
    Some(if said.is_empty() { error } else { error.cause(said.to_owned()) })
}

fn with_status(what: &str, said: &str, usual: &str) -> String {
    // Providers say 401 or 403, 404 or 400: what was said wins.
    let status = said
        .split(|character: char| !character.is_ascii_digit())
        .find(|number| number.len() == 3 && number.starts_with('4'))
        .unwrap_or(usual);
    format!("{what} (HTTP {status})")
}

fn key_source(shell: &Shell) -> String {
    let given: Vec<&str> = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY"]
        .into_iter()
        .filter(|name| shell.around.variable(name).is_some())
        .collect();
    if given.is_empty() {
        "no key is set in this shell; the server's own was used".to_owned()
    } else {
        format!("key from {}", given.join(" or "))
    }
}

fn model_source(shell: &Shell) -> String {
    match shell.around.variable("SWARM_MODEL") {
        Some(model) => format!("SWARM_MODEL is {model}; swarm config shows what it overrides"),
        None => "swarm config shows where the model's name comes from".to_owned(),
    }
}
