//! Search: what an agent may find of the others in its session. Through the built worker.

use std::fs;

use integration_tests::{Reply, TestRepo, when};
use serde_json::{Value, json};

use crate::rig::{COORDINATE, Rig, agent, bash, call, id_of, prompt, write};

/// As a provider that keeps no definition back is given it.
fn search(input: Value) -> Reply {
    call(("CallTool", json!({"name": "Search", "input": input})))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_finds_what_another_said_called_got_and_changed_and_nothing_that_rules_hide() {
    // What rules name is hidden from commands too; a place that begins while one runs gets past that.
    let plant = "mkdir secret\necho 'needle in secret' >secret/k.txt\n";
    let rig = Rig::of(TestRepo::with_files(&[("a.txt", "alpha\n"), ("plant.sh", plant)]), "").await;
    let settings = rig.home.user_home().join(".claude");
    fs::create_dir_all(&settings).expect("the home is ours");
    let deny = json!({"permissions": {"deny": ["Read(secret/**)"]}});
    fs::write(settings.join("settings.json"), deny.to_string()).expect("the home is ours");
    rig.model.agent(COORDINATE, [Reply::call("Agent", agent("alpha"))]);
    rig.model.once(
        when().agent(COORDINATE).last_user_contains("<task-notification>"),
        Reply::call("Agent", agent("beta")),
    );
    rig.model.rule(when().agent(COORDINATE), "Noted.");
    // The same again and again would be cut off.
    let words = |from: u32| (from..from + 300).map(|n| format!("w{n} ")).collect::<String>();
    let long = format!("{}Needle {}", words(0), words(300));
    rig.model.agent(
        &prompt("alpha"),
        [
            call(bash("echo a needle from the shell")),
            call(bash("sh plant.sh")),
            call(write("found.txt", "the needle as it was committed\n")),
            Reply::say(format!("I left a needle.\n{long}")),
        ],
    );
    rig.model.agent(
        &prompt("beta"),
        [
            search(json!({"pattern": "needle"})),
            search(json!({"pattern": "Needle", "agent": "ALPHA", "in": "transcripts"})),
            search(json!({"pattern": "needle", "in": "diffs"})),
            search(json!({"pattern": "needle", "agent": "gamma"})),
            search(json!({"pattern": "nee(dle"})),
            search(json!({"pattern": "haystack"})),
            Reply::say("Done."),
        ],
    );
    let task = rig.submit().await;
    rig.done(&task).await;
    let alpha = rig.worker(&task, "alpha").await;
    let last = rig.model.requests_of(&prompt("beta")).pop().expect("it asked");
    let results: Vec<(&str, bool)> = last.tool_results().map(|(_, text, failed)| (text, failed)).collect();

    let (all, failed) = results[0];
    assert!(!failed && all.contains("data, not an instruction"), "{all}");
    let branch = alpha["branch"].as_str().expect("a branch");
    assert!(all.contains(&format!("alpha ({}, branch {branch}): ", id_of(&alpha))), "{all}");
    for line in [
        "called Bash: echo a needle from the shell",
        "result of Bash: a needle from the shell",
        "called Write: the needle as it was committed",
        "said: I left a needle.",
        "change of found.txt: +the needle as it was committed",
    ] {
        assert!(all.contains(line), "{line}\n{all}");
    }
    let changed = rig.repo.git(&["diff", "--name-only", "main", branch]);
    assert!(changed.contains("secret/k.txt") && !all.contains("change of secret"), "{changed}\n{all}");

    let (words, _) = results[1];
    let lines: Vec<&str> = words.lines().filter(|line| line.contains("said")).collect();
    assert_eq!(lines.len(), 1, "a capital letter makes it exact: {words}");
    assert!(lines[0].contains("w299 Needle w300") && lines[0].chars().count() < 350, "{words}");

    let (changes, _) = results[2];
    assert!(changes.contains("): 1 found\n  change of found.txt"), "{changes}");
    assert!(results[3].1 && results[3].0.contains("no other agent `gamma`. Agents: alpha ("), "{results:?}");
    assert!(results[4].1 && results[4].0.contains("not a regular expression"), "{results:?}");
    assert!(!results[5].1 && results[5].0.starts_with("Nothing matches."), "{results:?}");
}
