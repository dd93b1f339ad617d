//! Errors.

use serde::{Deserialize, Serialize};

/// Errors as RFC 9457 says, with a stable `code`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `about:blank`, or the code's page.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// The status.
    pub status: u16,
    /// The message.
    pub title: String,
    /// Where and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Stable code.
    pub code: String,
}
