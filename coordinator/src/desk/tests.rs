//! The desk by hand, and then by all orders in which things can happen to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::json;
use swarm_protocol::Timestamp;

use super::{clock::LONG_WAIT, *};

const TIMEOUT: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(2);

fn request(id: &str, worker: &str, call: &str, args_hash: &str) -> PermissionRequest {
    PermissionRequest {
        id: id.parse().unwrap(),
        worker_id: worker.parse().unwrap(),
        run: RunNumber(1),
        tool_use_id: call.parse().unwrap(),
        tool: "Bash".to_owned(),
        input: json!({"command": args_hash}),
        summary: String::new(),
        why: String::new(),
        proposed_rule: None,
        description: None,
        requested_at: Timestamp::from_millis(0),
        timeout_ms: TIMEOUT.as_millis() as u64,
        cwd: None,
        args_hash: args_hash.to_owned(),
    }
}

fn id(text: &str) -> PermissionRequestId {
    text.parse().unwrap()
}

fn word(ticket: Ticket, by: Racer, decision: Decision) -> Bid {
    Bid { ticket, by, source: None, decision, scope: Scope::Once, reason: None, stop: false }
}

fn bid(desk: &mut Desk, of: &str, by: Racer, decision: Decision) -> Ticket {
    let ticket = desk.ticket();
    desk.bid(&id(of), &word(ticket, by, decision));
    ticket
}

fn winners(claims: &[Claim]) -> Vec<(&str, Racer)> {
    claims.iter().map(|claim| (claim.id.as_str(), claim.bid.by)).collect()
}

#[tokio::test(start_paused = true)]
async fn of_words_that_are_ready_together_rules_come_first_and_the_classifier_last() {
    let mut desk = Desk::default();
    let order = [Racer::Rule, Racer::Hook, Racer::Person, Racer::Remote, Racer::Classifier, Racer::Timeout];
    for n in 0..order.len() {
        let name = format!("req-00{n}");
        desk.asked(&request(&name, "agent-a1b", &format!("t{n}"), &name), Instant::now());
        // In the reverse order of their priority.
        for by in order[n..].iter().rev() {
            bid(&mut desk, &name, *by, Decision::Allow);
        }
    }
    let claims = desk.claim();
    let expected: Vec<(String, Racer)> =
        order.iter().enumerate().map(|(n, by)| (format!("req-00{n}"), *by)).collect();
    let expected: Vec<(&str, Racer)> = expected.iter().map(|(name, by)| (name.as_str(), *by)).collect();
    assert_eq!(winners(&claims), expected);
}

#[tokio::test(start_paused = true)]
async fn the_first_claim_decides_and_a_better_word_that_comes_later_does_not() {
    let mut desk = Desk::default();
    desk.asked(&request("req-001", "agent-a1b", "t1", "h"), Instant::now());
    let first = bid(&mut desk, "req-001", Racer::Person, Decision::Allow);
    let second = bid(&mut desk, "req-001", Racer::Person, Decision::Deny);
    assert_ne!(first, second);
    let claims = desk.claim();
    assert_eq!((claims.len(), claims[0].bid.ticket), (1, first), "of two people the one who came first");
    bid(&mut desk, "req-001", Racer::Rule, Decision::Deny);
    assert_eq!(desk.claim(), [], "it is claimed");
    desk.journaled(&id("req-001"));
    bid(&mut desk, "req-001", Racer::Rule, Decision::Deny);
    assert_eq!(desk.claim(), [], "it is settled");
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_could_not_be_stored_leaves_the_request_open_and_the_others_in_the_race() {
    let mut desk = Desk::default();
    desk.asked(&request("req-001", "agent-a1b", "t1", "h"), Instant::now());
    bid(&mut desk, "req-001", Racer::Person, Decision::Allow);
    bid(&mut desk, "req-001", Racer::Classifier, Decision::Allow);
    assert_eq!(winners(&desk.claim()), [("req-001", Racer::Person)]);
    desk.not_journaled(&id("req-001"), Instant::now(), PAUSE);
    assert!(desk.is_open(&id("req-001")));
    assert_eq!(winners(&desk.claim()), [("req-001", Racer::Classifier)]);
}

#[tokio::test(start_paused = true)]
async fn time_denies_once_and_tries_again_when_that_could_not_be_stored() {
    let mut desk = Desk::default();
    let start = Instant::now();
    desk.asked(&request("req-001", "agent-a1b", "t1", "h"), start);
    desk.pass_time(start + TIMEOUT - Duration::from_millis(1));
    assert_eq!(desk.claim(), []);
    let late = start + TIMEOUT;
    desk.pass_time(late);
    let claims = desk.claim();
    assert_eq!(winners(&claims), [("req-001", Racer::Timeout)]);
    assert_eq!(claims[0].bid.decision, Decision::Deny);
    desk.not_journaled(&id("req-001"), late, PAUSE);
    desk.pass_time(late);
    assert_eq!(desk.claim(), [], "not without a pause");
    assert_eq!(desk.next_deadline(), Some(start + LONG_WAIT));
    desk.pass_time(late + PAUSE);
    assert_eq!(winners(&desk.claim()), [("req-001", Racer::Timeout)]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_rejects_all_that_wait_but_not_what_was_claimed_before() {
    let mut desk = Desk::default();
    for (name, call) in [("req-001", "t1"), ("req-002", "t2"), ("req-003", "t3")] {
        desk.asked(&request(name, "agent-a1b", call, name), Instant::now());
    }
    bid(&mut desk, "req-002", Racer::Person, Decision::Allow);
    assert_eq!(winners(&desk.claim()), [("req-002", Racer::Person)]);
    desk.end();
    assert_eq!(winners(&desk.claim()), [("req-001", Racer::SessionEnd), ("req-003", Racer::SessionEnd)]);
}

#[tokio::test(start_paused = true)]
async fn z01_requests_are_told_apart_by_run_and_call_and_an_id_belongs_to_one_call() {
    let mut desk = Desk::default();
    let now = Instant::now();
    // Two agents whose models gave their calls the same id.
    let (left, right) =
        (request("req-001", "agent-a1b", "t1", "h"), request("req-002", "agent-c2d", "t1", "h"));
    for request in [&left, &right] {
        assert_eq!(desk.may_ask(request), Ok(()));
        desk.asked(request, now);
    }
    bid(&mut desk, "req-002", Racer::Person, Decision::Allow);
    assert_eq!(winners(&desk.claim()), [("req-002", Racer::Person)], "the other one waits on");
    desk.journaled(&id("req-002"));
    assert!(desk.is_open(&id("req-001")));
    // The same request again, as after a reconnection.
    assert_eq!(desk.may_ask(&left), Ok(()));
    // The id of another call, whether that waits or is settled.
    assert_eq!(desk.may_ask(&request("req-001", "agent-c2d", "t1", "h")), Err(NotTaken::IdOfAnother));
    assert_eq!(desk.may_ask(&request("req-001", "agent-a1b", "t9", "h")), Err(NotTaken::IdOfAnother));
    assert_eq!(desk.may_ask(&request("req-002", "agent-a1b", "t1", "h")), Err(NotTaken::IdOfAnother));
    // A second request of a call that waits.
    assert_eq!(desk.may_ask(&request("req-003", "agent-a1b", "t1", "h")), Err(NotTaken::AsksAlready));
    // A resent request that was settled stays so.
    desk.asked(&right, now);
    assert!(!desk.is_open(&id("req-002")));
    // And so it is after a restart.
    let desk = Desk::new([(&left, true), (&right, false)].into_iter());
    assert_eq!(desk.may_ask(&request("req-002", "agent-a1b", "t7", "h")), Err(NotTaken::IdOfAnother));
    assert!(desk.is_open(&id("req-001")));
}

#[tokio::test(start_paused = true)]
async fn z02_equal_requests_of_one_agent_are_answered_together_and_no_later_one_is() {
    let mut desk = Desk::default();
    let now = Instant::now();
    for (name, worker, call, hash) in [
        ("req-001", "agent-a1b", "t1", "same"),
        ("req-002", "agent-a1b", "t2", "same"),
        ("req-003", "agent-a1b", "t3", "other"),
        ("req-004", "agent-c2d", "t1", "same"),
        ("req-005", "agent-a1b", "t5", ""),
        ("req-006", "agent-a1b", "t6", ""),
    ] {
        desk.asked(&request(name, worker, call, hash), now);
    }
    assert_eq!(desk.together(&id("req-002")), [id("req-002"), id("req-001")]);
    assert_eq!(desk.together(&id("req-005")), [id("req-005")], "what has no hash is like nothing else");
    let ticket = bid(&mut desk, "req-001", Racer::Person, Decision::Allow);
    // This one came after the answer.
    desk.asked(&request("req-007", "agent-a1b", "t7", "same"), now);
    let claims = desk.claim();
    assert_eq!(winners(&claims), [("req-001", Racer::Person), ("req-002", Racer::Person)]);
    assert!(claims.iter().all(|claim| claim.bid.ticket == ticket));
    for claim in &claims {
        desk.journaled(&claim.id);
    }
    assert!(desk.is_open(&id("req-007")), "an answer is used up by the calls that waited for it");
    assert_eq!(desk.together(&id("req-007")), [id("req-007")]);
}

// ------------------------------------------------------------------------ all orders of events

/// What can happen. Two requests of one agent that ask the same, and one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask(usize),
    Bid(usize, Racer, Decision),
    Claim,
    /// The journal took, or refused, the oldest decision on its way to it.
    Journal(bool),
    Withdraw(usize),
    Time,
    Away,
    Back,
    End,
}

const STEPS: [Step; 20] = [
    Step::Ask(0),
    Step::Ask(1),
    Step::Ask(2),
    Step::Bid(0, Racer::Rule, Decision::Deny),
    Step::Bid(0, Racer::Person, Decision::Allow),
    Step::Bid(0, Racer::Classifier, Decision::Allow),
    Step::Bid(1, Racer::Remote, Decision::Deny),
    Step::Bid(1, Racer::Person, Decision::Allow),
    Step::Bid(2, Racer::Person, Decision::Allow),
    Step::Bid(2, Racer::Hook, Decision::Deny),
    Step::Claim,
    Step::Journal(true),
    Step::Journal(false),
    Step::Withdraw(0),
    Step::Withdraw(1),
    Step::Withdraw(2),
    Step::Time,
    Step::Away,
    Step::Back,
    Step::End,
];

/// The desk with a journal, and with agents that obey what is sent.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    desk: Desk,
    now: Instant,
    /// On their way to the journal.
    pending: Vec<Claim>,
    /// Decisions in the journal, by request.
    journal: BTreeMap<PermissionRequestId, Vec<Claim>>,
    /// What the agents obeyed.
    obeyed: BTreeMap<PermissionRequestId, Decision>,
    asked: BTreeSet<PermissionRequestId>,
    withdrawn: BTreeSet<PermissionRequestId>,
    /// Words that each request had when it was last claimed, and who won.
    wins: Vec<(PermissionRequestId, Racer, Vec<Racer>)>,
    /// Words of a request that nothing has claimed yet, as the model of the test counts them.
    ready: BTreeMap<PermissionRequestId, Vec<(Ticket, Racer)>>,
    connected: bool,
    ended: bool,
}

fn the(n: usize) -> PermissionRequest {
    let names = [("req-000", "t0", "same"), ("req-001", "t1", "same"), ("req-002", "t2", "other")];
    let (name, call, hash) = names[n];
    request(name, "agent-a1b", call, hash)
}

impl World {
    fn new(now: Instant) -> Self {
        Self {
            desk: Desk::default(),
            now,
            pending: Vec::new(),
            journal: BTreeMap::new(),
            obeyed: BTreeMap::new(),
            asked: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            wins: Vec::new(),
            ready: BTreeMap::new(),
            connected: true,
            ended: false,
        }
    }

    /// False when this cannot happen now.
    fn step(&mut self, step: Step) -> bool {
        let worker: WorkerId = "agent-a1b".parse().unwrap();
        match step {
            Step::Ask(n) => {
                let request = the(n);
                if self.ended || !self.connected || self.desk.may_ask(&request).is_err() {
                    return false;
                }
                self.desk.asked(&request, self.now);
                self.asked.insert(request.id);
            }
            Step::Bid(n, by, decision) => {
                let id = the(n).id;
                let reached = self.desk.together(&id);
                let ticket = self.desk.ticket();
                self.desk.bid(&id, &word(ticket, by, decision));
                for id in reached {
                    self.ready.entry(id).or_default().push((ticket, by));
                }
            }
            Step::Claim => {
                let claims = self.desk.claim();
                for claim in &claims {
                    let words = self.ready.get(&claim.id).into_iter().flatten().map(|(_, by)| *by).collect();
                    self.wins.push((claim.id.clone(), claim.bid.by, words));
                }
                self.pending.extend(claims);
            }
            Step::Journal(stored) => {
                if self.pending.is_empty() {
                    return false;
                }
                let claim = self.pending.remove(0);
                if stored {
                    self.journal.entry(claim.id.clone()).or_default().push(claim.clone());
                    self.desk.journaled(&claim.id);
                    // Sent from the journal; the agent obeys the first one, unless its call is gone.
                    if !self.withdrawn.contains(&claim.id) {
                        self.obeyed.entry(claim.id.clone()).or_insert(claim.bid.decision);
                    }
                } else {
                    self.desk.not_journaled(&claim.id, self.now, PAUSE);
                    if let Some(words) = self.ready.get_mut(&claim.id) {
                        words.retain(|(ticket, by)| *ticket != claim.bid.ticket && *by != Racer::Timeout);
                    }
                }
            }
            Step::Withdraw(n) => {
                let id = the(n).id;
                if !self.asked.contains(&id) || self.withdrawn.contains(&id) {
                    return false;
                }
                self.desk.withdrawn(&id);
                self.withdrawn.insert(id);
            }
            Step::Time => {
                let due = self.desk.clocks.overdue(self.now + TIMEOUT);
                assert!(self.connected || due.is_empty(), "a clock ran while its worker was away");
                self.now += TIMEOUT;
                for id in due.into_iter().filter(|id| self.desk.is_open(id)) {
                    self.ready.entry(id).or_default().push((Ticket(0), Racer::Timeout));
                }
                self.desk.pass_time(self.now);
            }
            Step::Away => {
                self.connected = false;
                self.desk.away(&worker, self.now);
            }
            Step::Back => {
                self.connected = true;
                self.desk.back(&worker, self.now);
            }
            Step::End => {
                if self.ended {
                    return false;
                }
                self.ended = true;
                // What is on its way to the journal may come back.
                for id in self.desk.waiting.keys().cloned().collect::<Vec<_>>() {
                    self.ready.entry(id).or_default().push((Ticket(0), Racer::SessionEnd));
                }
                self.desk.end();
            }
        }
        true
    }

    fn check(&self, path: &[Step]) {
        for (id, decisions) in &self.journal {
            assert_eq!(decisions.len(), 1, "{id} has two decisions after {path:?}");
            assert!(!self.desk.is_open(id), "{id} is decided and open after {path:?}");
            assert!(
                !self.pending.iter().any(|claim| claim.id == *id),
                "{id} is decided and claimed again after {path:?}"
            );
        }
        for (id, decision) in &self.obeyed {
            let journaled = self.journal.get(id).map(|decisions| decisions[0].bid.decision);
            assert_eq!(journaled, Some(*decision), "{id} obeyed what is not in the journal after {path:?}");
        }
        for (id, winner, words) in &self.wins {
            let first = words.iter().min();
            assert_eq!(first, Some(winner), "{id}: {words:?} were ready after {path:?}");
        }
        let claimed: BTreeSet<_> = self.pending.iter().map(|claim| &claim.id).collect();
        assert_eq!(claimed.len(), self.pending.len(), "one request is claimed twice after {path:?}");
        for id in &self.withdrawn {
            assert!(!self.desk.is_open(id), "{id} was withdrawn and is open after {path:?}");
        }
    }

    /// Whatever happened, what still waits can be brought to an end: nothing hangs.
    fn can_end(&self, path: &[Step]) {
        let mut world = self.clone();
        while world.step(Step::Journal(true)) {}
        if !world.ended {
            assert!(world.step(Step::End));
        }
        world.step(Step::Claim);
        while world.step(Step::Journal(true)) {}
        world.check(path);
        for id in &world.asked {
            let settled = world.journal.contains_key(id) || world.withdrawn.contains(id);
            // What the end of the session could not store is ended when it can: its word is given again.
            assert!(settled || self.ended, "{id} hangs after {path:?}");
        }
    }
}

/// Goes through every order of steps, each state once.
fn explore(world: &World, depth: usize, path: &mut Vec<Step>, seen: &mut HashSet<(World, usize)>) {
    world.check(path);
    world.can_end(path);
    if depth == 0 {
        return;
    }
    for step in STEPS {
        let mut next = world.clone();
        path.push(step);
        if next.step(step) {
            // Numbers of tickets and the list of changed clocks make no other state.
            next.desk.clocks.changed();
            let mut state = next.clone();
            state.wins.clear();
            if seen.insert((state, depth)) {
                explore(&next, depth - 1, path, seen);
            } else {
                next.check(path);
            }
        }
        path.pop();
    }
}

#[tokio::test(start_paused = true)]
async fn in_every_order_of_events_a_request_has_one_decision_that_is_journaled_before_it_is_obeyed() {
    let mut seen = HashSet::new();
    let mut world = World::new(Instant::now());
    // With something at the desk, the steps that matter come sooner.
    assert!(world.step(Step::Ask(0)) && world.step(Step::Ask(1)));
    explore(&world, 4, &mut Vec::new(), &mut seen);
    explore(&World::new(Instant::now()), 4, &mut Vec::new(), &mut seen);
    assert!(seen.len() > 10_000, "{} states", seen.len());
}
