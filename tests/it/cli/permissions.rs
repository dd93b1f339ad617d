//! `swarm permissions explain`: the answer that a worker would give, and where it comes from.

use serde_json::{Value, json};

use super::Shell;

/// Settings of a repository that nobody trusts, and of the user.
fn shell() -> Shell {
    let shell = Shell::new();
    shell.repo.write(
        ".claude/settings.json",
        "{\n  \"permissions\": {\n    \"deny\": [\n      \"Bash(curl *)\",\n      \"Read(.env)\"\n    ],\n    \"allow\": [\"Bash(make *)\"]\n  }\n}\n",
    );
    let user = shell.home.user_home().join(".claude");
    std::fs::create_dir_all(&user).expect("the home is ours");
    let rules = json!({"permissions": {"allow": ["Bash(git *)", "Bash(curl *)", "Bash(sudo *)"], "ask": ["Bash(git push *)"]}});
    std::fs::write(
        user.join("settings.json"),
        serde_json::to_string_pretty(&rules).expect("the home is ours"),
    )
    .expect("the home is ours");
    shell
}

/// What `--json` says, as one object.
async fn explained(shell: &Shell, arguments: &[&str]) -> Value {
    let mut all = vec!["permissions", "explain", "--json"];
    all.extend(arguments);
    let finished = shell.run(&all).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(finished.stdout.trim()).expect("one line of JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_explained_by_the_rule_its_file_and_line_or_by_the_default() {
    let shell = shell();
    let check = async |call: &[&str], behavior: &str, by: &str, because: &str| {
        let line = explained(&shell, call).await;
        let found = (line["behavior"].as_str().unwrap(), line["decided_by"].as_str().unwrap());
        assert_eq!(found, (behavior, by), "{call:?}: {line:#}");
        assert!(line["because"].as_str().unwrap().contains(because), "{call:?}: {line:#}");
        line
    };
    // A refusal of the repository's own file counts without trust; the user's permission is overruled.
    let line = check(&["Bash(curl example.com)"], "deny", "rule", ".claude/settings.json:4").await;
    let rules: Vec<(&str, u64, &str)> = line["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            let origin = &rule["rule"]["origin"];
            let file = origin["file"].as_str().unwrap();
            (
                file.rsplit('/').nth(2).unwrap_or(file),
                origin["line"].as_u64().unwrap(),
                rule["part"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        rules.iter().map(|(_, line, part)| (*line, *part)).collect::<Vec<_>>(),
        [(4, "decides"), (5, "overruled")]
    );
    assert!(
        line["ignored"].to_string().contains("allow Bash(make *) is ignored: the repository is not trusted"),
        "{line:#}"
    );

    check(&["Bash(git push origin main)"], "ask", "rule", "`Bash(git push *)`").await;
    check(&["--unattended", "Bash(git push origin main)"], "deny", "rule", "nobody can be asked").await;
    check(&["Bash(git log)"], "allow", "rule", "`Bash(git *)`").await;
    let line = check(&["Bash(sudo ls)"], "ask", "dangerous_form", "another user").await;
    assert_eq!(line["rules"][0]["part"], "overruled", "{line:#}");
    check(&["--no-sandbox", "Bash(make all)"], "ask", "dangerous_form", "the worktree's files").await;
    check(&["--no-sandbox", "Bash(ls)"], "allow", "read_only_set", "only reads").await;
    check(&["Bash(echo $(x))"], "ask", "too_complex", "a command substitution").await;
    check(&["Read(.env)"], "deny", "rule", ".claude/settings.json:5").await;
    check(&["Write(.ENV)"], "deny", "rule", ".claude/settings.json:5").await;
    check(&["Edit(README.md)"], "allow", "permission_mode", "acceptEdits").await;
    check(&["--permission-mode", "plan", "Edit(README.md)"], "deny", "permission_mode", "plan").await;
    check(&["--permission-mode", "default", "Edit(README.md)"], "ask", "no_rule", "no rule allows it").await;
    check(&["Edit(.git/config)"], "ask", "protected_path", "configures git").await;
    check(&["Edit(/elsewhere/x)"], "ask", "outside_worktree", "outside the worktree").await;
    check(&["WebFetch(https://example.com/x)"], "ask", "no_rule", "no rule").await;
    check(&["mcp__server__tool"], "ask", "no_rule", "no rule").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_the_same_and_a_call_that_is_none_is_a_mistake() {
    let shell = shell();
    let finished = shell.run(&["permissions", "explain", "Bash(curl example.com)"]).await;
    for part in [
        "Bash(curl example.com) is refused",
        "deny Bash(curl *) (",
        ".claude/settings.json:4): decides",
        "allow Bash(curl *) (",
        "matches, but something stronger decides",
        "acceptEdits (default",
        "is ignored: the repository is not trusted: swarm trust",
    ] {
        assert!(finished.stdout.contains(part), "`{part}` is not in\n{}", finished.stdout);
    }
    let finished = shell.run(&["permissions", "explain", "git push"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("Bash(git push)"), "{}", finished.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn p34_a_rule_that_does_not_parse_is_shown_with_file_line_and_column() {
    let shell = Shell::new();
    shell.repo.write(
        ".claude/settings.json",
        "{\n  \"permissions\": {\n    \"deny\": [\"Read(file:///etc/passwd)\"]\n  }\n}\n",
    );
    for arguments in [&["permissions", "explain", "Bash(ls)"][..], &["run", "--model", "demo", "x"][..]] {
        let finished = shell.run(arguments).await;
        assert_eq!(finished.code, Some(2), "{finished:?}");
        for part in ["Read(file:///etc/passwd)", ".claude/settings.json:3:"] {
            assert!(finished.stderr.contains(part), "`{part}` is not in\n{}", finished.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_repository_tracks_is_nobodys_own_whatever_its_ignore_file_says() {
    let wild =
        json!({"permissions": {"allow": ["Bash(make *)"], "defaultMode": "bypassPermissions"}}).to_string();
    let local = ".claude/settings.local.json";
    let check = async |shell: &Shell, behavior: &str, what: &str| {
        let line = explained(shell, &["--no-sandbox", "Bash(make x)"]).await;
        assert_eq!(line["behavior"], behavior, "{what}: {line:#}");
    };
    let shell = Shell::new();
    shell.repo.write(".gitignore", format!("{local}\nother\n"));
    shell.repo.commit("ignore");
    shell.repo.write(local, &wild);
    check(&shell, "allow", "a person's own file").await;
    shell.repo.git(&["add", "-f", local]);
    check(&shell, "ask", "tracked").await;
    shell.repo.commit("force");
    check(&shell, "ask", "committed").await;

    // Links that lead to what is tracked, and a directory that is one.
    let shell = Shell::new();
    shell.repo.write(".gitignore", format!("{local}\n.claude\n"));
    shell.repo.write("evil/settings.local.json", &wild);
    std::os::unix::fs::symlink("evil", shell.repo.path().join(".claude")).expect("the repository is ours");
    check(&shell, "ask", "a linked directory").await;
    std::fs::remove_file(shell.repo.path().join(".claude")).expect("it was made");
    std::fs::create_dir(shell.repo.path().join(".claude")).expect("the repository is ours");
    let link = shell.repo.path().join(local);
    std::os::unix::fs::symlink("../evil/settings.local.json", link).expect("the repository is ours");
    check(&shell, "ask", "a linked file").await;
}
