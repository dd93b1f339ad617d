//! Why a task was not accepted.

use std::path::PathBuf;

use agent_host::{ClaudeSettingsError, ConfigError, ConfigReadError, TrustError};
use model_client::EndpointError;
use swarm_protocol::SessionId;
use worktree_manager::{BaseError, OpenError, ReadError};

use super::{PROMPT_BYTES, carry::CarryError};
use crate::{journal::AppendError, session::OrderError};

/// Why a task was not accepted. Nothing was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubmitError {
    /// Nothing to do.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// More than a megabyte of prompt.
    #[error("the prompt has more than {PROMPT_BYTES} bytes")]
    PromptTooLong,
    /// Neither a repository nor a session.
    #[error("neither `repo` nor `session_id` says where to work")]
    NoPlace,
    /// A field that only a new session takes.
    #[error("`{what}` cannot be given together with `session_id`: the session has its own")]
    NotWithSession {
        /// Which field.
        what: &'static str,
    },
    /// The server is being stopped.
    #[error("the server is being stopped")]
    Stopping,
    /// No repository, or one of a kind that is refused.
    #[error(transparent)]
    Repository(#[from] OpenError),
    /// Its path, or that of its git directory, is no text.
    #[error("the repository's path is not valid UTF-8: {}", path.display())]
    NotUtf8 {
        /// Which.
        path: PathBuf,
    },
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The uncommitted changes cannot come along.
    #[error(transparent)]
    Carry(#[from] CarryError),
    /// It could not be looked at.
    #[error("cannot look at the repository: {0}")]
    Facts(String),
    /// Nothing has that name, or there is no commit.
    #[error("{repo} has no commit `{spec}`")]
    Base {
        /// The repository.
        repo: PathBuf,
        /// As given.
        spec: String,
        /// Why.
        #[source]
        source: BaseError,
        /// Whether it came from `--base`.
        given: bool,
    },
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A settings file could not be read.
    #[error(transparent)]
    ConfigRead(#[from] ConfigReadError),
    /// Claude Code's settings files.
    #[error("{}", first_of(errors))]
    Settings {
        /// All that is wrong.
        errors: Vec<ClaudeSettingsError>,
    },
    /// The store of agreements.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No model was named anywhere.
    #[error("no model is configured")]
    NoModel,
    /// A model's name leads nowhere, or its key is missing.
    #[error(transparent)]
    Model(#[from] EndpointError),
    /// A cap in dollars over a model of unknown price.
    #[error("{cap} needs the price of {model}, which is not known")]
    UnknownPrice {
        /// The setting that caps.
        cap: &'static str,
        /// `provider/model`.
        model: String,
        /// The endpoint profile's name, where a price can stand.
        profile: String,
    },
    /// `bypassPermissions` is forbidden by a managed setting.
    #[error("bypassPermissions is switched off by {by}")]
    BypassDisabled {
        /// Which file.
        by: String,
    },
    /// No such session.
    #[error("no session {0}")]
    UnknownSession(SessionId),
    /// The callback's address.
    #[error("`callback_url` must be an http or https address")]
    CallbackUrl,
    /// The session said no.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] AppendError),
    /// A file of the home.
    #[error("cannot write under {home}: {source}")]
    Home {
        /// The home.
        home: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

fn first_of(errors: &[ClaudeSettingsError]) -> String {
    let first = errors.first().map(ToString::to_string).unwrap_or_default();
    match errors.len() {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}
