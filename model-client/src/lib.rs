//! Model providers over HTTP, and the scripted model of `--model demo`.
//!
//! Implements the engine's [`Model`](query_engine::ports::Model) port. All vendor JSON stays here; nothing
//! here knows tools, files, processes or sessions, and nothing here retries by itself: it classifies, the
//! loop decides.
#![warn(missing_docs)]

mod anthropic;
mod call_id;
mod decoder;
mod demo;
mod endpoint;
mod error;
#[cfg(any(test, feature = "test-support"))]
pub mod fuzzing;
mod http;
mod images;
mod models;
mod openai;
mod prices;
mod sse;
#[cfg(test)]
mod testing;
mod tool_input;
mod watchdog;
mod written;

use std::sync::Arc;

use query_engine::ports::Model;
use swarm_protocol::launch::{ApiKind, ModelEndpoint};

pub use demo::{DemoModel, DemoReply, RequestView, demo_reply, demo_reply_json};
pub use endpoint::{EndpointError, KeySource, Profile, ResolvedEndpoint, resolve_endpoint};
pub use error::retry_after;
pub use http::HttpClient;
pub use models::{DEFAULT_CONTEXT_WINDOW, caches};
pub use prices::{TABLE_DATE, cost, is_priced};

/// Why a model cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint needs a key and none was given.
    #[error("no key for {endpoint}")]
    NoKey {
        /// `provider/model`.
        endpoint: String,
    },
    /// The base URL is no URL.
    #[error("`{base_url}` is no http or https URL: {problem}")]
    BaseUrl {
        /// As configured.
        base_url: String,
        /// What is wrong.
        problem: String,
    },
    /// A header cannot be sent.
    #[error("header `{name}` of endpoint {endpoint} has a name or value that HTTP does not allow")]
    Header {
        /// `provider/model`.
        endpoint: String,
        /// The header's name.
        name: String,
    },
    /// TLS could not be set up.
    #[error("failed to set up TLS: {problem}")]
    Tls {
        /// What the TLS library said.
        problem: String,
    },
}

/// What an endpoint may be told beyond its [`ModelEndpoint`]; every field left out is decided from host and
/// model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Whether tools go out with `eager_input_streaming` (Anthropic; else: on the official host only).
    pub eager_input_streaming: Option<bool>,
    /// Whether adaptive thinking is asked for (Anthropic; else: by the model's line).
    pub adaptive_thinking: Option<bool>,
    /// Whether reasoning is sent back as `reasoning_content` (chat; else: DeepSeek and Kimi only).
    pub replay_reasoning: Option<bool>,
}

/// A model behind an endpoint. Sends nothing yet.
pub fn connect(
    endpoint: &ModelEndpoint,
    key: Option<&str>,
    client: &HttpClient,
) -> Result<Arc<dyn Model>, ConnectError> {
    connect_with(endpoint, key, client, &ConnectOptions::default())
}

/// As [`connect`], with switches.
pub fn connect_with(
    endpoint: &ModelEndpoint,
    key: Option<&str>,
    client: &HttpClient,
    options: &ConnectOptions,
) -> Result<Arc<dyn Model>, ConnectError> {
    Ok(match endpoint.api {
        ApiKind::Anthropic => Arc::new(anthropic::Anthropic::new(endpoint, key, client, options)?),
        ApiKind::Chat => Arc::new(openai::Chat::new(endpoint, key, client, options)?),
        ApiKind::Responses => Arc::new(openai::Responses::new(endpoint, key, client)?),
        ApiKind::Demo => Arc::new(DemoModel::new(endpoint)),
    })
}
