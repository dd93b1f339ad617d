use proptest::prelude::*;

use super::*;

const MIDDLE: f64 = 0.5;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The one who has a turn at this time.
fn taken<W>(gate: &mut Gate<W>, now: Instant) -> Option<W> {
    let mut found = None;
    gate.give_turn(now, MIDDLE, |who| {
        found = Some(who);
        true
    });
    found
}

/// Times at which turns were given while somebody waited, from `start`.
fn turns(gate: &mut Gate<u32>, n: u32, start: Instant) -> Vec<u64> {
    (0..n).for_each(|who| gate.ask(who, true));
    let mut times = Vec::new();
    while let Some(next) = gate.next_turn() {
        assert!(taken(gate, next).is_some(), "a turn is due and somebody waits");
        times.push((next - start).as_millis() as u64);
    }
    times
}

#[test]
fn how_long_a_limit_closes_it() {
    let check = |asked: Option<u64>, expected: Option<u64>| {
        assert_eq!(pause(asked.map(millis)), expected.map(millis), "{asked:?}");
    };
    check(None, Some(1_000));
    check(Some(0), Some(500));
    check(Some(7_000), Some(7_000));
    check(Some(300_000), Some(300_000));
    check(Some(300_001), None);
}

#[test]
fn one_limit_that_many_report_closes_it_once_and_for_the_longest_time_that_was_asked() {
    let start = Instant::now();
    let mut gate: Gate<u32> = Gate::close(millis(2_000), start);
    assert!(!gate.limited(millis(2_000 - 10), start + millis(10)), "the same moment");
    assert!(!gate.limited(millis(500), start + millis(20)), "sooner");
    assert!(gate.limited(millis(3_000), start + millis(30)), "later is news");
    assert_eq!(gate.wait(start + millis(30)), millis(3_000));
    assert_eq!(gate.spacing, FIRST_SPACING, "nobody came too fast: nobody had a turn");
    assert_eq!(turns(&mut gate, 3, start), [3_030, 3_280, 3_530]);
}

#[test]
fn turns_come_further_apart_when_it_was_too_fast_and_closer_together_while_it_is_not() {
    let start = Instant::now();
    let mut gate: Gate<u32> = Gate::close(millis(1_000), start);
    assert_eq!(turns(&mut gate, 4, start), [1_000, 1_250, 1_500, 1_750]);
    assert!(gate.limited(millis(1_000), start + millis(2_000)));
    let times = turns(&mut gate, 11, start);
    assert_eq!(times[..4], [3_000, 3_500, 4_000, 4_500]);
    assert_eq!(times[7..], [6_500, 7_000, 7_375, 7_750], "after eight");
    for n in 0..20 {
        assert!(gate.limited(millis(500), gate.next.max(gate.opens) + millis(n)));
    }
    assert_eq!(gate.spacing, LONGEST_SPACING);
    turns(&mut gate, 300, start);
    assert_eq!(gate.spacing, LEAST_SPACING);
}

#[test]
fn sessions_of_people_go_first_and_the_others_are_not_forgotten() {
    let start = Instant::now();
    let mut gate = Gate::close(millis(1_000), start);
    for n in 0..3 {
        gate.ask(format!("program {n}"), false);
    }
    for n in 0..5 {
        gate.ask(format!("person {n}"), true);
    }
    let mut order = Vec::new();
    while let Some(next) = gate.next_turn() {
        order.extend(taken(&mut gate, next));
    }
    let expected =
        ["person 0", "person 1", "person 2", "program 0", "person 3", "person 4", "program 1", "program 2"];
    assert_eq!(order, expected);
}

#[test]
fn who_is_gone_takes_no_turn_of_those_behind() {
    let start = Instant::now();
    let mut gate = Gate::close(millis(500), start);
    (0..4_u32).for_each(|who| gate.ask(who, who % 2 == 0));
    let mut asked = Vec::new();
    let is_given = gate.give_turn(start + millis(500), MIDDLE, |who| {
        asked.push(who);
        who == 1
    });
    assert!(is_given);
    assert_eq!((asked, gate.n_waiting()), (vec![0, 2, 1], 1));
    assert!(!gate.give_turn(start + millis(500), MIDDLE, |_| true), "the next has its time");
    assert!(!gate.give_turn(start + millis(750), MIDDLE, |_| false));
    assert_eq!((gate.n_waiting(), gate.next_turn()), (0, None));
}

#[test]
fn it_is_over_when_it_was_calm_for_long() {
    let start = Instant::now();
    let mut gate: Gate<u32> = Gate::close(millis(1_000), start);
    assert_eq!(gate.is_over_at(), start + millis(1_000) + CALM);
    gate.limited(millis(1_000), start + millis(5_000));
    assert_eq!(gate.is_over_at(), start + millis(6_000) + CALM);
}

proptest! {
    /// Whatever happens: no turn while it is closed, none within three quarters of the least spacing of another, and
    /// each who asked has one.
    #[test]
    fn turns_are_spread_and_nobody_is_lost(
        steps in prop::collection::vec((0_u64..2_000, 0_u8..4, any::<bool>(), 0.0..1.0_f64), 1..200)
    ) {
        let mut now = Instant::now();
        let mut gate: Gate<usize> = Gate::close(millis(1_000), now);
        let (mut n_asked, mut given, mut last) = (0, Vec::new(), None::<Instant>);
        let mut give = |gate: &mut Gate<usize>, now: Instant, jitter: f64, given: &mut Vec<usize>| {
            let closed = now < gate.opens;
            let spacing = gate.spacing;
            if gate.give_turn(now, jitter, |who| { given.push(who); true }) {
                prop_assert!(!closed);
                prop_assert!(last.is_none_or(|last| now - last >= LEAST_SPACING * 3 / 4), "{:?}", spacing);
                last = Some(now);
            }
            Ok(())
        };
        for (millis_more, what, is_attended, jitter) in steps {
            now += millis(millis_more);
            match what {
                0 => { gate.limited(millis(500 + millis_more), now); }
                1 => give(&mut gate, now, jitter, &mut given)?,
                _ => { gate.ask(n_asked, is_attended); n_asked += 1; }
            }
            prop_assert!((LEAST_SPACING..=LONGEST_SPACING).contains(&gate.spacing));
        }
        while let Some(next) = gate.next_turn() {
            now = now.max(next);
            give(&mut gate, now, 0.0, &mut given)?;
        }
        given.sort_unstable();
        prop_assert_eq!(given, (0..n_asked).collect::<Vec<_>>());
    }
}
