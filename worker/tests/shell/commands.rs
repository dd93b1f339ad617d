//! What a command sees and leaves (cases X01 to X23).

use crate::support::{Fixture, has};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use worker::sandbox::Tier;
use worker::shell::{CommandExit, CommandRequest, CwdNote};

#[tokio::test]
async fn what_wildcards_name_does_not_change_from_command_to_command() {
    let fixture = Fixture::new();
    let told = "touch .hidden shown; export GLOBIGNORE=x; shopt -s dotglob";
    assert_eq!(fixture.request(CommandRequest::new(told)).await.exit, CommandExit::Code(0));
    let named = fixture.request(CommandRequest::new("echo *")).await;
    assert_eq!(named.output.text, "shown\n");
}

#[tokio::test]
async fn a_variable_that_is_taken_away_stays_away() {
    let fixture = Fixture::with(|config| {
        config.environment.set("GIVEN", "value");
    });
    let text = async |command: &str| fixture.request(CommandRequest::new(command)).await.output.text;
    assert_eq!(text("echo ${GIVEN-gone}; unset GIVEN").await, "value\n");
    assert_eq!(text("echo ${GIVEN-gone}").await, "gone\n");
    assert_eq!(text("export GIVEN=; echo ${GIVEN-gone}").await, "\n");
    assert_eq!(text("echo [${GIVEN-gone}]; export -n GIVEN").await, "[]\n");
    assert_eq!(text("env | grep -c GIVEN; export GIVEN=again").await, "0\n");
    assert_eq!(text("echo ${GIVEN-gone}").await, "again\n");
}

#[tokio::test]
async fn state_that_a_command_removes_is_missed_in_words() {
    let fixture = Fixture::new();
    let run = async |command: &str| fixture.request(CommandRequest::new(command)).await;
    assert_eq!(run("export KEPT=1").await.cwd_note, None);
    assert_eq!(run("rm -rf \"$TMPDIR\"/*").await.cwd_note, Some(CwdNote::StateGone));
    let next = run("echo ${KEPT-gone}; export KEPT=2").await;
    assert_eq!((next.output.text.as_str(), next.cwd_note), ("gone\n", None));
    assert_eq!(run("echo $KEPT").await.output.text, "2\n");
}

#[tokio::test]
async fn state_is_carried_over() {
    let fixture = Fixture::new();
    let line = "mkdir -p 'a b' && cd 'a b' && export X=$'1\\n2\\'' && f() { echo \"f $1\"; }; unexported=1";
    assert_eq!(fixture.render(line).await, "exit code 0: ");
    assert_eq!(
        fixture.render("echo \"$X\"; f z; echo ${PWD##*/}${unexported-none}").await,
        "exit code 0: 1\n2'\nf z\na bnone"
    );
    assert_eq!(fixture.render("cd - >/dev/null; echo ${PWD##*/}; unset X").await, "exit code 0: tree");
    assert_eq!(fixture.render("echo ${X-gone} ${PWD##*/}").await, "exit code 0: gone tree");
}

#[tokio::test]
async fn state_survives_every_kind_of_end() {
    let fixture = Fixture::new();
    let check = async |line: &str, code: i32, value: &str| {
        let outcome = fixture.outcome(line).await;
        assert_eq!(outcome.exit, CommandExit::Code(code), "{line}: {outcome:?}");
        let seen = fixture.render("echo $V").await;
        assert_eq!(seen, format!("exit code 0: {value}"), "{line}");
    };
    check("export V=1; exit 3", 3, "1").await;
    check("export V=2; exit 300", 44, "2").await;
    check("set -e; export V=3; false; export V=no", 1, "3").await;
    check("set -euo pipefail; export V=4; echo $unset", 1, "4").await;
    check("export V=5\nif then", 2, "5").await;
    check("f() { export V=6; exit 7; }; f", 7, "6").await;
    check("set -C; set -x; export V=7", 0, "7").await;
    check("trap 'echo bye' EXIT; export V=8", 0, "8").await;
    check("(exit 9); export V=$?", 0, "9").await;
    check("export V=no; exec true", 0, "9").await;
    let outcome = fixture.outcome("export V=no; kill -9 $$").await;
    assert_eq!(outcome.exit.to_string(), "killed by SIGKILL (9)");
    assert_eq!(outcome.cwd_note, Some(CwdNote::NotCaptured));
    check("true", 0, "9").await;
}

#[tokio::test]
async fn errors_name_the_line_of_the_command() {
    let fixture = Fixture::new();
    let text = fixture.render("true\nno-such-program").await;
    assert_eq!(text, "exit code 127: bash: line 2: no-such-program: command not found");
}

#[tokio::test]
async fn x13_a_directory_outside_is_reported_and_left() {
    let fixture = Fixture::new();
    assert_eq!(fixture.render("mkdir a && cd a").await, "exit code 0: ");
    assert_eq!(
        fixture.render("pwd; cd ..").await,
        format!("exit code 0: {}", fixture.tree().join("a").display())
    );
    let outcome = fixture.outcome("cd /etc && pwd").await;
    assert_eq!(outcome.output.text, "/etc\n");
    assert_eq!(outcome.cwd, fixture.tree());
    assert_eq!(outcome.cwd_note, Some(CwdNote::Outside { asked: "/etc".into() }));
    assert_eq!(fixture.render("pwd").await, format!("exit code 0: {}", fixture.tree().display()));
}

#[tokio::test]
async fn a_directory_that_vanished_is_reported_and_left() {
    let fixture = Fixture::new();
    let outcome = fixture.outcome("mkdir d && cd d && rmdir ../d").await;
    assert!(matches!(outcome.cwd_note, Some(CwdNote::Vanished { .. })), "{outcome:?}");
    assert!(fixture.outcome("mkdir e && cd e").await.cwd.ends_with("e"));
    std::fs::remove_dir(fixture.tree().join("e")).unwrap();
    let outcome = fixture.outcome("pwd").await;
    assert!(matches!(outcome.cwd_note, Some(CwdNote::Vanished { .. })), "{outcome:?}");
    assert_eq!(outcome.cwd, fixture.tree());
}

#[tokio::test]
async fn x02_x04_x05_nobody_is_there_to_answer() {
    let fixture = Fixture::new();
    assert_eq!(fixture.render("cat; cat /dev/stdin; read x || echo none").await, "exit code 0: none");
    let text = fixture.render("read -p 'ok? ' x </dev/tty").await;
    assert!(text.starts_with("exit code 1: "), "{text}");
    let text = fixture.render("git init -q . && git config commit.gpgsign false && git -c user.name=a -c user.email=b commit --allow-empty").await;
    assert!(text.contains("false") && !text.starts_with("exit code 0"), "{text}");
}

#[tokio::test]
async fn x22_exits_are_told_apart() {
    let fixture = Fixture::new();
    assert_eq!(fixture.render("exit 300").await, "exit code 44: ");
    let text = fixture.render("sleep 100 & kill -9 $!; wait $!").await;
    assert!(text.starts_with("exit code 137 (killed by SIGKILL)"), "{text}");
    assert_eq!(fixture.render("kill -TERM $$").await, "killed by SIGTERM (15): ");
}

#[tokio::test]
async fn x23_secrets_of_the_parent_stay_there() {
    let fixture = Fixture::with(|config| {
        let parent = [("PATH", "/usr/bin:/bin"), ("OPENAI_API_KEY", "sesame")];
        config.environment =
            worker::shell::Environment::filtered(parent.map(|(name, value)| (name.into(), value.into())));
        config.environment.set("SWARM_PORT_BASE", "41000");
        config.run_id = "run-1".to_owned();
    });
    let text = fixture.render("env; tr '\\0' '\\n' </proc/$PPID/environ").await;
    assert!(!text.contains("sesame"), "{text}");
    for variable in ["SWARM_RUN=run-1", "SWARM_PORT_BASE=41000", "TMPDIR=", "GIT_TERMINAL_PROMPT=0"] {
        assert!(text.contains(variable), "{variable} is not in {text}");
    }
}

#[tokio::test]
async fn x10_what_cannot_start_says_so_at_once() {
    let fixture = Fixture::with(|config| config.bash = "/no/such/bash".into());
    let outcome = fixture.outcome("true").await;
    assert!(
        matches!(&outcome.exit, CommandExit::NotStarted { message } if message.contains("/no/such/bash")),
        "{outcome:?}"
    );
    let fixture = Fixture::with(|config| config.helper = "/no/such/helper".into());
    let outcome = fixture.outcome("true").await;
    assert!(matches!(outcome.exit, CommandExit::NotStarted { .. }), "{outcome:?}");
    let fixture = Fixture::new();
    let outcome = fixture.outcome(&"x".repeat(200_000)).await;
    assert!(matches!(outcome.exit, CommandExit::NotStarted { .. }), "{outcome:?}");
}

#[tokio::test]
async fn x14_x16_x17_x19_output_is_text() {
    let fixture = Fixture::new();
    assert_eq!(fixture.render(r"printf '\xc4\xe3'").await, "exit code 0: 你");
    assert_eq!(fixture.render(r"printf '\xe4\xbd'; printf '\xa0'").await, "exit code 0: 你");
    let outcome = fixture.outcome(r"printf '\e[2J\e]0;t\a10%%\r20%%\r100%%\n'").await;
    assert_eq!(outcome.output.text, "100%\n");
    let raw = std::fs::read(outcome.output.spill.unwrap()).unwrap();
    assert_eq!(raw, b"\x1b[2J\x1b]0;t\x0710%\r20%\r100%\n");
    assert_eq!(fixture.render(r"printf 'a\0b'").await, "exit code 0: a\u{2400}b");
    let outcome = fixture.outcome("head -c 1M /dev/urandom").await;
    assert_eq!(outcome.output.total_bytes, 1 << 20);
    let json = serde_json::to_string(&outcome.output.text).unwrap();
    assert_eq!(serde_json::from_str::<String>(&json).unwrap(), outcome.output.text);
    let spill = outcome.output.spill.unwrap();
    let meta = std::fs::metadata(&spill).unwrap();
    assert_eq!(meta.len(), 1 << 20);
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777, 0o600);
}

#[tokio::test]
async fn both_streams_come_in_order() {
    let fixture = Fixture::new();
    assert_eq!(
        fixture.render("for i in 1 2 3; do echo out$i; echo err$i >&2; done").await,
        "exit code 0: out1\nerr1\nout2\nerr2\nout3\nerr3"
    );
}

#[tokio::test]
async fn x20_a_stopped_git_is_gone_and_its_lock_is_named() {
    let fixture = Fixture::with(|config| {
        config.git_dir = Some(config.policy.worktree.join(".git"));
    });
    let made = fixture.outcome("git init -q . && mkdir bin && printf '#!/bin/sh\\n>.git/index.lock\\nsleep 1000\\n' >bin/git && chmod +x bin/git").await;
    assert_eq!(made.exit, CommandExit::Code(0), "{made:?}");
    let outcome = fixture
        .request(CommandRequest {
            timeout: Duration::from_secs(1),
            ..CommandRequest::new("PATH=$PWD/bin:$PATH git commit")
        })
        .await;
    assert_eq!(outcome.exit, CommandExit::TimedOut, "{outcome:?}");
    assert_eq!(outcome.stale_lock, Some(fixture.tree().join(".git/index.lock")));
    assert_eq!(outcome.survivors, []);
}

#[tokio::test]
async fn a_cancelled_command_ends_with_what_it_said() {
    let fixture = Fixture::new();
    let cancel = CancellationToken::new();
    let (sender, mut progress) = tokio::sync::mpsc::channel(1);
    let run = fixture.shell.run(CommandRequest::new("echo begun; sleep 1000"), &cancel, Some(sender));
    let watch = async {
        let seen = progress.recv().await.unwrap();
        assert_eq!(seen.text, "begun\n");
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(run, watch);
    assert_eq!(outcome.exit, CommandExit::Cancelled);
    assert_eq!(outcome.output.text, "begun\n");
}

#[tokio::test]
async fn x08_a_thousand_commands_leave_no_zombie() {
    let fixture = Fixture::new();
    let begin = std::time::Instant::now();
    for _ in 0..1000 {
        let outcome = fixture.outcome("true").await;
        assert_eq!(outcome.exit, CommandExit::Code(0));
    }
    println!("a command takes {:?}", begin.elapsed() / 1000);
    let own = std::process::id().cast_signed();
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        worker::shell::processes::stat_of(pid).filter(|stat| stat.parent == own)
    });
    assert_eq!(children.collect::<Vec<_>>(), []);
    assert_eq!(std::fs::read_dir(fixture.root().join("output")).unwrap().count(), 0);
}

/// They share a temp directory, in which the places that they see below `/tmp` are made by whoever needs them first.
#[tokio::test]
async fn commands_that_begin_at_once_do_not_trip_over_each_other() {
    if !has(Tier::Namespaces) {
        return;
    }
    for _ in 0..3 {
        let fixture = Fixture::on(Tier::Namespaces, |config| {
            let root = config.policy.worktree.parent().unwrap().to_owned();
            for n in 0..30 {
                let place = root.join(format!("outside/{n}/a/b/c"));
                std::fs::create_dir_all(&place).unwrap();
                config.policy.readable.push(place);
            }
        });
        let outcomes = futures::future::join_all((0..8).map(|_| fixture.outcome("true"))).await;
        for outcome in outcomes {
            assert_eq!(outcome.exit, CommandExit::Code(0), "{}", outcome.output.text);
        }
    }
}

/// The figures are for who reads the output; that it ends is what is tested.
#[tokio::test]
async fn what_a_command_costs_on_each_tier() {
    const COMMANDS: u32 = 20;
    for tier in [Tier::Unconfined, Tier::Landlock, Tier::Namespaces] {
        if tier != Tier::Unconfined && !has(tier) {
            continue;
        }
        let fixture = Fixture::on(tier, |_| {});
        let mut times = Vec::new();
        for _ in 0..COMMANDS {
            let begin = std::time::Instant::now();
            assert_eq!(fixture.outcome("true").await.exit, CommandExit::Code(0));
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        println!("tier {}: a command takes {:?} (median)", u8::from(tier), times[times.len() / 2]);
    }
}
