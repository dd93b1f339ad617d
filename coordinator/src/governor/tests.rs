use proptest::prelude::*;

use super::*;

/// $1 a million of input, $10 a million of output.
fn price(usage: &Usage) -> Cost {
    Cost::usd((usage.total_input() as f64 + usage.output_tokens as f64 * 10.0) / 1e6)
}

fn worker(n: u64) -> WorkerId {
    format!("agent-{n:03}").parse().unwrap()
}

fn request(grant: u64, input_tokens: u64, max_tokens: u64) -> GrantRequest {
    GrantRequest { grant, model: "m".to_owned(), input_tokens, max_tokens, ahead: false, returns: Vec::new() }
}

fn call(request: &GrantRequest) -> PlannedCall {
    let GrantRequest { model, input_tokens, max_tokens, .. } = request;
    PlannedCall { model: model.clone(), input_tokens: *input_tokens, max_tokens: *max_tokens }
}

/// A table with the requests of workers 0, 1, 2 ..., which are answered in order.
struct Bench(Governor);

impl Bench {
    fn usd(usd: f64) -> Self {
        Self(Governor::new(Caps { usd: Some(usd), tokens: None }))
    }

    fn ask(&mut self, n: u64, request: GrantRequest) -> Decision {
        let spender = Some(worker(n));
        let decision = {
            self.0.apply(&spender, &BudgetChange::Requested { request: request.clone() });
            self.0.decide(&spender, &call(&request), request.ahead, &price)
        };
        self.obey(&spender, request.grant, &decision);
        decision
    }

    fn obey(&mut self, spender: &Spender, grant: u64, decision: &Decision) {
        let change = match decision {
            Decision::Granted { amount, .. } => BudgetChange::Granted { grant, amount: *amount },
            Decision::Refused { budget } => BudgetChange::Refused { grant, budget: budget.clone() },
            Decision::Wait => return,
        };
        self.0.apply(spender, &change);
    }

    fn settle(&mut self, n: u64, grant: u64, output_tokens: u64) {
        let usage = Usage { input_tokens: 1_000, output_tokens, ..Usage::default() };
        self.0.spend(&usage, &price(&usage));
        let change = BudgetChange::Freed { grants: vec![grant], reason: String::new() };
        self.0.apply(&Some(worker(n)), &change);
    }
}

fn granted(decision: &Decision) -> u64 {
    match decision {
        Decision::Granted { max_tokens, .. } => *max_tokens,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grant_is_lowered_to_what_is_left_and_who_comes_too_late_waits_for_what_comes_back() {
    let mut bench = Bench::usd(0.1);
    assert_eq!(granted(&bench.ask(0, request(1, 1_000, 8_000))), 8_000);
    // $0.0189 are left.
    assert_eq!(granted(&bench.ask(1, request(1, 1_000, 8_000))), 1_779);
    assert_eq!(bench.ask(2, request(1, 1_000, 8_000)), Decision::Wait);
    // The first used half of it.
    bench.settle(0, 1, 4_000);
    let waiting = bench.0.waiting();
    let (who, first) = &waiting[0];
    assert_eq!((who, waiting.len()), (&worker(2), 1));
    assert!(granted(&bench.0.decide(&Some(who.clone()), &call(first), false, &price)) > 3_500);
}

#[test]
fn nothing_left_and_nothing_coming_back_is_spent() {
    let mut bench = Bench::usd(0.01);
    let Decision::Refused { budget } = bench.ask(0, request(1, 9_000, 8_000)) else { panic!("refused") };
    assert_eq!(budget, "$0.0000 of the session's $0.01");
    // A fifth of a cent is left, which pays for less than anybody says.
    assert_eq!(granted(&bench.ask(0, request(2, 1_000, 600))), 600);
    bench.settle(0, 2, 600);
    let Decision::Refused { budget } = bench.ask(0, request(3, 1_000, 8_000)) else { panic!("refused") };
    assert_eq!(budget, "$0.0070 of the session's $0.01");
    let mut bench = Bench(Governor::new(Caps { usd: None, tokens: Some(2_000) }));
    let Decision::Refused { budget } = bench.ask(0, request(1, 3_000, 8_000)) else { panic!("refused") };
    assert_eq!(budget, "0 of the session's 2000 tokens");
}

#[test]
fn two_that_wait_do_not_wait_for_one_another() {
    let mut bench = Bench::usd(0.034);
    // Both have a grant whose call failed and may have been charged, and want another.
    for n in 0..2 {
        assert_eq!(granted(&bench.ask(n, request(1, 1_000, 1_500))), 1_500);
    }
    assert_eq!(bench.ask(0, request(2, 1_000, 8_000)), Decision::Wait, "the other's call is under way");
    assert!(matches!(bench.ask(1, request(2, 1_000, 8_000)), Decision::Refused { .. }));
    // Its run ends, which frees what it had.
    bench.0.end_of(&Some(worker(1)));
    let decision = bench.0.decide(&Some(worker(0)), &call(&request(2, 1_000, 8_000)), false, &price);
    assert!(granted(&decision) > FAIR_OUTPUT);
}

#[test]
fn a_grant_ahead_is_given_from_plenty_and_comes_back_unused() {
    let ahead = |grant| GrantRequest { ahead: true, ..request(grant, 1_000, 8_000) };
    let mut bench = Bench::usd(0.3);
    bench.ask(0, request(1, 1_000, 3_000));
    assert_eq!(granted(&bench.ask(0, ahead(2))), 8_000);
    assert_eq!(bench.ask(1, ahead(1)), Decision::Wait, "half of what is left stays free");
    let all_of_it = bench.0.reserved().0;
    bench.ask(0, GrantRequest { returns: vec![2], ..request(3, 1_000, 1_000) });
    assert!(bench.0.reserved().0 < all_of_it);
    assert_eq!(bench.0.waiting().len(), 1, "the one ahead still waits");
    bench.ask(1, GrantRequest { returns: vec![1], ..request(2, 1_000, 1_000) });
    assert!(bench.0.waiting().is_empty());
}

#[test]
fn many_that_wait_share_what_is_left() {
    let mut governor = Governor::new(Caps { usd: Some(0.2), tokens: None });
    let asked = request(1, 1_000, 8_000);
    for n in 0..5 {
        governor.apply(&Some(worker(n)), &BudgetChange::Requested { request: asked.clone() });
    }
    let share = granted(&governor.decide(&Some(worker(0)), &call(&asked), false, &price));
    assert!((3_500..4_000).contains(&share), "{share}: a fifth of it, less the input");
}

#[test]
fn the_coordinators_calls_follow_one_another() {
    let mut governor = Governor::new(Caps { usd: Some(1.0), tokens: Some(1_000_000) });
    let asked = call(&request(1, 1_000, 1_000));
    for n in 1..=3 {
        let Decision::Granted { amount, .. } = governor.decide(&None, &asked, false, &price) else {
            panic!("granted")
        };
        let grant = governor.next_of_coordinator();
        assert_eq!(grant, n);
        governor.apply(&None, &BudgetChange::Granted { grant, amount });
        assert_eq!(governor.coordinator_grants(), [n]);
    }
    governor.end_of(&None);
    assert_eq!(governor.reserved(), (0.0, 0));
}

#[test]
fn most_of_it_spent_is_said_once() {
    let mut governor = Governor::new(Caps { usd: Some(1.0), tokens: None });
    governor.spend(&Usage::default(), &Cost::usd(0.79));
    assert_eq!(governor.warning(), None);
    governor.spend(&Usage::default(), &Cost::usd(0.06));
    assert_eq!(governor.warning(), Some(85));
    governor.apply(&None, &BudgetChange::Warned { percent: 85 });
    assert_eq!(governor.warning(), None);
    assert_eq!(Governor::new(Caps::default()).warning(), None);
}

/// What may happen next to a worker.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        who: u64,
        input: u64,
        max: u64,
        ahead: bool,
    },
    /// An open call ends; it was charged this share of the worst, in percent.
    Use {
        who: u64,
        percent: u64,
    },
    End {
        who: u64,
    },
    Coordinator {
        input: u64,
        percent: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..6_u64;
    let step = prop_oneof![
        4 => (who.clone(), 0..20_000_u64, 1..10_000_u64, any::<bool>())
            .prop_map(|(who, input, max, ahead)| Step::Ask { who, input, max, ahead }),
        4 => (who.clone(), 0..=100_u64).prop_map(|(who, percent)| Step::Use { who, percent }),
        1 => who.prop_map(|who| Step::End { who }),
        1 => (0..20_000_u64, 0..=100_u64).prop_map(|(input, percent)| Step::Coordinator { input, percent }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Whatever comes in whatever order, what is spent and what may yet be spent stay within the cap, nobody waits
    /// when nothing can come back, and the table is the fold of its changes.
    #[test]
    fn spent_and_open_never_pass_the_cap(steps in steps(), usd in 0.0..0.5_f64, tokens in 0..200_000_u64) {
        let caps = Caps { usd: Some(usd), tokens: Some(tokens) };
        let mut governor = Governor::new(caps);
        let mut journal: Vec<(Spender, Option<BudgetChange>, Usage)> = Vec::new();
        let mut calls: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
        let mut next = 0;
        for step in steps {
            let mut change = |governor: &mut Governor, spender: &Spender, change: BudgetChange| {
                governor.apply(spender, &change);
                journal.push((spender.clone(), Some(change), Usage::default()));
            };
            match step {
                Step::Ask { who, input, max, ahead } => {
                    next += 1;
                    let request = GrantRequest { ahead, ..request(next, input, max) };
                    change(&mut governor, &Some(worker(who)), BudgetChange::Requested { request });
                }
                Step::Use { who, percent } => {
                    let key = calls.keys().find(|(other, _)| *other == who).copied();
                    if let Some((input, max)) = key.and_then(|key| calls.remove(&key)) {
                        let grant = key.map_or(0, |(_, grant)| grant);
                        let usage = Usage {
                            cache_write_tokens: input,
                            output_tokens: max * percent / 100,
                            ..Usage::default()
                        };
                        governor.spend(&usage, &price(&usage));
                        journal.push((None, None, usage));
                        let freed = BudgetChange::Freed { grants: vec![grant], reason: String::new() };
                        governor.apply(&Some(worker(who)), &freed);
                        journal.push((Some(worker(who)), Some(freed), Usage::default()));
                    }
                }
                Step::End { who } => {
                    let open: Vec<u64> = (0..=next).collect();
                    change(&mut governor, &Some(worker(who)), BudgetChange::Freed { grants: open, reason: String::new() });
                    calls.retain(|(other, _), _| *other != who);
                }
                Step::Coordinator { input, percent } => {
                    let planned = call(&request(0, input, 8_000));
                    if let Decision::Granted { amount, max_tokens } = governor.decide(&None, &planned, false, &price) {
                        let grant = governor.next_of_coordinator();
                        change(&mut governor, &None, BudgetChange::Granted { grant, amount });
                        let usage = Usage {
                            input_tokens: input,
                            output_tokens: max_tokens * percent / 100,
                            ..Usage::default()
                        };
                        governor.spend(&usage, &price(&usage));
                        journal.push((None, None, usage));
                        let freed = BudgetChange::Freed { grants: vec![grant], reason: String::new() };
                        governor.apply(&None, &freed);
                        journal.push((None, Some(freed), Usage::default()));
                    }
                }
            }
            // What the actor does after each batch.
            for (worker_id, request) in governor.waiting() {
                let spender = Some(worker_id.clone());
                let planned = call(&request);
                let grant = request.grant;
                let made = match governor.decide(&spender, &planned, request.ahead, &price) {
                    Decision::Granted { amount, max_tokens } => {
                        let who = worker_id.suffix().parse::<u64>().unwrap();
                        calls.insert((who, grant), (request.input_tokens, max_tokens));
                        BudgetChange::Granted { grant, amount }
                    }
                    Decision::Refused { budget } => {
                        prop_assert!(!request.ahead);
                        BudgetChange::Refused { grant, budget }
                    }
                    Decision::Wait => {
                        prop_assert!(request.ahead || governor.others_give_back(&spender));
                        continue;
                    }
                };
                governor.apply(&spender, &made);
                journal.push((spender, Some(made), Usage::default()));
            }
            let (open_usd, open_tokens) = governor.reserved();
            let (spent_usd, spent_tokens) = (governor.spent_usd, governor.spent_tokens);
            prop_assert!(spent_usd + open_usd <= usd + 1e-9, "{spent_usd} + {open_usd} > {usd}");
            prop_assert!(spent_tokens + open_tokens <= tokens, "{spent_tokens} + {open_tokens} > {tokens}");
        }
        let mut again = Governor::new(caps);
        for (spender, change, usage) in &journal {
            match change {
                Some(change) => again.apply(spender, change),
                None => again.spend(usage, &price(usage)),
            }
        }
        prop_assert_eq!(again, governor);
    }
}
