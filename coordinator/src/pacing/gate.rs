//! The gate before one provider's key, while a limit of it is in force. Pure; the clock and the jitter are the caller's.
//!
//! A limit closes the gate for as long as the provider asked. Then those who wait have their turns one after the other:
//! further apart each time that is still too fast, closer together while it is not.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How long the gate is closed when the provider does not say, and at least: reports of calls that were under way come
/// meanwhile, and mean the same limit.
const PAUSE: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(500);
/// What a provider asks beyond this concerns no others: an agent does not wait that long (spec 2.5), and each is told
/// until when by its own call.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Between two turns: at first, and its bounds.
const FIRST_SPACING: Duration = Duration::from_millis(250);
const LEAST_SPACING: Duration = Duration::from_millis(50);
const LONGEST_SPACING: Duration = Duration::from_secs(5);
/// After so many turns without a limit they come closer together.
const EASE_AFTER: u32 = 8;
/// Of so many turns one is for those that nobody waits for, however many people do.
const UNATTENDED_SHARE: u32 = 4;
/// A gate at which nobody waits is forgotten so long after the last limit.
const CALM: Duration = Duration::from_secs(30);

/// The gate, and who waits before it.
#[derive(Debug)]
pub(super) struct Gate<W> {
    opens: Instant,
    /// No turn is given before this.
    next: Instant,
    spacing: Duration,
    /// Turns since the spacing was last changed.
    turns: u32,
    attended: VecDeque<W>,
    unattended: VecDeque<W>,
}

/// For how long a limit closes the gate; none when it concerns no others.
pub(super) fn pause(retry_after: Option<Duration>) -> Option<Duration> {
    let pause = retry_after.unwrap_or(PAUSE);
    (pause <= LONGEST_PAUSE).then_some(pause.max(LEAST_PAUSE))
}

impl<W> Gate<W> {
    /// The first limit was met.
    pub(super) fn close(pause: Duration, now: Instant) -> Self {
        let opens = now + pause;
        Self {
            opens,
            next: opens,
            spacing: FIRST_SPACING,
            turns: 0,
            attended: VecDeque::new(),
            unattended: VecDeque::new(),
        }
    }

    /// A limit was met again. Answers whether it opens later than was said.
    pub(super) fn limited(&mut self, pause: Duration, now: Instant) -> bool {
        let opens = now + pause;
        if now < self.opens {
            // Of a call that was sent before it closed.
            let is_later = opens > self.opens;
            self.opens = self.opens.max(opens);
            self.next = self.next.max(opens);
            return is_later;
        }
        self.spacing = (self.spacing * 2).min(LONGEST_SPACING);
        self.turns = 0;
        (self.opens, self.next) = (opens, opens);
        true
    }

    /// Somebody wants a turn.
    pub(super) fn ask(&mut self, who: W, is_attended: bool) {
        if is_attended { &mut self.attended } else { &mut self.unattended }.push_back(who);
    }

    /// When there is a turn to give; none while nobody waits.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        (self.n_waiting() > 0).then_some(self.next)
    }

    /// Gives the turn that is due to the first who still wants it, as `give` says. Answers whether somebody had it.
    /// `jitter` is in `0.0..1.0`.
    pub(super) fn give_turn(&mut self, now: Instant, jitter: f64, mut give: impl FnMut(W) -> bool) -> bool {
        if now < self.next {
            return false;
        }
        let is_others = self.turns % UNATTENDED_SHARE == UNATTENDED_SHARE - 1;
        let lines = if is_others {
            [&mut self.unattended, &mut self.attended]
        } else {
            [&mut self.attended, &mut self.unattended]
        };
        let is_given = lines.into_iter().any(|line| std::iter::from_fn(|| line.pop_front()).any(&mut give));
        if is_given {
            self.next = now + self.spacing.mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0));
            self.turns += 1;
            if self.turns.is_multiple_of(EASE_AFTER) {
                self.spacing = (self.spacing * 3 / 4).max(LEAST_SPACING);
            }
        }
        is_given
    }

    /// The time until the first turn of all.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.opens.saturating_duration_since(now)
    }

    /// When it may be forgotten, unless somebody waits then.
    pub(super) fn is_over_at(&self) -> Instant {
        self.opens + CALM
    }

    /// How many wait.
    pub(super) fn n_waiting(&self) -> usize {
        self.attended.len() + self.unattended.len()
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
