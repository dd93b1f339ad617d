//! A server whose tool parser is off or wrong lets calls through as text. They are not run from text; a person
//! is told what to change.

use query_engine::ports::{ModelError, ModelErrorKind};
use serde_json::Value;

/// What to say when an answer without calls is one in disguise.
pub(super) fn diagnosis(text: &str, tools: &[String]) -> Option<ModelError> {
    looks_like_call(text, tools).then(|| ModelError {
        kind: ModelErrorKind::InvalidRequest,
        message: format!(
            "the model wrote a tool call as text (`{}`), which was not run: the server does not parse this model's \
             calls; start it with the model's tool parser (vLLM: --enable-auto-tool-choice --tool-call-parser, \
             llama.cpp: --jinja), or use a model that supports tools",
            crate::error::cut(text.trim(), 80)
        ),
        retry_after: None,
        status: None,
    })
}

fn looks_like_call(text: &str, tools: &[String]) -> bool {
    let is_tool = |name: &str| tools.iter().any(|tool| tool == name);
    for (mark, _) in text.match_indices("<function=") {
        let name: &str = &text[mark + "<function=".len()..];
        if name.split(['>', ' ', '\n']).next().is_some_and(is_tool) {
            return true;
        }
    }
    for mark in ["<tool_call>", "[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>"] {
        if text.split(mark).skip(1).any(|after| names_tool(after, tools)) {
            return true;
        }
    }
    let bare = text.trim().trim_start_matches("```json").trim_start_matches("```");
    let whole = bare.trim_end_matches("```").trim();
    whole.ends_with(['}', ']']) && names_tool(whole, tools)
}

/// Whether a text begins with a JSON object (or a list of them) of a tool's name and its arguments.
fn names_tool(text: &str, tools: &[String]) -> bool {
    let mut values = serde_json::Deserializer::from_str(text.trim_start()).into_iter::<Value>();
    let Some(Ok(value)) = values.next() else { return false };
    let call = value.as_array().and_then(|calls| calls.first()).unwrap_or(&value);
    let call = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    let has_arguments = call.get("arguments").or(call.get("parameters")).is_some();
    has_arguments && call["name"].as_str().is_some_and(|name| tools.iter().any(|tool| tool == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: bool) {
        let tools = ["Read".to_owned(), "Bash".to_owned()];
        assert_eq!(diagnosis(text, &tools).is_some(), expected, "{text}");
    }

    #[test]
    fn calls_in_disguise() {
        check("<tool_call>\n{\"name\": \"Read\", \"arguments\": {\"file_path\": \"a\"}}\n</tool_call>", true);
        check("Let me look.\n<tool_call>{\"name\":\"Bash\",\"arguments\":{}}</tool_call>", true);
        check("<function=Read>\n<parameter=file_path>a</parameter></function>", true);
        check("{\"name\": \"Read\", \"parameters\": {\"file_path\": \"a\"}}", true);
        check("```json\n{\"name\": \"Read\", \"arguments\": {}}\n```", true);
        check("[TOOL_CALLS][{\"name\":\"Read\",\"arguments\":{}}]", true);
    }

    #[test]
    fn ordinary_words() {
        check("The parser wraps calls in <tool_call> tags.", false);
        check("<tool_call>{\"name\": \"Unknown\", \"arguments\": {}}</tool_call>", false);
        check("{\"name\": \"shop\", \"arguments\": []}", false);
        check("{\"name\": \"Read\"}", false);
        check("Example: {\"name\": \"Read\", \"arguments\": {}} is what a call looks like.", false);
        check("", false);
    }
}
