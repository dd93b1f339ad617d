//! The gate of a provider's key (spec 10.1), as the loop stands before it.

use async_trait::async_trait;
use swarm_protocol::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::{
    driver::Ports,
    pacing::{Paced, Turns},
};

/// A gate at which each turn takes so long to come.
struct Slow(Duration);

#[async_trait]
impl Turns for Slow {
    async fn turn(&self) {
        tokio::time::sleep(self.0).await;
    }

    fn opens(&self) -> Option<Timestamp> {
        None
    }

    fn is_limited(&self) -> bool {
        true
    }

    fn began(&self) {}

    fn limited(&self, _: Option<Duration>) {}
}

fn engine_behind(bench: &Bench, turn: Duration) -> Engine {
    let model = Paced::new(bench.model.clone(), "lab", Arc::new(Slow(turn)), bench.observer.clone());
    let ports = Ports { model: Arc::new(model), ..bench.ports() };
    audited(Engine::new(bench.config(), ports, LoopState::default()), Vec::new())
}

#[tokio::test(start_paused = true)]
async fn case_42_what_is_waited_for_at_the_gate_is_no_part_of_the_bound_on_retries() {
    const TURN: Duration = Duration::from_secs(300);
    let limited = || error(ModelErrorKind::RateLimited, "429").into();
    let bench = Bench::new([limited(), limited(), limited(), limited(), says("At last.")]);
    let mut engine = engine_behind(&bench, TURN);
    let began = Instant::now();
    let exit = engine.run(&Cancel::default()).await;
    assert_eq!((&exit.exit, exit.text.as_str()), (&ExitReason::Completed, "At last."));
    assert!(began.elapsed() >= TURN * 5, "each try had its turn: {:?}", began.elapsed());
    check_invariants(&bench, &engine);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_wait_at_the_gate() {
    let bench = Bench::new([says("never")]);
    let mut engine = engine_behind(&bench, Duration::from_secs(3_600));
    let cancel = Cancel::default();
    let began = Instant::now();
    let (exit, ()) = tokio::join!(engine.run(&cancel), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        cancel.interrupt.cancel();
    });
    assert_eq!((exit.exit, began.elapsed()), (ExitReason::AbortedStreaming, Duration::from_secs(5)));
    assert_eq!(bench.model.requests().len(), 0);
    check_invariants(&bench, &engine);
}
