//! What servers were seen to do. Each case is named after one.

use serde_json::json;

use super::*;

/// Fragments as they come, and `id|name|arguments` of the calls that must result.
fn check(server: &str, fragments: &[Value], expected: &[&str]) {
    let mut accumulator = Accumulator::new(vec!["Read".to_owned(), "Glob".to_owned(), "Write".to_owned()]);
    for fragment in fragments {
        accumulator.push(Fragment::read(fragment));
    }
    let calls: Vec<String> = accumulator
        .finish()
        .into_iter()
        .map(|(_, Slot { id, name, arguments, .. })| {
            format!("{}|{}|{arguments}", id.unwrap_or_default(), name.unwrap_or_default())
        })
        .collect();
    assert_eq!(calls, expected, "{server}");
}

fn start(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn more(index: u64, arguments: &str) -> Value {
    json!({"index": index, "function": {"arguments": arguments}})
}

#[test]
fn as_openai_does_it() {
    check(
        "OpenAI",
        &[
            start(0, "call_1", "Read", ""),
            more(0, "{\"file_"),
            more(0, "path\":\"a\"}"),
            start(1, "call_2", "Glob", "{}"),
        ],
        &["call_1|Read|{\"file_path\":\"a\"}", "call_2|Glob|{}"],
    );
    check(
        "interleaved",
        &[start(0, "a", "Read", "{"), start(1, "b", "Glob", "["), more(0, "}"), more(1, "]")],
        &["a|Read|{}", "b|Glob|[]"],
    );
}

#[test]
fn indexes() {
    let no_index = |id: &str, name: &str, arguments: &str| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    check(
        "Ollama before 0.4.7: no index",
        &[no_index("a", "Read", "{\"x\":1}"), no_index("b", "Glob", "{\"y\":2}")],
        &["a|Read|{\"x\":1}", "b|Glob|{\"y\":2}"],
    );
    check(
        "no index, pieces",
        &[
            no_index("a", "Read", "{"),
            json!({"function": {"arguments": "\"x\":1"}}),
            no_index("a", "", "}"),
            no_index("", "Glob", "{}"),
        ],
        &["a|Read|{\"x\":1}", "|Glob|{}"],
    );
    check(
        "no index, name after the arguments",
        &[
            no_index("a", "", "{\"x\":1}"),
            no_index("a", "Read", ""),
            no_index("b", "", "{}"),
            no_index("b", "Glob", ""),
        ],
        &["a|Read|{\"x\":1}", "b|Glob|{}"],
    );
    check(
        "Ollama 0.20, Dynamo: all calls at index 0",
        &[
            start(0, "a", "Read", "{\"x\":1}"),
            start(0, "b", "Read", "{\"x\":2}"),
            start(0, "c", "Glob", "{}"),
        ],
        &["a|Read|{\"x\":1}", "b|Read|{\"x\":2}", "c|Glob|{}"],
    );
    check(
        "index 0 again, in pieces: they go to the newest",
        &[start(0, "a", "Read", "{}"), start(0, "b", "Glob", ""), more(0, "{\"y\""), more(0, ":2}")],
        &["a|Read|{}", "b|Glob|{\"y\":2}"],
    );
    check(
        "index 0 for several calls without ids",
        &[start(0, "", "Read", "{\"x\":1}"), start(0, "", "Glob", "{}")],
        &["|Read|{\"x\":1}", "|Glob|{}"],
    );
}

#[test]
fn ids() {
    check(
        "vLLM, sglang, lmdeploy: empty ids on continuations",
        &[start(0, "0", "Read", ""), start(0, "", "", "{\"x\":"), start(0, "", "", "1}")],
        &["0|Read|{\"x\":1}"],
    );
    check(
        "a new id in each chunk",
        &[start(0, "a", "Read", "{"), json!({"index": 0, "id": "b", "function": {"arguments": "}"}})],
        &["a|Read|{}"],
    );
    check(
        "null ids",
        &[json!({"index": 0, "id": null, "function": {"name": "Read", "arguments": null}}), more(0, "{}")],
        &["|Read|{}"],
    );
}

#[test]
fn names() {
    check(
        "llama.cpp: the name in each delta",
        &[start(0, "a", "Read", "{"), start(0, "a", "Read", "\"x\":1"), start(0, "", "Read", "}")],
        &["a|Read|{\"x\":1}"],
    );
    check("LM Studio: empty names", &[start(0, "a", "Read", ""), start(0, "", "", "{}")], &["a|Read|{}"]);
    check(
        "id and arguments first, the name later",
        &[json!({"index": 0, "id": "a", "function": {"arguments": "{\"x\""}}), start(0, "a", "Read", ":1}")],
        &["a|Read|{\"x\":1}"],
    );
    check(
        "pieces of a known name",
        &[start(0, "a", "Re", ""), start(0, "a", "ad", ""), more(0, "{}")],
        &["a|Read|{}"],
    );
    check("pieces of no known name", &[start(0, "a", "Re", ""), start(0, "a", "set", "{}")], &["a|Re|{}"]);
    check("never a name", &[start(0, "a", "", "{}"), start(1, "b", "Glob", "{}")], &["b|Glob|{}"]);
}

#[test]
fn arguments() {
    check(
        "vLLM: none for a tool without parameters",
        &[json!({"index": 0, "id": "a", "function": {"name": "Glob"}})],
        &["a|Glob|"],
    );
    check(
        "LiteLLM over Ollama: an object",
        &[json!({"index": 0, "id": "a", "function": {"name": "Read", "arguments": {"z": 1, "a": {"b": 2}}}})],
        &["a|Read|{\"z\":1,\"a\":{\"b\":2}}"],
    );
    check(
        "MiniMax over NIM: all of it again",
        &[start(0, "a", "Read", "{\"x\":1}"), start(0, "a", "Read", "{\"x\":1}")],
        &["a|Read|{\"x\":1}"],
    );
    check(
        "two objects are no reason to guess when the second is cut",
        &[start(0, "a", "Read", "{\"x\":1}{\"x\"")],
        &["a|Read|{\"x\":1}{\"x\""],
    );
    check(
        "braces inside strings are left alone",
        &[start(0, "a", "Write", "{\"content\":\"}{\"}")],
        &["a|Write|{\"content\":\"}{\"}"],
    );
}

#[test]
fn what_must_go_back_is_kept() {
    let mut accumulator = Accumulator::new(vec![]);
    let extra = json!({"google": {"thought_signature": "s"}});
    let mut first = start(0, "a", "Read", "{");
    first["extra_content"] = extra.clone();
    accumulator.push(Fragment::read(&first));
    accumulator.push(Fragment::read(&more(0, "}")));
    assert_eq!(accumulator.slot(0).extra, Some(extra));
}
