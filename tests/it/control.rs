//! Steering: messages to workers, stops, revivals, where a worker works.

use integration_tests::{
    Reply, TestRepo, until,
    wait::{LATER, SOON},
    when,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{
    COORDINATE, Rig, Task, agent, assert_each_once, bash, call, entries, id_of, path_of, prompt, reporter,
    write,
};

fn send(to: &str, message: &str) -> Reply {
    Reply::call("SendMessage", json!({"to": to, "message": message}))
}

async fn stop(rig: &Rig, worker: &Value) -> Value {
    rig.api().post(&format!("/workers/{}/stop", id_of(worker)), &json!({})).await
}

/// A coordinator that says this when the first end reaches it, and "Noted." to all that follows.
fn then(rig: &Rig, first: Reply, second: Reply) {
    rig.model.agent(COORDINATE, [first]);
    rig.model.once(when().agent(COORDINATE).last_user_contains("<task-notification>"), second);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
}

#[tokio::test(flavor = "multi_thread")]
async fn send_message_continues_a_finished_worker_with_its_context_in_its_worktree() {
    let rig = Rig::new().await;
    then(&rig, Reply::call("Agent", agent("alpha")), send("alpha", "Now add a second line."));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(write("notes.txt", "one\n")),
            Reply::say("Wrote one line."),
            // It wrote the file in its first run: it need not read it again.
            call((
                "Edit",
                json!({"file_path": "notes.txt", "old_string": "one\n", "new_string": "one\ntwo\n"}),
            )),
            Reply::say("Wrote two lines."),
        ],
    );
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let requests = rig.model.requests_of(&prompt("alpha"));
    assert_eq!(requests.len(), 4);
    assert!(requests[2].last_user_text().contains("Now add a second line."));
    assert_eq!(requests[2].turn(), 2, "its whole conversation goes on");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(
        (&worker["run"], &worker["commits"], &worker["status"]),
        (&json!(2), &json!(2), &json!("completed"))
    );
    assert_eq!(rig.at(&worker, "notes.txt").as_deref(), Some("one\ntwo\n"));
    let told = entries(&rig.last_request());
    assert_eq!(told.len(), 2, "one entry for each run");
    assert_eq!((told[0].part("result"), told[1].part("result")), ("Wrote one line.", "Wrote two lines."));
    assert_eq!(rig.home.worktrees().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_that_was_removed_is_made_again_at_the_same_path_and_the_worker_is_told() {
    let rig = Rig::new().await;
    then(&rig, Reply::call("Agent", agent("alpha")), send("alpha", "Look again."));
    rig.model.agent(
        &prompt("alpha"),
        [
            Reply::say("Nothing to do."),
            call(bash("pwd && cat README.md")),
            call(write("late.txt", "late\n")),
            Reply::say("Found something after all."),
        ],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("alpha"));
    let told = requests[1].last_user_text();
    assert!(told.contains("Look again.") && told.contains("made again at the same path"), "{told}");
    let worker = rig.worker(&task, "alpha").await;
    let (_, output, _) = requests[2].last_tool_results()[0];
    assert!(
        output.contains(&*path_of(&worker).to_string_lossy()) && output.contains("# A project"),
        "{output}"
    );
    assert_eq!(rig.at(&worker, "late.txt").as_deref(), Some("late\n"));
    let told = entries(&rig.last_request());
    assert!(told[0].outcome().contains("no_change") && !told[1].outcome().contains("no_change"), "{told:#?}");
}

/// A worker whose first run left a file `notes.txt` of this content; in its second it makes one call.
async fn noted(rig: &Rig, content: &str, second: (&'static str, Value)) -> (Task, Value) {
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [call(write("notes.txt", content)), Reply::say("Written."), call(second), Reply::say("Looked.")],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    (task, worker)
}

/// A person's message begins the second run: what its one call answered, and the worker after it.
async fn second_run(rig: &Rig, task: &Task, worker: &Value) -> (String, Value) {
    rig.api().post(&format!("/workers/{}/messages", id_of(worker)), &json!({"text": "Look again."})).await;
    let request = rig.model.wait_for_request(&prompt("alpha"), 3).await;
    let answer = request.last_tool_results()[0].1.to_owned();
    let worker = rig
        .worker_is(task, "alpha", "run 2 completed", |w| w["run"] == 2 && w["status"] == "completed")
        .await;
    (answer, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_with_work_that_somebody_removed_is_made_again_from_its_branch() {
    let rig = Rig::new().await;
    let (task, worker) = noted(&rig, "kept\n", ("Read", json!({"file_path": "notes.txt"}))).await;
    let path = path_of(&worker);
    rig.repo.git(&["worktree", "remove", "-f", "-f", &path.to_string_lossy()]);
    let (answer, worker) = second_run(&rig, &task, &worker).await;
    assert!(answer.contains("kept"), "{answer}");
    assert_eq!(path_of(&worker), path);
    assert_eq!(rig.at(&worker, "notes.txt").as_deref(), Some("kept\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_that_somebody_moved_is_found_again() {
    let rig = Rig::new().await;
    let (task, worker) = noted(&rig, "kept\n", bash("pwd; cat notes.txt; echo more >> notes.txt")).await;
    let (path, other) = (path_of(&worker), rig.home.path().join("elsewhere"));
    rig.repo.git(&["worktree", "move", "-f", "-f", &path.to_string_lossy(), &other.to_string_lossy()]);
    std::fs::write(other.join("mine.txt"), "a person's\n").expect("it is there");
    let (answer, worker) = second_run(&rig, &task, &worker).await;
    assert!(answer.contains("kept"), "{answer}");
    assert_eq!(rig.at(&worker, "notes.txt").as_deref(), Some("kept\nmore\n"));
    assert_eq!(rig.at(&worker, "mine.txt").as_deref(), Some("a person's\n"));
    assert_eq!(rig.repo.worktrees(), [path_of(&worker)]);
    assert_eq!(
        (path_of(&worker), other.exists()),
        (path, false),
        "it is where it was, with all that is in it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_between_two_runs_is_to_be_read_again() {
    let rig = Rig::new().await;
    let edit = json!({"file_path": "notes.txt", "old_string": "theirs\n", "new_string": "mine\n"});
    let (task, worker) = noted(&rig, "one\n", ("Edit", edit)).await;
    std::fs::write(path_of(&worker).join("notes.txt"), "theirs\n").expect("the worktree is there");
    let (answer, worker) = second_run(&rig, &task, &worker).await;
    assert!(answer.contains("was changed on disk since you read it"), "{answer}");
    assert_eq!(rig.at(&worker, "notes.txt").as_deref(), Some("theirs\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_running_worker_is_read_before_its_next_request_and_once() {
    let rig = Rig::new().await;
    rig.model.agent(
        COORDINATE,
        [Reply::call("Agent", reporter("busy")), send("busy", "From the coordinator.").hold("send")],
    );
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("busy"), [call(bash("echo working")).hold("first"), Reply::say("Read it all.")]);
    let task = rig.submit().await;
    rig.model.gate("first").reached().await;
    rig.model.gate("send").open();
    let worker = rig.worker_is(&task, "busy", "a message unread", |worker| worker["unread"] == 1).await;
    let path = format!("/workers/{}/messages", id_of(&worker));
    let accepted = rig.api().post(&path, &json!({"text": "From a person."})).await;
    assert_eq!(accepted["status"], "queued");
    assert_eq!(rig.worker(&task, "busy").await["unread"], 2);
    rig.model.gate("first").open();
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("busy"));
    assert_eq!(requests.len(), 2);
    let text = requests[1].last_user_text();
    let (coordinator, person) = (text.find("From the coordinator."), text.find("From a person."));
    assert!(coordinator.is_some() && coordinator < person, "in order: {text}");
    assert_eq!(text.matches("From a person.").count(), 1);
    assert_eq!(rig.worker(&task, "busy").await["unread"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_used_again_means_the_later_worker() {
    let rig = Rig::new().await;
    let mut second = reporter("scout");
    second["prompt"] = "work: the second scout.".into();
    let two = Reply::new().tool("Agent", reporter("scout")).tool("Agent", second);
    rig.model.agent(COORDINATE, [two, send("scout", "Which one are you?")]);
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("scout"), [Reply::say("The first.")]);
    rig.model.agent("the second scout", [call(bash("true")).hold("second"), Reply::say("The second.")]);
    let task = rig.submit().await;
    rig.model.wait_for_request(COORDINATE, 2).await;
    rig.model.gate("second").open();
    rig.done(&task).await;
    let second = rig.model.requests_of("the second scout");
    assert!(second.last().is_some_and(|request| request.any_user_text_contains("Which one are you?")));
    assert_eq!(rig.model.requests_of(&prompt("scout")).len(), 1, "never the earlier one");
}

#[tokio::test(flavor = "multi_thread")]
async fn task_stop_ends_a_worker_keeps_its_work_and_is_neutral_beside_one_that_completed() {
    let rig = Rig::new().await;
    let both = Reply::new().tool("Agent", agent("good")).tool("Agent", agent("stray"));
    rig.model.agent(COORDINATE, [both, Reply::say("Both run.")]);
    rig.model.once(
        when().agent(COORDINATE).last_user_contains("<task-notification>"),
        Reply::new().tool_with_id(
            "toolu_stop",
            "TaskStop",
            json!({"task_id": "stray", "reason": "not needed"}),
        ),
    );
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("good"), [call(write("good.txt", "good\n")).hold("good"), Reply::say("Good.")]);
    rig.model
        .agent(&prompt("stray"), [call(write("stray.txt", "partial\n")), Reply::say("never").hold("never")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    rig.model.gate("good").open();
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "complete", "{view:#}");
    assert!(view["reasons"].to_string().contains("stopped by the coordinator"));
    let last = rig.last_request();
    assert!(last.tool_result("toolu_stop").is_some_and(|result| result.contains("stopping")));
    assert_each_once(&last, 2);
    let stray = rig.worker(&task, "stray").await;
    assert_eq!(stray["status"], "aborted");
    assert_eq!(rig.at(&stray, "stray.txt").as_deref(), Some("partial\n"));
    let told = entries(&last);
    let entry = told.iter().find(|entry| entry.task_id == id_of(&stray)).expect("its end is told");
    assert_eq!(entry.status, "aborted");
    assert!(
        entry.part("summary").contains("stopped by you; what it had done is committed"),
        "{}",
        entry.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case_27_a_stopped_worker_is_shown_as_aborted_only_when_its_whole_tree_is_gone() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("parent")));
    // A child that ignores SIGTERM, and one in a session of its own.
    let command = "setsid sh -c 'trap \"\" TERM; touch deaf; while :; do sleep 1; done' & \
        sh -c 'trap \"\" TERM; touch stubborn; while :; do sleep 1; done'";
    rig.model.agent(&prompt("parent"), [call(bash(command))]);
    let task = rig.submit_with(json!({"permission_mode": "bypassPermissions"})).await;
    rig.model.wait_for_request(&prompt("parent"), 0).await;
    let worker = rig.worker(&task, "parent").await;
    let path = path_of(&worker);
    until(SOON, "both children", async || path.join("deaf").exists() && path.join("stubborn").exists()).await;
    let tree = rig.home.processes_named("while :");
    assert!(tree.len() >= 2, "{tree:?}");
    stop(&rig, &worker).await;
    let mut events = rig.api().events(&format!("/sessions/{}/events", task.session), Some("0")).await;
    events
        .wait_for("the worker's abortion", |event| {
            let data = &event.data;
            (data["kind"] == "worker.state" && data["status"] == "aborted").then_some(())
        })
        .await;
    let alive: Vec<_> = tree.iter().filter(|process| process.is_alive()).collect();
    assert!(alive.is_empty(), "still alive when `aborted` was shown: {alive:?}");
    assert!(
        rig.worker_process(&worker).is_none()
            && rig.keeper_process(&worker).is_none_or(|keeper| !keeper.is_alive())
    );
    rig.done(&task).await;
    assert_each_once(&rig.last_request(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_worker_that_is_stopped_never_starts_and_leaves_nothing() {
    let rig = Rig::configured("max_workers = 1\n").await;
    let two = Reply::new().tool("Agent", reporter("first")).tool("Agent", reporter("queued"));
    rig.coordinator(two);
    rig.model.agent(&prompt("first"), [Reply::say("Done.").hold("first")]);
    let task = rig.submit().await;
    rig.model.gate("first").reached().await;
    let queued = rig.worker(&task, "queued").await;
    assert_eq!((&queued["status"], &queued["position"]), (&json!("pending"), &json!(1)));
    stop(&rig, &queued).await;
    rig.worker_has_status(&task, "queued", "aborted").await;
    rig.model.gate("first").open();
    assert_eq!(rig.done(&task).await["verdict"], "degraded", "a person stopped one");
    assert!(rig.model.requests_of(&prompt("queued")).is_empty());
    assert_eq!((rig.home.worktrees().len(), rig.repo.branches("swarm/*").len()), (0, 0));
    assert_each_once(&rig.last_request(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_a_person_stopped_is_refused_to_the_model_and_not_to_the_person() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", reporter("mine"))]);
    rig.model.once(
        when().agent(COORDINATE).last_user_contains("<task-notification>"),
        Reply::new().tool_with_id("toolu_again", "SendMessage", json!({"to": "mine", "message": "Go on."})),
    );
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("mine"), [Reply::say("never").hold("never"), Reply::say("As you wish.")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    stop(&rig, &rig.worker(&task, "mine").await).await;
    rig.done(&task).await;
    let last = rig.last_request();
    let refusal =
        last.tool_results().find(|(id, _, _)| *id == "toolu_again").map(|(_, text, error)| (text, error));
    let (text, is_error) = refusal.expect("the call is answered");
    assert!(is_error && text.contains("stopped by a person"), "{text}");
    let worker = rig.worker(&task, "mine").await;
    let path = format!("/workers/{}/messages", id_of(&worker));
    assert_eq!(rig.api().post(&path, &json!({"text": "I do want it."})).await["status"], "revived");
    rig.worker_is(&task, "mine", "run 2 completed", |w| w["run"] == 2 && w["status"] == "completed").await;
    let requests = rig.model.requests_of(&prompt("mine"));
    assert!(requests[1].any_user_text_contains("I do want it."));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_came_before_a_stop_does_not_undo_the_stop() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("mine")));
    rig.model.agent(&prompt("mine"), [Reply::say("never").hold("never")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    let worker = rig.worker(&task, "mine").await;
    rig.api()
        .post(&format!("/workers/{}/messages", id_of(&worker)), &json!({"text": "And this, too."}))
        .await;
    stop(&rig, &worker).await;
    rig.worker_has_status(&task, "mine", "aborted").await;
    rig.done(&task).await;
    let entry = &entries(&rig.last_request())[0];
    assert!(entry.text.contains("not read"), "what it did not read is said: {}", entry.text);
    assert_eq!(rig.worker(&task, "mine").await["run"], 1, "stopped is stopped");
    assert_eq!(rig.model.requests_of(&prompt("mine")).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn g23_a_message_while_the_recipient_ends_is_answered_by_a_next_run() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("leaving")));
    rig.model.agent(&prompt("leaving"), [Reply::new().text("Good").gate("leaving").text("bye.")]);
    rig.model.rule(when().agent(&prompt("leaving")), "And one thing more.");
    let task = rig.submit().await;
    rig.model.gate("leaving").reached().await;
    let worker = rig.worker(&task, "leaving").await;
    let path = format!("/workers/{}/messages", id_of(&worker));
    // Messages race with the end; each is accepted, so each has to be read, in this run or a next one.
    rig.model.gate("leaving").open();
    for n in 0..20 {
        rig.api().post(&path, &json!({"text": format!("message {n:02}.")})).await;
    }
    let everything_read = async || {
        let requests = rig.model.requests_of(&prompt("leaving"));
        requests
            .last()
            .is_some_and(|last| (0..20).all(|n| last.any_user_text_contains(&format!("message {n:02}."))))
    };
    until(LATER, "twenty messages that were read", everything_read).await;
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("leaving")).pop().expect("it asked");
    let all: String = last.messages.iter().map(|message| message.text()).collect();
    assert!((0..20).all(|n| all.matches(&format!("message {n:02}.")).count() == 1), "each once");
    let runs = rig.worker(&task, "leaving").await["run"].as_u64().expect("a run");
    assert_eq!(entries(&rig.last_request()).len() as u64, runs, "each run's end was told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_stops_everything_work_is_committed_and_a_restart_of_the_server_wakes_nobody() {
    let mut rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("worker")));
    rig.model
        .agent(&prompt("worker"), [call(write("part.txt", "part\n")), Reply::say("never").hold("never")]);
    let task = rig.submit().await;
    rig.model.gate("never").reached().await;
    rig.model.wait_for_request(COORDINATE, 1).await;
    rig.worker_has_status(&task, "worker", "running").await;
    until(SOON, "an idle coordinator", async || rig.session(&task).await["session"]["state"] == "waiting")
        .await;
    rig.api().post(&format!("/sessions/{}/interrupt", task.session), &json!({})).await;
    let worker = rig.worker_has_status(&task, "worker", "aborted").await;
    assert_eq!(rig.at(&worker, "part.txt").as_deref(), Some("part\n"));
    rig.done(&task).await;
    let before = rig.model.requests_of(COORDINATE).len();
    rig.restart_killed().await;
    let session = rig.session(&task).await;
    assert_eq!((&session["session"]["state"], &session["session"]["queued"]), (&json!("idle"), &json!(1)));
    // A request that should not come cannot be waited for: the next one that is wanted shows whether it came.
    rig.api().post(&format!("/sessions/{}/messages", task.session), &json!({"text": "What is left?"})).await;
    let request = rig.model.wait_for_request(COORDINATE, before).await;
    assert!(request.last_user_text().contains("What is left?"), "the first request after it is the person's");
    assert_each_once(&request, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn isolation_none_reads_the_checkout_and_writes_nothing() {
    let rig =
        Rig::of(TestRepo::with_files(&[("README.md", "# A project\n"), (".gitignore", "secret\n")]), "")
            .await;
    rig.repo.write("dirty.txt", "not committed\n");
    let mut input = reporter("reader");
    input["isolation"] = "none".into();
    rig.coordinator(Reply::new().tool_with_id("toolu_agent", "Agent", input));
    rig.model.agent(
        &prompt("reader"),
        [
            call(("Read", json!({"file_path": "dirty.txt"}))),
            call(bash("pwd; touch made.txt; echo more >> README.md; git commit --allow-empty -qm x; true")),
            call(write("made.txt", "made\n")),
            Reply::say("I only read."),
        ],
    );
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.done(&task).await;
    let requests = rig.model.requests_of(&prompt("reader"));
    assert!(
        requests[1].last_tool_results()[0].1.contains("not committed"),
        "it works in the person's checkout"
    );
    let last = requests.last().expect("it asked");
    let tried = last.tool_results().nth(2).map(|(_, text, is_error)| (text.to_owned(), is_error));
    assert!(tried.as_ref().is_none_or(|(_, is_error)| *is_error), "{tried:?}");
    assert_eq!(rig.repo.status(), "?? dirty.txt", "nothing was written");
    assert_eq!(rig.repo.git(&["rev-list", "--count", "HEAD"]), "1");
    assert_eq!((rig.home.worktrees().len(), rig.repo.branches("swarm/*").len()), (0, 0));
    let worker = rig.worker(&task, "reader").await;
    assert_eq!((&worker["branch"], &worker["isolation"]), (&Value::Null, &json!("none")));
    assert!(
        rig.last_request()
            .tool_result("toolu_agent")
            .is_some_and(|answer| answer.contains(r#""branch":null"#))
    );
    assert_eq!(path_of(&worker), rig.repo.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn g17_no_mode_of_the_session_lets_a_read_only_worker_write() {
    let rig = Rig::new().await;
    let mut none = reporter("none");
    none["isolation"] = "none".into();
    let mut explorer = reporter("explorer");
    explorer["subagent_type"] = "Explore".into();
    rig.coordinator(Reply::new().tool("Agent", none).tool("Agent", explorer));
    for name in ["none", "explorer"] {
        rig.model.agent(
            &prompt(name),
            [
                call(bash("echo x > by-shell.txt; true")),
                call(write("by-tool.txt", "x\n")),
                Reply::say("Tried."),
            ],
        );
    }
    let task = rig.submit_with(json!({"permission_mode": "bypassPermissions", "unattended": true})).await;
    rig.done(&task).await;
    assert_eq!(rig.repo.status(), "");
    for name in ["none", "explorer"] {
        let worker = rig.worker(&task, name).await;
        assert_eq!((&worker["commits"], &worker["branch"]), (&json!(0), &Value::Null), "{name}: {worker:#}");
    }
}

/// The modes that exist: default, acceptEdits and bypassPermissions. A call cannot ask for another than the session's.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_worker_has_the_mode_of_its_session_whatever_the_call_asks_for() {
    let rig = Rig::new().await;
    let mut wide = agent("wide");
    wide["permission_mode"] = "bypassPermissions".into();
    rig.coordinator(Reply::new().tool("Agent", wide).tool("Agent", agent("plain")));
    rig.model.agent(&prompt("plain"), [call(write("by-tool.txt", "x\n")), Reply::say("Tried.")]);
    let task = rig.submit_with(json!({"permission_mode": "default", "unattended": true})).await;
    rig.done(&task).await;
    assert_eq!(rig.worker(&task, "wide").await, Value::Null, "a call with a field of its own is refused");
    let refused = rig.last_request();
    let (_, text, is_error) =
        refused.tool_results().find(|(_, text, _)| text.contains("permission_mode")).expect("it is told why");
    assert!(is_error, "{text}");
    assert!(rig.model.requests_of(&prompt("wide")).is_empty());
    let last = rig.model.requests_of(&prompt("plain")).pop().expect("it asked");
    let (_, text, is_error) = last.tool_results().next().expect("a result");
    assert!(is_error && text.contains("unattended"), "{text}");
    assert_eq!(rig.worker(&task, "plain").await["commits"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_nobody_are_refused_with_what_there_is() {
    let rig = Rig::new().await;
    let task = Task { id: uuid_like(), session: uuid_like(), accepted: Value::Null };
    for path in [
        format!("/tasks/{}", task.id),
        format!("/sessions/{}", task.session),
        "/workers/agent-zzz9".to_owned(),
        "/explain/agent-zzz9".to_owned(),
    ] {
        let (status, problem) = rig.api().try_get(&path).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &json!("unknown_id")),
            "{path}: {problem}"
        );
    }
    let (status, _) = rig.api().try_post("/workers/agent-zzz9/messages", &json!({"text": "hi"})).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

fn uuid_like() -> String {
    "01890a5d-ac96-774b-bcce-b302099a8057".to_owned()
}
