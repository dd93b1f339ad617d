//! What a model call used.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Tokens as the provider reported them. The four counts never overlap; total input is the sum of the
/// first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// Input tokens that were neither read from nor written to a cache.
    pub input_tokens: u64,
    /// Output tokens, thinking included.
    pub output_tokens: u64,
    /// Input tokens read from the provider's cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Input tokens written to the provider's cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// True when a provider reported nothing and the figures are our estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl Usage {
    /// Everything the model read: fresh, cache reads and cache writes.
    pub const fn total_input(&self) -> u64 {
        self.input_tokens.saturating_add(self.cache_read_tokens).saturating_add(self.cache_write_tokens)
    }

    /// Input and output together: what people mean by "tokens".
    pub const fn total(&self) -> u64 {
        self.total_input().saturating_add(self.output_tokens)
    }
}

/// Figures come from providers: a sum of any of them is a figure.
impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let Self { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, estimated } = other;
        self.input_tokens = self.input_tokens.saturating_add(input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(output_tokens);
        self.cache_read_tokens = self.cache_read_tokens.saturating_add(cache_read_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(cache_write_tokens);
        self.estimated = self.estimated || estimated;
    }
}

/// Cost in US dollars, or unknown when a model's price is. A sum with an unknown part is a lower bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cost {
    /// The part whose price is known, in US dollars.
    pub known_usd: f64,
    /// Calls whose price is not known.
    pub unpriced_calls: u64,
}

impl Cost {
    /// A call of a known price.
    pub const fn usd(known_usd: f64) -> Self {
        Self { known_usd, unpriced_calls: 0 }
    }

    /// A call of unknown price.
    pub const fn unknown() -> Self {
        Self { known_usd: 0.0, unpriced_calls: 1 }
    }

    /// The exact sum, or nothing if a part of it is unknown.
    pub fn exact_usd(&self) -> Option<f64> {
        (self.unpriced_calls == 0).then_some(self.known_usd)
    }
}

/// What may be spent at most (spec 10.1); nothing where there is no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Tokens, input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl Caps {
    /// Whether anything is capped.
    pub const fn is_capped(&self) -> bool {
        self.usd.is_some() || self.tokens.is_some()
    }
}

/// A budget and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BudgetView {
    /// What may be spent.
    pub caps: Caps,
    /// Dollars that are recorded as spent.
    pub spent_usd: f64,
    /// Tokens that are recorded as spent.
    pub spent_tokens: u64,
    /// Dollars that calls under way may cost at the most.
    pub open_usd: f64,
    /// Tokens that calls under way may use at the most.
    pub open_tokens: u64,
    /// What is spent, in percent of the cap that is nearest.
    pub percent: u64,
    /// Calls that wait for others to give something back.
    pub waiting: u32,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.known_usd += other.known_usd;
        self.unpriced_calls += other.unpriced_calls;
    }
}
