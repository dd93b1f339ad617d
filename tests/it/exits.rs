//! Ends that no other module reaches: with these each reason why a run ends is met by a worker of the product, save
//! those of hooks, which nothing runs yet.

use std::{fs, path::PathBuf, process::Command};

use integration_tests::{Reply, TestRepo, model_server::Request, until, wait::SOON, when};
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::{
    rig::{
        COORDINATE, Rig, Task, agent, assert_each_once, bash, call, entries, id_of, path_of, prompt,
        reporter, write,
    },
    streaming::{Told, rig_of},
};

const ASKS_FOR_A_SUMMARY: &str = "Write a summary of the conversation";

async fn stop(rig: &Rig, worker: &Value) {
    rig.api().post(&format!("/workers/{}/stop", id_of(worker)), &json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_streaming_a_worker_that_is_stopped_while_its_model_speaks_keeps_what_it_did() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model
        .agent(&prompt("w"), [call(write("done.txt", "done\n")), Reply::say("Half a sent").hold("never")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    stop(&rig, &rig.worker(&task, "w").await).await;
    let worker = rig.worker_has_status(&task, "w", "aborted").await;
    assert_eq!(worker["exit_reason"], "aborted_streaming", "{worker:#}");
    assert_eq!(rig.at(&worker, "done.txt").as_deref(), Some("done\n"));
    rig.done(&task).await;
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_tools_a_worker_that_is_stopped_while_a_command_runs_ends_the_command() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    rig.model.agent(&prompt("w"), [call(bash("echo half > half.txt; touch started; sleep 311"))]);
    let task = rig.submit().await;
    rig.model.wait_for_request(&prompt("w"), 0).await;
    let worker = rig.worker(&task, "w").await;
    let started = path_of(&worker).join("started");
    until(SOON, "the command", async || started.exists()).await;
    stop(&rig, &worker).await;
    let worker = rig.worker_has_status(&task, "w", "aborted").await;
    assert_eq!(worker["exit_reason"], "aborted_tools", "{worker:#}");
    assert_eq!(rig.at(&worker, "half.txt").as_deref(), Some("half\n"), "what there was is committed");
    assert!(rig.home.processes_named("sleep 311").is_empty());
    rig.done(&task).await;
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn max_output_tokens_escalate_four_cut_answers_in_a_row_end_with_the_words_there_are() {
    let cut = |words: &str| Reply::say(words).stop("max_tokens");
    let told = Told::worker([cut("One "), cut("two "), cut("three "), cut("four")]).await;
    assert_eq!(told.worker["exit_reason"], "max_output_tokens_escalate", "{:#}", told.worker);
    assert_eq!(told.requests().len(), 4);
    // All of it, not what came after the last cut.
    assert_eq!(entries(&told.rig.last_request())[0].part("result"), "One two three four");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_and_taken_up_again_is_one_result_to_worker_and_coordinator() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", reporter("w"))]);
    rig.model.agent(
        &prompt("w"),
        [Reply::say("The first half, ").stop("max_tokens"), Reply::say("the second half.")],
    );
    rig.model.once(
        when().agent(COORDINATE).last_user_contains("<task-notification>"),
        Reply::say("All is ").stop("max_tokens"),
    );
    rig.model.rule(when().agent(COORDINATE), "well.");
    let task = rig.submit().await;
    let view = rig.done(&task).await;
    let told = rig.model.requests_of(COORDINATE);
    let entry =
        told.iter().find_map(|request| entries(request).into_iter().next()).expect("its end was told");
    assert_eq!(entry.part("result"), "The first half, the second half.");
    assert_eq!(view["text"], "All is well.", "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_error_an_image_that_stays_refused_ends_the_run() {
    // One grey pixel.
    let make = "echo iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg== | base64 -d > dot.png\n";
    let repo = TestRepo::with_files(&[("make.sh", make)]);
    let rig = rig_of(repo, "anthropic", "").await;
    rig.model.allow_breaks(None);
    let refused = || {
        Reply::error_with(
            400,
            "invalid_request_error",
            "messages.2.content.0.tool_result.content.0.image.source.base64: Could not process image",
        )
    };
    let look = call(("Read", json!({"file_path": "dot.png"})));
    let told = Told::in_rig(rig, [call(bash("sh make.sh")), look, refused(), refused()]).await;
    assert_eq!(told.worker["exit_reason"], "image_error", "{:#}", told.worker);
    assert_eq!(told.requests().len(), 4, "without the image it is sent once more");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_limit_what_is_over_the_hard_line_and_cannot_be_summarised_is_not_sent() {
    let repo = TestRepo::with_files(&[("long.txt", &"A line that says nothing.\n".repeat(1_990))]);
    let rig = rig_of(repo, "anthropic", "context_window = 16000\nmax_output = 2000\n").await;
    rig.model.allow_breaks(None);
    rig.model.rule(
        when().agent(&prompt("w")).last_user_contains(ASKS_FOR_A_SUMMARY),
        Reply::error_with(400, "invalid_request_error", "this model writes no summaries"),
    );
    let told =
        Told::in_rig(rig, [call(("Read", json!({"file_path": "long.txt"}))), Reply::say("Never asked.")])
            .await;
    assert_eq!(told.worker["exit_reason"], "blocking_limit", "{:#}", told.worker);
    let detail = told.rig.detail(&told.worker).await;
    assert!(detail["outcome"]["notes"].to_string().contains("the largest parts are"), "{detail:#}");
    let is_asked_to_sum_up = |request: &Request| request.last_user_text().contains(ASKS_FOR_A_SUMMARY);
    let sent: Vec<bool> = told.requests().iter().map(is_asked_to_sum_up).collect();
    assert!(
        sent.len() >= 2 && !sent[0] && sent[1..].iter().all(|asked| *asked),
        "the file went out: {sent:?}"
    );
}

/// A file system of this size over a directory, until the end of the test.
struct Small(PathBuf);

impl Small {
    fn over(directory: PathBuf, kib: u32) -> Self {
        let size = format!("size={kib}k");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&directory).status();
        assert!(mount.expect("there is a mount command").success());
        Self(directory)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: a process may still have a file open.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_error_a_run_whose_transcript_cannot_be_written_says_so_and_runs_nothing_more() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: a full file system is mounted by root only");
        return;
    }
    let rig = Rig::configured("[worker]\nrestarts = 0\n").await;
    // The first session makes the repository's directory; a file system is put below it before the second's worker.
    rig.coordinator(Reply::call("Agent", reporter("first")));
    rig.model.agent(&prompt("first"), [Reply::say("Done.")]);
    rig.done(&rig.submit().await).await;
    rig.model.agent("a second task", [Reply::call("Agent", agent("w")).gate("submitted")]);
    rig.model.rule(when().agent("a second task"), "Noted.");
    let long = format!("{}\n", "words ".repeat(60_000));
    rig.model.agent(&prompt("w"), [call(write("long.txt", &long)), call(write("late.txt", "late\n"))]);
    let task = rig.submit_with(json!({"prompt": "a second task"})).await;
    rig.model.gate("submitted").reached().await;
    let _small = Small::over(transcripts(&rig, &task), 128);
    rig.model.gate("submitted").open();
    let worker = rig.worker_has_status(&task, "w", "failed").await;
    assert_eq!(worker["exit_reason"], "storage_error", "{worker:#}");
    assert!(
        worker["exit_detail"]["message"].as_str().is_some_and(|text| text.contains("No space left")),
        "{worker:#}"
    );
    assert_eq!(rig.model.requests_of(&prompt("w")).len(), 1, "what is not recorded does not go on");
    rig.done(&task).await;
    let told = rig.model.requests_of("a second task");
    assert_each_once(told.last().expect("the coordinator has asked"), 1);
}

/// Where the transcripts of a session's workers go, made before the first of them.
fn transcripts(rig: &Rig, task: &Task) -> PathBuf {
    let mut projects = fs::read_dir(rig.home.path().join("projects")).expect("projects").flatten();
    let project = projects.next().expect("the repository has its directory").path();
    let directory = project.join(&task.session).join("subagents");
    fs::create_dir_all(&directory).expect("a directory");
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_a_refusal_ends_the_run_with_its_explanation_and_is_not_asked_again() {
    let refusal = Reply {
        stop_details: Some(json!({"type": "refusal", "category": "cyber", "explanation": "not for me"})),
        ..Reply::say("I would rather not.").stop("refusal")
    };
    let told = Told::worker([refusal, Reply::say("Never asked.")]).await;
    assert_eq!(told.worker["exit_reason"], "refused", "{:#}", told.worker);
    assert!(told.worker["exit_detail"].to_string().contains("not for me"), "{:#}", told.worker);
    assert_eq!(told.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_turn_goes_on_and_an_unknown_reason_to_stop_is_an_end() {
    let told = Told::worker([Reply::say("First, ").stop("pause_turn"), Reply::say("then this.")]).await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 2);
    let sent = requests[1].json["messages"].as_array().expect("messages");
    assert_eq!(sent.last().expect("a message")["role"], "assistant", "it is sent back as it came");
    assert_eq!(entries(&told.rig.last_request())[0].part("result"), "First, then this.");

    let told =
        Told::worker([Reply::say("Odd.").stop("a_reason_of_next_year"), Reply::say("Never asked.")]).await;
    told.assert_completed();
    assert_eq!(told.requests().len(), 1);
    assert_eq!(entries(&told.rig.last_request())[0].part("result"), "Odd.");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_thinking_alone_is_asked_to_go_on_once() {
    let thinks = || Reply::new().thinking("What was it that I wanted?").stop("end_turn");
    let told = Told::worker([thinks(), Reply::say("Done.")]).await;
    told.assert_completed();
    assert_eq!(told.requests().len(), 2);
    assert_eq!(entries(&told.rig.last_request())[0].part("result"), "Done.");

    let told = Told::worker([thinks(), thinks(), Reply::say("Never asked.")]).await;
    assert_eq!(told.requests().len(), 2, "and no more than once: {:#}", told.worker);
    told.assert_completed();
}
