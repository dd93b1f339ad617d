//! The client for chat completions. Servers differ in what they accept; what one refused is remembered.

use async_trait::async_trait;
use query_engine::ports::{Model, ModelError, ModelInfo, ModelRequest, ModelStream};
use swarm_protocol::{Usage, launch::ModelEndpoint, usage::Cost};

use super::{
    chat_request::{self, Shape},
    chat_stream::{Decoder, names_field},
    learned::Learned,
};
use crate::{
    ConnectError, ConnectOptions, HttpClient, decoder,
    endpoint::{has_host, is_official_openai},
    http::Target,
    models, prices,
    watchdog::{Timeouts, Watchdog},
    written::Written,
};

/// A model behind chat completions.
#[derive(Debug)]
pub(crate) struct Chat {
    endpoint: ModelEndpoint,
    target: Target,
    /// What this server accepts, as far as it has said.
    shape: Learned<Shape>,
    written: Written<Shape>,
}

impl Chat {
    pub(crate) fn new(
        endpoint: &ModelEndpoint,
        key: Option<&str>,
        client: &HttpClient,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let official = is_official_openai(&endpoint.base_url);
        if official && key.is_none() {
            return Err(ConnectError::NoKey { endpoint: endpoint.display_name() });
        }
        let auth = key.map(|key| ("authorization", format!("Bearer {key}")));
        let target = Target::new(endpoint, "/chat/completions", &[], auth, client)?;
        let shape = Shape {
            model: endpoint.model.clone(),
            completion_tokens: official,
            stream_usage: true,
            developer_role: official,
            replay_reasoning: options.replay_reasoning.unwrap_or_else(|| wants_reasoning(endpoint)),
            opaque: format!("chat:{}", endpoint.provider),
        };
        Ok(Self {
            endpoint: endpoint.clone(),
            target,
            shape: Learned::new(shape),
            written: Written::default(),
        })
    }
}

/// Providers that refuse a conversation whose reasoning is missing.
fn wants_reasoning(endpoint: &ModelEndpoint) -> bool {
    let hosts = ["deepseek.com", "moonshot.ai", "moonshot.cn", "kimi.com"];
    let model = endpoint.model.to_lowercase();
    hosts.iter().any(|host| has_host(&endpoint.base_url, host))
        || model.contains("deepseek")
        || model.contains("kimi")
}

/// The request as the server may accept it, after it refused one. Each repair is made once: a shape that was
/// repaired does not match again.
fn repair(shape: &Shape, error: &ModelError) -> Option<Shape> {
    let mut repaired = shape.clone();
    if shape.stream_usage && names_field(error, "stream_options") {
        repaired.stream_usage = false;
    } else if !shape.completion_tokens && names_field(error, "max_completion_tokens") {
        repaired.completion_tokens = true;
    } else if shape.completion_tokens
        && names_field(error, "max_completion_tokens")
        && !error.message.contains("Use 'max_completion_tokens'")
    {
        repaired.completion_tokens = false;
    } else if shape.developer_role && names_field(error, "developer") {
        repaired.developer_role = false;
    } else if !shape.replay_reasoning && names_field(error, "reasoning_content") {
        repaired.replay_reasoning = true;
    } else {
        return None;
    }
    Some(repaired)
}

#[async_trait]
impl Model for Chat {
    fn info(&self) -> ModelInfo {
        models::info(&self.endpoint)
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let send = |shape: Shape| async move {
            let body = chat_request::body(&shape, request, &self.written);
            let decoder = Decoder::new(request, body.len(), &shape.opaque);
            // Some servers' parsers hold a call's arguments back until they are whole.
            let watchdog = Watchdog::start(Timeouts::new(self.endpoint.first_byte_timeout_ms, true));
            let bytes = self.target.post(body, &watchdog).await?;
            Ok(decoder::drive(bytes, decoder, watchdog))
        };
        self.shape.send(self.shape.shape(), send, repair).await
    }

    fn cost(&self, model: &str, usage: &Usage) -> Cost {
        prices::cost(&self.endpoint, model, usage)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        chat_request::body(&self.shape.shape(), request, &self.written).len()
    }
}

#[cfg(test)]
mod tests;
