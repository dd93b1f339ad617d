//! Home by need: which group a worker is in, its word, its glyph, the one fact that matters. One table for
//! every surface (reference, dashboard 3.1). Pure.

use swarm_protocol::{
    SessionState, Timestamp, WaitingFor, WorkerStatus,
    api::{OverviewRow, SessionView, WorkerView},
    launch::Expects,
    notification::Doubt,
    status::WAITS_FOR_PLACE,
};

use crate::ordinal::ordinal;

/// Silence longer than this is worth a look.
const QUIET_MS: u64 = 5 * 60 * 1000;

/// Groups in their fixed order.
pub(crate) const GROUPS: [&str; 7] = ["needs_you", "failed", "ready", "watch", "working", "queued", "done"];

struct Place {
    group: &'static str,
    word: String,
    glyph: &'static str,
    fact: String,
    /// Page under the worker's.
    page: &'static str,
}

fn place(worker: &WorkerView, now: Timestamp) -> Place {
    let make = |group, word: &str, glyph, fact: String, page| Place {
        group,
        word: word.to_owned(),
        glyph,
        fact,
        page,
    };
    let changes = changes_of(worker);
    let cause = worker.cause.clone().unwrap_or_default();
    let quiet = now.millis_since(worker.updated_at);
    match (worker.status, worker.waiting_for) {
        (WorkerStatus::Waiting, Some(WaitingFor::Permission)) => {
            make("needs_you", "Permission", "▲", cause, "")
        }
        (WorkerStatus::Waiting, Some(WaitingFor::Model)) => make("watch", "Waits for model", "◌", cause, ""),
        (WorkerStatus::Waiting, Some(WaitingFor::Server)) => make("watch", "Reconnecting", "◌", cause, ""),
        (WorkerStatus::Waiting, _) => make("working", "Waits for own jobs", "◐", cause, ""),
        (WorkerStatus::Pending, _) => {
            let word = worker
                .position
                .map_or("Queued".to_owned(), |position| format!("Queued, {}", ordinal(position)));
            let fact = if cause == WAITS_FOR_PLACE { String::new() } else { cause };
            make("queued", &word, "○", fact, "")
        }
        (WorkerStatus::Starting, _) => make("working", "Setting up", "◐", worker.activity.clone(), ""),
        (WorkerStatus::Running, _) if quiet > QUIET_MS => {
            make("watch", &format!("Quiet {} m", quiet / 60_000), "◌", worker.activity.clone(), "")
        }
        (WorkerStatus::Running, _) => make("working", "Working", "◐", worker.activity.clone(), ""),
        (WorkerStatus::Finishing, _) => make("working", "Finishing", "◐", String::new(), ""),
        (WorkerStatus::Failed | WorkerStatus::Aborted, _) if worker.discarded => {
            make("done", "Discarded", "⌫", "kept for 30 days".to_owned(), "")
        }
        (WorkerStatus::Failed, _) => make("failed", "Failed", "✕", cause, ""),
        (WorkerStatus::Aborted, _) => {
            let by = if worker.stopped_by_person { "Stopped by you" } else { "Stopped by coordinator" };
            make("done", by, "⊘", changes, "")
        }
        (WorkerStatus::Completed, _) => ended(worker, changes, make),
    }
}

fn ended(
    worker: &WorkerView,
    changes: String,
    make: impl Fn(&'static str, &str, &'static str, String, &'static str) -> Place,
) -> Place {
    if let Some(into) = &worker.merged_into {
        return make("done", &format!("Merged into {into}"), "✓✓", changes, "/review");
    }
    if worker.discarded {
        return make("done", "Discarded", "⌫", "kept for 30 days".to_owned(), "");
    }
    if !worker.doubts.is_empty() {
        let doubts: Vec<&str> = worker.doubts.iter().map(|doubt| doubt.sentence()).collect();
        let doubt = match (worker.doubts.as_slice(), worker.branch.is_some()) {
            ([Doubt::NoChange], _) => "No change".to_owned(),
            ([_], true) => "Ready, 1 doubt".to_owned(),
            (many, true) => format!("Ready, {} doubts", many.len()),
            (many, false) => format!("Ended, {} doubts", many.len()),
        };
        let page = if worker.branch.is_some() { "/review" } else { "" };
        return make("needs_you", &doubt, "◆", doubts.join("; "), page);
    }
    match (&worker.branch, worker.expects) {
        (Some(_), _) => make("ready", "Ready to review", "✓", changes, "/review"),
        (None, Expects::Report) => make("done", "Reported", "✓", String::new(), ""),
        (None, Expects::Changes) => make("done", "Nothing to change", "–", String::new(), ""),
    }
}

/// `2 files +14 −3`, with a true minus.
fn changes_of(worker: &WorkerView) -> String {
    let files = if worker.files_changed == 1 { "file" } else { "files" };
    format!("{} {files} +{} \u{2212}{}", worker.files_changed, worker.insertions, worker.deletions)
}

/// The row of a worker.
pub(crate) fn worker_row(
    worker: WorkerView,
    title: &str,
    deadline_at: Option<Timestamp>,
    now: Timestamp,
) -> OverviewRow {
    let Place { group, word, glyph, fact, page } = place(&worker, now);
    OverviewRow {
        group: group.to_owned(),
        word,
        glyph: glyph.to_owned(),
        fact,
        session_id: worker.session_id,
        title: title.to_owned(),
        deadline_at,
        link: format!("/w/{}{page}", worker.id),
        worker: Some(worker),
    }
}

/// What a session itself needs, if it needs something.
pub(crate) fn session_row(session: &SessionView) -> Option<OverviewRow> {
    let needs_key = session.state == SessionState::Waiting && session.waiting_for.as_deref() == Some("key");
    let (word, fact) = match (needs_key, &session.damaged) {
        (true, _) => ("Needs a key".to_owned(), format!("swarm resume {}", session.short)),
        (false, Some(problem)) => ("Damaged".to_owned(), problem.clone()),
        (false, None) => return None,
    };
    Some(OverviewRow {
        group: "needs_you".to_owned(),
        word,
        glyph: "▲".to_owned(),
        fact,
        worker: None,
        session_id: session.session_id,
        title: session.title.clone(),
        deadline_at: None,
        link: format!("/s/{}", session.session_id),
    })
}

/// Sorts rows into the fixed order: groups first; who waits longest on top, what ended last on top of done.
pub(crate) fn sort(rows: &mut [OverviewRow]) {
    rows.sort_by_key(|row| {
        let group = GROUPS.iter().position(|group| *group == row.group).unwrap_or(GROUPS.len());
        let worker = row.worker.as_ref();
        let since = match row.group.as_str() {
            "needs_you" => row
                .deadline_at
                .map(Timestamp::as_millis)
                .or(worker.map(|worker| worker.updated_at.as_millis())),
            "ready" | "failed" => worker.and_then(|worker| worker.ended_at).map(Timestamp::as_millis),
            "done" => worker.and_then(|worker| worker.ended_at).map(|ended| -ended.as_millis()),
            _ => worker.map(|worker| worker.spawned_at.as_millis()),
        };
        (group, since.unwrap_or(0))
    });
}
