//! Requests that are refused: tried again, made smaller, or given up, each with its reason.

use super::*;
use crate::rig::PIXEL;

/// Makes images of a megabyte each: a picture, and bytes after its end, which nobody looks at.
fn make_images() -> String {
    format!(
        "n=0\nwhile [ $n -lt \"$1\" ]; do\n  n=$((n + 1))\n  {{ echo {PIXEL} | base64 -d; head -c 1048576 /dev/zero; }} > $n.png\ndone\n"
    )
}

/// A worker that looks at so many images in one turn.
async fn shown_images(rig: Rig, count: usize, rest: impl IntoIterator<Item = Reply>) -> Told {
    let make = Reply::call("Bash", json!({"command": format!("sh make.sh {count}"), "description": "make"}));
    let look = (1..=count)
        .fold(Reply::new(), |reply, n| reply.tool("Read", json!({"file_path": format!("{n}.png")})));
    Told::in_rig(rig, [make, look].into_iter().chain(rest)).await
}

async fn image_rig() -> Rig {
    let repo = TestRepo::with_files(&[("make.sh", &make_images()), (".gitignore", "*.png\n")]);
    let rig = rig_of(repo, "anthropic", WIDE).await;
    rig.model.allow_breaks(None);
    rig
}

fn n_images(request: &integration_tests::model_server::RecordedRequest) -> usize {
    let results = request.json["messages"].as_array().into_iter().flatten();
    let blocks = results.flat_map(|message| message["content"].as_array().into_iter().flatten());
    let inner = blocks.flat_map(|block| block["content"].as_array().into_iter().flatten());
    inner.filter(|block| block["type"] == "image").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_429_without_headers_is_tried_again_with_growing_waits() {
    let limited = || Reply::error(429).body("{}");
    let told = Told::worker([limited(), limited(), limited(), Reply::say("Done.")]).await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 4);
    let waits: Vec<i64> =
        requests.windows(2).map(|pair| pair[1].at.as_millisecond() - pair[0].at.as_millisecond()).collect();
    // Half a second, doubled each time, less up to a quarter.
    assert!(waits[0] >= 375 && waits[1] >= 750 && waits[2] >= 1_500, "{waits:?}");
    assert!(requests.iter().all(|request| request.json == requests[0].json));
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_an_error_inside_an_answer_is_tried_again_unless_a_block_had_closed() {
    // Within the first block: nothing was said.
    let open = Reply::new()
        .raw("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n")
        .error_event("api_error", "Internal server error")
        .end(How::Eof);
    // After a block: its words stay.
    let closed = Reply::say("First words.").error_event("overloaded_error", "Overloaded").end(How::Fin);
    let told = Told::worker([open, closed, Reply::say("Done.")]).await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].json, requests[1].json);
    assert_eq!(said(&requests[2]), ["First words."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a11_thirty_images_over_the_limit_of_the_api_are_thinned_out_once() {
    let rig = image_rig().await;
    let told = shown_images(rig, 30, [Reply::say("Seen.")]).await;
    told.assert_completed();
    // Making them, looking at them, and what is left of 40 MB, which were not sent.
    let requests = told.requests();
    let sizes: Vec<usize> = requests.iter().map(|request| request.raw.len()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|bytes| *bytes < 32_000_000), "{sizes:?}");
    let kept = n_images(&requests[2]);
    assert!((1..30).contains(&kept), "{kept}");
    // The oldest went, and each is a line of text now.
    let results = told.results();
    let texts: Vec<bool> = results[1..].iter().map(|(text, _)| text.contains("removed")).collect();
    assert_eq!(texts, (0..30).map(|n| n < 30 - kept).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_progress_against_a_limit_of_bytes_is_measured_in_bytes() {
    let rig = image_rig().await;
    rig.model.on(|request| {
        let page = "<html><title>413 Request Entity Too Large</title></html>";
        (request.raw.len() > 5_000_000).then(|| Reply::error(413).body(page))
    });
    let told = shown_images(rig, 12, [Reply::say("Seen.")]).await;
    told.assert_completed();
    let sizes: Vec<usize> = told.requests().iter().skip(2).map(|request| request.raw.len()).collect();
    assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
    assert!(sizes.len() <= 4 && sizes.last().is_some_and(|last| *last <= 5_000_000), "{sizes:?}");

    // A limit that nothing fits under is met with a few tries, and then a reason.
    let rig = image_rig().await;
    rig.model.on(|request| {
        let refused = request.tool_results().count() > 1;
        refused.then(|| Reply::error(413).body("<html>too large</html>"))
    });
    let told = shown_images(rig, 4, []).await;
    assert_eq!(told.worker["exit_detail"]["error"], "request_too_large", "{:#}", told.worker);
    assert!(told.requests().len() <= 2 + 5, "{}", told.requests().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a16_a_refused_output_bound_is_lowered_to_what_was_named_and_stays_so() {
    let rig = Rig::new().await;
    let refusal =
        "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for test-model";
    rig.model.on(move |request| {
        let asked = request.json["max_tokens"].as_u64().unwrap_or(0);
        let worker = request.agent_key.contains(&prompt("w"));
        (worker && asked > 4_096).then(|| Reply::error_with(400, "invalid_request_error", refusal))
    });
    let told =
        Told::in_rig(rig, [call(write("a.txt", "x\n")), call(write("b.txt", "x\n")), Reply::say("Done.")])
            .await;
    told.assert_completed();
    let asked: Vec<u64> =
        told.requests().iter().filter_map(|request| request.json["max_tokens"].as_u64()).collect();
    assert!(asked[0] > 4_096, "{asked:?}");
    assert_eq!(asked[1..], [4_096; 3], "one refusal, then never more: {asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a19_an_empty_or_broken_image_does_not_stop_a_worker() {
    let make = format!(
        "touch empty.png; printf '\\211PNG\\r\\n\\032\\nbroken' > broken.png; echo {PIXEL} | base64 -d > whole.png"
    );
    let rig = Rig::of(TestRepo::with_files(&[("make.sh", &make)]), "").await;
    rig.model.allow_breaks(None);
    rig.model.on(|request| {
        let refusal = Reply::error_with(400, "invalid_request_error", "Could not process image");
        (n_images(request) > 0).then_some(refusal)
    });
    let look = |file: &str| Reply::call("Read", json!({"file_path": file}));
    let told = Told::in_rig(
        rig,
        [
            Reply::call("Bash", json!({"command": "sh make.sh", "description": "make"})),
            look("empty.png"),
            look("broken.png"),
            // One that only the provider finds fault with.
            look("whole.png"),
            Reply::say("Done."),
        ],
    )
    .await;
    told.assert_completed();
    let results = told.results();
    assert_eq!(results.len(), 4);
    assert!(results[1].0.contains("empty"), "{results:?}");
    assert!(results[2].1 && results[2].0.contains("cannot be shown"), "{results:?}");
    assert!(results[3].0.contains("removed"), "{results:?}");
    // One refusal; the picture is gone from then on.
    let refused = told.requests().iter().filter(|request| n_images(request) > 0).count();
    assert_eq!(refused, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a20_a_fallback_answers_for_overload_alone() {
    let overloaded = || Reply::overloaded().header("retry-after", "3600");
    let table = [
        (Reply::error(401), None),
        (Reply::error(413).body("<html>413</html>"), None),
        (Reply::error(400), None),
        (Reply::error_with(429, "insufficient_quota", "You exceeded your current quota"), None),
        (overloaded(), Some("claude-haiku-5-5")),
    ];
    for (refusal, answered_by) in table {
        let rig = Rig::configured("fallback_model = \"anthropic/claude-haiku-5-5\"\n").await;
        let shown = format!("{:?}", refusal.http);
        rig.model.agent(COORDINATE, [Reply::call("Agent", agent("w"))]);
        rig.model.rule(when().agent(COORDINATE), "Noted.");
        rig.model.once(when().agent(&prompt("w")), call(write("a.txt", "x\n")));
        rig.model.rule(when().agent(&prompt("w")).model("test-model").turn(1), refusal);
        rig.model.rule(when().agent(&prompt("w")).turn(1), call(write("b.txt", "x\n")));
        rig.model.rule(when().agent(&prompt("w")).turn(2), "Done.");
        let task = rig.submit().await;
        rig.done(&task).await;
        let worker = rig.worker(&task, "w").await;
        let requests = rig.model.requests_of(&prompt("w"));
        let fallbacks: Vec<&str> = requests
            .iter()
            .map(|request| request.model.as_str())
            .filter(|name| *name != "test-model")
            .collect();
        assert_eq!(fallbacks, answered_by.into_iter().collect::<Vec<_>>(), "{shown}");
        match answered_by {
            Some(_) => {
                assert_eq!(worker["status"], "completed", "{shown}");
                // For one turn: the next one asks the model of choice again.
                assert_eq!(requests.last().map(|request| request.model.as_str()), Some("test-model"));
            }
            None => assert_eq!(worker["status"], "failed", "{shown}"),
        }
    }
}

/// What a result or an answer without words looks like when it is sent back.
#[tokio::test(flavor = "multi_thread")]
async fn a04_a05_blank_answers_and_empty_results_are_sent_in_a_form_that_is_taken() {
    let blank = Reply::say("\n \n").tool("Bash", json!({"command": "true", "description": "nothing"}));
    let told = Told::worker([blank, Reply::say("Done.")]).await;
    told.assert_completed();
    // The model server refuses blank texts and empty contents as the API does.
    let last = told.requests().pop().expect("it asked");
    let texts: Vec<&Block> = last
        .messages
        .iter()
        .filter(|message| message.role == Role::Assistant)
        .flat_map(|message| &message.blocks)
        .filter(|block| matches!(block, Block::Text { .. }))
        .collect();
    assert_eq!(texts, Vec::<&Block>::new());
    assert!(told.results()[0].0.contains("no output"), "{:?}", told.results());
}

#[tokio::test(flavor = "multi_thread")]
async fn a01_an_interrupted_call_has_a_result_when_the_next_message_comes() {
    let rig = Rig::of(TestRepo::with_files(&[("wait.sh", "echo begun > begun.txt\nsleep 600\n")]), "").await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    let wait = Reply::call("Bash", json!({"command": "sh wait.sh", "description": "wait"}));
    rig.model.agent(&prompt("w"), [wait, Reply::say("Going on.")]);
    let task = rig.submit().await;
    rig.model.wait_for_request(&prompt("w"), 0).await;
    let worker = rig.worker_has_status(&task, "w", "running").await;
    let begun = crate::rig::path_of(&worker).join("begun.txt");
    integration_tests::until(SOON, "the command runs", async || begun.exists()).await;
    let id = crate::rig::id_of(&worker);
    rig.api().post(&format!("/workers/{id}/stop"), &json!({})).await;
    rig.worker_has_status(&task, "w", "aborted").await;
    rig.api().post(&format!("/workers/{id}/messages"), &json!({"text": "Go on without it."})).await;
    let request = rig.model.wait_for_request(&prompt("w"), 1).await;
    // The model server refuses a call without its result.
    let results: Vec<_> = request.tool_results().collect();
    assert_eq!(results.len(), 1);
    assert!(results[0].2 && results[0].1.to_lowercase().contains("interrupt"), "{results:?}");
    rig.done(&task).await;
}
