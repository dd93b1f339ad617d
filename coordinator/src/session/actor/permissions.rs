//! Permission requests: words come in, the desk says whose counts, the journal takes it, and only then it is sent.
//!
//! Answers and bids of one batch of orders are claimed together ([`Actor::claim`]), so that those that were ready
//! together are judged by their priority and not by the order of a queue.

use std::collections::BTreeMap;

use swarm_protocol::{
    PermissionRequestId, WorkerId,
    api::{AnswerPermission, AnsweredPermission},
    event::Event,
    frame::Command,
    permission::{
        Decision, PermissionBid, PermissionDecision, PermissionRequest, Racer, Rule, RuleBehavior,
        RuleOrigin, Scope,
    },
};
use tokio::time::Instant;

use super::{Actor, RETRY, people::progress};
use crate::{
    clock,
    desk::{Bid, Claim, Ticket},
    session::{AnsweredRequest, Answering, OrderError, Wanted, model::PermissionModel},
    workers::lifecycle::LifeEvent,
};

/// Somebody who waits to hear what became of an answer.
pub(super) struct Waiting {
    /// Each request with its bid, or why none was made.
    asked: Vec<(PermissionRequestId, Result<Ticket, OrderError>)>,
    reply: super::Reply<Vec<AnsweredRequest>>,
}

/// What became of claims: which bids won, and which could not be stored.
#[derive(Default)]
struct Claimed {
    won: BTreeMap<PermissionRequestId, Ticket>,
    failed: BTreeMap<Ticket, OrderError>,
}

impl Actor {
    /// Takes an answer to the desk. It is heard of when the batch is claimed.
    pub(super) fn answer(&mut self, answering: Answering) {
        let Answering { wanted, answer, by, source, reply } = answering;
        let ids = match wanted {
            Wanted::These(ids) => ids,
            Wanted::AllOpen => {
                let open = self.model.permissions.iter().filter(|permission| permission.is_open());
                open.map(|permission| permission.request.id.clone()).collect()
            }
        };
        let asked = ids.into_iter().map(|id| {
            let bid = self.answer_one(&id, &answer, by, source.clone());
            (id, bid)
        });
        let asked = asked.collect();
        self.answers.push(Waiting { asked, reply });
    }

    fn answer_one(
        &mut self,
        id: &PermissionRequestId,
        answer: &AnswerPermission,
        by: Racer,
        source: Option<String>,
    ) -> Result<Ticket, OrderError> {
        let permission = self.model.permission(id).ok_or_else(|| OrderError::UnknownRequest(id.clone()))?;
        if permission.is_open() {
            let AnswerPermission { decision, scope, reason: _, stop: _, args_hash } = answer;
            if args_hash.as_ref().is_some_and(|hash| *hash != permission.request.args_hash) {
                return Err(OrderError::OtherArguments(id.clone()));
            }
            let wants_rule = *scope != Scope::Once && *decision == Decision::Allow;
            if wants_rule && permission.request.proposed_rule.is_none() {
                return Err(OrderError::NoRule);
            }
        }
        let ticket = self.desk.ticket();
        let bid = Bid {
            ticket,
            by,
            source,
            decision: answer.decision,
            scope: answer.scope,
            reason: answer.reason.clone(),
            stop: answer.stop && answer.decision == Decision::Deny,
        };
        self.desk.bid(id, &bid);
        Ok(ticket)
    }

    /// A racer beside an agent has a word; it was recorded. A worker speaks for nobody else.
    pub(super) fn take_bid(&mut self, worker_id: &WorkerId, bid: PermissionBid) {
        let PermissionBid { id, decision, by, source, reason } = bid;
        let is_its_own =
            self.model.permission(&id).is_some_and(|known| known.request.worker_id == *worker_id);
        if !is_its_own || !matches!(by, Racer::Rule | Racer::Hook | Racer::Classifier) {
            tracing::warn!(worker.id = %worker_id, %id, by = by.as_str(), "a bid that its worker may not make");
            return;
        }
        let ticket = self.desk.ticket();
        let bid = Bid { ticket, by, source, decision, scope: Scope::Once, reason, stop: false };
        self.desk.bid(&id, &bid);
    }

    /// Lets the words that are ready decide, and tells who waits to hear.
    pub(super) async fn claim(&mut self) {
        let claimed = self.carry_out_claims().await;
        for Waiting { asked, reply } in std::mem::take(&mut self.answers) {
            let tickets: Vec<Ticket> =
                asked.iter().filter_map(|(_, bid)| bid.as_ref().ok().copied()).collect();
            let answers = asked
                .iter()
                .map(|(id, bid)| {
                    let answered = match bid {
                        Err(error) => Err(error.clone()),
                        Ok(ticket) => self.answered(id, *ticket, &tickets, &claimed),
                    };
                    AnsweredRequest { id: id.clone(), answered }
                })
                .collect();
            // Who asked may be gone.
            drop(reply.send(answers));
        }
    }

    /// Journals what was claimed and sends it. A claim that could not be stored leaves its request to the words that
    /// are left.
    async fn carry_out_claims(&mut self) -> Claimed {
        let mut claimed = Claimed::default();
        loop {
            let mut by_ticket: BTreeMap<Ticket, Vec<Claim>> = BTreeMap::new();
            for claim in self.desk.claim() {
                by_ticket.entry(claim.bid.ticket).or_default().push(claim);
            }
            if by_ticket.is_empty() {
                return claimed;
            }
            for (ticket, claims) in by_ticket {
                let stored = self.decide(&claims).await;
                for Claim { id, .. } in claims {
                    match &stored {
                        Ok(()) => {
                            self.desk.journaled(&id);
                            claimed.won.insert(id, ticket);
                        }
                        Err(error) => {
                            self.desk.not_journaled(&id, Instant::now(), RETRY);
                            claimed.failed.insert(ticket, error.clone());
                        }
                    }
                }
                if let Err(error) = &stored {
                    self.note_failure(error);
                }
            }
        }
    }

    /// What holds for a request, as who answered it hears. `tickets`: all bids of the same answer.
    fn answered(
        &self,
        id: &PermissionRequestId,
        ticket: Ticket,
        tickets: &[Ticket],
        claimed: &Claimed,
    ) -> Result<AnsweredPermission, OrderError> {
        let permission = self.model.permission(id).ok_or_else(|| OrderError::UnknownRequest(id.clone()))?;
        if let Some(decision) = &permission.decision {
            return Ok(AnsweredPermission {
                won: claimed.won.get(id).is_some_and(|winner| tickets.contains(winner)),
                decision: decision.clone(),
                wrote_rule: permission.wrote_rule.clone(),
            });
        }
        if let Some(error) = claimed.failed.get(&ticket) {
            return Err(error.clone());
        }
        let reason = permission.withdrawn.as_deref().unwrap_or("it does not wait");
        let decision = PermissionDecision {
            id: id.clone(),
            decision: Decision::Deny,
            scope: Scope::Once,
            by: Racer::SessionEnd,
            reason: Some(format!("withdrawn: {reason}")),
            stop: false,
            decided_at: self.model.updated_at,
            source: None,
            args_hash: permission.request.args_hash.clone(),
        };
        Ok(AnsweredPermission { won: false, decision, wrote_rule: None })
    }

    /// Journals one word's decisions with all that follows from them, in one append, then sends them.
    async fn decide(&mut self, claims: &[Claim]) -> Result<(), OrderError> {
        let Some(first) = claims.first() else { return Ok(()) };
        let (rule, wrote_rule, scope) = self.rule_of(first).await?;
        let decided: Vec<&PermissionRequestId> = claims.iter().map(|claim| &claim.id).collect();
        let mut events = Vec::new();
        let mut workers: Vec<WorkerId> = Vec::new();
        for claim in claims {
            let Some(PermissionModel { request, .. }) = self.model.permission(&claim.id) else { continue };
            let worker_id = request.worker_id.clone();
            let decision = PermissionDecision { scope, ..decision_of(claim, request) };
            events.push(Event::PermissionDecided {
                worker_id: worker_id.clone(),
                decision: decision.clone(),
                wrote_rule: wrote_rule.clone(),
            });
            events.push(Event::WorkerCommand {
                worker_id: worker_id.clone(),
                command: Command::Decision { decision },
            });
            if !workers.contains(&worker_id) {
                workers.push(worker_id);
            }
        }
        for worker_id in &workers {
            let waits_on = self.model.permissions.iter().any(|other| {
                other.is_open()
                    && other.request.worker_id == *worker_id
                    && !decided.contains(&&other.request.id)
            });
            if !waits_on {
                events.extend(self.step(worker_id, LifeEvent::Works, "its permission request was decided"));
            }
        }
        if let Some(rule) = rule {
            // To all agents; each settles its own matching requests.
            events.push(Event::SessionRule { rule: rule.clone() });
            for worker_id in self.at_work() {
                events.push(Event::WorkerCommand {
                    worker_id: worker_id.clone(),
                    command: Command::AddRule { rule: rule.clone() },
                });
                if !workers.contains(&worker_id) {
                    workers.push(worker_id);
                }
            }
        }
        self.append(events).await?;
        for worker_id in &workers {
            self.send_pending(worker_id);
        }
        Ok(())
    }

    /// The rule that an answer for the session or for always adds, where it was written, and how far the answer
    /// reaches: one that cannot be written holds for the session, in memory (Z19).
    async fn rule_of(&self, claim: &Claim) -> Result<(Option<Rule>, Option<String>, Scope), OrderError> {
        let mut scope = claim.bid.scope;
        if claim.bid.decision == Decision::Deny || scope == Scope::Once {
            return Ok((None, None, scope));
        }
        let permission = self.model.permission(&claim.id);
        let text =
            permission.and_then(|known| known.request.proposed_rule.clone()).ok_or(OrderError::NoRule)?;
        let mut origin = RuleOrigin { level: "session".to_owned(), file: None, line: None, anchor: None };
        let mut wrote_rule = None;
        if scope == Scope::Always {
            match crate::always::write_rule(&self.shared, &self.model, &text).await {
                Ok(file) => {
                    wrote_rule = Some(format!("{text} in {file}"));
                    origin.file = Some(file);
                }
                Err(problem) => {
                    tracing::warn!(session.id = %self.id(), rule = text, problem, "a rule could not be written");
                    scope = Scope::Session;
                }
            }
        }
        Ok((Some(Rule { behavior: RuleBehavior::Allow, text, origin }), wrote_rule, scope))
    }

    /// The session ends: nothing waits any more.
    pub(super) async fn reject_all(&mut self) -> Result<(), OrderError> {
        self.desk.end();
        let claimed = self.carry_out_claims().await;
        claimed.failed.into_values().next().map_or(Ok(()), Err)
    }

    /// Lets the desk's clocks decide where they ran out.
    pub(super) async fn time_out(&mut self, now: Instant) -> Result<(), OrderError> {
        self.desk.pass_time(now);
        let claimed = self.carry_out_claims().await;
        claimed.failed.into_values().next().map_or(Ok(()), Err)
    }

    /// A worker has waited long for a person: news for the coordinator, which wakes nobody.
    pub(super) async fn report_wait(&mut self, id: &PermissionRequestId) -> Result<(), OrderError> {
        let Some(permission) = self.model.permission(id).filter(|permission| permission.is_open()) else {
            return Ok(());
        };
        let PermissionRequest { worker_id, run, tool, summary, .. } = &permission.request;
        // Its place among all requests: no two of them share a key.
        let n = self.model.permissions.iter().take_while(|other| other.request.id != *id).count() as u32 + 1;
        let name = self.model.worker(worker_id).map(|worker| worker.spec.name.clone()).unwrap_or_default();
        let summary =
            format!("Agent \"{name}\" has waited over a minute for a person to allow: {tool} {summary}");
        self.append(vec![progress(worker_id, *run, n, summary)]).await
    }
}

fn decision_of(claim: &Claim, request: &PermissionRequest) -> PermissionDecision {
    let Bid { ticket: _, by, source, decision, scope, reason, stop } = claim.bid.clone();
    let reason = match by {
        Racer::Timeout => Some("Permission request timed out".to_owned()),
        Racer::Rule
        | Racer::Hook
        | Racer::Person
        | Racer::Remote
        | Racer::Classifier
        | Racer::Unattended
        | Racer::SessionEnd
        | Racer::Desk => reason,
    };
    PermissionDecision {
        id: claim.id.clone(),
        decision,
        scope,
        by,
        reason,
        stop,
        decided_at: clock::now(),
        source,
        args_hash: request.args_hash.clone(),
    }
}
