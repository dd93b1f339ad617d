use expect_test::{Expect, expect};
use query_engine::ports::ModelErrorKind::{
    ImageRefused, InvalidRequest, KeyRefused, MaxTokensTooLarge, Overloaded, PermissionRefused,
    PromptTooLong, QuotaSpent, RateLimited, RequestTooLarge, Server, Transient, UnknownModel,
};
use query_engine::recovery::{Failure, Remedy, RetryPolicy, remedy};

use super::*;

fn refuse(status: u16, headers: &[(&'static str, &str)], body: &str) -> ModelError {
    let headers =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    refused(status, &headers, body.as_bytes(), jiff::Timestamp::UNIX_EPOCH)
}

fn check(status: u16, body: &str, expected: ModelErrorKind) {
    assert_eq!(refuse(status, &[], body).kind, expected, "{status} {body}");
}

fn anthropic(kind: &str, message: &str) -> String {
    serde_json::json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})
        .to_string()
}

fn openai(code: Option<&str>, message: &str) -> String {
    serde_json::json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": code}})
        .to_string()
}

#[test]
fn a14_too_many_tokens() {
    let too_long = |limit| PromptTooLong { limit };
    let invalid = |message: &str| anthropic("invalid_request_error", message);
    check(400, &invalid("prompt is too long: 207791 tokens > 200000 maximum"), too_long(Some(200_000)));
    check(400, &invalid("Prompt is too long"), too_long(None));
    check(400, &invalid("capability_rejected: prompt_too_long"), too_long(None));
    check(413, &invalid("prompt is too long: 1200000 tokens > 1000000 maximum"), too_long(Some(1_000_000)));
    check(400, r#"{"message":"Input is too long for requested model."}"#, too_long(None));
    check(
        400,
        &openai(
            Some("context_length_exceeded"),
            "This model's maximum context length is 128000 tokens. However…",
        ),
        too_long(Some(128_000)),
    );
    check(400, &openai(None, "Your input exceeds the context window of this model."), too_long(None));
    check(
        400,
        r#"{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 512 output tokens and your prompt contains at least 3585 input tokens","code":400}"#,
        too_long(Some(4096)),
    );
    check(
        400,
        r#"{"detail":"The decoder prompt (length 9000) is longer than the maximum model length of 8192."}"#,
        too_long(Some(8192)),
    );
    check(
        400,
        r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error"}}"#,
        too_long(Some(8192)),
    );
    check(
        422,
        r#"{"error":"Input length (70000) exceeds model's maximum context length (65,536)."}"#,
        too_long(Some(65_536)),
    );
    check(
        400,
        r#"[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
        too_long(Some(1_048_576)),
    );
    check(
        500,
        r#"{"error":{"message":"input token count exceeds the maximum number of input tokens"}}"#,
        too_long(None),
    );
}

#[test]
fn a14_too_many_bytes() {
    check(413, "<html><head><title>413 Request Entity Too Large</title></head></html>", RequestTooLarge);
    check(413, "", RequestTooLarge);
    check(413, &anthropic("request_too_large", "Request exceeds the maximum size"), RequestTooLarge);
    check(400, &anthropic("invalid_request_error", "Request body too large"), RequestTooLarge);
    check(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"x","details":{"error_code":"request_body_too_large_after_decoding"}}}"#,
        RequestTooLarge,
    );
    check(500, "payload too large", RequestTooLarge);
}

#[test]
fn a14_images() {
    let invalid = |message: &str| anthropic("invalid_request_error", message);
    check(
        400,
        &invalid(
            "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
        ),
        ImageRefused,
    );
    check(400, &invalid("Could not process image"), ImageRefused);
    check(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"x","details":{"error_code":"image_dimensions_too_large"}}}"#,
        ImageRefused,
    );
    check(400, &openai(None, "You uploaded an unsupported image. Please make sure…"), ImageRefused);
    check(500, r#"{"error":"this model does not support image input"}"#, ImageRefused);
}

/// Wordings as they stand, with what they mean whatever the status they come with.
const TOO_LARGE: [(&str, ModelErrorKind); 16] = [
    ("prompt is too long: 207791 tokens > 200000 maximum", PromptTooLong { limit: Some(200_000) }),
    ("This model's maximum context length is 128,000 tokens.", PromptTooLong { limit: Some(128_000) }),
    ("Your input exceeds the context window of this model.", PromptTooLong { limit: None }),
    (
        "request (9412 tokens) exceeds the available context size (8192 tokens)",
        PromptTooLong { limit: Some(8192) },
    ),
    (
        "The decoder prompt (length 9) is longer than the maximum model length of 8.",
        PromptTooLong { limit: Some(8) },
    ),
    ("Input length (70) exceeds model's maximum context length (65).", PromptTooLong { limit: Some(65) }),
    ("Input is too long for requested model.", PromptTooLong { limit: None }),
    ("Request body too large", RequestTooLarge),
    ("413 Request Entity Too Large", RequestTooLarge),
    ("Request exceeds the maximum size", RequestTooLarge),
    ("payload too large", RequestTooLarge),
    ("length limit exceeded", RequestTooLarge),
    ("image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes", ImageRefused),
    ("At least one of the image dimensions exceed max allowed size: 8000 pixels", ImageRefused),
    ("Could not process image", ImageRefused),
    ("You uploaded an unsupported image.", ImageRefused),
];

#[test]
fn a14_a_wording_means_the_same_with_every_status_and_in_every_body() {
    for (words, expected) in TOO_LARGE {
        for status in [400, 413, 422, 500] {
            check(status, &anthropic("invalid_request_error", words), expected.clone());
            check(status, &openai(None, words), expected.clone());
            check(status, &serde_json::json!({"detail": words}).to_string(), expected.clone());
            check(status, words, expected.clone());
            check(status, &words.to_uppercase(), expected.clone());
        }
        // Throttling is no size, whatever else it says.
        check(429, &openai(None, words), RateLimited);
        check(503, &openai(None, words), Overloaded);
        check(400, &openai(None, &format!("rate limit reached; {words}")), RateLimited);
    }
}

#[test]
fn a14_unknown_words_are_not_tried_again_blindly() {
    for words in ["something is off with this", "too many cooks", "the value is too long", "images: 3"] {
        for status in [400, 422] {
            let error = refuse(status, &[], &anthropic("invalid_request_error", words));
            assert_eq!(error.kind, InvalidRequest, "{status} {words}");
            assert!(!error.kind.is_retryable());
        }
        // Nothing else can be meant by these two.
        check(413, words, RequestTooLarge);
        check(500, words, Server);
    }
}

/// What the loop does with a first failure, in a word.
fn remedy_of(status: u16, headers: &[(&'static str, &str)], body: &str, attempts: u32) -> &'static str {
    let error = refuse(status, headers, body);
    let failure = Failure { error, elapsed: std::time::Duration::ZERO, jitter: 0.0 };
    let now = swarm_protocol::Timestamp::from_millis(0);
    match remedy(&failure, attempts, &RetryPolicy::default(), now) {
        Remedy::Wait(_) => "again",
        Remedy::TryAnother { .. } => "another",
        Remedy::GiveUp { .. } => "end",
        Remedy::MakeRoom => "compact",
        Remedy::StripMedia => "strip",
        Remedy::ClampOutput { .. } => "clamp",
        Remedy::Cancelled => "cancelled",
    }
}

#[test]
fn a17_status_and_body_say_whether_to_try_again_and_when_a_fallback_may_answer() {
    let quota = openai(Some("insufficient_quota"), "You exceeded your current quota");
    let spend = anthropic("invalid_request_error", "You have reached your specified API usage limits.");
    let page = "<html><title>Bad Gateway</title></html>";
    // Status, headers, body; then the first failure, and the tenth, which is the bound.
    type Row<'a> = (u16, &'a [(&'static str, &'a str)], &'a str, &'static str, &'static str);
    let table: &[Row<'_>] = &[
        (400, &[], "{}", "end", "end"),
        (401, &[], "{}", "end", "end"),
        (402, &[], "{}", "end", "end"),
        (403, &[], page, "end", "end"),
        (404, &[], "{}", "end", "end"),
        (408, &[], "", "again", "another"),
        (409, &[], "{}", "again", "another"),
        (413, &[], page, "strip", "strip"),
        (422, &[], "{}", "end", "end"),
        (429, &[], "{}", "again", "another"),
        (429, &[], "", "again", "another"),
        (429, &[], &quota, "end", "end"),
        (400, &[], &spend, "end", "end"),
        (429, &[("x-should-retry", "false")], "{}", "end", "end"),
        (500, &[], "", "again", "another"),
        (500, &[("x-should-retry", "false")], "{}", "end", "end"),
        (502, &[], page, "again", "another"),
        (503, &[], page, "again", "another"),
        (504, &[], "", "again", "another"),
        (529, &[], "{}", "again", "another"),
        (400, &[("x-should-retry", "true")], "{}", "again", "another"),
        (401, &[("x-should-retry", "true")], "{}", "end", "end"),
        // Waits are honoured up to five minutes; beyond that another model, if there is one, answers at once.
        (429, &[("retry-after", "300")], "{}", "again", "another"),
        (429, &[("retry-after", "301")], "{}", "another", "another"),
        (529, &[("retry-after-ms", "86400000")], "{}", "another", "another"),
        (401, &[("retry-after", "3")], "{}", "end", "end"),
    ];
    for (status, headers, body, first, last) in table {
        let found = [1, 10].map(|attempts| remedy_of(*status, headers, body, attempts));
        assert_eq!(found, [*first, *last], "{status} {headers:?} {body}");
    }
}

#[test]
fn a16_output_limits_and_what_they_allow() {
    let cap = |limit| MaxTokensTooLarge { limit };
    check(
        400,
        &anthropic(
            "invalid_request_error",
            "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-haiku-4-5",
        ),
        cap(Some(64_000)),
    );
    check(
        400,
        &openai(
            None,
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
        ),
        cap(Some(16_384)),
    );
    check(
        400,
        &openai(None, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
        cap(Some(8192)),
    );
    check(
        400,
        &anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens`",
        ),
        cap(Some(10_000)),
    );
}

#[test]
fn statuses_and_words() {
    check(401, &anthropic("authentication_error", "invalid x-api-key"), KeyRefused);
    check(400, &openai(Some("invalid_api_key"), "Incorrect API key"), KeyRefused);
    check(402, &anthropic("billing_error", "pay"), PermissionRefused);
    check(403, "<html><body>Forbidden</body></html>", PermissionRefused);
    check(404, &anthropic("not_found_error", "model: claude-x"), UnknownModel);
    check(400, &openai(Some("model_not_found"), "The model `x` does not exist"), UnknownModel);
    check(408, "", Transient);
    check(409, &anthropic("conflict_error", "x"), Transient);
    check(429, "{}", RateLimited);
    check(429, &anthropic("rate_limit_error", "slow down"), RateLimited);
    check(429, &openai(Some("insufficient_quota"), "You exceeded your current quota"), QuotaSpent);
    for code in ["enforced_spend_limit_reached", "contract_spend_limit_reached"] {
        let body = format!(
            r#"{{"type":"error","error":{{"type":"rate_limit_error","message":"x","details":{{"error_code":"{code}"}}}}}}"#
        );
        check(429, &body, QuotaSpent);
    }
    check(
        429,
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"x","details":{"error_code":"ramp_limit_exceeded"}}}"#,
        RateLimited,
    );
    check(
        400,
        &anthropic(
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain…",
        ),
        QuotaSpent,
    );
    check(400, r#"{"message":"Too many tokens, please wait before trying again."}"#, RateLimited);
    check(500, &anthropic("api_error", "x"), Server);
    check(502, "<html><title>502 Bad Gateway</title></html>", Server);
    check(503, "", Overloaded);
    check(504, &anthropic("timeout_error", "x"), Server);
    check(529, &anthropic("overloaded_error", "Overloaded"), Overloaded);
    check(
        400,
        &anthropic("invalid_request_error", "tools.0.name: String should match pattern"),
        InvalidRequest,
    );
    check(422, r#"{"detail":[{"loc":["body"],"msg":"Extra inputs are not permitted"}]}"#, InvalidRequest);
    check(418, "", InvalidRequest);
    check(301, "", InvalidRequest);
}

#[test]
fn the_provider_may_overrule_its_status() {
    let kind = |status, value| refuse(status, &[("x-should-retry", value)], "{}").kind;
    assert_eq!(kind(429, "false"), QuotaSpent);
    assert_eq!(kind(500, "false"), InvalidRequest);
    assert_eq!(kind(400, "true"), Transient);
    assert_eq!(kind(500, "true"), Server);
    assert_eq!(kind(401, "true"), KeyRefused);
}

#[test]
fn inside_a_stream() {
    let check = |text: &str, expected: ModelErrorKind| {
        let error = in_band(&serde_json::from_str(text).unwrap());
        assert_eq!(error.kind, expected, "{text}");
        assert_eq!(error.status, None);
    };
    check(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Overloaded);
    check(r#"{"error":{"type":"api_error","message":"x"}}"#, Server);
    check(r#"{"error":{"code":429,"message":"upstream","metadata":{}}}"#, RateLimited);
    check(r#"{"error":{"code":502,"message":"upstream"}}"#, Server);
    check(r#"{"error":"something broke"}"#, Server);
    check(r#"{"code":"rate_limit_exceeded","message":"x"}"#, RateLimited);
    check(r#"{"code":"invalid_prompt","message":"x"}"#, InvalidRequest);
    check(r#"{"error":{"code":"context_length_exceeded","message":"x"}}"#, PromptTooLong { limit: None });
}

fn check_message(status: u16, headers: &[(&'static str, &str)], body: &str, expected: Expect) {
    expected.assert_eq(&refuse(status, headers, body).message);
}

#[test]
fn messages_for_people() {
    check_message(
        529,
        &[("request-id", "req_header")],
        &anthropic("overloaded_error", "Overloaded\nnow"),
        expect!["HTTP 529 overloaded_error: Overloaded now (request req_1)"],
    );
    check_message(
        502,
        &[("x-request-id", "abc")],
        "<html><head><title>502 Bad Gateway</title></head><body>x</body></html>",
        expect!["HTTP 502: an HTML page: 502 Bad Gateway (request abc)"],
    );
    check_message(
        503,
        &[],
        "<h1>Sorry</h1> <p>come back</p>",
        expect!["HTTP 503: an HTML page: Sorry come back"],
    );
    check_message(500, &[], "", expect!["HTTP 500"]);
    let long = refuse(400, &[], &openai(None, &"é".repeat(5000))).message;
    assert!(long.ends_with('…') && long.chars().count() < 560, "{}", long.chars().count());
}
