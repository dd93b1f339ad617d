//! What a worker is started with. Written to a 0600 file in the run's directory by the server; keys are not
//! in it, they come over the socket.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{RunNumber, SessionId, TaskId, WorkerId},
    permission::{PermissionMode, Rule},
    usage::{Caps, Cost},
};

/// How long the providers' caches hold what was sent, where nothing is configured: Anthropic's 5 minutes.
pub const CACHE_TTL: Duration = Duration::from_secs(5 * 60);

/// Which wire format an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApiKind {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI chat completions, for compatible servers.
    Chat,
    /// OpenAI Responses, for OpenAI itself.
    Responses,
    /// The scripted model inside the binary.
    Demo,
}

/// A model and where it is served. No key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelEndpoint {
    /// The provider's name as people write it before the slash: `anthropic`, `openai`, `demo`, or the name
    /// of an endpoint profile.
    pub provider: String,
    /// The model's name for that provider.
    pub model: String,
    /// The wire format.
    pub api: ApiKind,
    /// Base of the URL, without a trailing slash.
    pub base_url: String,
    /// Whether the key goes into `authorization: Bearer` rather than `x-api-key` (Anthropic only).
    #[serde(default)]
    pub bearer: bool,
    /// Further headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The context window in tokens, when configured.
    #[serde(default)]
    pub context_window: Option<u64>,
    /// The most output tokens a request may ask for, when configured.
    #[serde(default)]
    pub max_output: Option<u64>,
    /// The largest request the provider takes, in bytes, when configured.
    #[serde(default)]
    pub max_request_bytes: Option<u64>,
    /// Whether the server keeps definitions of tools out of the context until they are referred to (Anthropic);
    /// on the official host only when not configured.
    #[serde(default)]
    pub defer_tools: Option<bool>,
    /// How long the first byte may take, in milliseconds; 120 s when not configured.
    #[serde(default)]
    pub first_byte_timeout_ms: Option<u64>,
    /// How long the provider's cache holds what was sent, in milliseconds; 5 minutes when not configured.
    #[serde(default)]
    pub cache_ttl_ms: Option<u64>,
    /// Price in US dollars per million tokens, when configured.
    #[serde(default)]
    pub price: Option<Price>,
}

impl ModelEndpoint {
    /// How long the provider's cache holds what was sent.
    pub fn cache_ttl(&self) -> Duration {
        self.cache_ttl_ms.map_or(CACHE_TTL, Duration::from_millis)
    }

    /// One of which nothing is configured but where it is and how it is spoken to.
    pub fn plain(provider: &str, model: &str, api: ApiKind, base_url: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            model: model.to_owned(),
            api,
            base_url: base_url.to_owned(),
            bearer: false,
            headers: BTreeMap::new(),
            context_window: None,
            max_output: None,
            max_request_bytes: None,
            defer_tools: None,
            first_byte_timeout_ms: None,
            cache_ttl_ms: None,
            price: None,
        }
    }

    /// `provider/model`; the provider alone when it has one model only, which then has no name.
    pub fn display_name(&self) -> String {
        if self.model.is_empty() {
            self.provider.clone()
        } else {
            format!("{}/{}", self.provider, self.model)
        }
    }
}

/// Prices in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Price {
    /// Fresh input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Cache reads.
    pub cache_read: f64,
    /// Cache writes.
    pub cache_write: f64,
}

impl Price {
    /// What a call of this usage costs.
    pub fn cost(&self, usage: &crate::usage::Usage) -> Cost {
        let Self { input, output, cache_read, cache_write } = *self;
        let micro = input * usage.input_tokens as f64
            + output * usage.output_tokens as f64
            + cache_read * usage.cache_read_tokens as f64
            + cache_write * usage.cache_write_tokens as f64;
        Cost::usd(micro / 1_000_000.0)
    }
}

/// The models of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Models {
    /// The coordinator's.
    pub coordinator: ModelEndpoint,
    /// The workers'.
    pub worker: ModelEndpoint,
    /// The helpers' (summaries), when it is another than the agent's own.
    #[serde(default)]
    pub helper: Option<ModelEndpoint>,
    /// What is tried when a model stays unreachable.
    #[serde(default)]
    pub fallback: Option<ModelEndpoint>,
}

/// Where a worker works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Its own worktree.
    #[default]
    Worktree,
    /// The user's checkout, read-only.
    None,
    /// Its own worktree, with a tmux window that shows it.
    Tmux,
}

/// What a worker is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Expects {
    /// Changes on its branch.
    #[default]
    Changes,
    /// A report; no change is no doubt.
    Report,
}

/// A worker as the coordinator asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkerSpec {
    /// Its id, assigned by the server.
    pub id: WorkerId,
    /// What people call it: `name`, else `description`.
    pub name: String,
    /// Three to five words.
    pub description: String,
    /// The prompt.
    pub prompt: String,
    /// `general-purpose`, `Explore` or `Plan`.
    pub agent_type: String,
    /// Where it works.
    pub isolation: Isolation,
    /// What is expected of it.
    pub expects: Expects,
    /// Its model.
    pub model: ModelEndpoint,
    /// The full commit id it starts from.
    pub base: String,
    /// Its branch; none when `isolation` is `none`.
    pub branch: Option<String>,
    /// Where it works: the worktree, or the user's checkout.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub worktree: PathBuf,
    /// First of its ten ports.
    pub port_base: u16,
    /// The task that spawned it.
    pub task_id: TaskId,
    /// The coordinator's turn that spawned it.
    pub parent_turn: u32,
}

/// What the sandbox of commands is to be like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SandboxSettings {
    /// No tier above this one is used: 1, 2 or 0.
    pub strongest_tier: u8,
    /// Further directories that commands may write.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub writable: Vec<PathBuf>,
    /// Hosts that commands may reach through the worker's proxy, while they have no network.
    pub hosts: Vec<String>,
    /// What the processes of one command may hold together, in MiB; 0 for three quarters of the machine's memory.
    pub memory_mib: u64,
    /// How many processes and threads one command may have; 0 for any number.
    pub processes: u64,
    /// How large a file, and all that is in the temp directory, may grow, in MiB; 0 for any size.
    pub disk_mib: u64,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            strongest_tier: 1,
            writable: Vec::new(),
            hosts: Vec::new(),
            memory_mib: 0,
            processes: 4_096,
            disk_mib: 16_384,
        }
    }
}

/// The bounds and switches of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentLimits {
    /// Turns of one run.
    pub max_turns: u32,
    /// How long a permission request waits, in milliseconds.
    pub permission_timeout_ms: u64,
    /// How long a run waits for its own background jobs at its end, in milliseconds.
    pub background_grace_ms: u64,
    /// How many calls run together.
    pub max_tool_concurrency: usize,
    /// Whether a clean command passes when the sandbox enforces.
    pub sandbox_auto_allow: bool,
    /// The weakest tier a worker may run on: 1, or 2, or 0 for any.
    pub sandbox_required: u8,
    /// Whether commands have a network.
    pub sandbox_network: bool,
    /// The rest about the sandbox.
    #[serde(default)]
    pub sandbox: SandboxSettings,
    /// How long a git lock of another program is waited for, in milliseconds.
    #[serde(default = "git_lock_wait_ms")]
    pub git_lock_wait_ms: u64,
    /// What each agent may spend in its life.
    #[serde(default)]
    pub budget: Caps,
    /// Whether the provider's cache is kept alive while an agent waits.
    #[serde(default)]
    pub cache_keepalive: bool,
    /// What single tools need to know.
    #[serde(default)]
    pub tools: ToolSettings,
    /// Whether a small model may allow what a person is asked.
    #[serde(default)]
    pub classifier_racer: bool,
    /// Whether a person is asked when the classifier of the mode `auto` is out of reach; else the call is refused.
    #[serde(default)]
    pub auto_mode_asks: bool,
}

/// What single tools need to know of the settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ToolSettings {
    /// WebFetch and WebSearch.
    pub web: WebSettings,
    /// LSP: a person's own servers, before the built-in ones.
    pub language_servers: Vec<LanguageServer>,
    /// Whether there is a REPL.
    pub repl: bool,
    /// The server that RemoteTrigger gives tasks to; without one there is no RemoteTrigger.
    pub remote: Option<RemoteServer>,
}

/// What the search service's key is filed under; no provider is called so.
pub const SEARCH_KEY: &str = "web.search";
/// What the other swarm server's token is filed under.
pub const REMOTE_TOKEN: &str = "remote";

impl ToolSettings {
    /// Keys that tools need beside those of the models: what each is filed under, and the variable that holds it.
    pub fn key_variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let search = self.web.search.as_ref().and_then(|service| service.key_env.as_deref());
        let remote = self.remote.as_ref().and_then(|server| server.token_env.as_deref());
        [(SEARCH_KEY, search), (REMOTE_TOKEN, remote)]
            .into_iter()
            .filter_map(|(name, variable)| Some((name, variable?)))
    }
}

/// Another swarm server. No token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RemoteServer {
    /// Its URL, without the path of the API.
    pub url: String,
    /// The variable that holds its token, when it needs one.
    pub token_env: Option<String>,
    /// A directory of that machine, inside the repository that tasks are for unless they name another.
    pub repo: Option<String>,
}

/// A language server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LanguageServer {
    /// Of its files, without the dot, in small letters.
    pub extensions: Vec<String>,
    /// The program with its arguments.
    pub command: Vec<String>,
}

/// Where the web tools may go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct WebSettings {
    /// Addresses, with or without a port, and networks that are fetched although they are not public.
    pub allow_private: Vec<String>,
    /// The search service; without one there is no WebSearch.
    pub search: Option<SearchService>,
}

/// A search service and how its answers are laid out. No key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SearchService {
    /// Its URL with `{query}` in it.
    pub endpoint: String,
    /// The variable that holds its key, when it needs one.
    pub key_env: Option<String>,
    /// `Name: value` with `{key}` in it.
    pub key_header: String,
    /// JSON pointer to the list of results.
    pub results: String,
    /// In a result, to its title.
    pub title: String,
    /// To its URL.
    pub url: String,
    /// To what is quoted of the page.
    pub snippet: String,
}

/// The wait of sessions that were opened before there was a setting.
fn git_lock_wait_ms() -> u64 {
    30_000
}

/// The file that starts a run of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLaunch {
    /// Version of the frames the server speaks.
    pub protocol_version: u32,
    /// The session.
    pub session_id: SessionId,
    /// The worker.
    pub spec: WorkerSpec,
    /// The run.
    pub run: RunNumber,
    /// How often this run was started again.
    pub restarts: u32,
    /// What to say to the agent at the start of this run, before anything else: that it was interrupted, or
    /// that its worktree was made again.
    pub notes: Vec<String>,
    /// The repository's main checkout (where settings and memory come from).
    pub checkout: PathBuf,
    /// The repository's common git directory.
    pub git_common_dir: PathBuf,
    /// The git directory of the worker's worktree; none when `isolation` is `none`.
    pub worktree_git_dir: Option<PathBuf>,
    /// A temp directory of its own.
    pub temp_dir: PathBuf,
    /// The JSONL transcript.
    pub transcript: PathBuf,
    /// Where whole results and replaced content go.
    pub results_dir: PathBuf,
    /// Where system prompts are kept by content hash.
    pub prompts_dir: PathBuf,
    /// The server's socket.
    pub socket: PathBuf,
    /// A file that says where the server's socket is now, should it have moved.
    pub server_file: PathBuf,
    /// Secret of this run, that proves the process to the server.
    pub token: String,
    /// The mode it starts in.
    pub permission_mode: PermissionMode,
    /// Nobody will answer.
    pub unattended: bool,
    /// Rules of all levels.
    pub rules: Vec<Rule>,
    /// The helper's model.
    pub helper: Option<ModelEndpoint>,
    /// The fallback model.
    pub fallback: Option<ModelEndpoint>,
    /// Bounds and switches.
    pub limits: AgentLimits,
    /// The session's budget is capped: each call needs a grant.
    #[serde(default)]
    pub needs_grants: bool,
    /// The project's set-up command, run before the first turn of the first run.
    pub setup: Option<String>,
    /// The project's check command, for the prompt.
    pub check: Option<String>,
    /// The filtered environment for commands.
    pub environment: BTreeMap<String, String>,
    /// Append to the system prompt, or override it.
    pub system_prompt: Option<String>,
    /// The user's home, for `~` in rules and for memory files.
    pub home: PathBuf,
    /// Names of ignored files that were copied into the worktree.
    pub included_files: Vec<String>,
    /// It is the one agent of its session, and begins in the user's checkout (`run --solo`).
    #[serde(default)]
    pub solo: bool,
    /// It stands at another place than its last process: it is told where.
    #[serde(default)]
    pub moved: bool,
}
