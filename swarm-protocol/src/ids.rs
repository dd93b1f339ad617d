//! One type per kind of id: parsed once at the border, displayed one way, transparent on the wire.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}")]
pub struct ParseIdError {
    /// The kind of id that was wanted, as people call it.
    pub what: &'static str,
    /// The text as it came, at most 64 characters of it.
    pub text: String,
}

impl ParseIdError {
    fn new(what: &'static str, text: &str) -> Self {
        Self { what, text: text.chars().take(64).collect() }
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The last 8 hex digits: what people see. The first 8 are a clock and repeat.
            pub fn short(&self) -> String {
                let text = self.0.simple().to_string();
                text[24..].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self).map_err(|_| ParseIdError::new($what, text))
            }
        }
    };
}

uuid_id!(
    /// A conversation with a coordinator about one repository; a UUIDv7.
    SessionId,
    "session id"
);
uuid_id!(
    /// What a person or a program submitted; a UUIDv7.
    TaskId,
    "task id"
);
uuid_id!(
    /// A message of a person to an agent, while it waits to be read; a UUIDv7.
    MessageId,
    "message id"
);

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// A worker: `agent-` and 3 to 12 characters of `[0-9a-z]`, unique in `$SWARM_HOME`, assigned by the
    /// server, never by a model. Safe as a path component and as a part of a branch name by construction.
    WorkerId
);

impl WorkerId {
    /// What stands before the suffix.
    pub const PREFIX: &'static str = "agent-";

    /// The part people see: `a1b` of `agent-a1b`.
    pub fn suffix(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }
}

impl FromStr for WorkerId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new("worker id", text);
        let suffix = text.strip_prefix(Self::PREFIX).ok_or_else(error)?;
        let wellformed = (3..=12).contains(&suffix.len())
            && suffix.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        if wellformed { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

text_id!(
    /// A permission request: `req-` and 3 to 12 characters of `[0-9a-z]`, unique in `$SWARM_HOME`.
    PermissionRequestId
);

impl FromStr for PermissionRequestId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new("permission request id", text);
        let suffix = text.strip_prefix("req-").ok_or_else(error)?;
        let wellformed = (3..=12).contains(&suffix.len())
            && suffix.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        if wellformed { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

text_id!(
    /// The provider's id of one tool call; unique in one conversation.
    ToolUseId
);

impl FromStr for ToolUseId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text.len() > 256 {
            return Err(ParseIdError::new("tool call id", text));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Position in the journal of one session, from 1. Clients treat cursors as opaque.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command to a worker: the journal seq of the event that decided it.
pub type CommandId = Seq;

/// One activation of a worker, from spawn or continuation to its end; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct RunNumber(pub u32);

impl RunNumber {
    /// The run that begins with the spawn.
    pub const FIRST: Self = Self(1);

    /// The run after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for RunNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_ids_are_path_safe() {
        for good in ["agent-a1b", "agent-000", "agent-abcdef012345"] {
            assert_eq!(good.parse::<WorkerId>().unwrap().to_string(), good);
        }
        for bad in
            ["", "agent-", "agent-ab", "agent-A1b", "agent-../x", "a1b", "agent-a b", "agent-abcdef0123456"]
        {
            assert!(bad.parse::<WorkerId>().is_err(), "{bad}");
            assert!(serde_json::from_value::<WorkerId>(bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_session_is_short_by_its_end() {
        let id: SessionId = "01a22d8c-a610-7b1d-9a44-52f07c1d09e2".parse().unwrap();
        assert_eq!(id.short(), "7c1d09e2");
    }
}
