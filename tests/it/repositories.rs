//! Repositories as people have them, and what becomes of a worker's tree: seen from the API.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::Path,
};

use integration_tests::{Reply, TestRepo, until, wait::SOON};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{
    COORDINATE, Rig, Task, agent, bash, call, entries, id_of, path_of, prompt, reporter, write,
};

/// A worker that writes one file; ready to be submitted.
fn one_writer(rig: &Rig, name: &str, file: &str) {
    rig.coordinator(Reply::call("Agent", agent(name)));
    rig.model.agent(&prompt(name), [call(write(file, "new\n")), Reply::say("Written.")]);
}

async fn post(rig: &Rig, worker: &Value, what: &str, body: Value) -> (StatusCode, Value) {
    rig.api().try_post(&format!("/workers/{}/{what}", id_of(worker)), &body).await
}

fn notices(task: &Task) -> String {
    task.accepted["notices"].to_string()
}

async fn refused(rig: &Rig, repo: &Path) -> Value {
    let (status, problem) = rig.try_submit(json!({"repo": repo})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem:#}");
    assert_eq!(rig.api().get("/sessions").await, json!([]), "nothing was made");
    assert!(rig.home.worktrees().is_empty());
    problem
}

#[tokio::test(flavor = "multi_thread")]
async fn case_03_a_repository_without_a_commit_is_refused_before_anything_is_made() {
    let rig = Rig::of(TestRepo::empty(), "").await;
    rig.repo.write("draft.txt", "draft\n");
    let problem = refused(&rig, rig.repo.path()).await;
    assert_eq!(problem["code"], "no_commit");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("no commit yet")), "{problem:#}");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("git commit")), "{problem:#}");
    assert_eq!((rig.repo.status(), rig.repo.branches("*").len()), ("?? draft.txt".to_owned(), 0));
    assert!(rig.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_repository_and_a_base_that_is_not_there_are_refused_with_a_way_out() {
    let rig = Rig::new().await;
    let problem = refused(&rig, &rig.home.user_home()).await;
    assert_eq!(problem["code"], "not_a_repository");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("git init")), "{problem:#}");
    rig.repo.branch("feature");
    let (status, problem) = rig.try_submit(json!({"base": "featrue"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("bad_base")));
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("feature")), "{problem:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_05_from_a_linked_worktree_the_base_is_the_commit_under_the_feet() {
    let rig = Rig::new().await;
    let linked = rig.repo.path().with_file_name("linked");
    rig.repo.git(&["worktree", "add", "-q", "-b", "side", &linked.to_string_lossy()]);
    fs::write(linked.join("side.txt"), "side\n").expect("the worktree is there");
    let of_linked = |arguments: &[&str]| {
        let mut whole = vec!["-C", linked.to_str().expect("a path of ours")];
        whole.extend(arguments);
        rig.repo.git(&whole)
    };
    of_linked(&["add", "-A"]);
    of_linked(&["commit", "-qm", "side"]);
    let head = of_linked(&["rev-parse", "HEAD"]);
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit_with(json!({"repo": linked})).await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["base"], head.as_str());
    assert_eq!(rig.at(&worker, "side.txt").as_deref(), Some("side\n"));
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], &merged["into"]), (&json!("merged"), &json!("side")), "{merged:#}");
    assert!(linked.join("new.txt").exists() && !rig.repo.exists("new.txt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_05_on_a_detached_head_the_target_of_a_merge_is_asked_for() {
    let rig = Rig::new().await;
    rig.repo.git(&["checkout", "-q", "--detach"]);
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["base"], rig.repo.head().as_str());
    let (status, problem) = post(&rig, &worker, "merge", json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("no_target")),
        "{problem:#}"
    );
    let merged = post(&rig, &worker, "merge", json!({"into": "main"})).await.1;
    assert_eq!(merged["result"], "merged");
    assert_eq!(rig.repo.read_at("main", "new.txt").as_deref(), Some("new\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_06_the_base_is_what_is_checked_out_and_its_distance_is_told() {
    let rig = Rig::new().await;
    rig.repo.git(&["branch", "upstream"]);
    rig.repo.switch("upstream");
    for n in 0..2 {
        rig.repo.commit(&format!("upstream {n}"));
    }
    rig.repo.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    rig.repo.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"]);
    rig.repo.switch("main");
    for n in 0..3 {
        rig.repo.write("work.txt", format!("{n}\n")).commit(&format!("work {n}"));
    }
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert!(notices(&task).contains("base is 3 ahead of, 2 behind origin/"), "{}", notices(&task));
    rig.done(&task).await;
    let created = rig.events(&task, "session.created").await;
    assert_eq!(created[0]["spec"]["base"], rig.repo.head().as_str());
    let worker = rig.worker(&task, "alpha").await;
    let parent = rig.repo.git(&["rev-parse", &format!("{}^", worker["branch"].as_str().expect("a branch"))]);
    assert_eq!(parent, rig.repo.head());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_08_the_same_work_again_takes_a_name_of_its_own_and_leaves_the_old_branch() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let first = rig.submit().await;
    rig.done(&first).await;
    let old = rig.worker(&first, "alpha").await;
    let old_branch = old["branch"].as_str().expect("a branch").to_owned();
    let old_tip = rig.repo.git(&["rev-parse", &old_branch]);
    rig.model.agent("once more", [Reply::call("Agent", agent("alpha"))]);
    rig.model.rule(integration_tests::when().agent("once more"), "Noted.");
    rig.model.agent(&prompt("alpha"), [call(write("other.txt", "other\n")), Reply::say("Written.")]);
    let second = rig.submit_with(json!({"prompt": "once more"})).await;
    rig.done(&second).await;
    let new = rig.worker(&second, "alpha").await;
    assert_ne!(new["branch"], old_branch.as_str());
    assert_eq!(rig.repo.git(&["rev-parse", &old_branch]), old_tip);
    assert_eq!(rig.at(&new, "new.txt"), None, "it began at the base");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_09_a_branch_that_is_named_like_the_prefix_is_worked_around_and_said() {
    let rig = Rig::new().await;
    rig.repo.branch("swarm");
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    let branch = worker["branch"].as_str().expect("a branch");
    assert!(!branch.starts_with("swarm/"), "{branch}");
    assert_eq!(rig.at(&worker, "new.txt").as_deref(), Some("new\n"));
    let notes = rig.events(&task, "error").await;
    let note = notes.iter().find(|event| event["code"] == "worktree_note").expect("it is said");
    assert!(note["message"].as_str().is_some_and(|text| text.contains(branch)), "{note:#}");
    assert!(
        entries(&rig.last_request())[0].outcome().contains(branch),
        "and the coordinator knows the true name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_that_a_foreign_process_holds_for_a_while_is_waited_for() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "README2.md");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let lock = rig.repo.path().join(".git/index.lock");
    fs::write(&lock, "").expect("the lock can be made");
    let merging = post(&rig, &worker, "merge", json!({}));
    let foreign = async {
        // The foreign process works for as long; what is waited for is the merge.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let still_there = lock.exists();
        fs::remove_file(&lock).expect("nobody else removed the lock");
        still_there
    };
    let ((_, merged), still_there) = tokio::join!(merging, foreign);
    assert!(still_there, "it is not broken");
    assert_eq!(merged["result"], "merged", "{merged:#}");
    assert_eq!((rig.repo.read("README2.md"), rig.repo.status()), ("new\n".to_owned(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_that_is_held_for_ever_is_shown_fails_the_merge_and_is_left_alone() {
    let rig = Rig::configured("[git]\nlock_wait = \"2s\"\n").await;
    one_writer(&rig, "alpha", "README2.md");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let (lock, head) = (rig.repo.path().join(".git/index.lock"), rig.repo.head());
    // This process is the foreign program.
    let held = fs::File::create(&lock).expect("the lock can be made");
    let merging = post(&rig, &worker, "merge", json!({}));
    let seen = rig.worker_is(&task, "alpha", "the wait is seen", |worker| {
        let activity = worker["activity"].as_str().unwrap_or_default();
        let of_us = format!("(process {})", std::process::id());
        activity.starts_with("waiting for git lock")
            && activity.contains(&of_us)
            && activity.contains("s old")
    });
    let ((status, problem), _) = tokio::join!(merging, seen);
    assert_eq!(status, StatusCode::CONFLICT, "{problem:#}");
    let said = problem["title"].as_str().unwrap_or_default();
    assert!(said.contains("index.lock") && said.contains("it was left alone"), "{problem:#}");
    assert!(said.contains(&format!("(process {})", std::process::id())), "{problem:#}");
    assert!(lock.exists(), "nobody proved that its owner is dead");
    assert_eq!((rig.repo.head(), rig.repo.exists("README2.md")), (head, false));
    assert_eq!(rig.worker(&task, "alpha").await["activity"], "", "the wait is over");
    drop(held);
    fs::remove_file(&lock).expect("it is still there");
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_02_a_lock_of_the_shared_configuration_holds_nobody_up() {
    let rig = Rig::configured("[git]\nlock_wait = \"2s\"\n").await;
    let lock = rig.repo.path().join(".git/config.lock");
    fs::write(&lock, "").expect("the lock can be made");
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    assert!(lock.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_11_a_worktree_whose_owner_is_dead_is_taken_over_though_its_process_id_lives_again() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let locked = rig.repo.path().join(format!(".git/worktrees/{}/locked", id_of(&worker)));
    let reason = fs::read_to_string(&locked).expect("its worktree is locked against pruning");
    let field = |name: &str| {
        let rest = reason.split(name).nth(1).expect("the owner is named");
        rest.split_whitespace().next().expect("with a value").to_owned()
    };
    // This very process lives, but began at another time than the owner.
    let reused = reason.replace(&format!("pid={}", field("pid=")), &format!("pid={}", std::process::id()));
    let reused = reused.replace(&format!("start={}", field("start=")), "start=1");
    fs::write(&locked, reused).expect("the lock can be written");
    rig.model.agent(&prompt("alpha"), [call(write("later.txt", "later\n")), Reply::say("Went on.")]);
    post(&rig, &worker, "messages", json!({"text": "Go on."})).await;
    let again =
        rig.worker_is(&task, "alpha", "run 2 ended", |w| w["run"] == 2 && w["ended_at"].is_string()).await;
    assert_eq!(again["status"], "completed", "{again:#}");
    assert_eq!(rig.at(&again, "later.txt").as_deref(), Some("later\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_12_a_submodule_that_cannot_be_had_is_named_and_the_rest_works() {
    let rig = Rig::new().await;
    rig.repo.write(
        ".gitmodules",
        "[submodule \"private\"]\n\tpath = private\n\turl = https://192.0.2.1/private.git\n",
    );
    let commit = rig.repo.head();
    rig.repo.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},private")]);
    rig.repo.git(&["add", ".gitmodules"]);
    rig.repo.git(&["commit", "-qm", "a submodule"]);
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let notes = rig.events(&task, "error").await.iter().map(Value::to_string).collect::<String>();
    assert!(notes.contains("submodule private is empty"), "{notes}");
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!((&worker["files_changed"], rig.at(&worker, "new.txt").as_deref()), (&json!(1), Some("new\n")));
    let (status, discarded) = post(&rig, &worker, "discard", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{discarded:#}");
    assert!(!path_of(&worker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_14_paths_of_any_kind_work_from_submit_to_merge() {
    let model = integration_tests::ModelServer::start();
    let home = integration_tests::SwarmHome::new(&model);
    let root = "w \u{4e2d}' o\u{308}";
    let settings = format!("worktree.root = {}\n", json!(home.user_home().join(root)));
    let rig = Rig::made(model, home, TestRepo::new(), &settings).await;
    let decomposed = "e\u{301}";
    let odd = rig.repo.path().with_file_name(format!("we ird 'q\" \u{4e2d}\u{6587} {decomposed}"));
    rig.repo.git(&["clone", "-q", ".", &odd.to_string_lossy()]);
    // A file that git knows, whose name is no text.
    let raw = odd.join(OsStr::from_bytes(b"tracked-\xff.txt"));
    fs::write(&raw, "first\n").expect("the clone is there");
    let of_odd = |arguments: &[&str]| {
        let mut whole = vec!["-C", odd.to_str().expect("a path of ours")];
        whole.extend(["-c", "user.name=A. Person", "-c", "user.email=person@example.org"]);
        whole.extend(arguments);
        rig.repo.git(&whole)
    };
    of_odd(&["add", "-A"]);
    of_odd(&["commit", "-qm", "an odd name"]);
    let file = format!("a b/\u{4e2d} {decomposed} 'x\".txt");
    let broken = "line\nbreak.txt";
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(write(&file, "odd\n")),
            call(write(broken, "broken\n")),
            call(bash(
                "printf 'raw\\n' > $(printf 'raw\\377.bin'); echo second >> $(printf 'tracked-\\377.txt')",
            )),
            Reply::say("Written."),
        ],
    );
    let task = rig.submit_with(json!({"repo": odd, "permission_mode": "bypassPermissions"})).await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["files_changed"], 4, "{worker:#}");
    assert!(path_of(&worker).starts_with(rig.home.user_home().join(root)), "{worker:#}");
    let diff = rig.api().get(&format!("/workers/{}/diff", id_of(&worker))).await;
    assert!(diff["patch"].as_str().is_some_and(|patch| patch.contains("+second")), "{diff:#}");
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!(merged["result"], "merged", "{merged:#}");
    assert_eq!(fs::read_to_string(odd.join(&file)).ok().as_deref(), Some("odd\n"));
    assert_eq!(fs::read_to_string(odd.join(broken)).ok().as_deref(), Some("broken\n"));
    assert_eq!(fs::read_to_string(&raw).ok().as_deref(), Some("first\nsecond\n"));
    let found = fs::read_dir(&odd).expect("the clone is there").flatten();
    assert_eq!(found.filter(|entry| entry.file_name().to_string_lossy().starts_with("raw")).count(), 1);
    assert_eq!(rig.repo.worktrees().len(), 0, "and none of it in another repository");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_14_a_repository_whose_path_is_no_text_is_refused_by_its_name() {
    let rig = Rig::new().await;
    let odd = rig.home.user_home().join(OsStr::from_bytes(b"odd-\xff"));
    let plain = rig.home.user_home().join("plain");
    rig.repo.git(&["clone", "-q", ".", &plain.to_string_lossy()]);
    fs::rename(&plain, &odd).expect("both are ours");
    // Over the API such a path can only be meant by a link.
    std::os::unix::fs::symlink(&odd, &plain).expect("a link can be made");
    let problem = refused(&rig, &plain).await;
    assert_eq!(problem["code"], "not_utf8");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("odd-\u{fffd}")), "{problem:#}");
    assert!(!odd.join(".git/swarm").exists(), "nothing was made in it");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_15_a_dirty_checkout_is_told_and_left_alone() {
    let rig = Rig::new().await;
    rig.repo.write("README.md", "# Changed\n").write("draft.txt", "draft\n");
    let before = rig.repo.status();
    rig.coordinator(Reply::call("Agent", reporter("reader")));
    rig.model.agent(&prompt("reader"), [call(bash("cat README.md; ls")), Reply::say("Read.")]);
    let task = rig.submit().await;
    assert!(
        notices(&task).contains("2 changed files in your checkout are not part of it"),
        "{}",
        notices(&task)
    );
    assert!(notices(&task).contains(&rig.repo.head()[..7]), "{}", notices(&task));
    rig.done(&task).await;
    let last = rig.model.requests_of(&prompt("reader")).pop().expect("it asked");
    let (_, text, _) = last.tool_results().next().expect("a result");
    assert!(text.contains("# A project") && !text.contains("draft.txt"), "{text}");
    assert_eq!((rig.repo.status(), rig.repo.read("README.md")), (before, "# Changed\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_15_carried_changes_are_the_base_and_stay_the_persons_own() {
    let repo = TestRepo::with_files(&[("README.md", "# A project\n"), (".gitignore", "*.log\n")]);
    let rig = Rig::of(repo, "").await;
    rig.repo.write("README.md", "# Stashed\n");
    rig.repo.git(&["stash", "push", "-q"]);
    rig.repo.write("README.md", "# Staged\n").git(&["add", "README.md"]);
    rig.repo.write("README.md", "# Changed\n").write("draft.txt", "draft\n").write("debug.log", "ignored\n");
    let head = rig.repo.head();
    let state = || {
        let index = fs::read(rig.repo.path().join(".git/index")).expect("there is an index");
        (
            index,
            rig.repo.status(),
            rig.repo.git(&["stash", "list"]),
            rig.repo.read("README.md"),
            rig.repo.head(),
        )
    };
    let before = state();
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [call(bash("cat README.md; ls")), call(write("new.txt", "new\n")), Reply::say("Written.")],
    );
    let task = rig.submit_with(json!({"carry": true})).await;
    assert!(
        notices(&task).contains("2 changed files of your checkout are carried along"),
        "{}",
        notices(&task)
    );
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    assert_eq!(state(), before, "the person's checkout is as it was");
    let asked = rig.model.requests_of(&prompt("alpha"));
    let (_, text, _) = asked[1].tool_results().next().expect("a result");
    assert!(
        text.contains("# Changed") && text.contains("draft.txt") && !text.contains("debug.log"),
        "{text}"
    );
    let worker = rig.worker(&task, "alpha").await;
    let base = worker["base"].as_str().expect("a base");
    assert_eq!(
        (rig.repo.git(&["rev-parse", &format!("{base}^@")]), &worker["files_changed"]),
        (head, &json!(1))
    );
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], &merged["files"]), (&json!("merged"), &json!(1)), "{merged:#}");
    assert_eq!(rig.repo.git(&["log", "--format=%an", "main"]).lines().count(), 2, "no commit of the carried");
    assert_eq!((rig.repo.status(), rig.repo.read("README.md")), (before.1, before.3));
    assert_eq!((rig.repo.read("new.txt"), rig.repo.exists("draft.txt")), ("new\n".to_owned(), true));
    let swept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(swept["removed"].as_array().map(Vec::len), Some(1), "it is known to be merged: {swept:#}");

    // By the command line; what cannot be carried is refused.
    rig.model.agent("once more", [Reply::say("Nothing to do.")]);
    let run = async |more: &[&str]| {
        let arguments = [&["run", "--carry"], more].concat();
        rig.home.run(rig.repo.path(), &arguments).await
    };
    let said = run(&["once more"]).await.expect_code(0).stderr;
    assert!(said.contains("2 changed files of your checkout are carried along"), "{said}");
    run(&["--base", "HEAD", "once more"]).await.expect_code(2);
    let (status, problem) = rig.try_submit(json!({"carry": true, "base": "HEAD"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("cannot_carry")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_into_a_checkout_with_changes_of_its_own_moves_nothing_and_names_the_files() {
    let rig = Rig::of(TestRepo::with_files(&[("a.txt", "a\n"), ("b.txt", "b\n")]), "").await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(("Read", json!({"file_path": "a.txt"}))),
            call(write("a.txt", "by the worker\n")),
            Reply::say("Written."),
        ],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let head = rig.repo.head();
    rig.repo.write("a.txt", "by the person\n");
    let dirty = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!(
        (&dirty["result"], &dirty["files"]),
        (&json!("target_dirty"), &json!(["M a.txt"])),
        "{dirty:#}"
    );
    assert_eq!((rig.repo.head(), rig.repo.read("a.txt")), (head, "by the person\n".to_owned()));
    // A change elsewhere is nobody's business.
    rig.repo.git(&["checkout", "-q", "a.txt"]);
    rig.repo.write("b.txt", "by the person\n");
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    assert_eq!(
        (rig.repo.read("a.txt"), rig.repo.read("b.txt")),
        ("by the worker\n".to_owned(), "by the person\n".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn case_17_a_link_into_the_main_checkout_goes_and_what_it_leads_to_stays() {
    let rig = Rig::of(TestRepo::with_files(&[(".gitignore", "node_modules\n")]), "").await;
    rig.repo.write("node_modules/dep/index.js", "module.exports = 1\n");
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let link = path_of(&worker).join("node_modules");
    std::os::unix::fs::symlink(rig.repo.path().join("node_modules"), &link).expect("a link can be made");
    let (status, discarded) = post(&rig, &worker, "discard", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{discarded:#}");
    assert!(!path_of(&worker).exists());
    assert_eq!(rig.repo.read("node_modules/dep/index.js"), "module.exports = 1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_17_a_worker_is_told_of_links_into_the_main_checkout_and_its_end_takes_the_link_alone() {
    let repo = TestRepo::with_files(&[(".gitignore", "node_modules\n")]);
    repo.write("node_modules/dep/index.js", "module.exports = 1\n");
    let modules = repo.path().join("node_modules");
    let setup = format!("setup = {}\n", json!(format!("ln -s '{}' node_modules", modules.display())));
    let rig = Rig::of(repo, &setup).await;
    rig.coordinator(Reply::call("Agent", reporter("linked")));
    rig.model.agent(&prompt("linked"), [Reply::say("Looked.")]);
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let told = rig.model.requests_of(&prompt("linked"))[0].messages[0].text();
    assert!(told.contains(&format!("node_modules -> {}", modules.display())), "{told}");
    assert!(told.contains("may resolve to the files there instead of yours"), "{told}");
    assert!(rig.home.worktrees().is_empty(), "it changed nothing, so its worktree went");
    assert_eq!(rig.repo.read("node_modules/dep/index.js"), "module.exports = 1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_20_work_that_is_nowhere_else_is_kept_with_the_reason_and_comes_back_from_the_bin() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let path = path_of(&worker);
    fs::write(path.join("untracked.txt"), "untracked\n").expect("the worktree is there");
    fs::write(path.join("new.txt"), "edited later\n").expect("the worktree is there");
    let swept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(swept["removed"], json!([]), "{swept:#}");
    assert!(swept["kept"][0].as_str().is_some_and(|why| why.contains("not merged into main")), "{swept:#}");
    assert!(path.join("untracked.txt").exists());
    let forced = rig.api().post("/gc", &json!({"force": true})).await;
    assert_eq!(forced["removed"].as_array().map(Vec::len), Some(1), "{forced:#}");
    let short = id_of(&worker).trim_start_matches("agent-");
    assert!(
        forced["removed"][0].as_str().is_some_and(|line| line.ends_with(&format!("swarm restore {short}")))
    );
    assert!(!path.exists() && rig.repo.branches("swarm/**").is_empty());
    assert_eq!(rig.worker(&task, "alpha").await["discarded"], true);
    let (status, restored) = post(&rig, &worker, "restore", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{restored:#}");
    let back = rig.worker(&task, "alpha").await;
    assert_eq!(rig.at(&back, "new.txt").as_deref(), Some("new\n"));
    assert_eq!(fs::read_to_string(path.join("untracked.txt")).ok().as_deref(), Some("untracked\n"));
    assert_eq!(fs::read_to_string(path.join("new.txt")).ok().as_deref(), Some("edited later\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_20_a_rebase_in_progress_keeps_even_a_merged_worktree_and_force_prints_the_way_back() {
    let rig = Rig::new().await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(post(&rig, &worker, "merge", json!({})).await.1["result"], "merged");
    let path = path_of(&worker);
    let within = |arguments: &[&str]| {
        let mut whole = vec!["-C", path.to_str().expect("a path of ours")];
        whole.extend(arguments);
        rig.repo.try_git(&whole)
    };
    let stopped = within(&["rebase", "-q", "--exec", "false", "HEAD~1"]);
    assert!(!stopped.status.success(), "it stops at the command");
    let kept = rig.api().post("/gc", &json!({})).await;
    assert_eq!(kept["removed"], json!([]), "{kept:#}");
    let why = kept["kept"][0].as_str().unwrap_or_default();
    assert!(why.contains("a rebase is in progress") && !why.contains("not merged"), "{kept:#}");
    let (status, problem) = post(&rig, &worker, "discard", json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("kept")), "{problem:#}");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("a rebase is in progress")));
    let id = id_of(&worker);
    let said = rig.home.run(rig.repo.path(), &["discard", id]).await.expect_code(1).stderr;
    assert!(said.contains("a rebase is in progress") && said.contains("--force"), "{said}");
    let status = String::from_utf8_lossy(&within(&["status"]).stdout).into_owned();
    assert!(status.contains("rebase in progress"), "{status}");

    let taken = rig.home.run(rig.repo.path(), &["discard", id, "--force"]).await.expect_code(0).stdout;
    let command = taken.split("swarm ").nth(1).expect("the way back is printed").trim();
    assert!(!path.exists() && command.starts_with("restore "), "{taken}");
    let arguments: Vec<&str> = command.split(' ').collect();
    let back = rig.home.run(rig.repo.path(), &arguments).await.expect_code(0).stdout;
    assert!(back.contains("a rebase was in progress"), "{back}");
    assert_eq!(fs::read_to_string(path.join("new.txt")).ok().as_deref(), Some("new\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_21_exactly_the_ignored_files_that_are_named_come_along() {
    let repo = TestRepo::with_files(&[
        (".gitignore", ".env\ncache/\nsecret.txt\n"),
        (".worktreeinclude", ".env\nsecret.txt\n"),
    ]);
    repo.write(".env", "TOKEN=abc123\n")
        .write("secret.txt", "hidden\n")
        .write("cache/big.bin", vec![7_u8; 100_000]);
    fs::set_permissions(repo.path().join(".env"), fs::Permissions::from_mode(0o600))
        .expect("the file is ours");
    let rig = Rig::of(repo, "").await;
    rig.coordinator(Reply::call("Agent", reporter("reader")));
    rig.model.agent(
        &prompt("reader"),
        [
            call(bash("ls -A; stat -c '%a %n' .env; cat secret.txt; git status --short")),
            Reply::say("Looked."),
        ],
    );
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let requests = rig.model.requests_of(&prompt("reader"));
    let (_, text, _) = requests[1].tool_results().next().expect("a result");
    assert!(text.contains("600 .env") && text.contains("hidden") && !text.contains("cache"), "{text}");
    let told = requests[0].messages[0].text();
    assert!(told.contains(".env") && told.contains("secret.txt") && !told.contains("abc123"), "{told}");
    let journal = rig.journal(&task).await;
    assert!(journal.iter().all(|event| !event.to_string().contains("abc123")), "named, never shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_23_looking_at_the_dashboard_runs_no_git() {
    let (rig, log) = with_git_wrapped("echo \"$*\" >> \"$LOG\" 2>/dev/null").await;
    let names: Vec<String> = (0..4).map(|n| format!("w{n}")).collect();
    rig.coordinator(names.iter().fold(Reply::new(), |reply, name| reply.tool("Agent", agent(name))));
    for name in &names {
        rig.model.agent(&prompt(name), [call(write(&format!("{name}.txt"), "x\n")), Reply::say("Done.")]);
    }
    let task = rig.submit().await;
    rig.done(&task).await;
    assert_eq!(rig.home.worktrees().len(), 4);
    let lines = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    let before = lines();
    assert!(before > 0, "the wrapper is in use");
    for _ in 0..25 {
        for path in ["/overview", "/sessions", "/workers"] {
            rig.api().get(path).await;
        }
        rig.session(&task).await;
    }
    assert_eq!(lines(), before);
}

/// A rig whose every git runs these lines first; they know the real git as `$GIT`, and a file as `$LOG`.
async fn with_git_wrapped(lines: &str) -> (Rig, std::path::PathBuf) {
    let model = integration_tests::ModelServer::start();
    let mut home = integration_tests::SwarmHome::new(&model);
    let bin = home.user_home().join("bin");
    fs::create_dir(&bin).expect("the home is ours");
    let (log, git) = (home.user_home().join("git.log"), which("git"));
    let wrapper = format!(
        "#!/bin/sh\nLOG='{}'\nGIT='{}'\n{lines}\nexec \"$GIT\" \"$@\"\n",
        log.display(),
        git.display()
    );
    fs::write(bin.join("git"), wrapper).expect("the home is ours");
    fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).expect("the home is ours");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = [bin, integration_tests::bins::directory()].into_iter().chain(std::env::split_paths(&path));
    home.set("PATH", std::env::join_paths(paths).expect("no path holds a colon"));
    (Rig::made(model, home, TestRepo::new(), "").await, log)
}

/// Between swarm's last look at the target and its move, a person commits there: by a git that does it first.
#[tokio::test(flavor = "multi_thread")]
async fn case_57_a_target_that_moves_at_the_last_moment_is_not_overwritten() {
    // `$LOG` says `branch commit` once it is to happen.
    let race = r#"case "$*" in *"update-ref -m swarm: merge"*)
        if [ -f "$LOG" ]; then read branch commit < "$LOG"; rm "$LOG"
            "$GIT" update-ref "refs/heads/$branch" "$commit"; fi;; esac"#;
    let (rig, order) = with_git_wrapped(race).await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    rig.repo.branch("other");
    // Once a branch that nobody has checked out, once the one under the person's feet.
    for target in ["other", "main"] {
        let before = rig.repo.git(&["rev-parse", target]);
        let tree = format!("{target}^{{tree}}");
        let by_person = rig.repo.git(&["commit-tree", &tree, "-p", target, "-m", "by a person"]);
        fs::write(&order, format!("{target} {by_person}\n")).expect("the home is ours");
        let (status, view) = post(&rig, &worker, "merge", json!({"into": target})).await;
        assert_eq!((status, &view["result"]), (StatusCode::OK, &json!("target_moved")), "{view:#}");
        assert_eq!((&view["expected"], &view["actual"]), (&json!(before), &json!(by_person)), "{view:#}");
        assert!(!order.exists(), "it happened");
        assert_eq!(rig.repo.git(&["rev-parse", target]), by_person, "the person's commit stands");
        assert_eq!((rig.repo.status(), rig.repo.exists("new.txt")), (String::new(), false));
        assert!(rig.events(&task, "review.merged").await.is_empty());
    }
    let tree = rig.repo.git(&["commit-tree", "main^{tree}", "-p", "main", "-m", "once more"]);
    fs::write(&order, format!("main {tree}\n")).expect("the home is ours");
    let said = rig.home.run(rig.repo.path(), &["merge", id_of(&worker)]).await.expect_code(1).stderr;
    assert!(said.contains("target_moved") && said.contains("somebody moved it meanwhile"), "{said}");
    let merged = post(&rig, &worker, "merge", json!({})).await.1;
    assert_eq!((&merged["result"], rig.repo.exists("new.txt")), (&json!("merged"), true), "{merged:#}");
    assert_eq!(rig.repo.git(&["log", "--format=%s", "main"]).matches("by a person").count(), 1);
}

fn which(program: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(program));
    found.find(|path| path.is_file()).expect("git is installed")
}

#[tokio::test(flavor = "multi_thread")]
async fn another_workers_branch_can_be_the_base() {
    let rig = Rig::new().await;
    rig.model.agent(COORDINATE, [Reply::call("Agent", agent("first"))]);
    rig.model.on(|request| {
        let told = entries(request);
        let entry = told.first().filter(|_| request.agent_key.contains(COORDINATE) && told.len() == 1)?;
        let already = request.tool_uses().count() > 1;
        let branch = entry.outcome().split("branch=\"").nth(1)?.split('"').next()?;
        let mut second = agent("second");
        second["base"] = branch.into();
        (!already).then(|| Reply::call("Agent", second))
    });
    rig.model.rule(integration_tests::when().agent(COORDINATE), "Noted.");
    rig.model.agent(&prompt("first"), [call(write("one.txt", "one\n")), Reply::say("One.")]);
    rig.model.agent(&prompt("second"), [call(write("two.txt", "two\n")), Reply::say("Two.")]);
    let task = rig.submit().await;
    assert_eq!(rig.done(&task).await["verdict"], "complete");
    let second = rig.worker(&task, "second").await;
    assert_eq!(
        (rig.at(&second, "one.txt").as_deref(), rig.at(&second, "two.txt").as_deref()),
        (Some("one\n"), Some("two\n"))
    );
    assert_eq!((&second["files_changed"], &second["commits"]), (&json!(1), &json!(1)), "its own work alone");
    until(SOON, "an idle session", async || rig.session(&task).await["session"]["state"] == "idle").await;
}
