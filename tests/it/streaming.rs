//! Answers that break off, come in odd forms or are refused: what a worker makes of them. The cases of silence (S04,
//! S05) need minutes and are tested on a paused clock beside the client, as are the wordings of errors (A14, A17).

mod refusals;

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo,
    model_server::{Block, How, OpenAiQuirks, Request, Role, Usage, when},
    wait::SOON,
};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, agent, call, entries, prompt, reporter, write};

/// What becomes of a worker that gets these answers one after another.
pub(crate) struct Told {
    pub(crate) rig: Rig,
    pub(crate) task: Task,
    pub(crate) worker: Value,
}

impl Told {
    /// With a new server and repository.
    pub(crate) async fn worker(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::in_rig(Rig::new().await, replies).await
    }

    pub(crate) async fn in_rig(rig: Rig, replies: impl IntoIterator<Item = Reply>) -> Self {
        rig.coordinator(Reply::call("Agent", agent("w")));
        rig.model.agent(&prompt("w"), replies);
        let task = rig.submit().await;
        rig.done(&task).await;
        let worker = rig.worker(&task, "w").await;
        Self { rig, task, worker }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.rig.model.requests_of(&prompt("w"))
    }

    /// All results that the worker's last request carries: text, and whether it is an error.
    pub(crate) fn results(&self) -> Vec<(String, bool)> {
        let last = self.requests().pop().expect("the worker asked");
        last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
    }

    /// A file on the worker's branch; there is no branch when nothing changed.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        self.worker["branch"].as_str().and_then(|branch| self.rig.repo.read_at(branch, path))
    }

    #[track_caller]
    pub(crate) fn assert_completed(&self) {
        assert_eq!(self.worker["status"], "completed", "{:#}", self.worker);
    }
}

/// A rig whose model is an endpoint with these settings.
pub(crate) async fn rig_of(repo: TestRepo, api: &str, settings: &str) -> Rig {
    let model = ModelServer::start();
    let mut home = SwarmHome::new(&model);
    home.set("SWARM_MODEL", "local/test-model");
    let base = if api == "anthropic" { model.url() } else { format!("{}/v1", model.url()) };
    let endpoint = format!("[endpoints.local]\napi = \"{api}\"\nbase_url = \"{base}\"\n{settings}");
    Rig::made(model, home, repo, &endpoint).await
}

async fn chat_rig() -> Rig {
    rig_of(TestRepo::new(), "chat", "").await
}

/// Room for megabytes.
pub(crate) const WIDE: &str = "context_window = 4000000\nmax_output = 64000\n";

/// Texts of the assistant in a request.
fn said(request: &Request) -> Vec<String> {
    let assistants = request.messages.iter().filter(|message| message.role == Role::Assistant);
    assistants.map(|message| message.text()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s01_half_an_answer_is_kept_as_incomplete_and_taken_up() {
    for how in [How::Eof, How::Fin] {
        // Message start, block start, one delta.
        let told =
            Told::worker([Reply::say("half").cut_after_event(3, how), Reply::say(" and the rest")]).await;
        told.assert_completed();
        let requests = told.requests();
        assert_eq!(requests.len(), 2, "{how:?}");
        assert_eq!(said(&requests[1]), ["half"]);
        assert!(requests[1].last_user_text().contains("your last message is incomplete"), "{how:?}");
        let ends = told.rig.events(&told.task, "worker.run_ended").await;
        assert_eq!(ends.len(), 1, "half an answer was never told as an end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s02_a_call_whose_arguments_broke_off_neither_runs_nor_is_stored() {
    let cut = Reply::new().tool("Write", json!({"file_path": "a.txt", "content": "cut\n"})).chunk(8);
    let told = Told::worker([
        // Message start, block start, the empty delta, and two pieces of the arguments.
        cut.cut_after_event(5, How::Fin),
        call(write("b.txt", "whole\n")),
        Reply::say("Done."),
    ])
    .await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].json, requests[1].json, "the same request again");
    assert_eq!(requests[2].tool_uses().count(), 1, "and no call of the broken answer");
    assert_eq!((told.file("a.txt"), told.file("b.txt").as_deref()), (None, Some("whole\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn s07_five_resets_before_any_word_cost_waits_and_nothing_else() {
    let reset = || Reply::say("never said").cut_after_event(1, How::Reset);
    let replies = (0..5).map(|_| reset()).chain([Reply::say("Done.")]);
    let told = Told::worker(replies).await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 6);
    let waits: Vec<i64> =
        requests.windows(2).map(|pair| pair[1].at.as_millisecond() - pair[0].at.as_millisecond()).collect();
    // Half a second, doubled each time, less up to a quarter.
    assert!(
        waits.iter().zip([375, 750, 1_500, 3_000, 6_000]).all(|(wait, least)| *wait >= least),
        "{waits:?}"
    );
    assert!(requests.iter().all(|request| request.json == requests[0].json));
}

#[tokio::test(flavor = "multi_thread")]
async fn s07_resets_within_words_lose_none_of_them_and_leave_a_worker_that_can_go_on() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", reporter("w"))]);
    let go_on = Reply::call("SendMessage", json!({"to": "w", "message": "Go on, please."}));
    rig.model.once(when().agent(COORDINATE).last_user_contains("<task-notification>"), go_on);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    // Four in a row are the bound.
    let cut = |n: u32| Reply::say(format!("part {n}")).cut_after_event(3, How::Reset);
    rig.model.agent(&prompt("w"), (1..=4).map(cut).chain([Reply::say("the whole")]));
    let task = rig.submit().await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("w"));
    assert_eq!(requests.len(), 5);
    assert_eq!(said(&requests[4]), ["part 1", "part 2", "part 3", "part 4"]);
    let told = entries(&rig.last_request());
    assert_eq!((told[0].status.as_str(), told[1].status.as_str()), ("failed", "completed"));
    let words = told[0].text.to_lowercase().replace('_', " ");
    assert!(words.contains("stream truncated"), "it says why: {words}");
    assert_eq!(told[1].part("result"), "the whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn s08_a_closed_call_of_a_broken_answer_runs_once_and_the_request_is_not_repeated() {
    for how in [How::Fin, How::Reset] {
        let command = json!({"command": "echo ran >> ran.txt", "description": "once"});
        let answer = Reply::say("abc").tool("Bash", command).gate("closed").end(how);
        let rig = Rig::new().await;
        rig.model.gate("closed").open();
        let told = Told::in_rig(rig, [answer, Reply::say("Done.")]).await;
        told.assert_completed();
        let requests = told.requests();
        assert_eq!(requests.len(), 2, "{how:?}");
        assert_eq!((said(&requests[1]), told.results().len()), (vec!["abc".to_owned()], 1));
        assert_eq!(told.file("ran.txt").as_deref(), Some("ran\n"), "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_a_chat_stream_that_ends_within_a_call_is_tried_again() {
    let cut = |how| {
        let call = Reply::new().tool("Write", json!({"file_path": "a.txt", "content": "cut\n"}));
        call.chunk(8).cut_after_event(4, how)
    };
    // Neither `finish_reason` nor `[DONE]`: once as if all were said, once with the connection closed.
    let replies = [cut(How::Eof), cut(How::Fin), call(write("b.txt", "whole\n")), Reply::say("Done.")];
    let told = Told::in_rig(chat_rig().await, replies).await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 4);
    assert_eq!((&requests[0].json, &requests[1].json), (&requests[1].json, &requests[2].json));
    assert_eq!((told.file("a.txt"), told.file("b.txt").as_deref()), (None, Some("whole\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_s14_broken_arguments_are_answered_with_the_position_and_replayed_as_an_object() {
    let told = Told::worker([
        Reply::new().tool_raw("Write", r#"{"file_path":"a\q"}"#),
        Reply::new().tool_raw("Write", r#"{"file_path":"a.txt","content":"#),
        Reply::say("Done."),
    ])
    .await;
    told.assert_completed();
    let results = told.results();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|(_, is_error)| *is_error), "{results:?}");
    assert!(results[0].0.contains("invalid escape at line 1 column 17"), "{}", results[0].0);
    assert!(results[1].0.contains("EOF while parsing"), "{}", results[1].0);
    // The model server refuses a request with arguments that are no object.
    let last = told.requests().pop().expect("it asked");
    assert!(last.tool_uses().all(|(_, _, input)| input.is_object()));
}

#[tokio::test(flavor = "multi_thread")]
async fn s16_arguments_that_are_no_object_are_refused_and_nothing_at_all_is_an_empty_one() {
    let told = Told::worker([
        Reply::new().tool_raw("Bash", "not json").tool_raw("Bash", "[\"echo x > ran.txt\"]"),
        Reply::new().tool_raw("Bash", "").tool_raw("Bash", "{}"),
        Reply::say("Done."),
    ])
    .await;
    told.assert_completed();
    let results = told.results();
    assert!(results[0].0.contains("not valid JSON") && results[0].1, "{results:?}");
    assert!(results[1].0.contains("not an array") && results[1].1, "{results:?}");
    // An empty object was sent, and lacks what the tool needs.
    for (text, is_error) in &results[2..] {
        assert!(text.contains("lack command") && *is_error, "{text}");
    }
    assert_eq!(told.file("ran.txt"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_a_call_that_the_output_limit_emptied_is_explained() {
    let told =
        Told::worker([Reply::new().tool_raw("Write", "").stop("max_tokens"), Reply::say("Done.")]).await;
    told.assert_completed();
    let (text, is_error) = told.results().pop().expect("a result");
    assert!(is_error && text.contains("output reached its limit") && text.contains("smaller"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s19_an_answer_cut_before_its_call_goes_on() {
    let told = Told::worker([
        Reply::say("I will now").stop("max_tokens"),
        call(write("a.txt", "x\n")),
        Reply::say("Done."),
    ])
    .await;
    told.assert_completed();
    let second = &told.requests()[1];
    assert_eq!(said(second), ["I will now"]);
    assert!(second.last_user_text().contains("output reached its limit"), "{}", second.last_user_text());
    assert_eq!(told.file("a.txt").as_deref(), Some("x\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_of_two_calls_the_whole_one_runs_and_the_cut_one_is_told_how_to_split() {
    let cut = r#"{"file_path":"b.txt","content":"half of a lo"#;
    let both = Reply::new()
        .tool("Write", json!({"file_path": "a.txt", "content": "x\n"}))
        .tool_raw("Write", cut)
        .stop("max_tokens");
    let told = Told::worker([both, Reply::say("Done.")]).await;
    told.assert_completed();
    let results = told.results();
    assert!(!results[0].1, "{results:?}");
    assert!(results[1].1 && results[1].0.contains("in several smaller pieces"), "{results:?}");
    assert_eq!((told.file("a.txt").as_deref(), told.file("b.txt")), (Some("x\n"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn s22_a_denial_while_the_answer_streams_is_the_result_of_its_call_alone() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    let both = Reply::new()
        .tool("Write", json!({"file_path": "a.txt", "content": "x\n"}))
        .gate("between")
        .tool("Read", json!({"file_path": "README.md"}));
    rig.model.agent(&prompt("w"), [both, Reply::say("Done.")]);
    let task = rig.submit_with(json!({"permission_mode": "default"})).await;
    // It asks while the answer still streams: the second call has not come yet.
    let request = rig.permission_request(&task).await;
    rig.model.gate("between").reached().await;
    rig.answer(&request, &json!({"decision": "deny", "reason": "Not now."})).await;
    rig.model.gate("between").open();
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("w"));
    assert_eq!(requests.len(), 2, "the answer was not given up");
    let results = requests[1].last_tool_results();
    assert!(results[0].2 && results[0].1.contains("Not now."), "{results:?}");
    assert!(!results[1].2 && results[1].1.contains("A project"), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s23_an_event_that_cannot_be_shown_does_not_end_our_own_stream_in_silence() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::say("Nothing to do.")]);
    let task = rig.submit().await;
    rig.done(&task).await;
    let journal = rusqlite::Connection::open(rig.home.path().join("journal.sqlite"));
    let journal = journal.expect("the journal can be opened");
    let damage = "UPDATE events SET body = '{\"kind\": ' WHERE session_id = ?1 AND seq = 3";
    assert_eq!(journal.execute(damage, [&task.session]).expect("a row can be damaged"), 1);
    let path = format!("/sessions/{}/events", task.session);
    let mut events = rig.api().events(&path, Some("0")).await;
    let mut seen = Vec::new();
    let mut told = Vec::new();
    let read = async {
        while let Some(event) = events.next().await {
            seen.extend(event.data["seq"].as_u64());
            if event.data["kind"] == "error" {
                told.push(event.data);
            } else if event.data["kind"] == "task.finished" {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the stream goes on to the end of the task");
    assert_eq!(seen[..5], [1, 2, 3, 4, 5], "something stands in its place, and everything else came");
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["code"], &told[0]["seq"]), (&json!("journal_damaged"), &json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn s25_reported_use_is_cumulative_and_counted_once() {
    let figures = |output| Usage { input: 100, output, ..Usage::default() };
    let reply = Reply::say("Done.")
        .part(integration_tests::model_server::Part::Usage(figures(10)))
        .usage(100, 0, 0, 25);
    let told = Told::worker([reply]).await;
    let usage = &told.worker["usage"];
    assert_eq!((&usage["output_tokens"], &usage["input_tokens"]), (&json!(25), &json!(100)), "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s26_a_malformed_name_in_a_batch_hangs_nothing() {
    let both = Reply::new()
        .tool("Re ad\n", json!({"file_path": "README.md"}))
        .tool("Read", json!({"file_path": "README.md"}));
    let told = Told::worker([both, Reply::say("Done.")]).await;
    told.assert_completed();
    let results = told.results();
    assert!(results[0].1 && !results[1].1, "{results:?}");
    assert!(results[1].0.contains("A project"), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s28_headers_and_then_nothing_ends_by_the_deadline_for_the_first_byte() {
    let rig = rig_of(TestRepo::new(), "anthropic", "first_byte_timeout = \"1s\"\n").await;
    let told = Told::in_rig(
        rig,
        [
            call(write("a.txt", "x\n")),
            Reply::say("never said").cut_after_event(0, How::Stall),
            // Slower than that deadline, but not before its first byte.
            Reply::new().text("Do").part(integration_tests::model_server::Part::DelayMs(1_500)).text("ne."),
        ],
    )
    .await;
    told.assert_completed();
    let requests = told.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[1].messages, requests[2].messages);
    assert_eq!(told.file("a.txt").as_deref(), Some("x\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s29_a_write_of_three_megabytes_arrives_whole_in_bounded_memory() {
    let content =
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\u{e9}\n".repeat(3 * 1024 * 16);
    let rig = rig_of(TestRepo::new(), "anthropic", WIDE).await;
    rig.coordinator(Reply::call("Agent", agent("w")));
    let huge = call(write("huge.txt", &content)).chunk(256);
    rig.model.agent(&prompt("w"), [huge, Reply::say("Done.").hold("measured")]);
    let task = rig.submit().await;
    rig.model.gate("measured").reached().await;
    let worker = rig.worker(&task, "w").await;
    let process = rig.worker_process(&worker).expect("the worker runs");
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("its status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the most memory it had");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    rig.model.gate("measured").open();
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "w").await;
    assert!(rig.at(&worker, "huge.txt").is_some_and(|found| found == content));
    // A worker, and the content some times over: as text, as a value, in the transcript and in the next request.
    assert!(peak < 160 * 1024, "{peak} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_use_beyond_all_reason_is_estimated_and_disturbs_nothing() {
    let absurd = |reply: Reply| reply.usage(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    let told = Told::worker([absurd(call(write("a.txt", "x\n"))), absurd(Reply::say("Done."))]).await;
    told.assert_completed();
    let usage = &told.worker["usage"];
    let figures = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
    let sum: u64 = figures.iter().filter_map(|name| usage[name].as_u64()).sum();
    assert!(usage["estimated"] == true && (1_000..100_000).contains(&sum), "{usage}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s31_odd_but_legal_bytes_are_read_as_they_are_meant() {
    let odd = |reply: Reply| {
        let reply = reply.unknown_event("future_thing", json!({"type": "future_thing", "index": "x"})).ping();
        reply.chunk(3).wire(|wire| {
            wire.crlf = true;
            wire.comments = true;
            wire.multi_line_data = true;
            wire.no_space = true;
            wire.split = Some(1);
        })
    };
    for rig in [Rig::new().await, chat_rig().await] {
        let replies = [
            odd(Reply::say("Grüße, 世界 🙂.")
                .tool("Write", json!({"file_path": "ü.txt", "content": "世界\n"}))),
            odd(Reply::say("Fertig: 世界 🙂.")),
        ];
        let told = Told::in_rig(rig, replies).await;
        told.assert_completed();
        assert_eq!(said(&told.requests()[1]), ["Grüße, 世界 🙂."]);
        assert_eq!(told.file("ü.txt").as_deref(), Some("世界\n"));
        assert_eq!(entries(&told.rig.last_request())[0].part("result"), "Fertig: 世界 🙂.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_the_habits_of_chat_servers_do_not_break_calls() {
    let habits: [fn(&mut OpenAiQuirks); 6] = [
        |quirks| quirks.no_index = true,
        |quirks| quirks.index_zero = true,
        |quirks| quirks.whole_call = true,
        |quirks| (quirks.empty_id, quirks.empty_name) = (true, true),
        |quirks| quirks.finish_each_chunk = Some("stop".to_owned()),
        |quirks| (quirks.no_done, quirks.no_usage) = (true, true),
    ];
    let reply = |n: usize| {
        let file = |which: &str| json!({"file_path": format!("{which}{n}.txt"), "content": "x\n"});
        Reply::new().tool("Write", file("a")).tool("Write", file("b")).chunk(5)
    };
    let replies = habits.into_iter().enumerate().map(|(n, habit)| reply(n).openai(habit));
    let told = Told::in_rig(chat_rig().await, replies.chain([Reply::say("Done.")])).await;
    told.assert_completed();
    for n in 0..6 {
        let files = [told.file(&format!("a{n}.txt")), told.file(&format!("b{n}.txt"))];
        assert!(files.iter().all(Option::is_some), "habit {n}: {files:?}");
    }
}
