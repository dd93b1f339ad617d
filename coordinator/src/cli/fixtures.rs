//! Sessions, workers and events for tests.

use swarm_protocol::{
    RunNumber, Seq, Timestamp, Usage, WorkerStatus,
    api::{PermissionView, SessionView, WorkerView},
    event::{Event, EventLine},
    launch::{Expects, Isolation},
    permission::{PermissionMode, PermissionRequest},
    record::RecordHead,
    usage::Cost,
};

pub(crate) const SESSION: &str = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2";

pub(crate) fn session(id: &str, title: &str) -> SessionView {
    let session_id: swarm_protocol::SessionId = id.parse().unwrap();
    SessionView {
        session_id,
        short: session_id.short(),
        title: title.to_owned(),
        repo: "/repo".to_owned(),
        state: swarm_protocol::SessionState::Active,
        waiting_for: None,
        base: "3f9ac21e0c5b7d1a4f6e8890b2c3d4e5f6a7b8c9".to_owned(),
        base_name: "main".to_owned(),
        target_branch: Some("main".to_owned()),
        model: "anthropic/NAME".to_owned(),
        permission_mode: PermissionMode::AcceptEdits,
        task_id: None,
        verdict: None,
        workers: 0,
        workers_running: 0,
        queued: 0,
        asks: 0,
        usage: Usage { input_tokens: 95_120, output_tokens: 8_011, ..Usage::default() },
        own_usage: Usage::default(),
        cost_usd: Some(0.51),
        cost: Cost::usd(0.51),
        budget: None,
        created_at: Timestamp::from_millis(0),
        updated_at: Timestamp::from_millis(0),
        seq: Seq(412),
        damaged_events: 0,
        damaged: None,
    }
}

pub(crate) fn worker(id: &str, name: &str) -> WorkerView {
    WorkerView {
        id: id.parse().unwrap(),
        name: name.to_owned(),
        status: WorkerStatus::Running,
        exit_reason: None,
        exit_detail: None,
        doubts: Vec::new(),
        branch: None,
        base: "3f9ac21e0c5b7d1a4f6e8890b2c3d4e5f6a7b8c9".to_owned(),
        commits: 0,
        files_changed: 0,
        insertions: 0,
        deletions: 0,
        turns: 0,
        usage: Usage::default(),
        cost_usd: Some(0.0),
        session_id: SESSION.parse().unwrap(),
        task_id: "01a22d8c-a610-7b1d-9a44-000000000001".parse().unwrap(),
        run: RunNumber::FIRST,
        agent_type: "general-purpose".to_owned(),
        isolation: Isolation::Worktree,
        expects: Expects::Changes,
        model: "anthropic/NAME".to_owned(),
        waiting_for: None,
        cause: None,
        request_id: None,
        position: None,
        activity: String::new(),
        context_tokens: None,
        context_window: None,
        cache_breaks: 0,
        last_cache_break: None,
        worktree: "/w".to_owned(),
        worktree_exists: true,
        port_base: 41_200,
        sandbox_tier: Some(2),
        pid: None,
        restarts: 0,
        merged_into: None,
        discarded: false,
        stopped_by_person: false,
        unread: 0,
        snapshots: 0,
        spawned_at: Timestamp::from_millis(0),
        updated_at: Timestamp::from_millis(0),
        ended_at: None,
        age_ms: 0,
    }
}

pub(crate) fn permission(id: &str, worker_id: &str, command: &str) -> PermissionView {
    PermissionView {
        request: PermissionRequest {
            id: id.parse().unwrap(),
            worker_id: worker_id.parse().unwrap(),
            run: RunNumber::FIRST,
            tool_use_id: "toolu_1".parse().unwrap(),
            tool: "Bash".to_owned(),
            input: serde_json::json!({"command": command}),
            summary: command.to_owned(),
            why: "commands have no network".to_owned(),
            proposed_rule: Some("Bash(pip install *)".to_owned()),
            description: None,
            requested_at: Timestamp::from_millis(130_000),
            timeout_ms: 600_000,
            cwd: Some("/w".to_owned()),
            args_hash: "5a1d".to_owned(),
        },
        session_id: SESSION.parse().unwrap(),
        worker_name: "Add auth tests".to_owned(),
        deadline_at: None,
        always_file: Some(".claude/settings.local.json".to_owned()),
        decision: None,
        withdrawn: None,
        sandbox_tier: Some(2),
        joined: Vec::new(),
        racers: Vec::new(),
        wrote_rule: None,
    }
}

pub(crate) fn event(seq: Option<u64>, event: Event) -> EventLine {
    EventLine {
        seq: seq.map(Seq),
        at: Timestamp::from_millis(0),
        session_id: Some(SESSION.parse().unwrap()),
        position: None,
        event,
    }
}

/// A worker came from this status to that of the view.
pub(crate) fn worker_state(seq: u64, view: &WorkerView, from: WorkerStatus) -> EventLine {
    event(
        Some(seq),
        Event::WorkerState {
            worker_id: view.id.clone(),
            from,
            status: view.status,
            waiting_for: view.waiting_for,
            position: None,
            reason: String::new(),
            worker: Some(Box::new(view.clone())),
        },
    )
}

pub(crate) fn record_head(record: &str, input_tokens: u64, cost: Option<Cost>) -> RecordHead {
    RecordHead {
        n: 1,
        uuid: uuid::Uuid::nil(),
        timestamp: Timestamp::from_millis(0),
        run: RunNumber::FIRST,
        record: record.to_owned(),
        bytes: 10,
        head: String::new(),
        model: None,
        usage: Some(Usage { input_tokens, ..Usage::default() }),
        cost,
        tools: Vec::new(),
    }
}
