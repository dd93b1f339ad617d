//! `swarm logs`: what happened, line by line, from any cursor, once or as it goes on.

use futures::StreamExt;
use serde_json::Value;
use swarm_protocol::{
    Seq, SessionId, Timestamp, WorkerId, WorkerStatus,
    api::SessionDetail,
    event::{BudgetChange, Event, EventLine, WorkerPlace},
    frame::Command,
};

use super::super::{
    args::LogsArgs,
    client::StreamItem,
    error::Result,
    format,
    ids::{Target, Wanted},
    output::{CYAN, DIM, GREEN, RED, YELLOW, paint},
    shell::Shell,
    text::{left, visible, visible_with_colour, width},
};
use super::{Place, clock, connect};

/// `swarm logs`.
pub(crate) async fn logs(shell: &mut Shell, args: &LogsArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let (session, worker_id) = match known.resolve(&args.id, Wanted::Any)? {
        Target::Worker(worker) => {
            let detail: SessionDetail = client.get(&format!("/sessions/{}", worker.session_id)).await?;
            (detail.session, Some(worker.id))
        }
        // What the list says is enough, and all there is of a damaged one.
        Target::Session(session) => (*session, None),
    };
    let (session_id, last) = (session.session_id, session.seq);
    let mut cursor = Seq(args.since.unwrap_or(0));
    let began = session.damaged.is_none().then_some(session.created_at);
    let mut log = Log { session_id, worker_id, began };
    if !args.follow && cursor >= last {
        return Ok(0);
    }
    let mut events = client.events(session_id, cursor).await?;
    while let Some(item) = events.next().await {
        // What was lost while we were slow is live news, which no log holds.
        let StreamItem::Event(value) = item? else { continue };
        log.take(shell, value, &mut cursor)?;
        if !args.follow && cursor >= last {
            break;
        }
    }
    Ok(0)
}

struct Log {
    session_id: SessionId,
    worker_id: Option<WorkerId>,
    /// Times are counted from here; from the first line, where the session cannot say.
    began: Option<Timestamp>,
}

impl Log {
    fn take(&mut self, shell: &mut Shell, value: Value, cursor: &mut Seq) -> Result<()> {
        let raw = shell.is_json().then(|| value.clone());
        // What is no event of this version is passed over, its cursor is not.
        if let Some(seq) = value.get("seq").and_then(Value::as_u64) {
            *cursor = Seq(seq);
        }
        let Ok(Some(line)) = EventLine::from_json(value) else { return Ok(()) };
        if line.session_id.is_some_and(|session_id| session_id != self.session_id) {
            return Ok(());
        }
        if let (Some(wanted), about) = (&self.worker_id, line.event.worker_id())
            && about != Some(wanted)
        {
            return Ok(());
        }
        if let Some(raw) = raw {
            return Ok(shell.out.bytes(format!("{raw}\n").as_bytes())?);
        }
        let when = if shell.out.is_terminal {
            clock(line.at)
        } else {
            let began = *self.began.get_or_insert(line.at);
            let seconds = line.at.millis_since(began) / 1000;
            format!("[{:02}:{:02}]", seconds / 60, seconds % 60)
        };
        let cells = shell.out.is_terminal.then(|| shell.width());
        for text in lines(&line, &when, cells) {
            shell.out.line(text.trim_end())?;
        }
        Ok(())
    }
}

/// An event in words: most are one line, some none.
fn lines(line: &EventLine, when: &str, cells: Option<usize>) -> Vec<String> {
    let who = line.event.worker_id().map(WorkerId::suffix);
    let head = format!(
        "{} {}",
        paint(DIM, when),
        who.map_or_else(String::new, |id| format!("{} ", paint(CYAN, id)))
    );
    let one = |words: String| vec![format!("{head}{words}")];
    match &line.event {
        Event::SessionCreated { spec } => one(format!("session: {}", visible(&spec.title))),
        Event::SessionState { state, reason, .. } => {
            one(format!("session {}: {}", state.as_str(), visible(reason)))
        }
        Event::TaskAccepted { prompt, .. } => one(format!("you said {}", visible(prompt))),
        Event::TaskFinished { verdict, reasons, .. } => {
            one(format!("verdict {} {}", verdict.as_str(), visible(&reasons.join("; "))))
        }
        Event::MessageQueued { text, .. } => one(format!("you said {}", visible(text))),
        Event::CoordinatorTurn { assistant, .. } => {
            let said = assistant.as_ref().map(swarm_protocol::Message::text).unwrap_or_default();
            said.lines()
                .filter(|words| !words.trim().is_empty())
                .map(|words| format!("{head}{}", visible_with_colour(words)))
                .collect()
        }
        Event::WorkerSpawned { spec, .. } => one(format!("spawned: {}", visible(&spec.name))),
        Event::WorkerRun { run, reason, restarts, .. } => match (run.0, restarts) {
            (1, 0) => Vec::new(),
            (_, 0) => one(format!("run {run}: {}", visible(reason))),
            (_, n) => one(format!("started again ({n}): {}", visible(reason))),
        },
        Event::WorkerState { status, reason, .. } => {
            let style = match status {
                WorkerStatus::Completed => GREEN,
                WorkerStatus::Failed => RED,
                WorkerStatus::Aborted | WorkerStatus::Waiting => YELLOW,
                WorkerStatus::Pending
                | WorkerStatus::Starting
                | WorkerStatus::Running
                | WorkerStatus::Finishing => DIM,
            };
            one(format!("{} {}", paint(style, status.as_str()), visible(reason)))
        }
        Event::WorkerCommand { command, .. } => match command {
            Command::Message { text, from_person, .. } => {
                one(format!("{} says {}", if *from_person { "you" } else { "coordinator" }, visible(text)))
            }
            Command::Stop { reason, .. } => one(format!("is told to stop: {}", visible(reason))),
            Command::Interrupt
            | Command::Decision { .. }
            | Command::AddRule { .. }
            | Command::SetPermissionMode { .. }
            | Command::Grant { .. }
            | Command::NoGrant { .. }
            | Command::Restore { .. } => Vec::new(),
        },
        Event::WorkerRecord { record, .. } => {
            let mut all = Vec::new();
            if record.record == "assistant" && !record.head.trim().is_empty() {
                all.push(format!("{head}says {}", visible_with_colour(&record.head)));
            }
            for tool in record.tools.iter().filter(|tool| tool.is_error.is_some()) {
                let words = format!("{} {}", visible(&tool.name), visible(&tool.summary));
                let mut end = String::new();
                if let Some(code) = tool.exit_code {
                    end.push_str(&format!("exit {code}  "));
                } else if let Some((added, removed)) = tool.lines {
                    end.push_str(&format!("+{added} -{removed}  "));
                } else if tool.is_error == Some(true) {
                    end.push_str("failed  ");
                }
                if let Some(millis) = tool.duration_ms {
                    end.push_str(&format::duration(millis));
                }
                let end = if tool.is_error == Some(true) {
                    paint(RED, end.trim_end())
                } else {
                    end.trim_end().to_owned()
                };
                all.push(match cells {
                    // The figures stand at the edge, the words are cut.
                    Some(cells) => {
                        let plain = width(&anstream::adapter::strip_str(&format!("{head}{end}")).to_string());
                        format!("{head}{} {end}", left(&words, cells.saturating_sub(plain + 2)))
                    }
                    None => format!("{head}{words}  {end}"),
                });
            }
            all
        }
        Event::PermissionRequested { request } => {
            one(format!("asks {} {} {}", request.id, visible(&request.tool), visible(&request.summary)))
        }
        Event::PermissionDecided { decision, .. } => one(format!(
            "{} {} by {}",
            decision.id,
            super::answers::decided(decision),
            super::answers::racer(decision.by)
        )),
        Event::PermissionJudged { request, decision } => one(format!(
            "{} {} by {}: {} {}",
            request.id,
            super::answers::decided(decision),
            super::answers::racer(decision.by),
            visible(&request.tool),
            visible(&request.summary)
        )),
        Event::PermissionWithdrawn { id, reason } => one(format!("{id} withdrawn: {}", visible(reason))),
        Event::ReviewMerged { into, from, to, .. } => {
            one(format!("merged into {}: {}..{}", visible(into), format::commit(from), format::commit(to)))
        }
        Event::ReviewDiscarded { .. } => one("discarded".to_owned()),
        Event::ReviewRestored { what, .. } => one(format!("restored: {}", visible(what))),
        Event::Error { code, message, .. } => {
            one(paint(RED, &format!("error {}: {}", visible(code), visible(message))))
        }
        Event::TaskCallback { note, .. } => one(format!("callback: {}", visible(note))),
        Event::NotificationQueued { notification } => {
            one(format!("reports: {}", visible(&notification.summary)))
        }
        Event::CoordinatorCompacted { .. } => one("coordinator's history compacted".to_owned()),
        Event::WorkerRewound { n, .. } => one(format!("lost its records after {n}")),
        Event::WorkerMoved { place, .. } => one(match place {
            WorkerPlace::Worktree { branch, .. } => {
                format!("goes on in its worktree, branch {}", visible(branch))
            }
            WorkerPlace::Checkout { kept: true, .. } => {
                "goes on in your checkout; its branch stays".to_owned()
            }
            WorkerPlace::Checkout { kept: false, .. } => {
                "goes on in your checkout; its worktree goes into the recycle bin".to_owned()
            }
        }),
        Event::WorkerWorktree { reason, exists, .. } => {
            one(format!("worktree {}: {}", if *exists { "made" } else { "removed" }, visible(reason)))
        }
        Event::SessionPermissionMode { mode } => one(format!("permission mode {}", mode.as_str())),
        Event::SessionKeys { providers } => one(format!("key of {}", visible(&providers.join(", ")))),
        Event::Budget { change, .. } => match change {
            BudgetChange::Refused { budget, .. } => {
                one(paint(YELLOW, &format!("budget used up: {}", visible(budget))))
            }
            BudgetChange::Warned { percent } => {
                one(paint(YELLOW, &format!("{percent} % of the session's budget is spent")))
            }
            BudgetChange::Requested { .. } | BudgetChange::Granted { .. } | BudgetChange::Freed { .. } => {
                Vec::new()
            }
        },
        Event::SessionRule { rule } => one(format!("rule {}", visible(&rule.text))),
        Event::CoordinatorRequest { .. }
        | Event::CoordinatorIntent { .. }
        | Event::CoordinatorTool { .. }
        | Event::CoordinatorNote { .. }
        | Event::CoordinatorHelper { .. }
        | Event::CoordinatorExit { .. }
        | Event::WorkerProcess { .. }
        | Event::WorkerCommandSettled { .. }
        | Event::WorkerRunEnded { .. }
        | Event::NotificationSent { .. }
        | Event::NotificationCommitted { .. }
        | Event::Live { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use swarm_protocol::record::ToolHead;

    use super::*;
    use crate::cli::fixtures;

    #[test]
    fn a_command_with_its_end_at_the_edge() {
        let mut record = fixtures::record_head("tool_finished", 0, None);
        record.tools.push(ToolHead {
            tool_use_id: "toolu_1".parse().unwrap(),
            name: "Bash".to_owned(),
            summary: "python -m pytest -q".to_owned(),
            is_error: Some(true),
            duration_ms: Some(3_240),
            exit_code: Some(1),
            lines: None,
            moves: None,
        });
        let event = Event::WorkerRecord { worker_id: "agent-h7q".parse().unwrap(), record, started: None };
        let line = fixtures::event(Some(1), event);
        let text = lines(&line, "17:44:11", Some(80)).concat();
        expect!["17:44:11 h7q Bash python -m pytest -q                              exit 1  3.2s"]
            .assert_eq(&anstream::adapter::strip_str(&text).to_string());
    }
}
