//! The end of a run: every worker once more, the verdict, and what to do next. For programs: the result line.

use serde_json::{Value, json};
use swarm_protocol::{
    SessionId, Timestamp, Verdict,
    api::{SessionView, TaskView, WorkerView},
    usage::Cost,
};

use super::{
    format,
    glyph::Class,
    output::{DIM, GREEN, RED, YELLOW, paint},
    rows::{self, Columns, Look},
    state::WorkerRow,
    text::{cut, visible},
};

/// What a summary is made from.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    pub(crate) session: &'a SessionView,
    pub(crate) task: &'a TaskView,
    /// Cells of the terminal; without one nothing is cut.
    pub(crate) width: Option<usize>,
    pub(crate) look: Look<'a>,
    pub(crate) now: Timestamp,
}

/// The table, the verdict line, and the commands that come next.
pub(crate) fn text(summary: &Summary<'_>) -> String {
    let Summary { session, task, width, look, now } = summary;
    let rows: Vec<(WorkerRow, &WorkerView)> =
        task.workers.iter().map(|view| (WorkerRow::from(view), view)).collect();
    let columns = match width {
        Some(width) => {
            Columns::fit(*width, rows.iter().map(|(row, _)| row.id.suffix().len()).max().unwrap_or(3))
        }
        None => Columns::natural(
            &rows
                .iter()
                .map(|(row, _)| (row.id.suffix().to_owned(), visible(&row.name), String::new()))
                .collect::<Vec<_>>(),
        ),
    };
    let limited = |line: String| match width {
        Some(width) => cut(&line, width.saturating_sub(1)),
        None => line,
    };
    let mut shown = String::new();
    for (row, view) in &rows {
        shown.push_str(rows::ended(&columns, *look, row, *now).trim_end());
        shown.push('\n');
        if let Some(branch) = &view.branch {
            shown.push_str(&format!("{}\n", paint(DIM, &limited(format!("      {}", visible(branch))))));
        }
        for doubt in &view.doubts {
            let words = limited(format!("      doubt {}: {}", doubt.as_str(), doubt.sentence()));
            shown.push_str(&format!("{}\n", paint(YELLOW, &words)));
        }
        if Class::of(row) == Class::Failed {
            let reason = view.exit_reason.as_deref().unwrap_or("failed");
            let cause = view.cause.as_deref().unwrap_or_default();
            // The cause of a model's error begins with its kind; the reason says it is one.
            let words = if cause.is_empty() {
                visible(reason)
            } else {
                format!("{}: {}", visible(reason), visible(cause))
            };
            shown.push_str(&format!("{}\n", paint(RED, &limited(format!("      {words}")))));
        }
    }
    shown.push_str(&verdict_line(summary, &rows));
    shown.push('\n');
    for reason in task.reasons.iter().filter(|_| rows.is_empty()) {
        shown.push_str(&format!("  {}\n", visible(reason)));
    }
    if let Some(next) = next(session, task, &rows) {
        shown.push_str(&format!("{} {next}\n", paint(DIM, "next:")));
    }
    shown
}

fn verdict_line(summary: &Summary<'_>, rows: &[(WorkerRow, &WorkerView)]) -> String {
    let Summary { session, task, now, .. } = summary;
    let verdict = task.verdict.unwrap_or(Verdict::Failed);
    let style = match verdict {
        Verdict::Complete => GREEN,
        Verdict::Degraded => YELLOW,
        Verdict::Failed => RED,
    };
    let count = |class: Class| rows.iter().filter(|(row, _)| Class::of(row) == class).count();
    let parts: Vec<String> = [
        (count(Class::Done), "done"),
        (count(Class::Doubt), "with doubts"),
        (count(Class::Failed), "failed"),
        (count(Class::Stopped), "stopped"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, word)| format!("{count} {word}"))
    .collect();
    let what = match (parts.is_empty(), task.exit_reason.as_deref()) {
        (false, _) => parts.join(", "),
        (true, Some("completed") | None) => "no worker was needed".to_owned(),
        (true, Some(reason)) => visible(reason),
    };
    let own = Cost { known_usd: (session.cost.known_usd - workers_cost(rows)).max(0.0), unpriced_calls: 0 };
    let own = match (rows.is_empty(), session.cost_usd) {
        (false, Some(_)) => format!(" (own {})", format::cost(&own)),
        _ => String::new(),
    };
    let took = task.finished_at.unwrap_or(*now).millis_since(task.accepted_at);
    format!(
        "{}: {what}   {}  {}{own}  {}",
        paint(style, verdict.as_str()),
        format::tokens(task.usage.total()),
        format::cost(&session.cost),
        format::duration(took)
    )
}

fn workers_cost(rows: &[(WorkerRow, &WorkerView)]) -> f64 {
    rows.iter().filter_map(|(row, _)| row.cost_usd).sum()
}

/// What a person would do now: look where there is doubt, take what is good, ask why something failed.
fn next(session: &SessionView, task: &TaskView, rows: &[(WorkerRow, &WorkerView)]) -> Option<String> {
    let first = |wanted: fn(Class) -> bool, has_branch: bool| {
        rows.iter()
            .find(|(row, view)| wanted(Class::of(row)) && (!has_branch || view.branch.is_some()))
            .map(|(row, _)| row.id.suffix().to_owned())
    };
    let mut commands = Vec::new();
    if let Some(id) = first(|class| class == Class::Doubt, true) {
        commands.push(format!("swarm diff {id}"));
    }
    if let Some(id) = first(|class| class == Class::Done, true) {
        if commands.is_empty() {
            commands.push(format!("swarm diff {id}"));
        }
        commands.push(format!("swarm merge {id}"));
    }
    if let Some(id) = first(|class| class == Class::Failed, false) {
        commands.push(format!("swarm explain {id}"));
    }
    if first(|class| class == Class::Stopped, false).is_some() {
        commands.push(format!("swarm resume {}", session.short));
    }
    if commands.is_empty() && task.verdict != Some(Verdict::Complete) {
        commands.push(format!("swarm show {}", session.short));
    }
    (!commands.is_empty()).then(|| commands.join(", "))
}

/// The fields of `session.result`.
pub(crate) fn result(task: &TaskView) -> Value {
    json!({
        "task_id": task.task_id,
        "verdict": task.verdict,
        "reasons": task.reasons,
        "exit_reason": task.exit_reason,
        "exit_detail": task.exit_detail,
        "text": task.text,
        "usage": task.usage,
        "cost_usd": task.cost_usd,
        "workers": task.workers,
    })
}

/// How to come back to a session that was left.
pub(crate) fn left(session_id: SessionId) -> String {
    let short = session_id.short();
    format!("left {short} running: swarm attach {short}, swarm stop {short}")
}

#[cfg(test)]
mod tests;
