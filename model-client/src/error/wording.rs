//! What providers write when a request is too large, in whichever sense, and when a quota is spent. None of
//! them promises a code for it, so the words are what there is.

use super::body::Report;

fn contains_any(text: &str, needles: &[&str]) -> bool {
    needles.iter().any(|needle| text.contains(needle))
}

fn lower(report: &Report) -> String {
    let mut text = report.message.to_lowercase();
    for word in [&report.kind, &report.code, &report.detail_code].into_iter().flatten() {
        text.push(' ');
        text.push_str(&word.to_lowercase());
    }
    text
}

/// A spent quota: trying again cannot help until a person pays or a month ends.
pub(super) fn names_spent_quota(report: &Report) -> bool {
    contains_any(
        &lower(report),
        &[
            "insufficient_quota",
            "enforced_spend_limit_reached",
            "contract_spend_limit_reached",
            "billing_hard_limit_reached",
            "you have reached your specified api usage limits",
            "you exceeded your current quota",
            "credit balance is too low",
        ],
    )
}

/// Throttling in words that look like a size: checked before any size.
pub(super) fn names_throttling(report: &Report) -> bool {
    contains_any(
        &lower(report),
        &["rate limit", "rate_limit", "throttl", "too many requests", "too many tokens, please wait"],
    )
}

/// `max_tokens` over what is allowed; inside: what is.
pub(super) fn output_limit(report: &Report) -> Option<Option<u64>> {
    let text = lower(report);
    if text.contains("input length and `max_tokens` exceed context limit") {
        // "… exceed context limit: A + B > C": what remains for the output is C - A.
        let numbers = numbers(after(&text, "context limit")?);
        let room = match numbers[..] {
            [input, _, limit, ..] => limit.checked_sub(input),
            _ => None,
        };
        return Some(room.filter(|room| *room > 0));
    }
    if !contains_any(&text, &["max_tokens", "max_completion_tokens", "max_output_tokens"]) {
        return None;
    }
    if let Some(rest) = after(&text, "valid range of max_tokens is") {
        return Some(numbers(rest).get(1).copied());
    }
    if let Some(rest) = after(&text, "supports at most") {
        return Some(numbers(rest).first().copied());
    }
    if text.contains("maximum allowed number of output tokens") {
        // "max_tokens: A > B, which is the maximum …"
        return Some(after(&text, ">").and_then(|rest| numbers(rest).first().copied()));
    }
    for words in ["must be less than or equal to", "less than or equal to", "maximum value", "at most"] {
        if let Some(rest) = after(&text, words) {
            return Some(numbers(rest).first().copied());
        }
    }
    contains_any(&text, &["is too large", "too large for this model", "exceeds the maximum output"])
        .then_some(None)
}

/// An image the provider will not have.
pub(super) fn names_image(report: &Report) -> bool {
    let text = lower(report);
    contains_any(
        &text,
        &[
            "image_dimensions_too_large",
            "image dimensions exceed",
            "could not process image",
            "invalid image",
            "invalid_image",
            "image_parse_error",
            "unsupported image",
            "unable to process input image",
            "does not support image",
            "image input is not supported",
        ],
    ) || (text.contains("image") && contains_any(&text, &["exceeds", "too large", "maximum allowed size"]))
}

/// Too many tokens; inside: how many are allowed.
pub(super) fn prompt_limit(report: &Report) -> Option<Option<u64>> {
    let text = lower(report);
    let input_too_long = ["input length", "input token count"]
        .iter()
        .filter_map(|words| after(&text, words))
        .any(|rest| contains_any(rest, &["exceed", "long"]));
    let named = contains_any(
        &text,
        &[
            "context_length_exceeded",
            "exceed_context_size",
            "maximum context length",
            "maximum model length",
            "context size",
            "context window",
            "prompt is too long",
            "prompt_too_long",
            "input is too long",
        ],
    );
    if !named && !input_too_long {
        return None;
    }
    let limit = [
        "context size (",
        "maximum context length is",
        "maximum context length of",
        "maximum context length (",
        "maximum model length of",
        "maximum number of input tokens allowed",
        "maximum number of tokens allowed",
        "tokens >",
        "context window of",
    ]
    .iter()
    .find_map(|words| numbers(after(&text, words)?).first().copied());
    Some(limit)
}

/// Too many bytes.
pub(super) fn names_bytes(report: &Report) -> bool {
    contains_any(
        &lower(report),
        &[
            "request_too_large",
            "request too large",
            "request body too large",
            "request entity too large",
            "payload too large",
            "body is too large",
            "exceeds the maximum size",
            "exceeds the maximum allowed number of bytes",
            "request exceeds the maximum",
            "content too large",
            "length limit exceeded",
        ],
    )
}

fn after<'text>(text: &'text str, words: &str) -> Option<&'text str> {
    text.find(words).map(|start| &text[start + words.len()..])
}

/// The whole numbers of a text, in order; `200,000` and `200_000` are one.
fn numbers(text: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut digits = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character.is_ascii_digit() {
            digits.push(character);
        } else if !digits.is_empty()
            && matches!(character, ',' | '_')
            && characters.peek().is_some_and(char::is_ascii_digit)
        {
        } else if !digits.is_empty() {
            numbers.extend(digits.parse::<u64>().ok());
            digits.clear();
        }
    }
    numbers.extend(digits.parse::<u64>().ok());
    numbers
}
