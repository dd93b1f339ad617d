//! Ways around a rule that others have found, tried on the whole product: each against the built worker, whose calls
//! a scripted model makes.

use std::path::{Path, PathBuf};

use integration_tests::{Reply, TestRepo, eventually, wait::SOON, when};
use serde_json::{Value, json};

use crate::rig::{Rig, Task, agent, bash, call, entries, path_of, prompt, reporter, write};

/// What a denied file holds, and the model must never see.
const SECRET: &str = "sesame-8421";

fn read(path: &str) -> (&'static str, Value) {
    ("Read", json!({"file_path": path}))
}

/// Settings of the repository itself. Refusals count without trust.
fn settings(repo: &TestRepo, permissions: &Value) {
    repo.write(".claude/settings.json", json!({"permissions": permissions}).to_string());
    repo.commit("settings");
}

/// Starts one worker that makes these calls, one a turn, with nobody to ask.
async fn tries(rig: &Rig, input: Value, calls: Vec<(&'static str, Value)>, more: Value) -> Task {
    rig.coordinator(Reply::call("Agent", input));
    let mut replies: Vec<Reply> = calls.into_iter().map(call).collect();
    replies.push(Reply::say("Tried all."));
    rig.model.agent(&prompt("prober"), replies);
    let mut fields = more;
    fields["unattended"] = true.into();
    rig.submit_with(fields).await
}

/// Text and failure of each call.
async fn results(rig: &Rig, task: &Task) -> Vec<(String, bool)> {
    rig.done(task).await;
    let last = rig.model.requests_of(&prompt("prober")).last().cloned().expect("the worker asked");
    last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect()
}

/// Everything that the worker's model was sent.
fn sent(rig: &Rig) -> String {
    rig.model
        .requests_of(&prompt("prober"))
        .iter()
        .map(|request| String::from_utf8_lossy(&request.raw).into_owned())
        .collect()
}

/// A place beside the server's home, outside of every worktree.
fn outside(rig: &Rig, name: &str) -> PathBuf {
    rig.home.user_home().join(name)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn p22_p23_links_lead_no_tool_and_no_command_out_of_the_worktree() {
    let rig = Rig::new().await;
    let secret = outside(&rig, "diary.txt");
    std::fs::write(&secret, SECRET).unwrap();
    let fresh = outside(&rig, "fresh.txt");
    let home = shown(&rig.home.user_home());
    let links = format!("ln -s {home} out && ln -s {} dangling && ln -s / root", shown(&fresh));
    let calls = vec![
        bash(&links),
        read("out/diary.txt"),
        bash("cat out/diary.txt"),
        read(&format!("root{}", shown(&secret))),
        write("out/fresh.txt", "x\n"),
        write("dangling", "x\n"),
        bash("echo x > dangling"),
        bash("echo x > out/fresh.txt"),
        bash("cd out && echo x > fresh.txt"),
        ("Grep", json!({"pattern": "sesame", "path": "out"})),
    ];
    let task = tries(&rig, agent("prober"), calls, json!({})).await;
    let results = results(&rig, &task).await;
    assert!(!results[0].1, "{results:#?}");
    // What commands in namespaces write below their own /tmp reaches nobody, which is looked at from outside.
    for (text, is_error) in &results[1..6] {
        assert!(is_error, "{text}");
    }
    assert!(!fresh.exists(), "nothing was written outside");
    assert!(!sent(&rig).contains(SECRET));
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), SECRET);
}

#[tokio::test(flavor = "multi_thread")]
async fn p25_no_list_of_the_repository_reaches_out_and_no_link_in_it_moves_a_worktree() {
    let repo = TestRepo::new();
    repo.write(".worktreeinclude", "../../diary.txt\n");
    repo.commit("a list that reaches out");
    let rig = Rig::of(repo, "").await;
    let task = tries(&rig, agent("prober"), vec![bash("ls -a .. ../..")], json!({})).await;
    rig.done(&task).await;
    let entry = entries(&rig.last_request())[0].text.clone();
    assert!(entry.contains(".worktreeinclude") && entry.contains("../../diary.txt"), "{entry}");

    let elsewhere = tempfile::tempdir().unwrap();
    let repo = TestRepo::new();
    for name in [".claude", ".swarm"] {
        std::fs::create_dir_all(repo.path().join(name)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), repo.path().join(name).join("worktrees")).unwrap();
    }
    repo.git(&["add", "-fA"]);
    repo.commit("worktrees are a link");
    let rig = Rig::of(repo, "").await;
    let task = tries(&rig, agent("prober"), vec![write("made.txt", "x\n")], json!({})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "prober").await;
    assert!(!path_of(&worker).starts_with(elsewhere.path()), "{worker:#}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p28_p29_p32_what_may_not_be_read_is_read_in_no_way_and_nothing_else_asks() {
    let repo = TestRepo::with_files(&[
        ("README.md", "# A project\n"),
        (".env", "KEY=sesame-8421\n"),
        ("deep/.env", "KEY=sesame-8421\n"),
        ("secret/deep/key.txt", "KEY=sesame-8421\n"),
        ("src/lib.rs", "const KEY: u8 = 1; // foo\n"),
        ("docs/a.md", "x\n"),
    ]);
    settings(&repo, &json!({"deny": ["Read(~/.aws/)", "Read(.env)", "Read(secret/**)"]}));
    let rig = Rig::of(repo, "").await;
    let aws = outside(&rig, ".aws");
    std::fs::create_dir(&aws).unwrap();
    std::fs::write(aws.join("credentials"), SECRET).unwrap();
    let credentials = shown(&aws.join("credentials"));
    let refused = vec![
        read(&credentials),
        read("~/.aws/credentials"),
        bash("cat ~/.aws/credentials"),
        read(".env"),
        read("deep/.ENV"),
        bash("cat .env"),
        bash("cat deep/../.env"),
        bash("head -1 < .env"),
        bash("cp .env copy && cat copy"),
        bash("grep -r KEY ."),
        bash("rg --hidden KEY"),
        bash("cp -r . copy"),
        bash("find . -type f -exec grep KEY {} +"),
        bash("find . -name '.env' | xargs cat"),
        bash("cat .e*"),
        bash("cat secret/*/key.txt"),
        bash("git show HEAD:.env"),
        bash("git grep KEY"),
        bash("ln -s .env alias && cat .env"),
        bash("bash -c 'cat .env'"),
        read("secret/deep/key.txt"),
    ];
    let hidden = vec![
        ("Grep", json!({"pattern": "sesame", "path": "."})),
        ("Grep", json!({"pattern": "sesame", "path": "secret"})),
        ("Glob", json!({"pattern": "secret/**"})),
        ("Glob", json!({"pattern": "**/.env"})),
    ];
    let allowed = vec![bash("grep -r foo src"), bash("(cd docs && grep x *.md)"), read("src/lib.rs")];
    let (n_refused, n_hidden) = (refused.len(), hidden.len());
    let names: Vec<String> =
        refused.iter().chain(&hidden).chain(&allowed).map(|call| format!("{call:?}")).collect();
    let calls = [refused, hidden, allowed].concat();
    let task = tries(&rig, agent("prober"), calls, json!({})).await;
    let results = results(&rig, &task).await;
    for (n, (text, is_error)) in results.iter().enumerate() {
        let expected = n < n_refused;
        if n < n_refused || n >= n_refused + n_hidden {
            assert_eq!(*is_error, expected, "{}: {text}", names[n]);
        }
        assert!(!text.contains(SECRET) && !text.contains("key.txt\n"), "{}: {text}", names[n]);
    }
    assert!(!sent(&rig).contains(SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn p34_a_rule_that_does_not_parse_is_an_error_with_its_place_and_nothing_starts() {
    let repo = TestRepo::new();
    repo.write(
        ".claude/settings.json",
        "{\n  \"permissions\": {\n    \"deny\": [\"Bash(curl *)\",\n      \"Read(file:///etc/passwd)\"]\n  }\n}\n",
    );
    let rig = Rig::of(repo, "").await;
    let (status, problem) = rig.try_submit(json!({})).await;
    assert!(status.is_client_error(), "{status} {problem:#}");
    let text = problem.to_string();
    for part in ["Read(file:///etc/passwd)", ".claude/settings.json:4:"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert_eq!(rig.api().get("/sessions").await["sessions"].as_array().map_or(0, Vec::len), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p35_rules_with_names_of_every_object_are_rules_like_others() {
    let repo = TestRepo::new();
    settings(
        &repo,
        &json!({"deny": ["toString", "constructor", "__proto__", "Bash(toString *)", "Bash(hasOwnProperty)", "Bash(touch *)"]}),
    );
    let rig = Rig::of(repo, "").await;
    let calls = vec![bash("toString x"), bash("hasOwnProperty"), bash("touch a"), bash("echo fine")];
    let task = tries(&rig, agent("prober"), calls, json!({})).await;
    let results = results(&rig, &task).await;
    for (text, is_error) in &results[..3] {
        assert!(*is_error && text.contains("settings.json"), "{text}");
    }
    assert!(!results[3].1, "{results:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p37_background_jobs_and_agents_that_only_report_are_under_the_same_rules() {
    let repo = TestRepo::new();
    settings(&repo, &json!({"deny": ["Bash(touch *)", "Edit(fixed.txt)"]}));
    let rig = Rig::of(repo, "").await;
    let background = ("Bash", json!({"command": "touch b", "run_in_background": true}));
    let calls = vec![background.clone(), bash("touch a &"), bash("(touch a)"), write("fixed.txt", "x\n")];
    let task = tries(&rig, agent("prober"), calls, json!({})).await;
    for (text, is_error) in results(&rig, &task).await {
        assert!(is_error, "{text}");
    }
    let mut explorer = reporter("prober");
    explorer["subagent_type"] = "Explore".into();
    rig.model.agent("the second task", [Reply::call("Agent", explorer)]);
    rig.model.rule(when().agent("the second task"), "Noted.");
    let checkout = shown(rig.repo.path());
    let calls = [
        background,
        bash("touch a"),
        bash(&format!("echo x > {checkout}/made.txt")),
        write(&format!("{checkout}/made.txt"), "x\n"),
    ];
    rig.model.agent(&prompt("prober"), calls.into_iter().map(call).chain([Reply::say("Tried all.")]));
    let task = rig.submit_with(json!({"prompt": "the second task", "unattended": true})).await;
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("prober")).last().cloned().unwrap();
    let results: Vec<(String, bool)> =
        last.tool_results().map(|(_, text, is_error)| (text.to_owned(), is_error)).collect();
    assert_eq!(results.len(), 4, "{results:#?}");
    // The third writes below /tmp, of which commands in namespaces have one of their own.
    let refused = [&results[0], &results[1], &results[3]];
    assert!(refused.iter().all(|(_, is_error)| *is_error), "{results:#?}");
    assert_eq!(rig.repo.status(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn p38_in_plan_mode_no_tool_and_no_command_changes_anything() {
    let rig = Rig::new().await;
    let calls = vec![
        write("made.txt", "x\n"),
        ("Edit", json!({"file_path": "README.md", "old_string": "project", "new_string": "ruin"})),
        bash("cat > made.txt <<E\nx\nE"),
        bash("python3 -c 'open(\"made.txt\",\"w\")'"),
        bash("touch made.txt"),
        bash("echo x > made.txt"),
        bash("sh -c 'echo x > made.txt'"),
        bash("git commit --allow-empty -m x"),
        ("Bash", json!({"command": "touch made.txt", "run_in_background": true})),
        read("README.md"),
        bash("git status && ls"),
        write(".claude/plans/first.md", "# A plan\n"),
    ];
    let task = tries(&rig, agent("prober"), calls, json!({"permission_mode": "plan"})).await;
    let results = results(&rig, &task).await;
    for (text, is_error) in &results[..9] {
        assert!(is_error, "{text}");
    }
    for (text, is_error) in &results[9..] {
        assert!(!is_error, "{text}");
    }
    let worker = rig.worker(&task, "prober").await;
    assert_eq!(rig.at(&worker, "made.txt"), None);
    assert_eq!(rig.at(&worker, "README.md").as_deref(), Some("# A project\n"));
    assert_eq!(rig.at(&worker, ".claude/plans/first.md").as_deref(), Some("# A plan\n"));
}

/// The shell follows the mode while it runs, in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn p38_a_switch_to_plan_mode_holds_from_the_next_command_on() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("prober")));
    let in_shell = |name: &str| call(bash(&format!("python3 -c 'open(\"{name}\", \"w\")'")));
    let replies = [
        in_shell("one"),
        in_shell("two").hold("second"),
        in_shell("three").hold("third"),
        Reply::say("Tried all."),
    ];
    rig.model.agent(&prompt("prober"), replies);
    let task = rig.submit_with(json!({"unattended": true})).await;
    let modes = format!("/sessions/{}/permission-mode", task.session);
    for (n, (gate, mode)) in [("second", "plan"), ("third", "acceptEdits")].into_iter().enumerate() {
        rig.model.gate(gate).reached().await;
        rig.api().post(&modes, &json!({"mode": mode})).await;
        eventually(SOON, "the worker takes the mode", async || {
            let records = rig.events(&task, "worker.record").await;
            let taken = records.iter().filter(|event| event.to_string().contains("command_accepted")).count();
            if taken > n { Ok(()) } else { Err(format!("{taken} commands")) }
        })
        .await;
        rig.model.gate(gate).open();
    }
    let results = results(&rig, &task).await;
    assert_eq!(
        results.iter().map(|(_, is_error)| *is_error).collect::<Vec<_>>(),
        [false, true, false],
        "{results:#?}"
    );
    let worker = rig.worker(&task, "prober").await;
    assert_eq!((rig.at(&worker, "one").as_deref(), rig.at(&worker, "two")), (Some(""), None));
    assert_eq!(rig.at(&worker, "three").as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn p41_programs_that_configuration_names_do_not_run_with_harmless_commands() {
    let repo = TestRepo::new();
    let place = tempfile::tempdir().unwrap();
    let monitor = place.path().join("monitor");
    let script = "#!/bin/sh\ntouch \"$PWD/monitor-ran\" \"${0%/*}/monitor-ran\"\n";
    std::fs::write(&monitor, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&monitor, mode).unwrap();
    repo.git(&["config", "core.fsmonitor", &shown(&monitor)]);
    let rig = Rig::of(repo, "").await;
    let calls = vec![
        bash("git status"),
        bash("git diff"),
        bash("git config core.fsmonitor"),
        bash("test -z \"$RIPGREP_CONFIG_PATH\" && test -z \"$LESSOPEN\" && ls -a"),
    ];
    let task = tries(&rig, agent("prober"), calls, json!({})).await;
    let results = results(&rig, &task).await;
    assert!(results.iter().all(|(_, is_error)| !is_error), "{results:#?}");
    assert_eq!(results[2].0.trim(), "false");
    assert!(!results[3].0.contains("monitor-ran"), "{results:#?}");
    assert!(!place.path().join("monitor-ran").exists());
}
