//! What workers start, print and leave; and what the server does with a damaged or busy home.

use std::{
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, until,
    wait::{LATER, SOON},
};
use reqwest::StatusCode;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::rig::{
    COORDINATE, Rig, agent, assert_each_once, bash, call, entries, files_below, id_of, prompt, reporter,
    write,
};

/// Whether a process has this file open.
fn holds(pid: i32, path: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.map(|entry| entry.path()).any(|entry| std::fs::read_link(entry).is_ok_and(|file| file == path))
}

/// The text of a worker's `n`-th result.
fn result(rig: &Rig, name: &str, n: usize) -> String {
    let last = rig.model.requests_of(&prompt(name)).pop().expect("it asked");
    let (_, text, _) = last.tool_results().nth(n).expect("a result");
    text.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_26_what_a_worker_left_running_is_ended_with_it_and_strangers_are_not() {
    let leave = "(setsid sh -c '(sleep 1001 &) ; sleep 1002' &)\nsleep 1003 &\nsleep 1004\n";
    let rig = Rig::of(TestRepo::with_files(&[("leave.sh", leave)]), "").await;
    rig.coordinator(Reply::call("Agent", reporter("leaver")));
    rig.model.agent(
        &prompt("leaver"),
        [
            Reply::call("Bash", json!({"command": "sh leave.sh", "run_in_background": true})),
            Reply::say("Left it all running.").hold("running"),
        ],
    );
    // One that has nothing to do with it, in the same directory.
    let mut stranger = std::process::Command::new("sleep").arg("1005").spawn().expect("sleep can be started");
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.model.gate("running").reached().await;
    let left =
        || ["1001", "1002", "1003", "1004"].map(|n| rig.home.processes_named(&format!("sleep {n}")).len());
    until(SOON, "four processes", async || left().iter().all(|n| *n > 0)).await;
    let worker = rig.worker(&task, "leaver").await;
    rig.model.gate("running").open();
    rig.api().post(&format!("/workers/{}/stop", id_of(&worker)), &json!({})).await;
    rig.worker_has_status(&task, "leaver", "aborted").await;
    assert_eq!(left(), [0; 4], "all of them are gone, whoever their parents were");
    assert!(stranger.try_wait().is_ok_and(|ended| ended.is_none()), "the stranger lives");
    rig.done(&task).await;
    let detail = rig.detail(&worker).await;
    assert_ne!(detail["outcome"]["children_killed"], json!([]), "{detail:#}");
    stranger.kill().expect("the stranger can be ended");
    stranger.wait().expect("and reaped");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_26_the_port_of_a_dev_server_that_was_left_behind_is_free_at_the_workers_end() {
    let listen = "use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => q(127.0.0.1), \
                  LocalPort => $ENV{SWARM_PORT_BASE}, Listen => 5) or die $!; \
                  while (my $c = $s->accept) { close $c }";
    // Twice forked, in a session of its own, as a daemon is.
    let serve = format!("(setsid perl -e '{listen}' </dev/null &)\nsleep 1007\n");
    let repo = TestRepo::with_files(&[("serve.sh", &serve)]);
    let rig = Rig::of(repo, "[sandbox]\nnetwork = \"on\"\n").await;
    rig.coordinator(Reply::call("Agent", reporter("server")));
    rig.model.agent(
        &prompt("server"),
        [
            Reply::call("Bash", json!({"command": "sh serve.sh", "run_in_background": true})),
            Reply::say("It serves.").hold("serving"),
        ],
    );
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.model.gate("serving").reached().await;
    let worker = rig.worker(&task, "server").await;
    let port = u16::try_from(worker["port_base"].as_u64().expect("it has ports")).expect("a port");
    let address = ("127.0.0.1", port);
    until(SOON, "the dev server listens", async || TcpStream::connect(address).is_ok()).await;
    assert!(TcpListener::bind(address).is_err(), "the port is taken");
    rig.model.gate("serving").open();
    rig.api().post(&format!("/workers/{}/stop", id_of(&worker)), &json!({})).await;
    rig.worker_has_status(&task, "server", "aborted").await;
    // Not asked by binding: connections of other programs may have that port as their own end.
    let refused = TcpStream::connect(address).expect_err("nobody listens any more");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
    rig.done(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_26_what_a_command_leaves_ends_with_the_command_and_is_named() {
    let rig = Rig::of(TestRepo::with_files(&[("leave.sh", "setsid sleep 1006 &\necho started\n")]), "").await;
    rig.coordinator(Reply::call("Agent", reporter("leaver")));
    rig.model.agent(&prompt("leaver"), [call(bash("sh leave.sh")), Reply::say("Done.").hold("end")]);
    let task = rig.submit_with(json!({"unattended": true})).await;
    rig.model.gate("end").reached().await;
    let text = result(&rig, "leaver", 0);
    assert!(text.contains("started"), "{text}");
    assert!(rig.home.processes_named("sleep 1006").is_empty());
    rig.model.gate("end").open();
    rig.done(&task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_29_output_of_any_bytes_reaches_the_model_as_text_and_the_stream_lives_on() {
    let script = "printf 'latin \\351\\n'; printf '\\033[2J\\033]0;title\\007red\\033[31m\\n'\n\
        printf '\\344\\270'; sleep 0.3; printf '\\255\\n'; printf 'nul\\000end\\n'; head -c 300 /dev/urandom; echo; echo last\n";
    let rig = Rig::of(TestRepo::with_files(&[("bytes.sh", script)]), "").await;
    rig.coordinator(Reply::call("Agent", reporter("printer")));
    rig.model.agent(&prompt("printer"), [call(bash("sh bytes.sh")), Reply::say("Printed.")]);
    let task = rig.submit_with(json!({"unattended": true})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let text = result(&rig, "printer", 0);
    assert!(
        text.contains("latin \u{fffd}") && text.contains('\u{4e2d}') && text.contains("last"),
        "{text:?}"
    );
    assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "no control codes: {text:?}");
    let worker = rig.worker(&task, "printer").await;
    let page = rig.api().get(&format!("/workers/{}/transcript", id_of(&worker))).await;
    assert!(
        page["records"].as_array().is_some_and(|records| records.len() > 4),
        "and the transcript can be read"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn x05_x13_x17_x22_the_model_is_told_how_a_command_ended_and_where_the_next_one_starts() {
    let rig = Rig::of(TestRepo::with_files(&[("empty.txt", "a\n"), ("sub/f", "x\n")]), "").await;
    rig.coordinator(Reply::call("Agent", reporter("teller")));
    let commands = [
        ("grep x empty.txt", false, "no match"),
        ("sh -c 'kill -9 $$'", true, "SIGKILL"),
        ("exit 300", true, "exit code 44"),
        ("head -c1 /dev/tty", true, "/dev/tty"),
        ("cd sub", false, ""),
        ("pwd", false, "/sub"),
        ("cd / && pwd", false, "outside the worktree"),
        ("printf '\\033[31mred\\033[0m 10%%\\r100%%\\n'", false, "100%"),
        ("cat", false, ""),
    ];
    let replies = commands.iter().map(|(command, _, _)| call(bash(command))).chain([Reply::say("Told.")]);
    rig.model.agent(&prompt("teller"), replies);
    let task = rig.submit_with(json!({"permission_mode": "bypassPermissions", "unattended": true})).await;
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("teller")).pop().expect("it asked");
    let results: Vec<(&str, bool)> =
        last.tool_results().map(|(_, text, is_error)| (text, is_error)).collect();
    assert_eq!(results.len(), commands.len(), "{results:#?}");
    for ((command, is_error, part), (text, was_error)) in commands.into_iter().zip(results) {
        assert_eq!((was_error, text.contains(part)), (is_error, true), "{command}: {text}");
        assert!(!text.contains('\u{1b}') && !text.contains("red"), "{command}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_30_git_that_would_ask_fails_at_once() {
    let rig = Rig::of(TestRepo::with_files(&[("README.md", "x\n")]), "").await;
    rig.coordinator(Reply::call("Agent", reporter("asker")));
    rig.model.agent(
        &prompt("asker"),
        [
            call(bash("git commit --allow-empty")),
            call(bash("printf 'protocol=https\\nhost=example.org\\n\\n' | git credential fill")),
            call(bash("git commit --allow-empty --amend")),
            call(bash("git var GIT_EDITOR")),
            Reply::say("Nothing asked me."),
        ],
    );
    let task = rig.submit_with(json!({"permission_mode": "bypassPermissions"})).await;
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("asker")).pop().expect("it asked");
    let results: Vec<(&str, bool)> =
        last.tool_results().map(|(_, text, is_error)| (text, is_error)).collect();
    assert!(results[0].1 && results[0].0.contains("editor"), "{results:?}");
    assert!(results[1].1 && results[1].0.contains("terminal prompts disabled"), "{results:?}");
    assert!(results[2].1, "{results:?}");
    let commands = rig.detail(&rig.worker(&task, "asker").await).await;
    let timed_out = commands["outcome"]["commands"].to_string().contains("timed out");
    assert!(!timed_out, "none of them waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_32_one_unreadable_session_is_shown_as_damaged_and_the_others_work() {
    let mut rig = Rig::new().await;
    for n in ["one", "two"] {
        rig.model.agent(&format!("session {n}"), [Reply::say("Nothing to do.")]);
    }
    let damaged = rig.submit_with(json!({"prompt": "session one"})).await;
    let whole = rig.submit_with(json!({"prompt": "session two"})).await;
    rig.done(&damaged).await;
    rig.done(&whole).await;
    rig.kill_server().await;
    let journal =
        Connection::open(rig.home.path().join("journal.sqlite")).expect("the journal can be opened");
    // One row is no JSON, another no text.
    for (seq, body) in [(2, "'{\"kind\": '"), (3, "CAST(x'7bff7d' AS TEXT)")] {
        let sql = format!("UPDATE events SET body = {body} WHERE session_id = ?1 AND seq = {seq}");
        assert_eq!(journal.execute(&sql, [&damaged.session]).expect("a row can be damaged"), 1);
    }
    drop(journal);
    rig.start().await;
    let sessions = rig.api().get("/sessions").await;
    let of = |task: &crate::rig::Task| {
        let mut all = sessions.as_array().expect("a list").iter();
        all.find(|session| session["session_id"] == task.session.as_str()).cloned().expect("it is listed")
    };
    assert!(of(&damaged)["damaged"].is_string(), "{sessions:#}");
    assert!(of(&whole)["damaged"].is_null());
    assert_eq!((&of(&damaged)["damaged_events"], &of(&whole)["damaged_events"]), (&json!(2), &json!(0)));
    // What can be read is told in order; in the place of what cannot stands a marker that says how to repair it.
    let last = of(&damaged)["seq"].as_u64().expect("it has a cursor");
    let told =
        told(&rig, &format!("/sessions/{}/events", damaged.session), |event| event["seq"] == last).await;
    let seqs: Vec<_> = told.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
    for event in &told {
        let is_marker = event["code"] == "journal_damaged";
        assert_eq!(is_marker, event["seq"] == 2 || event["seq"] == 3, "{event:#}");
        let hint = event["message"].as_str().is_some_and(|message| message.contains("journal.sqlite"));
        assert!(!is_marker || hint && event["kind"] == "error", "{event:#}");
    }
    // The stream of all sessions goes past it, and names this session alone.
    let end =
        |event: &Value| event["session_id"] == whole.session.as_str() && event["kind"] == "task.finished";
    let told = self::told(&rig, "/events", end).await;
    let markers: Vec<_> = told.iter().filter(|event| event["code"] == "journal_damaged").collect();
    assert_eq!(markers.len(), 2, "{markers:#?}");
    assert!(markers.iter().all(|event| event["session_id"] == damaged.session.as_str()), "{markers:#?}");
    let short = of(&damaged)["short"].as_str().expect("it has a name").to_owned();
    let logs = rig.home.run(rig.repo.path(), &["logs", &short]).await.expect_code(0);
    assert_eq!(logs.stdout.matches("cannot be read").count(), 2, "{}", logs.stdout);
    let (status, problem) = rig.api().try_get(&format!("/sessions/{}", damaged.session)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("session_damaged")));
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("journal.sqlite")), "{problem:#}");
    rig.model.agent("session two", [Reply::say("Still nothing.")]);
    rig.api().post(&format!("/sessions/{}/messages", whole.session), &json!({"text": "And now?"})).await;
    rig.model.wait_for_request("session two", 1).await;
    let row = rig.api().get("/overview").await["rows"][0].clone();
    assert_eq!((&row["group"], &row["word"]), (&json!("needs_you"), &json!("Damaged")));
}

/// Events of a stream from its beginning, up to one.
async fn told(rig: &Rig, path: &str, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut events = rig.api().events(path, Some("0")).await;
    events.wait_for("the last event", |event| is_last(&event.data).then_some(())).await;
    events.seen().iter().map(|event| event.data.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_32_damaged_lines_of_a_transcript_are_counted_and_the_others_are_shown() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("scribe")));
    rig.model.agent(&prompt("scribe"), [call(bash("echo one")), Reply::say("Reported.")]);
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "scribe").await;
    let path = format!("/workers/{}/transcript", id_of(&worker));
    let before = rig.api().get(&path).await;
    assert_eq!(before["damaged_lines"], 0);
    let n_before = before["records"].as_array().expect("records").len();
    let file = transcript(&rig.home.path(), id_of(&worker)).expect("its transcript is in the home");
    let text = std::fs::read_to_string(&file).expect("it can be read");
    let mut lines: Vec<&str> = text.lines().collect();
    let cut = &lines[2][..lines[2].len() / 2];
    lines[2] = cut;
    lines.insert(4, "no record");
    std::fs::write(&file, lines.join("\n") + "\n").expect("it can be damaged");
    let after = rig.api().get(&path).await;
    assert_eq!(after["damaged_lines"], 2);
    assert_eq!(after["records"].as_array().map(Vec::len), Some(n_before - 1));
    // A later page counts what lies before it as well: the number is the transcript's so far.
    let rest = rig.api().get(&format!("{path}?after={}", n_before - 1)).await;
    assert_eq!((&rest["damaged_lines"], rest["records"].as_array().map(Vec::len)), (&json!(2), Some(1)));
}

fn transcript(directory: &std::path::Path, worker: &str) -> Option<std::path::PathBuf> {
    std::fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        let is_it = path.file_name().is_some_and(|name| *name == *format!("{worker}.jsonl"));
        if is_it { Some(path) } else { path.is_dir().then(|| transcript(&path, worker)).flatten() }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_busy_journal_is_waited_for_and_then_refused_clearly() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::say("Nothing to do.")]);
    let path = rig.home.path().join("journal.sqlite");
    let mut journal = Connection::open(path).expect("the journal can be opened");
    let foreign =
        journal.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("a lock");
    let refused = tokio::time::timeout(Duration::from_secs(60), rig.try_submit(json!({}))).await;
    let (status, problem) = refused.expect("the wait is bounded");
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("storage")),
        "{problem:#}"
    );
    assert!(problem["hint"].is_string());
    let submitting = rig.try_submit(json!({}));
    let releasing = async {
        // The foreign process needs so long; it is the wait for it that is looked at.
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(foreign);
    };
    let ((status, accepted), ()) = tokio::join!(submitting, releasing);
    assert_eq!(status, StatusCode::ACCEPTED, "a short wait is ridden out: {accepted:#}");
    let view =
        async || rig.api().get(&format!("/tasks/{}", accepted["task_id"].as_str().expect("an id"))).await;
    until(SOON, "its verdict", async || view().await["verdict"] == "complete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_journal_that_is_busy_at_the_start_is_waited_for_and_nothing_of_it_is_changed() {
    let model = ModelServer::start();
    let home = SwarmHome::new(&model);
    std::fs::create_dir_all(home.path()).expect("the home is ours");
    let path = home.path().join("journal.sqlite");
    // Before its first migration, in the hands of another program.
    let mut journal = Connection::open(&path).expect("a database can be made");
    journal.execute_batch("CREATE TABLE before (x); INSERT INTO before VALUES (1);").expect("it is new");
    let before = std::fs::read(&path).expect("the journal is there");
    // Nothing here opens the file meanwhile: closing it would drop the lock of the whole process.
    let foreign =
        journal.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).expect("a lock");
    let directory = home.user_home();
    let serve = home.run(&directory, &["serve"]);
    let refused = tokio::time::timeout(Duration::from_secs(60), serve).await.expect("the wait is bounded");
    let said = refused.expect_code(1).stderr;
    assert!(said.contains("journal.sqlite is locked by another program"), "{said}");
    drop(foreign);
    assert_eq!(std::fs::read(&path).expect("the journal is there"), before, "no half of a migration");
    let foreign =
        journal.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).expect("a lock");
    // Free within the wait, it is taken.
    let _serving = home.start(&directory, &["serve"]);
    let opened = async || home.processes_named("serve").iter().any(|process| holds(process.pid, &path));
    until(SOON, "the server has the journal open", opened).await;
    drop(foreign);
    home.api().await;
    let tables: i64 = journal
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name IN ('events', 'before')", [], |row| {
            row.get(0)
        })
        .expect("it can be read");
    assert_eq!(tables, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_journal_that_cannot_be_written_is_refused_at_the_start() {
    let mut rig = Rig::new().await;
    rig.kill_server().await;
    let path = rig.home.path().join("journal.sqlite");
    Connection::open(&path)
        .and_then(|journal| journal.pragma_update(None, "journal_mode", "DELETE"))
        .expect("nobody uses it");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).expect("it is ours");
    let before = std::fs::read(&path).expect("the journal is there");
    let plain = rig.home.command(&rig.home.user_home(), &["serve"]);
    // Modes hold for the superuser, too, without this capability.
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut bounded = std::process::Command::new("setpriv");
        bounded.args(["--bounding-set=-dac_override", "--inh-caps=-dac_override"]);
        bounded.arg(plain.get_program()).args(plain.get_args());
        bounded.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        bounded
    } else {
        plain
    };
    let refused = tokio::task::spawn_blocking(move || command.output()).await.expect("it runs");
    let refused = refused.expect("it can be started");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("journal.sqlite cannot be written") && said.contains("SWARM_HOME"), "{said}");
    assert_eq!(std::fs::read(&path).expect("the journal is there"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_has_ports_and_a_temp_directory_of_its_own() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", reporter("one")).tool("Agent", reporter("two")));
    for name in ["one", "two"] {
        rig.model.agent(
            &prompt(name),
            [call(bash("echo $SWARM_PORT_BASE $TMPDIR; touch $TMPDIR/mine")), Reply::say("Told.")],
        );
    }
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let (one, two) = (result(&rig, "one", 0), result(&rig, "two", 0));
    let (one, two): (Vec<&str>, Vec<&str>) =
        (one.split_whitespace().collect(), two.split_whitespace().collect());
    assert!(one[0] != two[0] && one[1] != two[1], "{one:?} {two:?}");
    assert!(!std::path::Path::new(one[1]).exists(), "nobody's temp directory stays");
    assert_eq!(rig.worker(&task, "one").await["port_base"].to_string(), one[0]);
}

/// Directories in one another, as a command makes them that goes down with each; no path is long enough for the last.
fn nest(top: &Path, depth: usize) {
    use nix::{
        fcntl::{OFlag, open, openat},
        sys::stat::{Mode, mkdirat},
    };
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut here = open(top, flags, Mode::empty()).expect("the top is there");
    for _ in 0..depth {
        mkdirat(&here, "d", Mode::S_IRWXU).expect("a directory can be made");
        here = openat(&here, "d", flags, Mode::empty()).expect("it was made");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_nested_without_an_end_keep_no_end_from_its_coordinator() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("digger")));
    rig.model.agent(&prompt("digger"), [call(bash("mkdir $TMPDIR/top")), Reply::say("Dug.").hold("dig")]);
    let task = rig.submit().await;
    rig.model.gate("dig").reached().await;
    let temp = rig.home.path().join("tmp");
    let worker = rig.worker(&task, "digger").await;
    // Deeper than the stack of a thread, and deeper than a path. Not by a command: the sandbox looks at each level
    // above for each that is made.
    nest(&temp.join(id_of(&worker)).join("top"), 15_000);
    nest(Path::new(worker["worktree"].as_str().expect("it has a worktree")), 3_000);
    rig.model.gate("dig").open();
    let done = rig.done(&task).await;
    assert_eq!(done["verdict"], "complete", "{done:#}");
    let is_empty = || std::fs::read_dir(&temp).is_ok_and(|mut entries| entries.next().is_none());
    until(LATER, "no temp directory is left", async || is_empty()).await;
    assert_eq!(rig.home.worktrees(), [] as [std::path::PathBuf; 0], "{done:#}");
    rig.home.stop().await.expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_the_server_reach_neither_files_nor_commands() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", reporter("spy")));
    rig.model.agent(
        &prompt("spy"),
        [call(bash("env; cat /proc/$PPID/environ | tr '\\0' '\\n'")), Reply::say("Told.").hold("end")],
    );
    let task = rig.submit_with(json!({"permission_mode": "bypassPermissions"})).await;
    rig.model.gate("end").reached().await;
    let text = result(&rig, "spy", 0);
    assert!(text.contains("SWARM_PORT_BASE") && !text.contains("test-key"), "{text}");
    let worker = rig.worker(&task, "spy").await;
    for process in rig.home.processes_named(id_of(&worker)) {
        let environment = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains("test-key"), "{process:?}");
        assert!(!process.command.contains("test-key"));
    }
    rig.model.gate("end").open();
    rig.done(&task).await;
    let journal: Vec<Value> = rig.journal(&task).await;
    assert!(journal.iter().all(|event| !event.to_string().contains("test-key")));
    for file in files_below(&rig.home.path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let holds = bytes.windows(8).any(|window| window == b"test-key");
        assert!(!holds, "{} holds the key", file.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_leave_eight_branches_and_nothing_else() {
    let rig = Rig::new().await;
    let names: Vec<String> = (0..8).map(|n| format!("w{n}")).collect();
    rig.coordinator(names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name))));
    for name in &names {
        rig.model.agent(
            &prompt(name),
            [
                call(write(&format!("{name}.txt"), "x\n")),
                call(bash("git add -A && git commit -qm done")),
                Reply::say("Done."),
            ],
        );
    }
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_each_once(&rig.last_request(), 8);
    assert_eq!(rig.repo.branches("swarm/**").len(), 8);
    for name in &names {
        let worker = rig.worker(&task, name).await;
        assert_eq!(
            rig.api().post(&format!("/workers/{}/merge", id_of(&worker)), &json!({})).await["result"],
            "merged"
        );
    }
    assert!(names.iter().all(|name| rig.repo.exists(&format!("{name}.txt"))));
    rig.repo.git(&["fsck", "--strict"]);
    rig.api().post("/gc", &json!({})).await;
    assert_eq!((rig.home.worktrees().len(), rig.repo.worktrees().len()), (0, 0));
    assert_eq!(entries(&rig.last_request()).len(), 8);
    let finished = rig.home.stop().await.expect_code(0);
    assert!(finished.stderr.is_empty(), "{}", finished.stderr);
    until(LATER, "an end of all processes", async || rig.home.processes().is_empty()).await;
    assert_eq!(rig.home.leftovers(), Vec::<String>::new());
}
