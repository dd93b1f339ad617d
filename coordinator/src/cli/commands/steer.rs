//! `swarm send`, `stop`, `approve`, `deny`: what people say while work goes on.

use std::time::Instant;

use serde_json::json;
use swarm_protocol::{
    WorkerId, WorkerStatus,
    api::{
        AnswerPermission, AnsweredPermission, MessageAccepted, PermissionView, SendMessageBody, StopBody,
        StopView, WorkerView,
    },
    permission::{Decision, PermissionDecision, Racer, Scope},
};

use super::super::{
    args::{ApproveArgs, DenyArgs, SendArgs, StopArgs},
    client::Client,
    error::{CliError, Result},
    format, ids,
    ids::{Target, Wanted},
    shell::{Shell, now},
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

/// `swarm approve`.
pub(crate) async fn approve(shell: &mut Shell, args: &ApproveArgs) -> Result<u8> {
    let scope = match (args.session, args.always) {
        (_, true) => Scope::Always,
        (true, false) => Scope::Session,
        (false, false) => Scope::Once,
    };
    let body = AnswerPermission { decision: Decision::Allow, scope, reason: None, stop: false };
    answer(shell, &args.request, body).await
}

/// `swarm deny`.
pub(crate) async fn deny(shell: &mut Shell, args: &DenyArgs) -> Result<u8> {
    let body = AnswerPermission {
        decision: Decision::Deny,
        scope: Scope::Once,
        reason: args.reason.clone(),
        stop: args.stop,
    };
    answer(shell, &args.request, body).await
}

async fn answer(shell: &mut Shell, text: &str, body: AnswerPermission) -> Result<u8> {
    let Place { client, known } = connect(shell, text).await?;
    let open: Vec<PermissionView> = client.get("/permissions").await?;
    let view = match ids::request(&known, &open, text) {
        Ok(view) => view,
        // Somebody may have been faster: the server knows who.
        Err(error)
            if error.code == "unknown_id" && text.parse::<swarm_protocol::PermissionRequestId>().is_ok() =>
        {
            let answered: AnsweredPermission = match client.post(&format!("/permissions/{text}"), &body).await
            {
                Ok(answered) => answered,
                Err(refused) if refused.code == "unknown_id" => return Err(error),
                Err(refused) => return Err(refused),
            };
            return report(shell, text, None, &answered);
        }
        Err(error) => return Err(error),
    };
    let id = view.request.id.to_string();
    let answered: AnsweredPermission = client.post(&format!("/permissions/{id}"), &body).await?;
    report(shell, &id, Some(&view), &answered)
}

fn report(
    shell: &mut Shell,
    id: &str,
    view: Option<&PermissionView>,
    answered: &AnsweredPermission,
) -> Result<u8> {
    let exit = u8::from(!answered.won);
    if shell.is_json() {
        let session_id = view.map(|view| view.session_id);
        shell.json("permission.decided", session_id, None, json!({"answer": answered}))?;
        return Ok(exit);
    }
    let AnsweredPermission { won, decision, wrote_rule } = answered;
    if !won {
        return Err(CliError::new("already_answered", already(decision, now())));
    }
    let who = view.map(|view| view.request.worker_id.suffix().to_owned());
    let mut words = format!("{id} {}", decided(decision));
    match (who, decision.stop) {
        (Some(who), true) => words.push_str(&format!(": {who} is stopped")),
        (Some(who), false) => words.push_str(&format!(": {who} goes on")),
        (None, _) => {}
    }
    if let Some(rule) = wrote_rule {
        words.push_str(&format!("; wrote {}", visible(rule)));
    }
    shell.out.line(&words)?;
    Ok(0)
}

/// `allowed once`, `denied`.
pub(crate) fn decided(decision: &PermissionDecision) -> &'static str {
    match (decision.decision, decision.scope) {
        (Decision::Allow, Scope::Once) => "allowed once",
        (Decision::Allow, Scope::Session) => "allowed for this session",
        (Decision::Allow, Scope::Always) => "allowed always",
        (Decision::Deny, _) => "denied",
    }
}

/// `already denied 4s ago by timeout`.
pub(crate) fn already(decision: &PermissionDecision, now: swarm_protocol::Timestamp) -> String {
    let word = match decision.decision {
        Decision::Allow => "allowed",
        Decision::Deny => "denied",
    };
    format!(
        "already {word} {} ago by {}",
        format::age(now.millis_since(decision.decided_at)),
        racer(decision.by)
    )
}

/// Who decided.
pub(crate) const fn racer(racer: Racer) -> &'static str {
    match racer {
        Racer::Rule => "a rule",
        Racer::Person => "a person",
        Racer::Timeout => "timeout",
        Racer::Unattended => "the task, which is unattended",
        Racer::SessionEnd => "the end of the session",
    }
}

#[cfg(test)]
mod tests {
    use swarm_protocol::Timestamp;

    use super::*;

    #[test]
    fn who_lost_the_race_learns_who_won() {
        let decision = PermissionDecision {
            id: "req-3f2".parse().unwrap(),
            decision: Decision::Deny,
            scope: Scope::Once,
            by: Racer::Timeout,
            reason: None,
            stop: false,
            decided_at: Timestamp::from_millis(1_000),
        };
        assert_eq!(already(&decision, Timestamp::from_millis(5_200)), "already denied 4s ago by timeout");
    }
}
