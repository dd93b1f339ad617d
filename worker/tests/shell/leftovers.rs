//! What commands leave running: it is ended and named, unless it is a job.

use crate::support::{DEADLINE, Fixture, Stranger, has, until};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use worker::sandbox::{Network, Tier};
use worker::shell::processes::find_by_env_marker;
use worker::shell::{CommandExit, CommandOutcome, CommandRequest, JobStatus};

fn names(killed: &[worker::shell::ProcessInfo]) -> Vec<&str> {
    let mut names: Vec<&str> = killed.iter().map(|process| process.command.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn x01_a_background_process_does_not_hold_the_call() {
    let fixture = Fixture::new();
    let begin = Instant::now();
    let outcome = fixture.outcome("sleep 600 & echo ok").await;
    assert_eq!(outcome.output.text, "ok\n");
    assert_eq!(outcome.exit, CommandExit::Code(0));
    assert_eq!(outcome.killed.len(), 1, "{outcome:?}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn what_ends_by_itself_is_left_to_finish() {
    let fixture = Fixture::new();
    let outcome = fixture.outcome("echo text > >(cat; echo done)").await;
    assert_eq!(outcome.output.text, "text\ndone\n");
    assert_eq!(outcome.killed, []);
}

#[tokio::test]
async fn servers_daemons_and_sessions_are_ended_and_their_port_is_free() {
    let fixture = Fixture::with(|config| config.policy.network = Network::On);
    let stranger = Stranger::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!(
        "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\", \
         LocalPort => {port}, ReuseAddr => 1) or die $!; print \"up\\n\"; sleep 1000' "
    );
    // A server, a daemon by double fork with an emptied environment, and a session that ignores SIGTERM.
    let line = format!(
        "({server} >up &); (env -i setsid /bin/sleep 1051 &) ; \
         (trap '' TERM; setsid sleep 1052 >/dev/null 2>&1 &); \
         while ! [ -s up ]; do sleep 0.02; done; \
         until grep -aq ^/bin/sleep.1051 /proc/*/cmdline && grep -aq ^sleep.1052 /proc/*/cmdline; \
         do sleep 0.02; done 2>/dev/null; cat up"
    );
    let line = line.replace("print", "$|=1; print");
    let outcome = fixture.outcome(&line).await;
    assert_eq!(outcome.output.text, "up\n", "{outcome:?}");
    let names = names(&outcome.killed);
    assert!(names.contains(&"/bin/sleep 1051") && names.contains(&"sleep 1052"), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("perl")), "{names:?}");
    assert_eq!(outcome.survivors, []);
    TcpListener::bind(("127.0.0.1", port)).unwrap();
    assert!(stranger.is_alive());
}

#[tokio::test]
async fn a_time_out_ends_the_whole_tree() {
    let fixture = Fixture::new();
    let outcome = fixture
        .request(CommandRequest {
            timeout: Duration::from_secs(2),
            ..CommandRequest::new("cd /; trap '' TERM; (trap '' TERM; sleep 1061 & sleep 1062); sleep 1063")
        })
        .await;
    assert_eq!(outcome.exit, CommandExit::TimedOut);
    assert!(names(&outcome.killed).contains(&"sleep 1061"), "{outcome:?}");
    assert_eq!(outcome.survivors, []);
}

#[tokio::test]
async fn a_dropped_call_ends_its_command() {
    let run_id = uuid::Uuid::new_v4().to_string();
    let fixture = Fixture::with(|config| config.run_id.clone_from(&run_id));
    let alive = || find_by_env_marker("SWARM_RUN", &run_id).len();
    {
        let run = fixture.outcome("sleep 1070");
        let started = until("the command runs", || alive() >= 2);
        tokio::select! {
            outcome = run => panic!("it ended: {outcome:?}"),
            () = started => {}
        }
    }
    until("the command is gone", || alive() == 0).await;
}

/// Writes into `w` and cannot be asked to end.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; while :; do echo x >>w; sleep 0.01; done) & wait";

#[tokio::test]
async fn a_cancelled_command_gets_less_time_than_one_that_took_too_long() {
    let fixture = Fixture::with(|config| config.stop_grace = Duration::from_secs(20));
    let cancel = tokio_util::sync::CancellationToken::new();
    let run = fixture.shell.run(CommandRequest::new(STUBBORN), &cancel, None);
    let stop = async {
        until("it writes", || fixture.tree().join("w").exists()).await;
        cancel.cancel();
        Instant::now()
    };
    let (outcome, begin) = tokio::join!(run, stop);
    assert_eq!(outcome.exit, CommandExit::Cancelled);
    assert_eq!(outcome.survivors, []);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_dropped_call_is_waited_for_until_nothing_of_it_writes() {
    let run_id = uuid::Uuid::new_v4().to_string();
    let fixture = Fixture::with(|config| config.run_id.clone_from(&run_id));
    {
        let run = fixture.outcome(STUBBORN);
        let started = until("it writes", || fixture.tree().join("w").exists());
        tokio::select! {
            outcome = run => panic!("it ended: {outcome:?}"),
            () = started => {}
        }
    }
    assert!(!fixture.shell.settle(Duration::ZERO).await, "it is counted");
    assert!(fixture.shell.settle(DEADLINE).await);
    assert_eq!(find_by_env_marker("SWARM_RUN", &run_id), []);
    assert!(fixture.shell.settle(Duration::ZERO).await);
    assert_eq!(fixture.render("echo on").await, "exit code 0: on");
}

/// Kills the helper of a command that left something in a session of its own. Answers with what the shell
/// made of it, once nothing of the run is left.
async fn helper_killed(tier: Tier) -> CommandOutcome {
    let run_id = uuid::Uuid::new_v4().to_string();
    let fixture = Fixture::on(tier, |config| config.run_id.clone_from(&run_id));
    let of_run = || find_by_env_marker("SWARM_RUN", &run_id);
    let own = std::process::id().cast_signed();
    let kill_helper = async {
        until("the command is there", || fixture.tree().join("there").exists()).await;
        let helper = of_run().into_iter().find(|stat| stat.parent == own).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(helper.pid), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
    };
    let run = fixture.outcome("setsid sleep 1080 & touch there; sleep 1081");
    let (outcome, ()) = tokio::join!(run, kill_helper);
    assert!(matches!(outcome.exit, CommandExit::Signal { number: 9, .. }), "{outcome:?}");
    until("nothing of the run is left", || of_run().is_empty()).await;
    outcome
}

#[tokio::test]
async fn the_tree_is_found_when_its_helper_is_killed() {
    if has(Tier::Landlock) {
        let outcome = helper_killed(Tier::Landlock).await;
        assert!(!outcome.killed.is_empty(), "{outcome:?}");
    }
}

#[tokio::test]
async fn the_kernel_ends_what_is_in_namespaces_when_their_helper_is_killed() {
    if has(Tier::Namespaces) {
        // Whoever looks first after the kernel has done it may find nothing to name.
        assert_eq!(helper_killed(Tier::Namespaces).await.survivors, []);
    }
}

#[tokio::test]
async fn the_end_of_a_jobs_output_is_its_end_and_what_is_not_kept_is_counted() {
    let fixture = Fixture::with(|config| config.output.spill_bytes = 400_000);
    let shell = &fixture.shell;
    let id = shell.spawn_background(CommandRequest::new("seq 60000; echo the end")).await.unwrap();
    tokio::time::timeout(DEADLINE, shell.next_job_end()).await.unwrap();
    let tail = shell.job_tail(id, 0, 100).unwrap();
    assert!(tail.text.ends_with("\n60000\nthe end\n") && tail.text.len() <= 100, "{tail:?}");
    assert_eq!((tail.left_out > 300_000, tail.remaining, tail.not_kept), (true, 0, 0));
    assert_eq!(shell.job_tail(id, tail.next, 100).unwrap().text, "");
    assert_eq!(shell.job_tail(id, tail.next - 8, 100).unwrap().text, "the end\n");
    let id = shell.spawn_background(CommandRequest::new("seq 100000")).await.unwrap();
    tokio::time::timeout(DEADLINE, shell.next_job_end()).await.unwrap();
    let tail = shell.job_tail(id, 0, 100).unwrap();
    assert_eq!((tail.next, tail.not_kept), (400_000, 588_895 - 400_000));
    assert!(shell.jobs().iter().any(|job| job.id == id && !job.is_whole));
}

#[tokio::test]
async fn jobs_outlive_the_call_and_end_on_request() {
    let fixture = Fixture::new();
    let shell = &fixture.shell;
    assert_eq!(fixture.render("export V=inherited").await, "exit code 0: ");
    let request = CommandRequest::new(
        "echo $V; while ! [ -e go ]; do sleep 0.02; done; printf '\\xe4\\xbd'; sleep 1090 & exit 3",
    );
    let id = shell.spawn_background(request).await.unwrap();
    until("the first line", || shell.job_output(id, 0).unwrap().text == "inherited\n").await;
    let output = shell.job_output(id, 0).unwrap();
    assert_eq!(output.status, JobStatus::Running);
    assert_eq!(shell.job_output(id, output.next).unwrap().text, "");
    assert_eq!(fixture.render("touch go").await, "exit code 0: ");
    let ended = tokio::time::timeout(DEADLINE, shell.next_job_end()).await.unwrap();
    assert_eq!(ended, id);
    let output = shell.job_output(id, output.next).unwrap();
    assert_eq!(output.text, "\u{fffd}");
    assert_eq!(output.remaining, 0);
    let JobStatus::Ended(end) = output.status else {
        panic!("{output:?}");
    };
    assert_eq!(end.exit, CommandExit::Code(3));
    assert_eq!(end.killed.len(), 1, "{end:?}");

    let id = shell.spawn_background(CommandRequest::new("sleep 1091")).await.unwrap();
    let other = shell.spawn_background(CommandRequest::new("sleep 1092")).await.unwrap();
    assert!(shell.has_running_jobs());
    assert_eq!(shell.kill_job(id).await.unwrap().exit, CommandExit::Cancelled);
    assert_eq!(shell.kill_all_jobs().await.len(), 1);
    assert!(!shell.has_running_jobs());
    assert_eq!(shell.jobs().len(), 3);
    let mut ends = [shell.next_job_end().await, shell.next_job_end().await];
    ends.sort_unstable();
    assert_eq!(ends, [id, other]);
}

#[tokio::test]
async fn a_dropped_shell_ends_its_jobs() {
    let run_id = uuid::Uuid::new_v4().to_string();
    let fixture = Fixture::with(|config| config.run_id.clone_from(&run_id));
    let alive = || find_by_env_marker("SWARM_RUN", &run_id).len();
    fixture.shell.spawn_background(CommandRequest::new("sleep 1100")).await.unwrap();
    until("the job runs", || alive() >= 2).await;
    drop(fixture);
    until("the job is gone", || alive() == 0).await;
}

#[tokio::test]
async fn a_process_whose_first_thread_has_ended_is_ended_too() {
    let fixture = Fixture::new();
    // `exit` rather than `exit_group`: it ends the thread alone.
    let exit = nix::libc::SYS_exit;
    let program = format!(
        "import ctypes, threading, time\n\
         threading.Thread(target=lambda: time.sleep(1000)).start()\n\
         open('up', 'w').close()\n\
         ctypes.CDLL(None).syscall({exit}, 0)\n"
    );
    std::fs::write(fixture.tree().join("threads.py"), program).unwrap();
    let outcome =
        fixture.outcome("/usr/bin/python3 threads.py & while ! [ -e up ]; do sleep 0.02; done").await;
    assert_eq!(outcome.killed.len(), 1, "{outcome:?}");
    assert_eq!(outcome.survivors, []);
}
