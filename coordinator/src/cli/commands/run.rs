//! `swarm run`: one request becomes reviewed branches. Also the end of `attach` and `resume`, which follow in
//! the same way.

use serde_json::json;
use swarm_protocol::api::{CreateTask, LoginCode, SessionDetail, StopView, TaskAccepted};

use super::super::{
    args::{Progress, RunArgs},
    client::{Client, SERVER_GONE},
    error::{CliError, Result},
    follow::{self, Ending, Plan},
    format,
    link::Links,
    output::{BOLD, CYAN, DIM, paint},
    repository, server_process,
    shell::Shell,
    signals::{Early, Impatient, Signal},
    state::StateView,
    summary, task,
    text::visible,
};

/// `swarm run`.
pub(crate) async fn run(shell: &mut Shell, args: &RunArgs) -> Result<u8> {
    if let Some(name) = args.later.named() {
        return Err(super::later("run", name));
    }
    let prompt = args.prompt.join(" ");
    if prompt.trim().is_empty() {
        return Err(
            CliError::new("empty_prompt", "the prompt is empty").hint("swarm run \"refactor auth module\"")
        );
    }
    let repository = repository::required(shell)?;
    let settings = task::settings(shell, Some(&repository), task::flags(args))?;
    task::require_model(shell, &settings)?;
    let context = task::context(&shell.around, &settings);
    // From here on there is something to leave behind: who is told to end, ends it.
    let mut early = Early::listen()?;
    let mut found = match early.during(server_process::find_or_start(shell)).await {
        Ok(found) => found?,
        Err(Impatient(signal)) => return Ok(signal.exit()),
    };
    if let Some(exit) = early.exit() {
        server_process::end_if_started(&found).await;
        return Ok(exit);
    }
    let body = CreateTask {
        prompt,
        repo: Some(repository.checkout.to_string_lossy().into_owned()),
        session_id: None,
        base: args.base.clone(),
        carry: args.carry,
        model: args.model.clone(),
        permission_mode: args.permission_mode,
        unattended: args.unattended || shell.is_json() && !shell.around.stdin_is_terminal,
        callback_url: None,
        callback_asks: false,
        labels: args.labels.clone(),
        max_workers: number("--max-workers", args.max_workers.as_deref())?,
        max_turns: number("--max-turns", args.max_turns.as_deref())?,
        check: args.check.clone(),
        tmux: args.tmux,
        solo: args.solo,
        system_prompt: args.system_prompt.clone(),
        // A flag: it is among the settings that go along.
        budget: None,
        client: Some(context.clone()),
    };
    let key = uuid::Uuid::new_v4().to_string();
    let mut submitted = early.during(found.client.post_once("/tasks", &key, &body)).await;
    if let Ok(Err(error)) = &submitted
        && error.code == SERVER_GONE
    {
        // It was about to end when it was found. With the same key a task that it took is not taken twice.
        found = match early.during(server_process::find_or_start(shell)).await {
            Ok(found) => found?,
            Err(Impatient(signal)) => return Ok(signal.exit()),
        };
        submitted = early.during(found.client.post_once("/tasks", &key, &body)).await;
    }
    let accepted: TaskAccepted = match submitted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            server_process::end_if_started(&found).await;
            return early.exit().ok_or(error);
        }
        Err(Impatient(signal)) => {
            shell.notice("whether the server took the task is not known: swarm ps");
            return Ok(signal.exit());
        }
    };
    for notice in &accepted.notices {
        shell.notice(&format!("{} {}", paint(DIM, "note:"), visible(notice)));
    }
    if args.detach {
        if early.came.contains(&Signal::Interrupt) {
            stop(&found.client, &accepted).await?;
            let short = accepted.session_id.short();
            shell.notice(&format!("{short} was stopped: swarm resume {short}"));
            return Ok(Signal::Interrupt.exit());
        }
        return detached(shell, &accepted);
    }
    let path = format!("/sessions/{}", accepted.session_id);
    let detail: SessionDetail = match early.during(found.client.get(&path)).await {
        Ok(Ok(detail)) => detail,
        Ok(Err(error)) => {
            if early.came.contains(&Signal::Interrupt) {
                stop(&found.client, &accepted).await?;
            }
            return Err(error);
        }
        Err(Impatient(signal)) => {
            if early.came.contains(&Signal::Interrupt) || signal == Signal::Interrupt {
                stop(&found.client, &accepted).await?;
            }
            shell.notice(&summary::left(accepted.session_id));
            return Ok(signal.exit());
        }
    };
    let since = detail
        .tasks
        .iter()
        .find(|task| task.task_id == accepted.task_id)
        .map_or(detail.session.created_at, |task| task.accepted_at);
    header(shell, &found.client, &detail).await;
    let state = StateView::new(&detail.session, accepted.after, since, streams(shell));
    let plan = Plan { session: detail.session, task_id: accepted.task_id, state, context, signals: early };
    to_the_end(shell, &found.client, plan).await
}

/// Has a session stop that nobody follows.
async fn stop(client: &Client, accepted: &TaskAccepted) -> Result<()> {
    let body = json!({"reason": "interrupted by a person"});
    let path = format!("/sessions/{}/interrupt", accepted.session_id);
    let _stopping: StopView = client.post(&path, &body).await?;
    Ok(())
}

/// Checked with the settings already; a flag that passed there is a number.
fn number(flag: &str, text: Option<&str>) -> Result<Option<u32>> {
    text.map(|text| {
        text.trim()
            .replace('_', "")
            .parse()
            .map_err(|_| CliError::usage(format!("{flag} takes a number, not `{text}`")))
    })
    .transpose()
}

fn detached(shell: &mut Shell, accepted: &TaskAccepted) -> Result<u8> {
    let TaskAccepted { task_id, session_id, .. } = accepted;
    if shell.is_json() {
        let fields = json!({"task_id": task_id});
        shell.json("task.accepted", Some(*session_id), Some(accepted.after), fields)?;
    } else {
        let short = session_id.short();
        shell.out.line(&short)?;
        shell.notice(&format!("{short} runs: swarm attach {short}, swarm ps, swarm stop {short}"));
    }
    Ok(0)
}

/// Words stream to a person; elsewhere a turn is written when it is committed, so that nothing is said twice.
pub(crate) fn streams(shell: &Shell) -> bool {
    shell.out.is_terminal && !shell.is_json()
}

/// The line that says what is followed.
pub(crate) async fn header(shell: &mut Shell, client: &Client, detail: &SessionDetail) {
    if shell.options.progress == Progress::None || shell.is_json() {
        return;
    }
    let session = &detail.session;
    let base = format::commit(&session.base);
    let name = visible(&session.base_name);
    let base = if name.starts_with(base) { base.to_owned() } else { format!("{name} {base}") };
    let model = visible(&session.model);
    let links = Links::find(&shell.around, &shell.err, &client.address).await;
    let words = format!(
        "session {}  base {base}  {}",
        links.session(session.session_id, &paint(CYAN, &session.short)),
        if session.model == "demo" { paint(BOLD, "demo (a scripted model)") } else { model }
    );
    shell.notice(&words);
    if shell.options.verbose > 0 {
        let words = format!(
            "merges go to {}; mode {}",
            session.target_branch.as_deref().unwrap_or("nowhere"),
            session.permission_mode.as_str()
        );
        shell.notice(&paint(DIM, &visible(&words)));
    }
}

/// Follows, says how it ended, and where to look.
pub(crate) async fn to_the_end(shell: &mut Shell, client: &Client, plan: Plan) -> Result<u8> {
    let short = plan.session.short.clone();
    let ending = match follow::follow(shell, client, plan).await {
        Ok(ending) => ending,
        Err(error) => {
            shell.notice(&format!("the session goes on by itself: swarm attach {short}"));
            return Err(error);
        }
    };
    // Whoever stopped reading, the exit code is the verdict's.
    shell.out.tolerant = true;
    let over = matches!(ending, Ending::Verdict { .. });
    let exit = follow::conclude(shell, ending).await?;
    // The link works once: a log keeps none.
    if over && shell.out.is_terminal && !shell.is_json() && !shell.options.quiet {
        let code: Result<LoginCode> = client.post("/login-codes", &json!({})).await;
        if let Ok(code) = code {
            shell.out.line(&format!("{}  (works once, for 5 minutes)", code.url))?;
        }
    }
    Ok(exit)
}
