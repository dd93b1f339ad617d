use super::*;

fn key(name: &str) -> KeyId {
    KeyId::new("https://lab", Some(name))
}

fn of(orders: &mut mpsc::Receiver<ToWorker>) -> Vec<PaceOrder> {
    std::iter::from_fn(|| orders.try_recv().ok())
        .map(|frame| match frame {
            ToWorker::Pace { provider, order } if provider == "lab" => order,
            other => panic!("{other:?}"),
        })
        .collect()
}

struct Rig {
    gates: std::sync::Arc<Gates>,
    shutdown: CancellationToken,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Gates that are served.
fn served() -> Rig {
    let (gates, shutdown) = (std::sync::Arc::new(Gates::default()), CancellationToken::new());
    let (serving, stop) = (gates.clone(), shutdown.clone());
    tokio::spawn(async move { serving.serve(&stop).await });
    Rig { gates, shutdown }
}

#[test]
fn a_key_is_told_from_others_by_itself_and_its_address() {
    assert_eq!(key("a"), key("a"));
    assert_ne!(key("a"), key("b"));
    assert_ne!(key("a"), KeyId::new("https://other", Some("a")));
    assert_ne!(key("a"), KeyId::new("https://lab", None));
    assert!(!format!("{:?}", key("secret")).contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn all_who_share_the_key_are_told_of_a_limit_and_those_who_come_later_too() {
    let rig = served();
    let (one, mut told_one) = mpsc::channel(8);
    let (two, mut told_two) = mpsc::channel(8);
    let (other, mut told_other) = mpsc::channel(8);
    rig.gates.join(1, "lab", key("a"), &one, true);
    rig.gates.join(2, "lab", key("a"), &two, true);
    rig.gates.join(3, "lab", key("b"), &other, true);
    rig.gates.limited_there(1, "lab", Some(Duration::from_secs(2)));
    rig.gates.limited_there(2, "lab", Some(Duration::from_secs(1)));
    let held = [PaceOrder::Held { wait_ms: 2_000 }];
    assert_eq!((of(&mut told_one), of(&mut told_two)), (held.to_vec(), held.to_vec()), "once");
    assert_eq!(of(&mut told_other), []);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (late, mut told_late) = mpsc::channel(8);
    rig.gates.join(4, "lab", key("a"), &late, true);
    assert_eq!(of(&mut told_late), [PaceOrder::Held { wait_ms: 1_500 }]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(of(&mut told_late), [PaceOrder::Free]);
    assert_eq!(rig.gates.figures(), (0, 0), "nothing is kept of it");
}

#[tokio::test(start_paused = true)]
async fn turns_are_given_one_by_one_to_workers_and_coordinators() {
    let rig = served();
    let (frames, mut told) = mpsc::channel(8);
    rig.gates.join(1, "lab", key("a"), &frames, false);
    rig.gates.limited(&key("a"), Some(Duration::from_secs(1)));
    rig.gates.ask_there(1, "lab", 7);
    let (began, shared) = (Instant::now(), key("a"));
    tokio::join!(rig.gates.turn(&shared, true), rig.gates.turn(&shared, true));
    let both = began.elapsed();
    assert!((1_150..1_400).contains(&both.as_millis()), "{both:?}");
    assert_eq!(of(&mut told), [PaceOrder::Held { wait_ms: 1_000 }], "people go first");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(of(&mut told), [PaceOrder::Turn { turn: 7 }]);
    assert_eq!(rig.gates.wait(&key("a")), None, "it stands open, one by one");
    rig.gates.turn(&key("b"), true).await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_any_more_holds_up_nobody() {
    let rig = served();
    let (frames, told) = mpsc::channel(8);
    rig.gates.join(1, "lab", key("a"), &frames, true);
    rig.gates.limited(&key("a"), Some(Duration::from_secs(1)));
    rig.gates.ask_there(1, "lab", 1);
    tokio::time::timeout(Duration::from_millis(10), rig.gates.turn(&key("a"), true))
        .await
        .expect_err("it is closed");
    // Its link ends as its actor drops its side: no gate keeps it.
    drop(frames);
    assert!(told.is_closed() || told.is_empty());
    let began = Instant::now();
    rig.gates.turn(&key("a"), true).await;
    assert_eq!(began.elapsed().as_millis(), 990);
}

#[tokio::test(start_paused = true)]
async fn a_question_at_a_gate_that_is_gone_is_answered() {
    let rig = served();
    let (frames, mut told) = mpsc::channel(8);
    rig.gates.join(1, "lab", key("a"), &frames, true);
    rig.gates.ask_there(1, "lab", 3);
    assert_eq!(of(&mut told), [PaceOrder::Free]);
    rig.gates.leave(1);
    rig.gates.limited_there(1, "lab", None);
    assert_eq!(rig.gates.figures(), (0, 0), "a link that left has no say");
    rig.gates.limited(&key("a"), Some(Duration::from_secs(3_600)));
    assert_eq!(rig.gates.figures(), (0, 0), "nobody waits for an hour");
}
