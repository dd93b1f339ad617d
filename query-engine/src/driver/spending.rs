//! Leave for a call: the gate of the provider's key, the agent's own budget, then what it shares with others (spec 10.1).

use std::sync::Arc;

use swarm_protocol::{Block, Usage};
use tokio::time::Instant;

use super::{Cancel, Engine};
use crate::{
    budget::{FIRST_MAX_TOKENS, WARN_PERCENT},
    ports::{Grant, Model, PlannedCall, StorageError},
    transition::{Interrupted, StepOutcome},
};

impl Engine {
    /// The next call of the conversation.
    pub(super) fn planned_call(&self, model: &Arc<dyn Model>) -> PlannedCall {
        let info = model.info();
        let accounting = self.accounting();
        let bound = self.state.step.max_output.get(&info.name).copied().unwrap_or(u64::MAX);
        let most = self.config.max_output_tokens.unwrap_or(info.max_output).min(info.max_output).min(bound);
        let is_capped = self.config.budget.is_capped() || self.ports.grants.is_capped();
        // Reserving a whole long answer for each call would serialise agents under a small cap.
        let at_first = if is_capped && self.state.output_cuts == 0 { FIRST_MAX_TOKENS } else { u64::MAX };
        PlannedCall {
            model: info.name,
            input_tokens: accounting.overhead + accounting.messages,
            max_tokens: most.min(at_first),
        }
    }

    /// The output that a call may ask for; or what follows when it may not be made.
    pub(super) async fn granted(
        &mut self,
        model: &Arc<dyn Model>,
        call: PlannedCall,
        cancel: &Cancel,
    ) -> Result<Result<u64, StepOutcome>, StorageError> {
        let asked = Instant::now();
        // The question is taken back when a cancel wins.
        let grant = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            grant = self.ask_for_grant(model, call) => Some(grant),
        };
        // What others made it wait for is no time that its own request has failed.
        if let Some(first) = &mut self.first_failure {
            *first += asked.elapsed();
        }
        match grant {
            Some(Grant::Call { max_tokens }) => Ok(Ok(max_tokens)),
            Some(Grant::Spent { budget }) => Ok(Err(StepOutcome::BudgetSpent { budget })),
            None => {
                self.tombstone().await?;
                Ok(Err(StepOutcome::Interrupted { during: Interrupted::Streaming }))
            }
        }
    }

    /// Leave for one call, of the conversation or of a helper.
    pub(super) async fn ask_for_grant(&mut self, model: &Arc<dyn Model>, mut call: PlannedCall) -> Grant {
        for (usage, cost) in self.ports.gate.take_spent() {
            self.state.spend(usage, cost);
        }
        let price = |usage: &Usage| model.cost(&call.model, usage);
        match self.config.budget.allows(&self.state.usage, &self.state.cost, &call, &price) {
            Ok(max_tokens) => call.max_tokens = max_tokens,
            Err(budget) => return Grant::Spent { budget },
        }
        // Before the grant, which others could use meanwhile.
        model.ready().await;
        self.ports.grants.grant(&call).await
    }

    /// Tells the agent once that most of its budget is spent, so that it can come to an end by itself.
    pub(super) fn warn_of_budget(&mut self) {
        let percent = self.config.budget.percent(&self.state.usage, &self.state.cost);
        let Some(percent) = percent.filter(|percent| *percent >= WARN_PERCENT && !self.warned_of_budget)
        else {
            return;
        };
        self.warned_of_budget = true;
        self.notes.push(format!("{percent} % of its budget was spent"));
        self.reminders.push(Block::text(format!(
            "<system-reminder>\n{percent} % of your budget is spent. Finish what you are at, then say what is done and \
             what is left.\n</system-reminder>"
        )));
    }
}
