//! Tools of which the model is told the names only, with a provider that keeps definitions back and with one that
//! knows nothing of that (spec 4.5). Through the built worker.

use std::fs;

use integration_tests::{Reply, TestRepo, model_server::Request};
use serde_json::{Value, json};

use crate::{
    rig::call,
    streaming::{Told, rig_of},
};

/// The definition of a tool, as a request has it.
fn tool<'a>(request: &'a Request, name: &str) -> Option<&'a Value> {
    let tools = request.json["tools"].as_array().into_iter().flatten();
    tools.into_iter().find(|tool| tool["name"] == name || tool["function"]["name"] == name)
}

fn search(query: &str) -> Reply {
    call(("ToolSearch", json!({"query": query})))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_defers_gets_every_definition_from_the_first_request_on_and_references() {
    let rig = rig_of(TestRepo::new(), "anthropic", "defer_tools = true\n").await;
    let lost = call(("Retrieve", json!({"id": "toolu_nobody"})));
    let told =
        Told::in_rig(rig, [search("select:Retrieve"), search("teapots"), lost, Reply::say("Done.")]).await;
    told.assert_completed();
    let requests = told.requests();
    for request in &requests {
        assert_eq!(tool(request, "Retrieve").map(|tool| &tool["defer_loading"]), Some(&json!(true)));
        assert_eq!(tool(request, "Read").map(|tool| &tool["defer_loading"]), Some(&Value::Null));
        assert!(tool(request, "CallTool").is_none());
    }
    assert!(requests[0].any_user_text_contains("which ToolSearch loads before they can be called"));
    let results = requests[1].json["messages"].as_array().expect("messages").last().expect("results");
    assert_eq!(
        results["content"][0]["content"],
        json!([{"type": "tool_reference", "tool_name": "Retrieve"}])
    );
    let results = told.results();
    assert!(
        results[1].1 && results[1].0.contains("There are: ") && results[1].0.contains("Retrieve"),
        "{results:?}"
    );
    assert!(results[2].0.contains("no longer available"), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_provider_reads_the_definition_and_calls_by_name_through_the_same_gate() {
    let rig = rig_of(TestRepo::new(), "chat", "").await;
    let settings = rig.home.user_home().join(".claude");
    fs::create_dir_all(&settings).expect("the home is ours");
    let deny = json!({"permissions": {"deny": ["Bash(touch *)"]}});
    fs::write(settings.join("settings.json"), deny.to_string()).expect("the home is ours");
    let within = |name: &str, input: Value| call(("CallTool", json!({"name": name, "input": input})));
    let told = Told::in_rig(
        rig,
        [
            search("earlier output"),
            within("Retrieve", json!({"id": "toolu_nobody"})),
            within("Bash", json!({"command": "touch made.txt"})),
            within("Nothing", json!({})),
            call(("CallTool", json!({"input": {}}))),
            Reply::say("Done."),
        ],
    )
    .await;
    told.assert_completed();
    let first = &told.requests()[0];
    assert!(tool(first, "Retrieve").is_none() && tool(first, "CallTool").is_some());
    let results = told.results();
    assert!(results[0].0.contains("Call it with CallTool") && results[0].0.contains("\"id\""), "{results:?}");
    assert!(results[1].0.contains("no longer available"), "{results:?}");
    // This format has no flag for an error.
    let failed: Vec<bool> = results.iter().map(|(text, _)| text.starts_with("[error] ")).collect();
    assert_eq!(failed, [false, true, true, true, true], "{results:?}");
    assert!(results[2].0.contains("Bash(touch *)"), "the rule for the tool within: {results:?}");
    assert_eq!(told.file("made.txt"), None);
}
