//! The web: WebFetch gives one page as text, WebSearch asks the search service a person configured. Both go out from
//! the worker itself, not from the sandbox, so where they may go is decided here: by the rules on domains, and by the
//! addresses that names lead to.

mod fetch;
mod fetcher;
mod page;
mod search;

use std::sync::Arc;

use query_engine::ports::Tool;
use swarm_protocol::launch::WebSettings;

pub use self::{
    fetch::WebFetch,
    fetcher::{Fetcher, Limits},
    search::WebSearch,
};

use super::ServiceKey;
use crate::convert::Converter;

/// Says whether the rules allow a tool to ask this host without a person's word.
pub type MayFollow = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The tools of the web. `search_key` is the search service's, when it has one.
pub fn tools(settings: &WebSettings, may_follow: MayFollow, search_key: ServiceKey) -> Vec<Arc<dyn Tool>> {
    let fetcher = Arc::new(Fetcher::new(&settings.allow_private, Limits::default()));
    let mut tools: Vec<Arc<dyn Tool>> =
        vec![Arc::new(WebFetch::new(fetcher, may_follow, Converter::default()))];
    if let Some(service) = &settings.search {
        tools.push(Arc::new(WebSearch::new(service.clone(), search_key)));
    }
    tools
}

#[cfg(test)]
mod tests;
