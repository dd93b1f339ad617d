//! A tool call's arguments, once they are whole: an object, nothing, or a problem for the model.

use query_engine::ports::ClosedBlock;
use serde_json::{Value, json};
use swarm_protocol::{Block, ToolUseId};

/// Where arguments that are no object go, so that providers accept the call back.
const INVALID_KEY: &str = "INVALID_JSON";

/// A call whose arguments came as text.
pub(crate) fn close_call(
    id: ToolUseId,
    name: String,
    raw: &str,
    provider_data: Option<Value>,
) -> ClosedBlock {
    match parse(raw) {
        Ok(input) => ClosedBlock::Valid(Block::ToolUse { id, name, input, provider_data }),
        Err(problem) => invalid_call(id, name, raw, problem),
    }
}

/// A call that must not run.
pub(crate) fn invalid_call(id: ToolUseId, name: String, raw: &str, problem: String) -> ClosedBlock {
    ClosedBlock::InvalidCall { id, name, input: json!({ INVALID_KEY: raw }), problem }
}

/// A call that the output limit cut.
pub(crate) fn cut_call(id: ToolUseId, name: String, raw: &str) -> ClosedBlock {
    let problem = format!(
        "the output limit was reached inside this call: {} bytes of its arguments came and they are incomplete; \
         write less in one call",
        raw.len()
    );
    invalid_call(id, name, raw, problem)
}

/// Whether arguments are a whole, non-empty text of an object.
pub(crate) fn is_whole(raw: &str) -> bool {
    !raw.trim().is_empty() && parse(raw).is_ok()
}

/// Nothing is an empty object; anything else must be one.
fn parse(raw: &str) -> Result<Value, String> {
    if raw.trim().is_empty() {
        return Ok(json!({}));
    }
    match serde_json::from_str::<Value>(raw) {
        Ok(input @ Value::Object(_)) => Ok(input),
        Ok(other) => Err(format!("the arguments must be a JSON object, not {}", kind(&other))),
        Err(error) => Err(format!("the arguments are not valid JSON: {error}")),
    }
}

/// What a past call's arguments are sent back as: always an object.
pub(crate) fn replayed(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        Value::String(raw) => json!({ INVALID_KEY: raw }),
        other => json!({ INVALID_KEY: other.to_string() }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &str, expected: Result<Value, &str>) {
        let closed = close_call("t1".parse().unwrap(), "Write".to_owned(), raw, None);
        match (closed, expected) {
            (ClosedBlock::Valid(Block::ToolUse { input, .. }), Ok(expected)) => assert_eq!(input, expected),
            (ClosedBlock::InvalidCall { input, problem, .. }, Err(expected)) => {
                assert_eq!(problem, expected);
                assert_eq!(input, json!({ "INVALID_JSON": raw }));
            }
            (closed, expected) => panic!("{raw}: {closed:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn arguments() {
        check("", Ok(json!({})));
        check(" \n", Ok(json!({})));
        check(r#"{"b":1,"a":2}"#, Ok(json!({"b": 1, "a": 2})));
        check(
            r#"{"path":"a\q"}"#,
            Err("the arguments are not valid JSON: invalid escape at line 1 column 12"),
        );
        check("not json", Err("the arguments are not valid JSON: expected ident at line 1 column 2"));
        check(
            r#"{"path":"a"#,
            Err("the arguments are not valid JSON: EOF while parsing a string at line 1 column 10"),
        );
        check("[1]", Err("the arguments must be a JSON object, not an array"));
        check("null", Err("the arguments must be a JSON object, not null"));
    }

    #[test]
    fn what_is_sent_back_is_an_object() {
        assert_eq!(replayed(&json!("{\"a\":")), json!({ "INVALID_JSON": "{\"a\":" }));
        assert_eq!(replayed(&json!([1])), json!({ "INVALID_JSON": "[1]" }));
        assert_eq!(replayed(&json!({"a": 1})), json!({"a": 1}));
    }
}
