//! More than a hundred ways out of the sandbox, on each tier, by one program that tries them all
//! (`ways_out.py`). Its own word is not enough: what is outside is compared before and after.

use crate::escapes::{git, linked_worktree};
use crate::support::{Fixture, Stranger, has, helper, until};
use nix::libc;
use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use worker::sandbox::{SystemPaths, Tier};
use worker::shell::processes::find_by_env_marker;
use worker::shell::{CommandExit, CommandRequest};

const PROGRAM: &str = include_str!("ways_out.py");
const SECRETS: [&str; 8] = [
    "home/.ssh/id_ed25519",
    "home/.aws/credentials",
    "home/.gnupg/secring.gpg",
    "home/.netrc",
    "home/.config/gh/hosts.yml",
    "home/.docker/config.json",
    "swarm/token",
    "swarm/config.toml",
];
const SOCKETS: [&str; 6] = [
    "outside/docker.sock",
    "outside/tmux-0",
    "outside/bus",
    "home/.ssh/agent",
    "swarm/socket",
    "main/.git/fsmonitor--daemon.ipc",
];

/// What tier 2 does not hold, as `swarm doctor` says.
const NOT_HELD_BY_TIER_2: [&str; 9] = [
    "a repository of one's own behind the worktree's",
    "another .git file in the worktree",
    "chmod outside",
    "chown outside",
    "configuration of the worktree",
    "priority of a process outside",
    "shared memory with programs outside",
    "utime outside",
    "xattr outside",
];

#[derive(serde::Deserialize)]
struct Tried {
    way: String,
    out: bool,
    detail: String,
}

/// Content of every file below `root` that commands have no business with; with the metadata that tier 1 holds.
fn outside(root: &Path, with_metadata: bool) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = ["outside", "home", "swarm", "main"].map(|name| root.join(name)).to_vec();
    while let Some(path) = left.pop() {
        // Its own part of git's directory is the command's.
        if path.ends_with("main/.git/worktrees/tree") {
            continue;
        }
        let metadata = path.symlink_metadata().unwrap();
        let mut text = format!("{:?}", metadata.file_type());
        if with_metadata {
            text.push_str(&format!(" {:o} {} {}", metadata.mode(), metadata.uid(), metadata.mtime()));
        }
        if metadata.is_dir() {
            left.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else if metadata.is_file() {
            text.push_str(&format!(" {:?}", std::fs::read(&path).unwrap()));
        }
        found.insert(path, text);
    }
    found
}

fn calls() -> BTreeMap<&'static str, libc::c_long> {
    BTreeMap::from([
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("mount", libc::SYS_mount),
        ("umount2", libc::SYS_umount2),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("open_tree", libc::SYS_open_tree),
        ("move_mount", libc::SYS_move_mount),
        ("fsopen", libc::SYS_fsopen),
        ("pivot_root", libc::SYS_pivot_root),
        ("unshare", libc::SYS_unshare),
        ("clone", libc::SYS_clone),
        ("clone3", libc::SYS_clone3),
        ("setns", libc::SYS_setns),
        ("pidfd_open", libc::SYS_pidfd_open),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("process_madvise", libc::SYS_process_madvise),
        ("prlimit64", libc::SYS_prlimit64),
        ("kcmp", libc::SYS_kcmp),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("keyctl", libc::SYS_keyctl),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("kexec_load", libc::SYS_kexec_load),
        ("kexec_file_load", libc::SYS_kexec_file_load),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("reboot", libc::SYS_reboot),
        ("swapon", libc::SYS_swapon),
        ("acct", libc::SYS_acct),
        ("syslog", libc::SYS_syslog),
        ("settimeofday", libc::SYS_settimeofday),
        ("adjtimex", libc::SYS_adjtimex),
        ("clock_settime", libc::SYS_clock_settime),
        ("sethostname", libc::SYS_sethostname),
        ("quotactl", libc::SYS_quotactl),
        ("fanotify_init", libc::SYS_fanotify_init),
    ])
}

/// Tries everything on `tier`; answers with the ways that led out.
async fn tried_on(tier: Tier) -> Vec<String> {
    let run_id = uuid::Uuid::new_v4().to_string();
    let fixture = Fixture::on(tier, |config| {
        config.run_id.clone_from(&run_id);
        let root = config.policy.worktree.parent().unwrap().to_owned();
        for name in SECRETS.iter().chain(&["outside/file", "swarm/transcript.jsonl"]) {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "secret").unwrap();
        }
        linked_worktree(config);
        git(&root.join("main"), &["worktree", "add", "-q", "--detach", root.join("other").to_str().unwrap()]);
        let home = root.join("home");
        config.policy.system = SystemPaths::with_home(&home);
        config.policy.system.unreadable.push(root.join("swarm"));
        config.environment.set("HOME", &home);
        config.policy.home = Some(home);
        let git_dir = config.git_dir.clone().unwrap();
        config.policy.protected =
            ["commondir", "config.worktree", "gitdir"].map(|name| git_dir.join(name)).to_vec();
        config.policy.protected.push(config.policy.worktree.join(".git"));
    });
    let root = fixture.root();
    let name = format!("swarm-ways-out-{run_id}");
    let abstract_socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut listeners = vec![abstract_socket];
    listeners.extend(SOCKETS.map(|path| UnixListener::bind(root.join(path)).unwrap()));
    let letters = format!("{name}-letters");
    let letter_boxes = [
        UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&letters).unwrap()).unwrap(),
        UnixDatagram::bind(root.join("outside/letters")).unwrap(),
    ];
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = Stranger::new();
    let git_dir = root.join("main/.git/worktrees/tree");
    let text = |name: &str| root.join(name).to_str().unwrap().to_owned();
    // Of this process alone: others may run the same beside it.
    let nap = 100_000 + std::process::id();
    let world = serde_json::json!({
        "tier": u8::from(tier),
        "outside": text("outside"),
        "common": text("main/.git"),
        "git_dir": git_dir,
        "tree": text("tree"),
        "transcript": text("swarm/transcript.jsonl"),
        "secrets": SECRETS.map(text),
        "sockets": SOCKETS.map(text),
        "stranger": stranger.pid(),
        "worker": std::process::id(),
        "nap": nap,
        "abstract": name,
        "datagrams": [letters, text("outside/letters")],
        "tcp": server.local_addr().unwrap().port(),
        "udp": datagrams.local_addr().unwrap().port(),
        "shm": name,
        "shm_device": Path::new("/dev/shm").metadata().unwrap().dev(),
        "calls": calls(),
    });
    std::fs::write(fixture.tree().join("world.json"), world.to_string()).unwrap();
    std::fs::write(fixture.tree().join("ways_out.py"), PROGRAM).unwrap();
    let before = outside(&root, tier == Tier::Namespaces);

    let request = CommandRequest::new("/usr/bin/python3 ways_out.py world.json > tried; echo $?");
    let outcome = fixture.request(request).await;
    assert_eq!(outcome.exit, CommandExit::Code(0), "{outcome:?}");
    assert_eq!(outcome.output.text, "0\n", "{outcome:?}");
    let tried: Vec<Tried> = std::fs::read_to_string(fixture.tree().join("tried"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    println!("tier {}: {} ways tried", u8::from(tier), tried.len());
    assert!(tried.len() > 100, "{}", tried.len());

    let after = outside(&root, tier == Tier::Namespaces);
    for (path, content) in &before {
        assert_eq!(after.get(path), Some(content), "{}", path.display());
    }
    assert_eq!(after.len(), before.len(), "{:?}", after.keys().collect::<Vec<_>>());
    assert!(stranger.is_alive());
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "{listener:?}");
    }
    for letter_box in &letter_boxes {
        letter_box.set_nonblocking(true).unwrap();
        assert!(letter_box.recv(&mut [0]).is_err(), "{letter_box:?}");
    }
    server.set_nonblocking(true).unwrap();
    assert!(server.accept().is_err());
    datagrams.set_nonblocking(true).unwrap();
    assert!(datagrams.recv(&mut [0]).is_err());
    assert_eq!(outcome.survivors, []);
    until("nothing of the run is left", || find_by_env_marker("SWARM_RUN", &run_id).is_empty()).await;
    let kept = worker::shell::processes::live_processes();
    let stays = |pid: i32| worker::shell::processes::command_of(pid) == format!("sleep {nap}");
    assert!(!kept.iter().any(|stat| stays(stat.pid)));
    let _absent: std::io::Result<()> = std::fs::remove_file(Path::new("/dev/shm").join(&name));

    let mut out: Vec<String> = tried
        .into_iter()
        .filter(|tried| tried.out)
        .map(|tried| {
            println!("out: {} ({})", tried.way, tried.detail);
            tried.way
        })
        .collect();
    out.sort_unstable();
    out
}

#[tokio::test]
async fn every_way_out_is_refused_on_tier_1() {
    if has(Tier::Namespaces) {
        assert_eq!(tried_on(Tier::Namespaces).await, Vec::<String>::new());
    }
}

/// Exactly those that it does not claim to refuse: one more is a hole, one less a promise to be made.
#[tokio::test]
async fn every_way_out_is_refused_on_tier_2_but_those_it_does_not_claim() {
    if has(Tier::Landlock) {
        let mut out = tried_on(Tier::Landlock).await;
        // Not every file system has extended attributes.
        let mut expected = NOT_HELD_BY_TIER_2.to_vec();
        if !out.iter().any(|way| way == "xattr outside") {
            expected.retain(|way| *way != "xattr outside");
        }
        // A process of root outside has capabilities that root inside has not.
        if nix::unistd::geteuid().is_root() {
            expected.retain(|way| *way != "priority of a process outside");
        }
        out.sort_unstable();
        assert_eq!(out, expected);
    }
}

/// Root's tests again as a user who may do nothing: there the sandbox is made in other ways.
#[test]
fn a_user_who_may_do_nothing_is_confined_as_well() {
    const NOBODY: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let world =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    world(dir.path(), 0o777);
    // The originals may stand where that user cannot go.
    let tests = dir.path().join("tests");
    let program = dir.path().join("swarm-worker");
    std::fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    std::fs::copy(helper(), &program).unwrap();
    let temp = dir.path().join("tmp");
    std::fs::create_dir(&temp).unwrap();
    world(&temp, 0o777);
    let output = Command::new(&tests)
        .args(["ways_out::every_way_out", "limits::", "--nocapture", "--test-threads", "1"])
        .env("SWARM_TEST_HELPER", &program)
        .env("TMPDIR", &temp)
        .env("HOME", &temp)
        .current_dir(&temp)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // A name that matches nothing would succeed as well.
    assert!(text.contains("every_way_out_is_refused_on_tier_1 ... "), "{text}");
}
