//! `swarm send`, `stop`: what people say while work goes on.

use std::time::Instant;

use serde_json::json;
use swarm_protocol::{
    WorkerId, WorkerStatus,
    api::{MessageAccepted, SendMessageBody, StopBody, StopView, WorkerView},
};

use super::super::{
    args::{SendArgs, StopArgs},
    client::Client,
    error::{CliError, Result},
    format,
    ids::{Target, Wanted},
    shell::Shell,
    text::visible,
};
use super::{Place, connect};

/// How long `stop` waits for a worker's work to be committed before it says that it goes on there.
const STOP_PATIENCE: std::time::Duration = std::time::Duration::from_secs(15);

/// `swarm send`.
pub(crate) async fn send(shell: &mut Shell, args: &SendArgs) -> Result<u8> {
    let text = args.text.join(" ");
    if text.trim().is_empty() {
        return Err(CliError::new("empty_prompt", "the message is empty").hint("swarm send ID TEXT"));
    }
    let Place { client, known } = connect(shell, &args.id).await?;
    let (path, shown, session_id) = match known.resolve(&args.id, Wanted::Any)? {
        Target::Worker(worker) => {
            (format!("/workers/{}", worker.id), worker.id.suffix().to_owned(), worker.session_id)
        }
        Target::Session(session) => {
            (format!("/sessions/{}", session.session_id), session.short, session.session_id)
        }
    };
    let view: MessageAccepted = client.post(&format!("{path}/messages"), &SendMessageBody { text }).await?;
    if shell.is_json() {
        shell.json("message.accepted", Some(session_id), None, json!({"to": args.id, "message": view}))?;
        return Ok(0);
    }
    let note = visible(&view.note);
    let words = if note.is_empty() { format!("{} for {shown}", view.status) } else { note };
    shell.out.line(&words)?;
    Ok(0)
}

/// `swarm stop`.
pub(crate) async fn stop(shell: &mut Shell, args: &StopArgs) -> Result<u8> {
    let Place { client, known } = connect(shell, &args.id).await?;
    let began = Instant::now();
    let body = StopBody { reason: args.reason.clone() };
    match known.resolve(&args.id, Wanted::Any)? {
        Target::Worker(worker) => {
            let id = worker.id.suffix();
            let view: StopView = client.post(&format!("/workers/{}/stop", worker.id), &body).await?;
            let ended = if view.already {
                vec![(*worker).clone()]
            } else {
                wait(&client, std::slice::from_ref(&worker.id)).await?
            };
            if shell.is_json() {
                for worker in &ended {
                    shell.json("worker.state", Some(worker.session_id), None, json!({"worker": worker}))?;
                }
                return Ok(0);
            }
            let words = match ended.first() {
                Some(worker) if view.already && worker.status.is_ended() => {
                    format!("{id} is {} already", past(worker.status))
                }
                Some(worker) if worker.status.is_ended() => format!(
                    "{id} stopped in {}: {}; again: swarm send {id} TEXT",
                    took(began),
                    committed(worker)
                ),
                _ => format!("{id} is being stopped; swarm show {id}"),
            };
            shell.out.line(&words)?;
        }
        Target::Session(session) => {
            let path = format!("/sessions/{}/interrupt", session.session_id);
            let view: StopView = client.post(&path, &body).await?;
            let ended = if view.already { Vec::new() } else { wait(&client, &view.stopping).await? };
            if shell.is_json() {
                shell.json("session.stop", Some(session.session_id), None, json!({"stop": view}))?;
                return Ok(0);
            }
            let short = session.short;
            let words = match (view.already, ended.len()) {
                (true, _) => format!("{short} runs nothing"),
                (false, 0) => format!("{short} stopped; go on: swarm resume {short}"),
                (false, n) => format!(
                    "{short} stopped in {}: {}, work is committed; go on: swarm resume {short}",
                    took(began),
                    format::count(n as u64, "worker")
                ),
            };
            shell.out.line(&words)?;
        }
    }
    Ok(0)
}

fn took(began: Instant) -> String {
    format::duration(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX))
}

fn past(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Aborted => "stopped",
        other => other.as_str(),
    }
}

fn committed(worker: &WorkerView) -> String {
    match worker.files_changed {
        0 => "it had changed nothing".to_owned(),
        n => format!("{} committed to its branch", format::count(n, "file")),
    }
}

/// Looks at workers until they ended, or patience ends.
async fn wait(client: &Client, ids: &[WorkerId]) -> Result<Vec<WorkerView>> {
    let began = Instant::now();
    loop {
        let workers: Vec<WorkerView> = client.get("/workers").await?;
        let ours: Vec<WorkerView> = workers.into_iter().filter(|worker| ids.contains(&worker.id)).collect();
        if ours.iter().all(|worker| worker.status.is_ended()) || began.elapsed() > STOP_PATIENCE {
            return Ok(ours);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
