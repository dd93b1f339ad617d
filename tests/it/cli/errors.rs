//! Bad input: one clear message with what to do, the right exit code, and nothing left behind.

use std::{ffi::OsStr, fs, net::TcpListener, os::unix::ffi::OsStrExt as _};

use integration_tests::{ModelServer, Reply, SwarmHome, TestRepo, when};
use serde_json::{Value, json};

use super::{Shell, assert_error};
use crate::rig::COORDINATE;

/// The same for programs: one line, of this code; the words stand on stderr too.
#[track_caller]
fn assert_error_line(finished: &integration_tests::swarm::Finished, code: &str) {
    let [line] = &finished.json_lines()[..] else { panic!("not one line: {}", finished.stdout) };
    assert_eq!((&line["v"], &line["kind"], &line["code"]), (&json!(1), &json!("error"), &json!(code)));
    assert_eq!((&line["seq"], &line["session_id"]), (&Value::Null, &Value::Null));
    assert!(line["at"].as_str().is_some_and(|at| at.parse::<jiff::Timestamp>().is_ok()), "{line}");
    let message = line["message"].as_str().expect("a message");
    assert!(finished.stderr.contains(message), "{}", finished.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_model_is_configured() {
    let model = ModelServer::start();
    let shell = Shell { home: SwarmHome::without_model(), repo: TestRepo::new(), model };
    let says = ["SWARM_MODEL", "swarm.toml", "ANTHROPIC_API_KEY", "--model demo"];
    assert_error(shell.run(&["run", "do it"]).await, 3, "no_model", &says);
    assert_error_line(&shell.run(&["run", "--json", "do it"]).await.expect_code(3), "no_model");
    shell.assert_untouched().await;
    assert!(!shell.home.path().exists(), "a home was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn not_a_repository() {
    let shell = Shell::new();
    let outside = shell.home.user_home();
    let finished = shell.home.run(&outside, &["run", "do it"]).await;
    assert_error(finished, 2, "not_a_repository", &["not in a git repository", "git init"]);
    let finished = shell.home.run(&outside, &["run", "--json", "do it"]).await.expect_code(2);
    assert_error_line(&finished, "not_a_repository");
    let nowhere = shell.run(&["run", "--repo", "/nowhere/at/all", "do it"]).await;
    assert_error(nowhere, 2, "not_a_repository", &["/nowhere/at/all"]);
    shell.assert_untouched().await;
    assert!(!shell.home.path().exists(), "a home was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_14_a_path_that_is_not_utf_8_is_refused_by_its_name_and_nothing_else_is_taken_for_it() {
    let mut shell = Shell::new();
    let plain = shell.home.user_home().join("plain");
    shell.repo.git(&["clone", "-q", ".", &plain.to_string_lossy()]);
    // Inside another repository, which must not be taken instead.
    let odd = shell.repo.path().join(OsStr::from_bytes(b"odd-\xff"));
    fs::rename(&plain, &odd).expect("both are ours");
    let says = ["not valid UTF-8", "odd-\u{fffd}", "rename"];
    assert_error(shell.home.run(&odd, &["run", "do it"]).await, 2, "not_utf8", &says);
    let finished = shell.home.run(&odd, &["run", "--json", "do it"]).await.expect_code(2);
    assert_error_line(&finished, "not_utf8");
    // A worktree at a usual path, whose `.git` file leads there.
    let linked = shell.home.user_home().join("linked");
    shell.repo.git_in(&odd, &["worktree", "add", "-q", "--detach", &linked.to_string_lossy()]);
    assert_error(shell.home.run(&linked, &["run", "do it"]).await, 2, "not_utf8", &says);
    assert!(!shell.home.path().exists(), "a home was made");

    let strange = shell.home.user_home().join(OsStr::from_bytes(b"home-\xff"));
    fs::create_dir(&strange).expect("it is ours");
    shell.home.set("SWARM_HOME", &strange);
    for arguments in [&["run", "do it"][..], &["ps"], &["serve"]] {
        let finished = shell.home.run(shell.repo.path(), arguments).await;
        assert_error(finished, 2, "not_utf8", &["SWARM_HOME", "home-\u{fffd}"]);
    }
    shell.home.unset("SWARM_HOME");
    assert!(!shell.home.user_home().join(".swarm").exists(), "the default was not taken instead");
    shell.home.set("HOME", &strange);
    assert_error(shell.run(&["run", "do it"]).await, 2, "not_utf8", &["$HOME", "home-\u{fffd}"]);
    assert_eq!(fs::read_dir(&strange).expect("it is there").count(), 0);
    assert!(shell.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_without_a_commit() {
    let shell = Shell::of(TestRepo::empty(), ModelServer::start());
    let says = ["has no commit yet", "git commit --allow-empty -m start"];
    assert_error(shell.run(&["run", "do it"]).await, 2, "no_commit", &says);
    assert_error_line(&shell.run(&["run", "--json", "do it"]).await.expect_code(2), "no_commit");
    shell.assert_untouched().await;
    // The hint runs when pasted, and then the work does.
    shell.repo.git(&["commit", "--quiet", "--allow-empty", "-m", "start"]);
    shell.model.rule(when(), "Nothing to do.");
    shell.run(&["run", "do it"]).await.expect_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_does_not_exist() {
    let shell = Shell::new();
    shell.repo.branch("release-2");
    let says = ["no commit `relase-2`", "--base", "did you mean `release-2`"];
    assert_error(shell.run(&["run", "--base", "relase-2", "do it"]).await, 2, "bad_base", &says);
    let finished = shell.run(&["run", "--json", "--base", "relase-2", "do it"]).await.expect_code(2);
    assert_error_line(&finished, "bad_base");
    shell.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_prompt() {
    let shell = Shell::new();
    for prompt in ["", "  \n "] {
        assert_error(shell.run(&["run", prompt]).await, 2, "empty_prompt", &["swarm run"]);
        assert_error_line(&shell.run(&["run", "--json", prompt]).await.expect_code(2), "empty_prompt");
    }
    shell.assert_untouched().await;
    assert!(!shell.home.path().exists(), "a home was made");
}

/// Runs that the provider refuses: one error that begins like the first part and has the others, a failed result,
/// nothing made. Returns what was said on standard error.
async fn assert_provider_refuses(shell: &Shell, parts: &[&str]) -> String {
    let finished = shell.run(&["run", COORDINATE]).await.expect_code(3);
    assert_eq!(finished.stderr.matches("error[").count(), 1, "{}", finished.stderr);
    for part in parts {
        assert!(finished.stderr.contains(part), "`{part}` is not said:\n{}", finished.stderr);
    }
    let json = shell.run(&["run", "--json", COORDINATE]).await.expect_code(3);
    let last = json.json_lines().pop().expect("a result");
    assert_eq!((&last["kind"], &last["verdict"]), (&json!("session.result"), &json!("failed")));
    assert_eq!(last["workers"], json!([]));
    assert!(json.stderr.contains(parts[0]), "{}", json.stderr);
    assert_eq!(shell.home.worktrees(), [] as [std::path::PathBuf; 0]);
    assert_eq!(shell.repo.branches("swarm"), [] as [&str; 0]);
    for said in [&finished.stdout, &finished.stderr] {
        assert!(!said.contains(integration_tests::swarm::API_KEY));
    }
    finished.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_refused_and_the_way_on() {
    let mut shell = Shell::of(TestRepo::new(), ModelServer::builder().api_key("the-right-key").start());
    shell.model.rule(when(), "Nothing to do.");
    let parts = ["error[key_refused]: ", "HTTP 401", "ANTHROPIC_API_KEY", "swarm resume "];
    let said = assert_provider_refuses(&shell, &parts).await;
    let (_, hint) = said.split_once("swarm resume ").expect("the way on");
    let session = hint.split_whitespace().next().expect("an id").to_owned();

    // The hint runs when pasted.
    shell.home.set("ANTHROPIC_API_KEY", "the-right-key");
    let resumed = shell.run(&["resume", &session]).await.expect_code(0);
    assert!(resumed.stdout.contains("Nothing to do."), "{}", resumed.stdout);
    // Where nothing is left to do it says what came of it, and does not wait for more.
    let again = shell.run(&["resume", &session]).await.expect_code(0);
    assert!(again.stdout.contains("complete"), "{}", again.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_the_provider_does_not_know() {
    let shell = Shell::new();
    shell.model.rule(when(), Reply::error_with(404, "not_found_error", "model: test-model"));
    let parts = ["error[unknown_model]: ", "HTTP 404", "SWARM_MODEL", "swarm run --model "];
    assert_provider_refuses(&shell, &parts).await;
    // Once refused, it is not asked again and again.
    assert_eq!(shell.model.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken() {
    let shell = Shell::new();
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other.local_addr().expect("an address").port().to_string();
    let finished = shell.run(&["serve", "--port", &port]).await;
    assert_error(finished, 1, "port_taken", &[&format!("port {port}"), "--port"]);
    shell.assert_untouched().await;
    assert!(shell.home.server_file().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_version() {
    let shell = Shell::new();
    let _server = shell.start(&["serve"]);
    shell.api().await;
    let path = shell.home.path().join("server.json");
    let mut file = shell.home.server_file().expect("the server wrote it");
    file["version"] = "0.0.1-other".into();
    fs::write(&path, file.to_string()).expect("the home is ours");
    let says = ["0.0.1-other", "swarm serve --stop"];
    assert_error(shell.run(&["run", "do it"]).await, 1, "other_version", &says);
    assert_error_line(&shell.run(&["run", "--json", "do it"]).await.expect_code(1), "other_version");
    assert_eq!(shell.api().await.get("/sessions").await, json!([]));
    // The hint runs when pasted, whatever the version.
    shell.run(&["serve", "--stop", "--leave"]).await.expect_code(0);
    shell.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_cannot_be_written() {
    let mut shell = Shell::new();
    // A file where the home should be: that stops root too, whom no mode of a directory does.
    let in_the_way = shell.home.user_home().join("file");
    fs::write(&in_the_way, "mine\n").expect("the home is ours");
    shell.home.set("SWARM_HOME", in_the_way.join("swarm"));
    let says = ["cannot write", "nothing was started", "SWARM_HOME="];
    assert_error(shell.run(&["run", "do it"]).await, 1, "home_not_writable", &says);
    assert_error_line(&shell.run(&["run", "--json", "do it"]).await.expect_code(1), "home_not_writable");
    assert_error(shell.run(&["serve"]).await, 1, "home_not_writable", &["SWARM_HOME="]);
    assert_eq!(fs::read_to_string(&in_the_way).expect("it is there"), "mine\n");
    shell.assert_untouched().await;
}

/// A command whose `$SWARM_HOME` is a file system of this size, gone with the command. None where the kernel
/// lets nobody mount in a namespace of their own.
fn on_a_small_disk(shell: &Shell, size: &str, script: &str) -> Option<std::process::Output> {
    let probe = std::process::Command::new("unshare").args(["-rm", "true"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return None;
    }
    let home = shell.home.path();
    fs::create_dir_all(&home).expect("the home is ours");
    let swarm = shell.home.command(shell.repo.path(), &[]);
    let mut command = std::process::Command::new("unshare");
    let program = swarm.get_program().to_str().expect("a path of text").to_owned();
    let script = format!("mount -t tmpfs -o size={size} tmpfs \"$SWARM_HOME\" && {script}");
    command.args(["-rm", "sh", "-c", &script, &program]).current_dir(shell.repo.path()).env_clear();
    command.envs(swarm.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(std::process::Stdio::null());
    Some(command.output().expect("unshare can be started"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_on_a_full_disk() {
    let shell = Shell::new();
    let full = "dd if=/dev/zero of=\"$SWARM_HOME/full\" bs=4k 2>/dev/null; \"$0\" run 'do it'; \
                code=$?; rm \"$SWARM_HOME/full\"; ls -A \"$SWARM_HOME\"; exit $code";
    let Some(output) = on_a_small_disk(&shell, "64k", full) else {
        // Without namespaces the same error comes from a limit of file size zero.
        let swarm = shell.home.command(shell.repo.path(), &["run", "do it"]);
        let mut limited = std::process::Command::new("prlimit");
        limited.arg("--fsize=0").arg(swarm.get_program()).args(swarm.get_args());
        limited.current_dir(shell.repo.path()).env_clear();
        limited.envs(swarm.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = limited.output().expect("prlimit can be started");
        assert_ne!(output.status.code(), Some(0));
        shell.home.assert_no_processes().await;
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.matches("error[").count(), 1, "{stderr}");
    for part in ["error[home_not_writable]: ", "no space left on device", "0 B free", "SWARM_HOME="] {
        assert!(stderr.contains(part), "`{part}` is not said:\n{stderr}");
    }
    shell.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_while_a_server_starts_leaves_no_server() {
    let shell = Shell::new();
    // Room for the home's directories and not for a journal.
    let script = "dd if=/dev/zero of=\"$SWARM_HOME/full\" bs=4k count=12 2>/dev/null; \"$0\" run 'do it'";
    let Some(output) = on_a_small_disk(&shell, "64k", script) else { return };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.matches("error[").count(), 1, "{stderr}");
    shell.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_do_not_parse_are_named_with_file_and_line() {
    let shell = Shell::new();
    let check = async |file: &str, text: &str, says: &[&str]| {
        shell.repo.write(file, text).commit("settings");
        assert_error(shell.run(&["run", "do it"]).await, 2, "bad_config", says);
        assert_error_line(&shell.run(&["run", "--json", "do it"]).await.expect_code(2), "bad_config");
        shell.assert_untouched().await;
        std::fs::remove_file(shell.repo.path().join(file)).expect("it is there");
    };
    check("swarm.toml", "# settings\nmax_workers = \"many\"\n", &["max_workers", "swarm.toml:2:15", "^"])
        .await;
    check("swarm.toml", "max_workers = 3\nsetup = [\n", &["swarm.toml:2"]).await;
    check("swarm.toml", "\n\nmax_wrokers = 3\n", &["max_wrokers", "swarm.toml:3", "max_workers"]).await;
    check(".claude/settings.json", "{\n  \"permissions\": {\n", &["settings.json:3"]).await;
    check(
        ".claude/settings.json",
        "{\n  \"permissions\": {\"allow\": [\"Bash(\"]}\n}\n",
        &["settings.json", "Bash("],
    )
    .await;
    shell.repo.commit("no settings");
    shell.home.config("model = \n");
    assert_error(shell.run(&["run", "do it"]).await, 2, "bad_config", &["config.toml:1"]);
    assert_error(shell.run(&["serve"]).await, 2, "bad_config", &["config.toml:1"]);
    shell.home.config("");
    let flag = shell.run(&["run", "--max-workers", "0", "do it"]).await;
    assert_error(flag, 2, "bad_config", &["--max-workers", "1 to 64"]);
    shell.home.assert_no_processes().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_does_not_exist_lists_what_is_near_and_does_nothing() {
    let shell = Shell::new();
    assert_error(shell.run(&["show", "h7x"]).await, 1, "unknown_id", &["no worker or session `h7x`"]);
    shell.assert_untouched().await;
    shell.one_worker(None);
    shell.done().await;
    let worker = shell.workers().await.remove(0);
    let id = super::short(&worker);
    // One sign beside the real one.
    let near: String = id.chars().take(id.len() - 1).chain(['0']).collect();
    let near = if near == id { format!("{}1", &id[..id.len() - 1]) } else { near };
    for command in ["show", "diff", "merge", "discard", "stop", "explain", "logs", "attach"] {
        let finished = shell.run(&[command, &near]).await;
        assert_error(finished, 1, "unknown_id", &[&format!("`{near}`"), &id, "alpha"]);
    }
    let finished = shell.run(&["send", &near, "hello"]).await;
    assert_error(finished, 1, "unknown_id", &[&id]);
    assert_error_line(&shell.run(&["show", "--json", &near]).await.expect_code(1), "unknown_id");
    for command in ["approve", "deny"] {
        assert_error(shell.run(&[command, "req-zzz"]).await, 1, "unknown_id", &["req-zzz"]);
    }
    // Every prefix down to the shortest unique one is the worker.
    for end in 1..=id.len() {
        let finished = shell.run(&["show", &id[..end]]).await;
        // A session's id may begin with the same digits.
        if finished.code == Some(0) {
            assert!(finished.stdout.contains("alpha"), "{}", finished.stdout);
        } else {
            assert_error(finished, 1, "ambiguous_id", &[&id]);
        }
    }
    shell.run(&["show", "alpha"]).await.expect_code(0);
    assert_eq!(shell.workers().await[0]["discarded"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_home() {
    let shell = Shell::new();
    let first = shell.start(&["serve"]);
    shell.api().await;
    let process = shell.home.server_process().expect("it runs");
    let says = [&*process.pid.to_string(), "swarm serve --stop"];
    assert_error(shell.run(&["serve"]).await, 1, "home_taken", &says);
    assert!(process.is_alive());
    let file = shell.home.server_file().expect("it is still the first one's");
    assert_eq!(file["process"]["pid"], process.pid);
    assert_eq!(shell.api().await.get("/sessions").await, json!([]));
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_later_is_refused_by_name() {
    let shell = Shell::new();
    for command in ["ask", "compact", "clear", "pr", "search", "top", "replay", "backup", "node", "mcp"] {
        let finished = shell.run(&[command, "x", "--deep"]).await;
        assert_error(finished, 2, "not_available", &[&format!("swarm {command}")]);
    }
    assert_error(shell.run(&["run", "--no-hooks", "do it"]).await, 2, "not_available", &["no-hooks"]);
    assert_error_line(
        &shell.run(&["run", "--json", "--no-hooks", "x"]).await.expect_code(2),
        "not_available",
    );
    // What nobody ever promised is a mistake of usage, with what is near.
    assert_error(shell.run(&["merg", "x"]).await, 2, "usage", &["merge"]);
    assert_error(shell.run(&["run", "--modle", "demo", "x"]).await, 2, "usage", &["--model"]);
    let version = shell.run(&["run", "--json=2", "x"]).await.expect_code(2);
    assert_error_line(&version, "usage");
    assert!(version.stderr.contains("version 1"), "{}", version.stderr);
    shell.assert_untouched().await;
}
