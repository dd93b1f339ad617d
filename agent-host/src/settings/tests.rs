use std::time::Duration;

use expect_test::{Expect, expect};
use swarm_protocol::{
    launch::ApiKind,
    permission::{PermissionMode, RuleBehavior},
};

use super::*;

mod claude;
mod tools;

fn toml(path: &str, text: &str) -> TomlText {
    TomlText { path: path.into(), text: text.into() }
}

fn home(text: &str) -> Result<Config, ConfigError> {
    let file = toml("~/.swarm/config.toml", text);
    Config::new(&ConfigInputs { home: Some(&file), ..ConfigInputs::default() })
}

/// An error as the command line shows it.
fn check_error(file: &str, text: &str, expected: Expect) {
    let file = toml(file, text);
    let error =
        Config::new(&ConfigInputs { repository: Some(&file), ..ConfigInputs::default() }).unwrap_err();
    expected.assert_eq(&render(&error));
}

fn render(error: &ConfigError) -> String {
    let mut out = format!("error[bad_config]: {error}");
    if let Some(cause) = error.cause() {
        out += &format!("\n  cause: {}", cause.replace('\n', "\n         "));
    }
    if let Some(hint) = &error.hint {
        out += &format!("\n  hint:  {hint}");
    }
    out
}

#[test]
fn defaults_need_no_file() {
    let config = Config::new(&ConfigInputs::default()).unwrap();
    assert_eq!(config.model, None);
    assert_eq!((config.max_workers, config.max_workers_per_server), (8, 32));
    assert_eq!((config.limits_free_memory_mib, config.limits_free_disk_mib), (256, 512));
    assert_eq!(
        (config.worker_max_turns, config.coordinator_max_turns, config.worker_restarts),
        (500, 200, 1)
    );
    assert_eq!(config.permission_mode, PermissionMode::AcceptEdits);
    assert_eq!(config.permission_timeout, Duration::from_secs(600));
    assert!(config.sandbox_auto_allow && !config.sandbox_network);
    assert_eq!(config.sandbox_required, 0);
    assert_eq!(config.sandbox, swarm_protocol::launch::SandboxSettings::default());
    assert_eq!(config.worktree_branch_prefix, "swarm");
    assert_eq!(config.worktree_port_base, 41_000);
    assert_eq!(config.server_idle_exit, Duration::from_secs(30 * 60));
    assert_eq!(config.server_tasks_per_minute, 120);
    assert_eq!(config.background_grace, Duration::from_secs(10 * 60));
    assert_eq!(config.notification_window, Duration::from_millis(50));
    assert_eq!(config.max_tool_concurrency, 10);
    assert_eq!(config.cli_notify, Notify::Bell);
    assert!(config.explain().iter().all(|value| value.source == Source::Default));
}

#[test]
fn the_example_of_the_command_line_reference() {
    check_error(
        "swarm.toml",
        "# one\n# two\n# three\n# four\n# five\n# six\nmax_workers = \"many\"\n",
        expect![[r#"
            error[bad_config]: max_workers must be a number from 1 to 64
              cause: swarm.toml:7:15
                     7 | max_workers = "many"
                       |               ^^^^^^
              hint:  max_workers = 3"#]],
    );
}

#[test]
fn errors_say_where_and_how() {
    check_error(
        "swarm.toml",
        "max_worker = 3",
        expect![[r#"
            error[bad_config]: there is no setting `max_worker`
              cause: swarm.toml:1:1
                     1 | max_worker = 3
                       | ^^^^^^^^^^
              hint:  did you mean `max_workers`?"#]],
    );
    check_error(
        "swarm.toml",
        "[worker]\nmax_turn = 3",
        expect![[r#"
            error[bad_config]: there is no setting `worker.max_turn`
              cause: swarm.toml:2:1
                     2 | max_turn = 3
                       | ^^^^^^^^
              hint:  did you mean `worker.max_turns`?"#]],
    );
    check_error(
        "swarm.toml",
        "max_turns = 3",
        expect![[r#"
            error[bad_config]: there is no setting `max_turns`
              cause: swarm.toml:1:1
                     1 | max_turns = 3
                       | ^^^^^^^^^
              hint:  did you mean `coordinator.max_turns`?"#]],
    );
    check_error(
        "swarm.toml",
        "budget_minutes = 3",
        expect![[r#"
            error[bad_config]: `budget_minutes` is not available yet
              cause: swarm.toml:1:1
                     1 | budget_minutes = 3
                       | ^^^^^^^^^^^^^^
              hint:  remove `budget_minutes`"#]],
    );
    check_error(
        "swarm.toml",
        "[server]\nport = 80",
        expect![[r#"
            error[bad_config]: `server.port` belongs in config.toml, not in a repository's swarm.toml
              cause: swarm.toml:2:1
                     2 | port = 80
                       | ^^^^"#]],
    );
    check_error(
        "swarm.toml",
        "model = claude",
        expect![[r#"
            error[bad_config]: the file is not TOML: string values must be quoted, expected literal string
              cause: swarm.toml:1:9
                     1 | model = claude
                       |         ^^^^^^"#]],
    );
    check_error(
        "swarm.toml",
        "sandbox = { network = \"lan\" }",
        expect![[r#"
            error[bad_config]: sandbox.network must be "off", "on" or a list of hosts
              cause: swarm.toml:1:23
                     1 | sandbox = { network = "lan" }
                       |                       ^^^^^
              hint:  network = "off""#]],
    );
}

#[test]
fn wrong_values_of_each_kind() {
    for text in [
        "max_workers = 0",
        "max_workers = 65",
        "max_workers = 3.5",
        "max_workers = 99999999999999999999",
        "budget_usd = 0",
        "budget_usd = -1.0",
        "budget_usd = nan",
        "budget_usd = inf",
        "budget_usd = \"5\"",
        "budget_tokens = 0",
        "budget_tokens = 1.5",
        "worker.budget_usd = 1e7",
        "permission_timeout = \"10\"",
        "permission_timeout = \"10 parsecs\"",
        "permission_timeout = 10",
        "permission_timeout = \"2d\"",
        "permission_mode = \"yolo\"",
        "permission_mode = \"dontAsk\"",
        "model = \"claude\"",
        "model = \"anthropic/\"",
        "worktree.branch_prefix = \"a..b\"",
        "worktree.branch_prefix = \"-x\"",
        "worktree.branch_prefix = \"\"",
        "worktree.root = \"relative\"",
        "setup = [1]",
        "setup = \"\"",
        "sandbox.required = 3",
        "sandbox.tier = 3",
        "sandbox.writable = [\"relative\"]",
        "sandbox.network = [\"https://crates.io\"]",
        "sandbox.network = [\"a..b\"]",
        "sandbox.network = [\"a:port\"]",
        "max_workers = 1979-05-27",
        "max_workers = [1]",
        "model = {}",
    ] {
        assert!(home(text).is_err(), "{text}");
    }
}

#[test]
fn settings_of_a_later_version_are_refused_and_not_ignored() {
    for text in [
        "hints = false",
        "retention.transcripts = \"9d\"",
        "[retention]\nsnapshots = \"7d\"",
        "otel.on = true",
    ] {
        let error = home(text).unwrap_err();
        assert!(matches!(error.problem, ConfigProblem::NotAvailable { .. }), "{text}: {error:?}");
    }
}

#[test]
fn a_repository_lowers_a_cap_and_never_raises_one() {
    let check = |home: &str, repository: &str, flags: &[&str], expected: (Option<f64>, Option<u64>)| {
        let home = toml("~/.swarm/config.toml", home);
        let repository = toml("swarm.toml", repository);
        let flags: Vec<Flag> = flags
            .iter()
            .map(|value| Flag {
                flag: "--budget-usd".into(),
                key: "budget_usd".into(),
                value: (*value).into(),
            })
            .collect();
        for repository_is_trusted in [true, false] {
            let config = Config::new(&ConfigInputs {
                home: Some(&home),
                repository: Some(&repository),
                repository_is_trusted,
                env: &[],
                flags: &flags,
            })
            .unwrap();
            assert_eq!((config.budget_usd, config.worker_budget_tokens), expected);
        }
    };
    let none = (None, None);
    check("", "", &[], none);
    check("budget_usd = 5", "worker.budget_tokens = 9", &[], (Some(5.0), Some(9)));
    check("budget_usd = 5", "budget_usd = 2.5", &[], (Some(2.5), None));
    check("budget_usd = 5", "budget_usd = 50", &[], (Some(5.0), None));
    check("worker.budget_tokens = 100", "worker.budget_tokens = 1_000", &[], (None, Some(100)));
    check("budget_usd = 5", "budget_usd = 2", &["10"], (Some(10.0), None));
}

#[test]
fn levels_and_their_sources() {
    let home = toml("~/.swarm/config.toml", "max_workers = 2\nmodel = \"anthropic/a\"\nworker.max_turns = 7");
    let repository = toml("swarm.toml", "\nmax_workers = 3\nsetup = \"npm ci\"");
    let env = [("SWARM_MAX_WORKERS".to_owned(), "4".to_owned()), ("SWARM_HOME".to_owned(), "/x".to_owned())];
    let flags = [Flag { flag: "--max-workers".into(), key: "max_workers".into(), value: "5".into() }];
    let mut inputs = ConfigInputs {
        home: Some(&home),
        repository: Some(&repository),
        repository_is_trusted: true,
        env: &env,
        flags: &flags,
    };
    let config = Config::new(&inputs).unwrap();
    assert_eq!(config.max_workers, 5);
    assert_eq!(config.setup, ["npm ci"]);
    let line = config.explain().iter().find(|value| value.key == "max_workers").unwrap();
    let overrides: Vec<String> =
        line.overrides.iter().map(|(value, source)| format!("{value} {source}")).collect();
    assert_eq!(line.source, Source::Flag("--max-workers".into()));
    assert_eq!(overrides, ["4 SWARM_MAX_WORKERS", "3 swarm.toml:2", "2 ~/.swarm/config.toml:1", "8 default"]);

    inputs.repository_is_trusted = false;
    inputs.flags = &[];
    inputs.env = &[];
    let config = Config::new(&inputs).unwrap();
    assert_eq!(config.max_workers, 3, "what widens nothing counts");
    assert!(config.setup.is_empty());
    let line = config.explain().iter().find(|value| value.key == "setup").unwrap();
    assert_eq!(
        line.ignored,
        Some(("[\"npm ci\"]".into(), Source::File { path: "swarm.toml".into(), line: 3 }))
    );
    assert_eq!(config.source("model").unwrap().to_string(), "~/.swarm/config.toml:2");
}

#[test]
fn variables_and_flags_that_are_wrong() {
    let env = [("SWARM_MAX_WORKERS".to_owned(), "many".to_owned())];
    let error = Config::new(&ConfigInputs { env: &env, ..ConfigInputs::default() }).unwrap_err();
    expect![[r#"
        error[bad_config]: max_workers must be a number from 1 to 64
          cause: SWARM_MAX_WORKERS
          hint:  SWARM_MAX_WORKERS=3"#]]
    .assert_eq(&render(&error));
    let flags = [Flag { flag: "--permission-mode".into(), key: "permission_mode".into(), value: "x".into() }];
    let error = Config::new(&ConfigInputs { flags: &flags, ..ConfigInputs::default() }).unwrap_err();
    expect![[r#"
        error[bad_config]: permission_mode must be "default", "acceptEdits", "plan", "auto" or "bypassPermissions"
          cause: --permission-mode
          hint:  --permission-mode acceptEdits"#]]
    .assert_eq(&render(&error));
}

#[test]
fn endpoint_profiles() {
    let config = home(
        r#"
        [endpoints.local]
        api = "chat"
        base_url = "http://127.0.0.1:8000/v1/"
        [endpoints.proxy]
        api = "anthropic"
        base_url = "https://proxy.example"
        key_env = "PROXY_KEY"
        bearer = true
        headers = { X-Team = "a" }
        max_output = 8000
        context_window = 100000
        max_request_bytes = 5_000_000
        defer_tools = true
        first_byte_timeout = "5m"
        price = { input = 3, output = 15.0 }
        "#,
    )
    .unwrap();
    let local = &config.endpoints["local"];
    assert_eq!((local.api, local.base_url.as_str()), (ApiKind::Chat, "http://127.0.0.1:8000/v1"));
    let proxy = &config.endpoints["proxy"];
    assert_eq!(proxy.headers["x-team"], "a");
    assert_eq!((proxy.max_request_bytes, local.max_request_bytes), (Some(5_000_000), None));
    assert_eq!((proxy.defer_tools, local.defer_tools), (Some(true), None));
    assert_eq!(proxy.first_byte_timeout, Some(Duration::from_secs(300)));
    assert_eq!(proxy.price.unwrap().cache_read, 3.0);
    assert_eq!(proxy.source.to_string(), "~/.swarm/config.toml:6");
    for (text, expected) in [
        ("[endpoints.a]\napi = \"chat\"", "the endpoint `a` needs base_url = \"https://...\""),
        (
            "[endpoints.a]\nbase_url = \"ftp://x\"",
            "endpoints.a.base_url must be a URL that begins with https:// or http://",
        ),
        (
            "[endpoints.a]\nkey_env = \"sk-123\"",
            "endpoints.a.key_env must be the name of an environment variable, not the key itself",
        ),
        ("[endpoints.a]\nbase_ulr = \"x\"", "there is no setting `endpoints.a.base_ulr`"),
        ("endpoints = 3", "endpoints must be a table such as [endpoints.local]"),
    ] {
        assert_eq!(home(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn every_default_and_example_fits_its_key() {
    for key in &keys::KEYS {
        home(&format!("{} = {}", key.name, key.example)).unwrap();
    }
}

#[test]
fn places_in_texts_with_wide_characters_tabs_and_ends() {
    let place = Place::of("p", "ä\tö = 1\n", 3..5);
    assert_eq!((place.line, place.column), (1, 3));
    assert_eq!(place.to_string(), "p:1:3\n1 | ä ö = 1\n  |   ^");
    assert_eq!(Place::of("p", "", 0..0).width, 1);
    assert_eq!(Place::of("p", "a\n", 99..120).line, 2);
}

#[test]
fn how_a_terminal_is_told() {
    for (text, expected) in [("bell", Notify::Bell), ("osc9", Notify::Osc9), ("off", Notify::Off)] {
        let file = toml("config.toml", &format!("[cli]\nnotify = \"{text}\"\n"));
        let config = Config::new(&ConfigInputs { home: Some(&file), ..ConfigInputs::default() }).unwrap();
        assert_eq!(config.cli_notify, expected);
    }
    check_error(
        "swarm.toml",
        "cli.notify = \"osc99\"\n",
        expect![[r#"
            error[bad_config]: cli.notify must be "bell", "osc9" or "off"
              cause: swarm.toml:1:14
                     1 | cli.notify = "osc99"
                       |              ^^^^^^^
              hint:  notify = "osc9""#]],
    );
}
