//! What a repository's own files run or widen counts only after a person agreed to exactly that (case 54).

use integration_tests::Reply;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::assert_problem;
use crate::rig::{Rig, Task, bash, call, prompt, reporter, write};

const SETTINGS: &str = r#"{
  "permissions": {"allow": ["Write"]},
  "env": {"PROJECT_FLAVOUR": "from-the-repository"}
}"#;

fn wanting(setup: &str, rig: &Rig) {
    rig.repo.write("swarm.toml", format!("setup = [\"{setup}\"]\n")).write(".claude/settings.json", SETTINGS);
    rig.repo.commit("what the repository wants");
}

/// What a worker found: what set-up made, the environment, and whether it could write, which only a rule allows
/// where nobody is there to be asked.
struct Found {
    said: String,
    wrote: bool,
}

async fn look_around(rig: &Rig, name: &str) -> (Task, Found) {
    rig.model.clear_rules();
    rig.coordinator(Reply::call("Agent", reporter(name)));
    rig.model.agent(
        &prompt(name),
        [
            call(bash("cat made-by-setup.txt; echo flavour=$PROJECT_FLAVOUR.")),
            call(write("written.txt", "x\n")),
            Reply::say("That is all."),
        ],
    );
    let task = rig.submit_with(json!({"unattended": true, "permission_mode": "default"})).await;
    rig.done(&task).await;
    let told = rig.model.wait_for_request(&prompt(name), 2).await;
    let results: Vec<(&str, &str, bool)> = told.tool_results().collect();
    let found = Found { said: results[0].1.to_owned(), wrote: !results[1].2 };
    (task, found)
}

fn notices(task: &Task) -> Vec<String> {
    let notices = task.accepted["notices"].as_array().expect("notices are a list");
    let notices = notices.iter().filter_map(Value::as_str);
    notices.filter(|notice| notice.starts_with("not trusted")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn case_54_trust_is_bound_to_the_content_and_until_then_nothing_of_it_counts() {
    let rig = Rig::new().await;
    wanting("echo one > made-by-setup.txt", &rig);
    let repo = rig.repo.path();
    let show = async || rig.api().get(&format!("/trust?repo={}", repo.display())).await;

    let wants = show().await;
    assert_eq!(wants["trusted"], false);
    let lines: Vec<&str> =
        wants["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    for part in ["setup", "echo one > made-by-setup.txt", "allow Write", "PROJECT_FLAVOUR"] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part} is not shown: {lines:#?}");
    }

    // Untrusted: ignored, and said.
    let (task, found) = look_around(&rig, "alpha").await;
    assert_eq!(notices(&task).len(), lines.len(), "{:#?}", task.accepted);
    assert!(!found.said.contains("one") && found.said.contains("flavour=."), "{}", found.said);
    assert!(!found.wrote);

    // Agreement needs the hash that was shown.
    let agree = |hash: &Value| json!({"repo": repo, "hash": hash});
    let wrong = rig.api().try_post("/trust", &agree(&json!("0".repeat(64)))).await;
    assert_problem(wrong, StatusCode::CONFLICT, "trust_changed");
    let agreed = rig.api().post("/trust", &agree(&wants["hash"])).await;
    assert_eq!(agreed["trusted"], true);

    let (task, found) = look_around(&rig, "beta").await;
    assert_eq!(notices(&task), [] as [String; 0]);
    assert!(
        found.said.contains("one") && found.said.contains("flavour=from-the-repository."),
        "{}",
        found.said
    );
    assert!(found.wrote);

    // Other content asks again, and shows what is other.
    wanting("echo two > made-by-setup.txt", &rig);
    let changed = show().await;
    assert_eq!(changed["trusted"], false);
    let difference = changed["difference"].to_string();
    assert!(difference.contains("- ") && difference.contains("echo one"), "{difference}");
    assert!(difference.contains("+ ") && difference.contains("echo two"), "{difference}");
    let stale = rig.api().try_post("/trust", &agree(&wants["hash"])).await;
    assert_problem(stale, StatusCode::CONFLICT, "trust_changed");
    let (task, found) = look_around(&rig, "gamma").await;
    assert_eq!(notices(&task).len(), lines.len());
    assert!(!found.said.contains("two") && found.said.contains("flavour=."), "{}", found.said);
    assert!(!found.wrote);
    rig.api().post("/trust", &agree(&changed["hash"])).await;
    let (_, found) = look_around(&rig, "delta").await;
    assert!(found.said.contains("two") && found.wrote, "{}", found.said);
}
