//! `swarm attach` and `resume`: follow what runs already. A worker is watched as text, and spoken to.

use futures::StreamExt;
use serde_json::{Value, json};
use swarm_protocol::{
    Seq, SessionId, WorkerId,
    api::{
        MessageAccepted, ResumeBody, ResumeView, SendMessageBody, SessionDetail, TaskView, WorkerDetail,
        WorkerView,
    },
    event::{Event, EventLine},
    frame::Live,
};

use super::super::{
    args::{IdArgs, ResumeArgs},
    client::{Client, StreamItem},
    error::Result,
    follow::{self, Ending, Plan},
    format,
    ids::{Target, Wanted},
    output::{BOLD, CYAN, DIM, YELLOW, paint},
    repository,
    shell::Shell,
    signals::{Early, Signal, Signals},
    state::StateView,
    task,
    text::{visible, visible_with_colour},
};
use super::{Place, connect, run};

/// `swarm attach`.
pub(crate) async fn attach(shell: &mut Shell, args: &IdArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    match known.resolve(&args.id, Wanted::Any)? {
        Target::Worker(worker) => watch(shell, &client, &worker).await,
        Target::Session(session) => follow_session(shell, &client, session.session_id, None).await,
    }
}

/// `swarm resume`.
pub(crate) async fn resume(shell: &mut Shell, args: &ResumeArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let session = known.session(&args.id)?;
    let context = context(shell)?;
    let path = format!("/sessions/{}/resume", session.session_id);
    let before: SessionDetail = client.get(&format!("/sessions/{}", session.session_id)).await?;
    let view: ResumeView = client.post(&path, &ResumeBody { client: Some(context) }).await?;
    let workers = match view.workers.len() {
        1 => "1 worker goes on".to_owned(),
        n => format!("{n} workers go on"),
    };
    let results = match view.queued {
        1 => "1 result was waiting".to_owned(),
        n => format!("{n} results were waiting"),
    };
    if !shell.is_json() {
        let words = format!("resumed {}: {workers}, {results}", session.short);
        if args.detach {
            shell.out.line(&words)?;
        } else {
            shell.notice(&words);
        }
    }
    if args.detach {
        if shell.is_json() {
            shell.json(
                "session.resumed",
                Some(session.session_id),
                Some(view.after),
                json!({"resumed": view}),
            )?;
        }
        return Ok(0);
    }
    follow_session(shell, &client, session.session_id, Some(before)).await
}

/// What this shell could give a server that lost its keys. Settings that are wrong here do not keep anybody
/// from looking.
fn context(shell: &Shell) -> Result<swarm_protocol::api::ClientContext> {
    let repository = repository::around(shell);
    let settings = task::settings(shell, repository.as_ref(), Vec::new())?;
    Ok(task::context(&shell.around, &settings))
}

/// `before`: the session as it was when it was resumed. What happened since is shown, though it may have ended by now.
async fn follow_session(
    shell: &mut Shell,
    client: &Client,
    session_id: SessionId,
    before: Option<SessionDetail>,
) -> Result<u8> {
    let detail: SessionDetail = client.get(&format!("/sessions/{session_id}")).await?;
    run::header(shell, client, &detail).await;
    let Some(last) = detail.tasks.last() else {
        shell.notice("no task was given to this session");
        return Ok(0);
    };
    let task_id = last.task_id;
    let was_over = |before: &SessionDetail| {
        before.tasks.last().is_some_and(|task| task.task_id == task_id && task.verdict.is_some())
    };
    if last.verdict.is_some() && before.as_ref().is_none_or(was_over) {
        // It is over already: the same words, the same exit code.
        let task: TaskView = client.get(&format!("/tasks/{task_id}")).await?;
        let ending = Ending::Verdict {
            own_turns: u32::from(!task.workers.is_empty()),
            task: Box::new(task),
            address: client.address.clone(),
            cursor: detail.seq,
            session: Box::new(detail.session),
            interrupted: false,
        };
        shell.out.tolerant = true;
        return follow::conclude(shell, ending).await;
    }
    let context = context(shell).unwrap_or_default();
    let state = StateView::of(before.as_ref().unwrap_or(&detail), run::streams(shell));
    let plan = Plan { session: detail.session, task_id, state, context, signals: Early::listen()? };
    run::to_the_end(shell, client, plan).await
}

/// A worker's text as it comes; lines typed on a terminal go to it as messages.
async fn watch(shell: &mut Shell, client: &Client, worker: &WorkerView) -> Result<u8> {
    let detail: WorkerDetail = client.get(&format!("/workers/{}", worker.id)).await?;
    if !shell.is_json() {
        let words = format!("{} {}", paint(CYAN, worker.id.suffix()), paint(BOLD, &visible(&worker.name)));
        shell.out.line(&words)?;
        if let Some(result) = detail.result.as_deref().filter(|_| detail.worker.status.is_ended()) {
            for line in result.trim_end().lines() {
                shell.out.line(&visible_with_colour(line))?;
            }
        }
    }
    if detail.worker.status.is_ended() && !shell.around.stdin_is_terminal {
        return Ok(0);
    }
    let typed = if shell.can_ask() {
        shell.notice(&paint(DIM, "a line you type is a message to it; ^C leaves, it goes on"));
        Some(typed_lines())
    } else {
        None
    };
    let mut signals = Signals::listen()?;
    let mut typed = typed;
    let mut cursor = detail.seq;
    let mut viewer = Viewer { worker_id: worker.id.clone(), in_words: false };
    loop {
        let mut events = client.events(worker.session_id, cursor).await?;
        loop {
            // Nothing is lost when another branch wins: each is a queue of its own.
            tokio::select! {
                item = events.next() => match item {
                    Some(Ok(StreamItem::Event(value))) => {
                        if let Some(seq) = value.get("seq").and_then(Value::as_u64) {
                            cursor = Seq(seq);
                        }
                        let over = viewer.show(shell, value)?;
                        if over && typed.is_none() {
                            return Ok(0);
                        }
                    }
                    Some(Ok(StreamItem::Behind)) => {}
                    Some(Err(error)) => return Err(error),
                    None => break,
                },
                line = next_line(typed.as_mut()) => match line {
                    Some(text) if text.trim().is_empty() => {}
                    Some(text) => {
                        let path = format!("/workers/{}/messages", worker.id);
                        match client.post::<_, MessageAccepted>(&path, &SendMessageBody { text }).await {
                            Ok(accepted) => shell.notice(&paint(DIM, &visible(&accepted.note))),
                            Err(error) => shell.report(&error),
                        }
                    }
                    None => return Ok(0),
                },
                signal = signals.next() => match signal {
                    Signal::Interrupt | Signal::Hangup | Signal::Terminate => return Ok(0),
                    Signal::Suspend => {
                        let _stopped = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGSTOP);
                    }
                    Signal::Resized | Signal::Continue => {}
                },
            }
        }
    }
}

/// Lines typed, from a thread of their own: reading a terminal cannot be cancelled. The thread ends with the
/// process, or with its first line that nobody wants.
fn typed_lines() -> tokio::sync::mpsc::Receiver<String> {
    // One line at a time: a person waits for the note about the last one.
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn next_line(typed: Option<&mut tokio::sync::mpsc::Receiver<String>>) -> Option<String> {
    match typed {
        Some(receiver) => receiver.recv().await,
        None => std::future::pending().await,
    }
}

struct Viewer {
    worker_id: WorkerId,
    /// The cursor stands behind words.
    in_words: bool,
}

impl Viewer {
    /// Shows an event; true when the worker's run is over.
    fn show(&mut self, shell: &mut Shell, value: Value) -> Result<bool> {
        let raw = shell.is_json().then(|| value.clone());
        let Ok(Some(line)) = EventLine::from_json(value) else { return Ok(false) };
        if line.event.worker_id() != Some(&self.worker_id) {
            return Ok(false);
        }
        let over = matches!(&line.event, Event::WorkerState { status, .. } if status.is_ended());
        if let Some(raw) = raw {
            shell.out.bytes(format!("{raw}\n").as_bytes())?;
            return Ok(over);
        }
        match &line.event {
            Event::Live { live, .. } => match live {
                Live::TextDelta { text, thinking } => {
                    let shown: Vec<String> = text.split('\n').map(visible_with_colour).collect();
                    let shown = shown.join("\n");
                    shell.out.text(&if *thinking { paint(DIM, &shown) } else { shown })?;
                    self.in_words = !text.ends_with('\n');
                }
                Live::ToolStarted { tool, summary, .. } => {
                    self.line(shell, &format!("{} {}", paint(CYAN, &visible(tool)), visible(summary)))?;
                }
                Live::ToolProgress { tail, .. } => {
                    for line in tail.lines() {
                        self.line(shell, &format!("  {}", visible_with_colour(line)))?;
                    }
                }
                Live::Waiting { waiting_for: Some(_), cause, .. } => {
                    self.line(shell, &paint(YELLOW, &format!("waits: {}", visible(cause))))?;
                }
                Live::ToolEnded { .. }
                | Live::Activity { .. }
                | Live::CacheBreak { .. }
                | Live::Waiting { .. } => {}
            },
            Event::WorkerRecord { record, .. } => {
                for tool in record.tools.iter().filter(|tool| tool.is_error.is_some()) {
                    let exit = tool.exit_code.map_or_else(String::new, |code| format!("exit {code}  "));
                    let took = tool.duration_ms.map(format::duration).unwrap_or_default();
                    self.line(shell, &paint(DIM, &format!("  {} {exit}{took}", visible(&tool.name))))?;
                }
            }
            Event::PermissionRequested { request } => {
                let words = format!(
                    "asks {}: {} {}   swarm approve {} | swarm deny {}",
                    request.id,
                    visible(&request.tool),
                    visible(&request.summary),
                    request.id,
                    request.id
                );
                self.line(shell, &paint(YELLOW, &words))?;
            }
            Event::WorkerState { status, reason, .. } => {
                self.line(shell, &paint(BOLD, &format!("{} {}", status.as_str(), visible(reason))))?;
            }
            _ => {}
        }
        Ok(over)
    }

    fn line(&mut self, shell: &mut Shell, words: &str) -> Result<()> {
        if std::mem::take(&mut self.in_words) {
            shell.out.text("\n")?;
        }
        Ok(shell.out.line(words)?)
    }
}
