use std::time::Duration;

use swarm_protocol::frame::PACE_SINCE;

use super::*;

struct Rig {
    gates: Gates,
    outbox: Arc<Outbox>,
    turns: Arc<dyn Turns>,
}

fn rig() -> Rig {
    let (gates, outbox) = (Gates::default(), Arc::new(Outbox::default()));
    outbox.set_connected(Some(PACE_SINCE));
    let turns = gates.turns("lab", outbox.clone());
    Rig { gates, outbox, turns }
}

impl Rig {
    fn said(&self) -> Vec<Pace> {
        let frames = self.outbox.take_pace().into_iter();
        frames
            .map(|frame| match frame {
                FromWorker::Pace { provider, pace } if provider == "lab" => pace,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// A call that waits for its turn.
    async fn waits(&self) -> tokio::task::JoinHandle<()> {
        let turns = self.turns.clone();
        let waiting = tokio::spawn(async move { turns.turn().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        waiting
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_while_no_limit_is_known() {
    let rig = rig();
    rig.turns.turn().await;
    assert_eq!((rig.said(), rig.turns.opens()), (Vec::new(), None));
    rig.gates.take("other", &PaceOrder::Held { wait_ms: 1_000 });
    rig.turns.turn().await;
    assert_eq!(rig.said(), []);
}

#[tokio::test(start_paused = true)]
async fn each_call_waits_for_the_turn_it_asked_for() {
    let rig = rig();
    rig.turns.limited(Some(Duration::from_secs(3)));
    assert_eq!(rig.said(), [Pace::Limited { retry_after_ms: Some(3_000) }]);
    rig.gates.take("lab", &PaceOrder::Held { wait_ms: 60_000 });
    assert!(rig.turns.opens().is_some());
    // An interrupt: its turn comes all the same, and is not the next one's.
    let dropped = rig.waits().await;
    dropped.abort();
    let waiting = rig.waits().await;
    assert_eq!(rig.said(), [Pace::Asks { turn: 1 }, Pace::Asks { turn: 2 }]);
    rig.gates.take("lab", &PaceOrder::Turn { turn: 1 });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    rig.gates.take("lab", &PaceOrder::Turn { turn: 2 });
    waiting.await.expect("it goes");
    let next = rig.waits().await;
    assert_eq!(rig.said(), [Pace::Asks { turn: 3 }]);
    rig.gates.take("lab", &PaceOrder::Free);
    next.await.expect("it goes");
    rig.turns.turn().await;
    assert_eq!(rig.said(), []);
}

#[tokio::test(start_paused = true)]
async fn without_a_link_it_goes_by_its_own_waits() {
    let rig = rig();
    rig.gates.take("lab", &PaceOrder::Held { wait_ms: 60_000 });
    let waiting = rig.waits().await;
    // The server is gone and at once there again, before the call has looked.
    rig.outbox.set_connected(None);
    rig.gates.forget();
    rig.gates.take("lab", &PaceOrder::Held { wait_ms: 60_000 });
    waiting.await.expect("what it asked is lost, so it goes");
    rig.gates.forget();
    rig.turns.turn().await;
    rig.turns.limited(None);
    assert_eq!(rig.said(), [], "nobody would hear it");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_never_comes_is_not_waited_for_for_ever() {
    let rig = rig();
    rig.gates.take("lab", &PaceOrder::Held { wait_ms: 1_000 });
    let waiting = rig.waits().await;
    waiting.await.expect("it goes after its patience");
}

#[tokio::test]
async fn a_server_that_knows_no_gates_hears_nothing_of_them() {
    let outbox = Arc::new(Outbox::default());
    let gates = Gates::default();
    let turns = gates.turns("lab", outbox.clone());
    outbox.set_connected(Some(PACE_SINCE - 1));
    turns.limited(None);
    turns.turn().await;
    assert_eq!(outbox.take_pace().len(), 0);
    outbox.set_connected(Some(PACE_SINCE));
    turns.limited(None);
    assert_eq!(outbox.take_pace().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_first_call_waits_for_another_workers_and_says_when_its_own_answer_begins() {
    let rig = rig();
    let began = Instant::now();
    rig.gates.take("lab", &PaceOrder::After { wait_ms: 2_000 });
    rig.turns.turn().await;
    assert_eq!(began.elapsed(), Duration::from_secs(2), "no longer than that");
    rig.gates.take("lab", &PaceOrder::After { wait_ms: 2_000 });
    let waiting = rig.turns.turn();
    rig.gates.take("lab", &PaceOrder::Written);
    waiting.await;
    assert_eq!(began.elapsed(), Duration::from_secs(2), "it is written");
    assert!(!rig.turns.is_limited());
    assert_eq!(rig.said(), []);
    rig.turns.began();
    rig.turns.began();
    assert_eq!(rig.said(), [Pace::Began], "the first answer of the run");
    rig.gates.take("lab", &PaceOrder::After { wait_ms: 2_000 });
    rig.turns.turn().await;
    assert_eq!(began.elapsed(), Duration::from_secs(2), "no later call waits");
}
