//! Settings: swarm's own in TOML, and the `settings.json` files of Claude Code's format.
//!
//! [`Config`] joins the levels of swarm's settings and remembers where each value came from;
//! [`ClaudeSettings`] reads rules and environment from the other format. Both take texts and places that
//! the caller passes in; [`remember`] and the readers touch the disk.

mod claude;
mod config;
mod endpoint;
mod error;
mod file;
mod json_position;
mod keys;
mod remember;
mod toml_file;
mod tools;
mod value;

pub use claude::{
    ClaudeLevel, ClaudePlaces, ClaudeSettings, ClaudeSettingsError, ClaudeSettingsFile, IgnoredSetting,
};
pub use config::{ChannelKind, ChannelSettings, Config, ConfigInputs, ExplainedValue, Flag, Notify};
pub use endpoint::EndpointProfile;
pub use error::{ConfigError, ConfigProblem, ConfigReadError, Place, Source};
pub use remember::{RememberError, RulePlace, remember};
pub use toml_file::TomlText;

pub(crate) use config::gated_lines;
pub use file::replace as replace_file;
pub(crate) use file::{locked_update, read_bounded};

#[cfg(test)]
mod tests;
