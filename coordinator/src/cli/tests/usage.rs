//! What is wrong is said before anything is started, and leaves nothing behind.

use expect_test::{Expect, expect};

use super::*;

fn check(world: &World, arguments: &[&str], exit: u8, expected: &Expect) {
    let (code, out, err) = world.swarm(arguments);
    assert_eq!(code, exit, "{err}");
    assert_eq!(out, "");
    expected.assert_eq(&err);
    assert!(!world.directory.path().join("home").exists(), "nothing is left behind");
}

#[test]
fn no_model() {
    check(
        &World::new(),
        &["run", "do it"],
        3,
        &expect![[r#"
            error[no_model]: no model is configured
              cause: looked at --model, SWARM_MODEL, swarm.toml, ~/home/config.toml
              hint:  set ANTHROPIC_API_KEY and pass --model anthropic/NAME, or see it work: swarm run --model demo
        "#]],
    );
}

#[test]
fn not_a_repository() {
    let world = World::new();
    let notes = world.directory.path().join("notes");
    std::fs::create_dir(&notes).unwrap();
    let (exit, _, err) = world.swarm_in(&notes, &["run", "--model", "demo", "do it"]);
    assert_eq!(exit, 2);
    expect![[r#"
        error[not_a_repository]: ~/notes is not in a git repository
          cause: no .git here or above
          hint:  cd into one, pass --repo PATH, or: git init
    "#]]
    .assert_eq(&err);
}

#[test]
fn an_empty_prompt() {
    check(
        &World::new(),
        &["run", "--model", "demo", "  "],
        2,
        &expect![[r#"
            error[empty_prompt]: the prompt is empty
              hint:  swarm run "refactor auth module"
        "#]],
    );
}

#[test]
fn a_setting_that_is_wrong() {
    let world = World::new();
    std::fs::write(world.repository().join("swarm.toml"), "\nmax_workers = \"many\"\n").unwrap();
    check(
        &world,
        &["run", "--model", "demo", "do it"],
        2,
        &expect![[r#"
            error[bad_config]: max_workers must be a number from 1 to 64
              cause: swarm.toml:2:15
                     2 | max_workers = "many"
                       |               ^^^^^^
              hint:  max_workers = 3
        "#]],
    );
}

#[test]
fn an_id_in_a_home_that_never_saw_a_session() {
    check(
        &World::new(),
        &["show", "h7x"],
        1,
        &expect![[r#"
            error[unknown_id]: no worker or session `h7x`
              cause: nothing has run yet with ~/home
              hint:  swarm run PROMPT
        "#]],
    );
}

#[test]
fn what_comes_later_is_refused_by_name() {
    let world = World::new();
    for arguments in [
        &["top"][..],
        &["ask", "a1b", "why?"],
        &["run", "--no-hooks", "x"],
        &["merge", "--all"],
        &["merge", "a1b", "--resolve"],
        &["doctor", "--chaos"],
    ] {
        let (exit, out, err) = world.swarm(arguments);
        assert_eq!(exit, 2, "{arguments:?}");
        assert_eq!(out, "");
        assert!(err.starts_with("error[not_available]: `swarm "), "{err}");
        assert!(err.contains("is not available yet"), "{err}");
    }
}

#[test]
fn a_mistyped_command_is_guessed_at_and_nothing_is_done() {
    let (exit, _, err) = World::new().swarm(&["mrege", "a1b"]);
    assert_eq!(exit, 2);
    assert!(err.starts_with("error[usage]: unrecognized subcommand 'mrege'"), "{err}");
    assert!(err.contains("merge"), "{err}");
}

#[test]
fn programs_get_the_error_as_a_line() {
    let (exit, out, err) = World::new().swarm(&["run", "--json", "do it"]);
    assert_eq!(exit, 3);
    let line: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&line["kind"], &line["code"], &line["seq"]),
        (&"error".into(), &"no_model".into(), &Value::Null)
    );
    assert!(err.starts_with("error[no_model]"));
    let (exit, out, _) = World::new().swarm(&["ps", "--json", "--nonsense"]);
    assert_eq!(exit, 2);
    let line: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(line["code"], "usage");
}

#[test]
fn a_server_of_another_version() {
    let world = World::new();
    world.serve("99.0.0");
    let (exit, _, err) = world.swarm(&["ps"]);
    assert_eq!(exit, 1);
    assert!(
        err.starts_with("error[other_version]: a server of version 99.0.0 runs, this is swarm "),
        "{err}"
    );
    assert!(err.contains("hint:  swarm serve --stop --leave"), "{err}");
}

#[test]
fn a_home_that_cannot_be_written() {
    let mut world = World::new();
    std::fs::write(world.directory.path().join("file"), "").unwrap();
    let home = world.directory.path().join("file/home").to_str().unwrap().to_owned();
    world.variables.insert("SWARM_HOME".to_owned(), home);
    let (exit, _, err) = world.swarm(&["run", "--model", "demo", "x"]);
    assert_eq!(exit, 1);
    assert!(err.starts_with("error[home_not_writable]: cannot write ~/file/home: not a directory"), "{err}");
}

#[test]
fn settings_are_shown_with_their_source() {
    let mut world = World::new();
    world.variables.insert("SWARM_MODEL".to_owned(), "demo".to_owned());
    std::fs::write(world.repository().join("swarm.toml"), "max_workers = 3\n").unwrap();
    let (exit, out, _) = world.swarm(&["config"]);
    assert_eq!(exit, 0);
    let words = |key: &str| {
        let line = out.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words("max_workers "), "max_workers 3 swarm.toml:1 (over default 8)");
    assert_eq!(words("model "), "model \"demo\" SWARM_MODEL");
}
