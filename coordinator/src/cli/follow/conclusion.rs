//! What is said once following has ended.

use swarm_protocol::Verdict;

use super::Ending;
use crate::cli::{
    error::{EXIT_FAILURE, EXIT_INTERRUPTED, Result},
    link::Links,
    prefix::Prefixes,
    refusal,
    rows::Look,
    shell::{Shell, now},
    summary,
    text::visible_lines,
};

/// What is said at the end, and the exit code.
pub(crate) async fn conclude(shell: &mut Shell, ending: Ending) -> Result<u8> {
    let (task, session, address, cursor, own_turns, interrupted) = match ending {
        Ending::Left { exit } => return Ok(exit),
        Ending::Verdict { task, session, address, cursor, own_turns, interrupted } => {
            (task, session, address, cursor, own_turns, interrupted)
        }
    };
    let refusal = refusal::of(shell, &task, own_turns);
    if shell.is_json() {
        if let Some(refusal) = &refusal {
            let _unheard = shell.err.text(&refusal.render());
        }
        shell.json("session.result", Some(session.session_id), Some(cursor), summary::result(&task))?;
    } else if shell.options.quiet {
        if let Some(text) = task.text.as_deref().filter(|text| !text.trim().is_empty()) {
            let text: String = visible_lines(text.trim_end()).map(|line| format!("{line}\n")).collect();
            shell.out.text(&text)?;
        }
    } else {
        let width = shell.out.is_terminal.then(|| shell.width());
        let links = Links::find(&shell.around, &shell.out, &address).await;
        let workers = task.workers.iter().map(|worker| worker.id.suffix().to_owned());
        let prefixes = Prefixes::over(workers.chain([session.short.clone()]));
        let text = summary::text(&summary::Summary {
            session: &session,
            task: &task,
            width,
            look: Look { glyphs: shell.glyphs, links: &links, prefixes: &prefixes },
            now: now(),
        });
        shell.out.text(&text)?;
    }
    if let (Some(refusal), false) = (&refusal, shell.is_json()) {
        shell.report(refusal);
    }
    Ok(match (interrupted, task.verdict, refusal) {
        (true, ..) => EXIT_INTERRUPTED,
        (false, _, Some(refusal)) => refusal.exit,
        (false, Some(Verdict::Complete), None) => 0,
        (false, _, None) => EXIT_FAILURE,
    })
}
