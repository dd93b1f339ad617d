//! The servers of a run: which one is for a file, started when it is first needed, started again when it died.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use swarm_protocol::launch::LanguageServer;
use tokio::sync::Mutex;

use super::{client::Client, languages};
use crate::{shell::Shell, tools::disk};

/// After its first start.
const MAX_RESTARTS: u32 = 3;

/// The language servers of a run.
pub struct Languages {
    shell: Arc<Shell>,
    config: LanguagesConfig,
    servers: Vec<(LanguageServer, Mutex<Slot>)>,
}

/// What they are started with.
pub struct LanguagesConfig {
    /// A person's own servers.
    pub own: Vec<LanguageServer>,
    /// The worktree.
    pub root: PathBuf,
    /// Where servers may write.
    pub scratch: PathBuf,
    /// Where programs are found.
    pub path: Option<OsString>,
    /// Whether the sandbox holds them.
    pub is_confined: bool,
}

#[derive(Default)]
struct Slot {
    n_ended: u32,
    client: Option<Arc<Client>>,
}

/// A file's server.
pub(super) struct Place {
    index: usize,
    program: String,
    extension: String,
}

impl Place {
    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn language(&self) -> &str {
        languages::language_id(&self.extension)
    }
}

impl Languages {
    /// Starts nothing yet.
    pub fn new(shell: Arc<Shell>, config: LanguagesConfig) -> Self {
        let servers =
            languages::servers(&config.own).into_iter().map(|server| (server, Mutex::default())).collect();
        Self { shell, config, servers }
    }

    /// Whether there is a server for any language.
    pub fn has_any(&self) -> bool {
        !self.extensions().is_empty()
    }

    pub(super) fn is_confined(&self) -> bool {
        self.config.is_confined
    }

    /// The endings that a server is there for: `.rs, .go`.
    pub(super) fn extensions(&self) -> String {
        let there = self.servers.iter().filter(|(server, _)| self.is_there(server));
        let mut endings: Vec<String> = there
            .flat_map(|(server, _)| &server.extensions)
            .map(|extension| format!(".{extension}"))
            .collect();
        endings.dedup();
        endings.join(", ")
    }

    fn is_there(&self, server: &LanguageServer) -> bool {
        let program = server.command.first();
        program.is_some_and(|program| languages::is_there(program, self.config.path.as_deref()))
    }

    pub(super) fn place_of(&self, path: &Path) -> Result<Place, String> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        let extension = extension.unwrap_or_default();
        let mut fitting = self
            .servers
            .iter()
            .enumerate()
            .filter(|(_, (server, _))| server.extensions.contains(&extension))
            .map(|(index, (server, _))| (index, server))
            .peekable();
        let wanted = fitting.peek().and_then(|(_, server)| server.command.first()).cloned();
        match (fitting.find(|(_, server)| self.is_there(server)), wanted) {
            (Some((index, server)), _) => {
                Ok(Place { index, program: server.command.first().cloned().unwrap_or_default(), extension })
            }
            (None, Some(program)) => Err(format!(
                "There is no language server for .{extension} files: {program} is not on PATH. Use Grep and Read."
            )),
            (None, None) => Err(format!(
                "No language server is known for files that end in .{extension}. A person can name one with `lsp.servers`. Use Grep and Read."
            )),
        }
    }

    /// The server of a place, started when it does not run.
    pub(super) async fn client(&self, place: &Place) -> Result<Arc<Client>, String> {
        let (server, slot) = &self.servers[place.index];
        // Who comes meanwhile waits for the same start.
        let mut slot = slot.lock().await;
        if let Some(client) = slot.client.as_ref().filter(|client| client.is_alive()) {
            return Ok(client.clone());
        }
        if let Some(dead) = slot.client.take() {
            slot.n_ended = slot.n_ended.saturating_add(1);
            dead.end().await;
        }
        if slot.n_ended > MAX_RESTARTS {
            return Err(format!(
                "{} ended {} times and is not started again in this run. Use Grep and Read.",
                place.program, slot.n_ended
            ));
        }
        // A start that is cancelled is none of its ends.
        let client = Client::start(&self.shell, &server.command, &self.config.root, &self.config.scratch)
            .await
            .inspect_err(|_| slot.n_ended = slot.n_ended.saturating_add(1))?;
        slot.client = Some(client.clone());
        Ok(client)
    }

    /// The server of a file, when it runs and nobody is starting it.
    pub(super) fn running(&self, path: &Path) -> Option<(Place, Arc<Client>)> {
        let place = self.place_of(path).ok()?;
        let slot = self.servers[place.index].1.try_lock().ok()?;
        let client = slot.client.clone().filter(|client| client.is_alive())?;
        Some((place, client))
    }

    /// Gives a server the files it was shown as they are now: commands change them, too.
    pub(super) async fn refresh(&self, client: &Client) -> Result<(), String> {
        for uri in client.shown().await {
            let path = reqwest::Url::parse(&uri).ok().and_then(|url| url.to_file_path().ok());
            let read = match path.clone() {
                Some(path) => {
                    tokio::task::spawn_blocking(move || disk::read_whole(&path).ok()).await.ok().flatten()
                }
                None => None,
            };
            match (path, read.and_then(|bytes| String::from_utf8(bytes).ok())) {
                (Some(path), Some(text)) => {
                    // Its language was told when it was opened.
                    client.show(&path, "", &text).await?;
                }
                _ => client.forget(&uri).await?,
            }
        }
        Ok(())
    }

    /// Ends all of them, and what they started.
    pub async fn end(&self) {
        for (_, slot) in &self.servers {
            let client = {
                let mut slot = slot.lock().await;
                slot.n_ended = u32::MAX;
                slot.client.take()
            };
            if let Some(client) = client {
                client.end().await;
            }
        }
    }
}
