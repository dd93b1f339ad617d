//! What a person types for an id: full form, the part people see, any unique prefix of either, a worker's
//! name, `-` for the newest session here. A guess does nothing: it lists what is near. Pure but for loading.

use swarm_protocol::{
    SessionState, Timestamp, WorkerId,
    api::{PermissionView, SessionView, WorkerView},
};

use super::{
    client::Client,
    error::{CliError, Result},
    format,
    prefix::Prefixes,
    repository::{self, Repository},
    shell::{Shell, now},
    text::visible,
};

/// How many near ones are listed.
const NEAR: usize = 5;

/// What an id stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// A worker.
    Worker(Box<WorkerView>),
    /// A session.
    Session(Box<SessionView>),
}

/// Everything that has an id.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) sessions: Vec<SessionView>,
    pub(crate) workers: Vec<WorkerView>,
    /// The repository the command is about.
    pub(crate) repository: Option<Repository>,
    now: Timestamp,
}

/// Which kind of id is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Any,
    Worker,
    Session,
}

impl Wanted {
    const fn words(self) -> &'static str {
        match self {
            Self::Any => "worker or session",
            Self::Worker => "worker",
            Self::Session => "session",
        }
    }
}

impl Known {
    /// Asks the server.
    pub(crate) async fn load(shell: &Shell, client: &Client) -> Result<Self> {
        let (sessions, workers) = tokio::try_join!(client.get("/sessions"), client.get("/workers"))?;
        Ok(Self { sessions, workers, repository: repository::around(shell), now: now() })
    }

    /// Whether a session is of this repository. Without a repository all are.
    pub(crate) fn is_here(&self, session: &SessionView) -> bool {
        self.repository.as_ref().is_none_or(|repository| repository.owns(&session.repo))
    }

    fn worker_is_here(&self, worker: &WorkerView) -> bool {
        self.sessions
            .iter()
            .find(|session| session.session_id == worker.session_id)
            .is_some_and(|session| self.is_here(session))
    }

    /// How much of an id is enough: among those of this repository, which are looked at first, or among all.
    pub(crate) fn prefixes(&self, all: bool) -> Prefixes {
        let workers = self.workers.iter().filter(|worker| all || self.worker_is_here(worker));
        let sessions = self.sessions.iter().filter(|session| all || self.is_here(session));
        Prefixes::over(
            workers
                .map(|worker| worker.id.suffix().to_owned())
                // A session is named by its full id, too.
                .chain(sessions.flat_map(|session| [session.short.clone(), session.session_id.to_string()])),
        )
    }

    /// The newest session of this repository.
    fn newest(&self) -> Option<&SessionView> {
        self.sessions.iter().filter(|session| self.is_here(session)).max_by_key(|session| session.created_at)
    }

    /// What a text stands for.
    pub(crate) fn resolve(&self, text: &str, wanted: Wanted) -> Result<Target> {
        if text.is_empty() || text.len() > 200 {
            return Err(CliError::usage("an id is missing"));
        }
        if text == "-" {
            let newest = self.newest().ok_or_else(|| self.unknown(text, wanted))?;
            return match wanted {
                Wanted::Worker => Err(CliError::usage("`-` is a session, and a worker is needed")),
                Wanted::Any | Wanted::Session => Ok(Target::Session(Box::new(newest.clone()))),
            };
        }
        let workers = if wanted == Wanted::Session { &[][..] } else { &self.workers[..] };
        let sessions = if wanted == Wanted::Worker { &[][..] } else { &self.sessions[..] };

        let exact_worker =
            workers.iter().find(|worker| worker.id.as_str() == text || worker.id.suffix() == text);
        let exact_session =
            sessions.iter().find(|session| session.short == text || session.session_id.to_string() == text);
        match (exact_worker, exact_session) {
            (Some(worker), None) => return Ok(Target::Worker(Box::new(worker.clone()))),
            (None, Some(session)) => return Ok(Target::Session(Box::new(session.clone()))),
            (Some(_), Some(_)) | (None, None) => {}
        }
        let named: Vec<&WorkerView> = workers.iter().filter(|worker| worker.name == text).collect();
        if let [worker] = named[..] {
            return Ok(Target::Worker(Box::new(worker.clone())));
        }
        // `a` is no prefix of every `agent-…`.
        let full =
            |worker: &WorkerView| text.starts_with(WorkerId::PREFIX) && worker.id.as_str().starts_with(text);
        let mut candidates: Vec<Target> = workers
            .iter()
            .filter(|worker| full(worker) || worker.id.suffix().starts_with(text) || worker.name == text)
            .map(|worker| Target::Worker(Box::new(worker.clone())))
            .chain(
                sessions
                    .iter()
                    .filter(|session| {
                        session.short.starts_with(text) || session.session_id.to_string().starts_with(text)
                    })
                    .map(|session| Target::Session(Box::new(session.clone()))),
            )
            .collect();
        // What is here comes before what is elsewhere.
        let here = |target: &Target| match target {
            Target::Worker(worker) => self.worker_is_here(worker),
            Target::Session(session) => self.is_here(session),
        };
        if candidates.iter().any(here) {
            candidates.retain(here);
        }
        match candidates.len() {
            0 => Err(self.unknown(text, wanted)),
            1 => Ok(candidates.swap_remove(0)),
            n => Err(CliError::new("ambiguous_id", format!("`{text}` fits {n} ids"))
                .hint(format!("which one: {}", self.list(candidates.iter())))),
        }
    }

    /// A worker.
    pub(crate) fn worker(&self, text: &str) -> Result<WorkerView> {
        match self.resolve(text, Wanted::Worker)? {
            Target::Worker(worker) => Ok(*worker),
            Target::Session(_) => Err(self.unknown(text, Wanted::Worker)),
        }
    }

    /// A session.
    pub(crate) fn session(&self, text: &str) -> Result<SessionView> {
        match self.resolve(text, Wanted::Session)? {
            Target::Session(session) => Ok(*session),
            Target::Worker(_) => Err(self.unknown(text, Wanted::Session)),
        }
    }

    /// The error for an id that does not exist, with what is near it.
    fn unknown(&self, text: &str, wanted: Wanted) -> CliError {
        let here: Vec<Target> = self
            .workers
            .iter()
            .filter(|worker| wanted != Wanted::Session && self.worker_is_here(worker))
            .map(|worker| Target::Worker(Box::new(worker.clone())))
            .chain(
                self.sessions
                    .iter()
                    .filter(|session| wanted != Wanted::Worker && self.is_here(session))
                    .map(|session| Target::Session(Box::new(session.clone()))),
            )
            .collect();
        let place = if self.repository.is_some() { "in this repository" } else { "in this home" };
        let error = CliError::new("unknown_id", format!("no {} `{text}`", wanted.words()));
        if here.is_empty() {
            return error.cause(format!("none is known {place}")).hint("swarm ps -a --all-repos");
        }
        let mut near: Vec<(usize, &Target)> = here
            .iter()
            .filter_map(|target| distance(text, target).map(|distance| (distance, target)))
            .collect();
        near.sort_by_key(|(distance, _)| *distance);
        let error = error.cause(format!("{} known {place}", are(here.len())));
        if near.is_empty() {
            error.hint("all: swarm ps -a")
        } else {
            let near = self.list(near.iter().map(|(_, target)| *target));
            error.hint(format!("near it: {near}; all: swarm ps -a"))
        }
    }

    fn list<'a>(&self, targets: impl Iterator<Item = &'a Target>) -> String {
        let described: Vec<String> = targets.take(NEAR).map(|target| self.describe(target)).collect();
        described.join(", ")
    }

    fn describe(&self, target: &Target) -> String {
        match target {
            Target::Worker(worker) => match worker.ended_at {
                Some(ended) if worker.status.is_ended() => format!(
                    "{} ({}, ended {} ago)",
                    worker.id.suffix(),
                    visible(&worker.name),
                    format::ago(self.now.millis_since(ended))
                ),
                _ => {
                    format!("{} ({}, {})", worker.id.suffix(), visible(&worker.name), worker.status.as_str())
                }
            },
            Target::Session(session) => format!(
                "{} ({}, {})",
                session.short,
                visible(&session.title),
                match session.state {
                    SessionState::Ended | SessionState::Idle =>
                        format!("{} ago", format::ago(self.now.millis_since(session.updated_at))),
                    SessionState::Active | SessionState::Waiting => session.state.as_str().to_owned(),
                }
            ),
        }
    }
}

fn are(count: usize) -> String {
    if count == 1 { "1 is".to_owned() } else { format!("{count} are") }
}

/// How far a text is from an id; none when it is not near.
fn distance(text: &str, target: &Target) -> Option<usize> {
    let (ids, name): (Vec<String>, &str) = match target {
        Target::Worker(worker) => (vec![worker.id.suffix().to_owned(), worker.id.to_string()], &worker.name),
        Target::Session(session) => (vec![session.short.clone()], &session.title),
    };
    let of_id = ids
        .iter()
        .filter_map(|id| {
            let shared = id.chars().zip(text.chars()).take_while(|(a, b)| a == b).count();
            let edits = strsim::osa_distance(id, text);
            // Another id of the same form shares `agent-` with everything.
            let prefixed = shared > 0 && (!id.starts_with("agent-") || shared > "agent-".len());
            (edits <= 2 && edits < id.len().min(text.len()) || prefixed).then_some(edits)
        })
        .min();
    let name = name.to_lowercase();
    let of_name = (text.len() >= 3 && name.contains(&text.to_lowercase())).then_some(text.len());
    of_id.into_iter().chain(of_name).min()
}

/// The request a text stands for: its id, a prefix, or the worker that asks.
pub(crate) fn request(known: &Known, open: &[PermissionView], text: &str) -> Result<PermissionView> {
    let matches: Vec<&PermissionView> = open
        .iter()
        .filter(|view| {
            let id = view.request.id.as_str();
            !text.is_empty()
                && (id.starts_with(text)
                    || id.strip_prefix("req-").is_some_and(|suffix| suffix.starts_with(text)))
        })
        .collect();
    let exact = matches.iter().find(|view| {
        let id = view.request.id.as_str();
        id == text || id.strip_prefix("req-") == Some(text)
    });
    if let Some(view) = exact {
        return Ok((*view).clone());
    }
    if !text.starts_with("req-")
        && let Ok(Target::Worker(worker)) = known.resolve(text, Wanted::Worker)
    {
        let asked: Vec<&PermissionView> =
            open.iter().filter(|view| view.request.worker_id == worker.id).collect();
        return match asked[..] {
            [view] => Ok(view.clone()),
            [] => Err(CliError::new("nothing_asked", format!("{} asks for nothing", worker.id.suffix()))
                .cause(format!("it is {}", worker.status.as_str()))),
            _ => Err(CliError::new(
                "ambiguous_id",
                format!("{} asks {} things", worker.id.suffix(), asked.len()),
            )
            .hint(format!("which one: {}", requests(asked.iter().copied())))),
        };
    }
    match matches[..] {
        [view] => Ok(view.clone()),
        [] if open.is_empty() => Err(CliError::new("unknown_id", format!("no request `{text}`"))
            .cause("nothing waits for an answer")
            .hint("swarm ps")),
        [] => Err(CliError::new("unknown_id", format!("no request `{text}`"))
            .cause(format!("{} waiting", are(open.len())))
            .hint(format!("open: {}", requests(open.iter())))),
        _ => Err(CliError::new("ambiguous_id", format!("`{text}` fits {} requests", matches.len()))
            .hint(format!("which one: {}", requests(matches.iter().copied())))),
    }
}

fn requests<'a>(views: impl Iterator<Item = &'a PermissionView>) -> String {
    let described: Vec<String> = views
        .take(NEAR)
        .map(|view| {
            let request = &view.request;
            format!(
                "{} ({} {} {})",
                request.id,
                request.worker_id.suffix(),
                request.tool,
                super::text::cut(&visible(&request.summary), 40)
            )
        })
        .collect();
    described.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fixtures::{session, worker};

    fn known() -> Known {
        let mut ended = worker("agent-h2x", "Old one");
        ended.status = swarm_protocol::WorkerStatus::Completed;
        ended.ended_at = Some(Timestamp::from_millis(1_000));
        Known {
            sessions: vec![session("01a22d8c-a610-7b1d-9a44-52f07c1d09e2", "refactor auth module")],
            workers: vec![
                worker("agent-h7q", "Add auth tests"),
                worker("agent-a1b", "Investigate auth bug"),
                worker("agent-a9c", "Something else"),
                ended,
            ],
            repository: None,
            now: Timestamp::from_millis(1_000 + 3 * 3_600_000),
        }
    }

    fn id(target: &Target) -> String {
        match target {
            Target::Worker(worker) => worker.id.to_string(),
            Target::Session(session) => session.short.clone(),
        }
    }

    #[test]
    fn every_form_down_to_the_shortest_unique_prefix() {
        let known = known();
        for text in ["agent-a1b", "a1b", "a1", "agent-a1", "Investigate auth bug"] {
            assert_eq!(id(&known.resolve(text, Wanted::Any).unwrap()), "agent-a1b", "{text}");
        }
        for text in ["7c1d09e2", "7c", "7", "01a22d8c-a610-7b1d-9a44-52f07c1d09e2", "01a22d", "-"] {
            assert_eq!(id(&known.resolve(text, Wanted::Any).unwrap()), "7c1d09e2", "{text}");
        }
    }

    #[test]
    fn a_guess_lists_what_is_near_and_does_nothing() {
        let error = known().resolve("h7x", Wanted::Any).unwrap_err();
        assert_eq!(error.message, "no worker or session `h7x`");
        assert_eq!(error.causes, ["5 are known in this home"]);
        assert_eq!(
            error.hint.unwrap(),
            "near it: h7q (Add auth tests, running), h2x (Old one, ended 3h ago); all: swarm ps -a"
        );
        assert_eq!(error.exit, 1);
    }

    #[test]
    fn an_ambiguous_prefix_lists_candidates() {
        let error = known().resolve("a", Wanted::Worker).unwrap_err();
        assert_eq!(error.code, "ambiguous_id");
        assert_eq!(
            error.hint.unwrap(),
            "which one: a1b (Investigate auth bug, running), a9c (Something else, running)"
        );
    }

    #[test]
    fn an_empty_id_is_a_mistake_of_shape() {
        assert_eq!(known().resolve("", Wanted::Any).unwrap_err().exit, 2);
    }

    #[test]
    fn a_worker_stands_for_its_one_request() {
        let known = known();
        let open = vec![crate::cli::fixtures::permission("req-3f2", "agent-h7q", "pip install pytest-cov")];
        for text in ["req-3f2", "3f2", "3", "h7q", "agent-h7q"] {
            assert_eq!(request(&known, &open, text).unwrap().request.id.as_str(), "req-3f2", "{text}");
        }
        assert_eq!(request(&known, &open, "a1b").unwrap_err().code, "nothing_asked");
        assert_eq!(request(&known, &open, "req-999").unwrap_err().code, "unknown_id");
    }
}
