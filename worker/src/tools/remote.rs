//! RemoteTrigger: gives a task to another swarm server, the one that a person configured. What becomes of it is that
//! server's; nothing comes back but the ids to look it up by.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use reqwest::{StatusCode, header::HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{
    SessionId, WorkerId,
    api::{Problem, TaskAccepted},
    error_chain,
    launch::RemoteServer,
    record::ToolEffect,
};

use super::{ServiceKey, parse};

/// How long one attempt may take: a server that is starved answers late.
const TIME: Duration = Duration::from_secs(30);
/// A task that was perhaps not taken is sent again under the same key, which starts nothing twice.
const ATTEMPTS: u32 = 2;
/// What the server may send.
const MAX_BYTES: usize = 256 * 1024;
/// Characters of an answer that is no problem document.
const MAX_ERROR_CHARS: usize = 300;

/// The tool.
pub struct RemoteTrigger {
    server: RemoteServer,
    token: ServiceKey,
    /// Whose task it is: part of the key that a repeat is known by, and a label.
    origin: String,
}

impl RemoteTrigger {
    /// `token` is set once the worker's own server has sent it.
    pub fn new(server: RemoteServer, token: ServiceKey, session: SessionId, worker: &WorkerId) -> Arc<Self> {
        // A second installation fails, and that is fine: the first one stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        Arc::new(Self { server, token, origin: format!("{session}/{worker}") })
    }

    async fn trigger(&self, input: Input, call: &str) -> Result<ToolOutput, String> {
        let Some(repo) = input.repo.or_else(|| self.server.repo.clone()) else {
            return Err("`repo` is missing, and `remote.repo` names no usual one".to_owned());
        };
        let body = json!({"prompt": input.prompt, "repo": repo, "labels": [format!("from {}", self.origin)]});
        let key = format!("{}/{call}", self.origin);
        let mut problem = String::new();
        for _ in 0..ATTEMPTS {
            match self.attempt(&body, &key).await {
                Ok(accepted) => return Ok(self.told(&accepted)),
                Err(Failed::ForGood(problem)) => return Err(problem),
                Err(Failed::Perhaps(why)) => problem = why,
            }
        }
        Err(format!(
            "{problem}. Whether it has the task is not known: look there before you trigger it again"
        ))
    }

    fn told(&self, accepted: &TaskAccepted) -> ToolOutput {
        let TaskAccepted { task_id, session_id, notices, .. } = accepted;
        let mut text = format!(
            "{} has the task: task {task_id}, session {session_id}. It goes on there; its result does not come back to you.",
            self.server.url
        );
        for notice in notices {
            text.push_str("\nnote: ");
            text.push_str(notice);
        }
        let data = json!({"what": "triggered", "task_id": task_id, "session_id": session_id});
        ToolOutput::text(text).with_effect(ToolEffect::Other { data })
    }

    async fn attempt(&self, body: &Value, key: &str) -> Result<TaskAccepted, Failed> {
        let url = format!("{}/api/v1/tasks", self.server.url.trim_end_matches('/'));
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("swarm/", env!("CARGO_PKG_VERSION")))
            // The token goes to no other place.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIME);
        if url.starts_with("http://") {
            builder = builder.no_proxy().tls_certs_only([]);
        }
        let said = |error: &reqwest::Error| format!("{url} could not be asked: {}", error_chain(error));
        let client = builder.build().map_err(|error| Failed::ForGood(said(&error)))?;
        let mut request = client.post(&url).header("idempotency-key", key).json(body);
        if let Some(token) = self.token().map_err(Failed::ForGood)? {
            request = request.header("authorization", token);
        }
        let failed = |error: reqwest::Error| match error.is_connect() || error.is_builder() {
            // Nothing was sent.
            true => Failed::ForGood(said(&error)),
            false => Failed::Perhaps(said(&error)),
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_BYTES {
                return Err(Failed::Perhaps(format!("{url} sent more than {MAX_BYTES} bytes")));
            }
        }
        if status == StatusCode::ACCEPTED {
            return serde_json::from_slice(&bytes).map_err(|error| {
                Failed::Perhaps(format!("{url} accepted, but in words of its own: {error}"))
            });
        }
        let problem = format!("{url} answered {status}: {}", self.without_token(&why(status, &bytes)));
        Err(if status.is_server_error() { Failed::Perhaps(problem) } else { Failed::ForGood(problem) })
    }

    fn token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(variable) = &self.server.token_env else { return Ok(None) };
        let token = self.token.get().ok_or_else(|| {
            format!("it needs a token, and {variable} was not set where the task was submitted")
        })?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| format!("{variable} holds what cannot stand in a header"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn without_token(&self, text: &str) -> String {
        match self.token.get().filter(|token| !token.is_empty()) {
            Some(token) => text.replace(token.as_str(), "[token]"),
            None => text.to_owned(),
        }
    }
}

/// Why a task was not accepted, or whether it was is not known.
enum Failed {
    ForGood(String),
    Perhaps(String),
}

/// What a refusing server says.
fn why(status: StatusCode, bytes: &[u8]) -> String {
    let said = match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => {
            [Some(problem.title), problem.hint].into_iter().flatten().collect::<Vec<_>>().join("; ")
        }
        Err(_) => String::from_utf8_lossy(bytes).chars().take(MAX_ERROR_CHARS).collect(),
    };
    match status {
        StatusCode::UNAUTHORIZED => format!("{said} (`remote.token_env` names the variable with its token)"),
        _ => said,
    }
}

#[derive(Deserialize)]
struct Input {
    prompt: String,
    #[serde(default)]
    repo: Option<String>,
}

#[async_trait]
impl Tool for RemoteTrigger {
    fn name(&self) -> &str {
        "RemoteTrigger"
    }

    fn description(&self) -> String {
        format!(
            "Gives a task to the swarm server at {}, where agents of its own work on it. It sees nothing of this \
             conversation: the prompt must stand alone. Its result does not come back to you.",
            self.server.url
        )
    }

    fn input_schema(&self) -> Value {
        let usual = match &self.server.repo {
            Some(repo) => format!("A directory of that machine, inside the repository; {repo} when left out"),
            None => "A directory of that machine, inside the repository".to_owned(),
        };
        json!({
            "type": "object",
            "properties": {
                "prompt": {"type": "string", "description": "The whole task"},
                "repo": {"type": "string", "description": usual}
            },
            "required": if self.server.repo.is_some() { vec!["prompt"] } else { vec!["prompt", "repo"] }
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "start work elsewhere, another machine, another swarm server, trigger a task"
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("RemoteTrigger", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        if input.prompt.trim().is_empty() {
            return ToolOutput::error("The prompt is empty.");
        }
        let trigger = self.trigger(input, context.tool_use_id.as_str());
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                ToolOutput::error("Cancelled; whether the other server has the task is not known.")
            }
            answer = trigger => {
                answer.unwrap_or_else(|problem| ToolOutput::error(format!("Nothing was triggered: {problem}.")))
            }
        }
    }
}
