//! What every agent meets on its machine: settings, permission rules, memory files, system prompts.
//!
//! Decisions (`bash`, `dangerous`, `rules`, `prompt`) are pure functions; `settings`, `trust` and `memory`
//! read and write files whose places the caller passes in. Nothing here knows a home directory, an
//! environment or a working directory of its own.

mod addresses;
mod arguments;
mod bash;
mod dangerous;
mod memory;
mod paths;
mod prefix;
mod prompt;
mod replacement;
mod rules;
pub mod secrets;
mod settings;
pub mod transcript;
mod trust;

pub use addresses::{AllowedAddress, NotAnAddress, NotPublic, may_reach};
pub use arguments::arguments_hash;
pub use bash::{
    Assignment, Connector, Layer, LayerKind, MAX_COMMAND_CHARS, Parsed, Piece, PlainCommand, Redirect,
    RedirectOp, TooComplex, Word, layers, parse,
};
pub use dangerous::{DangerousForm, DangerousForms, DangerousTableError, FormKind, Place};
pub use memory::{
    DEFAULT_MEMORY_BUDGET_BYTES, MAX_MEMORY_FILE_BYTES, Memory, MemoryFile, MemoryKind, MemoryNotice,
    MemoryPlaces, SkippedBecause, memory_reminder,
};
pub use paths::{DiskPaths, at_home};
pub use prefix::{keep_prefix, load_prefix};
pub use prompt::{
    EXPLORE_PROMPT, EnvironmentInfo, GitState, MAX_GIT_STATUS_CHARS, PLAN_PROMPT, SystemPromptParts,
    ToolText, WORKER_PROMPT, first_message, git_state, system_prompt,
};
pub use replacement::{CONTENT_GONE, Replacement, ReplacementKey, ReplacementLimits, ReplacementStore};
pub use rules::{
    DecidedBy, Explanation, Ground, Look, MatchingRule, Part, PathPatternError, PathResolver,
    PermissionAnswer, PermissionQuery, RuleError, RuleSet, RuleSyntaxError, SandboxState, Subject, decide,
    explain,
};
pub use settings::{
    ChannelKind, ChannelSettings, ClaudeLevel, ClaudePlaces, ClaudeSettings, ClaudeSettingsError,
    ClaudeSettingsFile, Config, ConfigError, ConfigInputs, ConfigProblem, ConfigReadError, EndpointProfile,
    ExplainedValue, Flag, IgnoredSetting, Notify, Place as TextPlace, RememberError, RulePlace, Source,
    TomlText, remember, replace_file,
};
pub use trust::{RepositoryWants, Trust, TrustError, revoke_trust};
