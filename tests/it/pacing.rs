//! The limit of a provider's key, met by one, holds the calls of all who share it (spec 10.1).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use integration_tests::{Reply, model_server::Usage};
use serde_json::json;

use crate::rig::{Rig, agent, call, prompt, write};

const WORKERS: usize = 16;
/// Calls of each worker after its first.
const CALLS: usize = 3;
/// What the provider takes: so many requests in any window of this length. Who comes beyond is sent away for a second,
/// and so is everybody else within it.
const PER_WINDOW: usize = 6;
const WINDOW: Duration = Duration::from_millis(300);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A provider with a limit, and what came to it.
#[derive(Default)]
struct Provider {
    taken: VecDeque<Instant>,
    closed_until: Option<Instant>,
    /// Every request that the limit was asked about, and whether it was taken.
    seen: Vec<(Instant, bool)>,
}

impl Provider {
    fn takes(&mut self, now: Instant) -> bool {
        while self.taken.front().is_some_and(|first| now - *first >= WINDOW) {
            self.taken.pop_front();
        }
        let is_closed = self.closed_until.is_some_and(|until| now < until);
        let takes = !is_closed && self.taken.len() < PER_WINDOW;
        if takes {
            self.taken.push_back(now);
        } else if !is_closed {
            self.closed_until = Some(now + RETRY_AFTER);
        }
        self.seen.push((now, takes));
        takes
    }
}

/// A session whose workers all make their second call at the same moment, to a provider with a limit.
async fn limited(toml: &str) -> (Rig, Vec<String>, Arc<Mutex<Provider>>) {
    let rig = Rig::configured(&format!("{toml}\ncontext_window = 200000\n")).await;
    let names: Vec<String> = (0..WORKERS).map(|n| format!("w{n:02}")).collect();
    rig.coordinator(names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name))));
    let provider = Arc::new(Mutex::new(Provider::default()));
    let limit = Arc::clone(&provider);
    rig.model.on(move |request| {
        let name = request.agent_key.split("work: ").nth(1)?.split('.').next()?.to_owned();
        let turn = request.turn();
        // Their first calls wait for each other: processes start one after the other.
        if turn > 0 && !limit.lock().expect("it is held for a moment").takes(Instant::now()) {
            return Some(Reply::rate_limited(&RETRY_AFTER.as_secs().to_string()));
        }
        let (tool, input) = write(&format!("{name}-{turn}.txt"), "x\n");
        match turn {
            0 => Some(Reply::call(tool, input).hold("all are there")),
            CALLS => Some(Reply::say("Done.")),
            _ => Some(Reply::call(tool, input)),
        }
    });
    (rig, names, provider)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_42_the_limit_that_one_worker_meets_holds_all_and_they_go_on_one_by_one() {
    let (rig, names, provider) = limited("max_workers = 16").await;
    let task = rig.submit().await;
    rig.model.gate("all are there").reached_by(WORKERS).await;
    rig.model.gate("all are there").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    for name in &names {
        let worker = rig.worker(&task, name).await;
        assert_eq!(
            (&worker["status"], &worker["files_changed"]),
            (&json!("completed"), &json!(CALLS)),
            "{name}"
        );
    }
    let seen = provider.lock().expect("nobody asks any more").seen.clone();
    let refused = seen.iter().filter(|(_, is_taken)| !is_taken).count();
    let first = seen.iter().find(|(_, is_taken)| !is_taken).expect("the limit was met").0;
    // Who was under way when the limit was met is refused; by themselves, all would be again after each wait.
    assert!(refused <= WORKERS, "{refused} of {} requests were refused", seen.len());
    let after: Vec<Duration> = seen
        .iter()
        .map(|(at, _)| at.saturating_duration_since(first))
        .filter(|at| *at >= RETRY_AFTER / 2)
        .collect();
    let held = after.iter().filter(|at| **at < RETRY_AFTER).count();
    assert_eq!(held, 0, "nobody asks while the provider wants to be left alone: {after:?}");
    let spread = after[WORKERS - 1] - after[0];
    assert!(spread >= Duration::from_millis(1_500), "they come one by one: {after:?}");
    // Who waits for its turn is shown so; nobody else is.
    let states = rig.events(&task, "worker.state").await;
    let waited = states.iter().filter(|state| state["waiting_for"] == "model");
    let turns = waited.filter(|state| state["reason"] == "rate limit of anthropic, next try").count();
    assert!(turns >= WORKERS / 2, "{turns} waits for a turn in {states:#?}");
    let metrics = rig.api().get("//metrics").await;
    let metrics = metrics.as_str().expect("figures are text");
    assert!(
        metrics.contains(&format!("swarm_rate_limits_total{{provider=\"anthropic\"}} {refused}")),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_begin_together_read_the_prefix_that_the_first_has_written() {
    let rig = Rig::configured("max_workers = 6\n").await;
    let names: Vec<String> = (0..6).map(|n| format!("w{n}")).collect();
    rig.coordinator(names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name))));
    for name in &names {
        let first = call(write(&format!("{name}.txt"), "x\n")).hold("first answers");
        rig.model.agent(&prompt(name), [first, Reply::say("Done.")]);
    }
    let task = rig.submit().await;
    // A provider that thinks for a while before its answer begins; the others come meanwhile, or are held back.
    rig.model.gate("first answers").reached().await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    rig.model.gate("first answers").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let firsts: Vec<Usage> = names
        .iter()
        .map(|name| rig.model.requests_of(&prompt(name))[0].usage().expect("it was answered"))
        .collect();
    let wrote = firsts.iter().filter(|usage| usage.cache_read == 0).count();
    assert_eq!(wrote, 1, "one wrote what the others read: {firsts:?}");
}
