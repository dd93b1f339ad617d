//! `swarm show` and `swarm explain`: everything about one worker or session.

use serde_json::{Value, json};
use swarm_protocol::{
    Timestamp, WorkerStatus,
    api::{
        ConversationItem, ExplainView, LedgerEntry, SessionDetail, TranscriptPage, WorkerDetail, WorkerView,
    },
    notification::Outcome,
    record::{CommandRun, RecordBody, ToolEffect},
};

use super::super::{
    args::IdArgs,
    error::Result,
    format,
    ids::{Target, Wanted},
    link::Links,
    output::{BOLD, CYAN, DIM, YELLOW, paint},
    pager,
    prefix::Prefixes,
    rows,
    rows::{Columns, Look},
    shell::{Shell, now},
    state::WorkerRow,
    text::{self, visible},
};
use super::{Place, clock, connect};

/// Records of a transcript that `show` looks at for what happened last.
const RECENT: u64 = 40;

/// `swarm show`.
pub(crate) async fn show(shell: &mut Shell, args: &IdArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    match known.resolve(&args.id, Wanted::Any)? {
        Target::Worker(worker) => {
            let detail: WorkerDetail = client.get(&format!("/workers/{}", worker.id)).await?;
            if shell.is_json() {
                let WorkerDetail { worker, prompt, result, outcome, ledger, permission, todo, unread, seq } =
                    &detail;
                let mut fields = serde_json::to_value(worker).unwrap_or_default();
                if let (Value::Object(fields), Value::Object(more)) = (
                    &mut fields,
                    json!({"prompt": prompt, "result": result, "outcome": outcome, "ledger": ledger,
                        "permission": permission, "todo": todo, "unread_messages": unread}),
                ) {
                    fields.extend(more);
                }
                shell.json("worker.state", Some(worker.session_id), Some(*seq), json!({"worker": fields}))?;
                return Ok(0);
            }
            // What it did last is a comfort: a transcript that cannot be read does not spoil the rest.
            let page: Option<TranscriptPage> = match client
                .get::<TranscriptPage>(&format!("/workers/{}/transcript?after=0&limit=1", worker.id))
                .await
            {
                Ok(first) => {
                    let after = first.last.saturating_sub(RECENT);
                    client
                        .get(&format!("/workers/{}/transcript?after={after}&limit={RECENT}", worker.id))
                        .await
                        .ok()
                }
                Err(_) => None,
            };
            let links = links(shell, &client.address).await;
            let text = worker_text(shell, &detail, page.as_ref(), &links, now());
            pager::show(shell, pager::Kind::Text, &text)?;
        }
        Target::Session(session) => {
            let detail: SessionDetail = client.get(&format!("/sessions/{}", session.session_id)).await?;
            if shell.is_json() {
                let mut fields = serde_json::to_value(&detail).unwrap_or_default();
                let mut own = fields.get_mut("session").map(Value::take).unwrap_or_default();
                if let (Value::Object(own), Value::Object(fields)) = (&mut own, &mut fields) {
                    own.remove("session_id");
                    own.remove("seq");
                    fields.remove("session");
                    fields.remove("seq");
                    fields.remove("workers");
                    own.append(fields);
                }
                shell.json("session.state", Some(session.session_id), Some(detail.seq), own)?;
                for worker in &detail.workers {
                    let fields = json!({"worker": worker});
                    shell.json("worker.state", Some(session.session_id), Some(detail.seq), fields)?;
                }
                return Ok(0);
            }
            let links = links(shell, &client.address).await;
            let text = session_text(shell, &detail, &links, now());
            pager::show(shell, pager::Kind::Text, &text)?;
        }
    }
    Ok(0)
}

/// Links of a text for the pager, or for standard output.
async fn links(shell: &Shell, address: &str) -> Links {
    if pager::takes_links(shell, pager::Kind::Text) {
        Links::find(&shell.around, &shell.out, address).await
    } else {
        Links::default()
    }
}

fn labelled(text: &mut String, label: &str, words: &str) {
    text.push_str(&format!("  {} {words}\n", paint(DIM, &text::left(label, 9))));
}

fn worker_text(
    shell: &Shell,
    detail: &WorkerDetail,
    page: Option<&TranscriptPage>,
    links: &Links,
    now: Timestamp,
) -> String {
    let worker = &detail.worker;
    let id = worker.id.suffix();
    let mut shown = format!(
        "{} {}   {}, run {}{}, turn {}\n",
        links.worker(&worker.id, &paint(CYAN, id)),
        paint(BOLD, &visible(&worker.name)),
        status_words(worker),
        worker.run,
        match worker.restarts {
            0 => String::new(),
            n => format!(" (started again {n} ×)"),
        },
        worker.turns
    );
    let base = format::commit(&worker.base);
    let branch = match &worker.branch {
        Some(branch) => format!("{}, base {base}", visible(branch)),
        None if worker.discarded => format!("discarded: swarm restore {id}"),
        None => format!("none kept, base {base}"),
    };
    labelled(&mut shown, "branch", &branch);
    if let Some(into) = &worker.merged_into {
        labelled(&mut shown, "merged", &format!("into {}", visible(into)));
    }
    if worker.worktree_exists {
        let (first, last) = (worker.port_base, worker.port_base.saturating_add(9));
        let path = std::path::Path::new(&worker.worktree);
        let path = links.file(path, &shell.path(path));
        labelled(&mut shown, "worktree", &format!("{path}, ports {first}-{last}"));
    }
    let context = match (worker.context_tokens, worker.context_window) {
        (Some(tokens), Some(window)) if window > 0 => format!(", context {}%", tokens * 100 / window),
        _ => String::new(),
    };
    let cached = match worker.usage.cache_read_tokens {
        0 => String::new(),
        cached => format!(" ({} cached)", format::tokens(cached)),
    };
    labelled(
        &mut shown,
        "model",
        &format!(
            "{}, {} tokens{cached}, {}{context}",
            visible(&worker.model),
            format::tokens(worker.usage.total()),
            format::money(worker.cost_usd)
        ),
    );
    if let Some(cause) = worker.last_cache_break {
        let often = match worker.cache_breaks {
            0 | 1 => "once".to_owned(),
            n => format!("{n} times"),
        };
        let words = format!("not read as expected {often}, last: {}", cause.describe());
        labelled(&mut shown, "cache", &words);
    }
    if let Some(tier) = worker.sandbox_tier {
        labelled(&mut shown, "sandbox", &tier_words(tier));
    }
    if let Some(cause) = &worker.cause {
        labelled(&mut shown, "cause", &visible(cause));
    }
    if !worker.activity.is_empty() {
        labelled(&mut shown, "now", &visible(&worker.activity));
    }
    if !detail.todo.is_empty() {
        let done = detail.todo.iter().filter(|item| item.status == "completed").count();
        let current = detail.todo.iter().find(|item| item.status == "in_progress");
        let current = current.map_or_else(String::new, |item| format!(", now: {}", visible(&item.content)));
        labelled(&mut shown, "todo", &format!("{done} of {}{current}", detail.todo.len()));
    }
    for (at, line) in page.map(recent).unwrap_or_default().iter().enumerate() {
        labelled(&mut shown, if at == 0 { "recent" } else { "" }, line);
    }
    for doubt in &worker.doubts {
        let words = format!("{}: {}", doubt.as_str(), doubt.sentence());
        labelled(&mut shown, "doubt", &paint(YELLOW, &words));
    }
    for message in &detail.unread {
        labelled(&mut shown, "unread", &visible(&message.text));
    }
    if let Some(permission) = &detail.permission {
        let request = &permission.request;
        let asks = format!(
            "{} {} {}: swarm approve {id}",
            request.id,
            visible(&request.tool),
            visible(&request.summary)
        );
        labelled(&mut shown, "asks", &paint(YELLOW, &asks));
        labelled(&mut shown, "", &format!("because {}", visible(&request.why)));
        if let Some(deadline) = permission.deadline_at {
            labelled(&mut shown, "", &format!("{} left", format::age(deadline.millis_since(now))));
        }
    }
    if let Some(result) = detail.result.as_deref().filter(|result| !result.trim().is_empty()) {
        shown.push('\n');
        for line in text::visible_lines(result.trim_end()) {
            shown.push_str(&line);
            shown.push('\n');
        }
    }
    shown
}

fn status_words(worker: &WorkerView) -> String {
    let since = clock(worker.ended_at.unwrap_or(worker.updated_at));
    let waiting = match worker.waiting_for {
        Some(what) => serde_json::to_value(what)
            .ok()
            .and_then(|value| value.as_str().map(|word| format!(" ({word})")))
            .unwrap_or_default(),
        None => String::new(),
    };
    format!("{}{waiting} since {since}", worker.status.as_str())
}

/// What a tier is, in words.
pub(crate) fn tier_words(tier: u8) -> String {
    match tier {
        0 => "tier 0: nothing is confined".to_owned(),
        1 => "tier 1 (namespaces, Landlock, seccomp)".to_owned(),
        2 => "tier 2 (Landlock, seccomp)".to_owned(),
        other => format!("tier {other}"),
    }
}

/// The last tool calls of a transcript: when, what, how it ended.
fn recent(page: &TranscriptPage) -> Vec<String> {
    let mut lines = Vec::new();
    for record in &page.records {
        if let RecordBody::ToolFinished(finished) = &record.body {
            let exit = match &finished.effect {
                ToolEffect::Command(CommandRun { command, exit_code, .. }) => {
                    let exit = exit_code.map_or_else(String::new, |code| format!(", exit {code}"));
                    format!(" {}{exit}", text::cut(&visible(command), 60))
                }
                ToolEffect::Edited { path, .. } => format!(" {}", text::cut_start(&visible(path), 60)),
                ToolEffect::None | ToolEffect::Moves { .. } | ToolEffect::Other { .. } => String::new(),
            };
            lines.push(format!(
                "{} {}{exit}, {}",
                clock(record.timestamp),
                visible(&finished.name),
                format::duration(finished.duration_ms)
            ));
        }
    }
    let skipped = lines.len().saturating_sub(3);
    lines.split_off(skipped)
}

fn session_text(shell: &Shell, detail: &SessionDetail, links: &Links, now: Timestamp) -> String {
    let session = &detail.session;
    let mut shown = format!(
        "{} {}   {}, {} tokens, {}, {}\n",
        links.session(session.session_id, &paint(CYAN, &session.short)),
        paint(BOLD, &visible(&session.title)),
        session
            .verdict
            .filter(|_| session.workers_running == 0)
            .map_or(session.state.as_str(), |verdict| verdict.as_str()),
        format::tokens(session.usage.total()),
        format::cost(&session.cost),
        format::age(session.updated_at.millis_since(session.created_at))
    );
    labelled(&mut shown, "repo", &shell.path(std::path::Path::new(&session.repo)));
    let target = session
        .target_branch
        .as_deref()
        .map_or_else(String::new, |target| format!(", merges go to {}", visible(target)));
    let base = format!("{} {}{target}", visible(&session.base_name), format::commit(&session.base));
    labelled(&mut shown, "base", &base);
    labelled(
        &mut shown,
        "model",
        &format!("{}, {}", visible(&session.model), session.permission_mode.as_str()),
    );
    if let Some(budget) = &session.budget {
        let words = format::budget(budget);
        let words = if format::is_nearly_spent(budget) { paint(YELLOW, &words) } else { words };
        labelled(&mut shown, "budget", &words);
    }
    if let Some(waiting) = &session.waiting_for {
        labelled(&mut shown, "waits for", &visible(waiting));
    }
    if let Some(damaged) = &session.damaged {
        labelled(&mut shown, "damaged", &visible(damaged));
    }
    for task in &detail.tasks {
        labelled(&mut shown, "task", &text::cut(&visible(&task.prompt), 200));
        for reason in &task.reasons {
            labelled(&mut shown, "", &visible(reason));
        }
    }
    let waiting =
        detail.notifications.iter().filter(|entry| !entry.steps.iter().any(|step| step.step == "committed"));
    let waiting = waiting.count();
    if waiting > 0 {
        labelled(
            &mut shown,
            "queue",
            &format!("{} on the way to the coordinator", format::count(waiting as u64, "result")),
        );
    }
    let rows: Vec<WorkerRow> = detail.workers.iter().map(WorkerRow::from).collect();
    let columns = if shell.out.is_terminal {
        Columns::fit(shell.width(), 3)
    } else {
        Columns::natural(
            &rows
                .iter()
                .map(|row| (row.id.suffix().to_owned(), visible(&row.name), rows::doing(row, None, now)))
                .collect::<Vec<_>>(),
        )
    };
    let workers = rows.iter().map(|row| row.id.suffix().to_owned());
    let prefixes = Prefixes::over(workers.chain([session.short.clone()]));
    let look = Look { glyphs: shell.glyphs, links, prefixes: &prefixes };
    for row in &rows {
        let asks = detail.permissions.iter().find(|view| view.request.worker_id == row.id);
        let asks = asks.map(|view| view.request.tool.as_str());
        shown.push_str(rows::still(&columns, look, row, asks, now).trim_end());
        shown.push('\n');
    }
    for item in &detail.conversation {
        conversation(&mut shown, item);
    }
    shown
}

fn conversation(shown: &mut String, item: &ConversationItem) {
    let mut say = |at: Timestamp, who: &str, words: &str| {
        for (line_at, line) in text::visible_lines(words.trim_end()).enumerate() {
            if line_at == 0 {
                shown.push_str(&format!("{} {} {line}\n", paint(DIM, &clock(at)), paint(CYAN, who)));
            } else {
                shown.push_str(&format!("         {line}\n"));
            }
        }
    };
    match item {
        ConversationItem::Person { at, text, .. } => say(*at, "you", text),
        ConversationItem::Coordinator { at, text, .. } => say(*at, "coordinator", text),
        ConversationItem::Call { at, tool, summary, worker_id, is_error, .. } => {
            let about = worker_id.as_ref().map_or_else(String::new, |id| format!(" {}", id.suffix()));
            let failed = if *is_error { " (refused)" } else { "" };
            say(*at, "coordinator", &format!("{tool}{about}: {summary}{failed}"));
        }
        ConversationItem::Woke { at, request, notifications, .. } => {
            for notification in notifications {
                let words = format!("R{request} brings: {}", notification.summary);
                say(*at, notification.key.worker_id.suffix(), &words);
            }
        }
        ConversationItem::Verdict { at, verdict, reasons, .. } => {
            say(*at, "verdict", &format!("{} {}", verdict.as_str(), reasons.join("; ")));
        }
        ConversationItem::Error { at, code, message, .. } => say(*at, "error", &format!("{code}: {message}")),
    }
}

/// `swarm explain`.
pub(crate) async fn explain(shell: &mut Shell, args: &IdArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let worker = known.worker(&args.id)?;
    let view: ExplainView = client.get(&format!("/explain/{}", worker.id)).await?;
    if shell.is_json() {
        shell.json("worker.explain", Some(worker.session_id), None, json!({"explain": view}))?;
        return Ok(0);
    }
    let links = links(shell, &client.address).await;
    let text = explain_text(&view, &links);
    pager::show(shell, pager::Kind::Text, &text)?;
    Ok(0)
}

fn explain_text(view: &ExplainView, links: &Links) -> String {
    let worker = &view.worker;
    let id = worker.id.suffix();
    let mut shown = format!(
        "{} {}   {}, run {}\n",
        links.worker(&worker.id, &paint(CYAN, id)),
        paint(BOLD, &visible(&worker.name)),
        worker.status.as_str(),
        worker.run
    );
    for run in &view.runs {
        if view.runs.len() > 1 {
            let reason = text::cut(&visible(&run.reason), 60);
            shown.push_str(&format!("{}\n", paint(BOLD, &format!("run {}: {reason}", run.run))));
        }
        if let Some(exit) = &run.exit_reason {
            labelled(&mut shown, "ended", &visible(&exit.sentence()));
        } else if worker.status == WorkerStatus::Waiting {
            labelled(&mut shown, "waits", &visible(worker.cause.as_deref().unwrap_or("")));
        }
        if let Some(outcome) = &run.outcome {
            outcome_text(&mut shown, outcome);
        }
    }
    for permission in &view.permissions {
        let request = &permission.request;
        let how = match (&permission.decision, &permission.withdrawn) {
            (Some(decision), _) => {
                format!("{} by {}", super::answers::decided(decision), super::answers::racer(decision.by))
            }
            (None, Some(withdrawn)) => format!("withdrawn: {}", visible(withdrawn)),
            (None, None) => format!("waits: swarm approve {}", request.id),
        };
        labelled(
            &mut shown,
            "asked",
            &format!("{} {} {}: {how}", request.id, visible(&request.tool), visible(&request.summary)),
        );
    }
    for (at, change) in view.changes.iter().enumerate() {
        let label = if at == 0 { "states" } else { "" };
        let words = format!(
            "{} {} {} to {}: {}",
            change.seq,
            clock(change.at),
            change.from.as_str(),
            change.to.as_str(),
            visible(&change.reason)
        );
        labelled(&mut shown, label, &words);
    }
    let mut label = "ledger";
    for LedgerEntry { notification, steps } in &view.ledger {
        for step in steps {
            let what = match (step.step.as_str(), step.request, step.turn) {
                ("sent", Some(request), _) => format!("sent in R{request}"),
                ("committed", _, Some(turn)) => format!("committed      turn {turn}"),
                ("queued", ..) => {
                    let kind = match notification.key.kind {
                        swarm_protocol::notification::NotificationKind::End => "end",
                        swarm_protocol::notification::NotificationKind::Progress => "progress",
                    };
                    format!(
                        "queued         {}, run {}, {kind}",
                        notification.key.worker_id, notification.key.run
                    )
                }
                (other, ..) => other.to_owned(),
            };
            let again = step
                .reason
                .as_deref()
                .map_or_else(String::new, |why| format!("     again: {}", visible(why)));
            labelled(&mut shown, label, &format!("{} {} {what}{again}", step.seq, clock(step.at)));
            label = "";
        }
    }
    shown
}

fn outcome_text(shown: &mut String, outcome: &Outcome) {
    let Outcome { commits, files, dirty, commands, commands_after_last_edit, check, doubts, notes, .. } =
        outcome;
    let last = commits.last().map_or_else(String::new, |commit| format!(" ({})", format::commit(commit)));
    let dirty = if dirty.is_empty() {
        "nothing left dirty".to_owned()
    } else {
        format!("{} left dirty", format::count(dirty.len() as u64, "file"))
    };
    labelled(
        shown,
        "evidence",
        &format!(
            "{}{last}, {} +{} -{}, check {}, {dirty}",
            format::count(commits.len() as u64, "commit"),
            format::count(files.len() as u64, "file"),
            outcome.insertions(),
            outcome.deletions(),
            check.as_str()
        ),
    );
    let after = commands.len().saturating_sub(usize::try_from(*commands_after_last_edit).unwrap_or(0));
    for (at, command) in commands.iter().enumerate() {
        let how = match (&command.exit_code, &command.ended_by) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(by)) => visible(by),
            (None, None) => "no exit".to_owned(),
        };
        let place = if at >= after { "after the last edit" } else { "before the last edit" };
        let words = format!("{}: {how}, {place}", text::cut(&visible(&command.command), 100));
        labelled(shown, if at == 0 { "commands" } else { "" }, &words);
    }
    if doubts.is_empty() {
        labelled(shown, "doubts", "none");
    }
    for doubt in doubts {
        labelled(shown, "doubt", &paint(YELLOW, &format!("{}: {}", doubt.as_str(), doubt.sentence())));
    }
    for (label, lines) in
        [("killed", &outcome.children_killed), ("outside", &outcome.foreign_changes), ("note", notes)]
    {
        for line in lines {
            labelled(shown, label, &visible(line));
        }
    }
}
