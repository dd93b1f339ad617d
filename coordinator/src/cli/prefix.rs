//! How much of an id is enough: the shortest prefix that no other one shares. Pure.

use super::output::{CYAN, paint};

/// The ids that stand beside one another. With none, no prefix is marked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    /// In order: what shares most with an id stands next to it.
    ids: Vec<String>,
}

impl Prefixes {
    /// Over these ids; one that is named twice counts once.
    pub(crate) fn over<T: Into<String>>(ids: impl IntoIterator<Item = T>) -> Self {
        let mut ids: Vec<String> = ids.into_iter().map(Into::into).collect();
        ids.sort_unstable();
        ids.dedup();
        Self { ids }
    }

    /// Bytes of the shortest prefix of this id that no other has; all of it when another begins with it, since
    /// the whole id is always taken for itself.
    fn length(&self, id: &str) -> usize {
        if self.ids.is_empty() {
            return 0;
        }
        let at = self.ids.partition_point(|other| other.as_str() < id);
        let before = at.checked_sub(1).and_then(|before| self.ids.get(before));
        let after = self.ids.iter().skip(at).find(|other| *other != id);
        let shared = before.into_iter().chain(after).map(|other| shared(other, id)).max().unwrap_or(0);
        id.chars().take(shared + 1).map(char::len_utf8).sum()
    }

    /// An id, or what a narrow column shows of it, in its colour; the prefix that is enough is bold.
    pub(crate) fn paint(&self, id: &str, shown: &str) -> String {
        let (enough, rest) = shown.split_at_checked(self.length(id)).unwrap_or((shown, ""));
        format!("{}{}", paint(CYAN.bold(), enough), paint(CYAN, rest))
    }
}

/// Characters that two ids have in common at their start.
fn shared(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_shortest_prefix_that_no_other_has() {
        let table: [(&[&str], &[usize]); 7] = [
            (&["a1b", "h7q", "k2m"], &[1, 1, 1]),
            (&["a1b", "a1c", "a9c", "h7q"], &[3, 3, 2, 1]),
            // The longer one needs more; the shorter one is meant by all of it.
            (&["a1b", "a1b2", "c4e"], &[3, 4, 1]),
            (&["a1b", "a1b"], &[1, 1]),
            (&["7c1d09e2", "7c1", "0b44fe17"], &[4, 3, 1]),
            (&["a1b"], &[1]),
            (&["äa", "äb", "c"], &[3, 3, 1]),
        ];
        for (ids, lengths) in table {
            let prefixes = Prefixes::over(ids.iter().copied());
            let found: Vec<usize> = ids.iter().map(|id| prefixes.length(id)).collect();
            assert_eq!(found, lengths, "{ids:?}");
        }
    }

    #[test]
    fn it_is_bold_and_the_rest_is_not() {
        let prefixes = Prefixes::over(["a1b", "a9c"]);
        let (bold, plain) = (CYAN.bold(), CYAN);
        assert_eq!(prefixes.paint("a1b", "a1b"), format!("{bold}a1{bold:#}{plain}b{plain:#}"));
        // A column that is too narrow cuts before.
        assert_eq!(prefixes.paint("a1b", "a"), format!("{bold}a{bold:#}"));
        assert_eq!(Prefixes::default().paint("a1b", "a1b"), paint(CYAN, "a1b"));
    }

    proptest! {
        #[test]
        fn enough_and_no_more(ids in proptest::collection::btree_set("[ab1]{3,5}", 1..12)) {
            let prefixes = Prefixes::over(ids.iter().cloned());
            for id in &ids {
                let length = prefixes.length(id);
                let fits = |length: usize| ids.iter().filter(|other| other.starts_with(&id[..length])).count();
                prop_assert!(fits(length) == 1 || length == id.len());
                prop_assert!(length == 1 || fits(length - 1) > 1);
            }
        }
    }
}
