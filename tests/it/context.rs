//! A worker whose window fills up: what is cleared, what is summarised, and what survives both. The window is small,
//! and each file that the worker reads takes a good part of it.

use std::fs;

use integration_tests::{
    Reply, TestRepo,
    model_server::{Block, Outcome, RecordedRequest, Request, Role},
    when,
};
use serde_json::{Value, json};

use crate::{
    rig::{PIXEL, Rig, agent, call, entries, prompt, write},
    streaming::{Told, rig_of},
};

/// Tokens of a window that holds the prefix of a worker and about four of the files.
const WINDOW: u64 = 33_600;
/// What the last message of a summary request says.
const ASKS_FOR_A_SUMMARY: &str = "Write a summary of the conversation";
const SUMMARY_TITLE: &str = "[Summary of prior conversation]";

/// A file that takes about 5,250 tokens when it is read, as the model server counts them: five are too many, four
/// are not.
fn long(n: usize) -> String {
    format!("File {n} has a line that says nothing.\n").repeat(453)
}

fn read(path: &str) -> Reply {
    Reply::call("Read", json!({"file_path": path}))
}

fn reads(files: std::ops::Range<usize>) -> impl Iterator<Item = Reply> {
    files.map(|n| read(&format!("f{n}.txt")))
}

/// With 30 long files and these, and a window that the model server holds to as well; it has room for the words of a
/// request for a summary.
async fn rig(window: u64, files: &[(&str, &str)]) -> Rig {
    let repo = TestRepo::with_files(files);
    for n in 0..30 {
        repo.write(&format!("f{n}.txt"), long(n));
    }
    repo.commit("long files");
    let settings = format!("context_window = {window}\nmax_output = 2000\n");
    let rig = rig_of(repo, "anthropic", &settings).await;
    rig.model.set_window(Some(window + 2_000));
    rig
}

/// Answers to requests for a summary; so many may change what was sent.
fn summaries<'a>(rig: &Rig, answers: impl IntoIterator<Item = &'a str>) {
    for answer in answers {
        rig.model.once(when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY), answer);
        rig.model.declare_break(Some(&prompt("w")));
    }
}

fn is_summary_request(request: &RecordedRequest) -> bool {
    request.last_user_text().contains(ASKS_FOR_A_SUMMARY)
}

fn summary_requests(told: &Told) -> Vec<Request> {
    told.requests().into_iter().filter(|request| is_summary_request(request)).collect()
}

/// Text of all user messages, results included.
fn user_text(request: &RecordedRequest) -> String {
    let users = request.messages.iter().filter(|message| message.role == Role::User);
    let texts = users.flat_map(|message| &message.blocks).filter_map(|block| match block {
        Block::Text { text } | Block::ToolResult { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn last(told: &Told) -> Request {
    told.requests().pop().expect("the worker asked")
}

/// None was refused for its size.
fn assert_all_fitted(told: &Told) {
    for request in told.requests() {
        assert_eq!(request.outcome(), Outcome::Delivered, "request {}", request.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k01_a_first_message_that_fills_the_window_is_summarised_thrice_in_vain_and_its_parts_are_named() {
    // The memory file alone is over the line; the first message stays whatever is summarised.
    let memory = "Always think of everything that is written here.\n".repeat(640);
    let rig = rig(15_600, &[("CLAUDE.md", &memory)]).await;
    rig.model.allow_breaks(None);
    rig.model.rule(when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY), "Nothing yet.");
    let told =
        Told::in_rig(rig, (0..60).map(|n| call(write(&format!("new{n}.txt"), &"words ".repeat(70))))).await;
    assert_eq!(told.worker["status"], "failed", "{:#}", told.worker);
    let asked = summary_requests(&told).len();
    assert!((1..=3).contains(&asked), "{asked} summaries");
    assert_eq!(
        told.worker["exit_reason"], "prompt_too_long",
        "the provider has the last word: {:#}",
        told.worker
    );
    let detail = told.rig.detail(&told.worker).await;
    let notes = detail["outcome"]["notes"].to_string();
    assert!(notes.contains("the largest parts are message 1 "), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn k02_an_answer_that_ends_the_turn_starts_no_summary() {
    let rig = rig(WINDOW, &[]).await;
    let told = Told::in_rig(rig, [Reply::say("Done.").usage(31_000, 0, 0, 10)]).await;
    told.assert_completed();
    assert_eq!(told.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn k04_a_summary_nearly_as_long_as_what_it_stands_for_is_refused_once() {
    let rig = rig(WINDOW, &[]).await;
    let useless = "These words save nothing. ".repeat(6_000);
    // No break is declared: what was sent stays as it was.
    rig.model.once(
        when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY),
        Reply::say(useless.as_str()),
    );
    let told = Told::in_rig(rig, reads(0..5).chain([Reply::say("Done.")])).await;
    told.assert_completed();
    assert_eq!(summary_requests(&told).len(), 1);
    assert!(!user_text(&last(&told)).contains(SUMMARY_TITLE));
}

#[tokio::test(flavor = "multi_thread")]
async fn k05_a_refusal_for_size_is_believed_against_the_estimate() {
    let rig = rig(200_000, &[]).await;
    summaries(&rig, ["Two files were read."]);
    let refusal = Reply::prompt_too_long(210_000, 200_000);
    let told = Told::in_rig(rig, reads(0..3).chain([refusal, Reply::say("Done.")])).await;
    told.assert_completed();
    let text = user_text(&last(&told));
    assert!(text.contains(SUMMARY_TITLE) && text.contains("Two files were read."), "{text:.300}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_full_in_the_middle_of_an_answer_is_made_smaller_and_the_answer_goes_on() {
    let rig = rig(200_000, &[]).await;
    summaries(&rig, ["Three files were read."]);
    let full = Reply::say("Half an answer, ").stop("model_context_window_exceeded");
    let told = Told::in_rig(rig, reads(0..3).chain([full, Reply::say("and the rest.")])).await;
    told.assert_completed();
    assert_eq!(summary_requests(&told).len(), 1);
    assert!(user_text(&last(&told)).contains(SUMMARY_TITLE));
    let entry = &entries(&told.rig.last_request())[0];
    assert!(entry.part("result").ends_with("and the rest."), "{}", entry.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn k07_a_run_of_many_long_results_is_made_to_fit_before_each_request() {
    let rig = rig(WINDOW, &[]).await;
    rig.model.allow_breaks(Some(&prompt("w")));
    rig.model.rule(when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY), "Files were read.");
    let told = Told::in_rig(rig, reads(0..16).chain([Reply::say("Done.")])).await;
    told.assert_completed();
    assert_all_fitted(&told);
    assert!(summary_requests(&told).len() >= 2, "{}", summary_requests(&told).len());
}

#[tokio::test(flavor = "multi_thread")]
async fn k08_a_refused_summary_request_is_tried_with_less() {
    let rig = rig(WINDOW, &[]).await;
    let asks = when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY);
    rig.model.once(asks, Reply::prompt_too_long(WINDOW + 1, WINDOW));
    // Less history is a change too.
    rig.model.declare_break(Some(&prompt("w")));
    summaries(&rig, ["Files were read."]);
    let told = Told::in_rig(rig, reads(0..5).chain([Reply::say("Done.")])).await;
    told.assert_completed();
    let asked = summary_requests(&told);
    assert_eq!(asked.len(), 2);
    assert!(asked[1].raw.len() < asked[0].raw.len(), "{} bytes", asked[1].raw.len());
    assert!(user_text(&last(&told)).contains("Files were read."));
}

#[tokio::test(flavor = "multi_thread")]
async fn k10_the_task_and_the_persons_rule_are_there_word_for_word_after_two_summaries() {
    const CANARY: &str = "CANARY: never touch the vault.";
    const MEMORY: &str = "MEMORY: speak softly.";
    let rig = rig(WINDOW, &[("CLAUDE.md", MEMORY)]).await;
    summaries(&rig, ["The first part is done.", "The second part is done."]);
    let mut replies: Vec<Reply> = reads(0..10).collect();
    replies[1] = read("f1.txt").hold("told");
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model.agent(&prompt("w"), replies.into_iter().chain([Reply::say("Done.")]));
    let task = rig.submit().await;
    rig.model.gate("told").reached().await;
    let worker = rig.worker(&task, "w").await;
    let path = format!("/workers/{}/messages", worker["id"].as_str().expect("an id"));
    rig.api().post(&path, &json!({"text": CANARY})).await;
    rig.model.gate("told").open();
    rig.done(&task).await;
    let worker = rig.worker(&task, "w").await;
    let told = Told { rig, task, worker };
    told.assert_completed();
    assert_eq!(summary_requests(&told).len(), 2);
    let last = last(&told);
    let text = user_text(&last);
    assert!(last.messages[0].text().contains(&prompt("w")), "the task stands where it stood");
    assert!(text.contains("The second part is done."), "{text:.400}");
    assert_eq!(text.matches(SUMMARY_TITLE).count(), 1);
    assert_eq!(text.matches(CANARY).count(), 1, "{text:.400}");
    assert_eq!(text.matches(MEMORY).count(), 1, "the first message has it: {text:.400}");
}

#[tokio::test(flavor = "multi_thread")]
async fn k11_the_memory_file_of_a_folder_that_was_read_is_there_again_after_a_summary() {
    const RULE: &str = "RULE: tabs only in this folder.";
    let rig = rig(WINDOW, &[("sub/AGENTS.md", RULE), ("sub/code.txt", "some code\n")]).await;
    summaries(&rig, ["Files were read."]);
    let replies = [read("sub/code.txt")].into_iter().chain(reads(0..5)).chain([Reply::say("Done.")]);
    let told = Told::in_rig(rig, replies).await;
    told.assert_completed();
    let asked = summary_requests(&told);
    assert_eq!(asked.len(), 1);
    let text = user_text(&last(&told));
    assert!(text.contains(SUMMARY_TITLE) && text.contains(RULE), "{text:.400}");
    assert!(!text.contains("some code"), "the result that brought it is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn k13_one_turn_over_the_window_is_cut_inside_its_results_and_no_pair_is_parted() {
    let rig = rig(WINDOW, &[]).await;
    rig.model.allow_breaks(Some(&prompt("w")));
    rig.model.rule(when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY), "It read.");
    let many =
        (0..9).fold(Reply::new(), |reply, n| reply.tool("Read", json!({"file_path": format!("f{n}.txt")})));
    let told = Told::in_rig(rig, [many, Reply::say("Done.")]).await;
    told.assert_completed();
    let last = last(&told);
    assert_eq!(last.outcome(), Outcome::Delivered);
    // The model server refuses a call without its result, so that each is there; cut are all.
    let results: Vec<_> = last.tool_results().collect();
    assert_eq!(results.len(), 9);
    assert!(results.iter().all(|(_, text, _)| text.contains("[cut: ")), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn k14_a_summary_request_holds_no_image() {
    let make = format!("echo {PIXEL} | base64 -d > point.png");
    let rig = rig(200_000, &[("make.sh", &make)]).await;
    // A line in the place of an image is a change too.
    rig.model.declare_break(Some(&prompt("w")));
    summaries(&rig, ["A picture and files were looked at."]);
    let make = Reply::call("Bash", json!({"command": "sh make.sh", "description": "make"}));
    let refusal = Reply::prompt_too_long(210_000, 200_000);
    let replies =
        [make, read("point.png")].into_iter().chain(reads(0..8)).chain([refusal, Reply::say("Done.")]);
    let told = Told::in_rig(rig, replies).await;
    told.assert_completed();
    let images = |request: &RecordedRequest| request.json.to_string().matches("\"type\":\"image\"").count();
    let requests = told.requests();
    assert_eq!(images(&requests[2]), 1, "it was seen");
    let asked = summary_requests(&told);
    assert_eq!((asked.len(), images(&asked[0])), (1, 0));
    assert!(user_text(&asked[0]).contains("[image, left out"), "a line stands in its place");
}

#[tokio::test(flavor = "multi_thread")]
async fn k17_refusals_in_a_row_leave_one_transcript_with_one_first_request() {
    let rig = rig(200_000, &[]).await;
    rig.model.allow_breaks(Some(&prompt("w")));
    rig.model.rule(when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY), "Files were read.");
    let refusals = (0..5).map(|_| Reply::prompt_too_long(210_000, 200_000));
    let told = Told::in_rig(rig, reads(0..4).chain(refusals).chain([Reply::say("never")])).await;
    assert_eq!(told.worker["exit_reason"], "prompt_too_long", "{:#}", told.worker);
    let id = told.worker["id"].as_str().expect("an id");
    let transcripts = files_named(&told.rig.home.path(), &format!("{id}.jsonl"));
    assert_eq!(transcripts.len(), 1, "{transcripts:?}");
    let records = fs::read_to_string(&transcripts[0]).expect("the transcript");
    let firsts = records.lines().filter(|line| {
        let record: Value = serde_json::from_str(line).expect("a record");
        record["body"]["type"] == "user" && record["body"]["origin"]["kind"] == "prompt"
    });
    assert_eq!(firsts.count(), 1, "nothing was written again");
}

/// Files whose names end so, at any depth.
fn files_named(directory: &std::path::Path, end: &str) -> Vec<std::path::PathBuf> {
    let (mut folders, mut found) = (vec![directory.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if entry.file_name().to_string_lossy().ends_with(end) {
                found.push(path);
            }
        }
    }
    found
}
