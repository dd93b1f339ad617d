//! Which calls of a response run together (spec 4.2). Pure.
//!
//! Consecutive calls that are safe beside others form a batch; a call that is not runs alone, in its place;
//! batches keep their order: `[Glob, Grep, Read, Edit, Glob, Read]` is `{Glob, Grep, Read} -> Edit -> {Glob, Read}`.

use std::ops::Range;

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It has not begun.
    Queued,
    /// It runs, or waits for its permission.
    Running,
    /// It has its result.
    Done,
}

/// A call as the schedule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Whether it may run beside others.
    pub is_concurrency_safe: bool,
    /// Where it stands.
    pub stand: Stand,
}

/// The calls that may begin now, in order. Asked again after each change, this carries out [`batches`] on
/// calls that arrive one by one: a batch's next call begins as soon as a place is free.
pub fn startable(slots: &[Slot], max_concurrency: usize) -> Vec<usize> {
    let mut startable = Vec::new();
    let mut running = slots.iter().filter(|slot| slot.stand == Stand::Running).count();
    let mut all_before_done = true;
    for (index, slot) in slots.iter().enumerate() {
        match slot.stand {
            Stand::Done => continue,
            Stand::Running => {}
            Stand::Queued => {
                let fits =
                    if slot.is_concurrency_safe { running < max_concurrency.max(1) } else { all_before_done };
                if !fits {
                    break;
                }
                startable.push(index);
                running += 1;
            }
        }
        all_before_done = false;
        if !slot.is_concurrency_safe {
            break;
        }
    }
    startable
}

/// The batches of a whole response, as ranges of its calls.
pub fn batches(is_concurrency_safe: &[bool], max_concurrency: usize) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    for (index, &safe) in is_concurrency_safe.iter().enumerate() {
        match batches.last_mut() {
            Some(last) if safe && is_concurrency_safe[last.start] && last.len() < max_concurrency.max(1) => {
                last.end = index + 1;
            }
            Some(_) | None => batches.push(index..index + 1),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(safe: &str, max: usize, expected: &str) {
        let safe: Vec<bool> = safe.chars().map(|character| character == 's').collect();
        let rendered: Vec<String> = batches(&safe, max)
            .into_iter()
            .map(|batch| batch.map(|index| index.to_string()).collect::<Vec<_>>().join(","))
            .collect();
        assert_eq!(rendered.join(" | "), expected);
    }

    #[test]
    fn consecutive_safe_calls_form_a_batch() {
        check("", 10, "");
        check("sssuss", 10, "0,1,2 | 3 | 4,5");
        check("uu", 10, "0 | 1");
        check("sssss", 2, "0,1 | 2,3 | 4");
        check("su", 0, "0 | 1");
    }

    fn starts(slots: &str, max: usize) -> Vec<usize> {
        // q, r, d: safe; Q, R, D: alone.
        let slots: Vec<Slot> = slots
            .chars()
            .map(|character| Slot {
                is_concurrency_safe: character.is_lowercase(),
                stand: match character.to_ascii_lowercase() {
                    'q' => Stand::Queued,
                    'r' => Stand::Running,
                    _ => Stand::Done,
                },
            })
            .collect();
        startable(&slots, max)
    }

    #[test]
    fn order_is_kept() {
        assert_eq!(starts("qqqQqq", 10), [0, 1, 2]);
        assert_eq!(starts("rrdQqq", 10), [0_usize; 0]);
        assert_eq!(starts("dddQqq", 10), [3]);
        assert_eq!(starts("dddRqq", 10), [0_usize; 0]);
        assert_eq!(starts("dddDqq", 10), [4, 5]);
        assert_eq!(starts("rrq", 2), [0_usize; 0]);
        assert_eq!(starts("rdq", 2), [2]);
        assert_eq!(starts("QQ", 10), [0]);
        assert_eq!(starts("rQ", 10), [0_usize; 0]);
    }
}
