//! Workers that begin together have one prefix (spec 3.6): the first of them writes it to the provider's cache, the others
//! wait until its answer has begun and read it there. Pure.

use std::{collections::HashMap, time::Duration};

use swarm_protocol::SessionId;
use tokio::time::Instant;

use super::KeyId;

/// The longest that one waits for another (spec 3.6).
const AT_MOST: Duration = Duration::from_secs(2);

/// What a prefix is cached under. The workers of a session have the same tools and system prompt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cached {
    pub(crate) key: KeyId,
    pub(crate) session: SessionId,
    pub(crate) model: String,
}

#[derive(Debug)]
enum State {
    /// This link's worker writes it; these wait, each until then.
    Written { by: u64, until: Instant, others: Vec<u64> },
    /// It is there until then.
    Warm { until: Instant },
}

impl State {
    fn is_over(&self, now: Instant) -> bool {
        match self {
            Self::Written { until, .. } | Self::Warm { until } => *until <= now,
        }
    }
}

/// The bursts of a server. What is over is forgotten when the next one begins.
#[derive(Debug, Default)]
pub(super) struct Bursts(HashMap<Cached, State>);

impl Bursts {
    /// A worker begins. Answers how long it waits for another; none: it goes at once.
    pub(super) fn begins(&mut self, link: u64, cached: Cached, now: Instant) -> Option<Duration> {
        self.0.retain(|_, state| !state.is_over(now));
        match self.0.get_mut(&cached) {
            Some(State::Written { until, others, .. }) => {
                others.push(link);
                Some(until.saturating_duration_since(now))
            }
            Some(State::Warm { .. }) => None,
            None => {
                self.0.insert(cached, State::Written { by: link, until: now + AT_MOST, others: Vec::new() });
                None
            }
        }
    }

    /// The first answer to this link's worker has begun: who waited for it goes on.
    pub(super) fn began(&mut self, link: u64, ttl: Duration, now: Instant) -> Vec<u64> {
        let waits_for_it = |state: &&mut State| matches!(state, State::Written { by, .. } if *by == link);
        let Some(state) = self.0.values_mut().find(waits_for_it) else { return Vec::new() };
        match std::mem::replace(state, State::Warm { until: now + ttl }) {
            State::Written { others, .. } => others,
            State::Warm { .. } => Vec::new(),
        }
    }

    /// A link ended: nobody waits for its worker any more.
    pub(super) fn leave(&mut self, link: u64) -> Vec<u64> {
        let mut released = Vec::new();
        self.0.retain(|_, state| match state {
            State::Written { by, others, .. } if *by == link => {
                released.append(others);
                false
            }
            State::Written { .. } | State::Warm { .. } => true,
        });
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(300);

    fn cached(session: SessionId, key: &str) -> Cached {
        Cached { key: KeyId::new("https://lab", Some(key)), session, model: "m".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_goes_and_the_others_follow_its_answer() {
        let (mut bursts, session, began) =
            (Bursts::default(), SessionId(uuid::Uuid::now_v7()), Instant::now());
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(bursts.begins(1, cached(session, "k"), at(0)), None);
        assert_eq!(bursts.begins(2, cached(session, "k"), at(0)), Some(AT_MOST));
        assert_eq!(bursts.begins(3, cached(session, "k"), at(1)), Some(AT_MOST / 2), "two seconds in all");
        // Another key or session has a cache of its own.
        assert_eq!(bursts.begins(4, cached(session, "other"), at(1)), None);
        assert_eq!(bursts.begins(5, cached(SessionId(uuid::Uuid::now_v7()), "k"), at(1)), None);
        assert_eq!(bursts.began(2, TTL, at(1)), [0_u64; 0], "not the one that is waited for");
        assert_eq!(bursts.began(1, TTL, at(1)), [2, 3]);
        assert_eq!(bursts.began(1, TTL, at(1)), [0_u64; 0], "once");
        assert_eq!(bursts.begins(6, cached(session, "k"), at(300)), None, "it is there");
        // Long afterwards it is to be written again.
        assert_eq!(bursts.begins(7, cached(session, "k"), at(302)), None);
        assert_eq!(bursts.begins(8, cached(session, "k"), at(302)), Some(AT_MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_who_is_gone_or_takes_too_long() {
        let (mut bursts, session, began) =
            (Bursts::default(), SessionId(uuid::Uuid::now_v7()), Instant::now());
        assert_eq!(bursts.begins(1, cached(session, "k"), began), None);
        assert_eq!(bursts.begins(2, cached(session, "k"), began), Some(AT_MOST));
        assert_eq!(bursts.leave(2), [0_u64; 0]);
        assert_eq!(bursts.leave(1), [2]);
        assert_eq!(bursts.begins(3, cached(session, "k"), began), None, "the next one writes it");
        assert_eq!(bursts.begins(4, cached(session, "k"), began + AT_MOST), None, "after two seconds too");
    }
}
