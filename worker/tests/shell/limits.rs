//! What a command may use of the machine. Each is tried on every tier, by the kernel's means where it has some,
//! by looking where it has none.

use crate::support::{Fixture, has};
use std::time::Duration;
use worker::sandbox::{Limits, Tier};
use worker::shell::{CommandExit, CommandOutcome, CommandRequest};

const MIB: u64 = 1 << 20;

fn tiers() -> Vec<Tier> {
    [Tier::Namespaces, Tier::Landlock].into_iter().filter(|tier| has(*tier)).collect()
}

async fn outcome(tier: Tier, limits: Limits, command: &str) -> CommandOutcome {
    let fixture = Fixture::on(tier, |config| config.policy.limits = limits);
    let request = CommandRequest { timeout: Duration::from_secs(20), ..CommandRequest::new(command) };
    fixture.request(request).await
}

/// A refusal that the program heard of, or an end that says why.
fn is_bounded(outcome: &CommandOutcome, refusals: &[&str]) -> bool {
    let text = &outcome.output.text;
    let is_told = text.contains("processes of this command were ended: it had more than");
    assert_ne!(outcome.exit, CommandExit::TimedOut, "{outcome:?}");
    assert_eq!(outcome.survivors, [], "{outcome:?}");
    is_told || refusals.iter().any(|refusal| text.contains(refusal))
}

#[tokio::test]
async fn a_fork_bomb_stays_small() {
    for tier in tiers() {
        let limits = Limits { processes: Some(100), ..Limits::default() };
        let outcome = outcome(
            tier,
            limits,
            "/usr/bin/python3 -c '\nimport os, time\nn = 0\ntry:\n    while n < 3000:\n        if os.fork() == 0: time.sleep(1000)\n        \
             n += 1\nexcept OSError as error: print(error)\nprint(\"forked\", n < 200)\n'",
        )
        .await;
        assert!(is_bounded(&outcome, &["forked True"]), "{tier:?} {outcome:?}");
    }
}

#[tokio::test]
async fn a_memory_bomb_is_ended() {
    for tier in tiers() {
        let limits = Limits { memory_bytes: Some(200 * MIB), ..Limits::default() };
        // Several together, so that no limit of one process helps.
        let command = "for n in 1 2 3 4; do /usr/bin/python3 -c '\nimport time\nkept = []\nfor _ in range(150):\n    \
                       kept.append(b\"x\" * (1 << 20))\n    time.sleep(0.01)\ntime.sleep(5)\nprint(\"kept\", \"it all\")' & done; wait";
        let outcome = outcome(tier, limits, command).await;
        assert!(is_bounded(&outcome, &[]), "{tier:?} {outcome:?}");
        assert!(outcome.output.text.matches("kept it all").count() < 4, "{tier:?} {outcome:?}");
    }
}

#[tokio::test]
async fn files_in_memory_count_as_memory() {
    // Not mapped by anybody, so that they are in no process's own figures.
    let nameless = "import os, time\nfile = os.memfd_create(\"bomb\")\n";
    // On tier 2 it is everybody's, and stays there.
    let path = format!("/dev/shm/swarm-bomb-{}", std::process::id());
    let named = format!("import os, time\nfile = os.open(\"{path}\", os.O_RDWR | os.O_CREAT)\n");
    let fill = "for _ in range(400):\n    os.write(file, b\"x\" * (1 << 20))\n    time.sleep(0.005)\n\
                time.sleep(5)\nprint(\"kept\", \"it all\")";
    for tier in tiers() {
        for (open, refusals) in [(nameless, &[][..]), (&*named, &["No space left", "Permission denied"][..])]
        {
            let limits = Limits { memory_bytes: Some(200 * MIB), ..Limits::default() };
            let outcome = outcome(tier, limits, &format!("/usr/bin/python3 -c '\n{open}{fill}'")).await;
            let _absent: std::io::Result<()> = std::fs::remove_file(&path);
            assert!(is_bounded(&outcome, refusals), "{tier:?} {outcome:?}");
            assert!(!outcome.output.text.contains("kept it all"), "{tier:?} {outcome:?}");
        }
    }
}

#[tokio::test]
async fn files_and_the_temp_directory_have_an_end() {
    for tier in tiers() {
        let limits = Limits { file_bytes: Some(8 * MIB), ..Limits::default() };
        let one = outcome(tier, limits, "head -c 20000000 /dev/zero >file; echo $?; stat -c %s file").await;
        assert!(one.output.text.contains("8388608"), "{tier:?} {one:?}");
        let limits = Limits { temp_bytes: Some(32 * MIB), ..Limits::default() };
        let command =
            "for n in $(seq 400); do head -c 1000000 /dev/zero >$TMPDIR/$n; sleep 0.01; done; echo all";
        let many = outcome(tier, limits, command).await;
        assert!(is_bounded(&many, &[]) && !many.output.text.contains("all\n"), "{tier:?} {many:?}");
    }
}

#[tokio::test]
async fn descriptors_and_seconds_have_an_end() {
    for tier in tiers() {
        let limits = Limits { open_files: Some(64), ..Limits::default() };
        let command = "/usr/bin/python3 -c '\nimport os\nn = 0\ntry:\n    while n < 5000: os.open(\"/dev/null\", 0); n += 1\n\
                       except OSError as error: print(error, n < 64)'";
        let many = outcome(tier, limits, command).await;
        assert!(many.output.text.contains("Too many open files: '/dev/null' True"), "{tier:?} {many:?}");
        let limits = Limits { cpu_seconds: Some(1), ..Limits::default() };
        let long = outcome(tier, limits, "while :; do :; done").await;
        assert!(matches!(long.exit, CommandExit::Signal { number: 9 | 24, .. }), "{tier:?} {long:?}");
    }
}
