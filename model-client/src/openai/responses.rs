//! The client for OpenAI's Responses API.

use async_trait::async_trait;
use query_engine::ports::{Model, ModelError, ModelInfo, ModelRequest, ModelStream};
use swarm_protocol::{Usage, launch::ModelEndpoint, usage::Cost};

use super::{
    chat_stream::names_field,
    learned::Learned,
    responses_request::{self, Shape},
    responses_stream::Decoder,
};
use crate::{
    ConnectError, HttpClient, decoder,
    endpoint::is_official_openai,
    http::Target,
    models, prices,
    watchdog::{Timeouts, Watchdog},
    written::Written,
};

/// A model behind the Responses API.
#[derive(Debug)]
pub(crate) struct Responses {
    endpoint: ModelEndpoint,
    target: Target,
    /// What this model and account accept, as far as they have said.
    shape: Learned<Shape>,
    written: Written<Shape>,
}

impl Responses {
    pub(crate) fn new(
        endpoint: &ModelEndpoint,
        key: Option<&str>,
        client: &HttpClient,
    ) -> Result<Self, ConnectError> {
        if is_official_openai(&endpoint.base_url) && key.is_none() {
            return Err(ConnectError::NoKey { endpoint: endpoint.display_name() });
        }
        let auth = key.map(|key| ("authorization", format!("Bearer {key}")));
        let target = Target::new(endpoint, "/responses", &[], auth, client)?;
        let name = models::bare_name(&endpoint.model);
        let reasons = !["gpt-4", "gpt-3", "chatgpt-"].iter().any(|line| name.starts_with(line));
        let shape = Shape { model: endpoint.model.clone(), reasons, summaries: true, stale_before: 0 };
        Ok(Self {
            endpoint: endpoint.clone(),
            target,
            shape: Learned::new(shape),
            written: Written::default(),
        })
    }
}

/// The request as the provider may accept it, after it refused one; each repair is made once.
fn repair(shape: &Shape, error: &ModelError, request: &ModelRequest) -> Option<Shape> {
    let mut repaired = shape.clone();
    if names_field(error, "invalid_encrypted_content") && shape.stale_before < request.messages.len() {
        repaired.stale_before = request.messages.len();
    } else if shape.reasons && shape.summaries && names_field(error, "summar") {
        repaired.summaries = false;
    } else if shape.reasons
        && (names_field(error, "ncrypted content is not supported") || names_field(error, "'reasoning"))
    {
        repaired.reasons = false;
    } else {
        return None;
    }
    Some(repaired)
}

#[async_trait]
impl Model for Responses {
    fn info(&self) -> ModelInfo {
        models::info(&self.endpoint)
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let mut shape = self.shape.shape();
        // After a compaction the conversation is shorter than what was found stale.
        shape.stale_before = shape.stale_before.min(request.messages.len());
        let send = |shape: Shape| async move {
            let body = responses_request::body(&shape, request, &self.written);
            let decoder = Decoder::new(request, body.len());
            let watchdog = Watchdog::start(Timeouts::new(self.endpoint.first_byte_timeout_ms, false));
            let bytes = self.target.post(body, &watchdog).await?;
            Ok(decoder::drive(bytes, decoder, watchdog))
        };
        self.shape.send(shape, send, |shape, error| repair(shape, error, request)).await
    }

    fn cost(&self, model: &str, usage: &Usage) -> Cost {
        prices::cost(&self.endpoint, model, usage)
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        responses_request::body(&self.shape.shape(), request, &self.written).len()
    }
}

#[cfg(test)]
mod tests;
