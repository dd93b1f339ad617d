//! What a session may spend (spec 10.1): the table of its cap, of what is spent, and of the grants that are open. Pure,
//! and a fold of the journal: after a restart it is what it was.
//!
//! ```text
//! request -> waits -> granted (counts as spent at its worst price) -> its use is recorded, or its run ended: freed
//!                 \-> refused: nothing is left, and nobody whose call is under way will give anything back
//! ```
//! Spent and open together never pass the cap, because a grant is bounded by what is left of it, and the use of a call
//! by its grant.

use std::collections::BTreeMap;

use query_engine::{
    budget::{Budget, LEAST_OUTPUT, WARN_PERCENT},
    ports::PlannedCall,
};
use swarm_protocol::{
    Usage, WorkerId,
    event::BudgetChange,
    record::GrantRequest,
    usage::{BudgetView, Caps, Cost},
};

/// Below this many tokens of output a grant is not lowered for the sake of others that wait, and while others may give
/// something back, a call waits for so much.
const FAIR_OUTPUT: u64 = 1_024;

/// Who spends; none: the coordinator.
pub(crate) type Spender = Option<WorkerId>;

/// What a model's use costs.
pub(crate) type Price<'a> = &'a dyn Fn(&Usage) -> Cost;

/// What follows for a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// It may be made, with so much output.
    Granted { amount: Caps, max_tokens: u64 },
    /// It cannot, now or later.
    Refused { budget: String },
    /// Others' calls are under way: what they do not use will be free.
    Wait,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Governor {
    caps: Caps,
    spent_usd: f64,
    spent_tokens: u64,
    open: BTreeMap<(Spender, u64), Caps>,
    /// Requests of workers, in the order they came.
    waiting: Vec<(WorkerId, GrantRequest)>,
    warned: bool,
}

impl Governor {
    pub(crate) fn new(caps: Caps) -> Self {
        Self { caps, ..Self::default() }
    }

    pub(crate) fn caps(&self) -> Caps {
        self.caps
    }

    /// The table as people see it; none without a cap.
    pub(crate) fn view(&self) -> Option<BudgetView> {
        let (open_usd, open_tokens) = self.reserved();
        self.caps.is_capped().then(|| BudgetView {
            caps: self.caps,
            spent_usd: self.spent_usd,
            spent_tokens: self.spent_tokens,
            open_usd,
            open_tokens,
            percent: self.percent(),
            waiting: self.waiting.iter().filter(|(_, request)| !request.ahead).count() as u32,
        })
    }

    fn percent(&self) -> u64 {
        let Caps { usd, tokens } = self.caps;
        let used = Usage { input_tokens: self.spent_tokens, ..Usage::default() };
        Budget { usd, tokens }.percent(&used, &Cost::usd(self.spent_usd)).unwrap_or(0)
    }

    /// Requests that nobody answered yet, oldest first; those that somebody waits for before those made ahead.
    pub(crate) fn waiting(&self) -> Vec<(WorkerId, GrantRequest)> {
        let mut waiting = self.waiting.clone();
        waiting.sort_by_key(|(_, request)| request.ahead);
        waiting
    }

    /// Whether it was said that most is spent.
    pub(crate) fn is_warned(&self) -> bool {
        self.warned
    }

    /// The coordinator's open grant, if it has one.
    pub(crate) fn coordinator_grants(&self) -> Vec<u64> {
        self.open.keys().filter(|(spender, _)| spender.is_none()).map(|(_, grant)| *grant).collect()
    }

    /// The number of the coordinator's next grant.
    pub(crate) fn next_of_coordinator(&self) -> u64 {
        self.coordinator_grants().last().map_or(1, |last| last + 1)
    }

    /// The percentage that is to be warned of, once.
    pub(crate) fn warning(&self) -> Option<u64> {
        let percent = self.percent();
        (percent >= WARN_PERCENT && !self.warned).then_some(percent)
    }

    // ------------------------------------------------------------------------------- the fold

    /// A call's use was recorded.
    pub(crate) fn spend(&mut self, usage: &Usage, cost: &Cost) {
        self.spent_usd += cost.known_usd;
        self.spent_tokens = self.spent_tokens.saturating_add(usage.total());
    }

    pub(crate) fn apply(&mut self, spender: &Spender, change: &BudgetChange) {
        match change {
            BudgetChange::Requested { request } => {
                let Some(worker_id) = spender else { return };
                for returned in &request.returns {
                    self.free(spender, *returned);
                }
                // A number that comes again is of a worker that lost its records: the earlier request is void.
                self.free(spender, request.grant);
                self.waiting.push((worker_id.clone(), request.clone()));
            }
            BudgetChange::Granted { grant, amount } => {
                if spender.is_none() {
                    // Its calls follow one another: an earlier one is over.
                    self.end_of(spender);
                }
                self.free(spender, *grant);
                self.open.insert((spender.clone(), *grant), *amount);
            }
            BudgetChange::Refused { grant, .. } => self.free(spender, *grant),
            BudgetChange::Freed { grants, .. } => {
                for grant in grants {
                    self.free(spender, *grant);
                }
            }
            BudgetChange::Warned { .. } => self.warned = true,
        }
    }

    fn free(&mut self, spender: &Spender, grant: u64) {
        self.open.remove(&(spender.clone(), grant));
        self.waiting
            .retain(|(worker_id, request)| spender.as_ref() != Some(worker_id) || request.grant != grant);
    }

    /// A run, or the coordinator's call, is over: nothing more will be made with its grants.
    pub(crate) fn end_of(&mut self, spender: &Spender) {
        self.open.retain(|(other, _), _| other != spender);
        self.waiting.retain(|(worker_id, _)| spender.as_ref() != Some(worker_id));
    }

    // ------------------------------------------------------------------------------- decisions

    /// What follows for a call, as the table stands.
    pub(crate) fn decide(
        &self,
        spender: &Spender,
        call: &PlannedCall,
        ahead: bool,
        price: Price<'_>,
    ) -> Decision {
        let Caps { usd, tokens } = self.caps;
        let caps = Budget { usd, tokens };
        let (open_usd, open_tokens) = self.reserved();
        let bound = Usage { input_tokens: self.spent_tokens.saturating_add(open_tokens), ..Usage::default() };
        let allowed = caps.allows(&bound, &Cost::usd(self.spent_usd + open_usd), call, price);
        let others_give_back = self.others_give_back(spender);
        // One token is lost to binary fractions when the amount is counted in tokens again.
        let least = (LEAST_OUTPUT + 1).min(call.max_tokens);
        let wanted = if others_give_back { call.max_tokens.min(FAIR_OUTPUT).max(least) } else { least };
        let most = match allowed {
            Ok(most) if most >= wanted => most,
            Ok(_) | Err(_) if others_give_back || ahead => return Decision::Wait,
            Ok(_) | Err(_) => return Decision::Refused { budget: self.used_up(call, price) },
        };
        let max_tokens = if ahead { most } else { most.min(self.fair_share(call, price).max(FAIR_OUTPUT)) };
        let Some(amount) = caps.worth(call, max_tokens, price) else {
            return Decision::Refused { budget: self.used_up(call, price) };
        };
        if ahead && !self.is_plenty(&amount) {
            return Decision::Wait;
        }
        Decision::Granted { amount: Caps { usd: amount.usd, tokens: amount.tokens }, max_tokens }
    }

    /// Sum of the open grants.
    fn reserved(&self) -> (f64, u64) {
        let usd = self.open.values().filter_map(|amount| amount.usd).sum();
        let tokens = self.open.values().filter_map(|amount| amount.tokens).fold(0, u64::saturating_add);
        (usd, tokens)
    }

    /// Whether somebody else's call is under way. Who waits for a grant gives nothing back before it has one.
    fn others_give_back(&self, spender: &Spender) -> bool {
        let waits = |other: &Spender| {
            self.waiting
                .iter()
                .any(|(worker_id, request)| !request.ahead && other.as_ref() == Some(worker_id))
        };
        self.open.keys().any(|(other, _)| other != spender && !waits(other))
    }

    /// The output that an equal part of what is left pays for, among all who wait.
    fn fair_share(&self, call: &PlannedCall, price: Price<'_>) -> u64 {
        let n_waiting = self.waiting.iter().filter(|(_, request)| !request.ahead).count().max(1);
        let (open_usd, open_tokens) = self.reserved();
        let usd = self.caps.usd.map(|cap| (cap - self.spent_usd - open_usd).max(0.0) / n_waiting as f64);
        let tokens = self
            .caps
            .tokens
            .map(|cap| cap.saturating_sub(self.spent_tokens).saturating_sub(open_tokens) / n_waiting as u64);
        Budget { usd, tokens }.pays_for(call, price)
    }

    /// Whether a grant that nobody waits for leaves others enough: half of what is not spent stays free.
    fn is_plenty(&self, amount: &Budget) -> bool {
        let (open_usd, open_tokens) = self.reserved();
        let usd = self
            .caps
            .usd
            .is_none_or(|cap| (open_usd + amount.usd.unwrap_or(0.0)) * 2.0 <= cap - self.spent_usd);
        let tokens = self.caps.tokens.is_none_or(|cap| {
            open_tokens.saturating_add(amount.tokens.unwrap_or(0)).saturating_mul(2)
                <= cap.saturating_sub(self.spent_tokens)
        });
        usd && tokens
    }

    /// The budget that a call is refused for, in words.
    fn used_up(&self, call: &PlannedCall, price: Price<'_>) -> String {
        let (open_usd, open_tokens) = self.reserved();
        if let Some(cap) = self.caps.usd {
            if price(&Usage::default()).exact_usd().is_none() {
                return format!("the price of {} is not known, so no cap in dollars can be kept", call.model);
            }
            let left = Budget { usd: Some(cap - self.spent_usd - open_usd), tokens: None };
            if left.pays_for(call, price) <= LEAST_OUTPUT {
                return format!("${:.4} of the session's ${cap:.2}", self.spent_usd);
            }
        }
        let cap = self.caps.tokens.unwrap_or_default();
        format!("{} of the session's {cap} tokens", self.spent_tokens.saturating_add(open_tokens))
    }
}

#[cfg(test)]
mod tests;
