//! Review: every way a merge can come out, the recycle bin, snapshots, clean-up (cases 57 and 59).

use integration_tests::{Reply, TestRepo};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::assert_problem;
use crate::rig::{Rig, Task, agent, call, id_of, path_of, prompt, write};

/// Twenty numbered lines: room for a change in the middle.
fn numbered(change: Option<(usize, &str)>) -> String {
    let line = |n: usize| match change {
        Some((at, text)) if at == n => format!("{text}\n"),
        _ => format!("line {n}\n"),
    };
    (1..=20).map(line).collect()
}

/// A repository whose `shared.txt` workers can fall out about, and a finished worker for each of these files.
async fn finished(files: &[(&str, &str, &str)]) -> (Rig, Task) {
    let repo = TestRepo::with_files(&[("shared.txt", &numbered(None)), ("README.md", "# A project\n")]);
    let rig = Rig::of(repo, "").await;
    let spawn = files.iter().fold(Reply::new(), |reply, (name, ..)| reply.tool("Agent", agent(name)));
    rig.coordinator(spawn);
    for (name, path, content) in files {
        let read = Reply::call("Read", json!({"file_path": path}));
        let replies = [read, call(write_to(path, content)), Reply::say(format!("Changed {path}."))];
        rig.model.agent(&prompt(name), replies);
    }
    let task = rig.submit().await;
    let view = rig.done(&task).await;
    assert_eq!(view["verdict"], "complete", "{view:#}");
    (rig, task)
}

fn write_to(path: &str, content: &str) -> (&'static str, Value) {
    write(path, content)
}

async fn merge(rig: &Rig, task: &Task, name: &str, body: Value) -> (StatusCode, Value) {
    let worker = rig.worker(task, name).await;
    rig.api().try_post(&format!("/workers/{}/merge", id_of(&worker)), &body).await
}

async fn merged(rig: &Rig, task: &Task, name: &str, body: Value) -> Value {
    let (status, view) = merge(rig, task, name, body).await;
    assert_eq!(status, StatusCode::OK, "{view:#}");
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn case_57_a_merge_moves_the_target_or_says_why_not() {
    let (rig, task) = finished(&[
        ("alpha", "shared.txt", &numbered(Some((10, "alpha was here")))),
        ("beta", "shared.txt", &numbered(Some((10, "beta was here")))),
        ("gamma", "gamma.txt", "gamma\n"),
        ("delta", "delta.txt", "delta\n"),
    ])
    .await;
    let base = rig.repo.head();

    let view = merged(&rig, &task, "alpha", json!({})).await;
    assert_eq!(
        (&view["result"], &view["into"], &view["from"]),
        (&json!("merged"), &json!("main"), &json!(base))
    );
    assert_eq!((&view["files"], &view["insertions"], &view["deletions"]), (&json!(1), &json!(1), &json!(1)));
    // The user's checkout of the target went along.
    assert_eq!(view["to"], rig.repo.head());
    assert_eq!(
        (rig.repo.status(), rig.repo.read("shared.txt")),
        (String::new(), numbered(Some((10, "alpha was here"))))
    );
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!(worker["merged_into"], "main");
    assert_eq!(
        merged(&rig, &task, "alpha", json!({})).await,
        json!({"result": "already_merged", "into": "main"})
    );

    // Both changed line 10: nothing moves, and the lines are named.
    let head = rig.repo.head();
    let conflict = merged(&rig, &task, "beta", json!({})).await;
    assert_eq!((&conflict["result"], &conflict["at"]), (&json!("conflict"), &json!(head)), "{conflict:#}");
    assert_eq!(conflict["files"], json!([{"path": "shared.txt", "lines": ["10-10"]}]));
    assert_eq!((rig.repo.head(), rig.repo.status()), (head.clone(), String::new()));
    // A conflict wakes no worker.
    assert_eq!(rig.worker(&task, "beta").await["run"], 1);

    // The user's own file stands where the merge wants to write: a refusal, no conflict, nothing is stashed.
    rig.repo.write("gamma.txt", "the user's own\n");
    let dirty = merged(&rig, &task, "gamma", json!({})).await;
    assert_eq!(dirty["result"], "target_dirty", "{dirty:#}");
    assert_eq!(dirty["checkout"], rig.repo.path().to_str().expect("a path of text"));
    assert!(dirty["files"].to_string().contains("gamma.txt"), "{dirty:#}");
    assert_eq!((rig.repo.head(), rig.repo.read("gamma.txt")), (head.clone(), "the user's own\n".to_owned()));
    assert_eq!(rig.repo.git(&["stash", "list"]), "");

    // Other changes of the user are no obstacle, and stay.
    rig.repo.write("README.md", "# My project\n");
    let view = merged(&rig, &task, "delta", json!({})).await;
    assert_eq!(view["result"], "merged", "{view:#}");
    assert_eq!(
        (rig.repo.read("README.md"), rig.repo.read("delta.txt")),
        ("# My project\n".to_owned(), "delta\n".to_owned())
    );

    // The target has moved on since the worker began: a merge commit.
    std::fs::remove_file(rig.repo.path().join("gamma.txt")).expect("the file is there");
    rig.repo.write("later.txt", "later\n").commit("later");
    let later = rig.repo.head();
    let view = merged(&rig, &task, "gamma", json!({})).await;
    assert_eq!((&view["result"], &view["from"]), (&json!("merged"), &json!(later)), "{view:#}");
    let parents = rig.repo.git(&["rev-list", "--parents", "-1", "main"]);
    assert_eq!(parents.split(' ').count(), 3, "{parents}");
    assert_eq!(rig.repo.status(), "");
    rig.repo.git(&["fsck", "--strict"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_head_has_no_target_until_one_is_named() {
    let rig = Rig::new().await;
    rig.repo.branch("landing").git(&["checkout", "--quiet", "--detach"]);
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.")]);
    let task = rig.submit().await;
    rig.done(&task).await;
    assert_eq!(rig.session(&task).await["session"]["target_branch"], Value::Null);
    let refused = merge(&rig, &task, "alpha", json!({})).await;
    let problem = assert_problem(refused, StatusCode::UNPROCESSABLE_ENTITY, "no_target");
    assert!(problem["title"].as_str().is_some_and(|title| title.contains("--into")), "{problem:#}");
    let bad = merge(&rig, &task, "alpha", json!({"into": "a..b"})).await;
    assert_problem(bad, StatusCode::UNPROCESSABLE_ENTITY, "bad_name");
    let (status, nowhere) = merge(&rig, &task, "alpha", json!({"into": "nowhere"})).await;
    assert!(status.is_client_error(), "{status} {nowhere:#}");
    assert_eq!(rig.repo.branches("nowhere"), [] as [&str; 0]);
    let view = merged(&rig, &task, "alpha", json!({"into": "landing"})).await;
    assert_eq!((&view["result"], &view["into"]), (&json!("merged"), &json!("landing")));
    assert_eq!(rig.repo.read_at("landing", "a.txt").as_deref(), Some("a\n"));
    // The user's detached HEAD is where it was.
    assert_eq!(rig.repo.head(), rig.repo.git(&["rev-parse", "main"]));
    assert!(!rig.repo.exists("a.txt"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_branch_comes_back_whole() {
    let (rig, task) = finished(&[("alpha", "alpha.txt", "alpha\n")]).await;
    let worker = rig.worker(&task, "alpha").await;
    let (id, branch) = (id_of(&worker).to_owned(), worker["branch"].as_str().expect("a branch").to_owned());
    let tip = rig.repo.git(&["rev-parse", &branch]);
    // What was never committed is worth keeping too.
    std::fs::write(path_of(&worker).join("untracked.txt"), "mine\n").expect("the worktree is there");

    let post = async |what: &str| rig.api().try_post(&format!("/workers/{id}/{what}"), &json!({})).await;
    assert_problem(post("restore").await, StatusCode::CONFLICT, "not_discarded");
    let (status, discarded) = post("discard").await;
    assert_eq!((status, &discarded["days"]), (StatusCode::OK, &json!(30)), "{discarded:#}");
    let kept = discarded["kept_ref"].as_str().expect("a ref keeps it");
    rig.repo.git(&["rev-parse", "--verify", kept]);
    assert_eq!(rig.repo.branches("swarm"), [] as [&str; 0]);
    assert_eq!((rig.home.worktrees().len(), rig.repo.worktrees().len()), (0, 0));
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!((&worker["discarded"], &worker["branch"]), (&json!(true), &Value::Null));
    for what in ["discard", "merge"] {
        assert_problem(post(what).await, StatusCode::CONFLICT, "discarded");
    }
    assert_problem(
        rig.api().try_get(&format!("/workers/{id}/diff")).await,
        StatusCode::CONFLICT,
        "discarded",
    );

    let (status, back) = post("restore").await;
    assert_eq!(status, StatusCode::OK, "{back:#}");
    assert!(back["message"].as_str().is_some_and(|message| message.contains(&branch)), "{back:#}");
    assert_eq!(rig.repo.git(&["rev-parse", &branch]), tip);
    let worker = rig.worker(&task, "alpha").await;
    assert_eq!((&worker["discarded"], &worker["branch"]), (&json!(false), &json!(branch)));
    let untracked = std::fs::read_to_string(path_of(&worker).join("untracked.txt"));
    assert_eq!(untracked.expect("the untracked file came back"), "mine\n");
    assert_eq!(merged(&rig, &task, "alpha", json!({})).await["result"], "merged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worktree_goes_back_to_a_snapshot_and_forth_again() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::call("Agent", agent("alpha")));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(write("a.txt", "first\n")),
            call(write("a.txt", "second\n")).hold("snapshot"),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    // A snapshot is made beside the next request; here it is waited for.
    rig.worker_is(&task, "alpha", "its first snapshot", |worker| worker["snapshots"].as_u64() > Some(0))
        .await;
    rig.model.gate("snapshot").open();
    rig.done(&task).await;
    let worker = rig.worker(&task, "alpha").await;
    let id = id_of(&worker);
    let snapshots = rig.api().get(&format!("/workers/{id}/snapshots")).await;
    let snapshots = snapshots.as_array().expect("a list");
    let content = |commit: &Value| rig.repo.read_at(commit.as_str().expect("a commit"), "a.txt");
    let first = snapshots.iter().find(|snapshot| content(&snapshot["commit"]).as_deref() == Some("first\n"));
    let first = first.expect("a snapshot of the first state");
    let number = &first["n"];
    let at = || std::fs::read_to_string(path_of(&worker).join("a.txt")).expect("the file is there");
    let restore = format!("/workers/{id}/restore");
    assert_eq!(at(), "second\n");
    let back = rig.api().post(&restore, &json!({"snapshot": number})).await;
    assert_eq!(at(), "first\n");
    let kept = &back["kept_as"];
    assert!(kept.as_u64() > number.as_u64(), "{back:#}");
    rig.api().post(&restore, &json!({"snapshot": kept})).await;
    assert_eq!(at(), "second\n");
    let (status, unknown) = rig.api().try_post(&restore, &json!({"snapshot": 4711})).await;
    assert!(status.is_client_error(), "{status} {unknown:#}");
    assert_eq!(at(), "second\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_59_clean_up_takes_what_is_proven_merged_and_nothing_else() {
    let (rig, task) = finished(&[
        ("alpha", "alpha.txt", "alpha\n"),
        ("beta", "beta.txt", "beta\n"),
        ("gamma", "gamma.txt", "gamma\n"),
    ])
    .await;
    assert_eq!(merged(&rig, &task, "alpha", json!({})).await["result"], "merged");
    // A squash has other ids; that its tree is in the target is what proves it.
    let squashed = merged(&rig, &task, "beta", json!({"strategy": "squash"})).await;
    assert_eq!(squashed["result"], "merged", "{squashed:#}");
    let short = async |name: &str| {
        let worker = rig.worker(&task, name).await;
        id_of(&worker).trim_start_matches("agent-").to_owned()
    };
    let (alpha, beta, gamma) = (short("alpha").await, short("beta").await, short("gamma").await);
    let lines = |view: &Value, key: &str| -> Vec<String> {
        let lines = view[key].as_array().expect("lines").iter();
        lines.map(|line| line.as_str().expect("text").to_owned()).collect()
    };
    let dry = rig.api().post("/gc", &json!({"dry_run": true})).await;
    assert_eq!(lines(&dry, "removed").len(), 2, "{dry:#}");
    assert_eq!(rig.home.worktrees().len(), 3);

    let view = rig.api().post("/gc", &json!({})).await;
    let removed = lines(&view, "removed");
    assert!(removed.iter().any(|line| line.starts_with(&alpha)), "{view:#}");
    assert!(removed.iter().any(|line| line.starts_with(&beta)), "{view:#}");
    let kept = lines(&view, "kept");
    assert!(kept.iter().any(|line| line.starts_with(&gamma) && line.contains("swarm merge")), "{view:#}");
    assert!(view["freed_bytes"].as_u64() > Some(0), "{view:#}");
    let worker = rig.worker(&task, "gamma").await;
    assert_eq!(rig.home.worktrees(), [path_of(&worker)]);
    assert_eq!(rig.at(&worker, "gamma.txt").as_deref(), Some("gamma\n"));

    // Forced, it goes into the bin, from where it comes back.
    rig.api().post("/gc", &json!({"force": true})).await;
    assert_eq!(rig.home.worktrees().len(), 0);
    assert_eq!(rig.repo.branches("swarm"), [] as [&str; 0]);
    rig.api().post(&format!("/workers/{}/restore", id_of(&worker)), &json!({})).await;
    assert_eq!(rig.at(&rig.worker(&task, "gamma").await, "gamma.txt").as_deref(), Some("gamma\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_under_way_is_not_merged_discarded_or_cleaned_away() {
    let rig = Rig::new().await;
    rig.coordinator(Reply::new().tool("Agent", agent("alpha")).tool("Agent", crate::rig::reporter("beta")));
    rig.model.agent(&prompt("alpha"), [call(write("a.txt", "a\n")), Reply::say("Done.").gate("the end")]);
    rig.model.agent(&prompt("beta"), [Reply::say("All is well.")]);
    let task = rig.submit().await;
    rig.model.gate("the end").reached().await;
    let worker = rig.worker(&task, "alpha").await;
    for what in ["merge", "discard", "restore"] {
        let answer = rig.api().try_post(&format!("/workers/{}/{what}", id_of(&worker)), &json!({})).await;
        assert_problem(answer, StatusCode::CONFLICT, "at_work");
    }
    let view = rig.api().post("/gc", &json!({"force": true})).await;
    assert!(view["kept"].to_string().contains("at work"), "{view:#}");
    assert!(path_of(&worker).join("a.txt").exists());
    let diff = rig.api().get(&format!("/workers/{}/diff", id_of(&worker))).await;
    assert!(diff["uncommitted"].to_string().contains("a.txt"), "{diff:#}");
    rig.model.gate("the end").open();
    rig.done(&task).await;
    let reporter = rig.worker(&task, "beta").await;
    for what in ["merge", "discard"] {
        let answer = rig.api().try_post(&format!("/workers/{}/{what}", id_of(&reporter)), &json!({})).await;
        assert_problem(answer, StatusCode::CONFLICT, "no_branch");
    }
    let diff = rig.api().get(&format!("/workers/{}/diff", id_of(&worker))).await;
    assert_eq!((&diff["commits"], &diff["uncommitted"]), (&json!(1), &json!([])));
    assert!(diff["patch"].as_str().is_some_and(|patch| patch.contains("+a\n")), "{diff:#}");
    let stat = rig.api().get(&format!("/workers/{}/diff?stat=true", id_of(&worker))).await;
    assert_eq!((&stat["patch"], &stat["files"][0]["path"]), (&json!(""), &json!("a.txt")));
}
