//! One taxonomy of failures for every provider: from status, headers and body to what the loop may do.
//!
//! Branches on types and codes first; wordings are the last resort, and an unknown failure is not repaired.
//! Messages are for people: status, the provider's words cut to 500 characters, the request's id; never a key.

mod body;
mod retry_after;
mod wording;

use http::HeaderMap;
use query_engine::ports::{ModelError, ModelErrorKind};
use serde_json::Value;

use body::Report;
pub use retry_after::retry_after;

/// How much of a provider's words a message holds.
const MAX_WORDS_CHARS: usize = 500;

/// A refused request.
pub(crate) fn refused(status: u16, headers: &HeaderMap, body: &[u8], now: jiff::Timestamp) -> ModelError {
    let report = Report::read(body);
    let should_retry = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    let kind = obey(kind(Some(status), &report), should_retry);
    let header_id = ["request-id", "x-request-id"]
        .into_iter()
        .find_map(|name| headers.get(name).and_then(|value| value.to_str().ok()));
    let request_id = report.request_id.as_deref().or(header_id);
    let mut message = format!("HTTP {status}");
    if let Some(word) = report.word() {
        message.push_str(&format!(" {}", cut(word, 64)));
    }
    if !report.message.is_empty() {
        message.push_str(&format!(": {}", cut(&report.message, MAX_WORDS_CHARS)));
    }
    if let Some(id) = request_id {
        message.push_str(&format!(" (request {})", cut(id, 80)));
    }
    ModelError { kind, message, retry_after: retry_after(headers, now), status: Some(status) }
}

/// A failure that came inside a stream, after HTTP 200.
pub(crate) fn in_band(error: &Value) -> ModelError {
    let report = Report::of(error);
    // Some gateways put the upstream's status into `code`.
    let kind = match kind(report.status, &report) {
        // Inside a stream an error without a known word is the server's: the request itself was accepted.
        ModelErrorKind::InvalidRequest if report.word().is_none() => ModelErrorKind::Server,
        kind => kind,
    };
    let word = report.word().map(|word| format!(" {}", cut(word, 64))).unwrap_or_default();
    let words = cut(&report.message, MAX_WORDS_CHARS);
    let message = format!("the provider reported an error inside the answer:{word} {words}");
    ModelError { kind, message: message.trim_end().to_owned(), retry_after: None, status: None }
}

/// A request that is larger than the provider takes, and was not sent. Both in bytes.
pub(crate) fn too_large(bytes: u64, max_bytes: u64) -> ModelError {
    ModelError {
        kind: ModelErrorKind::RequestTooLarge,
        message: format!("the request has {bytes} bytes, and {max_bytes} is the most; it was not sent"),
        retry_after: None,
        status: None,
    }
}

/// What came is not the provider's format.
pub(crate) fn malformed(problem: &str) -> ModelError {
    ModelError {
        kind: ModelErrorKind::Malformed,
        message: format!("the answer is not in the provider's format: {}", cut(problem, MAX_WORDS_CHARS)),
        retry_after: None,
        status: None,
    }
}

/// Event data that is no JSON, or not of the expected shape.
pub(crate) fn malformed_event(data: &str, error: &serde_json::Error) -> ModelError {
    malformed(&format!("{error} in `{}`", cut(data, 200)))
}

/// No connection, or it broke before the answer began.
pub(crate) fn connection(problem: &str) -> ModelError {
    ModelError {
        kind: ModelErrorKind::Connection,
        message: format!("failed to reach the provider: {}", cut(problem, MAX_WORDS_CHARS)),
        retry_after: None,
        status: None,
    }
}

/// The first `limit` characters, on one line.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(limit)
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if text.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}

/// Obeys `x-should-retry`, which providers send against their own statuses.
fn obey(kind: ModelErrorKind, should_retry: Option<&str>) -> ModelErrorKind {
    match should_retry {
        Some("true") if matches!(kind, ModelErrorKind::InvalidRequest) => ModelErrorKind::Transient,
        Some("false") if matches!(kind, ModelErrorKind::RateLimited) => ModelErrorKind::QuotaSpent,
        Some("false") if kind.is_retryable() => ModelErrorKind::InvalidRequest,
        _ => kind,
    }
}

fn kind(status: Option<u16>, report: &Report) -> ModelErrorKind {
    if wording::names_spent_quota(report) {
        return ModelErrorKind::QuotaSpent;
    }
    let refuses_content = matches!(status, None | Some(400 | 413 | 422 | 500));
    if refuses_content && !wording::names_throttling(report) {
        if let Some(limit) = wording::output_limit(report) {
            return ModelErrorKind::MaxTokensTooLarge { limit };
        }
        if wording::names_image(report) {
            return ModelErrorKind::ImageRefused;
        }
        if let Some(limit) = wording::prompt_limit(report) {
            return ModelErrorKind::PromptTooLong { limit };
        }
        if wording::names_bytes(report) {
            return ModelErrorKind::RequestTooLarge;
        }
    }
    by_word(report, status).unwrap_or_else(|| by_status(status, report))
}

/// What the provider's own word says, whatever the status.
fn by_word(report: &Report, status: Option<u16>) -> Option<ModelErrorKind> {
    [report.detail_code.as_deref(), report.code.as_deref(), report.kind.as_deref()]
        .into_iter()
        .flatten()
        .find_map(|word| {
            Some(match word {
                "overloaded_error" | "compaction_unavailable" => ModelErrorKind::Overloaded,
                "rate_limit_error" | "rate_limit_exceeded" | "ramp_limit_exceeded" | "too_many_requests" => {
                    ModelErrorKind::RateLimited
                }
                "authentication_error" | "invalid_api_key" => ModelErrorKind::KeyRefused,
                "permission_error" | "billing_error" => ModelErrorKind::PermissionRefused,
                "model_not_found" => ModelErrorKind::UnknownModel,
                "not_found_error" if status.is_none_or(|status| status == 404) => {
                    ModelErrorKind::UnknownModel
                }
                "request_too_large" | "request_body_too_large_after_decoding" => {
                    ModelErrorKind::RequestTooLarge
                }
                "conflict_error" => ModelErrorKind::Transient,
                "api_error" | "server_error" | "internal_server_error" | "INTERNAL_SERVER_ERROR" => {
                    ModelErrorKind::Server
                }
                "timeout_error" => ModelErrorKind::Server,
                _ => return None,
            })
        })
}

fn by_status(status: Option<u16>, report: &Report) -> ModelErrorKind {
    let Some(status) = status else {
        return if wording::names_throttling(report) {
            ModelErrorKind::RateLimited
        } else {
            ModelErrorKind::InvalidRequest
        };
    };
    match status {
        400 | 500 if wording::names_throttling(report) => ModelErrorKind::RateLimited,
        401 => ModelErrorKind::KeyRefused,
        402 | 403 => ModelErrorKind::PermissionRefused,
        404 => ModelErrorKind::UnknownModel,
        408 | 409 | 425 => ModelErrorKind::Transient,
        413 => ModelErrorKind::RequestTooLarge,
        429 => ModelErrorKind::RateLimited,
        503 | 529 => ModelErrorKind::Overloaded,
        500..=599 => ModelErrorKind::Server,
        _ => ModelErrorKind::InvalidRequest,
    }
}

#[cfg(test)]
mod tests;
