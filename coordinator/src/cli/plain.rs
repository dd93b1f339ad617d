//! What happens, one fact a line, for readers without live rows: same words, nothing lost. Pure.

use swarm_protocol::{Timestamp, WorkerStatus, permission::Racer};

use super::{
    commands::answers,
    format, layout, rows,
    state::{News, StateView, WorkerRow},
    text::visible,
};

/// `[02:10]`.
pub(crate) fn stamp(state: &StateView, now: Timestamp) -> String {
    let seconds = now.millis_since(state.since) / 1000;
    format!("[{:02}:{:02}]", seconds / 60, seconds % 60)
}

/// Lines for a piece of news, without their stamp. Words of the coordinator are not among them.
pub(crate) fn lines(news: &News, state: &StateView) -> Vec<String> {
    let named = |id: &swarm_protocol::WorkerId| {
        state.worker(id).map_or_else(String::new, |worker| visible(&worker.name))
    };
    match news {
        News::Words(_) | News::Finished(_) => Vec::new(),
        News::Started(id) => vec![format!("{} started: {}", id.suffix(), named(id))],
        News::Continued(id, reason) => vec![format!("{} goes on: {}", id.suffix(), visible(reason))],
        News::Restarted(id, times) => {
            vec![format!("{} was started again after its process died ({times})", id.suffix())]
        }
        News::Ended(id) => state.worker(id).map(|worker| vec![ended(worker)]).unwrap_or_default(),
        News::Asked(request) => {
            let who = request.worker_id.suffix();
            let id = &request.id;
            vec![
                format!("{who} asks {id}: {} {}", visible(&request.tool), visible(&request.summary)),
                match request.tool.as_str() {
                    "AskUserQuestion" => {
                        format!("{who} waits {} for: swarm approve {id} -m ANSWER", wait(request.timeout_ms))
                    }
                    _ => format!(
                        "{who} waits {} for: swarm approve {id} | swarm deny {id}",
                        wait(request.timeout_ms)
                    ),
                },
            ]
        }
        News::Decided(id, decision, wrote) => {
            let mut line = format!(
                "{} {} {} by {}",
                id.suffix(),
                decision.id,
                answers::decided(decision),
                answers::racer(decision.by)
            );
            if let (Some(reason), true) = (&decision.reason, decision.by != Racer::Timeout) {
                line.push_str(&format!(": {}", visible(reason)));
            }
            if let Some(rule) = wrote {
                line.push_str(&format!("; wrote {}", visible(rule)));
            }
            vec![line]
        }
        News::Withdrawn(words) => vec![format!("withdrawn {}", visible(words))],
        News::NeedsKey => vec![format!(
            "waits for a key of the provider: set it, then swarm resume {}",
            state.session_id.short()
        )],
        News::Trouble(code, message) => vec![format!("error {}: {}", visible(code), visible(message))],
        News::Merged(id, into) => vec![format!("{} merged into {}", id.suffix(), visible(into))],
    }
}

/// `10m`, `1m30s`.
fn wait(millis: u64) -> String {
    format::age(millis).replace("m00s", "m")
}

fn ended(worker: &WorkerRow) -> String {
    let id = worker.id.suffix();
    let how = match worker.status {
        WorkerStatus::Completed => match rows::how_it_ended(worker).split_once(", ") {
            Some((_, what)) => format!("completed: {what}"),
            None => "completed".to_owned(),
        },
        _ => rows::how_it_ended(worker),
    };
    let mut line = format!(
        "{id} {how}, {}, {} tokens, {}",
        format::count(u64::from(worker.turns), "turn"),
        format::tokens(worker.usage.total()),
        format::money(worker.cost_usd)
    );
    for doubt in &worker.doubts {
        line.push_str(&format!(", doubt {}", doubt.as_str()));
    }
    line
}

/// The line that says somebody still works.
pub(crate) fn still_working(state: &StateView) -> String {
    let counts = layout::counts(state).replace("  ", ", ");
    let counts = if counts.is_empty() { "the coordinator works".to_owned() } else { counts };
    format!("still working: {counts}, {}", format::cost(&state.cost()))
}

#[cfg(test)]
mod tests {
    use swarm_protocol::{Seq, launch::Expects, status::WorkerStatus};

    use super::*;
    use crate::cli::fixtures;

    #[test]
    fn one_fact_a_line() {
        let session = fixtures::session(fixtures::SESSION, "refactor");
        let mut state = StateView::new(&session, Seq(0), Timestamp::from_millis(0), false);
        let mut view = fixtures::worker("agent-p9t", "Find callers of old API");
        view.status = WorkerStatus::Completed;
        view.expects = Expects::Report;
        view.turns = 9;
        view.usage.input_tokens = 31_000;
        view.cost_usd = Some(0.12);
        state.workers.push(WorkerRow::from(&view));
        assert_eq!(
            lines(&News::Ended(view.id.clone()), &state),
            ["p9t completed: report, 9 turns, 31k tokens, $0.12"]
        );
        let request = fixtures::permission("req-3f2", "agent-h7q", "pip install pytest-cov").request;
        assert_eq!(
            lines(&News::Asked(Box::new(request)), &state),
            [
                "h7q asks req-3f2: Bash pip install pytest-cov",
                "h7q waits 10m for: swarm approve req-3f2 | swarm deny req-3f2"
            ]
        );
        assert_eq!(stamp(&state, Timestamp::from_millis(130_400)), "[02:10]");
        assert_eq!(still_working(&state), "still working: 1 done, $0.12");
    }
}
