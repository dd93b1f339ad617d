//! What an agent may spend (spec 10.1). Pure: each call is looked at before it is made, at its worst price, and
//! asks for no more output than is left for it; so a cap is never passed, and a small one is still used.

use swarm_protocol::{Usage, usage::Cost};

use crate::ports::PlannedCall;

/// Output tokens of a call under a cap at first; an answer that is cut asks for more (spec 10.1).
pub const FIRST_MAX_TOKENS: u64 = 8_000;
/// A call that could say less than this is not made, in tokens.
pub const LEAST_OUTPUT: u64 = 256;
/// From this share on the agent is warned, in percent (spec 10.1).
pub const WARN_PERCENT: u64 = 80;
/// The estimate of the input may be too low by a tenth (spec 3.1).
const INPUT_MARGIN_PERCENT: u64 = 110;

/// What an agent may spend in its life, helpers and compaction included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// Tokens, input and output.
    pub tokens: Option<u64>,
    /// US dollars.
    pub usd: Option<f64>,
}

/// What a call of a model costs.
pub type Price<'a> = &'a dyn Fn(&Usage) -> Cost;

impl Budget {
    /// Whether anything is capped.
    pub fn is_capped(&self) -> bool {
        self.tokens.is_some() || self.usd.is_some()
    }

    /// The most output the call may ask for after `spent`; or the budget that is used up.
    pub fn allows(
        &self,
        spent: &Usage,
        cost: &Cost,
        call: &PlannedCall,
        price: Price<'_>,
    ) -> Result<u64, String> {
        let mut most = call.max_tokens;
        if let Some(cap) = self.tokens {
            let left = cap.saturating_sub(spent.total()).saturating_sub(worst_input(call.input_tokens));
            most = most.min(left);
            if most < LEAST_OUTPUT.min(call.max_tokens) {
                return Err(format!("{} of {cap} tokens", spent.total()));
            }
        }
        if let Some(cap) = self.usd {
            most = most.min(affordable(cap - cost.known_usd, call, price).ok_or_else(|| {
                format!("the price of {} is not known, so no cap in dollars can be kept", call.model)
            })?);
            if most < LEAST_OUTPUT.min(call.max_tokens) {
                return Err(format!("${:.4} of ${cap:.2}", cost.known_usd));
            }
        }
        Ok(most)
    }

    /// The most output of a call that all of this pays for.
    pub fn pays_for(&self, call: &PlannedCall, price: Price<'_>) -> u64 {
        let mut most = call.max_tokens;
        if let Some(tokens) = self.tokens {
            most = most.min(tokens.saturating_sub(worst_input(call.input_tokens)));
        }
        if let Some(usd) = self.usd {
            most = most.min(affordable(usd, call, price).unwrap_or(0));
        }
        most
    }

    /// What a call of so much output costs at its worst, in what is capped here; none when the price is not known.
    pub fn worth(&self, call: &PlannedCall, max_tokens: u64, price: Price<'_>) -> Option<Self> {
        let tokens = self.tokens.map(|_| worst_input(call.input_tokens).saturating_add(max_tokens));
        let usd = match self.usd {
            Some(_) => Some(worst_cost(call, max_tokens, price)?),
            None => None,
        };
        Some(Self { tokens, usd })
    }

    /// How much is spent, in percent of the cap that is nearest; none without a cap.
    pub fn percent(&self, spent: &Usage, cost: &Cost) -> Option<u64> {
        let tokens = self.tokens.map(|cap| spent.total().saturating_mul(100) / cap.max(1));
        let usd = self.usd.map(|cap| (cost.known_usd * 100.0 / cap.max(f64::MIN_POSITIVE)) as u64);
        tokens.max(usd)
    }
}

/// What a call costs at its worst: nothing is read from a cache, all of it is written to one, and the whole output
/// is used. None: the price is not known.
pub fn worst_cost(call: &PlannedCall, max_tokens: u64, price: Price<'_>) -> Option<f64> {
    let input = worst_input(call.input_tokens);
    let fresh = Usage { input_tokens: input, output_tokens: max_tokens, ..Usage::default() };
    let written = Usage { cache_write_tokens: input, output_tokens: max_tokens, ..Usage::default() };
    Some(price(&fresh).exact_usd()?.max(price(&written).exact_usd()?))
}

/// The most output of a call that `usd` pays for; none when the price is not known.
pub fn affordable(usd: f64, call: &PlannedCall, price: Price<'_>) -> Option<u64> {
    let of_input = worst_cost(call, 0, price)?;
    let per_token = (worst_cost(call, 1_000_000, price)? - of_input) / 1e6;
    let left = usd - of_input;
    Some(if left < 0.0 {
        0
    } else if per_token <= 0.0 {
        call.max_tokens
    } else {
        // Rounded down, with a thousandth of a token for what binary fractions lose.
        (left / per_token - 1e-3).max(0.0) as u64
    })
}

fn worst_input(estimate: u64) -> u64 {
    estimate.saturating_mul(INPUT_MARGIN_PERCENT) / 100
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// $1 a million of input, 1.25 for cache writes, $10 a million of output.
    fn price(usage: &Usage) -> Cost {
        Cost::usd(
            (usage.input_tokens as f64
                + usage.cache_write_tokens as f64 * 1.25
                + usage.output_tokens as f64 * 10.0)
                / 1e6,
        )
    }

    fn call(input_tokens: u64, max_tokens: u64) -> PlannedCall {
        PlannedCall { model: "m".to_owned(), input_tokens, max_tokens }
    }

    #[test]
    fn a_call_asks_for_what_is_left_and_is_not_made_for_less_than_a_few_words() {
        let tokens = |cap| Budget { tokens: Some(cap), usd: None };
        let spent = Usage { input_tokens: 500, output_tokens: 500, ..Usage::default() };
        let check = |budget: Budget, usd: f64, call: PlannedCall, expected: Result<u64, &str>| {
            let allowed = budget.allows(&spent, &Cost::usd(usd), &call, &price);
            assert_eq!(allowed, expected.map_err(str::to_owned));
        };
        check(Budget::default(), 9.0, call(1_000_000, 8_000), Ok(8_000));
        check(tokens(100_000), 0.0, call(1_000, 8_000), Ok(8_000));
        check(tokens(3_100), 0.0, call(1_000, 8_000), Ok(1_000));
        check(tokens(2_356), 0.0, call(1_000, 8_000), Ok(256));
        check(tokens(2_355), 0.0, call(1_000, 8_000), Err("1000 of 2355 tokens"));
        check(tokens(2_200), 0.0, call(1_000, 100), Ok(100));
        let usd = |cap| Budget { tokens: None, usd: Some(cap) };
        // 110,000 tokens written to the cache cost 0.1375.
        check(usd(1.0), 0.0, call(100_000, 8_000), Ok(8_000));
        check(usd(1.0), 0.85, call(100_000, 8_000), Ok(1_249));
        check(usd(1.0), 0.86, call(100_000, 8_000), Err("$0.8600 of $1.00"));
        check(usd(1.0), 2.0, call(0, 8_000), Err("$2.0000 of $1.00"));
        let unknown = usd(1.0).allows(&spent, &Cost::default(), &call(1, 1), &|_| Cost::unknown());
        assert!(unknown.unwrap_err().contains("price of m is not known"));
    }

    #[test]
    fn the_nearest_cap_warns() {
        let spent = Usage { input_tokens: 80, ..Usage::default() };
        let percent = |tokens, usd| Budget { tokens, usd }.percent(&spent, &Cost::usd(0.5));
        assert_eq!(percent(None, None), None);
        assert_eq!(percent(Some(100), None), Some(80));
        assert_eq!(percent(Some(100), Some(0.55)), Some(90));
        assert_eq!(percent(Some(0), None), Some(8_000));
    }

    proptest! {
        #[test]
        fn what_is_affordable_is_never_too_dear(usd in 0.0..2.0_f64, input in 0..500_000_u64, used in 0..=100_u64) {
            let call = call(input, 8_000);
            let most = affordable(usd, &call, &price).unwrap();
            let worst = worst_cost(&call, most, &price).unwrap();
            prop_assert!(most == 0 || worst <= usd);
            // What it is really charged is within that.
            let real = Usage { cache_write_tokens: input, output_tokens: most * used / 100, ..Usage::default() };
            prop_assert!(most == 0 || price(&real).known_usd <= usd);
        }
    }
}
