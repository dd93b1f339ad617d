//! Who may decide a request: shown to people, first who comes before others.

use swarm_protocol::{api::PermissionRacer, permission::Racer};

/// The racers of every request of a session. `channels`: the remote ones by name; `classifier`: the small model,
/// where it is on.
pub(crate) fn racers<'a>(
    channels: impl Iterator<Item = &'a str>,
    classifier: Option<&str>,
) -> Vec<PermissionRacer> {
    let racer = |by, source: Option<&str>| PermissionRacer { by, source: source.map(str::to_owned) };
    let mut racers = vec![racer(Racer::Rule, None), racer(Racer::Person, None), racer(Racer::Timeout, None)];
    racers.extend(channels.map(|name| racer(Racer::Remote, Some(name))));
    racers.extend(classifier.map(|model| racer(Racer::Classifier, Some(model))));
    racers.sort_by_key(|racer| racer.by);
    racers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_stand_in_the_order_of_their_priority() {
        let racers = racers(["ops", "home"].into_iter(), Some("anthropic/small"));
        let shown: Vec<_> = racers.iter().map(|racer| (racer.by.as_str(), racer.source.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("rule", None),
                ("person", None),
                ("remote", Some("ops")),
                ("remote", Some("home")),
                ("classifier", Some("anthropic/small")),
                ("timeout", None),
            ]
        );
    }
}
