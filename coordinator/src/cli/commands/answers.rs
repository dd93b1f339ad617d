//! `swarm approve`, `deny` and `permissions log`: the desk in the shell.

use serde_json::json;
use swarm_protocol::{
    SessionId,
    api::{AnswerPermission, AnswerPermissions, AnsweredOne, AnsweredPermission, PermissionView, Problem},
    permission::{Decision, PermissionDecision, Racer, Scope, canonical_arguments},
};

use super::super::{
    args::{AnswerArgs, ApproveArgs, DenyArgs},
    error::{CliError, Result},
    format, ids,
    ids::{Target, Wanted},
    output::{BOLD, CYAN, DIM, paint},
    pager,
    shell::{Shell, now},
    text::visible,
};
use super::{Place, clock, connect};

/// `swarm approve`.
pub(crate) async fn approve(shell: &mut Shell, args: &ApproveArgs) -> Result<u8> {
    let scope = match (args.session, args.always) {
        (_, true) => Scope::Always,
        (true, false) => Scope::Session,
        (false, false) => Scope::Once,
    };
    let reason = args.reason.clone();
    let body = AnswerPermission { decision: Decision::Allow, scope, reason, stop: false, args_hash: None };
    answer_those(shell, &args.which, body).await
}

/// `swarm deny`.
pub(crate) async fn deny(shell: &mut Shell, args: &DenyArgs) -> Result<u8> {
    let body = AnswerPermission {
        decision: Decision::Deny,
        scope: Scope::Once,
        reason: args.reason.clone(),
        stop: args.stop,
        args_hash: None,
    };
    answer_those(shell, &args.which, body).await
}

async fn answer_those(shell: &mut Shell, which: &AnswerArgs, body: AnswerPermission) -> Result<u8> {
    match (&which.all, &which.requests[..]) {
        (Some(session), _) => answer_all(shell, session, body).await,
        (None, [one]) => answer(shell, one, body).await,
        (None, several) => answer_several(shell, several, body).await,
    }
}

/// All that a session asks now.
async fn answer_all(shell: &mut Shell, text: &str, answer: AnswerPermission) -> Result<u8> {
    let scope = answer.scope;
    let Place { client, known } = connect(shell, text).await?;
    let session_id = match known.resolve(text, Wanted::Session)? {
        Target::Session(session) => session.session_id,
        Target::Worker(worker) => worker.session_id,
    };
    let open: Vec<PermissionView> = client.get("/permissions").await?;
    let body = AnswerPermissions { ids: Vec::new(), session_id: Some(session_id), answer };
    let answered: Vec<AnsweredOne> = client.post("/permissions", &body).await?;
    if answered.is_empty() && !shell.is_json() {
        shell.notice("nothing waits for an answer there");
    }
    report_several(shell, &open, &answered, scope)
}

/// Those that are named; what one of them stands for is known before any of them is answered.
async fn answer_several(shell: &mut Shell, texts: &[String], answer: AnswerPermission) -> Result<u8> {
    let scope = answer.scope;
    let Some(first) = texts.first() else { return Ok(0) };
    let Place { client, known } = connect(shell, first).await?;
    let open: Vec<PermissionView> = client.get("/permissions").await?;
    let mut wanted = Vec::new();
    for text in texts {
        let id = match (ids::request(&known, &open, text), text.parse()) {
            (Ok(view), _) => view.request.id,
            // Somebody may have been faster: the server knows who.
            (Err(error), Ok(id)) if error.code == "unknown_id" => id,
            (Err(error), _) => return Err(error),
        };
        wanted.push(id);
    }
    let body = AnswerPermissions { ids: wanted, session_id: None, answer };
    let answered: Vec<AnsweredOne> = client.post("/permissions", &body).await?;
    report_several(shell, &open, &answered, scope)
}

/// One line each; the exit code says whether every answer decided.
fn report_several(
    shell: &mut Shell,
    open: &[PermissionView],
    answered: &[AnsweredOne],
    asked: Scope,
) -> Result<u8> {
    let mut exit = 0;
    for AnsweredOne { id, answered, problem } in answered {
        let view = open.iter().find(|view| view.request.id == *id);
        let decided = answered.as_ref().is_some_and(|answered| answered.won);
        exit |= u8::from(!decided);
        if shell.is_json() {
            let session_id = view.map(|view| view.session_id);
            let fields = json!({"request_id": id, "answer": answered, "problem": problem});
            shell.json("permission.decided", session_id, None, fields)?;
            continue;
        }
        let line = match (answered, problem) {
            (Some(answered), _) if answered.won => won(id.as_str(), view, answered, asked),
            (Some(answered), _) => format!("{id} {}", already(&answered.decision, now())),
            (None, Some(Problem { title, .. })) => format!("{id} not answered: {}", visible(title)),
            (None, None) => format!("{id} not answered"),
        };
        shell.out.line(&line)?;
    }
    Ok(exit)
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
            return report(shell, text, None, &answered, body.scope);
        }
        Err(error) => return Err(error),
    };
    let id = view.request.id.to_string();
    let answered: AnsweredPermission = client.post(&format!("/permissions/{id}"), &body).await?;
    report(shell, &id, Some(&view), &answered, body.scope)
}

fn report(
    shell: &mut Shell,
    id: &str,
    view: Option<&PermissionView>,
    answered: &AnsweredPermission,
    asked: Scope,
) -> Result<u8> {
    let exit = u8::from(!answered.won);
    if shell.is_json() {
        let session_id = view.map(|view| view.session_id);
        shell.json("permission.decided", session_id, None, json!({"answer": answered}))?;
        return Ok(exit);
    }
    if !answered.won {
        return Err(CliError::new("already_answered", already(&answered.decision, now())));
    }
    shell.out.line(&won(id, view, answered, asked))?;
    Ok(0)
}

/// What an answer that decided came to.
fn won(id: &str, view: Option<&PermissionView>, answered: &AnsweredPermission, asked: Scope) -> String {
    let AnsweredPermission { won: _, decision, wrote_rule } = answered;
    let who = view.map(|view| view.request.worker_id.suffix().to_owned());
    let mut words = format!("{id} {}", decided(decision));
    match (who, decision.stop) {
        (Some(who), true) => words.push_str(&format!(": {who} is stopped")),
        (Some(who), false) => words.push_str(&format!(": {who} goes on")),
        (None, _) => {}
    }
    if let Some(rule) = wrote_rule {
        words.push_str(&format!("; wrote {}", visible(rule)));
    } else if asked == Scope::Always && decision.scope == Scope::Session {
        words.push_str("; warning: the rule could not be written, so it is forgotten with the session");
    }
    words
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
        Racer::Hook => "a hook",
        Racer::Person => "a person",
        Racer::Remote => "a person at a remote channel",
        Racer::Classifier => "the classifier",
        Racer::Timeout => "timeout",
        Racer::Unattended => "the task, which is unattended",
        Racer::SessionEnd => "the end of the session",
        Racer::Desk => "the desk",
    }
}

/// Every request of a session: what was asked, who decided, when, and on what.
pub(crate) async fn log(shell: &mut Shell, text: &str) -> Result<u8> {
    let Place { client, known } = connect(shell, text).await?;
    let (session_id, of_worker): (SessionId, _) = match known.resolve(text, Wanted::Any)? {
        Target::Session(session) => (session.session_id, None),
        Target::Worker(worker) => (worker.session_id, Some(worker.id.clone())),
    };
    let mut views: Vec<PermissionView> = client.get(&format!("/sessions/{session_id}/permissions")).await?;
    views.retain(|view| of_worker.as_ref().is_none_or(|worker| *worker == view.request.worker_id));
    if shell.is_json() {
        for view in &views {
            shell.json("permission", Some(session_id), None, json!({"permission": view}))?;
        }
        return Ok(0);
    }
    if views.is_empty() {
        shell.notice("nothing was asked");
        return Ok(0);
    }
    let shown: String = views.iter().map(log_entry).collect();
    pager::show(shell, pager::Kind::Text, &shown)?;
    Ok(0)
}

fn log_entry(view: &PermissionView) -> String {
    let request = &view.request;
    let mut shown = format!(
        "{} {} {} {}  {}\n",
        clock(request.requested_at),
        paint(CYAN, request.id.as_str()),
        request.worker_id.suffix(),
        visible(&view.worker_name),
        paint(BOLD, &visible(&request.tool)),
    );
    let how = match (&view.decision, &view.withdrawn) {
        (Some(decision), withdrawn) => {
            let mut how =
                format!("{} {} by {}", clock(decision.decided_at), decided(decision), racer(decision.by));
            if let Some(source) = &decision.source {
                how.push_str(&format!(" ({})", visible(source)));
            }
            if let Some(reason) = &decision.reason {
                how.push_str(&format!(": {}", visible(reason)));
            }
            if let Some(withdrawn) = withdrawn {
                how.push_str(&format!("; no longer waited: {}", visible(withdrawn)));
            }
            how
        }
        (None, Some(withdrawn)) => format!("withdrawn: {}", visible(withdrawn)),
        (None, None) => format!("waits: swarm approve {}", request.id),
    };
    shown.push_str(&format!("  {how}\n"));
    if let Some(rule) = &view.wrote_rule {
        shown.push_str(&format!("  wrote {}\n", visible(rule)));
    }
    let text = canonical_arguments(&request.tool, request.cwd.as_deref(), &request.input);
    shown.push_str(&format!("  {} {}\n", paint(DIM, &request.args_hash), visible(&text)));
    shown
}

#[cfg(test)]
mod tests {
    use swarm_protocol::Timestamp;

    use super::*;

    #[test]
    fn an_entry_of_the_log_says_who_decided_when_and_on_what() {
        let mut view = crate::cli::fixtures::permission("req-3f2", "agent-h7q", "pip install \u{202e}x");
        let shown = |view: &PermissionView| {
            let text = anstream::adapter::strip_str(&log_entry(view)).to_string();
            // Times are local.
            text.lines()
                .map(|line| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':').to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&view),
            [
                " req-3f2 h7q Add auth tests  Bash",
                "  waits: swarm approve req-3f2",
                "  5a1d {\"cwd\":\"/w\",\"input\":{\"command\":\"pip install \\u{202e}x\"},\"tool\":\"Bash\"}",
            ]
        );
        view.decision = Some(PermissionDecision {
            id: view.request.id.clone(),
            decision: Decision::Deny,
            scope: Scope::Once,
            by: Racer::Remote,
            reason: Some("not now".to_owned()),
            stop: false,
            decided_at: Timestamp::from_millis(1_000),
            source: Some("ops".to_owned()),
            args_hash: String::new(),
        });
        view.withdrawn = Some("the call was cancelled".to_owned());
        let line = shown(&view)[1]
            .trim_start_matches(|c: char| c == ' ' || c == ':' || c.is_ascii_digit())
            .to_owned();
        assert_eq!(
            line,
            "denied by a person at a remote channel (ops): not now; no longer waited: the call was cancelled"
        );
    }

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
            source: None,
            args_hash: String::new(),
        };
        assert_eq!(already(&decision, Timestamp::from_millis(5_200)), "already denied 4s ago by timeout");
    }
}
