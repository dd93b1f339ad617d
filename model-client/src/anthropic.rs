//! Anthropic Messages: one client for Anthropic itself and for servers that speak the same.

mod request;
mod stream;

use async_trait::async_trait;
use query_engine::ports::{Model, ModelError, ModelInfo, ModelRequest, ModelStream};
use swarm_protocol::{Usage, launch::ModelEndpoint, usage::Cost};

use crate::{
    ConnectError, ConnectOptions, HttpClient, decoder,
    endpoint::is_official_anthropic,
    http::Target,
    models, prices,
    watchdog::{Timeouts, Watchdog},
    written::Written,
};

/// The version every server knows; a header of the endpoint overrides it.
const API_VERSION: &str = "2023-06-01";

/// A model behind the Messages API.
#[derive(Debug)]
pub(crate) struct Anthropic {
    endpoint: ModelEndpoint,
    target: Target,
    shape: request::Shape,
    written: Written<request::Shape>,
}

impl Anthropic {
    pub(crate) fn new(
        endpoint: &ModelEndpoint,
        key: Option<&str>,
        client: &HttpClient,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let official = is_official_anthropic(&endpoint.base_url);
        if official && key.is_none() {
            return Err(ConnectError::NoKey { endpoint: endpoint.display_name() });
        }
        let auth = key.map(|key| match endpoint.bearer {
            true => ("authorization", format!("Bearer {key}")),
            false => ("x-api-key", key.to_owned()),
        });
        let target =
            Target::new(endpoint, "/v1/messages", &[("anthropic-version", API_VERSION)], auth, client)?;
        let shape = request::Shape {
            model: endpoint.model.clone(),
            // Servers that only resemble Anthropic's may refuse fields they do not know.
            eager_input_streaming: options.eager_input_streaming.unwrap_or(official),
            adaptive_thinking: options
                .adaptive_thinking
                .unwrap_or_else(|| models::thinks_adaptively(&endpoint.model)),
            defer_tools: endpoint.defer_tools.unwrap_or(official),
            unsigned_thinking: !official,
        };
        Ok(Self { endpoint: endpoint.clone(), target, shape, written: Written::default() })
    }
}

#[async_trait]
impl Model for Anthropic {
    fn info(&self) -> ModelInfo {
        models::info(&self.endpoint)
    }

    async fn stream(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let body = request::body(&self.shape, request, &self.written);
        let decoder = stream::Decoder::new(request, body.len());
        let timeouts = Timeouts::new(self.endpoint.first_byte_timeout_ms, !self.shape.eager_input_streaming);
        let watchdog = Watchdog::start(timeouts);
        let bytes = self.target.post(body, &watchdog).await?;
        Ok(decoder::drive(bytes, decoder, watchdog))
    }

    fn cost(&self, model: &str, usage: &Usage) -> Cost {
        prices::cost(&self.endpoint, model, usage)
    }

    fn least_output(&self) -> u64 {
        u64::from(!is_official_anthropic(&self.endpoint.base_url))
    }

    fn request_bytes(&self, request: &ModelRequest) -> usize {
        request::body(&self.shape, request, &self.written).len()
    }
}

/// The fold of a stream alone, for the fuzz target.
#[cfg(any(test, feature = "test-support"))]
pub(crate) fn decoder(request: &ModelRequest) -> impl crate::decoder::Decoder + use<> {
    stream::Decoder::new(request, 0)
}

#[cfg(test)]
mod tests;
