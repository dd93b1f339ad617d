//! Completions of ids: asked of the running server, within a tenth of a second. Without one there are none;
//! nothing is started and nothing is said.

use std::{ffi::OsStr, time::Duration};

use clap_complete::engine::CompletionCandidate;
use swarm_protocol::api::PermissionView;

use super::{
    args::GlobalArgs,
    ids::Known,
    output::Stream,
    server_process,
    shell::{Shell, Surroundings},
    text::visible,
};

/// A shell that waits longer feels broken.
const LIMIT: Duration = Duration::from_millis(100);

/// Workers and sessions of this repository.
pub(crate) fn ids(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((known, _)) = ask(false) else { return Vec::new() };
    keep(workers_of(&known).chain(sessions_of(&known)), current)
}

/// Workers of this repository.
pub(crate) fn workers(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((known, _)) = ask(false) else { return Vec::new() };
    keep(workers_of(&known), current)
}

/// Sessions of this repository.
pub(crate) fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((known, _)) = ask(false) else { return Vec::new() };
    keep(sessions_of(&known), current)
}

/// Requests that wait.
pub(crate) fn requests(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((_, open)) = ask(true) else { return Vec::new() };
    let candidates = open.into_iter().map(|view| {
        let request = view.request;
        let words = format!("{} {} {}", request.worker_id.suffix(), request.tool, request.summary);
        (request.id.to_string(), words)
    });
    keep(candidates, current)
}

fn workers_of(known: &Known) -> impl Iterator<Item = (String, String)> + '_ {
    known
        .workers
        .iter()
        .filter(|worker| {
            known
                .sessions
                .iter()
                .find(|session| session.session_id == worker.session_id)
                .is_some_and(|session| known.is_here(session))
        })
        .map(|worker| (worker.id.suffix().to_owned(), format!("{}, {}", worker.name, worker.status.as_str())))
}

fn sessions_of(known: &Known) -> impl Iterator<Item = (String, String)> + '_ {
    known
        .sessions
        .iter()
        .filter(|session| known.is_here(session))
        .map(|session| (session.short.clone(), format!("{}, {}", session.title, session.state.as_str())))
}

fn keep(candidates: impl Iterator<Item = (String, String)>, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    candidates
        .filter(|(id, _)| id.starts_with(&*current))
        .map(|(id, words)| CompletionCandidate::new(id).help(Some(visible(&words).into())))
        .collect()
}

fn ask(wants_requests: bool) -> Option<(Known, Vec<PermissionView>)> {
    let sink = || Stream::of(Box::new(std::io::sink()), false, false);
    let shell = Shell::with_streams(Surroundings::read(), GlobalArgs::default(), sink(), sink());
    // Without the file there is no server, and no runtime is needed to know it.
    shell.home.read_server_file().ok()??;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, async {
            let found = server_process::compatible(&shell).await.ok()??;
            let known = Known::load(&shell, &found.client).await.ok()?;
            let open = if wants_requests { found.client.get("/permissions").await.ok()? } else { Vec::new() };
            Some((known, open))
        })
        .await
        .ok()?
    })
}
