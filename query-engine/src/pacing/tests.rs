use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::*;
use crate::{
    build_prefix,
    testing::{Script, ScriptedModel, Step, answer, error, says, text},
};

/// A gate that a test opens.
struct ByHand {
    open: watch::Sender<bool>,
    limits: Mutex<Vec<Option<Duration>>>,
}

#[async_trait]
impl Turns for ByHand {
    async fn turn(&self) {
        self.open.subscribe().wait_for(|open| *open).await.expect("the sender is ours");
    }

    fn opens(&self) -> Option<Timestamp> {
        Some(Timestamp::from_millis(7_000))
    }

    fn is_limited(&self) -> bool {
        true
    }

    fn began(&self) {}

    fn limited(&self, retry_after: Option<Duration>) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).push(retry_after);
    }
}

#[derive(Default)]
struct Watcher(Mutex<Vec<Live>>);

impl Observer for Watcher {
    fn live(&self, live: Live) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(live);
    }
}

struct Rig {
    gate: Arc<ByHand>,
    watcher: Arc<Watcher>,
    model: Arc<Paced>,
}

fn rig(open: bool, scripts: impl IntoIterator<Item = Script>) -> Rig {
    let gate = Arc::new(ByHand { open: watch::Sender::new(open), limits: Mutex::default() });
    let watcher = Arc::new(Watcher::default());
    let model = Paced::new(ScriptedModel::new(scripts), "lab", gate.clone(), watcher.clone());
    Rig { gate, watcher, model: Arc::new(model) }
}

impl Rig {
    /// Sends a request and reads its answer.
    async fn ask(&self) -> Result<usize, ModelError> {
        let prefix = Arc::new(build_prefix(Vec::new(), &[]));
        let request = ModelRequest { prefix, messages: Vec::new(), breakpoints: Vec::new(), max_tokens: 1 };
        let mut stream = self.model.stream(&request).await?;
        let mut n_events = 0;
        while let Some(event) = stream.next().await {
            event?;
            n_events += 1;
        }
        Ok(n_events)
    }

    fn limits(&self) -> Vec<Option<Duration>> {
        self.gate.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn told(&self) -> Vec<Live> {
        self.watcher.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_stands_open_costs_no_word() {
    let rig = rig(true, []);
    rig.model.ready().await;
    assert_eq!(rig.told(), []);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_turn_is_told_with_its_time_and_taken_back() {
    let rig = rig(false, []);
    let waiting = tokio::spawn({
        let model = rig.model.clone();
        async move { model.ready().await }
    });
    tokio::time::sleep(PATIENCE / 2).await;
    assert_eq!(rig.told(), [], "a moment's wait is no news");
    tokio::time::sleep(PATIENCE).await;
    let told = Live::Waiting {
        waiting_for: Some(WaitingFor::Model),
        cause: "rate limit of lab, next try".to_owned(),
        until: Some(Timestamp::from_millis(7_000)),
    };
    assert_eq!(rig.told(), [told]);
    assert!(!waiting.is_finished());
    rig.gate.open.send_replace(true);
    waiting.await.expect("it goes on");
    let over = Live::Waiting { waiting_for: None, cause: String::new(), until: None };
    assert_eq!(rig.told().last(), Some(&over));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_given_up_is_taken_back() {
    let rig = rig(false, []);
    tokio::time::timeout(PATIENCE * 2, rig.model.ready()).await.expect_err("nobody opens");
    assert_eq!(rig.told().len(), 2, "{:?}", rig.told());
}

#[tokio::test(start_paused = true)]
async fn limits_are_told_wherever_they_come_and_nothing_else_is() {
    let after = Some(Duration::from_secs(3));
    let limited = ModelError { retry_after: after, ..error(ModelErrorKind::RateLimited, "429") };
    let broken = |kind| answer([text(0, "So far"), vec![Step::Fail(error(kind, "in the stream"))]]);
    let rig = rig(
        true,
        [
            says("Fine."),
            limited.into(),
            error(ModelErrorKind::Overloaded, "529").into(),
            broken(ModelErrorKind::Overloaded),
            error(ModelErrorKind::QuotaSpent, "429").into(),
            error(ModelErrorKind::Server, "500").into(),
            broken(ModelErrorKind::Connection),
        ],
    );
    assert!(rig.ask().await.is_ok_and(|n_events| n_events > 3), "an answer passes as it is");
    assert_eq!(rig.limits(), []);
    for _ in 0..6 {
        rig.ask().await.expect_err("it fails as the model does");
    }
    assert_eq!(rig.limits(), [after, None, None]);
}
