//! What a worker's worktree is called and what is in it.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
};

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, when};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{one_writer, post};
use crate::rig::{Rig, agent, bash, call, entries, files_below, id_of, path_of, prompt, reporter, write};

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
    rig.model.rule(when().agent("once more"), "Noted.");
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
    let model = ModelServer::start();
    let home = SwarmHome::new(&model);
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
        let person = ["-c", "user.name=A. Person", "-c", "user.email=person@example.org"];
        rig.repo.git_in(&odd, &[&person, arguments].concat())
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
async fn worktrees_below_the_home_are_named_by_its_sign_and_files_of_a_run_are_nobody_elses() {
    let rig = Rig::configured("worktree.root = \"~/trees\"\n").await;
    one_writer(&rig, "alpha", "new.txt");
    let task = rig.submit().await;
    rig.done(&task).await;
    let place = path_of(&rig.worker(&task, "alpha").await);
    assert!(place.starts_with(rig.home.user_home().join("trees")), "{}", place.display());
    for file in files_below(&rig.home.path()) {
        // A person's own file is as they made it; who may connect to a socket is its directory's to say.
        let metadata = fs::symlink_metadata(&file).expect("it is there");
        let mode = metadata.permissions().mode();
        let is_ours = metadata.is_file() && !file.ends_with("config.toml");
        assert!(!is_ours || mode & 0o077 == 0, "{}: {mode:o}", file.display());
    }
}
