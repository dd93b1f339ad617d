//! What every journal has to keep: run against a fresh one, reopened where the promise is about that.

use std::{path::PathBuf, sync::Arc};

use swarm_protocol::{
    Seq, SessionId, SessionState, Timestamp,
    event::{Event, EventLine, SessionSpec},
    frame::Live,
    launch::{AgentLimits, ApiKind, ModelEndpoint, Models},
    permission::PermissionMode,
};
use uuid::Uuid;

use super::{AppendError, Journal};

pub(crate) fn sample_spec() -> SessionSpec {
    let endpoint = ModelEndpoint::plain("demo", "demo", ApiKind::Demo, "");
    SessionSpec {
        repo: PathBuf::from("/home/me/shop"),
        repo_key: "shop-4e1b".to_owned(),
        base: "1".repeat(40),
        base_name: "main".to_owned(),
        target_branch: Some("main".to_owned()),
        title: "refactor auth module".to_owned(),
        models: Models { coordinator: endpoint.clone(), worker: endpoint, helper: None, fallback: None },
        permission_mode: PermissionMode::AcceptEdits,
        max_workers: 8,
        coordinator_max_turns: 200,
        worker_limits: AgentLimits {
            max_turns: 500,
            permission_timeout_ms: 600_000,
            background_grace_ms: 600_000,
            max_tool_concurrency: 10,
            cache_keepalive: false,
            tools: Default::default(),
            classifier_racer: false,
            auto_mode_asks: false,
            git_lock_wait_ms: 30_000,
            sandbox_auto_allow: true,
            sandbox_required: 0,
            sandbox_network: false,
            sandbox: swarm_protocol::launch::SandboxSettings::default(),
            budget: Default::default(),
        },
        worker_restarts: 1,
        notification_window_ms: 50,
        setup: None,
        check: None,
        branch_prefix: "swarm".to_owned(),
        worktree_root: None,
        rules: vec![],
        system_prompt: None,
        tmux: false,
        environment: Default::default(),
        home: PathBuf::from("/home/me"),
        untrusted: vec![],
        budget: Default::default(),
        prefix_sha256: String::new(),
        solo: false,
    }
}

fn state(reason: &str) -> Event {
    Event::SessionState { state: SessionState::Active, waiting_for: None, reason: reason.to_owned() }
}

pub(crate) fn sample_events() -> Vec<Event> {
    vec![Event::SessionCreated { spec: Box::new(sample_spec()) }, state("a task"), state("again")]
}

fn reasons(lines: &[EventLine]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| match &line.event {
            Event::SessionState { reason, .. } => reason.as_str(),
            _ => "other",
        })
        .collect()
}

/// Checks every promise of the trait.
pub(crate) async fn check<J: Journal + 'static>(open: impl Fn() -> J) {
    let at = Timestamp::from_millis(1_796_060_683_031);
    let first = SessionId(Uuid::now_v7());
    let second = SessionId(Uuid::now_v7());
    {
        let journal = open();
        let mut lines = journal.subscribe();

        // Seqs run from 1 without gaps, positions over all sessions.
        let stored = journal.append(first, Seq(0), vec![state("a"), state("b")], at).await.unwrap();
        assert_eq!(stored.iter().map(|line| line.seq).collect::<Vec<_>>(), [Some(Seq(1)), Some(Seq(2))]);
        let stored = journal.append(second, Seq(0), vec![state("c")], at).await.unwrap();
        assert_eq!(stored[0].seq, Some(Seq(1)));

        // A stale writer is refused and stores nothing.
        let refused = journal.append(first, Seq(1), vec![state("stale")], at).await;
        match refused {
            Err(AppendError::Stale { expected, actual, .. }) => {
                assert_eq!((expected, actual), (Seq(1), Seq(2)))
            }
            other => panic!("a stale append was answered by {other:?}"),
        }

        // A batch with an event that cannot be stored is refused whole.
        let live = Event::Live {
            worker_id: None,
            after: Seq(2),
            live: Live::TextDelta { text: "x".to_owned(), thinking: false },
        };
        journal.append(first, Seq(2), vec![state("half"), live.clone()], at).await.unwrap_err();
        assert_eq!(reasons(&journal.read(first, Seq(0), 100).await.unwrap().lines), ["a", "b"]);

        // Subscribers see each stored line once, in order, and live lines between; live ones are not stored.
        journal.publish_live(EventLine {
            seq: None,
            at,
            session_id: Some(first),
            position: None,
            event: live,
        });
        journal.append(first, Seq(2), vec![state("d")], at).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(lines.recv().await.unwrap());
        }
        let kinds: Vec<_> =
            seen.iter().map(|line| (line.seq.map(|seq| seq.0), line.event.is_live())).collect();
        assert_eq!(
            kinds,
            [(Some(1), false), (Some(2), false), (Some(1), false), (None, true), (Some(3), false)]
        );
    }
    {
        // What was stored is there after a reopening, to the letter.
        let journal = Arc::new(open());
        let read = journal.read(first, Seq(0), 100).await.unwrap();
        assert_eq!(reasons(&read.lines), ["a", "b", "d"]);
        assert!(read.damaged.is_none());
        assert_eq!(read.lines[0].at, at);
        assert_eq!(reasons(&journal.read(first, Seq(1), 1).await.unwrap().lines), ["b"]);
        let all = journal.read_all(0, 100).await.unwrap();
        assert_eq!(reasons(&all.lines), ["a", "b", "c", "d"]);
        let positions: Vec<u64> = all.lines.iter().filter_map(|line| line.position).collect();
        assert!(positions.is_sorted_by(|a, b| a < b));
        assert_eq!(journal.position().await.unwrap(), *positions.last().unwrap());
        assert_eq!(reasons(&journal.read_all(positions[1], 100).await.unwrap().lines), ["c", "d"]);
        let sessions = journal.sessions().await.unwrap();
        assert_eq!(
            sessions.iter().map(|stored| (stored.session_id, stored.last)).collect::<Vec<_>>(),
            [(first, Seq(3)), (second, Seq(1))]
        );

        // Of many writers that expect the same seq exactly one wins.
        let tries: Vec<_> = (0..16)
            .map(|n| {
                let journal = Arc::clone(&journal);
                tokio::spawn(async move {
                    journal.append(second, Seq(1), vec![state(&format!("w{n}"))], at).await.is_ok()
                })
            })
            .collect();
        let mut won = 0;
        for attempt in tries {
            won += usize::from(attempt.await.unwrap());
        }
        assert_eq!(won, 1);
        assert_eq!(journal.read(second, Seq(0), 100).await.unwrap().lines.len(), 2);
    }
}
