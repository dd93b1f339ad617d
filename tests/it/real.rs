//! Real input: a repository of more than a thousand files that nobody here wrote, eight workers at once, and
//! everything that can happen to them in one run. At the end nothing is left that should not be.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, model_server::RecordedRequest};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, Task, agent, entries, id_of, prompt, spawned};

const NAMES: [&str; 8] = ["ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"];
/// Killed in the middle, and started again.
const KILLED: &str = "ada";
/// Continued by the coordinator after its end.
const CONTINUED: &str = "bob";
/// These two change the same line.
const RIVALS: [&str; 2] = ["cyd", "dan"];
/// Asks for a permission.
const ASKING: &str = "eve";

const FEWEST_FILES: usize = 1_000;
const MOST_FILES: usize = 1_500;
const LARGEST_FILE: u64 = 128 * 1024;

/// Copies what is no git directory and not too large; returns how many files.
fn copy(from: &Path, to: &Path) -> usize {
    let mut n_files = 0;
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
        let target = to.join(&name);
        if kind.is_dir() && name != ".git" {
            n_files += copy(&entry.path(), &target);
        } else if kind.is_file() && entry.metadata().is_ok_and(|file| file.len() <= LARGEST_FILE) {
            fs::create_dir_all(to).expect("the repository is ours");
            fs::write(&target, fs::read(entry.path()).expect("a readable file"))
                .expect("the repository is ours");
            n_files += 1;
        }
    }
    n_files
}

/// Directories of published crates that this machine has.
fn crates() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let registries =
        fs::read_dir(home.unwrap_or_default().join("registry/src")).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = registries
        .flat_map(|registry| fs::read_dir(registry.path()).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.join("src").is_dir())
        .collect();
    found.sort();
    found
}

/// Published crates, unpacked and committed; generated files where cargo keeps none.
fn repository() -> TestRepo {
    let repo = TestRepo::new();
    let mut n_files = 0;
    for directory in crates() {
        if n_files >= FEWEST_FILES {
            break;
        }
        let name = directory.file_name().expect("a directory has a name");
        n_files += copy(&directory, &repo.path().join("crates").join(name));
    }
    for n in n_files..FEWEST_FILES {
        let text: String = (1..60).map(|line| format!("line {line} of file {n}\n")).collect();
        repo.write(&format!("generated/{}/{n}.txt", n % 40), text);
    }
    assert!(n_files < 4 * MOST_FILES, "one crate holds too much: {n_files} files");
    repo.git(&["add", "--all", "--force"]);
    repo.git(&["commit", "--quiet", "--message", "what others wrote"]);
    repo
}

/// A file and a line in it that stands there once, in the middle.
#[derive(Clone, Debug)]
struct Spot {
    path: String,
    line: String,
}

/// Places to edit, each in a file of its own.
fn spots(repo: &TestRepo, n: usize) -> Vec<Spot> {
    let mut found = Vec::new();
    for path in repo.git(&["-c", "core.quotePath=false", "ls-files"]).lines() {
        let Ok(text) = fs::read_to_string(repo.path().join(path)) else { continue };
        // What fills half a window is summarised, which is another test's matter.
        if text.contains('\r') || text.lines().count() < 30 || text.len() > 24 * 1024 {
            continue;
        }
        let middle = text.lines().nth(20).expect("it has thirty lines");
        if middle.trim().len() > 12 && text.matches(middle).count() == 1 {
            found.push(Spot { path: path.to_owned(), line: middle.to_owned() });
        }
    }
    // Spread over the whole tree.
    let step = found.len() / n;
    assert!(step > 0, "too few places to edit: {}", found.len());
    found.into_iter().step_by(step).take(n).collect()
}

fn edited(spot: &Spot, by: &str) -> String {
    format!("{} edited-by-{by}", spot.line)
}

/// The calls of an edit: read, then change.
fn edit(spot: &Spot, by: &str) -> [Reply; 2] {
    let change = json!({"file_path": spot.path, "old_string": spot.line, "new_string": edited(spot, by)});
    [Reply::call("Read", json!({"file_path": spot.path})), Reply::call("Edit", change)]
}

/// The coordinator: starts all eight at once; continues one when its report came; else has nothing to add.
fn coordinator(request: &RecordedRequest) -> Option<Reply> {
    if !request.agent_key.contains(COORDINATE) {
        return None;
    }
    if request.turn() == 0 {
        let start = Reply::new().text("Eight parts, eight workers.");
        return Some(NAMES.iter().fold(start, |reply, name| reply.tool("Agent", agent(name))));
    }
    let place = NAMES.iter().position(|name| *name == CONTINUED).expect("it is one of them");
    let id = spawned(request).get(place).and_then(|answer| answer["task_id"].as_str().map(str::to_owned))?;
    let was_asked = request.tool_uses().any(|(_, name, _)| name == "SendMessage");
    if !was_asked && entries(request).iter().any(|entry| entry.task_id == id) {
        let message = json!({"to": id, "message": "one more line", "summary": "one more line"});
        return Some(Reply::call("SendMessage", message));
    }
    Some(Reply::say("Noted."))
}

fn script(model: &ModelServer, spots: &[Spot]) {
    model.on(coordinator);
    for (name, spot) in NAMES.iter().zip(spots) {
        // All eight are in their first turn before any goes on.
        let look = Reply::call("Glob", json!({"pattern": "**/*.rs"})).hold("all at work");
        let [read, change] = edit(spot, name);
        let mut replies = vec![look, read, change];
        match *name {
            KILLED => replies.extend([
                Reply::say("never said").hold("killed"),
                Reply::say("I was interrupted; my edit stands."),
            ]),
            CONTINUED => replies.extend([
                Reply::say("First part done."),
                Reply::call("Write", json!({"file_path": "notes/bob.txt", "content": "one more line\n"})),
                Reply::say("And one more line."),
            ]),
            ASKING => replies.extend([
                Reply::call("Bash", json!({"command": "touch approved.txt"})),
                Reply::say("Approved and done."),
            ]),
            _ => replies.push(Reply::say("Done.")),
        }
        model.agent(&prompt(name), replies);
    }
}

async fn merge(rig: &Rig, task: &Task, name: &str) -> Value {
    let worker = rig.worker(task, name).await;
    let (status, view) = rig.api().try_post(&format!("/workers/{}/merge", id_of(&worker)), &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{name}: {view:#}");
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_workers_in_a_repository_of_a_thousand_files() {
    // A repository, and places in it to edit; the rivals share one.
    let repo = repository();
    let n_files = repo.git(&["ls-files"]).lines().count();
    assert!(n_files >= FEWEST_FILES, "{n_files} files");
    let mut places = spots(&repo, NAMES.len());
    places[3] = places[2].clone();
    let place = |name: &str| &places[NAMES.iter().position(|known| *known == name).expect("a name")];
    let model = ModelServer::start();
    script(&model, &places);
    let mut home = SwarmHome::new(&model);
    let temp = home.user_home().join("temp");
    fs::create_dir_all(home.user_home().join(".claude")).expect("the home is ours");
    fs::create_dir(&temp).expect("the home is ours");
    home.set("TMPDIR", &temp);
    let ask = json!({"permissions": {"ask": ["Bash(touch approved.txt)"]}});
    fs::write(home.user_home().join(".claude/settings.json"), ask.to_string()).expect("the home is ours");
    let base = repo.head();
    let rig = Rig::made(model, home, repo, "max_workers = 8\n").await;

    // Eight at once.
    let task = rig.submit().await;
    let all = rig.model.gate("all at work");
    all.reached_by(NAMES.len()).await;
    assert_eq!(rig.home.worktrees().len(), NAMES.len());
    all.open();

    // One dies in the middle: restarted once, and said so.
    rig.model.gate("killed").reached().await;
    let killed = rig.kill_worker(&rig.worker(&task, KILLED).await).await;
    // One waits for a permission, which is answered here.
    let asked = rig.permission_request(&task).await;
    assert_eq!(asked["worker_name"], ASKING);
    assert_eq!(rig.answer(&asked, &json!({"decision": "allow"})).await["won"], true);
    rig.model.gate("killed").open();

    let view = rig.done(&task).await;
    assert!(!killed.is_alive());
    let ada = rig.worker(&task, KILLED).await;
    assert_eq!((&ada["status"], &ada["restarts"]), (&json!("completed"), &json!(1)), "{ada:#}");
    assert!(
        rig.last_request().messages.iter().any(|message| message.text().contains("restart")),
        "it is said"
    );
    let bob = rig.worker(&task, CONTINUED).await;
    assert_eq!((&bob["status"], &bob["run"]), (&json!("completed"), &json!(2)), "{bob:#}");
    for name in NAMES {
        let worker = rig.worker(&task, name).await;
        assert_eq!(worker["status"], "completed", "{view:#}");
        let text = rig.at(&worker, &place(name).path).expect("its file is there");
        assert!(text.contains(&edited(place(name), name)), "{name} did not edit {}", place(name).path);
    }
    assert_eq!(rig.at(&rig.worker(&task, ASKING).await, "approved.txt").as_deref(), Some(""));
    assert_eq!(rig.repo.head(), base);

    // Merged one after another; of the rivals the second conflicts, and the target stays.
    for name in NAMES {
        let before = rig.repo.head();
        let merged = merge(&rig, &task, name).await;
        if name == RIVALS[1] {
            assert_eq!(merged["result"], "conflict", "{merged:#}");
            assert_eq!(merged["files"][0], json!({"path": place(name).path, "lines": ["21-21"]}));
            assert_eq!(rig.repo.head(), before);
        } else {
            assert_eq!(merged["result"], "merged", "{name}: {merged:#}");
            assert_eq!(merged["to"], rig.repo.head());
        }
    }
    assert_eq!(rig.repo.status(), "");
    let text = |name: &str| rig.repo.read(&place(name).path);
    for name in NAMES {
        assert_eq!(text(name).contains(&edited(place(name), name)), name != RIVALS[1], "{name}");
    }
    assert_eq!(rig.repo.read("notes/bob.txt"), "one more line\n");

    // Cleaned up: what is merged by proof, the rest by a person's word.
    rig.api().post("/gc", &json!({})).await;
    let loser = rig.worker(&task, RIVALS[1]).await;
    assert_eq!(rig.home.worktrees().len(), 1);
    rig.api().post(&format!("/workers/{}/discard", id_of(&loser)), &json!({})).await;
    rig.home.stop().await.expect_code(0);
    rig.home.assert_no_processes().await;

    assert_eq!(rig.home.leftovers(), [] as [String; 0]);
    assert_eq!(rig.repo.branches("*"), ["main"]);
    assert_eq!(rig.repo.branches("swarm"), [] as [&str; 0]);
    assert_eq!(rig.repo.worktrees(), [] as [PathBuf; 0]);
    assert_eq!(rig.repo.git(&["worktree", "prune", "--dry-run", "--verbose"]), "");
    let fsck = rig.repo.git(&["fsck", "--full"]);
    assert!(fsck.lines().all(|line| line.starts_with("dangling ")), "{fsck}");
    assert_eq!(names_in(&temp), BTreeSet::new(), "temporary files");
    assert_eq!(names_in(&rig.home.path().join("tmp")), BTreeSet::new(), "temporary files of workers");
    // The file that registrations are serialised by stays; git's locks go with the command.
    let leftover =
        |name: &String| name.ends_with(".lock") && name != "registration.lock" || name.starts_with("tmp_");
    let in_git: Vec<String> =
        names_below(&rig.repo.path().join(".git")).into_iter().filter(leftover).collect();
    assert_eq!(in_git, [] as [String; 0]);
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Names of all files below a directory.
fn names_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(names_below(&entry.path()));
        } else {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}
