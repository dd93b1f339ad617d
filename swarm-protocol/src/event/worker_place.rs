//! Where an agent stands that may move.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where an agent stands that may move (`run --solo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "in", rename_all = "snake_case")]
pub enum WorkerPlace {
    /// A worktree of its own.
    Worktree {
        /// Its directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        path: PathBuf,
        /// Its branch; another name is taken when this one is not free.
        branch: String,
        /// What the work is called from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The user's checkout, read-only.
    Checkout {
        /// Its directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        path: PathBuf,
        /// Whether it keeps its worktree and branch; else they go into the recycle bin.
        kept: bool,
    },
}
