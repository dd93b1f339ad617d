//! `swarm ps`: what runs in this repository.

use serde_json::json;
use swarm_protocol::{
    Timestamp,
    api::{PermissionView, SessionView, WorkerView},
};

use super::super::{
    args::PsArgs,
    error::Result,
    format,
    glyph::Class,
    ids::Known,
    link::Links,
    output::{BOLD, DIM, paint},
    rows::{self, Columns, Look},
    server_process,
    shell::{Shell, now},
    state::WorkerRow,
    text::{left, right, visible},
};

/// Lists sessions and their workers.
pub(crate) async fn ps(shell: &mut Shell, args: &PsArgs) -> Result<u8> {
    let Some(found) = server_process::for_reading(shell).await? else {
        nothing(shell, args);
        return Ok(0);
    };
    let known = Known::load(shell, &found.client).await?;
    let asks: Vec<PermissionView> = found.client.get("/permissions").await?;
    let chosen = choose(&known, args);
    if shell.is_json() {
        for (session, workers) in &chosen {
            json_lines(shell, session, workers)?;
        }
        return Ok(0);
    }
    if chosen.is_empty() {
        nothing(shell, args);
        return Ok(0);
    }
    let width = shell.out.is_terminal.then(|| shell.width());
    let links = Links::find(&shell.around, &shell.out, &found.client.address).await;
    let prefixes = known.prefixes(args.all_repos);
    let look = Look { glyphs: shell.glyphs, links: &links, prefixes: &prefixes };
    let text = table(&chosen, &asks, width, look, now());
    shell.out.text(&text)?;
    Ok(0)
}

fn nothing(shell: &mut Shell, args: &PsArgs) {
    let words = match (args.all, args.all_repos) {
        (false, false) => "nothing runs in this repository; what ended: swarm ps -a",
        (true, false) => "nothing has run in this repository; others: swarm ps -a --all-repos",
        (false, true) => "nothing runs; what ended: swarm ps -a --all-repos",
        (true, true) => "nothing has run yet",
    };
    shell.notice(words);
}

type Chosen<'a> = Vec<(&'a SessionView, Vec<&'a WorkerView>)>;

fn choose<'a>(known: &'a Known, args: &PsArgs) -> Chosen<'a> {
    use swarm_protocol::SessionState::{Active, Ended, Idle, Waiting};
    let mut sessions: Vec<&SessionView> = known
        .sessions
        .iter()
        .filter(|session| args.all_repos || known.is_here(session))
        .filter(|session| match session.state {
            Active | Waiting => true,
            // An idle session with work under way is not over.
            Idle | Ended => args.all || session.workers_running > 0,
        })
        .collect();
    sessions.sort_by_key(|session| std::cmp::Reverse(session.created_at));
    sessions
        .into_iter()
        .map(|session| {
            let mut workers: Vec<&WorkerView> = known
                .workers
                .iter()
                .filter(|worker| worker.session_id == session.session_id)
                .filter(|worker| args.all || !worker.status.is_ended())
                .collect();
            workers.sort_by_key(|worker| rank(Class::of(&WorkerRow::from(*worker))));
            (session, workers)
        })
        .collect()
}

/// Who waits for you comes first, then who works, then who ended.
fn rank(class: Class) -> u8 {
    match class {
        Class::NeedsYou => 0,
        Class::Run => 1,
        Class::WaitsOtherwise => 2,
        Class::Queued => 3,
        Class::Doubt | Class::Failed => 4,
        Class::Done | Class::Stopped => 5,
    }
}

/// The lines; without a width nothing is cut.
fn table(
    chosen: &Chosen<'_>,
    asks: &[PermissionView],
    width: Option<usize>,
    look: Look<'_>,
    now: Timestamp,
) -> String {
    let asked = |worker: &WorkerView| {
        asks.iter().find(|ask| ask.request.worker_id == worker.id).map(|ask| ask.request.tool.clone())
    };
    let rows: Vec<(&WorkerView, WorkerRow, Option<String>)> = chosen
        .iter()
        .flat_map(|(_, workers)| {
            workers.iter().map(|worker| (*worker, WorkerRow::from(*worker), asked(worker)))
        })
        .collect();
    let columns = match width {
        Some(width) => {
            let id = rows.iter().map(|(_, row, _)| row.id.suffix().len()).max().unwrap_or(3);
            Columns::fit(width, id)
        }
        None => Columns::natural(
            &rows
                .iter()
                .map(|(_, row, asks)| {
                    (row.id.suffix().to_owned(), visible(&row.name), rows::doing(row, asks.as_deref(), now))
                })
                .collect::<Vec<_>>(),
        ),
    };
    let mut text = String::new();
    for (session, workers) in chosen {
        text.push_str(&session_line(session, width, look, now));
        text.push('\n');
        for worker in workers {
            if let Some((_, row, asks)) = rows.iter().find(|(view, ..)| view.id == worker.id) {
                text.push_str(rows::still(&columns, look, row, asks.as_deref(), now).trim_end());
                text.push('\n');
            }
        }
    }
    text
}

fn session_line(session: &SessionView, width: Option<usize>, look: Look<'_>, now: Timestamp) -> String {
    let state = match (&session.damaged, session.verdict, session.waiting_for.as_deref()) {
        (Some(_), ..) => "damaged".to_owned(),
        (None, Some(verdict), _) if session.workers_running == 0 => verdict.as_str().to_owned(),
        (None, _, Some("key")) => "needs key".to_owned(),
        _ => session.state.as_str().to_owned(),
    };
    let wide = |least: usize| width.is_none_or(|width| width >= least);
    let mut end = format!(" {state:<9}");
    if wide(60) {
        end.push_str(&format!(" {}", left(&visible(&session.base_name), 7)));
    }
    if wide(70) {
        end.push_str(&right(&format::tokens(session.usage.total()), 6));
    }
    if wide(80) {
        end.push_str(&right(&format::cost(&session.cost), 7));
    }
    let age = right(&format::age(now.millis_since(session.created_at)), 7);
    let title = visible(&session.title);
    let title = match width {
        // As far as the rows below reach: the last two columns stay empty.
        Some(width) => left(&title, width.saturating_sub(2 + 10 + end.len() + age.len())),
        None => format!("{title:<30}"),
    };
    let id = look.links.session(session.session_id, &look.prefixes.paint(&session.short, &session.short));
    format!("{id}  {}{end}{}", paint(BOLD, &title), paint(DIM, &age))
}

fn json_lines(shell: &mut Shell, session: &SessionView, workers: &[&WorkerView]) -> Result<()> {
    let mut fields = serde_json::to_value(session).unwrap_or_default();
    if let Some(fields) = fields.as_object_mut() {
        // They stand in the envelope.
        fields.remove("session_id");
        fields.remove("seq");
    }
    shell.json("session.state", Some(session.session_id), Some(session.seq), fields)?;
    for worker in workers {
        shell.json("worker.state", Some(session.session_id), Some(session.seq), json!({"worker": worker}))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use swarm_protocol::{Usage, WaitingFor, WorkerStatus};

    use super::*;
    use crate::cli::{fixtures, glyph::Glyphs, prefix::Prefixes};

    fn table_at(width: Option<usize>) -> String {
        let session = fixtures::session(fixtures::SESSION, "refactor auth module");
        let mut asks = fixtures::worker("agent-h7q", "Add auth tests");
        asks.status = WorkerStatus::Waiting;
        asks.waiting_for = Some(WaitingFor::Permission);
        asks.usage = Usage { input_tokens: 22_014, ..Usage::default() };
        asks.cost_usd = Some(0.09);
        asks.spawned_at = Timestamp::from_millis(10_000);
        let mut works = fixtures::worker("agent-a1b", "Investigate auth bug");
        works.activity = "Edit src/auth/validate.py".to_owned();
        works.usage = Usage { input_tokens: 33_014, ..Usage::default() };
        works.cost_usd = Some(0.21);
        works.spawned_at = Timestamp::from_millis(10_000);
        let permission = fixtures::permission("req-3f2", "agent-h7q", "pip install pytest-cov");
        let chosen: Chosen<'_> = vec![(&session, vec![&asks, &works])];
        let links = Links::default();
        let prefixes = Prefixes::default();
        let look = Look { glyphs: Glyphs::Unicode, links: &links, prefixes: &prefixes };
        let text = table(&chosen, &[permission], width, look, Timestamp::from_millis(161_000));
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn eighty_columns() {
        expect![[r#"
            7c1d09e2  refactor auth module           active    main     103k  $0.51  2m41s
            ? h7q Add auth tests           waits for you: Bash           22k  $0.09  2m31s
            > a1b Investigate auth bug     Edit src/auth/validate.py     33k  $0.21  2m31s
        "#]]
        .assert_eq(&table_at(Some(80)));
    }

    #[test]
    fn a_narrow_terminal_keeps_state_and_age() {
        expect![[r#"
            7c1d09e2  refactor .. active     2m41s
            ? h7q waits for you: Bash        2m31s
            > a1b Edit src/auth/validate.py  2m31s
        "#]]
        .assert_eq(&table_at(Some(40)));
    }

    #[test]
    fn off_a_terminal_nothing_is_cut() {
        let text = table_at(None);
        assert!(text.contains("Edit src/auth/validate.py"), "{text}");
        assert!(!text.contains(".."), "{text}");
    }
}
